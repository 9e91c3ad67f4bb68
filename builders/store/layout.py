"""The layout of a release directory: declarations of the sets, configs, splits, columns and ids.

A release has ``CONFIG/SPLIT-NNNNN-of-NNNNN.parquet``, ``README.md``, ``stats.json`` and ``manifest.json``. The manifest
lists the builds, and every file with its size, rows and SHA-256. The manifest is written last. It contains no times and
no local paths, so the same input and options give the same bytes.

``dureader_retrieval.py`` imports nothing from this package. Its tables are generated from this module
(:mod:`.loader_tables`).
"""

import functools
import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import pyarrow as pa

MANIFEST = "manifest.json"
NAME = "dureader_retrieval"  # the ``name`` of every manifest


# Characters of a passage or question. The longest passage of DuReader's public rows has 4,526. Longer texts are nearly
# always damaged files. They would occupy the programs for minutes and gigabytes, so they are refused.
LONGEST_TEXT = 1_000_000


def text_id(text: str | bytes | memoryview) -> str:
    """Return the official identifier of a passage or a query: the lower-case hex MD5 of its UTF-8 text."""
    text_bytes = text.encode() if isinstance(text, str) else text
    return hashlib.md5(text_bytes, usedforsecurity=False).hexdigest()


def long_text_fault(text: str | bytes) -> str:
    """Describe a text with more than ``LONGEST_TEXT`` characters; empty for other texts. Bytes are UTF-8."""
    if len(text) <= LONGEST_TEXT:  # a text has at most as many characters as bytes
        return ""
    if isinstance(text, bytes):
        text = text.decode(errors="replace")
    char_count = len(text)
    if char_count <= LONGEST_TEXT:
        return ""
    return f"a text has {char_count:,} characters, expected at most {LONGEST_TEXT:,}; cut it into passages"


def is_for_tuning(query_id: str) -> bool:
    """True for the id of a tuning question: an MD5 that begins with 0. About one in 16 training questions is one.

    If the id is not an MD5, the MD5 of the id is used. `fuse --tune train` uses only tuning questions, and `train --set
    data.leave_out=tuning` skips tuning questions.
    """
    is_md5 = re.fullmatch("[0-9a-f]{32}", query_id)
    query_hash = query_id if is_md5 else text_id(query_id)
    return query_hash.startswith("0")


# Columns. Corpus, queries and qrels have BEIR's columns, and joined rows have Tevatron's.

CORPUS = pa.schema({"_id": pa.string(), "title": pa.string(), "text": pa.string()})
IDS = pa.schema({"_id": pa.string()})
ORIGINAL_IDS = pa.schema({"original-id": pa.string(), "_id": pa.string()})
QUERIES = pa.schema({"_id": pa.string(), "text": pa.string()})
QRELS = pa.schema({"query-id": pa.string(), "corpus-id": pa.string(), "score": pa.int64()})
PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]))
JOINED = pa.schema(
    {"query_id": pa.string(), "query": pa.string(), "positive_passages": PASSAGES, "negative_passages": PASSAGES}
)
TEXTS = pa.list_(pa.string())
ANSWERS = pa.schema(
    {
        "query_id": pa.string(),
        "answers": TEXTS,
        "question_type": pa.string(),  # one of QUESTION_TYPES, or empty
        "fact_or_opinion": pa.string(),  # one of FACT_OR_OPINION, or empty
        "yesno_answers": TEXTS,  # Yes, No or Depends for each answer; empty unless people gave it
        # The entities in each answer; empty unless people gave them.
        "entity_answers": pa.list_(TEXTS),
        "source": pa.string(),  # search, zhidao, or empty: where the question was asked
        # For each answer, the ids of the judged passages that contain it.
        "answer_passages": pa.list_(TEXTS),
    }
)
QUESTION_TYPES = ("ENTITY", "DESCRIPTION", "YES_NO")
FACT_OR_OPINION = ("FACT", "OPINION")
CROSSLINGUAL_QUERIES = QUERIES.append(pa.field("zh_id", pa.string()))
# A perturbed question has the judgments of the question ``original_id``.
STRESS_QUERIES = QUERIES.append(pa.field("original_id", pa.string()))
CROSSLINGUAL = JOINED.append(pa.field("query_zh", pa.string()))


# Sets: a corpus, the queries that search it, and their judgments.


@dataclass(frozen=True)
class Set:
    """The configs of an evaluation set.

    Attributes:
        corpus, queries, qrels: the configs of the passages, queries and judgments.
        joined: the config of the joined rows by split; empty if the set has no joined rows.
        table3: column of the paper's Table 3 (its name in ``stats.json``) -> split that the column describes.
        translated: True if the queries are English translations of the main set's queries.
        original_column: column of ``queries`` with the id by which ``qrels`` refers to a query. Empty: ``_id``.
        terms: the origin of the texts, and licence terms if they differ, for the card; empty for the benchmark's texts.
        own_terms: True if the licence differs from the benchmark's.
        origin: how to make the set, with a command, for the error of a release without the set.
    """

    corpus: str
    queries: str
    qrels: str
    joined: Mapping[str, str] = field(default_factory=dict)
    table3: Mapping[str, str] = field(default_factory=dict)
    translated: bool = False
    original_column: str = ""
    terms: str = ""
    own_terms: bool = False
    origin: str = ""


SPLITS = ("train", "dev", "test")


def _out_of_domain(set_name: str, terms: str, source: str) -> Set:
    """Return an out-of-domain set (Section 2.4). The set's test split is a column of Table 3.

    ``terms`` is :attr:`Set.terms`. ``source`` names the files from which the set is made, for :attr:`Set.origin`.
    """
    return Set(
        corpus=f"{set_name}-corpus",
        queries=f"{set_name}-queries",
        qrels=f"{set_name}-qrels",
        table3={set_name: "test"},
        terms=terms,
        own_terms=True,
        origin=f"make it from {source} by `python -m builders add {set_name} --source PATH [--release DIR] --out DIR`",
    )


# The kinds of perturbed questions, in the order of the pages. builders/add/stress.toml describes them.
STRESS_KINDS = ("traditional", "homophone", "swap", "drop", "repeat", "full-width", "pinyin-word")
STRESS = "stress-"  # prefix of the sets of perturbed questions


def _stress_set(kind: str) -> Set:
    """Return the set of the development and test queries with one kind of perturbation."""
    return Set(
        corpus="corpus",
        queries=f"{STRESS}{kind}-queries",
        qrels="qrels",
        original_column="original_id",
        origin=f"make it by `python -m builders add stress --kind {kind} --release DIR --out DIR`",
    )


SETS = {
    # Web search: the benchmark itself (Section 2.2).
    "main": Set(
        corpus="corpus",
        queries="queries",
        qrels="qrels",
        joined={split: split for split in SPLITS},
        table3={split: split for split in SPLITS},
    ),
    "cmedqa": _out_of_domain(
        "cmedqa",
        "`cmedqa-*` is made from cMedQA2 (Zhang et al., 2018), which is for non-commercial research only.",
        source="cMedQA2 (github.com/zhangsheng93/cMedQA2)",
    ),
    "ccovid": _out_of_domain(
        "ccovid",
        "`ccovid-*` is made from the data of the DataFountain competition 424, under that competition's terms.",
        source="the files of DataFountain competition 424",
    ),
    # English queries, Chinese passages and judgments (Section 2.5).
    "crosslingual": Set(
        corpus="corpus",
        queries="crosslingual-queries",
        qrels="qrels",
        joined=dict.fromkeys(SPLITS, "crosslingual"),
        translated=True,
        original_column="zh_id",
        terms="`crosslingual*` are English translations of the queries.",
        origin=(
            "make it from a table of the questions in English by `python -m builders add crosslingual "
            "--source FILE --release DIR --out DIR`"
        ),
    ),
    # Perturbed queries, with the passages and judgments of their originals.
    **{f"{STRESS}{kind}": _stress_set(kind) for kind in STRESS_KINDS},
}


@dataclass(frozen=True)
class Config:
    """A config: its name, its columns, its possible splits, its description on the card, and its set."""

    name: str
    columns: pa.Schema
    splits: tuple[str, ...]
    description: str
    set: str = "main"


# Configs for the quality strategies of Section 2.3 (Table 6, Figure 2).
# REMOVED: the training questions that resemble a development or test question, with their passages.
# TOLD_APART: the development and test questions that resemble a removed question, and the remaining questions.
# BEFORE: the judgments before people corrected the judgments.
REMOVED = "train-similar"
TOLD_APART = ("duplicated", "others")
BEFORE = "qrels-before"

# Name prefixes of the drawn training sets (Zhan et al., 2022). ``restrain-*`` has training questions that are near the
# test questions or far from the test questions. ``resttest-*`` has the training questions of all buckets except one.
# The split ``extrapolation`` tests on the excluded bucket, and ``interpolation`` tests on the other buckets.
DRAWN = ("restrain-", "resttest-")
# The ids that the passages and queries of a copy had, where they differ from the MD5 of the text.
ORIGINAL_IDS_CONFIG = "original-ids"
SAMPLE = "sample-"  # prefix of configs that list a part of the passages


def _collection_configs(set_name: str, prefix: str, title: str) -> tuple[Config, ...]:
    """Return the configs of a set's passages, queries and judgments. Their names begin with ``prefix``.

    ``title`` is the set's name in the descriptions of the configs.
    """
    return (
        Config(f"{prefix}corpus", CORPUS, ("corpus",), f"Every passage of the {title}", set_name),
        Config(f"{prefix}queries", QUERIES, SPLITS, f"Every query of the {title}", set_name),
        Config(f"{prefix}qrels", QRELS, SPLITS, f"Relevance judgments of the {title}", set_name),
    )


# What a perturbation changes, for the card.
_STRESS_CHANGES = {
    "traditional": "in traditional characters",
    "homophone": "with a wrong character of the same pronunciation",
    "swap": "with two characters swapped",
    "drop": "with a character missing",
    "repeat": "with a character repeated",
    "full-width": "with full-width letters, digits and signs",
    "pinyin-word": "with a word in pinyin",
}


def _stress_config(kind: str) -> Config:
    """Return the config of the queries with one kind of perturbation."""
    set_name = f"{STRESS}{kind}"
    description = f"Development and test queries {_STRESS_CHANGES[kind]}"
    return Config(f"{set_name}-queries", STRESS_QUERIES, ("dev", "test"), description, set_name)


# The configs in the order of the card. A release may lack configs. SIZE and NUMBER in a name match any size or number,
# and the matched text replaces {} in the description.
CONFIGS = (
    *_collection_configs("main", "", "collection"),
    Config("train", JOINED, ("train",), "Training queries with their positive and negative passages"),
    Config("dev", JOINED, ("dev",), "Development queries with their positive passages"),
    Config("test", JOINED, ("test",), "Test queries with their positive passages (empty lists without labels)"),
    Config(
        "answers", ANSWERS, SPLITS, "People's answers to the queries, the type of each query and where it was asked"
    ),
    Config(
        ORIGINAL_IDS_CONFIG,
        ORIGINAL_IDS,
        ("corpus", "queries"),
        "Ids of the passages and queries in the files that the release was made from, and their MD5 ids",
    ),
    *_collection_configs("cmedqa", "cmedqa-", "out-of-domain set cMedQA (medical answers)"),
    *_collection_configs("ccovid", "ccovid-", "out-of-domain set cCOVID-News (news articles)"),
    Config("crosslingual-queries", CROSSLINGUAL_QUERIES, SPLITS, "English translations of queries", "crosslingual"),
    Config("crosslingual", CROSSLINGUAL, SPLITS, "English queries with their Chinese passages", "crosslingual"),
    *(_stress_config(kind) for kind in STRESS_KINDS),
    Config(REMOVED, JOINED, ("train",), "Removed training queries that resemble development or test queries"),
    Config(TOLD_APART[0], QUERIES, ("dev", "test"), "Development and test queries that a removed query resembles"),
    Config(TOLD_APART[1], QUERIES, ("dev", "test"), "Development and test queries that no training query resembles"),
    Config(BEFORE, QRELS, SPLITS, "Relevance judgments before people corrected them"),
    Config("restrain-SIZE-interpolation", QRELS, ("train",), "Judgments of {} training queries near the test queries"),
    Config(
        "restrain-SIZE-extrapolation", QRELS, ("train",), "Judgments of {} training queries far from the test queries"
    ),
    Config(
        "resttest-bucketNUMBER",
        QRELS,
        ("train", "interpolation", "extrapolation"),
        "Judgments to train on all buckets of queries but {0}, and to test on bucket {0} and on the other buckets",
    ),
    Config("sample-SIZE", IDS, ("corpus",), "Ids of {} passages: the positives of a split, and random passages"),
    Config("sample-SIZE-hard", IDS, ("corpus",), "Ids of {} passages: the positives of a split, and top-ranked ones"),
)
_SIZE_PATTERN = r"([1-9]\d*[KM]?)"  # such as 10K
_NUMBER_PATTERN = r"([1-9]\d*)"


@functools.cache
def _find_config(config_name: str) -> tuple[int, Config]:
    """Return a config's position in ``CONFIGS``, and its declaration with the real name.

    In the declaration, the size or number in ``config_name`` replaces ``SIZE`` or ``NUMBER``, and ``{}`` in the
    description. Raise ValueError for an unknown name.
    """
    for position, config in enumerate(CONFIGS):
        pattern = config.name.replace("SIZE", _SIZE_PATTERN).replace("NUMBER", _NUMBER_PATTERN)
        match = re.fullmatch(pattern, config_name)
        if match:
            return position, replace(config, name=config_name, description=config.description.format(*match.groups()))
    raise ValueError(f"{config_name!r} is no config of a release")


def config_of(config_name: str) -> Config:
    """Return the declaration of a config. Raise ValueError for an unknown name."""
    _, config = _find_config(config_name)
    return config


def is_config(config_name: str) -> bool:
    """True if a release can have a config called ``config_name``."""
    try:
        _find_config(config_name)
    except ValueError:
        return False
    return True


def schema_of(config: str) -> pa.Schema:
    """Return the columns of a config. Raise ValueError for an unknown name."""
    return config_of(config).columns


def sort_key(config: str, split: str) -> tuple[int, str, int]:
    """Return a sort key that puts configs and their splits in the order of :data:`CONFIGS`."""
    position, declaration = _find_config(config)
    split_position = len(declaration.splits)  # an unknown split comes last
    if split in declaration.splits:
        split_position = declaration.splits.index(split)
    return position, config, split_position


def config_and_split(shard_path: str) -> tuple[str, str]:
    """Return the config and the split of a shard from its path in the release."""
    config, _, shard_name = shard_path.partition("/")
    split = shard_name.rsplit("-", 3)[0]  # SPLIT-NNNNN-of-NNNNN.parquet
    return config, split


def set_of(set_name: str) -> Set:
    """Return a set by its name. Raise ValueError for an unknown name.

    For a drawn training set (``restrain-*``, ``resttest-*``), return the main set with the drawn config as ``qrels``.
    """
    if set_name in SETS:
        return SETS[set_name]
    if set_name.startswith(DRAWN) and is_config(set_name):
        return replace(SETS["main"], qrels=set_name, joined={}, table3={})
    raise ValueError(f"{set_name!r} is no set")


def base_set(set_name: str) -> str:
    """Return the set with the questions and passages of a set: ``main`` for a drawn training set, else ``set_name``."""
    return "main" if set_name.startswith(DRAWN) else set_name


ROWS_PER_GROUP = 16_384
# About 60 MB of passages, so that files are written and read in parallel.
ROWS_PER_SHARD = 8 * ROWS_PER_GROUP
_PASSAGES_PER_ROW = 8  # estimate for rows with lists of passages or answers
# Larger groups are halved, because a reader keeps a whole group in memory.
BYTES_PER_GROUP = 64 << 20


def rows_per_shard(schema: pa.Schema) -> int:
    """Return the number of rows of a split's shards. The last shard may have fewer rows."""
    has_lists = any(pa.types.is_list(column_type) for column_type in schema.types)
    if has_lists:
        return max(1, ROWS_PER_SHARD // _PASSAGES_PER_ROW)
    return ROWS_PER_SHARD
