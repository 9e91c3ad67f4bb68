"""The programs and their output: overview, wrong verbs, missing libraries, terminals and cards in any encoding."""

import importlib
import io
import json
import logging
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pytest
from commands import ROOT, SAMPLE, Done, output, run
from releases import BUILD, QUESTIONS, TEXTS, make_release, md5, tables

from baselines.__main__ import GROUPS as BASELINES
from builders.__main__ import GROUPS as BUILDERS
from builders.core import progress as progress_module
from builders.core.command import CONSOLE, SHELLS, main
from builders.core.errors import EXTRAS, InputError
from builders.core.exit_codes import exit_code
from builders.core.progress import progress
from builders.core.tables import as_code, as_text
from builders.core.verbs import load_function
from builders.core.version import VERSION
from builders.store.card import card
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, Source
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

PROGRAMS = {"builders": BUILDERS, "baselines": BASELINES, CONSOLE: BUILDERS | BASELINES}
START = {name: f"runpy.run_module({name!r}, run_name='__main__')" for name in ("builders", "baselines")}
START[CONSOLE] = "raise SystemExit(baselines.__main__.console())"
SLOW = {"datasets", "duckdb", "faiss", "numba", "pandas", "pyarrow.dataset", "ray", "sentence_transformers", "torch"}
SLOW |= {"ir_measures", "jieba", "matplotlib", "rjieba", "transformers"}


def targets(program: str) -> dict[str, str]:
    return {verb: target for group in PROGRAMS[program].values() for verb, target in group.items()}


def call(program: str, *argv: str) -> int:
    return main(program, "", targets(program), argv, PROGRAMS[program])


def first_line(target: str) -> str:
    """Return the first line of the docstring of a verb's function, or of the package of a verb with steps."""
    described = load_function(target) if ":" in target else importlib.import_module(target)
    return described.__doc__.splitlines()[0]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_no_verb_prints_all_with_lines(program: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(program, *argv) == 0
    lines = capsys.readouterr().out.splitlines()
    shown = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert shown == {verb: first_line(target) for verb, target in targets(program).items()}
    assert all(len(line) <= 80 for line in lines) and all(line.endswith(".") for line in shown.values())
    assert [line[:-1] for line in lines if line.endswith(":")] == list(PROGRAMS[program])


def imported(code: str) -> set[str]:
    """Return the modules and packages that a process has imported after ``code``."""
    code += "\nimport sys\nprint(*sys.modules, *{name.split('.')[0] for name in sys.modules})"
    return {*output([sys.executable, "-c", code]).splitlines()[-1].split()}


@pytest.mark.parametrize("program", PROGRAMS)
def test_the_overview_imports_no_verb_and_no_large_library(program: str) -> None:
    code = f"import runpy, baselines.__main__\ntry: {START[program]}\nexcept SystemExit: pass"
    verb_modules = {target.partition(":")[0] for target in targets(program).values()}
    assert not imported(code) & (SLOW | {"cyclopts", "numpy", "pyarrow"} | verb_modules)


# Print the help of each verb and each step.
HELP = f"""
import importlib
from builders.core.command import main
for verb, target in {targets(CONSOLE)!r}.items():
    steps = [] if ":" in target else importlib.import_module(target).STEPS
    for words in ([verb], *([verb, step] for step in steps)):
        assert main("PROGRAM", "", {targets(CONSOLE)!r}, [*words, "--help"]) == 0
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
        ("builders", ["xyzzy"], 2, "", "`python -m builders` lists all verbs"),
        ("builders", ["check", "--release", "x", "--nothing"], 2, "", "Unknown option: --nothing"),
    ],
)
def test_a_wrong_verb_or_option_gets_a_hint(program: str, argv: list[str], code: int, out: str, error: str) -> None:
    done = run(program, *argv, code=code)
    assert done.stdout == out and error in done.stderr


def test_the_console_script_names_itself_in_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(CONSOLE, "evalute") == call(CONSOLE, "bm25") == 2
    assert capsys.readouterr().err.splitlines() == [
        "error: dureader-retrieval has no verb 'evalute'; did you mean evaluate?",
        "error: dureader-retrieval bm25: missing --release, --out",
    ]


def test_the_console_script_names_itself_in_the_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call(CONSOLE, "check", "--help") == 0
    text = capsys.readouterr().out
    assert text.startswith("usage: dureader-retrieval check") and "python -m" not in text
    assert "\n  dureader-retrieval check --release" in text


@pytest.mark.parametrize("shell", SHELLS)
def test_a_shell_completes_verbs_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert call(CONSOLE, "--completion", shell) == 0
    script = capsys.readouterr().out
    assert all(word in script for word in ("dureader-retrieval", "cmedqa", "bm25", "--top-k", "--analyzer", "bigrams"))
    program = shutil.which(shell)
    if program and shell == "bash":
        subprocess.run([program, "-n"], input=script, text=True, check=True)


@pytest.mark.parametrize("words", [[], ["tcsh"]])
def test_completion_needs_a_shell_that_it_knows(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(CONSOLE, "--completion", *words) == 2
    assert capsys.readouterr().err == "error: expected dureader-retrieval --completion with one of bash, zsh, fish\n"


WITHOUT = """
import sys
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {libraries!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, Missing())
"""
# The bare installation has datasets and cyclopts. The help needs neither them nor the libraries that they bring.
LIBRARIES = sorted({library for names in EXTRAS.values() for library in names.split()} - {"cyclopts"})


def run_without(libraries: Sequence[str], code: str) -> Done:
    """Run Python code in a process that lacks libraries."""
    argv = [sys.executable, "-c", WITHOUT.format(libraries=tuple(libraries)) + code]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_bare_installation_has_help_of_every_verb() -> None:
    done = run_without(LIBRARIES, HELP)
    assert (done.code, done.stderr) == (0, "")
    assert done.stdout.count("usage: ") >= len(targets(CONSOLE))


def test_the_bare_installation_has_a_version() -> None:
    done = run_without(
        LIBRARIES, 'import baselines.__main__; sys.argv[1:] = ["--version"]; baselines.__main__.console()'
    )
    assert (done.code, done.stdout) == (0, f"dureader_retrieval {VERSION}\n")


def test_wrong_usage_is_named_before_a_missing_library() -> None:
    words = ["bm25", "--release", "R", "--out", "O", "--b", "2"]
    code = f"sys.argv[1:] = {words!r}; import baselines.__main__; sys.exit(baselines.__main__.console())"
    done = run_without(LIBRARIES, code)
    message = "error: dureader-retrieval bm25: --b: expected a number from 0 to 1, found 2.0\n"
    assert (done.code, done.stderr) == (2, message)


@pytest.mark.parametrize(
    ("words", "missing", "extra"),
    [
        ("builders release --raw {sample} --out {out}", "msgspec", "builders"),
        ("baselines evaluate --release {release} --split dev {run}", "ir_measures", "baselines"),
        ("baselines bm25 --release {release} --out {out}", "numba", "builders"),
        ("builders check --release {release}", "duckdb", "builders"),
        ("builders check --release {release}", "cyclopts", ""),
    ],
)
def test_a_missing_library_is_named(sample_release: Path, tmp_path: Path, words: str, missing: str, extra: str) -> None:
    run_ = tmp_path / "a.run"
    release = open_release(sample_release)
    query, passage = (release.table(*split).column("_id")[0] for split in (("queries", "dev"), ("corpus", "corpus")))
    run_.write_text(f"{query} Q0 {passage} 1 1.0 t\n")
    places = {"sample": SAMPLE, "release": sample_release, "run": run_, "out": tmp_path / "out"}
    program, *rest = words.format(**places).split()
    code = f"import runpy; sys.argv[1:] = {rest!r}; runpy.run_module({program!r}, run_name='__main__')"
    done = run_without([missing], code)
    line = done.stderr.strip().splitlines()[-1]
    assert "Traceback" not in done.stderr and done.code == 1
    project = f".[{extra}]" if extra else "."
    assert line == f'error: {missing} is not installed: pip install -c constraints.txt -e "{project}"', done.stderr
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


@pytest.fixture(scope="module")
def given(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("given") / "bm25.dev.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--split", "dev", "--out", out)
    other = out.with_name("other.run")
    hits = read_run(out).hits.items()
    write_run(other, [(query, [(corpus, -score) for corpus, score in own]) for query, own in hits])
    return {"release": sample_release, "run": out, "other": other, "folder": out.parent}


def written(to: io.TextIOWrapper) -> str:
    to.flush()
    assert isinstance(to.buffer, io.BytesIO)
    return to.buffer.getvalue().decode(to.encoding)


@pytest.mark.parametrize("encoding", ["ascii", "gbk"])
@pytest.mark.parametrize(
    "words",
    [
        "builders official --list",
        "builders check --release {release}",
        "baselines show --release {release} --split dev {run}",
        "baselines evaluate --release {release} --split dev {run}",
        "baselines compare --release {release} --split dev {run} {other}",
        "baselines compare --release {release} --split dev {run} {other} --format latex",
        "baselines errors draw --release {release} --split dev {run} --format json",
        "baselines reproduce --release {release} --leaderboard {run}",
        "baselines reproduce --table 4 --row bm25 --release {release} --out {folder}/runs --one-process",
        "builders annotate --help",
    ],
)
def test_any_encoding_works(given: dict[str, Path], encoding: str, words: str, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding=encoding) for _ in range(2))
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    program, *rest = words.format(**given).split()
    try:
        code = main(program, "", importlib.import_module(f"{program}.__main__").VERBS, rest)
    except SystemExit as help_:
        code = help_.code  # type: ignore[assignment]
    monkeypatch.undo()
    assert code == 0, written(err)
    assert written(out)


def test_json_stays_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é 中文 😀 \ud800"
    out = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", out)
    assert exit_code(lambda: print(json.dumps(text, ensure_ascii=False)) or 0) == 0
    monkeypatch.undo()
    assert json.loads(written(out)) == text


def test_progress_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress_module, "EVERY", 0)
    assert list(progress(["a", "b"], label="encode", unit="row")) == ["a", "b"]
    assert any(line.startswith("encode:  50% 1.00/2.00 [") for line in caplog.messages), caplog.messages


WILD = "<script>alert(1)</script> ![x](http://example.org/x.png) | **b** `c` \033[2J\u2028# d"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("dev_run.json", "dev_run.json"),
        ("<b>a & b</b>", r"\<b\>a \& b\</b\>"),
        ("a | b", r"a \| b"),
        ("a\n# b\033[0m", r"a\\n# b\\x1b\[0m"),
    ],
)
def test_a_text_is_no_markup(text: object, shown: str) -> None:
    assert as_text(text) == shown


def test_a_code_span_ends_where_its_text_ends() -> None:
    assert [as_code(each) for each in ("问：", "a``b`", "a|b\n")] == ["`问：`", "``` a``b` ```", r"`a\|b\n`"]


def test_a_card_shows_the_names_of_sources_and_options_as_text() -> None:
    built = card([], {"table3": {}, "collections": {}}, [Build(WILD, {"unit": WILD}, [Source(WILD, 1, "0" * 64)])])
    assert "<script>" not in built.replace("`<script>", "").replace(r"\<script\>", "")
    assert r"- \<script\>" in built and f"unit = {as_text(WILD)}, from:" in built
    assert "\033" not in built and "\u2028" not in built


def test_no_passage_and_no_query_stands_in_a_release_card_or_its_figures(tmp_path: Path) -> None:
    rows = tables([f"{WILD} {text}" for text in TEXTS])
    with draft_release(tmp_path / "release", BUILD) as draft:
        for (config, split), own in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(own, schema_of(config))])
    for path in (tmp_path / "release").glob("*.*"):
        assert "alert(1)" not in path.read_text(encoding="utf-8"), path


def test_a_terminal_is_shown_control_characters_and_obeys_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{WILD} {text}" for text in TEXTS]
    release = make_release(tmp_path / "release", tables(texts))
    write_run(tmp_path / "a.run", [(md5(QUESTIONS["dev"][0]), [(md5(texts[4]), 1.0)])])
    shown = run("baselines", "show", "--release", release, "--chars", 1000, tmp_path / "a.run").stdout
    assert "\033" not in shown and r"\x1b[2J" in shown and "<script>" in shown


def test_an_error_is_one_line_whatever_it_names() -> None:
    error = InputError("has 'a\nb\033[2J\ud800'", path=Path("x\ny"), line=3)
    assert str(error) == r"x\ny:3: has 'a\nb\x1b[2J\ud800'"
