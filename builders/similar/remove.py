"""Remove the training questions that are similar to development and test questions (Section 2.3)."""

from __future__ import annotations

import argparse
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.check.paper import published
from builders.core.errors import InputError, log
from builders.core.files import atomic_text, check_file
from builders.core.progress import progress
from builders.similar.likeness import HOW, Like, LikeTexts, options_of, read_scores, tested_splits
from builders.store.draft import Draft, check_release_output, describe_files, draft_release
from builders.store.judged import joined_passage, read_judged, texts_of_judged
from builders.store.layout import BEFORE, JOINED, QUERIES, REMOVED, TOLD_APART
from builders.store.reader import Release, open_release
from builders.store.rejudge import count_judged
from builders.store.table3 import round_stat

Texts = Mapping[str, Mapping[str, str]]  # by split, questions by id
Found = dict[str, list[Like]]  # by training question's id, the development and test questions that it is similar to
_BLOCK = 4_096


def remove(args: argparse.Namespace) -> dict[str, Any]:
    """Write the release ``args.out``; returns ``similar`` of its ``stats.json``.

    Raises :class:`InputError` for scores of questions that the release has not, and where no training question is left.
    """
    release = open_release(args.release)
    check_release_output(args.out)
    if args.list:
        check_file(args.list)
    splits = tested_splits(release, args.split)
    tested = {split: release.texts("queries", split) for split in splits}
    train = release.texts("queries", "train")
    options = options_of(args, splits)
    found = _similar(train, tested, args, options["by"])
    if len(found) == len(train):
        raise InputError(f"all {len(train):,} training questions are similar; none would be left", path=args.release)
    build = {"verb": "similar", "options": options, "sources": describe_files((p.name, p) for p in args.scores)}
    duplicated = _duplicated(release, tested, found)
    if args.list:  # first: where the release takes the place of the old one, the pairs are not found again
        _write_list(args.list, train, tested, found)
    with draft_release(args.out, build, release) as draft:
        write(draft, release, set(found), tested, duplicated)
        draft.stats["similar"] = counts = _counts(draft.stats.get("similar", {}), tested, duplicated, found)
    return counts


def _similar(train: Mapping[str, str], tested: Texts, args: argparse.Namespace, by: Collection[str]) -> Found:
    """Every training question that is similar to tested ones, with all of these; in the order of the training split."""
    scores = read_scores(args.scores, args.threshold) if "model" in by else {}
    questions = {each: text for texts in tested.values() for each, text in texts.items()}
    _check_ids(scores, train, questions, args)
    index = LikeTexts(questions, by, args.ngram, args.jaccard)
    found: Found = {}
    rows = list(train.items())
    for start in progress(range(0, len(rows), _BLOCK), unit="block", label="compare"):
        block = rows[start : start + _BLOCK]
        for (each, _), likes in zip(block, index.find([text for _, text in block]), strict=True):
            known = {like.id for like in likes}
            if every := [*likes, *(like for like in scores.get(each, ()) if like.id not in known)]:
                found[each] = every
    return found


def _check_ids(scores: Found, train: Mapping[str, str], questions: Mapping[str, str], args: argparse.Namespace) -> None:
    for trained, likes in scores.items():
        for like in likes:
            if trained not in train or like.id not in questions:
                raise InputError(
                    f"scores {like.id} and {trained}; expected a question of the splits to keep apart and a training"
                    f" question of {args.release}",
                    path=", ".join(map(str, args.scores)),
                )


def _duplicated(release: Release, tested: Texts, found: Found) -> dict[str, set[str]]:
    """By split, the questions that a removed training question is similar to, of this and of earlier removals."""
    like = {each.id for likes in found.values() for each in likes}
    duplicated = {split: like & set(texts) for split, texts in tested.items()}
    for split, members in duplicated.items():
        if (TOLD_APART[0], split) in release.splits():
            members.update(release.texts(TOLD_APART[0], split))
    return duplicated


def _counts(
    earlier: Mapping[str, Any], tested: Texts, duplicated: Mapping[str, Collection[str]], found: Found
) -> dict[str, Any]:
    """The counts of Section 2.3, with those of earlier removals, and the paper's own."""
    by = {how: earlier.get("by", {}).get(how, 0) for how in HOW}
    for likes in found.values():
        by[min((like.how for like in likes), key=HOW.index)] += 1
    splits = earlier.get("splits", {}) | {
        split: {"queries": len(tested[split]), "duplicated": len(members)} for split, members in duplicated.items()
    }
    queries = sum(each["queries"] for each in splits.values())
    similar = sum(each["duplicated"] for each in splits.values())
    return {
        "removed": sum(by.values()),
        "by": by,
        "duplicated": similar,
        "queries": queries,
        "share": round(similar / queries, 4) if queries else None,
        "splits": splits,
        "paper": published()["similar"],
    }


def as_table(counts: Mapping[str, Any], out: Path) -> str:
    """The counts beside the paper's, as aligned text."""
    paper = counts["paper"]
    rows = [("Section 2.3", "here", "the paper")]
    rows.append(("training questions removed", f"{counts['removed']:,}", f"{paper['removed']:,}"))
    rows += [(f"  {how}", f"{number:,}", "") for how, number in counts["by"].items()]
    rows.append(("dev and test questions they are like", f"{counts['duplicated']:,}", f"{paper['duplicated']:,}"))
    for split, each in counts["splits"].items():
        rows.append((f"  {split}, of {each['queries']:,}", f"{each['duplicated']:,}", ""))
    rows.append(("of all dev and test questions", f"{counts['share'] or 0:.2%}", f"{paper['share']:.2%}"))
    lines = [f"{name:<38}{here:>10}{there:>12}".rstrip() for name, here, there in rows]
    return "\n".join([*lines, f"release: {out}"])


def _write_list(path: Path, train: Mapping[str, str], tested: Texts, found: Found) -> None:
    split_of = {each: split for split, texts in tested.items() for each in texts}
    with atomic_text(path) as file:
        for trained, likes in found.items():
            for like in likes:
                row = {
                    "query-id": like.id,
                    "corpus-id": trained,
                    "by": like.how,
                    "score": like.score,
                    "split": split_of[like.id],
                    "query": tested[split_of[like.id]][like.id],
                    "train": train[trained],
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
    log.info("%s: %d pairs", path, sum(map(len, found.values())))


def write(
    draft: Draft,
    release: Release,
    removed: Collection[str],
    tested: Texts,
    duplicated: Mapping[str, Collection[str]],
) -> None:
    """Put the release without its ``removed`` training questions into ``draft``.

    Args:
        tested: by split, the texts of the development and test questions, by id.
        duplicated: by split, those that a removed question is similar to.
    """
    before = release.batches(REMOVED, "train") if (REMOVED, "train") in release.splits() else ()
    draft.write(REMOVED, "train", [*map(_table, before), *_joined(release, removed)])
    for config, column in (("queries", "_id"), ("qrels", "query-id"), (BEFORE, "query-id"), ("train", "query_id")):
        _leave_out(draft, release, config, column, removed)
    _leave_out_english(draft, release, removed)
    for split, texts in tested.items():
        for config, wanted in zip(TOLD_APART, (True, False), strict=True):
            rows = [(each, text) for each, text in texts.items() if (each in duplicated[split]) is wanted]
            columns = [pa.array([row[place] for row in rows], pa.string()) for place in (0, 1)]
            draft.write(config, split, [pa.table(columns, schema=QUERIES)])
    _drop_samples(draft, release)
    _count(draft, release, removed)


def _drop_samples(draft: Draft, release: Release) -> None:
    """Leave out the samples for extrapolation evaluation: they were drawn from all training questions."""
    samples = sorted({config for config, _ in release.splits() if config.startswith(("restrain-", "resttest-"))})
    for config in samples:
        draft.drop(config)
    draft.stats.pop("extrapolation", None)
    if samples:
        log.warning("left out: %s; draw them again (`python -m builders add`)", ", ".join(samples))


def _table(batch: pa.RecordBatch) -> pa.Table:
    return pa.Table.from_batches([batch])


def _kept(release: Release, config: str, column: str, ids: Collection[str]) -> Iterator[pa.Table]:
    """The rows of a config's train split without those of some questions."""
    out = pa.array(sorted(ids), pa.string())
    for batch in release.batches(config, "train"):
        table = _table(batch)
        yield table.filter(pc.invert(pc.is_in(table[column], out)))


def _leave_out(draft: Draft, release: Release, config: str, column: str, ids: Collection[str]) -> None:
    """Write a config's train split without the rows of some questions; where there is none, nothing."""
    if (config, "train") in release.splits():
        draft.write(config, "train", _kept(release, config, column, ids))


def _leave_out_english(draft: Draft, release: Release, removed: Collection[str]) -> None:
    """Leave out the translations of removed questions."""
    if ("crosslingual-queries", "train") not in release.splits():
        return
    english = {
        each
        for table in release.rows_with("crosslingual-queries", "train", "zh_id", removed)
        for each in table["_id"].to_pylist()
    }
    _leave_out(draft, release, "crosslingual-queries", "zh_id", removed)
    _leave_out(draft, release, "crosslingual", "query_id", english)


def _joined(release: Release, removed: Collection[str]) -> Iterator[pa.Table]:
    """The removed questions with their passages: their rows in `train`; joined here where there is no such config."""
    if ("train", "train") in release.splits():
        yield from release.rows_with("train", "train", "query_id", removed)
        return
    judged = {query: own for query, own in read_judged(release, "qrels", "train").items() if query in removed}
    texts = texts_of_judged(release, judged)
    for table in release.rows_with("queries", "train", "_id", removed):
        rows = []
        for row in table.to_pylist():
            own = [(joined_passage(each, texts), score > 0) for each, score in judged.get(row["_id"], {}).items()]
            rows.append(
                {
                    "query_id": row["_id"],
                    "query": row["text"],
                    "positive_passages": [passage for passage, positive in own if positive],
                    "negative_passages": [passage for passage, positive in own if not positive],
                }
            )
        yield pa.Table.from_pylist(rows, JOINED)


def _count(draft: Draft, release: Release, removed: Collection[str]) -> None:
    """The figures of the training questions that are left, in the place of the release's."""
    if "train" in draft.stats["table3"]:
        judged = {query: own for query, own in read_judged(release, "qrels", "train").items() if query not in removed}
        left = _texts_without(release, "queries", "_id", removed)
        count_judged(draft, "train", left, judged, texts_of_judged(release, judged))
    if "train" in draft.stats.get("english", {}):
        texts = _texts_without(release, "crosslingual-queries", "zh_id", removed)
        words = round_stat(sum(len(text.split()) for text in texts) / len(texts)) if texts else None
        draft.stats["english"]["train"] = {"queries": len(texts), "words_per_query": words}


def _texts_without(release: Release, config: str, column: str, ids: Collection[str]) -> list[str]:
    return [text for table in _kept(release, config, column, ids) for text in table["text"].to_pylist()]
