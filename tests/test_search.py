"""Search by embeddings: the model's own ranking, recall of the faster ways; what does not fit together is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import SentenceTransformer
from tiny_models import write_dual

from builders.core.command import main
from builders.core.files import sha256_of
from builders.store.runs import read_run

VERBS = {"encode": "baselines.retrieve.encode", "search": "baselines.retrieve.search"}
pytestmark = pytest.mark.usefixtures("own_cache")


def passage_texts() -> list[str]:
    return [*TEXTS, *(f"{one}{two}{three}" for one in TEXTS for two in TEXTS for three in TEXTS[:4])][:120]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release of 120 passages, models, embeddings."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    texts = passage_texts()
    some = {("sample-30", "corpus"): [{"_id": md5(text)} for text in texts[1::4]]}
    make_release(folder / "release", tables(texts) | some, rows_per_shard=50)
    make_release(folder / "other-release", tables(texts[:50]), rows_per_shard=50)
    write_dual(folder / "model", similarity="cosine")
    write_dual(folder / "other-model", similarity="cosine", seed=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for words in (
            ["--release", "release", "--model", "model", "--out", "passages", "--shard-rows", "37"],
            ["--release", "release", "--model", "model", "--out", "queries", "--queries", "--split", "train"],
            [
                "--release",
                "release",
                "--model",
                "other-model",
                "--out",
                "q-other-model",
                "--queries",
                "--split",
                "train",
            ],
            ["--release", "other-release", "--model", "model", "--out", "p-other-release"],
        ):
            words = [w if w.startswith("--") or w in ("37", "train") else str(folder / w) for w in words]
            assert main("baselines", "", VERBS, ["encode", *words]) == 0
    return folder


def search(world: Path, out: Path, *words: str | Path, passages: str | Path = "passages", split: str = "train") -> int:
    first = ["--release", world / "release", "--split", split, "--passages", world / passages, "--out", out]
    return main("baselines", "", VERBS, ["search", *map(str, [*first, *words])])


def test_a_sample_gives_what_the_whole_ranks_but_for_the_other_passages(world: Path, tmp_path: Path) -> None:
    queries = ["--queries", world / "queries"]
    assert search(world, tmp_path / "all.run", *queries, "--top-k", "120") == 0
    assert search(world, tmp_path / "some.run", *queries, "--top-k", "7", "--sample", "sample-30") == 0
    chosen = {md5(text) for text in passage_texts()[1::4]}
    every, some = read_run(tmp_path / "all.run").hits, read_run(tmp_path / "some.run").hits
    assert some == {query: [hit for hit in hits if hit[0] in chosen][:7] for query, hits in every.items()}
    assert search(world, tmp_path / "x.run", *queries, "--sample", "sample-9") == 1


def test_a_run_is_what_the_model_says(world: Path, tmp_path: Path) -> None:
    assert search(world, tmp_path / "a.run", "--model", world / "model", "--top-k", "7") == 0
    assert search(world, tmp_path / "b.run", "--queries", world / "queries", "--top-k", "7", "--engine", "torch") == 0
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    run = read_run(tmp_path / "a.run")
    assert list(run.hits) == [md5(question) for question in QUESTIONS["train"]]
    model = SentenceTransformer(str(world / "model"), device="cpu")
    texts = passage_texts()
    scores = model.similarity(model.encode_query(QUESTIONS["train"]), model.encode_document(texts)).numpy()
    by_id = {md5(text): place for place, text in enumerate(texts)}
    for row, hits in zip(scores, run.hits.values(), strict=True):
        assert len(hits) == 7
        assert [score for _, score in hits] == pytest.approx(sorted(row, reverse=True)[:7], abs=1e-3)
        assert [row[by_id[corpus]] for corpus, _ in hits] == pytest.approx([score for _, score in hits], abs=1e-3)


@pytest.mark.parametrize("words", [["--engine", "faiss"], ["--engine", "torch"]])
def test_a_run_does_not_depend_on_how_many_devices_there_are(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    monkeypatch.setattr("baselines.retrieve.dense.BLOCK", 16)
    queries = ["--queries", world / "queries", "--top-k", "7", *words]
    assert search(world, tmp_path / "one.run", *queries, "--device", "cpu") == 0
    assert search(world, tmp_path / "three.run", *queries, "--device", "cpu,cpu,cpu") == 0
    assert (tmp_path / "one.run").read_bytes() == (tmp_path / "three.run").read_bytes()


def listed_anew(folder: Path, **values: object) -> None:
    """Make the manifest say what the shards hold now, and ``values`` of each."""
    manifest = json.loads((folder / "manifest.json").read_text())
    for shard in manifest["shards"]:
        path = folder / shard["path"]
        shard.update(values, bytes=path.stat().st_size, sha256=sha256_of(path))
    (folder / "manifest.json").write_text(json.dumps(manifest))


def test_a_collapsed_model_ranks_by_id(world: Path, tmp_path: Path) -> None:
    """All embeddings are one: the best are the first ids, not whichever came first."""
    passages = shutil.copytree(world / "passages", tmp_path / "passages")
    for path in passages.glob("*.npy"):
        np.save(path, np.full_like(np.load(path), 0.5))
    listed_anew(passages, longest=0.5 * 32**0.5)
    assert search(world, tmp_path / "a.run", "--queries", world / "queries", "--top-k", "5", passages=passages) == 0
    first = sorted(map(md5, passage_texts()))[:5]
    assert list(read_run(tmp_path / "a.run").rankings.values()) == [first] * 4


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--model", "WORLD/other-model"], "is not the model that encoded"),
        (["--queries", "WORLD/q-other-model"], "is not the model that encoded"),
        (["--queries", "WORLD/passages"], "holds the passages of corpus/corpus; expected the queries of queries/train"),
        (["--queries", "WORLD/queries", "--split", "dev"], "holds the queries of queries/train"),
        (["--queries", "WORLD/queries", "--passages", "WORLD/p-other-release"], "was encoded from another release"),
        (["--queries", "WORLD/queries", "--passages", "WORLD/release"], "manifest.json: "),
        (["--queries", "WORLD/queries", "--passages", "WORLD/none"], "not a directory of embeddings"),
        (["--queries", "WORLD/queries", "--device", "cuda"], "no GPU that PyTorch can use"),
        (["--queries", "WORLD/queries", "--set", "ccovid"], "holds the passages of corpus/corpus"),
    ],
)
def test_what_does_not_fit_together_is_one_error(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], message: str
) -> None:
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    assert search(world, tmp_path / "a.run", *(word.replace("WORLD", str(world)) for word in words)) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "a.run").exists()


def test_without_faiss_exact_search_is_torchs(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert search(world, tmp_path / "a.run", "--queries", world / "queries") == 0
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    assert search(world, tmp_path / "b.run", "--queries", world / "queries") == 0
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    assert search(world, tmp_path / "c.run", "--queries", world / "queries", "--engine", "faiss") == 1
    assert "faiss is not installed: pip install" in capsys.readouterr().err
