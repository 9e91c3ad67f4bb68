"""What a training is asked for, checked before any large library is loaded: what, on what, from what, and where to."""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.models.libraries import model_commit
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, SCRATCH, Recipe, names, read_recipe
from baselines.train.start import weights_sha256
from builders.common.command import InputError
from builders.common.files import real_path, sha256_of
from builders.store.layout import SETS
from builders.store.reader import Release, open_release


@dataclass(frozen=True)
class Order:
    """A training that is asked for.

    Attributes:
        negatives: the file of hard negatives; None where the recipe wants none, or those of the release.
        dev_run: a run of the dev queries, whose top a cross-encoder re-ranks in between; None: it does not.
        start: ``scratch``, a directory, or a name on the hub.
        device: auto, cpu or cuda.
        resume: go on from earlier states, and leave a finished checkpoint.
        cache: where unpacked collections are kept; None: where all commands keep them.
        rank, world: this process among all of the training (torchrun's; 0 of 1 without it).
    """

    recipe: Recipe
    release: Release
    negatives: Path | None
    dev_run: Path | None
    start: str
    out: Path
    device: str
    resume: bool
    cache: Path | None
    rank: int
    world: int

    @property
    def first(self) -> bool:
        """Whether this is the process that evaluates and writes."""
        return self.rank == 0

    @property
    def about(self) -> dict[str, Any]:
        """What the training depends on, without paths of this machine: equal where it may be taken up again.

        The run of ``dev_run`` is not in it: no weight depends on it.

        Raises :class:`InputError` where the release lacks the recipe's split, and as :attr:`commit` does.
        """
        return {**self.about_but_commit, "start_commit": self.commit}

    @functools.cached_property
    def about_but_commit(self) -> dict[str, Any]:
        """:attr:`about` without ``start_commit``: what can be said without a hub."""
        configs, data, start = SETS[self.recipe.data.set], self.recipe.data, Path(self.start)
        read = [(configs.corpus, "corpus")]
        if self.recipe.model.kind != "mlm":
            read += [(configs.queries, data.split), (configs.qrels, data.split)]
            if data.negatives == FROM_RELEASE and data.negatives_per_positive and not self.negatives:
                read.append((configs.joined[data.split], data.split))
        return {
            "recipe": self.recipe.resolved(),
            "start": start.name if start.is_dir() else self.start,
            "start_sha256": weights_sha256(start) if start.is_dir() else None,
            "data": {f"{config}/{split}": self.release.fingerprint(config, split) for config, split in read},
            "negatives_sha256": sha256_of(self.negatives) if self.negatives else None,
        }

    @functools.cached_property
    def commit(self) -> str | None:
        """The commit of a start on the hub; None for any other. Raises :class:`InputError` where none can be had."""
        if self.start == SCRATCH:
            return None
        scratch = f"{self.recipe.name}-scratch"
        otherwise = "--start DIR" + f", or the recipe {scratch}, needs no hub" * (scratch in names())
        return model_commit(self.start, self.recipe.model.revision, otherwise)


def read_order(args: argparse.Namespace) -> Order:
    """The options of `train`, checked. Raises :class:`InputError` for what is missing, or does not fit."""
    recipe = read_recipe(args.recipe, args.set)
    return Order(
        recipe=recipe,
        release=open_release(args.release),
        negatives=_negatives(args.negatives, recipe),
        dev_run=_dev_run(args.dev_run, recipe),
        start=_start(args.start, recipe, args.out),
        out=real_path(args.out),
        device=args.device,
        resume=not args.no_resume,
        cache=args.cache,
        rank=int(os.environ.get("RANK", 0)),
        world=int(os.environ.get("WORLD_SIZE", 1)),
    )


def _negatives(given: Path | None, recipe: Recipe) -> Path | None:
    if recipe.model.kind == "mlm" or not recipe.data.negatives_per_positive:
        return None
    if not given and recipe.data.negatives == FROM_RELEASE:
        return None
    path = given or (Path(recipe.data.negatives) if recipe.data.negatives else None)
    if path is None:
        raise InputError(
            f"the recipe {recipe.name} wants {recipe.data.negatives_per_positive} hard negatives a positive: "
            "--negatives F, made by `python -m baselines mine`; --set data.negatives=release takes those of the "
            "official data; --set data.negatives_per_positive=0 trains without"
        )
    if not path.is_file():
        raise InputError("no such file of hard negatives; `python -m baselines mine` makes one", path=path)
    return path


def _dev_run(given: Path | None, recipe: Recipe) -> Path | None:
    if given and recipe.model.kind != "cross":
        raise InputError("--dev-run: for a cross-encoder's training; a dual-encoder ranks a sample of the collection")
    if given and not given.is_file():
        raise InputError("no such run of the dev queries", path=given)
    return given


def _start(given: str | None, recipe: Recipe, out: Path) -> str:
    start = given or recipe.model.start
    if start == SCRATCH:
        return start
    if start.startswith(FROM_RECIPE):
        name = start.removeprefix(FROM_RECIPE)
        folder = out.parent / name
        if not folder.is_dir():
            raise InputError(
                f"no checkpoint of {name}, from which {recipe.name} starts; train it, or give --start DIR", path=folder
            )
        return str(folder)
    return start
