"""Rounds of annotation through a real Label Studio: its API, its page in a browser, and one round from pool to qrels.

``make test-label-studio`` runs them. Label Studio has an environment of its own in ``.venvs/label-studio`` (1 GB),
made once with an empty database, or in the folder that ``DUREADER_RETRIEVAL_VENV_LABEL_STUDIO`` names.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, CARL, annotate, judgments, make_round
from annotation_round import play, upload
from commands import ROOT, run
from environments import environment
from label_studio import OWNER, TOKEN, LabelStudio, Person, SignedIn, chromium, look
from releases import QUESTIONS, TEXTS, md5

from builders.annotate.questions import ERRORS

REQUIREMENTS = ROOT / "tests" / "label-studio-requirements.txt"


@pytest.fixture(scope="module")
def studio() -> Iterator[LabelStudio]:
    if not os.environ.get("TEST_LABEL_STUDIO"):
        pytest.skip("takes minutes and 1 GB: make test-label-studio")
    if sys.version_info[:2] != (3, 11):
        pytest.skip("Label Studio's environment is pinned for Python 3.11")
    commands = environment("label-studio", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_LABEL_STUDIO")
    with LabelStudio(commands) as server:
        yield server


@pytest.fixture(scope="module")
def people(studio: LabelStudio) -> dict[str, Person]:
    return {email: Person(studio, email) for email in (ANNA, BEN, CARL)}


@pytest.fixture(autouse=True)
def at_the_server(studio: LabelStudio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL_STUDIO_URL", studio.url)
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", TOKEN)


def tasks_of(studio: LabelStudio, project: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = studio.owners(f"/api/tasks?project={project}&page_size=1000&fields=all")["tasks"]
    return found


def test_judgments_come_back_from_label_studio_once(
    studio: LabelStudio, people: dict[str, Person], tmp_path: Path
) -> None:
    round_ = make_round(tmp_path, passages=6, size=6)
    projects = upload(studio, round_)
    assert sorted(projects) == ["label-studio/dev-001", "label-studio/dev-002"]
    assert annotate("upload", round_).stdout == "0 projects made, 2 there already\n"
    first, second, *_ = tasks_of(studio, projects["label-studio/dev-001"])
    people[ANNA].judge(first["id"], 1, "看第二句")
    people[BEN].judge(second["id"], 0)
    assert annotate("import", round_, "--from-server").stdout.startswith("2 new judgments of 2")
    found = {each["annotator"]: each for each in judgments(round_)}
    assert (found[ANNA]["label"], found[ANNA]["note"], found[BEN]["label"]) == (1, "看第二句", 0)
    assert found[ANNA]["corpus-id"] == first["data"]["corpus-id"]
    assert annotate("import", round_, "--from-server").stdout.startswith("0 new judgments of 2")
    # The same as a file that somebody exported with the browser: there, people are numbers.
    exported = studio.owners(f"/api/projects/{projects['label-studio/dev-001']}/export?exportType=JSON")
    (tmp_path / "export.json").write_text(json.dumps(exported))
    other = make_round(tmp_path / "other", passages=6, size=6)
    annotate("import", other, tmp_path / "export.json")
    assert {each["label"] for each in judgments(other)} == {0, 1}
    assert all(each["annotator"].startswith("user-") for each in judgments(other))


def test_a_personal_access_token_is_taken_as_a_legacy_one(
    studio: LabelStudio, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    studio.owners("/api/jwt/settings", {"api_tokens_enabled": True, "legacy_api_tokens_enabled": True})
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", studio.owners("/api/token/", {})["token"])
    round_ = make_round(tmp_path, "--seed", 5, passages=6)
    assert list(upload(studio, round_)) == ["label-studio/dev-001"]


def test_a_token_of_another_server_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LABEL_STUDIO_API_KEY", "0" * 40)
    error = annotate("upload", make_round(tmp_path, passages=6), code=1).error
    assert "answered 401" in error and "is LABEL_STUDIO_API_KEY a token of this server?" in error


def test_the_page_shows_query_passage_terms_and_keys(studio: LabelStudio, tmp_path: Path) -> None:
    command = chromium()
    if command is None:
        pytest.skip("no Chromium on this machine")
    project = upload(studio, make_round(tmp_path, "--seed", 6, passages=6))["label-studio/dev-001"]
    task = next(t for t in tasks_of(studio, project) if t["data"]["corpus-id"] == md5(TEXTS[4]))
    assert task["data"]["query"] == QUESTIONS["dev"][0]
    with SignedIn(Person(studio, OWNER, new=False)) as url:
        page = look(command, f"{url}/projects/{project}/data?task={task['id']}", tmp_path / "profile")
    assert "<mark>高铁</mark>票可以在开车前十五" in page
    for text in ("查询", "段落", "这个段落能回答这个查询吗？", "相关<sup", "不相关<sup", "[1]", "[0]"):
        assert text in page, text


def test_errors_are_sorted_into_the_eight_categories(
    studio: LabelStudio, people: dict[str, Person], sample_release: Path, tmp_path: Path
) -> None:
    words = ("--quiet", "--release", sample_release, "--split", "dev")
    run("baselines", "bm25", *words, "--out", tmp_path / "bm25.run")
    run("baselines", "errors", *words, "--round", tmp_path / "round", tmp_path / "bm25.run")
    project = upload(studio, tmp_path / "round")["label-studio/dev-001"]
    tasks = tasks_of(studio, project)
    for number, task in enumerate(tasks[:8], 1):
        people[ANNA].judge(task["id"], number)
    done = annotate("import", tmp_path / "round", "--from-server")
    assert done.stdout.startswith("8 new judgments of 8")  # the rules' predictions are nobody's
    found = json.loads(run("baselines", "errors", "--tally", tmp_path / "round", "--format", "json").stdout)
    assert [row["pairs"] for row in found["categories"].values()] == [1] * 8
    if (command := chromium()) is None:
        return
    with SignedIn(Person(studio, OWNER, new=False)) as url:
        page = look(command, f"{url}/projects/{project}/data?task={tasks[-1]['id']}", tmp_path / "profile")
    for text in (
        "主要错在哪里？",
        *(f"{c.name}<sup" for c in ERRORS.choices),
        *(f"[{c.label}]" for c in ERRORS.choices),
    ):
        assert text in page, text


class Everybody:
    """The server with people who judge: what a round asks of it."""

    def __init__(self, studio: LabelStudio, people: dict[str, Person]) -> None:
        self.studio, self.people, self.url = studio, people, studio.url

    def tasks(self, project: int) -> list[dict[str, Any]]:
        return tasks_of(self.studio, project)

    def judge(self, who: str, project: int, task: int, label: int) -> None:
        self.people[who].judge(task, label)


def test_a_round_from_the_pool_to_new_qrels(
    studio: LabelStudio, people: dict[str, Person], demo_release: Path, tmp_path: Path
) -> None:
    play(demo_release, Everybody(studio, people), tmp_path, 250, 100)
