"""README.md of a release: the card that the hub shows, and that lets `datasets` load the folder with no code.

The YAML head names every config, its files, features and rows; the text below says what the release is and how it was
built, from the same figures as ``stats.json`` and ``manifest.json``.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from builders.stats import TABLE3_ROWS
from builders.store import schema_of

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


def card(entries: Iterable[dict[str, Any]], stats: dict[str, Any], builds: list[dict[str, Any]]) -> str:
    """The card as Markdown with a YAML head.

    Args:
        entries: the manifest entries of the Parquet shards.
        stats: the content of ``stats.json``.
        builds: the builds that the manifest lists: verb, options, sources.
    """
    configs: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for entry in entries:
        config, name = entry["path"].split("/")
        if not name.endswith(".parquet"):  # a run, say: a file that no config reads
            continue
        configs.setdefault(config, {}).setdefault(name.rsplit("-", 3)[0], []).append(entry)
    return f"---\n{_head(configs)}---\n\n{_body(configs, stats, builds)}"


def _head(configs: dict[str, dict[str, list[dict[str, Any]]]]) -> str:
    lines = [
        "license: apache-2.0",
        "language:",
        "- zh",
        "pretty_name: DuReader-retrieval",
        "task_categories:",
        "- text-retrieval",
        "configs:",
    ]
    for config, splits in configs.items():
        # `datasets` caches a local folder under its name and this head alone: naming the content here keeps a rebuilt
        # release from being served from the cache of the old one.
        content = hashlib.sha256(
            "".join(s["sha256"] for shards in splits.values() for s in shards).encode()
        ).hexdigest()
        lines += [f"- config_name: {config}", f"  description: content {content}", "  data_files:"]
        for split in splits:
            lines += [f"  - split: {split}", f"    path: {config}/{split}-*.parquet"]
    lines.append("dataset_info:")
    for config, splits in configs.items():
        lines += [f"- config_name: {config}", "  features:"]
        for field in schema_of(config):
            lines += _feature(field, "  ")
        lines.append("  splits:")
        for split, shards in splits.items():
            rows, size = sum(s["rows"] for s in shards), sum(s["bytes"] for s in shards)
            lines += [f"  - name: {split}", f"    num_bytes: {size}", f"    num_examples: {rows}"]
        total = sum(s["bytes"] for shards in splits.values() for s in shards)
        lines += [f"  download_size: {total}", f"  dataset_size: {total}"]
    return "\n".join(lines) + "\n"


def _feature(field: pa.Field, indent: str) -> list[str]:
    if pa.types.is_list(field.type):
        lines = [f"{indent}- name: {field.name}", f"{indent}  list:"]
        for inner in field.type.value_type:
            lines += _feature(inner, indent + "  ")
        return lines
    return [f"{indent}- name: {field.name}", f"{indent}  dtype: {field.type}"]


def _body(
    configs: dict[str, dict[str, list[dict[str, Any]]]], stats: dict[str, Any], builds: list[dict[str, Any]]
) -> str:
    splits = list(stats["table3"])
    table = [f"| | {' | '.join(splits)} |", f"|---{'|---:' * len(splits)}|"]
    for key, title in TABLE3_ROWS:
        cells = ("-" if (value := stats["table3"][split].get(key)) is None else f"{value:,}" for split in splits)
        table.append(f"| {title} | {' | '.join(cells)} |")
    rows = ["| config | split | rows |", "|---|---|---:|"]
    for config, by_split in configs.items():
        for split, shards in by_split.items():
            rows.append(f"| `{config}` | {split} | {sum(s['rows'] for s in shards):,} |")
    built = []
    for build in builds:
        options = ", ".join(f"{name} = {value}" for name, value in build["options"].items())
        built.append(f"- `{build['verb']}` with {options}, from:")
        built += [f"  - {source['name']} (sha256 `{source['sha256']}`)" for source in build["sources"]]
    collections = [
        f"`{name}` holds {figures['passages']:,} passages of {figures['mean_chars']:,} characters on average"
        f" (median {figures['median_chars']:,})."
        for name, figures in stats["collections"].items()
    ]
    newline = "\n"
    return f"""# DuReader-retrieval

Chinese passage retrieval from web search, after Qiu et al., EMNLP 2022: queries, a passage collection, and which
passages answer which query. This copy was built by `dureader_retrieval` from the sources named below; its figures are
those of these sources, not the published collection's.

## Configs

{newline.join(rows)}

`corpus`, `queries` and `qrels` are laid out as in BEIR; `train`, `dev` and `test` join them: one row a query, with its
positive passages (`docid`, `title`, `text`). Ids are the MD5 of the text; titles are empty, because the benchmark drops
them. `negative_passages` is empty unless the sources brought hard negatives. A split without labels has empty lists and
no qrels. In a labelled split, questions without a positive passage are left out.

## Figures

{newline.join(table)}

{newline.join(collections)}

## How it was built

{newline.join(built)}

## Licence and citation

DuReader and DuReader-retrieval are published by Baidu under the Apache License 2.0.

```bibtex
{CITATION}```
"""
