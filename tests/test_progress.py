"""Bars move with every batch and count what takes the time. Encoding and searching are two bars."""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from commands import SAMPLE, Done, run
from releases import TEXTS, make_release, tables
from tiny_kinds import write_multi_vector, write_sparse
from tiny_models import write_cross, write_dual

from builders.core import progress as progress_module
from builders.core.progress import show_progress
from builders.core.quiet import quiet_call
from builders.core.shares import report_share
from builders.store.reader import open_release

pytestmark = pytest.mark.usefixtures("own_cache", "every_step")


@pytest.fixture
def every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """Log every step of a bar, instead of a line every 30 seconds."""
    monkeypatch.setattr(progress_module, "EVERY", 0)


def shares_of(done: Done, label: str) -> list[int]:
    """Return the percentages that the log lines of a bar show."""
    return [int(share) for share in re.findall(rf"INFO {label}: +(\d+)%", done.stderr)]


def release_with(path: Path, lengths: Sequence[int]) -> Path:
    """Make a release whose further passages have the given numbers of characters."""
    texts = [chr(0x4E00 + number) * length for number, length in enumerate(lengths)]
    return make_release(path, tables(TEXTS + texts))


def test_encoding_moves_within_a_chunk(tmp_path: Path) -> None:
    write_dual(tmp_path / "model")
    release = release_with(tmp_path / "release", range(10, 50))
    words = ["encode", "--release", release, "--model", tmp_path / "model", "--out", tmp_path / "out"]
    shares = shares_of(run("baselines", words, "--batch-tokens", 200, "--device", "cpu"), "encode")
    # A bar that moved only with whole chunks would show 0 and 100.
    assert len(set(shares)) > 5
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_long_texts_count_more(tmp_path: Path) -> None:
    write_dual(tmp_path / "model")
    release = release_with(tmp_path / "release", [400] * 2)
    words = ["encode", "--release", release, "--model", tmp_path / "model", "--out", tmp_path / "out"]
    done = run("baselines", words, "--batch-tokens", 64, "--device", "cpu")
    assert shares_of(done, "encode")[1] > 2 * 100 / (len(TEXTS) + 2)  # the first batch is one long text


@pytest.mark.parametrize("write", [write_dual, write_sparse, write_multi_vector])
def test_a_run_encodes_and_then_searches(tmp_path: Path, write: Callable[[Path], object]) -> None:
    write(tmp_path / "model")
    release = release_with(tmp_path / "release", [30] * 9)
    words = ["run", tmp_path / "model", "--release", release, "--split", "dev"]
    done = run("baselines", words, "--out", tmp_path / "out", "--index", tmp_path / "index", "--device", "cpu")
    # The first occurrence of each label, in order.
    labels = list(dict.fromkeys(re.findall(r"INFO (encode|encode queries|search): +\d+%", done.stderr)))
    assert labels == ["encode", "encode queries", "search"]
    for label in labels:
        assert shares_of(done, label)[-1] == 100


def test_reranking_counts_pairs(tmp_path: Path) -> None:
    write_cross(tmp_path / "model")
    release = release_with(tmp_path / "release", [])
    run("baselines", "bm25", "--release", release, "--split", "train", "--out", tmp_path / "first")
    words = ["rerank", "--release", release, "--split", "train", "--run", tmp_path / "first", "--model"]
    done = run("baselines", words, tmp_path / "model", "--out", tmp_path / "out", "--batch-tokens", 100)
    pair_count = len((tmp_path / "first").read_text().splitlines())
    shares = shares_of(done, "rerank")
    assert len(set(shares)) > 2
    assert shares[-1] == 100
    assert f"{pair_count:.2f}/{pair_count:.2f} " in done.stderr


def test_mining_moves_within_a_window_of_queries(tmp_path: Path) -> None:
    write_cross(tmp_path / "model")
    release = release_with(tmp_path / "release", range(10, 50))
    run("baselines", "bm25", "--release", release, "--split", "train", "--out", tmp_path / "run")
    words = ["mine", "--release", release, "--run", tmp_path / "run", "--out", tmp_path / "out", "--cross-encoder"]
    done = run("baselines", words, tmp_path / "model", "--max-score", 2, "--batch-tokens", 50, "--device", "cpu")
    shares = shares_of(done, "mine")
    assert len(set(shares)) > 3
    assert shares == sorted(shares)
    assert shares[-1] == 100


def test_check_counts_bytes(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release", tables(), rows_per_shard=2)
    done = run("builders", "check", "--release", release, code=None)
    shard_bytes = 0
    for entry in open_release(release).manifest.files:
        if entry.path.endswith(".parquet"):
            shard_bytes += entry.bytes
    shares = shares_of(done, "read")
    assert len(set(shares)) > 3
    assert shares[-1] == 100
    assert re.search(rf"read: 100% {shard_bytes / 1000:.1f}k/", done.stderr), done.stderr
    assert shares_of(done, "files")[-1] == 100


def test_a_build_counts_bytes_and_then_texts(tmp_path: Path) -> None:
    done = run("builders", "release", "--raw", SAMPLE, "--out", tmp_path / "release")
    row_bytes = sum(path.stat().st_size for path in SAMPLE.glob("*.json"))
    assert re.search(rf"label: 100% {row_bytes / 1000:.0f}k/", done.stderr), done.stderr
    assert len(set(shares_of(done, "label"))) > 2
    assert len(set(shares_of(done, "write"))) > 5 and shares_of(done, "write")[-1] == 100


def test_check_counts_its_rules(tmp_path: Path) -> None:
    done = run("builders", "check", "--release", make_release(tmp_path / "release", tables()), code=None)
    assert len(set(shares_of(done, "rules"))) > 10 and shares_of(done, "rules")[-1] == 100


def test_finished_work_is_no_measure_of_the_speed(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with show_progress(total=100, label="encode", done=90) as bar:
        bar.update(1)
        assert bar.format_dict["initial"] == 90
    assert caplog.messages[-1].startswith("encode:  91%")


def test_a_task_moves_its_bar_by_shares(caplog: pytest.LogCaptureFixture) -> None:
    def compute(amount: int) -> int:
        for share in (0.0, 0.5, 1.0):
            report_share(share)
        return amount

    caplog.set_level("INFO")
    with show_progress(total=8, label="work") as bar:
        assert list(bar.follow(map(compute, [2, 6]), [2, 6])) == [2, 6]
    # The first task is a quarter of the work: it is half done at 12 %.
    percentages = [int(line.split("%")[0].split()[-1]) for line in caplog.messages]
    assert percentages == [0, 12, 25, 62, 100]


def test_a_quiet_task_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    with quiet_call(), show_progress(total=2) as bar, bar.task(2):
        report_share(0.5)
    assert caplog.messages == []
