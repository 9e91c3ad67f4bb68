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

Rows = dict[tuple[str, str], list[dict[str, Any]]]


def all_ids() -> dict[str, tuple[str, str]]:
    """Return the set and the split of each id, such as dureader-retrieval/cmedqa/dev. The main set has no name."""
    ids = {}
    for set_name in SETS:
        prefix = "dureader-retrieval" if set_name == "main" else f"dureader-retrieval/{set_name}"
        ids[prefix] = (set_name, "")
        for split in ("train", "dev", "test"):
            ids[f"{prefix}/{split}"] = (set_name, split)
    return ids


IDS = all_ids()
PAGE = ROOT / "docs" / "tools" / "ir_datasets.md"
# Look at an id: the counts and records, or the error.
LOOK = """
import dureader_retrieval_ir, ir_datasets

def summary(records):
    records = [list(record) for record in records]
    samples = {"count": len(records)}
    for row in (0, 9, -1):
        if row < len(records):
            samples[row] = records[row]
    return samples

def look(dataset_id):
    try:
        dataset = ir_datasets.load(dataset_id)
        summaries = {}
        counts = {}
        for entity in ("docs", "queries", "qrels"):
            if dataset.has(entity):
                summaries[entity] = summary(getattr(dataset, f"{entity}_iter")())
                counts[entity] = summaries[entity]["count"]
                assert len(getattr(dataset, entity)) == counts[entity]
        assert {entity: about["count"] for entity, about in dataset.metadata().items()} == counts
        last = dataset.docs_iter()[-1]
        assert list(last) == summaries["docs"][-1]
        assert dataset.docs.lookup(last.doc_id) == last
        return summaries
    except ValueError as error:
        return str(error)

def look_at_all(*releases):
    ids = sorted(dataset_id for dataset_id in ir_datasets.registry if dataset_id.startswith("dureader"))
    summaries_by_release = []
    for release in releases:
        dureader_retrieval_ir.register(release)
        summaries_by_release.append({dataset_id: look(dataset_id) for dataset_id in ids})
    return summaries_by_release
"""


@pytest.fixture
def modules_folder(tmp_path: Path) -> Path:
    """A folder with the two shipped modules and nothing else of the project."""
    (tmp_path / "site").mkdir()
    for name in ("dureader_retrieval.py", "dureader_retrieval_ir.py"):
        shutil.copy(ROOT / name, tmp_path / "site")
    return tmp_path / "site"


def look(commands: Path, modules_folder: Path, variables: dict[str, str], call: str) -> Any:
    """Return the value of a call of a function of LOOK, in a new process of the peers' environment."""
    home = str(modules_folder.parent / "home")
    environment = {name: value for name, value in clean_environ().items() if not name.startswith("HF_")}
    environment["HF_HOME"] = home
    environment |= variables
    environment |= {"IR_DATASETS_HOME": home, "PYTHONPATH": str(modules_folder), "no_proxy": "127.0.0.1"}
    code = f"{LOOK}\nprint(json.dumps({call}))"
    return run_python(code, modules_folder.parent, environment, commands / "python")


def summary(records: list[list[Any]]) -> dict[str, Any]:
    """Return what the function of this name in LOOK returns, after its way through JSON."""
    samples: dict[str, Any] = {"count": len(records)}
    for row in (0, 9, -1):
        if row < len(records):
            samples[str(row)] = records[row]
    return samples


def expected_summaries(rows: Rows, set_name: str, split: str) -> dict[str, Any] | None:
    """Return the summary of documents, queries and judgments. None: there are no rows for this id."""
    configs = SETS[set_name]
    if (configs.corpus, "corpus") not in rows:
        return None
    documents = [[row["_id"], row["text"]] for row in rows[configs.corpus, "corpus"]]
    summaries = {"docs": summary(documents)}
    if not split:
        return summaries
    if (configs.queries, split) not in rows:
        return None
    queries = rows[configs.queries, split]
    summaries["queries"] = summary([list(row.values()) for row in queries])
    if (configs.qrels, split) in rows:
        # Judgments of English and perturbed queries have the ids of their originals.
        query_ids = {row[configs.original_column or "_id"]: row["_id"] for row in queries}
        judgments = []
        for row in rows[configs.qrels, split]:
            if row["query-id"] in query_ids:
                judgments.append([query_ids[row["query-id"]], row["corpus-id"], row["score"], "0"])
        summaries["qrels"] = summary(judgments)
    return summaries


def assert_shows(summaries: dict[str, Any], rows: Rows, problem: str) -> None:
    """Every id gives its part of the rows. An id without rows gives an error with the words ``problem``.

    {split} in the words stands for the id's split.
    """
    assert sorted(summaries) == sorted(IDS)
    for dataset_id, (set_name, split) in IDS.items():
        expected = expected_summaries(rows, set_name, split)
        if expected is None:
            assert problem.format(split=split) in summaries[dataset_id]
        else:
            assert summaries[dataset_id] == expected, dataset_id


def publish(hub: Hub, release: Path, name: str) -> None:
    """Upload a release to a hub."""
    blobs = {}
    for path in release.rglob("*"):
        if path.is_file():
            blobs[path.relative_to(release).as_posix()] = Blob(path.read_bytes(), path.suffix == ".parquet")
    hub.create(name).add("release", blobs)


def hub_variables(hub: Hub, home: Path) -> dict[str, str]:
    """Return the variables of the environment that lead to the hub."""
    variables = hub.environment(home, None)
    return {name: value for name, value in variables.items() if name.startswith(("HF_", "SSL"))}


def test_every_id_gives_the_rows_of_a_directory_a_hub_and_the_archive(
    peers: Path, modules_folder: Path, tmp_path: Path
) -> None:
    release = make_release(tmp_path / "RELEASE", ROWS, rows_per_shard=20)
    with Hub() as hub, ArchiveServer(archive()) as server:
        publish(hub, release, "org/name")
        variables = hub_variables(hub, tmp_path / "home")
        variables["DUREADER_RETRIEVAL_BASE_URL"] = server.url
        call = f"look_at_all({str(release)!r}, 'org/name', '')"
        from_directory, from_hub, from_archive = look(peers, modules_folder, variables, call)
        assert len(server.requests) == 1
    assert_shows(from_directory, ROWS, "has no {split} queries; it has queries of ")
    assert json.dumps(from_hub) == json.dumps(from_directory).replace(str(release), "org/name")
    assert_shows(from_archive, rows_of_archive(), "the published archive lacks")
    # Only the manifest and the folders of sets are downloaded from the hub.
    expected_folders = {"manifest.json"}
    for configs in SETS.values():
        expected_folders |= {configs.corpus, configs.queries, configs.qrels}
    assert {path.split("/")[6] for _, path in hub.requests if "/resolve/" in path} == expected_folders


@pytest.mark.slow
def test_the_page_prints_what_it_shows(peers: Path, modules_folder: Path, tmp_path: Path, sample_release: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "build/sample").symlink_to(sample_release)
    variables = clean_environ()
    variables |= {"PATH": f"{peers}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": str(modules_folder)}
    variables |= {"HF_HOME": str(tmp_path / "home"), "IR_DATASETS_HOME": str(tmp_path / "home"), "PYTHONUTF8": "1"}
    run_count = 0
    stdout = None
    for block in blocks(PAGE):
        if block.is_run:
            interpreter = ["python", "-c"] if block.language == "python" else ["bash", "-ec"]
            stdout = output([*interpreter, block.text], tmp_path, variables)
            run_count += 1
        elif block.language == "text" and stdout is not None:
            # A block of text after a command shows the command's output.
            assert shows(block.text, stdout), stdout
            stdout = None
    assert run_count == 2 and stdout is None
