"""The verb `pull`: pull a checkpoint from the Hugging Face hub."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from builders.core.errors import log
from builders.core.hub_options import Repository
from builders.core.options import Placeholder, Use
from builders.core.verbs import verb

if TYPE_CHECKING:
    from baselines.core.checkpoint import WrittenCheckpoint


@verb(resumes=True)
def pull_model(
    repo: Annotated[Repository, Use.POSITIONAL],
    *,
    out: Annotated[Path, Placeholder("DIR")],
    revision: str = "main",
) -> "WrittenCheckpoint":
    """Pull a checkpoint from the Hugging Face hub; verify every file.

    Every file is compared with the manifest that `push` wrote. The directory appears when it is complete. After an
    interruption, run the same command again: complete files are not fetched again. Scripts and pickles are never
    fetched. The hub has no optimizer state, so `train --start DIR` starts a new training from the weights. The access
    token comes from `hf auth login` or HF_TOKEN. HF_ENDPOINT names another hub.

    Args:
        repo: model repository
        out: checkpoint directory to write
        revision: branch, tag or commit

    Returns:
        The checkpoint.

    Raises:
        InputError: the hub refuses, `push` did not make the checkpoint, or a file differs from its manifest.

    Examples:
        python -m baselines pull ORG/NAME --out build/models/de-bm25-neg
    """
    from builders.core.hub import clear_errors, commit_in, need_hub

    need_hub()
    from huggingface_hub import HfApi

    from baselines.core.checkpoint import RECIPE, WrittenCheckpoint, open_checkpoint
    from baselines.hub.published_checkpoint import fetch_checkpoint
    from builders.core.folders import check_output, replace_directory, work_beside
    from builders.core.results import Report

    directory = check_output(out, "a checkpoint", RECIPE)
    api = HfApi()
    # A branch may move during the download, so its commit is fetched.
    with clear_errors(repo, api.endpoint, "model", "download"):
        commit = commit_in(api.repo_info(repo, revision=revision), repo)
    log.info("%s at %s", repo, commit)
    # The folder may have files of this commit from an earlier run.
    with work_beside(directory, commit) as folder:
        fetch_checkpoint(repo, commit, folder)
        open_checkpoint(folder)  # raises an error for a damaged checkpoint
        replace_directory(folder, directory)
    return WrittenCheckpoint(out, Report(value={"checkpoint": str(out)}, text=str(out)))
