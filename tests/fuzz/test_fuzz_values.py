"""Values of other types and ranges in a stranger's manifest.json and stats.json, for each verb that reads a release.

A verb works, or ends in one error line that names the file. The values are drawn with a seed.
"""

import json
import random
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Once
from fuzzing import CASES, _remove_output, home_of, outcome
from spoil import value_places
from test_fuzz_releases import sign
from test_fuzz_verbs import TORCH, VERBS, make_inputs, verb_reader
from whole_release import edit_everything

FILES = ("manifest.json", "stats.json")
NUMBERS: list[Any] = [-1, 0, 0.5, 2, 2**63, 2**70, 1e300, -1e300]
TEXTS = ["", "x", "1e99999999", "1/3", "-5", "a|b\n", "{{ 1 }}", "9" * 5_000]
CONTAINERS: list[Any] = [[], {}, [None], {"x": None}, [[1]], {"a|b": 1}]
CONSTANTS: list[Any] = [None, True]
VALUES = CONSTANTS + NUMBERS + TEXTS + CONTAINERS
_QUICK_CASES = 2  # cases of a verb in `pytest tests/fuzz`


def make_strange(folder: Path) -> None:
    """Write the inputs of all verbs. The release has figures of every kind."""
    make_inputs(folder)
    edit_everything(folder / "release")
    sign(folder)


def mutations(release_path: Path, seed: str) -> Iterator[tuple[str, str]]:
    """Yield (file, content with one or two other values) without end."""
    rng = random.Random(seed)
    while True:
        name = rng.choice(FILES)
        content = json.loads((release_path / name).read_text(encoding="utf-8"))
        # The other parts of the manifest are signed.
        places = list(value_places(content if name == "stats.json" else content["builds"]))
        for holder, key in rng.sample(places, rng.choice((1, 1, 2))):
            holder[key] = rng.choice(VALUES)
        yield name, json.dumps(content)


@pytest.mark.usefixtures("equal_figures_are_drawn_once")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in TORCH])
def test_a_value_of_a_stranger_is_ignored_or_one_error_line(
    verb: str, once: Once, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    intact_inputs = once("strange", make_strange)
    reader = verb_reader(verb, True, intact_inputs)
    cases = mutations(intact_inputs / "release", verb)
    refused_count = 0
    case_count = max(_QUICK_CASES, CASES // 50)
    with home_of(tmp_path / "home") as home:
        world = home / "world"
        shutil.copytree(intact_inputs, world)
        assert not hasattr(reader.read(world), "code")  # the figures of every kind are accepted
        _remove_output(world)
        for _ in range(case_count):
            name, content = next(cases)
            (world / "release" / name).write_text(content, encoding="utf-8")
            sign(world)
            code, _, error = outcome(home, lambda: reader.read(world))
            if code:
                assert f"{name}: " in error, f"{error}: {content}"
                refused_count += 1
            _remove_output(world)
            for file_name in FILES:
                shutil.copy(intact_inputs / "release" / file_name, world / "release" / file_name)
    record_property("fuzz", f"{verb}: {case_count} cases, {refused_count} refused")
