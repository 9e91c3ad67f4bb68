"""The card of a checkpoint agrees with the files, and its code runs."""

import contextlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from checkpoints import describe, make_checkpoints
from huggingface_hub import ModelCard
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual

from baselines.card import finish_checkpoint, model_card
from baselines.checkpoint import open_checkpoint

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
    found: dict[str, Any] = ModelCard(text).data.to_dict()
    return found


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
