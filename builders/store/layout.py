"""The release directory: THE table of its sets, configs, splits and columns, from which everything else derives.

Layout: ``CONFIG/SPLIT-NNNNN-of-NNNNN.parquet``, ``README.md``, ``stats.json``, ``manifest.json``. The manifest lists
every file with its size, rows and SHA-256 and the builds it came from; it holds no times and no machine's paths, so the
same input and options give the same bytes. It is written last.

``dureader_retrieval.py``, which stands alone, repeats the configs; a test holds it equal.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval"  # whose manifest it is

# Columns: BEIR's of corpus, queries and qrels, Tevatron's of joined rows.

CORPUS = pa.schema([("_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
IDS = pa.schema([("_id", pa.string())])
QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string())])
QRELS = pa.schema([("query-id", pa.string()), ("corpus-id", pa.string()), ("score", pa.int64())])
PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]))
JOINED = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("positive_passages", PASSAGES),
        ("negative_passages", PASSAGES),
    ]
)
CROSSLINGUAL_QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string()), ("zh_id", pa.string())])
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

SETS = {
    # Web search: the benchmark itself (Section 2.2).
    "main": Set(
        corpus="corpus",
        queries="queries",
        qrels="qrels",
        verb="release",
        joined={"train": "train", "dev": "dev", "test": "test"},
        table3={"train": "train", "dev": "dev", "test": "test"},
    ),
    # Out of domain (Section 2.4).
    "cmedqa": Set(
        corpus="cmedqa-corpus",
        queries="cmedqa-queries",
        qrels="cmedqa-qrels",
        verb="add cmedqa",
        table3={"cmedqa": "test"},
        terms="`cmedqa-*` is made from cMedQA2 (Zhang et al., 2018), which is for non-commercial research only.",
        own_terms=True,
    ),
    "ccovid": Set(
        corpus="ccovid-corpus",
        queries="ccovid-queries",
        qrels="ccovid-qrels",
        verb="add ccovid",
        table3={"ccovid": "test"},
        terms="`ccovid-*` is made from the data of the DataFountain competition 424, under that competition's terms.",
        own_terms=True,
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
    """One config: its name, its columns, the splits that it can have, the set it belongs to, and what a row is."""

    name: str
    columns: pa.Schema
    splits: tuple[str, ...]
    set: str
    about: str


# SIZE and NUMBER stand for any: training questions drawn for extrapolation evaluation, samples of the collection.
_ANY = {"SIZE": r"([1-9]\d*[KM]?)", "NUMBER": r"([1-9]\d*)"}
_BUCKET = "trained without bucket NUMBER of the questions, tested inside and outside of the others"

# What the quality strategies of Section 2.3 take away: the removed training questions; the development and test
# questions with and without one of them; the judgments before people corrected them.
REMOVED, TOLD_APART, BEFORE = "train-similar", ("duplicated", "others"), "qrels-before"

# What the names of drawn training sets begin with (Zhan et al., 2022).
DRAWN = ("restrain-", "resttest-")
SAMPLE = "sample-"  # and those of samples of the collection

CONFIGS = (
    Config("corpus", CORPUS, ("corpus",), "main", "every passage of the collection"),
    Config("queries", QUERIES, SPLITS, "main", "every question"),
    Config("qrels", QRELS, SPLITS, "main", "which passage answers which question"),
    Config("train", JOINED, ("train",), "main", "training questions with their positive and negative passages"),
    Config("dev", JOINED, ("dev",), "main", "development questions with their positive passages"),
    Config("test", JOINED, ("test",), "main", "test questions; without published labels their lists are empty"),
    Config(
        *("cmedqa-corpus", CORPUS, ("corpus",), "cmedqa"),
        "every passage of the out-of-domain set cMedQA (medical answers)",
    ),
    Config("cmedqa-queries", QUERIES, SPLITS, "cmedqa", "every question of cMedQA"),
    Config("cmedqa-qrels", QRELS, SPLITS, "cmedqa", "which passage answers which question of cMedQA"),
    Config(
        *("ccovid-corpus", CORPUS, ("corpus",), "ccovid"),
        "every passage of the out-of-domain set cCOVID-News (news articles)",
    ),
    Config("ccovid-queries", QUERIES, SPLITS, "ccovid", "every question of cCOVID-News"),
    Config("ccovid-qrels", QRELS, SPLITS, "ccovid", "which passage answers which question of cCOVID-News"),
    Config(
        *("crosslingual-queries", CROSSLINGUAL_QUERIES, SPLITS, "crosslingual"),
        "every question that is translated, in English",
    ),
    Config(
        *("crosslingual", CROSSLINGUAL, SPLITS, "crosslingual"),
        "the questions in English and Chinese with their Chinese passages",
    ),
    # Kept so that the effect of removing them can be measured (Table 6, Figure 2).
    Config(
        *(REMOVED, JOINED, ("train",), "main"),
        "training questions removed because they are similar to a development or test question, with their passages",
    ),
    Config(
        *(TOLD_APART[0], QUERIES, ("dev", "test"), "main"),
        "development and test questions that a removed training question is similar to",
    ),
    Config(
        *(TOLD_APART[1], QUERIES, ("dev", "test"), "main"),
        "development and test questions that no training question is similar to",
    ),
    Config(BEFORE, QRELS, SPLITS, "main", "the judgments before people corrected them"),
    Config(
        *("restrain-SIZE-interpolation", QRELS, ("train",), "main"),
        "judgments of SIZE training questions near to the test questions",
    ),
    Config(
        *("restrain-SIZE-extrapolation", QRELS, ("train",), "main"),
        "judgments of SIZE training questions far from the test questions",
    ),
    Config("resttest-bucketNUMBER", QRELS, ("train", "interpolation", "extrapolation"), "main", _BUCKET),
    Config("sample-SIZE", IDS, ("corpus",), "main", "SIZE passages: the positives of test questions, others by lot"),
    Config(
        *("sample-SIZE-hard", IDS, ("corpus",), "main"),
        "SIZE passages: the positives of test questions, others that runs rank high",
    ),
)


@functools.cache
def _find(name: str) -> tuple[int, Config]:
    """The position of a config in the table, and its declaration with its own name."""
    for position, config in enumerate(CONFIGS):
        word = next((word for word in _ANY if word in config.name), "")
        if not word and config.name == name:
            return position, config
        if word and (match := re.fullmatch(config.name.replace(word, _ANY[word]), name)):
            return position, replace(config, name=name, about=config.about.replace(word, match[1]))
    raise ValueError(f"{name!r} is no config of a release")


def config_of(name: str) -> Config:
    """The declaration of a config; ValueError for a name that is none."""
    return _find(name)[1]


def is_config(name: str) -> bool:
    """Whether a release can have a config of that name."""
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
