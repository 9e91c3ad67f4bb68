"""The dataset card of a release, README.md. The hub shows the card, and `datasets` reads its YAML head.

The YAML head names every config, its files, features and rows. The text below the head shows the statistics of
``stats.json`` and the builds of ``manifest.json``. The text's template is ``card.md.jinja``. Published releases also
have a Chinese card (``card.zh.md.jinja``).
"""

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.core.cache import FileEntry
from builders.core.tables import as_code, as_text
from builders.store.layout import SETS, Set, config_and_split, config_of, schema_of, sort_key
from builders.store.manifest import Build
from builders.store.table3 import TABLE3_ROWS

Configs = dict[str, dict[str, list[FileEntry]]]  # config -> split -> its shards, in the order of the card
ENGLISH, CHINESE = "card.md.jinja", "card.zh.md.jinja"
CITATION = """\
@inproceedings{qiu-etal-2022-dureader,
    title = "{D}u{R}eader-Retrieval: A Large-scale {C}hinese Benchmark for Passage Retrieval from Web Search Engine",
    author = "Qiu, Yifu and Li, Hongyu and Qu, Yingqi and Chen, Ying and She, QiaoQiao and Liu, Jing and Wu, Hua
      and Wang, Haifeng",
    booktitle = "Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing",
    year = "2022",
    publisher = "Association for Computational Linguistics",
    url = "https://aclanthology.org/2022.emnlp-main.357"
}
"""
_SIZES = {10**3: "n<1K", 10**4: "1K<n<10K", 10**5: "10K<n<100K", 10**6: "100K<n<1M", 10**7: "1M<n<10M"}
# Evaluation tools such as BEIR's HFDataLoader load the judgments without a config name, so qrels is the default config.
# These tools load only the first split of the queries, so the first split has all queries.
_DEFAULT, _WHOLE = "qrels", "queries"
_TAGS = ["information-retrieval", "passage-retrieval", "dense-retrieval", "benchmark", "dureader", "dureader_retrieval"]
_MANY = 6  # maximum number of configs that the table of columns names


def card(
    entries: Iterable[FileEntry],
    stats: dict[str, Any],
    builds: Collection[Build],
    template: str = ENGLISH,
    *,
    repo: str = "",
    images: Sequence[str] = (),
    example: str = "",
    scores: str = "",
    split: str = "",
) -> str:
    """Return the card as Markdown. Only the English card, which the hub reads, has the YAML head.

    The keyword arguments are for cards on the hub.

    Args:
        entries, stats, builds: the release's manifest entries, statistics and builds. Only entries of shards matter.
        template: ``ENGLISH`` or ``CHINESE``.
        repo: ORG/NAME on the hub; empty for a local card.
        images: relative paths of the histograms.
        example, scores: a row of the release and a table of systems' scores, as Markdown.
        split: the split in the commands of `How to evaluate`; empty if the release has no judgments.
    """
    configs = configs_of(entries)
    body = (
        _templates()
        .get_template(template)
        .render(
            repo=repo,
            images=images,
            example=example,
            scores=scores,
            split=split,
            configs=configs,
            stats=stats,
            reading=is_reading(builds),
            official=is_official(builds),
            shown=shown_config(configs) if repo else "",
            columns=_columns(configs),
            table3_rows=TABLE3_ROWS,
            medical=any(found.own_terms for found in sets_of(configs)),
            built=_built(builds),
            terms=[found.terms for found in sets_of(configs) if found.terms],
            citation=CITATION,
        )
    )
    body = re.sub("\n{3,}", "\n\n", body).strip("\n") + "\n"
    return body if template == CHINESE else f"---\n{_head(configs, is_reading(builds))}---\n\n{body}"


@functools.cache
def _templates() -> Any:
    import jinja2  # imported late because every command that reads a release imports this module

    found = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    found.filters |= {"cell": _cell, "code": as_code, "text": as_text, "size": _size}
    found.filters["percent"] = lambda share: f"{share or 0:.2%}"  # None without judgments
    found.globals["rows_of"] = rows_of
    return found


def _cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _size(shards: list[FileEntry]) -> str:
    size = _bytes_of(shards)
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def _head(configs: Configs, reading: bool) -> str:
    import yaml

    mixed = any(found.own_terms for found in sets_of(configs))
    rows = max((rows_of(shards) for splits in configs.values() for shards in splits.values()), default=0)
    content = {
        "license": ["apache-2.0", "other"] if mixed else "other" if reading else "apache-2.0",
        "language": ["zh", "en"] if any(found.translated for found in sets_of(configs)) else ["zh"],
        "pretty_name": pretty_name(reading),
        "task_categories": ["text-retrieval"],
        "task_ids": ["document-retrieval"],
        "tags": _TAGS,
        "size_categories": [next((name for end, name in _SIZES.items() if rows < end), "10M<n<100M")],
        "configs": [_files(config, splits) for config, splits in configs.items()],
        "dataset_info": [_info(config, splits) for config, splits in configs.items()],
    }
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=float("inf")))


def _files(config: str, splits: dict[str, list[FileEntry]]) -> dict[str, Any]:
    # `datasets` caches a local folder by the folder's name and this head only. Without a hash of the content here,
    # `datasets` would load the old content from its cache after a release is rebuilt.
    content = hashlib.sha256("".join(s.sha256 for shards in splits.values() for s in shards).encode()).hexdigest()
    return {
        "config_name": config,
        "description": f"{config_of(config).about}; content {content}",
        **({"default": True} if config == _DEFAULT else {}),
        "data_files": [
            {"split": split, "path": f"{config}/{split if split in splits else '*'}-*.parquet"}
            for split in _shown(config, splits)
        ],
    }


def _info(config: str, splits: dict[str, list[FileEntry]]) -> dict[str, Any]:
    shown = _shown(config, splits)
    return {
        "config_name": config,
        "features": [_feature(field) for field in schema_of(config)],
        "splits": [
            {"name": split, "num_bytes": _bytes_of(shards), "num_examples": rows_of(shards)}
            for split, shards in shown.items()
        ],
        "download_size": sum(map(_bytes_of, splits.values())),
        "dataset_size": sum(map(_bytes_of, shown.values())),
    }


def _shown(config: str, splits: dict[str, list[FileEntry]]) -> dict[str, list[FileEntry]]:
    """Return the splits of a config for the card. If queries have several splits, add a first split of all queries."""
    if config != _WHOLE or len(splits) == 1:
        return splits
    return {_WHOLE: [shard for shards in splits.values() for shard in shards], **splits}


def _feature(field: pa.Field) -> dict[str, Any]:
    return {"name": field.name, **_type(field.type)}


def _type(kind: pa.DataType) -> dict[str, Any]:
    if not pa.types.is_list(kind):
        return {"dtype": str(kind)}
    items = kind.value_type
    return {"list": [_feature(inner) for inner in items] if pa.types.is_struct(items) else _type(items)}


def _columns(configs: Iterable[str]) -> list[tuple[str, str, str]]:
    columns: dict[str, tuple[pa.DataType, list[str]]] = {}
    for config in configs:
        for field in schema_of(config):
            columns.setdefault(field.name, (field.type, []))[1].append(f"`{config}`")
    return [
        (
            name,
            "list" if pa.types.is_list(kind) else str(kind),
            ", ".join(found[:_MANY] + ["..."] * (len(found) > _MANY)),
        )
        for name, (kind, found) in columns.items()
    ]


def _built(builds: Iterable[Build]) -> str:
    made = []
    for build in builds:
        options = ", ".join(as_text(f"{name} = {value}") for name, value in build.options.items())
        made.append(f"- {as_code(build.verb)}{f' with {options}' if options else ''}{', from:' * bool(build.sources)}")
        made += [f"  - {as_text(source.name)} (sha256 {as_code(source.sha256)})" for source in build.sources]
    return "\n".join(made)


def configs_of(entries: Iterable[FileEntry]) -> Configs:
    """Return the shards by config and split, in the order of the card. Other files, such as runs, are skipped."""
    configs: Configs = {}
    shards = [(*config_and_split(entry.path), entry) for entry in entries if entry.path.endswith(".parquet")]
    for config, split, entry in sorted(shards, key=lambda shard: (sort_key(*shard[:2]), shard[2].path)):
        configs.setdefault(config, {}).setdefault(split, []).append(entry)
    return configs


def is_reading(builds: Collection[Build]) -> bool:
    """True if the release was made from a reading comprehension set such as SQuAD, without data of DuReader."""
    return any(build.verb == "squad" for build in builds)


def is_official(builds: Collection[Build]) -> bool:
    """True if the release was made from the official archives. A hub copy, which lacks passages, does not count."""
    return any(build.verb == "official" and "copy" not in build.options for build in builds)


def pretty_name(reading: bool) -> str:
    """Return the title of a release. ``reading`` is the result of :func:`is_reading`."""
    return "Reading comprehension as passage retrieval" if reading else "DuReader-retrieval"


def shown_config(configs: Configs) -> str:
    """Return the config for a card's examples: the joined rows of dev, test or train, else the first config."""
    return next((name for name in ("dev", "test", "train") if name in configs), next(iter(configs)))


def sets_of(configs: Configs) -> list[Set]:
    """Return the sets of which the release has at least one config."""
    names = {config_of(config).set for config in configs}
    return [found for name, found in SETS.items() if name in names]


def rows_of(shards: list[FileEntry]) -> int:
    """Return the number of rows of one split."""
    return sum(shard.rows or 0 for shard in shards)


def _bytes_of(shards: list[FileEntry]) -> int:
    return sum(shard.bytes for shard in shards)
