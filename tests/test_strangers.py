"""Releases of strangers: a wrong value of manifest.json or stats.json is one line that names file, field and value."""

from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import raw_row, write_rows
from whole_release import edit_builds, edit_everything, edit_stats, make_whole

from builders.core.errors import InputError
from builders.release.answer_records import rule_of
from builders.store.manifest import read_stats
from builders.store.reader import open_release


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("threshold", "1e99999999", "threshold: expected a number such as 0.5 or 1/2, found '1e99999999'"),
        ("threshold", "9" * 100, "threshold: expected a number such as 0.5 or 1/2"),
        ("threshold", "x", "threshold: expected a number such as 0.5 or 1/2, found 'x'"),
        ("threshold", "1/0", "threshold: expected a number such as 0.5 or 1/2, found '1/0'"),
        ("threshold", None, "threshold: expected `str`, found null"),
        ("threshold", 2, "threshold: expected `str`, found 2"),
        ("threshold", "0", "threshold: expected a number above 0 and at most 1"),
        ("threshold", "-5", "threshold: expected a number above 0 and at most 1"),
        ("unit", "syllable", "unit: expected one of char, word, found 'syllable'"),
        ("segmenter", "spacy 3", "segmenter: expected rjieba or jieba and a version, found 'spacy 3'"),
    ],
)
@pytest.mark.parametrize("verb", ["answers", "release"])
def test_options_of_a_build_that_are_used_again_are_validated(
    whole_copy: Path, verb: str, option: str, value: Any, message: str
) -> None:
    earlier = {"verb": "squad", "options": {"threshold": "x"}, "sources": []}  # not the option of span-F1
    edit_builds(whole_copy, [earlier, {"verb": verb, "options": {option: value}, "sources": []}])
    with pytest.raises(InputError) as error:
        open_release(whole_copy)
    assert str(error.value).startswith(f"{whole_copy / 'manifest.json'}: builds[1].options.{message}")


def test_the_answers_of_later_releases_follow_the_last_recorded_rule(whole_copy: Path) -> None:
    first = {"verb": "release", "options": {"unit": "word", "threshold": "1/2"}, "sources": []}
    last = {"verb": "answers", "options": {"unit": "char", "threshold": "3/5"}, "sources": []}
    # A later build with another meaning of the same option
    similar = {"verb": "similar", "options": {"threshold": 9}, "sources": []}
    edit_builds(whole_copy, [first, last, similar])
    rule = rule_of(open_release(whole_copy).manifest)
    assert (rule.unit, str(rule.threshold), rule.segmenter) == ("char", "3/5", "rjieba")


@pytest.mark.parametrize("number", ["1e99999999", "9" * 5_000])
def test_a_threshold_that_would_take_hours_is_wrong_usage(tmp_path: Path, number: str) -> None:
    write_rows(tmp_path / "raw" / "search.dev.json", [raw_row(1, "问", [["答"]], ["答"])])
    words = ["--raw", tmp_path / "raw", "--out", tmp_path / "out", "--threshold", number]
    done = run("builders", "release", words, code=2)
    assert "expected a number such as 0.5 or 1/2" in done.stderr


@pytest.mark.parametrize(
    ("keys", "value", "message"),
    [
        ("table3 dev queries", "many", "table3.dev.queries: expected `int | null`, found 'many'"),
        ("table3 dev passages_per_query", -1, "table3.dev.passages_per_query: expected `float` >= 0.0, found -1"),
        ("collections corpus", {}, "collections.corpus: lacks passages"),
        ("collections a|b", {}, "collections: expected a name of at most 100 ASCII letters, digits and signs"),
        ("similar", None, "similar: expected `object`, found null"),
        ("similar paper share", 2, "similar.paper.share: expected `float` <= 1.0, found 2"),
        ("relabelled dev per_query_before", "x", "relabelled.dev.per_query_before: expected `float`, found 'x'"),
        ("extrapolation resttest-bucket1", 7, "extrapolation.resttest-bucket1: expected `object | array`, found 7"),
        ("samples sample-2 split", [], "samples.sample-2.split: expected `array` of length >= 1, found a list"),
        ("samples sample-2 split", ["dev", "x"], "samples.sample-2.split[1]: expected one of dev, test, train, found"),
        ("nano split", 5, "nano.split: expected `str`, found 5"),
    ],
)
def test_a_wrong_figure_names_its_field(whole_copy: Path, keys: str, value: Any, message: str) -> None:
    edit_everything(whole_copy)
    assert read_stats(whole_copy)["nano"]["hard"] == 1

    def change(stats: dict[str, Any]) -> None:
        *parents, last = keys.split(" ")
        for key in parents:
            stats = stats[key]
        stats[last] = value

    edit_stats(whole_copy, change)
    with pytest.raises(InputError) as error:
        read_stats(whole_copy)
    assert str(error.value).startswith(f"{whole_copy / 'stats.json'}: {message}")


@pytest.mark.parametrize(
    "verb", ["similar --release {} --out {}-out", "add samples --release {} --sizes 2 --out {}-out"]
)
def test_a_wrong_figure_is_one_line_of_every_verb_that_reads_the_figures(tmp_path: Path, verb: str) -> None:
    release = make_whole(tmp_path / "release")
    edit_stats(release, lambda stats: stats.update(nano={"split": "dev"}))
    done = run("builders", *verb.format(release, release).split(), code=1)
    assert f"error: {release / 'stats.json'}: nano: lacks queries" in done.stderr.splitlines()
    assert not (tmp_path / "release-out").exists()
