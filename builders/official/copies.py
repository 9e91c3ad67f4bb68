"""Copies of the data that others keep on a hub, as releases: rows with their passages, or corpus, queries and qrels.

``zyznull/dureader-retrieval-ranking`` has ``train.jsonl.gz`` and ``dev.jsonl.gz`` in Tevatron's layout (query_id,
query, positive_passages, negative_passages, each passage with docid and text; its loading script says so).
``mteb/DuRetrieval`` has the configs corpus, queries and default (judgments: query-id, corpus-id, score), of a split
dev; ``C-MTEB/DuRetrieval`` has corpus and queries (id, text; its card), ``C-MTEB/DuRetrieval-qrels`` the judgments
(qid, pid, score), all as Parquet. Files are known by their columns: other copies in these layouts are read, too.
A text's id is its MD5, as everywhere; the copy's is held to it.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from msgspec import Struct

from builders.check.paper import published as paper_figures
from builders.core.errors import InputError, log
from builders.core.files import raw_lines
from builders.core.hub import clear_errors, commit_in, need_hub
from builders.core.progress import progress
from builders.core.typed import json_of, problem_of, typed
from builders.official.blocks import Findings
from builders.official.questions import write_split
from builders.store.draft import Draft, check_release_output, describe_files, draft_release
from builders.store.layout import CORPUS, SPLITS, text_id
from builders.store.reader import Release, open_release
from builders.store.table3 import LengthCounter

_DATA = re.compile(r"\.(jsonl(\.gz)?|parquet)$")  # not dataset_infos.json and the like
_REPOSITORY = re.compile(r"([\w.-]{1,96}/[\w.-]{1,96})(?:/(.+))?")
_SPLIT = re.compile(rf"(?:^|[^a-z])({'|'.join(SPLITS)})(?![a-z])")
_ROWS = 256  # read at a time: a row with its passages can be 100 kB
_PASSAGES = 2_048  # written at a time
_NAMES = {"id": "_id", "qid": "query-id", "pid": "corpus-id"}  # C-MTEB's to mteb's


class Passage(Struct, gc=False):
    text: str
    docid: str | int = ""
    title: str | None = None


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
    title: str | None = None


class Judgment(Struct, gc=False):
    query: str | int = msgspec.field(name="query-id")
    passage: str | int = msgspec.field(name="corpus-id")
    score: int | float = 1


T = TypeVar("T", Ranked, Text, Judgment)


def kind_of(path: Path, *names: str) -> str:
    """Return ``ranking``, ``corpus``, ``queries`` or ``qrels``, by the columns; texts by the first of ``names`` to say.

    Raises :class:`InputError` for a file of no such columns, and for texts whose name says neither.
    """
    if path.suffix == ".parquet":
        with _parquet(path) as file:
            found = file.schema_arrow.names
    else:
        rows = (json_of(line, dict[str, Any], path, number) for number, line in raw_lines(path) if line.strip())
        found = next(rows, None)
        if found is None:
            raise InputError("is empty", path=path)
    columns = {_NAMES.get(column, column) for column in found}
    if {"query", "positive_passages"} <= columns:
        return "ranking"
    if {"query-id", "corpus-id"} <= columns:
        return "qrels"
    if not {"_id", "text"} <= columns:
        kinds = "query and positive_passages; _id and text; query-id, corpus-id and score"
        raise InputError(f"has the columns {', '.join(sorted(columns))}; expected {kinds}", path=path)
    for name in names:
        said = [kind for kind, word in (("queries", "quer"), ("corpus", "corpus")) if word in name.lower()]
        if len(said) == 1:
            return said[0]
    raise InputError("texts of what? expected a name with corpus or queries in it", path=path)


def rows_of(path: Path, kind: type[T]) -> Iterator[tuple[str, T]]:
    """Yield (place, row) of every row as a ``kind``; the place is the file with the line or the row.

    Raises :class:`InputError` naming it for a row that is none, and for a damaged file.
    """
    if path.suffix == ".parquet":
        with _parquet(path) as file:
            rows = (row for batch in file.iter_batches(batch_size=_ROWS) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                place = f"{path}, row {number}"
                yield place, typed({_NAMES.get(name, name): value for name, value in row.items()}, kind, place)
        return
    for number, line in raw_lines(path):
        place = f"{path}:{number}"
        if line.strip() and kind is Ranked:
            yield place, json_of(line, kind, path, number)
        elif line.strip():
            row = json_of(line, dict[str, Any], path, number)
            yield place, typed({_NAMES.get(name, name): value for name, value in row.items()}, kind, place)


@contextlib.contextmanager
def _parquet(path: Path) -> Iterator[pq.ParquetFile]:
    try:
        with pq.ParquetFile(path) as file:
            yield file
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(f"is no Parquet file, or damaged ({error})", path=path) from None


class Copy:
    """The rows of a copy on their way into a release.

    Memory: some 100 bytes a passage of a ranking, and the rows whose question came before.
    """

    def __init__(self, draft: Draft) -> None:
        self._draft, self.findings = draft, Findings()
        self._corpus, self._lengths = draft.writer("corpus", "corpus"), LengthCounter()
        self._waiting: list[dict[str, str]] = []
        self._known: set[bytes] = set()

    def finish(self) -> None:
        """Write what is left; :class:`InputError` where no passage was found."""
        if not self._known:
            raise InputError("the copy has no passage")
        self._write_passages()
        self._draft.stats["collections"]["corpus"] = self._lengths.summary()

    def ranking(self, split: str, paths: Sequence[Path]) -> None:
        """Write rows with their passages: the collection is all passages that any row names."""

        def rows() -> Iterator[tuple[str, Ranked]]:
            for path in paths:
                yield from progress(rows_of(path, Ranked), unit="query", label=path.name)

        write_split(self._draft, split, self._joined(split, rows))

    def tables(self, corpus: Iterable[CopyFile], queries: Iterable[CopyFile], qrels: Iterable[CopyFile]) -> None:
        """Write corpus, queries and judgments. Queries that nobody judged are left out."""
        passages, questions = self._texts("passages", corpus), self._texts("queries", queries)
        judged: dict[str, dict[str, list[Passage]]] = {}
        for file in qrels:
            for _, row in rows_of(file.path, Judgment):
                query, passage = str(row.query), str(row.passage)
                if not row.score > 0:
                    self.findings.add(f"judgments of {file.split} with a score of 0 (left out)")
                elif query not in questions or passage not in passages:
                    what = f"judgments of {file.split} whose query or passage the copy lacks (left out)"
                    self.findings.add(what, 1, f"{query} {passage}")
                else:
                    judged.setdefault(file.split, {}).setdefault(query, []).append(passages[passage])
        for each in passages.values():
            self._passage(each)
        if again := len(passages) - len(self._known):
            self.findings.add("passages whose text came before (one passage)", again)
        if unjudged := questions.keys() - {query for found in judged.values() for query in found}:
            self.findings.add("queries that nobody judged (left out)", len(unjudged), min(unjudged))
        for split, found in judged.items():
            rows = [("", Ranked(questions[query].text, positive, query)) for query, positive in found.items()]
            write_split(self._draft, split, self._joined(split, rows.copy))

    def _texts(self, what: str, files: Iterable[CopyFile]) -> dict[str, Passage]:
        found: dict[str, Passage] = {}
        for file in files:
            for place, row in rows_of(file.path, Text):
                name = str(row.id)
                if not row.text.strip():
                    self.findings.add(f"{what} without a text (left out)", 1, name)
                    continue
                self._hold(what, name, row.text)
                if found.setdefault(name, Passage(row.text, name, row.title)).text != row.text:
                    raise InputError(f"a second text for the id {name!r}", path=place)
        return found

    def _hold(self, what: str, name: str, text: str) -> None:
        """Count a text for which the copy has another id than its MD5."""
        if name and name != text_id(text):
            self.findings.add(f"{what} whose id in the copy is not the MD5 of the text", 1, name)

    def _passage(self, passage: Passage) -> dict[str, str]:
        """Return the passage as joined rows have it; it joins the corpus when it first comes."""
        own, title = text_id(passage.text), passage.title or ""
        if (key := bytes.fromhex(own)) not in self._known:
            self._known.add(key)
            self._waiting.append({"_id": own, "title": title, "text": passage.text})
            if len(self._waiting) == _PASSAGES:
                self._write_passages()
        return {"docid": own, "title": title, "text": passage.text}

    def _write_passages(self) -> None:
        self._corpus.write(pa.Table.from_pylist(self._waiting, CORPUS))
        self._lengths.add(np.array([len(row["text"]) for row in self._waiting], np.int64))
        self._waiting = []

    def _joined(self, split: str, rows: Callable[[], Iterable[tuple[str, Ranked]]]) -> Iterator[dict[str, Any]]:
        """Yield the joined rows of a split. The rows of one question are one, where the first stands.

        ``rows`` gives them twice, each with its place; rows without a place are held to their ids already.
        """
        again: dict[str, list[Ranked]] = {}  # the rows whose question came before, by its id
        seen = set[str]()
        for place, row in rows():
            if not row.query.strip():
                raise InputError("expected the text of a query, found nothing", path=place)
            self._hold("queries", str(row.query_id) if place else "", row.query)
            if (query := text_id(row.query)) in seen:
                self.findings.add(f"rows of {split} whose query came before (their passages are united)", 1, query)
                again.setdefault(query, []).append(row)
            seen.add(query)
        for place, row in rows():
            if (query := text_id(row.query)) in seen:
                seen.remove(query)
                same = [row, *again.get(query, ())]
                positives = self._distinct((each for one in same for each in one.positive_passages), bool(place))
                negatives = (each for one in same for each in one.negative_passages)
                both = {
                    "positive_passages": [*positives.values()],
                    "negative_passages": [*self._distinct(negatives, bool(place), positives).values()],
                }
                yield {"query_id": query, "query": row.query, **both}

    def _distinct(
        self, passages: Iterable[Passage], hold: bool, positives: Collection[str] = ()
    ) -> dict[str, dict[str, str]]:
        """Return the passages of a row by id, each once; without the ``positives`` and those that have no text."""
        found = {}
        for each in passages:
            if not each.text.strip():
                self.findings.add("passages without a text (left out)", 1, str(each.docid))
                continue
            self._hold("passages", str(each.docid) if hold else "", each.text)
            passage = self._passage(each)
            if passage["docid"] in positives:
                self.findings.add("negatives that are a positive of their query (left out)", 1, passage["docid"])
            else:
                found[passage["docid"]] = passage
        return found


class CopyFile(NamedTuple):
    """A file of a copy: its name in the manifest, its kind (:func:`kind_of`), the split that its name says, or dev."""

    path: Path
    shown: str
    kind: str
    split: str


def build_copy(words: Sequence[str], out: Path, against: Release | None = None) -> dict[str, Any]:
    """Build the release ``out`` from copies; returns its ``stats.json``, with the comparison with ``against``.

    Args:
        words: folders, files, or repositories of datasets on a hub: ORG/NAME, or ORG/NAME/PATH for some of its files.
        out: the release directory.
        against: a release that the copy is compared with, by the ids of texts.

    Raises:
        InputError: for a file that is no copy's, a wrong line, judgments of texts that are not there, or where ``out``
            exists and is not a release; what the hub refuses.
    """
    out = check_release_output(out)
    files = [found for word in words for found in _files(word)]
    by_kind: dict[str, list[CopyFile]] = {}
    for file in files:
        by_kind.setdefault(file.kind, []).append(file)
    if "ranking" in by_kind and len(by_kind) > 1:
        raise InputError("rows with their passages and separate judgments are two copies; give one of them")
    for kind, example in () if "ranking" in by_kind else (("corpus", ""), ("queries", ""), ("qrels", "-qrels")):
        if kind not in by_kind:
            keeps = f" (C-MTEB keeps them in a repository of their own, NAME{example})" if example else ""
            raise InputError(f"the copy has no {kind}{keeps}; found {', '.join(sorted(by_kind))}", path=words[0])
    with draft_release(out) as draft:
        copy = Copy(draft)
        if "ranking" in by_kind:
            for split in SPLITS:
                copy.ranking(split, [file.path for file in files if file.split == split])
        else:
            copy.tables(**by_kind)
        copy.finish()
        draft.stats["copy"] = {**copy.findings.described(), "published": published(draft.stats)}
        draft.build = {
            "verb": "official",
            "options": {"copy": [word if not os.path.exists(word) else Path(word).name for word in words]},
            "sources": describe_files((file.shown, file.path) for file in files),
        }
    if against is not None:
        draft.stats["copy"]["release"] = compared(open_release(out), against)
    return draft.stats


def _files(word: str) -> list[CopyFile]:
    """Return the data files that a word names, by name; :class:`InputError` where there is none."""
    path, place = Path(word), ""
    if path.is_file():
        files = {path.name: path}
    elif path.is_dir():
        names = [each.relative_to(path) for each in sorted(path.rglob("*")) if each.is_file()]
        # No hidden folder: what a client of the hub notes down about its downloads.
        names = [name for name in names if _DATA.search(name.name) and not any(p.startswith(".") for p in name.parts)]
        if not names:
            raise InputError("has no .jsonl, .jsonl.gz or .parquet file", path=path)
        files, place = {name.as_posix(): path / name for name in names}, path.name
    elif match := _REPOSITORY.fullmatch(word):
        files, place = _fetched(match[1], match[2] or ""), match[1]
    else:
        raise InputError("no such file or directory, and no ORG/NAME of a hub", path=word)
    found = []
    for name, file in files.items():
        split = (_SPLIT.findall(name.lower()) or ["dev"])[-1]
        found.append(CopyFile(file, f"{place}/{name}" if place else name, kind_of(file, name, place), split))
    return found


def _fetched(repo: str, start: str) -> dict[str, Path]:
    """Fetch the data files of a repository below ``start``, by the library's cache; returns their paths by name."""
    need_hub()
    from huggingface_hub import HfApi

    api = HfApi()
    with clear_errors(repo, api.endpoint, "dataset", "download"):
        info = api.dataset_info(repo)
        commit = commit_in(info, repo)
        names = sorted(each.rfilename for each in info.siblings or [] if _DATA.search(each.rfilename))
        names = [name for name in names if not start or f"{name}/".startswith(f"{start.rstrip('/')}/")]
        if not names:
            raise InputError(f"{repo} has no .jsonl, .jsonl.gz or .parquet file {start}".rstrip())
        if bad := next(filter(None, map(problem_of, names)), None):
            raise InputError(f"{repo}: the name of a file {bad}")
        log.info("%s at %s: %d files", repo, commit, len(names))
        return {name: Path(api.hf_hub_download(repo, name, repo_type="dataset", revision=commit)) for name in names}


def published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """Return the copy's number (None: it has none) and the published one, by what is counted."""
    paper = paper_figures()  # Table 3 and Section 2.2.2
    found = {"passages": [each["collections"]["corpus"]["passages"] for each in (stats, paper)]}
    for split in SPLITS:
        for key, what in (("queries", "queries"), ("positive_passages", "judgments")):
            found[f"{split} {what}"] = [each["table3"].get(split, {}).get(key) for each in (stats, paper)]
    return found


def compared(copy: Release, release: Release) -> dict[str, Any]:
    """Count what copy and release both have, and what one has alone, by the ids of the texts, with examples."""
    ids = {*_keys(copy, "corpus", "corpus", ["_id"])}
    missing = release.missing("corpus", "corpus", ids)
    both = len(ids) - len(missing)
    rest = release.rows("corpus", "corpus") - both
    found: dict[str, Any] = {"passages": {"both": both, "copy": len(missing), "release": rest}}
    if missing:
        found["passages"]["copy_example"] = missing[0]
    for split in SPLITS:
        for config, what, columns in (
            ("queries", "queries", ["_id"]),
            ("qrels", "judgments", ["query-id", "corpus-id"]),
        ):
            if (config, split) in copy.splits() and (config, split) in release.splits():
                ours, theirs = ({*_keys(each, config, split, columns)} for each in (copy, release))
                alone = {"copy": ours - theirs, "release": theirs - ours}
                sides = {"both": len(ours & theirs)} | {side: len(keys) for side, keys in alone.items()}
                found[f"{split} {what}"] = sides | {
                    f"{side}_example": min(keys) for side, keys in alone.items() if keys
                }
    return found


def _keys(release: Release, config: str, split: str, columns: list[str]) -> Iterator[str]:
    for batch in release.batches(config, split, columns):
        yield from map(" ".join, zip(*(batch[column].to_pylist() for column in columns), strict=True))


def differences_text(copy: Mapping[str, Any]) -> str:
    """Return both comparisons as aligned text."""
    lines = [f"{'':<18}{'this copy':>12}{'published':>12}{'difference':>12}"]
    for what, (mine, theirs) in copy["published"].items():
        if mine is not None:
            lines.append(f"{what:<18}{mine:>12,}{theirs:>12,}{mine - theirs:>+12,}")
    lines += [f"{what}: {times:,}" for what, times in copy["findings"].items()]
    if "release" in copy:
        lines += ["", f"{'':<18}{'in both':>12}{'copy only':>12}{'release only':>14}"]
        for what, sides in copy["release"].items():
            lines.append(f"{what:<18}{sides['both']:>12,}{sides['copy']:>12,}{sides['release']:>14,}")
        for what, sides in copy["release"].items():
            for side in ("copy", "release"):
                if example := sides.get(f"{side}_example"):
                    lines.append(f"{what} of the {side} only, such as {example}")
    return "\n".join(lines)
