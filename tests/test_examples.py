"""Every program of examples/ runs and prints what it promises."""

import gzip
import json
import os
import re
import runpy
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable
from pathlib import Path

import pytest
import test_engines
from commands import ROOT
from tiny_models import write_cross, write_dual

from builders.store.reader import open_release

EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))
RunExample = Callable[..., str]


@pytest.fixture(autouse=True)
def _in_a_new_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr("builders.core.cache._SETTLED_AFTER", -1)


@pytest.fixture
def run_example(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> RunExample:
    def run(name: str, *options: object) -> str:
        """Run a program in this process, which has imported PyTorch already. Return stdout."""
        monkeypatch.setattr(sys, "argv", [name, *map(str, options)])
        runpy.run_path(str(ROOT / "examples" / name), run_name="__main__")
        return capsys.readouterr().out

    return run


def test_evaluate_your_model(run_example: RunExample, sample_release: Path, tmp_path: Path) -> None:
    model = write_dual(tmp_path / "model")
    printed = run_example("evaluate_your_model.py", "--model", model, "--release", sample_release)
    assert "MRR@10" in printed and "95 % interval" in printed


def test_two_stages(run_example: RunExample, sample_release: Path, tmp_path: Path) -> None:
    model = write_cross(tmp_path / "model")
    printed = run_example("two_stages.py", "--reranker", model, "--release", sample_release)
    assert "first stage   MRR@10 34.58" in printed
    assert "wrote build/examples/two_stages.run.gz" in printed


def test_compare_two_systems(run_example: RunExample, sample_release: Path) -> None:
    printed = run_example("compare_two_systems.py", "--release", sample_release)
    assert "| a - b | +5.42 | -5.18 to +16.01 |" in printed


def test_train_from_negatives(run_example: RunExample, sample_release: Path, tmp_path: Path) -> None:
    model = write_dual(tmp_path / "model")
    printed = run_example("train_from_negatives.py", "--start", model, "--release", sample_release)
    assert "training rows" in printed and "MRR@10 before" in printed
    assert (tmp_path / "build/examples/trained/modules.json").exists()


def test_release_from_own_questions(run_example: RunExample) -> None:
    printed = run_example("release_from_own_questions.py")
    assert "君子兰夹箭怎么办 -> ['君子兰夹箭时,白天放在二十度的屋里,晚上端到阳台。']" in printed


def test_chunker(run_example: RunExample, tmp_path: Path) -> None:
    # A gzipped file is read, too, as in DuReader's demo rows.
    for raw_path in (ROOT / "builders/sample").glob("*.json"):
        (tmp_path / "raw").mkdir(exist_ok=True)
        (tmp_path / "raw" / f"{raw_path.name}.gz").write_bytes(gzip.compress(raw_path.read_bytes()))
    printed = run_example("chunker.py", "--raw", tmp_path / "raw")
    assert "256 characters" in printed and "1,024 characters" in printed
    release = open_release("build/examples/chunked")
    passages = release.texts("corpus", "corpus").values()
    # Three sentences at most, so at most two ends of sentences inside a passage.
    assert all(len(re.findall("[。！？!?].", passage)) <= 2 for passage in passages)
    assert {split for config, split in release.splits() if config == "queries"} >= {"train", "dev", "test"}


def test_read_failures(run_example: RunExample, sample_release: Path) -> None:
    printed = run_example("read_failures.py", "--release", sample_release)
    assert "5 of 16 questions have no positive passage among the best 10" in printed
    assert "手机进水了怎么处理" in printed


def test_search_page(sample_release: Path, tmp_path: Path) -> None:
    model = write_dual(tmp_path / "model")
    words = [sys.executable, ROOT / "examples" / "search_page.py", "--model", model, "--release", sample_release]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen([*words, "--port", "0"], stdout=subprocess.PIPE, text=True, env=environment) as process:
        try:
            address = process.stdout.readline().split()[-1]
            query = urllib.parse.quote("<b>君子兰</b>")
            with urllib.request.urlopen(f"{address}/?q={query}") as reply:
                page = reply.read().decode()
        finally:
            process.terminate()
    assert page.count("<li>") == 10
    assert "&lt;b&gt;君子兰" in page and "<b>" not in page


@pytest.mark.slow
def test_table_4(run_example: RunExample, sample_release: Path) -> None:
    printed = run_example("table_4.py", "--release", sample_release, "--small")
    assert "not comparable" in printed  # the sample is not the paper's collection
    assert "DE w/ BM25 Neg" in printed


def test_second_dataset(run_example: RunExample, sample_release: Path, tmp_path: Path) -> None:
    paragraph = {"context": "长城位于北京北部。", "qas": [{"id": "1", "question": "长城在哪里？"}]}
    squad = tmp_path / "squad.json"
    squad.write_text(json.dumps({"data": [{"paragraphs": [paragraph]}]}))
    printed = run_example("second_dataset.py", "--squad", squad, "--first", sample_release)
    assert "build/examples/second: 1 questions, MRR@10 100.00" in printed


def test_chart_of_results(run_example: RunExample, sample_release: Path, tmp_path: Path) -> None:
    run_example("chart_of_results.py", "--release", sample_release)
    assert (tmp_path / "build/examples/chart.png").read_bytes().startswith(b"\x89PNG")


def test_pinyin_tokens(run_example: RunExample, sample_release: Path) -> None:
    pytest.importorskip("pypinyin")
    printed = run_example("pinyin_tokens.py", "--release", sample_release)
    assert "without pinyin  MRR@10 34.58" in printed
    assert "with pinyin" in printed
    words_and_pinyin = runpy.run_path(str(ROOT / "examples/pinyin_tokens.py"))["words_and_pinyin"]
    # A wrong character of the same sound, and a word typed in pinyin, still share a token with the word.
    assert "gengxin" in {*words_and_pinyin("怎么更新")} & {*words_and_pinyin("怎么更心")}
    assert "houzi" in {*words_and_pinyin("养猴子犯法吗")} & {*words_and_pinyin("养houzi犯法吗")}


def test_every_example_has_a_test() -> None:
    names = [*globals(), *vars(test_engines)]  # test_engines.py runs the adapters of search engines
    tests = {name.removeprefix("test_") for name in names if name.startswith("test_")}
    assert {Path(name).stem for name in EXAMPLES} <= tests
