"""``matrix.toml``: every row of the paper's tables that can be run, its commands, and its published figures."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from builders.command import InputError
from builders.files import read_utf8

if sys.version_info >= (3, 11):
    import tomllib
else:  # Python 3.10
    import tomli as tomllib

MATRIX = Path(__file__).with_name("matrix.toml")
# The paper's names of the measures, and the official script's keys (Section 3.2).
MEASURES = {"MRR@10": "MRR@10", "Recall@1": "recall@1", "Recall@50": "recall@50"}


@dataclass(frozen=True)
class Row:
    """One row of one table. ``{release}``, ``{split}`` and ``{out}`` stand in the commands until they are filled in."""

    table: int
    name: str
    commands: list[list[str]]
    run: str
    published: dict[str, float]

    def filled(self, fill: dict[str, str]) -> list[list[str]]:
        """The commands, each as the words after ``python -m``; the last one evaluates the run."""
        evaluate = ["baselines", "evaluate", "--release", "{release}", "--split", "{split}", self.run]
        return [[_filled(word, fill) for word in command] for command in [*self.commands, evaluate]]

    def run_path(self, fill: dict[str, str]) -> str:
        return _filled(self.run, fill)


@dataclass(frozen=True)
class Matrix:
    """All rows, and what the published figures were measured on."""

    passages: int
    split: str
    rows: list[Row]

    def select(self, table: int | None, name: str | None) -> list[Row]:
        """The rows of a table, of a name, of both; an :class:`InputError` with the known ones where there is none."""
        found = [row for row in self.rows if table in (None, row.table) and name in (None, row.name)]
        if not found:
            wanted = " ".join([f"--table {table}"] * (table is not None) + [f"--row {name}"] * (name is not None))
            known = "; ".join(f"--table {row.table} --row {row.name}" for row in self.rows)
            raise InputError(f"no row fits {wanted}; known: {known}", path=MATRIX.name)
        return found


def read_matrix(path: Path = MATRIX) -> Matrix:
    """Read the matrix. Raises :class:`InputError` for a row that lacks something or names an unknown measure."""
    try:
        content: dict[str, Any] = tomllib.loads(read_utf8(path))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"expected TOML ({error})", path=path) from error
    try:
        rows = [Row(**row) for row in content["row"]]
        matrix = Matrix(content["published_on"]["passages"], content["published_on"]["split"], rows)
    except (KeyError, TypeError) as error:
        raise InputError(f"expected [published_on] and [[row]] with every key ({error})", path=path) from error
    for row in rows:
        if unknown := set(row.published) - set(MEASURES):
            raise InputError(f"row {row.name!r}: unknown measures {sorted(unknown)}", path=path)
    return matrix


def _filled(word: str, fill: dict[str, str]) -> str:
    for name, value in fill.items():
        word = word.replace("{" + name + "}", value)
    return word
