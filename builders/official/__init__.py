"""Make a release from the official archives, or parts of them.

Both releases are read, unpacked or as tar or tar.gz, whatever part is there: passage_collection.json, train.json,
dev.json, test1.json and test2.json of the original release, and of the pre-processed one part-00 to part-03 with
passage2id.map.json, dual.train.tsv and cross.train.tsv (whose negatives become `negative_passages`), dev.q.format,
q2qid.dev.json and the dual-encoder's top 50 of dev, which becomes the run runs/official-dev-top50.trec. Every id is
held against the MD5 of its text, line numbers against the map, the TSVs against train.json: what does not agree is
counted in stats.json and logged with examples; a line that is not in its file's format ends the build with file and
line. `export --format official` gives the files back byte for byte.

A tar.gz is unpacked once, beside --out, which takes the room of its official files. Memory does not grow with the
texts; a passage takes about 40 bytes of it.

example:
  python -m builders official --archive dureader_retrieval-data.v0.tar.gz dureader-retrieval-baseline-dataset.tar.gz \\
      test1.json --out dureader_retrieval
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from builders.common.command import InputError, add_format, log, whole_number
from builders.common.jobs import process_pool
from builders.official.archives import Member, find_members
from builders.official.corpus import File, Step, read_corpus
from builders.official.formats import role_of
from builders.official.layout import LAYOUT, write_layout
from builders.official.queries import Split, read_ids, read_json, read_pairs_files, split_name
from builders.official.splits import write_split
from builders.official.text_pool import TextPool
from builders.official.top50 import read_top50
from builders.store.draft import check_release_output, describe_files, draft_release
from builders.store.table3 import table3_text

_SMALL = 32 << 20  # below this many bytes of input starting worker processes costs more than it saves
_BOM = b"\xef\xbb\xbf"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--archive",
        nargs="+",
        type=Path,
        required=True,
        metavar="DIR_OR_TAR",
        help="folders, tar or tar.gz archives, or single official files",
    )
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the release directory to write")
    parser.add_argument(
        "--workers", type=whole_number(1), default=len(os.sched_getaffinity(0)), help="processes (default: all cores)"
    )
    add_format(parser)


def run(args: argparse.Namespace) -> None:
    stats = build_official(args.archive, args.out, args.workers)
    if args.format == "json":
        print(json.dumps(stats, ensure_ascii=False, indent=1))
        return
    print(table3_text(stats))
    for what, times in stats["official"]["findings"].items():
        print(f"{what}: {times:,}")
    print(f"release: {args.out}")


def build_official(archives: list[Path], out: Path, workers: int = 1) -> dict[str, Any]:
    """Build the release ``out`` from official archives; returns the content of its ``stats.json``.

    Raises:
        InputError: for archives that are damaged, refused, or hold no official file, for a file that is empty, not
            UTF-8 or has a line that its format does not allow, and where ``out`` exists and is not a release.
    """
    out = check_release_output(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{out.name}.archives.", dir=out.parent) as folder:
        work = Path(folder)
        (work / "unpacked").mkdir()
        members = find_members(archives, lambda name: role_of(name) is not None, work / "unpacked")
        files = list(_files(members))
        build: dict[str, Any] = {"verb": "official", "options": {"layout": LAYOUT}, "sources": []}
        workers = workers if sum(file.member.size for file in files) > _SMALL else 1
        with draft_release(out, build) as draft, process_pool(workers) as pool:
            step = Step(draft, pool, workers)
            # Hashing goes on beside the reading: it needs no lock of Python's.
            with concurrent.futures.ThreadPoolExecutor(1) as hasher:
                hashes = [hasher.submit(_sha256, file.member) for file in files]
                sources = hasher.submit(_describe, archives, files)
                try:
                    _convert(step, files, work, hashes)
                    build["sources"] = sources.result()
                finally:
                    hasher.shutdown(cancel_futures=True)
            draft.stats["official"] = {
                "files": {file.name: file.layout.get("rows") for file in files},
                "findings": {what: times for what, times in step.findings.counts.items() if times},
                "examples": step.findings.examples,
            }
            step.findings.report()
        return draft.stats


def _convert(step: Step, files: list[File], work: Path, hashes: list[concurrent.futures.Future[str]]) -> None:
    corpus = read_corpus(step, files)
    pool, splits = TextPool(work / "texts"), {name: Split(name) for name in ("train", "dev", "test")}
    with contextlib.closing(pool):
        for file in files:
            if file.role in splits:
                read_json(step, file, splits[file.role], pool, corpus)
        for role in ("ids", "queries"):
            for file in files:
                if file.role == role:
                    read_ids(step, file, splits[split_name(file)], pool)
        pairs = sorted((file for file in files if file.role in ("dual", "cross")), key=_pairs_order)
        if pairs:
            read_pairs_files(step, pairs, splits["train"], pool, corpus)
        texts, ids = (next((file for file in files if file.role == role), None) for role in ("top50", "top50ids"))
        if texts or ids:
            read_top50(step, texts, ids, splits["dev"], pool, corpus)
        held = [split for split in splits.values() if split.ids]
        for split in held:
            write_split(step, split, pool, corpus)
            log.info("%s: %d questions", split.name, len(split.ids))
        for file, digest in zip(files, hashes, strict=True):
            file.layout["sha256"] = digest.result()
        write_layout(step.draft, files, held, pool, corpus)


def _pairs_order(file: File) -> tuple[bool, bool]:
    """The whole files before their excerpts (``demo``), the dual-encoder's before the cross-encoder's."""
    return ".demo." in file.name, file.role == "cross"


def _sha256(member: Member) -> str:
    digest = hashlib.sha256()
    with open(member.path, "rb") as file:
        file.seek(member.offset)
        left = member.size
        while left and (block := file.read(min(left, 1 << 20))):
            digest.update(block)
            left -= len(block)
    return digest.hexdigest()


def _describe(archives: list[Path], files: list[File]) -> list[dict[str, Any]]:
    """What the manifest names as sources: archives as they are, of a folder its official files."""
    single = [(archive.name, archive) for archive in archives if not archive.is_dir()]
    inside = [(file.name, file.member.path) for file in files if file.member.archive.is_dir()]
    return describe_files([*single, *inside])


def _files(members: list[Member]) -> Iterator[File]:
    if all(role_of(member.name) == "document" for member in members):
        raise InputError(
            "no official file; expected passage_collection.json, train.json, dev.json, part-00, dual.train.tsv ..."
        )
    names: set[str] = set()
    for member in members:
        name = member.name if member.name not in names else f"{member.archive.name}/{member.name}"
        if name in names:
            raise InputError(f"a second file {name}", path=member.shown)
        names.add(name)
        role = role_of(member.name)
        assert role is not None
        if role != "document":
            if not member.size:
                raise InputError("is empty", path=member.shown)
            if member.read(3) == _BOM:
                raise InputError("begins with a byte order mark; the official files have none", path=member.shown)
        file = File(member, name, role, {"bytes": member.size})
        if role != "document" and not file.tail.endswith(b"\n"):
            file.layout["unended"] = True
        yield file
