"""``export`` of a run as official predictions: content, figures and errors."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5

from builders.store.runs import write_run

DEV, TEST = ([md5(question) for question in QUESTIONS[split]] for split in ("dev", "test"))
PASSAGES = [md5(text) for text in TEXTS]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """A release with two dev questions, answered by passages 4 and 5, and one test question without labels."""
    return make_release(tmp_path / "release")


def export(release: Path, given: Path, code: int | None = 0) -> Done:
    out = release.parent / "out"
    words = ("--release", release, "--format", "official", "--runs-only", "--run", given, "--out", out)
    return run("builders", "export", *words, code=code)


def written(release: Path, rankings: dict[str, list[str]], code: int | None = 0) -> Done:
    hits = {query: [(passage, -float(rank)) for rank, passage in enumerate(found)] for query, found in rankings.items()}
    write_run(release.parent / "a.run.gz", hits.items())
    return export(release, release.parent / "a.run.gz", code)


def read(release: Path, name: str = "a") -> Any:
    return json.loads((release.parent / "out" / "predictions" / f"{name}.json").read_text(encoding="utf-8"))


def test_the_predictions_are_in_the_releases_order_and_have_the_official_figures_of_their_run(release: Path) -> None:
    written(release, {DEV[1]: [PASSAGES[5]], DEV[0]: [PASSAGES[0], PASSAGES[4]]})
    assert list(read(release)) == DEV
    files = [release.parent / name for name in ("a.run.gz", "out/predictions/a.json")]
    words = ("--quiet", "--release", release, "--format", "json", *files)
    of_run, of_predictions = json.loads(run("baselines", "evaluate", *words).stdout)
    assert of_run["official"] == {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
    assert of_predictions["official"] == of_run["official"]
    written(release, {TEST[0]: [PASSAGES[3], PASSAGES[0]]})  # a split without labels
    assert read(release) == {TEST[0]: [PASSAGES[3], PASSAGES[0]]}


def test_queries_that_a_list_of_predictions_lacks_are_named_and_count_0(release: Path) -> None:
    given = release.parent / "given.json"
    given.write_text(json.dumps({DEV[1]: [PASSAGES[5], *PASSAGES], DEV[0]: []}), encoding="utf-8")
    done = export(release, given)
    assert f"lacks 1 query ({DEV[0]}) of the 2 in dev" in done.stderr and "counts 0" in done.stderr
    assert read(release, "given") == {DEV[1]: [PASSAGES[5], *PASSAGES[:5]]}  # a passage counts once


@pytest.mark.parametrize(
    ("rankings", "said"),
    [
        ({DEV[0]: [PASSAGES[0]], DEV[1]: [PASSAGES[0]], TEST[0]: [PASSAGES[0]]}, f"has 1 query ({TEST[0]}) that dev"),
        ({DEV[0]: [PASSAGES[0], "0" * 32]}, f"lacks, such as {'0' * 32}"),
    ],
)
def test_what_the_official_script_would_miscount_is_refused_and_nothing_is_written(
    release: Path, rankings: dict[str, list[str]], said: str
) -> None:
    assert said in written(release, rankings, code=1).error
    assert not (release.parent / "out").exists()
