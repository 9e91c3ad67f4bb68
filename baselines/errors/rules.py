"""What can be said of an error by rule, before anybody has looked at it: five rules, in the order that they count."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from baselines.errors.duplicates import near_duplicate
from baselines.errors.entities import absent
from baselines.errors.numerals import differing
from baselines.errors.overlap import only_shared
from baselines.errors.typos import typo


@dataclass(frozen=True)
class Error:
    """A query and a passage that was ranked high and is no positive.

    Attributes:
        positives: the texts of the query's positive passages.
        judged: whether the qrels have the pair, as what is not relevant.
    """

    query: str
    passage: str
    positives: Sequence[str] = ()
    judged: bool = False


class Finding(NamedTuple):
    """What a rule says: the category (its key in the published table), and in Chinese why."""

    rule: str
    category: str
    why: str


def _numerals(error: Error) -> str:
    found = differing(error.query, error.passage)
    return f"数字不同：{found[0]} / {found[1]}" if found else ""


def _duplicates(error: Error) -> str:
    found = None if error.judged else near_duplicate(error.passage, error.positives)
    return f"与正例几乎相同：{found:.0%}" if found else ""


def _typos(error: Error) -> str:
    found = typo(error.query, error.passage, error.positives)
    return f"疑似拼写错误：{found[0]} / {found[1]}" if found else ""


def _entities(error: Error) -> str:
    found = absent(error.query, error.passage, error.positives)
    return f"段落里没有：{'、'.join(found)}" if found else ""


def _overlap(error: Error) -> str:
    found = only_shared(error.query, error.passage, error.positives)
    return f"只有这个词相同：{found}" if found else ""


# By the rule's name: its category, and why it applies; empty where it does not. The first that applies counts: what is
# the same text but for a number or a name answers another question.
RULES: dict[str, tuple[str, Callable[[Error], str]]] = {
    "numerals": ("numeral_mismatch", _numerals),
    "entities": ("entity_mismatch", _entities),
    "duplicates": ("false_negative", _duplicates),
    "typos": ("typos", _typos),
    "overlap": ("term_overlap", _overlap),
}


def findings(error: Error) -> list[Finding]:
    """What every rule that applies says, in the order that they count."""
    said = ((name, category, why(error)) for name, (category, why) in RULES.items())
    return [Finding(*found) for found in said if found[2]]
