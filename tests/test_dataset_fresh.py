"""Load a release in a new process, from any folder: on the installed ``datasets``, and as a script of 3.6."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_server import ArchiveServer, archive, rows_of_archive
from commands import ROOT, run_python
from environments import clean_environ
from releases import all_tables, make_release, rows_by_split, tables

SCRIPT = ROOT / "dureader_retrieval.py"


def python(code: str, folder: Path, home: Path, **environment: str) -> Any:
    """Run code that can import the project."""
    return run_python(code, folder, {**clean_environ(), "PYTHONPATH": str(ROOT), "HF_HOME": str(home), **environment})


Run = Callable[..., Any]


@pytest.fixture
def run36(datasets36: Path, tmp_path: Path) -> Run:
    """``run36(code, **variables)`` runs code on ``datasets`` 3.6, without the project and without a hub."""
    check = "import datasets\nassert datasets.__version__.startswith('3.6.')"
    own = {**clean_environ(), "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    return lambda code, **given: run_python(f"{check}\n{code}", tmp_path / "elsewhere", own | given, datasets36)


@pytest.mark.parametrize("version", ["installed", "3.6"])
def test_loading_by_path_alone(everything: Path, tmp_path: Path, version: str, request: pytest.FixtureRequest) -> None:
    code = f"""
import datasets
names = datasets.get_dataset_config_names({str(everything)!r})
rows = [{{name: {{split: list(data) for split, data in
         datasets.load_dataset({str(everything)!r}, name, streaming=streaming).items()}} for name in names}}
        for streaming in (False, True)]
assert "dureader_retrieval" not in sys.modules
print(json.dumps(rows))
"""
    if version == "3.6":
        plain, streaming = request.getfixturevalue("run36")(code)
    else:
        plain, streaming = python(code, tmp_path / "x", tmp_path / "home", PYTHONPATH="", HF_DATASETS_OFFLINE="1")
    assert rows_by_split(plain) == rows_by_split(streaming) == all_tables()


@pytest.mark.parametrize("where", ["full", "repository"])
def test_the_working_directory_does_not_matter(tmp_path: Path, where: str) -> None:
    release = make_release(tmp_path / "release")
    cwd = ROOT if where == "repository" else tmp_path / where
    if where == "full":
        make_release(cwd / "dureader_retrieval")  # a folder with the dataset's name
        (cwd / "train.csv").write_text("a\n1\n", encoding="utf-8")
        (cwd / "dureader_retrieval.json").write_text("{}", encoding="utf-8")
    code = f"""
import socket
asked = []
def refuse(*args, **kwargs):
    asked.append(args[0])
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
import datasets, dureader_retrieval
listed = []
walk = os.scandir
os.scandir = lambda path=".": listed.append(str(path)) or walk(path)
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r})["dev"]
inside = [path for path in listed if os.path.abspath(path) == os.getcwd()]
print(json.dumps([list(dev), dev.cache_files, [str(name) for name in asked], inside]))
"""
    home = tmp_path / "home"
    rows, files, asked, listed = python(code, cwd, home)
    assert (rows, asked, listed) == (tables()["dev", "dev"], [], [])
    code = f"""
import datasets, dureader_retrieval
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r}, split="dev")
print(json.dumps(dev.cache_files))
"""
    assert python(code, tmp_path, home, HF_DATASETS_OFFLINE="1") == files


def test_the_import_survives_a_datasets_without_the_private_hook(tmp_path: Path) -> None:
    code = f"""
import warnings
import datasets.load
del datasets.load.PackagedDatasetModuleFactory
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dureader_retrieval
messages = [str(warning.message) for warning in caught if "dureader_retrieval" in str(warning.message)]
release = {str(make_release(tmp_path / "release"))!r}
print(json.dumps([messages, list(dureader_retrieval.load_dataset("dev", "dev", data_dir=release))]))
"""
    (message,), rows = python(code, tmp_path, tmp_path / "home")
    assert "dureader_retrieval.load_dataset" in message and rows == tables()["dev", "dev"]


def test_the_script_gives_the_rows_that_were_written(run36: Run, everything: Path) -> None:
    names = list(dict.fromkeys(config for config, _ in all_tables()))
    some = ["corpus", "dev", "crosslingual"]  # each starts two processes
    found = run36(f"""
arguments = dict(data_dir={str(everything)!r}, trust_remote_code=True)
assert "cmedqa-qrels" in datasets.get_dataset_config_names({str(SCRIPT)!r}, trust_remote_code=True)
hows = (({names!r}, {{}}), ({names!r}, {{"streaming": True}}), ({some!r}, {{"num_proc": 2, "cache_dir": "other"}}))
loaded = [
    {{name: datasets.load_dataset({str(SCRIPT)!r}, name, **arguments, **how) for name in names}} for names, how in hows
]
print(json.dumps([
    {{name: {{split: list(rows) for split, rows in splits.items()}} for name, splits in each.items()}}
    for each in loaded
]))
""")
    plain, streaming, in_processes = map(rows_by_split, found)
    assert plain == streaming == all_tables()
    assert in_processes == {key: rows for key, rows in all_tables().items() if key[0] in some}


def test_the_module_loads_with_its_public_api_on_36(run36: Run, tmp_path: Path) -> None:
    rows = run36(f"""
import warnings
sys.path.insert(0, {str(ROOT)!r})
warnings.simplefilter("error")
import dureader_retrieval
warnings.simplefilter("default")
release = {str(make_release(tmp_path / "release"))!r}
print(json.dumps(list(dureader_retrieval.load_dataset("dev", "dev", data_dir=release))))
""")
    assert rows == tables()["dev", "dev"]


def test_the_script_reads_the_published_archive(run36: Run) -> None:
    with ArchiveServer(archive()) as server:
        code = f"""
script, loaded = {str(SCRIPT)!r}, {{}}
for streaming in (False, True):
    loaded[streaming] = {{
        name: {{split: list(rows) for split, rows in
               datasets.load_dataset(script, name, trust_remote_code=True, streaming=streaming).items()}}
        for name in ("corpus", "queries", "qrels", "train", "dev")
    }}
print(json.dumps(list(loaded.values())))
"""
        server.break_after = [server.size // 2]
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0", "DUREADER_RETRIEVAL_BASE_URL": server.url}
        found = run36(code, **online)
        assert rows_by_split(found[0]) == rows_by_split(found[1]) == rows_of_archive()
        assert server.requests == [0, server.size // 2]
        found = run36(code, DUREADER_RETRIEVAL_BASE_URL=server.url)  # from now on without a network
        assert rows_by_split(found[1]) == rows_of_archive()
        assert len(server.requests) == 2
