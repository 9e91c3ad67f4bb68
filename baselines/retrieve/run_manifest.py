"""The manifest of a run (RUN.manifest.json): how the run was made, and the tag of its lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from builders.core.command import VERSION
from builders.core.files import kind_of, sha256_of, write_text
from builders.core.folders import key_of
from builders.store.layout import SETS
from builders.store.reader import Release

NAME, FORMAT = "dureader_retrieval run", 1
_PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch", "numpy")


def record(model: dict[str, Any], asked: dict[str, Any], packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """All that decides a run, as JSON values, without paths and times.

    Args:
        model: what the manifest says of the model.
        asked: the rest: :func:`asked_of`, and what is the verb's own.
        packages: the libraries whose versions decide the run.
    """
    versions = {"dureader_retrieval": VERSION, **{name: metadata.version(name) for name in packages}}
    return {"name": NAME, "format": FORMAT, "model": model, **asked, "versions": versions}


def asked_of(args: argparse.Namespace, release: Release, kind: str, queries: str = "") -> dict[str, Any]:
    """The kind of model, the set, the split, the passages a query and the fingerprints of the release.

    ``queries``: a config in the place of the set's queries.
    """
    configs = SETS[args.set]
    queries = queries or configs.queries
    return {
        "kind": kind,
        "set": args.set,
        "split": args.split,
        "top_k": args.top_k,
        "release": {
            configs.corpus: release.fingerprint(configs.corpus, "corpus"),
            queries: release.fingerprint(queries, args.split),
        },
    }


def tag_of(found: dict[str, Any]) -> str:
    """The last column of a run's lines: the model, its commit, and the beginning of its record's key."""
    model = found["model"]
    name = "_".join(str(model["name"]).split())
    return f"{name}@{model['commit'][:8]}:{key_of(found)[:8]}" if model["commit"] else f"{name}:{key_of(found)[:8]}"


def write_manifest(out: Path, found: dict[str, Any], tag: str, queries: int, lines: int) -> dict[str, Any]:
    """Write the manifest of the run ``out`` beside it, and return it. ``tag``: the last column of the run's lines.

    A run that went to a stream has no place beside it: its manifest is only returned.
    """
    if kind_of(out):
        return {**found, "tag": tag}
    of_file = {"file": out.name, "bytes": out.stat().st_size, "sha256": sha256_of(out)}
    whole = {**found, "tag": tag, "run": {**of_file, "queries": queries, "lines": lines}}
    write_text(out.with_name(f"{out.name}.manifest.json"), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
    return whole
