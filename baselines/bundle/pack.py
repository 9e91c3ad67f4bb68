"""A run packed: measured, its origin found, written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import pyarrow as pa

from baselines.bundle.origin import as_json, commands_behind, environment, models_in, plain, recipes_of
from baselines.bundle.packed import (
    ENVIRONMENT,
    MADE_BY,
    PER_QUERY,
    PREDICTIONS,
    RUN,
    MadeBy,
    Reference,
    Values,
    write_bundle,
)
from baselines.measure.evaluate import evaluate
from baselines.measure.qrels import release_qrels
from builders.common.command import InputError, log
from builders.common.files import check_file, read_whole, sha256_of
from builders.common.lines import first_character
from builders.store.reader import open_release
from builders.store.runs import read_run

_NOT_VALUES = ("run", "query_id", "positives", "first_positive_rank")


def pack(run: Path, release: Path, measured_by: tuple[str, str, str, str], models: Sequence[Path], out: Path) -> str:
    """Write the bundle of a run; returns its SHA-256.

    Args:
        run: the run.
        release: the release that it was run on.
        measured_by: the set, the split, and the configs of queries and judgments in the place of the set's.
        models: checkpoints that it was made by, beside those that stamps of `reproduce` name.
        out: the bundle.

    Raises:
        InputError: the run cannot be measured; a model has no recipe.
    """
    check_file(out)
    for model in models:
        if not recipes_of([model]):
            raise InputError("not a checkpoint (no recipe.json); `python -m baselines train` makes one", path=model)
    opened = open_release(release)
    set_name, split, queries, qrels = measured_by
    result, by_query = evaluate(read_run(run), release_qrels(opened, split, set_name, queries, qrels))
    commands = commands_behind(run)
    content = {
        PREDICTIONS if first_character(run) == "{" else RUN: read_whole(run),
        PER_QUERY: b"".join(msgspec.json.encode(each) + b"\n" for each in values_of(by_query)),
        MADE_BY: as_json(MadeBy([plain(words, run.resolve().parent) for words in commands])),
        ENVIRONMENT: as_json(environment()),
        **recipes_of([*models_in(commands), *models]),
    }
    if not commands and not models:
        log.warning("%s: nothing says how it was made: no stamp of `reproduce` beside it, no --model", run)
    about = {
        "run": run.name,
        "reference": Reference(set_name, split, queries, qrels),
        "queries": result["queries"],
        "figures": {**result["official"], **result["ir_measures"]},
        "release": {"/".join(each): opened.fingerprint(*each) for each in opened.splits()},
    }
    write_bundle(out, about, content)
    log.info("%s: %d files", out, len(content) + 1)
    return sha256_of(out)


def values_of(by_query: pa.Table) -> list[Values]:
    """A table of :func:`baselines.measure.evaluate.evaluate`, query by query."""
    names = [
        field.name for field in by_query.schema if field.name not in _NOT_VALUES and pa.types.is_floating(field.type)
    ]
    return [
        Values(row["query_id"], {name: row[name] for name in names}, row["positives"], row["first_positive_rank"])
        for row in by_query.to_pylist()
    ]
