"""Compare a release's statistics with the figures that the paper prints."""

from collections.abc import Sequence
from typing import Any

from builders.core.tables import align_rows, round_stat
from builders.store.judgments import Judgments
from builders.store.layout import SPLITS
from builders.store.published import published_figures
from builders.store.stored_answers import answers_text
from builders.store.table3 import TABLE3_ROWS, format_figure, format_lengths


def side_by_side(release_stats: dict[str, Any]) -> str:
    """Format the statistics of a release beside the paper's figures as text.

    ``release_stats`` is :attr:`.ReleaseFigures.stats`, with the keys that :func:`.run_check` adds. Parts that the
    release lacks are skipped.
    """
    paper = published_figures()
    lines = _table3_lines(release_stats["table3"], paper["table3"])
    for split, figures in release_stats.get("english", {}).items():
        lines.append(_english_line(split, figures, paper["english"].get(split, {})))
    for config, lengths in release_stats["collections"].items():
        lines += ["", *_collection_lines(config, lengths, paper["collections"].get(config))]
    if release_stats.get("relabelled"):
        lines += ["", relabelled_text(release_stats["relabelled"], paper["relabelled"])]
    if release_stats.get("table2"):
        lines += ["", *_table2_lines(paper, release_stats["table2"])]
    if release_stats.get("answers"):
        lines += ["", answers_text(release_stats["answers"])]
    for qrels_split, overlap in release_stats.get("label_overlap", {}).items():  # for example qrels/dev
        overlapping = format_figure(overlap["overlapping"])
        query_count = format_figure(overlap["test_queries"])
        # None without a positive passage in the split.
        share = f"{overlap['overlapping_share'] or 0:.2%}"
        counts = f"{qrels_split}: {overlapping} of {query_count} queries ({share})"
        lines += ["", f"{counts} share a positive passage with a training query"]
    return "\n".join(lines)


def _table3_lines(table3: dict[str, Any], paper_table3: dict[str, Any]) -> list[str]:
    """Return Table 3 with two columns for each column of the release: the release's figures and the paper's."""
    titles = ["Table 3"]
    subtitles = [""]
    for column in table3:
        titles += ["", column]
        subtitles += ["ours", "paper"]
    rows = [titles, subtitles]
    for key, title in TABLE3_ROWS:
        row = [title]
        for column, figures in table3.items():
            row.append(format_figure(figures[key]))
            row.append(format_figure(paper_table3.get(column, {}).get(key)))
        rows.append(row)
    return align_rows(rows, widths=(24, 11))


def _english_line(split: str, figures: dict[str, Any], paper_figures: dict[str, Any]) -> str:
    query_count = format_figure(figures.get("queries"))
    mean_words = format_figure(figures.get("words_per_query"))
    paper_count = format_figure(paper_figures.get("queries"))
    paper_words = format_figure(paper_figures.get("words_per_query"))
    return f"English {split}: {query_count} queries of {mean_words} words (paper: {paper_count} of {paper_words})"


def _collection_lines(config: str, lengths: dict[str, Any], paper_lengths: dict[str, Any] | None) -> list[str]:
    """Return the lengths of a collection's passages, and below them the paper's, if the paper has the collection."""
    lines = [format_lengths(config, lengths)]
    if not paper_lengths:
        return lines
    paper_count = format_figure(paper_lengths["passages"])
    paper_mean = format_figure(paper_lengths["mean_chars"])
    paper_median = format_figure(paper_lengths["median_chars"])
    lines.append(f"  (the paper: {paper_count} passages; mean {paper_mean}, median {paper_median})")
    if paper_lengths["median_chars"] > paper_lengths["mean_chars"]:
        # A few long passages raise the mean above the median, in every collection that was counted.
        lines.append("  (the paper's median is above its mean: the two numbers look swapped)")
    return lines


def _table2_lines(paper: dict[str, Any], set_counts: dict[str, dict[str, int]]) -> list[str]:
    """Return Table 2 with the release's counts below the paper's row of the set.

    The last line has the counts of the paper's Table 3, because they differ from Table 2. ``paper`` has all figures of
    the paper (:func:`.published_figures`). ``set_counts`` has the ``queries`` and ``passages`` by set.
    """
    rows = [("Table 2", "lang.", "queries", "passages", "source of queries", "source of passages", "annotation")]
    for paper_row in paper["table2"]:
        rows.append((paper_row["dataset"], *paper_row["values"]))
        counts = set_counts.get(paper_row.get("set", ""))
        # The row of the release has only the two numbers, and no description of the sources.
        if counts:
            language = paper_row["values"][0]
            rows.append(("  here", language, f"{counts['queries']:,}", f"{counts['passages']:,}", "", "", ""))
    query_count = sum(paper["table3"][split]["queries"] for split in SPLITS)
    passage_count = paper["collections"]["corpus"]["passages"]
    remark = f"(DuReader-retrieval in the paper's Table 3: {query_count:,} queries and {passage_count:,} passages)"
    return [*align_rows(rows, left=2, gap="  "), remark]


def count_relabelled(query_ids: Sequence[str], judged_before: Judgments, judged_after: Judgments) -> dict[str, Any]:
    """Count the differences between two judgments of the same queries. Return JSON values.

    Section 2.3: "the average positive paragraph per query has increased from 2.43 to 4.91. There are 71.53% of queries
    that have at least one false negative relabeled". ``false_negatives`` are pairs that became positive, and
    ``false_positives`` are pairs that are no longer positive. ``without_positives`` counts queries that lost all
    positives.
    """
    # Negative and missing judgments are the same here: the pair is not positive.
    old_pairs = _positive_pairs(query_ids, judged_before)
    new_pairs = _positive_pairs(query_ids, judged_after)
    false_negatives = new_pairs - old_pairs
    false_positives = old_pairs - new_pairs
    # Without queries, all shares are 0.
    query_count = max(1, len(query_ids))
    return {
        "queries": len(query_ids),
        "positives_before": len(old_pairs),
        "positives_after": len(new_pairs),
        "per_query_before": round_stat(len(old_pairs) / query_count),
        "per_query_after": round_stat(len(new_pairs) / query_count),
        "false_negatives": len(false_negatives),
        "false_positives": len(false_positives),
        "share_with_false_negatives": round_stat(len(_queries_of(false_negatives)) / query_count),
        "share_with_false_positives": round_stat(len(_queries_of(false_positives)) / query_count),
        "without_positives": len(_queries_of(old_pairs) - _queries_of(new_pairs)),
    }


def _positive_pairs(query_ids: Sequence[str], judged: Judgments) -> set[tuple[str, str]]:
    """Return the (query id, passage id) pairs that are judged positive."""
    pairs = set()
    for query_id in query_ids:
        for passage_id, score in judged.get(query_id, {}).items():
            if score > 0:
                pairs.add((query_id, passage_id))
    return pairs


def _queries_of(pairs: set[tuple[str, str]]) -> set[str]:
    return {query_id for query_id, _ in pairs}


_RELABELLED_ROWS = (  # key of relabelled, title, format
    ("per_query_before", "positives a query before", ".2f"),
    ("per_query_after", "positives a query after", ".2f"),
    ("share_with_false_negatives", "queries with a false negative", ".2%"),
    ("share_with_false_positives", "queries with a false positive", ".2%"),
)


def relabelled_text(stats_by_split: dict[str, dict[str, Any]], paper_figures: dict[str, Any]) -> str:
    """Format the results of :func:`count_relabelled` for every split, and the paper's values, as aligned text."""
    rows = [["judged by people", *stats_by_split, "paper"]]
    for key, title, number_format in _RELABELLED_ROWS:
        values = [figures[key] for figures in stats_by_split.values()]
        values.append(paper_figures.get(key))
        cells = ["-" if value is None else format(value, number_format) for value in values]
        rows.append([title, *cells])
    lines = align_rows(rows, widths=(32, 11))
    for split, figures in stats_by_split.items():
        lines.append(
            f"{split}: {figures['false_negatives']:,} pairs became positive, "
            f"{figures['false_positives']:,} became negative; "
            f"{figures['without_positives']:,} of {figures['queries']:,} queries lost all positives"
        )
    return "\n".join(lines)
