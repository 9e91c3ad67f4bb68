"""Servers that never answer, answer slowly or endlessly; and signals while a command waits for such a server."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from commands import ROOT, command
from hostile_server import STALLS, HostileServer

from builders.core import endpoint
from builders.core.endpoint import Endpoint
from builders.core.errors import InputError, Unfinished
from builders.core.hub import clear_errors
from builders.core.reply_limits import ReplyLimits, in_daemon_threads, run_within

_SOON = 30  # seconds, on any machine. What the commands wait for would take 60 seconds or more.
_CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}


REPLY_SECONDS = 1.2
REPLY_BYTES = 4 << 20


@pytest.fixture
def short_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limits of replies that a hostile server reaches soon."""
    monkeypatch.setattr(endpoint, "LIMITS", ReplyLimits(seconds=REPLY_SECONDS, size=REPLY_BYTES))
    monkeypatch.setattr(endpoint, "_RETRIES", 0)
    hub_limits = ReplyLimits(seconds=REPLY_SECONDS, size=REPLY_BYTES, has_downloads=True)
    monkeypatch.setattr("builders.core.hub.REPLY_LIMITS", hub_limits)


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("mode", STALLS)
def test_an_answer_has_limits_of_time_and_size(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    problem = "(no complete reply within 1 seconds|timed out)"
    if mode.startswith("endless"):
        problem = "over 4,194,304 bytes"
    with HostileServer(mode) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        started = time.monotonic()
        with pytest.raises(Unfinished, match=f"cannot be reached .*{problem}"):
            Endpoint("judge").answer("question")
        assert time.monotonic() - started < _SOON
        assert server.sent < 64 << 20


@pytest.mark.parametrize("mode", STALLS)
def test_a_reply_of_elasticsearch_has_limits_of_time_and_size(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    elasticsearch = pytest.importorskip("baselines.bm25.engine_elasticsearch")
    monkeypatch.setattr(elasticsearch, "REPLY_SECONDS", 1.5)
    monkeypatch.setattr(elasticsearch, "REPLY_BYTES", 4 << 20)
    with HostileServer(mode) as server:
        client = elasticsearch.Elasticsearch(server.url, node_class=elasticsearch.LimitedNode, request_timeout=1.5)
        problem = "over 4,194,304 bytes" if mode.startswith("endless") else "no complete reply|timed out"
        with pytest.raises(elasticsearch.TransportError, match=problem):
            client.info()
        assert server.sent < 64 << 20


def test_a_user_sets_the_time_of_an_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "_RETRIES", 0)
    monkeypatch.setenv("OPENAI_TIMEOUT", "0.5")
    with HostileServer("drip-body") as server:
        monkeypatch.setenv("OPENAI_BASE_URL", f"{server.url}/v1")
        with pytest.raises(Unfinished, match="cannot be reached"):
            Endpoint("judge").answer("question")


@pytest.mark.parametrize("seconds", ["0", "nan", "two", "120000"])
def test_a_wrong_time_of_an_answer_is_refused(monkeypatch: pytest.MonkeyPatch, seconds: str) -> None:
    monkeypatch.setenv("OPENAI_BASE_URL", "http://127.0.0.1:9/v1")  # nothing is sent
    monkeypatch.setenv("OPENAI_TIMEOUT", seconds)
    with pytest.raises(InputError, match=f"OPENAI_TIMEOUT: expected seconds .* found '{seconds}'"):
        Endpoint("judge")


@pytest.mark.usefixtures("short_limits")
@pytest.mark.parametrize("mode", ["drip-head", "drip-body", "endless"])
def test_an_answer_of_a_hub_has_limits_of_time_and_size(mode: str) -> None:
    from huggingface_hub import HfApi

    with HostileServer(mode) as server:
        api = HfApi(server.url, token="hf_none")
        problem = "over 4,194,304 bytes" if mode == "endless" else "no complete reply within 1 seconds"
        with pytest.raises(InputError, match=problem), clear_errors("org/name", server.url, "model", "download"):
            api.model_info("org/name")
        assert server.sent < 64 << 20


_ASK = """
import sys
from builders.core.endpoint import Endpoint
from builders.core.exit_codes import end_soon, exit_code
def ask():
    Endpoint("judge").ask_all(["a", "b", "c"], print, 2, "ask")
    return 0
sys.exit(end_soon(exit_code(ask)))
"""
_SLEEP = """
import sys, time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from builders.core.exit_codes import end_soon, exit_code
from builders.core.jobs import in_order, in_threads, process_pool
def sleep(_):
    Path(sys.argv[2]).touch()
    time.sleep(60)
def threads():
    for _ in in_threads(sleep, [1, 2, 3], 2): pass
def executor():
    with ThreadPoolExecutor(2) as pool: list(pool.map(sleep, [1, 2]))
def processes():
    with process_pool(2) as pool:
        for _ in in_order(pool, time.sleep, [0, 60, 60], 1): Path(sys.argv[2]).touch()
def library():
    import ctypes
    Path(sys.argv[2]).touch()
    ctypes.CDLL(None).poll(None, 0, 60_000)
    ctypes.CDLL(None).poll(None, 0, 60_000)
sys.exit(end_soon(exit_code(globals()[sys.argv[1]])))
"""


def stop(process: subprocess.Popen[str], number: signal.Signals) -> float:
    """Send a signal to a process. Return the seconds until the process ends, and fail if it reports anything else."""
    started = time.monotonic()
    process.send_signal(number)
    _, stderr = process.communicate(timeout=300)
    # A verb that resumes says so after the word.
    assert process.returncode == _CODES[number]
    assert stderr.splitlines()[-1].split(";")[0] == "interrupted"
    return time.monotonic() - started


def wait_until(condition: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Wait until the condition is true. Fail if the process ends before."""
    while not condition():
        assert process.poll() is None
        time.sleep(0.05)


def start(words: list[str], **environment: str) -> subprocess.Popen[str]:
    """Start a command that obeys Ctrl-C."""
    # A background process of a shell ignores Ctrl-C.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return subprocess.Popen(words, cwd=ROOT, env=os.environ | environment, stderr=subprocess.PIPE, text=True)


@pytest.mark.parametrize("number", _CODES)
@pytest.mark.parametrize("mode", ["silent", "drip-body"])
def test_a_signal_ends_a_command_that_asks_a_language_model(mode: str, number: signal.Signals) -> None:
    with HostileServer(mode) as server:
        process = start([sys.executable, "-c", _ASK], OPENAI_BASE_URL=f"{server.url}/v1")
        wait_until(lambda: server.is_asked, process)
        assert stop(process, number) < _SOON


@pytest.mark.parametrize("number", _CODES)
def test_a_signal_ends_a_command_that_asks_a_hub(number: signal.Signals, tmp_path: Path) -> None:
    with HostileServer("silent") as server:
        words = command("baselines", "pull", "org/name", "--out", tmp_path / "model")
        process = start(words, HF_ENDPOINT=server.url, HF_HOME=str(tmp_path))
        wait_until(lambda: server.is_asked, process)
        assert stop(process, number) < _SOON
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("work", ["threads", "executor", "processes", "library"])
def test_a_signal_ends_a_command_whose_threads_are_busy(work: str, tmp_path: Path) -> None:
    mark = tmp_path / "begun"
    process = start([sys.executable, "-c", _SLEEP, work, str(mark)])
    wait_until(mark.exists, process)
    assert stop(process, signal.SIGTERM) < _SOON


def test_threads_end_with_the_first_error() -> None:
    assert sorted(in_daemon_threads(abs, [-1, -2, -3], 2)) == [(0, 1), (1, 2), (2, 3)]
    with pytest.raises(ZeroDivisionError):
        list(in_daemon_threads(lambda number: 1 // number, [1, 0, 1], 1))
    with pytest.raises(TimeoutError):
        run_within(0.05, lambda: time.sleep(5))
