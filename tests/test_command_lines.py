"""The options of every verb, as they were when argparse parsed them (``tests/command_lines.json``)."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_lines import Described, describe_default, describe_verbs

from builders.core.options import Option

GOLDEN: dict[str, Described] = json.loads(Path(__file__).with_name("command_lines.json").read_text("utf-8"))
OPTIONS = describe_verbs()


def comparable(options: Described) -> dict[str, dict[str, Any]]:
    """Return the options by their first name."""
    return {option["flags"][0]: option for option in options}


@pytest.mark.parametrize("command", OPTIONS)
def test_a_verb_has_the_options_that_it_had(command: str) -> None:
    expected_options = comparable(GOLDEN[command])
    options = comparable(OPTIONS[command])
    # The option --format of verbs that print tables may have more choices than it had.
    expected_format = expected_options.get("--format", {"choices": []})
    if expected_format["choices"][:2] == ["text", "json"]:
        expected_choices = expected_format.pop("choices")
        choices = options["--format"].pop("choices")
        assert set(choices) >= set(expected_choices)
    assert options == expected_options


@pytest.mark.parametrize(
    ("default", "description"),
    [(0, "0"), (0.0, "0.0"), (1, "1"), (True, "True"), (False, None), (None, None), ("", None), ((), None)],
)
def test_a_default_of_zero_is_not_the_absence_of_a_default(default: Any, description: str | None) -> None:
    option = Option("seed", value_type=int, default=default, optional=True, is_list=False, markers=())
    assert describe_default(option) == description
