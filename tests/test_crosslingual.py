"""Test the cross-lingual set: configs, ids, packages, and the quality control of Appendix A.3."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from commands import Done, run
from releases import make_release, md5, passage

from builders.store.reader import open_release


def call(*words: object, code: int | None = 0) -> Done:
    verb = ["annotate", "translations"] if words[0] in ("export", "review", "import") else ["add", "crosslingual"]
    return run("builders", *verb, *words, code=code)


CHINESE = {
    "train": {"北京冬天冷吗": ["北京的冬天很冷。"], "饺子怎么煮": ["水开下锅。", "加三次凉水。"]},
    "dev": {"高铁票提前几天买": ["十五天。"], "什么时候买高铁票": ["十五天。", "开车前。"]},
    "test": {"哪里可以看雪": []},
}


def release_of(path: Path, content: dict[str, dict[str, list[str]]]) -> Path:
    texts = dict.fromkeys(text for split in content.values() for found in split.values() for text in found)
    tables: dict[tuple[str, str], list[dict[str, Any]]] = {}
    tables["corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
    for split, questions in content.items():
        tables["queries", split] = [{"_id": md5(q), "text": q} for q in questions]
        pairs = [(q, text) for q, found in questions.items() for text in found]
        tables["qrels", split] = [{"query-id": md5(q), "corpus-id": md5(text), "score": 1} for q, text in pairs]
        empty: dict[str, Any] = {"negative_passages": []}
        tables[split, split] = [
            {"query_id": md5(q), "query": q, "positive_passages": list(map(passage, found))} | empty
            for q, found in questions.items()
        ]
    return make_release(path, {place: rows for place, rows in tables.items() if rows})


@pytest.fixture
def base(tmp_path: Path) -> Path:
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
    found = {split: release.table("crosslingual-queries", split).to_pylist() for split in CHINESE}
    queries = {split: [tuple(row.values()) for row in rows] for split, rows in found.items()}
    english, second = "When to buy train tickets", md5("什么时候买高铁票")
    assert queries == {
        "train": [(md5(TABLE[0][1]), TABLE[0][1], md5("饺子怎么煮"))],
        "dev": [(md5(english), english, md5("高铁票提前几天买")), (md5(f"{english}\n{second}"), english, second)],
        "test": [(md5("Where is snow"), "Where is snow", md5("哪里可以看雪"))],
    }
    for split, rows in queries.items():
        joined = release.table("crosslingual", split).to_pylist()
        assert [(row["query_id"], row["query"], md5(row["query_zh"])) for row in joined] == rows
        for row in joined:
            assert [each["text"] for each in row["positive_passages"]] == CHINESE[split][row["query_zh"]]
    assert set(open_release(base).splits()) < set(release.splits())


def test_what_is_left_out_is_counted(tmp_path: Path, base: Path) -> None:
    table = tmp_path / "table.csv"
    where = "哪里可以看雪,Where"
    table.write_text(f"zh,english\n饺子怎么煮,\n没有这个问题,What\n{where}\n{where}\n{where} to\n")
    done = call("--source", table, "--release", base, "--out", base, "--format", "json")
    assert "skipped 1 rows that name no query of the release; the first is" in done.stderr
    counts = json.loads(done.stdout)["crosslingual"]
    assert (counts["untranslated"], counts["same_pair_again"], counts["further_translation"]) == (1, 1, 1)


def sheet_rows(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def fill(path: Path, rows: list[dict[str, str]]) -> Path:
    with open(path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture
def translated(tmp_path: Path) -> tuple[Path, Path]:
    """A release with 250 dev queries, and translated packages of 120 queries."""
    base = release_of(tmp_path / "many", {"dev": {f'第"{n}"个\t问题': ["答案。"] for n in range(250)}})
    packages = tmp_path / "packages.tsv"
    call("export", "--release", base, "--out", packages, "--package-size", 120)
    rows = sheet_rows(packages)
    assert [row["package"] for row in rows] == ["dev-001"] * 120 + ["dev-002"] * 120 + ["dev-003"] * 10
    assert {row["machine_translation"] + row["english"] for row in rows} == {""}
    return base, fill(packages, [row | {"english": f"Question {number}"} for number, row in enumerate(rows)])


def reviewed(tmp_path: Path, base: Path, packages: Path, wrong: tuple[int, int]) -> list[Path]:
    call("review", "--source", packages, "--release", base, "--out", tmp_path / "r.tsv")
    sheets = []
    for reviewer in (1, 2):
        rows = sheet_rows(tmp_path / f"r.{reviewer}.tsv")
        left = wrong[reviewer - 1]
        for row in rows:
            bad = row["package"] == "dev-002" and left > 0
            left -= bad
            row["correct"] = "0" if bad else "是"
        sheets.append(fill(tmp_path / f"r.{reviewer}.tsv", rows))
    return sheets


@pytest.mark.parametrize(("wrong", "accuracy"), [((7, 7), "93.00 %"), ((5, 10), "92.50 %")])
def test_package_accuracy(tmp_path: Path, translated: tuple[Path, Path], wrong: tuple[int, int], accuracy: str) -> None:
    base, packages = translated
    sheets, out = reviewed(tmp_path, base, packages, wrong), tmp_path / "out"
    done = call("import", "--source", packages, "--reviews", *sheets, "--release", base, "--out", out, code=None)
    outcome = "refused: has an accuracy of 92.50 %, expected at least 93.00 %" if done.code else "accepted"
    assert f"package dev-002: 120 queries, accuracy {accuracy}, {outcome}" in done.stdout
    assert done.code == int(accuracy < "93") == int(not out.exists()) == int("package dev-002" in done.stderr)
    assert done.code or open_release(out).rows("crosslingual", "dev") == 250
    words = ("--source", packages, "--reviews", *sheets, "--release", base, "--out", out, "--format", "csv")
    lines = call("import", *words, code=done.code).stdout.splitlines()
    assert lines[:2] == ["package,queries,accuracy,outcome", "dev-001,120,1.0,accepted"]


def test_refused_reviews(tmp_path: Path, translated: tuple[Path, Path]) -> None:
    base, packages = translated
    one, two = reviewed(tmp_path, base, packages, (0, 0))
    words = ["import", "--source", packages, "--release", base, "--out", tmp_path / "out", "--reviews"]

    def refused(*sheets: Path) -> str:
        error = call(*words, *sheets, code=1).stderr
        assert not (tmp_path / "out").exists()
        return error

    assert "dev-001 has 1 reviews, expected at least 2" in refused(one)
    rows, copy = sheet_rows(two), tmp_path / "copy.tsv"
    assert "copy.tsv, expected at least 100" in refused(one, fill(copy, rows[1:]))
    assert "is judged twice" in refused(one, fill(copy, [rows[0], *rows]))
    assert "draw a new sheet" in refused(one, fill(copy, [rows[0] | {"english": "Older"}, *rows[1:]]))


def test_export_of_a_part_with_a_machine_translation(tmp_path: Path, base: Path) -> None:
    table = tmp_path / "machine.csv"
    table.write_text("饺子怎么煮,How dumplings cook\n")
    out = tmp_path / "p.tsv"
    call("export", "--release", base, "--out", out, "--split", "train", "--translations", table)
    rows = {row["zh"]: row for row in sheet_rows(out)}
    assert list(rows) == list(CHINESE["train"])
    assert rows["饺子怎么煮"]["machine_translation"] == rows["饺子怎么煮"]["english"] == "How dumplings cook"
    assert rows["北京冬天冷吗"]["english"] == ""


def test_xquad_in_english_has_the_paragraphs_of_the_chinese_questions(shared_data: Path, tmp_path: Path) -> None:
    def questions(language: str) -> list[tuple[str, str]]:
        articles = json.loads((shared_data / "xquad" / f"xquad.{language}.json").read_text(encoding="utf-8"))["data"]
        paragraphs = [paragraph for article in articles for paragraph in article["paragraphs"]]
        return [(each["question"], paragraph["context"]) for paragraph in paragraphs for each in paragraph["qas"]]

    chinese, english = questions("zh"), questions("en")
    content: dict[str, list[str]] = {}
    for question, paragraph in chinese:
        found = content.setdefault(question, [])
        found += [paragraph] if paragraph not in found else []
    base = release_of(tmp_path / "base", {"test": content})
    pairs = [(zh, en) for (zh, _), (en, _) in zip(chinese, english, strict=True)]
    fill(tmp_path / "t.tsv", [{"zh": zh, "english": en} for zh, en in pairs])
    call("--source", tmp_path / "t.tsv", "--release", base, "--out", tmp_path / "out")
    release = open_release(tmp_path / "out")
    distinct = dict.fromkeys((zh, en.strip()) for zh, en in pairs)
    assert (len(pairs), len(content), len(distinct)) == (1190, 1181, 1185)
    rows = release.table("crosslingual", "test").to_pylist()
    assert {(row["query_zh"], row["query"]) for row in rows} == set(distinct)
    assert len({row["query_id"] for row in rows}) == len(rows) == 1185
    for row in rows:
        assert [found["text"] for found in row["positive_passages"]] == content[row["query_zh"]]
    counts = json.loads((tmp_path / "out/stats.json").read_text())["crosslingual"]
    assert (counts["rows"], counts["same_pair_again"], counts["further_translation"]) == (1190, 5, 4)
