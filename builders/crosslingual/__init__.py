"""Add the cross-lingual set: English queries (Section 2.5).

Table 3 has its figures. Each English query has the passages of its Chinese query. Built from a table of translations
(CSV or TSV; columns named id or zh, and english, or two without a header: query id or Chinese text, English text) and
the release that holds the Chinese queries. An English query is in the split of its Chinese query. Configs:
crosslingual-queries (_id, text, zh_id) and crosslingual (the rows of train, dev and test, query in English, query_zh
added). The judgments are those of the release's qrels for zh_id.

The id is the MD5 of the English text. Where several Chinese queries of a split have one English text, each keeps a row
of its own, as each has its own passages: from the second on the id is the MD5 of the English text, a line feed and
zh_id, so that no id comes twice in a split. A Chinese query may have several translations, too: a row each.

Translating by hand, with the paper's quality control (A.3): `export` writes packages of 1,000 queries with or without a
machine translation to correct, `review` draws 100 random pairs of each finished package for each of two reviewers, and
`import` builds the set when every package's mean accuracy is at least 93 %; else it prints which are not and exits
with 1.

example:
  python -m builders crosslingual --source translations.tsv --release build/sample --out build/with-english
  python -m builders crosslingual export --release build/sample --split dev test --out packages.tsv
  python -m builders crosslingual review --source packages.tsv --release build/sample --out review.tsv --seed 1
  python -m builders crosslingual import --source packages.tsv --reviews review.1.tsv review.2.tsv \\
      --release build/sample --out build/with-english
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.collection import open_base
from builders.common.command import InputError, add_format, log, whole_number
from builders.common.sampling import draw
from builders.crosslingual.review import Rule, Verdict, percent
from builders.crosslingual.translation import Pair, read_pairs, review, write_packages, write_sheets
from builders.sources.encoding import CHOICES
from builders.sources.files import Source
from builders.sources.tables import find_tables
from builders.store.draft import describe_files, draft_release
from builders.store.ids import text_id
from builders.store.layout import CROSSLINGUAL, CROSSLINGUAL_QUERIES
from builders.store.reader import Release
from builders.store.table3 import round_stat

SPLITS = ("train", "dev", "test")
_HAN = re.compile("[\u3400-\u9fff]")
_NEEDS = {
    "build": ("source", "release", "out"),
    "export": ("release", "out"),
    "review": ("source", "release", "out"),
    "import": ("source", "reviews", "release", "out"),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("action", nargs="?", choices=list(_NEEDS), default="build", help="default: build")
    parser.add_argument("--source", nargs="+", type=Path, metavar="TABLE", help="translations, or the packages")
    parser.add_argument("--release", type=Path, metavar="DIR", help="the release with the Chinese queries")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the release to write; export, review: a .tsv file")
    parser.add_argument("--encoding", choices=CHOICES, default="auto", help="default: told by the bytes")
    export = parser.add_argument_group("export")
    export.add_argument("--split", nargs="+", choices=SPLITS, help="splits to translate (default: all there are)")
    export.add_argument("--size", type=whole_number(1), metavar="N", help="queries of a split at random (all)")
    export.add_argument("--package-size", type=whole_number(1), default=1000, metavar="N", help="default: 1000")
    export.add_argument("--translations", nargs="+", type=Path, metavar="TABLE", help="a machine's, to be corrected")
    control = parser.add_argument_group("review and import")
    control.add_argument("--reviews", nargs="+", type=Path, metavar="SHEET", help="one filled-in sheet a reviewer")
    control.add_argument("--reviewers", type=whole_number(1), default=2, metavar="N", help="at least (default: 2)")
    control.add_argument("--pairs", type=whole_number(1), default=100, metavar="N", help="a package (default: 100)")
    control.add_argument(
        "--min-accuracy", type=_share, default=Fraction(93), metavar="PERCENT", help="of a package (default: 93)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default: 0)")
    add_format(parser)
    parser.set_defaults(usage_error=parser.error)


def _share(text: str) -> Fraction:
    try:
        value = Fraction(text)
    except (ValueError, ZeroDivisionError):
        raise argparse.ArgumentTypeError(f"expected percent, such as 93, found {text}") from None
    if not 0 <= value <= 100:
        raise argparse.ArgumentTypeError(f"expected 0 to 100, found {text}")
    return value


def run(args: argparse.Namespace) -> int | None:
    if missing := [name for name in _NEEDS[args.action] if getattr(args, name) is None]:
        args.usage_error(f"{args.action} needs --{missing[0]}")
    base = open_base(args.release, "crosslingual")
    splits = chinese_queries(base)
    known = {zh_id: text for texts in splits.values() for zh_id, text in texts.items()}
    if args.action == "export":
        _export(args, splits, known)
        return None
    sources = find_tables(args.source)
    pairs = _known(read_pairs(sources, known, args.encoding), known)
    rule = Rule(args.reviewers, args.pairs, args.min_accuracy / 100)
    if args.action == "review":
        for sheet in write_sheets(args.out, pairs, known, rule, args.seed):
            print(sheet)
        return None
    options: dict[str, Any] = {"action": args.action, "encoding": args.encoding}
    verdicts: list[Verdict] = []
    if args.action == "import":
        sheets = find_tables(args.reviews)
        verdicts = review(pairs, sheets, rule, args.encoding)
        if refused := [verdict for verdict in verdicts if verdict.refusal]:
            _print_verdicts(verdicts, args.format)
            for verdict in refused:
                log.error("package %s %s: revise it, and review it again", verdict.package, verdict.refusal)
            return 1
        sources += sheets
        options |= {"reviewers": rule.reviewers, "pairs": rule.items, "min_accuracy": str(args.min_accuracy)}
    stats = build(pairs, splits, base, args.out, options, sources, verdicts)
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return None
    if verdicts:
        _print_verdicts(verdicts, "text")
    for split, figures in stats["english"].items():
        print(f"{split}: {figures['queries']:,} English queries, {figures['words_per_query']:.2f} words each")
    print(f"release: {args.out}")
    return None


def chinese_queries(release: Release) -> dict[str, dict[str, str]]:
    """Text by id of the release's queries, by split; a query in several splits in the first of test, dev, train."""
    seen: set[str] = set()
    found: dict[str, dict[str, str]] = {}
    for split in reversed(SPLITS):
        if ("queries", split) in release.splits():
            table = release.table("queries", split)
            rows = zip(table["_id"].to_pylist(), table["text"].to_pylist(), strict=True)
            found[split] = {zh_id: text for zh_id, text in rows if zh_id not in seen}
            seen.update(found[split])
    if not found:
        raise InputError("has no queries to translate", path=release.path)
    return found


def _known(pairs: Iterable[Pair], known: Mapping[str, str]) -> list[Pair]:
    """The pairs whose Chinese query the release has; the others are counted and reported."""
    kept: list[Pair] = []
    unknown: list[Pair] = []
    for pair in pairs:
        (kept if pair.zh_id in known else unknown).append(pair)
    if unknown:
        at = f"{unknown[0].source.shown}:{unknown[0].line}"
        log.warning("%d rows name no query of the release and are left out; the first: %s", len(unknown), at)
    if not kept:
        raise InputError("no row names a query of the release, by id or by Chinese text")
    return kept


def _export(args: argparse.Namespace, splits: Mapping[str, Mapping[str, str]], known: Mapping[str, str]) -> None:
    chosen = [split for split in SPLITS if split in (args.split or splits)]
    if absent := [split for split in chosen if split not in splits]:
        raise InputError(f"has no queries of the split {absent[0]}", path=args.release)
    machine: dict[str, str] = {}
    if args.translations:
        found = read_pairs(find_tables(args.translations), known, args.encoding)
        for pair in _known(found, known):  # of several, the first
            machine.setdefault(pair.zh_id, pair.english)
    queries = []
    for split in chosen:
        drawn = draw(splits[split], args.size or len(splits[split]), args.seed)
        queries.append((split, {zh_id: text for zh_id, text in splits[split].items() if zh_id in drawn}))
    number = write_packages(args.out, queries, args.package_size, machine)
    print(f"{sum(len(texts) for _, texts in queries):,} queries in {number:,} packages: {args.out}")


def _print_verdicts(verdicts: Sequence[Verdict], form: str) -> None:
    if form == "json":
        print(json.dumps({"packages": _packages(verdicts)}, ensure_ascii=False, indent=1))
        return
    for verdict in verdicts:
        accuracy = "-" if verdict.accuracy is None else percent(verdict.accuracy)
        outcome = f"refused: {verdict.refusal}" if verdict.refusal else "accepted"
        print(f"package {verdict.package}: {verdict.size:,} queries, accuracy {accuracy}, {outcome}")


def _packages(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    return [
        {
            "package": verdict.package,
            "queries": verdict.size,
            "reviews": [{"right": right, "judged": judged} for right, judged in verdict.reviews.values()],
            "accuracy": None if verdict.accuracy is None else round_stat(float(verdict.accuracy)),
            "accepted": not verdict.refusal,
        }
        for verdict in verdicts
    ]


def build(
    pairs: Sequence[Pair],
    splits: Mapping[str, Mapping[str, str]],
    base: Release,
    out: Path,
    options: dict[str, Any],
    sources: Sequence[Source],
    verdicts: Sequence[Verdict] = (),
) -> dict[str, Any]:
    """Write the release ``out``: ``base`` and the cross-lingual configs.

    Returns ``english`` and ``crosslingual`` of its ``stats.json``.
    """
    queries, counts = english_queries(pairs, splits)
    described = describe_files((source.name.split("!")[0], source.path) for source in sources)
    with draft_release(out, {"verb": "crosslingual", "options": options, "sources": described}, base) as draft:
        draft.drop("crosslingual-queries")
        draft.drop("crosslingual")
        figures: dict[str, Any] = {}
        for split in SPLITS:
            rows = [(*row, zh_id) for zh_id in splits.get(split, ()) for row in queries.get(zh_id, ())]
            if not rows:
                continue
            table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], schema=CROSSLINGUAL_QUERIES)
            draft.write("crosslingual-queries", split, [table])
            joined = draft.write("crosslingual", split, _joined(base, split, queries))
            if joined != len(rows):
                log.warning("%s: %d of %d English queries have a joined row", split, joined, len(rows))
            words = sum(len(text.split()) for _, text, _ in rows)
            figures[split] = {"queries": len(rows), "words_per_query": round_stat(words / len(rows))}
        draft.stats["english"] = figures
        draft.stats["crosslingual"] = counts | ({"packages": _packages(verdicts)} if verdicts else {})
    return {key: draft.stats[key] for key in ("english", "crosslingual")}


def repeated_id(text: str, zh_id: str) -> str:
    """The id of an English query whose text is, in the same split, that of an earlier one, too."""
    return text_id(f"{text}\n{zh_id}")


# By Chinese query: (id, text) of its English ones.
English = dict[str, list[tuple[str, str]]]


def english_queries(pairs: Iterable[Pair], splits: Mapping[str, Mapping[str, str]]) -> tuple[English, dict[str, int]]:
    """The English queries with their ids, each id once in a split, and what was counted on the way.

    Raises :class:`InputError` where no pair has an English text.
    """
    texts: dict[str, dict[str, None]] = {}
    counts = dict.fromkeys(
        ("rows", "untranslated", "same_pair_again", "further_translation", "same_english_again", "with_chinese"), 0
    )
    for pair in pairs:
        counts["rows"] += 1
        if not pair.english:
            counts["untranslated"] += 1
            continue
        known = texts.setdefault(pair.zh_id, {})
        counts["same_pair_again"] += pair.english in known
        counts["further_translation"] += bool(known) and pair.english not in known
        known[pair.english] = None
    if not texts:
        raise InputError("no row has an English text")
    queries: English = {}
    for split in splits:
        taken: set[str] = set()
        rows = [(each, text) for each in splits[split] for text in texts.get(each, ())]
        for zh_id, text in rows:
            english_id = text_id(text)
            if english_id in taken:
                counts["same_english_again"] += 1
                english_id = repeated_id(text, zh_id)
            taken.add(english_id)
            counts["with_chinese"] += bool(_HAN.search(text))
            queries.setdefault(zh_id, []).append((english_id, text))
    for key, words in (("untranslated", "have no English text, and are left out"), ("with_chinese", "hold Chinese")):
        if counts[key]:
            log.warning("%d rows %s", counts[key], words)
    return queries, counts


def _joined(release: Release, split: str, queries: English) -> Iterator[pa.Table]:
    """A row for each English query: that of its Chinese one in the split's joined config, in this config's order."""
    if (split, split) not in release.splits():
        return
    for batch in release.batches(split, split):
        rows = [
            (place, english_id, text)
            for place, zh_id in enumerate(batch.column("query_id").to_pylist())
            for english_id, text in queries.get(zh_id, ())
        ]
        if rows:
            places, ids, texts = zip(*rows, strict=True)
            table = pa.Table.from_batches([batch]).take(pa.array(places))
            columns = [pa.array(ids), pa.array(texts), table["positive_passages"], table["negative_passages"]]
            yield pa.table([*columns, table["query"]], schema=CROSSLINGUAL)
