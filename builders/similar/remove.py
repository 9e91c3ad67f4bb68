"""Remove the training questions that are similar to development and test questions (Section 2.3)."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.progress import slices_with_progress
from builders.core.results import Report, Table
from builders.core.tables import align_rows, round_stat
from builders.core.write_files import atomic_text
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import joined_row, read_judged, texts_of_judged
from builders.store.layout import BEFORE, JOINED, QUERIES, REMOVED, TOLD_APART
from builders.store.published import published_figures
from builders.store.reader import Release
from builders.store.rejudge import drop_drawn_sets, write_judged_stats
from builders.store.runs import expect_run_file
from builders.text.likeness import LikeTexts, Scores, TestedQuestions, with_scores
from builders.text.ngram_options import HOW

_WIDTHS = (38, 10, 12)  # characters of the columns of the printed table
_BLOCK = 4_096  # questions that are compared at once
# The configs whose train split loses rows, and the column with the question's id.
_QUERY_COLUMNS = {
    "queries": "_id",
    "qrels": "query-id",
    BEFORE: "query-id",
    "train": "query_id",
    "crosslingual-queries": "zh_id",
    "crosslingual": "query_id",
    "answers": "query_id",
}


def remove_similar(tested: TestedQuestions, output_path: Path, pair_list: Path | None = None) -> dict[str, Any]:
    """Write a release without similar training questions. Return the value of ``similar`` in its stats.json.

    The value has the counts of :func:`_count_removed`. ``pair_list`` is a file for every similar pair, as JSON lines.
    Raises :class:`InputError` for a score of an unknown question, and if every training question is similar.
    """
    release = tested.release
    train_texts = release.texts("queries", "train")
    unknown_ids = tested.scores.keys() - train_texts.keys()
    if unknown_ids:
        problem = f"has a score for {min(unknown_ids)}; expected training questions of {release.path}"
        raise InputError(problem, path=tested.rule.score_names)

    # Find the similar training questions, and the questions of dev and test that they are similar to.
    similar = _find_similar(train_texts, tested)
    if len(similar) == len(train_texts):
        problem = f"all {len(train_texts):,} training questions are similar, so no question would be left"
        raise InputError(f"{problem}; use fewer ways (--by) or higher thresholds", path=release.path)
    matched_ids: set[str] = set()
    for likes in similar.values():
        matched_ids.update(like.id for like in likes)
    duplicated_config = TOLD_APART[0]
    duplicated: dict[str, set[str]] = {}
    for split, texts in tested.texts_by_split.items():
        duplicated[split] = matched_ids & texts.keys()
        if (duplicated_config, split) in release.splits():  # from earlier runs of `similar`
            duplicated[split].update(release.texts(duplicated_config, split))

    # Written before the release, so that no new release is left if the list cannot be written.
    if pair_list:
        _write_list(pair_list, train_texts, tested, similar)
    sources = describe_files((run.path.name, expect_run_file(run)) for run in tested.rule.score_runs)
    build = {"verb": "similar", "options": tested.options, "sources": sources}
    with draft_release(output_path, build, release) as draft:
        write_remaining(draft, release, set(similar), tested.texts_by_split, duplicated)
        counts = _count_removed(draft.stats.get("similar", {}), tested, duplicated, similar)
        draft.stats["similar"] = counts
    return counts


def _find_similar(train_texts: Mapping[str, str], tested: TestedQuestions) -> Scores:
    """Return training question's id -> similar dev and test questions, for the training questions that have any."""
    index = LikeTexts(tested.questions(), tested.rule.active_ways, tested.rule.ngram, tested.rule.jaccard)
    train_ids = list(train_texts)
    texts = list(train_texts.values())
    similar: Scores = {}
    for block in slices_with_progress(len(train_ids), _BLOCK, unit="question", label="compare"):
        for train_id, likes in zip(train_ids[block], index.find(texts[block]), strict=True):
            matches = with_scores(likes, tested.scores.get(train_id, ()))
            if matches:
                similar[train_id] = matches
    return similar


def _count_removed(
    earlier: Mapping[str, Any], tested: TestedQuestions, duplicated: Mapping[str, Collection[str]], similar: Scores
) -> dict[str, Any]:
    """Return the value of ``similar`` in stats.json.

    ``earlier`` is this value in the release that was read, and is empty before the first run of the verb.
    ``duplicated`` maps a split to the ids of its questions that are similar to a removed question, now or earlier.
    ``similar`` are the matches of the questions that this run removes. Of the result, ``removed`` and ``by`` count
    training questions, ``duplicated``, ``queries``, ``share`` and ``splits`` count questions of dev and test, and
    ``paper`` has the paper's figures.
    """
    # Removed questions by the strongest way to match, with those of earlier runs of `similar`.
    removed_by_way = {way: earlier.get("by", {}).get(way, 0) for way in HOW}
    for likes in similar.values():
        strongest_way = min((like.how for like in likes), key=HOW.index)
        removed_by_way[strongest_way] += 1

    # Questions of dev and test.
    split_counts = dict(earlier.get("splits", {}))
    for split, question_ids in duplicated.items():
        split_counts[split] = {"queries": len(tested.texts_by_split[split]), "duplicated": len(question_ids)}
    query_count = sum(counts["queries"] for counts in split_counts.values())
    duplicated_count = sum(counts["duplicated"] for counts in split_counts.values())
    return {
        "removed": sum(removed_by_way.values()),
        "by": removed_by_way,
        "duplicated": duplicated_count,
        "queries": query_count,
        "share": round(duplicated_count / query_count, 4) if query_count else None,
        "splits": split_counts,
        "paper": published_figures()["similar"],
    }


def removal_text(counts: Mapping[str, Any], output_path: Path) -> str:
    """Return the counts of the release and of the paper as aligned text.

    ``counts`` is the result of :func:`remove_similar`. ``output_path`` is the release that was written.
    """
    paper = counts["paper"]
    share = counts["share"] or 0
    rows = [
        ("Section 2.3", "here", "the paper"),
        ("training questions removed", f"{counts['removed']:,}", f"{paper['removed']:,}"),
    ]
    for way, removed_count in counts["by"].items():
        rows.append((f"  {way}", f"{removed_count:,}", ""))
    rows.append(("similar dev and test questions", f"{counts['duplicated']:,}", f"{paper['duplicated']:,}"))
    for split, split_counts in counts["splits"].items():
        rows.append((f"  {split}, of {split_counts['queries']:,}", f"{split_counts['duplicated']:,}", ""))
    rows.append(("share of dev and test questions", f"{share:.2%}", f"{paper['share']:.2%}"))
    lines = align_rows(rows, widths=_WIDTHS)
    lines.append(f"release: {output_path}")
    return "\n".join(lines)


def removal_report(counts: Mapping[str, Any], output_path: Path) -> Report:
    """Return the result of :func:`remove_similar` as a report. ``output_path`` is the release that was written."""
    paper = counts["paper"]
    rows: list[list[Any]] = [["training questions removed", counts["removed"], paper["removed"]]]
    for way, removed_count in counts["by"].items():
        rows.append([f"removed by {way}", removed_count, None])
    rows.append(["similar dev and test questions", counts["duplicated"], paper["duplicated"]])
    for split, split_counts in counts["splits"].items():
        rows.append([f"similar {split} questions", split_counts["duplicated"], None])
    rows.append(["share of dev and test questions", counts["share"], paper["share"]])
    return Report(counts, removal_text(counts, output_path), [Table(("Section 2.3", "here", "the paper"), rows)])


def _write_list(list_path: Path, train_texts: Mapping[str, str], tested: TestedQuestions, similar: Scores) -> None:
    """Write every pair of similar questions as a line of JSON. ``similar`` is the result of :func:`_find_similar`."""
    split_by_question: dict[str, str] = {}
    for split, texts in tested.texts_by_split.items():
        split_by_question |= dict.fromkeys(texts, split)
    question_texts = tested.questions()
    with atomic_text(list_path) as file:
        for train_id, likes in similar.items():
            for like in likes:
                pair = {
                    "query-id": like.id,
                    "corpus-id": train_id,
                    "by": like.how,
                    "score": like.score,
                    "split": split_by_question[like.id],
                    "query": question_texts[like.id],
                    "train": train_texts[train_id],
                }
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
    log.info("%s: %d pairs", list_path, sum(map(len, similar.values())))


def write_remaining(
    draft: Draft,
    release: Release,
    removed: Collection[str],
    tested: Mapping[str, Mapping[str, str]],
    duplicated: Mapping[str, Collection[str]],
) -> None:
    """Write the release without its ``removed`` training questions into ``draft``.

    Args:
        draft: the release that is being written.
        release: the release that is read.
        removed: ids of the training questions to remove.
        tested: split -> id of a development or test question -> text.
        duplicated: split -> ids of the questions that are similar to a question removed now or earlier.
    """
    splits = release.splits()
    judgments = read_judged(release, "qrels", "train")

    # Write the removed questions with their passages, after those that an earlier run of `similar` removed.
    removed_tables = list(_removed_rows(release, removed, judgments))
    if (REMOVED, "train") in splits:
        removed_tables.insert(0, release.table(REMOVED, "train"))
    draft.write(REMOVED, "train", removed_tables)

    # Write the remaining rows of every config. Translations have ids of their own.
    translation_ids: set[str] = set()
    if ("crosslingual-queries", "train") in splits:
        for table in release.rows_with("crosslingual-queries", "train", "zh_id", removed):
            translation_ids.update(table["_id"].to_pylist())
    remaining_texts: dict[str, list[str]] = {}  # config -> texts of the remaining questions
    for config in _QUERY_COLUMNS:
        if (config, "train") not in splits:
            continue
        # The joined rows have the ids of the translations. The other configs have the ids of the Chinese questions.
        removed_ids = translation_ids if config == "crosslingual" else removed
        draft.write(config, "train", _remaining_rows(release, config, removed_ids))
        if config.endswith("queries"):
            texts: list[str] = []
            for table in _remaining_rows(release, config, removed):
                texts += table["text"].to_pylist()
            remaining_texts[config] = texts

    _write_duplicated_and_others(draft, tested, duplicated)
    drop_drawn_sets(draft, release)
    _count_remaining(draft, release, removed, judgments, remaining_texts)


def _write_duplicated_and_others(
    draft: Draft, tested: Mapping[str, Mapping[str, str]], duplicated: Mapping[str, Collection[str]]
) -> None:
    """Write the tested questions that resemble a removed question (``duplicated``), and the rest (``others``)."""
    for split, texts in tested.items():
        similar_texts: dict[str, str] = {}
        other_texts: dict[str, str] = {}
        for question_id, text in texts.items():
            if question_id in duplicated[split]:
                similar_texts[question_id] = text
            else:
                other_texts[question_id] = text
        for config, group in zip(TOLD_APART, (similar_texts, other_texts), strict=True):
            draft.write(config, split, [pa.table([list(group), list(group.values())], schema=QUERIES)])


def _count_remaining(
    draft: Draft,
    release: Release,
    removed: Collection[str],
    judgments: Mapping[str, Mapping[str, int]],
    remaining_texts: Mapping[str, list[str]],
) -> None:
    """Update the figures of train in stats.json.

    ``removed`` are the ids of the removed questions. ``judgments`` still have their judgments. ``remaining_texts`` maps
    a config to the texts of its remaining questions.
    """
    if "train" in draft.stats["table3"]:
        remaining = {query_id: relevance for query_id, relevance in judgments.items() if query_id not in removed}
        passage_texts = texts_of_judged(release, remaining)
        write_judged_stats(draft, "train", remaining_texts["queries"], remaining, passage_texts)
    if "train" in draft.stats.get("english", {}):
        word_counts = [len(text.split()) for text in remaining_texts["crosslingual-queries"]]
        mean = round_stat(sum(word_counts) / len(word_counts)) if word_counts else None
        draft.stats["english"]["train"] = {"queries": len(word_counts), "words_per_query": mean}


def _remaining_rows(release: Release, config: str, removed_ids: Collection[str]) -> Iterator[pa.Table]:
    """Yield the rows of a config's train split without the rows of ``removed_ids``, ids of :data:`_QUERY_COLUMNS`."""
    removed_array = pa.array(sorted(removed_ids), pa.string())
    for batch in release.batches(config, "train"):
        is_removed = pc.is_in(batch[_QUERY_COLUMNS[config]], removed_array)
        yield pa.Table.from_batches([batch]).filter(pc.invert(is_removed))


def _removed_rows(
    release: Release, removed: Collection[str], judgments: Mapping[str, Mapping[str, int]]
) -> Iterator[pa.Table]:
    """Yield the removed questions joined with their passages: the rows of the config ``train``, if it exists."""
    if ("train", "train") in release.splits():
        yield from release.rows_with("train", "train", "query_id", removed)
        return
    removed_judgments = {query_id: relevance for query_id, relevance in judgments.items() if query_id in removed}
    passage_texts = texts_of_judged(release, removed_judgments)
    for table in release.rows_with("queries", "train", "_id", removed):
        joined_rows = []
        for row in table.to_pylist():
            relevance = judgments.get(row["_id"], {})
            joined_rows.append(joined_row(row["_id"], row["text"], relevance, passage_texts))
        yield pa.Table.from_pylist(joined_rows, JOINED)
