"""The verb `push`: push a checkpoint to the Hugging Face hub."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from builders.core.errors import UsageError
from builders.core.hub_options import CreateRepository, DryRun, PrivateRepository, Repository
from builders.core.options import Placeholder
from builders.core.results import Report
from builders.core.verbs import verb
from builders.store.release_options import AnySplit, ReleasePath, RunPath, SetName


@verb()
def push_model(
    *,
    model: Annotated[Path, Placeholder("CKPT")],
    repo: Repository,
    create: CreateRepository = False,
    private: PrivateRepository = False,
    license: Annotated[str, Placeholder("ID")] | None = None,
    dataset: Repository | None = None,
    release: ReleasePath | None = None,
    split: AnySplit = "dev",
    set: SetName = "main",
    run: Sequence[RunPath] = (),
    dry_run: DryRun = False,
) -> Report:
    """Push a checkpoint to the Hugging Face hub, with a model card.

    One commit has the model's files, the recipe, the record of the training and its loss curve. Scripts, pickles,
    trainer states and optimizer states are never pushed. The card describes the training, the data and the use of the
    model. --dataset names the release on the hub. --run adds scores to the card, measured with the judgments of
    --release.

    If passages, queries and qrels of --release are identical to those of --dataset, the scores are also written to
    .eval_results/. The hub shows these scores on the dataset's leaderboard, whose tasks are in the dataset's eval.yaml.

    After an interruption, run the same command again: complete files are not sent again. The access token comes from
    `hf auth login` or HF_TOKEN. HF_ENDPOINT names another hub. Set HF_HUB_DISABLE_XET=1 if that hub has no xet storage.

    SentenceTransformer("ORG/NAME") or CrossEncoder("ORG/NAME") then loads the model without this project. `python -m
    baselines pull` fetches the checkpoint, and `train --start ORG/NAME` fine-tunes the model further.

    Args:
        model: checkpoint directory to push
        repo: model repository
        license: license id of the weights (default: apache-2.0 if the training used only DuReader, else other)
        dataset: release on the hub, for the card and the leaderboard
        release: release that the runs were made on, for scores on the card
        split: split of the runs
        run: runs of this model, for scores on the card

    Returns:
        The URL of the commit, as the text of the report. With ``dry_run``, the files and their sizes.

    Raises:
        InputError: the checkpoint is damaged, or the hub reports an error.

    Examples:
        python -m baselines push --model build/models/de-bm25-neg --repo ORG/NAME --dry-run
        python -m baselines push --model build/models/de-bm25-neg --repo ORG/NAME --create --private \\
          --release build/release --split dev --run build/runs/de-bm25-neg.dev.run.gz
    """
    if bool(run) != (release is not None):
        raise UsageError("--run and --release go together")
    from builders.core.hub import need_hub, report_commit, report_planned_files, upload_files

    need_hub()
    from baselines.core.checkpoint import open_checkpoint
    from baselines.hub.model_card import MeasuredSet, model_card
    from baselines.hub.published_checkpoint import NAME
    from baselines.hub.pushed_files import eval_results, score_runs, stage_files
    from builders.core.locks import temporary_folder
    from builders.store.layout import MANIFEST
    from builders.store.reader import open_release

    # Measure the runs. A damaged checkpoint is reported first.
    checkpoint = open_checkpoint(model)
    measured: list[MeasuredSet] = []
    results: dict[str, str] = {}
    if release is not None:
        release = open_release(release)
        measured = score_runs(release, split, set, run)
        if dataset:
            results = eval_results(measured, release, dataset, repo)
    # Write the card and the manifest beside the checkpoint's files, and send all files in one commit.
    with temporary_folder() as work:
        card = model_card(checkpoint, repo, measured, license, dataset)
        files = stage_files(checkpoint, card, work, results)
        if dry_run:
            return report_planned_files(files, repo)
        _, manifest_sha256 = files[MANIFEST]
        commit_url = upload_files(
            files,
            repo,
            kind="model",
            manifest=MANIFEST,
            name=NAME,
            message=f"{checkpoint.recipe.get('name', checkpoint.kind)} {manifest_sha256[:12]}",
            create=create,
            private=private,
        )
    return report_commit(commit_url)
