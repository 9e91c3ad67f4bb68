"""``--help``: quick, because no verb's own module imports what only its work needs."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from commands import ROOT

HEAVY = [
    "datasets",
    "duckdb",
    "faiss",
    "ir_measures",
    "jieba",
    "matplotlib",
    "numba",
    "ray",
    "rjieba",
    "sentence_transformers",
    "tantivy",
    "torch",
    "transformers",
]
EVERY_HELP = """
import contextlib, importlib, io, json, sys
from builders.common.command import main
program, heavy = sys.argv[1], sys.argv[2:]
verbs, found = importlib.import_module(f"{program}.__main__").VERBS, {}
for verb in verbs:
    before = set(sys.modules)
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        try:
            main(program, "", verbs, [verb, "--help"])
        except SystemExit as end:
            assert not end.code
    assert f"python -m {program} {verb}" in shown.getvalue(), verb
    found[verb] = sorted({name.partition(".")[0] for name in {*sys.modules} - before} & {*heavy})
print(json.dumps(found))
"""


@pytest.mark.parametrize("program", ["baselines"])
def test_no_help_waits_for_a_library_that_only_the_work_needs(program: str) -> None:
    command = [sys.executable, "-c", EVERY_HELP, program, *HEAVY]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert len(found) >= 11
    assert {verb: names for verb, names in found.items() if names} == {}
