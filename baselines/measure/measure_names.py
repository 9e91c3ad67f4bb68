"""Names of measures on the command line: the official keys, the measures of holes, and any measure of ir-measures."""

import difflib
from collections.abc import Iterable

from baselines.measure.holes import HOLE_MEASURES
from baselines.measure.ir_measure_names import EXAMPLES, UnknownMeasure, resolve_ir_measure
from baselines.measure.measures import IR_MEASURES, PAPER
from baselines.measure.ties import EXPECTED, LISTED, has_expectation
from builders.core.errors import UsageError

# Measures that every evaluation has. They are means over all orders with --ties expected.
_USUAL_MEASURES = (*PAPER.values(), "RR@10", *IR_MEASURES)
_NEAR_NAMES = 4  # in an error


def resolve_measures(names: Iterable[str], ties: str = LISTED, *, with_holes: bool = False) -> list[str]:
    """Return the measures that names in any case mean, each once. No run is needed.

    A name is an official key (MRR@10, recall@1, recall@50) or a measure of ir-measures, for example nDCG@20 or
    P(rel=2)@5. ``with_holes`` also accepts the columns of `errors holes --per-query`.

    Raises :class:`UsageError` for unknown names, with near names, and if ``ties`` is ``expected`` and a measure has no
    mean over all orders of ties.
    """
    special_names = {name.lower(): name for name in _USUAL_MEASURES}
    if with_holes:
        special_names |= {name.lower(): name for name in HOLE_MEASURES}
    # Dictionaries serve as ordered sets.
    resolved_names: dict[str, None] = {}
    near_names: dict[str, None] = {}
    unknown_names: list[str] = []
    for name in names:
        if name.lower() in special_names:
            resolved_names[special_names[name.lower()]] = None
            continue
        try:
            resolved_names[resolve_ir_measure(name)] = None
        except UnknownMeasure as error:
            unknown_names.append(repr(name))
            near_special_names = difflib.get_close_matches(name.lower(), special_names)
            near_names |= dict.fromkeys(error.near_names)
            near_names |= dict.fromkeys(special_names[lower_case] for lower_case in near_special_names)
    if unknown_names:
        noun = "measure" if len(unknown_names) == 1 else "measures"
        hint = ""
        if near_names:
            hint = f"; did you mean {', '.join(list(near_names)[:_NEAR_NAMES])}?"
        raise UsageError(
            f"unknown {noun} {', '.join(unknown_names)}{hint}; expected {', '.join(PAPER.values())} or a measure of "
            f"ir-measures, for example {EXAMPLES}"
        )
    if ties == EXPECTED:
        for name in resolved_names:
            if name not in _USUAL_MEASURES and not has_expectation(name):
                raise UsageError(
                    f"--ties expected: measure {name!r} needs an order of the passages; expected one of "
                    f"{', '.join(PAPER.values())}, AP, nDCG@k, P@k, R@k, RR@k, Success@k"
                )
    return list(resolved_names)
