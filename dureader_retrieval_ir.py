"""Register DuReader-retrieval in the ``ir_datasets`` library. Importing this module registers the ids.

::

    import dureader_retrieval_ir
    import ir_datasets

    dureader_retrieval_ir.register("DIR")  # a release directory, or ORG/NAME on a hub; default: the archive
    dev = ir_datasets.load("dureader-retrieval/dev")

The ids are ``dureader-retrieval`` (only passages), ``dureader-retrieval/train``, ``/dev`` and ``/test``. The same ids
exist below ``/cmedqa``, ``/ccovid``, ``/crosslingual`` (English queries, Chinese passages) and ``/stress-KIND``
(perturbed queries). Data are read and downloaded on first use. The source is the argument of :func:`register`, else the
environment variable ``DUREADER_RETRIEVAL_RELEASE``, else the original release's archive, which is downloaded once. All
files are verified by ``dureader_retrieval``.

``python -m dureader_retrieval_ir`` is the library's command line for these ids. The commands are ``list``, ``export``
and ``lookup``.
"""

import os
import re
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import ir_datasets
from ir_datasets.datasets.base import Dataset
from ir_datasets.formats import BaseDocs, BaseQrels, BaseQueries, GenericDoc, GenericQuery, TrecQrel
from ir_datasets.indices import PickleLz4FullStore
from ir_datasets.util import MetadataComponent, home_path, use_docstore

import dureader_retrieval
from dureader_retrieval import ReleaseError

NAME = "dureader-retrieval"
VARIABLE = "DUREADER_RETRIEVAL_RELEASE"
SPLITS = ("train", "dev", "test")
_HUB_NAME = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


class SetConfigs(NamedTuple):
    """The configs of a set. With ``translated``, the queries are English translations.

    The judgments of translated or perturbed queries name the original queries. ``original_column`` is the column of the
    queries with the ids of the originals. It is empty for queries that the judgments name directly.
    """

    corpus: str
    queries: str
    qrels: str
    translated: bool
    original_column: str


# Name of the set in the ids of ir_datasets -> configs of the set. The main set has no name there.
# Generated from builders/store/layout.py by `python -m builders.store.loader_tables`.
SETS = {
    "": SetConfigs(
        corpus="corpus",
        queries="queries",
        qrels="qrels",
        translated=False,
        original_column="",
    ),
    "cmedqa": SetConfigs(
        corpus="cmedqa-corpus",
        queries="cmedqa-queries",
        qrels="cmedqa-qrels",
        translated=False,
        original_column="",
    ),
    "ccovid": SetConfigs(
        corpus="ccovid-corpus",
        queries="ccovid-queries",
        qrels="ccovid-qrels",
        translated=False,
        original_column="",
    ),
    "crosslingual": SetConfigs(
        corpus="corpus",
        queries="crosslingual-queries",
        qrels="qrels",
        translated=True,
        original_column="zh_id",
    ),
    "stress-traditional": SetConfigs(
        corpus="corpus",
        queries="stress-traditional-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-homophone": SetConfigs(
        corpus="corpus",
        queries="stress-homophone-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-swap": SetConfigs(
        corpus="corpus",
        queries="stress-swap-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-drop": SetConfigs(
        corpus="corpus",
        queries="stress-drop-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-repeat": SetConfigs(
        corpus="corpus",
        queries="stress-repeat-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-full-width": SetConfigs(
        corpus="corpus",
        queries="stress-full-width-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
    "stress-pinyin-word": SetConfigs(
        corpus="corpus",
        queries="stress-pinyin-word-queries",
        qrels="qrels",
        translated=False,
        original_column="original_id",
    ),
}
# End of the generated lines.


# This module lacks `from __future__ import annotations`, because the library's exporters read the types of the fields.
class TranslatedQuery(NamedTuple):
    """An English query. ``zh_id`` is the id of the Chinese query that it translates."""

    query_id: str
    text: str
    zh_id: str

    def default_text(self) -> str:
        return self.text


class PerturbedQuery(NamedTuple):
    """A perturbed query. ``original_id`` is the id of the query as people asked it."""

    query_id: str
    text: str
    original_id: str

    def default_text(self) -> str:
        return self.text


class Source:
    """The source of rows: a release directory, ORG/NAME (or ORG/NAME@REVISION) on a hub, or "" for the archive."""

    def __init__(self, release: str) -> None:
        self.datasets: list[_LazyDataset] = []  # the registered datasets of this source
        self.replace_release(release)

    def replace_release(self, release: str) -> None:
        """Change the source, and drop what is cached of the old source."""
        self.release = release
        self._repo: str | None = None
        self._revision: str | None = None
        # A folder with the name ORG/NAME is a release directory.
        hub_name = _HUB_NAME.fullmatch(release)
        if hub_name and not os.path.exists(release):
            self._repo, self._revision = hub_name.groups()
        self._parts_by_split: dict[tuple[str, str], list[Any]] = {}  # by set and split
        self._docs_by_config: dict[str, _Docs] = {}
        for dataset in self.datasets:
            dataset.forget()

    def _folder(self, config: str = "") -> str | None:
        """Return the release directory; None for the archive.

        If the release is on a hub, the manifest and the files of ``config`` are fetched first; without ``config``, only
        the manifest.
        """
        if not self._repo:
            return self.release or None
        from huggingface_hub import snapshot_download

        file_patterns = ["manifest.json"]
        if config:
            file_patterns.append(f"{config}/*")
        folder = snapshot_download(
            self._repo, repo_type="dataset", revision=self._revision, allow_patterns=file_patterns
        )
        # The folder's name is the commit. Later files come from the same commit.
        self._revision = os.path.basename(folder)
        return str(folder)

    def rows(self, config: str, split: str, streaming: bool = False) -> Any:
        """Return the verified rows of a split. Without ``streaming``, ``datasets`` caches the rows."""
        folder = self._folder(config)
        return dureader_retrieval.load_dataset(config, split, data_dir=folder, streaming=streaming)

    def count(self, config: str, split: str) -> int | None:
        """Return the number of rows of a split from the manifest; None for the archive."""
        return self.splits(config)[split]

    def splits(self, config: str) -> dict[str, int | None]:
        return dureader_retrieval.splits_of(config, data_dir=self._folder())

    def version(self, config: str) -> str:
        """Return a name for the rows of a config. Changed rows have another name."""
        builder_config = dureader_retrieval.DureaderRetrieval.builder_configs[config]
        builder_config.data_dir = self._folder(config)
        return str(builder_config.create_config_id({}))

    def parts(self, dataset_id: str, set_name: str, split: str) -> list[Any]:
        """Return the two parts that make a dataset of the library: the metadata, and a dataset of the handlers.

        A handler is an object from which the library reads passages, queries or qrels. Without a split, there is only
        the handler of the passages. A split without labels has no handler of qrels.
        ``set_name`` is a key of ``SETS``, and ``split`` is empty for an id with only passages. Raises
        :class:`ReleaseError` if the source lacks the passages or the queries.
        """
        key = (set_name, split)
        if key not in self._parts_by_split:
            try:
                handlers = self._open_handlers(SETS[set_name], split)
            except ReleaseError as error:
                advice = "" if self.release else f" (set {VARIABLE}=DIR, or call register(DIR))"
                raise ReleaseError(f"{dataset_id}: {error}{advice}") from None
            dataset = Dataset(*handlers)
            metadata = MetadataComponent(dataset_id, dataset, _Counts(dataset))
            self._parts_by_split[key] = [metadata, dataset]
        return self._parts_by_split[key]

    def _open_handlers(self, configs: SetConfigs, split: str) -> list[Any]:
        """Return the handlers of a set's passages, and with a split those of its queries, and of its qrels if any."""
        self.splits(configs.corpus)  # raises if the source lacks the passages
        if configs.corpus not in self._docs_by_config:
            # Shared by ids, so that the library recognizes equal passages.
            self._docs_by_config[configs.corpus] = _Docs(self, configs.corpus)
        docs = self._docs_by_config[configs.corpus]
        if not split:
            return [docs]
        present_splits = self.splits(configs.queries)
        if split not in present_splits:
            if not self.release:
                raise ReleaseError(dureader_retrieval.describe_missing(configs.queries, split))
            # "queries" has all queries.
            split_names = ", ".join(name for name in present_splits if name != "queries")
            raise ReleaseError(f"{self.release}: has no {split} queries; it has queries of {split_names}")
        queries = _Queries(self, configs, split)
        if split not in self._splits_if_any(configs.qrels):
            return [docs, queries]
        changed_queries = queries if configs.original_column else None
        return [docs, queries, _Qrels(self, configs.qrels, split, changed_queries)]

    def _splits_if_any(self, config: str) -> dict[str, int | None]:
        """Return the splits of a config as :meth:`splits` does; empty if the source lacks the config."""
        try:
            return self.splits(config)
        except ReleaseError:  # the manifest was valid before, so the config is missing
            return {}


class _Counts:
    """The counts of a dataset of this project, in the form in which the library asks for metadata.

    The library's own metadata has only the counts of the library's datasets. ``kind`` is docs, queries or qrels.
    """

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def get_metadata(self, dataset_id: str, kind: Any) -> dict[str, int]:
        count_items = getattr(self._dataset, f"{kind.value}_count")  # for example docs_count
        return {"count": count_items()}


class _Docs(BaseDocs):  # type: ignore[misc]  # ir_datasets is untyped
    """The handler of the passages of ``config``."""

    def __init__(self, source: Source, config: str) -> None:
        self._source = source
        self._config = config

    def _rows(self) -> Iterator[Any]:
        # Streamed, because the library stores its own copy of the passages.
        for row in self._source.rows(self._config, "corpus", streaming=True):
            yield GenericDoc(row["_id"], row["text"])

    # The decorator reads the library's own copy of the passages if there is one. A slice makes the copy.
    @use_docstore  # type: ignore[untyped-decorator]
    def docs_iter(self) -> Iterator[Any]:
        return self._rows()

    def docs_store(self, field: str = "doc_id") -> Any:
        """Return the library's copy of the passages, written on first use. Changed passages have another copy."""
        store_folder = home_path() / NAME / self._source.version(self._config)
        return PickleLz4FullStore(
            path=str(store_folder / "docs.pklz4"),
            init_iter_fn=self._rows,
            data_cls=GenericDoc,
            lookup_field=field,
            index_fields=["doc_id"],
            count_hint=lambda: self._source.count(self._config, "corpus"),
        )

    def docs_count(self) -> int:
        declared_count = self._source.count(self._config, "corpus")
        if declared_count is None:  # unknown for the archive
            return int(self.docs_store().count())
        return declared_count

    def docs_cls(self) -> Any:
        return GenericDoc

    def docs_namespace(self) -> str:
        return NAME

    def docs_lang(self) -> str:
        return "zh"


class _Queries(BaseQueries):  # type: ignore[misc]
    """The handler of the queries of a set's split. Translated and perturbed queries also have the original's id."""

    def __init__(self, source: Source, configs: SetConfigs, split: str) -> None:
        self._source = source
        self._config = configs.queries
        self._split = split
        self._translated = configs.translated
        self._original_column = configs.original_column

    def queries_iter(self) -> Iterator[Any]:
        rows = self._source.rows(self._config, self._split)
        if not self._original_column:
            return (GenericQuery(row["_id"], row["text"]) for row in rows)
        query_class = self.queries_cls()
        return (query_class(row["_id"], row["text"], row[self._original_column]) for row in rows)

    def original_ids(self) -> Iterator[tuple[str, str]]:
        """Yield the id of each translated or perturbed query, and the id of its original."""
        for row in self._source.rows(self._config, self._split):
            yield row["_id"], row[self._original_column]

    def queries_count(self) -> int:
        declared_count = self._source.count(self._config, self._split)
        if declared_count is None:
            return len(self._source.rows(self._config, self._split))
        return declared_count

    def queries_cls(self) -> Any:
        if not self._original_column:
            return GenericQuery
        return TranslatedQuery if self._translated else PerturbedQuery

    def queries_namespace(self) -> str:
        return NAME

    def queries_lang(self) -> str:
        return "en" if self._translated else "zh"


class _Qrels(BaseQrels):  # type: ignore[misc]
    """The handler of the judgments of a split.

    With ``changed_queries``, the ids of queries are those of the translated or perturbed queries. None: the ids are
    those of ``config``.
    """

    def __init__(self, source: Source, config: str, split: str, changed_queries: _Queries | None) -> None:
        self._source = source
        self._config = config
        self._split = split
        self._changed_queries = changed_queries

    def qrels_iter(self) -> Iterator[Any]:
        rows = self._source.rows(self._config, self._split)
        if self._changed_queries is None:
            for row in rows:
                yield TrecQrel(row["query-id"], row["corpus-id"], row["score"], "0")
            return
        # An original query may have several translations.
        ids_by_original: dict[str, list[str]] = {}
        for query_id, original_id in self._changed_queries.original_ids():
            ids_by_original.setdefault(original_id, []).append(query_id)
        for row in rows:
            for query_id in ids_by_original.get(row["query-id"], []):
                yield TrecQrel(query_id, row["corpus-id"], row["score"], "0")

    def qrels_count(self) -> int:
        declared_count = None
        if self._changed_queries is None:  # the manifest counts the judgments of the originals
            declared_count = self._source.count(self._config, self._split)
        if declared_count is None:
            return sum(1 for _ in self.qrels_iter())
        return declared_count

    def qrels_cls(self) -> Any:
        return TrecQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "the passage answers the query", 0: "people judged that the passage does not answer the query"}


class _LazyDataset(Dataset):  # type: ignore[misc]
    """A dataset of ir_datasets that opens its handlers on first use."""

    def __init__(self, source: Source, dataset_id: str, set_name: str, split: str) -> None:
        self._source = source
        self._dataset_id = dataset_id
        self._set_name = set_name
        self._split = split
        self.forget()

    def forget(self) -> None:
        """Drop the library's cache of `dataset.docs` and similar attributes, which keep rows of the old source."""
        self._beta_apis: dict[str, Any] = {}

    @property
    def _constituents(self) -> list[Any]:  # the library looks for every method in these parts
        return self._source.parts(self._dataset_id, self._set_name, self._split)

    def metadata(self) -> Any:  # defined here, so that registering opens no handler
        return self._constituents[0].metadata()


_SOURCES: dict[str, Source] = {}  # by the prefix of the registered ids


def register(release: str | os.PathLike[str] | None = None, name: str = NAME) -> None:
    """Register the ids with ``ir_datasets`` under ``name``, or change the source of registered ids.

    Args:
        release: a release directory, or ORG/NAME or ORG/NAME@REVISION of a release on a hub. None means the value of
            ``DUREADER_RETRIEVAL_RELEASE``, else the original archive, which is downloaded once.
        name: prefix of the ids, so that several releases can be registered at the same time.
    """
    if release is None:
        release = os.environ.get(VARIABLE, "")
    source_name = os.path.expanduser(os.fspath(release))
    if name in _SOURCES:
        _SOURCES[name].replace_release(source_name)
        return
    source = Source(source_name)
    _SOURCES[name] = source
    for set_name in SETS:
        for split in ("", *SPLITS):  # without a split, the id has only passages
            dataset_id = "/".join(part for part in (name, set_name, split) if part)
            dataset = _LazyDataset(source, dataset_id, set_name, split)
            source.datasets.append(dataset)
            ir_datasets.registry.register(dataset_id, dataset)


register()

if __name__ == "__main__":
    try:
        ir_datasets.main(sys.argv[1:])
    except (ValueError, OSError) as error:  # ReleaseError, or an error of a hub
        sys.exit(f"{NAME}: {error}")
