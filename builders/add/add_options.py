"""Options that several steps of `add` share. This module imports no slow library, so that ``--help`` is quick."""

import numbers
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from builders.core.options import AtLeastOne, Help, NotNegativeInt, OneOf, Parsed, Placeholder
from builders.sources.encoding import CHOICES

_UNITS = {"K": 1_000, "M": 1_000_000}


def parse_size(size: str | int) -> int:
    """Return a number of queries or passages, for example 14,000 for ``14K``, or 1,000,000 for ``1M``.

    Raises ValueError, whose message is the expected form, for a wrong size or a size below 1.
    """
    expected = "a number of at least 1, for example 500, 14K or 1M"
    digits = str(size)  # a call from Python may pass an integer
    unit_size = _UNITS.get(digits[-1:].upper(), 1)
    if unit_size > 1:
        digits = digits[:-1]
    try:
        item_count = int(digits) * unit_size
    except ValueError:
        raise ValueError(expected) from None
    if item_count < 1:
        raise ValueError(expected)
    return item_count


SetSize = Annotated[int, Parsed(parse_size, accepts=(str, numbers.Integral)), Placeholder("N")]
SourcePaths = Annotated[Sequence[Path], Placeholder("PATH"), Help("source files, .gz, .zip and folders")]
Encoding = Annotated[str, OneOf(CHOICES), Help("encoding of the source files (auto: detected)")]
TestSize = Annotated[AtLeastOne, Placeholder("N")]
DrawSeed = Annotated[NotNegativeInt, Placeholder("N"), Help("seed of the draw")]
Embeddings = Annotated[
    Sequence[Path],
    Placeholder("PATH"),
    Help("vectors of all training and test queries: directories of `baselines encode --queries`, or .parquet files"),
]
ExtendedRelease = Annotated[Path, Placeholder("DIR"), Help("new release (may be --release)")]
