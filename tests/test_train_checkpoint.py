"""Training: what a checkpoint says of itself, what is read for it, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from stopping import InDestructor, heeded  # noqa: F401
from training_world import World, training_of
from transformers import AutoTokenizer

from baselines.__main__ import VERBS
from baselines.retrieve.passages import open_passages
from baselines.train.scratch import wordpieces
from baselines.train.watch import FiniteWeights
from builders.core.command import main
from builders.store.reader import open_release


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    return World(tmp_path_factory.mktemp("world"))


def test_a_checkpoint_says_what_it_is(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    out = world.folder / "said"
    values = ["train.batch=16", "train.max_steps=6", "train.logs=3", "train.evaluations=2", "data.dev_queries=10"]
    assert world.train("de-bm25-neg-scratch", out, *values) == 0
    assert json.loads(capsys.readouterr().out)["steps"] == 6
    recipe = json.loads((out / "recipe.json").read_text(encoding="utf-8"))
    assert (recipe["train"]["batch"], recipe["train"]["epochs"], recipe["data"]["query_length"]) == (16, 10.0, 8)
    training = training_of(out)
    release = open_release(world.release)
    assert training["about"]["data"]["corpus/corpus"] == release.fingerprint("corpus", "corpus")
    assert "queries/test" not in training["about"]["data"]
    assert training["counts"] == {"queries": 600, "positives": 600, "negatives": 2400, "random_negatives": 0}
    assert [step for step, _ in training["losses"]] == [2, 4, 6]
    assert [row["step"] for row in training["dev"]] == [3, 6]
    assert all(0 <= row["MRR@10"] <= 1 for row in training["dev"])
    assert str(world.folder) not in (out / "training.json").read_text(encoding="utf-8")
    assert (out / "loss.png").read_bytes().startswith(b"\x89PNG")
    assert "trained with the recipe `de-bm25-neg-scratch`" in (out / "README.md").read_text(encoding="utf-8")
    settings = json.loads((out / "config_sentence_transformers.json").read_text(encoding="utf-8"))
    assert settings["requirements"]["sentence-transformers"]["specifier"] == ">=6.0.0"
    model = SentenceTransformer(str(out), device="cpu")
    long = " ".join(["sabada"] * 60)
    assert model.preprocess([long], task="query")["input_ids"].shape == (1, 8)
    assert model.preprocess([long], task="document")["input_ids"].shape == (1, 16)
    assert abs(float(np.linalg.norm(model.encode_query("sabada"))) - 1) < 1e-5
    # A plain encode() knows no task: what calls it so (BEIR) gets the passages as they were trained.
    assert np.array_equal(model.encode([long, "sabada"]), model.encode_document([long, "sabada"]))

    # The same command again finds its work done; another recipe does not take it for its own.
    before = (out / "training.json").stat().st_mtime_ns
    assert world.train("de-bm25-neg-scratch", out, *values) == 0
    assert (out / "training.json").stat().st_mtime_ns == before
    assert world.train("de-bm25-neg-scratch", out, *values, "train.seed=1") == 1
    assert "train.seed differ" in capsys.readouterr().err


def test_a_checkpoint_does_not_say_which_text_was_read_last(world: World) -> None:
    """Else one whose training was killed after its last step would have other bytes."""
    out = world.folder / "read last"
    assert world.train("de-bm25-neg-scratch", out, "train.batch=16", "train.max_steps=1", "train.evaluations=0") == 0
    said = [json.loads(path.read_text(encoding="utf-8")) for path in out.rglob("tokenizer.json")]
    assert [(tokenizer["truncation"], tokenizer["padding"]) for tokenizer in said] == [(None, None)] * len(said) != []


def test_a_checkpoint_with_a_damaged_file_is_refused_by_every_verb(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = ["train.batch=16", "train.max_steps=1", "train.evaluations=0"]
    out = tmp_path / "model"
    assert world.train("de-bm25-neg-scratch", out, *values) == 0
    given = ["--release", str(world.release), "--device", "cpu", "--model", str(out)]
    verbs = {
        "encode": ["encode", *given, "--out", str(tmp_path / "vectors")],
        "push": ["push", "--model", str(out), "--repo", "org/name"],
        "a training that is done": world.words("de-bm25-neg-scratch", out, *values),
        "train --start": world.words("de-bm25-neg-scratch", tmp_path / "next", *values, start=out),
    }
    files = {path.relative_to(out).as_posix(): path for path in out.rglob("*") if path.is_file()}
    hashed = training_of(out)["files"]
    assert set(hashed) == set(files) - {"training.json", "README.md"}

    def refused(words: list[str], path: Path, said: str) -> None:
        capsys.readouterr()
        assert main("baselines", "", VERBS, words) == 1
        errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        assert len(errors) == 1 and f"{path}: {said}" in errors[0], errors

    for number, name in enumerate(sorted(hashed)):
        content = files[name].read_bytes()
        files[name].write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
        for words in verbs.values() if name == "model.safetensors" else [list(verbs.values())[number % len(verbs)]]:
            refused(words, files[name], "SHA-256 differs from training.json")
        files[name].write_bytes(content)
    files["loss.png"].unlink()
    refused(verbs["encode"], files["loss.png"], "is missing, but training.json names it")
    training = training_of(out)
    (out / "training.json").write_text(json.dumps(training | {"files": {"../x.json": "0" * 64}}))
    refused(verbs["encode"], out / "training.json", "files: names ../x.json")
    del training["files"]  # as earlier versions wrote it
    (out / "training.json").write_text(json.dumps(training))
    assert main("baselines", "", VERBS, verbs["encode"]) == 0


@pytest.mark.usefixtures("heeded")
def test_a_signal_inside_a_destructor_stops_a_training(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    out, values = world.folder / "stopped", ["train.batch=16", "train.max_steps=6", "train.evaluations=0"]
    steps: list[int] = []
    plain = FiniteWeights.on_step_end

    def on_step_end(self: FiniteWeights, args: Any, state: Any, control: Any, **given: Any) -> None:
        steps.append(state.global_step)
        if state.global_step == 3:
            InDestructor()
        plain(self, args, state, control, **given)

    monkeypatch.setattr(FiniteWeights, "on_step_end", on_step_end)
    assert world.train("de-bm25-neg-scratch", out, *values) == 143
    assert steps == [1, 2, 3] and not out.exists()


def test_the_test_split_is_never_read(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from builders.store.reader import Release

    read = set()
    batches = Release.batches

    def watched(self: Release, config: str, split: str, *args: Any, **given: Any) -> Any:
        read.add((config, split))
        return batches(self, config, split, *args, **given)

    monkeypatch.setattr(Release, "batches", watched)
    out = world.folder / "watched"
    assert world.train("de-bm25-neg-scratch", out, "train.batch=8", "train.max_steps=1", "data.dev_queries=3") == 0
    assert read == {("queries", "train"), ("qrels", "train"), ("queries", "dev"), ("qrels", "dev")}


def test_what_is_missing_is_one_clear_error(world: World, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def error(recipe: str, *more: str, drop: str = "", **change: str) -> str:
        words = world.words(recipe, tmp_path / "out")
        for name, value in change.items():
            words[words.index(f"--{name}") + 1] = value
        if drop:
            at = words.index(f"--{drop}")
            del words[at : at + 2]
        assert main("baselines", "", VERBS, [*words, *more]) == 1
        (line,) = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
        return line

    assert "wants 4 hard negatives a positive: --negatives F" in error("de-bm25-neg-scratch", drop="negatives")
    assert "nowhere.jsonl: no such file of hard negatives" in error("ce-bm25-neg-scratch", negatives="nowhere.jsonl")
    assert "no checkpoint of mlm-scratch, from which de-bm25-neg-scratch starts" in error(
        "de-bm25-neg-scratch", drop="start"
    )
    assert "no recipe 'de-bm26'" in error("de-bm26")
    assert "--set train.batches=3: unknown key 'batches'" in error("de-bm25-neg-scratch", "--set", "train.batches=3")
    assert "has no config 'queries' with a split 'nope'" in error("de-bm25-neg-scratch", "--set", "data.split=nope")
    assert "cmedqa-corpus" in error("de-cmedqa-scratch")
    (tmp_path / "empty").mkdir()
    assert "cannot start from the model" in error("de-bm25-neg-scratch", start=str(tmp_path / "empty"))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("mine", encoding="utf-8")
    assert "exists and is no checkpoint of `train`" in error("de-bm25-neg-scratch", out=str(tmp_path / "full"))
    assert (tmp_path / "full" / "thesis.txt").read_text(encoding="utf-8") == "mine"
    if not torch.cuda.is_available():
        assert "no CUDA device is usable here" in error("de-bm25-neg-scratch", device="cuda")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_is_the_same_every_time(world: World) -> None:
    passages = open_passages(open_release(world.release), keep=world.folder / "cache")
    first = wordpieces(passages, 60, 500)
    assert first == wordpieces(passages, 60, 500)
    assert first[:5] == ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] and len(first) <= 60
    tokenizer = AutoTokenizer.from_pretrained(world.start)
    found = tokenizer.tokenize("sabada tabada 。")
    assert (
        "[UNK]" in found and "".join(piece.removeprefix("##") for piece in found if piece != "[UNK]") == "sabadatabada"
    )
