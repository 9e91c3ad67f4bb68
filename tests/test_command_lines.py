"""The options of every verb, as they were when argparse parsed them (``tests/command_lines.json``)."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_lines import Described, describe_verbs

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
