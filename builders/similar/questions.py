"""The development and test questions and passages that training texts are compared with."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pyarrow as pa

from builders.common.command import InputError, log
from builders.similar.pairs import names_of, read_pairs
from builders.store.draft import describe_files, draft_release
from builders.store.judgments import read_judged
from builders.store.layout import QUERIES, text_id
from builders.store.reader import Release, open_release

TESTED = ("dev", "test")


def tested_splits(release: Release, wanted: Sequence[str] | None) -> list[str]:
    """The splits to keep apart: those that are named, or dev and test, as far as the release has questions of them."""
    have = [split for config, split in release.splits() if config == "queries"]
    if wanted:
        for split in wanted:
            if split not in TESTED:
                raise InputError(f"--split: expected dev or test, found {split!r}")
            release.shards("queries", split)  # names what the release has
        return [split for split in TESTED if split in wanted]
    if not (found := [split for split in TESTED if split in have]):
        raise InputError("has no config 'queries' with a split dev or test to keep apart", path=release.path)
    return found


def positives_of(release: Release, split: str) -> dict[str, set[str]]:
    """The positive passages' ids of a split's questions that have some; of an unlabelled split none."""
    judged = read_judged(release, "qrels", split)
    found = {query: {each for each, score in scores.items() if score > 0} for query, scores in judged.items()}
    return {query: passages for query, passages in found.items() if passages}


def options_of(args: argparse.Namespace, splits: Sequence[str]) -> dict[str, Any]:
    """What the manifest and a report say of how texts were compared."""
    by = [how for how in args.by if how != "model" or args.scores]
    options: dict[str, Any] = {"splits": list(splits), "by": by}
    if "n-gram" in by:
        options |= {"ngram": args.ngram, "jaccard": args.jaccard}
    if "model" in by:
        options["threshold"] = args.threshold
    return options


def write_questions(args: argparse.Namespace) -> None:
    """Write the questions of ``args.pairs`` as the training queries of a release, with the splits to keep apart.

    `python -m baselines match` compares them; ids are the MD5 of the text, as everywhere.
    """
    release = open_release(args.release)
    splits = tested_splits(release, args.split)
    names = names_of(args.question, args.positive)
    found: dict[str, str] = {}
    for path in args.pairs:
        found |= {text_id(text): text for pair in read_pairs(path, names) for text in pair.questions if text.strip()}
    options = {"verb": "contamination", "options": {"splits": splits}}
    with draft_release(args.questions, options | {"sources": describe_files((p.name, p) for p in args.pairs)}) as draft:
        columns = [pa.array(list(values), pa.string()) for values in (found.keys(), found.values())]
        draft.write("queries", "train", [pa.table(columns, schema=QUERIES)])
        for split in splits:
            draft.write("queries", split, [release.table("queries", split)])
    log.info("%s: %d questions; `python -m baselines match` scores them", args.questions, len(found))
