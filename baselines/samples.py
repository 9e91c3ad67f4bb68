"""Samples of the collection (configs ``sample-*``): which of its rows are searched in the place of all."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.store.layout import SAMPLE, is_config
from builders.store.reader import Release

_CORPUS = "corpus"
Rows = npt.NDArray[np.int64]


def add_sample(parser: argparse.ArgumentParser) -> None:
    """``--sample``, for commands that search passages."""
    parser.add_argument(
        "--sample",
        type=_sample,
        metavar="CONFIG",
        help="among the passages of this config alone, of `builders add samples`: sample-10K (default: among all)",
    )


def _sample(text: str) -> str:
    if not (text.startswith(SAMPLE) and is_config(text)):
        raise argparse.ArgumentTypeError(f"expected sample-SIZE or sample-SIZE-hard, found {text!r}")
    return text


def sample_rows(release: Release, corpus: str, sample: str) -> Rows:
    """The rows of a corpus config that a sample lists, ascending.

    Raises :class:`InputError` for a corpus that is not the main set's, and where the release has no such sample, or the
    sample lists what the corpus lacks.
    """
    if corpus != _CORPUS:
        raise InputError(f"--sample {sample}: of the passages of the set main, not of {corpus}")
    wanted = release.table(sample, _CORPUS, ["_id"])["_id"]
    found = pc.is_in(release.table(_CORPUS, _CORPUS, ["_id"])["_id"], value_set=wanted.combine_chunks())
    rows: Rows = np.flatnonzero(found.to_numpy())
    if len(rows) != len(wanted):
        raise InputError(
            f"{sample} lists {len(wanted):,} passages, of which the corpus has {len(rows):,}; make it again",
            path=release.path,
        )
    return rows


def taken(batches: Iterable[pa.RecordBatch], rows: Rows | None) -> Iterator[pa.RecordBatch]:
    """The batches of a corpus with some of its rows (ascending) alone; all of them where None."""
    start = 0
    for batch in batches:
        if rows is None:
            yield batch
            continue
        low, high = np.searchsorted(rows, [start, start + batch.num_rows])
        if high > low:
            yield batch.take(pa.array(rows[low:high] - start))
        start += batch.num_rows
