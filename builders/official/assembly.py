"""Build a release from the official archives: find and check the files, read them, and write the configs."""

import functools
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.errors import InputError, log
from builders.core.file_formats import GZIP, expect_no_archive, expect_utf8
from builders.core.read_files import BOM
from builders.core.typed import problem_of
from builders.official.blocks import HEAD, BlockWork, Corpus, Lines, open_work
from builders.official.numbered import Keys, as_keys
from builders.official.official_archives import OfficialFile, find_members
from builders.official.official_formats import (
    MAP_CUT,
    ROW_CUT,
    TSV,
    OfficialTexts,
    parse_map,
    parse_passages,
    parse_tsv,
    parse_wrapped,
)
from builders.official.questions import (
    OfficialSplit,
    read_question_list,
    read_questions,
    read_training,
    write_questions,
    write_top50_run,
)
from builders.sources.source_files import split_of
from builders.store.draft import describe_files
from builders.store.layout import SPLITS

_TAIL_BYTES = 1 << 12  # bytes at the end of a file that are read to find its closing brackets
_MAP_START = re.compile(rb'(\s*\{\s*)"\d+"(\s*:\s*)"\w*"')
_MAP_END = re.compile(rb"\s*\}\s*\Z")
_WRAP_START = re.compile(rb'\s*\{\s*"data"\s*:\s*\[\s*')  # {"data": [
_WRAP_END = re.compile(rb"\s*\]\s*\}\s*\Z")  # ]}


def build_from_archives(archives: Sequence[Path], out: Path, skip_bad_lines: bool = False) -> dict[str, Any]:
    """Build the release ``out`` from official archives, and return the content of its ``stats.json``.

    ``archives`` are archives, folders or single official files. ``skip_bad_lines`` skips lines in a wrong format, which
    are counted and listed in the release (:class:`.blocks.BlockFindings`).

    Raises:
        InputError: an archive is damaged or refused, there is no official file, a file is empty or not UTF-8, a line
            has a wrong format, or ``out`` exists and is not a release.
    """
    with open_work(out, skip_bad_lines) as work:
        (work.folder / "unpacked").mkdir()
        official_files = find_members(archives, work.folder / "unpacked")
        check_files(official_files)
        write_configs(work, official_files)
        draft = work.draft
        options: dict[str, Any] = {}
        if work.findings.skipped:
            options["skipped_lines"] = work.findings.list_skipped(draft)
        rows_by_file = {official_file.name: official_file.rows for official_file in official_files}
        draft.stats["official"] = {"files": rows_by_file, **work.findings.described()}
        # The sources are the archives and single files, and the files of folders.
        sources = [(archive.name, archive) for archive in archives if not archive.is_dir()]
        sources += [
            (official_file.name, official_file.path)
            for official_file in official_files
            if official_file.archive.is_dir()
        ]
        draft.build = {"verb": "official", "options": options, "sources": describe_files(sources)}
    return draft.stats


def write_configs(work: BlockWork, official_files: list[OfficialFile]) -> None:
    """Read the official files into splits and passages, and write the configs of the release."""
    by_role: dict[str, list[OfficialFile]] = defaultdict(list)  # an absent role has an empty list
    for official_file in official_files:
        by_role[official_file.role].append(official_file)
    splits = {name: OfficialSplit(name) for name in SPLITS}
    read_corpus(work, by_role)  # passage_collection.json, part-00 ..., passage2id.map.json
    for official_file in official_files:
        # The roles of train.json, dev.json, test1.json ... are the names of their splits.
        if official_file.role in splits:
            read_questions(work, official_file, splits[official_file.role])
    for official_file in by_role["ids"] + by_role["queries"]:  # q2qid.dev.json, dev.q.format
        # The names of these roles always have a split.
        split = splits[str(split_of(official_file.name))]
        if not split.by_id:  # unless dev.json or an earlier list has the questions
            read_question_list(work, official_file, split)
    training_files = by_role["dual"] + by_role["cross"]  # dual.train.tsv, cross.train.tsv
    if training_files:
        read_training(work, training_files, splits["train"])
    # The official run is dev.retrieval.top50.res.tsv or dev.retrieval.top50.res.id_map.tsv.
    write_top50_run(work, by_role, splits["dev"])
    for split in splits.values():
        write_questions(work, split)
        log.info("%s: %d questions", split.name, len(split.by_id))


def check_files(official_files: list[OfficialFile]) -> None:
    """Check the names of the official files, and their first bytes.

    Raises :class:`InputError` for an empty list, a repeated or unsafe name, an empty or compressed file, a file that is
    not UTF-8, a byte order mark, or CR LF.
    """
    if not official_files:
        raise InputError(
            "--archive has no official file; expected passage_collection.json, train.json, dev.json, part-00 ..."
        )
    names: set[str] = set()
    for official_file in official_files:
        # Two files of the same name come from two archives, or from an archive and a folder.
        if official_file.name in names:
            raise official_file.error(f"is a second file with the name {official_file.name}; give each file once")
        # The manifest and stats.json will contain this name.
        problem = problem_of(official_file.name)
        if problem:
            raise official_file.error(problem)
        names.add(official_file.name)
        head = official_file.read(HEAD)
        if not head:
            raise official_file.error("is empty")
        if head.startswith(GZIP):
            raise official_file.error("is compressed by gzip; decompress the file first")
        expect_no_archive(head, official_file.shown)
        expect_utf8(head, official_file.shown)
        if head.startswith(BOM):
            raise official_file.error("begins with a byte order mark; expected the unchanged official file")
        first_line = head.split(b"\n", 1)[0]
        if official_file.role in TSV and first_line.endswith(b"\r"):
            raise official_file.error("lines end in CR LF; expected LF, as in the official files", 1)


def read_map(work: BlockWork, official_files: list[OfficialFile]) -> tuple[npt.NDArray[np.int64], Keys] | None:
    """Return the map's ascending line numbers, shape (n,), and passage ids, shape (n, 2). None if there is no map.

    ``official_files`` are the files with the role ``map``. Line numbers begin at 0. Raises :class:`InputError` for a
    second map, a file that is not a map, and a repeated line number.
    """
    if not official_files:
        return None
    if len(official_files) > 1:
        raise official_files[1].error(f"is a second map; the first is {official_files[0].name}; give one map")
    official_file = official_files[0]
    opening = _MAP_START.match(official_file.read(HEAD))
    closing = _MAP_END.search(official_file.read(_TAIL_BYTES, -_TAIL_BYTES))
    if opening is None or closing is None:
        raise official_file.error('expected one JSON object {"0": passage id, "1": passage id, ...}')
    # Read the pairs between the braces.
    span = (len(opening[1]), official_file.size - len(closing[0]))
    line_blocks: list[npt.NDArray[np.int64]] = []
    id_blocks: list[Keys] = []
    for (block_lines, block_ids), _ in work.parsed(official_file, parse_map, span=span, cut=MAP_CUT):
        line_blocks.append(np.asarray(block_lines, np.int64))
        id_blocks.append(as_keys(block_ids))
    line_numbers = np.concatenate(line_blocks)
    ids = np.concatenate(id_blocks)
    official_file.rows = len(line_numbers)
    # Sort the pairs by line number, for binary search.
    work.findings.add("entries of passage2id.map.json out of order", int((np.diff(line_numbers) != 1).sum()))
    order = np.argsort(line_numbers, kind="stable")
    line_numbers = line_numbers[order]
    if not np.diff(line_numbers).all():  # a difference of 0
        raise official_file.error("has a line number twice; expected every line number once")
    return line_numbers, ids[order]


def read_corpus(work: BlockWork, by_role: Mapping[str, list[OfficialFile]]) -> None:
    """Write the config ``corpus``, one row for each passage id. Writes nothing without files of passages.

    ``by_role`` maps a role to its files. ``passage_collection.json`` is read first, then the files ``part-00``,
    ``part-01`` and so on.
    """
    collections = by_role["passages"]
    parts = sorted(by_role["part"], key=lambda official_file: official_file.name.rsplit("/", 1)[-1])
    id_map = read_map(work, by_role["map"])
    if not collections and not parts:
        return
    # The rows of passage_collection.json have ids. The lines of the parts have none.
    corpus = Corpus(work.draft)
    for official_file in collections:
        for block, _ in _read_collection(work, official_file):
            _write_passages(work, corpus, official_file, as_keys(block.ids), block)
    # The map numbers the lines of all parts, so it is useless if a part is missing or repeated.
    part_numbers = [part.name[-2:] for part in parts]
    if id_map is not None and part_numbers != [f"{number:02d}" for number in range(len(parts))]:
        log.warning(
            "ids are MD5s, because the map needs each of the parts 00, 01 ... once; found %s", ", ".join(part_numbers)
        )
        id_map = None
    line_count = _read_parts(work, corpus, parts, id_map)
    if id_map is not None and line_count:
        map_lines, _ = id_map
        surplus_entries = max(0, int(map_lines[-1]) + 1 - line_count)
        work.findings.add("entries of passage2id.map.json without a line in the parts", surplus_entries)
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def _read_parts(
    work: BlockWork, corpus: Corpus, parts: list[OfficialFile], id_map: tuple[npt.NDArray[np.int64], Keys] | None
) -> int:
    """Write the passages of ``part-00``, ``part-01`` and so on. Return the number of lines, with skipped lines.

    The map numbers the lines of all parts from 0. A passage without an entry in the map gets the MD5 of its text.
    """
    earlier_lines = 0  # lines of the earlier parts
    for official_file in parts:
        for (columns, _), line_numbers in work.parsed(official_file, functools.partial(parse_tsv, role="part")):
            block = columns["passage"]
            keys = as_keys(block.digests)
            if id_map is not None:
                map_lines, map_ids = id_map
                # The lines of a file are numbered from 1, those of all parts from 0.
                lines_of_parts = earlier_lines + line_numbers - 1
                # Find the entry of each line by binary search. A line after the last entry gets the last position.
                positions = np.minimum(np.searchsorted(map_lines, lines_of_parts), len(map_lines) - 1)
                is_mapped = map_lines[positions] == lines_of_parts
                work.findings.add("lines without an entry in passage2id.map.json", int((~is_mapped).sum()))
                keys = np.where(is_mapped[:, None], map_ids[positions], keys)
            _write_passages(work, corpus, official_file, keys, block)
        skipped_lines = work.findings.skipped.get(official_file.name, [])
        earlier_lines += (official_file.rows or 0) + len(skipped_lines)
    return earlier_lines


def _write_passages(
    work: BlockWork, corpus: Corpus, official_file: OfficialFile, keys: Keys, block: OfficialTexts
) -> None:
    """Write the passages of a block whose ids are new, and count the block's rows. ``keys`` are the block's ids."""
    is_new = work.passages.add(keys, as_keys(block.digests), work.findings)
    official_file.rows = (official_file.rows or 0) + len(keys)
    corpus.write(keys[is_new], block.texts.filter(pa.array(is_new)))


def _read_collection(work: BlockWork, official_file: OfficialFile) -> Iterator[tuple[OfficialTexts, Lines]]:
    """Return the blocks of ``passage_collection.json``, each with its line numbers (:meth:`BlockWork.parsed`).

    The file is JSON lines, or one ``{"data": [...]}``. Raises :class:`InputError` if the end of the latter is missing.
    """
    opening = _WRAP_START.match(official_file.read(HEAD))
    if opening is None:
        return work.parsed(official_file, parse_passages)
    closing = _WRAP_END.search(official_file.read(_TAIL_BYTES, -_TAIL_BYTES))
    if closing is None or opening.end() + len(closing[0]) >= official_file.size:
        raise official_file.error('is cut short or empty; expected passages in {"data": [...]}')
    span = (opening.end(), official_file.size - len(closing[0]))
    return work.parsed(official_file, parse_wrapped, span=span, cut=ROW_CUT)
