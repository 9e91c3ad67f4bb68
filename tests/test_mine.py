"""Hard negatives: no positives by id or text, seeded samples, and denoising by a model or by the run's scores."""

import gzip
import json
import random
import tempfile
from pathlib import Path

import pytest
import torch
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual

from baselines.train.mine import mine_negatives
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

QUERIES = [md5(question) for question in QUESTIONS["train"]]
TWIN = TEXTS[0].replace("，", ", ") + " "  # the first query's positive with other width and spaces
OTHERS = [f"{one}{two}" for one in TEXTS for two in TEXTS]
CORPUS = [*TEXTS, TWIN, *OTHERS]
BY_ID = {md5(text): text for text in CORPUS}
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release whose first query has two positives, and a run that ranks the positives and the twin first."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    rows = tables(CORPUS)
    rows["qrels", "train"].append({"query-id": QUERIES[0], "corpus-id": md5(OTHERS[0]), "score": 1})
    rows["qrels", "train"].append({"query-id": QUERIES[0], "corpus-id": md5(OTHERS[1]), "score": 0})
    make_release(folder / "release", rows, rows_per_shard=20)
    write_run(folder / "first.run", rankings(QUERIES))
    write_cross(folder / "cross", texts=CORPUS)
    return folder


def rankings(queries: list[str]) -> list[tuple[str, list[tuple[str, float]]]]:
    found = []
    for query in queries:
        texts = [*TEXTS[:4], TWIN, *random.Random(query).sample(OTHERS, 30), OTHERS[0], OTHERS[1]]
        found.append((query, [(md5(text), 1 / rank) for rank, text in enumerate(dict.fromkeys(texts), 1)]))
    return found


def mine(world: Path, out: Path, *words: str | Path, code: int = 0) -> Done:
    first = ["--release", world / "release", "--run", world / "first.run", "--out", out]
    return run("baselines", "mine", *first, *words, code=code)


def mined(world: Path, *words: str | Path) -> dict[str, list[str]]:
    with tempfile.TemporaryDirectory() as folder:
        mine(world, Path(folder, "n.jsonl.gz"), *words)
        lines = gzip.decompress(Path(folder, "n.jsonl.gz").read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["query-id"]: row["negative-ids"] for row in rows}


def allowed(number: int, top_k: int = 50) -> set[str]:
    ids = [corpus for corpus, _ in dict(rankings(QUERIES))[QUERIES[number]][:top_k]]
    known = {md5(TEXTS[number])} | ({md5(OTHERS[0]), md5(TWIN)} if number == 0 else set())
    return set(ids) - known


def test_negatives_are_from_the_top_and_no_positives(world: Path, tmp_path: Path) -> None:
    found = mined(world)
    assert list(found) == QUERIES
    assert [len(ids) for ids in found.values()] == [8, 4, 4, 4]  # 4 per positive
    for number, ids in enumerate(found.values()):
        assert len(set(ids)) == len(ids) and set(ids) <= allowed(number)
    every = ["--negatives", "100", "--top-k", "9"]
    assert [set(ids) for ids in mined(world, *every).values()] == [allowed(number, 9) for number in range(4)]
    said = mine(world, tmp_path / "n.jsonl", *every).stderr
    assert "4 of 4 queries have too few negatives; 0 of them have none" in said


def test_a_sample_depends_on_seed_and_query_alone(world: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        mine(world, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    found, other = mined(world), mined(world, "--seed", "1")
    assert all(set(found[query]) != set(other[query]) for query in QUERIES)
    some = [(query, hits) for query, hits in reversed(rankings(QUERIES)) if query != QUERIES[1]]
    write_run(tmp_path / "some.run", some)
    assert mined(world, "--run", tmp_path / "some.run") == {**found, QUERIES[1]: []}


def test_from_python_the_result_has_the_file_and_the_counts(world: Path, tmp_path: Path) -> None:
    release, ranking = open_release(world / "release"), read_run(world / "first.run")
    found = mine_negatives(release, run=ranking, out=tmp_path / "n.jsonl", top_k=9, negatives=100)
    assert (found.queries, found.queries_with_too_few, found.queries_without, found.excluded) == (4, 4, 0, 0)
    assert len(Path(found).read_text().splitlines()) == 4


def probabilities(world: Path, query: str, ids: list[str]) -> dict[str, float]:
    model = CrossEncoder(str(world / "cross"), device="cpu")
    texts = {md5(question): question for question in QUESTIONS["train"]}
    return dict(zip(ids, model.predict([(texts[query], BY_ID[each]) for each in ids]).tolist(), strict=True))


@pytest.mark.parametrize("words", [["--margin", "0.05"], ["--relative-margin", "0.1"], ["--max-score", "0.5"]])
def test_a_cross_encoder_drops_what_it_holds_for_relevant(world: Path, words: list[str]) -> None:
    every, dropped = mined(world, "--negatives", "100"), 0
    found = mined(world, "--cross-encoder", world / "cross", *words, "--negatives", "3")
    for number, (query, ids) in enumerate(found.items()):
        order = every[query]  # the random order of all candidates
        positives = [md5(TEXTS[number]), *([md5(OTHERS[0])] if number == 0 else [])]
        best = max(probabilities(world, query, positives).values())
        limit = {"--margin": best - 0.05, "--relative-margin": 0.9 * best, "--max-score": 0.5}[words[0]]
        scores = probabilities(world, query, order)
        assert min(abs(score - limit) for score in scores.values()) > 1e-5  # no score depends on rounding
        assert ids == [corpus for corpus in order if scores[corpus] <= limit][: 3 * len(positives)]
        dropped += sum(score > limit for score in scores.values())
    assert dropped > 10


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_bi_encoder_drops_what_is_as_similar_as_the_positive(world: Path, tmp_path: Path, similarity: str) -> None:
    write_dual(tmp_path / "dual", similarity=similarity, texts=CORPUS, prompts={"query": "问", "document": "文"})
    model = SentenceTransformer(str(tmp_path / "dual"), device="cpu")
    every, dropped = mined(world, "--negatives", "100"), 0
    found = mined(world, "--bi-encoder", tmp_path / "dual", "--relative-margin", "0.05", "--negatives", "3")
    for number, (query, ids) in enumerate(found.items()):
        order = every[query]
        asked = model.encode_query([QUESTIONS["train"][number]])
        own = [TEXTS[number], *([OTHERS[0]] if number == 0 else [])]
        best = model.similarity(asked, model.encode_document(own)).max().item()
        limit = best - abs(best) * 0.05  # sentence-transformers' relative_margin
        reached = model.similarity(asked, model.encode_document([BY_ID[corpus] for corpus in order]))[0]
        scores = dict(zip(order, reached, strict=True))
        slack = 2e-3 * abs(limit)  # rounding error of 16-bit vectors
        assert all(scores[corpus] <= limit + slack for corpus in ids)
        passed_over = set(order[: order.index(ids[-1])]) - set(ids)
        assert all(scores[corpus] > limit - slack for corpus in passed_over)
        dropped += len(passed_over)
    assert dropped > 0


@pytest.mark.parametrize(
    ("words", "kept"), [(["--relative-margin", "0.4"], 4), (["--margin", "0.2"], 4), (["--max-score", "0.2"], 5)]
)
def test_without_a_model_the_scores_of_the_run_decide(world: Path, words: list[str], kept: int) -> None:
    ranked = [corpus for corpus, _ in dict(rankings(QUERIES))[QUERIES[1]]]
    assert set(mined(world, "--negatives", "100", *words)[QUERIES[1]]) == set(ranked[kept - 1 :]) & allowed(1)


def test_a_positive_that_the_run_lacks_scores_like_its_last_passage(world: Path, tmp_path: Path) -> None:
    hits = [(md5(OTHERS[n]), score) for n, score in ((7, 9.0), (8, 5.0), (9, 5.0))]
    write_run(tmp_path / "some.run", [(QUERIES[1], hits)])
    words = ["--run", tmp_path / "some.run"]
    assert {*mined(world, *words, "--margin", "0")[QUERIES[1]]} == {md5(OTHERS[8]), md5(OTHERS[9])}
    assert mined(world, *words, "--relative-margin", "0.01")[QUERIES[1]] == []


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("who Q0 PASSAGE 1 1.0 t", "no matching query"),
        ("QUERY Q0 unknown 1 1.0 t", "has a passage 'unknown' that the release's corpus lacks"),
    ],
)
def test_bad_input_is_one_error(world: Path, tmp_path: Path, given: str, message: str) -> None:
    (tmp_path / "bad.run").write_text(given.replace("QUERY", QUERIES[0]).replace("PASSAGE", md5(TEXTS[1])) + "\n")
    assert message in mine(world, tmp_path / "n.jsonl", "--run", tmp_path / "bad.run", code=1).stderr
    assert not (tmp_path / "n.jsonl").exists()
