"""``push`` and ``pull`` over a loopback hub: files, figures, refusals, and cards whose code runs."""

import contextlib
import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import REPO, Command, describe, files, make_checkpoints, push, whole
from commands import error_of, output
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

dual_name, cross_name = sys.argv[1:3]
queries, texts = json.loads(sys.argv[3])
dual = SentenceTransformer(dual_name, device="cpu")
similarity = dual.similarity(dual.encode_query(queries), dual.encode_document(texts))
pairs = [(query, text) for query in queries for text in texts]
scores = CrossEncoder(cross_name, device="cpu").predict(pairs)
print(json.dumps(similarity.flatten().tolist() + scores.tolist()))
"""


def set_in_record(checkpoint: Path, **fields: Any) -> None:
    """Set fields of the record of a training."""
    path = checkpoint / "training.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(record | fields), encoding="utf-8")


@pytest.mark.slow
def test_models_load_by_name(hub: Hub, call: Command, checkpoints: Path, tmp_path: Path) -> None:
    for kind in ("dual", "cross"):
        result = call("push", "--model", checkpoints / kind, "--repo", f"org/{kind}", "--create", "--private")
        commit_id = hub.repos["model", f"org/{kind}"].commits[-1].oid
        assert result.stdout.strip().endswith(f"/org/{kind}/commit/{commit_id}")
    # No code and no folder of this project: another process, elsewhere, with the hub alone.
    environment = hub.environment(tmp_path / "reader") | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}

    def score(dual: str | Path, cross: str | Path) -> list[float]:
        words = [sys.executable, "-c", LOAD, str(dual), str(cross), json.dumps([QUESTIONS["dev"], TEXTS])]
        scores: list[float] = json.loads(output(words, tmp_path, environment).splitlines()[-1])
        return scores

    scores = score("org/dual", "org/cross")
    assert scores == pytest.approx(score(checkpoints / "dual", checkpoints / "cross"), abs=1e-5)
    assert len({round(value, 4) for value in scores}) > len(TEXTS)  # scores that differ: not all one value


def test_only_files_of_the_checkpoint_are_pushed(hub: Hub, call: Command, checkpoint: Path) -> None:
    result = push(call, checkpoint, "--create")
    repo = hub.repos["model", REPO]
    assert [commit.message.split()[0] for commit in repo.commits] == ["initial", "dual-tiny"]
    assert not repo.private
    pushed_names = set(repo.files)
    assert pushed_names == set(whole(checkpoint)) | {"README.md", MANIFEST, ".gitattributes"}
    assert {"recipe.json", "training.json", "loss.png", "modules.json"} < pushed_names
    for part in ("optimizer", "training_args", "trainer_state", "model.py", "lock", "runs/", "checkpoint-"):
        assert not [name for name in pushed_names if part in name]
    assert "skipped, not needed on the hub: " in result.stderr
    assert "model.py" in result.stderr


def test_a_record_of_a_later_format_is_refused(checkpoint: Path) -> None:
    set_in_record(checkpoint, format=2)
    with pytest.raises(InputError, match=r"training\.json: format: expected 1, found 2; if a later version wrote"):
        open_checkpoint(checkpoint)


def test_an_unchanged_checkpoint_is_not_pushed_again(hub: Hub, call: Command, checkpoint: Path) -> None:
    push(call, checkpoint, "--create")
    uploads_before = list(hub.uploads)
    push(call, checkpoint)
    assert len(hub.repos["model", REPO].commits) == 2
    assert hub.uploads == uploads_before


def test_a_dry_run_lists_the_files_and_sends_nothing(hub: Hub, call: Command, checkpoint: Path) -> None:
    lines = push(call, checkpoint, "--dry-run").stdout.splitlines()
    listed_sizes = {}
    for line in lines[:-1]:
        size, path = line.split()[:2]
        listed_sizes[path] = int(size.replace(",", ""))
    assert ("model", REPO) not in hub.repos
    push(call, checkpoint, "--create")
    sent_sizes = {path: len(content) for path, content in hub.repos["model", REPO].files.items()}
    del sent_sizes[".gitattributes"]
    assert listed_sizes == sent_sizes
    assert lines[-1].endswith(f"bytes in {len(listed_sizes)} files for {REPO}; nothing was sent")


def test_the_card_has_data_and_scores(hub: Hub, call: Command, checkpoint: Path, dev_run: Path, tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables())
    push(call, checkpoint, "--create", "--release", release, "--split", "dev", "--run", dev_run)
    text = files(hub)["README.md"].decode()
    metadata = ModelCard(text).data
    assert {result.metric_type: result.metric_value for result in metadata.eval_results} == FIGURES
    assert metadata.license == "apache-2.0"
    assert metadata.language == ["zh"]
    assert "| de.dev.run | dev, 2 queries, 6 passages | 75.00 | 50.00 | 100.00 |" in text
    assert "- `qrels/train`: `beef`" in text


def test_a_model_of_data_of_other_terms_has_another_license(hub: Hub, call: Command, checkpoint: Path) -> None:
    set_in_record(checkpoint, builds=["release", "cmedqa"])
    push(call, checkpoint, "--create")
    assert ModelCard(files(hub)["README.md"].decode()).data.license == "other"


def test_a_push_replaces_the_earlier_files(hub: Hub, call: Command, checkpoint: Path, checkpoints: Path) -> None:
    # A file that somebody else put into the repository.
    hub.create(REPO, "model").commits[-1].files["NOTES.md"] = Blob(b"mine", False)
    push(call, checkpoint)
    names_before = set(files(hub))
    result = push(call, checkpoints / "cross")
    names = set(files(hub))
    assert names == set(whole(checkpoints / "cross")) | {"README.md", MANIFEST, ".gitattributes", "NOTES.md"}
    assert names_before - names  # the router's
    assert "keeps 1 foreign files: NOTES.md" in result.stderr


def test_a_file_that_the_repository_ignores_is_an_error(hub: Hub, call: Command, checkpoint: Path) -> None:
    repo = hub.create(REPO, "model")
    repo.add("ignore", {".gitignore": Blob(b"recipe.json\n", False)})
    error_line = error_of(push(call, checkpoint, code=1))
    assert f"{REPO} on {hub.url} (HF_ENDPOINT) ignores recipe.json, probably by its .gitignore" in error_line
    assert len(repo.commits) == 2


def test_a_folder_that_is_no_checkpoint_is_refused(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "not a checkpoint (no recipe.json); make one by" in error_of(push(call, tmp_path / "empty", code=1))
    for path in list(checkpoint.rglob("*.safetensors")):
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
    """Write a run with the positives of the dev queries at ranks 2 and 1."""
    first, second = map(md5, QUESTIONS["dev"])
    hits_by_query = [
        (first, [(md5(TEXTS[0]), 0), (md5(TEXTS[4]), -1)]),
        (second, [(md5(TEXTS[5]), 0), (md5(TEXTS[4]), -1)]),
    ]
    write_run(tmp_path / "de.dev.run", hits_by_query)
    return tmp_path / "de.dev.run"


def result_files(hub: Hub) -> dict[str, bytes]:
    """Return the files of the repository that the hub shows as results."""
    return {name: content for name, content in files(hub).items() if name.startswith(".eval_results/")}


@pytest.mark.slow
def test_figures_on_a_published_release_are_entries_of_its_tasks(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, dev_run: Path, tmp_path: Path
) -> None:
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET, "--create")
    dataset = hub.repos["dataset", DATASET]
    task_ids = {task["id"] for task in safe_load(dataset.files["eval.yaml"])["tasks"]}
    hub.create("org/name", "model").commits[-1].files[".eval_results/theirs.yaml"] = Blob(b"[]", False)
    push(call, checkpoint, "--release", whole_copy, "--split", "dev", "--run", dev_run, "--dataset", DATASET)
    entries = parse_eval_result_entries(safe_load(result_files(hub)[".eval_results/de.dev.run.yaml"]))
    expected_values = {f"dev_{name}": value for name, value in FIGURES.items()}
    assert {entry.task_id: entry.value for entry in entries} == expected_values
    assert {entry.task_id for entry in entries} <= task_ids
    dataset_commit = (DATASET, dataset.commits[-1].oid)
    assert {(entry.dataset_id, entry.dataset_revision) for entry in entries} == {dataset_commit}
    # They are no part of the checkpoint.
    call("pull", "org/name", "--out", tmp_path / "back")
    assert not (tmp_path / "back" / ".eval_results").exists()
    # The next push, without figures, takes them away; what others put there stays.
    push(call, checkpoint)
    assert list(result_files(hub)) == [".eval_results/theirs.yaml"]


@pytest.mark.slow
def test_figures_on_another_release_are_no_entries(
    hub: Hub, call: Command, checkpoint: Path, whole_copy: Path, dev_run: Path, tmp_path: Path
) -> None:
    changed_release = make_release(tmp_path / "other", tables([*TEXTS[:-1], "手机进水后先关机，再擦干。"]))
    options = ["--release", changed_release, "--split", "dev", "--run", dev_run, "--create", "--dataset", DATASET]
    assert f"has no dataset {DATASET}" in error_of(push(call, checkpoint, *options, code=1))
    hub.create(DATASET)
    assert f"{DATASET}: has no eval.yaml" in push(call, checkpoint, *options).stderr
    run_at(hub, tmp_path / "home", "builders", "publish", "--release", whole_copy, "--repo", DATASET)
    done = push(call, checkpoint, *options)
    warning = f"{DATASET}: differs from {changed_release} in corpus/corpus; .eval_results is not written"
    assert warning in done.stderr
    assert not result_files(hub)


def test_pull_brings_the_checkpoint_back(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    push(call, checkpoint, "--create")
    out = tmp_path / "models" / "back"
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    top_names = {name.split("/")[0] for name in whole(checkpoint)}
    assert {path.name for path in out.iterdir()} == top_names | {"README.md"}
    assert [path.name for path in out.parent.iterdir()] == ["back"]


def test_pull_replaces_a_checkpoint_by_a_newer_or_an_older_one(
    hub: Hub, call: Command, checkpoint: Path, tmp_path: Path
) -> None:
    push(call, checkpoint, "--create")
    first_commit = hub.repos["model", REPO].commits[-1].oid
    out = tmp_path / "out"
    call("pull", REPO, "--out", out)
    set_in_record(checkpoint, steps=8)
    push(call, checkpoint)
    for revision, step_count in ((["--revision", first_commit], 7), ([], 8)):
        call("pull", REPO, "--out", out, *revision)
        assert json.loads((out / "training.json").read_text())["steps"] == step_count


@pytest.mark.slow
@pytest.mark.parametrize("action", ["break", 503])
def test_a_broken_pull_is_resumed(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path, action: int | str) -> None:
    push(call, checkpoint, "--create")
    out = tmp_path / "new" / "out"
    # The other files arrive before the tokenizer fails.
    hub.fail("GET", r"/resolve/.*tokenizer\.json$", action)
    assert "complete files are not fetched again" in error_of(call("pull", REPO, "--out", out, code=1))
    assert not out.exists()
    hub.faults.clear()
    request_count = len(hub.requests)
    call("pull", REPO, "--out", out)
    assert whole(out) == whole(checkpoint)
    new_requests = hub.requests[request_count:]
    fetched_paths = [path for method, path in new_requests if method == "GET" and "/resolve/" in path]
    assert len(fetched_paths) < len(whole(checkpoint))  # some were there
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def refuse_pull(call: Command, folder: Path) -> str:
    """Return the error of a pull that is refused. Nothing of what is refused stays."""
    error_line = error_of(call("pull", REPO, "--out", folder / "out", code=1))
    assert "HF_ENDPOINT" in error_line
    assert not list(folder.glob("*out*"))
    assert not list(folder.glob(".out*"))
    return error_line


def test_what_is_not_ours_is_not_pulled(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    hub.create(REPO, "model")
    assert f"{REPO} is no checkpoint that `push` made (no {MANIFEST})" in refuse_pull(call, tmp_path)
    push(call, checkpoint)
    words = ["pull", REPO, "--out", tmp_path / "out", "--revision", "v9"]
    assert "Invalid rev id: v9" in error_of(call(*words, code=1))


def test_files_that_the_manifest_contradicts_are_not_pulled(
    hub: Hub, call: Command, checkpoint: Path, tmp_path: Path
) -> None:
    push(call, checkpoint, "--create")
    repo = hub.repos["model", REPO]
    pushed_files = repo.commits[-1].files
    repo.add("by another hand", pushed_files | {"training.json": Blob(b"{}", False)})
    assert f"{REPO}: training.json differs from its manifest" in refuse_pull(call, tmp_path)
    for name in ("../../evil.json", "pytorch_model.bin"):
        manifest = json.loads(pushed_files[MANIFEST].content)
        manifest["files"].append({"path": name, "bytes": 1, "sha256": "0" * 64})
        repo.add(name, pushed_files | {MANIFEST: Blob(json.dumps(manifest).encode(), False)})
        error_line = refuse_pull(call, tmp_path)
        assert f"its manifest names {name}, which is no file of a checkpoint" in error_line


def test_a_pull_replaces_no_folder_but_a_checkpoint(hub: Hub, call: Command, checkpoint: Path, tmp_path: Path) -> None:
    push(call, checkpoint, "--create")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "file").write_text("x")
    error_line = error_of(call("pull", REPO, "--out", tmp_path / "mine", code=1))
    assert "exists and is not a checkpoint" in error_line
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


def metadata_of(card: str) -> dict[str, Any]:
    """Return the metadata at the head of a card."""
    return ModelCard(card).data.to_dict()


def card_of_start(checkpoint: Path, start: str, start_commit: str | None) -> str:
    """Return the card of a checkpoint whose training is recorded to have begun from ``start``."""
    record = json.loads((checkpoint / "training.json").read_text(encoding="utf-8"))
    set_in_record(checkpoint, about=record["about"] | {"start": start, "start_commit": start_commit})
    return model_card(open_checkpoint(checkpoint), "org/name")


@pytest.mark.parametrize(
    ("start", "start_commit", "base_model"),
    [
        ("scratch", None, None),
        ("mlm-scratch", None, None),  # for a folder, `train` records only the name
        ("bert-base-chinese", "c" * 40, "bert-base-chinese"),
        ("org/base", None, "org/base"),  # a record of an earlier version
        ("../models/mine", None, None),
    ],
)
def test_the_base_model_is_named_where_it_is_one_of_the_hub(
    tmp_path: Path, start: str, start_commit: str | None, base_model: str | None
) -> None:
    checkpoint = describe(write_dual(tmp_path / "dual"), "dual")
    assert metadata_of(card_of_start(checkpoint, start, start_commit)).get("base_model") == base_model


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("one", ["dual-encoder for", "sentence-transformers 6.0.0", "A plain `encode` equals `encode_document`"]),
        ("two", ["two encoders", "sentence-transformers 6.0.1", "A plain `encode` uses the encoder of passages"]),
        ("prompted", ["before texts (document `文：`, query `问：`)"]),
        ("cross2", ["cross-encoder of two outputs", "probability of the second output"]),
        ("mlm", ["masked language model", "transformers 4.57"]),
    ],
)
def test_a_local_card_says_what_the_model_is_and_what_it_needs(kinds: Path, name: str, texts: list[str]) -> None:
    card = (kinds / name / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\n")
    assert f"# {name}\n" in card
    card_in_one_line = card.replace("\n", " ")
    for text in texts:
        assert text in card_in_one_line


@pytest.mark.slow
@pytest.mark.parametrize("name", ["one", "two", "cross", "cross2", "mlm"])
def test_the_code_of_a_local_card_runs(kinds: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(kinds)
    card = (kinds / name / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", card, re.DOTALL)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, {})
    if name == "cross2":
        # The code prints the probabilities of the second output.
        logits = CrossEncoder("cross2", device="cpu").predict([(QUERY, passage) for passage in PASSAGES])
        expected = torch.softmax(torch.from_numpy(logits), dim=1)[:, 1].tolist()
        probabilities = [float(number) for number in printed.getvalue().strip("[]\n").split()]
        assert probabilities == pytest.approx(expected, abs=1e-6)
    else:
        assert printed.getvalue().strip()
