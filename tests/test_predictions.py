"""The verb ``predictions``: what the file holds, that it measures as its run, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5

from builders.store.runs import write_run

DEV, TEST = ([md5(question) for question in QUESTIONS[split]] for split in ("dev", "test"))
PASSAGES = [md5(text) for text in TEXTS]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """Two questions of dev, answered by passages 4 and 5; one of test, without labels."""
    return make_release(tmp_path / "release")


def written(release: Path, rankings: dict[str, list[str]], *options: object, code: int | None = 0) -> Done:
    """``predictions`` of a TREC run of these lists to out.json, both beside the release."""
    hits = {query: [(passage, -float(rank)) for rank, passage in enumerate(found)] for query, found in rankings.items()}
    write_run(release.parent / "a.run.gz", hits.items())
    words = ("--quiet", "--release", release, "--out", release.parent / "out.json", release.parent / "a.run.gz")
    return run("baselines", "predictions", *words, *options, code=code)


def read(release: Path) -> dict[str, list[str]]:
    content: dict[str, list[str]] = json.loads((release.parent / "out.json").read_text(encoding="utf-8"))
    return content


def test_a_split_without_labels_gets_its_queries_with_their_passages_best_first(release: Path) -> None:
    assert written(release, {TEST[0]: [PASSAGES[3], PASSAGES[0]]}, "--split", "test").stdout == ""
    assert read(release) == {TEST[0]: [PASSAGES[3], PASSAGES[0]]}


def test_queries_are_in_the_releases_order_and_lists_are_cut(release: Path) -> None:
    written(release, {query: PASSAGES for query in reversed(DEV)}, "--top-k", 2)
    assert list(read(release).items()) == [(query, PASSAGES[:2]) for query in DEV]


def test_the_predictions_have_the_official_figures_of_their_run(release: Path) -> None:
    written(release, {DEV[0]: [PASSAGES[0], PASSAGES[4]], DEV[1]: [PASSAGES[5]]})
    files = [release.parent / name for name in ("a.run.gz", "out.json")]
    words = ("--quiet", "--release", release, "--format", "json", *files)
    of_run, of_predictions = json.loads(run("baselines", "evaluate", *words).stdout)
    assert of_run["official"] == {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
    assert of_predictions["official"] == of_run["official"]


def test_queries_that_the_run_lacks_are_named_and_count_0(release: Path) -> None:
    done = written(release, {DEV[1]: [PASSAGES[5]]})
    assert f"lacks 1 query ({DEV[0]}) of 2 of dev" in done.stderr and "count 0" in done.stderr
    assert read(release) == {DEV[1]: [PASSAGES[5]]}


def test_predictions_can_be_checked_and_cut_again(release: Path) -> None:
    given = release.parent / "given.json"
    given.write_text(json.dumps({DEV[0]: PASSAGES, DEV[1]: []}), encoding="utf-8")
    words = ("--release", release, "--out", release.parent / "out.json", "--top-k", 1, given)
    assert f"lacks 1 query ({DEV[1]})" in run("baselines", "predictions", *words).stderr
    assert read(release) == {DEV[0]: PASSAGES[:1]}


@pytest.mark.parametrize(
    ("rankings", "options", "said"),
    [
        ({DEV[0]: [PASSAGES[0]]}, ("--split", "test"), f"has 1 query ({DEV[0]}) that test"),
        ({DEV[0]: [PASSAGES[0], "0" * 32]}, (), f"lacks, such as {'0' * 32}"),
        ({DEV[0]: [PASSAGES[0], PASSAGES[1], PASSAGES[0]]}, (), f"{DEV[0]}' has the passage '{PASSAGES[0]}' twice"),
        ({DEV[0]: [PASSAGES[0]]}, ("--top-k", 51), "--top-k 51: expected 50 at most"),
        ({DEV[0]: [PASSAGES[0]]}, ("--set", "cmedqa"), "has no config 'cmedqa-queries'"),
    ],
)
def test_what_the_official_script_would_miscount_is_refused_and_nothing_is_written(
    release: Path, rankings: dict[str, list[str]], options: tuple[object, ...], said: str
) -> None:
    error = written(release, rankings, *options, code=1).error
    assert said in error
    assert not (release.parent / "out.json").exists()
