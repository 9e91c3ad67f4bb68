"""No reader of files from outside is without a fuzzer."""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterator
from pathlib import Path

from commands import ROOT
from fuzzing import Reader

# What files from outside are read by: a call of one of these makes a function a reader.
_READING = {
    "read_json",
    "read_object",
    "json_of",
    "json_lines",
    "typed",
    "read_toml",
    "raw_lines",
    "read_blocks",
    "open_table",
}
_READING |= {"json.loads", "json.load", "msgspec.json.decode", "pq.ParquetFile", "np.load", "safe_open", "open_table"}
_READING |= {"pyarrow.csv.read_csv", "np.lib.format.open_memmap", "pa.ipc.open_file", "tarfile.open", "zipfile.ZipFile"}
# Not from outside: the project's own files, and what a library of this process has just given.
_OURS = {
    "baselines.retrieve.models:_routes": "what a tokenizer that is open says of itself",
    "baselines.retrieve.official_input:official_tokenizer": "likewise",
    "baselines.checkpoint:write_hashes": "the record of a checkpoint that the caller has just written",
    "baselines.checkpoint:write_needs": "the configuration of a checkpoint that the caller has just written",
    "builders.release.label:read_labelled": "files of a build under way, which appear when they are whole",
    "builders.release.build:_label": "hands its blocks on to parse_row, which has a fuzzer",
    "builders.release.write:write_file": "a file of a build under way, which appears when it is whole",
    "builders.similar.contamination:_open": "what the same command has just written",
    "baselines.retrieve.families:declared": "the project's own file",
    "builders.check.paper:published": "the project's own file",
}


def _functions(path: Path) -> Iterator[tuple[str, ast.AST]]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.FunctionDef):
            yield node.name, node


def _own_calls(function: ast.AST) -> Iterator[str]:
    """Yield the calls of a function itself, not of the functions in it."""
    rest = list(ast.iter_child_nodes(function))
    while rest:
        node = rest.pop()
        if isinstance(node, ast.FunctionDef):
            continue
        if isinstance(node, ast.Call):
            yield ast.unparse(node.func)
        rest += ast.iter_child_nodes(node)


def readers_in_the_code() -> set[str]:
    found = set()
    for path in (path for folder in ("builders", "baselines") for path in (ROOT / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for name, function in _functions(path):
            if _READING & {*_own_calls(function)} and module not in ("builders.core.typed", "builders.core.files"):
                found.add(f"{module}:{name}")
    return found


def fuzzed() -> set[str]:
    found: set[str] = set()
    for path in Path(__file__).parent.glob("test_fuzz_*.py"):
        for reader in getattr(importlib.import_module(path.stem), "READERS", ()):
            if isinstance(reader, Reader):
                found.update(reader.reaches)
    return found


def test_every_reader_has_a_fuzzer() -> None:
    assert readers_in_the_code() - fuzzed() == {*_OURS}


def test_every_fuzzer_names_code_that_is_there() -> None:
    for name in fuzzed():
        module, function = name.split(":")
        path = ROOT.joinpath(*module.split(".")).with_suffix(".py")
        assert function in {found for found, _ in _functions(path)}, name
