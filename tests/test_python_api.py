"""The Python API: what `from baselines import ...` gives equals what the command line prints."""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from commands import run
from hub_client import as_client
from hub_server import Blob, Hub
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import SentenceTransformer
from tiny_families import with_modules, write_encoder
from tiny_models import write_cross, write_dual

from baselines import InputError, evaluate, open_release, search
from baselines.retrieve.any_model import run_model
from baselines.retrieve.encode import encode_texts
from baselines.retrieve.rerank import rerank_run
from baselines.retrieve.search_vectors import search_vectors
from builders.core.errors import UsageError
from builders.store.runs import read_run

pytestmark = pytest.mark.usefixtures("own_cache")
CPU: Any = {"device": "cpu", "dtype": "fp32"}


COUNTED_CHARACTERS = "高铁票手机水北京饺子"


def encode(texts: Sequence[str]) -> Any:
    """Return a vector for each text: 1, and the counts of a few characters."""
    vectors = np.ones((len(texts), 1 + len(COUNTED_CHARACTERS)))
    for row, text in enumerate(texts):
        vectors[row, 1:] = [text.count(character) for character in COUNTED_CHARACTERS]
    return vectors


@pytest.fixture
def release(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return make_release(tmp_path / "release")


def run_in(path: Path) -> dict[str, dict[str, float]]:
    """Return the run in a file: query id -> passage id -> score."""
    return {query_id: dict(hits) for query_id, hits in read_run(path).hits.items()}


def test_a_release_gives_its_passages_queries_and_judgments(release: Path, everything: Path) -> None:
    opened = open_release(release)
    assert list(opened.passages()) == [(md5(text), text) for text in TEXTS]
    assert opened.queries("dev") == {md5(text): text for text in QUESTIONS["dev"]}
    assert opened.qrels("dev") == {row["query-id"]: {row["corpus-id"]: 1} for row in tables()["qrels", "dev"]}
    ccovid_queries = open_release(everything, set="ccovid").queries("dev")
    assert next(iter(ccovid_queries.values())).startswith("ccovid")


def test_a_split_a_set_or_a_revision_that_a_release_lacks_is_one_error(release: Path) -> None:
    with pytest.raises(InputError, match=r"has no config 'queries' with a split 'later'; it has corpus/corpus"):
        open_release(release).queries("later")
    with pytest.raises(
        InputError, match=r"set: expected one of main, cmedqa, ccovid, crosslingual, stress-.*, found 'cmrc'"
    ):
        open_release(release, set="cmrc")
    with pytest.raises(InputError, match="a directory has no revisions"):
        open_release(release, revision="main")


def test_a_release_comes_from_the_hub(release: Path, tmp_path: Path, hub: Hub) -> None:
    files = {}
    for path in release.rglob("*"):
        if path.is_file():
            files[path.relative_to(release).as_posix()] = Blob(path.read_bytes(), path.suffix == ".parquet")
    hub.create("org/tiny").add("a release", files)
    with as_client(hub, tmp_path / "home", None):
        assert evaluate("bm25", "org/tiny") == evaluate("bm25", release)
        with pytest.raises(InputError, match=r"org/other: no such directory, and .* has no dataset"):
            open_release("org/other")


def check_against_run(run_path: Path, model: Any, release: Path, **options: Any) -> None:
    """`search` gives the run in the file, and `evaluate` the figures that the command line prints for it."""
    expected_run = run_in(run_path)
    assert search(model, release, top_k=4, **options) == expected_run
    (printed,) = json.loads(run("baselines", "evaluate", "--release", release, run_path, "--format", "json").stdout)
    expected_figures = printed["official"] | printed["ir_measures"]
    assert evaluate(model, release, top_k=4, **options) == expected_figures
    assert evaluate(run_path, release) == expected_figures
    assert evaluate(expected_run, release) == expected_figures


ON_CPU = ["--device", "cpu", "--dtype", "fp32"]


@pytest.fixture
def bm25_path(release: Path, tmp_path: Path) -> Path:
    """Write a run of the command line."""
    path = tmp_path / "bm25.run"
    run("baselines", "bm25", "--release", release, "--top-k", 4, "--out", path, "--k1", 0.9)
    return path


@pytest.fixture
def prompted_model(tmp_path: Path) -> Path:
    """Write an encoder with prompts."""
    model = write_encoder(tmp_path, "BAAI/bge-small-zh-v1.5").rename(tmp_path / "my-model")
    return with_modules(model, "mean", prompts={"query": "问：", "short": "找："}, normalize=True)


def test_bm25_runs_are_those_of_the_command_line(release: Path, bm25_path: Path) -> None:
    check_against_run(bm25_path, "bm25", release, k1=0.9)


def test_dense_runs_are_those_of_the_command_line(release: Path, tmp_path: Path, prompted_model: Path) -> None:
    run_path = tmp_path / "dense.run"
    words = ["run", prompted_model, "--release", release, "--top-k", 4, "--out", run_path, "--query-prompt", "查："]
    words += ON_CPU
    run("baselines", words)
    check_against_run(run_path, prompted_model, release, query_prompt="查：", **CPU)
    loaded_model = SentenceTransformer(str(prompted_model), device="cpu")
    check_against_run(run_path, loaded_model, release, query_prompt="查：")
    # The prompt of one call does not stay in the model.
    assert loaded_model.prompts["query"] == "问："


def test_dense_re_rankings_are_those_of_the_command_line(
    release: Path, tmp_path: Path, bm25_path: Path, prompted_model: Path
) -> None:
    run_path = tmp_path / "two.run"
    words = ["rerank", "--release", release, "--top-k", 4, "--out", run_path, "--run", bm25_path]
    words += ["--model", prompted_model, "--query-prompt", "查："]
    words += ON_CPU
    run("baselines", words)
    check_against_run(run_path, prompted_model, release, run=bm25_path, query_prompt="查：", **CPU)
    loaded_model = SentenceTransformer(str(prompted_model), device="cpu")
    check_against_run(run_path, loaded_model, release, run=bm25_path, query_prompt="查：")
    assert loaded_model.prompts["query"] == "问："


def test_re_rankings_of_a_cross_encoder_are_those_of_the_command_line(
    release: Path, tmp_path: Path, bm25_path: Path
) -> None:
    run_path = tmp_path / "ce.run"
    cross = write_cross(tmp_path / "cross")
    words = ["rerank", "--release", release, "--top-k", 4, "--out", run_path, "--run", bm25_path, "--model", cross]
    words += ON_CPU
    run("baselines", words)
    check_against_run(run_path, str(cross), release, run=bm25_path, **CPU)
    check_against_run(run_path, cross, release, run=run_in(bm25_path), **CPU)


def test_an_own_encoder_is_scored_by_dot_products(release: Path) -> None:
    run = search(encode, release, similarity="dot")
    vectors = encode(TEXTS)
    for text in QUESTIONS["dev"]:
        dot_products = (vectors @ encode([text])[0]).tolist()
        hits = sorted(zip(map(md5, TEXTS), dot_products, strict=True), key=lambda hit: (-hit[1], hit[0]))
        assert list(run[md5(text)].items()) == hits


def test_an_own_encoder_gets_prompts_and_batches_and_resumes(release: Path, tmp_path: Path) -> None:
    batches: list[list[str]] = []

    def encode_and_record(texts: list[str]) -> Any:
        batches.append(texts)
        return torch.tensor(encode(texts), requires_grad=True)

    expected = search(encode, release, similarity="dot")
    model = SimpleNamespace(encode_query=encode, encode=encode_and_record)
    options: dict[str, Any] = {"batch_size": 4, "index": tmp_path / "index", "similarity": "dot"}
    assert search(model, release, passage_prompt="文", **options) == expected
    assert batches[1:] == [[f"文{text}" for text in TEXTS[:4]], [f"文{text}" for text in TEXTS[4:]]]
    assert search(model, release, passage_prompt="文", **options) == expected
    assert len(batches) == 4  # the index is there
    other_run = search(lambda texts: -encode(texts), release, **options)  # the index is another model's
    assert other_run.keys() == expected.keys()
    assert evaluate(other_run, release)["MRR@10"] == 1


def test_an_own_model_scores_the_pairs_of_a_run(release: Path) -> None:
    first_run = search("bm25", release, top_k=3)
    expected = {query_id: dict.fromkeys(scores, 0.0) for query_id, scores in first_run.items()}
    scored_pairs: list[tuple[str, str]] = []

    def predict(pairs: list[tuple[str, str]]) -> list[float]:
        scored_pairs.extend(pairs)
        return [0.0] * len(pairs)

    for model in (predict, SimpleNamespace(predict=predict)):
        assert search(model, release, run=first_run, query_prompt="问：") == expected
    assert {query for query, _ in scored_pairs} == {f"问：{text}" for text in QUESTIONS["dev"]}
    assert {text for _, text in scored_pairs} <= set(TEXTS)


QUERY = md5(QUESTIONS["dev"][0])


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (3, {}, "model: expected a function of a list of texts, .* found int"),
        (encode, {"pooling": "cls"}, "an own encoder has no option pooling"),
        ("bm25", {"batch_size": 3}, "search_bm25 has no option .batch_size"),
        ({QUERY: {"p": 1.0}}, {"k1": 3}, "a run has no option k1"),
        (encode, {"similarity": "cos"}, "similarity: expected one of cosine, dot, found .cos"),
        (lambda texts: [[np.nan]] * len(texts), {}, "expected finite numbers, found NaN"),
        (lambda texts: [1.0], {}, r"found an array of shape \(1,\)"),
        (lambda texts: [[1e39]] * len(texts), {"similarity": "dot"}, "too large for 32 bits"),
        (lambda texts: [[1.0] * len(text) for text in texts], {}, "are not all rows of numbers of equal length"),
        (lambda texts: [[1.0] * len(texts)] * len(texts), {}, "2 dimensions, as in earlier calls, found 6"),
        (encode, {"run": {QUERY: {}}, "similarity": "dot"}, "an own re-ranker has no option similarity"),
        (encode, {"batch_size": 0}, "batch_size: expected a whole number of at least 1, found 0"),
        ({QUERY: {"p": np.inf}}, {}, "expected a finite number as the score, found inf"),
        ({"q": {"p": 1.0}}, {}, "no matching query"),
        (encode, {"run": {"q": {"p": 1.0}}}, "query 'q' that the split 'dev' lacks"),
        (encode, {"run": {QUERY: {"p": 1.0}}}, "passage 'p' that the release's corpus lacks"),
    ],
    ids=lambda value: None,
)
def test_what_is_wrong_is_one_error(model: Any, options: dict[str, Any], message: str, release: Path) -> None:
    with pytest.raises(InputError, match=message):
        evaluate(model, release, **options)


def test_verbs_pass_their_results_on_without_files(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`encode` gives an index, `search` and `run` give runs in memory, and `rerank` takes them."""
    empty_folder = tmp_path / "empty"
    empty_folder.mkdir()
    monkeypatch.chdir(empty_folder)
    dual = write_dual(tmp_path / "dual")
    cross = write_cross(tmp_path / "cross")
    vectors = encode_texts(release, model=dual, out=tmp_path / "vectors", **CPU)
    first_run = search_vectors(release, passages=vectors, model=dual, top_k=4, **CPU)
    reranked = rerank_run(release, run=first_run, model=cross, **CPU)
    assert reranked.hits == run_model(cross, release, over=first_run, **CPU).hits
    assert reranked.hits.keys() == first_run.hits.keys()
    assert rerank_run(release, run=first_run, model=cross, out=tmp_path / "ce.run", **CPU).hits == reranked.hits
    assert set(reranked.rankings[QUERY]) == set(first_run.rankings[QUERY])
    assert not list(empty_folder.iterdir())  # no run was written into the current folder


def test_the_report_of_a_run_has_measures_and_settings(release: Path, tmp_path: Path) -> None:
    dual = write_dual(tmp_path / "dual")
    report = run_model(dual, release, **CPU).report
    expected = evaluate(dual, release, **CPU)
    assert report.value["evaluation"]["official"]["MRR@10"] == expected["MRR@10"]
    assert report.to_pandas()["MRR@10"].tolist() == [expected["MRR@10"]]
    assert "| model | dual |" in report.to_markdown()
    assert str(report).startswith("model            dual\nkind             dense")


def test_a_wrong_value_names_the_option(release: Path) -> None:
    for options, problem in (
        ({"max_length": 3}, "max_length: expected a whole number of at least 4, found 3"),
        ({"poolin": "cls"}, "search has no option 'poolin'; did you mean pooling"),
        ({"dtype": "fp8"}, "dtype: expected one of auto, fp32, fp16, bf16, int8, found 'fp8'"),
    ):
        with pytest.raises(UsageError, match=problem):
            search("org/name", release, **options)
    with pytest.raises(UsageError, match="expected either --model or --queries"):
        search_vectors(release, passages="vectors")
