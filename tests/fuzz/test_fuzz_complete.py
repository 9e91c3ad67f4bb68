"""Every reader of files from outside has a fuzzer."""

import ast
import importlib
from pathlib import Path

from commands import ROOT
from fuzzing import Reader

# A function that calls one of these is a reader of files from outside.
_READING_CALLS = {
    "read_json",
    "read_object",
    "json_of",
    "json_lines",
    "typed",
    "read_toml",
    "raw_lines",
    "read_blocks",
    "unique_json_of",
    "json.loads",
    "json.load",
    "msgspec.json.decode",
    "pq.ParquetFile",
    "np.load",
    "safe_open",
    "open_table",
    "pyarrow.csv.read_csv",
    "np.lib.format.open_memmap",
    "pa.ipc.open_file",
    "tarfile.open",
    "zipfile.ZipFile",
}
# Readers without a fuzzer, because their content is not from outside, or their parser has a fuzzer.
_WITHOUT_FUZZER = {
    "baselines.retrieve.models:_tokenizer_settings": "the settings of an open tokenizer",
    "baselines.retrieve.model_kinds:expect_complete_copy": "modules.json, whose readers of folders have fuzzers",
    "baselines.retrieve.official_input:official_tokenizer": "the settings of an open tokenizer",
    "baselines.retrieve.service_replies:_decode": "answers of services, which tests/test_endpoints.py damages",
    "baselines.core.checkpoint:write_hashes": "the record of a checkpoint that the caller has just written",
    "baselines.core.checkpoint:write_needs": "the configuration of a checkpoint that the caller has just written",
    "builders.release.label:read_labelled": "complete files of the running build",
    "builders.release.build:_label_sources": "parse_row, which has a fuzzer, reads its blocks",
    "builders.release.write:write_file": "a complete file of the running build",
    "builders.similar.contamination:_open_benchmark": "a file that the same command has just written",
    "builders.similar.pairs:count_rows": "read_pairs, which has a fuzzer, reads the same file and reports its errors",
    "baselines.reproduce.leaderboard:read_leaderboard": "the project's own file",
    "baselines.reproduce.published_scores:read_published_scores": "the project's own file",
    "baselines.train.recipe_changes:inherit_values": "the project's own files",
    "baselines.retrieve.family_table:read_families": "the project's own file",
    "builders.export.exported_runs:_copied_lines": "a run that read_run, which has a fuzzer, has read before",
    "builders.sources.archives:read_archives": "the project's own file",
    "builders.store.published:published_figures": "the project's own file",
    "builders.store.run_lines:_line_of_row": "a run that read_line_run, which has a fuzzer, has read before",
    "baselines.core.passages:folder": "its inner function has a fuzzer",
    "baselines.core.checkpoint:checkpoint_hashes": "check_hashes, which has a fuzzer, reads the same fields",
    "baselines.retrieve.any_model:run_model": "a manifest whose SHA-256 is in the record of the finished run",
    "baselines.train.training:run_training": "a record whose SHA-256 is in the record of the finished training",
}


def calls_by_function() -> dict[str, set[str]]:
    """Return ``module:function`` of the code with the names that the function calls, also in inner functions."""
    calls = {}
    paths = list((ROOT / "builders").rglob("*.py")) + list((ROOT / "baselines").rglob("*.py"))
    for path in paths:
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                calls[f"{module}:{node.name}"] = called_names(node)
    return calls


def called_names(function: ast.FunctionDef) -> set[str]:
    """Return the names of all that a function calls."""
    return {ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}


def fuzzed_functions() -> set[str]:
    """Return ``module:function`` of the code that the fuzzers test."""
    functions: set[str] = set()
    for path in Path(__file__).parent.glob("test_fuzz_*.py"):
        module = importlib.import_module(path.stem)
        for reader in getattr(module, "READERS", ()):
            if isinstance(reader, Reader):
                functions.update(reader.functions)
    return functions


def test_every_reader_has_a_fuzzer_and_every_fuzzer_a_reader() -> None:
    fuzzed = fuzzed_functions()
    calls = calls_by_function()
    readers = {function for function, names in calls.items() if _READING_CALLS & names}
    # The modules that read and check values are tested through their callers.
    shared_modules = ("builders.core.typed:", "builders.core.read_files:")
    unfuzzed = {function for function in readers - fuzzed if not function.startswith(shared_modules)}
    assert unfuzzed == set(_WITHOUT_FUZZER)
    assert fuzzed <= calls.keys()
