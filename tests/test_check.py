"""``check`` finds planted faults and nothing in an intact release. Its figures equal manual counts."""

import itertools
import json
import math
import os
import resource
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
from commands import run
from hypothesis import given
from hypothesis import strategies as st
from releases import QUESTIONS, TEXTS, make_release, md5, passage
from whole_release import Rows, edit_stats, make_whole

from builders.check.check_release import check_release
from builders.check.findings import LONGEST_PASSAGE, TESTS
from builders.check.release_report import CheckedRelease, run_check
from builders.store.draft import check_release_output
from builders.store.reader import open_release
from builders.store.table3 import LENGTH_EDGES, POSITIVES_EDGES, LengthCounter, table3_text

# The number of faults by test and by config and split.
Faults = dict[str, dict[str, int]]


def count_faults(report: CheckedRelease) -> Faults:
    """Return the faults of a report. Each must have the level of its test."""
    faults: Faults = {}
    for finding in report.findings:
        if finding.test not in ("split-sizes", "not-tested"):
            assert finding.level == TESTS[finding.test][0]
            faults.setdefault(finding.test, {})[finding.where] = finding.count
    return faults


def test_a_whole_release_has_no_error(tmp_path: Path) -> None:
    report = run_check(open_release(make_whole(tmp_path / "release", verb="official")))
    assert count_faults(report) == {}
    assert not report.of("not-tested")
    sizes = report.of("split-sizes")  # for official data, sizes should equal the paper's
    assert {finding.level for finding in sizes} == {"warning"}
    assert "4 queries; the paper has 86,395" in [finding.what for finding in sizes]


def add_text(rows: Rows, text: str) -> None:
    """Add a passage to the corpus."""
    rows["corpus", "corpus"].append({"_id": md5(text), "title": "", "text": text})


def add_texts(texts: list[str]) -> Callable[[Rows], None]:
    """Return a change that adds passages to the corpus."""

    def change(rows: Rows) -> None:
        for text in texts:
            add_text(rows, text)

    return change


def repeat_row(config: str, split: str) -> Callable[[Rows], None]:
    """Return a change that repeats the first row of a split."""
    return lambda rows: rows[config, split].append(rows[config, split][0])


def keep_removed_question(rows: Rows) -> None:
    """Remove a training question as similar that is still a training question."""
    question = rows["queries", "train"][1]
    rows["train-similar", "train"][0].update(query_id=question["_id"], query=question["text"])


def use_positives_as_negatives(rows: Rows) -> None:
    row = rows["train", "train"][0]
    row["negative_passages"] = row["positive_passages"]


def train_on_dev_question(rows: Rows) -> None:
    row = rows["dev", "dev"][1]
    rows["queries", "train"].append({"_id": row["query_id"], "text": row["query"]})
    rows["train", "train"].append({**row, "positive_passages": row["positive_passages"]})
    rows["qrels", "train"].append(rows["qrels", "dev"][1])


Change = Callable[[Rows], Any]
CASES: dict[str, tuple[Change, Faults]] = {
    "a passage that is judged is missing": (
        lambda rows: rows["corpus", "corpus"].pop(4),
        {"dangling-ids": {"crosslingual/dev": 1, "dev/dev": 1, "qrels/dev": 1, "resttest-bucket1/extrapolation": 1}},
    ),
    "an English query of no Chinese one": (
        lambda rows: rows["crosslingual-queries", "dev"][0].update(zh_id=md5("x")),
        {"dangling-ids": {"crosslingual-queries/dev": 1}},
    ),
    "a perturbed query of no query": (
        lambda rows: rows["stress-swap-queries", "dev"][0].update(original_id=md5("x")),
        {"dangling-ids": {"stress-swap-queries/dev": 1}},
    ),
    "a perturbed query that is a query of train": (
        lambda rows: rows["stress-swap-queries", "dev"][0].update(_id=md5("饺子怎么煮"), text="饺子怎么煮"),
        {"perturbed-queries": {"stress-swap-queries/dev": 1}},
    ),
    "a query with two perturbed queries": (
        lambda rows: rows["stress-swap-queries", "dev"].append(
            {"_id": md5("铁高票提前"), "text": "铁高票提前", "original_id": md5("高铁票提前几天买")}
        ),
        {"perturbed-queries": {"stress-swap-queries/dev": 1}},
    ),
    "a perturbed query twice": (
        repeat_row("stress-swap-queries", "dev"),
        {"duplicate-texts": {"stress-swap-queries/dev": 1}, "perturbed-queries": {"stress-swap-queries/dev": 1}},
    ),
    "two Chinese queries with one translation, which is no fault": (lambda rows: translate_again(rows), {}),
    "a query without a positive": (
        lambda rows: rows["ccovid-qrels", "test"][0].update(score=0),
        {"queries-without-positives": {"ccovid-qrels/test": 1}},
    ),
    "an id that is no MD5": (
        lambda rows: rows["dev", "dev"][1]["negative_passages"].append({**passage("新"), "docid": "d41d8cd9"}),
        {"dangling-ids": {"dev/dev": 1}, "ids-not-md5": {"dev/dev": 1}},
    ),
    "one id for two texts": (
        lambda rows: rows["corpus", "corpus"].append({"_id": md5(TEXTS[0]), "title": "", "text": "别的"}),
        {"ids-not-md5": {"corpus/corpus": 1}, "one-id-two-texts": {"corpus/corpus": 1}},
    ),
    "a text twice": (repeat_row("corpus", "corpus"), {"duplicate-texts": {"corpus/corpus": 1}}),
    "a judgment twice": (repeat_row("cmedqa-qrels", "test"), {"duplicate-judgments": {"cmedqa-qrels/test": 1}}),
    "texts without a visible character": (
        add_texts(["", " \u3000\n", "\u200b"]),
        {"empty-texts": {"corpus/corpus": 3}},
    ),
    "an absurdly long text": (
        add_texts(["长" * LONGEST_PASSAGE, "长" * (LONGEST_PASSAGE + 1)]),
        {"long-texts": {"corpus/corpus": 1}},
    ),
    "control characters": (
        add_texts(["文字\0文字", "文字\x0b文字", "文字\x7f文字", "文字\x85文字"]),
        {"control-characters": {"corpus/corpus": 4}},
    ),
    "a trace of a wrong decoding": (add_texts(["文\ufffd字"]), {"replacement-characters": {"corpus/corpus": 1}}),
    "separators, tabs and line ends, which are text": (
        add_texts([f"文{character}字" for character in "\t\n\r\u2028\u2029\u00a0\u3000😀\ue000"]),
        {},
    ),
    "a train query that is a dev query": (train_on_dev_question, {"shared-queries": {"queries": 1}}),
    "a removed training query that is still one": (
        keep_removed_question,
        {"similar-queries": {"train-similar/train": 1}},
    ),
    "a query that is duplicated and another": (
        lambda rows: rows["others", "dev"].append(rows["duplicated", "dev"][0]),
        {"similar-queries": {"duplicated/dev": 1}},
    ),
    "joined rows without a judgment's passage": (
        lambda rows: rows["dev", "dev"][1].update(positive_passages=[]),
        {"joined-rows": {"dev/dev": 1}},
    ),
    "a negative that is a positive": (use_positives_as_negatives, {"joined-rows": {"train/train": 1}}),
    "a query without a joined row": (
        lambda rows: rows["queries", "test"].append({"_id": md5("新问题"), "text": "新问题"}),
        {"joined-rows": {"test/test": 1}},
    ),
}


def translate_again(rows: Rows) -> None:
    """Give the second dev question the translation of the first."""
    chinese_row = rows["dev", "dev"][1]
    english = rows["crosslingual-queries", "dev"][0]["text"]
    query_id = md5(f"{english}\n{chinese_row['query_id']}")
    rows["crosslingual-queries", "dev"].append({"_id": query_id, "text": english, "zh_id": chinese_row["query_id"]})
    english_columns = {"query_id": query_id, "query": english, "query_zh": chinese_row["query"]}
    rows["crosslingual", "dev"].append(chinese_row | english_columns)


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found_and_nothing_else(tmp_path: Path, name: str) -> None:
    change, expected = CASES[name]
    report = run_check(open_release(make_whole(tmp_path / "release", change)))
    assert count_faults(report) == expected
    assert bool(report.errors) == any(TESTS[test][0] == "error" for test in expected)


def test_figures_that_are_not_those_of_the_rows(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release")
    edit_stats(release, lambda stats: stats["table3"]["dev"].update(queries=3))
    (finding,) = run_check(open_release(release)).of("stats")
    assert (finding.where, finding.examples) == ("stats.json: table3.dev", ["queries 3 (the rows: 2)"])


def test_a_release_without_a_corpus_says_what_was_not_tested(tmp_path: Path) -> None:
    def without(rows: Rows) -> None:
        for config in ("corpus", "cmedqa-corpus", "ccovid-corpus"):
            del rows[config, "corpus"]

    report = run_check(open_release(make_whole(tmp_path / "release", without)))
    assert not report.errors
    assert "dangling-ids: needs corpus, which was not read" in [finding.what for finding in report.of("not-tested")]


def damage_shards(release: Path, config: str) -> None:
    """Append a byte to every shard of a config."""
    for shard in (release / config).iterdir():
        shard.write_bytes(shard.read_bytes() + b"x")


@pytest.mark.parametrize("config", ["qrels", "others", "cmedqa-corpus"])
def test_a_damaged_config_gives_no_errors_of_other_configs(whole_copy: Path, config: str) -> None:
    damage_shards(whole_copy, config)
    report = run_check(open_release(whole_copy))
    assert {finding.test for finding in report.errors} == {"manifest"}
    untested = [finding.what for finding in report.of("not-tested")]
    assert f"stats: needs the rows of all configs; not read: {config}" in untested
    assert f"configs with a wrong file: {config}" in untested


def test_a_damaged_file_outside_of_the_configs_is_not_named_as_a_config(whole_copy: Path) -> None:
    damage_shards(whole_copy, "others")
    (whole_copy / "README.md").write_text("damaged")
    report = run_check(open_release(whole_copy))
    assert {finding.where for finding in report.of("manifest")} == {"README.md", "others/dev-00000-of-00001.parquet"}
    (finding,) = [finding for finding in report.of("not-tested") if finding.what.startswith("configs")]
    assert (finding.what, finding.count) == ("configs with a wrong file: others", 1)


def test_answers_are_not_compared_with_damaged_judgments(sample_release: Path, tmp_path: Path) -> None:
    release = Path(shutil.copytree(sample_release, tmp_path / "release"))
    damage_shards(release, "qrels")
    report = run_check(open_release(release))
    assert {finding.test for finding in report.errors} == {"manifest"}
    untested = {(finding.where, finding.what) for finding in report.of("not-tested")}
    assert ("answers/train", "answers: needs qrels/train, which was not read") in untested


def test_an_unlisted_file_of_a_release_is_never_deleted(whole_copy: Path) -> None:
    note = whole_copy / "notes" / "mine.txt"
    note.parent.mkdir()
    note.write_text("mine")
    done = run("builders", "add", "stress", "--release", whole_copy, "--kind", "swap", "--out", whole_copy, code=1)
    assert f"{whole_copy}: has a file that the release does not list, notes/mine.txt; move the file" in done.stderr
    assert note.read_text() == "mine"


def test_a_damaged_release_can_be_replaced(whole_copy: Path) -> None:
    (whole_copy / "manifest.json").write_text("{")
    check_release_output(whole_copy)
    make_release(whole_copy)
    assert not run_check(open_release(whole_copy)).errors


def test_the_command_prints_every_test_and_exits_by_what_it_found(whole_copy: Path, tmp_path: Path) -> None:
    verb = ("builders", "check", "--release")
    good = run(*verb, whole_copy)
    assert good.stderr == ""
    test_lines = good.stdout.split("\n\n")[0].splitlines()
    assert [line.split()[1] for line in test_lines if not line.startswith(" ")] == list(TESTS)
    make_whole(whole_copy, CASES["a text twice"][0])
    report = json.loads(run(*verb, whole_copy, "--format", "json", code=1).stdout)
    assert [test["test"] for test in report["tests"]] == list(TESTS)
    (duplicates,) = [test for test in report["tests"] if test["test"] == "duplicate-texts"]
    assert (duplicates["level"], duplicates["count"], report["errors"]) == ("error", 1, 1)
    assert duplicates["findings"][0]["examples"] == [md5(TEXTS[0])]
    assert "warning  duplicate-texts" in run(*verb, whole_copy, "--accept", "duplicate-texts").stdout
    run(*verb, whole_copy, "--accept", "manifest", code=2)
    assert run(*verb, tmp_path / "nowhere", code=1).error


def test_a_call_returns_tables_and_whether_the_release_failed(whole_copy: Path) -> None:
    make_whole(whole_copy, CASES["a text twice"][0])
    report = check_release(whole_copy)
    assert report.failed and not check_release(whole_copy, accept=["duplicate-texts"]).failed
    tests = report.to_pandas().set_index("test")
    assert list(tests.index) == list(TESTS)
    assert tests.loc["duplicate-texts", ["result", "count"]].to_list() == ["error", 1]
    tables = {table.title: table for table in report.all_tables()}
    assert tables["findings"].rows[0][:3] == ["duplicate-texts", "error", "corpus/corpus"]
    assert tables["Table 3"].rows[0][3:5] == [2, 2000]  # queries of dev: the release's, the paper's
    assert tables["collections"].rows[0][1:3] == [7, 8096668]


@pytest.mark.parametrize(("form", "line"), [("markdown", "| stats | ok | values of"), ("csv", "stats,ok,values of")])
def test_the_command_prints_tables_for_other_tools(whole_release: Path, form: str, line: str) -> None:
    assert line in run("builders", "check", "--release", whole_release, "--format", form).stdout


# Files: the manifest names every file and nothing else.

SHARD = "dev/dev-00000-of-00001.parquet"


@pytest.mark.usefixtures("own_cache")
def test_every_byte_is_read_again_whatever_is_known_of_a_file(whole_copy: Path) -> None:
    """Simulate a failing disk that changes a file's content, but neither its inode nor its times."""
    shard = whole_copy / SHARD
    os.utime(shard, (1, 1))
    assert not count_faults(run_check(open_release(whole_copy)))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    os.utime(shard, (1, 1))
    for message in ("has the SHA-256", "is listed in the manifest but missing"):
        report = run_check(open_release(whole_copy))
        assert count_faults(report) == {"manifest": {SHARD: 1}}
        assert message in report.of("manifest")[0].what
        assert "dev" in report.of("not-tested")[-1].what
        shard.unlink(missing_ok=True)  # the second report is about a missing shard


def mean_length(texts: list[str]) -> float:
    """Return the mean number of characters, rounded as in the figures."""
    return round(mean(map(len, texts)), 4)


def test_the_figures_are_those_of_the_rows(whole_release: Path) -> None:
    stats = run_check(open_release(whole_release)).figures.stats
    names = ("queries", "positive_passages", "passages_per_query", "chars_per_query", "chars_per_passage")
    figures_by_split = {}
    for split, figures in stats["table3"].items():
        figures_by_split[split] = tuple(figures[name] for name in names)
    assert figures_by_split == {
        "train": (4, 4, 1.0, mean_length(QUESTIONS["train"]), mean_length(TEXTS[:4])),
        "dev": (2, 2, 1.0, mean_length(QUESTIONS["dev"]), mean_length(TEXTS[4:])),
        "test": (1, None, None, 6.0, None),
        "cmedqa": (1, 2, 2.0, 6.0, 6.5),
        "ccovid": (1, 1, 1.0, 8.0, 7.0),
    }
    # The passages of cMedQA have 9, 8 and 5 characters.
    assert stats["collections"]["cmedqa-corpus"] == {
        "passages": 3,
        "mean_chars": round((9 + 8 + 5) / 3, 4),
        "median_chars": 8,
        "min_chars": 5,
        "max_chars": 9,
        "histogram": [{"from": 0, "to": 31, "count": 3}],
    }
    assert stats["english"] == {
        "train": {"queries": 1, "words_per_query": 5.0},
        "dev": {"queries": 1, "words_per_query": 8.0},
    }
    assert stats["positives_per_query"]["cmedqa"] == [{"from": 2, "to": 2, "count": 1}]


def test_the_command_prints_ours_beside_the_papers(whole_copy: Path, tmp_path: Path) -> None:
    edit_stats(whole_copy, lambda stats: stats["table3"]["dev"].update(queries=77))
    result = run("builders", "check", "--release", whole_copy, "--figures", tmp_path / "figures", code=1)
    lines = {line.split("  ")[0]: line.split() for line in result.stdout.splitlines()}
    assert lines["queries"][1:] == ["4", "86,395", "2", "2,000", "1", "4,000", "1", "3,999", "1", "949"]
    assert lines["positive passages"][2:] == ["4", "222,395", "2", "9,863", "-", "19,601", "2", "7,527", "1", "964"]
    assert "corpus: 6 passages" in result.stdout and "8,096,668" in result.stdout
    assert "English dev: 1 queries of 8.00 words (paper: 2,000 of 6.55)" in result.stdout
    assert "(the paper's median is above its mean: the two numbers look swapped)" in result.stdout
    assert "(DuReader-retrieval in the paper's Table 3: 92,395 queries and 8,096,668 passages)" in result.stdout
    names = sorted(path.name for path in (tmp_path / "figures").iterdir())
    assert names == ["passage-length.png", "positives-per-query.png", "stats.json"]
    for name in names[:2]:
        assert (tmp_path / "figures" / name).read_bytes().startswith(b"\x89PNG\r\n")
    result = run("builders", "check", "--release", whole_copy, "--format", "json", code=1)
    printed = json.loads(result.stdout)
    assert printed["release"] == json.loads((tmp_path / "figures" / "stats.json").read_text(encoding="utf-8"))
    assert printed["paper"]["table3"]["cmedqa"]["queries"] == 3999


@pytest.mark.parametrize(
    ("lengths", "line"),
    [
        ([], "corpus: 0 passages; characters: mean -, median -, - to -"),
        ([3, 4], "corpus: 2 passages; characters: mean 3.50, median 3, 3 to 4"),
    ],
)
def test_table_3_ends_with_the_lengths_of_the_passages(lengths: list[int], line: str) -> None:
    summary = LengthCounter(np.array(lengths, np.int64)).summary()
    assert table3_text({"table3": {}, "collections": {"corpus": summary}}).splitlines()[-1] == line


LENGTHS = st.lists(st.integers(0, 6000), min_size=1, max_size=60)


@given(LENGTHS, st.sampled_from([LENGTH_EDGES, POSITIVES_EDGES]))
def test_a_histogram_holds_every_value_once(values: list[int], edges: tuple[int, ...]) -> None:
    counter = LengthCounter()
    counter.add(np.array(values))
    bars = counter.histogram(edges)
    for bar in bars:
        longest = math.inf if bar["to"] is None else bar["to"]
        values_in_bar = [value for value in values if bar["from"] <= value <= longest]
        assert bar["count"] == len(values_in_bar)
    assert sum(bar["count"] for bar in bars) == len(values)
    assert bars[0]["count"] and bars[-1]["count"]
    assert all(first["to"] + 1 == second["from"] for first, second in itertools.pairwise(bars))


def test_a_full_disk_for_tables_is_named(whole_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    temporary_folder = tmp_path / "tmp"
    temporary_folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary_folder))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        error = run("builders", "check", "--release", whole_release, code=1).error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.startswith(f"{temporary_folder}") and "file too large; " in error
    assert not list(temporary_folder.iterdir())
