"""The acceptance of packages (Appendix A.3): two reviewers, 100 items each, 93 % on average."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from builders.annotate.quality import Rule, judge, percent


@given(st.lists(st.lists(st.booleans(), max_size=12), max_size=4), st.integers(0, 12))
def test_a_package_is_accepted_by_the_rule_in_other_words(reviews: list[list[bool]], size: int) -> None:
    verdict = judge(size, {str(number): found for number, found in enumerate(reviews)}, Rule(2, 10))
    full = [found for found in reviews if found]
    enough = len(full) >= 2 and all(len(found) >= min(10, size) for found in full)
    good = enough and sum(100 * sum(found) / len(found) for found in full) / len(full) >= 93 - 1e-9
    assert (verdict.refusal == "") == good


def test_what_is_below_the_bound_is_not_shown_as_reaching_it() -> None:
    assert percent(Fraction(929_999, 1_000_000)) == "92.99 %"
    assert percent(Fraction(1)) == "100.00 %"
