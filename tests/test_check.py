"""``check``: each test finds what was put there, and nothing in a release that is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import run
from findings import found
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from releases import TEXTS, make_release, md5, passage
from whole_release import Rows, edit_stats, make_whole

from builders.check.findings import LONGEST_PASSAGE, TESTS
from builders.check.release import check
from builders.store.reader import open_release


def test_a_whole_release_has_no_error(tmp_path: Path) -> None:
    report = check(open_release(make_whole(tmp_path / "release")))
    assert found(report) == {}
    assert not report.of("not-tested")


def test_a_build_of_real_rows_has_no_error(sample_release: Path) -> None:
    report = check(open_release(sample_release))
    assert found(report) == {}
    # Built from raw data, it cannot have the paper's sizes.
    assert {report.level(finding) for finding in report.of("split-sizes")} == {"info"}


def _drop_passage(rows: Rows) -> None:
    rows["corpus", "corpus"] = [row for row in rows["corpus", "corpus"] if row["_id"] != md5(TEXTS[4])]


def _text(rows: Rows, text: str) -> None:
    rows["corpus", "corpus"].append({"_id": md5(text), "title": "", "text": text})


def _same_train_and_dev(rows: Rows) -> None:
    """The dev question is asked in train, too."""
    row = rows["dev", "dev"][1]
    rows["queries", "train"].append({"_id": row["query_id"], "text": row["query"]})
    rows["train", "train"].append({**row, "positive_passages": row["positive_passages"]})
    rows["qrels", "train"].append(rows["qrels", "dev"][1])


Change = Callable[[Rows], Any]
CASES: dict[str, tuple[Change, dict[str, tuple[str, int, list[tuple[str, int]]]]]] = {
    "a passage that is judged is missing": (
        _drop_passage,
        {
            "dangling-ids": (
                "error",
                4,
                [("crosslingual/dev", 1), ("dev/dev", 1), ("qrels/dev", 1), ("resttest-bucket1/extrapolation", 1)],
            )
        },
    ),
    "judgments of no query": (
        lambda rows: rows["cmedqa-qrels", "test"].append(
            {"query-id": md5("x"), "corpus-id": md5("按时吃药。"), "score": 1}
        ),
        {"dangling-ids": ("error", 1, [("cmedqa-qrels/test", 1)])},
    ),
    "an English query of no Chinese one": (
        lambda rows: rows["crosslingual-queries", "dev"][0].update(zh_id=md5("x")),
        {"dangling-ids": ("error", 1, [("crosslingual-queries/dev", 1)])},
    ),
    "two Chinese queries with one translation, which is no fault": (
        lambda rows: _translate_again(rows),
        {},
    ),
    "the same translation twice": (
        lambda rows: rows["crosslingual-queries", "dev"].append(rows["crosslingual-queries", "dev"][0]),
        {"duplicate-texts": ("error", 1, [("crosslingual-queries/dev", 1)])},
    ),
    "a query without a positive": (
        lambda rows: rows["ccovid-qrels", "test"][0].update(score=0),
        {"queries-without-positives": ("error", 1, [("ccovid-qrels/test", 1)])},
    ),
    "an id that is no MD5": (
        lambda rows: _replace_id(rows, TEXTS[0], "d41d8cd9"),
        {"ids-not-md5": ("error", 2, [("corpus/corpus", 1), ("dev/dev", 1)])},
    ),
    "an id in capitals": (
        lambda rows: rows["cmedqa-corpus", "corpus"].append({"_id": md5("新").upper(), "title": "", "text": "新"}),
        {"ids-not-md5": ("error", 1, [("cmedqa-corpus/corpus", 1)])},
    ),
    "one id for two texts": (
        lambda rows: rows["corpus", "corpus"].append({"_id": md5(TEXTS[0]), "title": "", "text": "别的"}),
        {
            "ids-not-md5": ("error", 1, [("corpus/corpus", 1)]),
            "one-id-two-texts": ("error", 1, [("corpus/corpus", 1)]),
        },
    ),
    "a text twice": (
        lambda rows: rows["corpus", "corpus"].append(rows["corpus", "corpus"][0]),
        {"duplicate-texts": ("error", 1, [("corpus/corpus", 1)])},
    ),
    "a judgment twice": (
        lambda rows: rows["cmedqa-qrels", "test"].append(rows["cmedqa-qrels", "test"][0]),
        {"duplicate-judgments": ("error", 1, [("cmedqa-qrels/test", 1)])},
    ),
    "texts without a visible character": (
        lambda rows: [_text(rows, text) for text in ("", " \u3000\n", "\u200b")],
        {"empty-texts": ("error", 3, [("corpus/corpus", 3)])},
    ),
    "an absurdly long text": (
        lambda rows: [_text(rows, "长" * (LONGEST_PASSAGE + more)) for more in (0, 1)],
        {"long-texts": ("warning", 1, [("corpus/corpus", 1)])},
    ),
    "control characters": (
        lambda rows: [_text(rows, f"文字{character}文字") for character in "\0\x0b\x7f\x85"],
        {"control-characters": ("warning", 4, [("corpus/corpus", 4)])},
    ),
    "a trace of a wrong decoding": (
        lambda rows: _text(rows, "文\ufffd字"),
        {"replacement-characters": ("warning", 1, [("corpus/corpus", 1)])},
    ),
    "separators, tabs and line ends, which are text": (
        lambda rows: [_text(rows, f"文{character}字") for character in "\t\n\r\u2028\u2029\u00a0\u3000😀\ue000"],
        {},
    ),
    "a train query that is a dev query": (_same_train_and_dev, {"shared-queries": ("warning", 1, [("queries", 1)])}),
    "a removed training query that is still one": (
        lambda rows: rows["train-similar", "train"][0].update(
            query_id=rows["queries", "train"][1]["_id"], query=rows["queries", "train"][1]["text"]
        ),
        {"similar-queries": ("error", 1, [("train-similar/train", 1)])},
    ),
    "a query that is duplicated and another": (
        lambda rows: rows["others", "dev"].append(rows["duplicated", "dev"][0]),
        {"similar-queries": ("error", 1, [("duplicated/dev", 1)])},
    ),
    "a query that is neither duplicated nor another, and one of another split": (
        lambda rows: rows["others", "dev"].__setitem__(0, rows["queries", "test"][0]),
        {"similar-queries": ("error", 2, [("duplicated/dev", 2)])},
    ),
    "joined rows without a judgment's passage": (
        lambda rows: rows["dev", "dev"][1].update(positive_passages=[]),
        {"joined-rows": ("error", 1, [("dev/dev", 1)])},
    ),
    "a negative that is a positive": (
        lambda rows: rows["train", "train"][0]["negative_passages"].append(
            rows["train", "train"][0]["positive_passages"][0]
        ),
        {"joined-rows": ("error", 1, [("train/train", 1)])},
    ),
    "a query without a joined row": (
        lambda rows: rows["queries", "test"].append({"_id": md5("新问题"), "text": "新问题"}),
        {"joined-rows": ("error", 1, [("test/test", 1)])},
    ),
}


def _translate_again(rows: Rows) -> None:
    """The other dev query has the first one's translation, too."""
    chinese, english = rows["dev", "dev"][1], rows["crosslingual-queries", "dev"][0]["text"]
    new = md5(f"{english}\n{chinese['query_id']}")
    rows["crosslingual-queries", "dev"].append({"_id": new, "text": english, "zh_id": chinese["query_id"]})
    rows["crosslingual", "dev"].append({**chinese, "query_id": new, "query": english, "query_zh": chinese["query"]})


def _replace_id(rows: Rows, text: str, new: str) -> None:
    """A passage under an id of its own, in the corpus and in a joined row as a negative."""
    for row in rows["corpus", "corpus"]:
        if row["text"] == text:
            row["_id"] = new
    for key in [key for key in rows if key[0] in ("train", "train-similar", "dev", "crosslingual")]:
        for row in rows[key]:
            row["negative_passages"] = []
            row["positive_passages"] = [each for each in row["positive_passages"] if each["text"] != text]
    rows["dev", "dev"][1]["negative_passages"] = [{**passage(text), "docid": new}]
    # The train question that it answered is answered by another passage.
    other = rows["qrels", "train"][1]["corpus-id"]
    for row in rows["qrels", "train"]:
        if row["corpus-id"] == md5(text):
            row["corpus-id"] = other
    rows["train", "train"][0]["positive_passages"] = rows["train", "train"][1]["positive_passages"]


@pytest.mark.parametrize("name", CASES)
def test_each_fault_is_found_and_nothing_else(tmp_path: Path, name: str) -> None:
    change, expected = CASES[name]
    report = check(open_release(make_whole(tmp_path / "release", change)))
    assert found(report) == expected
    assert bool(report.errors) == any(level == "error" for level, _, _ in expected.values())


def test_examples_name_the_rows(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release", CASES["control characters"][0])
    (finding,) = check(open_release(release)).of("control-characters")
    assert finding.count == 4 and len(finding.examples) == 3
    assert finding.examples == sorted(finding.examples)
    marked = {f"{md5(f'文字{character}文字')} (U+{ord(character):04X})" for character in "\0\x0b\x7f\x85"}
    assert set(finding.examples) < marked


def test_figures_that_are_not_those_of_the_rows(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release")
    edit_stats(release, lambda stats: stats["table3"]["dev"].update(queries=3))
    (finding,) = check(open_release(release)).of("stats")
    assert (finding.where, finding.examples) == ("stats.json: table3.dev", ["queries 3 (the rows: 2)"])


def test_sizes_of_the_official_data_are_warnings(tmp_path: Path) -> None:
    release = make_whole(tmp_path / "release", verb="official")
    report = check(open_release(release))
    assert {report.level(finding) for finding in report.of("split-sizes")} == {"warning"}
    assert "4 queries where the paper has 86,395" in [finding.what for finding in report.of("split-sizes")]
    assert not report.errors


def test_a_release_without_a_corpus_says_what_was_not_tested(tmp_path: Path) -> None:
    def without(rows: Rows) -> None:
        for key in [key for key in rows if key[0].endswith("corpus")]:
            del rows[key]

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
    accepted = run(*verb, whole_copy, "--accept", "duplicate-texts")
    assert "warning  duplicate-texts" in accepted.stdout
    run(*verb, whole_copy, "--accept", "manifest", code=2)
    assert run(*verb, tmp_path / "nowhere", code=1).error


# Few characters, so that texts meet: equal ones, blank ones, ones with a control character.
_texts = st.lists(st.text("ab \u3000\x07\n", max_size=3), min_size=1, max_size=8)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(passages=_texts, wrong=st.sets(st.integers(0, 7)), judged=st.lists(st.integers(0, 9), max_size=6))
def test_counts_are_those_of_brute_force(
    tmp_path: Path, passages: list[str], wrong: set[int], judged: list[int]
) -> None:
    ids = [md5(f"{number}") if number in wrong else md5(text) for number, text in enumerate(passages)]
    question = {"_id": md5("q"), "text": "q"}
    known = [*ids, *(md5(f"none {number}") for number in range(10))]
    pairs = [known[number] for number in judged]
    rows: Rows = {
        ("corpus", "corpus"): [{"_id": i, "title": "", "text": t} for i, t in zip(ids, passages, strict=True)],
        ("queries", "dev"): [question],
        ("qrels", "dev"): [{"query-id": md5("q"), "corpus-id": each, "score": 1} for each in pairs],
    }
    if not pairs:
        del rows["qrels", "dev"]
    report = check(open_release(make_release(tmp_path / "release", rows)))

    def visible(text: str) -> bool:
        return any(character in "ab" for character in text)

    distinct = {text for text in passages if visible(text)}
    expected = {
        "ids-not-md5": sum(i != md5(t) for i, t in zip(ids, passages, strict=True)),
        "empty-texts": sum(not visible(text) for text in passages),
        "duplicate-texts": sum(passages.count(text) > 1 for text in distinct),
        "control-characters": sum("\x07" in text for text in passages),
        "dangling-ids": sum(each not in ids for each in pairs),
        "duplicate-judgments": sum(pairs.count(each) > 1 for each in set(pairs)),
    }
    assert {name: count for name, (_, count, _) in found(report).items() if name in expected} == {
        name: count for name, count in expected.items() if count
    }
