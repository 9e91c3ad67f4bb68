"""What a training is asked for, checked before any large library is loaded: what, on what, from what, and where to."""

from __future__ import annotations

import argparse
import functools
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.retrieve.hub_models import model_commit
from baselines.train.question_pairs import PairFile, pair_file
from baselines.train.recipe import FROM_RECIPE, FROM_RELEASE, MADE, PAIRS, WORDS, Recipe, names, read_recipe
from baselines.train.start import weights_sha256
from builders.core.errors import InputError
from builders.core.files import real_path, sha256_of
from builders.store.layout import REMOVED, SETS, base_set, set_of
from builders.store.reader import Release, open_release


@dataclass(frozen=True)
class Order:
    """A training that is asked for.

    Attributes:
        release: None where the recipe learns from ``pairs``.
        pairs, dev_pairs: files of labelled pairs of questions, to train and to measure on; empty with a release.
        negatives: the files of hard negatives; none where the recipe wants none, or those of the release.
        dev_run: a run of the dev queries, whose top a cross-encoder re-ranks in between; None: it does not.
        start: ``scratch``, ``words``, a directory, or a name on the hub.
        device: auto, cpu or cuda.
        resume: go on from earlier states, and leave a finished checkpoint.
        cache: where unpacked collections are kept; None: where all commands keep them.
        rank, world: this process among all of the training (torchrun's; 0 of 1 without it).
    """

    recipe: Recipe
    release: Release | None
    pairs: tuple[PairFile, ...]
    dev_pairs: tuple[PairFile, ...]
    negatives: tuple[Path, ...]
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
        start, negatives = Path(self.start), [sha256_of(path) for path in self.negatives]
        return {
            "recipe": self.recipe.resolved(),
            "start": start.name if start.is_dir() else self.start,
            "start_sha256": weights_sha256(start) if start.is_dir() else None,
            "data": self._pairs_read() if self.release is None else self._splits_read(self.release),
            "negatives_sha256": negatives if len(negatives) > 1 else next(iter(negatives), None),
        }

    def _splits_read(self, release: Release) -> dict[str, str]:
        """The fingerprint of each split that is learned from."""
        configs, data = set_of(self.recipe.data.set), self.recipe.data
        read = [(configs.corpus, "corpus")]
        if self.recipe.model.kind != "mlm":
            read += [(configs.queries, data.split), (configs.qrels, data.split)]
            if data.negatives == FROM_RELEASE and data.negatives_per_positive and not self.negatives:
                read.append((SETS[base_set(data.set)].joined[data.split], data.split))
            if data.similar:
                read.append((REMOVED, data.split))
        return {f"{config}/{split}": release.fingerprint(config, split) for config, split in read}

    def _pairs_read(self) -> dict[str, str]:
        """The SHA-256 of each file of pairs. Two may have one name: they are numbered."""
        return {
            f"{use} {number}: {':'.join([file.path.name, *([','.join(file.columns)] if file.columns else [])])}": (
                sha256_of(file.path)
            )
            for use, files in (("pairs", self.pairs), ("dev pairs", self.dev_pairs))
            for number, file in enumerate(files, 1)
        }

    @functools.cached_property
    def commit(self) -> str | None:
        """The commit of a start on the hub; None for any other. Raises :class:`InputError` where none can be had."""
        if self.start in MADE:
            return None
        scratch = f"{self.recipe.name}-scratch"
        otherwise = "--start DIR" + f", or the recipe {scratch}, needs no hub" * (scratch in names())
        return model_commit(self.start, self.recipe.model.revision, otherwise)


def read_order(args: argparse.Namespace) -> Order:
    """The options of `train`, checked. Raises :class:`InputError` for what is missing, or does not fit."""
    recipe = read_recipe(args.recipe, args.set)
    _check_source(args, recipe)
    return Order(
        recipe=recipe,
        release=open_release(args.release) if args.release else None,
        pairs=tuple(map(pair_file, args.pairs)),
        dev_pairs=tuple(map(pair_file, args.dev_pairs)),
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


def _check_source(args: argparse.Namespace, recipe: Recipe) -> None:
    """Raise :class:`InputError` where the options are not of what the recipe learns from."""
    if recipe.data.source == PAIRS:
        if not args.pairs:
            raise InputError(f"the recipe {recipe.name} learns from labelled pairs of questions: --pairs FILE...")
        for option in ("release", "negatives", "dev_run"):
            if getattr(args, option):
                raise InputError(f"--{option.replace('_', '-')}: the recipe {recipe.name} learns from --pairs alone")
        if (start := args.start or recipe.model.start) in MADE:
            raise InputError(f"start {start}: its vocabulary comes from the passages of a release; train mlm-scratch")
    elif args.pairs or args.dev_pairs:
        raise InputError(f"--pairs and --dev-pairs: the recipe {recipe.name} learns from a release")
    elif not args.release:
        raise InputError(f"the recipe {recipe.name} learns from a release: --release DIR")


def _negatives(given: list[Path], recipe: Recipe) -> tuple[Path, ...]:
    data = recipe.data
    if recipe.model.kind == "mlm" or data.source == PAIRS or not data.negatives_per_positive:
        return ()
    if not given and data.negatives == FROM_RELEASE:
        return ()
    paths = given or ([Path(data.negatives)] if data.negatives else [])
    if not paths:
        raise InputError(
            f"the recipe {recipe.name} wants {data.negatives_per_positive} hard negatives a positive: "
            "--negatives F, made by `python -m baselines mine`; --set data.negatives=release takes those of the "
            "official data; --set data.negatives_per_positive=0 trains without"
        )
    for path in paths:
        if not path.is_file():
            raise InputError("no such file of hard negatives; `python -m baselines mine` makes one", path=path)
    return tuple(paths)


def _dev_run(given: Path | None, recipe: Recipe) -> Path | None:
    if given and recipe.model.kind != "cross":
        raise InputError("--dev-run: for a cross-encoder's training; a dual-encoder ranks a sample of the collection")
    if given and not given.is_file():
        raise InputError("no such run of the dev queries", path=given)
    return given


def _start(given: str | None, recipe: Recipe, out: Path) -> str:
    start = given or recipe.model.start
    if start == WORDS and recipe.model.kind != "dual":
        raise InputError(f"start words: vectors of words are a dual-encoder's; the recipe {recipe.name} trains another")
    if start in MADE:
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
