"""Load a release in a fresh interpreter by its path, from any working directory, without a network."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT
from loading import release  # noqa: F401
from publishing import rows_by_split
from releases import all_tables, make_release, tables


def python(code: str, cwd: Path, home: Path, **environment: str) -> Any:
    # Left at once when done: the library's own Parquet reader, stopped while streaming, can abort an interpreter that
    # shuts down (apache/arrow issue 45214), after all rows were read.
    code = f"{code}\nimport os, sys\nsys.stdout.flush()\nos._exit(0)"
    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(ROOT), "HF_HOME": str(home), **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])


def test_the_release_loads_by_its_path_alone(everything: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    code = f"""
import datasets, json, sys
names = datasets.get_dataset_config_names({str(everything)!r})
rows = [{{name: {{split: list(data) for split, data in
         datasets.load_dataset({str(everything)!r}, name, streaming=streaming).items()}} for name in names}}
        for streaming in (False, True)]
assert "dureader_retrieval" not in sys.modules
print(json.dumps(rows))
"""
    plain, streaming = python(code, elsewhere, tmp_path / "home", PYTHONPATH="", HF_DATASETS_OFFLINE="1")
    assert rows_by_split(plain) == rows_by_split(streaming) == all_tables()


@pytest.mark.parametrize("where", ["full", "repository"])
def test_the_working_directory_does_not_matter(release: Path, tmp_path: Path, where: str) -> None:
    cwd = ROOT if where == "repository" else tmp_path / where
    cwd.mkdir(exist_ok=True)
    if where == "full":
        make_release(cwd / "dureader_retrieval")  # a folder with the dataset's name
        (cwd / "train.csv").write_text("a\n1\n", encoding="utf-8")
        (cwd / "dureader_retrieval.json").write_text("{}", encoding="utf-8")
    code = f"""
import json, os, socket
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
    assert rows == tables()["dev", "dev"]
    assert asked == []
    assert listed == []
    code = f"""
import datasets, dureader_retrieval, json
dev = datasets.load_dataset("dureader_retrieval", "dev", data_dir={str(release)!r}, split="dev")
print(json.dumps(dev.cache_files))
"""
    assert python(code, tmp_path, home, HF_DATASETS_OFFLINE="1") == files


def test_the_import_survives_a_datasets_without_the_private_hook(release: Path, tmp_path: Path) -> None:
    code = f"""
import json, warnings
import datasets.load
del datasets.load.PackagedDatasetModuleFactory
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import dureader_retrieval
messages = [str(warning.message) for warning in caught if "dureader_retrieval" in str(warning.message)]
print(json.dumps([messages, list(dureader_retrieval.load_dataset("dev", "dev", data_dir={str(release)!r}))]))
"""
    messages, rows = python(code, tmp_path, tmp_path / "home")
    assert len(messages) == 1
    assert "dureader_retrieval.load_dataset" in messages[0]
    assert rows == tables()["dev", "dev"]
