"""The outputs that must stay, of verbs that need a model: runs, manifests, embeddings, negatives, training records.

``tests/golden_models.json`` has the outputs of tiny models as readable values. Numbers with decimals are compared with
a tolerance, because processors round differently. Everything else is compared exactly. Within a query, the order of
passages is not compared, because scores within the tolerance can change places.

    python tests/test_golden_models.py --write  # write golden_models.json anew, where an output changes on purpose
"""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # where this file is the program

import torch
from conftest import Once
from golden_model_outputs import MODEL_GROUPS, Golden, ModelWorld, make_model_world

GOLDEN = Path(__file__).with_name("golden_models.json")
WRITE = "GOLDEN_MODELS_WRITE"  # set where this file is the program
TOLERANCE = 1e-3  # absolute, plus the same share of the expected number
LINE_LENGTH = 118


def is_equal(expected: Any, actual: Any) -> bool:
    """True if two values are equal, or two floats nearly equal. An int is not equal to a float."""
    if isinstance(expected, float) and isinstance(actual, float):
        return math.isclose(expected, actual, abs_tol=TOLERANCE + TOLERANCE * abs(expected))
    return type(expected) is type(actual) and bool(expected == actual)


def differences(expected: Any, actual: Any, location: str) -> Iterator[str]:
    """Yield a line for each value that differs, with its place: ``rerank/cross/scores/dev-1/passage-03``."""
    if isinstance(expected, dict) and isinstance(actual, dict):
        for key in expected.keys() | actual.keys():
            yield from differences(expected.get(key, "nothing"), actual.get(key, "nothing"), f"{location}/{key}")
    elif isinstance(expected, list) and isinstance(actual, list) and len(expected) == len(actual):
        for number, (expected_part, actual_part) in enumerate(zip(expected, actual, strict=True)):
            yield from differences(expected_part, actual_part, f"{location}/{number}")
    elif not is_equal(expected, actual):
        yield f"{location}: {expected!r} expected, {actual!r} found"


def readable(value: Any, margin: str = "") -> str:
    """Return JSON in which a value that fits in a line has one line. ``margin``: the spaces before the value."""
    line = json.dumps(value, ensure_ascii=False)
    if not isinstance(value, (dict, list)) or len(margin) + len(line) <= LINE_LENGTH:
        return line
    deeper = f"{margin} "
    if isinstance(value, list):
        return "[\n" + ",\n".join(deeper + readable(part, deeper) for part in value) + f"\n{margin}]"
    parts = [f"{deeper}{json.dumps(key, ensure_ascii=False)}: {readable(part, deeper)}" for key, part in value.items()]
    return "{\n" + ",\n".join(parts) + f"\n{margin}}}"


@pytest.fixture(scope="module")
def model_world(once: Once) -> Path:
    """The folder of the inputs of all groups. Do not change it."""
    torch.set_num_threads(1)
    return once("golden-models", make_model_world)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("make_outputs", MODEL_GROUPS, ids=lambda make_outputs: make_outputs.__name__)
def test_outputs_of_models_are_as_they_were(
    make_outputs: Callable[[ModelWorld], Golden], model_world: Path, tmp_path: Path
) -> None:
    group = make_outputs.__name__
    (tmp_path / "out").mkdir()
    outputs = make_outputs(ModelWorld(model_world, tmp_path / "out"))
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if WRITE in os.environ:
        golden[group] = outputs
        GOLDEN.write_text(readable(dict(sorted(golden.items()))) + "\n", encoding="utf-8")
        return
    changed = sorted(differences(golden.get(group, {}), outputs, group))
    assert not changed, "\n".join([f"{len(changed)} values of {group} have changed:", *changed])


def test_every_group_is_compared() -> None:
    golden = json.loads(GOLDEN.read_text(encoding="utf-8"))
    assert list(golden) == sorted(group.__name__ for group in MODEL_GROUPS)


def test_numbers_have_a_tolerance_and_nothing_else_has() -> None:
    expected = {"scores": {"one": 20.0, "two": 0.1}, "names": ["a", "b"], "count": 3}
    rounded = {"scores": {"two": 0.1009, "one": 20.02}, "names": ["a", "b"], "count": 3}
    assert not list(differences(expected, rounded, ""))
    changed = {"scores": {"one": 20.03, "two": 0.1}, "names": ["b", "a"], "count": 3.0, "more": None}
    changed_locations = {line.split(":")[0] for line in differences(expected, changed, "")}
    assert changed_locations == {"/scores/one", "/names/0", "/names/1", "/count", "/more"}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    os.environ[WRITE] = "1"
    sys.exit(pytest.main([__file__, "-n", "0", "-k", "outputs_of_models"]))
