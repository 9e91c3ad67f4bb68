"""A folder of official parameters, read and held against its configuration: which model it is, its numbers by name."""

from __future__ import annotations

import fnmatch
import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from baselines.convert.ernie import (
    Config,
    Name,
    encoder_names,
    output_names,
    pooler_names,
    read_config,
    read_vocabulary,
)
from baselines.convert.parameters import Floats, parameter_files, read_parameter
from builders.core.errors import InputError, log
from builders.core.files import sha256_of
from builders.core.progress import progress

QUERY, PASSAGE = "query_", "titlepara_"  # what the names of the dual-encoder's two encoders begin with
# The heads of ERNIE's pre-training, what Adam keeps beside each parameter, and the counters of Paddle's optimizers.
_NO_PART = re.compile(
    rf"(?:{QUERY}|{PASSAGE})?(?:mask_lm|next_sent)_.+|.+_(?:moment[12]|beta[12]_pow_acc)_\d+|learning_rate_\d+"
    r"|@LR_DECAY_COUNTER@|loss_scaling_\d+|num_(?:good|bad)_steps_\d+"
)
Kind = Literal["dual", "cross", "encoder"]


@dataclass(frozen=True)
class Official:
    """A model's parts, each transformers' names with numbers of the files' shapes, and what they were read from.

    ``parts``: ``query`` and ``document`` of a dual-encoder; else ``model``, whose pooler is there where the folder has
    one. ``sources``: the SHA-256 of each input.
    """

    kind: Kind
    config: Config
    vocabulary: dict[str, int]
    parts: dict[str, dict[str, Floats]]
    sources: dict[str, str]


def read_official(folder: Path, config: Path, vocabulary: Path, leave_out: Sequence[str] = ()) -> Official:
    """Read a folder of parameters with its configuration and vocabulary.

    ``leave_out``: shell patterns of files that are no parameters.

    Raises:
        InputError: a file is missing, damaged, of another shape than the configuration says, or no part of the model.
    """
    files = parameter_files(folder)
    ernie = read_config(config)
    tokens = read_vocabulary(vocabulary, ernie.vocab_size)
    left = {n for n in files if _NO_PART.fullmatch(n) or any(fnmatch.fnmatchcase(n, each) for each in leave_out)}
    kind, parts = _parts(ernie, files.keys() - left)
    if kind == "dual":
        left |= files.keys() & {name.paddle for name in pooler_names(ernie)}  # the twin's: its vector is [CLS] itself
    wanted = {name.paddle for names in parts.values() for name in names}
    if missing := sorted(wanted - files.keys()):
        raise InputError(f"{_listed(missing)} missing, of {len(wanted)} parameters of a {kind}", path=folder)
    if surplus := sorted(files.keys() - wanted - left):
        raise InputError(f"{_listed(surplus)} no part of a {kind} (--leave-out passes over files)", path=folder)
    if left:
        log.info("left out, as no part of the model: %s", ", ".join(sorted(left)))
    digests: dict[str, str] = {}
    with progress(total=len(wanted), unit="file", label="parameters") as bar:
        read: dict[str, dict[str, Floats]] = {}
        for part, names in parts.items():
            read[part] = {}
            for name in names:
                read[part][name.torch] = _values(files[name.paddle], name, digests)
                bar.update()
    listed = "".join(f"{digests[name]}  {name}\n" for name in sorted(digests))
    sources = {
        "parameters": hashlib.sha256(listed.encode()).hexdigest(),
        "configuration": sha256_of(config),
        "vocabulary": sha256_of(vocabulary),
    }
    return Official(kind, ernie, tokens, read, sources)


def _parts(config: Config, names: Iterable[str]) -> tuple[Kind, dict[str, list[Name]]]:
    """Which model a folder with such names holds, and the names of its parts' parameters."""
    there = set(names)
    if any(name.startswith((QUERY, PASSAGE)) for name in there):
        towers = {"query": QUERY, "document": PASSAGE}
        return "dual", {part: list(encoder_names(config, prefix)) for part, prefix in towers.items()}
    encoder, pooler, outputs = list(encoder_names(config, "")), list(pooler_names(config)), list(output_names(config))
    if there & {name.paddle for name in outputs}:
        return "cross", {"model": [*encoder, *pooler, *outputs]}
    return "encoder", {"model": [*encoder, *pooler] if there & {name.paddle for name in pooler} else encoder}


def _values(path: Path, name: Name, digests: dict[str, str]) -> Floats:
    """One parameter in PyTorch's order; its file's SHA-256 goes into ``digests``."""
    found = read_parameter(path)
    if found.values.shape != name.shape:
        raise InputError(
            f"has the shape {list(found.values.shape)}; the configuration says {list(name.shape)}", path=path
        )
    digests[name.paddle] = found.sha256
    return found.values.T if name.weight else found.values


def _listed(names: Sequence[str]) -> str:
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more + (" are" if len(names) > 1 else " is")
