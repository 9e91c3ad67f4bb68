"""Test labelled pairs of questions: published file formats, held-out pairs, and measures."""

import gzip
import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch
from commands import run
from sentence_transformers import CrossEncoder
from tiny_models import write_bert
from training_world import training_of

from baselines.train.question_pairs import QuestionPair, hold_out, pair_file, read_question_pairs

PAIRS = [QuestionPair("怎么煮饺子", "饺子怎么煮", 1), QuestionPair('高铁票, "提前"几天买', "多肉怎么浇水", 0)]


def _read(path: Path, columns: str = "") -> list[QuestionPair]:
    return read_question_pairs([pair_file(f"{path}{columns}")])


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("lcqmc.tsv", 'text_a\ttext_b\tlabel\n怎么煮饺子\t饺子怎么煮\t1\n高铁票, "提前"几天买\t多肉怎么浇水\t0\n', ""),
        ("bq.csv", 'sentence1,sentence2,label\n怎么煮饺子,饺子怎么煮,1\n"高铁票, ""提前""几天买",多肉怎么浇水,0\n', ""),
        ("cmedqq.txt", '1\t怎么煮饺子\t饺子怎么煮\r\n0\t高铁票, "提前"几天买\t多肉怎么浇水\r\n', ":label,text1,text2"),
    ],
)
def test_tables_are_read_by_the_names_of_their_columns(tmp_path: Path, name: str, content: str, columns: str) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8", newline="")
    assert _read(tmp_path / name, columns) == PAIRS
    (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
    assert _read(tmp_path / f"{name}.gz", columns) == PAIRS


def test_json_lines_are_read_with_labels_as_numbers_or_texts(tmp_path: Path) -> None:
    rows = [
        {"sentence1": PAIRS[0].first, "sentence2": PAIRS[0].second, "label": "1"},
        {"label": 0, "id": 3, "query2": PAIRS[1].second, "query1": PAIRS[1].first},
    ]
    path = tmp_path / "afqmc.json"
    path.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in rows) + "\n\n", encoding="utf-8")
    assert _read(path) == PAIRS


def test_a_held_out_pair_shares_no_question_with_those_that_are_trained_on() -> None:
    chosen = np.random.default_rng(0)
    pairs = [QuestionPair(f"q{a}", f"q{b}", 0) for a, b in chosen.integers(100, size=(200, 2)).tolist()]
    train, held = hold_out(pairs, 0.1, seed=3)
    assert len(held) == 20
    assert not {text for pair in held for text in pair[:2]} & {text for pair in train for text in pair[:2]}
    apart = {text for pair in held for text in pair[:2]}
    assert train == [pair for pair in pairs if not apart & {*pair[:2]}]
    assert hold_out(pairs, 0.1, seed=3)[1] == held != hold_out(pairs, 0.1, seed=4)[1]


# The label depends only on the mark at the start of the second question.
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
    pairs, dev = write_pairs(tmp_path / "train.tsv", 800, 1), write_pairs(tmp_path / "dev.tsv", 60, 2)
    out = tmp_path / "m"
    words = ["--start", write_bert(tmp_path / "bert", [*WORDS, "是否"]), "--device", "cpu", "--pairs", pairs]
    words += [word for value in SMALL for word in ("--set", value)]
    command = ["train", "question-matching-cpu", *words, "--out", out, "--dev-pairs", dev, "--set", "train.epochs=4"]
    printed = json.loads(run("baselines", *command).stdout)
    same, other = CrossEncoder(str(out), device="cpu").predict([("北京", "是饺子"), ("北京", "否饺子")])
    assert other < 0.2 and same > 0.8
    training = training_of(out)
    assert printed["dev"] == training["dev"][-1:] and len(training["dev"]) == 2
    assert training["dev"][-1]["AUC"] > 0.95 and training["dev"][-1]["accuracy"] > 0.9
    assert (training["counts"]["pairs"], training["counts"]["dev pairs"]) == (800, 60)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "for deciding if two questions ask the same" in card and "license: other" in card
    assert "Data, files of labelled pairs of questions (SHA-256):" in card and "train.tsv" in card
    # Without --dev-pairs, a part of the pairs is held out.
    held = ["--set", "train.max_steps=1", "--set", "data.held_out=0.01", "--out", tmp_path / "held"]
    run("baselines", "train", "question-matching-cpu", *words, *held)
    counts = training_of(tmp_path / "held")["counts"]
    assert counts["dev pairs"] == 8 and 0 < counts["pairs"] < 792
