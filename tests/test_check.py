"""``check`` finds planted faults and nothing in an intact release. Its figures equal manual counts."""

import itertools
import json
import os
import resource
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
from releases import QUESTIONS, TEXTS, md5, passage
from whole_release import Rows, edit_stats, make_whole

from builders.check.check_release import check_release
from builders.check.findings import LONGEST_PASSAGE, TESTS
from builders.check.release_report import CheckedRelease, check
from builders.store.reader import open_release
from builders.store.table3 import LENGTH_EDGES, POSITIVES_EDGES, LengthCounter

Found = dict[str, dict[str, int]]


def found(report: CheckedRelease) -> Found:
    tests: Found = {}
    for finding in report.findings:
        if finding.test not in ("split-sizes", "not-tested"):
            assert finding.level == TESTS[finding.test][0]
            tests.setdefault(finding.test, {})[finding.where] = finding.count
    return tests


def test_a_whole_release_has_no_error(tmp_path: Path) -> None:
    report = check(open_release(make_whole(tmp_path / "release", verb="official")))
    assert found(report) == {} and not report.of("not-tested")
    sizes = report.of("split-sizes")  # for official data, sizes should equal the paper's
    assert {finding.level for finding in sizes} == {"warning"}
    assert "4 queries; the paper has 86,395" in [finding.what for finding in sizes]


def _text(rows: Rows, text: str) -> None:
    rows["corpus", "corpus"].append({"_id": md5(text), "title": "", "text": text})


def _same_train_and_dev(rows: Rows) -> None:
    row = rows["dev", "dev"][1]
    rows["queries", "train"].append({"_id": row["query_id"], "text": row["query"]})
    rows["train", "train"].append({**row, "positive_passages": row["positive_passages"]})
    rows["qrels", "train"].append(rows["qrels", "dev"][1])


Change = Callable[[Rows], Any]
CASES: dict[str, tuple[Change, Found]] = {
    "a passage that is judged is missing": (
        lambda rows: rows["corpus", "corpus"].pop(4),
        {"dangling-ids": {"crosslingual/dev": 1, "dev/dev": 1, "qrels/dev": 1, "resttest-bucket1/extrapolation": 1}},
    ),
    "an English query of no Chinese one": (
        lambda rows: rows["crosslingual-queries", "dev"][0].update(zh_id=md5("x")),
        {"dangling-ids": {"crosslingual-queries/dev": 1}},
    ),
    "two Chinese queries with one translation, which is no fault": (lambda rows: _translate_again(rows), {}),
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
    "a text twice": (
        lambda rows: rows["corpus", "corpus"].append(rows["corpus", "corpus"][0]),
        {"duplicate-texts": {"corpus/corpus": 1}},
    ),
    "a judgment twice": (
        lambda rows: rows["cmedqa-qrels", "test"].append(rows["cmedqa-qrels", "test"][0]),
        {"duplicate-judgments": {"cmedqa-qrels/test": 1}},
    ),
    "texts without a visible character": (
        lambda rows: [_text(rows, text) for text in ("", " \u3000\n", "\u200b")],
        {"empty-texts": {"corpus/corpus": 3}},
    ),
    "an absurdly long text": (
        lambda rows: [_text(rows, "长" * (LONGEST_PASSAGE + more)) for more in (0, 1)],
        {"long-texts": {"corpus/corpus": 1}},
    ),
    "control characters": (
        lambda rows: [_text(rows, f"文字{character}文字") for character in "\0\x0b\x7f\x85"],
        {"control-characters": {"corpus/corpus": 4}},
    ),
    "a trace of a wrong decoding": (
        lambda rows: _text(rows, "文\ufffd字"),
        {"replacement-characters": {"corpus/corpus": 1}},
    ),
    "separators, tabs and line ends, which are text": (
        lambda rows: [_text(rows, f"文{character}字") for character in "\t\n\r\u2028\u2029\u00a0\u3000😀\ue000"],
        {},
    ),
    "a train query that is a dev query": (_same_train_and_dev, {"shared-queries": {"queries": 1}}),
    "a removed training query that is still one": (
        lambda rows: rows["train-similar", "train"][0].update(
            query_id=rows["queries", "train"][1]["_id"], query=rows["queries", "train"][1]["text"]
        ),
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
    "a negative that is a positive": (
        lambda rows: rows["train", "train"][0].update(negative_passages=rows["train", "train"][0]["positive_passages"]),
        {"joined-rows": {"train/train": 1}},
    ),
    "a query without a joined row": (
        lambda rows: rows["queries", "test"].append({"_id": md5("新问题"), "text": "新问题"}),
        {"joined-rows": {"test/test": 1}},
    ),
}


def _translate_again(rows: Rows) -> None:
    chinese, english = rows["dev", "dev"][1], rows["crosslingual-queries", "dev"][0]["text"]
    new = md5(f"{english}\n{chinese['query_id']}")
    rows["crosslingual-queries", "dev"].append({"_id": new, "text": english, "zh_id": chinese["query_id"]})
    rows["crosslingual", "dev"].append({**chinese, "query_id": new, "query": english, "query_zh": chinese["query"]})


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found_and_nothing_else(tmp_path: Path, name: str) -> None:
    change, expected = CASES[name]
    report = check(open_release(make_whole(tmp_path / "release", change)))
    assert found(report) == expected
    assert bool(report.errors) == any(TESTS[test][0] == "error" for test in expected)


def test_figures_that_are_not_those_of_the_rows(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release")
    edit_stats(release, lambda stats: stats["table3"]["dev"].update(queries=3))
    (finding,) = check(open_release(release)).of("stats")
    assert (finding.where, finding.examples) == ("stats.json: table3.dev", ["queries 3 (the rows: 2)"])


def test_a_release_without_a_corpus_says_what_was_not_tested(tmp_path: Path) -> None:
    def without(rows: Rows) -> None:
        for config in ("corpus", "cmedqa-corpus", "ccovid-corpus"):
            del rows[config, "corpus"]

    report = check(open_release(make_whole(tmp_path / "release", without)))
    assert not report.errors
    assert "dangling-ids: needs corpus, which was not read" in [finding.what for finding in report.of("not-tested")]


def test_the_command_prints_every_test_and_exits_by_what_it_found(whole_copy: Path, tmp_path: Path) -> None:
    verb = ("builders", "check", "--release")
    good = run(*verb, whole_copy)
    assert good.stderr == ""
    tests = good.stdout.split("\n\n")[0].splitlines()
    assert [line.split()[1] for line in tests if not line.startswith(" ")] == list(TESTS)
    make_whole(whole_copy, CASES["a text twice"][0])
    report = json.loads(run(*verb, whole_copy, "--format", "json", code=1).stdout)
    assert [test["test"] for test in report["tests"]] == list(TESTS)
    (twice,) = [test for test in report["tests"] if test["test"] == "duplicate-texts"]
    assert (twice["level"], twice["count"], report["errors"]) == ("error", 1, 1)
    assert twice["findings"][0]["examples"] == [md5(TEXTS[0])]
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
    assert not found(check(open_release(whole_copy)))
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    os.utime(shard, (1, 1))
    for words in ("has the SHA-256", "is listed in the manifest but missing"):
        report = check(open_release(whole_copy))
        assert found(report) == {"manifest": {SHARD: 1}}
        assert words in report.of("manifest")[0].what and "dev" in report.of("not-tested")[-1].what
        shard.unlink(missing_ok=True)


def test_the_figures_are_those_of_the_rows(whole_release: Path) -> None:
    stats = check(open_release(whole_release)).figures.stats
    names = ("queries", "positive_passages", "passages_per_query", "chars_per_query", "chars_per_passage")
    asked, texts = QUESTIONS, (TEXTS[:4], TEXTS[4:])
    lengths = [
        (round(mean(map(len, asked[name])), 4), round(mean(map(len, own)), 4))
        for name, own in zip(("train", "dev"), texts, strict=True)
    ]
    assert {column: tuple(found[name] for name in names) for column, found in stats["table3"].items()} == {
        "train": (4, 4, 1.0, *lengths[0]),
        "dev": (2, 2, 1.0, *lengths[1]),
        "test": (1, None, None, 6.0, None),
        "cmedqa": (1, 2, 2.0, 6.0, 6.5),
        "ccovid": (1, 1, 1.0, 8.0, 7.0),
    }
    means = {"mean_chars": round((9 + 8 + 5) / 3, 4), "median_chars": 8, "min_chars": 5, "max_chars": 9}
    histogram = [{"from": 0, "to": 31, "count": 3}]
    assert stats["collections"]["cmedqa-corpus"] == {"passages": 3, **means, "histogram": histogram}
    assert stats["english"] == {s: {"queries": 1, "words_per_query": n} for s, n in (("train", 5.0), ("dev", 8.0))}
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


lengths = st.lists(st.integers(0, 6000), min_size=1, max_size=60)


@given(lengths, st.sampled_from([LENGTH_EDGES, POSITIVES_EDGES]))
def test_a_histogram_holds_every_value_once(values: list[int], edges: tuple[int, ...]) -> None:
    counter = LengthCounter()
    counter.add(np.array(values))
    bars = counter.histogram(edges)
    for bar in bars:
        inside: list[Any] = [v for v in values if v >= bar["from"] and (bar["to"] is None or v <= bar["to"])]
        assert bar["count"] == len(inside)
    assert sum(bar["count"] for bar in bars) == len(values)
    assert bars[0]["count"] and bars[-1]["count"]
    assert all(first["to"] + 1 == second["from"] for first, second in itertools.pairwise(bars))


def test_a_full_disk_for_tables_is_named(whole_release: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 12, hard))
    try:
        error = run("builders", "check", "--release", whole_release, code=1).error
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert error.startswith(f"{tmp}") and "file too large; " in error
    assert not list(tmp.iterdir())
