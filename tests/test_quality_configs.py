"""Configs of Section 2.3, sets for interpolation and extrapolation, and samples, as other verbs read them."""

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import error_of, run, tree
from releases import QUESTIONS, SIMILAR, TEXTS, make_release, md5, passage, quality_tables, tables
from test_peers import block, reciprocal_rank
from tiny_models import write_dual

from baselines.core.passages import open_passages
from baselines.train.dev_sample import SampledPassages, draw_dev_sample
from baselines.train.recipe import read_recipe
from baselines.train.recipe_costs import Sizes
from baselines.train.training_pairs import read_pairs
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

TRAIN, (EARLIER, WET) = QUESTIONS["train"], QUESTIONS["dev"]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", quality_tables())


@pytest.fixture
def ranked(tmp_path: Path) -> Path:
    lines = [
        (md5(question), md5(text), rank)
        for question, texts in ((EARLIER, (TEXTS[4], TEXTS[0])), (WET, (TEXTS[1], TEXTS[5])))
        for rank, text in enumerate(texts, 1)
    ]
    path = tmp_path / "some.run"
    path.write_text("".join(f"{query} Q0 {text} {rank} {9 - rank} x\n" for query, text, rank in lines))
    return path


@pytest.mark.parametrize(
    ("words", "queries", "mrr", "first"),
    [
        ((), 2, 0.75, 0.5),
        (("--queries", "others"), 1, 1.0, 1.0),
        (("--queries", "duplicated"), 1, 0.5, 0.0),
        (("--qrels-config", "qrels-before"), 2, 0.5, 0.0),
        (("--queries", "others", "--qrels-config", "qrels-before"), 1, 0.5, 0.0),
    ],
)
def test_a_run_is_measured_on_some_questions_by_some_judgments(
    release: Path, ranked: Path, words: tuple[str, ...], queries: int, mrr: float, first: float
) -> None:
    done = run("baselines", "evaluate", "--release", release, "--split", "dev", *words, ranked, "--format", "json")
    (result,) = json.loads(done.stdout)
    assert (result["queries"], result["official"]["MRR@10"], result["official"]["recall@1"]) == (queries, mrr, first)


@pytest.fixture
def mined(release: Path, tmp_path: Path, own_cache: None) -> Path:
    similar = ("--release", release, "--queries", "train-similar", "--split", "train")
    run("baselines", "bm25", *similar, "--out", tmp_path / "similar.run", "--index", tmp_path / "index")
    run("baselines", "mine", *similar, "--run", tmp_path / "similar.run", "--out", tmp_path / "similar.jsonl")
    return tmp_path / "similar.jsonl"


def test_bm25_and_mine_take_the_removed_questions_alone(mined: Path, tmp_path: Path) -> None:
    lines = [line.split() for line in (tmp_path / "similar.run").read_text().splitlines()]
    assert {line[0] for line in lines} == {md5(SIMILAR)} and lines[0][2] == md5(TEXTS[5])
    (row,) = map(json.loads, mined.read_text().splitlines())
    # The question's positive, which BM25 ranks first, is not a negative.
    assert row["query-id"] == md5(SIMILAR) and set(row["negative-ids"]) == {line[2] for line in lines[1:]}


def test_a_training_with_similar_questions_has_them_after_the_same_others(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    passages = open_passages(opened, keep=tmp_path / "keep")
    mined, own = tmp_path / "train.gz", tmp_path / "similar.jsonl"
    rows = [{"query-id": md5(question), "negative-ids": [md5(TEXTS[5])]} for question in TRAIN]
    mined.write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    own.write_text(json.dumps({"query-id": md5(SIMILAR), "negative-ids": [md5(TEXTS[1])]}))
    one = ["data.negatives_per_positive=1"]
    without = read_pairs(opened, read_recipe("ce-bm25-neg", one), passages, [mined])
    with_them = read_pairs(opened, read_recipe("ce-bm25-neg", [*one, "data.similar=true"]), passages, [mined, own])
    assert without.texts == TRAIN and with_them.texts == [*TRAIN, SIMILAR]
    assert with_them.positive.tolist() == [*without.positive.tolist(), 5] == [0, 1, 2, 3, 5]
    assert with_them.negatives.tolist() == [*without.negatives.tolist(), [1]] == [[5]] * 4 + [[1]]
    assert with_them.counts["random_negatives"] == 0


NEAR, FAR, BUCKET = "restrain-2-interpolation", "restrain-1-extrapolation", "resttest-bucket1"


def rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Training questions 0 and 1 are near, 3 is far. Bucket 1 has question 0 of both splits."""
    found = tables()
    train, dev = found["qrels", "train"], found["qrels", "dev"]
    found[NEAR, "train"], found[FAR, "train"] = train[:2], train[3:]
    found[BUCKET, "train"], found[BUCKET, "extrapolation"], found[BUCKET, "interpolation"] = train[1:], dev[:1], dev[1:]
    return found


@pytest.fixture
def drawn(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", rows())


@pytest.mark.parametrize(("name", "asked"), [(NEAR, [0, 1]), (FAR, [3]), (BUCKET, [1, 2, 3]), ("main", [0, 1, 2, 3])])
def test_a_recipe_trains_on_the_config_that_it_names(drawn: Path, tmp_path: Path, name: str, asked: list[int]) -> None:
    opened = open_release(drawn)
    passages = open_passages(opened, keep=tmp_path / "keep")
    negatives = tmp_path / "negatives.jsonl"  # mined once for all training questions
    lines = [{"query-id": md5(text), "negative-ids": [md5(TEXTS[4])]} for text in QUESTIONS["train"]]
    negatives.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    recipe = read_recipe("de-bm25-neg", [f"data.set={name}", "data.negatives_per_positive=1"])
    pairs = read_pairs(opened, recipe, passages, [negatives])
    assert pairs.texts == [QUESTIONS["train"][number] for number in asked]
    assert pairs.positive.tolist() == asked and set(pairs.negatives.ravel().tolist()) == {4}
    assert recipe.resolved()["data"]["set"] == name
    assert Sizes(opened).pairs(name, "train") == len(asked)  # the count of `reproduce --dry-run`
    # Checkpoints are evaluated on dev of the main set, because a drawn config has no dev questions.
    sample = draw_dev_sample(opened, recipe, passages, None)
    assert isinstance(sample, SampledPassages) and list(sample.queries.values()) == QUESTIONS["dev"]


def test_an_export_has_the_drawn_training_questions_and_the_test_questions(drawn: Path, tmp_path: Path) -> None:
    export = ["export", "--release", drawn, "--set"]
    run("builders", *export, BUCKET, "--format", "msmarco", "--out", tmp_path / "bucket")
    found = {path.name: path.read_text("utf-8").split("\n")[:-1] for path in (tmp_path / "bucket").glob("q*")}
    dev = QUESTIONS["dev"]
    asked = {"train": QUESTIONS["train"][1:], "interpolation": dev[1:], "extrapolation": dev[:1]}
    assert set(found) == {f"{kind}.{split}.tsv" for kind in ("queries", "qrels") for split in asked}
    for split, questions in asked.items():
        assert found[f"queries.{split}.tsv"] == [f"{md5(text)}\t{text}" for text in questions]
        assert [line.split("\t")[0] for line in found[f"qrels.{split}.tsv"]] == list(map(md5, questions))


pytestmark = pytest.mark.usefixtures("own_cache")
TEXTS_OF_90 = [*TEXTS, *(f"{number}号{text}" for text in TEXTS for number in range(14))]


@pytest.fixture
def large(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", tables(TEXTS_OF_90), rows_per_shard=40)


def a_run(path: Path, ranked: dict[str, list[str]]) -> Path:
    write_run(path, ((md5(q), [(md5(text), -rank) for rank, text in enumerate(own)]) for q, own in ranked.items()))
    return path


def samples(large: Path, out: Path, *words: Any) -> list[dict[str, Any]]:
    made = run("builders", "add", "samples", "--release", large, "--out", out, "--format", "json", *words)
    found: list[dict[str, Any]] = json.loads(made.stdout)
    return found


def listed(large: Path, config: str) -> list[str]:
    return open_release(large).table(config, "corpus")["_id"].to_pylist()


def test_samples_are_nested_and_do_not_depend_on_the_order_of_the_passages(large: Path, tmp_path: Path) -> None:
    first, second = QUESTIONS["dev"]
    ranked = {first: TEXTS_OF_90[10:30], second: [TEXTS[4], *TEXTS_OF_90[20:40]], "another": TEXTS_OF_90[60:]}
    sizes = ["--sizes", "40", "8", "20", "--seed", "3", "--hard", a_run(tmp_path / "hard.run", ranked)]
    rows = samples(large, tmp_path / "out", *sizes)
    assert [row["config"] for row in rows] == [f"sample-{n}{kind}" for kind in ("", "-hard") for n in (8, 20, 40)]
    order = [md5(text) for text in TEXTS_OF_90]
    for kind in ("", "-hard"):
        nested = [listed(tmp_path / "out", f"sample-{size}{kind}") for size in (8, 20, 40)]
        assert [len(ids) for ids in nested] == [8, 20, 40]
        assert {md5(TEXTS[4]), md5(TEXTS[5])} <= set(nested[0]) < set(nested[1]) < set(nested[2])
        assert all(ids == sorted(set(ids), key=order.index) for ids in nested)
    # Ranks 1 to 4 of both questions are passages 10 to 13, 20 to 22, and one positive. The next rank is cut.
    best = {order[number] for number in (10, 11, 12, 20, 21)}
    chosen = set(listed(tmp_path / "out", "sample-8-hard")) - {order[4], order[5]}
    assert best < chosen and chosen - best < {order[13], order[22]}
    assert not set(listed(tmp_path / "out", "sample-20-hard")) & set(order[60:])
    assert rows[-1]["hard"] == 30 and rows[-1]["passages"] == 40  # the runs have 30 passages, and 8 are random
    turned = make_release(tmp_path / "turned", tables(TEXTS_OF_90[:6] + TEXTS_OF_90[:5:-1]))
    samples(turned, tmp_path / "again", *sizes)
    for config in ("sample-20", "sample-20-hard"):
        assert set(listed(tmp_path / "again", config)) == set(listed(tmp_path / "out", config))
    every = a_run(tmp_path / "every.run", {first: TEXTS_OF_90[:45], second: TEXTS_OF_90[45:]})
    assert samples(large, tmp_path / "all", "--sizes", "89", "--hard", every)[-1]["hard"] == 89 - 2  # no random passage
    samples(tmp_path / "out", tmp_path / "out", "--sizes", "20", "--seed", "4")  # replaces the samples
    assert "sample-8" not in {config for config, _ in open_release(tmp_path / "out").splits()}
    assert set(listed(tmp_path / "out", "sample-20")) != set(listed(tmp_path / "again", "sample-20"))


def test_check_names_what_a_sample_lists_twice_and_what_is_not_there(tmp_path: Path) -> None:
    ids = [md5(text) for text in (TEXTS[0], TEXTS[0], TEXTS[1], "lost")]
    rows: Any = tables() | {("sample-4", "corpus"): [{"_id": each} for each in ids]}
    found = run("builders", "check", "--release", make_release(tmp_path / "release", rows), code=1).stdout
    assert f"1 ids not in corpus: {md5('lost')}" in found
    assert f"1 ids listed more than once: {md5(TEXTS[0])}" in found


def test_an_extract_is_a_release_of_its_own(large: Path, tmp_path: Path) -> None:
    samples(large, tmp_path / "out", "--sizes", "30")
    small = tmp_path / "small"
    words = ["add", "samples", "--release", tmp_path / "out", "--out", small, "--extract"]
    assert run("builders", *words, "sample-30").stdout == f"{small}: 30 passages, the queries of dev\n"
    assert "expected a config of `add samples`" in run("builders", *words, "corpus", code=1).error
    # BM25 on the extract finds the same passages as `bm25 --sample`.
    found = []
    for given in (["--release", small], ["--release", tmp_path / "out", "--sample", "sample-30"]):
        out = tmp_path / f"{len(found)}.run"
        run("baselines", "bm25", *given, "--threads", "1", "--top-k", "7", "--split", "dev", "--out", out)
        found.append(read_run(out).hits)
    assert found[0] == found[1]


# Nano releases

SEED = 3


@pytest.fixture
def nano(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """``nano(out, hits, ...)`` writes a nano release (5 of 12 questions, 40 passages) from runs of ``hits`` passages.

    Returns the figures, and each question's judged and retrieved passages. Question n has the positive 2n, and the
    passage 2n + 1 is judged 0. The runs rank passages from 50 + 3n and from 20 + n on.
    """
    monkeypatch.setattr("builders.add.samples.NANO_QUERIES", 5)
    monkeypatch.setattr("builders.add.samples.NANO_PASSAGES", 40)
    ids, rows = [md5(text) for text in TEXTS_OF_90], tables(TEXTS_OF_90)
    questions = {md5(f"第{n}个问题"): n for n in range(12)}
    rows["queries", "dev"] = [{"_id": query, "text": f"第{n}个问题"} for query, n in questions.items()]
    pairs = [(query, number) for query, n in questions.items() for number in (2 * n, 2 * n + 1)]
    judged = [{"query-id": query, "corpus-id": ids[n], "score": 1 - n % 2} for query, n in pairs]
    rows["dev", "dev"] = [
        {"query_id": query, "query": f"第{n}个问题", "positive_passages": [passage(TEXTS_OF_90[2 * n])]}
        | {"negative_passages": []}
        for query, n in questions.items()
    ]

    def make(out: Path, hits: int, seed: int = SEED) -> Any:
        own = rows | {("qrels", "dev"): judged}
        release = make_release(tmp_path / "release", own, rows_per_shard=40)
        ranked = {query: [ids[50 + 3 * n :][:hits], ids[20 + n :][:hits]] for query, n in questions.items()}
        for n in (0, 1):
            found = [(query, [(docid, -rank) for rank, docid in enumerate(own[n])]) for query, own in ranked.items()]
            write_run(tmp_path / f"{n}.run", found)
        hard = ("--hard", tmp_path / "0.run", tmp_path / "1.run", "--seed", seed)
        given = ("samples", "--release", release, "--nano", "--extract", *hard, "--out", out, "--format", "json")
        figures = json.loads(run("builders", "add", *given).stdout)
        return figures, {query: {ids[2 * n], ids[2 * n + 1]} for query, n in questions.items()}, ranked

    return make


@pytest.mark.slow
@pytest.mark.parametrize("hits", [6, 2])  # more hits than places, and fewer
def test_a_nano_release_has_drawn_questions_their_passages_and_the_best_hits(
    nano: Callable[..., Any], tmp_path: Path, hits: int
) -> None:
    out = tmp_path / "nano"
    figures, every, ranked = nano(out, hits)
    drawn = sorted(every, key=lambda each: hashlib.sha256(f"{SEED}\n{each}".encode()).digest())[:5]
    release = open_release(out)
    assert {*release.texts("queries", "dev")} == {*drawn}
    assert {*release.splits()} == {("corpus", "corpus"), *((name, "dev") for name in ("queries", "qrels", "dev"))}
    pairs = {(row["query-id"], row["corpus-id"]) for row in release.table("qrels", "dev").to_pylist()}
    assert pairs == {(each, docid) for each in drawn for docid in every[each]}
    chosen = [row["_id"] for row in release.table("corpus", "corpus").to_pylist()]
    assert len(chosen) == 40 and chosen == sorted({*chosen}, key=[md5(text) for text in TEXTS_OF_90].index)
    judged = {docid for _, docid in pairs}
    hits_of = [(rank, docid) for each in drawn for own in ranked[each] for rank, docid in enumerate(own)]
    hard = {docid: rank for rank, docid in sorted(hits_of, reverse=True) if docid not in judged}  # the best rank
    inside = {docid for docid in chosen if docid in hard}
    assert judged <= {*chosen} and (figures["judged"], figures["hard"], figures["queries"]) == (10, len(inside), 5)
    if hits == 2:
        assert inside == {*hard} and len(hard) < 30  # the rest is random
    else:
        assert {*chosen} == judged | inside and len(hard) > 30
        assert max(hard[docid] for docid in inside) <= min(hard[docid] for docid in {*hard} - inside)
    run("builders", "check", "--release", out)
    nano(tmp_path / "again", hits)
    assert tree(tmp_path / "again") == tree(out)
    nano(tmp_path / "other", hits, seed=4)
    assert {*open_release(tmp_path / "other").texts("queries", "dev")} != {*drawn}


@pytest.mark.slow
def test_other_tools_read_a_nano_release(nano: Callable[..., Any], tmp_path: Path) -> None:
    """The lines of docs/tools/sentence-transformers.md measure a model on the release as its vectors do."""
    from sentence_transformers import SentenceTransformer

    nano(tmp_path / "nano", 6)
    release = open_release(tmp_path / "nano")
    texts, queries = release.texts("corpus", "corpus"), release.texts("queries", "dev")
    write_dual(tmp_path / "model", 1, "cosine", None, None, texts=[*texts.values(), *queries.values()])
    code = block("sentence-transformers", "python").replace("RELEASE", str(tmp_path / "nano"))
    values: dict[str, Any] = {}
    exec(code.replace("MODEL", str(tmp_path / "model")), values)
    model = SentenceTransformer(str(tmp_path / "model"), device="cpu")
    vectors = {key: model.encode(text, normalize_embeddings=True) for key, text in (texts | queries).items()}
    scores = {query: {each: float(vectors[query] @ vectors[each]) for each in texts} for query in queries}
    qrels = [row for row in release.table("qrels", "dev").to_pylist() if row["score"] > 0]
    assert values["results"]["dev_cosine_mrr@10"] == pytest.approx(reciprocal_rank(scores, qrels), abs=1e-5)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("--nano --hard RUN", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --sizes 40", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--extract", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --extract sample-40", 2, "expected --sizes N..., --extract CONFIG, or --nano --extract"),
        ("--nano --extract", 2, "expected --hard RUN..."),
        ("--nano --extract --hard RUN --split train dev", 2, "draws queries of one --split"),
        ("--nano --extract --hard RUN --split test", 1, "has no config 'qrels' with a split 'test'"),
        ("--nano --extract --hard RUN", 1, "has no query of --split; expected a run of these queries"),
    ],
)
def test_options_that_make_no_sample_are_one_line(
    large: Path, tmp_path: Path, words: str, code: int, said: str
) -> None:
    hard = a_run(tmp_path / "hard.run", {"another": TEXTS[:2]})
    given = [hard if word == "RUN" else word for word in words.split()]
    done = run("builders", "add", "samples", "--release", large, "--out", tmp_path / "out", *given, code=code)
    assert said in (error_of(done) if code == 1 else done.stderr) and not (tmp_path / "out").exists()
