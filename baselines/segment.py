"""Chinese text into the tokens that BM25 counts.

The words of jieba's default mode, with its hidden Markov model for words outside its dictionary, as
``builders.segment`` cuts them; lower-cased; tokens without a letter, digit or Chinese character dropped. Queries and
passages go through the same function.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from builders.command import InputError
from builders.segment import segmenter_version, words

_RULE = 1  # raise it when tokens() changes: indexes built from other tokens are then built anew


def segmenter() -> str:
    """Name and version of what :func:`tokens` does; part of an index's key."""
    return f"{segmenter_version()} tokens {_RULE}"


def tokens(text: str) -> list[str]:
    """The tokens of one text, in order. They hold no blanks."""
    found = (token.lower() for token in words(text))
    return [token for token in found if any(map(str.isalnum, token))]


def _segment(texts: list[str]) -> list[str]:
    return [" ".join(tokens(text)) for text in texts]


def _start_worker() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle, once
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        parent.join()  # a killed parent would leave its workers waiting for ever
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def segment_batches(batches: Iterable[tuple[Any, list[str]]], workers: int) -> Iterator[tuple[Any, list[str]]]:
    """(key, texts) batches into (key, token strings), in the same order; tokens are joined by one space.

    ``workers`` processes at most; no more than a few batches a worker are held at a time. The result does not depend
    on ``workers``. Raises :class:`InputError` where a worker process dies.
    """
    if workers <= 1:
        for key, texts in batches:
            yield key, _segment(texts)
        return
    # spawn: a fork of a process with threads (pyarrow's, tantivy's) may hang.
    context = multiprocessing.get_context("spawn")
    waiting: deque[tuple[Any, Future[list[str]]]] = deque()
    try:
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as pool:
            try:
                for key, texts in batches:
                    waiting.append((key, pool.submit(_segment, texts)))
                    if len(waiting) > 4 * workers:
                        done, future = waiting.popleft()
                        yield done, future.result()
                while waiting:
                    done, future = waiting.popleft()
                    yield done, future.result()
            finally:
                pool.shutdown(wait=True, cancel_futures=True)
    except BrokenProcessPool as error:
        raise InputError("a segmentation process was killed (out of memory?); fewer --threads need less") from error
