"""Push a checkpoint to the Hugging Face hub, with a model card.

It is pushed in one commit. What goes there is what loading the model needs, the recipe, the record of the training and
its loss curve. Scripts, pickles, trainer and optimizer states never leave. The card says how the model was made and on
which data (--dataset names the release, where that is on the hub, too), how to use it, and, for runs that are named
here, how it does: they are measured against the release's judgments on the way. Where the release is what --dataset
holds on the hub, byte for byte, their figures go to .eval_results/, too, from where the hub takes them for the
dataset's leaderboard (its eval.yaml names the tasks). Run again after an interruption: what the hub has received is not
sent again. The token is that of `hf auth login`, or HF_TOKEN; HF_ENDPOINT names another hub (HF_HUB_DISABLE_XET=1 where
that has no xet storage).

Then SentenceTransformer("ORG/NAME") or CrossEncoder("ORG/NAME") loads it with no code of this project, and
`python -m baselines pull` or `train --start ORG/NAME` goes on from it.

example:
  python -m baselines push --model build/models/de-bm25-neg --repo ORG/NAME --create --private \\
      --release build/release --split dev --run build/runs/de-bm25-neg.dev.run.gz
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from baselines.card import Measured, model_card
from baselines.checkpoint import CARD, Checkpoint, open_checkpoint
from baselines.hub.pull import NAME, File, Manifest
from baselines.measure.evaluate import evaluate
from baselines.measure.measures import PAPER
from baselines.measure.qrels import add_set, release_qrels
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, temporary_folder, write_text
from builders.core.hub import add_repository, as_yaml, clear_errors, commit_in, need_hub, repo_name, upload
from builders.store.layout import MANIFEST, SETS, task_id
from builders.store.manifest import EVAL, read_manifest
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

RESULTS = ".eval_results"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", type=Path, required=True, metavar="CKPT", help="the checkpoint directory")
    add_repository(parser, "model")
    parser.add_argument("--license", metavar="ID", help="the weights', in the hub's words (default: as the data's)")
    parser.add_argument(
        "--dataset",
        type=repo_name,
        metavar="ORG/NAME",
        help="its release on the hub, for the card and the leaderboard",
    )
    measured = parser.add_argument_group("measures for the card")
    measured.add_argument("--release", type=Path, metavar="DIR", help="the release that the runs were made on")
    measured.add_argument("--split", default="dev", help="the release's split (default: dev)")
    add_set(parser)
    measured.add_argument("--run", type=Path, nargs="+", default=[], metavar="RUN", help="runs of this model")
    parser.set_defaults(usage_error=parser.error)


def run(args: argparse.Namespace) -> None:
    if bool(args.run) != bool(args.release):
        args.usage_error("--run and --release come together")
    need_hub()
    checkpoint = open_checkpoint(args.model)
    measured, results = list[Measured](), dict[str, str]()
    if args.run:
        release = open_release(args.release)
        measured = measure(release, args.split, args.set, args.run)
        results = eval_results(measured, release, args.dataset, args.repo) if args.dataset else {}
    with temporary_folder() as work:
        card = model_card(checkpoint, args.repo, measured, args.license, args.dataset)
        files = stage(checkpoint, card, work, results)
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
    """Return the runs' measures, each with what it was measured on."""
    qrels, corpus = release_qrels(release, split, set_name), SETS[set_name].corpus
    passages, fingerprint = release.rows(corpus, "corpus"), release.fingerprint(corpus, "corpus")
    means = [evaluate(read_run(path), qrels)[0] for path in runs]
    return [
        Measured(path.name, set_name, split, found["queries"], passages, fingerprint, found["official"])
        for path, found in zip(runs, means, strict=True)
    ]


def stage(checkpoint: Checkpoint, card: str, work: Path, results: Mapping[str, str]) -> dict[str, tuple[Path, str]]:
    """Return what is pushed: path in the repository -> (file, SHA-256). Card, results and manifest are in ``work``."""
    pushed, left = checkpoint.files()
    if left:
        log.info("not pushed: %s", ", ".join(sorted({name.split("/")[0] for name in left})))
    if MANIFEST in pushed:
        raise InputError(f"holds a {MANIFEST}, which push writes itself; remove it", path=checkpoint.path)
    write_text(work / CARD, card)
    paths = {name: checkpoint.path / name for name in pushed} | {CARD: work / CARD}
    files = [File(name, path.stat().st_size, sha256_of(path)) for name, path in sorted(paths.items())]
    texts = {**results, MANIFEST: Manifest(files, [{"path": name} for name in sorted(results)]).text()}
    for name, text in texts.items():
        write_text(work / name, text)
    staged = {file.path: (paths[file.path], file.sha256) for file in files}
    return staged | {name: (work / name, sha256_of(work / name)) for name in texts}


def eval_results(measured: Sequence[Measured], release: Release, dataset: str, repo: str) -> dict[str, str]:
    """Return the files of ``.eval_results/`` with their YAML, one a run: figures on the tasks of a benchmark.

    The hub gathers them on the dataset's leaderboard. So they are written only where the passages, queries and
    judgments that the runs were measured on are, byte for byte, the dataset's; else a warning says why there are none.
    The format: huggingface_hub's EvalResultEntry; github.com/huggingface/hub-docs, eval_results.yaml.

    Raises:
        InputError: there is no such dataset, or the hub refuses.
    """
    from huggingface_hub import EvalResultEntry, HfApi, eval_result_entries_to_yaml

    api = HfApi()
    with clear_errors(dataset, api.endpoint, "dataset", "download"):
        commit = commit_in(api.repo_info(dataset, repo_type="dataset"), dataset)
        why = _difference(measured, release, dataset, commit)
    if why:
        log.warning("%s: %s; no %s are written", dataset, why, RESULTS)
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
            raise InputError(f"two runs would both be {path}; give one of them another name")
        files[path] = as_yaml(eval_result_entries_to_yaml(entries))
    return files


def _difference(measured: Sequence[Measured], release: Release, dataset: str, commit: str) -> str:
    """Say why figures on ``release`` are none of the dataset's tasks; empty where they are."""
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import EntryNotFoundError

    try:
        _, path = (hf_hub_download(dataset, n, repo_type="dataset", revision=commit) for n in (EVAL, MANIFEST))
        theirs = Release(Path(path).parent, read_manifest(Path(path)))
    except EntryNotFoundError:
        return f"has no {EVAL}, or no {MANIFEST}: `python -m builders publish` writes them"
    except InputError as error:
        return str(error)
    for run in measured:
        found = SETS[run.set]
        for split in ((found.corpus, "corpus"), (found.queries, run.split), (found.qrels, run.split)):
            if split not in theirs.splits() or release.fingerprint(*split) != theirs.fingerprint(*split):
                return f"has other bytes than {release.path} in {'/'.join(split)}"
    return ""
