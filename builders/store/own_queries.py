"""Queries that no release has: a file, or a dictionary from Python.

The content of a file decides on its format, whatever its name. A file may be gzipped.

- JSON lines: ``{"_id": ..., "text": ...}``, as in BEIR;
- TSV: an id, a tab and a text in each line;
- plain text: a query in each line, whose id is the MD5 of the text.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from builders.core.errors import InputError, log, shown_value
from builders.core.file_formats import describe_encoding
from builders.core.finished_outputs import VerbInput
from builders.core.folders import key_of
from builders.core.read_files import first_character, id_of, is_unicode, raw_lines
from builders.core.typed import unique_json_of
from builders.store.layout import long_text_fault, text_id

_NAME = "queries"  # the name of queries from Python in messages
_JSON_REMEDY = 'expected {"_id": ..., "text": ...}'


class _QueryLine(msgspec.Struct):
    id: str | int = msgspec.field(name="_id")
    text: str


@dataclass(frozen=True)
class OwnQueries:
    """Queries by id, in order.

    Attributes:
        name: name of the file, for messages and default names of outputs.
        texts: query id -> text.
    """

    name: str
    texts: Mapping[str, str]

    @property
    def rows(self) -> list[tuple[str, str]]:
        """Return (id, text) of every query."""
        return list(self.texts.items())

    @property
    def fingerprint(self) -> str:
        """Return a hash of the ids and texts."""
        return key_of(self.rows)

    def describe(self) -> dict[str, Any]:
        """Return the values for the manifest of a run."""
        return {"queries": len(self.texts), "fingerprint": self.fingerprint}

    def as_input(self) -> VerbInput:
        """Describe the queries as an input of a verb."""
        return VerbInput(f"the queries of {self.name}", {"": self.fingerprint})


def convert_queries(value: Any) -> OwnQueries | None:
    """Return the queries of a dictionary query id -> text, or None if ``value`` is no dictionary.

    :class:`OwnQueries` are returned as they are. Raises :class:`InputError` for an empty dictionary, for ids and texts
    of another type, and for the faults of :func:`open_queries`.
    """
    if isinstance(value, OwnQueries):
        return value
    if not isinstance(value, Mapping):
        return None
    texts: dict[str, str] = {}
    for query_id, text in value.items():
        if not isinstance(query_id, str) or not isinstance(text, str):
            problem = f"expected query id -> text, found {shown_value(query_id)} -> {shown_value(text)}"
            raise InputError(problem, path=_NAME)
        _add_query(texts, query_id, text, _NAME, None)
    return _expect_queries(OwnQueries(_NAME, texts))


def open_queries(queries: OwnQueries | Path) -> OwnQueries:
    """Read a file of queries. Queries in memory are returned as they are.

    Raises :class:`InputError` with file and line for a file without queries, a repeated id, an id with white space, a
    text that is empty or too long, and a line in another format.
    """
    if isinstance(queries, OwnQueries):
        return queries
    texts: dict[str, str] = {}
    repeated_lines = 0
    for line_number, query_id, text in _read_rows(queries):
        if query_id is None:  # plain text
            query_id = text_id(text)
            # Logs of questions have repetitions.
            if query_id in texts:
                repeated_lines += 1
                continue
        _add_query(texts, query_id, text, queries, line_number)
    if repeated_lines:
        log.warning("%s: %d lines repeat an earlier query and are skipped", queries, repeated_lines)
    return _expect_queries(OwnQueries(queries.name, texts), queries)


def _expect_queries(queries: OwnQueries, path: Path | str = _NAME) -> OwnQueries:
    """Return ``queries``. Raise :class:`InputError` if there are none."""
    if not queries.texts:
        raise InputError("has no queries; expected at least one", path=path)
    return queries


def _read_rows(path: Path) -> Iterator[tuple[int, str | None, str]]:
    """Yield (line number, id or None, text) of every line that is not blank. The first line decides on the format.

    The lines of plain text have no ids.
    """
    is_json = first_character(path) == "{"
    has_ids: bool | None = None  # not known before the first line
    for line_number, line in raw_lines(path):
        if not line.strip():
            continue
        if is_json:
            row = unique_json_of(line, _QueryLine, path, line_number, _JSON_REMEDY)
            yield line_number, str(row.id), row.text
            continue
        fields = line.split(b"\t")
        if has_ids is None:
            has_ids = len(fields) > 1
        if has_ids:
            if len(fields) != 2:
                problem = f"expected an id, a tab and a text, as in the first line, found {len(fields)} columns"
                raise InputError(problem, path=path, line=line_number)
            yield line_number, id_of(fields[0].strip(), path, line_number), _decode(fields[1], path, line_number)
        elif len(fields) > 1:
            problem = "expected a query without a tab, because the first line is a text without an id"
            raise InputError(problem, path=path, line=line_number)
        else:
            yield line_number, None, _decode(line, path, line_number)


def _decode(content: bytes, path: Path, line_number: int) -> str:
    try:
        return content.decode().strip()
    except UnicodeDecodeError:
        raise InputError(describe_encoding(content), path=path, line=line_number) from None


def _add_query(texts: dict[str, str], query_id: str, text: str, path: Path | str, line_number: int | None) -> None:
    """Add a query to ``texts``. Raise :class:`InputError` for an id or a text that cannot be searched.

    ``path`` and ``line_number`` name the place in the error. Queries from Python have no line.
    """
    problem = ""
    if not is_unicode(query_id) or not is_unicode(text):
        problem = f"query {shown_value(query_id)}: expected texts without surrogates"
    elif query_id.split() != [query_id] or "\0" in query_id:
        problem = f"expected an id without white space, found {shown_value(query_id)}"
    elif query_id in texts:
        problem = f"the id {shown_value(query_id)} occurs twice; expected every id once"
    elif not text.strip():
        problem = f"the query {shown_value(query_id)} has no text; expected a text"
    else:
        problem = long_text_fault(text)
    if problem:
        raise InputError(problem, path=path, line=line_number)
    texts[query_id] = text
