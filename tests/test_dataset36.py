"""Load ``dureader_retrieval.py`` as a script of ``datasets`` 3.6, and a release by its path."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from archive_server import archive, rows_of_archive, serve
from commands import ROOT
from environments import clean_environ
from publishing import rows_by_split
from releases import all_tables, make_release, tables

SCRIPT = ROOT / "dureader_retrieval.py"


Load = Callable[..., Any]


@pytest.fixture
def run36(datasets36: Path, tmp_path: Path) -> Load:
    def run(code: str, **variables: str) -> Any:
        cwd = tmp_path / "elsewhere"
        cwd.mkdir(exist_ok=True)
        # Left at once when done: the library's own Parquet reader, stopped while streaming, can abort an interpreter
        # that shuts down (apache/arrow issue 45214), after all rows were read.
        code = f"""import json, os, sys, datasets
assert datasets.__version__.startswith('3.6.')
{code}
sys.stdout.flush()
os._exit(0)"""
        environment = {**clean_environ(), "HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", **variables}
        result = subprocess.run(
            [datasets36, "-c", code], cwd=cwd, env=environment, capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
        return json.loads(result.stdout.splitlines()[-1])

    return run


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release")


def test_the_script_gives_the_rows_that_were_written(run36: Load, everything: Path) -> None:
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


def test_the_release_loads_by_its_path_alone(run36: Load, everything: Path) -> None:
    plain, streaming = run36(f"""
names = datasets.get_dataset_config_names({str(everything)!r})
print(json.dumps([
    {{name: {{split: list(rows) for split, rows in datasets.load_dataset({str(everything)!r}, name, **how).items()}}
     for name in names}}
    for how in ({{}}, {{"streaming": True}})
]))
""")
    assert rows_by_split(plain) == rows_by_split(streaming) == all_tables()


def test_the_module_loads_with_its_public_api(run36: Load, release: Path) -> None:
    rows = run36(f"""
import sys, warnings
sys.path.insert(0, {str(ROOT)!r})
warnings.simplefilter("error")
import dureader_retrieval
warnings.simplefilter("default")
print(json.dumps(list(dureader_retrieval.load_dataset("dev", "dev", data_dir={str(release)!r}))))
""")
    assert rows == tables()["dev", "dev"]


def test_the_script_reads_the_published_archive(run36: Load) -> None:
    with serve(archive()) as server:
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
