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
the archive, and the registration by name.
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

__version__ = "0.1.0"  # of the project; a test compares it with builders.core.version
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
_PASSAGES = [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}]  # a Sequence would be a record of lists

# The original release. Values that nobody has published are None. The SHA-256 of the first download is printed and
# recorded, and later downloads must have the same SHA-256.
BASE_URL = "https://dataset-bj.cdn.bcebos.com/"
ARCHIVE: dict[str, Any] = {
    "url": f"{BASE_URL}qianyan/dureader_retrieval-data.v0.tar.gz",
    "bytes": None,
    "md5": None,
    "sha256": None,
}

# The columns of each kind of config. Additional columns of a newer release are not read.
COLUMNS: dict[str, dict[str, Any]] = {
    "corpus": {"_id": _TEXT, "title": _TEXT, "text": _TEXT},
    "ids": {"_id": _TEXT},
    "queries": {"_id": _TEXT, "text": _TEXT},
    "qrels": {"query-id": _TEXT, "corpus-id": _TEXT, "score": datasets.Value("int64")},
    "joined": {"query_id": _TEXT, "query": _TEXT, "positive_passages": _PASSAGES, "negative_passages": _PASSAGES},
    "crosslingual-queries": {"_id": _TEXT, "text": _TEXT, "zh_id": _TEXT},
}
COLUMNS["answers"] = {
    "query_id": _TEXT,
    "answers": [_TEXT],
    "question_type": _TEXT,
    "fact_or_opinion": _TEXT,
    "yesno_answers": [_TEXT],
    "entity_answers": [[_TEXT]],
    "source": _TEXT,
    "answer_passages": [[_TEXT]],
}
COLUMNS["crosslingual"] = {**COLUMNS["joined"], "query_zh": _TEXT}

_ALL = ("train", "dev", "test")
_WHOLE = "queries"  # a config whose first split, also called "queries", has the queries of all splits
Declaration = tuple[str, tuple[str, ...], str]


def _sampled(name: str) -> Declaration | None:
    """Return the declaration of a sample with any size or bucket number; None for other names."""
    if match := re.fullmatch(r"sample-([1-9]\d*[KM]?)(-hard)?", name):
        others = "other passages that runs rank high" if match[2] else "random other passages"
        return "ids", ("corpus",), f"{match[1]} passages: the positives of test questions, and {others}"
    if match := re.fullmatch(r"restrain-([1-9]\d*[KM]?)-(inter|extra)polation", name):
        distance = "near to" if match[2] == "inter" else "far from"
        return "qrels", ("train",), f"judgments of {match[1]} training questions {distance} the test questions"
    if match := re.fullmatch(r"resttest-bucket([1-9]\d*)", name):
        buckets = f"judgments to train without bucket {match[1]} of the questions, and to test on all buckets"
        return "qrels", ("train", "interpolation", "extrapolation"), buckets
    return None


# Config -> (key in COLUMNS, possible splits in order, description). A release may lack configs. Samples of other sizes
# (restrain, resttest, sample) also load by their names.
CONFIGS: dict[str, Declaration] = {
    "corpus": ("corpus", ("corpus",), "every passage of the collection"),
    "queries": ("queries", _ALL, "every question"),
    "qrels": ("qrels", _ALL, "judgments of (question, passage) pairs"),
    "train": ("joined", ("train",), "training questions with their positive and negative passages"),
    "dev": ("joined", ("dev",), "development questions with their positive passages"),
    "test": ("joined", ("test",), "test questions with their positive passages (empty lists without labels)"),
    "answers": ("answers", _ALL, "people's answers, the type of each question, and where it was asked"),
    "cmedqa-corpus": ("corpus", ("corpus",), "every passage of the out-of-domain set cMedQA (medical answers)"),
    "cmedqa-queries": ("queries", _ALL, "every question of cMedQA"),
    "cmedqa-qrels": ("qrels", _ALL, "judgments of (question, passage) pairs of cMedQA"),
    "ccovid-corpus": ("corpus", ("corpus",), "every passage of the out-of-domain set cCOVID-News (news articles)"),
    "ccovid-queries": ("queries", _ALL, "every question of cCOVID-News"),
    "ccovid-qrels": ("qrels", _ALL, "judgments of (question, passage) pairs of cCOVID-News"),
    "crosslingual-queries": ("crosslingual-queries", _ALL, "English translations of the questions"),
    "crosslingual": ("crosslingual", _ALL, "the questions in English and Chinese with their Chinese passages"),
    "train-similar": ("joined", ("train",), "removed training questions that resemble a development or test question"),
    "duplicated": ("queries", ("dev", "test"), "development and test questions that resemble a removed question"),
    "others": ("queries", ("dev", "test"), "development and test questions that resemble no training question"),
    "qrels-before": ("qrels", _ALL, "the judgments before people corrected them"),
    **{
        name: declaration
        for name in (
            *(f"restrain-{size}-{which}polation" for size in ("14K", "45K", "200K") for which in ("inter", "extra")),
            *(f"resttest-bucket{number}" for number in range(1, 6)),
            *(f"sample-{size}{kind}" for size in ("10K", "100K", "1M") for kind in ("", "-hard")),
        )
        if (declaration := _sampled(name))
    },
}

# Config -> split -> file in the archive.
_ROOT = "dureader_retrieval-data"
_LABELLED = {"train": f"{_ROOT}/train.json", "dev": f"{_ROOT}/dev.json"}
_ARCHIVED: dict[str, dict[str, str]] = {
    "corpus": {"corpus": f"{_ROOT}/passage_collection.json"},
    _WHOLE: _LABELLED,
    "qrels": _LABELLED,
    "train": {"train": _LABELLED["train"]},
    "dev": {"dev": _LABELLED["dev"]},
}

# The published number of records in each file of the archive (the paper's Table 3).
_PUBLISHED = {_ARCHIVED["corpus"]["corpus"]: 8_096_668, _LABELLED["train"]: 86_395, _LABELLED["dev"]: 2_000}

# datasets 3.x copies this file to a folder from which the package ``builders`` cannot be imported.
_HERE = "" if importlib.util.find_spec("builders") else " (where the project is installed)"

# The origin of configs that the archive lacks, by the first word of the config.
_TEST_ORIGIN = (
    "the test questions were published in other files (test1.json, test2.json) without labels; `python -m builders "
    f"official --archive PATH... --out DIR`{_HERE} puts the questions into a release"
)
_ORIGINS = {
    "test": _TEST_ORIGIN,
    "answers": "add it to a release from raw DuReader 2.0: `python -m builders add answers --raw PATH --release DIR "
    f"--out DIR`{_HERE}",
    "cmedqa": "make it from cMedQA2 (github.com/zhangsheng93/cMedQA2) by `python -m builders add cmedqa --source "
    f"PATH [--release DIR] --out DIR`{_HERE}",
    "ccovid": "make it from the files of DataFountain competition 424 by `python -m builders add ccovid --source "
    f"PATH [--release DIR] --out DIR`{_HERE}",
    "crosslingual": "make it from a table of the questions in English by `python -m builders add crosslingual "
    f"--source FILE --release DIR --out DIR`{_HERE}",
    **dict.fromkeys(
        ("train", "duplicated", "others"),  # "train" stands for train-similar, because the archive has train
        f"make it from a release by `python -m builders similar`{_HERE}",
    ),
    "qrels": f"make it by correcting a release's judgments: `python -m builders annotate merge`{_HERE}",
    "restrain": f"sample it from a release by `python -m builders add restrain`{_HERE}",
    "sample": f"draw it from a release's passages by `python -m builders add samples`{_HERE}",
    "resttest": f"sample it from a release by `python -m builders add resttest`{_HERE}",
}

_SHARD = re.compile(r"([\w.-]+)/([\w.-]+)-(\d{5})-of-(\d{5})\.parquet")
_HOW = f"`python -m builders release --raw PATH --out DIR`{_HERE} makes a release"
_LARGEST_MANIFEST = 64 << 20  # maximum bytes
_BLOCK = 1 << 20
_open = io.open  # datasets replaces open() in this module by a function that treats "::" in a path as an address
_BATCH_ROWS = 1024  # a joined row can have 100 kB

_TRIES = 5  # maximum number of successive requests without a byte
_PAUSE = 1.0  # seconds before the second request; each further pause is twice as long
_TIMEOUT = 60.0  # seconds without a byte; the whole download may take longer
_LONGEST_RECORD = 64 << 20  # maximum bytes of a line of JSON
_LARGEST_CONTENT = 64 << 30  # maximum bytes after decompression; the collection has about 8 GB
_MOST_MEMBERS = 1000
# Errors while reading a damaged tar.gz. OverflowError: an impossible number. RecursionError: too many nested headers.
_BROKEN = (OSError, EOFError, zlib.error, tarfile.TarError, ValueError, OverflowError, RecursionError)


def _declaration(name: str) -> Declaration:
    if declaration := CONFIGS.get(name) or _sampled(name):
        return declaration
    raise ValueError(f"unknown config {name!r}; name a config of {NAME}: {', '.join(CONFIGS)}")


def _columns(name: str) -> dict[str, Any]:
    return COLUMNS[_declaration(name)[0]]


def _with_whole(config: str, splits: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return the splits with their sources. In ``queries``, a split with all queries is added at the beginning."""
    if config != _WHOLE or len(splits) == 1:
        return splits
    # Sorted by name, because the file pattern in the card lists the files in this order.
    return {_WHOLE: [source for split in sorted(splits) for source in splits[split]], **splits}


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
        manifest, and on the times of the shards: after an edit in place, a shard must be verified again. If the
        archive's SHA-256 is unknown, this method downloads the archive.
        """
        _declaration(self.name)  # datasets invents a config "default" if the user names no config
        if self.data_files:
            raise ValueError(f"{NAME} reads a release directory: pass data_dir=DIR, not data_files")
        content: list[Any]
        if self.data_dir:
            # An absolute path survives a change of the working directory, and gives one cache entry per release.
            self.data_dir = os.path.abspath(os.path.expanduser(os.fspath(self.data_dir)))
            self.sources = _read_manifest(self.data_dir, self.name)
            found = [(shard, _check_size(shard)) for split in self.sources.values() for shard in split]
            content = [self.data_dir, found]
        else:
            if self.name not in _ARCHIVED:
                raise ReleaseError(describe_missing(self.name))
            url = _archive_url()
            sha256 = ARCHIVE["sha256"] or _read_note(_places(url).note).get("sha256") or _fetch(url)[1]
            members = {split: [Member(url, sha256, name)] for split, name in _ARCHIVED[self.name].items()}
            self.sources = _with_whole(self.name, members)
            content = [sha256]
        features = None if custom_features is None else custom_features.to_dict()
        key = json.dumps([*content, features], default=str)
        return f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


def _config(name: str) -> ReleaseConfig:
    return ReleaseConfig(name=name, version=datasets.Version(VERSION), description=_declaration(name)[2])


class _Configs(dict[str, ReleaseConfig]):
    """The configs of :data:`CONFIGS`. ``get`` also returns samples of other sizes."""

    def get(self, name: str, default: Any = None) -> Any:
        # A new object for each builder, because a builder stores its own data_dir and sources in the config.
        return _config(name) if name in CONFIGS or _sampled(name) else default


class DureaderRetrieval(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """Read a config of a release directory (``data_dir``), or of the published archive without ``data_dir``."""

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = ReleaseConfig
    BUILDER_CONFIGS: ClassVar[list[ReleaseConfig]] = [_config(name) for name in CONFIGS]
    builder_configs: ClassVar[dict[str, ReleaseConfig]] = _Configs({config.name: config for config in BUILDER_CONFIGS})

    def _info(self) -> datasets.DatasetInfo:
        splits = None
        if self.config.data_dir:
            splits = datasets.SplitDict(dataset_name=self.dataset_name)
            for split, shards in self.config.sources.items():
                # datasets compares the number of prepared rows with num_examples.
                splits.add(datasets.SplitInfo(name=split, num_examples=sum(shard.rows for shard in shards)))
        return datasets.DatasetInfo(
            description=f"{DESCRIPTION} Config {self.config.name}: {self.config.description}.",
            citation=CITATION,
            homepage=HOMEPAGE,
            license=LICENSE,
            features=datasets.Features(_columns(self.config.name)),
            splits=splits,
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        # datasets distributes the items of a list among num_proc processes and streaming workers.
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"sources": list(sources)})
            for split, sources in self.config.sources.items()
        ]

    def _generate_tables(self, sources: list[Shard] | list[Member]) -> Iterator[tuple[str, pa.Table]]:
        columns = list(self.info.features)
        if missing := sorted(set(columns) - set(_columns(self.config.name))):
            raise ReleaseError(f"config {self.config.name!r} has no columns {', '.join(missing)}")
        for source in sources:
            read = _read_member if isinstance(source, Member) else _read_shard
            for number, table in enumerate(read(source, self.config.name, columns)):  # type: ignore[arg-type]
                table = datasets.table.table_cast(table, self.info.features.arrow_schema)
                yield f"{source[0]}:{number}", table

    def as_dataset(self, split: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_split(split)
        return super().as_dataset(split, *args, **kwargs)

    def as_streaming_dataset(self, split: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._check_split(split)
        return super().as_streaming_dataset(split, *args, **kwargs)

    def _check_split(self, split: Any) -> None:
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
        name: one of ``CONFIGS``, or a sample of another size.
        split: "dev", "train[:10%]", ...; None for a dict of all splits.
        data_dir: the release directory; None for the published archive, which is downloaded once.
        streaming: read the shards while iterating, without a copy in the cache.
        num_proc: number of processes that prepare the copy. Each process reads some of the shards.
        cache_dir, download_mode, keep_in_memory: the arguments of ``datasets.load_dataset``.
        builder_kwargs: further arguments of the builder, for example ``features``.

    Raises:
        FileNotFoundError: ``data_dir`` is not a release directory.
        ReleaseError: a file is damaged, the archive cannot be downloaded, or the source lacks the config.
        ValueError: the config or the split does not exist.
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

    For the archive, the numbers are None, because counting would require reading the archive. Errors are those of
    :func:`load_dataset`.
    """
    _declaration(name)
    if data_dir is not None:
        found = _read_manifest(os.path.abspath(os.path.expanduser(os.fspath(data_dir))), name)
        return {split: sum(shard.rows for shard in shards) for split, shards in found.items()}
    if name not in _ARCHIVED:
        raise ReleaseError(describe_missing(name))
    return dict.fromkeys(_with_whole(name, {split: [] for split in _ARCHIVED[name]}))


# A release directory


def _read_manifest(folder: str, config: str) -> dict[str, list[Shard]]:
    """Return the shards of a config by split, in the declared order of the splits."""
    path = f"{folder}/manifest.json"
    try:
        status = os.stat(path)
        if not stat.S_ISREG(status.st_mode) or status.st_size > _LARGEST_MANIFEST:
            raise ReleaseError(f"{path}: expected a regular file of at most {_LARGEST_MANIFEST} bytes")
        with pa.OSFile(path) as file:
            content = file.read()
    except OSError:
        state = "has no manifest.json" if os.access(folder, os.F_OK) else "does not exist"
        raise FileNotFoundError(f"{folder}: not a release directory (it {state}); {_HOW}") from None
    numbered: dict[tuple[str, str], dict[int, Shard]] = {}
    totals: dict[tuple[str, str], int] = {}
    try:
        manifest = json.loads(content)
        if manifest["name"] != NAME or manifest["format"] != FORMAT:
            raise ValueError(f"found {manifest['name']!r}, format {manifest['format']!r}")
        for entry in manifest["files"]:
            if match := _SHARD.fullmatch(entry["path"]):
                key = (match[1], match[2])
                shard = Shard(f"{folder}/{match[0]}", int(entry["bytes"]), int(entry["rows"]), str(entry["sha256"]))
                numbered.setdefault(key, {})[int(match[3])] = shard
                totals[key] = int(match[4])
        for (name, split), shards in numbered.items():
            if sorted(shards) != list(range(totals[name, split])):
                raise ValueError(f"it lists {len(shards)} of the {totals[name, split]} shards of {name}/{split}")
    except (KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ReleaseError(f"{path}: expected a manifest of {NAME}, format {FORMAT} ({reason}); {_HOW}") from None
    # Empty splits are skipped. With an empty split, datasets could load no split of the config.
    filled = {key: shards for key, shards in numbered.items() if any(shard.rows for shard in shards.values())}
    found = {split: filled[config, split] for split in _declaration(config)[1] if (config, split) in filled}
    if not found:
        have = ", ".join(sorted({name for name, _ in filled})) or "nothing"
        # A set that is missing can be added to the release. The configs of the archive come with every release.
        is_added = config not in _ARCHIVED and config != "test"
        advice = _ORIGINS[config.split("-")[0]] if is_added else _HOW
        raise ReleaseError(f"{folder}: this release has no rows of config {config!r}; it has {have}; {advice}")
    return _with_whole(config, {split: [each[number] for number in sorted(each)] for split, each in found.items()})


def _check_size(shard: Shard) -> tuple[int, int]:
    """Compare a shard's size with the manifest. Return its mtime and ctime in nanoseconds."""
    try:
        status = os.stat(shard.path)
    except OSError as error:
        reason = f"listed in manifest.json, but {error.strerror}"
        raise ReleaseError(f"{shard.path}: {reason}; build or copy the release again") from None
    if status.st_size != shard.size:
        reason = f"has {status.st_size} bytes, but manifest.json lists {shard.size}"
        raise ReleaseError(f"{shard.path}: {reason}; build or copy the release again")
    # ctime detects a copy or an edit that restores the old mtime.
    return status.st_mtime_ns, status.st_ctime_ns


def _read_shard(shard: Shard, config: str, columns: list[str]) -> Iterator[pa.Table]:
    path, declared = shard.path, datasets.Features(_columns(config)).arrow_schema
    _check_size(shard)
    try:
        # One handle verifies and reads the file, so that a replaced file cannot be read unverified.
        # pa.OSFile avoids the open() of datasets (see _open).
        with pa.OSFile(path) as file:
            if (sha256 := _digests(file)[0]) != shard.sha256:
                reason = f"has the SHA-256 {sha256}, but manifest.json lists {shard.sha256}"
                raise ReleaseError(f"{path}: {reason}; build or copy the release again")
            file.seek(0)
            parquet = pq.ParquetFile(file, page_checksum_verification=True)  # detects damage after the SHA-256 check
            schema = parquet.schema_arrow
            if any(schema.names.count(name) != 1 for name in columns):
                has = ", ".join(schema.names)
                raise ReleaseError(f"{path}: expected the columns {', '.join(columns)}, found {has}")
            for name in columns:
                if not schema.field(name).type.equals(declared.field(name).type):
                    kinds = f"{declared.field(name).type}, found {schema.field(name).type}"
                    raise ReleaseError(f"{path}: expected the column {name} as {kinds}")
            if (rows := parquet.metadata.num_rows) != shard.rows:
                raise ReleaseError(f"{path}: has {rows} rows, but manifest.json lists {shard.rows}")
            for batch in parquet.iter_batches(_BATCH_ROWS, columns=columns):
                batch.validate(full=True)  # also checks that texts are UTF-8
                if nulls := [name for name in columns if _holds_null(batch[name])]:
                    raise ReleaseError(f"{path}: expected no null, found one in the column {nulls[0]}")
                yield pa.Table.from_batches([batch])
    except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
        raise ReleaseError(f"{path}: cannot be read ({error})") from error


def _holds_null(array: pa.Array) -> bool:
    """True if the array has a null, also inside lists and structs."""
    if pa.types.is_list(array.type):
        inner = [array.flatten()]
    else:
        inner = array.flatten() if pa.types.is_struct(array.type) else []
    return bool(array.null_count) or any(map(_holds_null, inner))


def _digests(file: Any, *others: str) -> list[str]:
    """Return hashes of the rest of a file: the SHA-256, then a hash for each algorithm of ``others``."""
    digests = [hashlib.new(name) for name in ("sha256", *others)]
    while block := file.read(_BLOCK):
        for digest in digests:
            digest.update(block)
    return [digest.hexdigest() for digest in digests]


# The archive


class _Places(NamedTuple):
    """The local files of a URL: the archive, the incomplete download, and the note (size, SHA-256, ETag)."""

    archive: str
    part: str
    note: str


def _archive_url() -> str:
    base = os.environ.get("DUREADER_RETRIEVAL_BASE_URL") or BASE_URL
    if not base.startswith(("http://", "https://")):
        raise ReleaseError(f"DUREADER_RETRIEVAL_BASE_URL: expected an http or https URL, found {base!r}")
    return f"{base.rstrip('/')}/{ARCHIVE['url'].removeprefix(BASE_URL)}"


def _places(url: str) -> _Places:
    name = f"{hashlib.sha256(url.encode()).hexdigest()[:16]}-{url.rpartition('/')[2]}"
    # os.path.join is avoided, because datasets replaces it in this module.
    path = f"{os.path.abspath(os.path.expanduser(datasets.config.DOWNLOADED_DATASETS_PATH))}/{name}"
    return _Places(path, f"{path}.part", f"{path}.json")


def describe_missing(config: str, split: str | None = None) -> str:
    """Return an error message for a config or split that the published archive lacks, with its origin."""
    what = f"config {config!r}" if split is None else f"split {split!r} of config {config!r}"
    origin = _ORIGINS[split or config.split("-")[0]]
    return f"the published archive lacks {what}; {origin}; then pass data_dir=DIR"


def _by_hand(url: str) -> str:
    name = url.rpartition("/")[2]
    return f"if you have {name}, run `python -m builders official --archive FILE --out DIR`{_HERE}"


def _read_note(path: str) -> dict[str, Any]:
    try:
        with _open(path, encoding="utf-8") as file:
            note = json.load(file)
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, RecursionError) as error:
        raise ReleaseError(f"{path}: expected JSON about the archive ({error}); delete this file") from None
    if not isinstance(note, dict):
        raise ReleaseError(f"{path}: expected a JSON object about the archive; delete this file")
    return note


def _write_note(path: str, note: dict[str, Any]) -> None:
    with _open(f"{path}.new", "w", encoding="utf-8") as file:
        json.dump(note, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)


def _fetch(url: str) -> tuple[str, str]:
    """Return the archive's path and SHA-256. Download and verify the archive if it is not on this disk."""
    places = _places(url)
    try:
        os.makedirs(places.archive.rpartition("/")[0], exist_ok=True)
        with FileLock(f"{places.archive}.lock"):  # another process waits here until the download is complete
            sha256 = ARCHIVE["sha256"] or _read_note(places.note).get("sha256")
            exists = _size(places.archive) is not None
            if not exists:
                _download(url, places)
            if not (exists and sha256):
                sha256 = _accept(url, places, places.archive if exists else places.part)
            return places.archive, sha256
    except OSError as error:
        raise ReleaseError(f"{places.archive}: cannot be written ({error})") from error


def _accept(url: str, places: _Places, path: str) -> str:
    """Verify a downloaded file, record its SHA-256 and rename it. Delete a file that is not the archive."""
    note = _read_note(places.note)
    pinned = None if ARCHIVE["sha256"] else note.get("sha256")
    try:
        with _open(path, "rb") as file:
            sha256, md5 = _digests(file, "md5")
            for what, found, expected, where in (
                ("SHA-256", sha256, ARCHIVE["sha256"], "the published one"),
                ("MD5", md5, ARCHIVE["md5"], "the published one"),
                ("SHA-256", sha256, pinned, f"that of an earlier download (to accept the new, delete {places.note})"),
            ):
                if expected and found != expected:
                    reason = f"has the {what} {found}, expected {expected}, {where}"
                    raise ReleaseError(f"{url}: {reason}; the file was deleted")
            file.seek(0)
            with _Unpacked(fileobj=file) as content, tarfile.open(fileobj=content, mode="r:") as tar:
                for _ in _members(tar, url):
                    pass
                for _ in iter(lambda: content.read(_BLOCK), b""):  # gzip verifies its own checksum at the end
                    if content.tell() > _LARGEST_CONTENT:
                        raise ReleaseError(f"{url}: unpacks to over {_LARGEST_CONTENT} bytes; the file was deleted")
    except ReleaseError:
        os.unlink(path)
        raise
    except _BROKEN as error:
        os.unlink(path)
        raise ReleaseError(f"{url}: the download is not a complete tar.gz ({error}); the file was deleted") from error
    if not (ARCHIVE["sha256"] or pinned):
        recorded = f"nobody published a checksum; recorded in {places.note} to verify later downloads"
        print(f"{url}: SHA-256 {sha256} ({recorded})", file=sys.stderr, flush=True)
    _write_note(places.note, {"url": url, "bytes": _size(path), "sha256": sha256})
    os.replace(path, places.archive)
    return sha256


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)


def _size(path: str) -> int | None:
    try:
        return os.stat(path).st_size
    except FileNotFoundError:
        return None


def _download(url: str, places: _Places) -> None:
    """Download the archive. After a broken connection, a new request resumes the download."""
    if datasets.config.HF_DATASETS_OFFLINE:
        raise ReleaseError(f"{url}: not downloaded yet, and HF_DATASETS_OFFLINE is set; {_by_hand(url)}")
    most, failures = _size(places.part) or 0, 0
    with datasets.utils.tqdm(desc=url.rpartition("/")[2], unit="B", unit_scale=True) as bar:
        while reason := _receive(url, places, bar):
            size = _size(places.part) or 0
            failures = 0 if size > most else failures + 1
            most = max(most, size)
            if failures == _TRIES:
                rest = f"{size} bytes are stored; load again to resume" if size else "no bytes were received"
                raise ReleaseError(f"{url}: {reason}; gave up after {_TRIES} attempts ({rest}); {_by_hand(url)}")
            time.sleep(min(_PAUSE * 2 ** max(0, failures - 1), 60))


def _receive(url: str, places: _Places, bar: Any) -> str | None:
    """Send one request for the missing bytes. Return None if the file is complete, else the reason for a retry.

    Raises :class:`ReleaseError` for failures that a retry cannot repair.
    """
    size, note = _size(places.part) or 0, _read_note(places.note)
    if size and size == note.get("bytes"):
        return None
    headers = {"User-Agent": f"{NAME}/{VERSION}", "Accept-Encoding": "identity"}
    if size and note.get("validator"):  # without a validator, the server may have another file; start again
        headers |= {"Range": f"bytes={size}-", "If-Range": note["validator"]}
    try:
        response = urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT)
        head = b"" if response.status == 206 else response.read(2)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the stored bytes are not the beginning of the server's file
            _remove(places.part)
        elif error.code < 500 and error.code not in (408, 425, 429):
            raise ReleaseError(f"{url}: HTTP {error.code} {error.reason}; {_by_hand(url)}") from None
        return f"HTTP {error.code} {error.reason}"
    except (OSError, ValueError, http.client.HTTPException) as error:
        return f"cannot be reached ({error})"
    with response:
        length = response.headers.get("Content-Length")
        total = int(length) if length and length.isdecimal() else None
        start = 0
        if response.status == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", response.headers.get("Content-Range", ""))
            if not span or (int(span[1]), int(span[2])) != (size, note.get("bytes")):
                _remove(places.part)
                return "the server sent a part that was not requested"
            start, total = size, int(span[2])
        else:
            kind = response.headers.get_content_type()
            if kind == "text/html" or (len(head) == 2 and head != b"\x1f\x8b"):
                raise ReleaseError(f"{url}: expected a tar.gz, but the server sent {kind}; {_by_hand(url)}")
            if ARCHIVE["bytes"] not in (None, total):
                raise ReleaseError(f"{url}: has {total} bytes, expected {ARCHIVE['bytes']}; check the mirror")
        with _open(places.part, "ab" if start else "wb") as file:
            if not start:
                tag = response.headers.get("ETag") or "W/"
                validator = response.headers.get("Last-Modified") if tag.startswith("W/") else tag
                _write_note(places.note, {**note, "url": url, "bytes": total, "validator": validator})
            file.write(head)
            bar.total = total
            bar.update(file.tell() - bar.n)
            reason = None
            while total is None or file.tell() < total:
                try:
                    block = response.read1(_BLOCK)
                except (OSError, http.client.HTTPException) as error:
                    reason = f"the connection broke ({error})"
                    break
                if not block:
                    reason = None if total is None else "the connection broke"
                    break
                file.write(block)
                bar.update(len(block))
            file.flush()
            os.fsync(file.fileno())
        return reason


class _Unpacked(gzip.GzipFile):
    """A gzip reader that refuses large reads, because a damaged tar header may declare any length."""

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= _LONGEST_RECORD:
            raise tarfile.TarError(f"a header of {size} bytes")
        return super().read(size)


def _members(tar: tarfile.TarFile, archive: str) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive. Raise :class:`ReleaseError` for members that are unsafe to unpack."""
    total = 0
    for number, member in enumerate(tar, 1):
        total += member.size
        if re.match(r"[/\\]|[A-Za-z]:", member.name) or ".." in re.split(r"[/\\]", member.name):
            reason = "has a name that leads out of the archive's folder"
        elif not (member.isdir() or (member.isfile() and not member.issparse())):
            reason = "is neither a file nor a folder"
        elif member.size < 0:
            reason = "has a negative size"
        elif total > _LARGEST_CONTENT or number > _MOST_MEMBERS:
            reason = f"exceeds the limits of {_LARGEST_CONTENT} bytes and {_MOST_MEMBERS} files in an archive"
        else:
            yield member
            continue
        raise ReleaseError(f"{archive}: {member.name!r} {reason}; the archive is refused")


def _read_member(source: Member, config: str, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the rows of a config from a file of the archive, in file order."""
    path, _ = _fetch(source.url)
    schema = datasets.Features(_columns(config)).arrow_schema
    try:
        with _open(path, "rb") as file:
            if (sha256 := _digests(file)[0]) != source.sha256:
                os.unlink(path)
                reason = f"has the SHA-256 {sha256}, expected {source.sha256}"
                raise ReleaseError(f"{path}: {reason}; the file was deleted; load again to download it")
            file.seek(0)
            with _Unpacked(fileobj=file) as content, tarfile.open(fileobj=content, mode="r:") as tar:
                names = []
                for member in _members(tar, path):
                    names.append(member.name.removeprefix("./"))
                    if names[-1] == source.name and (opened := tar.extractfile(member)):
                        break
                else:
                    raise ReleaseError(f"{path}: has no {source.name}; found {', '.join(names[:9])}")
                rows = _rows(io.BufferedReader(opened, _BLOCK), f"{path}: {source.name}", config)  # type: ignore[arg-type]
                count = 0
                while batch := list(itertools.islice(rows, _BATCH_ROWS)):
                    count += len(batch)
                    yield pa.Table.from_pylist(batch, schema).select(columns)
                if config != "qrels" and count != (published := _PUBLISHED[source.name]):
                    warnings.warn(f"{path}: {source.name} has {count:,} rows; published: {published:,}", stacklevel=2)
    except ReleaseError:
        raise
    except _BROKEN as error:
        raise ReleaseError(f"{path}: cannot be read ({error})") from error


def _rows(file: io.BufferedReader, where: str, config: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a config with the archive's ids."""
    is_corpus = config == "corpus"
    expected = "{paragraph_id, paragraph_text}"
    if not is_corpus:
        expected = f"{{question_id, question, answer_paragraphs: [{expected}, ...]}}"
    for line, record in _records(file, where):
        try:
            if is_corpus:
                yield {"_id": _string(record, "paragraph_id"), "title": "", "text": _string(record, "paragraph_text")}
                continue
            query, text = _string(record, "question_id"), _string(record, "question")
            passages = [
                {"docid": _string(passage, "paragraph_id"), "title": "", "text": _string(passage, "paragraph_text")}
                for passage in record["answer_paragraphs"]
            ]
        except (KeyError, TypeError, ValueError) as error:
            reason = f"no {error}" if isinstance(error, KeyError) else error
            raise ReleaseError(f"{where}, line {line}: expected an object {expected} ({reason})") from None
        if config == "queries":
            yield {"_id": query, "text": text}
        elif config == "qrels":
            yield from ({"query-id": query, "corpus-id": passage["docid"], "score": 1} for passage in passages)
        else:
            yield {"query_id": query, "query": text, "positive_passages": passages, "negative_passages": []}


def _string(record: Any, key: str) -> str:
    if not isinstance(record, dict):
        raise TypeError(f"found {type(record).__name__}")
    if not isinstance(value := record[key], str):
        raise TypeError(f"{key} is {type(value).__name__}")
    value.encode()  # raises for half a surrogate pair, which JSON allows
    return value


def _records(file: io.BufferedReader, where: str) -> Iterator[tuple[int, Any]]:
    """Yield (line, value) of JSON lines, or of an object ``{"data": [...]}``, in constant memory."""
    if opening := re.match(rb'\s*\{\s*"data"\s*:\s*\[', file.peek(64)):
        yield from _wrapped_records(file, where, opening.end())
        return
    for number in itertools.count(1):
        line = file.readline(_LONGEST_RECORD)
        if not line:
            return
        if line.isspace():
            continue
        try:
            yield number, json.loads(line.decode())
        except (ValueError, RecursionError) as error:
            raise ReleaseError(f"{where}, line {number}: expected JSON ({error})") from None


def _wrapped_records(file: io.BufferedReader, where: str, opening: int) -> Iterator[tuple[int, Any]]:
    line = file.read(opening).count(b"\n") + 1
    stream = io.TextIOWrapper(file, encoding="utf-8", newline="")
    parse = json.JSONDecoder().raw_decode
    text, at, gap = "", 0, re.compile(r"\s*")
    while True:
        start = gap.match(text, at)
        try:
            value, end = parse(text, start.end() if start else len(text))
        except (ValueError, RecursionError) as error:
            # The text is incomplete, finished or invalid. More text shows which case applies.
            try:
                block = stream.read(_BLOCK) if len(text) - at < _LONGEST_RECORD else ""
            except UnicodeDecodeError as wrong:
                raise ReleaseError(f"{where}, after line {line}: expected UTF-8 ({wrong})") from None
            if block:
                text, at = text[at:] + block, 0
            elif re.fullmatch(r"\s*\]\s*\}\s*", text[at:]):
                return
            else:
                reason = f"expected JSON objects separated by commas, and ]}} at the end ({error})"
                raise ReleaseError(f"{where}, line {line}: {reason}") from None
            continue
        assert start is not None  # parse succeeded only if start matched
        line += text.count("\n", at, start.end())
        yield line, value
        line += text.count("\n", start.end(), end)
        at, gap = end, re.compile(r"\s*,\s*")


def _source_hash() -> str:
    """Return the hash of this file for the cache path, so that each version of this file has its own cache."""
    with pa.OSFile(__file__) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _register() -> None:
    """Let ``datasets.load_dataset("dureader_retrieval", ...)`` find this module on datasets 5.x.

    datasets 5.x runs no scripts and has no public function to register a builder. This function therefore adds the
    module to the private table of packaged modules. The function also replaces the factory of packaged modules for this
    name, because the original factory lists every file below the working directory, and fails in an empty folder.
    """
    major = int(datasets.__version__.split(".")[0])
    if major < 4 or __name__ != NAME:
        return  # datasets 3.x runs this file as a script, from a copy under another name
    try:
        if major != 5:
            raise ImportError(f"expected datasets 5.x, found {datasets.__version__}")
        from datasets.data_files import DataFilesDict
        from datasets.load import _PACKAGED_DATASETS_MODULES as modules
        from datasets.load import DatasetModule, PackagedDatasetModuleFactory
    except ImportError as error:
        warnings.warn(
            f'datasets.load_dataset("{NAME}") is not available ({error}); use {NAME}.load_dataset', stacklevel=2
        )
        return
    registered = NAME in modules
    modules[NAME] = (__name__, _source_hash())
    if registered:  # this module was reloaded
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
            # data_files is an empty dict, because load_dataset_builder fails for None.
            kwargs = {"data_files": DataFilesDict(), "dataset_name": NAME}
            return DatasetModule(*modules[NAME], kwargs)

    datasets.load.PackagedDatasetModuleFactory = ModuleFactory


_register()
