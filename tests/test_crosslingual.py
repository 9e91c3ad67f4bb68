"""Test the cross-lingual set: configs, ids, packages, and the quality control of Appendix A.3."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from releases import corpus_rows, judgment_row, make_release, md5, passage, query_rows

from builders.add.crosslingual import read_pairs
from builders.core.errors import InputError
from builders.sources.source_tables import find_tables
from builders.store.reader import open_release


def call(*words: object, code: int | None = 0) -> Done:
    """Run a step of `annotate translations`, or `add crosslingual`."""
    verb = ["annotate", "translations"] if words[0] in ("export", "review", "import") else ["add", "crosslingual"]
    return run("builders", verb, words, code=code)


CHINESE = {
    "train": {"北京冬天冷吗": ["北京的冬天很冷。"], "饺子怎么煮": ["水开下锅。", "加三次凉水。"]},
    "dev": {"高铁票提前几天买": ["十五天。"], "什么时候买高铁票": ["十五天。", "开车前。"]},
    "test": {"哪里可以看雪": []},
}


def release_of(path: Path, content: dict[str, dict[str, list[str]]]) -> Path:
    """Write a release. ``content``: the positive passages by split and question."""
    texts: dict[str, None] = {}  # without repeated texts, in the order of their first occurrence
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {("corpus", "corpus"): []}
    for split, questions in content.items():
        joined_rows: list[dict[str, Any]] = []
        judgments = []
        for question, positive_texts in questions.items():
            texts |= dict.fromkeys(positive_texts)
            judgments += [judgment_row(md5(question), md5(text)) for text in positive_texts]
            joined_rows.append(
                {
                    "query_id": md5(question),
                    "query": question,
                    "positive_passages": list(map(passage, positive_texts)),
                    "negative_passages": [],
                }
            )
        tables["queries", split] = query_rows(list(questions))
        if judgments:
            tables["qrels", split] = judgments
        tables[split, split] = joined_rows
    tables["corpus", "corpus"] = corpus_rows(list(texts))
    return make_release(path, tables)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A release of ``CHINESE``."""
    return release_of(tmp_path / "base", CHINESE)


TABLE = [
    ("饺子怎么煮", "How to boil dumplings, quickly?"),
    (md5("高铁票提前几天买"), "When to buy train tickets"),
    ("什么时候买高铁票", "When to buy train tickets"),
    ("哪里可以看雪", "Where is snow"),
]


@pytest.mark.parametrize(
    ("head", "delimiter", "encoding"),
    [("", "\t", "utf-8"), ("Query_ID\tEN\n", "\t", "gb18030"), ("query_id,english\n", ",", "utf-8-sig")],
)
def test_translations_become_the_configs(tmp_path: Path, base: Path, head: str, delimiter: str, encoding: str) -> None:
    lines = [f'{key}{delimiter}"{english}"\n' for key, english in TABLE]
    table = tmp_path / "table.txt"
    table.write_bytes((head + "".join(lines)).encode(encoding))
    call("--source", table, "--release", base, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    boiling = "How to boil dumplings, quickly?"
    buying = "When to buy train tickets"
    # The ids of equal translations differ, because the second has the id of its Chinese question in it.
    second_zh_id = md5("什么时候买高铁票")
    expected_rows = {
        "train": [(md5(boiling), boiling, md5("饺子怎么煮"))],
        "dev": [
            (md5(buying), buying, md5("高铁票提前几天买")),
            (md5(f"{buying}\n{second_zh_id}"), buying, second_zh_id),
        ],
        "test": [(md5("Where is snow"), "Where is snow", md5("哪里可以看雪"))],
    }
    for split in CHINESE:
        rows = release.table("crosslingual-queries", split).to_pylist()
        assert [tuple(row.values()) for row in rows] == expected_rows[split]
        joined_rows = release.table("crosslingual", split).to_pylist()
        joined_ids = [(row["query_id"], row["query"], md5(row["query_zh"])) for row in joined_rows]
        assert joined_ids == expected_rows[split]
        for row in joined_rows:
            assert positive_texts_of(row) == CHINESE[split][row["query_zh"]]
    # The splits of the base stay, and the cross-lingual ones are added.
    assert set(open_release(base).splits()) < set(release.splits())


def test_a_question_of_two_splits_is_translated_in_one(tmp_path: Path) -> None:
    shared = {"饺子怎么煮": ["水开下锅。"]}
    base = release_of(tmp_path / "base", {"train": CHINESE["train"] | shared, "dev": CHINESE["dev"] | shared})
    table = tmp_path / "table.tsv"
    questions = [*CHINESE["train"], *CHINESE["dev"]]
    table.write_text("".join(f"{question}\tQuestion {md5(question)[:4]}\n" for question in {*questions, *shared}))
    call("--source", table, "--release", base, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    # Neither the queries nor the joined rows of train have the question of dev.
    for split in ("train", "dev"):
        expected = CHINESE["dev"] | shared if split == "dev" else CHINESE["train"].keys() - shared.keys()
        if not expected:
            assert ("crosslingual", split) not in release.splits()
            continue
        assert {row["query_zh"] for row in release.table("crosslingual", split).to_pylist()} == set(expected)


def positive_texts_of(joined_row: dict[str, Any]) -> list[str]:
    """Return the texts of a query's positive passages."""
    return [positive["text"] for positive in joined_row["positive_passages"]]


def test_what_is_left_out_is_counted(tmp_path: Path, base: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text(
        "zh,english\n饺子怎么煮,\n没有这个问题,What\n哪里可以看雪,Where\n哪里可以看雪,Where\n哪里可以看雪,Where to\n"
    )
    done = call("--source", table, "--release", base, "--out", base, "--format", "json")
    assert "skipped 1 rows that name no query of the release; the first is" in done.stderr
    counts = json.loads(done.stdout)["crosslingual"]
    assert (counts["untranslated"], counts["same_pair_again"], counts["further_translation"]) == (1, 1, 1)


def sheet_rows(path: Path) -> list[dict[str, str]]:
    """Return the rows of a sheet."""
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def fill(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write the rows of a sheet. Return its path."""
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def translated(tmp_path: Path) -> tuple[Path, Path]:
    """A release with 250 dev queries, and translated packages of 120 queries."""
    questions = {f'第"{number}"个\t问题': ["答案。"] for number in range(250)}
    base = release_of(tmp_path / "many", {"dev": questions})
    packages = tmp_path / "packages.tsv"
    call("export", "--release", base, "--out", packages, "--package-size", 120)
    rows = sheet_rows(packages)
    expected_packages = ["dev-001"] * 120 + ["dev-002"] * 120 + ["dev-003"] * 10
    assert [row["package"] for row in rows] == expected_packages
    for number, row in enumerate(rows):
        assert row["machine_translation"] + row["english"] == ""
        row["english"] = f"Question {number}"
    return base, fill(packages, rows)


def reviewed(tmp_path: Path, base: Path, packages: Path, wrong: tuple[int, int]) -> list[Path]:
    """Return the sheets of two reviewers, who find these numbers of errors in the package dev-002."""
    call("review", "--source", packages, "--release", base, "--out", tmp_path / "r.tsv")
    sheets = []
    for reviewer, wrong_count in ((1, wrong[0]), (2, wrong[1])):
        sheet = tmp_path / f"r.{reviewer}.tsv"
        rows = sheet_rows(sheet)
        for row in rows:
            row["correct"] = "是"
        reviewed_rows = [row for row in rows if row["package"] == "dev-002"]
        for row in reviewed_rows[:wrong_count]:
            row["correct"] = "0"
        sheets.append(fill(sheet, rows))
    return sheets


def import_words(packages: Path, sheets: list[Path], base: Path, out: Path) -> list[object]:
    """Return the words of `import`."""
    return ["import", "--source", packages, "--reviews", *sheets, "--release", base, "--out", out]


FIRST_CSV_LINES = ["package,queries,accuracy,outcome", "dev-001,120,1.0,accepted"]


def test_a_package_of_93_percent_is_accepted(tmp_path: Path, translated: tuple[Path, Path]) -> None:
    base, packages = translated
    out = tmp_path / "out"
    words = import_words(packages, reviewed(tmp_path, base, packages, wrong=(7, 7)), base, out)
    done = call(*words)
    assert "package dev-002: 120 queries, accuracy 93.00 %, accepted" in done.stdout
    assert "package dev-002" not in done.stderr
    assert open_release(out).rows("crosslingual", "dev") == 250
    assert call(*words, "--format", "csv").stdout.splitlines()[:2] == FIRST_CSV_LINES


def test_a_package_of_less_than_93_percent_is_refused(tmp_path: Path, translated: tuple[Path, Path]) -> None:
    base, packages = translated
    out = tmp_path / "out"
    words = import_words(packages, reviewed(tmp_path, base, packages, wrong=(5, 10)), base, out)
    done = call(*words, code=1)
    outcome = "refused: has an accuracy of 92.50 %, expected at least 93.00 %"
    assert f"package dev-002: 120 queries, accuracy 92.50 %, {outcome}" in done.stdout
    assert "package dev-002" in done.stderr
    assert not out.exists()
    assert call(*words, "--format", "csv", code=1).stdout.splitlines()[:2] == FIRST_CSV_LINES


def test_refused_reviews(tmp_path: Path, translated: tuple[Path, Path]) -> None:
    base, packages = translated
    first_sheet, second_sheet = reviewed(tmp_path, base, packages, (0, 0))
    out = tmp_path / "out"

    def import_error(sheets: list[Path]) -> str:
        stderr = call(*import_words(packages, sheets, base, out), code=1).stderr
        assert not out.exists()
        return stderr

    assert "dev-001 has 1 reviews, expected at least 2" in import_error([first_sheet])
    rows = sheet_rows(second_sheet)
    short_sheet = fill(tmp_path / "copy.tsv", rows[1:])
    assert "copy.tsv, expected at least 100" in import_error([first_sheet, short_sheet])
    long_sheet = fill(tmp_path / "copy.tsv", [rows[0], *rows])
    assert "is judged twice" in import_error([first_sheet, long_sheet])
    rows[0]["english"] = "Older"
    old_sheet = fill(tmp_path / "copy.tsv", rows)
    assert "draw a new sheet" in import_error([first_sheet, old_sheet])


def test_sheets_that_people_filled_in_are_kept(tmp_path: Path, translated: tuple[Path, Path]) -> None:
    base, packages = translated
    filled_in = packages.read_bytes()
    export = ("export", "--release", base, "--out", packages, "--package-size", 120)
    assert f"{packages}: exists with another content" in call(*export, code=1).stderr
    reviewed(tmp_path, base, packages, (0, 0))
    sheet = (tmp_path / "r.1.tsv").read_bytes()
    review = ("review", "--source", packages, "--release", base, "--out", tmp_path / "r.tsv")
    assert "r.1.tsv: exists with another content" in call(*review, code=1).stderr
    assert packages.read_bytes() == filled_in and (tmp_path / "r.1.tsv").read_bytes() == sheet


def test_two_reviewers_of_a_small_package_may_agree(tmp_path: Path, base: Path) -> None:
    packages = tmp_path / "packages.tsv"
    call("export", "--release", base, "--out", packages)
    fill(packages, [row | {"english": f"Question {row['id']}"} for row in sheet_rows(packages)])
    sheets = reviewed(tmp_path, base, packages, (0, 0))
    assert sheets[0].read_bytes() == sheets[1].read_bytes()
    words = import_words(packages, sheets, base, tmp_path / "out")
    assert "has the same content as r.1.tsv" in call(*words).stderr
    words = import_words(packages, [sheets[0], sheets[0]], base, tmp_path / "other")
    assert "is the same sheet as r.1.tsv" in call(*words, code=1).stderr


def test_export_of_a_part_with_a_machine_translation(tmp_path: Path, base: Path) -> None:
    table = tmp_path / "machine.csv"
    table.write_text("饺子怎么煮,How dumplings cook\n")
    out = tmp_path / "p.tsv"
    call("export", "--release", base, "--out", out, "--split", "train", "--translations", table)
    rows = {row["zh"]: row for row in sheet_rows(out)}
    assert list(rows) == list(CHINESE["train"])
    assert rows["饺子怎么煮"]["machine_translation"] == rows["饺子怎么煮"]["english"] == "How dumplings cook"
    assert rows["北京冬天冷吗"]["english"] == ""


def read_xquad(path: Path) -> list[tuple[str, str]]:
    """Return the questions of a file of XQuAD, each with its paragraph."""
    questions = []
    for article in json.loads(path.read_text(encoding="utf-8"))["data"]:
        for paragraph in article["paragraphs"]:
            for row in paragraph["qas"]:
                questions.append((row["question"], paragraph["context"]))
    return questions


def test_xquad_in_english_has_the_paragraphs_of_the_chinese_questions(shared_data: Path, tmp_path: Path) -> None:
    chinese = read_xquad(shared_data / "xquad" / "xquad.zh.json")
    english = read_xquad(shared_data / "xquad" / "xquad.en.json")
    paragraphs_by_question: dict[str, list[str]] = {}
    for question, paragraph in chinese:
        paragraphs = paragraphs_by_question.setdefault(question, [])
        if paragraph not in paragraphs:
            paragraphs.append(paragraph)
    base = release_of(tmp_path / "base", {"test": paragraphs_by_question})
    translations = []
    for (chinese_question, _), (english_question, _) in zip(chinese, english, strict=True):
        translations.append({"zh": chinese_question, "english": english_question})
    table = fill(tmp_path / "t.tsv", translations)
    call("--source", table, "--release", base, "--out", tmp_path / "out")
    distinct_pairs = {(row["zh"], row["english"].strip()) for row in translations}
    assert (len(translations), len(paragraphs_by_question), len(distinct_pairs)) == (1190, 1181, 1185)
    rows = open_release(tmp_path / "out").table("crosslingual", "test").to_pylist()
    assert {(row["query_zh"], row["query"]) for row in rows} == distinct_pairs
    assert len({row["query_id"] for row in rows}) == len(rows) == 1185
    for row in rows:
        assert positive_texts_of(row) == paragraphs_by_question[row["query_zh"]]
    counts = json.loads((tmp_path / "out/stats.json").read_text())["crosslingual"]
    assert (counts["rows"], counts["same_pair_again"], counts["further_translation"]) == (1190, 5, 4)


def test_ids_of_a_release_need_not_be_md5s(tmp_path: Path) -> None:
    """Official archives may have other ids. A row with such an id and the text of its query is no error."""
    table = tmp_path / "table.csv"
    table.write_text("id,zh,english\n7,饺子怎么煮,How to boil dumplings\n", encoding="utf-8")
    pairs = list(read_pairs(find_tables([table]), {"7": "饺子怎么煮"}, "auto"))
    assert [(pair.zh_id, pair.english) for pair in pairs] == [("7", "How to boil dumplings")]


@pytest.mark.parametrize(
    "content",
    [
        "zh,english\n饺子怎么煮,How to boil dumplings\n",
        "饺子怎么煮,How to boil dumplings\n",
        f"id,zh,english\n{md5('饺子怎么煮')},饺子怎么煮,How to boil dumplings\n",
    ],
)
def test_a_query_with_another_id_is_found_by_its_text(tmp_path: Path, content: str) -> None:
    table = tmp_path / "table.csv"
    table.write_text(content, encoding="utf-8")
    # Two queries have the same text, and the row belongs to the first.
    query_texts = {"7": "饺子怎么煮", "8": "饺子怎么煮"}
    pairs = list(read_pairs(find_tables([table]), query_texts, "auto"))
    assert [(pair.zh_id, pair.english) for pair in pairs] == [("7", "How to boil dumplings")]


def test_an_unknown_id_of_a_known_text_is_refused(tmp_path: Path) -> None:
    table = tmp_path / "table.csv"
    table.write_text("id,zh,english\n6,饺子怎么煮,How to boil dumplings\n", encoding="utf-8")
    with pytest.raises(InputError, match=r"table\.csv:2: has the id '6' for '饺子怎么煮'; expected 7"):
        list(read_pairs(find_tables([table]), {"7": "饺子怎么煮"}, "auto"))
