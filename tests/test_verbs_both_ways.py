"""Every verb, called by the command line and from Python: same files, same results, same warnings, same exit code.

:mod:`verb_calls` has the calls. A verb, step or set without a call makes a test fail.
"""

import contextlib
import inspect
import io
import json
import logging
import math
import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from command_lines import functions
from commands import run
from conftest import Once
from elasticsearch_server import Elasticsearch
from hub_client import as_client
from hub_server import WRITE, Hub
from loopback import Chat
from verb_calls import CALLS, ELASTICSEARCH, RELEASE, REPOSITORY, RUNS, VerbCall, make_inputs

from baselines.retrieve.index_files import open_vectors
from builders.core.errors import InputError, UsageError
from builders.core.options import Between, Option, OrObject, Parsed
from builders.core.parser import parse_words
from builders.core.results import Report
from builders.core.verbs import VerbSpec, verb_spec
from builders.store.reader import open_release
from builders.store.runs import Run, read_run

VERBS = dict(functions())
CALL_NAMES = [f"{number} {call.command}" for number, call in enumerate(CALLS)]
# Durations, speeds and dates, which differ between two calls of the same verb: in JSON, in texts and in model cards.
VARYING = re.compile(
    r'(?<="seconds":)[-+.e0-9 ]+|(?<="rows_per_second":)[-+.e0-9 ]+|(?<="texts_per_second":)[-+.e0-9 ]+'
    r'|(?<="p[0-9][0-9]_ms":)[-+.e0-9 ]+|(?<="time":)"[^"]*"'
    r"|(?<= )[0-9.]+(?= s\b)|(?<=\| seconds \| )[0-9.]+|(?<= )[0-9.,]+(?= (?:ms|passages/s|queries/s|pairs/s)\b)",
    re.MULTILINE,
)

pytestmark = pytest.mark.usefixtures("equal_figures_are_drawn_once")


@dataclass
class Outcome:
    """The results of a call: its exit code, the text for people, the JSON value, warnings and files."""

    exit_code: int
    text: str
    value: Any
    warnings: list[str]
    files: dict[str, bytes]


def stable_text(text: str) -> str:
    """Replace the values that differ between any two calls. Their width changes the width of columns."""
    return re.sub(" {2,}", " ", VARYING.sub("0", text))


def stable_content(content: bytes) -> bytes:
    """Replace the values that differ between any two calls, if the content is a text."""
    try:
        return stable_text(content.decode()).encode()
    except UnicodeDecodeError:
        return content


class Workplace:
    """A folder in which a verb is called, with the inputs of all calls. Each call starts in a fresh folder."""

    def __init__(self, base: Path, inputs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.base = base
        self.inputs = inputs
        self.monkeypatch = monkeypatch
        self.hub: Hub | None = None
        self.served: list[Any] = []  # settings with which the page was served
        monkeypatch.setenv("XDG_CACHE_HOME", str(base / "cache"))
        monkeypatch.setenv("NO_COLOR", "1")

    def prepare(self, call: VerbCall) -> None:
        """Empty the folder and the caches. Link the inputs, and copy inputs that the verb changes."""
        self.monkeypatch.chdir(self.base)
        for name in ("work", "cache"):
            shutil.rmtree(self.base / name, ignore_errors=True)
        work = self.base / "work"
        work.mkdir()
        (work / "inputs").symlink_to(self.inputs)
        for name in call.changes:
            shutil.copytree(self.inputs / name, work / name)
        self.monkeypatch.chdir(work)
        if self.hub:
            self.hub.repos.clear()
            if call.command == "baselines pull":
                words = ("--model", "inputs/checkpoint", "--repo", REPOSITORY, "--create", "--quiet")
                run("baselines", "push", words)

    def files(self) -> dict[str, bytes]:
        """Return the files of the folder and of the hub, without the values that differ between any two calls.

        Files of judgments are named by their checksum, which depends on the time. Here they have one name.
        """
        contents = {}
        for path in sorted((self.base / "work").rglob("*")):  # the walk does not enter the linked inputs
            if path.is_file() and not path.is_symlink():
                contents[path.relative_to(self.base / "work").as_posix()] = path.read_bytes()
        if self.hub:
            for (kind, name), repository in self.hub.repos.items():
                contents |= {f"{kind} {name}/{path}": content for path, content in repository.files.items()}
        stable: dict[str, bytes] = {}
        for name, content in contents.items():
            stable_name = re.sub("[0-9a-f]{64}", "CHECKSUM", name)
            if name.endswith(".made.json"):  # a training's files have durations, so their checksums differ
                content = re.sub(b"[0-9a-f]{64}", b"CHECKSUM", content)
            stable[stable_name] = stable.get(stable_name, b"") + stable_content(content)
        return stable

    def from_shell(self, call: VerbCall, arguments: dict[str, Any]) -> Outcome:
        spec = verb_spec(VERBS[call.command])
        program, *verb_words = call.command.split()
        words = verb_words + spec.words(arguments)
        value = None
        if spec.formats and not spec.writes_formats:
            self.prepare(call)
            done = run(program, words, "--format", "json", code=None)
            assert "error: " not in done.stderr, done.stderr
            value = json.loads(stable_text(done.stdout))
        self.prepare(call)
        self.served.clear()
        done = run(program, words, code=None)
        assert "error: " not in done.stderr, done.stderr
        warnings = re.findall(r"^[0-9:]{8} (?:WARNING|ERROR) (.*)$", done.stderr, re.MULTILINE)
        return Outcome(done.code, stable_text(done.stdout), value, warnings, self.files())

    def from_python(self, call: VerbCall, arguments: dict[str, Any]) -> tuple[Outcome, Any]:
        self.prepare(call)
        self.served.clear()
        printed = io.StringIO()
        with logged_warnings() as warnings, contextlib.redirect_stdout(printed):
            result = VERBS[call.command](**arguments)
        assert printed.getvalue() == "", "a function returns its result and prints nothing"
        report = result if isinstance(result, Report) else getattr(result, "report", None)
        spec = verb_spec(VERBS[call.command])
        if report is None:
            return Outcome(0, "", None, warnings, self.files()), result
        shown_format = arguments.get("format", spec.default_format) if spec.formats else "text"
        text = f"{report}\n" if shown_format == "text" else f"{report.render(shown_format)}\n"
        value = json.loads(stable_text(report.to_json())) if spec.formats and not spec.writes_formats else None
        return Outcome(int(report.failed), stable_text(text), value, warnings, self.files()), result


@contextlib.contextmanager
def logged_warnings() -> Iterator[list[str]]:
    """Collect the messages that are logged as warnings or errors."""
    messages: list[str] = []

    class Collector(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            messages.append(record.getMessage())

    collector = Collector(logging.WARNING)
    logging.getLogger().addHandler(collector)
    try:
        yield messages
    finally:
        logging.getLogger().removeHandler(collector)


def answer_of_model(prompt: str) -> str:
    """Reply to any prompt: a grade for a judge, which a translator's answer may contain, too."""
    return "最终得分：3"


@pytest.fixture(scope="session")
def inputs(once: Once) -> Path:
    return once("verb-calls", make_inputs)


@pytest.fixture
def workplace(
    inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> Iterator[Workplace]:
    """A folder for the call of the test's parameter ``call``, with the servers that the call needs."""
    place = Workplace(tmp_path, inputs, monkeypatch)
    call = request.getfixturevalue("call_of_verb")
    with contextlib.ExitStack() as stack:
        if call.needs == "hub":
            place.hub = stack.enter_context(Hub())
            stack.enter_context(as_client(place.hub, tmp_path / "home", WRITE))
        if call.needs == "chat":
            server = stack.enter_context(Chat(answer_of_model))
            monkeypatch.setenv("OPENAI_BASE_URL", server.url)
            monkeypatch.setenv("OPENAI_API_KEY", "none")
        if call.needs == "page":
            page = ModuleType("baselines.look.gradio_page")
            page.serve = lambda _searcher, _tools, host, port, **_: place.served.append((host, port))  # type: ignore[attr-defined]
            monkeypatch.setitem(sys.modules, page.__name__, page)
            import baselines.look

            monkeypatch.setattr(baselines.look, "gradio_page", page, raising=False)
        yield place


# `make test-slow` runs these calls, which open a model or build a release, each with a second or more.
SLOW_COMMANDS = (
    "baselines encode",
    "baselines errors no-answer",
    "baselines match",
    "baselines rerank",
    "baselines reproduce",
    "baselines run",
    "baselines train",
    "builders check",
    "builders publish",
    "builders release",
)
CALL_PARAMETERS = []
for _call in CALLS:
    _marks = [pytest.mark.slow] if _call.command in SLOW_COMMANDS else []
    CALL_PARAMETERS.append(pytest.param(_call, marks=_marks))


@pytest.fixture(params=CALL_PARAMETERS, ids=CALL_NAMES)
def call_of_verb(request: pytest.FixtureRequest) -> VerbCall:
    call: VerbCall = request.param
    return call


@pytest.fixture
def arguments(call_of_verb: VerbCall) -> Iterator[dict[str, Any]]:
    """The arguments of the call, with the address of a running server."""
    if call_of_verb.needs != "elasticsearch":
        yield call_of_verb.arguments
        return
    with Elasticsearch() as server:
        yield {name: server.url if value == ELASTICSEARCH else value for name, value in call_of_verb.arguments.items()}


def test_every_verb_has_a_call() -> None:
    assert sorted(VERBS) == sorted({call.command for call in CALLS})


def with_objects(call: VerbCall, arguments: dict[str, Any], in_memory: bool = False) -> dict[str, Any]:
    """Replace the paths of releases, runs and embeddings by opened objects.

    ``in_memory``: the names of runs are no files, as if a search without ``out`` had returned the runs.
    """

    def open_object(path: str, place: str) -> Any:
        if place == "builders.store.reader:Release":
            return open_release(Path(path))
        if place == "builders.store.runs:Run":
            run_in_file = read_run(Path(path))
            return Run.in_memory(Path(path).name, run_in_file.hits) if in_memory else run_in_file
        return open_vectors(Path(path))

    changed = dict(arguments)
    for option in verb_spec(VERBS[call.command]).options:
        or_object = option.marker(OrObject)
        if or_object and arguments.get(option.name):
            value = arguments[option.name]
            if option.is_list:
                changed[option.name] = [open_object(path, or_object.class_target) for path in value]
            else:
                changed[option.name] = open_object(value, or_object.class_target)
    return changed


def has_runs(call: VerbCall) -> bool:
    return any(".run" in str(value) for name, value in call.arguments.items() if name not in ("out", "round"))


def test_every_verb_that_reads_runs_accepts_run_objects() -> None:
    only_paths = set()
    for call in filter(has_runs, CALLS):
        for option in verb_spec(VERBS[call.command]).options:
            is_run = option.name != "out" and ".run" in str(call.arguments.get(option.name))
            if is_run and not option.marker(OrObject):
                only_paths.add(f"{call.command}: {option.name}")
    assert only_paths == set()


def test_shell_and_python_do_the_same(call_of_verb: VerbCall, workplace: Workplace, arguments: dict[str, Any]) -> None:
    by_shell = workplace.from_shell(call_of_verb, arguments)
    served = list(workplace.served)
    by_python, result = workplace.from_python(call_of_verb, arguments)
    assert by_python.text == by_shell.text
    assert by_python.value == by_shell.value
    assert by_python.warnings == by_shell.warnings
    assert by_python.exit_code == by_shell.exit_code
    assert sorted(by_python.files) == sorted(by_shell.files)
    assert [name for name, content in by_python.files.items() if content != by_shell.files[name]] == []
    assert workplace.served == served and bool(served) == (call_of_verb.needs == "page")
    if isinstance(result, Run):
        assert result.hits == read_run(Path(arguments["out"])).hits


@pytest.mark.parametrize("call_of_verb", [call for call in CALLS if has_runs(call)], ids=lambda call: call.command)
def test_objects_stand_for_paths(call_of_verb: VerbCall, workplace: Workplace, arguments: dict[str, Any]) -> None:
    by_path, _ = workplace.from_python(call_of_verb, arguments)
    by_object, _ = workplace.from_python(call_of_verb, with_objects(call_of_verb, arguments))
    assert (by_object.text, by_object.value, by_object.warnings) == (by_path.text, by_path.value, by_path.warnings)
    assert by_object.files == by_path.files


@pytest.mark.parametrize("call_of_verb", [call for call in CALLS if has_runs(call)], ids=lambda call: call.command)
def test_runs_in_memory_are_accepted(call_of_verb: VerbCall, workplace: Workplace, arguments: dict[str, Any]) -> None:
    _, by_path = workplace.from_python(call_of_verb, arguments)
    try:
        _, by_object = workplace.from_python(call_of_verb, with_objects(call_of_verb, arguments, in_memory=True))
    except InputError as error:
        assert "is not in a file" in str(error)
        return
    if isinstance(by_path, Run):
        assert by_object.hits == by_path.hits


@pytest.mark.parametrize(
    "call_of_verb",
    [call for call in CALLS if ".run" in call.arguments.get("out", "") and call.command.startswith("baselines")],
    ids=lambda call: call.command,
)
def test_a_run_in_memory_has_the_hits_of_the_file(
    call_of_verb: VerbCall, workplace: Workplace, arguments: dict[str, Any]
) -> None:
    out = next(option for option in verb_spec(VERBS[call_of_verb.command]).options if option.name == "out")
    if not out.optional:
        pytest.skip("the verb always writes its run")
    _, written = workplace.from_python(call_of_verb, arguments)
    in_file = written.hits
    outcome, in_memory = workplace.from_python(call_of_verb, arguments | {"out": None})
    assert in_memory.hits == in_file and not [name for name in outcome.files if ".run" in name]


# Wrong values: one for each kind of option. The shell's words and the arguments from Python are wrong in the same way.


def wrong_value(option: Option) -> Any:
    """Return a value that the option refuses, for the shell and from Python, or None if any text is accepted."""
    limits = option.marker(Between)
    if option.choices:
        return "no-such-choice"
    if option.value_type is Path:
        return ""
    if option.value_type in (int, float) and limits and math.isfinite(limits.low) and not option.marker(Parsed):
        return option.value_type(limits.low) - 1
    if option.marker(Parsed) and option.value_type in (int, float, Fraction):
        return -1.0 if option.value_type is float else -1
    return "" if option.marker(Parsed) else None


def wrong_calls() -> Iterator[tuple[str, str, Any]]:
    """Yield (command, name of an option, wrong value). Every option that refuses some value is called once."""
    for command, function in VERBS.items():
        for option in verb_spec(function).options:
            value = wrong_value(option)
            if option.value_type is not bool and value is not None:
                yield command, option.name, value


def test_a_wrong_value_is_the_same_error_in_both_ways() -> None:
    calls_by_command = {call.command: call for call in reversed(CALLS)}
    differences = []
    for command, name, value in wrong_calls():
        spec = verb_spec(VERBS[command])
        option = next(option for option in spec.options if option.name == name)
        arguments = dict(calls_by_command[command].arguments)
        arguments[name] = [value] if option.is_list else value
        with pytest.raises(UsageError) as error:
            VERBS[command](**arguments)
        with pytest.raises(UsageError) as shell_error:
            parse_words(spec, equals_words(spec, arguments, option))
        by_shell = str(shell_error.value).removeprefix(f"{option.flags[0]}: ").replace(f"'{value}'", str(value))
        by_python = str(error.value).removeprefix(f"{name}: ").replace(f"'{value}'", str(value))
        if by_shell != by_python:
            differences.append((command, by_shell, by_python))
    assert differences == []


def equals_words(spec: VerbSpec, arguments: dict[str, Any], option: Option) -> list[str]:
    """Return the words of a call, in which the wrong value follows ``=``, because it may begin with a hyphen."""
    right_arguments = {name: value for name, value in arguments.items() if name != option.name}
    value = arguments[option.name]
    text = str(value[0] if option.is_list else value)
    wrong_word = text if option.positional else f"{option.flags[0]}={text}"
    if option.default is inspect.Parameter.empty:
        # Words cannot be made without a required option, so a marker is replaced.
        right_arguments[option.name] = ["MARKER"] if option.is_list else "MARKER"
        words = spec.words(right_arguments)
        position = words.index("MARKER")
        first_replaced = position if option.positional else position - 1  # with the option's flag
        words[first_replaced : position + 1] = [wrong_word]
        return words
    words = spec.words(right_arguments)
    words.insert(0 if option.positional else len(words), wrong_word)
    return words


@pytest.mark.parametrize(
    ("command", "arguments"),
    [
        ("builders check", {"release": "missing"}),
        ("builders add cmedqa", {"source": ["missing"], "out": "out"}),
        ("builders similar", {"release": RELEASE, "against": ["missing"]}),
        ("builders export", {"release": RELEASE, "format": "rag", "run": ["missing"], "out": "out"}),
        ("builders annotate check", {"round": "missing"}),
        ("builders annotate translate", {"release": RELEASE, "split": ["dev"], "model": "m", "out": "out/"}),
        ("baselines bm25", {"release": RELEASE, "split": "missing", "out": "out"}),
        ("baselines bm25", {"release": RELEASE, "set": "cmedqa", "out": "out"}),
        ("baselines mine", {"release": RELEASE, "run": "missing", "out": "out"}),
        ("baselines train", {"recipe": "missing", "out": "out"}),
        ("baselines rerank", {"release": RELEASE, "run": RUNS[0], "model": "./missing", "out": "out"}),
        ("baselines search", {"release": RELEASE, "passages": "missing", "model": "inputs/dual", "out": "out"}),
        ("baselines fuse", {"runs": [RUNS[0], "missing"], "out": "out"}),
        ("baselines evaluate", {"runs": ["missing"], "release": RELEASE}),
        ("baselines show", {"runs": RUNS, "release": RELEASE, "query": "no such question"}),
        ("baselines errors tally", {"round": "missing"}),
        ("baselines reproduce", {"leaderboard": ["missing"], "release": RELEASE}),
        ("baselines push", {"model": "missing", "repo": REPOSITORY}),
        ("baselines convert", {"params": "missing", "config": "missing", "vocab": "missing", "out": "out"}),
    ],
)
def test_a_wrong_input_is_the_same_error_in_both_ways(
    command: str, arguments: dict[str, Any], inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    (tmp_path / "inputs").symlink_to(inputs)
    monkeypatch.chdir(tmp_path)
    program, *words = command.split()
    words += verb_spec(VERBS[command]).words(arguments)
    done = run(program, words, code=None)
    with pytest.raises(InputError) as error:
        VERBS[command](**arguments)
    if isinstance(error.value, UsageError):
        expected_code = 2
        expected_line = f"error: python -m {command}: {error.value}"
    else:
        expected_code = 1
        expected_line = f"error: {error.value}"
    assert done.stderr.splitlines()[-1] == expected_line
    assert done.code == expected_code and done.stdout == ""
