"""What a card says in English and in Chinese of any release: its columns, its limitations, how to evaluate on it."""

from __future__ import annotations

from collections.abc import Collection

import pyarrow as pa

from builders.store.layout import SETS, config_of, schema_of
from builders.store.manifest import Build

ENGLISH, CHINESE = "en", "zh"
ARXIV = "https://arxiv.org/abs/2203.10232"
PAPER = "https://aclanthology.org/2022.emnlp-main.357"

# By the names of columns; a list of passages has the columns of a passage.
_COLUMNS = {
    "_id": ("the MD5 of the text, lower-case hex", "文本的 MD5（小写十六进制）"),
    "title": ("always empty: the benchmark drops titles", "总是空：该评测集去掉了标题"),
    "text": ("a passage, or a question", "一个段落，或一个问题"),
    "query-id": ("a question's `_id`", "问题的 `_id`"),
    "corpus-id": ("a passage's `_id`", "段落的 `_id`"),
    "score": (
        "1: the passage answers the question; 0: people judged that it does not",
        "1：段落能回答问题；0：人工判断不能",
    ),
    "query_id": ("a question's `_id`", "问题的 `_id`"),
    "query": ("the question", "问题"),
    "positive_passages": (
        "passages that answer it, each with `docid`, `title`, `text`",
        "能回答它的段落，各有 `docid`、`title`、`text`",
    ),
    "negative_passages": (
        "hard negatives, where the sources bring some; else empty",
        "难负例（来源带有时）；否则为空",
    ),
    "zh_id": ("the `_id` of the Chinese question", "中文问题的 `_id`"),
    "query_zh": ("the Chinese question", "中文问题"),
}
_HEADS = {ENGLISH: ("column", "type", "configs", "meaning"), CHINESE: ("列", "类型", "配置", "含义")}
_MANY = 6

_UNJUDGED = (
    "Not every passage that answers a question is known. In the published data people judged the best 5 of the pooled"
    " passages of each development and test question, and none of the training questions; still, of 500 wrong"
    " predictions of the paper's best system 14.8 % were right (Section 3.5).",
    "并非所有能回答问题的段落都已标出。已发表的数据中，人工判断了开发集和测试集每个问题合并候选中的前 5 个段落，"
    "训练集未经人工判断；即便如此，论文最好系统的 500 个“错误”预测中，14.8% 其实是对的（第 3.5 节）。",
)
_TEXTS = (
    "The texts are web pages as they were crawled, and real queries with their typos: they may be wrong, outdated,"
    " biased or offensive. The paper publishes the data for research alone, and vouches for no one's copyright"
    " (Section 7).",
    "文本是当时抓取的网页和带有错别字的真实查询，可能有错误、过时、偏见或冒犯性内容。论文只为研究目的发布数据，"
    "不保证版权（第 7 节）。",
)
_MEDICAL = (
    "The out-of-domain sets are medical: they say little of law, finance or other domains (Section 6).",
    "域外测试集都属于医疗领域，不能说明法律、金融等其他领域的表现（第 6 节）。",
)
_SEEN = (
    "Models that were trained on DuReader, of which there are many, have seen these questions or their like.",
    "许多公开模型用过 DuReader 训练，见过这些问题或相似的问题。",
)
_BUILT = (
    "The labels of this copy were made by rule: a paragraph is positive where a span of it reaches F1 0.5 with an"
    " answer (Section 2.2.2). People judged none of them, unless the figures above say so.",
    "这一份的标注由规则得到：段落中有片段与答案的 F1 达到 0.5 即为正例（第 2.2.2 节）；"
    "除非上面另有说明，未经人工判断。",
)
_OF_READING = (
    "Each question has one known positive, its own paragraph; others may answer it, too.",
    "每个问题只有一个已知正例，即它自己的段落；其他段落也可能回答它。",
)


def is_reading(builds: Collection[Build]) -> bool:
    """Whether the passages are those of a reading comprehension set, and nothing of DuReader's."""
    return any(build.verb == "squad" for build in builds)


def is_official(builds: Collection[Build]) -> bool:
    """Whether it was made of the official archives: a copy holds some of the passages."""
    return any(build.verb == "official" and "copy" not in build.options for build in builds)


def fields(configs: Collection[str], language: str = ENGLISH) -> list[str]:
    """A table: each column, its type, the configs that have it, what it means."""
    held: dict[str, tuple[pa.DataType, list[str]]] = {}
    for config in configs:
        for field in schema_of(config):
            held.setdefault(field.name, (field.type, []))[1].append(config)
    lines = [f"| {' | '.join(_HEADS[language])} |", "|---|---|---|---|"]
    for name, (kind, found) in held.items():
        shown = ", ".join(f"`{config}`" for config in found[:_MANY]) + ", ..." * (len(found) > _MANY)
        kind = "list" if pa.types.is_list(kind) else kind
        lines.append(f"| `{name}` | {kind} | {shown} | {_COLUMNS[name][language == CHINESE]} |")
    return lines


def limitations(configs: Collection[str], builds: Collection[Build], language: str = ENGLISH) -> list[str]:
    """What figures on this release do not say, a line each."""
    said = [_OF_READING]
    if not is_reading(builds):
        medical = any(SETS[config_of(config).set].own_terms for config in configs)
        said = [_UNJUDGED, _TEXTS, *[_MEDICAL] * medical, _SEEN, *[_BUILT] * (not is_official(builds))]
    return [f"- {words[language == CHINESE]}" for words in said]


def evaluation(repo: str, split: str, language: str = ENGLISH) -> str:
    """Commands that measure a run, what they print, and how figures reach the dataset's page."""
    commands = f"""```bash
hf download {repo} --repo-type dataset --local-dir RELEASE
python -m baselines bm25 --release RELEASE --split {split} --out bm25.{split}.run.gz
python -m baselines evaluate --release RELEASE --split {split} bm25.{split}.run.gz
```
"""
    if language == CHINESE:
        return f"""{commands}
`evaluate` 给出论文的 MRR@10、Recall@1、Recall@50（Recall@k 按官方脚本：前 k 个中有正例的查询所占比例），
以及常用指标；任何 TREC 格式的运行文件都可以。`corpus`、`queries`、`qrels` 是 BEIR 的格式，mteb 等工具可直接读取。
`eval.yaml` 列出各项任务；模型仓库在 `.eval_results/` 中写明任务和分数
（`python -m baselines push --dataset {repo}` 会写）。
"""
    return f"""{commands}
`evaluate` prints the paper's MRR@10, Recall@1 and Recall@50 (Recall@k as the official script counts it: the share of
queries with a positive in the top k), and the usual measures, for any TREC run. `corpus`, `queries` and `qrels` are
BEIR's layout, which mteb and others read as it stands. `eval.yaml` lists the tasks; a model's repository names a task
and its figure in `.eval_results/` (`python -m baselines push --dataset {repo}` writes it).
"""
