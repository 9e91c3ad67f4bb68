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
from annotating import ANNA, BEN, CARL, annotate, check, judge, judgments, make_round
from chat_server import chat
from commands import ROOT, run
from environments import environment
from label_studio import OWNER, TOKEN, LabelStudio, Person, SignedIn, chromium, look
from releases import QUESTIONS, TEXTS, md5

from builders.annotate.labels import settled_labels
from builders.annotate.rounds import open_round
from builders.common.sampling import draw
from builders.store.ids import text_id
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

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


def upload(studio: LabelStudio, round_: Path) -> dict[str, int]:
    """The ids of the projects that an upload makes, by the name of what they hold."""
    lines = annotate("upload", round_).stdout.splitlines()[:-1]
    found = [line.removeprefix(f"{studio.url}/projects/").split("/", 1) for line in lines]
    return {rest.strip("/ ").split(":")[0]: int(number) for number, rest in found}


def tasks_of(studio: LabelStudio, project: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = studio.owners(f"/api/tasks?project={project}&page_size=500&fields=all")["tasks"]
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


class World:
    """The truth of a release's dev questions, some of whose positives its qrels lack; runs, and a pool of both."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.release, self.folder = release, folder
        rows = open_release(release).table("qrels", "dev").to_pylist()
        self.known = {(row["query-id"], row["corpus-id"]) for row in rows}
        self.truth = set(self.known)

    def pool(self) -> Path:
        """Two runs pooled, and judged by an ensemble of two re-rankers that know more than the qrels."""
        runs = []
        for engine in ("numba", "tantivy"):
            runs.append(self.folder / f"{engine}.dev.run")
            words = ("--split", "dev", "--engine", engine, "--out", runs[-1])
            run("baselines", "bm25", "--quiet", "--release", self.release, *words)
        at = ("--quiet", "--release", self.release, "--split", "dev", "--runs", *runs)
        union = self.folder / "candidates.run"
        run("builders", "pool", "candidates", *at, "--out", union)
        hits = read_run(union).hits
        for query in sorted(hits)[::2]:  # every second question has an answer among the candidates that nobody knew
            self.truth.add((query, next(p for p, _ in hits[query] if (query, p) not in self.known)))
        scores = []
        for number in (1, 2):
            scores.append(self.folder / f"ce-{number}.run")
            rows = [
                (q, [(p, 4.0 * ((q, p) in self.truth) - 2 + s / number) for p, s in own]) for q, own in hits.items()
            ]
            write_run(scores[-1], rows)
        run("builders", "pool", "select", *at, "--scores", *scores, "--out", self.folder / "pool.jsonl")
        return self.folder / "pool.jsonl"

    def grade(self, prompt: str) -> str:
        """What a model says that knows the truth: it is told texts, not ids."""
        query, passage = (prompt.split(f"<{name}>\n")[1].split(f"\n</{name}>")[0] for name in ("查询", "段落"))
        return f"最终得分：{3 if (text_id(query), text_id(passage)) in self.truth else 1}"

    def label(self, pair: dict[str, Any]) -> int:
        return int((pair["query-id"], pair["corpus-id"]) in self.truth)

    def judge(self, studio: LabelStudio, person: Person, project: int, error: float, seed: str) -> None:
        """Somebody judges a project whole, wrong in a share of its pairs."""
        tasks = tasks_of(studio, project)
        wrong = draw((str(task["id"]) for task in tasks), round(error * len(tasks)), seed)
        for task in tasks:
            person.judge(task["id"], self.label(task["data"]) ^ (str(task["id"]) in wrong))


def test_a_round_from_the_pool_to_new_qrels(
    studio: LabelStudio,
    people: dict[str, Person],
    sample_release: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world, round_ = World(sample_release, tmp_path), tmp_path / "round"
    words = ("--pool", world.pool(), "--release", sample_release, "--package-size", 40, "--review-pairs", 16)
    annotate("export", round_, *words)
    assert [package.pairs for package in open_round(round_).packages] == [40, 40]
    # A model judges first, and is right; nobody sees it, and until people have judged there is nothing to compare.
    with chat(world.grade) as judge_server:
        monkeypatch.setenv("OPENAI_BASE_URL", judge_server.url)
        assert "80 pairs judged" in annotate("prefill", round_, "--model", "judge-7b").stdout
    assert all(row["state"] == "open" for row in check(round_)["packages"])
    # Anna errs in 30 % of the first package, in 2.5 % (one pair) of the second; the reviewers never.
    projects = upload(studio, round_)
    world.judge(studio, people[ANNA], projects["label-studio/dev-001"], 0.3, "1")
    world.judge(studio, people[ANNA], projects["label-studio/dev-002"], 0.025, "2")
    annotate("import", round_, "--from-server")
    annotate("review", round_, "--reviewers", BEN, CARL)
    for name, project in upload(studio, round_).items():
        world.judge(studio, people[name.split("/")[1]], project, 0, name)
    annotate("import", round_, "--from-server")
    first = check(round_)
    assert [row["state"] for row in first["packages"]] == ["sent back as version 2", "accepted"]
    assert 0 < first["fleiss"]["kappa"] < 1
    # She revises it; the reviewers draw anew.
    (revised,) = upload(studio, round_).items()
    assert revised[0] == "label-studio/dev-001.v2"
    world.judge(studio, people[ANNA], revised[1], 0, "3")
    annotate("import", round_, "--from-server")
    annotate("review", round_, "--reviewers", BEN, CARL)
    for name, project in upload(studio, round_).items():
        world.judge(studio, people[name.split("/")[1]], project, 0, name)
    annotate("import", round_, "--from-server")
    assert [row["state"] for row in check(round_)["packages"]] == ["accepted", "accepted"]
    # What a reviewer has seen of the one wrong pair is decided by somebody else, on a sheet.
    annotate("adjudicate", round_)
    for sheet in (round_ / "adjudication").glob("*.csv"):
        judge(round_, "dora", sheet, world.label)
    settled = settled_labels(round_, open_round(round_))
    assert len(settled.labels) == 80 and not settled.undecided
    wrong = [pair for pair, label in settled.labels.items() if label != (pair in world.truth)]
    assert len(wrong) == (0 if (round_ / "adjudication").exists() else 1)
    # Nothing that was said is lost: 80 pairs, 40 again, 2 x 16 pairs of each of three reviews.
    kinds = [each["kind"] for each in judgments(round_)]
    assert (kinds.count("annotation"), kinds.count("review"), kinds.count("model")) == (120, 96, 80)
    found = json.loads(annotate("compare", round_, "--model", "judge-7b", "--format", "json").stdout)
    assert found["pairs"] == 80 and found["kappa"] == (1 if not wrong else pytest.approx(0.97, abs=0.03))
    # New qrels: of what was judged, the truth, but for a wrong pair that no reviewer saw; the rest as it was.
    out = tmp_path / "release"
    annotate("merge", round_, "--release", sample_release, "--out", out)
    release = open_release(out)
    after, before = ({(q, p) for q, p in positives(release, config)} for config in ("qrels", "qrels-before"))
    assert before == world.known and after - set(settled.labels) == before - set(settled.labels)
    assert (after ^ world.truth) & set(settled.labels) == set(wrong)
    # Figure 2: judged by the new qrels, the same run is better.
    figure = {row: figure_2(out, row, tmp_path / "runs") for row in ("bm25-before", "bm25-after")}
    assert figure["bm25-after"] > figure["bm25-before"]
    assert {path.suffix for path in (tmp_path / "runs").glob("figure2.dev.*")} == {".png", ".svg"}


def figure_2(release: Path, row: str, out: Path) -> float:
    """MRR@10 of one of the figure's bars."""
    words = ("--figure", 2, "--row", row, "--one-process", "--format", "json", "--out", out)
    report = json.loads(run("baselines", "reproduce", "--quiet", "--release", release, *words).stdout)
    return next(float(each["ours"]) for each in report["rows"] if each["metric"] == "MRR@10")


def positives(release: Release, config: str) -> list[tuple[str, str]]:
    rows = release.table(config, "dev").to_pylist()
    return [(row["query-id"], row["corpus-id"]) for row in rows if row["score"] > 0]
