"""Build a release from a copy of the data: queries with their passages, or corpus, queries and qrels.

``zyznull/dureader-retrieval-ranking`` has ``train.jsonl.gz`` and ``dev.jsonl.gz`` in Tevatron's format.
``mteb/DuRetrieval`` has corpus, queries and judgments of dev. ``C-MTEB/DuRetrieval`` has corpus and queries, and
``C-MTEB/DuRetrieval-qrels`` has the judgments. The kind of a file is detected from its columns, so other copies with
the same columns also work. A text's id is its MD5. Ids of the copy that differ from this MD5 are counted.
"""

import gzip
import io
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from builders.core.cache import cached_sha256
from builders.core.errors import InputError, log
from builders.core.files import BOM, convert_read_errors, expect_inside, is_parquet, numbered_lines, open_text
from builders.core.finished_outputs import UNKNOWN, VerbInput
from builders.core.hub import OTHER_HUB, clear_errors, commit_in, need_hub
from builders.core.progress import show_progress
from builders.core.tables import text_table
from builders.core.typed import convert_to, json_of, problem_of
from builders.official.blocks import BlockWork, Corpus, open_work
from builders.official.official_formats import texts_of
from builders.official.questions import OfficialQuestion, OfficialSplit, ids_in, write_questions
from builders.sources.source_files import split_of
from builders.store.draft import describe_files
from builders.store.layout import LONGEST_TEXT, SPLITS, long_text_fault, text_id
from builders.store.published import published_figures as paper_figures

# No metadata such as dataset_infos.json.
_DATA_NAME = re.compile(r"\.(jsonl(\.gz)?|parquet)$", re.IGNORECASE)
_REPOSITORY = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:/(.+))?")  # ORG/NAME, or ORG/NAME/PATH
_LINES_PER_UPDATE = 1_000  # of the bar of a file of JSON lines
_ROWS_PER_BATCH = 256  # a row with its passages can have 100 kB
_PASSAGES_PER_BATCH = 4_096
# C-MTEB's column names -> mteb's column names.
_MTEB_NAMES = {"id": "_id", "qid": "query-id", "pid": "corpus-id"}


class CopiedPassage(Struct, gc=False):
    text: str
    docid: str | int = ""
    title: Any = None


class RankedPassages(Struct, gc=False):
    """A query with its passages."""

    query: str
    positive_passages: list[CopiedPassage]
    query_id: str | int = ""
    negative_passages: list[CopiedPassage] = []


class CopiedText(Struct, gc=False):
    """A passage or a query."""

    id: str | int = msgspec.field(name="_id")
    text: str = ""
    title: Any = None


class CopiedJudgment(Struct, gc=False):
    query: str | int = msgspec.field(name="query-id")
    passage: str | int = msgspec.field(name="corpus-id")
    score: int | float = 1


T = TypeVar("T", RankedPassages, CopiedText, CopiedJudgment)
Pair = tuple[bytes, int]  # the MD5 and the number of a text
# (location, row). The location is the file's name, and the number of the line or row.
LocatedRows = Iterator[tuple[str, dict[str, Any]]]


def _parquet_rows(path: Path) -> LocatedRows:
    row_number = 0
    with convert_read_errors(path, damaged="is damaged, or not a Parquet file"), pq.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=_ROWS_PER_BATCH):
            for row in batch.to_pylist():
                row_number += 1
                yield f"{path}, row {row_number}", row


def _json_rows(path: Path, bar: Any = None) -> LocatedRows:
    """Yield the rows of JSON lines. ``bar`` is moved by the bytes that are read from the file."""
    with open_text(path) as stream:
        for line_number, line in numbered_lines(stream, path):
            # Files with a byte order mark may have been joined, so any line can begin with one.
            content = line.removeprefix(BOM).rstrip(b"\r\n")
            if content.strip():
                yield f"{path}:{line_number}", json_of(content, dict[str, Any], path, line_number)
            # A file position costs as much as a short line, so the bar does not move with every line.
            if bar is not None and line_number % _LINES_PER_UPDATE == 0:
                bar.update(_bytes_read(stream) - bar.n)
        if bar is not None:
            bar.update(_bytes_read(stream) - bar.n)


def _bytes_read(stream: IO[bytes]) -> int:
    """Return the position in a file of :func:`.open_text`. In a gzipped file, this is the number of compressed bytes.

    The size of the decompressed text is unknown before the end, so a bar of a gzipped file counts compressed bytes.
    """
    if isinstance(stream, io.BufferedReader) and isinstance(stream.raw, gzip.GzipFile):
        compressed_file: Any = stream.raw.fileobj
        return int(compressed_file.tell())
    return stream.tell()


def _rows(path: Path) -> LocatedRows:
    return _parquet_rows(path) if is_parquet(path) else _json_rows(path)


def _typed_rows(rows: LocatedRows, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (location, row) with the rows as the type ``kind``, and C-MTEB's columns under mteb's names."""
    for location, row in rows:
        renamed_row = {_MTEB_NAMES.get(name, name): value for name, value in row.items()}
        yield location, convert_to(renamed_row, kind, location)


def rows_of(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (location, row) for every row, decoded as the type ``kind``.

    Raises :class:`InputError` for a damaged file or a row of another type. The error names the row's location.
    """
    return _typed_rows(_rows(path), kind)


def _rows_with_bar(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Call :func:`rows_of` with a bar, of rows for a Parquet file, and of bytes for JSON lines."""
    if is_parquet(path):
        with convert_read_errors(path, damaged="is damaged, or not a Parquet file"):
            row_count = pq.read_metadata(path).num_rows
        yield from show_progress(rows_of(path, kind), total=row_count, unit="row", label=path.name)
        return
    with convert_read_errors(path):
        byte_count = path.stat().st_size or None  # a pipe has no size
    with show_progress(total=byte_count, unit="B", label=path.name) as bar:
        yield from _typed_rows(_json_rows(path, bar), kind)


def kind_of(path: Path, *names: str) -> str:
    """Return ``ranking``, ``corpus``, ``queries`` or ``qrels``, by the columns of the file.

    Corpus and queries have the same columns. They are told apart by the first of ``names`` that contains either
    ``corpus`` or ``quer``. Raises :class:`InputError` for other columns, and for names without exactly one of these.
    """
    first_row = next(_rows(path), None)
    if first_row is None:
        raise InputError("is empty", path=path)
    _, row = first_row
    columns = {_MTEB_NAMES.get(column, column) for column in row}
    if {"query", "positive_passages"} <= columns:
        return "ranking"
    if {"query-id", "corpus-id"} <= columns:
        return "qrels"
    if not {"_id", "text"} <= columns:
        expected = "(query, positive_passages), (_id, text) or (query-id, corpus-id, score)"
        raise InputError(f"has the columns {', '.join(sorted(columns))}; expected {expected}", path=path)
    for name in map(str.lower, names):
        if ("quer" in name) != ("corpus" in name):
            return "corpus" if "corpus" in name else "queries"
    raise InputError("has passages or queries; expected corpus or queries in the file's name", path=path)


class CopyFile(NamedTuple):
    """A file of a copy. ``shown`` is its name in the manifest, and ``kind`` is from :func:`kind_of`."""

    path: Path
    shown: str
    kind: str
    split: str


def build_copy(sources: Sequence[str], out: Path) -> dict[str, Any]:
    """Build the release ``out`` from copies, and return the content of its ``stats.json``.

    ``sources`` are folders, files, or dataset repositories on a hub: ORG/NAME, or ORG/NAME/PATH for a file or folder.
    Raises :class:`InputError` for a wrong or missing file, an error of the hub, or if ``out`` is not a release.
    """
    with open_work(out) as work:
        # Find the files, and sort them by their kind.
        files: list[CopyFile] = []
        for source in sources:
            files += _copy_files(source)
        by_kind: dict[str, list[CopyFile]] = {}
        for file in files:
            by_kind.setdefault(file.kind, []).append(file)
        if by_kind.keys() not in ({"ranking"}, {"corpus", "queries", "qrels"}):
            raise InputError(
                f"the copy has {', '.join(by_kind)}; expected queries with passages, or corpus, queries and qrels"
                " (C-MTEB has the qrels of NAME in NAME-qrels)",
                path=sources[0],
            )
        # Read the files.
        splits = {name: OfficialSplit(name, labelled=True) for name in SPLITS}
        if "ranking" in by_kind:
            passages: list[int] = []
            for split in splits.values():
                _read_ranking(work, split, [file.path for file in files if file.split == split.name])
                passages += _passages_of(split)
        else:
            passages = _read_tables(work, splits, by_kind["corpus"], by_kind["queries"], by_kind["qrels"])
        if not passages:
            raise InputError("the copy has no passage; expected a complete copy", path=sources[0])
        # Write the release.
        _write_corpus(work, passages)
        for split in splits.values():
            write_questions(work, split)
        draft = work.draft
        draft.stats["copy"] = {**work.findings.described(), "published": compare_with_published(draft.stats)}
        draft.build = {
            "verb": "official",
            "options": {"copy": [_public_name(source) for source in sources]},
            "sources": describe_files((file.shown, file.path) for file in files),
        }
    return draft.stats


def _public_name(source: str) -> str:
    """Return the name of a repository, or the name of a local file or folder without its path."""
    return Path(source).name if os.path.exists(source) else source


def _passages_of(split: OfficialSplit) -> list[int]:
    """Return the numbers of the passages' texts, with repetitions, in the order of the questions."""
    texts: list[int] = []
    for question in split.by_id.values():
        texts += [text for _, text in question.positives]
        texts += question.negatives
    return texts


def _count_titles(work: BlockWork, noun: str, passages: Iterable[CopiedPassage | CopiedText]) -> None:
    """Count the titles, because a release has none (Section 2.2.2)."""
    for passage in passages:
        if passage.title and str(passage.title).strip():
            work.findings.add(f"{noun} with a title (dropped)", 1, str(passage.title))


def _number_texts(work: BlockWork, noun: str, ids_and_texts: Iterable[tuple[str | int, str]]) -> list[Pair]:
    """Return (MD5, number) of each text. Skip and count blank or long texts, count wrong ids.

    ``noun`` is the word for the texts in findings: passages or queries.
    """
    texts: list[bytes] = []
    for copy_id, text in ids_and_texts:
        if not text.strip():
            work.findings.add(f"{noun} without a text (skipped)", 1, str(copy_id))
            continue
        if long_text_fault(text):
            work.findings.add(f"{noun} of more than {LONGEST_TEXT:,} characters (skipped)", 1, str(copy_id))
            continue
        if copy_id and str(copy_id) != text_id(text):
            work.findings.add(f"{noun} whose id in the copy is not the MD5 of the text", 1, str(copy_id))
        texts.append(text.encode())
    column = texts_of(texts, noun)
    return list(zip(ids_in(column.digests), work.number(column).tolist(), strict=True))


def add_positives(work: BlockWork, split: OfficialSplit, query: Pair, positives: Iterable[Pair]) -> OfficialQuestion:
    """Add positives to a question, and return the question. Questions are in the order of their first rows."""
    query_id, query_text = query
    question = split.by_id.get(query_id)
    if question is None:
        question = split.add(query_id, query_text)
    else:
        finding = f"rows of {split.name} whose query occurred before (passages are merged)"
        work.findings.add(finding, 1, query_id.hex())
    question.positives.update(dict.fromkeys(positives))
    return question


def _read_ranking(work: BlockWork, split: OfficialSplit, paths: Iterable[Path]) -> None:
    """Read queries with their passages into ``split``."""
    for path in paths:
        for location, row in _rows_with_bar(path, RankedPassages):
            if not row.query.strip():
                raise InputError("the query is empty; expected a text", path=location)
            fault = long_text_fault(row.query)
            if fault:
                raise InputError(fault, path=location)
            (query,) = _number_texts(work, "queries", [(row.query_id, row.query)])
            _count_titles(work, "passages", row.positive_passages + row.negative_passages)
            positives = _number_passages(work, row.positive_passages)
            negatives = _number_passages(work, row.negative_passages)
            question = add_positives(work, split, query, positives)
            question.negatives += [text for _, text in negatives]
    # A later row of the same query can have the positives, so negatives are checked last.
    for question in split.by_id.values():
        positive_texts = {text for _, text in question.positives}
        contradictions = sum(text in positive_texts for text in question.negatives)
        work.findings.add("negatives that are a positive of their query (skipped)", contradictions)
        distinct_negatives = dict.fromkeys(question.negatives)
        question.negatives = [text for text in distinct_negatives if text not in positive_texts]


def _number_passages(work: BlockWork, passages: Iterable[CopiedPassage]) -> list[Pair]:
    return _number_texts(work, "passages", ((passage.docid, passage.text) for passage in passages))


def _read_tables(
    work: BlockWork,
    splits: Mapping[str, OfficialSplit],
    corpus: Iterable[CopyFile],
    queries: Iterable[CopyFile],
    qrels: Iterable[CopyFile],
) -> list[int]:
    """Read corpus, queries and judgments into ``splits``. Return the numbers of the passages' texts."""
    passages = _read_texts(work, "passages", corpus)
    questions = _read_texts(work, "queries", queries)
    # (split, query) -> positive passages.
    positives_by_query: dict[tuple[str, str], list[Pair]] = {}
    for file in qrels:
        for _, row in _rows_with_bar(file.path, CopiedJudgment):
            query, passage = str(row.query), str(row.passage)
            # NaN is no positive score either.
            if not row.score > 0:
                work.findings.add(f"judgments of {file.split} with a score of 0 (skipped)")
            elif query not in questions or passage not in passages:
                finding = f"judgments of {file.split} whose query or passage the copy lacks (skipped)"
                work.findings.add(finding, 1, f"{query} {passage}")
            else:
                if row.score != 1:
                    work.findings.add(f"judgments of {file.split} with another grade than 1 (stored as 1)")
                positives_by_query.setdefault((file.split, query), []).append(passages[passage])
    for (split, query), positives in positives_by_query.items():
        add_positives(work, splits[split], questions[query], positives)
    judged_queries = {query for _, query in positives_by_query}
    unjudged_queries = questions.keys() - judged_queries
    if unjudged_queries:
        work.findings.add("queries without a judgment (skipped)", len(unjudged_queries), min(unjudged_queries))
    # Two ids of the copy can have the same text, which becomes one passage.
    text_numbers = [number for _, number in passages.values()]
    repeated_count = len(text_numbers) - len(set(text_numbers))
    work.findings.add("passages whose text occurred before (merged)", repeated_count)
    return text_numbers


def _read_texts(work: BlockWork, noun: str, files: Iterable[CopyFile]) -> dict[str, Pair]:
    """Return the texts of corpus or queries by the copy's ids. ``noun`` is passages or queries."""
    texts_by_id: dict[str, Pair] = {}
    for file in files:
        for location, row in _rows_with_bar(file.path, CopiedText):
            _count_titles(work, noun, [row])
            for pair in _number_texts(work, noun, [(row.id, row.text)]):  # none for a skipped text
                if texts_by_id.setdefault(str(row.id), pair) != pair:
                    raise InputError(f"the id {str(row.id)!r} has a second text; expected one text", path=location)
    return texts_by_id


def _write_corpus(work: BlockWork, passages: Iterable[int]) -> None:
    """Write the config ``corpus``. ``passages`` are numbers of texts. Each text is written once."""
    corpus = Corpus(work.draft)
    digests = work.texts.digests()
    text_numbers = np.array(list(dict.fromkeys(passages)))
    for start in range(0, len(text_numbers), _PASSAGES_PER_BATCH):
        batch = text_numbers[start : start + _PASSAGES_PER_BATCH]
        corpus.write(digests[batch], pa.array(work.texts.get(batch)))
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def copy_input(sources: Sequence[str]) -> VerbInput:
    """Describe the copies of a verb: the data files of a local copy, or the commit of a repository on the hub.

    If the hub fails, the commit is unknown.
    """
    hashes: dict[str, str] = {}
    problem: InputError | None = None
    for number, source in enumerate(sources, 1):
        path = Path(source)
        if path.exists():
            for name, file in _local_files(path).items():
                with convert_read_errors(file):
                    hashes[f"{number}: {path.name}/{name}"] = cached_sha256(file)
            continue
        repository = _REPOSITORY.fullmatch(source)
        if repository:
            try:
                hashes[f"{number}: {source}"] = _repository_info(repository[1]).commit
            except InputError as error:
                hashes[f"{number}: {source}"] = UNKNOWN
                problem = error
    return VerbInput("the copy", hashes, problem)


def _local_files(path: Path) -> dict[str, Path]:
    """Return the data files of a folder by relative path, or the file ``path``."""
    if path.is_file():
        return {path.name: path}
    files = {}
    for file in sorted(path.rglob("*")):
        name = file.relative_to(path)
        # Hidden folders have the hub client's metadata of downloads.
        is_hidden = any(part.startswith(".") for part in name.parts)
        if file.is_file() and _DATA_NAME.search(name.name) and not is_hidden:
            files[name.as_posix()] = expect_inside(file, path)
    if not files:
        raise InputError("has no .jsonl, .jsonl.gz or .parquet file", path=path)
    return files


def _copy_files(source: str) -> list[CopyFile]:
    """Return the data files of a folder, a file, or a repository on the hub, which is downloaded."""
    path = Path(source)
    repository = _REPOSITORY.fullmatch(source)
    folder_name = ""  # the first part of the files' names in the manifest
    if path.exists():
        paths_by_name = _local_files(path)
        if path.is_dir():
            folder_name = path.name
    elif repository:
        folder_name = repository[1]
        paths_by_name = _fetch_files(folder_name, repository[2] or "")
    else:
        raise InputError("does not exist; expected a file, a folder, or ORG/NAME on a hub", path=source)
    files: list[CopyFile] = []
    for name, file_path in paths_by_name.items():
        shown_name = f"{folder_name}/{name}" if folder_name else name
        kind = kind_of(file_path, name, folder_name)
        files.append(CopyFile(file_path, shown_name, kind, split_of(name) or "dev"))
    return files


class RepositoryInfo(NamedTuple):
    """The newest commit of a dataset on the hub, and the names of its files."""

    commit: str
    names: list[str]


def _repository_info(repo: str) -> RepositoryInfo:
    """Ask the hub for a dataset. Raises :class:`InputError` if the hub fails."""
    need_hub()
    from huggingface_hub import HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        info = api.dataset_info(repo)
        return RepositoryInfo(commit_in(info, repo), [sibling.rfilename for sibling in info.siblings or []])


def _fetch_files(repo: str, start: str) -> dict[str, Path]:
    """Download the data files of a repository, and return their paths by name.

    ``start`` is a file or folder of the repository. If it is empty, all data files are downloaded.
    """
    from huggingface_hub import HfApi

    api = HfApi()
    repository = _repository_info(repo)
    commit = repository.commit
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        names = sorted(name for name in repository.names if _DATA_NAME.search(name))
        if start:
            # The added slashes prevent that dev.jsonl selects dev.jsonl.gz.
            names = [name for name in names if f"{name}/".startswith(f"{start.rstrip('/')}/")]
        if not names:
            raise InputError(f"{repo} has no .jsonl, .jsonl.gz or .parquet file {start}".rstrip() + OTHER_HUB)
        for name in names:
            problem = problem_of(name)
            if problem:
                raise InputError(f"{repo}: {problem}{OTHER_HUB}")
        log.info("%s at %s: %d files", repo, commit, len(names))
        paths_by_name: dict[str, Path] = {}
        for name in names:
            paths_by_name[name] = Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit))
        return paths_by_name


def compare_with_published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """Return the copy's number (or None) and the published number of each figure."""
    paper_stats = paper_figures()  # Table 3, which has the number of passages, too
    copy_passages = stats["collections"]["corpus"]["passages"]
    paper_passages = paper_stats["collections"]["corpus"]["passages"]
    figures: dict[str, list[int | None]] = {"passages": [copy_passages, paper_passages]}
    for split in SPLITS:
        copy_column = stats["table3"].get(split, {})
        paper_column = paper_stats["table3"].get(split, {})
        for key, noun in (("queries", "queries"), ("positive_passages", "judgments")):
            figures[f"{split} {noun}"] = [copy_column.get(key), paper_column.get(key)]
    return figures


def differences_text(copy_stats: Mapping[str, Any]) -> str:
    """Return the comparison with the published figures as aligned text."""
    rows: list[tuple[str, str, str, str]] = []
    for noun, (copy_count, paper_count) in copy_stats["published"].items():
        if copy_count is not None:
            difference = copy_count - paper_count
            rows.append((noun, f"{copy_count:,}", f"{paper_count:,}", f"{difference:+,}"))
    return text_table(("", "this copy", "published", "difference"), rows)
