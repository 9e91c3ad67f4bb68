"""Write the manifest of a run (RUN.manifest.json), which records the run's settings and the tag of its lines."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from builders.core.files import kind_of, sha256_of, write_text
from builders.core.folders import key_of
from builders.core.version import VERSION
from builders.store.layout import SETS
from builders.store.reader import Release

NAME, FORMAT = "dureader_retrieval run", 1
_PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch", "numpy")


def record(model: dict[str, Any], asked: dict[str, Any], packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Return everything that affects a run as JSON values, without paths and times.

    ``model`` describes the model, for example by :func:`baselines.retrieve.models.described`. ``asked`` has the values
    of :func:`describe_search` and further values of the verb. ``packages`` are the libraries whose versions are
    recorded.
    """
    from importlib import metadata

    versions = {"dureader_retrieval": VERSION, **{name: metadata.version(name) for name in packages}}
    return {"name": NAME, "format": FORMAT, "model": model, **asked, "versions": versions}


def describe_search(
    release: Release, *, kind: str, set_name: str, split: str, top_k: int, queries: str = ""
) -> dict[str, Any]:
    """Return the kind of model, the set, the split, the passages per query and the fingerprints of the release.

    ``queries`` is the config of the queries (default: the set's).
    """
    configs = SETS[set_name]
    queries = queries or configs.queries
    return {
        "kind": kind,
        "set": set_name,
        "split": split,
        "top_k": top_k,
        "release": {
            configs.corpus: release.fingerprint(configs.corpus, "corpus"),
            queries: release.fingerprint(queries, split),
        },
    }


def tag_of(found: dict[str, Any]) -> str:
    """Return the last column of a run's lines: the model's name and commit, and eight digits of the record's hash."""
    model = found["model"]
    name = "_".join(str(model["name"]).split())
    return f"{name}@{model['commit'][:8]}:{key_of(found)[:8]}" if model["commit"] else f"{name}:{key_of(found)[:8]}"


def manifest_path(out: Path) -> Path:
    """Return the path of a run's manifest."""
    return out.with_name(f"{out.name}.manifest.json")


def write_manifest(out: Path, found: dict[str, Any], tag: str, queries: int, lines: int) -> dict[str, Any]:
    """Write the manifest next to the run ``out``, and return the manifest. A stream gets no manifest.

    ``tag`` is the last column of the run's lines.
    """
    if kind_of(out):
        return {**found, "tag": tag}
    of_file = {"file": out.name, "bytes": out.stat().st_size, "sha256": sha256_of(out)}
    whole = {**found, "tag": tag, "run": {**of_file, "queries": queries, "lines": lines}}
    write_text(manifest_path(out), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
    return whole
