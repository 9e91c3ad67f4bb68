"""Draw the errors of a run for annotators, and count the annotators' answers.

An error is a (query, passage) pair. A round is a directory of pairs that people judge. Its packages are parts of the
pairs, which are reviewed and accepted one by one.
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.measure.measures import count_missing_queries
from baselines.measure.qrels import read_queries, release_qrels
from baselines.measure.run_origin import expect_passages
from baselines.measure.significance import of_means
from builders.annotate.prefill import grades_by
from builders.annotate.rounds import ERRORS, Pair, QualityRule, open_round, read_standings
from builders.annotate.tasks import expect_new, make_round
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.core.sampling import draw_sample
from builders.core.tables import format_percent, text_table
from builders.store.layout import SETS
from builders.store.published import published_figures
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

    If fewer queries failed, all are used, with a warning. A query without judged positives, or that the run lacks, does
    not count. Raises :class:`InputError` if the split has no judgments, the run has no query of the split, no query
    failed, or the release lacks a passage of the run.
    """
    reference = release_qrels(release, split)
    count_missing_queries(run, reference)  # for its error
    positives = reference.positives
    measured_count = 0
    failed_lists: dict[str, list[str]] = {}
    for query_id, _ in read_queries(release, split):
        ranking = run.rankings.get(query_id)
        if query_id not in positives or not ranking:
            continue
        measured_count += 1
        top_passages = list(dict.fromkeys(ranking))[:top_k]
        if positives[query_id].keys().isdisjoint(top_passages):
            failed_lists[query_id] = top_passages
    if measured_count == 0:
        raise InputError(f"has no passage for any query of {release.path} {split} with a positive", path=run.path)
    if not failed_lists:
        raise InputError(f"every query of {release.path} {split} has a positive in its top {top_k}", path=run.path)

    drawn_ids = draw_sample(failed_lists, sample, seed)
    if len(drawn_ids) < sample:
        log.warning("only %d queries have no positive in their top %d; all are used", len(drawn_ids), top_k)
    pairs = []
    for query_id, top_passages in failed_lists.items():
        if query_id in drawn_ids:
            pairs += [(query_id, passage_id) for passage_id in sorted(top_passages)]

    corpus = SETS["main"].corpus
    passage_ids = [passage_id for _, passage_id in pairs]
    expect_passages(run, passage_ids, release.texts(corpus, "corpus", set(passage_ids)), corpus)
    return DrawnErrors(pairs, measured_count, len(failed_lists))


def expect_new_round(path: Path) -> None:
    """Raise :class:`InputError` if a round cannot be written to ``path``, before any work is done."""
    expect_new(path)


def write_error_round(path: Path, release: Release, split: str, errors: DrawnErrors, source: Path, seed: int) -> None:
    """Write the errors of the run ``source`` as a round for `annotate`."""
    package_count = make_round(path, release, split, errors.pairs, source, QualityRule(seed=seed), question=ERRORS)
    log.info("%d packages; import them into Label Studio, or fill in %s", package_count, path / "packages")


def draw_report(errors: DrawnErrors, run_path: Path, top_k: int, round_path: Path | None) -> Report:
    """Return the numbers of failed queries and of drawn errors as the verb's result.

    ``round_path`` is the round that was written (None: no round).
    """
    query_count = len({query_id for query_id, _ in errors.pairs})
    counts = {
        "run": str(run_path),
        "top_k": top_k,
        "measured": errors.measured,
        "failed": errors.failed,
        "queries": query_count,
        "pairs": len(errors.pairs),
    }
    text = (
        f"{run_path}: {errors.failed:,} of {errors.measured:,} queries have no positive in their top {top_k};"
        f" drawn: {query_count:,} queries, {len(errors.pairs):,} pairs"
    )
    if round_path:
        text += f"\n{len(errors.pairs):,} pairs to judge: {round_path}"
    return Report(counts, text, tables=[Table(list(counts), [list(counts.values())], title="errors")])


def count_categories(round_path: Path, model: str | None = None) -> dict[str, Any]:
    """Count the pairs of a round by category, as JSON values.

    The category of a pair is the adjudicator's answer or, without an adjudicator, the answer of most annotators. A tie
    is undecided. All packages count. With ``model``, only the last answers of this model count.

    ``pairs``, ``judged`` and ``decided`` are the numbers of all pairs, of pairs with an answer, and of pairs with a
    category. ``packages`` and ``accepted`` are the numbers of all packages and of accepted packages.
    ``categories`` has four entries per category: the number of pairs, their share of the decided pairs (0 to 1), the
    share's 95 % interval over queries, and the paper's share. ``sums`` has the same entries for the sums of categories
    that Section 3.5 prints. Raises :class:`InputError` if the directory is not a round of errors, or the round has no
    answers.
    """
    error_round = open_round(round_path, ERRORS.name)
    package_standings = read_standings(round_path, error_round)
    pair_count = sum(len(standing.pairs) for standing in package_standings)
    labels: dict[Pair, int] = {}
    if model:
        # The keys are (package, pair).
        for (_, pair), label in grades_by(round_path, model).items():
            labels[pair] = label
        judged_count = len(labels)
        step_with_answers = "prefill"
    else:
        for standing in package_standings:
            for pair in standing.pairs:
                pair_label = standing.label(pair)
                if pair_label is not None:
                    labels[pair] = pair_label
        judged_count = pair_count - sum(len(standing.unjudged_pairs) for standing in package_standings)
        step_with_answers = "import"
    if not labels:
        problem = f"has no answers of {model or 'annotators'}; add some by `annotate {step_with_answers}`"
        raise InputError(problem, path=round_path)

    paper = published_figures()
    pairs_by_label = Counter(labels.values())
    categories = {}
    for choice, interval in zip(ERRORS.choices, _intervals(labels), strict=True):
        figures = _share_figures(pairs_by_label[choice.label], len(labels), interval, paper["table10"][choice.key])
        categories[choice.key] = figures
    sums = {}
    for name, paper_sum in paper["table10_sums"].items():
        summed_labels = [choice.label for choice in ERRORS.choices if choice.key in paper_sum["categories"]]
        sum_count = sum(pairs_by_label[label] for label in summed_labels)
        interval = _intervals(labels, summed_labels)[0]
        sums[name] = _share_figures(sum_count, len(labels), interval, paper_sum["share"])

    tally = {
        "release": error_round.release,
        "split": error_round.split,
        "pairs": pair_count,
        "judged": judged_count,
        "decided": len(labels),
        "queries": len({query_id for query_id, _ in labels}),
        "packages": len(package_standings),
        "accepted": sum(standing.package.state == "accepted" for standing in package_standings),
        "categories": categories,
        "sums": sums,
    }
    if model:
        tally["model"] = model
    return tally


def _share_figures(
    category_count: int, decided_count: int, interval: tuple[float, float], paper_share: float
) -> dict[str, Any]:
    """Return the figures of a category, or of a sum of categories, as :func:`count_categories` describes them."""
    low, high = interval
    return {
        "pairs": category_count,
        "share": category_count / decided_count,
        "low": low,
        "high": high,
        "paper": paper_share,
    }


def _intervals(labels: Mapping[Pair, int], summed_labels: Collection[int] = ()) -> list[tuple[float, float]]:
    """Return the interval of each category's share, or only of the sum of the categories ``summed_labels``.

    ``labels`` has the category's label of each decided pair. Queries are resampled, because passages of a query have
    similar errors.
    """
    query_ids = dict.fromkeys(query_id for query_id, _ in labels)
    query_rows = {query_id: row for row, query_id in enumerate(query_ids)}
    label_columns = {choice.label: column for column, choice in enumerate(ERRORS.choices)}
    # A pair adds the same number everywhere, chosen so that the mean of a column over queries is the category's share.
    pair_value = len(query_rows) / len(labels)
    table = np.zeros((len(query_rows), len(label_columns)))
    for (query_id, _), label in labels.items():
        table[query_rows[query_id], label_columns[label]] += pair_value
    if summed_labels:
        summed_columns = [label_columns[label] for label in summed_labels]
        table = table[:, summed_columns].sum(axis=1, keepdims=True)
    return of_means(table)


def _named_shares(tally: Mapping[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return (name, figures) of every category, and then of every sum of categories."""
    named_shares = list(tally["categories"].items())
    for key, figures in tally["sums"].items():
        named_shares.append((f"sum: {key}", figures))
    return [(name.replace("_", " "), figures) for name, figures in named_shares]


def tally_report(tally: dict[str, Any]) -> Report:
    """Return the result of :func:`count_categories` as the verb's result."""
    # The figures have the order of the columns. The last one is the paper's share.
    rows = [[name, *figures.values()] for name, figures in _named_shares(tally)]
    share_columns = ["share", "low", "high", "Table 10"]
    table = Table(
        ["category", "pairs", *share_columns],
        rows,
        title="errors by category, percent, with the limits of 95 % intervals",
        percent_columns=share_columns,
    )
    return Report(tally, text=lambda: _tally_text(tally), tables=[table])


def _tally_text(tally: dict[str, Any]) -> str:
    """Format the result of :func:`count_categories`, with shares in percent."""
    rows = []
    for name, figures in _named_shares(tally):
        # A category without pairs would always have the interval 0 to 0, so no interval is printed.
        interval = "-"
        if figures["pairs"]:
            interval = f"{format_percent(figures['low'])} to {format_percent(figures['high'])}"
        share, paper_share = format_percent(figures["share"]), format_percent(figures["paper"])
        rows.append([name, f"{figures['pairs']:,}", share, interval, paper_share])
    judge = f" by {tally['model']} (a model)" if "model" in tally else ""
    undecided_count = tally["judged"] - tally["decided"]
    summary = (
        f"{tally['judged']:,} of {tally['pairs']:,} pairs judged{judge},"
        f" {undecided_count:,} of them undecided;"
        f" {tally['accepted']} of {tally['packages']} packages accepted; percent"
    )
    table_text = text_table(["category", "pairs", "share", "95 % interval", "Table 10"], rows)
    return f"{summary}\n\n{table_text}"
