"""What a user meets first: both programs without a verb, with a wrong one, and their version."""

from __future__ import annotations

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, SAMPLE, run

from baselines.__main__ import GROUPS as BASELINES
from builders.__main__ import GROUPS as BUILDERS
from builders.core.command import OLD_NAMES, VERSION, main, overview, verb_parser
from builders.store.reader import open_release

PROGRAMS = {"builders": BUILDERS, "baselines": BASELINES}
VERBS = [
    (program, verb, module)
    for program, groups in PROGRAMS.items()
    for verbs in groups.values()
    for verb, module in verbs.items()
]
SLOW = {"datasets", "duckdb", "faiss", "numba", "pandas", "pyarrow.dataset", "ray", "sentence_transformers", "torch"}
SLOW |= {"ir_measures", "jieba", "matplotlib", "rjieba", "transformers"}


def call(program: str, *argv: str) -> int:
    module = importlib.import_module(f"{program}.__main__")
    return main(program, "", module.VERBS, argv, module.GROUPS)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_without_a_verb_every_verb_is_printed_with_its_line(
    program: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(program, *argv) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = [line.split()[0] for line in lines if line.startswith("  ")]
    assert shown == [verb for verbs in PROGRAMS[program].values() for verb in verbs]
    assert [line[:-1] for line in lines if line.endswith(":")] == list(PROGRAMS[program])


@pytest.mark.parametrize(("program", "verb", "module"), VERBS)
def test_a_verbs_line_is_the_first_line_of_its_help(program: str, verb: str, module: str) -> None:
    (line,) = [x for x in overview(program, "", PROGRAMS[program]).splitlines() if x.startswith(f"  {verb} ")]
    summary = (importlib.import_module(module).__doc__ or "").splitlines()[0]
    assert line.split(maxsplit=1)[1] == summary
    assert summary.endswith(".")
    assert len(line) <= 80


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_overview_imports_no_verb_and_no_large_library(program: str) -> None:
    code = f"import runpy, sys\ntry: runpy.run_module('{program}', run_name='__main__')\n"
    code += "except SystemExit: print(*{name.split('.')[0] for name in sys.modules}, *sys.modules)"
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    imported = set(result.stdout.splitlines()[-1].split())
    assert not imported & (SLOW | {"numpy", "pyarrow"} | {module for _, _, module in VERBS})


def test_no_help_imports_a_library_that_takes_seconds() -> None:
    code = f"""
import importlib, sys
from builders.core.command import verb_parser
for program, verb, module in {VERBS!r}:
    verb_parser(program, verb, importlib.import_module(module)).format_help()
print(*sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & SLOW


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_version_is_printed(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(program, "--version") == 0
    assert capsys.readouterr().out == f"dureader_retrieval {VERSION}\n"


@pytest.mark.parametrize(
    ("program", "typed", "meant"),
    [("builders", "relase", "release"), ("builders", "publsh", "publish"), ("baselines", "eval", "evaluate")],
)
def test_a_mistyped_verb_gets_the_nearest_one(
    program: str, typed: str, meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert call(program, typed, "--out", "x") == 2
    captured = capsys.readouterr()
    assert f"did you mean {meant}?" in captured.err
    assert not captured.out


@pytest.mark.parametrize(
    ("program", "old", "new"), [(program, *names) for program, table in OLD_NAMES.items() for names in table.items()]
)
def test_an_old_name_prints_the_new_one(program: str, old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(program, *old.split(), "--release", "x") == 2
    assert capsys.readouterr() == ("", f"{old} is now: {new}\n")
    other, verb, *rest = new.split()
    parser = verb_parser(other, verb, importlib.import_module(importlib.import_module(f"{other}.__main__").VERBS[verb]))
    for word in rest:
        (action,) = [
            each
            for each in parser._actions
            if word in (each.option_strings or (each.choices or ())) and each.dest != "help"
        ]
        if isinstance(action, argparse._SubParsersAction):
            parser = action.choices[word]


def test_a_verb_like_no_other_is_sent_to_the_overview(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("builders", "xyzzy") == 2
    assert "`python -m builders` prints them all" in capsys.readouterr().err


def test_a_wrong_option_is_a_usage_error() -> None:
    with pytest.raises(SystemExit) as caught:
        call("builders", "release", "--nothing")
    assert caught.value.code == 2


@pytest.mark.parametrize(
    ("words", "missing", "group"),
    [
        ("builders release --raw {sample} --out {out}", "msgspec", "builders"),
        ("builders check --release {release}", "numpy", "builders"),
        ("baselines evaluate --release {release} --split dev {run}", "ir_measures", "baselines"),
        ("baselines encode --release {release} --model {model} --out {out}", "torch", "models"),
        ("baselines bm25 --release {release} --out {out}", "numba", "builders"),
    ],
)
def test_a_missing_library_is_one_line_that_names_its_group(
    sample_release: Path, tmp_path: Path, words: str, missing: str, group: str
) -> None:
    run_ = tmp_path / "a.run"
    release = open_release(sample_release)
    query, passage = (release.table(*split).column("_id")[0] for split in (("queries", "dev"), ("corpus", "corpus")))
    run_.write_text(f"{query} Q0 {passage} 1 1.0 t\n")
    places = {"sample": SAMPLE, "release": sample_release, "run": run_, "model": tmp_path, "out": tmp_path / "out"}
    code = f"""
import runpy, sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == {missing!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
runpy.run_module(sys.argv[1], run_name="__main__", alter_sys=False)
"""
    program, *rest = words.format(**places).split()
    argv = [sys.executable, "-c", code.replace("sys.argv[1]", repr(program)), *rest]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
    line = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr and done.returncode == 1
    assert line.startswith(f"error: {missing}") and line.endswith(f"--group {group}"), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["./nosuch", "a/b/c", "nosuch.d/", __file__])
@pytest.mark.parametrize(
    "words",
    [
        "baselines run {name} --release r",
        "baselines encode --release r --out o --model {name}",
        "baselines rerank --release r --run a --out b --model {name}",
        "baselines search --release r --passages p --out o --model {name}",
        "baselines mine --release r --split train --run a --out o --margin 1 --bi-encoder {name}",
    ],
)
def test_a_mistyped_model_is_refused_before_the_libraries_are_imported(words: str, name: str) -> None:
    program, *rest = words.format(name=name).split()
    done = run(program, *rest, code=1)
    assert done.error == f"{name}: is neither a folder nor the name of a model on the hub (ORG/NAME)"


def test_refusing_a_model_imports_no_library_that_takes_seconds() -> None:
    code = """
import sys
from baselines.__main__ import VERBS
from builders.core.command import main
assert main("baselines", "", VERBS, ["run", "./nosuch", "--release", "r"]) == 1
print(*sys.modules)
"""
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(result.stdout.split()) & SLOW
