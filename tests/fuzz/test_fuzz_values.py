"""Values of other types and ranges in a stranger's manifest.json and stats.json, for each verb that reads a release.

A verb works, or ends in one error line that names the file. The values are drawn with a seed.
"""

import json
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from conftest import Once
from fuzzing import CASES, _remove_output, home_of, outcome
from spoil import _places
from test_fuzz_releases import sign
from test_fuzz_verbs import TORCH, VERBS, _reader, make
from whole_release import edit_everything

FILES = ("manifest.json", "stats.json")
VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    0.5,
    2,
    2**63,
    2**70,
    1e300,
    -1e300,
    "",
    "x",
    "1e99999999",
    "1/3",
    "-5",
    "a|b\n",
]
VALUES += [[], {}, [None], {"x": None}, [[1]], {"a|b": 1}, "{{ 1 }}", "9" * 5_000]
_FEW = 5  # cases of a verb in `make test`


def make_strange(folder: Path) -> None:
    make(folder)
    edit_everything(folder / "release")
    sign(folder)


def mutations(release: Path, seed: str) -> Iterator[tuple[str, str]]:
    """Yield (file, content with one or two other values) without end."""
    chance = random.Random(seed)
    while True:
        name = chance.choice(FILES)
        content = json.loads((release / name).read_text(encoding="utf-8"))
        places = list(_places(content if name == "stats.json" else content["builds"]))
        for holder, key in chance.sample(places, chance.choice((1, 1, 2))):
            holder[key] = chance.choice(VALUES)
        yield name, json.dumps(content)


@pytest.mark.usefixtures("equal_figures_are_drawn_once")
@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in TORCH])
def test_a_value_of_a_stranger_is_ignored_or_one_error_line(
    verb: str, once: Once, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    good = once("strange", make_strange)
    reader = _reader(verb, True, good)
    cases = mutations(good / "release", verb)
    refused: Counter[str] = Counter()
    number = max(_FEW, CASES // 50)
    with home_of(tmp_path / "home") as home:
        shutil.copytree(good, home / "world")
        assert not hasattr(reader.read(home / "world"), "code")  # the figures of every kind are accepted
        _remove_output(home / "world")
        for _ in range(number):
            name, content = next(cases)
            (home / "world" / "release" / name).write_text(content, encoding="utf-8")
            sign(home / "world")
            code, _, error = outcome(home, lambda: reader.read(home / "world"))
            if code:
                assert f"{name}: " in error, f"{error}: {content}"
                refused[name] += 1
            _remove_output(home / "world")
            for other in FILES:
                shutil.copy(good / "release" / other, home / "world" / "release" / other)
    record_property("fuzz", f"{verb}: {number} cases, {sum(refused.values())} refused")
