"""A question-matching model trained on labelled pairs: what it learns, what is recorded."""

from __future__ import annotations

import json
import random
from pathlib import Path

import torch
from commands import run
from sentence_transformers import CrossEncoder
from tiny_models import write_bert
from training_world import training_of

# Whether the second of a pair begins with the mark is all that there is to learn.
WORDS = [f"{a}{b}" for a in "北京饺子高铁" for b in "冬天煮票多肉"]
SMALL = ["data.passage_length=16", "train.batch=32", "train.learning_rate=2e-3", "train.saves=1", "train.evaluations=2"]


def write_pairs(path: Path, count: int, seed: int) -> Path:
    chosen = random.Random(seed)
    lines = ["text1\ttext2\tlabel"]
    for _ in range(count):
        label = chosen.randrange(2)
        lines.append(f"{chosen.choice(WORDS)}\t{'是' if label else '否'}{chosen.choice(WORDS)}\t{label}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def test_it_learns_what_tells_pairs_apart(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    pairs, dev, out = (
        write_pairs(tmp_path / "train.tsv", 800, 1),
        write_pairs(tmp_path / "dev.tsv", 60, 2),
        tmp_path / "m",
    )
    words = ["--start", write_bert(tmp_path / "bert", [*WORDS, "是否"]), "--device", "cpu", "--pairs", pairs]
    words += [word for value in SMALL for word in ("--set", value)]
    command = ["train", "question-matching-cpu", *words, "--out", out, "--dev-pairs", dev, "--set", "train.epochs=4"]
    printed = json.loads(run("baselines", *command).stdout)
    same, other = CrossEncoder(str(out), device="cpu").predict([("北京", "是饺子"), ("北京", "否饺子")])
    assert other < 0.2 and same > 0.8
    training = training_of(out)
    assert printed["dev"] == training["dev"][-1:] and len(training["dev"]) == 2
    assert set(training["dev"][-1]) == {"step", "AUC", "accuracy"}
    assert training["dev"][-1]["AUC"] > 0.95 and training["dev"][-1]["accuracy"] > 0.9
    lines = pairs.read_text(encoding="utf-8").splitlines()[1:]
    counts = training["counts"]
    found = counts["pairs"], counts["positive pairs"], counts["dev pairs"]
    assert found == (800, sum(line.endswith("1") for line in lines), 60)
    assert (out / "loss.png").is_file()
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "for telling whether two questions ask the same" in card and "license: other" in card
    assert "Data, files of labelled pairs of questions (SHA-256):" in card and "train.tsv" in card
    done = run("baselines", *command)
    assert "is this training's checkpoint already" in done.stderr and done.stdout == ""
    # Without --dev-pairs a part is held out.
    held = ["--set", "train.max_steps=1", "--set", "data.held_out=0.01", "--out", tmp_path / "held"]
    run("baselines", "train", "question-matching-cpu", *words, *held)
    counts = training_of(tmp_path / "held")["counts"]
    assert counts["dev pairs"] == 8 and 0 < counts["pairs"] < 792
