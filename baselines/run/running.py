"""From a model's name to the figures: its use, its index, the run, the manifest, the evaluation."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from baselines.kinds import Work, open_retriever
from baselines.measure import evaluate
from baselines.measure.qrels import read_queries, release_qrels
from baselines.models.devices import devices_of, dtype_of
from baselines.models.families import families
from baselines.models.loading import shown_name
from baselines.run.record import asked_of, record, tag_of, write_manifest
from baselines.run.use import NO_FAMILY, Use, use_of
from builders.core.cache import caches
from builders.core.errors import InputError, log
from builders.core.files import check_file
from builders.core.folders import key_of
from builders.core.progress import progress
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run

_TITLES = {"truncate_dim": "dimensions kept", "normalize": "unit length"}


def run_model(args: argparse.Namespace) -> None:
    """What ``run`` does; its options are explained there."""
    out = args.out or Path(f"{shown_name(args.model).rpartition('/')[2]}.{args.split}.run.gz")
    check_file(out)
    release, configs = open_release(args.release), SETS[args.set]
    queries = read_queries(release, args.split, configs.queries)
    if not queries:
        raise InputError(f"has no queries in its split {args.split!r}", path=args.release)
    devices = devices_of(args.device)
    use = use_of(args)
    work = Work(devices, dtype_of(args.dtype, devices[0]), args.batch_tokens, args.tokenizers)
    retriever = open_retriever(use.settings, work, use.kind)
    about = retriever.about()
    found = record_of_use(use, about, asked_of(args, release, use.kind))
    warn_of_defaults(use, found)
    if use.family:
        warn_of_others(use, found, families()[use.family].values)
    folder = args.index or _kept(release, configs.corpus, use.kind, about)
    log.info("the index: %s", folder)
    folder.parent.mkdir(parents=True, exist_ok=True)
    retriever.index(release, configs.corpus, folder)
    hits = retriever.search(release, configs.corpus, folder, [text for _, text in queries], args.top_k)
    bar = progress(hits, total=len(queries), unit="query", label="search")
    lines = write_run(out, zip((query for query, _ in queries), bar, strict=True), tag=tag_of(found))
    manifest = write_manifest(out, found, tag_of(found), len(queries), lines)
    log.info("%s: %d lines for %d queries; how it was made: %s.manifest.json", out, lines, len(queries), out)
    _print(args, release, out, manifest)


def _kept(release: Release, corpus: str, kind: str, about: dict[str, Any]) -> Path:
    """Where an index is kept when nobody says where: a folder for each model, use and collection."""
    return caches() / "indexes" / key_of([kind, about, corpus, release.fingerprint(corpus, "corpus")])


def _print(args: argparse.Namespace, release: Release, out: Path, manifest: dict[str, Any]) -> None:
    """The header, then what `evaluate` prints; the header alone where the split is not judged."""
    judged = (SETS[args.set].qrels, args.split) in release.splits()
    if args.format == "json":
        figures = evaluate.evaluate(read_run(out), release_qrels(release, args.split, args.set))[0] if judged else None
        print(json.dumps({"manifest": manifest, "evaluation": figures}, ensure_ascii=False, indent=1))
        return
    print(header(manifest) + "\n" * judged)
    if not judged:
        log.warning("%s: the split %s is not judged: no figures", args.release, args.split)
        return
    parser = argparse.ArgumentParser()
    evaluate.add_arguments(parser)
    words = ["--release", str(args.release), "--set", args.set, "--split", args.split, str(out)]
    evaluate.run(parser.parse_args(words))


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
