"""``builders export``: an independent reader of each format finds the content of the release."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from releases import TEXTS, json_lines, make_release, md5, passage, tables

from builders.core.errors import InputError
from builders.export import export_formats
from builders.export.export_formats import export
from builders.export.export_options import EXPORT_FORMATS
from builders.export.export_release import export_release
from builders.export.exported_runs import FORMS
from builders.store.reader import open_release

Rows = dict[tuple[str, str], list[dict[str, Any]]]
BREAKS = "\t\n\v\f\r\x1c\x1d\x1e\x85\u2028\u2029"
NASTY = ["a\tb\r\nc", "行\u2028分\u2029隔\x85符", '"in quotes" \\ \\n', "\ufeffbom", "\x00\x1f", "  ", "😀\x0b"]
# Texts of both kinds: any character that UTF-8 has, and many of those that end a line or a field somewhere.
TEXT = st.text(st.characters(exclude_categories=["Cs"]) | st.sampled_from(BREAKS + '"\\, '), min_size=1, max_size=20)


def tsv(path: Path) -> list[tuple[str, ...]]:
    return [tuple(line.split("\t")) for line in path.read_bytes().decode().splitlines()]


def in_a_line(text: str) -> str:
    return "".join(" " if character in BREAKS else character for character in text)


def write(release: Path, layout: str, name: str = "main") -> Path:
    out = release.parent / f"{layout}-{name}"
    export(open_release(release), layout, out, name)
    return out


def files(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def content(path: Path) -> list[Any]:
    if path.suffix == ".jsonl":
        return json_lines(path)
    return [each if each[1:] else tuple(each[0].split(" ")) for each in tsv(path)]


def expected(layout: str, rows: Rows) -> dict[str, list[Any]]:
    corpus, splits = rows["corpus", "corpus"], ("train", "dev", "test")
    in_lines = {split: [(row["_id"], in_a_line(row["text"])) for row in rows["queries", split]] for split in splits}
    judged = {
        split: [(row["query-id"], row["corpus-id"], str(row["score"])) for row in rows["qrels", split]]
        for split in ("train", "dev")
    }
    with_0 = {split: [(query, "0", *rest) for query, *rest in found] for split, found in judged.items()}
    if layout == "beir":
        queries = list({row["_id"]: row for split in splits for row in rows["queries", split]}.values())
        head = ("query-id", "corpus-id", "score")
        qrels = {f"qrels/{split}.tsv": [head, *found] for split, found in judged.items()}
        return {"corpus.jsonl": corpus, "queries.jsonl": queries, **qrels}
    if layout == "trec":
        documents = [{"id": row["_id"], "contents": row["text"]} for row in corpus]
        topics = {f"topics.{split}.tsv": found for split, found in in_lines.items()}
        return {"corpus/docs-00.jsonl": documents, **topics, **{f"qrels.{s}.txt": found for s, found in with_0.items()}}
    if layout == "msmarco":
        queries = {f"queries.{split}.tsv": found for split, found in in_lines.items()}
        passages = [(row["_id"], in_a_line(row["text"])) for row in corpus]
        return {"collection.tsv": passages, **queries, **{f"qrels.{split}.tsv": with_0[split] for split in with_0}}
    documents = [{"docid": row["_id"], "title": "", "text": row["text"]} for row in corpus]
    return {"corpus.jsonl": documents, **{f"{split}.jsonl": rows[split, split] for split in splits}}


def check(layout: str, rows: Rows, release: Path) -> None:
    out, wanted = write(release, layout), expected(layout, rows)
    assert files(out) == {*wanted, "EXPORT"}
    assert {name: content(out / name) for name in wanted} == wanted


LAYOUTS = ["beir", "trec", "msmarco", "tevatron"]


@pytest.mark.parametrize("layout", LAYOUTS)
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXT, min_size=6, max_size=9, unique=True))
@example(texts=TEXTS)
@example(texts=NASTY)
def test_an_export_read_back_is_the_release_whatever_its_texts(layout: str, tmp_path: Path, texts: list[str]) -> None:
    rows = tables(texts)
    rows["queries", "test"].append({"_id": md5(texts[0]), "text": texts[0]})  # a query may have any characters, too
    check(layout, rows, make_release(tmp_path / "release", rows))


def test_what_a_tsv_cannot_hold_is_reported(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    export(open_release(make_release(tmp_path / "release", tables(NASTY))), "msmarco", tmp_path / "out")
    changed = sum(text != in_a_line(text) for text in NASTY)
    words = f"collection.tsv: replaced tabs and line ends by spaces in {changed} of {len(NASTY)} lines"
    assert words in caplog.text
    marker = json.loads((tmp_path / "out" / "EXPORT").read_text(encoding="utf-8"))
    assert marker["texts_with_spaces_for_tabs_and_line_ends"] == {"collection.tsv": changed}


def test_a_title_opens_the_text_where_the_format_has_no_place_for_it(tmp_path: Path) -> None:
    rows = tables()
    rows["corpus", "corpus"][1]["title"] = "饺子"
    release = make_release(tmp_path / "release", rows)
    assert tsv(write(release, "msmarco") / "collection.tsv")[1][1] == f"饺子 {TEXTS[1]}"
    assert json_lines(write(release, "beir") / "corpus.jsonl")[1]["title"] == "饺子"


def test_a_large_corpus_comes_in_several_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_formats, "PASSAGES_PER_FILE", 4)
    texts = [f"第{number}段" for number in range(21)]
    out = write(make_release(tmp_path / "release", tables(texts), rows_per_shard=3), "trec")
    found = [json_lines(path) for path in sorted(out.glob("corpus/*"))]
    assert [len(rows) for rows in found] == [4, 4, 4, 4, 4, 1]
    assert [row["contents"] for rows in found for row in rows] == texts


def test_an_out_of_domain_set_is_joined_from_queries_judgments_and_corpus(tmp_path: Path) -> None:
    rows = tables()
    rows["qrels", "dev"].append({**rows["qrels", "dev"][0], "corpus-id": md5(TEXTS[0])})
    rows["dev", "dev"][0]["positive_passages"].append(passage(TEXTS[0]))
    rows["cmedqa-corpus", "corpus"], rows["cmedqa-qrels", "dev"] = rows["corpus", "corpus"], rows["qrels", "dev"]
    rows |= {("cmedqa-queries", split): rows["queries", split] for split in ("train", "dev")}
    out = write(make_release(tmp_path / "release", rows), "tevatron", "cmedqa")
    assert json_lines(out / "dev.jsonl") == [{**row, "negative_passages": []} for row in rows["dev", "dev"]]
    unlabelled = [{**row, "positive_passages": [], "negative_passages": []} for row in rows["train", "train"]]
    assert json_lines(out / "train.jsonl") == unlabelled


def test_a_set_that_the_release_lacks_is_named(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    with pytest.raises(InputError, match=r"lacks the config 'cmedqa-corpus' .*; run `python -m builders add cmedqa`"):
        write(release, "beir", "cmedqa")
    with pytest.raises(InputError, match="has only the main set"):
        write(release, "official", "cmedqa")
    assert {path.name for path in tmp_path.iterdir()} == {"release"}


def test_every_format_that_is_offered_is_written() -> None:
    assert tuple(export_formats.FORMATS) == EXPORT_FORMATS
    assert {*export_formats.WITH_NEGATIVES, *FORMS} <= {*EXPORT_FORMATS}


def test_a_call_returns_the_rows_of_each_file(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    report = export_release(open_release(release), format="msmarco", out=tmp_path / "out")
    counts = report.to_pandas().set_index("file")["rows"]
    assert counts["collection.tsv"] == len(TEXTS) and set(counts.index) == files(tmp_path / "out") - {"EXPORT"}
    assert str(report).endswith(f"export: {tmp_path / 'out'}")


def test_an_export_replaces_an_earlier_one_and_nothing_else(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    out = write(release, "beir")
    before = {name: (out / name).read_bytes() for name in files(out)}
    assert {name: (write(release, "beir") / name).read_bytes() for name in files(out)} == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("keep")
    for target in (tmp_path / "mine", release, release / "beir", tmp_path):
        with pytest.raises(InputError):
            export(open_release(release), "trec", target)
    assert files(tmp_path / "mine") == {"notes.txt"}
    assert (release / "manifest.json").exists()
    assert {path.name for path in tmp_path.iterdir()} == {"release", "beir-main", "mine"}


@pytest.mark.parametrize(("layout", "bad"), [("beir", ""), ("trec", "a\u3000b"), ("msmarco", "a\n")])
def test_an_id_with_blanks_is_refused(layout: str, bad: str, tmp_path: Path) -> None:
    rows = tables()
    rows["queries", "dev"][0]["_id"] = rows["qrels", "dev"][0]["query-id"] = bad
    release = make_release(tmp_path / "release", rows)
    with pytest.raises(InputError) as error:
        export(open_release(release), layout, tmp_path / "out")
    assert str(error.value).startswith(f"{release}: has the id {bad!r}, but ")
