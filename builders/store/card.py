"""README.md of a release: the card that the hub shows, and that lets `datasets` load the folder with no code.

The YAML head names every config, its files, features and rows; the text below says what the release is and how it was
built, from the same figures as ``stats.json`` and ``manifest.json``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from builders.common.markdown import as_code, as_text
from builders.store.card_head import Configs, bytes_of, card_head, rows_of, sets_of
from builders.store.layout import config_and_split, sort_key
from builders.store.manifest import Build, FileEntry
from builders.store.table3 import TABLE3_ROWS, bar_name

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


def card(
    entries: Iterable[FileEntry],
    stats: dict[str, Any],
    builds: list[Build],
    *,
    repo: str | None = None,
    images: Sequence[str] = (),
) -> str:
    """The card as Markdown with a YAML head.

    Args:
        entries: the manifest entries; those of Parquet shards count.
        stats: the content of ``stats.json``.
        builds: the builds that the manifest lists: verb, options, sources.
        repo: the hub repository that the card is for.
        images: histograms beside the card, as relative paths.
    """
    configs: Configs = {}
    # A file that is no shard, a run say, is one that no config reads.
    shards = [(*config_and_split(entry.path), entry) for entry in entries if entry.path.endswith(".parquet")]
    for config, split, entry in sorted(shards, key=lambda shard: (sort_key(*shard[:2]), shard[2].path)):
        configs.setdefault(config, {}).setdefault(split, []).append(entry)
    body = "\n".join(
        part.strip("\n") + "\n"
        for part in (
            _about(builds),
            _usage(configs, repo),
            _configs(configs),
            _figures(stats),
            _similar(stats.get("similar")),
            _overlap(stats),
            _samples(stats.get("samples")),
            _histograms(stats, images),
            _built(builds),
            _licence(configs, builds),
        )
        if part
    )
    return f"---\n{card_head(configs, _is_squad(builds))}---\n\n{body}"


def _is_squad(builds: list[Build]) -> bool:
    """Whether the passages are those of a reading comprehension set, and nothing of DuReader's."""
    return any(build.verb == "squad" for build in builds)


def _is_original(build: Build) -> bool:
    """Whether the build read the official archives: a copy holds some of the passages."""
    return build.verb == "official" and "copy" not in build.options


def _about(builds: list[Build]) -> str:
    if _is_squad(builds):
        return """# Reading comprehension as passage retrieval

Questions of a reading comprehension set, each to find its paragraph in a collection, in the layout of
DuReader-retrieval. Built by `dureader_retrieval` from the sources named below; nothing of DuReader is in it.
"""
    own = "" if any(_is_original(build) for build in builds) else ", not the published collection's"
    return f"""# DuReader-retrieval

Chinese passage retrieval from web search, after Qiu et al., EMNLP 2022: queries, a passage collection, and which
passages answer which query. This copy was built by `dureader_retrieval` from the sources named below; its figures are
those of these sources{own}.
"""


def _usage(configs: Configs, repo: str | None) -> str:
    if not repo:
        return ""
    joined = next((name for name in ("dev", "train", "test") if name in configs), next(iter(configs)))
    return f"""
```python
from datasets import load_dataset

rows = load_dataset("{repo}", "{joined}")
for row in load_dataset("{repo}", "{joined}", split="{next(iter(configs[joined]))}", streaming=True):
    ...
```
"""


def _configs(configs: Configs) -> str:
    table = ["| config | split | rows | files | size |", "|---|---|---:|---:|---:|"]
    for config, by_split in configs.items():
        for split, shards in by_split.items():
            size = _size(bytes_of(shards))
            table.append(f"| `{config}` | {split} | {rows_of(shards):,} | {len(shards):,} | {size} |")
    return f"""
## Configs

{_lines(table)}

`corpus`, `queries` and `qrels` are laid out as in BEIR; `train`, `dev` and `test` join them: one row a query, with its
positive passages (`docid`, `title`, `text`). Ids are the MD5 of the text; titles are empty, because the benchmark drops
them. `negative_passages` is empty unless the sources brought hard negatives. A split without labels has empty lists and
no qrels. In a labelled split, questions without a positive passage are left out.
"""


def _size(size: int) -> str:
    return f"{size / 1e6:,.1f} MB" if size >= 1e6 else f"{size / 1e3:,.1f} kB"


def _lines(lines: Iterable[str]) -> str:
    return "\n".join(lines)


def _figures(stats: dict[str, Any]) -> str:
    columns = list(stats["table3"])
    table = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for key, title in TABLE3_ROWS:
        cells = (_cell(stats["table3"][column].get(key)) for column in columns)
        table.append(f"| {title} | {' | '.join(cells)} |")
    collections = [
        f"`{name}` holds {_cell(figures['passages'])} passages of {_cell(figures['mean_chars'])} characters on average"
        f" (median {_cell(figures['median_chars'])})."
        for name, figures in stats["collections"].items()
    ]
    english = [
        f"`crosslingual` {split} has {_cell(found['queries'])} English queries;"
        f" words per query: {_cell(found['words_per_query'])}."
        for split, found in stats.get("english", {}).items()
    ]
    judged = [
        f"`qrels` {split} was judged by people: {found['per_query_before']:.2f} positive passages a query before"
        f" (`qrels-before`), {found['per_query_after']:.2f} after; {found['share_with_false_negatives']:.2%} of"
        f" {_cell(found['queries'])} queries had a false negative, {found['share_with_false_positives']:.2%} a false"
        " positive. Pairs judged not to answer have the score 0."
        for split, found in stats.get("relabelled", {}).items()
    ]
    return _lines(["", "## Figures", "", *(table if columns else []), "", *collections, *english, *judged])


def _cell(value: float | int | None) -> str:
    return "-" if value is None else f"{value:,}"


def _similar(found: dict[str, Any] | None) -> str:
    """What was removed because it is similar to a development or test question; the paper's counts (Section 2.3)."""
    if not found:
        return ""
    paper = found["paper"]
    ways = ", ".join(f"{number:,} {how}" for how, number in found["by"].items())
    return f"""
## Similar training questions

Removed: {found["removed"]:,} training questions ({ways}), similar to {found["duplicated"]:,} of the
{found["queries"]:,} development and test questions ({found["share"] or 0:.2%}). The paper removed
{paper["removed"]:,}, similar to {paper["duplicated"]:,} ({paper["share"]:.2%}). `train-similar` keeps them with their
passages; `duplicated` and `others` tell the development and test questions apart.
"""


def _overlap(stats: dict[str, Any]) -> str:
    """Label overlap of training and test queries, and the sets that are drawn to look beside it."""
    lines = [
        f"- {as_code(split)}: {_cell(found['overlapping'])} of {_cell(found['test_queries'])} queries"
        f" ({found['overlapping_share'] or 0:.2%})"
        for split, found in stats.get("label_overlap", {}).items()
    ]
    if lines:
        words = "Queries with a positive passage that is a positive of a training query, too (Zhan et al., 2022):"
        lines = ["", "## Label overlap with `train`", "", words, "", *lines]
    if found := stats.get("extrapolation"):
        names = ("train_queries", "test_queries", "nearest_cosine", "overlapping")
        lines += [
            "",
            "## Interpolation and extrapolation",
            "",
            f"| config | test | {' | '.join(names)} |".replace("_", " "),
        ]
        lines += [f"|---|---{'|---:' * len(names)}|"]
        for rows in found.values():
            for row in rows if isinstance(rows, list) else [rows]:
                cells = " | ".join(_cell(row[name]) for name in names)
                lines.append(f"| {as_code(row['config'])} | {as_text(row['test'])} | {cells} |")
    return _lines(lines)


def _samples(found: dict[str, Any] | None) -> str:
    """The samples of the collection: what a figure on one of them is a figure of."""
    if not found:
        return ""
    lines = []
    for name, row in found.items():
        hard = f", {_cell(row['hard'])} that runs rank high" if row["hard"] is not None else ""
        of = as_text("+".join(row["split"]))
        lines.append(
            f"- {as_code(name)}: {_cell(row['passages'])} passages, {_cell(row['positives'])} positives of {of}{hard}"
        )
    words = "Ids of passages, nested. Figures on a sample are higher than on the whole collection, and not comparable:"
    return _lines(["", "## Samples of the collection", "", words, "", *lines])


def _histograms(stats: dict[str, Any], images: Sequence[str]) -> str:
    lengths = {name: found.get("histogram") for name, found in stats["collections"].items()}
    positives = {name: found for name, found in stats.get("positives_per_query", {}).items() if found}
    parts = [f"![{image.rsplit('/', 1)[-1].removesuffix('.png').replace('-', ' ')}]({image})\n" for image in images]
    parts += _bars("characters a passage", {name: bars for name, bars in lengths.items() if bars})
    parts += _bars("positive passages a query", positives)
    return _lines(["", "## Histograms", "", *parts]) if parts else ""


def _bars(title: str, columns: dict[str, list[dict[str, Any]]]) -> list[str]:
    """A table: a row a bar, a column a collection or split, with counts and shares."""
    if not columns:
        return []
    bars = {bar["from"]: bar for found in columns.values() for bar in found}
    lines = [f"| {title} | {' | '.join(columns)} |", f"|---:{'|---:' * len(columns)}|"]
    for low in sorted(bars):
        cells = []
        for found in columns.values():
            count = next((bar["count"] for bar in found if bar["from"] == low), 0)
            cells.append(f"{count:,} ({count / max(1, sum(bar['count'] for bar in found)):.1%})")
        lines.append(f"| {bar_name(bars[low])} | {' | '.join(cells)} |")
    return [*lines, ""]


def _built(builds: list[Build]) -> str:
    built = []
    for build in builds:
        options = ", ".join(as_text(f"{name} = {value}") for name, value in build.options.items())
        built.append(f"- {as_code(build.verb)}{f' with {options}' if options else ''}{', from:' * bool(build.sources)}")
        built += [f"  - {as_text(source.name)} (sha256 {as_code(source.sha256)})" for source in build.sources]
    return _lines(["", "## How it was built", "", *built])


def _licence(configs: Configs, builds: list[Build]) -> str:
    own = "DuReader and DuReader-retrieval are published by Baidu under the Apache License 2.0."
    if _is_squad(builds):
        own = "The texts are under the licences of the sources above; the layout is that of DuReader-retrieval."
    origins = [found.terms for found in sets_of(configs) if found.terms]
    return f"""
## Licence and citation

{_lines([own, *origins])}

```bibtex
{CITATION}```
"""
