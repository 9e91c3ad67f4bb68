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
from builders.core.locks import temporary_folder
from builders.store.judgments import read_negative_ids
from builders.store.layout import JOINED, QRELS, SETS, SPLITS, Set, config_of, set_of
from builders.store.reader import Release

ROWS = 1_024  # rows of a batch; a joined row can have 100 kB
_DUCKDB_MEMORY = 512  # MB

# Joined rows: each query with its passages in the order of the judgments. Passages with score 0 or less are negative.
# {judged_id} is the column of the queries with the ids of the judgments.
_JOIN_QUERY = """
WITH judged AS (
    SELECT "query-id" AS judged_id, line, score, {{'docid': c._id, 'title': title, 'text': c.text}} AS passage
    FROM (SELECT *, row_number() OVER () AS line FROM read_parquet($qrels)) AS q
    JOIN read_parquet($corpus) AS c ON c._id = q."corpus-id"
)
SELECT q._id AS query_id, q.text AS query,
       coalesce(list(passage ORDER BY judged.line) FILTER (score > 0), []) AS positive_passages,
       coalesce(list(passage ORDER BY judged.line) FILTER (score <= 0), []) AS negative_passages
FROM (SELECT *, row_number() OVER () AS line FROM read_parquet($queries)) AS q
LEFT JOIN judged ON judged.judged_id = q.{judged_id}
GROUP BY q.line, q._id, q.text ORDER BY q.line
"""

# The mined passages of each query with their texts, in the order of the --negatives files.
_COLLECT_MINED = """
CREATE TEMP TABLE mined_passages AS
SELECT query, list({'docid': c._id, 'title': title, 'text': c.text} ORDER BY line) AS mined
FROM mined_ids JOIN read_parquet($corpus) AS c ON c._id = mined_ids.docid GROUP BY query
"""
_SELECT_MINED = "SELECT query, mined FROM mined_passages WHERE query IN (SELECT unnest($queries))"

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
        release_configs = {config for config, _ in self.release.splits()}
        for config in (configs.corpus, configs.queries):
            if config not in release_configs:
                main = SETS["main"]
                remedy = configs.origin
                # A set of perturbed questions has the main set's corpus.
                if config in (main.corpus, main.queries):
                    remedy = "make it by `python -m builders release`"
                raise InputError(
                    f"lacks the config {config!r} of the set {self.name!r}; {remedy}", path=self.release.path
                )
        return configs

    def count_rows(self, config: str, split: str) -> int | None:
        """Return the number of rows of a split, or None if the release lacks the split.

        For progress bars: the number is from the manifest, and the shards are not verified.
        """
        if (config, split) not in self.release.splits():
            return None
        return sum(entry.rows or 0 for entry in self.release.shards(config, split))

    def passage_count(self) -> int | None:
        return self.count_rows(self.configs.corpus, "corpus")

    def corpus(self) -> Batches:
        return self.release.batches(self.configs.corpus, "corpus", ["_id", "title", "text"])

    def contents(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """Yield (ids, texts) of the corpus for formats without titles. A title, if any, is put before the text."""
        for batch in self.corpus():
            titled_texts = pc.binary_join_element_wise(batch["title"], batch["text"], " ")
            has_no_title = pc.equal(batch["title"], "")
            yield batch["_id"], pc.if_else(has_no_title, batch["text"], titled_texts)

    def expect_passages(self, ids: Collection[str], path: Path) -> None:
        """Raise :class:`InputError` if the corpus lacks a passage of the file ``path``."""
        missing_ids = self.release.missing_ids(self.configs.corpus, "corpus", ids)
        if missing_ids:
            corpus = f"{self.configs.corpus!r} of {self.release.path}"
            message = f"has {len(missing_ids):,} passages that {corpus} lacks, such as {missing_ids[0]}"
            raise InputError(message, path=path)

    def query_splits(self) -> list[str]:
        return self._splits(self.configs.queries)

    def queries(self, split: str) -> Batches:
        return self.release.batches(self.configs.queries, split, ["_id", "text"])

    def query_count(self, split: str) -> int | None:
        """Return the number of a split's queries, or None if the queries must be read for it."""
        return self.count_rows(self.configs.queries, split)

    def qrels_splits(self) -> list[str]:
        """Return the splits that have judgments, in the order train, dev, test."""
        if not self.configs.translated:
            judged_splits = self._splits(self.configs.qrels)
            if self.configs.original_column:  # the qrels of the originals also have the split train
                return [split for split in self.query_splits() if split in judged_splits]
            return judged_splits
        # English queries have no qrels, only joined rows. A split whose lists are all empty has no judgments.
        return [split for split in self.query_splits() if self._has_judgments(split)]

    def _has_judgments(self, split: str) -> bool:
        return any(batch.num_rows for batch in self.qrels(split))

    def qrels(self, split: str) -> Batches:
        """Yield a split's judgments with the ids of the set's own queries.

        A translated set has only judgments with score 1, because its joined rows are read without their negatives.
        """
        if not self.configs.translated:
            judgments = self.release.batches(self.configs.qrels, split, QRELS.names)
            if self.configs.original_column:
                judgments = self._with_query_ids(judgments, split)
            yield from judgments
            return
        # A pair of query and passage for each positive passage of a joined row.
        for batch in self.joined(split):
            positives = batch["positive_passages"]
            query_ids = batch["query_id"].take(pc.list_parent_indices(positives))
            passage_ids = positives.flatten().field("docid")
            scores = pa.repeat(pa.scalar(1), len(passage_ids))
            yield pa.record_batch([query_ids, passage_ids, scores], schema=QRELS)

    def _with_query_ids(self, judgments: Batches, split: str) -> Batches:
        """Yield the judgments of the originals with the ids of the perturbed queries.

        Originals without a perturbed query are skipped.
        """
        columns = ["_id", self.configs.original_column]
        query_ids, original_ids = self.release.table(self.configs.queries, split, columns).columns
        original_ids = original_ids.combine_chunks()
        query_ids = query_ids.combine_chunks()
        for batch in judgments:
            # An original has at most one perturbed query of a kind.
            query_rows = pc.index_in(batch["query-id"], original_ids)
            changed = pa.record_batch([query_ids.take(query_rows), *batch.columns[1:]], schema=QRELS)
            yield changed.filter(pc.is_valid(query_rows))

    def qrels_count(self, split: str) -> int | None:
        """Return the number of a split's judgments, or None if the judgments must be read for it."""
        if self.configs.original_column:
            return None
        return self.count_rows(self.configs.qrels, split)

    def joined(self, split: str) -> Batches:
        """Yield joined rows, in the format of the train/dev/test configs. Lists are empty without judgments."""
        configs = self.configs
        release_splits = self.release.splits()
        joined_config = configs.joined.get(split, "")
        if (joined_config, split) in release_splits:
            yield from self.release.batches(joined_config, split, JOINED.names, rows=ROWS)
        elif configs.translated or (configs.qrels, split) not in release_splits:
            # The judgments of translated queries are only in joined rows.
            yield from self._unjudged_rows(split)
        else:
            yield from self._join_rows(split)

    def joined_count(self, split: str) -> int | None:
        """Return the number of a split's joined rows, or None if the rows must be read for it."""
        joined_config = self.configs.joined.get(split, "")
        if (joined_config, split) in self.release.splits():
            return self.count_rows(joined_config, split)
        return self.query_count(split)  # each query has one joined row

    def _unjudged_rows(self, split: str) -> Batches:
        """Yield joined rows without passages."""
        for batch in self.queries(split):
            empty_lists = pa.array([[]] * batch.num_rows, JOINED.field("positive_passages").type)
            yield pa.record_batch([batch["_id"], batch["text"], empty_lists, empty_lists], schema=JOINED)

    def _join_rows(self, split: str) -> Batches:
        """Join queries, judgments and passages of a set that has no joined rows."""
        tables = {
            "qrels": (self.configs.qrels, split),
            "corpus": (self.configs.corpus, "corpus"),
            "queries": (self.configs.queries, split),
        }
        with _open_database(self.release, tables) as (connection, parquet_files):
            join_query = _JOIN_QUERY.format(judged_id=self.configs.original_column or "_id")
            for batch in connection.sql(join_query, params=parquet_files).to_arrow_reader(ROWS):
                # The types of DuckDB's columns are not exactly those of the release.
                yield pa.Table.from_batches([batch]).cast(JOINED).combine_chunks().to_batches()[0]

    def _splits(self, config: str) -> list[str]:
        """Return the splits of a config, in the order train, dev, test."""
        return [split for split in SPLITS if (config, split) in self.release.splits()]


@contextlib.contextmanager
def _open_database(release: Release, tables: dict[str, tuple[str, str]]) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield a connection to an empty database, and the Parquet files of each table.

    ``tables`` has the config and split of each table, and the yielded files are lists of paths by table. The SQL of a
    query has them as parameters ($corpus). They stay readable inside the block.
    """
    from builders.core.database import open_database

    with contextlib.ExitStack() as stack:
        parquet_files: dict[str, Any] = {}
        for name, (config, split) in tables.items():
            parquet_files[name] = stack.enter_context(release.files(config, split))
        work_folder = stack.enter_context(temporary_folder())
        yield stack.enter_context(open_database(work_folder, _DUCKDB_MEMORY)), parquet_files


class DrawnSet(ReleaseSet):
    """The main set, restricted to the questions and judgments of a config ``restrain-*`` or ``resttest-*``.

    The splits are those of the config. If the config has only a train split, dev and test of the main set are added.
    """

    @property
    def _main_set(self) -> ReleaseSet:
        return ReleaseSet(self.release, "main")

    def _drawn_splits(self) -> list[str]:
        """Return the splits of the drawn config. Raises :class:`InputError` if the release lacks the config."""
        config_splits = config_of(self.name).splits
        drawn_splits = [split for split in config_splits if (self.name, split) in self.release.splits()]
        if not drawn_splits:
            self.release.shards(self.name, "train")  # raises InputError
        return drawn_splits

    def _splits(self, config: str) -> list[str]:
        """Return the splits of the drawn config, and if it has only train, also dev and test of the main set.

        ``config`` is the drawn config or a config of the main set.
        """
        # Dev and test have the judgments of the main set.
        main_config = SETS["main"].qrels if config == self.name else config
        test_splits = [split for split in super()._splits(main_config) if split != "train"]
        drawn_splits = self._drawn_splits()
        if len(drawn_splits) > 1:  # the config has its own test splits
            return drawn_splits
        return drawn_splits + test_splits

    def queries(self, split: str) -> Batches:
        return self._select_rows(split, "_id", self._main_set.queries)

    def query_count(self, split: str) -> int | None:
        return None if split in self._drawn_splits() else self._main_set.query_count(split)

    def qrels(self, split: str) -> Batches:
        if split in self._drawn_splits():
            return super().qrels(split)
        return self._main_set.qrels(split)

    def qrels_count(self, split: str) -> int | None:
        if split in self._drawn_splits():
            return super().qrels_count(split)
        return self._main_set.qrels_count(split)

    def joined(self, split: str) -> Batches:
        return self._select_rows(split, "query_id", self._main_set.joined)

    def joined_count(self, split: str) -> int | None:
        return None if split in self._drawn_splits() else self._main_set.joined_count(split)

    def _select_rows(self, split: str, id_column: str, read_split: Callable[[str], Batches]) -> Batches:
        """Yield the main set's rows for the questions of a split, without repetition.

        Questions of a training split are read from the main train split, other questions from main dev and test.
        ``read_split`` reads a split of the main set.
        """
        if split not in self._drawn_splits():
            yield from read_split(split)
            return
        remaining_ids = pc.unique(self.release.table(self.name, split, ["query-id"])["query-id"])
        for main_split in self._main_set.query_splits():
            if (main_split == "train") != (split == "train"):
                continue
            for batch in read_split(main_split):
                rows = batch.filter(pc.is_in(batch[id_column], remaining_ids))
                # A question can be in dev and in test. Only its first row is written.
                remaining_ids = remaining_ids.filter(pc.invert(pc.is_in(remaining_ids, rows[id_column])))
                if rows.num_rows:
                    yield rows


@contextlib.contextmanager
def joined_with(release_set: ReleaseSet, negative_paths: Sequence[Path]) -> Iterator[Callable[[str], Batches]]:
    """Yield a function that returns a split's joined rows. Mined negatives come before the release's own negatives.

    Repeated negatives, and negatives that are also positives, are dropped. ``negative_paths`` are files of
    ``baselines mine``. Without files, the joined rows are those of the set, unchanged.

    Raises:
        InputError: a file is not from ``mine``, the corpus lacks a passage, or the set has none of the queries.
    """
    if not negative_paths:
        yield release_set.joined
        return
    mined_ids = _read_mined_ids(release_set, negative_paths)
    # Look up the texts of all mined passages once, then add them batch by batch.
    with _open_database(release_set.release, {"corpus": (release_set.configs.corpus, "corpus")}) as (
        connection,
        parquet_files,
    ):
        connection.register("mined_ids", mined_ids)
        connection.execute(_COLLECT_MINED, parquet_files)

        def read_joined(split: str) -> Batches:
            for batch in release_set.joined(split):
                query_ids = batch["query_id"].to_pylist()
                mined_passages = dict(connection.execute(_SELECT_MINED, {"queries": query_ids}).fetchall())
                rows = batch.select(JOINED.names).to_pylist()
                for row in rows:
                    row["negative_passages"] = _merge_negatives(row, mined_passages.get(row["query_id"], []))
                yield pa.RecordBatch.from_pylist(rows, JOINED)

        yield read_joined


def _merge_negatives(row: dict[str, Any], mined_passages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the mined passages, then the negatives of a joined row: each passage once, and no positive."""
    positive_ids = {passage["docid"] for passage in row["positive_passages"]}
    negatives: dict[str, dict[str, Any]] = {}
    for passage in mined_passages + row["negative_passages"]:
        if passage["docid"] not in positive_ids:
            negatives[passage["docid"]] = passage
    return list(negatives.values())


def _read_mined_ids(release_set: ReleaseSet, negative_paths: Sequence[Path]) -> pa.Table:
    """Return a row for each (query, passage) pair of the files, in order, checked against the release."""
    # Dictionaries, because they keep the order and each id once.
    passages_by_query: dict[str, dict[str, None]] = {}
    for negative_path in negative_paths:
        rows = read_negative_ids(negative_path)
        file_ids: set[str] = set()
        for query_id, passage_ids, _ in rows:
            file_ids.update(passage_ids)
            passages_by_query.setdefault(query_id, {}).update(dict.fromkeys(passage_ids))
        release_set.expect_passages(file_ids, negative_path)
    # Negatives of another release or split would be dropped silently.
    if not _has_any_query(release_set, passages_by_query):
        message = f"has no query of {release_set.release.path}; mine negatives for this release"
        raise InputError(message, path=negative_paths[0])
    # The line number keeps the order of the passages through the join in DuckDB.
    query_column: list[str] = []
    passage_column: list[str] = []
    for query_id, query_passages in passages_by_query.items():
        query_column += [query_id] * len(query_passages)
        passage_column += query_passages
    return pa.table(
        {"query": query_column, "docid": passage_column, "line": range(len(query_column))},
        pa.schema({"query": pa.string(), "docid": pa.string(), "line": pa.int64()}),
    )


def _has_any_query(release_set: ReleaseSet, query_ids: Collection[str]) -> bool:
    """True if the set has one of the queries."""
    for split in release_set.query_splits():
        for batch in release_set.queries(split):
            if any(query_id in query_ids for query_id in batch["_id"].to_pylist()):
                return True
    return False
