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
from baselines.run.record import (
    asked_of,
    header,
    record_of_use,
    tag_of,
    warn_of_defaults,
    warn_of_others,
    write_manifest,
)
from baselines.run.use import use_of
from builders.common.command import InputError, log, progress
from builders.common.files import check_file
from builders.common.folders import key_of
from builders.common.verified import caches
from builders.store.layout import SETS
from builders.store.reader import Release, open_release
from builders.store.runs import read_run, write_run


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
