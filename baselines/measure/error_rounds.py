"""Draw the errors of a run for annotators, and count the annotators' answers."""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.measure.qrels import read_queries, release_qrels
from baselines.measure.significance import of_means
from builders.annotate.prefill import grades_by
from builders.annotate.rounds import ERRORS, Pair, Rule, open_round, standings
from builders.annotate.tasks import expect_new, make_round
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.sampling import draw
from builders.core.tables import percent, text_table
from builders.store.layout import SETS
from builders.store.published import published
from builders.store.reader import Release
from builders.store.runs import Run


@dataclass(frozen=True)
class DrawnErrors:
    """The errors of a run that people judge.

    Attributes:
        pairs: (query, passage) pairs of the drawn queries, in the order of the release's queries, then by passage id.
        measured: the number of the run's queries that have judged positives.
        failed: the number of failed queries.
    """

    pairs: list[Pair]
    measured: int
    failed: int


def draw_failed_queries(release: Release, split: str, run: Run, *, sample: int, top_k: int, seed: int) -> DrawnErrors:
    """Draw ``sample`` failed queries: queries without a positive among their first ``top_k`` passages.

    Raises :class:`InputError` if the split has no judgments, no query failed, or the release lacks a passage of the
    run.
    """
    positives, rankings = release_qrels(release, split).positives, run.rankings
    measured: dict[str, list[str]] = {}
    for query, _ in read_queries(release, split):
        if query in positives and rankings.get(query):
            measured[query] = list(dict.fromkeys(rankings[query]))[:top_k]
    failed = {query: passages for query, passages in measured.items() if not positives[query].keys() & set(passages)}
    if not failed:
        raise InputError(f"every query of {release.path} {split} has a positive in its top {top_k}", path=run.path)
    chosen = draw(failed, sample, seed)
    if len(chosen) < sample:
        log.warning("only %d queries have no positive in their top %d; all are used", len(chosen), top_k)
    pairs = [(query, passage) for query in failed if query in chosen for passage in sorted(failed[query])]
    texts = release.texts(SETS["main"].corpus, "corpus", {passage for _, passage in pairs})
    if unknown := [passage for _, passage in pairs if passage not in texts]:
        raise InputError(f"has a passage {unknown[0]!r} that the release's corpus lacks", path=run.path)
    return DrawnErrors(pairs, len(measured), len(failed))


def expect_new_round(path: Path) -> None:
    """Raise :class:`InputError` if a round cannot be written to ``path``, before any work is done."""
    expect_new(path)


def write_error_round(path: Path, release: Release, split: str, drawn: DrawnErrors, source: Path, seed: int) -> None:
    """Write the errors of the run ``source`` as a round for `annotate`."""
    packages = make_round(path, release, split, drawn.pairs, source, Rule(seed=seed), question=ERRORS)
    log.info("%d packages; import them into Label Studio, or fill in %s", packages, path / "packages")


def draw_report(drawn: DrawnErrors, run_path: Path, top_k: int, round_path: Path | None) -> Report:
    """Return the numbers of failed queries and of drawn errors as the verb's result."""
    counts = {
        "run": str(run_path),
        "top_k": top_k,
        "measured": drawn.measured,
        "failed": drawn.failed,
        "queries": len({query for query, _ in drawn.pairs}),
        "pairs": len(drawn.pairs),
    }
    text = (
        f"{run_path}: {drawn.failed:,} of {drawn.measured:,} queries have no positive in their top {top_k};"
        f" drawn: {counts['queries']:,} queries, {len(drawn.pairs):,} pairs"
    )
    if round_path:
        text += f"\n{len(drawn.pairs):,} pairs to judge: {round_path}"
    return Report(counts, text, tables=[Table(list(counts), [list(counts.values())], title="errors")])


def count_categories(round_path: Path, model: str | None = None) -> dict[str, Any]:
    """Count the pairs of a round by category, as JSON values.

    The category of a pair is the adjudicator's answer or, without an adjudicator, the answer of most annotators. A tie
    is undecided. All packages count. ``accepted`` is the number of accepted packages. With ``model``, only the last
    answers of this model count.

    ``categories`` has four entries per category: the number of pairs, their share of the decided pairs (0 to 1), the
    share's 95 % interval over queries, and the paper's share. ``sums`` has the same entries for the sums of categories
    that Section 3.5 prints. Raises :class:`InputError` if the directory is not a
    round of errors, or the round has no answers.
    """
    error_round = open_round(round_path, ERRORS.name)
    every = standings(round_path, error_round)
    pairs = sum(len(standing.pairs) for standing in every)
    if model:
        labels = {pair: label for (_, pair), label in grades_by(round_path, model).items()}
        judged, step = len(labels), "prefill"
    else:
        labels = {}
        for standing in every:
            for pair in standing.pairs:
                if (label := standing.label(pair)) is not None:
                    labels[pair] = label
        judged, step = pairs - sum(len(standing.missing) for standing in every), "import"
    if not labels:
        raise InputError(f"has no answers of {model or 'annotators'}; add some by `annotate {step}`", path=round_path)
    counts, rows = Counter(labels.values()), {}
    for choice, (low, high) in zip(ERRORS.choices, _intervals(labels), strict=True):
        number = counts[choice.label]
        rows[choice.key] = {
            "pairs": number,
            "share": number / len(labels),
            "low": low,
            "high": high,
            "paper": published()["table10"][choice.key],
        }
    sums = {}
    for name, paper_sum in published()["table10_sums"].items():
        members = [choice.label for choice in ERRORS.choices if choice.key in paper_sum["categories"]]
        number = sum(counts[label] for label in members)
        ((low, high),) = _intervals(labels, members)
        sums[name] = {
            "pairs": number,
            "share": number / len(labels),
            "low": low,
            "high": high,
            "paper": paper_sum["share"],
        }
    tally = {
        "release": error_round.release,
        "split": error_round.split,
        "pairs": pairs,
        "judged": judged,
        "decided": len(labels),
        "queries": len({query for query, _ in labels}),
        "packages": len(every),
        "accepted": sum(standing.package.state == "accepted" for standing in every),
        "categories": rows,
        "sums": sums,
    }
    return tally | {"model": model} if model else tally


def _intervals(labels: Mapping[Pair, int], members: Collection[int] = ()) -> list[tuple[float, float]]:
    """Return the interval of each category's share, or only of the sum of the categories ``members`` (labels).

    Queries are resampled, because passages of a query have similar errors.
    """
    query_rows = {query: row for row, query in enumerate(dict.fromkeys(query for query, _ in labels))}
    columns = {choice.label: column for column, choice in enumerate(ERRORS.choices)}
    table = np.zeros((len(query_rows), len(columns)))
    for (query, _), label in labels.items():
        # The mean over queries is the share.
        table[query_rows[query], columns[label]] += len(query_rows) / len(labels)
    if members:
        table = table[:, [columns[label] for label in members]].sum(axis=1, keepdims=True)
    return of_means(table)


def tally_report(tally: dict[str, Any]) -> Report:
    """Return the result of :func:`count_categories` as the verb's result."""
    shares_by_key = tally["categories"] | {f"sum: {key}": row for key, row in tally["sums"].items()}
    rows = [[key.replace("_", " "), *row.values()] for key, row in shares_by_key.items()]
    shares = ["share", "low", "high", "Table 10"]
    table = Table(
        ["category", "pairs", *shares],
        rows,
        title="errors by category, percent, with the limits of 95 % intervals",
        percent_columns=shares,
    )
    return Report(tally, text=lambda: _tally_text(tally), tables=[table])


def _tally_text(tally: dict[str, Any]) -> str:
    rows = []
    for key, row in [*tally["categories"].items(), *((f"sum: {key}", row) for key, row in tally["sums"].items())]:
        # A category without pairs would always have the interval 0 to 0, so no interval is printed.
        interval = f"{percent(row['low'])} to {percent(row['high'])}" if row["pairs"] else "-"
        shares = [percent(row["share"]), interval, percent(row["paper"])]
        rows.append([key.replace("_", " "), f"{row['pairs']:,}", *shares])
    by = f" by {tally['model']} (a model)" if "model" in tally else ""
    return (
        f"{tally['judged']:,} of {tally['pairs']:,} pairs judged{by},"
        f" {tally['judged'] - tally['decided']:,} of them undecided;"
        f" {tally['accepted']} of {tally['packages']} packages accepted; percent\n\n"
        + text_table(["category", "pairs", "share", "95 % interval", "Table 10"], rows)
    )
