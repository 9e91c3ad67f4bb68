"""Options that the verbs of measurement share. This module imports no slow library, so that ``--help`` is quick."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

from builders.core.options import Help, OneOf, Placeholder, Use
from builders.store.names import QRELS_BEFORE, QUESTION_PROPERTIES
from builders.store.release_options import RunPath

TESTS = ("t", "randomisation")  # significance tests; the first is the default
TEST_RESAMPLES = 9_999  # 10,000 with the observed sample
RUN_HELP = "run: TREC, JSON, TSV or Parquet (docs/evaluate.md)"

RunPaths = Annotated[Sequence[RunPath], Use.POSITIONAL, Help(RUN_HELP)]
QrelsFile = Annotated[Path, Placeholder("FILE"), Help("TREC qrels, BEIR's TSV or an official dev.json")]
QrelsConfig = Annotated[
    str,
    Placeholder("CONFIG"),
    Help(f"config with the judgments: {QRELS_BEFORE} or resttest-bucketN (default: the set's qrels)"),
]
QuestionProperty = Annotated[str, OneOf(QUESTION_PROPERTIES)]
Ties = Annotated[
    Literal["listed", "id", "expected"],
    Help("order of equal scores: as listed in the run, by passage id, or the mean over all orders"),
]
EXPECTED_TIES = "ties=expected"  # for options that need an order of the passages
# For steps that need an order of the passages.
OrderedTies = Annotated[Literal["listed", "id"], Help("order of equal scores: as listed in the run, or by passage id")]
ChosenMeasures = Annotated[
    Sequence[str],
    Placeholder("M"),
    Help("measures for the second table, such as nDCG@20 P@5"),
]
ValuesFile = Annotated[Path, Placeholder("FILE"), Help("write the values of every query (Parquet)")]
ImageFile = Annotated[Path, Placeholder("FILE")]
