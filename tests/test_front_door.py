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
from builders.core.progress import show_progress
from builders.core.tables import as_code, as_text
from builders.core.verbs import load_function
from builders.core.version import VERSION
from builders.store.card import card_markdown
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, Source
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

PROGRAMS = {"builders": BUILDERS, "baselines": BASELINES, CONSOLE: BUILDERS | BASELINES}
START = {
    "builders": "runpy.run_module('builders', run_name='__main__')",
    "baselines": "runpy.run_module('baselines', run_name='__main__')",
    CONSOLE: "raise SystemExit(baselines.__main__.console())",
}
# Libraries that take long to import
SLOW = {"datasets", "duckdb", "faiss", "numba", "pandas", "pyarrow.dataset", "ray", "sentence_transformers", "torch"}
SLOW |= {"ir_measures", "jieba", "matplotlib", "rjieba", "transformers"}


def targets(program: str) -> dict[str, str]:
    """Return the function or the package of each verb."""
    targets_by_verb: dict[str, str] = {}
    for group in PROGRAMS[program].values():
        targets_by_verb |= group
    return targets_by_verb


def call(program: str, *argv: str) -> int:
    """Run a program in this process, and return its exit code."""
    return main(program, "", targets(program), argv, PROGRAMS[program])


def first_line(target: str) -> str:
    """Return the first line of the docstring of a verb's function, or of the package of a verb with steps."""
    verb_object = load_function(target) if ":" in target else importlib.import_module(target)
    return verb_object.__doc__.splitlines()[0]


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("argv", [(), ("--help",), ("-h",)])
def test_no_verb_prints_all_with_lines(program: str, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(program, *argv) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(len(line) for line in lines) <= 80
    printed_verbs = dict(line.split(maxsplit=1) for line in lines if line.startswith("  "))
    assert printed_verbs == {verb: first_line(target) for verb, target in targets(program).items()}
    for sentence in printed_verbs.values():
        assert sentence.endswith(".")
    assert [line[:-1] for line in lines if line.endswith(":")] == list(PROGRAMS[program])


def imported(code: str) -> set[str]:
    """Return the modules and packages that a process has imported after ``code``."""
    code += "\nimport sys\nprint(*sys.modules)"
    modules = output([sys.executable, "-c", code]).splitlines()[-1].split()
    packages = [name.split(".")[0] for name in modules]
    return set(modules + packages)


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
    assert main("PROGRAM", "", {targets(CONSOLE)!r}, [verb, "--help"]) == 0
    steps = [] if ":" in target else importlib.import_module(target).STEPS
    for step in steps:
        assert main("PROGRAM", "", {targets(CONSOLE)!r}, [verb, step, "--help"]) == 0
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
    ("program", "argv", "code", "stdout", "hint"),
    [
        ("builders", ["--version"], 0, f"dureader_retrieval {VERSION}\n", ""),
        ("baselines", ["--version"], 0, f"dureader_retrieval {VERSION}\n", ""),
        ("builders", ["relase", "--out", "x"], 2, "", "did you mean release?"),
        ("baselines", ["eval", "--out", "x"], 2, "", "did you mean evaluate?"),
        ("builders", ["xyzzy"], 2, "", "`python -m builders` lists all verbs"),
        ("builders", ["check", "--release", "x", "--nothing"], 2, "", "Unknown option: --nothing"),
    ],
)
def test_a_wrong_verb_or_option_gets_a_hint(program: str, argv: list[str], code: int, stdout: str, hint: str) -> None:
    done = run(program, argv, code=code)
    assert done.stdout == stdout and hint in done.stderr


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
    for word in ("dureader-retrieval", "cmedqa", "bm25", "--top-k", "--analyzer", "bigrams"):
        assert word in script
    shell_path = shutil.which(shell)
    if shell_path and shell == "bash":
        subprocess.run([shell_path, "-n"], input=script, text=True, check=True)


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
# A bare installation has datasets and cyclopts. The help needs cyclopts, but neither datasets nor its libraries.
LIBRARIES = sorted(set(" ".join(EXTRAS.values()).split()) - {"cyclopts"})


def run_without(libraries: Sequence[str], code: str) -> Done:
    """Run Python code in a process that lacks libraries."""
    words = [sys.executable, "-c", WITHOUT.format(libraries=tuple(libraries)) + code]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, encoding="utf-8", check=False)
    return Done(done.returncode, done.stdout, done.stderr)


def test_the_bare_installation_has_help_of_every_verb() -> None:
    done = run_without(LIBRARIES, HELP)
    assert (done.code, done.stderr) == (0, "")
    # A verb with steps prints a usage for each step, too.
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
    error_line = "error: dureader-retrieval bm25: --b: expected a number from 0 to 1, found 2.0\n"
    assert (done.code, done.stderr) == (2, error_line)


@pytest.mark.parametrize(
    ("words", "library", "project"),
    [
        ("builders release --raw {sample} --out {out}", "msgspec", ".[builders]"),
        ("baselines evaluate --release {release} --split dev {run}", "ir_measures", ".[baselines]"),
        ("baselines bm25 --release {release} --out {out}", "numba", ".[builders]"),
        ("builders check --release {release}", "duckdb", ".[builders]"),
        ("builders check --release {release}", "cyclopts", "."),
    ],
)
def test_a_missing_library_is_named(
    sample_release: Path, tmp_path: Path, words: str, library: str, project: str
) -> None:
    release = open_release(sample_release)
    query_id = release.table("queries", "dev").column("_id")[0]
    passage_id = release.table("corpus", "corpus").column("_id")[0]
    run_path = tmp_path / "a.run"
    run_path.write_text(f"{query_id} Q0 {passage_id} 1 1.0 t\n")
    out = tmp_path / "out"
    program, *argv = words.format(sample=SAMPLE, release=sample_release, run=run_path, out=out).split()
    code = f"import runpy; sys.argv[1:] = {argv!r}; runpy.run_module({program!r}, run_name='__main__')"
    done = run_without([library], code)
    assert done.code == 1 and "Traceback" not in done.stderr
    error_line = done.stderr.strip().splitlines()[-1]
    expected_line = f'error: {library} is not installed: pip install -c constraints.txt -e "{project}"'
    assert error_line == expected_line, done.stderr
    assert not out.exists()


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
    program, *argv = words.format(name=name).split()
    done = run(program, argv, code=1)
    assert done.error == f"{name}: is neither a folder nor the name of a model on the hub (ORG/NAME)"


@pytest.fixture(scope="module")
def inputs(sample_release: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A release, a run of BM25, and the run in reverse order."""
    folder = tmp_path_factory.mktemp("inputs")
    run_path = folder / "bm25.dev.run"
    run("baselines", "bm25", "--quiet", "--release", sample_release, "--split", "dev", "--out", run_path)
    reversed_hits = []
    for query_id, hits in read_run(run_path).hits.items():
        reversed_hits.append((query_id, [(passage_id, -score) for passage_id, score in hits]))
    other_run = folder / "other.run"
    write_run(other_run, reversed_hits)
    return {"release": sample_release, "run": run_path, "other": other_run, "folder": folder}


def text_of(stream: io.TextIOWrapper) -> str:
    """Return the text that was written to a stream in memory."""
    stream.flush()
    assert isinstance(stream.buffer, io.BytesIO)
    return stream.buffer.getvalue().decode(stream.encoding)


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
def test_any_encoding_works(
    inputs: dict[str, Path], encoding: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    stdout = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    stderr = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    monkeypatch.setattr(sys, "stdout", stdout)
    monkeypatch.setattr(sys, "stderr", stderr)
    program, *argv = words.format_map(inputs).split()
    # The help of some verbs ends by SystemExit, which `python -m` would turn into an exit code.
    try:
        code = main(program, "", importlib.import_module(f"{program}.__main__").VERBS, argv)
    except SystemExit as exit_of_help:
        code = exit_of_help.code  # type: ignore[assignment]
    monkeypatch.undo()
    assert code == 0, text_of(stderr)
    assert text_of(stdout)


def test_json_stays_json_in_any_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    text = "é 中文 😀 \ud800"  # the last character is half of a pair, which no encoding has
    stdout = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stdout)
    assert exit_code(lambda: print(json.dumps(text, ensure_ascii=False)) or 0) == 0
    monkeypatch.undo()
    assert json.loads(text_of(stdout)) == text


def test_progress_is_logged(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    monkeypatch.setattr(progress_module, "EVERY", 0)  # seconds between two lines
    assert list(show_progress(["a", "b"], label="encode", unit="row")) == ["a", "b"]
    assert any(line.startswith("encode:  50% 1.00/2.00 [") for line in caplog.messages), caplog.messages


WILD = "<script>alert(1)</script> ![x](http://example.org/x.png) | **b** `c` \033[2J\u2028# d"


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("dev_run.json", "dev_run.json"),
        ("<b>a & b</b>", r"\<b\>a \& b\</b\>"),
        ("a | b", r"a \| b"),
        ("a\n# b\033[0m", r"a\\n# b\\x1b\[0m"),
    ],
)
def test_a_text_is_no_markup(text: object, escaped: str) -> None:
    assert as_text(text) == escaped


@pytest.mark.parametrize(
    ("text", "code_span"), [("问：", "`问：`"), ("a``b`", "``` a``b` ```"), ("a|b\n", r"`a\|b\n`")]
)
def test_a_code_span_ends_where_its_text_ends(text: str, code_span: str) -> None:
    assert as_code(text) == code_span


def test_a_card_shows_the_names_of_sources_and_options_as_text() -> None:
    build = Build(WILD, {"unit": WILD}, [Source(WILD, 1, "0" * 64)])
    card_text = card_markdown([], {"table3": {}, "collections": {}}, [build])
    assert "<script>" not in card_text.replace("`<script>", "").replace(r"\<script\>", "")
    assert r"- \<script\>" in card_text and f"unit = {as_text(WILD)}, from:" in card_text
    assert "\033" not in card_text and "\u2028" not in card_text


def test_no_passage_and_no_query_stands_in_a_release_card_or_its_figures(tmp_path: Path) -> None:
    rows = tables([f"{WILD} {text}" for text in TEXTS])
    with draft_release(tmp_path / "release", BUILD) as draft:
        for (config, split), rows_of_split in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(rows_of_split, schema_of(config))])
    for path in (tmp_path / "release").glob("*.*"):
        assert "alert(1)" not in path.read_text(encoding="utf-8"), path


def test_a_terminal_is_shown_control_characters_and_obeys_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts = [f"{WILD} {text}" for text in TEXTS]
    release = make_release(tmp_path / "release", tables(texts))
    write_run(tmp_path / "a.run", [(md5(QUESTIONS["dev"][0]), [(md5(texts[4]), 1.0)])])
    stdout = run("baselines", "show", "--release", release, "--chars", 1000, tmp_path / "a.run").stdout
    assert "\033" not in stdout and r"\x1b[2J" in stdout and "<script>" in stdout


def test_an_error_is_one_line_whatever_it_names() -> None:
    error = InputError("has 'a\nb\033[2J\ud800'", path=Path("x\ny"), line=3)
    assert str(error) == r"x\ny:3: has 'a\nb\x1b[2J\ud800'"
