"""A round of annotation from the pool to new qrels, by annotators whose errors are known, at any Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Protocol

import pytest
from annotating import ANNA, BEN, CARL, annotate, check, judge, judgments
from chat_server import chat
from commands import run

from builders.annotate.labels import settled_labels
from builders.annotate.rounds import open_round
from builders.common.sampling import draw
from builders.store.layout import text_id
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

Pair = tuple[str, str]


class Server(Protocol):
    """A Label Studio: a real one, or one on loopback that answers as it does."""

    url: str

    def tasks(self, project: int) -> list[dict[str, Any]]:
        """The tasks of a project, each with its ``id`` and its ``data``."""

    def judge(self, who: str, project: int, task: int, label: int) -> None:
        """Somebody judges a task."""


def upload(server: Server, round_: Path) -> dict[str, int]:
    """The ids of the projects that an upload makes, by the name of what they hold."""
    lines = annotate("upload", round_).stdout.splitlines()[:-1]
    found = [line.removeprefix(f"{server.url}/projects/").split("/", 1) for line in lines]
    return {rest.strip("/ ").split(":")[0]: int(number) for number, rest in found}


class World:
    """The truth of a release's dev questions, some of whose positives its qrels lack; runs, and a pool of both."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.release, self.folder = release, folder
        self.known = positives(open_release(release), "qrels")
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
            logits = {
                query: [(p, 4 * ((query, p) in self.truth) - 2 + number / rank) for rank, (p, _) in enumerate(own, 1)]
                for query, own in hits.items()
            }
            write_run(scores[-1], logits.items())
        run("builders", "pool", "select", *at, "--scores", *scores, "--out", self.folder / "pool.jsonl")
        return self.folder / "pool.jsonl"

    def grade(self, prompt: str) -> str:
        """What a model says that knows the truth: it is told texts, not ids."""
        query, passage = (prompt.split(f"<{name}>\n")[1].split(f"\n</{name}>")[0] for name in ("查询", "段落"))
        return f"最终得分：{3 if (text_id(query), text_id(passage)) in self.truth else 1}"

    def label(self, pair: dict[str, Any]) -> int:
        return int((pair["query-id"], pair["corpus-id"]) in self.truth)

    def judge(self, server: Server, who: str, project: int, error: float) -> set[Pair]:
        """Somebody judges a project whole, wrong in a share of its pairs; returns those."""
        tasks = server.tasks(project)
        drawn = draw((str(task["id"]) for task in tasks), round(error * len(tasks)), f"{who} {project}")
        wrong = {(t["data"]["query-id"], t["data"]["corpus-id"]) for t in tasks if str(t["id"]) in drawn}
        for task in tasks:
            server.judge(who, project, task["id"], self.label(task["data"]) ^ (str(task["id"]) in drawn))
        return wrong

    def review(self, server: Server, round_: Path) -> None:
        """Two reviewers without errors judge their share of every package that is to be reviewed."""
        annotate("review", round_, "--reviewers", BEN, CARL)
        for name, project in upload(server, round_).items():
            self.judge(server, name.split("/")[1], project, 0)
        annotate("import", round_, "--from-server")


def play(release: Path, server: Server, folder: Path, size: int, reviewed: int) -> None:
    """A round over the release's dev questions in two packages of ``size`` pairs, the second of which may be smaller.

    Anna errs in 30 % of the first, which is sent back, and in 2.5 % of the second, which is accepted.
    """
    world, round_ = World(release, folder), folder / "round"
    words = ("--pool", world.pool(), "--release", release, "--package-size", size, "--review-pairs", reviewed)
    annotate("export", round_, *words)
    pairs = [package.pairs for package in open_round(round_).packages]
    assert len(pairs) == 2 and pairs[0] == size
    # A model judges first, and is right; nobody sees it, and until people have judged there is nothing to compare.
    with chat(world.grade) as judge_server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENAI_BASE_URL", judge_server.url)
        assert f"{sum(pairs)} pairs judged" in annotate("prefill", round_, "--model", "judge-7b").stdout
    assert all(row["state"] == "open" for row in check(round_)["packages"])
    projects = upload(server, round_)
    world.judge(server, ANNA, projects["label-studio/dev-001"], 0.3)
    overlooked = world.judge(server, ANNA, projects["label-studio/dev-002"], 0.025)
    annotate("import", round_, "--from-server")
    world.review(server, round_)
    first = check(round_)
    assert [row["state"] for row in first["packages"]] == ["sent back as version 2", "accepted"]
    assert 0 < first["fleiss"]["kappa"] < 1
    # She revises it; the reviewers draw anew.
    (revised,) = upload(server, round_).items()
    assert revised[0] == "label-studio/dev-001.v2"
    world.judge(server, ANNA, revised[1], 0)
    annotate("import", round_, "--from-server")
    world.review(server, round_)
    assert [row["state"] for row in check(round_)["packages"]] == ["accepted", "accepted"]
    # What a reviewer has seen of her few errors is decided by somebody else, on a sheet.
    said = judgments(round_)
    seen = {(each["query-id"], each["corpus-id"]) for each in said if each["kind"] == "review"}
    annotate("adjudicate", round_)
    for sheet in (round_ / "adjudication").glob("*.csv"):
        judge(round_, "dora", sheet, world.label)
    settled = settled_labels(round_, open_round(round_))
    assert len(settled.labels) == sum(pairs) and not settled.undecided
    wrong = {pair for pair, label in settled.labels.items() if label != (pair in world.truth)}
    assert wrong == overlooked - seen
    # Nothing that was said is lost: all pairs, the first package again, two reviewers of three packages.
    kinds = [each["kind"] for each in said]
    assert [kinds.count(kind) for kind in ("annotation", "review", "model")] == [
        sum(pairs) + size,
        6 * reviewed,
        sum(pairs),
    ]
    found = json.loads(annotate("compare", round_, "--model", "judge-7b", "--format", "json").stdout)
    assert found["pairs"] == sum(pairs) and found["kappa"] == (1 if not wrong else pytest.approx(0.97, abs=0.03))
    # New qrels: of what was judged, the truth, but for what no reviewer saw; the rest as it was.
    annotate("merge", round_, "--release", release, "--out", folder / "release")
    merged = open_release(folder / "release")
    after, before = (positives(merged, config) for config in ("qrels", "qrels-before"))
    assert before == world.known and after - set(settled.labels) == before - set(settled.labels)
    assert (after ^ world.truth) & set(settled.labels) == wrong
    # Figure 2: judged by the new qrels, the same run is better.
    figure = {row: figure_2(folder / "release", row, folder / "runs") for row in ("bm25-before", "bm25-after")}
    assert figure["bm25-after"] > figure["bm25-before"]
    assert {path.suffix for path in (folder / "runs").glob("figure2.dev.*")} == {".png", ".svg"}


def figure_2(release: Path, row: str, out: Path) -> float:
    """MRR@10 of one of the figure's bars."""
    words = ("--figure", 2, "--row", row, "--one-process", "--format", "json", "--out", out)
    report = json.loads(run("baselines", "reproduce", "--quiet", "--release", release, *words).stdout)
    return next(float(each["ours"]) for each in report["rows"] if each["metric"] == "MRR@10")


def positives(release: Release, config: str) -> set[Pair]:
    rows = release.table(config, "dev").to_pylist()
    return {(row["query-id"], row["corpus-id"]) for row in rows if row["score"] > 0}
