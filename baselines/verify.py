"""Recompute the figures of a bundle: OK, close or off.

Measure by measure. With --release, from the run and the judgments of that release, which must be the one that the
bundle names (by the fingerprints of its splits). Without, the means of the values that the bundle holds of each query:
these are then believed. A bundle that was tampered with, or is damaged, is refused: a file is not what the manifest
lists. --sha256 also refuses one whose manifest was made anew: it is what `bundle` printed.

OK: the same figure, and the same value of every query. close: at most 0.05 points apart, and at most 1 % of the queries
differ, as between versions of libraries. off: anything else; then the exit code is 1.

examples:
  python -m baselines verify build/bm25.zip --release build/sample
  python -m baselines verify build/bm25.zip --format json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from builders.common.command import InputError, add_format

if TYPE_CHECKING:
    from baselines.bundle.packed import Bundle, Values
    from baselines.measure.qrels import Qrels
    from builders.store.runs import Run

_SAME = 1e-6  # of fractions: less is rounding
_CLOSE, _FEW = 0.0005, 0.01  # 0.05 points; a share of the queries
_OFFICIAL = ("MRR@10", "recall@1", "recall@50")
_RANKED = "QueriesRanked"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="what `bundle` wrote")
    parser.add_argument("--release", type=Path, metavar="DIR", help="recompute from the run and these judgments")
    parser.add_argument("--sha256", metavar="HEX", help="refuse a bundle with another SHA-256")
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    report = verify(args.bundle, args.release, args.sha256)
    print(json.dumps(report, ensure_ascii=False, indent=1) if args.format == "json" else text(report))
    if wrong := [row["measure"] for row in report["rows"] if row["mark"] == "off"]:
        raise InputError(f"{len(wrong)} of {len(report['rows'])} figures are off: {', '.join(wrong)}", path=args.bundle)


def verify(path: Path, release: Path | None = None, sha256: str | None = None) -> dict[str, Any]:
    """What a bundle states and what is recomputed, a row a measure, as fractions.

    Raises :class:`InputError` for a bundle that was tampered with, or is of another release.
    """
    from baselines.bundle.origin import environment
    from baselines.bundle.packed import read_bundle
    from builders.common.files import sha256_of

    try:
        found = sha256_of(path)
    except OSError as error:
        raise InputError(f"cannot be read ({error.strerror})", path=path) from None
    if sha256 is not None and sha256.lower() != found:
        raise InputError(f"has the SHA-256 {found}; expected {sha256.lower()}: it is another bundle", path=path)
    bundle = read_bundle(path)
    given = _run_of(bundle)
    if release is None:
        values, ranked = bundle.values, len(given.hits)
    else:
        values, ranked = _recomputed(bundle, given, _judgments(bundle, release))
    here, there = environment().packages, bundle.environment.packages
    return {
        "bundle": str(path),
        "sha256": found,
        "run": bundle.manifest.run,
        "reference": {name: getattr(bundle.manifest.reference, name) for name in ("set", "split", "queries", "qrels")},
        "queries": bundle.manifest.queries,
        "recomputed_from": "the values of each query" if release is None else str(release),
        "rows": [_row(name, bundle, values, ranked) for name in bundle.manifest.figures],
        "made_by": bundle.made_by.commands,
        "models": sorted({name.split("/")[1] for name in bundle.content if name.startswith("models/")}),
        "other_versions": {
            name: [there[name], here[name]] for name in sorted(there.keys() & here.keys()) if there[name] != here[name]
        },
    }


def _run_of(bundle: Bundle) -> Run:
    """The run in a bundle; errors name the bundle."""
    from builders.common.temporary import temporary_folder
    from builders.store.runs import Run, read_run

    with temporary_folder() as folder:
        file = folder / bundle.run
        file.write_bytes(bundle.content[bundle.run])
        try:
            return Run(Path(f"{bundle.path}!{bundle.run}"), read_run(file).hits)
        except InputError as error:
            raise InputError(str(error).replace(f"{folder}/", f"{bundle.path}!")) from None


def _judgments(bundle: Bundle, path: Path) -> Qrels:
    """What the run was measured against, in a release that must be the bundle's."""
    from baselines.measure.qrels import release_qrels
    from builders.store.reader import open_release

    release, reference = open_release(path), bundle.manifest.reference
    here = {"/".join(each): release.fingerprint(*each) for each in release.splits()}
    there = bundle.manifest.release
    if here != there:
        other = sorted(name for name in here.keys() | there.keys() if here.get(name) != there.get(name))
        shown = ", ".join(other[:3]) + ", ..." * (len(other) > 3)
        raise InputError(f"is not the release of {bundle.path}: {shown} differ", path=path)
    return release_qrels(release, reference.split, reference.set, reference.queries, reference.qrels)


def _recomputed(bundle: Bundle, given: Run, qrels: Qrels) -> tuple[list[Values], int]:
    """(the values of each query, from the run itself; how many queries it has)."""
    from baselines.bundle.pack import values_of
    from baselines.measure.evaluate import evaluate

    result, by_query = evaluate(given, qrels)
    return values_of(by_query), int(result["official"][_RANKED])


def _row(name: str, bundle: Bundle, values: list[Values], ranked: int) -> dict[str, Any]:
    """One measure: its figure as stated and as recomputed, and how many queries' values differ."""
    from baselines.measure.measures import mean

    stated = bundle.manifest.figures[name]
    if name == _RANKED:
        mark = "OK" if stated == ranked else "off"
        return {"measure": name, "stated": stated, "recomputed": ranked, "queries_that_differ": None, "mark": mark}
    ours = {each.query_id: _value(name, each) for each in values}
    theirs = {each.query_id: _stated(name, each) for each in bundle.values}
    differ = sum(
        one is None or other is None or abs(one - other) > _SAME
        for one, other in ((ours.get(query), theirs.get(query)) for query in ours.keys() | theirs.keys())
    )
    known = [value for value in ours.values() if value is not None]
    found = mean(known) if known and len(known) == len(ours) else None
    if found is None:
        mark = "off"
    elif abs(found - stated) <= _SAME and not differ:
        mark = "OK"
    else:
        mark = "close" if abs(found - stated) <= _CLOSE and differ <= _FEW * len(ours) else "off"
    return {"measure": name, "stated": stated, "recomputed": found, "queries_that_differ": differ, "mark": mark}


def _value(name: str, query: Values) -> float | None:
    """A query's value of a measure: the official ones follow from the rank of its first positive passage."""
    from baselines.measure.measures import LIST_DEPTH, reciprocal_rank

    rank = query.first_positive_rank
    if name == "MRR@10":
        return reciprocal_rank(rank)
    if name in _OFFICIAL:
        return float(rank is not None and rank <= (1 if name == "recall@1" else LIST_DEPTH))
    return query.values.get(name)


def _stated(name: str, query: Values) -> float | None:
    """What the bundle says of it: of MRR@10, its own column."""
    return query.values.get("RR@10") if name == "MRR@10" else _value(name, query)


def text(report: dict[str, Any]) -> str:
    """The report as a table, under what it was recomputed from."""
    from builders.common.command import visible
    from builders.common.tables import percent, text_table

    reference = report["reference"]
    of = f"{reference['split']}" + f" of {reference['set']}" * (reference["set"] != "main")
    of += f" of {reference['queries']}" * bool(reference["queries"]) + f" by {reference['qrels']}" * bool(
        reference["qrels"]
    )
    lines = [
        f"{report['run']} on {of}, {report['queries']} queries; recomputed from {report['recomputed_from']}",
        *(f"made by: {' '.join(words)}" for words in report["made_by"]),
        *([f"models: {', '.join(report['models'])}"] if report["models"] else []),
    ]
    body = []
    for row in report["rows"]:
        count = row["measure"] == _RANKED
        figures = (row["stated"], row["recomputed"])
        shown = ["-" if each is None else f"{each:g}" if count else percent(each) for each in figures]
        differ = "" if row["queries_that_differ"] is None else str(row["queries_that_differ"])
        body.append([row["measure"], *shown, differ, row["mark"]])
    table = text_table(["percent", "stated", "recomputed", "queries that differ", ""], body)
    if other := report["other_versions"]:
        some = [f"{name} {there} there, {here} here" for name, (there, here) in list(other.items())[:5]]
        lines.append(f"{len(other)} packages of other versions: {'; '.join(some)}{'; ...' * (len(other) > 5)}")
    return "\n".join([*map(visible, lines), "", *map(visible, table.splitlines())])
