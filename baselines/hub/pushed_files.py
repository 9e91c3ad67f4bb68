"""The files that `push` sends to the hub: the checkpoint, its card, its manifest, and scores for the leaderboard."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.core.checkpoint import CARD, Checkpoint
from baselines.hub.model_card import MeasuredSet
from baselines.hub.published_checkpoint import CheckpointManifest, PublishedFile
from baselines.measure.measures import PAPER, measure_run
from baselines.measure.qrels import release_qrels
from baselines.measure.run_origin import warn_of_origins
from builders.core.errors import InputError, log
from builders.core.hub import as_yaml, clear_errors, commit_in
from builders.core.read_files import sha256_of
from builders.core.redaction import without_credentials
from builders.core.write_files import write_text
from builders.store.benchmark_tasks import task_id
from builders.store.layout import MANIFEST, SETS
from builders.store.manifest import EVAL, read_manifest
from builders.store.reader import Release
from builders.store.runs import Run, read_run

RESULTS = ".eval_results"


def score_runs(release: Release, split: str, set_name: str, runs: Sequence[Run | Path]) -> list[MeasuredSet]:
    """Measure each run of a split. Return its scores, with the facts about the release that the card states."""
    qrels = release_qrels(release, split, set_name)
    corpus = SETS[set_name].corpus
    passage_count = release.rows(corpus, "corpus")
    fingerprint = release.fingerprint(corpus, "corpus")
    measured = []
    opened_runs = [read_run(run) for run in runs]
    warn_of_origins(opened_runs, qrels, release, set_name=set_name, split=split)
    for run in opened_runs:
        means, _ = measure_run(run, qrels)
        measured.append(
            MeasuredSet(
                run=run.path.name,
                set=set_name,
                split=split,
                queries=means["queries"],
                passages=passage_count,
                fingerprint=fingerprint,
                values=means["official"],
            )
        )
    return measured


def stage_files(
    checkpoint: Checkpoint, card: str, work_folder: Path, results: Mapping[str, str]
) -> dict[str, tuple[Path, str]]:
    """Return the files to push, {path in the repository: (file, SHA-256)}. New files are written into ``work_folder``.

    ``card`` is the text of the card. ``results`` has the leaderboard's files, {path in the repository: text}. Raises
    :class:`InputError` if the checkpoint has a link, or a file with the manifest's name.
    """
    names, skipped_names = checkpoint.files()
    if skipped_names:
        skipped_entries = sorted({name.split("/")[0] for name in skipped_names})
        log.info("skipped, not needed on the hub: %s", ", ".join(skipped_entries))
    if MANIFEST in names:
        raise InputError(f"has a {MANIFEST}, which push writes itself; remove this file", path=checkpoint.path)
    # The card replaces the checkpoint's own card.
    write_text(work_folder / CARD, card)
    paths = {name: checkpoint.path / name for name in names}
    paths[CARD] = work_folder / CARD
    entries = [PublishedFile(name, path.stat().st_size, sha256_of(path)) for name, path in sorted(paths.items())]
    files = {entry.path: (paths[entry.path], entry.sha256) for entry in entries}
    manifest = CheckpointManifest(entries, [{"path": name} for name in sorted(results)])
    # The manifest lists all other files, so it is written last.
    written_texts = dict(results)
    written_texts[MANIFEST] = manifest.text()
    for name, text in written_texts.items():
        write_text(work_folder / name, text)
        files[name] = (work_folder / name, sha256_of(work_folder / name))
    return files


def eval_results(measured: Sequence[MeasuredSet], release: Release, dataset: str, repo: str) -> dict[str, str]:
    """Return the files of ``.eval_results/``, one file for each run: {path in the repository: YAML}.

    ``dataset`` is the release's ORG/NAME on the hub, and ``repo`` the model's.

    The hub shows these scores on the dataset's leaderboard. The files are therefore written only if the passages,
    queries and judgments of ``release`` and ``dataset`` are identical. Otherwise a warning gives the reason. The format
    is huggingface_hub's EvalResultEntry (github.com/huggingface/hub-docs, eval_results.yaml).

    Raises:
        InputError: the dataset does not exist, the hub refuses, or two runs have the same name.
    """
    from huggingface_hub import EvalResultEntry, HfApi, eval_result_entries_to_yaml

    api = HfApi()
    with clear_errors(dataset, api.endpoint, "dataset", "download"):
        commit = commit_in(api.repo_info(dataset, repo_type="dataset"), dataset)
        difference = _first_difference(measured, release, dataset, commit)
    if difference:
        log.warning("%s: %s; %s is not written", dataset, difference, RESULTS)
        return {}
    files: dict[str, str] = {}
    for run in measured:
        entries = []
        for measure, official_name in PAPER.items():
            entry = EvalResultEntry(
                dataset_id=dataset,
                task_id=task_id(run.set, run.split, measure),
                value=round(100 * run.values[official_name], 4),
                dataset_revision=commit,
                source_url=f"{without_credentials(api.endpoint)}/{repo}",
                source_name="Model card",
                notes=run.run,
            )
            entries.append(entry)
        # The file is named after the run. Characters that some systems refuse in file names are replaced, and the name
        # may not begin with a dot.
        name = re.sub(r"[^\w.-]+", "_", run.run).removesuffix(".gz").lstrip(".") or "run"
        path = f"{RESULTS}/{name}.yaml"
        if path in files:
            raise InputError(f"two runs would both be written to {path}; rename one of them")
        files[path] = as_yaml(eval_result_entries_to_yaml(entries))
    return files


def _first_difference(measured: Sequence[MeasuredSet], release: Release, dataset: str, commit: str) -> str:
    """Describe the first difference between ``release`` and ``dataset`` at ``commit``.

    Return "" if the data of all measured runs are identical. The fingerprints in the manifests are compared.
    """
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        # The leaderboard needs this file, whose content does not matter here.
        hf_hub_download(dataset, EVAL, repo_type="dataset", revision=commit)
        manifest_path = Path(hf_hub_download(dataset, MANIFEST, repo_type="dataset", revision=commit))
        published_release = Release(manifest_path.parent, read_manifest(manifest_path))
    except EntryNotFoundError:
        return f"has no {EVAL} or no {MANIFEST}; `python -m builders publish` writes both"
    except InputError as error:
        return str(error)
    # Only the splits that the runs were measured on must be identical.
    for run in measured:
        configs = SETS[run.set]
        for config, split in ((configs.corpus, "corpus"), (configs.queries, run.split), (configs.qrels, run.split)):
            is_published = (config, split) in published_release.splits()
            if not is_published or release.fingerprint(config, split) != published_release.fingerprint(config, split):
                return f"differs from {release.path} in {config}/{split}"
    return ""
