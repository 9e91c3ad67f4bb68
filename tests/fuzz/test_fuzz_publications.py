"""Scores that a publication reads beside the release, spoiled."""

from __future__ import annotations

import json

import msgspec
from fuzzing import Reader, as_json, fuzz_of
from spoil import JSON

from builders.publish.sections import read_scores

_OFFICIAL = {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
_SCORES = [{"run": "de.run", "queries": 2, "official": _OFFICIAL, "ir_measures": {"AP": 0.5}}]

READERS = [
    Reader(
        "scores for a card",
        reaches=("builders.publish.sections:read_scores",),
        make=lambda folder: (folder / "scores.json").write_text(json.dumps(_SCORES)),
        spoils={"scores.json": JSON},
        read=lambda folder: msgspec.to_builtins(read_scores(folder / "scores.json")),
        right=as_json("scores.json"),
    ),
]

test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
