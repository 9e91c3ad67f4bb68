"""The programs and the console script: overview, wrong and former verbs, version, missing libraries."""

import argparse
import importlib
import subprocess
import sys
from pathlib import Path

import pytest
from commands import ROOT, SAMPLE, output, run

from baselines.__main__ import GROUPS as BASELINES
from builders.__main__ import GROUPS as BUILDERS
from builders.core.command import CONSOLE, OLD_NAMES, VERSION, main, verb_parser
from builders.store.reader import open_release

PROGRAMS = {"builders": BUILDERS, "baselines": BASELINES, CONSOLE: BUILDERS | BASELINES}
VERBS = [
    (program, verb, module)
    for program, groups in (("builders", BUILDERS), ("baselines", BASELINES))
    for verbs in groups.values()
    for verb, module in verbs.items()
]
START = {name: f"runpy.run_module({name!r}, run_name='__main__')" for name in ("builders", "baselines")}
START[CONSOLE] = "raise SystemExit(baselines.__main__.console())"
SLOW = {"datasets", "duckdb", "faiss", "numba", "pandas", "pyarrow.dataset", "ray", "sentence_transformers", "torch"}
SLOW |= {"ir_measures", "jieba", "matplotlib", "rjieba", "transformers"}


def call(program: str, *argv: str) -> int:
    verbs = {verb: module for group in PROGRAMS[program].values() for verb, module in group.items()}
    return main(program, "", verbs, argv, PROGRAMS[program])


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_no_verb_prints_all_with_lines(program: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(program, *argv) == 0
    lines = capsys.readouterr().out.splitlines()
    modules = {verb: module for verbs in PROGRAMS[program].values() for verb, module in verbs.items()}
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert shown == {verb: importlib.import_module(each).__doc__.splitlines()[0] for verb, each in modules.items()}
    assert all(len(line) <= 80 for line in lines) and all(line.endswith(".") for line in shown.values())
    assert [line[:-1] for line in lines if line.endswith(":")] == list(PROGRAMS[program])


def imported(code: str) -> set[str]:
    """Return the modules and packages that a process has imported after ``code``."""
    code += "\nimport sys\nprint(*sys.modules, *{name.split('.')[0] for name in sys.modules})"
    return {*output([sys.executable, "-c", code]).splitlines()[-1].split()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_overview_imports_no_verb_and_no_large_library(program: str) -> None:
    code = f"import runpy, baselines.__main__\ntry: {START[program]}\nexcept SystemExit: pass"
    assert not imported(code) & (SLOW | {"numpy", "pyarrow"} | {module for _, _, module in VERBS})


HELP = f"""
import importlib
from builders.core.command import verb_parser
for program, verb, module in {VERBS!r}:
    verb_parser(program, verb, importlib.import_module(module)).format_help()
"""
REFUSED = """
from baselines.__main__ import VERBS
from builders.core.command import main
assert main("baselines", "", VERBS, ["run", "./nosuch", "--release", "r"]) == 1
"""


API = "import baselines; baselines.evaluate"


@pytest.mark.parametrize("code", [HELP, REFUSED, API], ids=["help", "a model is refused", "the Python API"])
def test_nothing_that_is_quick_imports_a_library_that_takes_seconds(code: str) -> None:
    assert not imported(code) & SLOW


@pytest.mark.parametrize(
    ("program", "argv", "code", "out", "error"),
    [
        *((program, ["--version"], 0, f"dureader_retrieval {VERSION}\n", "") for program in ("builders", "baselines")),
        ("builders", ["relase", "--out", "x"], 2, "", "did you mean release?"),
        ("baselines", ["eval", "--out", "x"], 2, "", "did you mean evaluate?"),
        ("baselines", ["bundle", "--run", "x"], 2, "", "bundle was removed; use RUN.manifest.json, which"),
        ("builders", ["xyzzy"], 2, "", "`python -m builders` lists all verbs"),
        ("builders", ["release", "--out", "x", "--nothing"], 2, "", "unrecognized arguments: --nothing"),
    ],
)
def test_a_wrong_verb_or_option_gets_a_hint(program: str, argv: list[str], code: int, out: str, error: str) -> None:
    done = run(program, *argv, code=code)
    assert done.stdout == out and error in done.stderr


def test_the_console_script_names_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(CONSOLE, "evalute") == 2
    with pytest.raises(SystemExit):
        call(CONSOLE, "bm25")
    assert "dureader-retrieval has no verb 'evalute'; did you mean evaluate?" in (text := capsys.readouterr().err)
    assert "\ndureader-retrieval bm25: error: the following arguments" in text and "python -m" not in text
    with pytest.raises(SystemExit):
        call(CONSOLE, "release", "--help")
    assert "\n  dureader-retrieval release --raw" in (text := capsys.readouterr().out) and "python -m" not in text


@pytest.mark.parametrize(("old", "new"), OLD_NAMES.items())
def test_an_old_name_prints_the_new_one(old: str, new: str, capsys: pytest.CaptureFixture[str]) -> None:
    other, verb, *rest = new.split()
    for program in PROGRAMS:
        assert call(program, *old.split(), "--release", "x") == 2
    line = f"{old} is now: python -m {new}\n"
    assert capsys.readouterr().err == line * 2 + line.replace(f"python -m {other}", CONSOLE)
    verbs = importlib.import_module(f"{other}.__main__").VERBS
    parser = verb_parser(other, verb, importlib.import_module(verbs[verb]))
    for word in rest:
        named = [each for each in parser._actions if word in (each.option_strings or each.choices or ())]
        (action,) = [each for each in named if each.dest != "help"]
        if isinstance(action, argparse._SubParsersAction):
            parser = action.choices[word]


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        ("builders release --raw {sample} --out {out}", "msgspec", "builders"),
        ("baselines evaluate --release {release} --split dev {run}", "ir_measures", "baselines"),
        ("baselines bm25 --release {release} --out {out}", "numba", "builders"),
    ],
)
def test_a_missing_library_is_named(sample_release: Path, tmp_path: Path, words: str, missing: str, extra: str) -> None:
    run_ = tmp_path / "a.run"
    release = open_release(sample_release)
    query, passage = (release.table(*split).column("_id")[0] for split in (("queries", "dev"), ("corpus", "corpus")))
    run_.write_text(f"{query} Q0 {passage} 1 1.0 t\n")
    places = {"sample": SAMPLE, "release": sample_release, "run": run_, "out": tmp_path / "out"}
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
    assert line.startswith(f"error: {missing}") and line.endswith(f'-e ".[{extra}]"'), done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["./nosuch", "a/b/c"])
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
