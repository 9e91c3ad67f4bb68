"""``builders official --copy``: what others keep on a hub becomes a release, and how it differs is printed."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from commands import Done, run
from hub_client import run_at
from hub_repos import Blob
from hub_server import Hub
from releases import QUESTIONS, TEXTS, md5, passage, tables

from builders.store.reader import Release, open_release

DEV = QUESTIONS["dev"]
RANKING, MTEB, C_MTEB = "zyznull/dureader-retrieval-ranking", "mteb/DuRetrieval", "C-MTEB/DuRetrieval"


def ranking(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Tevatron's rows, without titles, as that copy has them."""
    for row in rows:
        for each in [*row["positive_passages"], *row["negative_passages"]]:
            del each["title"]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(
        gzip.compress("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode(), mtime=0)
    )
    return path


def parquet(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table({name.replace("_is_", "-"): values for name, values in columns.items()}), path)


def c_mteb(folder: Path) -> list[Path]:
    """Five passages, both dev queries, and all judgments but one; as C-MTEB has them, judgments in a folder apart."""
    texts = TEXTS[1:]
    parquet(folder / "DuRetrieval/data/corpus-00000-of-00001-19b9.parquet", id=[*map(md5, texts)], text=texts)
    parquet(folder / "DuRetrieval/data/queries-00000-of-00001-7c7e.parquet", id=[*map(md5, DEV)], text=DEV)
    judged = folder / "DuRetrieval-qrels/data/dev-00000-of-00001-d3c3.parquet"
    parquet(judged, qid=[md5(DEV[0])], pid=[md5(TEXTS[4])], score=[1])
    return [folder / "DuRetrieval", folder / "DuRetrieval-qrels"]


def mteb(folder: Path) -> Path:
    """The same as mteb has it: a config a folder, a query's id that is none of ours, a judgment of 0."""
    texts = TEXTS[1:]
    parquet(folder / "corpus/dev-00000-of-00001.parquet", _id=[*map(md5, texts)], text=texts, title=[""] * len(texts))
    parquet(folder / "queries/dev-00000-of-00001.parquet", _id=["q1", md5(DEV[1])], text=DEV)
    columns = {"query-id": ["q1", "q1"], "corpus-id": [md5(TEXTS[4]), md5(TEXTS[5])], "score": [1.0, 0.0]}
    parquet(folder / "data/dev-00000-of-00001.parquet", **columns)
    return folder


def build(out: Path, *words: object, code: int = 0) -> tuple[Done, Release]:
    done = run("builders", "official", "--copy", *words, "--out", out, code=code)
    return done, open_release(out) if not code else None  # type: ignore[return-value]


def rows(release: Release, config: str, split: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = release.table(config, split).to_pylist()
    return found


def test_rows_with_their_passages_become_a_release(tmp_path: Path) -> None:
    given = tables()
    for split in ("train", "dev"):
        ranking(tmp_path / "copy" / f"{split}.jsonl.gz", tables()[split, split])
    done, release = build(tmp_path / "out", tmp_path / "copy")
    for split in ("train", "dev"):
        for config in ("queries", "qrels", split):
            assert rows(release, config, split) == given[config, split]
    assert sorted(row["text"] for row in rows(release, "corpus", "corpus")) == sorted(TEXTS)
    assert re.search(r"dev judgments +2 +9,863 +-9,861\n", done.stdout)
    assert re.search(r"passages +6 +8,096,668 +-8,096,662\n", done.stdout)
    assert "MD5" not in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


def test_what_is_odd_in_rows_is_counted(tmp_path: Path) -> None:
    row = {"query_id": 7, "query": DEV[0], "positive_passages": [passage(TEXTS[4]), {"docid": "x", "text": " "}]}
    row["negative_passages"] = [{"docid": 12, "text": TEXTS[0]}, passage(TEXTS[4])]
    lines = tmp_path / "dev.jsonl"
    lines.write_text(f"{json.dumps(row)}\n\n{json.dumps(row)}\n")
    done, release = build(tmp_path / "out", lines)
    assert rows(release, "qrels", "dev") == [{"query-id": md5(DEV[0]), "corpus-id": md5(TEXTS[4]), "score": 1}]
    (joined,) = rows(release, "dev", "dev")
    assert joined["negative_passages"] == [passage(TEXTS[0])]
    for said in (
        "queries whose id in the copy is not the MD5 of the text: 2",
        "passages whose id in the copy is not the MD5 of the text: 2",
        "passages without a text (left out): 2",
        "negatives that are a positive of their query (left out): 2",
        "rows of dev whose query came before (their passages are united): 1",
    ):
        assert said in done.stdout


@pytest.mark.parametrize("layout", ["rows", "tables"])
def test_rows_of_one_question_are_united(layout: str, tmp_path: Path) -> None:
    """As everywhere (CONTRIBUTING, The rules): no positive is lost, and none is also a negative."""
    if layout == "rows":
        given = [([4], [0, 2]), ([5], [1]), ([4, 3], [2, 5])]  # the positives and negatives of three rows
        lines = [
            {"query": DEV[0], **{f"{kind}_passages": [passage(TEXTS[n]) for n in each] for kind, each in both}}
            for both in (zip(("positive", "negative"), row, strict=True) for row in given)
        ]
        lines.insert(1, {"query": DEV[1], "positive_passages": [passage(TEXTS[5])], "negative_passages": []})
        (tmp_path / "dev.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        words = [tmp_path / "dev.jsonl"]
    else:
        words = [mteb(tmp_path / "copy")]
        parquet(words[0] / "queries/dev-00000-of-00001.parquet", _id=["a", "b", "c"], text=[DEV[0], DEV[1], DEV[0]])
        judged = {"query-id": ["a", "b", "c", "c"], "corpus-id": [md5(TEXTS[n]) for n in (4, 5, 5, 3)]}
        parquet(words[0] / "data/dev-00000-of-00001.parquet", **judged, score=[1] * 4)
    done, release = build(tmp_path / "out", *words)
    first, second = rows(release, "dev", "dev")
    assert (first["query"], second["query"]) == (DEV[0], DEV[1])
    assert first["positive_passages"] == [passage(TEXTS[n]) for n in (4, 5, 3)]
    assert first["negative_passages"] == ([passage(TEXTS[n]) for n in (0, 2, 1)] if layout == "rows" else [])
    assert [row["corpus-id"] for row in rows(release, "qrels", "dev")] == [md5(TEXTS[n]) for n in (4, 5, 3, 5)]
    assert len(rows(release, "queries", "dev")) == 2
    again = 2 if layout == "rows" else 1
    assert f"rows of dev whose query came before (their passages are united): {again}" in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


@pytest.mark.parametrize("layout", ["C-MTEB", "mteb"])
def test_corpus_queries_and_judgments_become_a_release(layout: str, tmp_path: Path) -> None:
    words = c_mteb(tmp_path / "copy") if layout == "C-MTEB" else [mteb(tmp_path / "copy")]
    done, release = build(tmp_path / "out", *words)
    assert {*release.splits()} == {("corpus", "corpus"), ("queries", "dev"), ("qrels", "dev"), ("dev", "dev")}
    assert [row["text"] for row in rows(release, "corpus", "corpus")] == TEXTS[1:]
    assert rows(release, "queries", "dev") == [{"_id": md5(DEV[0]), "text": DEV[0]}]
    assert rows(release, "qrels", "dev") == tables()["qrels", "dev"][:1]
    assert re.search(r"dev judgments +1 +9,863 +-9,862\n", done.stdout)
    assert "queries that nobody judged (left out): 1; " in done.stdout
    for other in (
        "queries whose id in the copy is not the MD5 of the text: 1; q1",
        "judgments of dev with a score of 0",
    ):
        assert (other in done.stdout) == (layout == "mteb")
    assert "those of these sources, not the published collection's" in (tmp_path / "out/README.md").read_text("utf-8")


def test_copies_come_from_a_hub(tmp_path: Path) -> None:
    folders = {RANKING: tmp_path / "ranking", MTEB: mteb(tmp_path / "mteb")}
    ranking(folders[RANKING] / "dev.jsonl.gz", tables()["dev", "dev"])
    (folders[RANKING] / "train.jsonl.gz").write_bytes(b"not looked at")
    (folders[RANKING] / "script.py").write_text("raise SystemExit")
    (folders[MTEB] / "dataset_infos.json").write_text("{}")
    folders |= dict(zip((C_MTEB, f"{C_MTEB}-qrels"), c_mteb(tmp_path / "c"), strict=True))
    with Hub() as hub:
        for name, folder in folders.items():
            paths = [path for path in folder.rglob("*") if path.is_file()]
            files = {path.relative_to(folder).as_posix(): Blob(path.read_bytes(), True) for path in paths}
            hub.create(name).add("a copy", files)

        def build_at(*words: str, code: int = 0) -> Done:
            more = ["--out", tmp_path / "out", "--format", "json"]
            return run_at(hub, tmp_path / "home", "builders", "official", "--copy", *words, *more, code=code)

        for words in ((f"{RANKING}/dev.jsonl.gz",), (MTEB,), (C_MTEB, f"{C_MTEB}-qrels")):
            stats = json.loads(build_at(*words).stdout)
            assert stats["copy"]["published"]["dev judgments"] == [1 + (words[0] != MTEB and "zyz" in words[0]), 9863]
            build_of = json.loads((tmp_path / "out" / "manifest.json").read_text())["builds"][0]
            assert build_of["options"] == {"copy": [*words]}
            assert all(source["name"].startswith(words[0].split("/")[0]) for source in build_of["sources"])
        assert not any(
            name in path
            for name in ("train.jsonl.gz", "script.py", "infos.json")
            for method, path in hub.requests
            if method == "GET"
        )
        assert "the copy has no qrels; found corpus, queries (C-MTEB keeps" in build_at(C_MTEB, code=1).stderr
        assert "there is no dataset no/body" in build_at("no/body", code=1).stderr
        assert f"{MTEB} has no .jsonl" in build_at(f"{MTEB}/nowhere", code=1).stderr


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        (
            "dev.jsonl",
            '{"query": "q", "positive_passages": [{"docid": "a"}]}',
            ":1: positive_passages[0]: lacks text",
        ),
        ("dev.jsonl", '{"query": " ", "positive_passages": []}', ":1: expected the text of a query, found nothing"),
        ("dev.jsonl", '{"text": "q"}', ": has the columns text; expected query and positive_passages; _id and text;"),
        ("texts.jsonl", '{"id": "1", "text": "q"}', ": texts of what? expected a name with corpus or queries in it"),
        ("dev.jsonl", "", ": is empty"),
        ("dev.parquet", "PAR1", ": is no Parquet file"),
        ("notes.txt", "x", "has no .jsonl, .jsonl.gz or .parquet file"),
    ],
)
def test_what_is_no_copy_is_refused(name: str, content: str, said: str, tmp_path: Path) -> None:
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / name).write_text(content)
    done, _ = build(tmp_path / "out", tmp_path / "copy", code=1)
    assert said in done.error
    assert not (tmp_path / "out").exists()


def test_a_wrong_row_of_parquet_is_named(tmp_path: Path) -> None:
    folder, _ = c_mteb(tmp_path / "copy")
    parquet(folder / "data/corpus-2.parquet", id=["a", "b"], text=["北京", None])
    done, _ = build(tmp_path / "out", tmp_path / "copy", code=1)
    assert done.error == f"{folder}/data/corpus-2.parquet, row 2: text: expected `str`, got `null`"
