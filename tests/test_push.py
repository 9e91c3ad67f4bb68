"""``push`` and ``pull`` over a loopback hub: files, figures, refusals, and cards whose code runs."""

import contextlib
import io
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import REPO, Command, describe, files, make_checkpoints, push, whole
from commands import error_of
from hub_client import run_at
from hub_server import Blob, Hub
from huggingface_hub import ModelCard, parse_eval_result_entries
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual
from yaml import safe_load

from baselines.core.checkpoint import open_checkpoint
from baselines.hub.model_card import finish_checkpoint, model_card
from builders.core.errors import InputError
from builders.store.layout import MANIFEST
from builders.store.runs import write_run

DATASET = "org/release"
FIGURES = {"mrr_at_10": 75.0, "recall_at_1": 50.0, "recall_at_50": 100.0}  # of dev_run
LOAD = """
import json, sys
from sentence_transformers import CrossEncoder, SentenceTransformer

dual, cross, (queries, texts) = *sys.argv[1:3], json.loads(sys.argv[3])
model = SentenceTransformer(dual, device="cpu")
similarity = model.similarity(model.encode_query(queries), model.encode_document(texts))
pairs = [(query, text) for query in queries for text in texts]
print(json.dumps([*similarity.flatten().tolist(), *CrossEncoder(cross, device="cpu").predict(pairs).tolist()]))
"""


@pytest.mark.slow
def test_models_load_by_name(hub: Hub, call: Command, checkpoints: Path, tmp_path: Path) -> None:
    for kind in ("dual", "cross"):
        result = call("push", "--model", checkpoints / kind, "--repo", f"org/{kind}", "--create", "--private")
        assert result.stdout.strip().endswith(f"/org/{kind}/commit/{hub.repos['model', f'org/{kind}'].commits[-1].oid}")
    # No code and no folder of this project: another process, elsewhere, with the hub alone.
    environment = hub.environment(tmp_path / "reader") | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    found = []
    for dual, cross in (("org/dual", "org/cross"), (checkpoints / "dual", checkpoints / "cross")):
        words = [sys.executable, "-c", LOAD, str(dual), str(cross), json.dumps([QUESTIONS["dev"], TEXTS])]
        done = subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
        found.append(json.loads(done.stdout.splitlines()[-1]))
    assert found[0] == pytest.approx(found[1], abs=1e-5)
    assert len({round(score, 4) for score in found[0]}) > len(TEXTS)  # scores that differ: not all one value


def test_only_files_of_the_checkpoint_are_pushed(hub: Hub, call: Command, checkpoint: Path) -> None:
    result = push(call, checkpoint, "--create")
    repo = hub.repos["model", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "dual-tiny"]
    assert not repo.private
    assert set(repo.files) == {*whole(checkpoint), "README.md", MANIFEST, ".gitattributes"}
    assert {"recipe.json", "training.json", "loss.png", "modules.json"} < set(repo.files)
    left = ("optimizer", "training_args", "trainer_state", "model.py", "lock", "runs/", "checkpoint-")
    assert not [name for name in repo.files if any(part in name for part in left)]
    assert "skipped, not needed on the hub: " in result.stderr and "model.py" in result.stderr
    sent = list(hub.uploads)
    push(call, checkpoint)
    assert len(repo.commits) == 2 and hub.uploads == sent


def test_a_dry_run_lists_the_files_and_sends_nothing(hub: Hub, call: Command, checkpoint: Path) -> None:
    lines = push(call, checkpoint, "--dry-run").stdout.splitlines()
    listed = {line.split()[1]: int(line.split()[0].replace(",", "")) for line in lines[:-1]}
    assert ("model", REPO) not in hub.repos
    push(call, checkpoint, "--create")
    sent = hub.repos["model", REPO].files
    assert {path: len(sent[path]) for path in listed} == listed
    assert listed.keys() == {*sent} - {".gitattributes"}
    assert lines[-1].endswith(f"bytes in {len(listed)} files for {REPO}; nothing was sent")


def test_the_card_has_data_and_scores(hub: Hub, call: Command, checkpoint: Path, dev_run: Path, tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables())
    push(call, checkpoint, "--create", "--release", release, "--split", "dev", "--run", dev_run)
    text = files(hub)["README.md"].decode()
    card = ModelCard(text)
    assert {each.metric_type: each.metric_value for each in card.data.eval_results} == FIGURES
    assert card.data.license == "apache-2.0" and card.data.language == ["zh"]
    for needed in (
        "| de.dev.run | dev, 2 queries, 6 passages | 75.00 | 50.00 | 100.00 |",
        "- `qrels/train`: `beef`",
    ):
        assert needed in text
    record = json.loads((checkpoint / "training.json").read_text())
    (checkpoint / "training.json").write_text(json.dumps(record | {"builds": ["release", "cmedqa"]}))
    push(call, checkpoint)
    assert ModelCard(files(hub)["README.md"].decode()).data.license == "other"  # data of other terms


def test_a_push_replaces_the_earlier_files(hub: Hub, call: Command, checkpoint: Path, checkpoints: Path) -> None:
    hub.create(REPO, "model").commits[-1].files["NOTES.md"] = Blob(b"mine", False)
    push(call, checkpoint)
    before = set(files(hub))
    result = push(call, checkpoints / "cross")
    assert set(files(hub)) == {*whole(checkpoints / "cross"), "README.md", MANIFEST, ".gitattributes", "NOTES.md"}
    assert before - set(files(hub))  # the router's
    assert "keeps 1 foreign files: NOTES.md" in result.stderr


def test_a_file_that_the_repository_ignores_is_an_error(hub: Hub, call: Command, checkpoint: Path) -> None:
    repo = hub.create(REPO, "model")
    repo.add("ignore", {".gitignore": Blob(b"recipe.json\n", False)})
    error = error_of(push(call, checkpoint, code=1))
    assert f"{REPO} on {hub.url} (HF_ENDPOINT) ignores recipe.json, probably by its .gitignore" in error
    assert len(repo.commits) == 2


def test_a_folder_that_is_no_checkpoint_is_refused(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "not a checkpoint (no recipe.json); make one by" in error_of(push(call, tmp_path / "empty", code=1))
    for path in [*checkpoint.rglob("*.safetensors")]:
        path.unlink()
    assert "not a checkpoint (no model.safetensors with its config)" in error_of(push(call, checkpoint, code=1))
    assert not hub.requests


def test_a_link_in_a_checkpoint_is_not_pushed(checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("a secret")
    (checkpoint / "notes.txt").symlink_to(tmp_path / "mine.txt")
    with pytest.raises(InputError, match=r"notes\.txt: is a link to .*mine\.txt"):
        open_checkpoint(checkpoint).files()


@pytest.fixture
def dev_run(tmp_path: Path) -> Path:
    path = tmp_path / "de.dev.run"
    ranked = zip(QUESTIONS["dev"], ((0, 4), (5, 4)), strict=True)
    write_run(path, [(md5(q), [(md5(TEXTS[place]), -rank) for rank, place in enumerate(own)]) for q, own in ranked])
    return path


def results(hub: Hub) -> dict[str, bytes]:
    return {name: content for name, content in files(hub).items() if name.startswith(".eval_results/")}


@pytest.mark.slow
def test_figures_on_a_published_release_are_entries_of_its_tasks(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, dev_run: Path, tmp_path: Path
) -> None:
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET, "--create")
    commit = hub.repos["dataset", DATASET].commits[-1].oid
    tasks = {task["id"] for task in safe_load(hub.repos["dataset", DATASET].files["eval.yaml"])["tasks"]}
    hub.create("org/name", "model").commits[-1].files[".eval_results/theirs.yaml"] = Blob(b"[]", False)
    push(call, checkpoint, "--release", whole_copy, "--split", "dev", "--run", dev_run, "--dataset", DATASET)
    entries = parse_eval_result_entries(safe_load(results(hub)[".eval_results/de.dev.run.yaml"]))
    assert {each.task_id: each.value for each in entries} == {f"dev_{name}": value for name, value in FIGURES.items()}
    assert {each.task_id for each in entries} <= tasks
    assert {(each.dataset_id, each.dataset_revision) for each in entries} == {(DATASET, commit)}
    # They are no part of the checkpoint.
    call("pull", "org/name", "--out", tmp_path / "back")
    assert not (tmp_path / "back" / ".eval_results").exists()
    # The next push, without figures, takes them away; what others put there stays.
    push(call, checkpoint)
    assert [*results(hub)] == [".eval_results/theirs.yaml"]


@pytest.mark.slow
def test_figures_on_another_release_are_no_entries(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, dev_run: Path, tmp_path: Path
) -> None:
    other = make_release(tmp_path / "other", tables([*TEXTS[:-1], "手机进水后先关机，再擦干。"]))
    measured = ["--release", other, "--split", "dev", "--run", dev_run, "--create", "--dataset", DATASET]
    assert f"has no dataset {DATASET}" in error_of(push(call, checkpoint, *measured, code=1))
    hub.create(DATASET)
    assert f"{DATASET}: has no eval.yaml" in push(call, checkpoint, *measured).stderr
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET)
    done = push(call, checkpoint, *measured)
    assert f"{DATASET}: differs from {other} in corpus/corpus; .eval_results is not written" in done.stderr
    assert not results(hub)


def test_pull_brings_the_checkpoint_back(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    push(call, checkpoint, "--create")
    first = hub.repos["model", REPO].commits[-1].oid
    out = tmp_path / "models" / "back"
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    assert {p.name for p in out.iterdir()} == {name.split("/")[0] for name in whole(checkpoint)} | {"README.md"}
    assert [p.name for p in out.parent.iterdir()] == ["back"]
    # A newer one, and the older one by its commit; each in the place of the other.
    record = json.loads((checkpoint / "training.json").read_text()) | {"steps": 8}
    (checkpoint / "training.json").write_text(json.dumps(record))
    push(call, checkpoint)
    for revision, steps in ((["--revision", first], 7), ([], 8)):
        call("pull", REPO, "--out", out, *revision)
        assert json.loads((out / "training.json").read_text())["steps"] == steps


@pytest.mark.slow
@pytest.mark.parametrize("action", ["break", 503])
def test_a_broken_pull_is_resumed(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path, action: int | str) -> None:
    push(call, checkpoint, "--create")
    out = tmp_path / "new" / "out"
    hub.fail("GET", r"/resolve/.*tokenizer\.json$", action)
    assert "complete files are not fetched again" in error_of(call("pull", REPO, "--out", out, code=1))
    assert not out.exists()
    hub.faults.clear()
    asked = len(hub.requests)
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    again = [path for method, path in hub.requests[asked:] if method == "GET" and "/resolve/" in path]
    assert len(again) < len(whole(checkpoint))  # some were there
    assert [p.name for p in out.parent.iterdir()] == ["out"]


def test_what_is_not_ours_is_not_pulled(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def pulled() -> str:
        error = error_of(call("pull", REPO, "--out", out, code=1))
        assert "HF_ENDPOINT" in error
        assert not list(tmp_path.glob("*out*")) and not list(tmp_path.glob(".out*"))  # nothing stays of what is refused
        return error

    hub.create(REPO, "model")
    assert f"{REPO} is no checkpoint that `push` made (no {MANIFEST})" in pulled()
    push(call, checkpoint)
    assert "Invalid rev id: v9" in error_of(call("pull", REPO, "--out", out, "--revision", "v9", code=1))
    repo = hub.repos["model", REPO]
    held = repo.commits[-1].files
    manifest = json.loads(held[MANIFEST].content)
    repo.add("by another hand", held | {"training.json": Blob(b"{}", False)})
    assert f"{REPO}: training.json differs from its manifest" in pulled()
    for name in ("../../evil.json", "pytorch_model.bin"):
        entry = {"path": name, "bytes": 1, "sha256": "0" * 64}
        listed = json.dumps(manifest | {"files": [*manifest["files"], entry]}).encode()
        repo.add(name, held | {MANIFEST: Blob(listed, False)})
        assert f"its manifest names {name}, which is no file of a checkpoint" in pulled()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    assert "exists and is not a checkpoint" in error_of(call("pull", REPO, "--out", tmp_path / "mine", code=1))
    assert (tmp_path / "mine" / "file").read_text() == "x"


PASSAGES = ["高铁票可以在开车前十五天购买。", "煮饺子时水要开，饺子下锅以后加三次凉水。"]
QUERY = "高铁票提前几天可以买"


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoints with their cards: one (tower), two (towers), prompted, cross, cross2 (outputs), mlm."""
    folder = tmp_path_factory.mktemp("kinds") / "all"
    make_checkpoints(folder)
    (folder / "dual").rename(folder / "two")
    describe(write_dual(folder / "one"), "dual")
    model = SentenceTransformer(str(folder / "one"), device="cpu")
    model.max_seq_length = 384  # as written by a training
    model.save_pretrained(str(folder / "one"))
    describe(write_dual(folder / "prompted", prompts={"query": "问：", "document": "文："}), "dual")
    describe(write_cross(folder / "cross2", labels=2), "cross")
    for name in ("one", "two", "prompted", "cross", "cross2", "mlm"):
        finish_checkpoint(folder / name, name)
    return folder


def head_of(text: str) -> dict[str, Any]:
    return ModelCard(text).data.to_dict()


def started(folder: Path, **about: Any) -> str:
    record = json.loads((folder / "training.json").read_text(encoding="utf-8"))
    (folder / "training.json").write_text(json.dumps(record | {"about": record["about"] | about}), encoding="utf-8")
    return model_card(open_checkpoint(folder), "org/name")


def test_the_base_model_is_named_where_it_is_one_of_the_hub(tmp_path: Path) -> None:
    folder = describe(write_dual(tmp_path / "dual"), "dual")
    for start in ("scratch", "mlm-scratch"):  # for a folder, `train` records only the name
        card = started(folder, start=start, start_commit=None)
        assert "base_model" not in head_of(card)
    card = started(folder, start="bert-base-chinese", start_commit="c" * 40)
    assert head_of(card)["base_model"] == "bert-base-chinese"
    earlier = started(folder, start="org/base", start_commit=None)  # a record of an earlier version
    assert head_of(earlier)["base_model"] == "org/base"
    assert "base_model" not in head_of(started(folder, start="../models/mine", start_commit=None))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("one", ["dual-encoder for", "sentence-transformers 6.0.0", "A plain `encode` equals `encode_document`"]),
        ("two", ["two encoders", "sentence-transformers 6.0.1", "A plain `encode` uses the encoder of passages"]),
        ("prompted", ["before texts (document `文：`, query `问：`)"]),
        ("cross2", ["cross-encoder of two outputs", "probability of the second output"]),
        ("mlm", ["masked language model", "transformers 4.57"]),
    ],
)
def test_a_local_card_says_what_the_model_is_and_what_it_needs(kinds: Path, name: str, said: list[str]) -> None:
    text = (kinds / name / "README.md").read_text(encoding="utf-8")
    assert text.startswith("---\n") and f"# {name}\n" in text
    assert all(words in text.replace("\n", " ") for words in said)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two", "cross", "cross2", "mlm"])
def test_the_code_of_a_local_card_runs(kinds: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kinds)
    (code,) = re.findall(r"```python\n(.*?)```", (kinds / name / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    if name == "cross2":
        logits = CrossEncoder("cross2", device="cpu").predict([(QUERY, passage) for passage in PASSAGES])
        expected = torch.softmax(torch.from_numpy(logits), dim=1)[:, 1].tolist()
        found = [float(number) for number in printed.getvalue().strip("[]\n").split()]
        assert found == pytest.approx(expected, abs=1e-6)
    else:
        assert printed.getvalue().strip()
