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


def is_equal(expected: Any, found: Any) -> bool:
    if isinstance(expected, float) and isinstance(found, float):
        return math.isclose(expected, found, abs_tol=TOLERANCE + TOLERANCE * abs(expected))
    return type(expected) is type(found) and bool(expected == found)


def differences(expected: Any, found: Any, place: str) -> Iterator[str]:
    """Yield a line for each value that differs, with its place: ``rerank/cross/scores/dev-1/passage-03``."""
    if isinstance(expected, dict) and isinstance(found, dict):
        for key in expected.keys() | found.keys():
            yield from differences(expected.get(key, "nothing"), found.get(key, "nothing"), f"{place}/{key}")
    elif isinstance(expected, list) and isinstance(found, list) and len(expected) == len(found):
        for number, (first, second) in enumerate(zip(expected, found, strict=True)):
            yield from differences(first, second, f"{place}/{number}")
    elif not is_equal(expected, found):
        yield f"{place}: {expected!r} expected, {found!r} found"


def readable(value: Any, margin: str = "") -> str:
    """Return JSON in which a value that fits in a line has one line."""
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
    torch.set_num_threads(1)
    return once("golden-models", make_model_world)


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("make_outputs", MODEL_GROUPS, ids=lambda make_outputs: make_outputs.__name__)
def test_outputs_of_models_are_as_they_were(
    make_outputs: Callable[[ModelWorld], Golden], model_world: Path, tmp_path: Path
) -> None:
    group = make_outputs.__name__
    (tmp_path / "out").mkdir()
    found = make_outputs(ModelWorld(model_world, tmp_path / "out"))
    golden = json.loads(GOLDEN.read_text(encoding="utf-8")) if GOLDEN.exists() else {}
    if WRITE in os.environ:
        GOLDEN.write_text(readable(dict(sorted((golden | {group: found}).items()))) + "\n", encoding="utf-8")
        return
    wrong = sorted(differences(golden.get(group, {}), found, group))
    assert not wrong, "\n".join([f"{len(wrong)} values of {group} have changed:", *wrong])


def test_every_group_is_compared() -> None:
    assert [*json.loads(GOLDEN.read_text(encoding="utf-8"))] == sorted(group.__name__ for group in MODEL_GROUPS)


def test_numbers_have_a_tolerance_and_nothing_else_has() -> None:
    expected = {"scores": {"one": 20.0, "two": 0.1}, "names": ["a", "b"], "count": 3}
    rounded = {"scores": {"two": 0.1009, "one": 20.02}, "names": ["a", "b"], "count": 3}
    assert not list(differences(expected, rounded, ""))
    changed = {"scores": {"one": 20.03, "two": 0.1}, "names": ["b", "a"], "count": 3.0, "more": None}
    places = {line.split(":")[0] for line in differences(expected, changed, "")}
    assert places == {"/scores/one", "/names/0", "/names/1", "/count", "/more"}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"]:
        sys.exit(__doc__)
    os.environ[WRITE] = "1"
    sys.exit(pytest.main([__file__, "-n", "0", "-k", "outputs_of_models"]))
