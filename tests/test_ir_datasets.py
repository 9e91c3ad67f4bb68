"""``dureader_retrieval_ir`` with the real ``ir_datasets``: for every id, the counts and the records 0, 9 and last."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from archive_server import ArchiveServer, archive, rows_of_archive
from commands import ROOT, output, run_python
from environments import clean_environ
from hub_server import Blob, Hub
from pages import blocks, shows
from releases import make_release
from test_peers import ROWS, peers  # noqa: F401

from builders.store.layout import SETS

SETS_HERE = ("", *(name for name in SETS if name != "main"))
IDS = [("dureader-retrieval", name, split) for name in SETS_HERE for split in ("", "train", "dev", "test")]
PAGE = ROOT / "docs" / "tools" / "ir_datasets.md"
# Look at an id: the counts and records, or the error.
LOOK = """
import dureader_retrieval_ir, ir_datasets

def shown(records):
    records = [list(record) for record in records]
    return {"count": len(records), **{place: records[place] for place in (0, 9, -1) if place < len(records)}}

def look(dataset_id):
    try:
        dataset = ir_datasets.load(dataset_id)
        kinds = [kind for kind in ("docs", "queries", "qrels") if dataset.has(kind)]
        found = {kind: shown(getattr(dataset, f"{kind}_iter")()) for kind in kinds}
        assert {kind: len(getattr(dataset, kind)) for kind in kinds} == {kind: found[kind]["count"] for kind in kinds}
        assert {kind: of["count"] for kind, of in dataset.metadata().items()} == {k: found[k]["count"] for k in kinds}
        last = dataset.docs_iter()[-1]
        assert list(last) == found["docs"][-1] and dataset.docs.lookup(last.doc_id) == last
        return found
    except ValueError as error:
        return str(error)

def look_at_all(*releases):
    ids = sorted(each for each in ir_datasets.registry if each.startswith("dureader"))
    found = []
    for release in releases:
        dureader_retrieval_ir.register(release)
        found.append({each: look(each) for each in ids})
    return found
"""


@pytest.fixture
def alone(tmp_path: Path) -> Path:
    (tmp_path / "site").mkdir()
    for name in ("dureader_retrieval.py", "dureader_retrieval_ir.py"):
        shutil.copy(ROOT / name, tmp_path / "site")
    return tmp_path / "site"


def look(commands: Path, alone: Path, variables: dict[str, str], code: str) -> Any:
    home = {"IR_DATASETS_HOME": str(alone.parent / "home"), "PYTHONPATH": str(alone), "no_proxy": "127.0.0.1"}
    code = f"{LOOK}\nprint(json.dumps({code}))"
    environment = {key: value for key, value in clean_environ().items() if not key.startswith("HF_")}
    environment |= {"HF_HOME": str(alone.parent / "home"), **variables, **home}
    return run_python(code, alone.parent, environment, commands / "python")


def records(rows: list[list[Any]]) -> dict[str, Any]:
    return {"count": len(rows), **{str(place): rows[place] for place in (0, 9, -1) if place < len(rows)}}


def expected(rows: dict[tuple[str, str], list[dict[str, Any]]], set_name: str, split: str) -> dict[str, Any] | None:
    configs = SETS[set_name or "main"]
    if (configs.corpus, "corpus") not in rows or (split and (configs.queries, split) not in rows):
        return None
    found = {"docs": records([[row["_id"], row["text"]] for row in rows[configs.corpus, "corpus"]])}
    if split:
        queries = rows[configs.queries, split]
        found["queries"] = records([list(row.values()) for row in queries])
        own = {row.get("zh_id", row["_id"]): row["_id"] for row in queries}
        judged = [row for row in rows.get((configs.qrels, split), []) if row["query-id"] in own]
        if (configs.qrels, split) in rows:
            found["qrels"] = records([[own[r["query-id"]], r["corpus-id"], r["score"], "0"] for r in judged])
    return found


def assert_shows(found: dict[str, Any], rows: dict[tuple[str, str], list[dict[str, Any]]], lacking: str) -> None:
    """Every id gives its part of the rows. An id without rows gives an error with the words ``lacking``."""
    ids = ["/".join(filter(None, each)) for each in IDS]
    assert sorted(found) == sorted(ids)
    for dataset_id, (_, set_name, split) in zip(ids, IDS, strict=True):
        if (wanted := expected(rows, set_name, split)) is None:
            assert lacking in found[dataset_id]
        else:
            assert found[dataset_id] == wanted, dataset_id


def test_every_id_gives_the_rows_of_a_directory_a_hub_and_the_archive(peers: Path, alone: Path, tmp_path: Path) -> None:
    release = make_release(tmp_path / "RELEASE", ROWS, rows_per_shard=20)
    with Hub() as hub, ArchiveServer(archive()) as server:
        files = {path.relative_to(release).as_posix(): path for path in release.rglob("*") if path.is_file()}
        blobs = {name: Blob(path.read_bytes(), path.suffix == ".parquet") for name, path in files.items()}
        hub.create("org/name").add("release", blobs)
        variables = {k: v for k, v in hub.environment(tmp_path / "home", None).items() if k.startswith(("HF_", "SSL"))}
        variables["DUREADER_RETRIEVAL_BASE_URL"] = server.url
        here, there, published = look(peers, alone, variables, f"look_at_all({str(release)!r}, 'org/name', '')")
        assert len(server.requests) == 1
    assert_shows(here, ROWS, "has no test queries; it has queries of train, dev")
    assert json.dumps(there) == json.dumps(here).replace(str(release), "org/name")
    assert_shows(published, rows_of_archive(), "the published archive lacks")
    fetched = {path.split("/")[6] for _, path in hub.requests if "/resolve/" in path}
    assert fetched == {"manifest.json"} | {
        name for each in SETS.values() for name in (each.corpus, each.queries, each.qrels)
    }


@pytest.mark.slow
def test_the_page_prints_what_it_shows(peers: Path, alone: Path, tmp_path: Path, sample_release: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/sample").symlink_to(sample_release)
    variables = {"PATH": f"{peers}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(alone), "PYTHONUTF8": "1"}
    variables |= {"HF_HOME": str(tmp_path / "home"), "IR_DATASETS_HOME": str(tmp_path / "home")}
    ran, printed = 0, None
    for each in blocks(PAGE):
        if each.is_run:
            argv = ["python", "-c", each.text] if each.language == "python" else ["bash", "-ec", each.text]
            ran, printed = ran + 1, output(argv, tmp_path, clean_environ() | variables)
        elif each.language == "text" and printed is not None:
            assert shows(each.text, printed), printed
            printed = None
    assert ran == 2 and printed is None
