"""The outputs that must stay: SHA-256 of what the verbs make of the embedded sample and of DuReader's demo rows.

``tests/golden.json`` has the number of rows and the SHA-256 of every output that depends on no model: rows of releases,
runs of BM25, negatives, exports, counts. A change of the code leaves them as they are. Cards, messages, manifests and
the bytes of Parquet files are no outputs here. BM25's scores count to 4 decimals, other floats to 6.

    python tests/test_golden.py --rows DIR   # write the rows of every output to DIR: diff them between two commits
    python tests/test_golden.py --write      # write golden.json anew, where an output changes on purpose, and only then
"""

import hashlib
import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).resolve().parent.parent))  # where this file is the program

from conftest import Once
from golden_outputs import GROUPS, World
from golden_rows import Outputs

GOLDEN = Path(__file__).with_name("golden.json")
# Variables of the environment, which are set where this file is the program
WRITE = "GOLDEN_WRITE"
ROWS = "GOLDEN_ROWS"
Value = dict[str, Any]


def values_of(group: str, outputs: Outputs) -> dict[str, Value]:
    """Return the number of rows and the SHA-256 of each output, and write the rows if the environment says where."""
    values = {}
    rows_folder = os.environ.get(ROWS)
    for name, rows in outputs.items():
        text = "".join(json.dumps(row, ensure_ascii=False, sort_keys=True) + "\n" for row in rows)
        if rows_folder:
            path = Path(rows_folder) / group / f"{name}.jsonl"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        values[f"{group}/{name}"] = {"rows": len(rows), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return values


def describe(value: Value | None) -> str:
    """Return the number of rows and the start of the checksum."""
    return f"{value['rows']} rows {value['sha256'][:8]}" if value else "no output"


def differences(expected: dict[str, Value], actual: dict[str, Value]) -> list[str]:
    """Return a line for each output that has changed, is new, or is missing."""
    lines = []
    for name in sorted(actual.keys() | expected.keys()):
        if actual.get(name) != expected.get(name):
            lines.append(f"{name}: {describe(expected.get(name))} expected, {describe(actual.get(name))} found")
    return lines


def write_golden(values: dict[str, Value]) -> None:
    """Write golden.json with an output per line."""
    entries = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in sorted(values.items())]
    GOLDEN.write_text("{\n" + ",\n".join(entries) + "\n}\n")


@pytest.mark.usefixtures("own_cache")
@pytest.mark.parametrize("make", GROUPS, ids=lambda make: make.__name__)
def test_outputs_are_as_they_were(
    make: Callable[[World], Outputs], once: Once, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    group = make.__name__
    (tmp_path / "out").mkdir()
    actual = values_of(group, make(World(once, request.getfixturevalue, tmp_path / "out")))
    golden = json.loads(GOLDEN.read_text()) if GOLDEN.exists() else {}
    expected = {name: value for name, value in golden.items() if name.split("/")[0] == group}
    if WRITE in os.environ:
        # Outputs of this group that are gone leave the file.
        other_groups = {name: value for name, value in golden.items() if name not in expected}
        write_golden(other_groups | actual)
        return
    changed = differences(expected, actual)
    heading = f"{len(changed)} outputs of {group} have changed (--rows writes them):"
    assert not changed, "\n".join([heading, *changed])


def test_every_value_is_compared() -> None:
    assert {name.split("/")[0] for name in json.loads(GOLDEN.read_text())} == {make.__name__ for make in GROUPS}


if __name__ == "__main__":
    if sys.argv[1:] != ["--write"] and (len(sys.argv) != 3 or sys.argv[1] != "--rows"):
        sys.exit(__doc__)
    os.environ[WRITE if sys.argv[1] == "--write" else ROWS] = sys.argv[-1]
    sys.exit(pytest.main([__file__, "-n", "0"]))
