"""Build a release from a copy of the data: queries with their passages, or corpus, queries and qrels.

``zyznull/dureader-retrieval-ranking`` has ``train.jsonl.gz`` and ``dev.jsonl.gz`` in Tevatron's format.
``mteb/DuRetrieval`` has corpus, queries and judgments of dev. ``C-MTEB/DuRetrieval`` has corpus and queries, and
``C-MTEB/DuRetrieval-qrels`` has the judgments. The kind of a file is detected from its columns, so other copies with
the same columns also work. A text's id is its MD5. Ids of the copy that differ from this MD5 are counted.
"""

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from builders.core.cache import cached_sha256
from builders.core.errors import InputError, log
from builders.core.files import expect_inside, is_parquet, reading
from builders.core.finished_outputs import UNKNOWN, VerbInput
from builders.core.hub import OTHER_HUB, clear_errors, commit_in, need_hub
from builders.core.progress import progress
from builders.core.tables import text_table
from builders.core.typed import json_lines, problem_of, typed
from builders.official.blocks import Corpus, Work, open_work
from builders.official.official_formats import texts_of
from builders.official.questions import Question, Split, ids_in, write_questions
from builders.sources.source_files import split_of
from builders.store.draft import describe_files
from builders.store.layout import LONGEST_TEXT, SPLITS, long_text_fault, text_id
from builders.store.published import published as paper_figures

_DATA = re.compile(r"\.(jsonl(\.gz)?|parquet)$", re.IGNORECASE)  # does not match metadata such as dataset_infos.json
_REPOSITORY = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:/(.+))?")
_ROWS = 256  # rows of a batch; a row with its passages can have 100 kB
_PASSAGES = 4_096  # passages of a batch
_NAMES = {"id": "_id", "qid": "query-id", "pid": "corpus-id"}  # C-MTEB's column names -> mteb's column names


class Passage(Struct, gc=False):
    text: str
    docid: str | int = ""
    title: Any = None


class Ranked(Struct, gc=False):
    """A query with its passages."""

    query: str
    positive_passages: list[Passage]
    query_id: str | int = ""
    negative_passages: list[Passage] = []


class Text(Struct, gc=False):
    """A passage or a query."""

    id: str | int = msgspec.field(name="_id")
    text: str = ""
    title: Any = None


class Judgment(Struct, gc=False):
    query: str | int = msgspec.field(name="query-id")
    passage: str | int = msgspec.field(name="corpus-id")
    score: int | float = 1


T = TypeVar("T", Ranked, Text, Judgment)
Pair = tuple[bytes, int]  # the MD5 and the number of a text


def _rows(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, row) for every row. The place is the file's name, and the number of the line or row."""
    if is_parquet(path):
        with reading(path, damaged="is damaged, or not a Parquet file"), pq.ParquetFile(path) as file:
            rows = (row for batch in file.iter_batches(batch_size=_ROWS) for row in batch.to_pylist())
            yield from ((f"{path}, row {number}", row) for number, row in enumerate(rows, 1))
    else:
        yield from ((f"{path}:{number}", row) for number, row in json_lines(path, dict[str, Any]))


def rows_of(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (place, row) for every row, decoded as the type ``kind``.

    Raises :class:`InputError` for a damaged file or a row of another type. The error names the row's place.
    """
    for place, row in _rows(path):
        yield place, typed({_NAMES.get(name, name): value for name, value in row.items()}, kind, place)


def _rows_with_bar(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Call :func:`rows_of` with a bar. Only Parquet files have their number of rows, which the time left needs."""
    row_count = None
    if is_parquet(path):
        with reading(path, damaged="is damaged, or not a Parquet file"):
            row_count = pq.read_metadata(path).num_rows
    yield from progress(rows_of(path, kind), total=row_count, unit="row", label=path.name)


def kind_of(path: Path, *names: str) -> str:
    """Return ``ranking``, ``corpus``, ``queries`` or ``qrels``, by the columns of the file.

    Corpus and queries have the same columns. They are told apart by the first of ``names`` that contains either
    ``corpus`` or ``quer``. Raises :class:`InputError` for other columns, and for names without exactly one of these.
    """
    first = next(_rows(path), None)
    if first is None:
        raise InputError("is empty", path=path)
    columns = {_NAMES.get(column, column) for column in first[1]}
    if {"query", "positive_passages"} <= columns:
        return "ranking"
    if {"query-id", "corpus-id"} <= columns:
        return "qrels"
    if not {"_id", "text"} <= columns:
        kinds = "(query, positive_passages), (_id, text) or (query-id, corpus-id, score)"
        raise InputError(f"has the columns {', '.join(sorted(columns))}; expected {kinds}", path=path)
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


def build_copy(words: Sequence[str], out: Path) -> dict[str, Any]:
    """Build the release ``out`` from copies, and return the content of its ``stats.json``.

    ``words`` are folders, files, or dataset repositories on a hub: ORG/NAME, or ORG/NAME/PATH for a file or folder.
    Raises :class:`InputError` for a wrong or missing file, an error of the hub, or if ``out`` is not a release.
    """
    with open_work(out) as work:
        files = [found for word in words for found in _files(word)]
        by_kind: dict[str, list[CopyFile]] = {}
        for file in files:
            by_kind.setdefault(file.kind, []).append(file)
        if by_kind.keys() not in ({"ranking"}, {"corpus", "queries", "qrels"}):
            raise InputError(
                f"the copy has {', '.join(by_kind)}; expected queries with passages, or corpus, queries and qrels"
                " (C-MTEB has the qrels of NAME in NAME-qrels)",
                path=words[0],
            )
        splits = {name: Split(name, labelled=True) for name in SPLITS}
        if "ranking" in by_kind:
            for split in splits.values():
                _read_ranking(work, split, [file.path for file in files if file.split == split.name])
            questions = (question for split in splits.values() for question in split.by_id.values())
            passages = [n for each in questions for n in (*(text for _, text in each.positives), *each.negatives)]
        else:
            passages = _read_tables(work, splits, **by_kind)
        if not passages:
            raise InputError("the copy has no passage; expected a complete copy", path=words[0])
        _write_corpus(work, passages)
        for split in splits.values():
            write_questions(work, split)
        draft = work.draft
        draft.stats["copy"] = {**work.findings.described(), "published": published(draft.stats)}
        draft.build = {
            "verb": "official",
            "options": {"copy": [word if not os.path.exists(word) else Path(word).name for word in words]},
            "sources": describe_files((file.shown, file.path) for file in files),
        }
    return draft.stats


def _count_titles(work: Work, what: str, passages: Iterable[Passage | Text]) -> None:
    """Count the titles, because a release has none (Section 2.2.2)."""
    for passage in passages:
        if passage.title and str(passage.title).strip():
            work.findings.add(f"{what} with a title (dropped)", 1, str(passage.title))


def _number(work: Work, what: str, named: Iterable[tuple[str | int, str]]) -> list[Pair]:
    """Return (MD5, number) of each text of (id, text) pairs. Skip and count blank or long texts, count wrong ids."""
    texts = []
    for name, text in named:
        if not text.strip():
            work.findings.add(f"{what} without a text (skipped)", 1, str(name))
            continue
        if long_text_fault(text):
            work.findings.add(f"{what} of more than {LONGEST_TEXT:,} characters (skipped)", 1, str(name))
            continue
        if name and str(name) != text_id(text):
            work.findings.add(f"{what} whose id in the copy is not the MD5 of the text", 1, str(name))
        texts.append(text.encode())
    column = texts_of(texts, what)
    return list(zip(ids_in(column.digests), work.number(column).tolist(), strict=True))


def judge(work: Work, split: Split, query: Pair, positives: Iterable[Pair]) -> Question:
    """Add positives to a question, and return the question. Questions are in the order of their first rows."""
    question = split.by_id.get(query[0])
    if question is None:
        question = split.add(*query)
    else:
        what = f"rows of {split.name} whose query occurred before (passages are merged)"
        work.findings.add(what, 1, query[0].hex())
    question.positives.update(dict.fromkeys(positives))
    return question


def _read_ranking(work: Work, split: Split, paths: Iterable[Path]) -> None:
    for path in paths:
        for place, row in _rows_with_bar(path, Ranked):
            if not row.query.strip():
                raise InputError("the query is empty; expected a text", path=place)
            if fault := long_text_fault(row.query):
                raise InputError(fault, path=place)
            (query,) = _number(work, "queries", [(row.query_id, row.query)])
            _count_titles(work, "passages", [*row.positive_passages, *row.negative_passages])
            positives, negatives = (
                _number(work, "passages", ((each.docid, each.text) for each in part))
                for part in (row.positive_passages, row.negative_passages)
            )
            judge(work, split, query, positives).negatives += [text for _, text in negatives]
    for question in split.by_id.values():
        own = {text for _, text in question.positives}
        both = sum(text in own for text in question.negatives)
        work.findings.add("negatives that are a positive of their query (skipped)", both)
        question.negatives = [text for text in dict.fromkeys(question.negatives) if text not in own]


def _read_tables(
    work: Work,
    splits: Mapping[str, Split],
    corpus: Iterable[CopyFile],
    queries: Iterable[CopyFile],
    qrels: Iterable[CopyFile],
) -> list[int]:
    passages, questions = _read_texts(work, "passages", corpus), _read_texts(work, "queries", queries)
    judged: dict[tuple[str, str], list[Pair]] = {}  # (split, query) -> positive passages
    for file in qrels:
        for _, row in _rows_with_bar(file.path, Judgment):
            query, passage = str(row.query), str(row.passage)
            if not row.score > 0:
                work.findings.add(f"judgments of {file.split} with a score of 0 (skipped)")
            elif query not in questions or passage not in passages:
                what = f"judgments of {file.split} whose query or passage the copy lacks (skipped)"
                work.findings.add(what, 1, f"{query} {passage}")
            else:
                if row.score != 1:
                    work.findings.add(f"judgments of {file.split} with another grade than 1 (stored as 1)")
                judged.setdefault((file.split, query), []).append(passages[passage])
    for (split, query), positives in judged.items():
        judge(work, splits[split], questions[query], positives)
    if unjudged := questions.keys() - {query for _, query in judged}:
        work.findings.add("queries without a judgment (skipped)", len(unjudged), min(unjudged))
    numbers = [number for _, number in passages.values()]
    work.findings.add("passages whose text occurred before (merged)", len(numbers) - len({*numbers}))
    return numbers


def _read_texts(work: Work, what: str, files: Iterable[CopyFile]) -> dict[str, Pair]:
    found: dict[str, Pair] = {}
    for file in files:
        for place, row in _rows_with_bar(file.path, Text):
            _count_titles(work, what, [row])
            for pair in _number(work, what, [(row.id, row.text)]):
                if found.setdefault(str(row.id), pair) != pair:
                    raise InputError(f"the id {str(row.id)!r} has a second text; expected one text", path=place)
    return found


def _write_corpus(work: Work, passages: Iterable[int]) -> None:
    corpus, digests = Corpus(work.draft), work.texts.digests()
    distinct = np.array([*dict.fromkeys(passages)])
    for start in range(0, len(distinct), _PASSAGES):
        batch = distinct[start : start + _PASSAGES]
        corpus.write(digests[batch], pa.array(work.texts.get(batch)))
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def copy_input(words: Sequence[str]) -> VerbInput:
    """Describe the copies of a verb: the data files of a local copy, or the commit of a repository on the hub.

    If the hub fails, the commit is unknown.
    """
    hashes: dict[str, str] = {}
    problem: InputError | None = None
    for number, word in enumerate(words, 1):
        path = Path(word)
        for name, file in (_local_files(path) if path.exists() else {}).items():
            with reading(file):
                hashes[f"{number}: {path.name}/{name}"] = cached_sha256(file)
        repository = _REPOSITORY.fullmatch(word)
        if repository and not path.exists():
            try:
                hashes[f"{number}: {word}"] = _repository_info(repository[1]).commit
            except InputError as error:
                hashes[f"{number}: {word}"] = UNKNOWN
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
        if file.is_file() and _DATA.search(name.name) and not is_hidden:
            files[name.as_posix()] = expect_inside(file, path)
    if not files:
        raise InputError("has no .jsonl, .jsonl.gz or .parquet file", path=path)
    return files


def _files(word: str) -> list[CopyFile]:
    path, place = Path(word), ""
    if path.exists():
        files = _local_files(path)
        place = path.name if path.is_dir() else ""
    elif match := _REPOSITORY.fullmatch(word):
        files, place = _fetched(match[1], match[2] or ""), match[1]
    else:
        raise InputError("does not exist; expected a file, a folder, or ORG/NAME on a hub", path=word)
    return [
        CopyFile(file, f"{place}/{name}" if place else name, kind_of(file, name, place), split_of(name) or "dev")
        for name, file in files.items()
    ]


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
        return RepositoryInfo(commit_in(info, repo), [each.rfilename for each in info.siblings or []])


def _fetched(repo: str, start: str) -> dict[str, Path]:
    from huggingface_hub import HfApi

    api = HfApi()
    repository = _repository_info(repo)
    commit = repository.commit
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        names = sorted(name for name in repository.names if _DATA.search(name))
        names = [name for name in names if not start or f"{name}/".startswith(f"{start.rstrip('/')}/")]
        if not names:
            raise InputError(f"{repo} has no .jsonl, .jsonl.gz or .parquet file {start}".rstrip() + OTHER_HUB)
        if bad := next(filter(None, map(problem_of, names)), None):
            raise InputError(f"{repo}: {bad}{OTHER_HUB}")
        log.info("%s at %s: %d files", repo, commit, len(names))
        return {name: Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit)) for name in names}


def published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """Return the copy's number (or None) and the published number of each figure."""
    paper = paper_figures()  # Table 3, which has the number of passages, too
    found = {"passages": [each["collections"]["corpus"]["passages"] for each in (stats, paper)]}
    for split in SPLITS:
        for key, what in (("queries", "queries"), ("positive_passages", "judgments")):
            found[f"{split} {what}"] = [each["table3"].get(split, {}).get(key) for each in (stats, paper)]
    return found


def differences_text(copy: Mapping[str, Any]) -> str:
    """Return the comparison with the published figures as aligned text."""
    rows = [
        (what, f"{mine:,}", f"{theirs:,}", f"{mine - theirs:+,}")
        for what, (mine, theirs) in copy["published"].items()
        if mine is not None
    ]
    return text_table(("", "this copy", "published", "difference"), rows)
