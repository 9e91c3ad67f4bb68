"""Labelled pairs of questions: read from files as they are published, held out, measured."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest

from baselines.train.question_pairs import QuestionPair, hold_out, pair_file, read_question_pairs
from builders.core.errors import InputError

PAIRS = [QuestionPair("怎么煮饺子", "饺子怎么煮", 1), QuestionPair('高铁票, "提前"几天买', "多肉怎么浇水", 0)]


def _read(path: Path, columns: str = "") -> list[QuestionPair]:
    return read_question_pairs([pair_file(f"{path}{columns}")])


@pytest.mark.parametrize(
    ("name", "content", "columns"),
    [
        ("lcqmc.tsv", 'text_a\ttext_b\tlabel\n怎么煮饺子\t饺子怎么煮\t1\n高铁票, "提前"几天买\t多肉怎么浇水\t0\n', ""),
        (
            "bq.csv",
            "\ufeffid,sentence1,sentence2,label\n7,怎么煮饺子,饺子怎么煮,1\n"
            '8,"高铁票, ""提前""几天买",多肉怎么浇水,0\n',
            "",
        ),
        (
            "atec.csv",
            '1\t怎么煮饺子\t饺子怎么煮\t1\r\n2\t高铁票, "提前"几天买\t多肉怎么浇水\t0\r\n',
            ":id,text1,text2,label",
        ),
        ("cmedqq.txt", '1\t怎么煮饺子\t饺子怎么煮\n0\t高铁票, "提前"几天买\t多肉怎么浇水\n', ":label, text1, text2"),
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


@pytest.mark.parametrize(
    ("content", "columns", "said"),
    [
        ("甲\t乙\t1\n甲\t乙\t1\n", "", "a:2: expected one column of each: text1 (or text_a, "),
        ("甲\t乙\n", ":text1,text2", "expected one column of each: .*found 'text1, text2'"),
        (
            "甲\t乙\t1\n",
            ":id,text1,text2,label",
            "a: has 3 columns; expected those of --pairs",
        ),
        ("甲\t乙\t1\n甲\t乙\t2\n", ":text1,text2,label", "a:2: expected a label 0 or 1, found '2'"),
        ("甲\t乙\t1\n甲\t \t1\n", ":text1,text2,label", "a:2: expected two questions"),
        ("甲\t乙\t1\n甲\t1\n", ":text1,text2,label", "a:2: expected 3 columns"),
        ("text1\ttext2\tlabel\n", "", "a: has no pair"),
        ("", "", "a: is empty"),
        ('{"text1": "甲", "text2": "乙", "label": true}\n', "", "a:1: expected a label 0 or 1, found 'True'"),
        ('{"text1": "甲", "text2": 3, "label": 1}\n', "", "a:1: expected two questions"),
        ('{"text1": "甲", "label": 1}\n', "", "a:1: expected one column of each"),
        ('{"text1": "甲", "text2": "乙", "label": 1}\n[]\n', "", "a:2: expected `object`, got `array`"),
    ],
)
def test_what_is_no_file_of_pairs_is_one_error_with_its_line(
    tmp_path: Path, content: str, columns: str, said: str
) -> None:
    (tmp_path / "a").write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=said.replace("(", r"\(")):
        _read(tmp_path / "a", columns)


def test_a_held_out_pair_shares_no_question_with_those_that_are_trained_on() -> None:
    chosen = np.random.default_rng(0)
    pairs = [QuestionPair(f"q{a}", f"q{b}", 0) for a, b in chosen.integers(100, size=(200, 2)).tolist()]
    train, held = hold_out(pairs, 0.1, seed=3)
    assert len(held) == 20
    assert not {text for pair in held for text in pair[:2]} & {text for pair in train for text in pair[:2]}
    apart = {text for pair in held for text in pair[:2]}
    assert train == [pair for pair in pairs if not apart & {*pair[:2]}]
    assert hold_out(pairs, 0.1, seed=3)[1] == held != hold_out(pairs, 0.1, seed=4)[1]
