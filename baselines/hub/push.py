"""Push a checkpoint to the Hugging Face hub, with a model card.

One commit has the model's files, the recipe, the record of the training and its loss curve. Scripts, pickles, trainer
states and optimizer states are never pushed. The card describes the training, the data and the use of the model.
--dataset names the release on the hub. --run adds scores to the card, measured with the judgments of --release.

If passages, queries and qrels of --release are identical to those of --dataset, the scores are also written to
.eval_results/. The hub shows these scores on the dataset's leaderboard, whose tasks are in the dataset's eval.yaml.

After an interruption, run the same command again: complete files are not sent again. The access token comes from `hf
auth login` or HF_TOKEN. HF_ENDPOINT names another hub. Set HF_HUB_DISABLE_XET=1 if that hub has no xet storage.

SentenceTransformer("ORG/NAME") or CrossEncoder("ORG/NAME") then loads the model without this project. `python -m
baselines pull` fetches the checkpoint, and `train --start ORG/NAME` fine-tunes the model further.

example:
  python -m baselines push --model build/models/de-bm25-neg --repo ORG/NAME --create --private \\
      --release build/release --split dev --run build/runs/de-bm25-neg.dev.run.gz
"""

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.core.checkpoint import CARD, Checkpoint, open_checkpoint
from baselines.hub.model_card import Measured, model_card
from baselines.hub.pull import NAME, File, Manifest
from baselines.measure.measures import PAPER, measure_run
from baselines.measure.qrels import add_set, release_qrels
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, temporary_folder, write_text
from builders.core.hub import add_repository, as_yaml, clear_errors, commit_in, need_hub, repo_name, upload
from builders.store.benchmark_tasks import task_id
from builders.store.layout import MANIFEST, SETS
from builders.store.manifest import EVAL, read_manifest
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

RESULTS = ".eval_results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="CKPT", help="checkpoint directory to push")
    add_repository(parser, "model")
    parser.add_argument(
        "--license",
        metavar="ID",
        help="license id of the weights (default: apache-2.0 if the training used only DuReader, else other)",
    )
    parser.add_argument(
        "--dataset",
        type=repo_name,
        metavar="ORG/NAME",
        help="release on the hub, for the card and the leaderboard",
    )
    measured = parser.add_argument_group("scores for the card")
    measured.add_argument("--release", type=Path, metavar="DIR", help="release that the runs were made on")
    measured.add_argument("--split", default="dev", help="split of the runs (default: dev)")
    add_set(parser)
    measured.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN", help="runs of this model")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if bool(args.run) != bool(args.release):
        args.usage_error("--run and --release go together")
    need_hub()
    checkpoint = open_checkpoint(args.model)
    measured, results = list[Measured](), dict[str, str]()
    if args.run:
        release = open_release(args.release)
        measured = measure(release, args.split, args.set, args.run)
        results = eval_results(measured, release, args.dataset, args.repo) if args.dataset else {}
    with temporary_folder() as work:
        files = stage(
            checkpoint, model_card(checkpoint, args.repo, measured, args.license, args.dataset), work, results
        )
        print(
            upload(
                files,
                args.repo,
                kind="model",
                manifest=MANIFEST,
                name=NAME,
                message=f"{checkpoint.recipe.get('name', checkpoint.kind)} {files[MANIFEST][1][:12]}",
                create=args.create,
                private=args.private,
            )
        )


def measure(release: Release, split: str, set_name: str, runs: list[Path]) -> list[Measured]:
    """Return the scores of each run, with the facts about the release that the card states."""
    qrels, corpus = release_qrels(release, split, set_name), SETS[set_name].corpus
    passages, fingerprint = release.rows(corpus, "corpus"), release.fingerprint(corpus, "corpus")
    means = [measure_run(read_run(path), qrels)[0] for path in runs]
    return [
        Measured(path.name, set_name, split, found["queries"], passages, fingerprint, found["official"])
        for path, found in zip(runs, means, strict=True)
    ]


def stage(checkpoint: Checkpoint, card: str, work: Path, results: Mapping[str, str]) -> dict[str, tuple[Path, str]]:
    """Return the files to push, {path in the repository: (file, SHA-256)}. New files are written into ``work``."""
    pushed, left = checkpoint.files()
    if left:
        log.info("skipped, not needed on the hub: %s", ", ".join(sorted({name.split("/")[0] for name in left})))
    if MANIFEST in pushed:
        raise InputError(f"has a {MANIFEST}, which push writes itself; remove this file", path=checkpoint.path)
    write_text(work / CARD, card)
    paths = {name: checkpoint.path / name for name in pushed} | {CARD: work / CARD}
    files = [File(name, path.stat().st_size, sha256_of(path)) for name, path in sorted(paths.items())]
    texts = {**results, MANIFEST: Manifest(files, [{"path": name} for name in sorted(results)]).text()}
    for name, text in texts.items():
        write_text(work / name, text)
    return {
        **{file.path: (paths[file.path], file.sha256) for file in files},
        **{name: (work / name, sha256_of(work / name)) for name in texts},
    }


def eval_results(measured: Sequence[Measured], release: Release, dataset: str, repo: str) -> dict[str, str]:
    """Return the files of ``.eval_results/`` with their YAML, one file for each run.

    The hub shows these scores on the dataset's leaderboard. The files are therefore written only if the passages,
    queries and judgments of ``release`` and ``dataset`` are identical. Otherwise a warning gives the reason. The format
    is huggingface_hub's EvalResultEntry (github.com/huggingface/hub-docs, eval_results.yaml).

    Raises:
        InputError: the dataset does not exist, or the hub refuses.
    """
    from huggingface_hub import EvalResultEntry, HfApi, eval_result_entries_to_yaml

    api = HfApi()
    with clear_errors(dataset, api.endpoint, "dataset", "download"):
        commit = commit_in(api.repo_info(dataset, repo_type="dataset"), dataset)
        why = _difference(measured, release, dataset, commit)
    if why:
        log.warning("%s: %s; %s is not written", dataset, why, RESULTS)
        return {}
    files: dict[str, str] = {}
    for run in measured:
        entries = [
            EvalResultEntry(
                dataset_id=dataset,
                task_id=task_id(run.set, run.split, measure),
                value=round(100 * run.values[official], 4),
                dataset_revision=commit,
                source_url=f"{api.endpoint}/{repo}",
                source_name="Model card",
                notes=run.run,
            )
            for measure, official in PAPER.items()
        ]
        name = re.sub(r"[^\w.-]+", "_", run.run).removesuffix(".gz").lstrip(".") or "run"
        path = f"{RESULTS}/{name}.yaml"
        if path in files:
            raise InputError(f"two runs would both be written to {path}; rename one of them")
        files[path] = as_yaml(eval_result_entries_to_yaml(entries))
    return files


def _difference(measured: Sequence[Measured], release: Release, dataset: str, commit: str) -> str:
    """Describe the first difference between ``release`` and ``dataset``; empty if the measured data are identical."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        _, path = (hf_hub_download(dataset, n, repo_type="dataset", revision=commit) for n in (EVAL, MANIFEST))
        theirs = Release(Path(path).parent, read_manifest(Path(path)))
    except EntryNotFoundError:
        return f"has no {EVAL} or no {MANIFEST}; `python -m builders publish` writes both"
    except InputError as error:
        return str(error)
    for run in measured:
        found = SETS[run.set]
        for split in ((found.corpus, "corpus"), (found.queries, run.split), (found.qrels, run.split)):
            if split not in theirs.splits() or release.fingerprint(*split) != theirs.fingerprint(*split):
                return f"differs from {release.path} in {'/'.join(split)}"
    return ""
