"""README.zh.md of a published release: its card in Chinese, from the same figures as the English one."""

from __future__ import annotations

from typing import Any

from builders.store.card import CITATION, Published, built, table_of, titled, usage_of
from builders.store.card_figures import cell, lines_of
from builders.store.card_head import Configs, sets_of
from builders.store.card_words import ARXIV, CHINESE, PAPER, evaluation, fields, is_official, is_reading, limitations
from builders.store.manifest import Build
from builders.store.table3 import TABLE3_ROWS

_FIGURES = {
    "queries": "查询数",
    "positive_passages": "正例段落数",
    "passages_per_query": "每个查询的正例数",
    "chars_per_query": "查询平均字数",
    "chars_per_passage": "正例段落平均字数",
}


def chinese_card(configs: Configs, stats: dict[str, Any], builds: list[Build], published: Published) -> str:
    """The card as Markdown, without a head: the hub reads that of README.md."""
    parts = (
        _about(builds),
        titled("使用", f"```python\n{usage_of(configs, published.repo)}\n```\n"),
        titled("示例", published.example),
        titled("配置", _configs(configs)),
        titled("各列", lines_of(fields(configs, CHINESE))),
        titled("统计", _figures(stats)),
        titled("分数", published.scores),
        titled("如何评测", evaluation(published.repo, published.split, CHINESE) if published.split else ""),
        titled("局限", lines_of(limitations(configs, builds, CHINESE))),
        titled("由什么构建", built(builds)),
        titled("许可与引用", _licence(configs, builds)),
    )
    return "\n".join(part.strip("\n") + "\n" for part in parts if part)


def _about(builds: list[Build]) -> str:
    if is_reading(builds):
        return """# 阅读理解作为段落检索

[English](README.md)

阅读理解数据集的问题，各自在段落集合中查找所属段落，格式与 DuReader-retrieval 相同。
由 `dureader_retrieval` 用下面列出的来源构建，不含 DuReader 的任何内容。
"""
    own = "" if is_official(builds) else "，不是已发表的全集的统计"
    return f"""# DuReader-retrieval

[English](README.md)

中文网页搜索段落检索评测集（Qiu 等，[EMNLP 2022]({PAPER})，[arXiv]({ARXIV})）：
查询、段落集合，以及哪些段落能回答哪个查询。
这一份由 `dureader_retrieval` 用下面列出的来源构建；下面的数字是这些来源的统计{own}。
"""


def _configs(configs: Configs) -> str:
    return f"""{lines_of(table_of(configs, "| 配置 | 划分 | 行数 | 文件数 | 大小 |"))}

`corpus`、`queries`、`qrels` 采用 BEIR 的格式；`train`、`dev`、`test` 把它们连接起来：每行一个查询及其正例段落。
没有标注的划分列表为空、没有 qrels；有标注的划分不含没有正例的问题。
"""


def _figures(stats: dict[str, Any]) -> str:
    columns = list(stats["table3"])
    table = [f"| | {' | '.join(columns)} |", f"|---{'|---:' * len(columns)}|"]
    for key, _ in TABLE3_ROWS:
        cells = " | ".join(cell(stats["table3"][column].get(key)) for column in columns)
        table.append(f"| {_FIGURES[key]} | {cells} |")
    collections = [
        f"`{name}`：{cell(found['passages'])} 个段落，平均 {cell(found['mean_chars'])} 字"
        f"（中位数 {cell(found['median_chars'])}）。"
        for name, found in stats["collections"].items()
    ]
    return lines_of([*(table if columns else []), "", *collections])


def _licence(configs: Configs, builds: list[Build]) -> str:
    own = "DuReader 和 DuReader-retrieval 由百度以 Apache License 2.0 发布。"
    if is_reading(builds):
        own = "文本遵循上述来源各自的许可。"
    origins = [found.terms for found in sets_of(configs) if found.terms]
    return f"""{lines_of([own, *origins])}

```bibtex
{CITATION}```
"""
