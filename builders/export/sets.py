"""Read the corpus, queries, judgments and joined rows of a set for an export.

All rows come in Arrow batches, so that the memory of an export does not depend on the size of the set.
"""

import contextlib
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.files import temporary_folder
from builders.store.judgments import read_negative_ids
from builders.store.layout import JOINED, QRELS, SETS, SPLITS, Set, config_of, set_of
from builders.store.reader import Release

ROWS = 1_024  # rows of a batch; a joined row can have 100 kB
_MEMORY = 512  # MB for DuckDB

# Joined rows: each query with its passages in the order of the judgments. Passages with score 0 or less are negative.
_JOIN = """
WITH judged AS (
    SELECT "query-id" AS _id, line, score, {'docid': c._id, 'title': title, 'text': c.text} AS passage
    FROM (SELECT *, row_number() OVER () AS line FROM read_parquet($qrels)) AS q
    JOIN read_parquet($corpus) AS c ON c._id = q."corpus-id"
)
SELECT q._id AS query_id, q.text AS query,
       coalesce(list(passage ORDER BY judged.line) FILTER (score > 0), []) AS positive_passages,
       coalesce(list(passage ORDER BY judged.line) FILTER (score <= 0), []) AS negative_passages
FROM (SELECT *, row_number() OVER () AS line FROM read_parquet($queries)) AS q
LEFT JOIN judged USING (_id)
GROUP BY q.line, q._id, q.text ORDER BY q.line
"""

# The mined passages of each query with their texts, in the order of the --negatives files.
_FIND = """
CREATE TEMP TABLE found AS
SELECT query, list({'docid': c._id, 'title': title, 'text': c.text} ORDER BY line) AS mined
FROM ids JOIN read_parquet($corpus) AS c ON c._id = ids.docid GROUP BY query
"""
_OF = "SELECT query, mined FROM found WHERE query IN (SELECT unnest($queries))"

Batches = Iterator[pa.RecordBatch]


@dataclass(frozen=True)
class ReleaseSet:
    """A set of a release. Batches have the columns of :mod:`builders.store.layout`, in the order of the release.

    ``name`` is a name that :func:`builders.store.layout.set_of` knows. Methods that read passages or queries raise
    :class:`InputError` if the release lacks the set.
    """

    release: Release
    name: str
    top_k: int = 10  # passages of a query in the format rag

    @property
    def configs(self) -> Set:
        """The configs of the set. Raises :class:`InputError` if the release lacks the set's corpus or queries."""
        configs = set_of(self.name)
        present = {config for config, _ in self.release.splits()}
        if missing := [config for config in (configs.corpus, configs.queries) if config not in present]:
            verb = "release" if configs.queries == "queries" else f"add {self.name}"
            raise InputError(
                f"lacks the config {missing[0]!r} of the set {self.name!r}; run `python -m builders {verb}`",
                path=self.release.path,
            )
        return configs

    def corpus(self) -> Batches:
        return self.release.batches(self.configs.corpus, "corpus", ["_id", "title", "text"])

    def contents(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield (ids, texts) of the corpus for formats without titles. A title, if any, is put before the text."""
        for batch in self.corpus():
            titled = pc.binary_join_element_wise(batch["title"], batch["text"], " ")
            yield batch["_id"], pc.if_else(pc.equal(batch["title"], ""), batch["text"], titled)

    def expect_passages(self, ids: Collection[str], path: Path) -> None:
        """Raise :class:`InputError` if the corpus lacks a passage of the file ``path``."""
        if lacking := self.release.missing(self.configs.corpus, "corpus", ids):
            place = f"{self.configs.corpus!r} of {self.release.path}"
            raise InputError(f"has {len(lacking):,} passages that {place} lacks, such as {lacking[0]}", path=path)

    def query_splits(self) -> list[str]:
        return self._splits(self.configs.queries)

    def queries(self, split: str) -> Batches:
        return self.release.batches(self.configs.queries, split, ["_id", "text"])

    def qrels_splits(self) -> list[str]:
        if not self.configs.translated:
            return self._splits(self.configs.qrels)
        # English queries have no qrels, only joined rows. A split whose lists are all empty has no judgments.
        return [split for split in self.query_splits() if any(batch.num_rows for batch in self.qrels(split))]

    def qrels(self, split: str) -> Batches:
        if not self.configs.translated:
            yield from self.release.batches(self.configs.qrels, split, QRELS.names)
            return
        for batch in self.joined(split):
            positives = batch["positive_passages"]
            queries = batch["query_id"].take(pc.list_parent_indices(positives))
            passages = positives.flatten().field("docid")
            yield pa.record_batch([queries, passages, pa.repeat(pa.scalar(1), len(passages))], schema=QRELS)

    def joined(self, split: str) -> Batches:
        """Yield joined rows, in the format of the train/dev/test configs. Lists are empty without judgments."""
        configs, present = self.configs, self.release.splits()
        config = configs.joined.get(split, "")
        if (config, split) in present:
            yield from self.release.batches(config, split, JOINED.names, rows=ROWS)
        elif configs.translated or (configs.qrels, split) not in present:
            for batch in self.queries(split):
                empty = pa.array([[]] * batch.num_rows, JOINED.field("positive_passages").type)
                yield pa.record_batch([batch["_id"], batch["text"], empty, empty], schema=JOINED)
        else:
            pairs = {"qrels": (configs.qrels, split), "corpus": (configs.corpus, "corpus")}
            with _database(self.release, pairs | {"queries": (configs.queries, split)}) as (con, files):
                for batch in con.sql(_JOIN, params=files).to_arrow_reader(ROWS):
                    yield pa.Table.from_batches([batch]).cast(JOINED).combine_chunks().to_batches()[0]

    def _splits(self, config: str) -> list[str]:
        return [split for split in SPLITS if (config, split) in self.release.splits()]


@contextlib.contextmanager
def _database(release: Release, pairs: dict[str, tuple[str, str]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    from builders.core.database import database

    with contextlib.ExitStack() as opened:
        files = {name: opened.enter_context(release.files(*pair)) for name, pair in pairs.items()}
        yield opened.enter_context(database(opened.enter_context(temporary_folder()), _MEMORY)), files


class DrawnSet(ReleaseSet):
    """The main set, restricted to the questions and judgments of a config ``restrain-*`` or ``resttest-*``.

    The splits are those of the config. If the config has only a train split, dev and test of the main set are added.
    """

    @property
    def _main(self) -> ReleaseSet:
        return ReleaseSet(self.release, "main")

    def _own(self) -> list[str]:
        own = [split for split in config_of(self.name).splits if (self.name, split) in self.release.splits()]
        if not own:
            self.release.shards(self.name, "train")  # raises InputError
        return own

    def _splits(self, config: str) -> list[str]:
        tests = super()._splits(SETS["main"].qrels if config == self.name else config)
        own = self._own()
        return own if len(own) > 1 else [*own, *(split for split in tests if split != "train")]

    def queries(self, split: str) -> Batches:
        return self._of(split, "_id", self._main.queries)

    def qrels(self, split: str) -> Batches:
        return super().qrels(split) if split in self._own() else self._main.qrels(split)

    def joined(self, split: str) -> Batches:
        return self._of(split, "query_id", self._main.joined)

    def _of(self, split: str, column: str, read: Callable[[str], Batches]) -> Batches:
        """Yield the main set's rows for the questions of a split, without repetition.

        Questions of a training split are read from the main train split, other questions from main dev and test.
        """
        if split not in self._own():
            yield from read(split)
            return
        wanted = pc.unique(self.release.table(self.name, split, ["query-id"])["query-id"])
        for source in self._main.query_splits():
            for batch in read(source) if (source == "train") == (split == "train") else ():
                found = batch.filter(pc.is_in(batch[column], wanted))
                wanted = wanted.filter(pc.invert(pc.is_in(wanted, found[column])))
                if found.num_rows:
                    yield found


@contextlib.contextmanager
def joined_with(data: ReleaseSet, paths: Sequence[Path]) -> Iterator[Callable[[str], Batches]]:
    """Yield a function that returns a split's joined rows. Mined negatives come before the release's own negatives.

    Repeated negatives, and negatives that are also positives, are dropped. ``paths`` are files of ``baselines mine``.

    Raises:
        InputError: a file is not from ``mine``, the corpus lacks a passage, or the set has none of the queries.
    """
    if not paths:
        yield data.joined
        return
    ids = _mined(data, paths)
    with _database(data.release, {"corpus": (data.configs.corpus, "corpus")}) as (con, files):
        con.register("ids", ids)
        con.execute(_FIND, files)

        def joined(split: str) -> Batches:
            for batch in data.joined(split):
                mined = dict(con.execute(_OF, {"queries": batch["query_id"].to_pylist()}).fetchall())
                rows = batch.select(JOINED.names).to_pylist()
                for row in rows:
                    positive = {passage["docid"] for passage in row["positive_passages"]}
                    every = [*mined.get(row["query_id"], ()), *row["negative_passages"]]
                    distinct = {passage["docid"]: passage for passage in every if passage["docid"] not in positive}
                    row["negative_passages"] = [*distinct.values()]
                yield pa.RecordBatch.from_pylist(rows, JOINED)

        yield joined


def _mined(data: ReleaseSet, paths: Sequence[Path]) -> pa.Table:
    """Return a row for each (query, passage) pair of the files, in order, checked against the release."""
    mined: dict[str, dict[str, None]] = {}
    for path in paths:
        rows = read_negative_ids(path)
        data.expect_passages({docid for _, ids, _ in rows for docid in ids}, path)
        for query, ids, _ in rows:
            mined.setdefault(query, {}).update(dict.fromkeys(ids))
    batches = (batch for split in data.query_splits() for batch in data.queries(split))
    if all(mined.keys().isdisjoint(batch["_id"].to_pylist()) for batch in batches):
        raise InputError(f"has no query of {data.release.path}; mine negatives for this release", path=paths[0])
    pairs = [(query, docid) for query, ids in mined.items() for docid in ids]
    return pa.table(
        {"query": [query for query, _ in pairs], "docid": [docid for _, docid in pairs], "line": range(len(pairs))},
        pa.schema({"query": pa.string(), "docid": pa.string(), "line": pa.int64()}),
    )
