"""Options of `export`: the formats, and the sets that can be exported."""

from typing import Annotated

from builders.core.options import Help, Parsed, Placeholder
from builders.store.names import SET_NAMES

EXPORT_FORMATS = (
    "beir",
    "trec",
    "msmarco",
    "tevatron",
    "flagembedding",
    "triplets",
    "pylate",
    "sentence-transformers",
    "official",
    "rag",
)


def set_name(text: str) -> str:
    """Check the name of a set or of a drawn training set. Raise ValueError with the expected names for another text."""
    from builders.store.layout import DRAWN, SETS, is_config  # imports pyarrow

    if text in SETS or (text.startswith(DRAWN) and is_config(text)):
        return text
    drawn_names = "restrain-SIZE-interpolation, restrain-SIZE-extrapolation, resttest-bucketNUMBER"
    raise ValueError(f"one of {', '.join(SETS)}, {drawn_names}")


ExportedSet = Annotated[
    str,
    Parsed(set_name),
    Placeholder("SET"),
    Help(f"set to export: {', '.join(SET_NAMES)} or a drawn training set"),
]
