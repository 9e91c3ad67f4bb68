"""A whole round, from the pool to new qrels, by annotators whose errors are known, in exports of Label Studio."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from annotating import ANNA, BEN, CARL, annotate, check, export_of, judge, judgments, wrong_in
from chat_server import chat
from commands import run

from builders.annotate.relabel import settled_labels
from builders.annotate.rounds import open_round
from builders.store.layout import text_id
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

Pair = tuple[str, str]


class World:
    """The truth of a release's dev questions, some of whose positives its qrels lack; runs, and a pool of both."""

    def __init__(self, release: Path, folder: Path) -> None:
        self.release, self.folder = release, folder
        self.known = positives(open_release(release), "qrels")
        self.truth = set(self.known)

    def pool(self) -> Path:
        """Two runs pooled, and judged by an ensemble of two re-rankers that know more than the qrels."""
        runs = []
        for k1 in (1.2, 0.9):
            runs.append(self.folder / f"k1-{k1}.dev.run")
            words = ("--split", "dev", "--k1", k1, "--out", runs[-1])
            run("baselines", "bm25", "--quiet", "--release", self.release, *words)
        at = ("--quiet", "--release", self.release, "--split", "dev", "--runs", *runs)
        union = self.folder / "candidates.run"
        run("builders", "annotate", "pool", "candidates", *at, "--out", union)
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
        run("builders", "annotate", "pool", "select", *at, "--scores", *scores, "--out", self.folder / "pool.jsonl")
        return self.folder / "pool.jsonl"

    def grade(self, prompt: str) -> str:
        """Answer as a model that knows the truth: it is told texts, not ids."""
        query, passage = (prompt.split(f"<{name}>\n")[1].split(f"\n</{name}>")[0] for name in ("查询", "段落"))
        return f"最终得分：{3 if (text_id(query), text_id(passage)) in self.truth else 1}"

    def label(self, pair: dict[str, Any]) -> int:
        return int((pair["query-id"], pair["corpus-id"]) in self.truth)

    def judge(self, round_: Path, who: str, tasks: str, error: float) -> set[Pair]:
        """Somebody judges a file of tasks whole, wrong in a share of its pairs; returns those."""
        rows = [row["data"] for row in json.loads((round_ / tasks).read_bytes())]
        label = wrong_in(round(error * len(rows)), rows, f"{who} {tasks}", self.label)
        annotate("import", round_, export_of(round_ / tasks, who, label, self.folder / "export.json"))
        return {(row["query-id"], row["corpus-id"]) for row in rows if label(row) != self.label(row)}

    def review(self, round_: Path, packages: list[str]) -> None:
        """Two reviewers without errors judge their share of every package that is to be reviewed."""
        annotate("review", round_, "--reviewers", BEN, CARL)
        for who in (BEN, CARL):
            for package in packages:
                self.judge(round_, who, f"reviews/{who}/{package}.json", 0)


def play(release: Path, folder: Path, size: int, reviewed: int) -> None:
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
    world.judge(round_, ANNA, "label-studio/dev-001.json", 0.3)
    overlooked = world.judge(round_, ANNA, "label-studio/dev-002.json", 0.025)
    world.review(round_, ["dev-001", "dev-002"])
    first = check(round_)
    assert [row["state"] for row in first["packages"]] == ["sent back as version 2", "accepted"]
    assert 0 < first["fleiss"]["kappa"] < 1
    # She revises it; the reviewers draw anew.
    world.judge(round_, ANNA, "label-studio/dev-001.v2.json", 0)
    world.review(round_, ["dev-001.v2"])
    assert [row["state"] for row in check(round_)["packages"]] == ["accepted", "accepted"]
    # What a reviewer has seen of her few errors is decided by somebody else, on a sheet.
    said = judgments(round_)
    seen = {(each["query-id"], each["corpus-id"]) for each in said if each["kind"] == "review"}
    annotate("adjudicate", round_)
    for sheet in (round_ / "adjudication").glob("*.csv"):
        judge(round_, "dora", sheet, world.label)
    settled, undecided = settled_labels(round_, open_round(round_))
    assert len(settled) == sum(pairs) and not undecided
    wrong = {pair for pair, label in settled.items() if label != (pair in world.truth)}
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
    assert before == world.known and after - set(settled) == before - set(settled)
    assert (after ^ world.truth) & set(settled) == wrong
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


@pytest.mark.parametrize(("rows", "size", "reviewed"), [("demo_release", 250, 100), ("sample_release", 40, 16)])
def test_a_round_from_the_pool_to_new_qrels(
    rows: str, size: int, reviewed: int, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    play(request.getfixturevalue(rows), tmp_path, size, reviewed)
