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
from collections.abc import Mapping
from pathlib import Path

from baselines.hub.card import model_card
from baselines.hub.checkpoint import CARD, Checkpoint, open_checkpoint
from baselines.hub.manifest import NAME, Manifest, Result, listed
from baselines.hub.results import eval_results
from baselines.hub.sections import Measured
from baselines.runs.evaluate import evaluate
from baselines.runs.qrels import release_qrels
from baselines.runs.sets import add_set
from builders.core.errors import InputError, log
from builders.core.files import sha256_of, write_text
from builders.core.hub import add_repository, need_hub, repo_name, upload
from builders.core.locks import temporary_folder
from builders.store.layout import MANIFEST, SETS
from builders.store.reader import Release, open_release
from builders.store.runs import read_run


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
    """The runs' measures, each with what it was measured on."""
    qrels = release_qrels(release, split, set_name)
    corpus = SETS[set_name].corpus
    found = []
    for path in runs:
        means, _ = evaluate(read_run(path), qrels)
        found.append(
            Measured(
                run=path.name,
                set=set_name,
                split=split,
                queries=means["queries"],
                passages=release.rows(corpus, "corpus"),
                fingerprint=release.fingerprint(corpus, "corpus"),
                values=means["official"],
            )
        )
    return found


def stage(checkpoint: Checkpoint, card: str, work: Path, results: Mapping[str, str]) -> dict[str, tuple[Path, str]]:
    """What is pushed: path in the repository -> (file, SHA-256). New in ``work``: card, ``results``, manifest."""
    pushed, left = checkpoint.files()
    if left:
        log.info("not pushed: %s", ", ".join(sorted({name.split("/")[0] for name in left})))
    write_text(work / CARD, card)
    paths = {name: checkpoint.path / name for name in pushed} | {CARD: work / CARD}
    if MANIFEST in pushed:
        raise InputError(f"holds a {MANIFEST}, which push writes itself; remove it", path=checkpoint.path)
    entries = [listed(name, path) for name, path in sorted(paths.items())]
    digests = {entry.path: entry.sha256 for entry in entries}
    write_text(work / MANIFEST, Manifest(entries, [Result(name) for name in sorted(results)]).text())
    for name, text in results.items():
        write_text(work / name, text)
    for name in (MANIFEST, *results):
        paths[name], digests[name] = work / name, sha256_of(work / name)
    return {name: (path, digests[name]) for name, path in paths.items()}
