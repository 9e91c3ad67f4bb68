"""Register DuReader-retrieval in the ``ir_datasets`` library. Importing this module registers the ids.

::

    import dureader_retrieval_ir
    import ir_datasets

    dureader_retrieval_ir.register("DIR")  # a release directory, or ORG/NAME on a hub; default: the archive
    dev = ir_datasets.load("dureader-retrieval/dev")

The ids are ``dureader-retrieval`` (only passages), ``dureader-retrieval/train``, ``/dev`` and ``/test``. The same ids
exist below ``/cmedqa``, ``/ccovid`` and ``/crosslingual`` (English queries, Chinese passages). Data are read and
downloaded on first use. The source is the argument of :func:`register`, else the environment variable
``DUREADER_RETRIEVAL_RELEASE``, else the original release's archive, which is downloaded once. All files are verified by
``dureader_retrieval``.

``python -m dureader_retrieval_ir`` is the library's command line for these ids. The commands are ``list``, ``export``
and ``lookup``.
"""

import os
import re
import sys
from collections.abc import Callable, Iterator
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
# Set in an id -> configs of the set's passages, queries and judgments.
SETS = {
    "": ("corpus", "queries", "qrels"),
    "cmedqa": ("cmedqa-corpus", "cmedqa-queries", "cmedqa-qrels"),
    "ccovid": ("ccovid-corpus", "ccovid-queries", "ccovid-qrels"),
    "crosslingual": ("corpus", "crosslingual-queries", "qrels"),
}
_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


# This module lacks `from __future__ import annotations`, because the library's exporters read the types of the fields.
class TranslatedQuery(NamedTuple):
    """An English query. ``zh_id`` is the id of the Chinese query that it translates."""

    query_id: str
    text: str
    zh_id: str

    def default_text(self) -> str:
        return self.text


class Source:
    """The source of rows: a release directory, ORG/NAME (or ORG/NAME@REVISION) on a hub, or "" for the archive."""

    def __init__(self, release: str) -> None:
        self.datasets: list[_Declared] = []  # the registered datasets of this source
        self.place(release)

    def place(self, release: str) -> None:
        """Change the source, and drop the cached handlers of the old source."""
        match = None if os.path.exists(release) else _HUB.fullmatch(release)
        self.release, self._repo, self._revision = release, match and match[1], match and match[2]
        self._parts: dict[tuple[str, str], list[Any]] = {}
        self._docs: dict[str, _Docs] = {}
        for dataset in self.datasets:
            dataset.forget()

    def _folder(self, config: str = "") -> str | None:
        """Return the release directory, after fetching ``config`` if the release is on a hub. None for the archive."""
        if not self._repo:
            return self.release or None
        from huggingface_hub import snapshot_download

        wanted = ["manifest.json", *([f"{config}/*"] if config else [])]
        path = snapshot_download(self._repo, repo_type="dataset", revision=self._revision, allow_patterns=wanted)
        self._revision = os.path.basename(path)  # the commit, so that later files come from the same commit
        return str(path)

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
        """Return the handlers of an id: passages, queries, and qrels if the split has labels.

        Raises :class:`ReleaseError` if the source lacks the passages or the queries.
        """
        if (set_name, split) not in self._parts:
            try:
                handlers = self._handlers(set_name, split)
            except ReleaseError as error:
                advice = "" if self.release else f" (set {VARIABLE}=DIR, or call register(DIR))"
                raise ReleaseError(f"{dataset_id}: {error}{advice}") from None
            dataset = Dataset(*handlers)
            self._parts[set_name, split] = [MetadataComponent(dataset_id, dataset, _Counts(dataset)), dataset]
        return self._parts[set_name, split]

    def _handlers(self, set_name: str, split: str) -> Iterator[Any]:
        corpus, queries, qrels = SETS[set_name]
        self.splits(corpus)
        if corpus not in self._docs:
            self._docs[corpus] = _Docs(self, corpus)  # shared by ids, so that the library recognizes equal passages
        handlers: list[Any] = [self._docs[corpus]]
        if split:
            translated = set_name == "crosslingual"
            if split not in (known := self.splits(queries)):
                names = ", ".join(name for name in known if name != "queries")  # "queries" has all queries
                lacks = f"{self.release}: has no {split} queries; it has queries of {names}"
                raise ReleaseError(lacks if self.release else dureader_retrieval.describe_missing(queries, split))
            handlers.append(_Queries(self, queries, split, translated))
            if split in self._splits_if_any(qrels):
                handlers.append(_Qrels(self, qrels, split, handlers[1] if translated else None))
        return iter(handlers)

    def _splits_if_any(self, config: str) -> dict[str, int | None]:
        try:
            return self.splits(config)
        except ReleaseError:  # the manifest was valid before, so the config is missing
            return {}


class _Counts:
    """The counts of a dataset of this project. The library has only the counts of the library's datasets."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def get_metadata(self, dataset_id: str, kind: Any) -> dict[str, int]:
        return {"count": getattr(self._dataset, f"{kind.value}_count")()}


class _Docs(BaseDocs):  # type: ignore[misc]  # ir_datasets is untyped
    def __init__(self, source: Source, config: str) -> None:
        self._source, self._config = source, config

    def _rows(self) -> Iterator[Any]:
        # Streamed, because the library stores its own copy of the passages.
        for row in self._source.rows(self._config, "corpus", streaming=True):
            yield GenericDoc(row["_id"], row["text"])

    @use_docstore  # type: ignore[untyped-decorator]
    def docs_iter(self) -> Iterator[Any]:
        return self._rows()

    def docs_store(self, field: str = "doc_id") -> Any:
        return PickleLz4FullStore(
            path=str(home_path() / NAME / self._source.version(self._config) / "docs.pklz4"),
            init_iter_fn=self._rows,
            data_cls=GenericDoc,
            lookup_field=field,
            index_fields=["doc_id"],
            count_hint=lambda: self._source.count(self._config, "corpus"),
        )

    def docs_count(self) -> int:
        known = self._source.count(self._config, "corpus")
        return int(self.docs_store().count()) if known is None else known

    def docs_cls(self) -> Any:
        return GenericDoc

    def docs_namespace(self) -> str:
        return NAME

    def docs_lang(self) -> str:
        return "zh"


class _Queries(BaseQueries):  # type: ignore[misc]
    def __init__(self, source: Source, config: str, split: str, translated: bool) -> None:
        self._source, self._place, self._translated = source, (config, split), translated

    def queries_iter(self) -> Iterator[Any]:
        make: Callable[..., Any] = self.queries_cls()
        names = ("_id", "text", "zh_id")[: len(make._fields)]  # type: ignore[attr-defined]
        return (make(*(row[name] for name in names)) for row in self._source.rows(*self._place))

    def queries_count(self) -> int:
        known = self._source.count(*self._place)
        return len(self._source.rows(*self._place)) if known is None else known

    def queries_cls(self) -> Any:
        return TranslatedQuery if self._translated else GenericQuery

    def queries_namespace(self) -> str:
        return NAME

    def queries_lang(self) -> str:
        return "en" if self._translated else "zh"


class _Qrels(BaseQrels):  # type: ignore[misc]
    """Judgments of Chinese queries. With ``translations``, the query ids are the ids of the English queries."""

    def __init__(self, source: Source, config: str, split: str, translations: _Queries | None) -> None:
        self._source, self._place, self._translations = source, (config, split), translations

    def qrels_iter(self) -> Iterator[Any]:
        rows = self._source.rows(*self._place)
        judged: dict[str, list[str]] = {}
        if self._translations:
            for query in self._translations.queries_iter():
                judged.setdefault(query.zh_id, []).append(query.query_id)
        for row in rows:
            query = row["query-id"]
            for query_id in judged.get(query, []) if self._translations else [query]:
                yield TrecQrel(query_id, row["corpus-id"], row["score"], "0")

    def qrels_count(self) -> int:
        known = None if self._translations else self._source.count(*self._place)
        return sum(1 for _ in self.qrels_iter()) if known is None else known

    def qrels_cls(self) -> Any:
        return TrecQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "the passage answers the query", 0: "people judged that the passage does not answer the query"}


class _Declared(Dataset):  # type: ignore[misc]
    """A dataset of ir_datasets that opens its handlers on first use."""

    def __init__(self, source: Source, dataset_id: str, set_name: str, split: str) -> None:
        self._source, self._declared = source, (dataset_id, set_name, split)
        self.forget()

    def forget(self) -> None:
        """Drop the rows in the cache of `dataset.docs` and similar attributes."""
        self._beta_apis: dict[str, Any] = {}

    @property
    def _constituents(self) -> list[Any]:
        return self._source.parts(*self._declared)

    def metadata(self) -> Any:  # defined here, so that registering opens no handler
        return self._constituents[0].metadata()


_SOURCES: dict[str, Source] = {}


def register(release: str | os.PathLike[str] | None = None, name: str = NAME) -> None:
    """Register the ids with ``ir_datasets`` under ``name``, or change the source of registered ids.

    Args:
        release: a release directory, or ORG/NAME or ORG/NAME@REVISION of a release on a hub. None means the value of
            ``DUREADER_RETRIEVAL_RELEASE``, else the original archive, which is downloaded once.
        name: prefix of the ids, so that several releases can be registered at the same time.
    """
    where = os.path.expanduser(os.fspath(os.environ.get(VARIABLE, "") if release is None else release))
    if name in _SOURCES:
        _SOURCES[name].place(where)
        return
    source = _SOURCES[name] = Source(where)
    for set_name in SETS:
        for split in ("", *SPLITS):
            dataset_id = "/".join(filter(None, (name, set_name, split)))
            source.datasets.append(_Declared(source, dataset_id, set_name, split))
            ir_datasets.registry.register(dataset_id, source.datasets[-1])


register()

if __name__ == "__main__":
    try:
        ir_datasets.main(sys.argv[1:])
    except (ValueError, OSError) as error:  # ReleaseError, or an error of a hub
        sys.exit(f"{NAME}: {error}")
