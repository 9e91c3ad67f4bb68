"""Hard negatives: no positives by id or text, seeded samples, and denoising by a model or by the run's scores."""

import gzip
import itertools
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
OTHERS = [first + second for first, second in itertools.product(TEXTS, TEXTS)]
CORPUS = [*TEXTS, TWIN, *OTHERS]
TEXT_OF = {md5(text): text for text in CORPUS}
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
    """Return hits of each query: positives, the twin, 30 other passages, and the first query's other passages."""
    hits_by_query = []
    for query_id in queries:
        sample = random.Random(query_id).sample(OTHERS, 30)
        distinct_texts = dict.fromkeys([*TEXTS[:4], TWIN, *sample, OTHERS[0], OTHERS[1]])
        hits_by_query.append((query_id, [(md5(text), 1 / rank) for rank, text in enumerate(distinct_texts, 1)]))
    return hits_by_query


def ranked_ids(query_number: int) -> list[str]:
    """Return the passages of a query in the order of the run."""
    return [passage_id for passage_id, _ in dict(rankings(QUERIES))[QUERIES[query_number]]]


def mine(world: Path, out: Path, *words: str | Path, code: int = 0) -> Done:
    """Mine negatives from the run. A second ``--run`` in ``words`` replaces the first."""
    options = ["--release", world / "release", "--run", world / "first.run", "--out", out]
    return run("baselines", "mine", options, words, code=code)


def mine_ids(world: Path, *words: str | Path) -> dict[str, list[str]]:
    """Mine negatives, and return their ids by query."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder, "n.jsonl.gz")
        mine(world, out, *words)
        lines = gzip.decompress(out.read_bytes()).decode().splitlines()
    rows = [json.loads(line) for line in lines]
    return {row["query-id"]: row["negative-ids"] for row in rows}


def allowed_ids(query_number: int, top_k: int = 50) -> set[str]:
    """Return the ids of the first passages that are no positives of a query."""
    positive_ids = {md5(TEXTS[query_number])}
    if query_number == 0:
        positive_ids |= {md5(OTHERS[0]), md5(TWIN)}
    return set(ranked_ids(query_number)[:top_k]) - positive_ids


def positive_texts(query_number: int) -> list[str]:
    """Return the positives of a query. The first query has two."""
    return [TEXTS[0], OTHERS[0]] if query_number == 0 else [TEXTS[query_number]]


def test_negatives_are_from_the_top_and_no_positives(world: Path, tmp_path: Path) -> None:
    negatives = mine_ids(world)
    assert list(negatives) == QUERIES
    assert [len(ids) for ids in negatives.values()] == [8, 4, 4, 4]  # 4 per positive
    for number, ids in enumerate(negatives.values()):
        assert len(set(ids)) == len(ids) and set(ids) <= allowed_ids(number)
    # With 100 negatives per positive, all allowed passages are negatives.
    options = ["--negatives", "100", "--top-k", "9"]
    for number, ids in enumerate(mine_ids(world, *options).values()):
        assert set(ids) == allowed_ids(number, 9)
    stderr = mine(world, tmp_path / "n.jsonl", *options).stderr
    assert "4 of 4 queries have too few negatives; 0 of them have none" in stderr


def test_a_sample_depends_on_seed_and_query_alone(world: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        mine(world, tmp_path / name)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    negatives = mine_ids(world)
    negatives_of_seed_1 = mine_ids(world, "--seed", "1")
    for query_id in QUERIES:
        assert set(negatives[query_id]) != set(negatives_of_seed_1[query_id])
    # A run without the second query, in reverse order
    first, _, third, fourth = rankings(QUERIES)
    write_run(tmp_path / "part.run", [fourth, third, first])
    negatives[QUERIES[1]] = []
    assert mine_ids(world, "--run", tmp_path / "part.run") == negatives


def test_from_python_the_result_has_the_file_and_the_counts(world: Path, tmp_path: Path) -> None:
    release = open_release(world / "release")
    first_run = read_run(world / "first.run")
    result = mine_negatives(release, run=first_run, out=tmp_path / "n.jsonl", top_k=9, negatives=100)
    assert (result.queries, result.queries_with_too_few) == (4, 4)
    assert (result.queries_without, result.excluded) == (0, 0)
    assert len(Path(result).read_text().splitlines()) == 4


def probabilities(world: Path, query_number: int, ids: list[str]) -> dict[str, float]:
    """Return the cross-encoder's score of each passage."""
    model = CrossEncoder(str(world / "cross"), device="cpu")
    question = QUESTIONS["train"][query_number]
    scores = model.predict([(question, TEXT_OF[passage_id]) for passage_id in ids])
    return dict(zip(ids, scores.tolist(), strict=True))


@pytest.mark.parametrize("words", [["--margin", "0.05"], ["--relative-margin", "0.1"], ["--max-score", "0.5"]])
def test_a_cross_encoder_drops_what_it_holds_for_relevant(world: Path, words: list[str]) -> None:
    candidates = mine_ids(world, "--negatives", "100")  # all, in the random order of the sample
    negatives = mine_ids(world, "--cross-encoder", world / "cross", *words, "--negatives", "3")
    dropped_count = 0
    for number, query_id in enumerate(QUERIES):
        positive_ids = [md5(text) for text in positive_texts(number)]
        best = max(probabilities(world, number, positive_ids).values())
        limit = {"--margin": best - 0.05, "--relative-margin": 0.9 * best, "--max-score": 0.5}[words[0]]
        scores = probabilities(world, number, candidates[query_id])
        assert min(abs(score - limit) for score in scores.values()) > 1e-5  # no score depends on rounding
        accepted = [passage_id for passage_id, score in scores.items() if score <= limit]
        assert negatives[query_id] == accepted[: 3 * len(positive_ids)]
        dropped_count += len(scores) - len(accepted)
    assert dropped_count > 10


@pytest.mark.parametrize("similarity", ["cosine", "dot"])
def test_a_bi_encoder_drops_what_is_as_similar_as_the_positive(world: Path, tmp_path: Path, similarity: str) -> None:
    write_dual(tmp_path / "dual", similarity=similarity, texts=CORPUS, prompts={"query": "问", "document": "文"})
    model = SentenceTransformer(str(tmp_path / "dual"), device="cpu")
    candidates = mine_ids(world, "--negatives", "100")  # all, in the random order of the sample
    options = ["--bi-encoder", tmp_path / "dual", "--relative-margin", "0.05", "--negatives", "3"]
    negatives = mine_ids(world, *options)
    dropped_count = 0
    for number, query_id in enumerate(QUERIES):
        query_vector = model.encode_query([QUESTIONS["train"][number]])
        best = model.similarity(query_vector, model.encode_document(positive_texts(number))).max().item()
        limit = best - abs(best) * 0.05  # sentence-transformers' relative_margin
        rounding = 2e-3 * abs(limit)  # the error of 16-bit vectors
        passage_vectors = model.encode_document([TEXT_OF[passage_id] for passage_id in candidates[query_id]])
        similarities = model.similarity(query_vector, passage_vectors)[0].tolist()
        scores = dict(zip(candidates[query_id], similarities, strict=True))
        for passage_id in negatives[query_id]:
            assert scores[passage_id] <= limit + rounding
        # Candidates before the last negative that are no negatives
        last_row = candidates[query_id].index(negatives[query_id][-1])
        dropped_ids = set(candidates[query_id][:last_row]) - set(negatives[query_id])
        for passage_id in dropped_ids:
            assert scores[passage_id] > limit - rounding
        dropped_count += len(dropped_ids)
    assert dropped_count > 0


@pytest.mark.parametrize(
    ("words", "first_rank"), [(["--relative-margin", "0.4"], 4), (["--margin", "0.2"], 4), (["--max-score", "0.2"], 5)]
)
def test_without_a_model_the_scores_of_the_run_decide(world: Path, words: list[str], first_rank: int) -> None:
    """The positive of the second query has rank 2 and the score 1/2. A passage of rank n has the score 1/n."""
    negatives = mine_ids(world, "--negatives", "100", *words)[QUERIES[1]]
    ids_from_first_rank = set(ranked_ids(1)[first_rank - 1 :])
    assert set(negatives) == ids_from_first_rank & allowed_ids(1)


def test_a_positive_that_the_run_lacks_scores_like_its_last_passage(world: Path, tmp_path: Path) -> None:
    first, second, third = [md5(text) for text in OTHERS[7:10]]
    run_path = tmp_path / "part.run"
    write_run(run_path, [(QUERIES[1], [(first, 9.0), (second, 5.0), (third, 5.0)])])
    negatives = mine_ids(world, "--run", run_path, "--margin", "0")
    assert set(negatives[QUERIES[1]]) == {second, third}
    assert mine_ids(world, "--run", run_path, "--relative-margin", "0.01")[QUERIES[1]] == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (f"who Q0 {md5(TEXTS[1])} 1 1.0 t\n", "no matching query"),
        (f"{QUERIES[0]} Q0 unknown 1 1.0 t\n", "has a passage 'unknown' that the release's corpus lacks"),
    ],
)
def test_bad_input_is_one_error(world: Path, tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "bad.run").write_text(line)
    assert message in mine(world, tmp_path / "n.jsonl", "--run", tmp_path / "bad.run", code=1).stderr
    assert not (tmp_path / "n.jsonl").exists()
