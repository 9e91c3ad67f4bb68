"""Compare the order of systems on a nano release with their order on the whole release.

Two folders have the runs of the same systems, under the same file names: on the whole release, and on the nano release
that `add samples --nano --extract` drew from it. For each measure, the script prints Kendall's tau between the two
orders of the systems, with a 95 % interval over resampled queries, and the mean difference of the scores.

Example:

  python benchmarks/nano.py --whole NEWS --runs-whole runs/whole --nano NANO --runs-nano runs/nano
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
from common import parser_of, write_json

from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import rank_agreement
from builders.core.tables import text_table
from builders.store.reader import open_release
from builders.store.runs import read_run


def values_of(release: Path, paths: list[Path], split: str) -> npt.NDArray[np.float64]:
    """Return the paper's measures of every run and query, shape (measures, queries, systems)."""
    qrels = release_qrels(open_release(release), split)
    return np.array([paper_by_query(read_run(path).rankings, qrels) for path in paths]).transpose(2, 1, 0)


def main() -> None:
    parser = parser_of(__doc__, "--json")
    for name in ("whole", "nano"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR", help=f"the {name} release")
        parser.add_argument(
            f"--runs-{name}", type=Path, required=True, metavar="DIR", help=f"runs on the {name} release"
        )
    parser.add_argument("--split", default="dev", help="split of the queries (default: dev)")
    args = parser.parse_args()
    names = sorted(path.name for path in args.runs_nano.glob("*.run.gz") if (args.runs_whole / path.name).exists())
    whole = values_of(args.whole, [args.runs_whole / name for name in names], args.split)
    nano = values_of(args.nano, [args.runs_nano / name for name in names], args.split)
    scores = [
        [name.removesuffix(".run.gz"), f"{100 * first:.2f}", f"{100 * second:.2f}"]
        for name, first, second in zip(names, whole[0].mean(axis=0), nano[0].mean(axis=0), strict=True)
    ]
    print(text_table(["MRR@10", "whole", "nano"], sorted(scores, key=lambda row: -float(row[1]))))
    figures = {}
    for measure, first, second in zip(PAPER, whole, nano, strict=True):
        tau, (low, high) = rank_agreement(first, second, same_queries=False)
        bias = 100 * (second.mean(axis=0) - first.mean(axis=0))
        figures[measure] = {
            "tau": tau,
            "interval": [low, high],
            "bias": float(bias.mean()),
            "of_systems": bias.tolist(),
        }
        ends = f"{bias.min():+.2f} to {bias.max():+.2f}"
        print(f"{measure}: tau {tau:.2f} ({low:.2f} to {high:.2f}); nano - whole {bias.mean():+.2f} ({ends})")
    write_json(args.json, {"systems": names, "queries": [whole.shape[1], nano.shape[1]], "measures": figures})


if __name__ == "__main__":
    main()
