"""Keep the answers of a service text by text, so that no text is paid for twice.

A store is an SQLite file in the user's cache, in ``dureader_retrieval/endpoints``. A row has the hash of a text, the
answer's bytes and their checksum, and the text's share of the request's tokens and seconds. The answers of a request
are written in one transaction. A damaged row counts as none, and a damaged file is made anew.
"""

import contextlib
import hashlib
import math
import sqlite3
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from builders.core.errors import Unfinished, log

_KEYS_PER_QUERY = 500  # SQLite limits the parameters of a query, in old versions to 999
_KEY_BYTES = 16
_LOCK_SECONDS = 120.0  # longest wait while another command writes
_TABLE = (
    "CREATE TABLE IF NOT EXISTS answers "
    "(key BLOB PRIMARY KEY, value BLOB, checksum INTEGER, requests REAL, tokens REAL, seconds REAL)"
)


@dataclass(frozen=True)
class StoredAnswer:
    """The answer for a text.

    Attributes:
        value: the bytes of a vector or of a score.
        requests, tokens, seconds: the text's equal share of its request: one request, its tokens and its seconds,
            divided by the number of its texts. ``tokens`` is None if the service counts no tokens.
    """

    value: bytes
    requests: float
    tokens: float | None
    seconds: float


def text_key(text: str, query: str = "") -> bytes:
    """Return the key of a text, or of a text that is scored for a query. ``query`` is "" for a text without a query."""
    digest = hashlib.blake2b(digest_size=_KEY_BYTES)
    # The length tells where the query ends. surrogatepass: every string has a key, even with half of a UTF-16 pair.
    query_bytes = query.encode("utf-8", "surrogatepass")
    digest.update(f"{len(query_bytes)} ".encode())
    digest.update(query_bytes)
    digest.update(text.encode("utf-8", "surrogatepass"))
    return digest.digest()


class AnswerStore:
    """The answers of one model of a service in an SQLite file, by :func:`text_key`.

    Threads and processes may share the file. A damaged file is deleted, and an empty file replaces it.

    Args:
        path: the file, which is created if necessary.
        value_bytes: the length of every answer's ``value``. Answers of another length count as damaged.

    Raises:
        Unfinished: the file cannot be opened, read or written. A call of a method raises this error, too.
    """

    def __init__(self, path: Path, value_bytes: int) -> None:
        self._path = path
        self._value_bytes = value_bytes
        self._lock = threading.Lock()
        try:
            self._connection = self._open()
        # This subclass of DatabaseError means a lock or a missing permission. The file is not damaged, so it stays.
        except sqlite3.OperationalError as error:
            raise Unfinished(f"cannot be opened ({error})", path=path) from None
        except sqlite3.DatabaseError as error:
            self._begin_anew(error)

    def read(self, keys: Sequence[bytes]) -> dict[bytes, StoredAnswer]:
        """Return the kept answers by key. Keys without an intact answer are omitted."""
        answers = {}
        try:
            for start in range(0, len(keys), _KEYS_PER_QUERY):
                part = keys[start : start + _KEYS_PER_QUERY]
                marks = ",".join("?" * len(part))
                with self._lock:
                    rows = self._connection.execute(f"SELECT * FROM answers WHERE key IN ({marks})", part).fetchall()
                for key, value, checksum, requests, tokens, seconds in rows:
                    has_costs = _is_cost(requests) and _is_cost(seconds) and (tokens is None or _is_cost(tokens))
                    if has_costs and self._is_intact(value, checksum):
                        answers[key] = StoredAnswer(value, requests, tokens, seconds)
        except sqlite3.OperationalError as error:
            raise Unfinished(f"cannot be read ({error})", path=self._path) from None
        except (sqlite3.DatabaseError, TypeError, ValueError) as error:
            self._begin_anew(error)
            return {}
        return answers

    def write(self, keys: Sequence[bytes], values: Sequence[bytes], *, tokens: int | None, seconds: float) -> None:
        """Keep the answers of one request, in one transaction.

        Args:
            keys: the key of each text of the request, at least one.
            values: the answer's bytes for each key, in the same order.
            tokens: tokens of the whole request, or None if the service counts no tokens.
            seconds: seconds of the whole request.
        """
        share = 1 / len(keys)
        token_share = None if tokens is None else tokens * share
        rows = []
        for key, value in zip(keys, values, strict=True):
            rows.append((key, value, zlib.crc32(value), share, token_share, seconds * share))
        try:
            with self._lock, self._connection:
                self._connection.executemany("INSERT OR REPLACE INTO answers VALUES (?, ?, ?, ?, ?, ?)", rows)
        except sqlite3.DatabaseError as error:
            raise Unfinished(f"cannot be written ({error})", path=self._path) from None

    def _is_intact(self, value: object, checksum: object) -> bool:
        return isinstance(value, bytes) and len(value) == self._value_bytes and zlib.crc32(value) == checksum

    def _open(self) -> sqlite3.Connection:
        connection = sqlite3.connect(self._path, timeout=_LOCK_SECONDS, check_same_thread=False)
        try:
            # Wait for the disk less often. A failure of power may damage the file, which is then begun anew.
            connection.execute("PRAGMA synchronous = NORMAL")
            with connection:
                connection.execute(_TABLE)
            # A file with another table of this name is damaged, too.
            connection.execute("SELECT key, value, checksum, requests, tokens, seconds FROM answers LIMIT 1").fetchall()
        except BaseException:
            connection.close()
            raise
        return connection

    def _begin_anew(self, error: Exception) -> None:
        """Replace a damaged file by an empty file, with a warning."""
        log.warning("%s: damaged (%s); its texts are requested again", self._path, error)
        with self._lock:
            with contextlib.suppress(AttributeError):  # the file could not even be opened
                self._connection.close()
            for suffix in ("", "-journal"):
                Path(f"{self._path}{suffix}").unlink(missing_ok=True)
            self._connection = self._open()


def _is_cost(value: object) -> bool:
    """True if a value of the table is a finite number that is not negative. Damaged values may have any type."""
    return isinstance(value, float) and 0 <= value < math.inf


def batches_of(texts: Sequence[str], *, most_texts: int, most_characters: int) -> Iterator[list[int]]:
    """Yield the texts of each request, as their positions in ``texts``, in order.

    A request has at most ``most_texts`` texts with at most ``most_characters`` characters in all. A text that is longer
    than ``most_characters`` has a request of its own.
    """
    batch: list[int] = []
    characters = 0
    for number, text in enumerate(texts):
        if batch and (len(batch) == most_texts or characters + len(text) > most_characters):
            yield batch
            batch = []
            characters = 0
        batch.append(number)
        characters += len(text)
    if batch:
        yield batch
