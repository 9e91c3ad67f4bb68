"""What the rules are worth on hand-made cases: pairs of which somebody has said what is wrong with them.

``cases.jsonl`` holds two parts. The rules were written with the first in sight; the second was written when they were
done, and they were not changed after: its figures are the honest ones.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import msgspec

from baselines.errors.rules import RULES, Error, Finding, findings
from builders.common.files import read_whole
from builders.common.tables import text_table
from builders.common.typed import json_of

CASES = Path(__file__).with_name("cases.jsonl")
PARTS = ("first", "second")


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A pair, the category that it belongs to, and the texts of the query's positives, where a rule looks at them."""

    query: str
    passage: str
    category: str
    part: Literal["first", "second"]
    positives: list[str] = []
    judged: bool = False

    @property
    def error(self) -> Error:
        return Error(self.query, self.passage, self.positives, self.judged)


def read_cases(path: Path = CASES) -> list[Case]:
    """The cases, in the file's order."""
    lines = enumerate(read_whole(path).split(b"\n"), 1)
    return [json_of(line, Case, path, number) for number, line in lines if line]


def measured() -> dict[str, Any]:
    """By part and rule, as JSON: the cases of its category, those that it finds, and those of them that are right.

    ``alone``: wherever it applies. ``counted``: where it is the first of the rules that apply, which is what counts.
    """
    cases = [(case, findings(case.error)) for case in read_cases()]
    return {part: _of([each for each in cases if each[0].part == part]) for part in PARTS}


def _of(cases: list[tuple[Case, list[Finding]]]) -> dict[str, Any]:
    rules = {}
    for name, (category, _) in RULES.items():
        alone = [case.category == category for case, found in cases if name in [each.rule for each in found]]
        counted = [case.category == category for case, found in cases if found and found[0].rule == name]
        rules[name] = {
            **{"category": category, "cases": sum(case.category == category for case, _ in cases)},
            "alone": {"found": len(alone), "right": sum(alone)},
            "counted": {"found": len(counted), "right": sum(counted)},
        }
    return {"cases": len(cases), "undecided": sum(not found for _, found in cases), "rules": rules}


def as_text(found: dict[str, Any]) -> str:
    """The figures as tables: precision and recall, and of how many cases they are."""
    header = ("rule", "category", "precision", "recall", "precision alone", "recall alone")
    parts = []
    for part, figures in found.items():
        rows = [
            (
                *(name, row["category"].replace("_", " ")),
                *(
                    _fraction(row[how]["right"], n)
                    for how in ("counted", "alone")
                    for n in (row[how]["found"], row["cases"])
                ),
            )
            for name, row in figures["rules"].items()
        ]
        first = f"{part} part: {figures['cases']} cases, {figures['undecided']} of them decided by no rule"
        parts.append(f"{first}\n{text_table(header, rows)}")
    return "\n\n".join(parts)


def _fraction(part: int, whole: int) -> str:
    return f"{part / whole:.2f} ({part}/{whole})" if whole else "-"
