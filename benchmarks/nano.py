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

from baselines.measure.answer_recall import format_tau
from baselines.measure.measures import PAPER, paper_by_query
from baselines.measure.qrels import release_qrels
from baselines.measure.significance import rank_agreement
from builders.core.tables import text_table
from builders.store.reader import open_release
from builders.store.runs import read_run


def values_of(release: Path, paths: list[Path], split: str) -> npt.NDArray[np.float64]:
    """Return the paper's measures of every run and query, shape (measures, queries, systems)."""
    qrels = release_qrels(open_release(release), split)
    values = [paper_by_query(read_run(path).rankings, qrels) for path in paths]  # by system, query and measure
    return np.array(values).transpose(2, 1, 0)


def main() -> None:
    parser = parser_of(__doc__, "--json")
    for name in ("whole", "nano"):
        parser.add_argument(f"--{name}", type=Path, required=True, metavar="DIR", help=f"the {name} release")
        parser.add_argument(
            f"--runs-{name}", type=Path, required=True, metavar="DIR", help=f"runs on the {name} release"
        )
    parser.add_argument("--split", default="dev", help="split of the queries (default: dev)")
    args = parser.parse_args()
    # The systems whose runs are in both folders.
    run_names = sorted(path.name for path in args.runs_nano.glob("*.run.gz") if (args.runs_whole / path.name).exists())
    whole_values = values_of(args.whole, [args.runs_whole / name for name in run_names], args.split)
    nano_values = values_of(args.nano, [args.runs_nano / name for name in run_names], args.split)

    score_rows = []
    mrr_of_whole = whole_values[0].mean(axis=0)
    mrr_of_nano = nano_values[0].mean(axis=0)
    for name, whole_mrr, nano_mrr in zip(run_names, mrr_of_whole, mrr_of_nano, strict=True):
        score_rows.append([name.removesuffix(".run.gz"), f"{100 * whole_mrr:.2f}", f"{100 * nano_mrr:.2f}"])
    score_rows.sort(key=lambda row: -float(row[1]))
    print(text_table(["MRR@10", "whole", "nano"], score_rows))

    figures = {}
    for measure, whole, nano in zip(PAPER, whole_values, nano_values, strict=True):
        tau, interval = rank_agreement(whole, nano, same_queries=False)
        biases = 100 * (nano.mean(axis=0) - whole.mean(axis=0))  # of each system, in percent
        figures[measure] = {
            "tau": tau,
            "interval": interval,
            "bias": float(biases.mean()),
            "of_systems": biases.tolist(),
        }
        bias_range = f"{biases.min():+.2f} to {biases.max():+.2f}"
        print(f"{measure}: tau {format_tau(tau, interval)}; nano - whole {biases.mean():+.2f} ({bias_range})")
    query_counts = [whole_values.shape[1], nano_values.shape[1]]
    write_json(args.json, {"systems": run_names, "queries": query_counts, "measures": figures})


if __name__ == "__main__":
    main()
