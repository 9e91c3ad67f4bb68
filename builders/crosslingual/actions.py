"""What the actions of the command do: build, export, review, import."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from builders.annotate.quality import Acceptance, Verdict, percent
from builders.collection.write import open_base
from builders.common.command import InputError, log
from builders.common.sampling import draw
from builders.crosslingual.build import as_stats, build_crosslingual
from builders.crosslingual.packages import review_packages, write_packages, write_sheets
from builders.crosslingual.pairs import Pair, known_pairs, read_pairs
from builders.crosslingual.queries import chinese_queries
from builders.sources.tables import find_tables
from builders.store.layout import SPLITS


def build(args: argparse.Namespace) -> None:
    """The set from finished translations."""
    base = open_base(args.release, "crosslingual")
    splits = chinese_queries(base)
    pairs = _pairs(args.source, splits, args.encoding)
    options = {"action": "build", "encoding": args.encoding}
    _print_set(build_crosslingual(pairs, splits, base, args.out, options, find_tables(args.source)), args)


def export(args: argparse.Namespace) -> None:
    """Packages of queries for the translators, with a machine's translations to correct where there are any."""
    splits = chinese_queries(open_base(args.release, "crosslingual"))
    chosen = [split for split in SPLITS if split in (args.split or splits)]
    if absent := [split for split in chosen if split not in splits]:
        raise InputError(f"has no queries of the split {absent[0]}", path=args.release)
    machine: dict[str, str] = {}
    for pair in _pairs(args.translations, splits, args.encoding) if args.translations else ():
        machine.setdefault(pair.zh_id, pair.english)  # of several, the first
    queries = []
    for split in chosen:
        drawn = draw(splits[split], args.size or len(splits[split]), args.seed)
        queries.append((split, {zh_id: text for zh_id, text in splits[split].items() if zh_id in drawn}))
    packages = write_packages(args.out, queries, args.package_size, machine)
    print(f"{sum(len(texts) for _, texts in queries):,} queries in {packages:,} packages: {args.out}")


def review(args: argparse.Namespace) -> None:
    """Sheets of random pairs for the reviewers."""
    splits = chinese_queries(open_base(args.release, "crosslingual"))
    pairs = _pairs(args.source, splits, args.encoding)
    for sheet in write_sheets(args.out, pairs, _texts(splits), _rule(args), args.seed):
        print(sheet)


def accept(args: argparse.Namespace) -> int | None:
    """The set from reviewed packages; 1 where one of them is refused."""
    base = open_base(args.release, "crosslingual")
    splits = chinese_queries(base)
    pairs = _pairs(args.source, splits, args.encoding)
    rule, sheets = _rule(args), find_tables(args.reviews)
    verdicts = review_packages(pairs, sheets, rule, args.encoding)
    if refused := [verdict for verdict in verdicts if verdict.refusal]:
        _print_verdicts(verdicts, args.format)
        for verdict in refused:
            log.error("package %s %s: revise it, and review it again", verdict.package, verdict.refusal)
        return 1
    options = {
        **{"action": "import", "encoding": args.encoding, "reviewers": rule.reviewers, "pairs": rule.items},
        "min_accuracy": str(args.min_accuracy),
    }
    sources = [*find_tables(args.source), *sheets]
    stats = build_crosslingual(pairs, splits, base, args.out, options, sources, verdicts)
    if args.format != "json":
        _print_verdicts(verdicts, "text")
    _print_set(stats, args)
    return None


ACTIONS: dict[str, Callable[[argparse.Namespace], int | None]] = {
    "build": build,
    "export": export,
    "review": review,
    "import": accept,
}

Splits = Mapping[str, Mapping[str, str]]


def _texts(splits: Splits) -> dict[str, str]:
    """The Chinese queries of all splits, by id."""
    return {zh_id: text for texts in splits.values() for zh_id, text in texts.items()}


def _pairs(paths: Sequence[Path], splits: Splits, encoding: str) -> list[Pair]:
    known = _texts(splits)
    return known_pairs(read_pairs(find_tables(paths), known, encoding), known)


def _rule(args: argparse.Namespace) -> Acceptance:
    return Acceptance(args.reviewers, args.pairs, args.min_accuracy / 100)


def _print_set(stats: dict[str, Any], args: argparse.Namespace) -> None:
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return
    for split, figures in stats["english"].items():
        print(f"{split}: {figures['queries']:,} English queries, {figures['words_per_query']:.2f} words each")
    print(f"release: {args.out}")


def _print_verdicts(verdicts: Sequence[Verdict], form: str) -> None:
    if form == "json":
        print(json.dumps({"packages": as_stats(verdicts)}, ensure_ascii=False, indent=1))
        return
    for verdict in verdicts:
        accuracy = "-" if verdict.accuracy is None else percent(verdict.accuracy)
        outcome = f"refused: {verdict.refusal}" if verdict.refusal else "accepted"
        print(f"package {verdict.package}: {verdict.size:,} queries, accuracy {accuracy}, {outcome}")
