"""Write the manifest of a run (RUN.manifest.json), which records the run's settings and the tag of its lines."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from builders.core.folders import key_of
from builders.core.paths import kind_of
from builders.core.read_files import sha256_of
from builders.core.version import VERSION
from builders.core.write_files import write_text
from builders.store.layout import SETS
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release

NAME = "dureader_retrieval run"
FORMAT = 1
_HASH_DIGITS = 8  # digits of a commit or hash in a run's tag
_PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch", "numpy")


def describe_run(model: dict[str, Any], search: dict[str, Any], packages: Sequence[str] = _PACKAGES) -> dict[str, Any]:
    """Return everything that affects a run as JSON values, without paths and times.

    ``model`` describes the model. ``search`` has the values of :func:`describe_search` and further values of the verb.
    ``packages`` are the libraries whose versions are recorded.
    """
    from importlib import metadata

    versions = {"dureader_retrieval": VERSION}
    for package in packages:
        versions[package] = metadata.version(package)
    return {"name": NAME, "format": FORMAT, "model": model, **search, "versions": versions}


def describe_search(
    release: Release,
    *,
    kind: str,
    set_name: str,
    split: str,
    top_k: int,
    queries: str = "",
    own_queries: OwnQueries | None = None,
) -> dict[str, Any]:
    """Return the kind of model, the set, the split, the passages per query and the fingerprints of the release.

    ``queries`` is the config of the queries (default: the set's). With ``own_queries``, no split is searched.
    """
    configs = SETS[set_name]
    if own_queries is not None:
        return {
            "kind": kind,
            "set": set_name,
            "split": "",
            "top_k": top_k,
            "own_queries": own_queries.describe(),
            "release": {configs.corpus: release.fingerprint(configs.corpus, "corpus")},
        }
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


def tag_of(run_record: dict[str, Any]) -> str:
    """Return the last column of a run's lines: the model's name and commit, and eight digits of the record's hash.

    ``run_record`` is from :func:`describe_run`, for a model with a name and a commit (None: no commit).
    """
    model = run_record["model"]
    name = "_".join(str(model["name"]).split())  # a tag has no blanks
    if model["commit"]:
        name += f"@{model['commit'][:_HASH_DIGITS]}"
    return f"{name}:{key_of(run_record)[:_HASH_DIGITS]}"


def manifest_path(out: Path) -> Path:
    """Return the path of a run's manifest."""
    return out.with_name(f"{out.name}.manifest.json")


def run_outputs(out: Path | None) -> dict[str, Path | None]:
    """Return the files that a verb writes for a run, by option, for :func:`.paths.check_outputs`."""
    if out is None or kind_of(out) == "stream":
        return {"--out": out}
    return {"--out": out, "the manifest of --out": manifest_path(out)}


def write_manifest(
    out: Path,
    run_record: dict[str, Any],
    tag: str,
    query_count: int,
    line_count: int,
    measured: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Write the manifest next to the run ``out``, and return the manifest.

    If ``out`` is a stream, nothing is written, and the result has only ``run_record`` and ``tag``.

    ``run_record`` is from :func:`describe_run`. ``tag`` is the last column of the run's lines. ``measured`` has entries
    that do not affect the run, for example of :meth:`.run_costs.RunCosts.to_json`.
    """
    manifest = {**run_record, "tag": tag}
    if kind_of(out):
        return manifest
    manifest["run"] = {
        "file": out.name,
        "bytes": out.stat().st_size,
        "sha256": sha256_of(out),
        "queries": query_count,
        "lines": line_count,
    }
    manifest.update(measured)
    write_text(manifest_path(out), json.dumps(manifest, ensure_ascii=False, indent=1) + "\n")
    return manifest
