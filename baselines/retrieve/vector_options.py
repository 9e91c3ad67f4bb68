"""Options for stored embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from builders.core.options import OrObject, Shown

if TYPE_CHECKING:
    from baselines.retrieve.vector_index import Index

    EmbeddingsPath: TypeAlias = Index | Path
else:
    EmbeddingsPath = Annotated[Path, OrObject("baselines.retrieve.vector_index:Index"), Shown("DIR")]
