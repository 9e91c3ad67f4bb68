"""What is kept of how a run was made: its header, its manifest, and the tag of its lines."""

from __future__ import annotations

import argparse
import json
from importlib import metadata
from pathlib import Path
from typing import Any

from baselines.models.loading import shown_name
from baselines.run.use import NO_FAMILY, Use
from builders.common.command import VERSION, log
from builders.common.files import kind_of, sha256_of, write_text
from builders.common.folders import key_of
from builders.store.layout import SETS
from builders.store.reader import Release

NAME, FORMAT = "dureader_retrieval run", 1
_PACKAGES = ("sentence-transformers", "transformers", "tokenizers", "torch", "numpy")
_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


def record(model: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """All that decides a run, as JSON values, without paths and times.

    Args:
        model: what the manifest says of the model.
        asked: the rest: :func:`asked_of`, and what is the verb's own.
    """
    versions = {"dureader_retrieval": VERSION, **{name: metadata.version(name) for name in _PACKAGES}}
    return {"name": NAME, "format": FORMAT, "model": model, **asked, "versions": versions}


def asked_of(args: argparse.Namespace, release: Release, kind: str) -> dict[str, Any]:
    """The kind of model, the set, the split, the passages a query and the fingerprints of the release."""
    configs = SETS[args.set]
    return {
        "kind": kind,
        "set": args.set,
        "split": args.split,
        "top_k": args.top_k,
        "release": {
            configs.corpus: release.fingerprint(configs.corpus, "corpus"),
            configs.queries: release.fingerprint(configs.queries, args.split),
        },
    }


def record_of_use(use: Use, about: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """The :func:`record` of a model that `run` uses.

    Args:
        use: of the model.
        about: what its retriever says of itself (:meth:`baselines.kinds.Retriever.about`).
        asked: see :func:`record`.
    """
    values: dict[str, Any] = about.get("used") or use.settings.said()
    settings = {key: {"value": value, "says": use.says(key)} for key, value in values.items()}
    model = {
        "name": shown_name(use.settings.name),
        "commit": use.settings.revision,
        "family": use.family or NO_FAMILY,
        "trust_remote_code": use.settings.trust_remote_code,
        **{key: value for key, value in about.items() if key != "used"},
    }
    return record(model, {"used": settings, **asked})


def tag_of(found: dict[str, Any]) -> str:
    """The last column of a run's lines: the model, its commit, and the beginning of its record's key."""
    model = found["model"]
    name = "_".join(str(model["name"]).split())
    return f"{name}@{model['commit'][:8]}:{key_of(found)[:8]}" if model["commit"] else f"{name}:{key_of(found)[:8]}"


def manifest_of(out: Path) -> Path:
    """The place of a run's manifest."""
    return out.with_name(f"{out.name}.manifest.json")


def write_manifest(out: Path, found: dict[str, Any], tag: str, queries: int, lines: int) -> dict[str, Any]:
    """Write the manifest of the run ``out`` beside it, and return it. ``tag``: the last column of the run's lines.

    A run that went to a stream has no place beside it: its manifest is only returned.
    """
    if kind_of(out):
        return {**found, "tag": tag}
    of_file = {"file": out.name, "bytes": out.stat().st_size, "sha256": sha256_of(out)}
    whole = {**found, "tag": tag, "run": {**of_file, "queries": queries, "lines": lines}}
    write_text(manifest_of(out), json.dumps(whole, ensure_ascii=False, indent=1) + "\n")
    return whole


def header(found: dict[str, Any]) -> str:
    """A record as text, a line a setting: its value, and who says it."""
    model = found["model"]
    commit = f" at {model['commit'][:8]}" if model["commit"] else ""
    lines = [
        (
            "model",
            f"{model['name']}{commit}",
            "" if model["family"] == NO_FAMILY else f"models.toml, {model['family']}",
        ),
        ("kind", found["kind"], ""),
    ]
    for key, each in _settings(found):
        lines.append((_TITLES.get(key, key.replace("_", " ")), shown(each["value"]), each["says"]))
    lines += [("precision", model["computed_in"], "")] if "computed_in" in model else []
    width = max(len(value) for _, value, _ in lines if len(value) <= 40)
    return "\n".join(f"{name:<16} {value:<{width}}  {who}".rstrip() for name, value, who in lines)


def _settings(found: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """What is worth a line: a setting that nobody said and that is nothing is none."""
    return [(key, each) for key, each in found["used"].items() if each["value"] is not None]


def shown(value: Any) -> str:
    """A value for people: prompts quoted, with their line breaks as ``\\n``."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, str) and (value == "" or not value.isidentifier()):
        return json.dumps(value, ensure_ascii=False) if value else "none"
    return str(value)


def warn_of_defaults(use: Use, found: dict[str, Any]) -> None:
    """Say what a model of no family was used with where no option says it."""
    if use.family:
        return
    unsaid = ((key, each) for key, each in _settings(found) if key not in use.said)
    defaults = ", ".join(f"{key.replace('_', ' ')} {shown(each['value'])} ({each['says']})" for key, each in unsaid)
    log.warning("%s is of no family in models.toml; used are %s", use.settings.name, defaults or "the options alone")


def warn_of_others(use: Use, found: dict[str, Any], declared: dict[str, Any]) -> None:
    """Say where a model's own files are otherwise than its family's declaration."""
    for key in ("pooling",):
        own = found["used"].get(key, {}).get("value")
        if key not in use.said and key in declared and own not in (None, declared[key]):
            log.warning(
                "%s: its own files say %s %s, models.toml (%s) %s; its own files are followed",
                *(use.settings.name, key, own, use.family, declared[key]),
            )
