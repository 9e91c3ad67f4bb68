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


def encode(texts: Sequence[str]) -> Any:
    """Return a vector for each text: the counts of a few characters."""
    return np.array([[1.0, *map(text.count, "高铁票手机水北京饺子")] for text in texts])


@pytest.fixture
def release(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return make_release(tmp_path / "release")


def found(out: Path) -> dict[str, dict[str, float]]:
    return {query: dict(hits) for query, hits in read_run(out).hits.items()}


def test_a_release_gives_its_passages_queries_and_judgments(release: Path, everything: Path) -> None:
    opened = open_release(release)
    assert [*opened.passages()] == [(md5(text), text) for text in TEXTS]
    assert opened.queries("dev") == {md5(text): text for text in QUESTIONS["dev"]}
    assert opened.qrels("dev") == {row["query-id"]: {row["corpus-id"]: 1} for row in tables()["qrels", "dev"]}
    assert next(iter(open_release(everything, set="ccovid").queries("dev").values())).startswith("ccovid")
    with pytest.raises(InputError, match=r"has no config 'queries' with a split 'later'; it has corpus/corpus"):
        opened.queries("later")
    with pytest.raises(InputError, match="set: expected one of main, cmedqa, ccovid, crosslingual, found 'cmrc'"):
        open_release(release, set="cmrc")
    with pytest.raises(InputError, match="a directory has no revisions"):
        open_release(release, revision="main")


def test_a_release_comes_from_the_hub(release: Path, tmp_path: Path, hub: Hub) -> None:
    files = {path.relative_to(release).as_posix(): path for path in release.rglob("*") if path.is_file()}
    hub.create("org/tiny").add("a release", {n: Blob(p.read_bytes(), p.suffix == ".parquet") for n, p in files.items()})
    with as_client(hub, tmp_path / "home", None):
        assert evaluate("bm25", "org/tiny") == evaluate("bm25", release)
        with pytest.raises(InputError, match=r"org/other: no such directory, and .* has no dataset"):
            open_release("org/other")


def test_runs_and_figures_are_those_of_the_command_line(release: Path, tmp_path: Path) -> None:
    model = write_encoder(tmp_path, "BAAI/bge-small-zh-v1.5").rename(tmp_path / "my-model")
    with_modules(model, "mean", prompts={"query": "问：", "short": "找："}, normalize=True)
    cross, words = write_cross(tmp_path / "cross"), ["--release", release, "--top-k", 4, "--out"]
    on_cpu = ["--device", "cpu", "--dtype", "fp32"]
    run("baselines", "bm25", *words, first := tmp_path / "bm25.run", "--k1", 0.9)
    run("baselines", "run", model, *words, dense := tmp_path / "dense.run", "--query-prompt", "查：", *on_cpu)
    run("baselines", "rerank", *words, again := tmp_path / "ce.run", "--run", first, "--model", cross, *on_cpu)
    over = ["--run", first, "--query-prompt", "查：", *on_cpu]
    run("baselines", "rerank", *words, two := tmp_path / "two.run", "--model", model, *over)
    own = SentenceTransformer(str(model), device="cpu")
    for out, given, options in (
        (first, "bm25", {"k1": 0.9}),
        (dense, model, {"query_prompt": "查：", **CPU}),
        (dense, own, {"query_prompt": "查："}),
        (two, model, {"run": first, "query_prompt": "查：", **CPU}),
        (two, own, {"run": first, "query_prompt": "查："}),
        (again, str(cross), {"run": first, **CPU}),
        (again, cross, {"run": found(first), **CPU}),
    ):
        assert search(given, release, top_k=4, **options) == found(out), given
        printed = run("baselines", "evaluate", "--release", release, out, "--format", "json").stdout
        expected = json.loads(printed)[0]
        for figures in (
            evaluate(given, release, top_k=4, **options),
            evaluate(out, release),
            evaluate(found(out), release),
        ):
            assert figures == {**expected["official"], **expected["ir_measures"]}, given
    assert own.prompts["query"] == "问："


def test_an_own_encoder_gets_prompts_and_batches_and_resumes(release: Path, tmp_path: Path) -> None:
    asked: list[list[str]] = []

    def spied(texts: list[str]) -> Any:
        asked.append(texts)
        return torch.tensor(encode(texts), requires_grad=True)

    expected = search(encode, release, similarity="dot")
    vectors = encode(TEXTS)
    for text in QUESTIONS["dev"]:
        scores = dict(zip(map(md5, TEXTS), (vectors @ encode([text])[0]).tolist(), strict=True))
        assert expected[md5(text)] == dict(sorted(scores.items(), key=lambda hit: (-hit[1], hit[0])))
    own = SimpleNamespace(encode_query=encode, encode=spied)
    options: dict[str, Any] = {"batch_size": 4, "index": tmp_path / "index", "similarity": "dot"}
    assert search(own, release, passage_prompt="文", **options) == expected
    assert asked[1:] == [[f"文{text}" for text in TEXTS[:4]], [f"文{text}" for text in TEXTS[4:]]]
    assert search(own, release, passage_prompt="文", **options) == expected and len(asked) == 4  # the index is there
    other = search(lambda texts: -encode(texts), release, **options)  # the index is another model's
    assert {*other} == {*expected} and evaluate(other, release)["MRR@10"] == 1


def test_an_own_model_scores_the_pairs_of_a_run(release: Path) -> None:
    first = search("bm25", release, top_k=3)
    expected = {query: dict.fromkeys(own, 0.0) for query, own in first.items()}
    seen: list[Any] = []

    def predict(pairs: list[tuple[str, str]]) -> list[float]:
        seen.extend(pairs)
        return [0.0] * len(pairs)

    for model in (predict, SimpleNamespace(predict=predict)):
        assert search(model, release, run=first, query_prompt="问：") == expected
    assert {query for query, _ in seen} == {f"问：{text}" for text in QUESTIONS["dev"]}
    assert {text for _, text in seen} <= {*TEXTS}


QUERY = md5(QUESTIONS["dev"][0])


@pytest.mark.parametrize(
    ("model", "options", "kind", "said"),
    [
        (3, {}, InputError, "model: expected a function of a list of texts, .* found int"),
        (encode, {"pooling": "cls"}, InputError, "an own encoder has no option pooling"),
        ("bm25", {"batch_size": 3}, InputError, "search_bm25 has no option .batch_size"),
        ({QUERY: {"p": 1.0}}, {"k1": 3}, InputError, "a run has no option k1"),
        (encode, {"similarity": "cos"}, InputError, "similarity: expected one of cosine, dot, found .cos"),
        (lambda texts: [[np.nan]] * len(texts), {}, InputError, "expected finite numbers, found NaN"),
        (lambda texts: [1.0], {}, InputError, r"found an array of shape \(1,\)"),
        (lambda texts: [[1e39]] * len(texts), {"similarity": "dot"}, InputError, "too large for 32 bits"),
        (lambda texts: [[1.0] * len(text) for text in texts], {}, InputError, "are no rows of numbers of one width"),
        (lambda texts: [[1.0] * len(texts)] * len(texts), {}, InputError, "2 dimensions, as in earlier calls, found 6"),
        (encode, {"run": {QUERY: {}}, "similarity": "dot"}, InputError, "an own re-ranker has no option similarity"),
        (encode, {"batch_size": 0}, InputError, "batch_size: expected a whole number of at least 1, found 0"),
        ({QUERY: {"p": np.inf}}, {}, InputError, "expected a finite number as the score, found inf"),
        ({"q": {"p": 1.0}}, {}, InputError, "no matching query"),
        (encode, {"run": {"q": {"p": 1.0}}}, InputError, "query 'q' that the split 'dev' lacks"),
        (encode, {"run": {QUERY: {"p": 1.0}}}, InputError, "passage 'p' that the release's corpus lacks"),
    ],
    ids=lambda value: None,
)
def test_what_is_wrong_is_one_error(model: Any, options: Any, kind: Any, said: str, release: Path) -> None:
    with pytest.raises(kind, match=said):
        evaluate(model, release, **options)


def test_verbs_pass_their_results_on_without_files(
    release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`encode` gives an index, `search` and `run` give runs in memory, and `rerank` takes them."""
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    dual, cross = write_dual(tmp_path / "dual"), write_cross(tmp_path / "cross")
    vectors = encode_texts(release, model=dual, out=tmp_path / "vectors", **CPU)
    first = search_vectors(release, passages=vectors, model=dual, top_k=4, **CPU)
    again = rerank_run(release, run=first, model=cross, **CPU)
    two_stages = run_model(cross, release, over=first, **CPU)
    assert again.hits == two_stages.hits and {*again.hits} == {*first.hits}
    assert rerank_run(release, run=first, model=cross, out=tmp_path / "ce.run", **CPU).hits == again.hits
    assert {*again.rankings[QUERY]} == {*first.rankings[QUERY]}
    assert not [*(tmp_path / "empty").iterdir()]  # no run was written into the current folder


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
