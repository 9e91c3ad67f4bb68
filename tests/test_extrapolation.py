"""Test sets for interpolation and extrapolation: configs, label overlap, vectors, and draws."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Done, run
from hypothesis import given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, put_stats, tables

from baselines.measure.significance import of_means
from baselines.reproduce.extrapolation_table import gap_interval
from builders.add.extrapolation_sets import draw_restrain_sets
from builders.add.vectors import find_clusters, fixed_point, read_directions, scale
from builders.core.errors import InputError
from builders.core.files import sha256_of
from builders.store.reader import Release, open_release

TRAINS, TESTS = 60, 12


def make(folder: Path) -> tuple[Path, Path]:
    """A release with 60 training and 12 dev queries, and embeddings. Query 0 of both splits is the same."""
    generator = np.random.default_rng(7)
    counts = {"训练": ("train", TRAINS), "开发": ("dev", TESTS), "测试": ("test", 1)}
    queries = {split: [f"{name} {n}" for n in range(count)] for name, (split, count) in counts.items()}
    queries["dev"][0] = queries["train"][0]
    vectors = {md5(text): generator.normal(size=4) for texts in queries.values() for text in texts}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for split, texts in queries.items():
        rows["queries", split] = [{"_id": md5(text), "text": text} for text in texts]
        # Two positives and a negative each; the dev queries 0, 4 and 8 share one positive with training.
        judged = [
            {"query-id": md5(text), "corpus-id": md5(passage), "score": score}
            for n, text in enumerate(texts)
            for passage, score in (
                (f"{'train' if split == 'train' or n % 4 == 0 else 'dev'} {n}", 1),
                (f"{split} second {n}", 1),
                ("train 1", 0),
            )
        ]
        rows |= {("qrels", split): judged} if split != "test" else {}
    release = make_release(folder / "release", rows, rows_per_shard=1_000)
    path = folder / "vectors.parquet"
    pq.write_table(pa.table({"id": list(vectors), "vector": [[*each] for each in vectors.values()]}), path)
    return release, path


def add(*words: object) -> Done:
    return run("builders", "add", *words)


def queries_of(release: Path, config: str, split: str = "train") -> set[str]:
    return set(open_release(release).table(config, split)["query-id"].to_pylist())


def test_sets_are_added_and_overlap_is_counted(tmp_path: Path) -> None:
    release, path = make(tmp_path)
    out, again = tmp_path / "out", tmp_path / "again"
    given = ("--embeddings", path, "--release")
    for place in (out, again):  # the same command gives the same bytes
        words = ("restrain", *given, release, "--size", "15", "5", "--exclude", "2", "--format", "json", "--out", place)
        done = add(*words)
    assert (again / "manifest.json").read_text() == (out / "manifest.json").read_text()
    figures = {row["config"]: row for row in json.loads(done.stdout)}
    assert "12 test queries are many for 60 training queries. ReSTrain is for small test sets" in done.stderr
    for name in ("restrain-5", "restrain-15"):
        near, far = (figures[f"{name}-{kind}"]["nearest_cosine"] for kind in ("interpolation", "extrapolation"))
        assert near > far
    assert md5("训练 0") in queries_of(out, "restrain-15-interpolation")  # this query is also a dev query
    # In place, other sizes of restrain stay, but earlier buckets of resttest are removed.
    add("restrain", *given, out, "--size", "10", "--split", "dev", "test", "--out", out)
    for buckets in (4, 3):
        add("resttest", *given, out, "--out", out, "--buckets", buckets)
    configs = sorted({config for config, _ in open_release(out).splits() if config.startswith("rest")})
    sets = [f"restrain-{size}-{kind}" for size in (5, 10, 15) for kind in ("extrapolation", "interpolation")]
    assert configs == sorted([*sets, *(f"resttest-bucket{number}" for number in (1, 2, 3))])
    trains, dev = {md5(f"训练 {n}") for n in range(TRAINS)}, queries_of(release, "qrels", "dev")
    left_out, extrapolated = [], []
    for config in configs[-3:]:
        train, inter, extra = (queries_of(out, config, split) for split in ("train", "interpolation", "extrapolation"))
        assert train < trains and inter | extra == dev and not inter & extra and not train & extra
        left_out += trains - train
        extrapolated += extra
    assert len(left_out) == TRAINS and set(left_out) == trains  # every training query is left out once
    assert len(extrapolated) == TESTS and set(extrapolated) == dev
    card = (out / "README.md").read_text("utf-8").partition("## Interpolation and extrapolation")
    assert "- `qrels/dev`: 3 of 12 queries (25.00%)" in "".join(card)  # dev queries 0, 4 and 8, see make()
    assert card[2].count("| `resttest-") == 6


IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]])


def write(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> Path:
    lists = pa.array(vectors.tolist(), pa.list_(pa.from_numpy_dtype(vectors.dtype)))
    pq.write_table(pa.table({"text": ids, "query_id": ids, "emb": lists}), path)
    return path


def read(*paths: Path, queries: list[str] = IDS, release: Any = None) -> np.ndarray:
    return read_directions(paths, release, queries)


def test_files_together_hold_the_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = write(tmp_path / "one.parquet", ["a", "b"], VECTORS[:2].astype(np.float32))
    second = write(tmp_path / "two.parquet", ["b", "c"], VECTORS[1:] * [[-1], [1]])
    assert (read(first, second, queries=["c", "a", "b", "a"]) == fixed_point(VECTORS[[2, 0, 1, 0]])).all()
    assert "two.parquet: skipped 1 queries that have a vector in an earlier file" in caplog.text


def encoded(path: Path, release: Release, vectors: np.ndarray = VECTORS, split: str = "dev") -> Path:
    path.mkdir(exist_ok=True)
    shards = []
    for number, part in enumerate((vectors[:2], vectors[2:])):
        file = path / f"queries-{number:05d}-of-00002.npy"
        np.save(file, part.astype(np.float16))
        shards.append({"path": file.name, "rows": len(part), "sha256": sha256_of(file)})
    about = {"config": "queries", "split": split, "fingerprint": release.fingerprint("queries", split)}
    (path / "manifest.json").write_text(json.dumps(about | {"shards": shards}))
    return path


def test_the_directory_of_the_verb_encode_is_read_by_the_rows_of_the_release(tmp_path: Path) -> None:
    rows = {**tables(), ("queries", "dev"): [{"_id": each, "text": each} for each in IDS]}
    release = open_release(make_release(tmp_path / "release", rows))
    found = read(encoded(tmp_path / "v", release), queries=["c", "a"], release=release)
    assert (found == fixed_point(VECTORS[[2, 0]])).all()
    with pytest.raises(InputError, match="no vector for 1 of 3"):
        read(encoded(tmp_path / "v", release, VECTORS[:2]), release=release)
    file = encoded(tmp_path / "v", release) / "queries-00001-of-00002.npy"
    file.write_bytes(file.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=r"00001-of-00002\.npy: has the SHA-256 .* encode the queries again"):
        read(tmp_path / "v", release=release)


# Neighbours, clusters and training sets, compared with a brute force in whole numbers.
@st.composite
def vector_sets(draw: Any, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    dimensions = draw(st.integers(1, 4))
    number = st.integers(-2, 2) if draw(st.booleans()) else st.floats(-1, 1, width=32)
    row = st.lists(number, min_size=dimensions, max_size=dimensions).filter(any)
    trains = draw(st.lists(row, min_size=2, max_size=most))
    tests = draw(st.lists(row, min_size=1, max_size=12))
    return fixed_point(np.array(trains)), fixed_point(np.array(tests))


def brute_ranks(tests: np.ndarray, trains: np.ndarray) -> tuple[list[int], list[int]]:
    """Return each training query's best rank for any test query, and its product. Ties go to the lower row."""
    products = tests.astype(int) @ trains.astype(int).T
    best = [(len(trains) + 1, 0)] * len(trains)
    for row in products.tolist():
        order = sorted(range(len(row)), key=lambda train: (-row[train], train))
        for rank, train in enumerate(order, 1):
            best[train] = min(best[train], (rank, -row[train]))
    return [rank for rank, _ in best], [-product for _, product in best]


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_stay_where_float32_is_exact(dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_cauchy((20, dimensions))
    rows = fixed_point(vectors).astype(np.int64)
    assert np.abs(rows).astype(np.float64).max() <= 4096 and ((rows * rows).sum(axis=1) <= 2**24).all()
    exact = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    assert np.abs(rows @ rows.T / scale(dimensions) ** 2 - exact @ exact.T).max() < 2e-3


@given(
    vector_sets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_training_sets_are_those_of_brute_force(
    sets: tuple[np.ndarray, np.ndarray], sizes: list[int], exclude: int | None, seed: int
) -> None:
    trains, tests = sets
    ids = [f"q{number:03d}" for number in range(len(trains))]
    ranks, products = brute_ranks(tests, trains)
    # The largest possible size, by trying every size and, without --exclude, the least depth that allows it.
    possible, depth = 0, exclude or 1
    for tried in [exclude] if exclude else range(1, len(trains) + 1):
        for size in range(1, len(trains)):
            if size <= sum(rank <= tried for rank in ranks) and size <= sum(rank > tried for rank in ranks):
                possible, depth = max((possible, depth), (size, tried), key=lambda each: (each[0], -each[1]))
    if max(sizes) > possible:
        with pytest.raises(InputError, match=f"{max(sizes)} is too large .* use at most {possible}"):
            draw_restrain_sets(ids, trains, tests, sizes, exclude, seed)
        return
    found = draw_restrain_sets(ids, trains, tests, sizes, exclude, seed)
    assert [(chosen.size, chosen.kind) for chosen in found] == [
        (size, kind) for size in sorted(set(sizes)) for kind in ("interpolation", "extrapolation")
    ]
    order = sorted(range(len(trains)), key=lambda row: (ranks[row], -products[row], row))
    largest = set(found[-1].rows)
    for inter, extra in zip(found[::2], found[1::2], strict=True):
        assert sorted(order[: inter.size]) == inter.rows.tolist()
        assert inter.ranks == max(ranks[row] for row in inter.rows)
        # A smaller set is part of a larger set, drawn by the same command or by another command.
        assert set(extra.rows) <= largest and len(set(extra.rows)) == extra.size and extra.ranks == depth
        assert min(ranks[row] for row in extra.rows) > depth
        alone = draw_restrain_sets(ids, trains, tests, [inter.size], exclude, seed)
        assert [each.rows.tolist() for each in alone] == [inter.rows.tolist(), extra.rows.tolist()]


@settings(max_examples=50)
@given(vector_sets(), st.data())
def test_a_cluster_holds_what_is_nearest_to_its_centre(sets: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    vectors = sets[0]
    starts = data.draw(st.lists(st.integers(0, len(vectors) - 1), min_size=1, max_size=4, unique=True))
    found = find_clusters(vectors, np.array(starts))
    assert (np.diff(np.bincount(found, minlength=len(starts))) <= 0).all()  # the largest cluster first
    sums = [vectors[found == number].sum(axis=0, dtype=float) for number in range(len(starts))]
    if all(total.any() for total in sums):
        products = vectors @ fixed_point(np.stack(sums)).T
        assert (products[np.arange(len(vectors)), found] == products.max(axis=1)).all()


NEAR, FAR = "restrain-2-interpolation", "restrain-2-extrapolation"
DEV = ["高铁票提前几天买", "手机进水怎么办", "多肉怎么养", "饺子怎么煮熟"]


def made() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """A release with four training and four dev questions. The first two of each split form bucket 1."""
    found = tables()
    answers = dict(zip(DEV, (TEXTS[4], TEXTS[5], TEXTS[0], TEXTS[1]), strict=True))  # the third answer is wrong
    found["queries", "dev"] = [{"_id": md5(text), "text": text} for text in DEV]
    dev = [{"query-id": md5(q), "corpus-id": md5(text), "score": 1} for q, text in answers.items()]
    train = found["qrels", "train"]
    found["qrels", "dev"], found["dev", "dev"] = dev, []
    del found["dev", "dev"]
    found[NEAR, "train"], found[FAR, "train"] = train[:2], train[2:]
    for bucket, own in ((1, slice(0, 1)), (2, slice(1, 4))):
        inside = dev[own]
        found[f"resttest-bucket{bucket}", "train"] = train[2:] if bucket == 1 else train[:2]
        found[f"resttest-bucket{bucket}", "extrapolation"] = inside
        found[f"resttest-bucket{bucket}", "interpolation"] = [row for row in dev if row not in inside]
    return found


@pytest.fixture
def world(tmp_path: Path, own_cache: None) -> Path:
    release = make_release(tmp_path / "release", made())
    about = {"test_queries": 4, "overlapping": 0, "overlapping_share": 0.0, "train_queries": 2, "nearest_cosine": 0.5}
    figures: dict[str, Any] = {name: {"config": name, "test": "dev", **about} for name in (NEAR, FAR)}
    for bucket in (1, 2):
        name = f"resttest-bucket{bucket}"
        figures[name] = [{"config": name, "test": kind, **about} for kind in ("interpolation", "extrapolation")]
    put_stats(release, extrapolation=figures)
    return tmp_path


def reproduce(world: Path, *words: str, code: int = 0) -> Any:
    options = ["--release", world / "release", "--out", world / "runs", "--one-process", "--extrapolation"]
    done = run("baselines", "reproduce", *options, *words, code=code)
    return done.error if code else done.stdout


def test_of_the_buckets_the_mean_is_taken_and_of_restrain_both_are_of_all_test_queries(world: Path) -> None:
    report = json.loads(reproduce(world, "--row", "bm25", "--table", "4", "--format", "json"))
    found = {(row["test"], row["metric"]): row for row in report["rows"]}
    assert set(test for test, _ in found) == {"restrain-2", "resttest"}
    # BM25 finds answers 1, 2 and 4 at rank 1. It finds nothing for question 3, whose answer is wrong.
    restrain = found["restrain-2", "Recall@1"]
    assert (restrain["interpolation"], restrain["extrapolation"], restrain["gap"]) == (75.0, 75.0, 0.0)
    assert restrain["gap_interval"] == [0.0, 0.0]
    resttest = found["resttest", "Recall@1"]
    assert resttest["interpolation"] == round(100 * (2 / 3 + 1 / 1) / 2, 2)  # outside of bucket 1, outside of bucket 2
    assert resttest["extrapolation"] == round(100 * (1 / 1 + 2 / 3) / 2, 2)
    assert resttest["relative_gap"] == 0
    shown = reproduce(world, "resttest", "--row", "bm25", "--table", "4")
    assert "restrain-2" not in shown and "BM25: MRR@10" in shown


def test_what_the_release_lacks_is_said(world: Path) -> None:
    error = reproduce(world, "restrain-14K", code=1)
    assert "has no restrain-14K of the dev queries; it has restrain-2, resttest; `python -m builders add" in error
    put_stats(world / "release", extrapolation={})
    assert "has no sets for interpolation and extrapolation of the dev queries; it has none" in reproduce(world, code=1)


def test_bm25_is_run_once_and_the_trained_models_once_a_set(world: Path) -> None:
    all_words = json.loads(reproduce(world, "--scratch", "--dry-run", "--format", "json"))
    trained = [words[words.index("--out") + 1] for words in all_words if words[:2] == ["baselines", "train"]]
    commands = [f"{' '.join(words)} " for words in all_words]
    sets = [NEAR, FAR, "resttest-bucket1", "resttest-bucket2"]
    models = world / "runs" / "models"
    kinds = ("de-bm25-neg-scratch", "ce-bm25-neg-scratch")
    assert sorted(trained) == sorted([f"{models}/mlm-scratch", *(f"{models}/{k}.{s}" for k in kinds for s in sets)])
    for name in sets:
        assert sum(f"--set data.set={name} " in command for command in commands) == 2
    assert sum("baselines bm25 " in command for command in commands) == 2  # dev, and train for the negatives
    (search,) = [command for command in commands if "baselines search" in command and f"/{NEAR}/" in command]
    assert f"--model {models}/de-bm25-neg-scratch.{NEAR} " in search
    assert f"--passages {world}/runs/{NEAR}/embeddings/" in search


def test_a_model_that_starts_from_another_starts_from_the_model_of_its_questions(world: Path) -> None:
    words = json.loads(reproduce(world, "--row", "ce-de-neg-on-de", "--dry-run", "--format", "json"))
    trainings = [command for command in words if command[:3] == ["baselines", "train", "ce-de-neg"]]
    assert len(trainings) == 4
    models = world / "runs" / "models"
    for command in trainings:
        config = command[command.index("--out") + 1].removeprefix(f"{models}/ce-de-neg.")
        assert command[command.index("--start") + 1] == f"{models}/ce-bm25-neg.{config}"


def test_the_gaps_interval_is_that_of_paired_queries() -> None:
    random = np.random.default_rng(1)
    one, other = random.random((300, 3)), random.random((300, 3)) * 0.8
    folds = [[{str(n): row for n, row in enumerate(each)} for each in (one, other)]]
    low, high = gap_interval(folds)
    assert np.column_stack([low, high]) == pytest.approx(np.array(of_means(other - one)), abs=0.005)
    assert not np.any(gap_interval([[folds[0][0], folds[0][0]]]))
    # A bucket of one query is skipped in draws without this query.
    assert np.isfinite(gap_interval([*folds, [folds[0][0], {"0": other[0]}]])).all()
