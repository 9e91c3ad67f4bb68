"""A release of one sample: its passages with their texts, and the queries whose positives are all in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.common.command import InputError, progress
from builders.store.draft import check_release_output, draft_release
from builders.store.layout import SETS
from builders.store.manifest import read_stats
from builders.store.reader import Release
from builders.store.table3 import LengthCounter

_CORPUS = "corpus"
_FIGURES = ("table3", "positives_per_query", "english")  # by split; they are those of the same queries


def write_extract(release: Release, name: str, out: Path) -> dict[str, Any]:
    """Write a release with the passages of a sample and the splits that it was made for; returns what it holds.

    The training questions are left out: their positives are not in a sample. Raises :class:`InputError` where the
    release has no such sample, or lists passages that are not there.
    """
    check_release_output(out)
    wanted = release.table(name, _CORPUS, ["_id"])["_id"].combine_chunks()
    stats = read_stats(release.path)
    if name not in stats.get("samples", {}):
        raise InputError(f"has no figures of {name} in stats.json; make the samples again", path=release.path)
    splits = stats["samples"][name]["split"]
    build = {"verb": "samples", "options": {"extract": name, "split": splits}, "sources": []}
    with draft_release(out, build) as draft:
        draft.stats |= {key: {s: v for s, v in stats.get(key, {}).items() if s in splits} for key in _FIGURES}
        writer, lengths = draft.writer(_CORPUS, _CORPUS), LengthCounter()
        with progress(total=release.rows(_CORPUS, _CORPUS), unit="passage", label="extract") as bar:
            for batch in release.batches(_CORPUS, _CORPUS):
                found = batch.filter(pc.is_in(batch["_id"], wanted))
                writer.write(pa.Table.from_batches([found]))
                lengths.add(pc.utf8_length(found["text"]).to_numpy(zero_copy_only=False))
                bar.update(batch.num_rows)
        if writer.rows != len(wanted):
            raise InputError(
                f"{name} lists {len(wanted):,} passages, of which the corpus has {writer.rows:,}; make it again",
                path=release.path,
            )
        draft.stats["collections"] = {_CORPUS: lengths.summary()}
        kept = [(config, split) for config, split in release.splits() if split in splits and config in _kept(release)]
        for config, split in kept:
            table = release.table(config, split)
            if "corpus-id" in table.column_names:  # pairs that people refuted need not be in the sample
                table = table.filter(pc.is_in(table["corpus-id"], wanted))
            draft.write(config, split, [table])
    return {"passages": len(wanted), "splits": splits}


def _kept(release: Release) -> set[str]:
    """The configs that a sample of the main set's passages is enough for."""
    main, english = SETS["main"], SETS["crosslingual"]
    kept = {main.queries, main.qrels, *main.joined.values(), english.queries, *english.joined.values()}
    return kept & {config for config, _ in release.splits()}
