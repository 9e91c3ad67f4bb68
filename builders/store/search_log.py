"""The log of searches by programs and agents, one JSON object a line. :mod:`.logged_runs` reads a log as a run.

`show --serve --log FILE` appends a line for each call. A search has these fields:

    {"call": "search", "time": "2026-11-28T19:00:00Z", "system": "BM25", "query": "手机进水怎么办", "top_k": 2,
     "passage_ids": ["a", "b"], "scores": [3.5, 1.25]}

The other calls are "passage" (with ``passage_id``), and any call that failed (with ``error``). They are no searches.
"""

import datetime
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from builders.core.errors import InputError
from builders.core.paths import check_place
from builders.core.read_files import open_text
from builders.core.typed import Count, json_of

_FIRST_BYTES = 1 << 16  # a log is recognised by its first line, which has fewer bytes


class LoggedCall(msgspec.Struct):
    """A line of a log. A search that succeeded has every field but ``error``.

    Other fields of a line, such as ``passage_id``, are not read.
    """

    call: Literal["search", "passage"]
    time: str
    system: str = ""
    query: str | None = None
    top_k: Count = 0
    passage_ids: list[str] | None = None
    scores: list[float] | None = None
    error: str = ""


class SearchLog:
    """A log that threads append calls to.

    Args:
        path: the file, which may have earlier calls.

    Raises:
        InputError: the file cannot be written, or is not a log.
    """

    def __init__(self, path: Path) -> None:
        check_place(path)
        if path.exists() and path.stat().st_size and not is_search_log(path):
            raise InputError("is not a log of searches; expected a new file or an earlier log", path=path)
        self.path = path
        self._lock = threading.Lock()

    def append(self, call: str, values: Mapping[str, Any]) -> None:
        """Append a call (``search`` or ``passage``) with the present time (UTC).

        ``values`` are the other fields of the line. They have no lone surrogates, which the file cannot hold.
        """
        now = datetime.datetime.now(datetime.UTC)
        line = {"call": call, "time": now.strftime("%Y-%m-%dT%H:%M:%SZ"), **values}
        # The file is opened for each call, so that it may be moved away while the page is served.
        with self._lock, open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(line, ensure_ascii=False) + "\n")


def is_search_log(path: Path) -> bool:
    """True if the first line of a file, gzipped or not, is a call of a log."""
    with open_text(path) as file:
        first_line = file.read(_FIRST_BYTES).partition(b"\n")[0]
    if not first_line.startswith(b'{"call"'):
        return False
    try:
        json_of(first_line, LoggedCall, path)
    except InputError:
        return False
    return True


def one_line(text: str) -> str:
    """Return a text as one line with single spaces. Lone surrogates, which UTF-8 cannot encode, become "?"."""
    return " ".join(text.encode("utf-8", "replace").decode().split())
