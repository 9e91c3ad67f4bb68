"""The search page, served by Gradio on loopback, for many clients, a browser and an agent (``make test-space``).

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
from typing import Any, NamedTuple
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


class Served(NamedTuple):
    """A served page: its address, the log of its tools, and the commands of Gradio's environment."""

    address: str
    log: Path
    commands: Path


@pytest.fixture(scope="module")
def page(served: Served) -> str:
    return served.address


@pytest.fixture(scope="module")
def served(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A page with the sample, a random dual-encoder and a random re-ranker."""
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
        start += [*models, "--mcp", "--log", folder / "log.jsonl"]
        process = subprocess.Popen(start, cwd=ROOT, env=variables, stdout=log, stderr=log)
    try:
        yield Served(wait_for_address(folder / "log", process), folder / "log.jsonl", commands)
        assert process.poll() is None
    finally:
        process.terminate()
        assert process.wait(SECONDS) == 143
    assert "Traceback" not in (folder / "log").read_text(encoding="utf-8")


def ask(page: str, text: str) -> str:
    """Return the HTML of the answer to a question."""
    html = call(page, "page", text)
    assert isinstance(html, str)
    return html


def call(page: str, endpoint: str, *arguments: object) -> Any:
    """Call an endpoint by Gradio's interface for programs, and return the answer."""
    address = f"{page}/gradio_api/call/{endpoint}"
    data = json.dumps({"data": arguments}).encode()
    request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=SECONDS) as response:
        event = json.load(response)["event_id"]
    with urllib.request.urlopen(f"{address}/{event}", timeout=SECONDS) as response:
        events = response.read().decode()
    complete_event = re.search(r"^event: complete\ndata: (.*)$", events, re.MULTILINE)
    assert complete_event, events
    (answer,) = json.loads(complete_event[1])
    return answer


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


SYSTEMS = ["BM25", "dual-encoder", "dual-encoder > re-ranker"]


def call_as_agent(served: Served, *calls: tuple[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Call tools by the client of the package mcp. Return the tools, then {"error", "texts"} for each call."""
    client = [served.commands / "python", ROOT / "tests" / "mcp_client.py", f"{served.address}/gradio_api/mcp/"]
    done = subprocess.run([*client, json.dumps(calls)], capture_output=True, text=True, timeout=SECONDS, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers


def test_an_agent_searches_and_its_log_is_a_run(served: Served, sample_release: Path) -> None:
    questions = read_queries(open_release(sample_release), "dev")
    calls = []
    for _, text in questions:
        calls.append(("search", {"query": text, "top_k": 7, "system": SYSTEMS[2]}))
    tools, *answers = call_as_agent(served, *calls)
    assert sorted(tools) == ["passage", "search"]
    assert all(name in json.dumps(tools["search"], ensure_ascii=False) for name in SYSTEMS)
    ranked_ids = []
    for answer in answers:
        (text,) = answer["texts"]
        hits = json.loads(text)["hits"]
        assert [hit["rank"] for hit in hits] == list(range(1, 8))
        ranked_ids.append([hit["id"] for hit in hits])
    # Programs get the same passages as JSON.
    answer_as_json = call(served.address, "search", questions[0][1], 7, SYSTEMS[2])
    assert [hit["id"] for hit in answer_as_json["hits"]] == ranked_ids[0]
    best_id = ranked_ids[0][0]
    (passage,) = call_as_agent(served, ("passage", {"id": best_id}))[1:]
    assert json.loads(passage["texts"][0]) == call(served.address, "passage", best_id)
    # The log is the run of these searches.
    done = run("baselines", "evaluate", "--release", sample_release, "--format", "json", served.log)
    assert f"the first searches of {len(questions)} of {len(questions)} questions of dev" in done.stderr
    (figures,) = json.loads(done.stdout)
    assert figures["queries"] == len(questions)


def test_wrong_calls_are_one_line_to_the_agent(served: Served) -> None:
    calls = {
        "system: expected one of BM25, dual-encoder, dual-encoder > re-ranker; found 'BM26'": {"system": "BM26"},
        "query: expected a text that is not blank, found ' '": {"query": " "},
        "top_k: expected a whole number from 1 to 100, found 0": {"top_k": 0},
    }
    searches = [("search", {"query": "手机"} | arguments) for arguments in calls.values()]
    answers = call_as_agent(served, *searches, ("passage", {"id": "no-such"}))[1:]
    messages = [*calls, "no passage has the id 'no-such'; expected an id that search returned"]
    assert answers == [{"error": True, "texts": [message]} for message in messages]
