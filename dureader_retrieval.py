"""Load DuReader-retrieval with the ``datasets`` library, from a release directory or from the published archive.

``python -m builders release --raw PATH --out DIR`` writes a release directory: Parquet shards, and a
``manifest.json`` with the size, the rows and the SHA-256 of each shard. Three ways load the same rows: the functions of
this module, the name of the dataset on datasets 5.x, or this file as a script on datasets 3.x::

    import dureader_retrieval
    dureader_retrieval.load_dataset("dev", data_dir="DIR")
    datasets.load_dataset("dureader_retrieval", "dev", data_dir="DIR")
    datasets.load_dataset("path/to/dureader_retrieval.py", "dev", data_dir="DIR", trust_remote_code=True)

A shard is verified immediately before it is read, also with streaming. A prepared copy in the cache is used only while
the release is unchanged.

Without ``data_dir``, the original release's archive (``ARCHIVE``) is downloaded once into the downloads folder of
``datasets``, and verified. The archive has the configs corpus, queries, qrels, train and dev. Streaming also downloads
the whole archive first. The environment variable ``DUREADER_RETRIEVAL_BASE_URL`` names a mirror.

The parts of this file are the configs, the builder, the public functions, reading a release, downloading and reading
the archive, and the registration by name. The columns and the configs are generated (``builders/store/layout.py``).
"""

import contextlib
import gzip
import hashlib
import http.client
import importlib.util
import io
import itertools
import json
import os
import re
import stat
import sys
import tarfile
import time
import urllib.error
import urllib.request
import warnings
import zlib
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
from datasets.utils._filelock import FileLock

__version__ = "1.0.0"  # of the project; written by builders/store/loader_tables.py
__all__ = [
    "CITATION",
    "CONFIGS",
    "DureaderRetrieval",
    "ReleaseConfig",
    "ReleaseError",
    "__version__",
    "load_dataset",
    "splits_of",
]

NAME = "dureader_retrieval"
VERSION = "1.0.0"  # of the dataset
FORMAT = 1  # the format of manifest.json
HOMEPAGE = "https://github.com/baidu/DuReader/tree/master/DuReader-Retrieval"
LICENSE = "Apache-2.0"
DESCRIPTION = (
    "DuReader-retrieval is a Chinese passage retrieval dataset: questions asked to a web search engine, passages cut "
    "from the web pages in the search results, and the passages that answer each question."
)
CITATION = """\
@inproceedings{qiu-etal-2022-dureader,
    title = "{D}u{R}eader-Retrieval: A Large-scale {C}hinese Benchmark for Passage Retrieval from Web Search Engine",
    author = "Qiu, Yifu and Li, Hongyu and Qu, Yingqi and Chen, Ying and She, QiaoQiao and Liu, Jing and Wu, Hua and
      Wang, Haifeng",
    booktitle = "Proceedings of the 2022 Conference on Empirical Methods in Natural Language Processing",
    year = "2022",
    address = "Abu Dhabi, United Arab Emirates",
    publisher = "Association for Computational Linguistics",
    url = "https://aclanthology.org/2022.emnlp-main.357",
    pages = "5326--5338",
}
"""

_TEXT = datasets.Value("string")

# The original release. Values that nobody has published are None. The SHA-256 of the first download is printed and
# recorded, and later downloads must have the same SHA-256.
BASE_URL = "https://dataset-bj.cdn.bcebos.com/"
ARCHIVE: dict[str, Any] = {
    "url": f"{BASE_URL}qianyan/dureader_retrieval-data.v0.tar.gz",
    "bytes": None,
    "md5": None,
    "sha256": None,
}

# A config whose first split, also called "queries", has the queries of all splits.
_ALL_QUERIES = "queries"


class Declaration(NamedTuple):
    """A config: a key of :data:`COLUMNS`, the possible splits in their order, and a description."""

    columns: str
    splits: tuple[str, ...]
    description: str


# COLUMNS has the columns of each kind of config. Additional columns of a newer release are not read. A list of records
# is declared as a list, because a Sequence would be a record of lists. CONFIGS has the declarations of the configs by
# name. A release may lack configs.
# Generated from builders/store/layout.py by `python -m builders.store.loader_tables`.
COLUMNS: dict[str, dict[str, Any]] = {
    "corpus": {
        "_id": _TEXT,
        "title": _TEXT,
        "text": _TEXT,
    },
    "ids": {
        "_id": _TEXT,
    },
    "original-ids": {
        "original-id": _TEXT,
        "_id": _TEXT,
    },
    "queries": {
        "_id": _TEXT,
        "text": _TEXT,
    },
    "qrels": {
        "query-id": _TEXT,
        "corpus-id": _TEXT,
        "score": datasets.Value("int64"),
    },
    "joined": {
        "query_id": _TEXT,
        "query": _TEXT,
        "positive_passages": [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}],
        "negative_passages": [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}],
    },
    "crosslingual-queries": {
        "_id": _TEXT,
        "text": _TEXT,
        "zh_id": _TEXT,
    },
    "crosslingual": {
        "query_id": _TEXT,
        "query": _TEXT,
        "positive_passages": [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}],
        "negative_passages": [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}],
        "query_zh": _TEXT,
    },
    "stress-queries": {
        "_id": _TEXT,
        "text": _TEXT,
        "original_id": _TEXT,
    },
    "answers": {
        "query_id": _TEXT,
        "answers": [_TEXT],
        "question_type": _TEXT,
        "fact_or_opinion": _TEXT,
        "yesno_answers": [_TEXT],
        "entity_answers": [[_TEXT]],
        "source": _TEXT,
        "answer_passages": [[_TEXT]],
    },
}
CONFIGS: dict[str, Declaration] = {
    "corpus": Declaration(
        columns="corpus",
        splits=("corpus",),
        description="Every passage of the collection",
    ),
    "queries": Declaration(
        columns="queries",
        splits=("train", "dev", "test"),
        description="Every query of the collection",
    ),
    "qrels": Declaration(
        columns="qrels",
        splits=("train", "dev", "test"),
        description="Relevance judgments of the collection",
    ),
    "train": Declaration(
        columns="joined",
        splits=("train",),
        description="Training queries with their positive and negative passages",
    ),
    "dev": Declaration(
        columns="joined",
        splits=("dev",),
        description="Development queries with their positive passages",
    ),
    "test": Declaration(
        columns="joined",
        splits=("test",),
        description="Test queries with their positive passages (empty lists without labels)",
    ),
    "answers": Declaration(
        columns="answers",
        splits=("train", "dev", "test"),
        description="People's answers to the queries, the type of each query and where it was asked",
    ),
    "original-ids": Declaration(
        columns="original-ids",
        splits=("corpus", "queries"),
        description="Ids of the passages and queries in the files that the release was made from, and their MD5 ids",
    ),
    "cmedqa-corpus": Declaration(
        columns="corpus",
        splits=("corpus",),
        description="Every passage of the out-of-domain set cMedQA (medical answers)",
    ),
    "cmedqa-queries": Declaration(
        columns="queries",
        splits=("train", "dev", "test"),
        description="Every query of the out-of-domain set cMedQA (medical answers)",
    ),
    "cmedqa-qrels": Declaration(
        columns="qrels",
        splits=("train", "dev", "test"),
        description="Relevance judgments of the out-of-domain set cMedQA (medical answers)",
    ),
    "ccovid-corpus": Declaration(
        columns="corpus",
        splits=("corpus",),
        description="Every passage of the out-of-domain set cCOVID-News (news articles)",
    ),
    "ccovid-queries": Declaration(
        columns="queries",
        splits=("train", "dev", "test"),
        description="Every query of the out-of-domain set cCOVID-News (news articles)",
    ),
    "ccovid-qrels": Declaration(
        columns="qrels",
        splits=("train", "dev", "test"),
        description="Relevance judgments of the out-of-domain set cCOVID-News (news articles)",
    ),
    "crosslingual-queries": Declaration(
        columns="crosslingual-queries",
        splits=("train", "dev", "test"),
        description="English translations of queries",
    ),
    "crosslingual": Declaration(
        columns="crosslingual",
        splits=("train", "dev", "test"),
        description="English queries with their Chinese passages",
    ),
    "stress-traditional-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries in traditional characters",
    ),
    "stress-homophone-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with a wrong character of the same pronunciation",
    ),
    "stress-swap-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with two characters swapped",
    ),
    "stress-drop-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with a character missing",
    ),
    "stress-repeat-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with a character repeated",
    ),
    "stress-full-width-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with full-width letters, digits and signs",
    ),
    "stress-pinyin-word-queries": Declaration(
        columns="stress-queries",
        splits=("dev", "test"),
        description="Development and test queries with a word in pinyin",
    ),
    "train-similar": Declaration(
        columns="joined",
        splits=("train",),
        description="Removed training queries that resemble development or test queries",
    ),
    "duplicated": Declaration(
        columns="queries",
        splits=("dev", "test"),
        description="Development and test queries that a removed query resembles",
    ),
    "others": Declaration(
        columns="queries",
        splits=("dev", "test"),
        description="Development and test queries that no training query resembles",
    ),
    "qrels-before": Declaration(
        columns="qrels",
        splits=("train", "dev", "test"),
        description="Relevance judgments before people corrected them",
    ),
}
# Pattern of a name -> declaration. The parts of the name in parentheses replace {} in the description.
_SIZED_CONFIGS: dict[str, Declaration] = {
    r"restrain-([1-9]\d*[KM]?)-interpolation": Declaration(
        columns="qrels",
        splits=("train",),
        description="Judgments of {} training queries near the test queries",
    ),
    r"restrain-([1-9]\d*[KM]?)-extrapolation": Declaration(
        columns="qrels",
        splits=("train",),
        description="Judgments of {} training queries far from the test queries",
    ),
    r"resttest-bucket([1-9]\d*)": Declaration(
        columns="qrels",
        splits=("train", "interpolation", "extrapolation"),
        description=(
            "Judgments to train on all buckets of queries but {0}, and to test on bucket {0} and on the other buckets"
        ),
    ),
    r"sample-([1-9]\d*[KM]?)": Declaration(
        columns="ids",
        splits=("corpus",),
        description="Ids of {} passages: the positives of a split, and random passages",
    ),
    r"sample-([1-9]\d*[KM]?)-hard": Declaration(
        columns="ids",
        splits=("corpus",),
        description="Ids of {} passages: the positives of a split, and top-ranked ones",
    ),
}
_SET_ORIGINS = {
    "cmedqa": (
        "make it from cMedQA2 (github.com/zhangsheng93/cMedQA2) by `python -m builders add cmedqa --source PATH "
        "[--release DIR] --out DIR`"
    ),
    "ccovid": (
        "make it from the files of DataFountain competition 424 by `python -m builders add ccovid --source PATH "
        "[--release DIR] --out DIR`"
    ),
    "crosslingual": (
        "make it from a table of the questions in English by `python -m builders add crosslingual --source FILE "
        "--release DIR --out DIR`"
    ),
    "stress-traditional": "make it by `python -m builders add stress --kind traditional --release DIR --out DIR`",
    "stress-homophone": "make it by `python -m builders add stress --kind homophone --release DIR --out DIR`",
    "stress-swap": "make it by `python -m builders add stress --kind swap --release DIR --out DIR`",
    "stress-drop": "make it by `python -m builders add stress --kind drop --release DIR --out DIR`",
    "stress-repeat": "make it by `python -m builders add stress --kind repeat --release DIR --out DIR`",
    "stress-full-width": "make it by `python -m builders add stress --kind full-width --release DIR --out DIR`",
    "stress-pinyin-word": "make it by `python -m builders add stress --kind pinyin-word --release DIR --out DIR`",
}
# End of the generated lines.


def _declare_sized(name: str) -> Declaration | None:
    """Return the declaration of a config with a size or number in its name, like sample-10K; None for other names."""
    for pattern, declaration in _SIZED_CONFIGS.items():
        match = re.fullmatch(pattern, name)
        if match:
            return declaration._replace(description=declaration.description.format(*match.groups()))
    return None


def _declaration(name: str) -> Declaration:
    """Return the declaration of a config by its name, for example sample-20K. Raise ValueError for other names."""
    declaration = CONFIGS.get(name) or _declare_sized(name)
    if declaration is None:
        raise ValueError(f"unknown config {name!r}; name a config of {NAME}: {', '.join(CONFIGS)}")
    return declaration


# The samples of the paper that studies interpolation and extrapolation, and samples of usual sizes. Samples of other
# sizes also load by their names.
_SIZED_NAMES = [
    "restrain-14K-interpolation",
    "restrain-14K-extrapolation",
    "restrain-45K-interpolation",
    "restrain-45K-extrapolation",
    "restrain-200K-interpolation",
    "restrain-200K-extrapolation",
    "resttest-bucket1",
    "resttest-bucket2",
    "resttest-bucket3",
    "resttest-bucket4",
    "resttest-bucket5",
    "sample-10K",
    "sample-10K-hard",
    "sample-100K",
    "sample-100K-hard",
    "sample-1M",
    "sample-1M-hard",
]
for _sized_name in _SIZED_NAMES:
    CONFIGS[_sized_name] = _declaration(_sized_name)

# Config -> split -> file in the archive.
_ROOT = "dureader_retrieval-data"
_LABELLED = {"train": f"{_ROOT}/train.json", "dev": f"{_ROOT}/dev.json"}
_ARCHIVED: dict[str, dict[str, str]] = {
    "corpus": {"corpus": f"{_ROOT}/passage_collection.json"},
    _ALL_QUERIES: _LABELLED,
    "qrels": _LABELLED,
    "train": {"train": _LABELLED["train"]},
    "dev": {"dev": _LABELLED["dev"]},
}

# The published number of records in each file of the archive (the paper's Table 3).
_PUBLISHED_COUNTS = {_ARCHIVED["corpus"]["corpus"]: 8_096_668, _LABELLED["train"]: 86_395, _LABELLED["dev"]: 2_000}

# datasets 3.x copies this file to a folder from which the package ``builders`` cannot be imported.
_HERE = "" if importlib.util.find_spec("builders") else " (where the project is installed)"

# The origin of configs that the archive lacks, by the first word of the config: "train" stands for train-similar and
# "qrels" for qrels-before, because the archive has train and qrels. _SET_ORIGINS has the origins of the other sets,
# without _HERE.
_SIMILAR_ORIGIN = f"make it from a release by `python -m builders similar`{_HERE}"
_ORIGINS = {
    "test": (
        "the test questions were published in other files (test1.json, test2.json) without labels; `python -m builders "
        f"official --archive PATH... --out DIR`{_HERE} puts the questions into a release"
    ),
    "answers": (
        "add it to a release from raw DuReader 2.0: `python -m builders add answers --raw PATH --release DIR "
        f"--out DIR`{_HERE}"
    ),
    "original": (
        "only a release that was made from a copy has it, if ids differed: `python -m builders official --copy "
        f"DIR_OR_REPO --out DIR`{_HERE}"
    ),
    "train": _SIMILAR_ORIGIN,
    "duplicated": _SIMILAR_ORIGIN,
    "others": _SIMILAR_ORIGIN,
    "qrels": f"make it by correcting a release's judgments: `python -m builders annotate merge`{_HERE}",
    "restrain": f"sample it from a release by `python -m builders add restrain`{_HERE}",
    "sample": f"draw it from a release's passages by `python -m builders add samples`{_HERE}",
    "resttest": f"sample it from a release by `python -m builders add resttest`{_HERE}",
}
for _set_name, _set_origin in _SET_ORIGINS.items():
    _ORIGINS[_set_name] = f"{_set_origin}{_HERE}"

_SHARD_NAME = re.compile(r"([\w.-]+)/([\w.-]+)-(\d{5})-of-(\d{5})\.parquet")
_RELEASE_ADVICE = f"`python -m builders release --raw PATH --out DIR`{_HERE} makes a release"

# Reading files.
# `datasets` replaces open() in this module by a function that treats "::" in a path as an address.
_open = io.open
_LARGEST_MANIFEST_BYTES = 64 << 20
_BLOCK_BYTES = 1 << 20
_BATCH_ROWS = 1024  # a joined row can have 100 kB

# Status codes of HTTP.
_PARTIAL_CONTENT = 206
_RANGE_NOT_SATISFIABLE = 416
_TEMPORARY_ERRORS = (408, 425, 429)  # a timeout, an early request, too many requests
_FIRST_SERVER_ERROR = 500
_WEAK_TAG = "W/"  # beginning of an ETag
_GZIP_SIGNATURE = b"\x1f\x8b"

# Downloading.
_KEY_DIGITS = 16  # hex digits of hashes in names
_MOST_FAILURES = 5  # maximum number of successive requests without progress
_FIRST_PAUSE = 1.0  # seconds before the second request; each further pause is twice as long
_LONGEST_PAUSE = 60
_TIMEOUT_SECONDS = 60.0  # without a byte; the whole download may take longer

# Reading the archive.
_LONGEST_RECORD_BYTES = 64 << 20  # maximum bytes of a line of JSON
# After decompression; the collection has about 8 GB.
_LARGEST_CONTENT_BYTES = 64 << 30
_MOST_MEMBERS = 1000
_LISTED_MEMBERS = 9  # names that an error lists
# Errors while reading a damaged tar.gz. OverflowError: an impossible number. RecursionError: too many nested headers.
_DAMAGE_ERRORS = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError, RecursionError)


def _features(config_name: str) -> Any:
    return datasets.Features(COLUMNS[_declaration(config_name).columns])


def _add_all_queries(config_name: str, splits: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return ``splits``, the shards or members by split. The config ``queries`` gets a first split with those of all.

    A single split is returned alone, because it has all queries already.
    """
    if config_name != _ALL_QUERIES or len(splits) == 1:
        return splits
    all_sources = []
    # Sorted by name, because the file pattern in the card lists the files in this order.
    for split in sorted(splits):
        all_sources += splits[split]
    return {_ALL_QUERIES: all_sources, **splits}


class ReleaseError(datasets.exceptions.DatasetGenerationError, ValueError):  # type: ignore[misc]  # datasets is untyped
    """The release or the archive is damaged, or lacks the config. The message names the file.

    The class is a DatasetGenerationError, because ``datasets`` hides the messages of other errors.
    """


class Shard(NamedTuple):
    """A Parquet file (absolute path) with its manifest entry."""

    path: str
    size: int
    rows: int
    sha256: str


class Member(NamedTuple):
    """A file in the archive: the archive's URL and SHA-256, and the file's name in the archive."""

    url: str
    sha256: str
    name: str


class ReleaseConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """A config. :meth:`create_config_id` sets ``sources``, the files of each split."""

    data_dir: str | None
    sources: dict[str, list[Shard]] | dict[str, list[Member]]

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: datasets.Features | None = None) -> str:
        """Return a content-dependent name for the cache folder, so that a changed release is prepared again.

        ``datasets`` calls this method first, so a wrong ``data_dir`` fails before any work. The name depends on the
        directory, on the config's shards in the manifest, and on their times: after an edit in place, a shard must be
        verified again. For the archive, the name depends on its SHA-256. If the SHA-256 is unknown, this method
        downloads the archive. ``custom_features`` are the columns and types that the caller selects; they also change
        the name. ``config_kwargs`` is not used.
        """
        _declaration(self.name)  # datasets invents a config "default" if the user names no config
        if self.data_files:
            raise ValueError(f"{NAME} reads a release directory: pass data_dir=DIR, not data_files")
        content: list[Any]
        if self.data_dir:
            # An absolute path survives a change of the working directory, and gives one cache entry per release.
            self.data_dir = os.path.abspath(os.path.expanduser(os.fspath(self.data_dir)))
            self.sources = _read_manifest(self.data_dir, self.name)
            shard_states = []
            for shards in self.sources.values():
                for shard in shards:
                    shard_states.append((shard, _check_size(shard)))
            content = [self.data_dir, shard_states]
        else:
            if self.name not in _ARCHIVED:
                raise ReleaseError(describe_missing(self.name))
            url = _archive_url()
            sha256 = _recorded_sha256(_local_files(url))
            if not sha256:
                _, sha256 = _fetch(url)
            members = {split: [Member(url, sha256, name)] for split, name in _ARCHIVED[self.name].items()}
            self.sources = _add_all_queries(self.name, members)
            content = [sha256]
        features = None if custom_features is None else custom_features.to_dict()
        content.append(features)
        cache_key = hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()
        return f"{self.name}-{cache_key[:_KEY_DIGITS]}"


def _make_config(name: str) -> ReleaseConfig:
    return ReleaseConfig(name=name, version=datasets.Version(VERSION), description=_declaration(name).description)


class _AllConfigs(dict[str, ReleaseConfig]):
    """The configs of :data:`CONFIGS`. ``get`` also returns configs with another size or number in their names."""

    def get(self, name: str, default: Any = None) -> Any:
        # A new object for each builder, because a builder stores its own data_dir and sources in the config.
        if name in CONFIGS or _declare_sized(name):
            return _make_config(name)
        return default


class DureaderRetrieval(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """Read a config of a release directory (``data_dir``), or of the published archive without ``data_dir``."""

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = ReleaseConfig
    BUILDER_CONFIGS: ClassVar[list[ReleaseConfig]] = [_make_config(name) for name in CONFIGS]
    builder_configs: ClassVar[dict[str, ReleaseConfig]] = _AllConfigs(
        {config.name: config for config in BUILDER_CONFIGS}
    )

    def _info(self) -> datasets.DatasetInfo:
        """Describe the config: its columns, and for a release the number of rows of each split."""
        splits = None  # the number of rows in the archive is unknown until it is read
        if self.config.data_dir:
            splits = datasets.SplitDict(dataset_name=self.dataset_name)
            for split, shards in self.config.sources.items():
                row_count = sum(shard.rows for shard in shards)
                # datasets compares the number of prepared rows with num_examples.
                splits.add(datasets.SplitInfo(name=split, num_examples=row_count))
        return datasets.DatasetInfo(
            description=f"{DESCRIPTION} Config {self.config.name}: {self.config.description}.",
            citation=CITATION,
            homepage=HOMEPAGE,
            license=LICENSE,
            features=_features(self.config.name),
            splits=splits,
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        # datasets distributes the items of a list among num_proc processes and streaming workers.
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"sources": list(sources)})
            for split, sources in self.config.sources.items()
        ]

    def _generate_tables(self, sources: list[Shard] | list[Member]) -> Iterator[tuple[str, pa.Table]]:
        """Yield (key, table) for each batch of rows of ``sources``. ``datasets`` requires different keys."""
        # The caller may have selected columns by ``features``, and other types for the columns.
        column_names = list(self.info.features)
        unknown_columns = sorted(set(column_names) - set(_features(self.config.name)))
        if unknown_columns:
            raise ReleaseError(f"config {self.config.name!r} has no columns {', '.join(unknown_columns)}")
        for source in sources:
            if isinstance(source, Member):
                source_name = source.url
                tables = _read_member(source, self.config.name, column_names)
            else:
                source_name = source.path
                tables = _read_shard(source, self.config.name, column_names)
            for table_number, table in enumerate(tables):
                cast_table = datasets.table.table_cast(table, self.info.features.arrow_schema)
                yield f"{source_name}:{table_number}", cast_table

    def as_dataset(self, split: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_split(split)
        return super().as_dataset(split, *args, **kwargs)

    def as_streaming_dataset(self, split: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_split(split)
        return super().as_streaming_dataset(split, *args, **kwargs)

    def _check_split(self, split: Any) -> None:
        """Explain that the archive has no test split, whose absence ``datasets`` would report without the origin.

        ``split`` may be an expression such as "test[:10]", or a list.
        """
        if not self.config.data_dir and "test" in str(split):
            raise ReleaseError(describe_missing(self.config.name, "test"))


def load_dataset(
    name: str,
    split: Any = None,
    *,
    data_dir: str | os.PathLike[str] | None = None,
    streaming: bool = False,
    num_proc: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
    download_mode: Any = None,
    keep_in_memory: bool = False,
    **builder_kwargs: Any,
) -> Any:
    """Load a config. This function uses only the public API of ``datasets``.

    Args:
        name: one of ``CONFIGS``, or such a name with another size or number, for example "sample-20K".
        split: "dev", "train[:10%]", ...; None for a dict of all splits.
        data_dir: the release directory; None for the published archive, which is downloaded once.
        streaming: read the shards while iterating, without a copy in the cache.
        num_proc: number of processes that prepare the copy. Each process reads some of the shards.
        cache_dir, download_mode, keep_in_memory: the arguments of ``datasets.load_dataset``.
        builder_kwargs: further arguments of the builder, for example ``features``.

    Raises:
        FileNotFoundError: ``data_dir`` is not a release directory.
        ReleaseError: a file is damaged, the archive cannot be downloaded, or the source lacks the config.
        ValueError: the config or the split does not exist, or ``num_proc`` is used with ``streaming``.
    """
    if streaming and num_proc is not None:
        raise ValueError("num_proc has no effect with streaming=True; remove num_proc")
    builder = DureaderRetrieval(
        config_name=name,
        data_dir=None if data_dir is None else os.fspath(data_dir),
        cache_dir=None if cache_dir is None else os.fspath(cache_dir),
        hash=_source_hash(),
        **builder_kwargs,
    )
    if streaming:
        return builder.as_streaming_dataset(split=split)
    builder.download_and_prepare(num_proc=num_proc, download_mode=download_mode)
    return builder.as_dataset(split=split, in_memory=keep_in_memory)


def splits_of(name: str, *, data_dir: str | os.PathLike[str] | None = None) -> dict[str, int | None]:
    """Return split -> number of rows of a config. The numbers are from the manifest, and nothing is downloaded.

    A release's splits without rows are left out. For the archive (``data_dir`` None), the numbers are None, because
    counting would require reading the archive. Errors are those of :func:`load_dataset`.
    """
    _declaration(name)
    if data_dir is not None:
        folder = os.path.abspath(os.path.expanduser(os.fspath(data_dir)))
        row_counts: dict[str, int | None] = {}
        for split, shards in _read_manifest(folder, name).items():
            row_counts[split] = sum(shard.rows for shard in shards)
        return row_counts
    if name not in _ARCHIVED:
        raise ReleaseError(describe_missing(name))
    empty_splits: dict[str, list[Any]] = {split: [] for split in _ARCHIVED[name]}
    return dict.fromkeys(_add_all_queries(name, empty_splits))


# A release directory


def _read_manifest(folder: str, config_name: str) -> dict[str, list[Shard]]:
    """Return the shards of a config by split, in the declared order of the splits. Splits without rows are left out.

    ``queries`` also gets its split with all queries. Raises FileNotFoundError without a manifest, and
    :class:`ReleaseError` for an unreadable or wrong manifest, or if no split of the config has rows.
    """
    manifest_path = f"{folder}/manifest.json"
    try:
        status = os.stat(manifest_path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_MANIFEST_BYTES:
            raise ReleaseError(f"{manifest_path}: expected a regular file of at most {_LARGEST_MANIFEST_BYTES} bytes")
        with pa.OSFile(manifest_path) as file:
            content = file.read()
    except (FileNotFoundError, NotADirectoryError):
        state = "has no manifest.json" if os.access(folder, os.F_OK) else "does not exist"
        raise FileNotFoundError(f"{folder}: not a release directory (it {state}); {_RELEASE_ADVICE}") from None
    except OSError as error:
        remedy = "make the file readable" if isinstance(error, PermissionError) else _RELEASE_ADVICE
        raise ReleaseError(f"{manifest_path}: cannot be read ({error.strerror or error}); {remedy}") from error
    try:
        manifest = json.loads(content)
        if manifest["name"] == NAME and manifest["format"] > FORMAT:
            problem = f"a later version of {NAME} wrote it (format {manifest['format']}); upgrade dureader-retrieval"
            raise ReleaseError(f"{manifest_path}: {problem}")
        all_shards = _list_shards(folder, manifest)
    except ReleaseError:  # it is a ValueError, too
        raise
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        problem = f"expected a manifest of {NAME}, format {FORMAT} ({reason}); {_RELEASE_ADVICE}"
        raise ReleaseError(f"{manifest_path}: {problem}") from None
    # Select the splits of the config. Empty splits are skipped, because datasets could load no split of the config
    # with an empty split.
    filled_splits = {}
    for config_and_split, shards in all_shards.items():
        if any(shard.rows for shard in shards):
            filled_splits[config_and_split] = shards
    splits = {}
    for split in _declaration(config_name).splits:
        if (config_name, split) in filled_splits:
            splits[split] = filled_splits[config_name, split]
    # Without any split, name what the release has, and how to make the config.
    if not splits:
        present_configs = ", ".join(sorted({name for name, _ in filled_splits})) or "nothing"
        # The configs of the archive, and test, are made with the release. Other configs can be added to it.
        is_from_archive = config_name in _ARCHIVED or config_name == "test"
        advice = _RELEASE_ADVICE if is_from_archive else _ORIGINS[_origin_key(config_name)]
        problem = f"this release has no rows of config {config_name!r}; it has {present_configs}; {advice}"
        raise ReleaseError(f"{folder}: {problem}")
    return _add_all_queries(config_name, splits)


def _list_shards(folder: str, manifest: Any) -> dict[tuple[str, str], list[Shard]]:
    """Return the shards of a manifest by config and split, in their order. ``manifest`` is the parsed JSON.

    Raises KeyError, TypeError, ValueError or OverflowError for another content than that of a manifest.
    """
    if manifest["name"] != NAME or manifest["format"] != FORMAT:
        raise ValueError(f"found {manifest['name']!r}, format {manifest['format']!r}")
    # Collect the shards by their numbers, because the manifest may list them in any order.
    numbered_shards: dict[tuple[str, str], dict[int, Shard]] = {}
    shard_counts: dict[tuple[str, str], int] = {}
    for entry in manifest["files"]:
        match = _SHARD_NAME.fullmatch(entry["path"])
        if not match:  # README.md or another file
            continue
        shard_path, config, split, shard_number, shard_count = match.group(0, 1, 2, 3, 4)
        shard = Shard(
            path=f"{folder}/{shard_path}",
            size=int(entry["bytes"]),
            rows=int(entry["rows"]),
            sha256=str(entry["sha256"]),
        )
        numbered_shards.setdefault((config, split), {})[int(shard_number)] = shard
        shard_counts[config, split] = int(shard_count)
    # Order the shards. A release with missing shards is damaged.
    shards_by_split = {}
    for (config, split), shards in numbered_shards.items():
        shard_count = shard_counts[config, split]
        if sorted(shards) != list(range(shard_count)):
            raise ValueError(f"it lists {len(shards)} of the {shard_count} shards of {config}/{split}")
        shards_by_split[config, split] = [shards[number] for number in sorted(shards)]
    return shards_by_split


def _check_size(shard: Shard) -> tuple[int, int]:
    """Compare a shard's size with the manifest. Return its mtime and ctime in nanoseconds."""
    try:
        status = os.stat(shard.path)
    except OSError as error:
        problem = f"listed in manifest.json, but {error.strerror}"
        raise ReleaseError(f"{shard.path}: {problem}; build or copy the release again") from None
    if status.st_size != shard.size:
        problem = f"has {status.st_size} bytes, but manifest.json lists {shard.size}"
        raise ReleaseError(f"{shard.path}: {problem}; build or copy the release again")
    # ctime detects a copy or an edit that restores the old mtime.
    return status.st_mtime_ns, status.st_ctime_ns


def _read_shard(shard: Shard, config_name: str, column_names: list[str]) -> Iterator[pa.Table]:
    """Verify a shard, and yield the columns ``column_names`` of its rows in batches."""
    _check_size(shard)
    try:
        # One handle verifies and reads the file, so that a replaced file cannot be read unverified.
        # pa.OSFile avoids the open() of datasets (see _open).
        with pa.OSFile(shard.path) as file:
            sha256 = _hash_file(file)
            if sha256 != shard.sha256:
                problem = f"has the SHA-256 {sha256}, but manifest.json lists {shard.sha256}"
                raise ReleaseError(f"{shard.path}: {problem}; build or copy the release again")
            file.seek(0)
            # Detects damage after the SHA-256 check.
            parquet = pq.ParquetFile(file, page_checksum_verification=True)
            _check_columns(shard.path, parquet.schema_arrow, config_name, column_names)
            row_count = parquet.metadata.num_rows
            if row_count != shard.rows:
                raise ReleaseError(f"{shard.path}: has {row_count} rows, but manifest.json lists {shard.rows}")
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=column_names):
                batch.validate(full=True)  # also checks that texts are UTF-8
                for column_name in column_names:
                    if _has_null(batch[column_name]):
                        raise ReleaseError(f"{shard.path}: expected no null, found one in the column {column_name}")
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise ReleaseError(f"{shard.path}: cannot be read ({error})") from error


def _check_columns(shard_path: str, schema: pa.Schema, config_name: str, column_names: list[str]) -> None:
    """Raise :class:`ReleaseError` if a shard lacks a column, has it twice, or has it with another type than declared.

    ``schema`` is the shard's schema, and ``column_names`` are the columns to read.
    """
    if any(schema.names.count(column_name) != 1 for column_name in column_names):
        expected_names = ", ".join(column_names)
        raise ReleaseError(f"{shard_path}: expected the columns {expected_names}, found {', '.join(schema.names)}")
    declared_schema = _features(config_name).arrow_schema
    for column_name in column_names:
        declared_type = declared_schema.field(column_name).type
        actual_type = schema.field(column_name).type
        if not actual_type.equals(declared_type):
            problem = f"expected the column {column_name} as {declared_type}, found {actual_type}"
            raise ReleaseError(f"{shard_path}: {problem}")


def _has_null(array: pa.Array) -> bool:
    """True if the array has a null, also inside lists and structs."""
    if array.null_count:
        return True
    inner_arrays = []
    if pa.types.is_list(array.type):
        inner_arrays = [array.flatten()]
    elif pa.types.is_struct(array.type):
        inner_arrays = array.flatten()
    return any(_has_null(inner_array) for inner_array in inner_arrays)


def _read_blocks(file: Any) -> Iterator[bytes]:
    """Yield the rest of a file in blocks."""
    block = file.read(_BLOCK_BYTES)
    while block:
        yield block
        block = file.read(_BLOCK_BYTES)


def _hash_file(file: Any) -> str:
    """Return the SHA-256 of the rest of a file."""
    digest = hashlib.sha256()
    for block in _read_blocks(file):
        digest.update(block)
    return digest.hexdigest()


# The archive


class _LocalFiles(NamedTuple):
    """The local files of the archive at a URL: the archive, the incomplete download (part), and the note.

    The note has the URL, the size and the SHA-256 of the archive. During a download, it also has the server's validator
    (ETag or Last-Modified), and the SHA-256 is that of an earlier download, if any.
    """

    archive: str
    part: str
    note: str


def _archive_url() -> str:
    base_url = os.environ.get("DUREADER_RETRIEVAL_BASE_URL") or BASE_URL
    if not base_url.startswith(("http://", "https://")):
        raise ReleaseError(f"DUREADER_RETRIEVAL_BASE_URL: expected an http or https URL, found {base_url!r}")
    return f"{base_url.rstrip('/')}/{ARCHIVE['url'].removeprefix(BASE_URL)}"


def _name_in_url(url: str) -> str:
    return url.rpartition("/")[2]


def _local_files(url: str) -> _LocalFiles:
    url_hash = hashlib.sha256(url.encode()).hexdigest()[:_KEY_DIGITS]
    # os.path.join is avoided, because datasets replaces it in this module.
    folder = os.path.abspath(os.path.expanduser(datasets.config.DOWNLOADED_DATASETS_PATH))
    archive_path = f"{folder}/{url_hash}-{_name_in_url(url)}"
    return _LocalFiles(archive=archive_path, part=f"{archive_path}.part", note=f"{archive_path}.json")


def _origin_key(config_name: str) -> str:
    """Return the key of a config in ``_ORIGINS``: its set, for example stress-swap, or else its first word."""
    for set_name in _SET_ORIGINS:
        if config_name == set_name or config_name.startswith(f"{set_name}-"):
            return set_name
    return config_name.partition("-")[0]


def describe_missing(config_name: str, split: str | None = None) -> str:
    """Return an error message for a config or split that the published archive lacks, with its origin.

    The only such split is "test". With None, the whole config is lacking.
    """
    missing_part = f"config {config_name!r}"
    if split is not None:
        missing_part = f"split {split!r} of {missing_part}"
    origin = _ORIGINS[split or _origin_key(config_name)]
    return f"the published archive lacks {missing_part}; {origin}; then pass data_dir=DIR"


def _describe_manual_way(url: str) -> str:
    archive_name = _name_in_url(url)
    return f"if you have {archive_name}, run `python -m builders official --archive FILE --out DIR`{_HERE}"


def _read_download_note(note_path: str) -> dict[str, Any]:
    """Return the note of an archive (:class:`_LocalFiles`); empty without a note."""
    try:
        with _open(note_path, encoding="utf-8") as file:
            note = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ReleaseError(f"{note_path}: expected JSON about the archive ({error}); delete this file") from None
    if not isinstance(note, dict):
        raise ReleaseError(f"{note_path}: expected a JSON object about the archive; delete this file")
    return note


def _write_download_note(note_path: str, note: dict[str, Any]) -> None:
    temporary_path = f"{note_path}.new"
    with _open(temporary_path, "w", encoding="utf-8") as file:
        json.dump(note, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary_path, note_path)


def _recorded_sha256(local_files: _LocalFiles) -> Any:
    """Return the archive's SHA-256, which was published or recorded after the first download; None without both."""
    return ARCHIVE["sha256"] or _read_download_note(local_files.note).get("sha256")


def _fetch(url: str) -> tuple[str, str]:
    """Return the archive's path and SHA-256. Download and verify the archive if it is not on this disk.

    An archive with a known SHA-256 is not verified here, but when it is read.
    """
    local_files = _local_files(url)
    try:
        os.makedirs(local_files.archive.rpartition("/")[0], exist_ok=True)
        # Another process waits here until the download is complete.
        with FileLock(f"{local_files.archive}.lock"):
            sha256 = _recorded_sha256(local_files)
            is_downloaded = _file_size(local_files.archive) is not None
            if not is_downloaded:
                _download(url, local_files)
                sha256 = _accept_download(url, local_files, local_files.part)
            elif not sha256:  # somebody has copied the archive into the folder of downloads, or deleted the note
                sha256 = _accept_download(url, local_files, local_files.archive)
            return local_files.archive, sha256
    except OSError as error:
        raise ReleaseError(f"{local_files.archive}: cannot be written ({error})") from error


def _accept_download(url: str, local_files: _LocalFiles, download_path: str) -> str:
    """Verify a downloaded file, record its SHA-256, rename it to the archive's name, and return the SHA-256.

    A download that is not the archive is deleted. A file stays if it cannot be read, or if somebody may have copied it
    into the folder of downloads.
    """
    # Only this program writes the part. A file with the archive's name and without a note may be a user's only copy.
    is_own_download = download_path == local_files.part
    file_name = url if is_own_download else download_path
    remedy = "the file was deleted" if is_own_download else "delete this file to download the archive"
    note = _read_download_note(local_files.note)
    pinned_sha256 = None  # the SHA-256 of an earlier download, if nobody has published a SHA-256
    if not ARCHIVE["sha256"]:
        pinned_sha256 = note.get("sha256")
    try:
        with _open(download_path, "rb") as file:
            sha256 = _verify_checksums(file, file_name, local_files, pinned_sha256)
            file.seek(0)
            _verify_archive(file, file_name)
    except ReleaseError as error:
        if is_own_download:
            os.unlink(download_path)
        raise ReleaseError(f"{error}; {remedy}") from error
    except _DAMAGE_ERRORS as error:
        # The system numbers its errors. gzip's errors for damaged content are OSErrors without a number.
        if isinstance(error, OSError) and error.errno is not None:
            is_refused = isinstance(error, PermissionError)
            read_remedy = "make the file readable" if is_refused else "delete this file to download the archive"
            raise ReleaseError(f"{download_path}: cannot be read ({error.strerror}); {read_remedy}") from error
        if is_own_download:
            os.unlink(download_path)
        raise ReleaseError(f"{file_name}: is not a complete tar.gz ({error}); {remedy}") from error
    if not ARCHIVE["sha256"] and not pinned_sha256:
        explanation = f"nobody published a checksum; recorded in {local_files.note} to verify later downloads"
        print(f"{url}: SHA-256 {sha256} ({explanation})", file=sys.stderr, flush=True)
    _write_download_note(local_files.note, {"url": url, "bytes": _file_size(download_path), "sha256": sha256})
    os.replace(download_path, local_files.archive)
    return sha256


def _verify_checksums(file: Any, file_name: str, local_files: _LocalFiles, pinned_sha256: str | None) -> str:
    """Return the SHA-256 of a downloaded file. Raise :class:`ReleaseError` if a checksum differs from the expected.

    ``file_name`` is the path or URL that begins the error.
    """
    sha256_digest = hashlib.sha256()
    md5_digest = hashlib.md5(usedforsecurity=False)
    for block in _read_blocks(file):
        sha256_digest.update(block)
        md5_digest.update(block)
    sha256 = sha256_digest.hexdigest()
    md5 = md5_digest.hexdigest()
    problem = ""
    if ARCHIVE["sha256"] and sha256 != ARCHIVE["sha256"]:
        problem = f"has the SHA-256 {sha256}, expected {ARCHIVE['sha256']}, the published one"
    elif ARCHIVE["md5"] and md5 != ARCHIVE["md5"]:
        problem = f"has the MD5 {md5}, expected {ARCHIVE['md5']}, the published one"
    elif pinned_sha256 and sha256 != pinned_sha256:
        earlier = f"that of an earlier download (to accept the new, delete {local_files.note})"
        problem = f"has the SHA-256 {sha256}, expected {pinned_sha256}, {earlier}"
    if problem:
        raise ReleaseError(f"{file_name}: {problem}")
    return sha256


def _verify_archive(file: Any, file_name: str) -> None:
    """Raise :class:`ReleaseError`, or one of ``_DAMAGE_ERRORS``, for a tar.gz that is damaged or unsafe to unpack.

    ``file_name`` is the path or URL that begins the error.
    """
    with _GuardedGzipFile(fileobj=file) as content, tarfile.open(fileobj=content, mode="r:") as tar:
        for _ in _safe_members(tar, file_name):
            pass
        # Read the rest, because gzip verifies its own checksum at the end.
        for _ in _read_blocks(content):
            if content.tell() > _LARGEST_CONTENT_BYTES:
                raise ReleaseError(f"{file_name}: unpacks to over {_LARGEST_CONTENT_BYTES} bytes")


def _remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _file_size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _download(url: str, local_files: _LocalFiles) -> None:
    """Download the archive. After a broken connection, a new request resumes the download."""
    if datasets.config.HF_DATASETS_OFFLINE:
        raise ReleaseError(f"{url}: not downloaded yet, and HF_DATASETS_OFFLINE is set; {_describe_manual_way(url)}")
    largest_size = _file_size(local_files.part) or 0  # the most bytes that were stored so far
    failure_count = 0
    with datasets.utils.tqdm(desc=_name_in_url(url), unit="B", unit_scale=True) as bar:
        while True:
            problem = _send_request(url, local_files, bar)
            if not problem:
                return
            stored_size = _file_size(local_files.part) or 0
            # A request after which more bytes are stored than ever before is progress, so its failure does not count. A
            # server that always starts at the first byte, and breaks off, must not be asked for ever.
            if stored_size > largest_size:
                failure_count = 0
                largest_size = stored_size
            else:
                failure_count += 1
            if failure_count == _MOST_FAILURES:
                state = "no bytes were received"
                if stored_size:
                    state = f"{stored_size} bytes are stored; load again to resume"
                attempts = f"gave up after {_MOST_FAILURES} attempts ({state})"
                raise ReleaseError(f"{url}: {problem}; {attempts}; {_describe_manual_way(url)}")
            doublings = max(0, failure_count - 1)
            time.sleep(min(_FIRST_PAUSE * 2**doublings, _LONGEST_PAUSE))


def _send_request(url: str, local_files: _LocalFiles, bar: Any) -> str | None:
    """Send one request for the missing bytes. Return None if the file is complete, else the reason for a retry.

    Raises :class:`ReleaseError` for failures that a retry cannot repair.
    """
    stored_size = _file_size(local_files.part) or 0
    note = _read_download_note(local_files.note)
    if stored_size and stored_size == note.get("bytes"):
        return None
    # Ask for the missing bytes only.
    headers = {"User-Agent": f"{NAME}/{VERSION}", "Accept-Encoding": "identity"}
    # Without a validator, the server may have another file; start again. If-Range: a server whose file has another
    # validator by now sends the whole file.
    if stored_size and note.get("validator"):
        headers["Range"] = f"bytes={stored_size}-"
        headers["If-Range"] = note["validator"]
    request = urllib.request.Request(url, headers=headers)
    try:
        response = urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS)
        is_resumed = response.status == _PARTIAL_CONTENT
        head = b""
        if not is_resumed:
            head = response.read(len(_GZIP_SIGNATURE))
    except urllib.error.HTTPError as error:
        error.close()
        # The stored bytes are not the beginning of the server's file.
        if error.code == _RANGE_NOT_SATISFIABLE:
            _remove_file(local_files.part)
        elif error.code < _FIRST_SERVER_ERROR and error.code not in _TEMPORARY_ERRORS:
            raise ReleaseError(f"{url}: HTTP {error.code} {error.reason}; {_describe_manual_way(url)}") from None
        return f"HTTP {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"cannot be reached ({error})"
    with response:
        # Compare the reply with the request.
        if is_resumed:
            content_range = response.headers.get("Content-Range", "")
            match = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", content_range)
            if not match or int(match[1]) != stored_size or int(match[2]) != note.get("bytes"):
                _remove_file(local_files.part)
                return "the server sent a part that was not requested"
            total_size: int | None = int(match[2])
        else:
            total_size = _check_response(url, response, head)
        # For a new download, note which file the bytes belong to, before the first byte is stored.
        is_new_download = not is_resumed or stored_size == 0
        if is_new_download:
            validator = response.headers.get("ETag")
            if not validator or validator.startswith(_WEAK_TAG):  # a weak tag may be the same for different bytes
                validator = response.headers.get("Last-Modified")
            new_note = {**note, "url": url, "bytes": total_size, "validator": validator}
            with _open(local_files.part, "wb") as file:  # empties the file before the note changes
                _write_download_note(local_files.note, new_note)
                file.write(head)
        return _receive_content(response, local_files.part, total_size, bar)


def _check_response(url: str, response: Any, head: bytes) -> int | None:
    """Return the size that a server declares; None without a size. Raise :class:`ReleaseError` if it is no archive.

    ``head`` is the beginning of the content. If it is shorter than a gzip signature, the connection broke, and the
    format is not judged.
    """
    declared_size = response.headers.get("Content-Length")
    total_size = None
    if declared_size and declared_size.isdecimal():
        total_size = int(declared_size)
    content_type = response.headers.get_content_type()
    is_other_format = len(head) == len(_GZIP_SIGNATURE) and head != _GZIP_SIGNATURE
    if content_type == "text/html" or is_other_format:
        problem = f"expected a tar.gz, but the server sent {content_type}"
        raise ReleaseError(f"{url}: {problem}; {_describe_manual_way(url)}")
    if ARCHIVE["bytes"] not in (None, total_size):
        raise ReleaseError(f"{url}: has {total_size} bytes, expected {ARCHIVE['bytes']}; check the mirror")
    return total_size


def _receive_content(response: Any, part_path: str, total_size: int | None, bar: Any) -> str | None:
    """Append the rest of a response to a file. Return None if the file is complete, else the reason for a retry."""
    problem = None
    with _open(part_path, "ab") as file:
        # The bar begins with the bytes of earlier requests.
        bar.total = total_size
        bar.update(file.tell() - bar.n)
        while total_size is None or file.tell() < total_size:
            try:
                block = response.read1(_BLOCK_BYTES)
            except (OSError, http.client.HTTPException) as error:
                problem = f"the connection broke ({error})"
                break
            if not block:
                if total_size is not None:
                    problem = "the connection broke"
                break
            file.write(block)
            bar.update(len(block))
        file.flush()
        os.fsync(file.fileno())
    return problem


class _GuardedGzipFile(gzip.GzipFile):
    """A gzip reader that refuses large reads, because a damaged tar header may declare any length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_RECORD_BYTES:
            raise tarfile.TarError(f"a header of {size} bytes")
        return super().read(size)


def _safe_members(tar: tarfile.TarFile, archive_name: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive. Raise :class:`ReleaseError` for members that are unsafe to unpack.

    ``archive_name`` is the path or URL that begins the error.
    """
    total_bytes = 0
    for member_number, member in enumerate(tar, 1):
        total_bytes += member.size
        problem = _member_problem(member)
        if not problem and (total_bytes > _LARGEST_CONTENT_BYTES or member_number > _MOST_MEMBERS):
            problem = f"exceeds the limits of {_LARGEST_CONTENT_BYTES} bytes and {_MOST_MEMBERS} files in an archive"
        if problem:
            raise ReleaseError(f"{archive_name}: {member.name!r} {problem}; the archive is refused")
        yield member


def _member_problem(member: tarfile.TarInfo) -> str:
    """Describe why a member is unsafe to unpack; empty for a safe member."""
    is_absolute = re.match(r"[/\\]|[A-Za-z]:", member.name)
    if is_absolute or ".." in re.split(r"[/\\]", member.name):
        return "has a name that leads out of the archive's folder"
    is_plain_file = member.isfile() and not member.issparse()
    if not member.isdir() and not is_plain_file:
        return "is neither a file nor a folder"
    if member.size < 0:
        return "has a negative size"
    return ""


def _read_member(source: Member, config_name: str, column_names: list[str]) -> Iterator[pa.Table]:
    """Fetch and verify the archive, and yield the rows of a config from one of its files, in file order.

    The tables have the columns ``column_names``. If the number of rows differs from the published number, the function
    warns.
    """
    archive_path, _ = _fetch(source.url)
    schema = _features(config_name).arrow_schema
    try:
        with _open(archive_path, "rb") as file:
            sha256 = _hash_file(file)
            if sha256 != source.sha256:
                # The file stays, because somebody may have copied it into the folder of downloads.
                remedy = "delete this file to download the archive"
                if not ARCHIVE["sha256"]:
                    remedy += f", or delete {_local_files(source.url).note} to accept this file"
                raise ReleaseError(f"{archive_path}: has the SHA-256 {sha256}, expected {source.sha256}; {remedy}")
            file.seek(0)
            with _GuardedGzipFile(fileobj=file) as content, tarfile.open(fileobj=content, mode="r:") as tar:
                member_file = _open_member(tar, archive_path, source.name)
                rows = _archive_rows(member_file, f"{archive_path}: {source.name}", config_name)
                row_count = 0
                while True:
                    batch = list(itertools.islice(rows, _BATCH_ROWS))
                    if not batch:
                        break
                    row_count += len(batch)
                    yield pa.Table.from_pylist(batch, schema).select(column_names)
                # A row of qrels is a pair of a question and a passage, so the numbers differ.
                published_count = _PUBLISHED_COUNTS[source.name]
                if config_name != "qrels" and row_count != published_count:
                    counts = f"has {row_count:,} rows; published: {published_count:,}"
                    warnings.warn(f"{archive_path}: {source.name} {counts}", stacklevel=2)
    except ReleaseError:
        raise
    except _DAMAGE_ERRORS as error:
        raise ReleaseError(f"{archive_path}: cannot be read ({error})") from error


def _open_member(tar: tarfile.TarFile, archive_path: str, member_name: str) -> io.BufferedReader:
    """Open a file of the archive. Raise :class:`ReleaseError` if the archive lacks the file."""
    names = []
    for member in _safe_members(tar, archive_path):
        name = member.name.removeprefix("./")
        names.append(name)
        if name == member_name:
            member_file = tar.extractfile(member)
            if member_file:  # None for a folder
                return io.BufferedReader(member_file, _BLOCK_BYTES)  # type: ignore[arg-type]
    listed_names = ", ".join(names[:_LISTED_MEMBERS])
    raise ReleaseError(f"{archive_path}: has no {member_name}; found {listed_names}")


def _archive_rows(file: io.BufferedReader, location: str, config_name: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a config from a file of the archive, with the archive's ids. Errors begin with ``location``."""
    is_corpus = config_name == "corpus"
    expected = "{paragraph_id, paragraph_text}"
    if not is_corpus:
        expected = f"{{question_id, question, answer_paragraphs: [{expected}, ...]}}"
    for line_number, record in _read_records(file, location):
        try:
            if is_corpus:
                yield _read_passage(record, id_column="_id")
                continue
            query_id = _read_string(record, "question_id")
            query_text = _read_string(record, "question")
            passages = [_read_passage(passage, id_column="docid") for passage in record["answer_paragraphs"]]
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ReleaseError(f"{location}, line {line_number}: expected an object {expected} ({reason})") from None
        if config_name == "queries":
            yield {"_id": query_id, "text": query_text}
        elif config_name == "qrels":
            for passage in passages:
                yield {"query-id": query_id, "corpus-id": passage["docid"], "score": 1}
        else:
            yield {
                "query_id": query_id,
                "query": query_text,
                "positive_passages": passages,
                "negative_passages": [],
            }


def _read_passage(record: Any, id_column: str) -> dict[str, str]:
    """Return a passage of the archive with the columns of a release, where ``id_column`` is the column of its id."""
    passage_id = _read_string(record, "paragraph_id")
    return {id_column: passage_id, "title": "", "text": _read_string(record, "paragraph_text")}


def _read_string(record: Any, key: str) -> str:
    """Return a text of a record. Raise TypeError, KeyError or ValueError if it is missing or no valid text."""
    if not isinstance(record, dict):
        raise TypeError(f"found {type(record).__name__}")
    value = record[key]
    if not isinstance(value, str):
        raise TypeError(f"{key} is {type(value).__name__}")
    value.encode()  # raises for half a surrogate pair, which JSON allows
    return value


def _read_records(file: io.BufferedReader, location: str) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of JSON lines, or of an object ``{"data": [...]}``, in constant memory."""
    opening = re.match(rb'\s*\{\s*"data"\s*:\s*\[', file.peek(64))
    if opening:
        yield from _read_wrapped_records(file, location, opening.end())
        return
    for line_number in itertools.count(1):
        line = file.readline(_LONGEST_RECORD_BYTES)
        if not line:
            return
        if line.isspace():
            continue
        try:
            yield line_number, json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise ReleaseError(f"{location}, line {line_number}: expected JSON ({error})") from None


def _read_wrapped_records(file: io.BufferedReader, location: str, opening_length: int) -> Iterator[tuple[int, Any]]:
    """Yield (line number, value) of an object ``{"data": [VALUE, VALUE, ...]}``.

    ``opening_length`` is the number of bytes before the first value. Errors begin with ``location``.

    The text is read in blocks, which may end inside of a value::

        {"data": [{"question": "a"}, {"question": "b"}, {"ques|tion": "c"}]}
                                                      ^       ^
                                               position       end of the text so far

    If the value after ``position`` is incomplete, another block is appended and the value is parsed again. The text
    before ``position`` is then dropped.
    """
    line_number = file.read(opening_length).count(b"\n") + 1
    stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
    decoder = json.JSONDecoder()
    text = ""
    position = 0  # where the last value ends
    # Before the first value; a comma stands before every other value.
    separator = re.compile(r"\s*")
    while True:
        match = separator.match(text, position)
        # Without a comma, no value can begin. Decoding at the end of the text then fails as for an incomplete value.
        value_start = match.end() if match else len(text)
        try:
            value, value_end = decoder.raw_decode(text, value_start)
        except (ValueError, RecursionError) as error:
            # The text is incomplete, finished or invalid. More text shows which case applies.
            block = ""
            try:
                if len(text) - position < _LONGEST_RECORD_BYTES:
                    block = stream.read(_BLOCK_BYTES)
            except UnicodeDecodeError as decode_error:
                problem = f"expected UTF-8 ({decode_error})"
                raise ReleaseError(f"{location}, after line {line_number}: {problem}") from None
            if block:
                text = text[position:] + block
                position = 0
            elif re.fullmatch(r"\s*\]\s*\}\s*", text[position:]):
                return
            else:
                problem = f"expected JSON objects separated by commas, and ]}} at the end ({error})"
                raise ReleaseError(f"{location}, line {line_number}: {problem}") from None
            continue
        line_number += text.count("\n", position, value_start)
        yield line_number, value
        line_number += text.count("\n", value_start, value_end)
        position = value_end
        separator = re.compile(r"\s*,\s*")


def _source_hash() -> str:
    """Return the hash of this file for the cache path, so that each version of this file has its own cache."""
    with pa.OSFile(__file__) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _register_name() -> None:
    """Let ``datasets.load_dataset("dureader_retrieval", ...)`` find this module on datasets 5.x.

    datasets 5.x runs no scripts and has no public function to register a builder. This function therefore adds the
    module to the private table of packaged modules. The function also replaces the factory of packaged modules for this
    name, because the original factory lists every file below the working directory, and fails in an empty folder. Both
    are private names of datasets 5.2 to 5.x.
    """
    major_version = int(datasets.__version__.split(".")[0])
    if major_version < 4 or __name__ != NAME:
        return  # datasets 3.x runs this file as a script, from a copy under another name
    try:
        if major_version != 5:
            raise ImportError(f"expected datasets 5.x, found {datasets.__version__}")
        from datasets.data_files import DataFilesDict
        from datasets.load import _PACKAGED_DATASETS_MODULES as packaged_modules
        from datasets.load import DatasetModule, PackagedDatasetModuleFactory
    except ImportError as error:
        warnings.warn(
            f'datasets.load_dataset("{NAME}") is not available ({error}); use {NAME}.load_dataset', stacklevel=2
        )
        return
    was_registered = NAME in packaged_modules
    packaged_modules[NAME] = (__name__, _source_hash())
    if was_registered:  # this module was reloaded
        return

    class ModuleFactory(PackagedDatasetModuleFactory):  # type: ignore[misc]
        def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
            self.name = name
            if name != NAME:
                super().__init__(name, *args, **kwargs)
            elif kwargs.get("data_files") is not None:
                raise ValueError(f"{NAME} reads a release directory: pass data_dir=DIR, not data_files")

        def get_module(self) -> Any:
            if self.name != NAME:
                return super().get_module()
            module_path, source_hash = packaged_modules[NAME]
            # data_files is an empty dict, because load_dataset_builder fails for None.
            builder_kwargs = {"data_files": DataFilesDict(), "dataset_name": NAME}
            return DatasetModule(module_path, source_hash, builder_kwargs)

    datasets.load.PackagedDatasetModuleFactory = ModuleFactory


_register_name()
