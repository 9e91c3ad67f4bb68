"""How much there is of what steps read: of the paper's collection, as it is published, or of a release at hand."""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc

from baselines.measure.qrels import read_judgments, release_qrels
from builders.stats.paper import published
from builders.store.layout import REMOVED, base_set, set_of
from builders.store.reader import Release

_CHINESE = 3.0  # bytes of a character in UTF-8
_OTHERS = {"cmedqa": (108_000, 203_000), "ccovid": (4_900, 5_000)}  # Table 1: questions, documents
_DRAWN = re.compile(r"restrain-(\d+)(K?)-")  # a config of so many drawn training questions
_SAMPLED = 20_000  # passages whose lengths are looked at, from the beginning


@dataclass(frozen=True)
class Texts:
    """The passages of a set: how many, the characters of some of them, and the bytes of a character (UTF-8)."""

    count: int
    characters: npt.NDArray[np.int64]
    bytes_each: float

    def mean(self, most: int | None = None) -> float:
        """Characters of a passage of which the first ``most`` are read; None: all of it."""
        return float((self.characters if most is None else np.minimum(self.characters, most)).mean())


class Sizes(Protocol):
    """What :func:`baselines.cost.steps.step_cost` asks. ``name``: what it is the size of, for people."""

    name: str

    def passages(self, set_name: str) -> Texts:
        """Those that are searched."""

    def queries(self, set_name: str, split: str, config: str = "") -> int:
        """Those of a split, or of a ``config`` in the place of the set's (``train-similar``)."""

    def pairs(self, set_name: str, split: str, config: str = "") -> int:
        """The (query, positive passage) pairs of a split."""


class PaperSizes:
    """The collection of the paper's size: nothing has to be there.

    Its Tables 1 and 3, Sections 2.2 to 2.5. Of cMedQA and cCOVID-News Table 1 has rounded numbers of questions and
    documents; the test questions are taken from them, the rest is training.
    """

    name = "the paper's collection"

    def __init__(self) -> None:
        self._paper = published()

    def passages(self, set_name: str) -> Texts:
        if set_name in _OTHERS:
            found, mean = _OTHERS[set_name][1], self._paper["table3"][set_name]["chars_per_passage"]
        else:
            found, mean = (self._paper["collections"]["corpus"][key] for key in ("passages", "mean_chars"))
        return Texts(found, np.array([round(mean)]), _CHINESE)

    def queries(self, set_name: str, split: str, config: str = "") -> int:
        if config == REMOVED:
            return int(self._paper["similar"]["removed"])
        if drawn := _DRAWN.match(set_name):
            return int(drawn[1]) * (1_000 if drawn[2] else 1)
        set_name = base_set(set_name)  # all of them: a bucket left out is a small part
        if set_name in _OTHERS:
            tested = int(self._paper["table3"][set_name]["queries"])
            return tested if split == "test" else int(_OTHERS[set_name][0]) - tested
        return int(self._paper["english" if set_name == "crosslingual" else "table3"][split]["queries"])

    def pairs(self, set_name: str, split: str, config: str = "") -> int:
        table = self._paper["table3"][set_name if set_name in _OTHERS else split]
        if set_name == "main" and not config:
            return int(table["positive_passages"])
        return round(self.queries(set_name, split, config) * float(table["passages_per_query"]))


class ReleaseSizes:
    """A release at hand. Errors of its methods are those of reading it: a config that it lacks is an ``InputError``."""

    def __init__(self, release: Release) -> None:
        self._release, self.name = release, str(release.path)
        self.passages = functools.cache(self._passages)
        self.pairs = functools.cache(self._pairs)

    def _passages(self, set_name: str) -> Texts:
        config, characters, size = set_of(set_name).corpus, [], 0
        for batch in self._release.batches(config, "corpus", ["text"]):
            characters.append(pc.utf8_length(batch.column("text")).to_numpy(zero_copy_only=False).astype(np.int64))
            size += pc.sum(pc.binary_length(batch.column("text"))).as_py() or 0
            if sum(map(len, characters)) >= _SAMPLED:
                break
        every = np.concatenate(characters) if characters else np.zeros(1, np.int64)
        return Texts(self._release.rows(config, "corpus"), every, size / max(1, int(every.sum())))

    def queries(self, set_name: str, split: str, config: str = "") -> int:
        return self._release.rows(config or set_of(set_name).queries, split)

    def _pairs(self, set_name: str, split: str, config: str = "") -> int:
        if config:
            judged = read_judgments(self._release, set_of(set_name), split, config)
            return sum(score > 0 for own in judged.values() for score in own.values())
        return release_qrels(self._release, split, set_name).pairs
