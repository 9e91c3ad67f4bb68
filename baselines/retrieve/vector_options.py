"""Options for stored embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from builders.core.options import OrObject, Placeholder

if TYPE_CHECKING:
    from baselines.retrieve.index_files import VectorIndex

    EmbeddingsPath: TypeAlias = VectorIndex | Path
else:
    EmbeddingsPath = Annotated[Path, OrObject("baselines.retrieve.index_files:VectorIndex"), Placeholder("DIR")]
