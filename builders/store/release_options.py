"""Options that verbs of both programs share, because they read or write a release."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeAlias

from builders.core.options import Between, Help, OneOf, OrObject, Placeholder
from builders.store.names import QUESTION_CONFIGS, SET_NAMES

if TYPE_CHECKING:
    from builders.store.own_queries import OwnQueries
    from builders.store.reader import Release
    from builders.store.runs import Run

    QueriesFile: TypeAlias = OwnQueries | Path
    ReleasePath: TypeAlias = Release | Path
    RunPath: TypeAlias = Run | Path
else:  # the classes are imported only when a call passes an object
    ReleasePath = Annotated[
        Path, OrObject("builders.store.reader:Release"), Placeholder("DIR"), Help("release directory")
    ]
    QueriesFile = Annotated[
        Path,
        OrObject(
            "builders.store.own_queries:OwnQueries",
            "builders.store.own_queries:convert_queries",
            "a dictionary query id -> text",
        ),
        Placeholder("F"),
        Help("search by these queries, not by a split's: JSON lines (_id, text), TSV (id, text), or a text per line"),
    ]
    RunPath = Annotated[
        Path,
        OrObject("builders.store.runs:Run", "builders.store.run_objects:convert_run", "a dictionary or a data frame"),
        Placeholder("RUN"),
    ]

NewRelease = Annotated[Path, Placeholder("DIR"), Help("release directory to write")]
# The seven sets of perturbed questions (`builders add stress`) would fill the help of many verbs.
_SETS_SUMMARY = ", ".join([*(name for name in SET_NAMES if not name.startswith("stress-")), "stress-KIND"])
AnySplit = Annotated[str, Placeholder("SPLIT"), Help("split of the queries")]
MainSplit = Annotated[Literal["train", "dev", "test"], Help("split of the queries")]
SetName = Annotated[str, OneOf(SET_NAMES, _SETS_SUMMARY), Help("set of the release")]
QuestionConfig = Annotated[
    str,
    OneOf(QUESTION_CONFIGS),
    Placeholder("CONFIG"),
    Help("use only the questions of this config (default: all)"),
]
SampleConfig = Annotated[
    str,
    Placeholder("CONFIG"),
    Help("search only this sample of `builders add samples`, for example sample-10K (default: all passages)"),
]
Seed = Annotated[int, Between(low=0), Placeholder("N")]
