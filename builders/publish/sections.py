"""What a published card shows of the release itself, and of systems on it: a row as an example, a table of scores.

Both are tables and JSON, the same in the English card and in the Chinese one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from builders.check.paper import published
from builders.core.errors import InputError
from builders.core.tables import as_code, as_text
from builders.core.typed import read_json
from builders.store.card_head import Configs, shown_config
from builders.store.card_words import is_official
from builders.store.layout import JOINED, SETS, schema_of
from builders.store.manifest import Build
from builders.store.reader import Release
from builders.store.tasks import MEASURES, part_id, parts_of

_CUT = 60  # characters of a text
_KEYS = {"MRR@10": "MRR@10", "Recall@1": "recall@1", "Recall@50": "recall@50"}  # the official script's


def example(release: Release, configs: Configs) -> str:
    """The first row of the joined rows that has an answer, cut short, as JSON in a code block."""
    config = shown_config(configs)
    split = next(iter(configs[config]))
    rows = (row for batch in release.batches(config, split, rows=64) for row in batch.to_pylist())
    if set(JOINED.names) <= set(schema_of(config).names):
        rows = (row for row in rows if row["positive_passages"])
    row = next(rows, None)
    if row is None:
        return ""
    shown = json.dumps(_cut(row), ensure_ascii=False, indent=1)
    return f"`{config}`, {split}:\n\n```json\n{_fenced(shown)}\n```\n"


def _cut(value: Any) -> Any:
    """Texts at their first characters, lists at their first element."""
    if isinstance(value, str):
        return value if len(value) <= _CUT else f"{value[:_CUT]}…"
    if isinstance(value, list):
        return [_cut(each) for each in value[:1]]
    return {key: _cut(each) for key, each in value.items()} if isinstance(value, dict) else value


def _fenced(text: str) -> str:
    """A text between fences: none of its lines is one, nothing moves the terminal's cursor."""
    return "".join(
        character if character == "\n" or character.isprintable() else json.dumps(character)[1:-1] for character in text
    ).replace("```", r"\u0060``")


class _Official(msgspec.Struct):
    mrr: float = msgspec.field(name="MRR@10")
    first: float = msgspec.field(name="recall@1")
    fifty: float = msgspec.field(name="recall@50")


class Scored(msgspec.Struct):
    """A run, as `evaluate --format json` says how it does."""

    run: str
    queries: int
    official: _Official

    @property
    def values(self) -> tuple[float, float, float]:
        """MRR@10, Recall@1, Recall@50, in percent."""
        return 100 * self.official.mrr, 100 * self.official.first, 100 * self.official.fifty


def read_scores(path: Path) -> list[Scored]:
    """What `python -m baselines evaluate --format json` printed; :class:`InputError` for what is none of that."""
    try:
        return read_json(path, list[Scored], any_file=True)
    except FileNotFoundError:
        said = "there is no such file; `python -m baselines evaluate --format json` prints one"
        raise InputError(said, path=path) from None


def scores(release: Release, builds: Sequence[Build], given: dict[str, Path]) -> str:
    """A table of what systems reach; empty where nothing is known.

    Args:
        release: whose.
        builds: the paper's figures are shown where the release was made of the official archives.
        given: by part (``dev``, ``cmedqa_test``): the file of :func:`read_scores`.

    Raises:
        InputError: the release has no such part, or the figures are of another number of queries.
    """
    rows = [*_own(release, given), *(_papers() if is_official(builds) else [])]
    head = [f"| | | {' | '.join(MEASURES)} | |", "|---|---|---:|---:|---:|---|"] if rows else []
    return "\n".join([*head, *rows])


def _own(release: Release, given: dict[str, Path]) -> Iterator[str]:
    parts = {part_id(*part): part for part in parts_of({*release.splits()})}
    for name, path in given.items():
        if name not in parts:
            have = ", ".join(parts) or "no judged dev or test split"
            raise InputError(f"--scores {name}=...: expected a judged split; the release has {have}")
        set_name, split = parts[name]
        found = SETS[set_name]
        judged = release.table(found.qrels, split, ["query-id", "score"]).to_pylist()
        queries = {row["query-id"] for row in judged if row["score"] > 0}
        for scored in read_scores(path):
            if not found.translated and scored.queries != len(queries):
                raise InputError(
                    f"{scored.run} was measured on {scored.queries:,} queries; {name} has {len(queries):,}", path=path
                )
            yield _row(as_text(Path(scored.run).name), name, scored.values, "measured on this release")


def _papers() -> Iterator[str]:
    for row in published()["scores"]:
        yield _row(row["system"], row["split"], row["values"], row["source"])


def _row(system: str, part: str, values: Sequence[float], source: str) -> str:
    return f"| {system} | {as_code(part)} | {' | '.join(f'{value:.2f}' for value in values)} | {source} |"
