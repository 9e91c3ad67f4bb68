"""The search page, served by Gradio on loopback, for many clients at once and for a browser (``make test-space``).

Gradio needs older versions than the project. Its environment is ``.venvs/space``, or the folder that the variable
``DUREADER_RETRIEVAL_VENV_SPACE`` names.
"""

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
from urllib.parse import quote

import pytest
from commands import ROOT, run
from environments import clean_environ, environment
from pages import chromium, look

from baselines.measure.qrels import read_queries
from builders.store.reader import open_release

REQUIREMENTS = ROOT / "tests" / "space-requirements.txt"
SECONDS = 300  # limit for the start, an answer or the end on a busy machine
LOOKS = 5  # on a busy machine, the browser's clock can end before the answer arrives


@pytest.fixture(scope="module")
def page(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a page with the sample, a random dual-encoder and a random re-ranker."""
    if not os.environ.get("TEST_SPACE"):
        pytest.skip("needs Gradio in an environment of its own (300 MB): make test-space")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Gradio's environment is pinned for Python 3.11")
    commands = environment("space", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_SPACE", borrow=True)
    from tiny_models import write_cross, write_dual

    folder = tmp_path_factory.mktemp("space")
    texts = [text for _, text in read_queries(open_release(sample_release), "dev")]
    dual = write_dual(folder / "dual", texts=texts)
    cross = write_cross(folder / "cross", texts=texts)
    run("baselines", "encode", "--release", sample_release, "--model", dual, "--out", folder / "passages")
    models = ["--model", dual, "--passages", folder / "passages", "--reranker", cross]
    variables = clean_environ() | {"HF_HUB_OFFLINE": "1"}
    with open(folder / "log", "wb") as log:
        start = [commands / "python", "-m", "baselines", "show", "--serve", "--release", sample_release]
        start += models
        process = subprocess.Popen(start, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        yield wait_for_address(folder / "log", process)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 143
    assert "Traceback" not in (folder / "log").read_text(encoding="utf-8")


def ask(page: str, text: str) -> str:
    """Send a question by Gradio's interface for programs, and return the HTML of the answer."""
    address = f"{page}/gradio_api/call/search"
    data = json.dumps({"data": [text]}).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        event = json.load(response)["event_id"]
    with urllib.request.urlopen(f"{address}/{event}", timeout=SECONDS) as response:
        events = response.read().decode()
    complete_event = re.search(r"^event: complete\ndata: (.*)$", events, re.MULTILINE)
    assert complete_event, events
    (html,) = json.loads(complete_event[1])
    assert isinstance(html, str)
    return html


def wait_for_address(log_path: Path, process: subprocess.Popen[bytes]) -> str:
    """Return the page's address as soon as the server has logged it."""
    end = time.monotonic() + SECONDS
    while True:
        log = log_path.read_text(encoding="utf-8")
        address = re.search(r"the page is at (\S+)/ ", log)
        if address:
            return address[1]
        assert process.poll() is None, log
        assert time.monotonic() < end, log
        time.sleep(0.2)


def test_fifty_people_at_once_get_their_own_answers(page: str) -> None:
    with ThreadPoolExecutor(50) as pool:
        answers = list(pool.map(lambda number: ask(page, f"手机没电 {number}"), range(50)))
    for number, answer in enumerate(answers):
        assert f"“手机没电 {number}”" in answer
        assert "<mark>" in answer


def test_a_browser_shows_the_three_systems_side_by_side(page: str, sample_release: Path, tmp_path: Path) -> None:
    command = chromium()
    if command is None:
        pytest.skip("needs chromium, which looks at the page")
    query, text = read_queries(open_release(sample_release), "dev")[0]
    ask(page, text)
    looks = (look(command, f"{page}/?q={quote(text)}", tmp_path / "profile") for _ in range(LOOKS))
    html = next(looked_up_html for looked_up_html in looks if "<section>" in looked_up_html)
    assert f"question {query}" in html and text in html
    columns = html.split("<section>")[1:]
    names = [re.findall("<h3>(.*?)</h3>", column) for column in columns]
    assert names == [["BM25"], ["dual-encoder"], ["dual-encoder &gt; re-ranker"]]
    assert [column.count('<span class="rank">') for column in columns] == [10, 10, 10]
    assert '<div class="hit positive">' in columns[0] and "<mark>" in columns[0]
    assert [column.count("<span>before: ") for column in columns] == [0, 0, 10]
