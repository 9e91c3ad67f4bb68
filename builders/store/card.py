"""README.md of a release: the card that the hub shows, and that lets `datasets` load the folder with no code.

The YAML head names every config, its files, features and rows; the text below says what the release is and how it was
built, from the same figures as ``stats.json`` and ``manifest.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from builders.core.tables import as_code, as_text
from builders.store.card_figures import figures, histograms, lines_of, overlap, samples, similar
from builders.store.card_head import Configs, bytes_of, card_head, rows_of, sets_of, shown_config
from builders.store.card_words import ARXIV, PAPER, evaluation, fields, is_official, is_reading, limitations
from builders.store.layout import config_and_split, sort_key
from builders.store.manifest import Build, FileEntry

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


@dataclass(frozen=True)
class Published:
    """What a card on the hub says beside what a local one does: the repository, and sections as Markdown.

    Attributes:
        repo: ORG/NAME.
        images: histograms beside the card, as relative paths.
        example: rows of the release.
        scores: what systems reach on it.
        split: whose queries the commands of `how to evaluate` take; empty where the release has no judgments.
    """

    repo: str
    images: Sequence[str] = ()
    example: str = ""
    scores: str = ""
    split: str = ""


def card(
    entries: Iterable[FileEntry], stats: dict[str, Any], builds: list[Build], published: Published | None = None
) -> str:
    """The card as Markdown with a YAML head.

    Args:
        entries: the manifest entries; those of Parquet shards count.
        stats: the content of ``stats.json``.
        builds: the builds that the manifest lists: verb, options, sources.
        published: what a card on the hub says more.
    """
    configs = configs_of(entries)
    body = "\n".join(
        part.strip("\n") + "\n"
        for part in (
            _about(builds, published),
            _usage(configs, published.repo) if published else "",
            titled("Example", published.example) if published else "",
            _configs(configs),
            titled("Columns", lines_of(fields(configs))),
            figures(stats),
            titled("Scores", published.scores) if published else "",
            titled("How to evaluate", evaluation(published.repo, published.split))
            if published and published.split
            else "",
            similar(stats.get("similar")),
            overlap(stats),
            samples(stats.get("samples")),
            histograms(stats, published.images if published else ()),
            titled("Limitations", lines_of(limitations(configs, builds))),
            titled("How it was built", built(builds)),
            titled("Licence and citation", _licence(configs, builds)),
        )
        if part
    )
    return f"---\n{card_head(configs, is_reading(builds))}---\n\n{body}"


def configs_of(entries: Iterable[FileEntry]) -> Configs:
    """The shards by config and split, in the order of the card. A file that is no shard, a run say, is none's."""
    configs: Configs = {}
    shards = [(*config_and_split(entry.path), entry) for entry in entries if entry.path.endswith(".parquet")]
    for config, split, entry in sorted(shards, key=lambda shard: (sort_key(*shard[:2]), shard[2].path)):
        configs.setdefault(config, {}).setdefault(split, []).append(entry)
    return configs


def titled(title: str, body: str) -> str:
    """A section; nothing where its body is empty."""
    return f"\n## {title}\n\n{body}" if body else ""


def _about(builds: list[Build], published: Published | None) -> str:
    chinese = "\n[中文](README.zh.md)\n" if published else ""
    if is_reading(builds):
        return f"""# Reading comprehension as passage retrieval

Questions of a reading comprehension set, each to find its paragraph in a collection, in the layout of
DuReader-retrieval. Built by `dureader_retrieval` from the sources named below; nothing of DuReader is in it.
{chinese}"""
    own = "" if is_official(builds) else ", not the published collection's"
    return f"""# DuReader-retrieval

Chinese passage retrieval from web search, after Qiu et al. ([EMNLP 2022]({PAPER}), [arXiv]({ARXIV})):
queries, a passage collection, and which passages answer which query. This copy was built by `dureader_retrieval` from
the sources named below; its figures are those of these sources{own}.
{chinese}"""


def _usage(configs: Configs, repo: str) -> str:
    return f"""
```python
{usage_of(configs, repo)}
```
"""


def usage_of(configs: Configs, repo: str) -> str:
    """Code that loads what is published."""
    shown = shown_config(configs)
    return f"""from datasets import load_dataset

rows = load_dataset("{repo}", "{shown}")
for row in load_dataset("{repo}", "{shown}", split="{next(iter(configs[shown]))}", streaming=True):
    ..."""


def table_of(configs: Configs, head: str) -> list[str]:
    """A table of every split under ``head``: the titles of config, split, rows, files, size."""
    table = [head, "|---|---|---:|---:|---:|"]
    for config, by_split in configs.items():
        for split, shards in by_split.items():
            size = _size(bytes_of(shards))
            table.append(f"| `{config}` | {split} | {rows_of(shards):,} | {len(shards):,} | {size} |")
    return table


def _configs(configs: Configs) -> str:
    return f"""
## Configs

{lines_of(table_of(configs, "| config | split | rows | files | size |"))}

`corpus`, `queries` and `qrels` are laid out as in BEIR; `train`, `dev` and `test` join them: one row a query, with its
positive passages (`docid`, `title`, `text`). Ids are the MD5 of the text; titles are empty, because the benchmark drops
them. `negative_passages` is empty unless the sources brought hard negatives. A split without labels has empty lists and
no qrels. In a labelled split, questions without a positive passage are left out.
"""


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def built(builds: list[Build]) -> str:
    """The commands that made it with their options, and the sources of each with their SHA-256, as a list."""
    made = []
    for build in builds:
        options = ", ".join(as_text(f"{name} = {value}") for name, value in build.options.items())
        made.append(f"- {as_code(build.verb)}{f' with {options}' if options else ''}{', from:' * bool(build.sources)}")
        made += [f"  - {as_text(source.name)} (sha256 {as_code(source.sha256)})" for source in build.sources]
    return lines_of(made)


def _licence(configs: Configs, builds: list[Build]) -> str:
    own = "DuReader and DuReader-retrieval are published by Baidu under the Apache License 2.0."
    if is_reading(builds):
        own = "The texts are under the licences of the sources above; the layout is that of DuReader-retrieval."
    origins = [found.terms for found in sets_of(configs) if found.terms]
    return f"""{lines_of([own, *origins])}

```bibtex
{CITATION}```
"""
