"""A checkpoint on the Hugging Face hub: its manifest, and the download of its files."""

import glob
import json
import shutil
from pathlib import Path
from typing import Literal

import msgspec
from msgspec import Struct

from baselines.core.checkpoint import CARD, belongs_to_model
from builders.core.errors import InputError
from builders.core.hub import OTHER_HUB, clear_errors
from builders.core.read_files import sha256_of
from builders.core.typed import Count, Sha256, read_json
from builders.store.layout import MANIFEST

NAME: Literal["dureader_retrieval checkpoint"] = "dureader_retrieval checkpoint"


class PublishedFile(Struct, frozen=True):
    """A file's path in the repository, its size, and its SHA-256 in lower-case hex."""

    path: str
    bytes: Count
    sha256: Sha256

    def __post_init__(self) -> None:
        if not belongs_to_model(self.path) and self.path != CARD:
            raise ValueError(f"its manifest names {self.path}, which is no file of a checkpoint")


class CheckpointManifest(Struct, frozen=True):
    """The manifest of a checkpoint on the hub. It lists all other files.

    ``results`` lists the files of ``.eval_results``, which are never pulled. The next push replaces these files.
    """

    files: list[PublishedFile]
    results: list[dict[str, str]] = []
    name: Literal["dureader_retrieval checkpoint"] = NAME
    format: Literal[1] = 1

    def text(self) -> str:
        """Return the content of the manifest's file."""
        return json.dumps(msgspec.to_builtins(self), ensure_ascii=False, indent=1) + "\n"


def fetch_checkpoint(repo: str, commit: str, target_folder: Path) -> None:
    """Fetch the files that the manifest of a commit lists into a folder, except files that are already complete.

    ``repo`` is ORG/NAME. The folder gets neither the manifest nor the library's records of the download.

    After a broken connection, the download of a file resumes. After a restart, an incomplete file is fetched from its
    beginning, because huggingface_hub 2 keeps no incomplete files. Raises :class:`InputError` if the hub refuses, if
    `push` did not make the checkpoint, or if a file differs from the manifest.
    """
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    advice = f"other models load by name: SentenceTransformer({repo!r}){OTHER_HUB}"
    with clear_errors(repo, api.endpoint, "model", "download"):
        try:
            manifest_path = Path(api.hf_hub_download(repo, MANIFEST, revision=commit, local_dir=target_folder))
            files = read_json(manifest_path, CheckpointManifest).files
        except (EntryNotFoundError, InputError) as error:
            reason = error if isinstance(error, InputError) else f"no {MANIFEST}"
            raise InputError(f"{repo} is no checkpoint that `push` made ({reason}); {advice}") from None
        # Escaped, so that no name matches other files as a pattern.
        patterns = [glob.escape(file.path) for file in files]
        snapshot_download(repo, revision=commit, allow_patterns=patterns, local_dir=target_folder)
    # Every file is compared with the manifest, also files of an earlier call.
    for file in files:
        if not (target_folder / file.path).is_file():
            raise InputError(f"{repo} is no checkpoint that `push` made ({file.path} is missing); {advice}")
        if sha256_of(target_folder / file.path) != file.sha256:
            raise InputError(f"{repo}: {file.path} differs from its manifest; run the same command again{OTHER_HUB}")
    # Only the files of the checkpoint stay.
    shutil.rmtree(target_folder / ".cache", ignore_errors=True)  # the library's download records
    (target_folder / MANIFEST).unlink()
