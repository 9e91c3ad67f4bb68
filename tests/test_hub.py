"""``push`` and ``pull`` over a loopback hub: what goes there, comes back, loads by name; and all that can go wrong."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from commands import ROOT, Done, command
from hub_client import error_of, run_at
from hub_server import READ, Blob, Hub
from huggingface_hub import ModelCard
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from tiny_models import write_bert, write_cross, write_dual
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM

from baselines.hub.checkpoint import is_part
from builders.store.layout import MANIFEST

REPO = "org/name"
Command = Callable[..., Done]


@pytest.fixture
def hub() -> Iterator[Hub]:
    with Hub() as hub:
        yield hub


def describe(path: Path, kind: str, start: str = "scratch") -> Path:
    """Make a saved model a checkpoint, as `train` leaves one: recipe, record, loss curve."""
    recipe = {"name": f"{kind}-tiny", "model": {"kind": kind, "start": start}, "data": {"set": "main"}}
    record: dict[str, Any] = {
        "about": {"recipe": recipe, "start": start, "data": {"corpus/corpus": "c0ffee", "qrels/train": "beef"}},
        "counts": {"pairs": 4},
        "steps": 7,
        "device": "CPU, 1 threads",
        "losses": [[1, 2.5]],
        "dev": [{"step": 7, "MRR@10": 0.25, "recall@1": 0.125, "recall@50": 1.0}],
        "builds": ["release"],
        "versions": {"torch": "2"},
    }
    (path / "recipe.json").write_text(json.dumps(recipe))
    (path / "training.json").write_text(json.dumps(record))
    (path / "loss.png").write_bytes(b"\x89PNG")
    return path


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints of each kind: dual (two weight files), cross, mlm."""
    folder = tmp_path_factory.mktemp("models")
    describe(write_dual(folder / "dual", router=True), "dual", "org/base")
    describe(write_cross(folder / "cross"), "cross")
    tokenizer = AutoTokenizer.from_pretrained(write_bert(folder / "bert"))
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
    BertForMaskedLM(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder / "mlm")
    tokenizer.save_pretrained(folder / "mlm")
    describe(folder / "mlm", "mlm")
    return folder


@pytest.fixture
def checkpoint(models: Path, tmp_path: Path) -> Path:
    """A dual-encoder of one's own, with everything that must not be pushed."""
    path = shutil.copytree(models / "dual", tmp_path / "checkpoint")
    for name in ("optimizer.pt", "training_args.bin", "trainer_state.json", "model.py", ".lock", "runs/events.out"):
        (path / name).parent.mkdir(exist_ok=True)
        (path / name).write_bytes(b"x")
    shutil.copytree(models / "cross", path / "checkpoint-5")
    return path


@pytest.fixture
def call(hub: Hub, tmp_path: Path) -> Command:
    """``call(verb, *options)``: run a verb, which must exit with ``code``."""
    return lambda *words, **given: run_at(hub, tmp_path / "home", "baselines", *words, **given)


def push(call: Command, path: Path, *more: object, **options: Any) -> Done:
    return call("push", "--model", path, "--repo", REPO, *more, **options)


def files(hub: Hub, name: str = REPO) -> dict[str, bytes]:
    return hub.repos["model", name].files


def whole(path: Path) -> dict[str, bytes]:
    """Every file of a checkpoint that a pull must bring back."""
    found = {p.relative_to(path).as_posix(): p.read_bytes() for p in path.rglob("*") if p.is_file()}
    return {name: content for name, content in found.items() if is_part(name)}


LOAD = """
import contextlib, io, json, sys
from pathlib import Path
from sentence_transformers import CrossEncoder, SentenceTransformer

models, queries, texts = Path(sys.argv[1]), *json.loads(sys.argv[2])
found = {}
for name in ("dual", "cross", "mlm"):
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(sys.argv[3 + ("dual", "cross", "mlm").index(name)], {})
    found[name] = printed.getvalue()
for where, dual, cross in (("hub", "org/dual", "org/cross"), ("local", models / "dual", models / "cross")):
    model = SentenceTransformer(str(dual), device="cpu")
    similarity = model.similarity(model.encode_query(queries), model.encode_document(texts))
    pairs = [(query, text) for query in queries for text in texts]
    found[where] = [*similarity.flatten().tolist(), *CrossEncoder(str(cross), device="cpu").predict(pairs).tolist()]
print(json.dumps(found))
"""


def test_models_load_by_name_and_the_cards_code_runs(hub: Hub, call: Command, models: Path, tmp_path: Path) -> None:
    codes = []
    for kind in ("dual", "cross", "mlm"):
        result = call("push", "--model", models / kind, "--repo", f"org/{kind}", "--create", "--private")
        assert result.stdout.strip().endswith(f"/org/{kind}/commit/{hub.repos['model', f'org/{kind}'].commits[-1].oid}")
        (code,) = re.findall(r"```python\n(.*?)```", files(hub, f"org/{kind}")["README.md"].decode(), re.DOTALL)
        codes.append(code)
    given = json.dumps([QUESTIONS["dev"], TEXTS])
    # No code and no folder of this project: another process, elsewhere, with the hub alone.
    result = subprocess.run(
        [sys.executable, "-c", LOAD, str(models), given, *codes],
        cwd=tmp_path,
        env=hub.environment(tmp_path / "reader") | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    found = json.loads(result.stdout.splitlines()[-1])
    assert found["hub"] == pytest.approx(found["local"], abs=1e-5)
    assert len({round(score, 4) for score in found["hub"]}) > len(TEXTS)  # scores that differ: not all one value
    assert found["dual"].startswith("tensor([[")
    assert "corpus_id" in found["cross"] and "token_str" in found["mlm"]


def test_what_is_pushed(hub: Hub, call: Command, checkpoint: Path) -> None:
    result = push(call, checkpoint, "--create")
    repo = hub.repos["model", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "dual-tiny"]
    assert not repo.private
    assert set(repo.files) == {*whole(checkpoint), "README.md", MANIFEST, ".gitattributes"}
    assert {"recipe.json", "training.json", "loss.png", "modules.json"} < set(repo.files)
    left = ("optimizer", "training_args", "trainer_state", "model.py", "lock", "runs/", "checkpoint-")
    assert not [name for name in repo.files if any(part in name for part in left)]
    assert "not pushed: " in result.stderr and "model.py" in result.stderr
    # Pushed again: nothing is new.
    sent = list(hub.uploads)
    push(call, checkpoint)
    assert len(repo.commits) == 2 and hub.uploads == sent


def test_the_card_holds_recipe_data_and_measures(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables())
    run = tmp_path / "de.dev.run"
    # The first question's passage is second, the other one's is first.
    run.write_text(
        "".join(
            f"{md5(question)} Q0 {md5(TEXTS[place])} {rank} {9 - rank} x\n"
            for question, places in zip(QUESTIONS["dev"], ((0, 4), (5, 4)), strict=True)
            for rank, place in enumerate(places, 1)
        )
    )
    push(call, checkpoint, "--create", "--release", release, "--split", "dev", "--run", run)
    text = files(hub)["README.md"].decode()
    card = ModelCard(text)
    measured = {each.metric_type: each for each in card.data.eval_results}
    assert {key: each.metric_value for key, each in measured.items()} == {
        "mrr_at_10": 75.0,
        "recall_at_1": 50.0,
        "recall_at_50": 100.0,
    }
    mrr = measured["mrr_at_10"]
    assert (mrr.dataset_name, mrr.dataset_split) == ("dev, 2 queries, 6 passages", "dev")
    assert mrr.metric_name == "MRR@10 (de.dev.run)"
    assert card.data.license == "apache-2.0" and card.data.language == ["zh"]
    about = card.data.to_dict()
    assert (about["library_name"], about["pipeline_tag"]) == ("sentence-transformers", "sentence-similarity")
    assert card.data.base_model == "org/base"
    for needed in (
        "| de.dev.run | dev, 2 queries, 6 passages | 75.00 | 50.00 | 100.00 |",
        "- `qrels/train`: fingerprint `beef`",
        '"kind": "dual"',
        "| counts: pairs | 4 |",
        "![training loss](loss.png)",
        "MRR@10 25.00, recall@1 12.50",
        "@inproceedings{qiu-etal-2022-dureader",
    ):
        assert needed in text
    push(call, checkpoint, "--license", "cc-by-sa-4.0")
    assert ModelCard(files(hub)["README.md"].decode()).data.license == "cc-by-sa-4.0"


def test_weights_from_data_of_other_terms_are_not_called_apache(hub: Hub, call: Command, checkpoint: Path) -> None:
    record = json.loads((checkpoint / "training.json").read_text())
    (checkpoint / "training.json").write_text(json.dumps(record | {"builds": ["release", "cmedqa"]}))
    push(call, checkpoint, "--create")
    assert ModelCard(files(hub)["README.md"].decode()).data.license == "other"


def test_pull_brings_the_checkpoint_back(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    push(call, checkpoint, "--create")
    first = hub.repos["model", REPO].commits[-1].oid
    out = tmp_path / "models" / "back"
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    assert {p.name for p in out.iterdir()} == {name.split("/")[0] for name in whole(checkpoint)} | {"README.md"}
    assert [p.name for p in out.parent.iterdir()] == ["back"]
    # What was pulled is a checkpoint again: it can be pushed, and it is the same.
    sent = len(hub.uploads)
    push(call, out)
    assert len(hub.uploads) == sent and len(hub.repos["model", REPO].commits) == 2
    # A newer one, and the older one by its commit; each in the place of the other.
    record = json.loads((checkpoint / "training.json").read_text()) | {"steps": 8}
    (checkpoint / "training.json").write_text(json.dumps(record))
    push(call, checkpoint)
    for revision, steps in ((["--revision", first], 7), ([], 8)):
        call("pull", REPO, "--out", out, *revision)
        assert json.loads((out / "training.json").read_text())["steps"] == steps


def test_a_pulled_checkpoint_is_a_start(hub: Hub, call: Command, models: Path, tmp_path: Path) -> None:
    """A dual-encoder begins where a cross-encoder's or another's training left: here, from the hub's copy."""
    dual = describe(write_dual(tmp_path / "plain"), "dual")
    push(call, dual, "--create")
    call("pull", REPO, "--out", tmp_path / "back")
    release = make_release(tmp_path / "release", tables())
    steps = ["data.negatives_per_positive=0", "train.batch=4", "train.max_steps=2", "train.learning_rate=1e-2"]
    settings = [word for step in steps for word in ("--set", step)]
    for name, start in (("from-pulled", tmp_path / "back"), ("from-hub", REPO)):
        out = tmp_path / name
        cache = ["--cache", tmp_path / "texts", "--device", "cpu"]
        argv = ["de-bm25-neg-scratch", "--release", release, "--start", start, "--out", out, *settings, *cache]
        # A process of its own: transformers, loaded here already, would look for REPO in this machine's cache.
        environment = hub.environment(tmp_path / "home")
        subprocess.run(command("baselines", "train", *argv), cwd=ROOT, env=environment, check=True)
        weights = (out / "model.safetensors").read_bytes()
        assert weights != (dual / "model.safetensors").read_bytes()
    assert weights == (tmp_path / "from-pulled" / "model.safetensors").read_bytes()


def test_a_new_checkpoint_replaces_the_files_of_the_old_one(
    hub: Hub, call: Command, checkpoint: Path, models: Path
) -> None:
    hub.create(REPO, "model").commits[-1].files["NOTES.md"] = Blob(b"mine", False)
    push(call, checkpoint)
    before = set(files(hub))
    result = push(call, models / "cross")
    assert set(files(hub)) == {*whole(models / "cross"), "README.md", MANIFEST, ".gitattributes", "NOTES.md"}
    assert before - set(files(hub))  # the router's
    assert "keeps 1 files that are not ours: NOTES.md" in result.stderr


@pytest.mark.parametrize("action", ["break", 503])
def test_a_broken_upload_leaves_nothing_and_goes_on(
    hub: Hub, call: Command, checkpoint: Path, action: int | str
) -> None:
    hub.fail("PUT", "^/lfs/", action, skip=1)
    repo = hub.create(REPO, "model")
    assert "what was received is not sent again" in error_of(push(call, checkpoint, code=1))
    assert len(hub.uploads) == 1 and len(repo.commits) == 1
    hub.faults.clear()
    push(call, checkpoint)
    assert len(hub.uploads) == 2 == len(set(hub.uploads))
    assert len(repo.commits) == 2


@pytest.mark.parametrize("action", ["break", 503])
def test_a_broken_download_leaves_nothing_and_goes_on(
    hub: Hub, call: Command, checkpoint: Path, tmp_path: Path, action: int | str
) -> None:
    push(call, checkpoint, "--create")
    out = tmp_path / "new" / "out"
    hub.fail("GET", r"/resolve/.*tokenizer\.json$", action)
    assert "what was received is not fetched again" in error_of(call("pull", REPO, "--out", out, code=1))
    assert not out.exists()
    hub.faults.clear()
    asked = len(hub.requests)
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    again = [path for method, path in hub.requests[asked:] if method == "GET" and "/resolve/" in path]
    assert len(again) < len(whole(checkpoint))  # some were there
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_refusals_of_the_hub_are_clear(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    error = error_of(push(call, checkpoint, code=1))
    assert f"there is no model {REPO} on {hub.url} that this token may see; --create makes it" in error
    assert error_of(call("pull", REPO, "--out", tmp_path / "x", code=1)).endswith(
        f"there is no model {REPO} on {hub.url} that this token may see"
    )
    hub.create(REPO, "model")
    assert f"{hub.url} refuses the token" in error_of(push(call, checkpoint, token="hf_wrong", code=1))
    assert "no token" in error_of(push(call, checkpoint, token=None, code=1))
    assert f"no right to write to {REPO}" in error_of(push(call, checkpoint, token=READ, code=1))
    assert f"{REPO} is public" in error_of(push(call, checkpoint, "--private", code=1))
    assert f"{hub.url} refuses the token" in error_of(
        call("pull", REPO, "--out", tmp_path / "x", token="hf_wrong", code=1)
    )
    assert not hub.uploads and not (tmp_path / "x").exists()


def test_a_hub_that_is_not_there(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    hub.__exit__()
    assert f"{hub.url} cannot be reached" in error_of(push(call, checkpoint, code=1))
    assert f"{hub.url} cannot be reached" in error_of(call("pull", REPO, "--out", tmp_path / "x", code=1))


def test_a_directory_that_is_no_checkpoint(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    error = error_of(push(call, tmp_path / "nowhere", code=1))
    assert "not a checkpoint (no recipe.json); `python -m baselines train` makes one" in error
    (checkpoint / "recipe.json").write_text('{"model": {"kind": "tree"}}')
    assert "expected a resolved recipe with a model.kind of dual, cross, mlm" in error_of(
        push(call, checkpoint, code=1)
    )
    (checkpoint / "recipe.json").write_text("{")
    assert "recipe.json: expected JSON" in error_of(push(call, checkpoint, code=1))
    assert not hub.requests


def test_weights_that_are_cut_short_are_not_pushed(hub: Hub, call: Command, checkpoint: Path) -> None:
    weights = next(checkpoint / name for name in whole(checkpoint) if name.endswith(".safetensors"))
    weights.write_bytes(weights.read_bytes()[:-9])
    assert f"{weights}: is damaged or cut short" in error_of(push(call, checkpoint, code=1))
    for path in [*checkpoint.rglob("*.safetensors")]:
        path.unlink()
    assert "not a checkpoint (no model.safetensors with its config)" in error_of(push(call, checkpoint, code=1))
    assert not hub.requests


def test_what_is_not_ours_is_not_pulled(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pulled() -> str:
        error = error_of(call("pull", REPO, "--out", out, code=1))
        assert not out.exists()
        return error

    hub.create(REPO, "model")
    assert f"{REPO} is no checkpoint that `push` made (no {MANIFEST})" in pulled()
    push(call, checkpoint)
    assert "has no revision 'v9'" in error_of(call("pull", REPO, "--out", out, "--revision", "v9", code=1))
    repo = hub.repos["model", REPO]
    held = repo.commits[-1].files
    manifest = json.loads(held[MANIFEST].content)
    repo.add("by another hand", held | {"training.json": Blob(b"{}", False)})
    assert f"{REPO}: training.json is not what its manifest says" in pulled()
    for name in ("evil.py", "../../evil.json", "pytorch_model.bin"):
        entry = {"path": name, "bytes": 1, "sha256": "0" * 64}
        listed = json.dumps(manifest | {"files": [*manifest["files"], entry]}).encode()
        repo.add(name, held | {MANIFEST: Blob(listed, False)})
        assert f"its manifest names {name}, which no checkpoint of ours holds" in pulled()
    repo.add("a release's", held | {MANIFEST: Blob(b'{"name": "dureader_retrieval"}', False)})
    assert "is no checkpoint that `push` made" in pulled()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    assert "exists and is not a checkpoint" in error_of(call("pull", REPO, "--out", tmp_path / "mine", code=1))
    assert (tmp_path / "mine" / "file").read_text() == "x"


def test_usage(call: Command, checkpoint: Path, tmp_path: Path) -> None:
    result = call("push", "--model", checkpoint, "--repo", "just-a-name", code=2)
    assert "expected ORG/NAME" in result.stderr
    result = push(call, checkpoint, "--run", tmp_path / "x.run", code=2)
    assert "--run and --release come together" in result.stderr
