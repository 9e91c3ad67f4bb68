"""Write a release for other tools: BEIR, TREC, MS MARCO, Tevatron.

The formats, with the official files among them:

beir      corpus.jsonl, queries.jsonl (every split), qrels/SPLIT.tsv with a header
trec      corpus/docs-NN.jsonl ({"id", "contents"}: Pyserini's JsonCollection), topics.SPLIT.tsv, qrels.SPLIT.txt,
          and the runs of the release (runs/NAME)
msmarco   collection.tsv, queries.SPLIT.tsv, qrels.SPLIT.tsv (query, 0, passage, score: trec_eval reads it, too)
tevatron  SPLIT.jsonl (query_id, query, positive_passages, negative_passages), corpus.jsonl (docid, title, text)
official  the files of the official archives (of the main set only), byte for byte where the release was made from them

JSON formats hold every text as it is. A line of a TSV file cannot hold a tab or a line end: each such character of a
text is written as one space, the number of texts changed is logged and kept in EXPORT, and ids stay those of the
release (the MD5 of the unchanged text). Splits without judgments have queries only. The directory appears when it is
whole; an earlier export in --out is replaced, anything else is left alone.

example:
  python -m builders export --release build/sample --format beir --out build/beir
  python -m builders export --release dureader_retrieval --set cmedqa --format trec --out cmedqa-trec
"""

from __future__ import annotations

import argparse
import json
import os
from pathlib import Path
from typing import Any

from builders.common.command import InputError, log
from builders.common.files import sha256_of, write_text
from builders.common.folders import new_directory
from builders.export.formats import FORMATS, Output
from builders.export.sets import SETS, open_set
from builders.store.layout import MANIFEST
from builders.store.reader import Release, open_release

MARKER = "EXPORT"  # no .json: tools that read every JSON file of a folder should not read this one
OFFICIAL = "official"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release to export")
    parser.add_argument("--format", choices=[*FORMATS, OFFICIAL], required=True, help="the layout to write")
    parser.add_argument("--set", choices=list(SETS), default="main", help="which collection (default: main)")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory to write")


def run(args: argparse.Namespace) -> int:
    release = open_release(args.release)
    files = export(release, args.format, args.out, args.set)
    for name, rows in files.items():
        print(f"{name}: {rows:,} rows" if rows is not None else name)
    print(f"export: {args.out}")
    return 0


def export(release: Release, layout: str, out: Path, name: str = "main") -> dict[str, int | None]:
    """Write the set ``name`` of a release in one layout; returns the rows of every file (None: not counted).

    Args:
        release: an opened release.
        layout: a key of :data:`builders.export.formats.FORMATS`, or ``official``.
        out: the directory to write; an earlier export there is replaced.
        name: a key of :data:`builders.export.sets.SETS`.

    Raises:
        InputError: the release has no such set, a text or an id of it does not fit the layout, or ``out`` is something
            else than an earlier export.
    """
    _check_apart(Path(os.path.abspath(out)), Path(os.path.abspath(release.path)))
    if layout == OFFICIAL and name != "main":
        raise InputError(f"the official files hold the main set only, not {name}", path=release.path)
    with new_directory(out, "an export", MARKER) as folder:
        marker: dict[str, Any] = {"format": layout, "set": name, "release": sha256_of(release.path / MANIFEST)}
        if layout == OFFICIAL:
            from builders.export.official import export_official

            written = export_official(release, folder)
            files: dict[str, int | None] = {entry["name"]: entry["rows"] for entry in written}
            marker["equal_to_the_file_that_was_read"] = {entry["name"]: entry["equal"] for entry in written}
        else:
            output = Output(folder)
            FORMATS[layout](open_set(release, name), output)
            files = dict(output.rows)
            marker["texts_with_spaces_for_tabs_and_line_ends"] = output.changed
            for file, count in output.changed.items():
                log.warning(
                    "%s: in %d of %d texts, tabs and line ends were written as spaces; the ids stay those of the"
                    " unchanged texts",
                    *(file, count, output.rows[file]),
                )
        marker["files"] = files
        write_text(folder / MARKER, json.dumps(marker, ensure_ascii=False, indent=1) + "\n")
    return files


def _check_apart(out: Path, release: Path) -> None:
    if out == release or release in out.parents or out in release.parents:
        raise InputError(f"overlaps the release {release}; expected a directory of its own", path=out)
