"""Verbs: calls from Python and words of a shell are checked alike, and the help is the function's docstring."""

import inspect
import json
import pickle
import subprocess
import sys
import typing
from collections.abc import Callable, Sequence
from fractions import Fraction
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal

import numpy as np
import pytest
from command_lines import functions
from commands import ROOT, run

import baselines
import builders
from builders.core.command import run_verb
from builders.core.docstrings import read_help
from builders.core.errors import EXTRAS, InputError, UsageError
from builders.core.help import help_text, option_help
from builders.core.options import AtLeastOne, Flags, Help, OneOf, OrObject, Parsed, Placeholder, Share, Use
from builders.core.parser import parse_words
from builders.core.results import Report, Table
from builders.core.verbs import TABLE_FORMATS, verb, verb_spec


class Pot:
    """An object that a call from Python may pass in place of a path."""


class PathOfBytes:
    """A path whose text is bytes, which no verb accepts."""

    def __fspath__(self) -> bytes:
        return b"pot"


def read_fraction(text: str) -> Fraction:
    try:
        return Fraction(text)
    except ValueError:
        raise ValueError("a number such as 0.5 or 1/2") from None


@verb()
def brew(
    pot: Annotated[Path, OrObject(f"{__name__}:Pot"), Placeholder("POT")],
    *,
    cups: Annotated[AtLeastOne, Placeholder("N")] = 2,
    milk: Share = 0.25,
    leaf: Literal["green", "black"] = "green",
    sweet: bool = False,
    warm: Annotated[bool, Use.WITH_NO] = True,
    out: Path | None = None,
    spices: Annotated[Sequence[str], OneOf(("ginger", "mint"))] = (),
    guests: Annotated[Sequence[str], Use.REPEATED, Flags(("--guest", "-g"))] = (),
    strength: Annotated[Fraction, Parsed(read_fraction), Help("strength as a share")] = Fraction(1, 2),
) -> dict[str, Any]:
    """Brew tea.

    Tea needs
    water.

      pot -> cup
        -> saucer

    It is served hot.

    Args:
        pot: the pot, with
            its lid
        cups: cups to fill

    Returns:
        The recipe.

    Examples:
        brew pot --cups 3 \\
          --milk 0
    """
    return {name: value for name, value in locals().items() if value is not None}


# Calls from Python.


def test_a_call_gets_the_defaults_and_its_arguments() -> None:
    recipe = brew(Path("pot"), cups=3)
    assert (recipe["cups"], recipe["milk"], recipe["spices"]) == (3, 0.25, ())


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"cups": 0}, "cups: expected a whole number of at least 1, found 0"),
        ({"cups": 2.0}, "cups: expected a whole number of at least 1, found 2.0"),
        ({"cups": True}, "cups: expected a whole number of at least 1, found True"),
        ({"cups": None}, "cups: expected a whole number of at least 1, found None"),
        ({"milk": "0.9"}, "milk: expected a number from 0 to 1, found '0.9'"),
        ({"milk": 1.5}, "milk: expected a number from 0 to 1, found 1.5"),
        ({"milk": float("nan")}, "milk: expected a number from 0 to 1, found nan"),
        ({"milk": float("inf")}, "milk: expected a number from 0 to 1, found inf"),
        ({"leaf": "blck"}, "leaf: expected one of green, black, found 'blck'; did you mean black?"),
        ({"sweet": 1}, "sweet: expected True or False, found 1"),
        ({"out": 1}, "out: expected a path, found 1"),
        ({"spices": "mint"}, "spices: expected a list, each one of ginger, mint, found 'mint'"),
        ({"spices": ["mint", "salt"]}, "spices: expected one of ginger, mint, found 'salt'"),
        ({"strength": "much"}, "strength: expected a number such as 0.5 or 1/2, found 'much'"),
        ({"strength": 0.5}, "strength: expected a number, found 0.5"),
        ({"cup": 3}, "brew has no option 'cup'; did you mean cups?"),
    ],
)
def test_a_wrong_argument_is_named_with_what_was_expected(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError) as error:
        brew("pot", **argument)
    assert str(error.value) == message


@pytest.mark.parametrize(("arguments", "part"), [((), "missing a required argument: 'pot'"), (("a", "b"), "too many")])
def test_missing_and_superfluous_arguments_are_named(arguments: tuple[str, ...], part: str) -> None:
    with pytest.raises(UsageError, match=f"brew: {part}"):
        brew(*arguments)


def test_a_wrong_argument_is_an_input_error() -> None:
    with pytest.raises(InputError):
        brew("pot", cups=0)


def test_numbers_of_numpy_become_numbers_of_python() -> None:
    recipe = brew("pot", cups=np.int64(3), milk=np.float32(0.5))
    assert [type(recipe["cups"]), type(recipe["milk"])] == [int, float]


def test_a_truth_value_of_numpy_is_no_number() -> None:
    assert brew("pot", sweet=np.bool_(True))["sweet"] is True
    with pytest.raises(UsageError, match="cups: expected a whole number"):
        brew("pot", cups=np.bool_(True))


def test_an_int_may_stand_for_a_float() -> None:
    milk = brew("pot", milk=1)["milk"]
    assert (milk, type(milk)) == (1.0, float)


def test_a_str_may_stand_for_a_path() -> None:
    recipe = brew("pot", out="a/b")
    assert (recipe["pot"], recipe["out"]) == (Path("pot"), Path("a/b"))


def test_an_object_may_stand_for_a_path() -> None:
    pot = Pot()
    assert brew(pot)["pot"] is pot
    with pytest.raises(UsageError, match="pot: expected a path or a Pot, found 3"):
        brew(3)


def test_a_list_becomes_a_tuple() -> None:
    assert brew("pot", spices=["mint", "ginger"])["spices"] == ("mint", "ginger")


def test_a_text_with_a_form_of_its_own_or_its_value_is_accepted() -> None:
    assert brew("pot", strength="1/3")["strength"] == brew("pot", strength=Fraction(1, 3))["strength"] == Fraction(1, 3)


def test_the_signature_shows_types_without_markers() -> None:
    parameters = inspect.signature(brew).parameters
    assert parameters["cups"].annotation is int
    assert parameters["spices"].annotation == Sequence[Literal["ginger", "mint"]]
    assert parameters["out"].annotation == str | Path | None


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (baselines.search_bm25, {"ca_certs": "a"}, "ca_certs needs engine='elasticsearch'"),
        (baselines.search_bm25, {"tune": "train", "b": 0.5}, "b and tune exclude each other"),
        (baselines.show_passages, {"runs": ["a"], "port": 1}, "port needs serve"),
        (builders.find_similar, {"by": ["exact"], "ngram": 3, "out": "o"}, "ngram needs by='n-gram'"),
        (builders.build_official, {"list": [], "out": "o"}, "out and list exclude each other"),
    ],
)
def test_an_option_that_would_be_ignored_is_named(
    function: Callable[..., Any], arguments: dict[str, Any], message: str
) -> None:
    release = {} if function is builders.build_official else {"release": "r"}
    with pytest.raises(UsageError) as error:
        function(**release, **arguments)
    assert str(error.value) == message


def test_an_option_with_its_default_needs_nothing() -> None:
    with pytest.raises(InputError, match="r: not a release"):
        baselines.search_bm25("r", tune="train", k1=1.2, seed=0)


# Words of a shell.


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ("--pot POT", {"pot": Path("POT")}),
        ("--pot POT --cups 3 --milk=1", {"cups": 3, "milk": 1.0}),
        ("--pot POT --sweet --no-warm", {"sweet": True, "warm": False}),
        ("--pot POT --spices mint ginger", {"spices": ("mint", "ginger")}),
        ("--pot POT --guest a -g b", {"guests": ("a", "b")}),
        ("--pot POT --strength 1/3", {"strength": Fraction(1, 3)}),
        ("--pot POT --quiet", {"quiet": True}),
    ],
)
def test_words_become_arguments(words: str, arguments: dict[str, Any]) -> None:
    assert parse_words(verb_spec(brew), words.split()) == {"pot": Path("POT")} | arguments


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ("", "missing --pot"),
        ("--pot POT --cups 2.9", "--cups: expected a whole number of at least 1, found '2.9'"),
        ("--pot POT --milk inf", "--milk: expected a number from 0 to 1, found inf"),
        ("--pot POT --cups=-3", "--cups: expected a whole number of at least 1, found -3"),
        ("--pot POT --cups", "--cups"),
        ("--pot POT --cup 3", "--cup"),
        ("--pot POT --no-sweet", "--no-sweet"),
        ("--pot POT cup", "unexpected argument 'cup'"),
        ("--pot POT --spices salt", "--spices: expected one of ginger, mint, found 'salt'"),
    ],
)
def test_wrong_words_are_named(words: str, part: str) -> None:
    with pytest.raises(UsageError) as error:
        parse_words(verb_spec(brew), words.split())
    assert part in str(error.value)


def test_the_words_of_a_call_are_parsed_to_the_same_arguments() -> None:
    arguments = {"pot": Path("POT"), "cups": 3, "warm": False, "spices": ("mint",), "guests": ("a", "b")}
    spec = verb_spec(brew)
    assert parse_words(spec, spec.words(arguments)) == arguments


# The help.


def test_the_docstring_is_read_in_parts() -> None:
    parts = read_help(brew)
    assert parts.summary == "Brew tea."
    assert parts.description == ["Tea needs water.", "  pot -> cup\n    -> saucer", "It is served hot."]
    assert parts.parameters == {"pot": "the pot, with its lid", "cups": "cups to fill"}
    assert parts.examples == ["brew pot --cups 3 \\", "  --milk 0"]


def test_a_docstring_may_be_one_line() -> None:
    def tidy() -> None:
        """Tidy up."""

    parts = read_help(tidy)
    assert (parts.summary, parts.description, parts.parameters, parts.examples) == ("Tidy up.", [], {}, [])


def test_the_help_shows_values_choices_and_defaults() -> None:
    lines = help_text("brew", brew, width=80).splitlines()
    assert lines[:3] == ["usage: brew --pot POT [options]", "", "Brew tea."]
    assert "  --cups N                cups to fill (default: 2)" in lines
    assert "  --leaf LEAF             green, black (default: green)" in lines
    assert "  --warm, --no-warm       (default: on)" in lines
    assert "  --strength STRENGTH     strength as a share (default: 1/2)" in lines
    assert lines[-2:] == ["  brew pot --cups 3 \\", "    --milk 0"]
    assert "Returns:" not in lines and all(len(line) <= 80 for line in lines)


# Results.

SCORES = Table(("system", "MRR@10"), [("a|b", 0.5), ("c", None)], "Scores", percent_columns=("MRR@10",))


@verb(formats=TABLE_FORMATS)
def measure(*, fail: bool = False) -> Report:
    """Measure."""
    return Report({"MRR@10": 0.5}, lambda: "half", [SCORES], failed=fail)


@pytest.mark.parametrize(
    ("words", "printed"),
    [
        ([], "half\n"),
        (["--format", "json"], '{\n "MRR@10": 0.5\n}\n'),
        (["--format", "csv"], "system,MRR@10\na|b,0.5\nc,\n"),
        (
            ["--format", "markdown"],
            "**Scores**\n\n| system | MRR@10 |\n| --- | ---: |\n| a\\|b | 50.00 |\n| c |  |\n",
        ),
    ],
)
def test_the_command_line_prints_a_report(words: list[str], printed: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("baselines", "measure", measure, words) == 0
    assert capsys.readouterr().out == printed


def test_a_report_of_faults_has_exit_code_1(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_verb("baselines", "measure", measure, ["--fail"]) == 1
    assert capsys.readouterr().out == "half\n"


def test_a_data_frame_keeps_fractions() -> None:
    assert measure().to_pandas()["MRR@10"].to_list()[0] == 0.5


def test_a_report_without_a_table_says_so() -> None:
    with pytest.raises(UsageError, match="this result has no table"):
        Report(1, "one").to_markdown()


# Every verb of the programs, and every step.
VERBS = dict(functions())
# The libraries that a verb imports only when it works. The help of a verb must be quick, and needs no extra.
LATE = {library for names in EXTRAS.values() for library in names.split()}


@pytest.mark.parametrize(("command", "function"), VERBS.items(), ids=VERBS)
def test_a_verb_describes_itself_and_its_options(command: str, function: Callable[..., Any]) -> None:
    verb_help = read_help(function)
    assert verb_help.summary.endswith(".") and len(verb_help.summary) <= 64
    spec = verb_spec(function)
    assert [option.name for option in spec.options if not option_help(option, verb_help)] == []
    assert set(verb_help.parameters) <= {option.name for option in spec.options}
    assert any(command in line for line in verb_help.examples) or len(command.split()) == 3  # a step needs no example


@pytest.mark.parametrize("program", [baselines, builders], ids=["baselines", "builders"])
def test_a_program_offers_the_functions_of_its_verbs(program: ModuleType) -> None:
    functions_of_verbs = {
        function.__name__: function for command, function in VERBS.items() if command.split()[0] == program.__name__
    }
    offered = {name: getattr(program, name) for name in program.__all__ if hasattr(getattr(program, name), "verb")}
    assert offered == functions_of_verbs and dir(program) == sorted(program.__all__)


def test_the_module_of_a_verb_imports_no_library() -> None:
    modules = sorted({function.__module__ for function in VERBS.values()})
    code = f"""
import importlib, json, sys
loaded = {{}}
for module in {modules!r}:
    before = set(sys.modules)
    importlib.import_module(module)
    loaded[module] = sorted({{name.partition(".")[0] for name in set(sys.modules) - before}} & {LATE!r})
print(json.dumps(loaded))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {module: [] for module in modules}


def test_a_step_is_listed_with_its_first_line() -> None:
    verbs_with_steps = {tuple(name.split()[:2]) for name in VERBS if len(name.split()) == 3}
    for program, name in verbs_with_steps:
        listed = run(program, name, "--help").stdout
        for command, function in VERBS.items():
            if command.startswith(f"{program} {name} "):
                assert f"  {read_help(function).summary}\n" in listed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"release": ""}, "release: expected a path"),
        ({"release": "a\0b"}, "release: expected a path"),
        ({"release": "r", "k1": 10**400}, "k1: expected a number of at least 0"),
    ],
)
def test_values_that_a_library_would_refuse_later_are_refused_at_once(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        baselines.search_bm25(**arguments)


def test_a_list_that_needs_a_value_is_not_empty() -> None:
    with pytest.raises(UsageError, match="runs: expected a list with at least one value"):
        baselines.evaluate_runs([], release="r")


def test_numbers_of_numpy_have_the_form_of_an_option() -> None:
    with pytest.raises(UsageError, match="step: expected 1 / n"):
        baselines.fuse_runs(["a", "b"], step=np.float32(0.3))
    with pytest.raises(UsageError, match="threshold: expected a number, found"):
        builders.build_release(["r"], out="o", threshold="0.9")


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"pot": "a" * 256}, "pot: expected a path of at most 4,095 bytes, with names of at most 255 bytes"),
        ({"pot": "/".join(["a"] * 3_000)}, "pot: expected a path of at most 4,095 bytes"),
        ({"pot": "\ud800"}, "pot: expected a text without surrogates"),
        ({"guests": ["\udcff"]}, "guests: expected a text without surrogates"),
        ({"pot": PathOfBytes()}, "pot: expected a path that is a text"),
        ({"cups": ["x" * 9_999]}, "cups: expected a whole number of at least 1, found \\['xxx"),
        ({"cups": np.zeros((30, 30))}, "cups: expected a whole number of at least 1, found a ndarray"),
    ],
)
def test_a_text_that_no_file_system_takes_is_one_short_error(argument: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        brew(**{"pot": "pot", **argument})
    assert len(str(error.value)) < 400


def test_type_hints_of_a_verb_can_be_read() -> None:
    for function in VERBS.values():
        assert set(typing.get_type_hints(function)) >= {option.name for option in verb_spec(function).options}


def test_a_report_can_be_pickled() -> None:
    report = Report({"a": 1}, lambda: "text", lambda: [SCORES], {"latex": lambda: "latex"}, failed=True)
    copy = pickle.loads(pickle.dumps(report))
    for form in (*TABLE_FORMATS, "latex"):
        assert copy.render(form) == report.render(form)
    assert copy.value == report.value and copy.failed
