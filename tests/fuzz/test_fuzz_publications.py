"""What a publication reads beside the release, spoiled: scores; artefacts' manifests."""

from __future__ import annotations

import json

import msgspec
from fuzzing import Reader, as_json, fuzz_of
from spoil import JSON

from baselines.artefacts.manifest import read_manifest
from builders.publish.pages import read_scores

_OFFICIAL = {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
_SCORES = [{"run": "de.run", "queries": 2, "official": _OFFICIAL, "ir_measures": {"AP": 0.5}}]


_PRINTS = {"corpus/corpus": "a" * 64}
_FILES = [{"path": "runs/de.run", "bytes": 9, "sha256": "b" * 64}, {"path": "embeddings/de/manifest.json", "bytes": 9}]
_FILES[1]["sha256"] = "c" * 64
_ARTEFACTS = {
    "name": "dureader_retrieval artefacts",
    "format": 1,
    "artefacts": [
        {"name": "runs/de.run", "kind": "run", "paths": ["runs/de.run"], "of": _PRINTS, "about": {"of": "main dev"}},
        {"name": "embeddings/de", "kind": "embeddings", "paths": ["embeddings/de/manifest.json"], "of": _PRINTS},
    ],
    "files": _FILES,
}

READERS = [
    Reader(
        "the manifest of artefacts",
        reaches=("baselines.artefacts.manifest:read_manifest",),
        make=lambda folder: (folder / "manifest.json").write_text(json.dumps(_ARTEFACTS)),
        spoils={"manifest.json": JSON},
        read=lambda folder: msgspec.to_builtins(read_manifest(folder / "manifest.json")),
        right=as_json("manifest.json"),
    ),
    Reader(
        "scores for a card",
        reaches=("builders.publish.pages:read_scores",),
        make=lambda folder: (folder / "scores.json").write_text(json.dumps(_SCORES)),
        spoils={"scores.json": JSON},
        read=lambda folder: msgspec.to_builtins(read_scores(folder / "scores.json")),
        right=as_json("scores.json"),
    ),
]

test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
