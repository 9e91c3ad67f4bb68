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
    variables = clean_environ() | {"PYTHONPATH": str(ROOT), "HF_HOME": str(home)} | environment
    return run_python(code, folder, variables)


Run = Callable[..., Any]


@pytest.fixture
def run36(datasets36: Path, tmp_path: Path) -> Run:
    """``run36(code, **variables)`` runs code on ``datasets`` 3.6, without the project and without a hub."""
    check_version = "import datasets\nassert datasets.__version__.startswith('3.6.')"
    default_variables = clean_environ() | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}

    def run_code(code: str, **variables: str) -> Any:
        return run_python(
            f"{check_version}\n{code}",
            tmp_path / "elsewhere",
            default_variables | variables,
            datasets36,
        )

    return run_code


# A function for the code of new processes.
READ_CONFIGS = '''
def read_configs(path, names, **options):
    """Return the rows by config and split."""
    rows = {}
    for name in names:
        splits = datasets.load_dataset(path, name, **options)
        rows[name] = {split: list(data) for split, data in splits.items()}
    return rows
'''


@pytest.mark.parametrize("version", ["installed", "3.6"])
def test_loading_by_path_alone(everything: Path, tmp_path: Path, version: str, request: pytest.FixtureRequest) -> None:
    code = f"""
import datasets
release = {str(everything)!r}
names = datasets.get_dataset_config_names(release)
{READ_CONFIGS}
rows = [read_configs(release, names), read_configs(release, names, streaming=True)]
assert "dureader_retrieval" not in sys.modules
print(json.dumps(rows))
"""
    if version == "3.6":
        plain, streaming = request.getfixturevalue("run36")(code)
    else:
        plain, streaming = python(code, tmp_path / "x", tmp_path / "home", PYTHONPATH="", HF_DATASETS_OFFLINE="1")
    assert rows_by_split(plain) == rows_by_split(streaming) == all_tables()


@pytest.mark.parametrize("where", ["misleading", "repository"])
def test_the_working_directory_does_not_matter(tmp_path: Path, where: str) -> None:
    release = make_release(tmp_path / "release")
    cwd = ROOT if where == "repository" else tmp_path / where
    if where == "misleading":
        make_release(cwd / "dureader_retrieval")  # a folder with the dataset's name
        (cwd / "train.csv").write_text("a\n1\n", encoding="utf-8")
        (cwd / "dureader_retrieval.json").write_text("{}", encoding="utf-8")
    code = f"""
import socket
requested_hosts = []
def refuse(*args, **kwargs):
    requested_hosts.append(str(args[0]))
    raise OSError("no network")
socket.getaddrinfo = socket.socket.connect = refuse
import datasets, dureader_retrieval
# datasets would list the working directory, and take its train.csv for the data.
listed_folders = []
list_folder = os.scandir
def note_folder(path="."):
    listed_folders.append(str(path))
    return list_folder(path)
os.scandir = note_folder
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r})["dev"]
listings_of_cwd = [path for path in listed_folders if os.path.abspath(path) == os.getcwd()]
print(json.dumps([list(dev), dev.cache_files, requested_hosts, listings_of_cwd]))
"""
    home = tmp_path / "home"
    rows, cache_files, requested_hosts, listings_of_cwd = python(code, cwd, home)
    assert rows == tables()["dev", "dev"]
    assert requested_hosts == []
    assert listings_of_cwd == []
    # In another folder, the prepared rows are found in the cache.
    code = f"""
import datasets, dureader_retrieval
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r}, split="dev")
print(json.dumps(dev.cache_files))
"""
    assert python(code, tmp_path, home, HF_DATASETS_OFFLINE="1") == cache_files


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
    assert "dureader_retrieval.load_dataset" in message
    assert rows == tables()["dev", "dev"]


def test_the_script_gives_the_rows_that_were_written(run36: Run, everything: Path) -> None:
    names = list(dict.fromkeys(config for config, _ in all_tables()))
    names_for_processes = ["corpus", "dev", "crosslingual"]  # few, because each starts two processes
    rows_by_call = run36(f"""
{READ_CONFIGS}
script = {str(SCRIPT)!r}
arguments = dict(data_dir={str(everything)!r}, trust_remote_code=True)
assert "cmedqa-qrels" in datasets.get_dataset_config_names(script, trust_remote_code=True)
plain = read_configs(script, {names!r}, **arguments)
streaming = read_configs(script, {names!r}, streaming=True, **arguments)
in_processes = read_configs(script, {names_for_processes!r}, num_proc=2, cache_dir="other", **arguments)
print(json.dumps([plain, streaming, in_processes]))
""")
    plain, streaming, in_processes = map(rows_by_split, rows_by_call)
    assert plain == streaming == all_tables()
    assert in_processes == {key: rows for key, rows in all_tables().items() if key[0] in names_for_processes}


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
{READ_CONFIGS}
script = {str(SCRIPT)!r}
names = ["corpus", "queries", "qrels", "train", "dev"]
plain = read_configs(script, names, trust_remote_code=True, streaming=False)
streaming = read_configs(script, names, trust_remote_code=True, streaming=True)
print(json.dumps([plain, streaming]))
"""
        # The server breaks off the first answer, and a second request fetches the rest.
        server.break_after = [server.size // 2]
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        plain, streaming = run36(code, DUREADER_RETRIEVAL_BASE_URL=server.url, **online)
        assert rows_by_split(plain) == rows_by_split(streaming) == rows_of_archive()
        assert server.requests == [0, server.size // 2]
        # Then the cache has the archive, and no network is needed.
        _, streaming = run36(code, DUREADER_RETRIEVAL_BASE_URL=server.url)
        assert rows_by_split(streaming) == rows_of_archive()
        assert len(server.requests) == 2
