"""DuReader-retrieval for the ``ir_datasets`` library: importing this module registers its ids there.

::

    import dureader_retrieval_ir
    import ir_datasets

    dureader_retrieval_ir.register("DIR")  # a release directory, or ORG/NAME on a hub; without it: the archive
    dev = ir_datasets.load("dureader-retrieval/dev")

The ids: ``dureader-retrieval`` (passages), ``/train``, ``/dev``, ``/test``; the same below ``/cmedqa``, ``/ccovid`` and
``/crosslingual`` (English queries, Chinese passages). Nothing is read or downloaded before it is asked for. Where the
rows come from is said by :func:`register`, or by the environment variable ``DUREADER_RETRIEVAL_RELEASE``; else the
original release's archive is downloaded once. All of it goes through ``dureader_retrieval``, which checks every file.

The library's command line with these ids: ``python -m dureader_retrieval_ir list``, ``export``, ``lookup``.
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
# What an id stands for: the configs of its passages, queries and judgments.
SETS = {
    "": ("corpus", "queries", "qrels"),
    "cmedqa": ("cmedqa-corpus", "cmedqa-queries", "cmedqa-qrels"),
    "ccovid": ("ccovid-corpus", "ccovid-queries", "ccovid-qrels"),
    "crosslingual": ("corpus", "crosslingual-queries", "qrels"),
}
_HUB = re.compile(r"([\w.-]+/[\w.-]+)(?:@([\w./-]+))?")


# No `from __future__ import annotations` here: the library's exporters look at the types of these fields.
class TranslatedQuery(NamedTuple):
    """A query in English; ``zh_id`` is the id of the Chinese one that it translates."""

    query_id: str
    text: str
    zh_id: str

    def default_text(self) -> str:
        return self.text


class Source:
    """The source of rows: a release directory, ORG/NAME (or ORG/NAME@REVISION) on a hub, or the archive (empty)."""

    def __init__(self, release: str) -> None:
        self.datasets: list[_Declared] = []  # what is registered of it
        self.place(release)

    def place(self, release: str) -> None:
        """Take everything from there from now on."""
        found = None if os.path.exists(release) else _HUB.fullmatch(release)
        self.release, self._repo, self._revision = release, found and found[1], found and found[2]
        self._parts: dict[tuple[str, str], list[Any]] = {}
        self._docs: dict[str, _Docs] = {}
        for dataset in self.datasets:
            dataset.forget()

    def _folder(self, config: str = "") -> str | None:
        """The release directory with this config, fetched from the hub where it lies there; None for the archive."""
        if not self._repo:
            return self.release or None
        from huggingface_hub import snapshot_download

        wanted = ["manifest.json", *([f"{config}/*"] if config else [])]
        path = snapshot_download(self._repo, repo_type="dataset", revision=self._revision, allow_patterns=wanted)
        self._revision = os.path.basename(path)  # a commit: whatever is fetched later belongs to what is here
        return str(path)

    def rows(self, config: str, split: str, streaming: bool = False) -> Any:
        """The rows of a split, checked; prepared in the cache of ``datasets`` unless they are streamed."""
        folder = self._folder(config)
        return dureader_retrieval.load_dataset(config, split, data_dir=folder, streaming=streaming)

    def count(self, config: str, split: str) -> int | None:
        """Return the number of rows of a split, by the manifest; None where only the archive would tell."""
        return self.splits(config)[split]

    def splits(self, config: str) -> dict[str, int | None]:
        return dureader_retrieval.splits_of(config, data_dir=self._folder())

    def version(self, config: str) -> str:
        """A name for a config's rows, another one after every change of them."""
        found = dureader_retrieval.DureaderRetrieval.builder_configs[config]
        found.data_dir = self._folder(config)
        return str(found.create_config_id({}))

    def parts(self, dataset_id: str, set_name: str, split: str) -> list[Any]:
        """Return the parts of an id that the source has: a split without labels has no qrels.

        Raises :class:`ReleaseError` where there is nothing of it.
        """
        if (set_name, split) not in self._parts:
            try:
                handlers = self._handlers(set_name, split)
            except ReleaseError as error:
                where = "" if self.release else f" (here: {VARIABLE}=DIR, or register(DIR))"
                raise ReleaseError(f"{dataset_id}: {error}{where}") from None
            dataset = Dataset(*handlers)
            self._parts[set_name, split] = [MetadataComponent(dataset_id, dataset, _Counts(dataset)), dataset]
        return self._parts[set_name, split]

    def _handlers(self, set_name: str, split: str) -> Iterator[Any]:
        corpus, queries, qrels = SETS[set_name]
        self.splits(corpus)
        if corpus not in self._docs:
            self._docs[corpus] = _Docs(self, corpus)  # one for all ids: the library asks which share their passages
        handlers: list[Any] = [self._docs[corpus]]
        if split:
            translated = set_name == "crosslingual"
            if split not in (found := self.splits(queries)):
                own = ", ".join(each for each in found if each != "queries")  # which are those of all
                lacks = f"{self.release}: has no {split} queries; it has those of {own}"
                raise ReleaseError(lacks if self.release else dureader_retrieval._lacks(queries, split))
            handlers.append(_Queries(self, queries, split, translated))
            if split in self._splits_if_any(qrels):
                handlers.append(_Qrels(self, qrels, split, handlers[1] if translated else None))
        return iter(handlers)

    def _splits_if_any(self, config: str) -> dict[str, int | None]:
        try:
            return self.splits(config)
        except ReleaseError:  # the manifest has been read before: the config is not there
            return {}


class _Counts:
    """Tells the library, which has a list of counts for its own datasets, those of ours."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset

    def get_metadata(self, dataset_id: str, kind: Any) -> dict[str, int]:
        return {"count": getattr(self._dataset, f"{kind.value}_count")()}


class _Docs(BaseDocs):  # type: ignore[misc]  # ir_datasets is untyped
    def __init__(self, source: Source, config: str) -> None:
        self._source, self._config = source, config

    def _rows(self) -> Iterator[Any]:
        # Streamed: the library's own store keeps a copy, a second one would be in vain.
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
    """Judgments; with ``translations``, those of the queries that they translate, under their own ids."""

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
            for each in judged.get(query, []) if self._translations else [query]:
                yield TrecQrel(each, row["corpus-id"], row["score"], "0")

    def qrels_count(self) -> int:
        known = None if self._translations else self._source.count(*self._place)
        return sum(1 for _ in self.qrels_iter()) if known is None else known

    def qrels_cls(self) -> Any:
        return TrecQrel

    def qrels_defs(self) -> dict[int, str]:
        return {1: "the passage answers the query", 0: "people judged that it does not"}


class _Declared(Dataset):  # type: ignore[misc]
    """A dataset of ir_datasets whose parts are opened when one of them is asked for."""

    def __init__(self, source: Source, dataset_id: str, set_name: str, split: str) -> None:
        self._source, self._declared = source, (dataset_id, set_name, split)
        self.forget()

    def forget(self) -> None:
        """Forget what `dataset.docs` and the like remember of their rows."""
        self._beta_apis: dict[str, Any] = {}

    @property
    def _constituents(self) -> list[Any]:
        return self._source.parts(*self._declared)

    def metadata(self) -> Any:  # named here, so that registering asks for no part
        return self._constituents[0].metadata()


_SOURCES: dict[str, Source] = {}


def register(release: str | os.PathLike[str] | None = None, name: str = NAME) -> None:
    """Register the ids with ``ir_datasets`` under ``name``, or take those that are there from another place.

    Args:
        release: a release directory; ORG/NAME, or ORG/NAME@REVISION, of a release on a hub; where None, what
            ``DUREADER_RETRIEVAL_RELEASE`` says, and the original archive, downloaded once, where that says nothing.
        name: what the ids begin with, to have several releases side by side.
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
    except (ValueError, OSError) as error:  # ReleaseError, and what a hub answers
        sys.exit(f"{NAME}: {error}")
