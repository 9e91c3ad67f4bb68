"""Options for stored embeddings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeAlias

from builders.core.options import OrObject, Shown

if TYPE_CHECKING:
    from baselines.retrieve.index_files import Index

    EmbeddingsPath: TypeAlias = Index | Path
else:
    EmbeddingsPath = Annotated[Path, OrObject("baselines.retrieve.index_files:Index"), Shown("DIR")]
