"""The options of every verb, as they were when argparse parsed them (``tests/command_lines.json``)."""

import json
from pathlib import Path
from typing import Any

import pytest
from command_lines import Described, describe_verbs

GOLDEN: dict[str, Described] = json.loads(Path(__file__).with_name("command_lines.json").read_text("utf-8"))
OPTIONS = describe_verbs()


def comparable(options: Described) -> dict[str, dict[str, Any]]:
    return {option["flags"][0]: option for option in options}


@pytest.mark.parametrize("command", OPTIONS)
def test_a_verb_has_the_options_that_it_had(command: str) -> None:
    expected, found = comparable(GOLDEN[command]), comparable(OPTIONS[command])
    shown_format = "--format"
    if shown_format in expected and expected[shown_format]["choices"][:2] == ["text", "json"]:
        assert set(found[shown_format].pop("choices")) >= set(expected[shown_format].pop("choices"))
    assert found == expected
