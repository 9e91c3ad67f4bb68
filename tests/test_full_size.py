"""benchmarks/full_size.py: the made-up collection, and every verb on a small one, resumed after a kill."""

import importlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, parse

WORDS = ("绿萝", "喜欢", "散射光", "窗边", "两米", "夏天", "太阳", "蒸鱼", "水开", "八分钟", "身份证", "照片", "合同")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("made_up_collection")


def write_text(path: Path) -> Path:
    """Write 2,000 sentences of three words each, in lines of ten."""
    sentences = []
    for number in range(2_000):
        words = [WORDS[(number * step) % len(WORDS)] for step in (1, 3, 7)]
        sentences.append("，".join(words) + f"{number}。")
    lines = ["".join(sentences[start : start + 10]) for start in range(0, len(sentences), 10)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read_rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_a_made_up_collection_has_distinct_passages_and_questions(made_up: Any, tmp_path: Path) -> None:
    sentences = made_up.read_sentences([write_text(tmp_path / "text.txt")], 10**6)
    counts = made_up.write_collection(tmp_path / "a", sentences, 900, 40)
    made_up.write_collection(tmp_path / "b", sentences, 900, 40)
    assert counts == {"train": 40, "dev": 10, "test1": 10, "test2": 10}
    passages = {
        row["paragraph_id"]: row["paragraph_text"] for row in read_rows(tmp_path / "a" / "passage_collection.json")
    }
    assert len(passages) == len(set(passages.values())) == 900
    question_ids = []
    for split, count in counts.items():
        rows = read_rows(tmp_path / "a" / f"{split}.json")
        assert len(rows) == count
        question_ids += [row["question_id"] for row in rows]
        for row in rows:
            for paragraph in row.get("answer_paragraphs", ()):
                assert passages[paragraph["paragraph_id"]] == paragraph["paragraph_text"]
        # The same text and sizes give the same files.
        assert (tmp_path / "a" / f"{split}.json").read_bytes() == (tmp_path / "b" / f"{split}.json").read_bytes()
    assert len(set(question_ids)) == len(question_ids)


def test_every_command_has_the_options_of_its_verb(made_up: Any) -> None:
    verbs = importlib.import_module("full_size").VERBS
    for verb in verbs:
        if verb.words[0] == "-m":
            _, program, name, *words = verb.words
            parse(program, name, *[word.format(tenth=100) for word in words])
    assert len({verb.name for verb in verbs}) == len(verbs) == 25


def costs_in(out: Path) -> set[str]:
    return {path.name for path in (out / "costs").glob("*.json")}


@pytest.mark.slow
def test_every_verb_runs_once_and_a_killed_call_goes_on(tmp_path: Path) -> None:
    text = write_text(tmp_path / "text.txt")
    out = tmp_path / "out"
    words = [
        sys.executable,
        str(ROOT / "benchmarks" / "full_size.py"),
        "--text",
        str(text),
        "--out",
        str(out),
        "--small",
    ]
    first = subprocess.Popen(words, stdout=subprocess.DEVNULL, start_new_session=True)
    while first.poll() is None and len(costs_in(out)) < 3:
        time.sleep(0.2)
    os.killpg(first.pid, signal.SIGTERM)
    first.wait()
    finished = costs_in(out)
    assert 3 <= len(finished) < 20

    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))["verbs"]
    assert len(results) == 25
    # The finished verbs are not measured again.
    assert not [line for line in done.stdout.splitlines() if line.startswith("official: {")]
    for name, costs in results.items():
        assert costs["seconds"] > 0 and costs["memory_gb"] > 0, name
        assert f"| {name}" in (out / "results.md").read_text(encoding="utf-8")
