"""Remove the training questions that are similar to development and test questions (Section 2.3)."""

import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError, log
from builders.core.files import atomic_text
from builders.core.progress import slices
from builders.core.results import Report, Table
from builders.core.tables import aligned, round_stat
from builders.store.draft import Draft, describe_files, draft_release
from builders.store.judgments import joined_row, read_judged, texts_of_judged
from builders.store.layout import BEFORE, DRAWN, JOINED, QUERIES, REMOVED, TOLD_APART
from builders.store.published import published
from builders.store.reader import Release
from builders.store.rejudge import count_judged
from builders.store.runs import expect_run_file
from builders.text.likeness import LikeTexts, Scores, Tested, with_scores
from builders.text.ngram_options import HOW

_BLOCK = 4_096
# The configs whose train split loses rows, and the column with the question's id.
_BY_QUERY = {
    **{"queries": "_id", "qrels": "query-id", BEFORE: "query-id", "train": "query_id"},
    **{"crosslingual-queries": "zh_id", "crosslingual": "query_id", "answers": "query_id"},
}


def remove_similar(tested: Tested, out: Path, pair_list: Path | None = None) -> dict[str, Any]:
    """Write the release ``out`` without similar training questions. Return the value of ``similar`` in its stats.json.

    ``pair_list`` is a file for every similar pair, as JSON lines. Raises :class:`InputError` for a score of an unknown
    question, and if every training question is similar.
    """
    release, train = tested.release, tested.release.texts("queries", "train")
    if strangers := tested.scores.keys() - train.keys():
        where = tested.rule.score_names
        raise InputError(f"has a score for {min(strangers)}; expected training questions of {release.path}", path=where)
    found = _similar(train, tested)
    if len(found) == len(train):
        problem = f"all {len(train):,} training questions are similar, so no question would be left"
        raise InputError(f"{problem}; use fewer ways (--by) or higher thresholds", path=release.path)
    similar_ids = {like.id for likes in found.values() for like in likes}
    duplicated = {split: similar_ids & texts.keys() for split, texts in tested.asked.items()}
    for split, members in duplicated.items():
        if (TOLD_APART[0], split) in release.splits():  # from earlier runs of `similar`
            members.update(release.texts(TOLD_APART[0], split))
    if pair_list:  # written before the release, because ``out`` may replace the release with the pairs
        _write_list(pair_list, train, tested, found)
    sources = describe_files((run.path.name, expect_run_file(run)) for run in tested.rule.score_runs)
    build = {"verb": "similar", "options": tested.options, "sources": sources}
    with draft_release(out, build, release) as draft:
        write(draft, release, set(found), tested.asked, duplicated)
        draft.stats["similar"] = counts = _counts(draft.stats.get("similar", {}), tested, duplicated, found)
    return counts


def _similar(train: Mapping[str, str], tested: Tested) -> Scores:
    """Return training question's id -> similar questions, for the training questions that have any."""
    index = LikeTexts(tested.questions(), tested.rule.active_ways, tested.rule.ngram, tested.rule.jaccard)
    ids, texts = list(train), list(train.values())
    similar: Scores = {}
    for block in slices(len(ids), _BLOCK, unit="question", label="compare"):
        for train_id, likes in zip(ids[block], index.find(texts[block]), strict=True):
            matches = with_scores(likes, tested.scores.get(train_id, ()))
            if matches:
                similar[train_id] = matches
    return similar


def _counts(
    earlier: Mapping[str, Any], tested: Tested, duplicated: Mapping[str, Collection[str]], found: Scores
) -> dict[str, Any]:
    by = {how: earlier.get("by", {}).get(how, 0) for how in HOW}
    for likes in found.values():
        by[min((like.how for like in likes), key=HOW.index)] += 1
    splits = earlier.get("splits", {}) | {
        split: {"queries": len(tested.asked[split]), "duplicated": len(members)}
        for split, members in duplicated.items()
    }
    queries, similar = (sum(each[name] for each in splits.values()) for name in ("queries", "duplicated"))
    share = round(similar / queries, 4) if queries else None
    here = {"removed": sum(by.values()), "by": by, "duplicated": similar, "queries": queries, "share": share}
    return {**here, "splits": splits, "paper": published()["similar"]}


def as_table(counts: Mapping[str, Any], out: Path) -> str:
    """Return the counts of the release and of the paper as aligned text."""
    paper, share = counts["paper"], counts["share"] or 0
    rows = [
        ("Section 2.3", "here", "the paper"),
        ("training questions removed", f"{counts['removed']:,}", f"{paper['removed']:,}"),
        *((f"  {how}", f"{number:,}", "") for how, number in counts["by"].items()),
        ("similar dev and test questions", f"{counts['duplicated']:,}", f"{paper['duplicated']:,}"),
        *((f"  {name}, of {own['queries']:,}", f"{own['duplicated']:,}", "") for name, own in counts["splits"].items()),
        ("share of dev and test questions", f"{share:.2%}", f"{paper['share']:.2%}"),
    ]
    return "\n".join([*aligned(rows, widths=(38, 10, 12)), f"release: {out}"])


def removal_report(counts: Mapping[str, Any], out: Path) -> Report:
    """Return the result of :func:`remove_similar` as a report. ``out`` is the release that was written."""
    paper = counts["paper"]
    rows: list[list[Any]] = [["training questions removed", counts["removed"], paper["removed"]]]
    rows += [[f"removed by {way}", number, None] for way, number in counts["by"].items()]
    rows.append(["similar dev and test questions", counts["duplicated"], paper["duplicated"]])
    rows += [
        [f"similar {split} questions", split_counts["duplicated"], None]
        for split, split_counts in counts["splits"].items()
    ]
    rows.append(["share of dev and test questions", counts["share"], paper["share"]])
    return Report(counts, as_table(counts, out), [Table(("Section 2.3", "here", "the paper"), rows)])


def _write_list(path: Path, train: Mapping[str, str], tested: Tested, found: Scores) -> None:
    asked = {each: (split, text) for split, texts in tested.asked.items() for each, text in texts.items()}
    with atomic_text(path) as file:
        for trained, likes in found.items():
            for like in likes:
                split, query = asked[like.id]
                pair = {"query-id": like.id, "corpus-id": trained, "by": like.how, "score": like.score}
                pair |= {"split": split, "query": query, "train": train[trained]}
                file.write(json.dumps(pair, ensure_ascii=False) + "\n")
    log.info("%s: %d pairs", path, sum(map(len, found.values())))


def write(
    draft: Draft,
    release: Release,
    removed: Collection[str],
    tested: Mapping[str, Mapping[str, str]],
    duplicated: Mapping[str, Collection[str]],
) -> None:
    """Write the release without its ``removed`` training questions into ``draft``.

    Args:
        tested: split -> id of a development or test question -> text.
        duplicated: split -> ids of the questions that are similar to a removed question.
    """
    have, judged = release.splits(), read_judged(release, "qrels", "train")
    earlier = [release.table(REMOVED, "train")] if (REMOVED, "train") in have else []
    draft.write(REMOVED, "train", [*earlier, *_joined(release, removed, judged)])
    english: set[str] = set()  # ids of the removed questions' translations
    if ("crosslingual-queries", "train") in have:
        for table in release.rows_with("crosslingual-queries", "train", "zh_id", removed):
            english.update(table["_id"].to_pylist())
    left: dict[str, list[str]] = {}  # config -> texts of the remaining questions
    for config in [config for config in _BY_QUERY if (config, "train") in have]:
        draft.write(config, "train", _without(release, config, english if config == "crosslingual" else removed))
        if config.endswith("queries"):
            tables = _without(release, config, removed)
            left[config] = [text for table in tables for text in table["text"].to_pylist()]
    for split, texts in tested.items():
        for config, wanted in zip(TOLD_APART, (True, False), strict=True):
            own = {each: text for each, text in texts.items() if (each in duplicated[split]) is wanted}
            draft.write(config, split, [pa.table([[*own], [*own.values()]], schema=QUERIES)])
    drawn = sorted({config for config, _ in have if config.startswith(DRAWN)})
    for config in drawn:
        draft.drop(config)
    draft.stats.pop("extrapolation", None)
    if drawn:  # because the sets may contain removed questions
        log.warning("dropped %s; draw them again with `python -m builders add`", ", ".join(drawn))
    if "train" in draft.stats["table3"]:
        rest = {query: own for query, own in judged.items() if query not in removed}
        count_judged(draft, "train", left["queries"], rest, texts_of_judged(release, rest))
    if "train" in draft.stats.get("english", {}):
        words = [len(text.split()) for text in left["crosslingual-queries"]]
        mean = round_stat(sum(words) / len(words)) if words else None
        draft.stats["english"]["train"] = {"queries": len(words), "words_per_query": mean}


def _without(release: Release, config: str, ids: Collection[str]) -> Iterator[pa.Table]:
    out = pa.array(sorted(ids), pa.string())
    for batch in release.batches(config, "train"):
        yield pa.Table.from_batches([batch]).filter(pc.invert(pc.is_in(batch[_BY_QUERY[config]], out)))


def _joined(release: Release, removed: Collection[str], judged: Mapping[str, Mapping[str, int]]) -> Iterator[pa.Table]:
    if ("train", "train") in release.splits():
        yield from release.rows_with("train", "train", "query_id", removed)
        return
    texts = texts_of_judged(release, {query: own for query, own in judged.items() if query in removed})
    for table in release.rows_with("queries", "train", "_id", removed):
        rows = [joined_row(row["_id"], row["text"], judged.get(row["_id"], {}), texts) for row in table.to_pylist()]
        yield pa.Table.from_pylist(rows, JOINED)
