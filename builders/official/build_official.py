"""The verb `official`: build a release from the official archives."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from builders.core.errors import UsageError
from builders.core.options import Again, Excludes, Needs, Parsed, Placeholder, Use
from builders.core.verbs import TABLE_FORMATS, verb
from builders.store.release_options import NewRelease

if TYPE_CHECKING:
    from builders.core.results import Report
    from builders.store.written_release import WrittenRelease

# Raise this number if the same call gives another release than before.
RESULT_VERSION = 2


def _copy_source(value: str | os.PathLike[str]) -> str:
    """Return a value of ``--copy`` as text. Raises ValueError, with the expected form, for an empty value."""
    source = os.fspath(value)
    if not source:
        raise ValueError("a folder, a file, or ORG/NAME of a dataset")
    return source


@verb(formats=TABLE_FORMATS)
def build_official(
    archive: Annotated[Sequence[Path], Placeholder("DIR_OR_TAR")] = (),
    *,
    copy: Annotated[Sequence[str], Parsed(_copy_source, accepts=(str, os.PathLike)), Placeholder("DIR_OR_REPO")] = (),
    list: Annotated[Sequence[str], Placeholder("NAME"), Use.MAY_BE_EMPTY] | None = None,
    out: Annotated[NewRelease, Excludes("list")] | None = None,
    titles: Annotated[Literal["join", "drop"], Needs("copy")] = "join",
    skip_bad_lines: Annotated[bool, Needs("archive")] = False,
    again: Again = False,
) -> "WrittenRelease | Report":
    """Build a release from the official archives, or from a copy.

    --archive reads the original release, the pre-processed release, or some of their files. The original release has
    passage_collection.json, train.json and dev.json. The pre-processed release has part-00 to part-03 with
    passage2id.map.json, dual.train.tsv, cross.train.tsv, dev.q.format and q2qid.dev.json. The TSVs' negatives become
    `negative_passages`. The top 50 passages of the official dual-encoder become runs/official-dev-top50.trec. The test
    queries came in separate files, test1.json and test2.json, whose public address is not known.

    The build compares ids with the MD5s of their texts, parts with the map, and TSVs with train.json. Differences are
    printed, and counted in stats.json with examples. A line in a wrong format stops the build. The error names the
    line. --skip-bad-lines skips wrong lines, counts them in stats.json and lists them in official/skipped.tsv. The map
    counts skipped lines, so the ids of other passages do not change. Judgments of a skipped passage are counted, but
    not written to the qrels. `export --format official` writes official files from a release.

    --copy reads JSON lines, Parquet, TSV or TREC's files from a hub, a folder or a file. HF_ENDPOINT sets another hub.
    A copy has queries with their passages (zyznull/dureader-retrieval-ranking), or corpus, queries and judgments
    (mteb/DuRetrieval, C-MTEB/DuRetrieval with C-MTEB/DuRetrieval-qrels, or a folder of BEIR, MS MARCO or TREC).
    ORG/NAME/dev.jsonl.gz reads only this file. The differences from the published sizes are printed. Copies lack
    passages, so do not compare scores on a copy with scores on the collection.

    The passages and queries of a copy get the MD5 of the text as their id. The config original-ids keeps the ids of the
    copy, and `evaluate` takes runs with either. Passages with equal texts become one passage. Grades are kept.

    --list prints the source, size, checksums and licence of the paper's archives, and instructions for archives without
    an address. Nothing is downloaded. `unknown` marks values that are not published, `-` values that do not apply.

    Archives are unpacked into a folder beside --out. Memory grows by about 45 bytes for each passage.

    Args:
        archive: official files: folders, tar or tar.gz archives, or single files
        copy: folders, files, or ORG/NAME of a hub's dataset
        list: print sources and licences of archives (default: all)
        titles: join the title of a copy's passage before the text, or drop it
        skip_bad_lines: skip lines in a wrong format (default: stop)

    Returns:
        The release, whose ``report`` has the statistics and findings. With ``list``, a table of the archives.

    Raises:
        InputError: a file is missing, damaged or in a wrong format, a hub fails, or ``out`` is another directory.

    Examples:
        python -m builders official --list cmedqa2 datafountain-424
        python -m builders official --archive dureader_retrieval-data.v0.tar.gz \\
            dureader-retrieval-baseline-dataset.tar.gz test1.json --out build/release
        python -m builders official --copy mteb/DuRetrieval --out build/mteb
    """
    source_count = [bool(archive), bool(copy), list is not None].count(True)
    if source_count != 1:
        raise UsageError("expected one of --archive, --copy and --list")
    if list is not None:
        from builders.sources.archives import archives_report, read_archives

        return archives_report(read_archives(list))
    if out is None:
        raise UsageError("--archive and --copy need --out DIR")

    from builders.core.finished_outputs import VerbCall, find_finished, is_kept, known_checksums, record_finished
    from builders.official.copies import build_copy
    from builders.official.copy_files import copy_input
    from builders.official.official_archives import archives_input
    from builders.store.manifest import read_stats
    from builders.store.reader import open_release

    # If an earlier call with the same input and options has written the release, nothing is built. Only an output that
    # stays on the disk can be found again.
    call = None
    if is_kept(out):
        inputs = {"copy": copy_input(copy)} if copy else {"archive": archives_input(archive)}
        call = VerbCall("official", RESULT_VERSION, {"skip_bad_lines": skip_bad_lines, "titles": titles}, inputs)
    finished = find_finished(out, call, again=again)
    if finished:
        return _open_reported(finished.path, read_stats(finished.path))
    if copy:
        stats = build_copy(copy, out, titles)
    else:
        from builders.official.assembly import build_from_archives

        stats = build_from_archives(archive, out, skip_bad_lines)
    checksums = known_checksums(out, open_release(out).manifest.files)
    record_finished(out, call, checksums=checksums)
    return _open_reported(out, stats)


def _open_reported(out: Path, stats: dict[str, Any]) -> "WrittenRelease":
    """Open the new release with a report. ``stats`` is its ``stats.json``, with the findings about the input."""
    from builders.core.results import Report, Table
    from builders.official.copies import differences_text
    from builders.store.table3 import table3_tables, table3_text
    from builders.store.written_release import open_written

    lines: list[str] = []
    if "copy" in stats:
        findings: dict[str, Any] = stats["copy"]
        lines += ["", differences_text(findings)]
    else:
        findings = stats["official"]
    rows: list[list[Any]] = []
    for description, count in findings["findings"].items():
        examples = findings["examples"].get(description, [])
        lines.append("; ".join([f"{description}: {count:,}", *examples]))
        rows.append([description, count, "; ".join(examples)])
    text = "\n".join([table3_text(stats), *lines, f"release: {out}"])
    tables = [*table3_tables(stats), Table(("finding", "count", "examples"), rows, title="Findings")]
    return open_written(out, Report(stats, text, tables))
