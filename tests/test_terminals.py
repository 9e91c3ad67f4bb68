"""Output of commands to terminals and pipes of any encoding, and to logs without a terminal."""

import importlib
import io
import json
import logging
import sys
from pathlib import Path

import pytest
from commands import run

from builders.core import progress as progress_module
from builders.core.command import main
from builders.core.exit_codes import exit_code
from builders.core.progress import progress
from builders.store.runs import read_run, write_run


@pytest.fixture(scope="module")
def given(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("given") / "bm25.dev.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--split", "dev", "--out", out)
    other = out.with_name("other.run")
    hits = read_run(out).hits.items()
    write_run(other, [(query, [(corpus, -score) for corpus, score in own]) for query, own in hits])
    return {"release": sample_release, "run": out, "other": other, "folder": out.parent}


def written(to: io.TextIOWrapper) -> str:
    to.flush()
    assert isinstance(to.buffer, io.BytesIO)
    return to.buffer.getvalue().decode(to.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
@pytest.mark.parametrize(
    "words",
    [
        "builders official --list",
        "builders check --release {release}",
        "baselines show --release {release} --split dev {run}",
        "baselines evaluate --release {release} --split dev {run}",
        "baselines compare --release {release} --split dev {run} {other}",
        "baselines compare --release {release} --split dev {run} {other} --format latex",
        "baselines errors --release {release} --split dev {run} --format json",
        "baselines reproduce --release {release} --leaderboard {run}",
        "baselines reproduce --table 4 --row bm25 --release {release} --out {folder}/runs --one-process",
        "builders annotate --help",
    ],
)
def test_a_terminal_of_any_encoding_ends_no_command(
    given: dict[str, Path], encoding: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    program, *rest = words.format(**given).split()
    try:
        code = main(program, "", importlib.import_module(f"{program}.__main__").VERBS, rest)
    except SystemExit as help_:
        code = help_.code  # type: ignore[assignment]
    monkeypatch.undo()
    assert code == 0, written(err)
    assert written(out)


def test_json_stays_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é 中文 😀 \ud800"
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert exit_code(lambda: print(json.dumps(text, ensure_ascii=False)) or 0) == 0
    monkeypatch.undo()
    assert json.loads(written(out)) == text


def test_long_work_is_logged_without_a_terminal(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress_module, "EVERY", 0)
    assert list(progress(["a", "b"], label="encode", unit="row")) == ["a", "b"]
    assert any(line.startswith("encode:  50% 1.00/2.00 [") for line in caplog.messages), caplog.messages
