"""``.eval_results/`` of a model on the hub: its figures on the tasks of a dataset that is registered as a benchmark.

The hub gathers them on the dataset's leaderboard. So they are written only of runs on what that dataset holds: the
passages, queries and judgments of the release that they were measured on have to be, byte for byte, the dataset's.
The format: huggingface_hub's EvalResultEntry; github.com/huggingface/hub-docs, eval_results.yaml.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from baselines.hub.fetch import commit_of
from baselines.hub.sections import Measured
from baselines.runs.measures import PAPER
from builders.core.errors import InputError, log
from builders.core.hub import as_yaml, clear_errors
from builders.core.locks import temporary_folder
from builders.store.layout import MANIFEST, SETS
from builders.store.manifest import read_manifest
from builders.store.reader import Release
from builders.store.tasks import EVAL, Task

FOLDER = ".eval_results"


def eval_results(measured: Sequence[Measured], release: Release, dataset: str, repo: str) -> dict[str, str]:
    """File in the repository -> its YAML, one a run; none, and a warning, where the hub's dataset is another release.

    Args:
        measured: runs on ``release``.
        release: what they were measured on.
        dataset: ORG/NAME of the dataset on the hub.
        repo: ORG/NAME of the model, which the entries link to.

    Raises:
        InputError: there is no such dataset, or the hub refuses.
    """
    from huggingface_hub import EvalResultEntry, HfApi, eval_result_entries_to_yaml

    commit = commit_of(dataset, "main", "dataset")
    why = _difference(measured, release, dataset, commit)
    if why:
        log.warning("%s: %s; no %s are written", dataset, why, FOLDER)
        return {}
    files: dict[str, str] = {}
    for run in measured:
        entries = [
            EvalResultEntry(
                dataset_id=dataset,
                task_id=Task(run.set, run.split, measure).id,
                value=round(100 * run.values[official], 4),
                dataset_revision=commit,
                source_url=f"{HfApi().endpoint}/{repo}",
                source_name="Model card",
                notes=run.run,
            )
            for measure, official in PAPER.items()
        ]
        name = re.sub(r"[^\w.-]+", "_", run.run).removesuffix(".gz").lstrip(".") or "run"
        path = f"{FOLDER}/{name}.yaml"
        if path in files:
            raise InputError(f"two runs would both be {path}; give one of them another name")
        files[path] = as_yaml(eval_result_entries_to_yaml(entries))
    return files


def _difference(measured: Sequence[Measured], release: Release, dataset: str, commit: str) -> str:
    """Why figures on ``release`` are none of the dataset's tasks; empty where they are."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import EntryNotFoundError

    api = HfApi()
    with temporary_folder() as folder, clear_errors(dataset, api.endpoint, "dataset", "download"):
        try:
            for name in (EVAL, MANIFEST):
                api.hf_hub_download(dataset, name, repo_type="dataset", revision=commit, local_dir=folder)
            theirs = Release(Path(folder), read_manifest(Path(folder) / MANIFEST))
        except EntryNotFoundError:
            return f"has no {EVAL}, or no {MANIFEST}: `python -m builders publish` writes them"
        except InputError as error:
            return str(error)
    for run in measured:
        found = SETS[run.set]
        for config, split in ((found.corpus, "corpus"), (found.queries, run.split), (found.qrels, run.split)):
            if (config, split) not in theirs.splits() or not _same(release, theirs, config, split):
                return f"has other bytes than {release.path} in {config}/{split}"
    return ""


def _same(ours: Release, theirs: Release, config: str, split: str) -> bool:
    return ours.fingerprint(config, split) == theirs.fingerprint(config, split)
