"""Every reader of files from outside has a fuzzer."""

import ast
import importlib
from pathlib import Path

from commands import ROOT
from fuzzing import Reader

# A function that calls one of these is a reader of files from outside.
_READING = {"read_json", "read_object", "json_of", "json_lines", "typed", "read_toml", "raw_lines", "read_blocks"}
_READING |= {"object_of_lists"}
_READING |= {"json.loads", "json.load", "msgspec.json.decode", "pq.ParquetFile", "np.load", "safe_open", "open_table"}
_READING |= {"pyarrow.csv.read_csv", "np.lib.format.open_memmap", "pa.ipc.open_file", "tarfile.open", "zipfile.ZipFile"}
# Readers without a fuzzer, because their content is not from outside, or their parser has a fuzzer.
_OURS = {
    "baselines.retrieve.models:_tokenizer_settings": "the settings of an open tokenizer",
    "baselines.retrieve.model_kinds:expect_complete_copy": "modules.json, whose readers of folders have fuzzers",
    "baselines.retrieve.official_input:official_tokenizer": "the settings of an open tokenizer",
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
    "baselines.retrieve.family_table:declared": "the project's own file",
    "builders.export.exported_runs:_copied_lines": "a run that read_run, which has a fuzzer, has read before",
    "builders.sources.archives:read_archives": "the project's own file",
    "builders.store.published:published": "the project's own file",
    "baselines.core.passages:folder": "its inner function has a fuzzer",
    "baselines.core.checkpoint:checkpoint_hashes": "check_hashes, which has a fuzzer, reads the same fields",
    "baselines.retrieve.any_model:run_model": "a manifest whose SHA-256 is in the record of the finished run",
    "baselines.train.training:run_training": "a record whose SHA-256 is in the record of the finished training",
}


def functions() -> dict[str, set[str]]:
    """Return ``module:function`` of the code with the names that the function calls, also in inner functions."""
    found = {}
    for path in (path for folder in ("builders", "baselines") for path in (ROOT / folder).rglob("*.py")):
        module = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.FunctionDef):
                calls = (ast.unparse(call.func) for call in ast.walk(node) if isinstance(call, ast.Call))
                found[f"{module}:{node.name}"] = {*calls}
    return found


def test_every_reader_has_a_fuzzer_and_every_fuzzer_a_reader() -> None:
    modules = [importlib.import_module(path.stem) for path in Path(__file__).parent.glob("test_fuzz_*.py")]
    readers = [reader for module in modules for reader in getattr(module, "READERS", ()) if isinstance(reader, Reader)]
    fuzzed = {name for reader in readers for name in reader.functions}
    found = functions()
    reading = {name for name, calls in found.items() if _READING & calls}
    ours = {name for name in reading - fuzzed if not name.startswith(("builders.core.typed:", "builders.core.files:"))}
    assert ours == {*_OURS}
    assert fuzzed <= found.keys()
