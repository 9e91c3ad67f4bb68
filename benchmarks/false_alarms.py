"""Count false alarms of the significance tests of `compare`, on the values of real runs.

For every pair of runs and each measure, two systems without a difference are simulated in two ways:

- swapped: for each query, the two systems' values are exchanged with a probability of 1/2. Both systems have the same
  expected mean, and the tests' assumptions hold.
- redrawn: the differences of the queries' values, minus the mean difference, are sampled with replacement. The expected
  mean is 0. The differences keep their skew, which violates the assumptions of both tests.

A family consists of all pairs of the runs. The runs' values are shuffled within each query. A family counts as one
false alarm if any of the pairs differs significantly.

Example:

  python benchmarks/false_alarms.py --release DIR --split dev bm25.dev.run.gz de.dev.run.gz ce.dev.run.gz
"""

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from common import machine, parser_of, write_json

from baselines.measure.measures import PAPER, measure_run, values_of
from baselines.measure.qrels import read_reference
from baselines.measure.significance import holm, randomisation, student
from builders.core.tables import text_table
from builders.store.names import SET_NAMES
from builders.store.runs import read_run

Values = npt.NDArray[np.float64]
NULLS = ("swapped", "redrawn")
ALPHA = 0.05


def without_a_difference(values: tuple[Values, Values], null: str, queries: int, random: np.random.Generator) -> Values:
    """Return the differences of one simulated pair of systems on ``queries`` queries."""
    differences = random.choice(values[0] - values[1], queries)
    if null == "swapped":
        return np.asarray(differences * random.choice([-1.0, 1.0], queries))
    return np.asarray(differences - (values[0] - values[1]).mean())


def alarms(
    pairs: list[tuple[Values, Values]], null: str, queries: int, draws: int, resamples: int, seed: int = 0
) -> dict[str, float]:
    """Return the share of simulated pairs that each test finds different at ``ALPHA``, with ``draws`` for each pair."""
    random = np.random.default_rng(seed)
    found = {"t": 0, "randomisation": 0}
    for values in pairs:
        for number in range(draws):
            differences = without_a_difference(values, null, queries, random)
            if np.ptp(differences):
                found["t"] += student(differences, np.zeros(queries), 0.95)[0] <= ALPHA
                found["randomisation"] += randomisation(differences, resamples=resamples, seed=number) <= ALPHA
    return {test: count / (draws * len(pairs)) for test, count in found.items()}


def family_alarms(values: list[Values], draws: int, seed: int = 0) -> dict[str, float]:
    """Return the share of families with a significant pair by Student's t, with and without Holm's correction."""
    random = np.random.default_rng(seed)
    found = {"Holm": 0, "uncorrected": 0}
    for _ in range(draws):
        systems = random.permuted(np.column_stack(values), axis=1)
        pairs = [(systems[:, one], systems[:, two]) for one, two in combinations(range(len(values)), 2)]
        p_values = [student(*pair, 0.95)[0] if np.ptp(pair[0] - pair[1]) else 1.0 for pair in pairs]
        found["uncorrected"] += min(p_values) <= ALPHA
        found["Holm"] += min(holm(p_values)) <= ALPHA
    return {name: count / draws for name, count in found.items()}


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--release", type=Path, metavar="DIR", help="release with the reference judgments")
    parser.add_argument("--qrels", type=Path, metavar="FILE", help="judgments in a file, in place of --release")
    parser.add_argument("--split", default="dev", help="split of the release (default: dev)")
    parser.add_argument("--set", choices=SET_NAMES, default="main", help="set of the release (default: main)")
    parser.add_argument("--draws", type=int, default=1_000, metavar="N", help="simulations per pair (default: 1000)")
    resamples = "draws of the randomisation test (default: 999)"
    parser.add_argument("--resamples", type=int, default=999, metavar="N", help=resamples)
    size = "queries of a simulated pair; may be repeated (default: all queries)"
    parser.add_argument("--size", type=int, action="append", dest="sizes", metavar="N", help=size)
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="a run to take values from")
    args = parser.parse_args()
    qrels = read_reference(release=args.release, qrels=args.qrels, split=args.split, set_name=args.set)
    tables = [measure_run(read_run(path), qrels)[1] for path in args.runs]
    figures: list[dict[str, Any]] = []
    for measure in PAPER.values():
        values = [values_of(table, measure) for table in tables]
        pairs = [(one, two) for one, two in combinations(values, 2) if np.ptp(one - two)]
        for queries in args.sizes or [len(values[0])]:
            for null in NULLS:
                counted = alarms(pairs, null, queries, args.draws, args.resamples)
                figures.append({"measure": measure, "queries": queries, "null": null, **counted})
        families = family_alarms(values, args.draws)
        figures.append({"measure": measure, "queries": len(values[0]), "null": "families", **families})
    names, shares = ("measure", "null", "queries"), ("t", "randomisation", "Holm", "uncorrected")
    table = [
        [*(str(row[key]) for key in names), *(f"{100 * row[key]:.2f}" if key in row else "" for key in shares)]
        for row in figures
    ]
    print(text_table([*names, *shares], table))
    write_json(args.json, {"machine": machine("scipy"), "draws": args.draws, "figures": figures})


if __name__ == "__main__":
    main()
