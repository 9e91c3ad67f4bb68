"""DuReader-retrieval for the ``datasets`` library: reads a release directory, whole and checked.

A release directory is what ``python -m builders release --raw PATH --out DIR`` writes: Parquet shards and a
``manifest.json`` with the size, the rows and the SHA-256 of each. Three ways in, with the same rows: the public API
alone; by name, on datasets 5.x; this file as a script, on 3.x::

    import dureader_retrieval
    dureader_retrieval.load_dataset("dev", data_dir="DIR")
    datasets.load_dataset("dureader_retrieval", "dev", data_dir="DIR")
    datasets.load_dataset("path/to/dureader_retrieval.py", "dev", data_dir="DIR", trust_remote_code=True)

A shard is compared with the manifest right before it is read, streamed or not, and a prepared copy in the cache is
used only while the release is the one that it was prepared from.
"""

import hashlib
import json
import os
import re
import warnings
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import datasets
import pyarrow as pa
import pyarrow.parquet as pq

NAME = "dureader_retrieval"
VERSION = "1.0.0"
FORMAT = 1  # of manifest.json
HOMEPAGE = "https://github.com/baidu/DuReader/tree/master/DuReader-Retrieval"
LICENSE = "Apache-2.0"
DESCRIPTION = (
    "DuReader-retrieval is a Chinese passage retrieval dataset: questions asked to a web search engine, passages cut "
    "from the web pages that it found, and the passages that answer each question."
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
_PASSAGES = [{"docid": _TEXT, "title": _TEXT, "text": _TEXT}]  # a list of records; Sequence would turn it inside out

# What a row holds. A shard may hold more columns (a newer release): only these are read.
COLUMNS: dict[str, dict[str, Any]] = {
    "corpus": {"_id": _TEXT, "title": _TEXT, "text": _TEXT},
    "queries": {"_id": _TEXT, "text": _TEXT},
    "qrels": {"query-id": _TEXT, "corpus-id": _TEXT, "score": datasets.Value("int64")},
    "joined": {"query_id": _TEXT, "query": _TEXT, "positive_passages": _PASSAGES, "negative_passages": _PASSAGES},
}

_ALL = ("train", "dev", "test")

# Config -> (its columns, the splits it can have in their order, description). A release need not hold all of them.
CONFIGS: dict[str, tuple[str, tuple[str, ...], str]] = {
    "corpus": ("corpus", ("corpus",), "every passage of the collection"),
    "queries": ("queries", _ALL, "every question"),
    "qrels": ("qrels", _ALL, "which passage answers which question"),
    "train": ("joined", ("train",), "training questions with their positive and negative passages"),
    "dev": ("joined", ("dev",), "development questions with their positive passages"),
    "test": ("joined", ("test",), "test questions; without published labels their lists are empty"),
}

_SHARD = re.compile(r"([\w.-]+)/([\w.-]+)-(\d{5})-of-(\d{5})\.parquet")
_HOW = "`python -m builders release --raw PATH --out DIR` makes one"
_BLOCK = 1 << 20
_BATCH_ROWS = 1024  # a joined row can be 100 kB


class ReleaseError(datasets.exceptions.DatasetGenerationError, ValueError):  # type: ignore[misc]  # datasets is untyped
    """The release is not what its manifest says, or cannot give what was asked for; the message names the file.

    A DatasetGenerationError, because ``datasets`` hides any other behind "An error occurred while generating".
    """


class Shard(NamedTuple):
    """One Parquet file (absolute path) and what the manifest says of it."""

    path: str
    size: int
    rows: int
    sha256: str


class ReleaseConfig(datasets.BuilderConfig):  # type: ignore[misc]
    """One config of a release. ``shards``, by split, is filled in with the config id."""

    data_dir: str | None
    shards: dict[str, list[Shard]]

    def create_config_id(self, config_kwargs: dict[str, Any], custom_features: datasets.Features | None = None) -> str:
        """Name the cache folder after the release's content: a rebuilt or edited release is prepared anew.

        ``datasets`` calls this once, as soon as the config is known, so that a wrong ``data_dir`` fails here and
        before anything is prepared. Size and time of change stand beside the manifest's SHA-256 because an edited
        shard has the same manifest; it must be read, and so checked, again.
        """
        if self.name not in CONFIGS:  # datasets makes a config called "default" up where none is named
            raise ValueError(f"name a config of {NAME}: {', '.join(CONFIGS)}")
        if self.data_files:
            raise ValueError(f"{NAME} reads a release directory: pass data_dir=DIR, not data_files")
        if not self.data_dir:
            raise ValueError(f"{NAME} needs data_dir=DIR, a release directory; {_HOW}")
        # Absolute, for a later change of the working directory and for one cache entry per release.
        self.data_dir = os.path.abspath(os.path.expanduser(os.fspath(self.data_dir)))
        self.shards = _read_manifest(self.data_dir, self.name)
        found = [(shard, _check_size(shard)) for split in self.shards.values() for shard in split]
        features = None if custom_features is None else custom_features.to_dict()
        key = json.dumps([self.data_dir, found, features], default=str)
        return f"{self.name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"


class DureaderRetrieval(datasets.ArrowBasedBuilder):  # type: ignore[misc]
    """Reads the Parquet shards of one config of a release directory (``data_dir``)."""

    VERSION = datasets.Version(VERSION)
    BUILDER_CONFIG_CLASS = ReleaseConfig
    BUILDER_CONFIGS: ClassVar[list[ReleaseConfig]] = [
        ReleaseConfig(name=name, version=datasets.Version(VERSION), description=description)
        for name, (_, _, description) in CONFIGS.items()
    ]

    def _info(self) -> datasets.DatasetInfo:
        splits = datasets.SplitDict(dataset_name=self.dataset_name)
        for split, shards in self.config.shards.items():
            # The library compares the rows that it prepared with these.
            splits.add(datasets.SplitInfo(name=split, num_examples=sum(shard.rows for shard in shards)))
        return datasets.DatasetInfo(
            description=f"{DESCRIPTION} Config {self.config.name}: {self.config.description}.",
            citation=CITATION,
            homepage=HOMEPAGE,
            license=LICENSE,
            features=datasets.Features(COLUMNS[CONFIGS[self.config.name][0]]),
            splits=splits,
        )

    def _split_generators(self, dl_manager: Any) -> list[datasets.SplitGenerator]:
        # A list, so that num_proc processes and streaming workers share the shards out.
        return [
            datasets.SplitGenerator(name=split, gen_kwargs={"shards": list(shards)})
            for split, shards in self.config.shards.items()
        ]

    def _generate_tables(self, shards: list[Shard]) -> Iterator[tuple[str, pa.Table]]:
        columns = list(self.info.features)
        for shard in shards:
            path = shard.path
            _check_size(shard)
            try:
                # One handle for check and reading: what was checked is what is read, even if the name moves on.
                # Not open(): datasets puts its own into this module, which takes "::" in a path for an address.
                with pa.OSFile(path) as file:
                    _check_content(file, shard)
                    file.seek(0)
                    parquet = pq.ParquetFile(file)
                    missing = sorted(set(columns) - set(parquet.schema_arrow.names))
                    if missing:
                        has = ", ".join(parquet.schema_arrow.names)
                        raise ReleaseError(f"{path}: expected the columns {', '.join(columns)}; it has {has}")
                    if (rows := parquet.metadata.num_rows) != shard.rows:
                        raise ReleaseError(f"{path}: has {rows} rows where manifest.json says {shard.rows}")
                    for number, batch in enumerate(parquet.iter_batches(_BATCH_ROWS, columns=columns)):
                        table = pa.Table.from_batches([batch]).select(columns)
                        table = datasets.table.table_cast(table, self.info.features.arrow_schema)
                        yield f"{path}:{number}", table
            except (OSError, pa.ArrowInvalid) as error:
                raise ReleaseError(f"{path}: cannot be read ({error})") from error


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
    """Load one config with the public API of ``datasets`` alone; needs none of its private names.

    Args:
        name: one of ``CONFIGS``.
        split: "dev", "train[:10%]", ...; all splits of the config, in a dict, where None.
        data_dir: the release directory.
        streaming: read the shards while iterating, without a copy in the cache.
        num_proc: how many processes prepare the copy; a split is shared out by its shards.
        cache_dir, download_mode, keep_in_memory: as in ``datasets.load_dataset``.
        builder_kwargs: further arguments of the builder, for example ``features``.

    Raises:
        FileNotFoundError: ``data_dir`` is not a release directory.
        ValueError: no such config or split, no ``data_dir``, or (:class:`ReleaseError`) a shard that is not what the
            manifest says.
    """
    if streaming and num_proc is not None:
        raise ValueError("streaming=True prepares nothing: leave num_proc out")
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


def _read_manifest(folder: str, config: str) -> dict[str, list[Shard]]:
    """The shards of one config by split, in the declared order of splits, as absolute paths."""
    path = f"{folder}/manifest.json"
    try:
        with pa.OSFile(path) as file:
            content = file.read()
    except OSError:
        is_there = "holds no manifest.json" if os.access(folder, os.F_OK) else "does not exist"
        raise FileNotFoundError(f"{folder}: not a release directory (it {is_there}); {_HOW}") from None
    numbered: dict[tuple[str, str], dict[int, Shard]] = {}
    totals: dict[tuple[str, str], int] = {}
    try:
        manifest = json.loads(content)
        if manifest["name"] != NAME or manifest["format"] != FORMAT:
            raise ValueError(f"it says {manifest['name']!r}, format {manifest['format']!r}")
        for entry in manifest["files"]:
            if match := _SHARD.fullmatch(entry["path"]):
                key = (match[1], match[2])
                shard = Shard(f"{folder}/{match[0]}", int(entry["bytes"]), int(entry["rows"]), str(entry["sha256"]))
                numbered.setdefault(key, {})[int(match[3])] = shard
                totals[key] = int(match[4])
        for (name, split), shards in numbered.items():
            if sorted(shards) != list(range(totals[name, split])):
                raise ValueError(f"it lists {len(shards)} of the {totals[name, split]} shards of {name}/{split}")
    except (KeyError, TypeError, ValueError) as error:
        reason = f"no {error}" if isinstance(error, KeyError) else error
        raise ReleaseError(f"{path}: expected a manifest of {NAME}, format {FORMAT} ({reason}); {_HOW}") from None
    # A split of no rows is left out: datasets cannot load one, and would fail for the config's other splits too.
    filled = {key: shards for key, shards in numbered.items() if any(shard.rows for shard in shards.values())}
    found = {split: filled[config, split] for split in CONFIGS[config][1] if (config, split) in filled}
    if not found:
        have = ", ".join(sorted({name for name, _ in filled})) or "nothing"
        raise ReleaseError(f"{folder}: this release has no rows of config {config!r}; it has {have}. {_HOW}")
    return {split: [shards[number] for number in sorted(shards)] for split, shards in found.items()}


def _check_size(shard: Shard) -> tuple[int, int]:
    """Compare a shard's size with the manifest's; returns its times of change in nanoseconds."""
    try:
        status = os.stat(shard.path)
    except OSError as error:
        reason = f"listed in manifest.json, but {error.strerror}"
        raise ReleaseError(f"{shard.path}: {reason}; build or copy the release again") from None
    if status.st_size != shard.size:
        reason = f"has {status.st_size} bytes where manifest.json says {shard.size}"
        raise ReleaseError(f"{shard.path}: {reason}; build or copy the release again")
    # The time of the inode too: it moves even where a copy or an edit sets the time of the content back.
    return status.st_mtime_ns, status.st_ctime_ns


def _check_content(file: Any, shard: Shard) -> None:
    digest = hashlib.sha256()
    while block := file.read(_BLOCK):
        digest.update(block)
    if digest.hexdigest() != shard.sha256:
        reason = f"has the SHA-256 {digest.hexdigest()} where manifest.json says {shard.sha256}"
        raise ReleaseError(f"{shard.path}: {reason}; build or copy the release again")


def _source_hash() -> str:
    """Stands in the cache path, so that another version of this file prepares its own copy."""
    with pa.OSFile(__file__) as file:
        return hashlib.sha256(file.read()).hexdigest()


def _register() -> None:
    """Let ``datasets.load_dataset("dureader_retrieval", ...)`` find this module on datasets 5.x.

    5.x runs no scripts, and has no public way to add a builder by name: this adds to its table of packaged modules.
    The stock factory of such modules lists every file below the working directory and puts what it finds into the
    cache key (and fails where it finds nothing), so it is replaced, for our name only.
    """
    major = int(datasets.__version__.split(".")[0])
    if major < 4 or __name__ != NAME:
        return  # 3.x runs this file as a script, from a copy under another name
    try:
        if major != 5:
            raise ImportError(f"made for datasets 5.x, found {datasets.__version__}")
        from datasets.data_files import DataFilesDict
        from datasets.load import _PACKAGED_DATASETS_MODULES as modules
        from datasets.load import DatasetModule, PackagedDatasetModuleFactory
    except ImportError as error:
        warnings.warn(
            f'datasets.load_dataset("{NAME}") is not available ({error}); {NAME}.load_dataset is', stacklevel=2
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
            # Empty, not None: load_dataset_builder takes None for "neither files nor a directory".
            kwargs = {"data_files": DataFilesDict(), "dataset_name": NAME}
            return DatasetModule(*modules[NAME], kwargs)

    datasets.load.PackagedDatasetModuleFactory = ModuleFactory


_register()
