"""Imported by the process that workers are forked from: loads what every one of them would load for itself.

That is modules and, from numba's cache, the compiled loops: they are called once, on a row of nothing.
"""

import contextlib
import ctypes
import importlib
import sys
import tempfile
from pathlib import Path

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    # Each block takes as much memory as the last: given back and asked for again, it costs a tenth of the time.
    for _parameter, _bytes in ((-3, 128 << 20), (-1, 256 << 20)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        ctypes.CDLL(None).mallopt(_parameter, _bytes)


def load() -> None:
    """Build two shards of one row in a folder that is then removed."""
    for module in ("builders.release.write", "builders.release.build"):
        importlib.import_module(module)
    from builders.release.label import build_shard
    from builders.release.options import Options
    from builders.sources.files import Source
    from builders.sources.lines import Block

    # With its words: which segmenter there is, and whether one is needed, is not known here.
    document = b'{"paragraphs": ["a"], "segmented_paragraphs": [["a"]]}'
    row = (
        b'{"question_id": 0, "question": "?", "documents": [%s], "answers": ["a"], "segmented_answers": [["a"]]}'
        % document
    )
    with tempfile.TemporaryDirectory() as folder:
        # Characters and words are arrays of different kinds, so the loops are compiled for each.
        for unit in ("char", "word"):
            build_shard(Block(0, Source(Path(), None, ""), 0, len(row), row), Options(unit=unit), Path(folder))


# An error here would end the process that all workers come from; in a worker it is told as every other is.
with contextlib.suppress(Exception):
    load()
