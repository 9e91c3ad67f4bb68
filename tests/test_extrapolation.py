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
from builders.add.vectors import common_length, find_clusters, fixed_point, read_directions
from builders.core.errors import InputError
from builders.core.read_files import sha256_of
from builders.store.reader import Release, open_release

TRAIN_COUNT = 60
DEV_COUNT = 12


def judgment(query: str, passage: str, score: int) -> dict[str, Any]:
    """Return a row of qrels, whose ids are the checksums of the texts."""
    return {"query-id": md5(query), "corpus-id": md5(passage), "score": score}


def judgments_of(split: str, queries: list[str]) -> list[dict[str, Any]]:
    """Two positives and a negative each. The dev queries 0, 4 and 8 share one positive with training."""
    rows = []
    for number, query in enumerate(queries):
        source = "train" if split == "train" or number % 4 == 0 else "dev"
        rows.append(judgment(query, f"{source} {number}", 1))
        rows.append(judgment(query, f"{split} second {number}", 1))
        rows.append(judgment(query, "train 1", 0))
    return rows


def make_sets(folder: Path) -> tuple[Path, Path]:
    """A release with 60 training and 12 dev queries, and embeddings. Query 0 of both splits is the same."""
    queries = {
        "train": [f"训练 {number}" for number in range(TRAIN_COUNT)],
        "dev": [f"开发 {number}" for number in range(DEV_COUNT)],
        "test": ["测试 0"],
    }
    queries["dev"][0] = queries["train"][0]
    generator = np.random.default_rng(7)
    vectors: dict[str, list[float]] = {}
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for split, texts in queries.items():
        for text in texts:
            vectors[md5(text)] = generator.normal(size=4).tolist()
        rows["queries", split] = [{"_id": md5(text), "text": text} for text in texts]
    for split in ("train", "dev"):
        rows["qrels", split] = judgments_of(split, queries[split])
    release = make_release(folder / "release", rows, rows_per_shard=1_000)
    path = folder / "vectors.parquet"
    pq.write_table(pa.table({"id": list(vectors), "vector": list(vectors.values())}), path)
    return release, path


def add(*words: object) -> Done:
    """Add sets to a release."""
    return run("builders", "add", words)


def queries_of(release: Path, config: str, split: str = "train") -> set[str]:
    """Return the ids of the queries with judgments."""
    return set(open_release(release).table(config, split)["query-id"].to_pylist())


def test_restrain_sets_are_added(tmp_path: Path) -> None:
    release, vectors_path = make_sets(tmp_path)
    options = ("--embeddings", vectors_path, "--size", "15", "5", "--exclude", "2", "--format", "json")
    out = tmp_path / "out"
    done = add("restrain", "--release", release, *options, "--out", out)
    add("restrain", "--release", release, *options, "--out", tmp_path / "again")
    assert (tmp_path / "again" / "manifest.json").read_text() == (out / "manifest.json").read_text()
    assert "12 test queries are many for 60 training queries. ReSTrain is for small test sets" in done.stderr
    nearest_cosines = {row["config"]: row["nearest_cosine"] for row in json.loads(done.stdout)}
    for name in ("restrain-5", "restrain-15"):
        assert nearest_cosines[f"{name}-interpolation"] > nearest_cosines[f"{name}-extrapolation"]
    assert md5("训练 0") in queries_of(out, "restrain-15-interpolation")  # this query is also a dev query


@pytest.fixture
def release_with_sets(tmp_path: Path) -> Path:
    """A release with sets of restrain and resttest, which several commands added in place."""
    release, vectors_path = make_sets(tmp_path)
    in_place = ("--embeddings", vectors_path, "--release", release, "--out", release)
    add("restrain", *in_place, "--size", "15", "5", "--exclude", "2")
    add("restrain", *in_place, "--size", "10", "--split", "dev", "test")
    add("resttest", *in_place, "--buckets", "4")
    add("resttest", *in_place, "--buckets", "3")
    return release


def test_restrain_keeps_other_sizes_and_resttest_replaces_earlier_buckets(release_with_sets: Path) -> None:
    configs = {config for config, _ in open_release(release_with_sets).splits() if config.startswith("rest")}
    expected_configs = {"resttest-bucket1", "resttest-bucket2", "resttest-bucket3"}
    for size in (5, 10, 15):
        expected_configs |= {f"restrain-{size}-extrapolation", f"restrain-{size}-interpolation"}
    assert configs == expected_configs


def test_each_query_is_left_out_by_one_bucket(release_with_sets: Path) -> None:
    all_train = {md5(f"训练 {number}") for number in range(TRAIN_COUNT)}
    all_dev = queries_of(release_with_sets, "qrels", "dev")
    excluded_train: list[str] = []
    extrapolated_dev: list[str] = []
    for config in ("resttest-bucket1", "resttest-bucket2", "resttest-bucket3"):
        train = queries_of(release_with_sets, config, "train")
        interpolation = queries_of(release_with_sets, config, "interpolation")
        extrapolation = queries_of(release_with_sets, config, "extrapolation")
        assert train < all_train
        assert interpolation | extrapolation == all_dev
        assert not interpolation & extrapolation and not train & extrapolation
        excluded_train += all_train - train
        extrapolated_dev += extrapolation
    assert len(excluded_train) == TRAIN_COUNT and set(excluded_train) == all_train
    assert len(extrapolated_dev) == DEV_COUNT and set(extrapolated_dev) == all_dev


def test_the_card_has_the_overlap_of_labels_and_the_sets(release_with_sets: Path) -> None:
    card = (release_with_sets / "README.md").read_text("utf-8")
    # The dev queries 0, 4 and 8, see judgments_of
    assert "- `qrels/dev`: 3 of 12 queries (25.00%)" in card
    section = card.partition("## Interpolation and extrapolation")[2]
    assert section.count("| `resttest-") == 6


IDS = ["a", "b", "c"]
VECTORS = np.array([[1, 2], [0.5, -1], [3, 0]])


def write_vectors(path: Path, ids: list[str] = IDS, vectors: np.ndarray = VECTORS) -> Path:
    """Write a table of queries with their vectors."""
    lists = pa.array(vectors.tolist(), pa.list_(pa.from_numpy_dtype(vectors.dtype)))
    pq.write_table(pa.table({"text": ids, "query_id": ids, "emb": lists}), path)
    return path


def directions_of(*paths: Path, queries: list[str] = IDS, release: Any = None) -> np.ndarray:
    """Read the directions of the queries from these files or directories."""
    return read_directions(paths, release, queries)


def test_files_together_hold_the_queries(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first_path = write_vectors(tmp_path / "one.parquet", ["a", "b"], VECTORS[:2].astype(np.float32))
    # The second file has the opposite vector of query b, which the first file decides.
    second_path = write_vectors(tmp_path / "two.parquet", ["b", "c"], VECTORS[1:] * [[-1], [1]])
    directions = directions_of(first_path, second_path, queries=["c", "a", "b", "a"])
    assert (directions == fixed_point(VECTORS[[2, 0, 1, 0]])).all()
    assert "two.parquet: skipped 1 queries that have a vector in an earlier file" in caplog.text


def write_encoded(path: Path, release: Release, vectors: np.ndarray = VECTORS, split: str = "dev") -> Path:
    """Write vectors like the verb encode: two shards and a manifest."""
    path.mkdir(exist_ok=True)
    shards = []
    for number, part in enumerate((vectors[:2], vectors[2:])):
        shard_path = path / f"queries-{number:05d}-of-00002.npy"
        np.save(shard_path, part.astype(np.float16))
        shards.append({"path": shard_path.name, "rows": len(part), "sha256": sha256_of(shard_path)})
    manifest = {
        "config": "queries",
        "split": split,
        "fingerprint": release.fingerprint("queries", split),
        "shards": shards,
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def test_the_directory_of_the_verb_encode_is_read_by_the_rows_of_the_release(tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"] = [{"_id": query_id, "text": query_id} for query_id in IDS]
    release = open_release(make_release(tmp_path / "release", rows))
    directions = directions_of(write_encoded(tmp_path / "v", release), queries=["c", "a"], release=release)
    assert (directions == fixed_point(VECTORS[[2, 0]])).all()
    with pytest.raises(InputError, match="no vector for 1 of 3"):
        directions_of(write_encoded(tmp_path / "v", release, VECTORS[:2]), release=release)
    shard_path = write_encoded(tmp_path / "v", release) / "queries-00001-of-00002.npy"
    shard_path.write_bytes(shard_path.read_bytes()[:-1] + b"?")
    with pytest.raises(InputError, match=r"00001-of-00002\.npy: has the SHA-256 .* encode the queries again"):
        directions_of(tmp_path / "v", release=release)


# Neighbours, clusters and training sets, compared with a brute force in whole numbers.
@st.composite
def vector_sets(draw: Any, most: int = 40) -> tuple[np.ndarray, np.ndarray]:
    """Draw vectors of training and of test queries, often with small whole numbers, so that products are equal."""
    dimensions = draw(st.integers(1, 4))
    number = st.integers(-2, 2) if draw(st.booleans()) else st.floats(-1, 1, width=32)
    vector = st.lists(number, min_size=dimensions, max_size=dimensions).filter(any)
    train_vectors = draw(st.lists(vector, min_size=2, max_size=most))
    test_vectors = draw(st.lists(vector, min_size=1, max_size=12))
    return fixed_point(np.array(train_vectors)), fixed_point(np.array(test_vectors))


def brute_ranks(test_vectors: np.ndarray, train_vectors: np.ndarray) -> tuple[list[int], list[int]]:
    """Return each training query's best rank for any test query, and its product. Ties go to the lower row."""
    products = test_vectors.astype(int) @ train_vectors.astype(int).T
    best = [(len(train_vectors) + 1, 0)] * len(train_vectors)
    for row in products.tolist():
        order = sorted(range(len(row)), key=lambda train: (-row[train], train))
        for rank, train in enumerate(order, 1):
            best[train] = min(best[train], (rank, -row[train]))
    return [rank for rank, _ in best], [-product for _, product in best]


def largest_size(ranks: list[int], exclude: int | None) -> tuple[int, int]:
    """Return the largest possible size of both sets, and the least depth that allows it.

    Without --exclude, every depth is tried. The near set has ranks up to the depth, and the far set has the others.
    """
    largest, least_depth = 0, exclude or 1
    for depth in [exclude] if exclude else range(1, len(ranks) + 1):
        near_count = sum(rank <= depth for rank in ranks)
        size = min(near_count, len(ranks) - near_count)
        if size > largest:
            largest, least_depth = size, depth
    return largest, least_depth


@given(st.integers(1, 300), st.integers(0, 2**32 - 1))
def test_products_stay_where_float32_is_exact(dimensions: int, seed: int) -> None:
    vectors = np.random.default_rng(seed).standard_cauchy((20, dimensions))
    rows = fixed_point(vectors).astype(np.int64)
    assert np.abs(rows).astype(np.float64).max() <= 4096
    assert ((rows * rows).sum(axis=1) <= 2**24).all()  # float32 has all whole numbers up to here
    directions = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    rounded_cosines = rows @ rows.T / common_length(dimensions) ** 2
    assert np.abs(rounded_cosines - directions @ directions.T).max() < 2e-3


@given(
    vector_sets(),
    st.lists(st.integers(1, 20), min_size=1, max_size=3),
    st.none() | st.integers(1, 5),
    st.integers(0, 3),
)
def test_training_sets_are_those_of_brute_force(
    sets: tuple[np.ndarray, np.ndarray], sizes: list[int], exclude: int | None, seed: int
) -> None:
    train_vectors, test_vectors = sets
    ids = [f"q{number:03d}" for number in range(len(train_vectors))]
    ranks, products = brute_ranks(test_vectors, train_vectors)
    possible, depth = largest_size(ranks, exclude)
    if max(sizes) > possible:
        with pytest.raises(InputError, match=f"{max(sizes)} is too large .* use at most {possible}"):
            draw_restrain_sets(ids, train_vectors, test_vectors, sizes, exclude, seed)
        return
    drawn_sets = draw_restrain_sets(ids, train_vectors, test_vectors, sizes, exclude, seed)
    near_sets = drawn_sets[::2]
    far_sets = drawn_sets[1::2]
    distinct_sizes = sorted(set(sizes))
    assert [(near.size, near.kind) for near in near_sets] == [(size, "interpolation") for size in distinct_sizes]
    assert [(far.size, far.kind) for far in far_sets] == [(size, "extrapolation") for size in distinct_sizes]
    order = sorted(range(len(train_vectors)), key=lambda row: (ranks[row], -products[row], row))
    for near, far in zip(near_sets, far_sets, strict=True):
        assert near.rows.tolist() == sorted(order[: near.size])
        assert near.ranks == max(ranks[row] for row in near.rows)
        # A smaller set is part of a larger set, drawn by the same command or by another command.
        assert set(far.rows) <= set(far_sets[-1].rows)
        assert len(set(far.rows)) == far.size and far.ranks == depth
        assert min(ranks[row] for row in far.rows) > depth
        near_alone, far_alone = draw_restrain_sets(ids, train_vectors, test_vectors, [near.size], exclude, seed)
        assert near_alone.rows.tolist() == near.rows.tolist()
        assert far_alone.rows.tolist() == far.rows.tolist()


@settings(max_examples=50)
@given(vector_sets(), st.data())
def test_a_cluster_holds_what_is_nearest_to_its_centre(sets: tuple[np.ndarray, np.ndarray], data: Any) -> None:
    vectors = sets[0]
    starts = data.draw(st.lists(st.integers(0, len(vectors) - 1), min_size=1, max_size=4, unique=True))
    clusters = find_clusters(vectors, np.array(starts))
    cluster_sizes = np.bincount(clusters, minlength=len(starts))
    assert (np.diff(cluster_sizes) <= 0).all()  # the largest cluster first
    sums = [vectors[clusters == number].sum(axis=0, dtype=float) for number in range(len(starts))]
    if all(total.any() for total in sums):  # a sum of zeros has no direction
        products = vectors @ fixed_point(np.stack(sums)).T
        own_products = products[np.arange(len(vectors)), clusters]
        assert (own_products == products.max(axis=1)).all()


NEAR = "restrain-2-interpolation"
FAR = "restrain-2-extrapolation"
DEV = ["高铁票提前几天买", "手机进水怎么办", "多肉怎么养", "饺子怎么煮熟"]


def tables_with_sets() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """A release with four training and four dev questions. The first two of each split form bucket 1."""
    rows = tables()
    rows["queries", "dev"] = [{"_id": md5(text), "text": text} for text in DEV]
    answers = [TEXTS[4], TEXTS[5], TEXTS[0], TEXTS[1]]  # the third answer is wrong
    dev = [judgment(question, answer, 1) for question, answer in zip(DEV, answers, strict=True)]
    train = rows["qrels", "train"]
    rows["qrels", "dev"] = dev
    del rows["dev", "dev"]
    rows[NEAR, "train"] = train[:2]
    rows[FAR, "train"] = train[2:]
    rows["resttest-bucket1", "train"] = train[2:]
    rows["resttest-bucket1", "extrapolation"] = dev[:1]
    rows["resttest-bucket1", "interpolation"] = dev[1:]
    rows["resttest-bucket2", "train"] = train[:2]
    rows["resttest-bucket2", "extrapolation"] = dev[1:]
    rows["resttest-bucket2", "interpolation"] = dev[:1]
    return rows


def set_figures(name: str, test: str) -> dict[str, Any]:
    """Return the figures of a set, as they stand in stats.json."""
    return {
        "config": name,
        "test": test,
        "test_queries": 4,
        "overlapping": 0,
        "overlapping_share": 0.0,
        "train_queries": 2,
        "nearest_cosine": 0.5,
    }


@pytest.fixture
def world(tmp_path: Path, own_cache: None) -> Path:
    """The folder of a release with sets and their figures."""
    release = make_release(tmp_path / "release", tables_with_sets())
    figures: dict[str, Any] = {NEAR: set_figures(NEAR, "dev"), FAR: set_figures(FAR, "dev")}
    for name in ("resttest-bucket1", "resttest-bucket2"):
        figures[name] = [set_figures(name, "interpolation"), set_figures(name, "extrapolation")]
    put_stats(release, extrapolation=figures)
    return tmp_path


def reproduce(world: Path, *words: str, code: int = 0) -> Any:
    """Run models on the sets, and return stdout, or the error of a command that fails."""
    options = ["--release", world / "release", "--out", world / "runs", "--one-process", "--extrapolation"]
    done = run("baselines", "reproduce", options, words, code=code)
    return done.error if code else done.stdout


def test_of_the_buckets_the_mean_is_taken_and_of_restrain_both_are_of_all_test_queries(world: Path) -> None:
    report = json.loads(reproduce(world, "--row", "bm25", "--table", "4", "--format", "json"))
    rows = {(row["test"], row["metric"]): row for row in report["rows"]}
    assert {row["test"] for row in report["rows"]} == {"restrain-2", "resttest"}
    # BM25 finds answers 1, 2 and 4 at rank 1. It finds nothing for question 3, whose answer is wrong.
    restrain = rows["restrain-2", "Recall@1"]
    assert (restrain["interpolation"], restrain["extrapolation"], restrain["gap"]) == (75.0, 75.0, 0.0)
    assert restrain["gap_interval"] == [0.0, 0.0]
    # Bucket 1 has question 1, and bucket 2 has the others.
    recall_bucket_1 = 1 / 1
    recall_bucket_2 = 2 / 3
    mean_recall = round(100 * (recall_bucket_1 + recall_bucket_2) / 2, 2)
    resttest = rows["resttest", "Recall@1"]
    assert resttest["interpolation"] == mean_recall  # outside of bucket 1, which is bucket 2, and the reverse
    assert resttest["extrapolation"] == mean_recall
    assert resttest["relative_gap"] == 0


def test_one_test_set_is_chosen_by_its_name(world: Path) -> None:
    text = reproduce(world, "resttest", "--row", "bm25", "--table", "4")
    assert "restrain-2" not in text and "BM25: MRR@10" in text


def test_what_the_release_lacks_is_said(world: Path) -> None:
    error = reproduce(world, "restrain-14K", code=1)
    assert "has no restrain-14K of the dev queries; it has restrain-2, resttest; `python -m builders add" in error
    error = reproduce(world, "resttest", "--row", "bm25", "--split", "train", code=1)
    assert "has no resttest of the train queries" in error
    put_stats(world / "release", extrapolation={})
    assert "has no sets for interpolation and extrapolation of the dev queries; `python" in reproduce(world, code=1)


def value_of(option: str, words: list[str]) -> str:
    """Return the word after an option."""
    return words[words.index(option) + 1]


def test_bm25_is_run_once_and_the_trained_models_once_a_set(world: Path) -> None:
    words_of_commands = json.loads(reproduce(world, "--scratch", "--dry-run", "--format", "json"))
    commands = [f"{' '.join(words)} " for words in words_of_commands]
    sets = [NEAR, FAR, "resttest-bucket1", "resttest-bucket2"]
    models = world / "runs" / "models"
    expected_models = [f"{models}/mlm-scratch"]
    for name in sets:
        expected_models += [f"{models}/de-bm25-neg-scratch.{name}", f"{models}/ce-bm25-neg-scratch.{name}"]
        assert sum(f"--set data.set={name} " in command for command in commands) == 2
    trained = [value_of("--out", words) for words in words_of_commands if words[:2] == ["baselines", "train"]]
    assert sorted(trained) == sorted(expected_models)
    assert sum("baselines bm25 " in command for command in commands) == 2  # dev, and train for the negatives
    (search,) = [command for command in commands if "baselines search" in command and f"/{NEAR}/" in command]
    assert f"--model {models}/de-bm25-neg-scratch.{NEAR} " in search
    assert f"--passages {world}/runs/{NEAR}/embeddings/" in search


def test_a_model_that_starts_from_another_starts_from_the_model_of_its_questions(world: Path) -> None:
    words_of_commands = json.loads(reproduce(world, "--row", "ce-de-neg-on-de", "--dry-run", "--format", "json"))
    trainings = [words for words in words_of_commands if words[:3] == ["baselines", "train", "ce-de-neg"]]
    assert len(trainings) == 4
    models = world / "runs" / "models"
    for words in trainings:
        config = value_of("--out", words).removeprefix(f"{models}/ce-de-neg.")
        assert value_of("--start", words) == f"{models}/ce-bm25-neg.{config}"


def values_by_query(values: np.ndarray) -> dict[str, np.ndarray]:
    """Return rows of values by the number of their query."""
    return {str(number): row for number, row in enumerate(values)}


def test_the_gaps_interval_is_that_of_paired_queries() -> None:
    random = np.random.default_rng(1)
    inter_values = random.random((300, 3))
    extra_values = random.random((300, 3)) * 0.8
    inter = values_by_query(inter_values)
    extra = values_by_query(extra_values)
    low, high = gap_interval([[inter, extra]])
    paired_interval = np.array(of_means(extra_values - inter_values))
    assert np.column_stack([low, high]) == pytest.approx(paired_interval, abs=0.005)
    assert not np.any(gap_interval([[inter, inter]]))
    # A bucket of one query is skipped in draws without this query.
    bucket_of_one = [inter, {"0": extra_values[0]}]
    assert np.isfinite(gap_interval([[inter, extra], bucket_of_one])).all()
