"""Systems that a test cannot tell apart."""

from __future__ import annotations

from collections.abc import Collection, Sequence


def groups(systems: Sequence[str], apart: Collection[tuple[str, str]]) -> list[list[str]]:
    """The largest groups of systems none of which is told apart from another of its group.

    This is the compact letter display of Piepho (2004, "An algorithm for a letter-based representation of all-pairwise
    comparisons"): begin with one group of all; each pair that is told apart splits every group that holds both; a group
    within another one goes. A system may be in several: a and b, b and c may look alike where a and c do not.

    Args:
        systems: the best first; the groups and their members are in this order.
        apart: the pairs that are told apart.
    """
    place = {system: number for number, system in enumerate(systems)}
    found = {frozenset(place.values())}
    for pair in apart:
        both = {place[system] for system in pair}
        split = {part for group in found for part in ([group - {one} for one in both] if both <= group else [group])}
        found = {group for group in split if not any(group < other for other in split)}
    return [[systems[number] for number in group] for group in sorted(map(sorted, found))]
