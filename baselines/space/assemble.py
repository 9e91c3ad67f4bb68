"""A folder to push as a Hugging Face Space: the card, the code, the release and the models."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from baselines.reproduce import SAMPLE
from builders.core.errors import InputError, log
from builders.core.folders import new_directory
from builders.store.reader import open_release

_HERE = Path(__file__).resolve().parent
_CHECKOUT = _HERE.parents[1]
_TOP = ("README.md", "requirements.txt", "search_page.py")  # the last starts the page, and tells such a folder


def assemble(args: argparse.Namespace) -> None:
    """Write ``--assemble DIR``; an earlier such folder is replaced. Models on the hub stay there.

    Raises :class:`InputError` for other sets and splits than the page starts with, and for models on the hub, which
    the Space's variables name.
    """
    if (args.set, args.split) != ("main", "dev"):
        raise InputError("--assemble: a Space shows the set main and its split dev")
    named = {"model": args.model, "reranker": args.reranker}
    folders = {name: Path(path) for name, path in named.items() if path}
    for name, path in folders.items():
        if not path.is_dir():
            raise InputError(f"--{name}: expected a folder; of a model on the hub, set SPACE_{name.upper()}", path=path)
    if args.release != SAMPLE:
        release = open_release(args.release)
        for entry in release.manifest.files:
            release.file(entry)  # raises: it is damaged
        folders["release"] = release.path
    if args.passages:
        folders["passages"] = args.passages
    with new_directory(args.assemble, "a Space of this project", _TOP[-1]) as new:
        for name in _TOP:
            shutil.copyfile(_HERE / name, new / name)
        for name in ("builders", "baselines"):
            shutil.copytree(_CHECKOUT / name, new / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name, path in folders.items():
            shutil.copytree(path, new / name)
    log.info("%s: push it with `hf upload OWNER/NAME %s --repo-type space`", args.assemble, args.assemble)
