"""The verb `publish`: publish a release as a dataset of the Hugging Face hub."""

from collections.abc import Sequence
from typing import Annotated

from builders.check.check_options import AcceptedTests
from builders.core.hub_options import CreateRepository, DryRun, PrivateRepository, Repository
from builders.core.options import Parsed, Placeholder
from builders.core.results import Report
from builders.core.verbs import verb
from builders.publish.publish_options import SplitScores, read_split_scores
from builders.store.release_options import ReleasePath


@verb()
def publish_release(
    release: ReleasePath,
    *,
    repo: Repository,
    create: CreateRepository = False,
    private: PrivateRepository = False,
    scores: Annotated[Sequence[SplitScores], Parsed(read_split_scores), Placeholder("SPLIT=FILE")] = (),
    framework: Annotated[str, Placeholder("ID")] = "",
    accept: AcceptedTests = (),
    dry_run: DryRun = False,
) -> Report:
    """Publish a release as a dataset of the Hugging Face hub.

    The release must pass `check`. It must not contain .py files, .lock files, or files that its manifest does not list.
    All files are published in one commit, which also deletes the files of an earlier release that the new release
    lacks. Readers therefore see either the old or the new release. After an interruption, run the command again;
    uploaded files are not sent twice. The token comes from `hf auth login` or HF_TOKEN. HF_ENDPOINT selects another
    hub. Set HF_HUB_DISABLE_XET=1 if that hub has no xet storage.

    The command also publishes an English and a Chinese card (README.md, README.zh.md) with an example row, histograms,
    limitations, evaluation commands and scores. --scores reads the scores from the output of `python -m baselines
    evaluate --format json`. The file eval.yaml registers the dataset as a benchmark, with a task for each measure of
    each judged dev and test split. Each publication rewrites cards, histograms and eval.yaml.

    Args:
        release: release directory to publish
        repo: dataset repository
        scores: output of `evaluate --format json` for a split (dev, cmedqa_test ...) to show on the card
        framework: evaluation_framework in eval.yaml (default: no framework)

    Returns:
        The URL of the commit, as the text of the report. With ``dry_run``, the files and their sizes.

    Raises:
        InputError: the release fails a test or contains unlisted files, or the hub reports an error.

    Examples:
        python -m builders publish --release build/sample --repo ORG/NAME --dry-run
        python -m builders publish --release build/sample --repo ORG/NAME --create --private
        python -m builders publish --release DIR --repo ORG/NAME --scores dev=dev.json
    """
    from builders.core.hub import need_hub

    need_hub()
    from builders.publish.upload import upload_release
    from builders.store.reader import open_release

    return upload_release(
        open_release(release),
        repo=repo,
        create=create,
        private=private,
        scores=scores,
        framework=framework,
        accepted_tests=frozenset(accept),
        dry_run=dry_run,
    )
