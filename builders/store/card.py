"""The dataset card of a release, README.md. The hub shows the card, and `datasets` reads its YAML head.

The YAML head names every config, its files, features and rows. The text below the head shows the statistics of
``stats.json`` and the builds of ``manifest.json``. The text's template is ``card.md.jinja``. Published releases also
have a Chinese card (``card.zh.md.jinja``).
"""

import functools
import hashlib
import re
from collections.abc import Collection, Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.core.cache import FileEntry
from builders.core.tables import as_code, as_text
from builders.store.layout import SETS, Set, config_and_split, config_of, schema_of, sort_key
from builders.store.manifest import Build
from builders.store.table3 import TABLE3_ROWS

Splits = dict[str, list[FileEntry]]  # split -> its shards
Configs = dict[str, Splits]  # config -> split -> its shards, in the order of the card
ENGLISH = "card.md.jinja"
CHINESE = "card.zh.md.jinja"
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
# The hub's size categories: upper limit of the number of rows -> category. More rows are in _LARGEST_SIZE.
_SIZE_CATEGORIES = {
    10**3: "n<1K",
    10**4: "1K<n<10K",
    10**5: "10K<n<100K",
    10**6: "100K<n<1M",
    10**7: "1M<n<10M",
}
_LARGEST_SIZE = "10M<n<100M"
# Evaluation tools such as BEIR's HFDataLoader load the judgments without a config name, so qrels is the default config.
# These tools load only the first split of the queries, so the first split has all queries.
_DEFAULT_CONFIG = "qrels"
_ALL_QUERIES = "queries"
_TAGS = ["information-retrieval", "passage-retrieval", "dense-retrieval", "benchmark", "dureader", "dureader_retrieval"]
# Words of the findings of a copy, which `official --copy` counts.
JOINED_TITLES = "with a title (joined before the text)"
OTHER_GRADES = "with another grade than 1 (kept)"
_MAX_CONFIGS_IN_CELL = 6  # further configs are "..." in the table of columns
_MEGABYTE = 1e6


def card_markdown(
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
        split: the split in the commands of `How to evaluate`. Empty: the card has no such section.
    """
    configs = configs_of(entries)
    dataset_sets = sets_of(configs)
    # Description of each difference between a copy and the benchmark -> number of rows.
    copy_findings = stats.get("copy", {}).get("findings", {})
    example_config = ""
    if repo:
        example_config = shown_config(configs)
    body = (
        _load_templates()
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
            has_joined_titles=any(JOINED_TITLES in finding for finding in copy_findings),
            has_grades=any(OTHER_GRADES in finding for finding in copy_findings),
            example_config=example_config,
            columns=_describe_columns(configs),
            table3_rows=TABLE3_ROWS,
            has_medical_sets=any(dataset_set.own_terms for dataset_set in dataset_sets),
            build_list=_format_builds(builds),
            terms=[dataset_set.terms for dataset_set in dataset_sets if dataset_set.terms],
            citation=CITATION,
        )
    )
    # Conditions of the template that do not apply leave empty lines.
    body = re.sub("\n{3,}", "\n\n", body).strip("\n") + "\n"
    if template == CHINESE:
        return body
    return f"---\n{_yaml_head(configs, is_reading(builds))}---\n\n{body}"


@functools.cache
def _load_templates() -> Any:
    """Return the environment of jinja2 with the filters and functions that the card's templates use."""
    import jinja2  # imported late because every command that reads a release imports this module

    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
    )
    environment.filters["cell"] = _format_cell
    environment.filters["code"] = as_code
    environment.filters["text"] = as_text
    environment.filters["size"] = _format_size
    environment.filters["percent"] = lambda share: f"{share or 0:.2%}"  # None without judgments
    environment.globals["rows_of"] = rows_of
    return environment


def _format_cell(value: float | None) -> str:
    return "-" if value is None else f"{value:,}"


def _format_size(shards: list[FileEntry]) -> str:
    byte_count = _bytes_of(shards)
    if byte_count >= _MEGABYTE:
        return f"{byte_count / _MEGABYTE:,.1f} MB"
    return f"{byte_count / 1e3:,.1f} kB"


def _yaml_head(configs: Configs, is_reading_set: bool) -> str:
    """Return the YAML of the card's head. ``is_reading_set`` is the result of :func:`is_reading`."""
    import yaml  # imported late, as jinja2 is

    dataset_sets = sets_of(configs)
    has_other_terms = any(dataset_set.own_terms for dataset_set in dataset_sets)
    has_translations = any(dataset_set.translated for dataset_set in dataset_sets)
    content = {
        "license": _license(has_other_terms, is_reading_set),
        "language": ["zh", "en"] if has_translations else ["zh"],
        "pretty_name": pretty_name(is_reading_set),
        "task_categories": ["text-retrieval"],
        "task_ids": ["document-retrieval"],
        "tags": _TAGS,
        "size_categories": [_size_category(configs)],
        "configs": [_config_entry(config, splits) for config, splits in configs.items()],
        "dataset_info": [_dataset_info(config, splits) for config, splits in configs.items()],
    }
    # An infinite width keeps each entry on one line.
    return str(yaml.safe_dump(content, sort_keys=False, allow_unicode=True, width=float("inf")))


def _license(has_other_terms: bool, is_reading_set: bool) -> str | list[str]:
    """Return the licence in the hub's words. ``has_other_terms``: a set has another licence than the benchmark."""
    if has_other_terms:
        return ["apache-2.0", "other"]
    if is_reading_set:  # the texts have the licences of their sources
        return "other"
    return "apache-2.0"


def _size_category(configs: Configs) -> str:
    """Return the hub's size category of the largest split."""
    largest_split = 0
    for splits in configs.values():
        for shards in splits.values():
            largest_split = max(largest_split, rows_of(shards))
    for row_limit, category in _SIZE_CATEGORIES.items():
        if largest_split < row_limit:
            return category
    return _LARGEST_SIZE


def _config_entry(config: str, shards_by_split: Splits) -> dict[str, Any]:
    """Return the entry of a config that tells `datasets` which files belong to which split."""
    # `datasets` caches a local folder by the folder's name and this head only. Without a hash of the content here,
    # `datasets` would load the old content from its cache after a release is rebuilt.
    hashes = "".join(shard.sha256 for shard in _all_shards(shards_by_split))
    content_hash = hashlib.sha256(hashes.encode()).hexdigest()
    entry: dict[str, Any] = {
        "config_name": config,
        "description": f"{config_of(config).description}; content {content_hash}",
    }
    if config == _DEFAULT_CONFIG:
        entry["default"] = True
    entry["data_files"] = []
    for split in _card_splits(config, shards_by_split):
        # The split of all queries has no shards of its own: it has the files of every split.
        file_prefix = split if split in shards_by_split else "*"
        entry["data_files"].append({"split": split, "path": f"{config}/{file_prefix}-*.parquet"})
    return entry


def _dataset_info(config: str, shards_by_split: Splits) -> dict[str, Any]:
    """Return the features and sizes of a config. Sizes are bytes of the Parquet files, which are compressed."""
    card_splits = _card_splits(config, shards_by_split)
    # The split of all queries repeats the rows of the other splits. They count in dataset_size, but are not downloaded
    # again.
    split_infos = []
    for split, shards in card_splits.items():
        split_infos.append({"name": split, "num_bytes": _bytes_of(shards), "num_examples": rows_of(shards)})
    return {
        "config_name": config,
        "features": [_feature(field) for field in schema_of(config)],
        "splits": split_infos,
        "download_size": _bytes_of(_all_shards(shards_by_split)),
        "dataset_size": sum(_bytes_of(shards) for shards in card_splits.values()),
    }


def _card_splits(config: str, shards_by_split: Splits) -> Splits:
    """Return the shards of a config by split, as the card lists them.

    If the config ``queries`` has several splits, a first split is added. It is also called ``queries``, and has all
    queries.
    """
    if config != _ALL_QUERIES or len(shards_by_split) == 1:
        return shards_by_split
    return {_ALL_QUERIES: _all_shards(shards_by_split), **shards_by_split}


def _all_shards(shards_by_split: Splits) -> list[FileEntry]:
    return list(chain.from_iterable(shards_by_split.values()))


def _feature(arrow_field: pa.Field) -> dict[str, Any]:
    return {"name": arrow_field.name, **_feature_type(arrow_field.type)}


def _feature_type(arrow_type: pa.DataType) -> dict[str, Any]:
    """Return a column's type as `datasets` expects it in the head, for example ``{"dtype": "string"}``."""
    if not pa.types.is_list(arrow_type):
        return {"dtype": str(arrow_type)}
    item_type = arrow_type.value_type
    if pa.types.is_struct(item_type):
        return {"list": [_feature(field) for field in item_type]}
    return {"list": _feature_type(item_type)}


def _describe_columns(configs: Iterable[str]) -> list[tuple[str, str, str]]:
    """Return (column, type, configs with the column) for each column, for the card's table of columns."""
    # A column of the same name has the same meaning in all configs, and so one row of the table.
    column_types: dict[str, pa.DataType] = {}
    column_configs: dict[str, list[str]] = {}
    for config in configs:
        for field in schema_of(config):
            column_types.setdefault(field.name, field.type)
            column_configs.setdefault(field.name, []).append(f"`{config}`")
    described = []
    for column, config_names in column_configs.items():
        type_name = "list" if pa.types.is_list(column_types[column]) else str(column_types[column])
        listed_names = config_names[:_MAX_CONFIGS_IN_CELL]
        if len(config_names) > _MAX_CONFIGS_IN_CELL:
            listed_names.append("...")
        described.append((column, type_name, ", ".join(listed_names)))
    return described


def _format_builds(builds: Iterable[Build]) -> str:
    """Return a Markdown list of the commands that made the release, with their options and source files."""
    lines = []
    for build in builds:
        line = f"- {as_code(build.verb)}"
        if build.options:
            options = [as_text(f"{name} = {value}") for name, value in build.options.items()]
            line += f" with {', '.join(options)}"
        if build.sources:
            line += ", from:"
        lines.append(line)
        # Names and options may come from a stranger's manifest, so as_text and as_code escape Markdown.
        for source in build.sources:
            lines.append(f"  - {as_text(source.name)} (sha256 {as_code(source.sha256)})")
    return "\n".join(lines)


def configs_of(entries: Iterable[FileEntry]) -> Configs:
    """Return the shards by config and split, in the order of the card. Other files, such as runs, are skipped."""
    shards = []
    for entry in entries:
        if entry.path.endswith(".parquet"):
            config, split = config_and_split(entry.path)
            shards.append((sort_key(config, split), entry.path, config, split, entry))
    configs: Configs = {}
    # Shards of a split are in the order of their paths. Entries themselves cannot be compared.
    for _, _, config, split, entry in sorted(shards, key=lambda shard: shard[:2]):
        configs.setdefault(config, {}).setdefault(split, []).append(entry)
    return configs


def is_reading(builds: Collection[Build]) -> bool:
    """True if the release was made from a reading comprehension set such as SQuAD, without data of DuReader."""
    return any(build.verb == "squad" for build in builds)


def is_official(builds: Collection[Build]) -> bool:
    """True if the release was made from the official archives. A hub copy, which lacks passages, does not count."""
    return any(build.verb == "official" and "copy" not in build.options for build in builds)


def pretty_name(is_reading_set: bool) -> str:
    """Return the title of a release. ``is_reading_set`` is the result of :func:`is_reading`."""
    return "Reading comprehension as passage retrieval" if is_reading_set else "DuReader-retrieval"


def shown_config(configs: Configs) -> str:
    """Return the config for a card's examples: the joined rows of dev, test or train, else the first config."""
    # Joined rows show a query with its passages, and dev is small and has labels.
    for config in ("dev", "test", "train"):
        if config in configs:
            return config
    return next(iter(configs))


def sets_of(configs: Configs) -> list[Set]:
    """Return the sets of which the release has at least one config."""
    set_names = {config_of(config).set for config in configs}
    return [dataset_set for name, dataset_set in SETS.items() if name in set_names]


def rows_of(shards: list[FileEntry]) -> int:
    """Return the number of rows of one split."""
    return sum(shard.rows or 0 for shard in shards)


def _bytes_of(shards: list[FileEntry]) -> int:
    return sum(shard.bytes for shard in shards)
