"""The sets of a release as an export sees them: a corpus, queries, judgments, and the three joined.

Four sets: the main one, the two out-of-domain ones, and the English queries over the main corpus. Everything comes in
batches of Arrow rows, so that the size of a set does not decide how much memory an export needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc

from builders.core.errors import InputError
from builders.core.files import temporary_folder
from builders.store.layout import JOINED, QRELS, SPLITS, Set, set_of
from builders.store.reader import Release

_JOINED_ROWS = 1_024  # a joined row can be 100 kB
_MEMORY = 512  # MB


# The joined rows: a query with its passages, in the order of the judgments; of score 0 or less, the negative ones.
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


@dataclass(frozen=True)
class ReleaseSet:
    """One set of a release; batches have the columns of :mod:`builders.store`, in the order of the release.

    What reads its passages or queries raises :class:`InputError` where the release lacks the set. ``name``: of a
    set (:func:`builders.store.layout.set_of`).
    """

    release: Release
    name: str

    @property
    def configs(self) -> Set:
        """The set's configs, of which the release has those that hold texts."""
        found = set_of(self.name)
        have = {config for config, _ in self.release.splits()}
        missing = [config for config in (found.corpus, found.queries) if config not in have]
        if missing:
            raise InputError(
                f"the set {self.name!r} needs the config {missing[0]!r}, and this release has"
                f" {', '.join(sorted(have))}; `python -m builders {found.verb}` makes it",
                path=self.release.path,
            )
        return found

    @property
    def passages(self) -> int:
        """How many the corpus has."""
        return self.release.rows(self.configs.corpus, "corpus")

    def corpus(self) -> Iterator[pa.RecordBatch]:
        return self.release.batches(self.configs.corpus, "corpus", ["_id", "title", "text"])

    def contents(self) -> Iterator[tuple[pa.Array, pa.Array]]:
        """(ids, texts) of the corpus for a format without titles: a title, where there is one, opens the text."""
        for batch in self.corpus():
            titled = pc.binary_join_element_wise(batch["title"], batch["text"], " ")
            yield batch["_id"], pc.if_else(pc.equal(batch["title"], ""), batch["text"], titled)

    def query_splits(self) -> list[str]:
        return self._splits(self.configs.queries)

    def queries(self, split: str) -> Iterator[pa.RecordBatch]:
        return self.release.batches(self.configs.queries, split, ["_id", "text"])

    def query_texts(self, split: str) -> Iterator[tuple[pa.Array, pa.Array]]:
        """(ids, texts) of a split's queries."""
        return ((batch["_id"], batch["text"]) for batch in self.queries(split))

    def qrels_splits(self) -> list[str]:
        if not self.configs.translated:
            return self._splits(self.configs.qrels)
        # The English queries come with joined rows alone: a split whose lists are all empty has no judgments.
        return [split for split in self.query_splits() if any(batch.num_rows for batch in self.qrels(split))]

    def qrels(self, split: str) -> Iterator[pa.RecordBatch]:
        if not self.configs.translated:
            yield from self.release.batches(self.configs.qrels, split, QRELS.names)
            return
        for batch in self.joined(split):
            positives = batch["positive_passages"]
            queries = batch["query_id"].take(pc.list_parent_indices(positives))
            passages = positives.flatten().field("docid")
            yield pa.record_batch([queries, passages, pa.repeat(pa.scalar(1), len(passages))], schema=QRELS)

    def joined(self, split: str) -> Iterator[pa.RecordBatch]:
        """The rows of queries, each with its passages, as the train/dev/test configs hold them."""
        config = self.configs.joined.get(split)
        if config and (config, split) in self.release.splits():
            return self.release.batches(config, split, JOINED.names, rows=_JOINED_ROWS)
        return self._join(split)

    def runs(self) -> list[str]:
        """The runs that the release has over the set, by their path in it."""
        files = self.release.manifest.files if self.name == "main" else []
        return [entry.path for entry in files if entry.path.startswith("runs/")]

    def _splits(self, config: str) -> list[str]:
        have = self.release.splits()
        return [split for split in SPLITS if (config, split) in have]

    def _join(self, split: str) -> Iterator[pa.RecordBatch]:
        from builders.core.database import database

        judged = (self.configs.qrels, split)
        if self.configs.translated or judged not in self.release.splits():  # no labels: empty lists
            for batch in self.queries(split):
                empty = pa.array([[]] * batch.num_rows, JOINED.field("positive_passages").type)
                yield pa.record_batch([batch["_id"], batch["text"], empty, empty], schema=JOINED)
            return
        with (
            self.release.files(*judged) as qrels,
            self.release.files(self.configs.corpus, "corpus") as corpus,
            self.release.files(self.configs.queries, split) as queries,
            temporary_folder() as spill,
            database(spill, _MEMORY) as con,
        ):
            relation = con.sql(_JOIN, params={"qrels": qrels, "corpus": corpus, "queries": queries})
            reader = relation.to_arrow_reader(_JOINED_ROWS)
            for batch in reader:
                yield pa.Table.from_batches([batch]).cast(JOINED).combine_chunks().to_batches()[0]
