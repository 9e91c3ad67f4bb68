"""Imported by the process that workers are forked from: loads what every one of them would load for itself.

That is modules and, from numba's cache, the compiled loops: they are called once, on a row of nothing.
"""

import contextlib
import ctypes
import sys
import tempfile
from pathlib import Path

import builders.pieces
import builders.release  # noqa: F401
from builders.blocks import Block
from builders.options import Options
from builders.shards import build_shard
from builders.sources import Source

if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "mallopt"):
    # Each block takes as much memory as the last: given back and asked for again, it costs a tenth of the time.
    for _parameter, _bytes in ((-3, 128 << 20), (-1, 256 << 20)):  # M_MMAP_THRESHOLD, M_TRIM_THRESHOLD
        ctypes.CDLL(None).mallopt(_parameter, _bytes)

# With its words: which segmenter there is, and whether one is needed, is not known here.
_DOCUMENT = b'{"paragraphs": ["a"], "segmented_paragraphs": [["a"]]}'
_ROW = (
    b'{"question_id": 0, "question": "?", "documents": [%s], "answers": ["a"], "segmented_answers": [["a"]]}'
    % _DOCUMENT
)

# An error here would end the process that all workers come from; in a worker it is told as every other is.
with contextlib.suppress(Exception), tempfile.TemporaryDirectory() as _folder:
    # Characters and words are arrays of different kinds, so the loops are compiled for each.
    for _unit in ("char", "word"):
        _block = Block(0, Source(Path(), None, ""), 0, len(_ROW), _ROW)
        build_shard(_block, Options(unit=_unit), Path(_folder))
