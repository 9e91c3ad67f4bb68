"""The search page itself: served by Gradio on loopback, asked by many at once, looked at in a browser.

``make test-space`` runs them. Gradio has an environment of its own in ``.venvs/space``, or in the folder that
``DUREADER_RETRIEVAL_VENV_SPACE`` names: it wants older versions than the project's.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from commands import ROOT, run
from environments import clean_environ, environment
from label_studio import chromium, look

from baselines.runs.sets import read_queries
from builders.store.reader import open_release

REQUIREMENTS = ROOT / "tests" / "space-requirements.txt"
SECONDS = 300  # for the start on a busy machine


@pytest.fixture(scope="module")
def page(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of the page of an assembled Space with the sample."""
    if not os.environ.get("TEST_SPACE"):
        pytest.skip("needs Gradio in an environment of its own (300 MB): make test-space")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Gradio's environment is pinned for Python 3.11")
    commands = environment("space", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_SPACE", borrow=True)
    folder = tmp_path_factory.mktemp("space")
    run("baselines", "space", "--release", sample_release, "--assemble", folder / "space")
    variables = clean_environ() | {"GRADIO_SERVER_NAME": "127.0.0.1", "HF_HUB_OFFLINE": "1"}
    with open(folder / "log", "wb") as log:
        start = [commands / "python", "search_page.py"]
        process = subprocess.Popen(start, cwd=folder / "space", env=variables, stdout=log, stderr=log)
    try:
        end = time.monotonic() + SECONDS
        while not (found := re.search(r"the page is at (\S+)/ ", (folder / "log").read_text(encoding="utf-8"))):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text(encoding="utf-8")
            time.sleep(0.2)
        yield found[1]
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(60) == 143
    assert "Traceback" not in (folder / "log").read_text(encoding="utf-8")


def ask(page: str, text: str) -> str:
    """The HTML of an answer, as any client of Gradio's gets it."""
    address, data = f"{page}/gradio_api/call/search", json.dumps({"data": [text]}).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as answer:
        event = json.load(answer)["event_id"]
    with urllib.request.urlopen(f"{address}/{event}", timeout=120) as answer:
        said = answer.read().decode()
    done = re.search(r"^event: complete\ndata: (.*)$", said, re.MULTILINE)
    assert done, said
    (found,) = json.loads(done[1])
    assert isinstance(found, str)
    return found


def test_empty_long_and_hostile_queries_have_answers(page: str) -> None:
    assert "Type a question" in ask(page, " ")
    assert "Of its 10,000 characters the first 1,000 were searched for." in ask(page, "手机没电" * 2_500)
    assert "<script>" not in ask(page, "<script>alert(1)</script>")


def test_fifty_people_at_once_get_their_own_answers(page: str) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: ask(page, f"手机没电 {number}"), range(50)))
    assert all(f"“手机没电 {number}”" in answer and "<mark>" in answer for number, answer in enumerate(answers))


def test_a_browser_shows_the_first_question_and_its_positives(page: str, sample_release: Path, tmp_path: Path) -> None:
    if (command := chromium()) is None:
        pytest.skip("needs chromium, which looks at the page")
    seen = look(command, page, tmp_path / "profile")
    query, text = read_queries(open_release(sample_release), "dev")[0]
    assert f"question {query}" in seen and text in seen
    assert '<div class="hit positive">' in seen and "<mark>" in seen
