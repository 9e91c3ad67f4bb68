"""Write a release with the judgments of a round's accepted packages (Section 2.3)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from builders.annotate.rounds import JUDGMENTS, ROUND, AnnotationRound, Pair, fingerprint_of, open_round, read_standings
from builders.check.paper import count_relabelled, relabelled_text
from builders.core.errors import InputError, log
from builders.core.results import Report, Table
from builders.release.answer_records import renew_answers
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import Judgments, qrels_table, read_judged
from builders.store.names import QRELS_BEFORE
from builders.store.published import published_figures
from builders.store.reader import Release
from builders.store.rejudge import replace_judgments

# Columns of the report's table by the names of the figures.
_COLUMNS = {
    "queries": "queries",
    "per_query_before": "positives a query before",
    "per_query_after": "positives a query after",
    "share_with_false_negatives": "queries with a false negative",
    "share_with_false_positives": "queries with a false positive",
    "false_negatives": "pairs that became positive",
    "false_positives": "pairs that became negative",
    "without_positives": "queries without positives",
}
_SHARE_COLUMNS = ("queries with a false negative", "queries with a false positive")


def merge_judgments(
    round_path: Path,
    base_release: Release,
    out_path: Path,
) -> dict[str, dict[str, Any]]:
    """Write ``base_release`` with a round's judgments. Return ``relabelled`` of the new ``stats.json``.

    The returned value maps each split that people judged, in this or an earlier round, to its figures. Raises
    :class:`InputError` if the round was made from other queries or passages, or has no settled label.
    """
    annotation_round = open_round(round_path, "relevance")
    split = annotation_round.split
    if annotation_round.fingerprint != fingerprint_of(base_release, split):
        raise InputError(
            f"was made from other queries or passages than {split} of {base_release.path}", path=round_path / ROUND
        )

    labels = _labels_to_merge(round_path, annotation_round)
    old_judged = read_judged(base_release, "qrels", split)
    new_judged = correct_judgments(old_judged, labels)
    # The manifest names every file of judgments, so that the release can be traced to its round.
    source_paths = [round_path / ROUND, *sorted((round_path / JUDGMENTS).glob("*.jsonl"))]
    options = {
        "split": split,
        "pool": annotation_round.pool,
        "packages": sum(package.state == "accepted" for package in annotation_round.packages),
    }
    sources = describe_files((path.relative_to(round_path).as_posix(), path) for path in source_paths)
    build = {"verb": "annotate merge", "options": options, "sources": sources}
    with draft_release(out_path, build, base_release) as draft:
        # Everything that depends on the judgments is written anew.
        replace_judgments(draft, base_release, split, new_judged)
        renew_answers(draft, base_release, split, new_judged)
        # The first merge keeps the judgments from before people corrected them.
        if old_judged and (QRELS_BEFORE, split) not in base_release.splits():
            draft.write(QRELS_BEFORE, split, [qrels_table(old_judged)])
        # The figures compare with these judgments, also after a second merge.
        judged_before = read_judged(base_release, QRELS_BEFORE, split) or old_judged
        query_ids = base_release.table("queries", split, ["_id"])["_id"].to_pylist()
        figures: dict[str, dict[str, Any]] = draft.stats.setdefault("relabelled", {})
        figures[split] = count_relabelled(query_ids, judged_before, new_judged)
    return figures


def merge_report(figures: dict[str, dict[str, Any]], out_path: Path) -> Report:
    """Return the figures of :func:`merge_judgments` and of the paper, for the release ``out_path``."""
    paper_figures = published_figures()["relabelled"]
    rows = []
    for row_name, row_figures in (figures | {"paper": paper_figures}).items():
        row = [row_name]
        for figure_name in _COLUMNS:
            row.append(row_figures.get(figure_name))
        rows.append(row)
    columns = ("split", *_COLUMNS.values())
    return Report(
        {"release": figures, "paper": paper_figures},
        f"{relabelled_text(figures, paper_figures)}\nrelease: {out_path}",
        tables=[Table(columns, rows, percent_columns=_SHARE_COLUMNS)],
    )


def _labels_to_merge(round_path: Path, annotation_round: AnnotationRound) -> dict[Pair, int]:
    """Return the settled labels of the accepted packages. Raises :class:`InputError` if there is no such label.

    Skipped packages and undecided pairs are reported.
    """
    labels, undecided_pairs = settled_labels(round_path, annotation_round)
    packages = annotation_round.packages
    not_accepted = [package.name for package in packages if package.state != "accepted"]
    if not labels:
        states = f"{len(not_accepted)} of {len(packages)} packages are not accepted"
        raise InputError(f"has no pair with a settled label: {states}; run `annotate check`", path=round_path)
    if not_accepted:
        log.warning("skipped packages that are not accepted: %s", ", ".join(not_accepted))
    if undecided_pairs:
        log.warning("%d undecided pairs stay unchanged; decide them with `annotate adjudicate`", len(undecided_pairs))
    return labels


def settled_labels(round_path: Path, annotation_round: AnnotationRound) -> tuple[dict[Pair, int], list[Pair]]:
    """Return (label by pair, pairs without a label) for the accepted packages of a round.

    Models' judgments never count. Raises :class:`InputError` if labels changed after their package was accepted.
    """
    labels: dict[Pair, int] = {}
    undecided_pairs: list[Pair] = []
    for standing in read_standings(round_path, annotation_round):
        package = standing.package
        if package.state != "accepted":
            continue
        # People may have imported further judgments since `annotate check`.
        if package.labels != standing.digest:
            raise InputError(
                f"labels of {package.name} changed after it was accepted; run `annotate check`", path=round_path
            )
        for pair in standing.pairs:
            label = standing.label(pair)
            if label is None:
                undecided_pairs.append(pair)
            else:
                labels[pair] = label
    return labels, undecided_pairs


def correct_judgments(old_judged: Judgments, labels: Mapping[Pair, int]) -> dict[str, dict[str, int]]:
    """Return the judgments corrected by ``labels``. Label 1 makes a pair positive. Label 0 sets the score to 0.

    Old pairs stay in their order. New pairs follow the old pairs of the same query.
    """
    corrected = {query_id: dict(relevance) for query_id, relevance in old_judged.items()}
    for (query_id, passage_id), label in labels.items():
        relevance = corrected.setdefault(query_id, {})
        is_positive = relevance.get(passage_id, 0) > 0
        if not label:
            relevance[passage_id] = 0
        elif not is_positive:  # a positive keeps its grade
            relevance[passage_id] = 1
    return corrected
