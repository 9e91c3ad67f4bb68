"""The YAML head of a release's card: every config, its files, features and rows, as the hub and `datasets` read it."""

from __future__ import annotations

import hashlib

import pyarrow as pa

from builders.store.layout import SETS, Set, config_of, schema_of
from builders.store.manifest import FileEntry

Configs = dict[str, dict[str, list[FileEntry]]]  # config -> split -> its shards, in the order of the card

_SIZES = (
    (1_000, "n<1K"),
    (10_000, "1K<n<10K"),
    (100_000, "10K<n<100K"),
    (1_000_000, "100K<n<1M"),
    (10_000_000, "1M<n<10M"),
)
# Evaluation tools ask for the judgments without a config's name (BEIR's HFDataLoader), and take the first split of
# the queries for all of them: of several splits, one of that name comes first that holds them all.
_DEFAULT, _WHOLE = "qrels", "queries"
_TAGS = ("information-retrieval", "passage-retrieval", "dense-retrieval", "benchmark", "dureader", "dureader_retrieval")


def card_head(configs: Configs, squad: bool) -> str:
    """The head's lines; ``squad``: the passages are those of a reading comprehension set, and nothing of DuReader's."""
    mixed = any(found.own_terms for found in sets_of(configs))
    lines = ["license:", "- apache-2.0", "- other"] if mixed else [f"license: {'other' if squad else 'apache-2.0'}"]
    lines += ["language:", "- zh"]
    if any(found.translated for found in sets_of(configs)):
        lines.append("- en")
    rows = max((rows_of(shards) for splits in configs.values() for shards in splits.values()), default=0)
    lines += [
        f"pretty_name: {pretty_name(squad)}",
        "task_categories:",
        "- text-retrieval",
        "task_ids:",
        "- document-retrieval",
        "tags:",
        *(f"- {tag}" for tag in _TAGS),
        "size_categories:",
        f"- {_size_category(rows)}",
        "configs:",
    ]
    for config, splits in configs.items():
        # `datasets` caches a local folder under its name and this head alone: naming the content here keeps a rebuilt
        # release from being served from the cache of the old one.
        content = hashlib.sha256("".join(s.sha256 for shards in splits.values() for s in shards).encode()).hexdigest()
        lines += [f"- config_name: {config}", f"  description: content {content}"]
        lines += ["  default: true"] * (config == _DEFAULT) + ["  data_files:"]
        for split in _shown(config, splits):
            lines += [f"  - split: {split}", f"    path: {config}/{split if split in splits else '*'}-*.parquet"]
    lines.append("dataset_info:")
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  features:"]
        for field in schema_of(config):
            lines += _feature(field, "  ")
        lines.append("  splits:")
        shown = _shown(config, splits)
        for split, shards in shown.items():
            rows, size = rows_of(shards), bytes_of(shards)
            lines += [f"  - name: {split}", f"    num_bytes: {size}", f"    num_examples: {rows}"]
        total, prepared = (sum(map(bytes_of, each.values())) for each in (splits, shown))
        lines += [f"  download_size: {total}", f"  dataset_size: {prepared}"]
    return "\n".join(lines) + "\n"


def _shown(config: str, splits: dict[str, list[FileEntry]]) -> dict[str, list[FileEntry]]:
    """The splits of a config as readers of the card see them."""
    if config != _WHOLE or len(splits) == 1:
        return splits
    return {_WHOLE: [shard for shards in splits.values() for shard in shards], **splits}


def _feature(field: pa.Field, indent: str) -> list[str]:
    if pa.types.is_list(field.type):
        lines = [f"{indent}- name: {field.name}", f"{indent}  list:"]
        for inner in field.type.value_type:
            lines += _feature(inner, indent + "  ")
        return lines
    return [f"{indent}- name: {field.name}", f"{indent}  dtype: {field.type}"]


def pretty_name(reading: bool) -> str:
    """What the release is called; ``reading``: its passages are those of a reading comprehension set."""
    return "Reading comprehension as passage retrieval" if reading else "DuReader-retrieval"


def shown_config(configs: Configs) -> str:
    """The config that a card takes for its examples: the joined rows of the fewest queries."""
    return next((name for name in ("dev", "test", "train") if name in configs), next(iter(configs)))


def sets_of(configs: Configs) -> list[Set]:
    """The sets that the release holds something of."""
    names = {config_of(config).set for config in configs}
    return [found for name, found in SETS.items() if name in names]


def rows_of(shards: list[FileEntry]) -> int:
    """The rows of one split."""
    return sum(shard.rows or 0 for shard in shards)


def bytes_of(shards: list[FileEntry]) -> int:
    """The size of one split's files."""
    return sum(shard.bytes for shard in shards)


def _size_category(rows: int) -> str:
    """The hub's name for a number of rows."""
    return next((name for end, name in _SIZES if rows < end), "10M<n<100M")
