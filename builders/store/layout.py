"""The release directory: THE table of its sets, configs, splits, columns and ids, from which everything else derives.

Layout: ``CONFIG/SPLIT-NNNNN-of-NNNNN.parquet``, ``README.md``, ``stats.json``, ``manifest.json``. The manifest lists
every file with its size, rows and SHA-256 and the builds it came from; it holds no times and no machine's paths, so the
same input and options give the same bytes. It is written last.

``dureader_retrieval.py``, which stands alone, repeats the configs; a test holds it equal.
"""

from __future__ import annotations

import functools
import hashlib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval"  # whose manifest it is


def text_id(text: str | bytes | memoryview) -> str:
    """Return the official identifier of a passage or a query: the lower-case hex MD5 of its UTF-8 text."""
    return hashlib.md5(text.encode() if isinstance(text, str) else text, usedforsecurity=False).hexdigest()


# Columns: BEIR's of corpus, queries and qrels, Tevatron's of joined rows.

CORPUS = pa.schema({"_id": pa.string(), "title": pa.string(), "text": pa.string()})
IDS = pa.schema({"_id": pa.string()})
QUERIES = pa.schema({"_id": pa.string(), "text": pa.string()})
QRELS = pa.schema({"query-id": pa.string(), "corpus-id": pa.string(), "score": pa.int64()})
PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]))
JOINED = pa.schema(
    {"query_id": pa.string(), "query": pa.string(), "positive_passages": PASSAGES, "negative_passages": PASSAGES}
)
CROSSLINGUAL_QUERIES = QUERIES.append(pa.field("zh_id", pa.string()))
CROSSLINGUAL = JOINED.append(pa.field("query_zh", pa.string()))


# Sets: what is searched with what, and judged by what.


@dataclass(frozen=True)
class Set:
    """The configs that one evaluation set lies in.

    Attributes:
        corpus, queries, qrels: its passages, its queries, its judgments.
        verb: the command that makes it.
        joined: by split, the config that joins the three; a set without any has none.
        table3: the columns of the paper's Table 3, as ``stats.json`` names them, and the split of each.
        translated: the queries are translations: their ``zh_id`` names the query that ``qrels`` judges.
        terms: where the texts come from and under which terms, for the card; empty where the card says it anyway.
        own_terms: they are under another licence than the benchmark.
    """

    corpus: str
    queries: str
    qrels: str
    verb: str
    joined: Mapping[str, str] = field(default_factory=dict)
    table3: Mapping[str, str] = field(default_factory=dict)
    translated: bool = False
    terms: str = ""
    own_terms: bool = False


SPLITS = ("train", "dev", "test")


def _out_of_domain(name: str, terms: str) -> Set:
    """A set of Section 2.4, whose test split is a column of Table 3."""
    return Set(
        corpus=f"{name}-corpus",
        queries=f"{name}-queries",
        qrels=f"{name}-qrels",
        verb=f"add {name}",
        table3={name: "test"},
        terms=terms,
        own_terms=True,
    )


SETS = {
    # Web search: the benchmark itself (Section 2.2).
    "main": Set(
        corpus="corpus",
        queries="queries",
        qrels="qrels",
        verb="release",
        joined={split: split for split in SPLITS},
        table3={split: split for split in SPLITS},
    ),
    "cmedqa": _out_of_domain(
        "cmedqa", "`cmedqa-*` is made from cMedQA2 (Zhang et al., 2018), which is for non-commercial research only."
    ),
    "ccovid": _out_of_domain(
        "ccovid",
        "`ccovid-*` is made from the data of the DataFountain competition 424, under that competition's terms.",
    ),
    # English queries, Chinese passages and judgments (Section 2.5).
    "crosslingual": Set(
        corpus="corpus",
        queries="crosslingual-queries",
        qrels="qrels",
        verb="add crosslingual",
        joined=dict.fromkeys(SPLITS, "crosslingual"),
        translated=True,
        terms="`crosslingual*` are English translations of the queries.",
    ),
}


# Configs, in the order in which a card lists them. A release need not hold all of them.


@dataclass(frozen=True)
class Config:
    """One config: its name, its columns, its possible splits, its set, and what the card says that it holds."""

    name: str
    columns: pa.Schema
    splits: tuple[str, ...]
    about: str
    set: str = "main"


# SIZE and NUMBER in a name match any size or number. A config's ``about`` repeats the matched text as {}.
_ANY = {"SIZE": r"([1-9]\d*[KM]?)", "NUMBER": r"([1-9]\d*)"}

# What the quality strategies of Section 2.3 take away, kept so that the effect can be measured (Table 6, Figure 2): the
# removed training questions with their passages; the development and test questions with and without one of them; the
# judgments before people corrected them.
REMOVED, TOLD_APART, BEFORE = "train-similar", ("duplicated", "others"), "qrels-before"

# What the names of drawn training sets begin with (Zhan et al., 2022): SIZE training questions near to the test
# questions or far from them; those without one bucket of the questions, tested inside and outside of the others.
DRAWN = ("restrain-", "resttest-")
SAMPLE = "sample-"  # passages: the positives of test questions, others by lot, or others that runs rank high (hard)

_PARTS = (
    ("corpus", CORPUS, ("corpus",), "Every passage"),
    ("queries", QUERIES, SPLITS, "Every query"),
    ("qrels", QRELS, SPLITS, "Relevance judgments"),
)
_OUT_OF_DOMAIN = {"cmedqa": "cMedQA (medical answers)", "ccovid": "cCOVID-News (news articles)"}
CONFIGS = (
    *(Config(part, columns, splits, f"{about} of the collection") for part, columns, splits, about in _PARTS),
    Config("train", JOINED, ("train",), "Training queries with their positive and negative passages"),
    Config("dev", JOINED, ("dev",), "Development queries with their positive passages"),
    Config("test", JOINED, ("test",), "Test queries with their positive passages (empty lists without labels)"),
    *(
        Config(f"{name}-{part}", columns, splits, f"{about} of the out-of-domain set {title}", name)
        for name, title in _OUT_OF_DOMAIN.items()
        for part, columns, splits, about in _PARTS
    ),
    Config("crosslingual-queries", CROSSLINGUAL_QUERIES, SPLITS, "English translations of queries", "crosslingual"),
    Config("crosslingual", CROSSLINGUAL, SPLITS, "English queries with their Chinese passages", "crosslingual"),
    Config(REMOVED, JOINED, ("train",), "Removed training queries that resemble development or test queries"),
    Config(TOLD_APART[0], QUERIES, ("dev", "test"), "Development and test queries that a removed query resembles"),
    Config(TOLD_APART[1], QUERIES, ("dev", "test"), "Development and test queries that no training query resembles"),
    Config(BEFORE, QRELS, SPLITS, "Relevance judgments before people corrected them"),
    Config("restrain-SIZE-interpolation", QRELS, ("train",), "Judgments of {} training queries near the test queries"),
    Config("restrain-SIZE-extrapolation", QRELS, ("train",), "Judgments of {} training queries far from test queries"),
    Config(
        *("resttest-bucketNUMBER", QRELS, ("train", "interpolation", "extrapolation")),
        "Judgments to train without bucket {0} of the queries, and to test on the other buckets and on bucket {0}",
    ),
    Config("sample-SIZE", IDS, ("corpus",), "Ids of {} passages: positives of test queries, and random passages"),
    Config("sample-SIZE-hard", IDS, ("corpus",), "Ids of {} passages: positives of test queries, and top-ranked ones"),
)


@functools.cache
def _find(name: str) -> tuple[int, Config]:
    """The position of a config in the table, and its declaration with its own name."""
    for position, config in enumerate(CONFIGS):
        pattern = config.name.replace("SIZE", _ANY["SIZE"]).replace("NUMBER", _ANY["NUMBER"])
        if found := re.fullmatch(pattern, name):
            return position, replace(config, name=name, about=config.about.format(*found.groups()))
    raise ValueError(f"{name!r} is no config of a release")


def config_of(name: str) -> Config:
    """The declaration of a config; ValueError for a name that is none."""
    return _find(name)[1]


def is_config(name: str) -> bool:
    """True if a release can have a config of that name."""
    try:
        return bool(_find(name))
    except ValueError:
        return False


def schema_of(config: str) -> pa.Schema:
    """The columns of a config; ValueError for a name that is none."""
    return config_of(config).columns


def sort_key(config: str, split: str) -> tuple[int, str, int]:
    """Sorts configs and their splits as the table has them, however a release was put together."""
    position, found = _find(config)
    return position, config, found.splits.index(split) if split in found.splits else len(found.splits)


def config_and_split(path: str) -> tuple[str, str]:
    """The config and the split of a shard, by its path in the release."""
    config, _, name = path.partition("/")
    return config, name.rsplit("-", 3)[0]


def set_of(name: str) -> Set:
    """A set by its name; ValueError for a name that is none.

    A config of training questions that were drawn (``restrain-*``, ``resttest-*``) is one, too: the main set, but for
    its judgments, which are the config's in the splits that it has.
    """
    if name in SETS:
        return SETS[name]
    if name.startswith(DRAWN) and is_config(name):
        return replace(SETS["main"], qrels=name, verb="add", joined={}, table3={})
    raise ValueError(f"{name!r} is no set")


def base_set(name: str) -> str:
    """The set whose questions and passages these are: ``main`` for a config of drawn training questions."""
    return "main" if name.startswith(DRAWN) else name


# The size of files.

ROWS_PER_GROUP = 16_384
ROWS_PER_SHARD = 8 * ROWS_PER_GROUP  # about 60 MB of passages: files are written, and read, in parallel
_PASSAGES_PER_ROW = 8  # of a split with its passages, for the size of its files: a guess
BYTES_PER_GROUP = 64 << 20  # a longer group is halved: what a reader has to hold at once


def rows_per_shard(schema: pa.Schema) -> int:
    """Rows of each file of a split but its last."""
    return max(1, ROWS_PER_SHARD // _PASSAGES_PER_ROW) if PASSAGES in schema.types else ROWS_PER_SHARD


# The judged splits of a release as tasks of a benchmark on the hub: what ``eval.yaml`` lists and what a model's
# ``.eval_results/`` names. The hub's leaderboard has one value a model and task, so that a task is one measure of one
# split of a set. Its format: github.com/huggingface/hub-docs, docs/hub/eval-results.md.

# The paper's measures (Section 3.2) and the ends of their tasks' names. Recall@k is a hit rate.
MEASURES = {"MRR@10": "mrr_at_10", "Recall@1": "recall_at_1", "Recall@50": "recall_at_50"}


def parts_of(splits: Collection[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    """Yield the sets and splits that a release with these (config, split) has test queries and judgments of."""
    for name, found in SETS.items():
        for split in ("dev", "test"):
            if (found.queries, split) in splits and (found.qrels, split) in splits:
                yield name, split


def part_id(set_name: str, split: str) -> str:
    """Return the begin of the names of a split's tasks: ``dev``, ``cmedqa_test``."""
    return split if set_name == "main" else f"{set_name}_{split}"


def task_id(set_name: str, split: str, measure: str) -> str:
    """Return the name of the task of one of :data:`MEASURES`: ``dev_mrr_at_10``."""
    return f"{part_id(set_name, split)}_{MEASURES[measure]}"
