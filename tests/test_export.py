"""``builders export``: an independent reader of each format finds the content of the release."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import names, tree
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from releases import TEXTS, json_lines, make_release, md5, passage, tables

from builders.core.errors import InputError
from builders.export import export_formats
from builders.export.export_formats import export_set
from builders.export.export_options import EXPORT_FORMATS
from builders.export.export_release import export_release
from builders.export.exported_runs import FORMS
from builders.store.reader import open_release

Rows = dict[tuple[str, str], list[dict[str, Any]]]
BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
NASTY = ["a\tb\r\nc", "行\u2028分\u2029隔\x85符", '"in quotes" \\ \\n', "\ufeffbom", "\x00\x1f", "  ", "😀\x0b"]
# Texts of both kinds: any character that UTF-8 has, and many of those that end a line or a field somewhere.
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(BREAKS + '"\\, '), min_size=1, max_size=20)


def read_tsv(path: Path) -> list[tuple[str, ...]]:
    """Return the fields of each line."""
    return [tuple(line.split("\t")) for line in path.read_bytes().decode().splitlines()]


def in_a_line(text: str) -> str:
    """Return the text with a space for each character that ends a line or a field."""
    return "".join(" " if character in BREAKS else character for character in text)


def export_to(release: Path, layout: str, name: str = "main") -> Path:
    """Export a set of the release to a folder beside it."""
    out = release.parent / f"{layout}-{name}"
    export_set(open_release(release), layout, out, name)
    return out


def files_in(folder: Path) -> set[str]:
    """Return the paths of all files below a folder."""
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def read_rows(path: Path) -> list[Any]:
    """Return the rows of an exported file: JSON objects, or fields separated by tabs or else by spaces."""
    if path.suffix == ".jsonl":
        return json_lines(path)
    rows = []
    for fields in read_tsv(path):
        rows.append(tuple(fields[0].split(" ")) if len(fields) == 1 else fields)
    return rows


SPLITS = ("train", "dev", "test")
Fields = list[tuple[str, ...]]


def query_lines(rows: Rows, split: str) -> Fields:
    """Return the id and the text of each query, without characters that end a line or a field."""
    return [(row["_id"], in_a_line(row["text"])) for row in rows["queries", split]]


def judgment_lines(rows: Rows, split: str) -> Fields:
    """Return the query, the passage and the score of each judgment."""
    return [(row["query-id"], row["corpus-id"], str(row["score"])) for row in rows["qrels", split]]


def trec_judgment_lines(rows: Rows, split: str) -> Fields:
    """Return the judgments with TREC's second field, which is always 0."""
    return [(query_id, "0", passage_id, score) for query_id, passage_id, score in judgment_lines(rows, split)]


def expected_beir(rows: Rows) -> dict[str, list[Any]]:
    """Return the rows of each file in BEIR's format. A query of two splits occurs once."""
    queries = {}
    for split in SPLITS:
        for row in rows["queries", split]:
            queries[row["_id"]] = row
    exported = {"corpus.jsonl": rows["corpus", "corpus"], "queries.jsonl": list(queries.values())}
    for split in ("train", "dev"):
        exported[f"qrels/{split}.tsv"] = [("query-id", "corpus-id", "score"), *judgment_lines(rows, split)]
    return exported


def expected_trec(rows: Rows) -> dict[str, list[Any]]:
    """Return the rows of each file in TREC's format."""
    corpus = rows["corpus", "corpus"]
    exported: dict[str, list[Any]] = {}
    exported["corpus/docs-00.jsonl"] = [{"id": row["_id"], "contents": row["text"]} for row in corpus]
    for split in SPLITS:
        exported[f"topics.{split}.tsv"] = query_lines(rows, split)
    for split in ("train", "dev"):
        exported[f"qrels.{split}.txt"] = trec_judgment_lines(rows, split)
    return exported


def expected_msmarco(rows: Rows) -> dict[str, list[Any]]:
    """Return the rows of each file in MS MARCO's format."""
    corpus = rows["corpus", "corpus"]
    exported: dict[str, list[Any]] = {}
    exported["collection.tsv"] = [(row["_id"], in_a_line(row["text"])) for row in corpus]
    for split in SPLITS:
        exported[f"queries.{split}.tsv"] = query_lines(rows, split)
    for split in ("train", "dev"):
        exported[f"qrels.{split}.tsv"] = trec_judgment_lines(rows, split)
    return exported


def expected_tevatron(rows: Rows) -> dict[str, list[Any]]:
    """Return the rows of each file in Tevatron's format."""
    corpus = rows["corpus", "corpus"]
    exported: dict[str, list[Any]] = {}
    exported["corpus.jsonl"] = [{"docid": row["_id"], "title": "", "text": row["text"]} for row in corpus]
    for split in SPLITS:
        exported[f"{split}.jsonl"] = rows[split, split]
    return exported


EXPECTED = {
    "beir": expected_beir,
    "trec": expected_trec,
    "msmarco": expected_msmarco,
    "tevatron": expected_tevatron,
}


@pytest.mark.parametrize("layout", EXPECTED)
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=6, max_size=9, unique=True))
@example(texts=TEXTS)
@example(texts=NASTY)
def test_an_export_read_back_is_the_release_whatever_its_texts(layout: str, tmp_path: Path, texts: list[str]) -> None:
    rows = tables(texts)
    rows["queries", "test"].append({"_id": md5(texts[0]), "text": texts[0]})  # a query may have any characters, too
    out = export_to(make_release(tmp_path / "release", rows), layout)
    expected = EXPECTED[layout](rows)
    assert files_in(out) == expected.keys() | {"EXPORT"}
    for name, exported_rows in expected.items():
        assert read_rows(out / name) == exported_rows


def test_what_a_tsv_cannot_hold_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export_set(open_release(make_release(tmp_path / "release", tables(NASTY))), "msmarco", tmp_path / "out")
    changed_count = sum(text != in_a_line(text) for text in NASTY)
    message = f"collection.tsv: replaced tabs and line ends by spaces in {changed_count} of {len(NASTY)} lines"
    assert message in caplog.text
    marker = json.loads((tmp_path / "out" / "EXPORT").read_text(encoding="utf-8"))
    assert marker["texts_with_spaces_for_tabs_and_line_ends"] == {"collection.tsv": changed_count}


def test_a_title_opens_the_text_where_the_format_has_no_place_for_it(tmp_path: Path) -> None:
    rows = tables()
    rows["corpus", "corpus"][1]["title"] = "饺子"
    release = make_release(tmp_path / "release", rows)
    assert read_tsv(export_to(release, "msmarco") / "collection.tsv")[1][1] == f"饺子 {TEXTS[1]}"
    assert json_lines(export_to(release, "beir") / "corpus.jsonl")[1]["title"] == "饺子"


def test_a_large_corpus_comes_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_formats, "PASSAGES_PER_FILE", 4)
    texts = [f"第{number}段" for number in range(21)]
    out = export_to(make_release(tmp_path / "release", tables(texts), rows_per_shard=3), "trec")
    rows_per_file = []
    exported_texts = []
    for path in sorted(out.glob("corpus/*")):
        rows = json_lines(path)
        rows_per_file.append(len(rows))
        exported_texts += [row["contents"] for row in rows]
    assert rows_per_file == [4, 4, 4, 4, 4, 1]
    assert exported_texts == texts


def test_an_out_of_domain_set_is_joined_from_queries_judgments_and_corpus(tmp_path: Path) -> None:
    rows = tables()
    rows["qrels", "dev"].append(rows["qrels", "dev"][0] | {"corpus-id": md5(TEXTS[0])})
    rows["dev", "dev"][0]["positive_passages"].append(passage(TEXTS[0]))
    rows["cmedqa-corpus", "corpus"] = rows["corpus", "corpus"]
    rows["cmedqa-qrels", "dev"] = rows["qrels", "dev"]
    for split in ("train", "dev"):
        rows["cmedqa-queries", split] = rows["queries", split]
    out = export_to(make_release(tmp_path / "release", rows), "tevatron", "cmedqa")
    # The set has no negatives, and no judgments of the training queries
    without_negatives = [row | {"negative_passages": []} for row in rows["dev", "dev"]]
    assert json_lines(out / "dev.jsonl") == without_negatives
    unlabelled = [row | {"positive_passages": [], "negative_passages": []} for row in rows["train", "train"]]
    assert json_lines(out / "train.jsonl") == unlabelled


@pytest.mark.parametrize(
    ("set_name", "config", "verb"),
    [
        ("cmedqa", "cmedqa-corpus", "add cmedqa"),
        ("crosslingual", "crosslingual-queries", "add crosslingual"),
        ("stress-homophone", "stress-homophone-queries", "add stress --kind homophone"),
    ],
)
def test_a_set_that_the_release_lacks_is_named(tmp_path: Path, set_name: str, config: str, verb: str) -> None:
    release = make_release(tmp_path / "release")
    with pytest.raises(InputError, match=rf"lacks the config '{config}' .*; make it .*by `python -m builders {verb}"):
        export_to(release, "beir", set_name)
    with pytest.raises(InputError, match="has only the main set"):
        export_to(release, "official", set_name)
    assert {path.name for path in tmp_path.iterdir()} == {"release"}


def test_every_format_that_is_offered_is_written() -> None:
    assert tuple(export_formats.FORMATS) == EXPORT_FORMATS
    assert set(export_formats.WITH_NEGATIVES).union(FORMS) <= set(EXPORT_FORMATS)


def test_a_call_returns_the_rows_of_each_file(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    report = export_release(open_release(release), format="msmarco", out=tmp_path / "out")
    row_counts = report.to_pandas().set_index("file")["rows"]
    assert row_counts["collection.tsv"] == len(TEXTS)
    assert set(row_counts.index) == files_in(tmp_path / "out") - {"EXPORT"}
    assert str(report).endswith(f"export: {tmp_path / 'out'}")


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    out = export_to(release, "beir")
    tree_before = tree(out)
    assert tree(export_to(release, "beir")) == tree_before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    for target in (tmp_path / "mine", release, release / "beir", tmp_path):
        with pytest.raises(InputError):
            export_set(open_release(release), "trec", target)
    assert names(tmp_path / "mine") == ["notes.txt"]
    assert (release / "manifest.json").exists()
    assert names(tmp_path) == ["beir-main", "mine", "release"]


@pytest.mark.parametrize(("layout", "wrong_id"), [("beir", ""), ("trec", "a\u3000b"), ("msmarco", "a\n")])
def test_an_id_with_blanks_is_refused(layout: str, wrong_id: str, tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"][0]["_id"] = rows["qrels", "dev"][0]["query-id"] = wrong_id
    release = make_release(tmp_path / "release", rows)
    with pytest.raises(InputError) as error:
        export_set(open_release(release), layout, tmp_path / "out")
    assert str(error.value).startswith(f"{release}: has the id {wrong_id!r}, but ")
