"""Test ``builders official --copy``: releases from copies on a hub."""

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
from official_archives import tables as rows_of
from releases import QUESTIONS, TEXTS, md5, passage, tables

DEV = QUESTIONS["dev"]
RANKING, MTEB, C_MTEB = "zyznull/dureader-retrieval-ranking", "mteb/DuRetrieval", "C-MTEB/DuRetrieval"
IDS = [*map(md5, TEXTS)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    content = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()
    path.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)
    return path


def parquet(path: Path, **columns: list[Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path)


def c_mteb(folder: Path) -> list[Path]:
    """Write five passages, both dev queries, and most judgments in C-MTEB's format, with a separate folder of qrels."""
    parquet(folder / "DuRetrieval/data/corpus-00000-of-00001-19b9.parquet", id=IDS[1:], text=TEXTS[1:])
    parquet(folder / "DuRetrieval/data/queries-00000-of-00001-7c7e.parquet", id=[*map(md5, DEV)], text=DEV)
    judged = folder / "DuRetrieval-qrels/data/dev-00000-of-00001-d3c3.parquet"
    parquet(judged, qid=[md5(DEV[0])], pid=IDS[4:5], score=[1])
    return [folder / "DuRetrieval", folder / "DuRetrieval-qrels"]


def mteb(folder: Path, queries: dict[str, str], judged: list[tuple[str, int, float]]) -> list[Path]:
    """Write the data in mteb's format, with one folder a config. ``judged``: query, number of the passage, score."""
    parquet(folder / "corpus/dev-00000-of-00001.parquet", _id=IDS[1:], text=TEXTS[1:], title=[""] * 5)
    parquet(folder / "queries/dev-00000-of-00001.parquet", _id=[*queries], text=[*queries.values()])
    asked, passages, scores = zip(*judged, strict=True)
    columns = {"query-id": [*asked], "corpus-id": [IDS[n] for n in passages], "score": [*scores]}
    parquet(folder / "data/dev-00000-of-00001.parquet", **columns)
    return [folder]


ODD = ({"q1": DEV[0], md5(DEV[1]): DEV[1]}, [("q1", 4, 1.0), ("q1", 5, 0.0)])  # a foreign id, and a score of 0


def build(out: Path, *words: object, code: int = 0) -> Done:
    return run("builders", "official", "--copy", *words, "--out", out, code=code)


def test_rows_with_their_passages_become_a_release(tmp_path: Path) -> None:
    given = tables()
    for split in ("train", "dev"):
        bare = json.loads(json.dumps(given[split, split]).replace('"title": "", ', ""))  # the copy has no titles
        lines(tmp_path / "copy" / f"{split}.jsonl.gz", bare)
    done = build(tmp_path / "out", tmp_path / "copy")
    rows = rows_of(tmp_path / "out")
    for split in ("train", "dev"):
        for config in ("queries", "qrels", split):
            assert rows[config, split] == given[config, split]
    assert sorted(row["text"] for row in rows["corpus", "corpus"]) == sorted(TEXTS)
    assert re.search(r"passages +6 +8,096,668 +-8,096,662\n", done.stdout)
    assert re.search(r"dev judgments +2 +9,863 +-9,861\n", done.stdout) and "MD5" not in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


def test_rows_of_one_question_are_united(tmp_path: Path) -> None:
    given = [(0, [4], [0, 2]), (1, [5], []), (0, [5], [1]), (0, [4, 3], [2, 5])]  # question, positives, negatives
    rows: list[dict[str, Any]] = []
    for number, *both in given:
        own, others = ([passage(TEXTS[n]) for n in each] for each in both)
        rows.append({"query": DEV[number], "positive_passages": own, "negative_passages": others})
    words = [lines(tmp_path / "dev.jsonl", rows)]
    done = build(tmp_path / "out", *words)
    found = rows_of(tmp_path / "out")
    first, second = found["dev", "dev"]
    assert (first["query"], second["query"]) == (DEV[0], DEV[1])
    assert first["positive_passages"] == [passage(TEXTS[n]) for n in (4, 5, 3)]
    assert first["negative_passages"] == [passage(TEXTS[n]) for n in (0, 2, 1)]
    assert [row["corpus-id"] for row in found["qrels", "dev"]] == [IDS[n] for n in (4, 5, 3, 5)]
    assert "rows of dev whose query came before (their passages are united): 2" in done.stdout
    run("builders", "check", "--release", tmp_path / "out")


@pytest.mark.parametrize("layout", ["C-MTEB", "mteb"])
def test_corpus_queries_and_judgments_become_a_release(layout: str, tmp_path: Path) -> None:
    words = c_mteb(tmp_path / "copy") if layout == "C-MTEB" else mteb(tmp_path / "copy", *ODD)
    done = build(tmp_path / "out", *words)
    rows = rows_of(tmp_path / "out")
    assert {*rows} == {("corpus", "corpus"), ("queries", "dev"), ("qrels", "dev"), ("dev", "dev")}
    assert [row["text"] for row in rows["corpus", "corpus"]] == TEXTS[1:]
    assert rows["queries", "dev"] == [{"_id": md5(DEV[0]), "text": DEV[0]}]
    assert rows["qrels", "dev"] == tables()["qrels", "dev"][:1]
    assert "queries that nobody judged (left out): 1; " in done.stdout
    for other in (
        "queries whose id in the copy is not the MD5 of the text: 1; q1",
        "judgments of dev with a score of 0",
    ):
        assert (other in done.stdout) == (layout == "mteb")
    assert "those of these sources, not the published collection's" in (tmp_path / "out/README.md").read_text("utf-8")


def test_copies_come_from_a_hub(tmp_path: Path) -> None:
    folders = {RANKING: tmp_path / "ranking", MTEB: mteb(tmp_path / "mteb", *ODD)[0]}
    lines(folders[RANKING] / "dev.jsonl.gz", tables()["dev", "dev"])
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

        for judged, words in ((2, (f"{RANKING}/dev.jsonl.gz",)), (1, (MTEB,)), (1, (C_MTEB, f"{C_MTEB}-qrels"))):
            assert json.loads(build_at(*words).stdout)["copy"]["published"]["dev judgments"] == [judged, 9863]
            build_of = json.loads((tmp_path / "out" / "manifest.json").read_text())["builds"][0]
            assert build_of["options"] == {"copy": [*words]}
            assert all(source["name"].startswith(words[0].split("/")[0]) for source in build_of["sources"])
        fetched = {path.rpartition("/")[2] for method, path in hub.requests if method == "GET"}
        assert not fetched & {"train.jsonl.gz", "script.py", "dataset_infos.json"}
        for name, said in (
            (C_MTEB, "the copy has corpus, queries; expected queries with passages, or corpus, queries and qrels"),
            ("no/body", "has no dataset no/body"),
            (f"{MTEB}/nowhere", f"{MTEB} has no .jsonl"),
        ):
            assert said in build_at(name, code=1).stderr
