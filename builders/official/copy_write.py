"""The configs of a release from the rows of a copy. A text's id is its MD5, as everywhere; the copy's is held to it."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from builders.core.errors import InputError
from builders.core.progress import progress
from builders.official.copy_rows import Judgment, Passage, Ranked, Text, rows_of
from builders.official.findings import Findings
from builders.store.draft import Draft
from builders.store.ids import text_id
from builders.store.layout import CORPUS, JOINED, QRELS, QUERIES
from builders.store.table3 import LengthCounter, table3_column

_BATCH = 2_048
_JOINED_BATCH = 256  # a row with its passages can be 100 kB
Places = Sequence[tuple[Path, str]]  # files, with the split that each is of


class CopyWriter:
    """Writes corpus, queries, qrels and joined rows into a draft.

    Memory: some 100 bytes a passage of a ranking, and the rows whose question came before.
    """

    def __init__(self, draft: Draft, findings: Findings) -> None:
        self._draft, self._findings = draft, findings
        self._corpus = _Rows(draft, "corpus", "corpus", CORPUS)
        self._known: set[bytes] = set()
        self._lengths = array("I")  # of the passages, in characters

    def finish(self) -> None:
        """Write what is left; :class:`InputError` where no passage was found."""
        self._corpus.end()
        if not self._known:
            raise InputError("the copy has no passage")
        self._draft.stats["collections"]["corpus"] = _counted(self._lengths).summary()

    def ranking(self, split: str, paths: Sequence[Path]) -> None:
        """Rows with their passages: the collection is all passages that any row names."""

        def rows() -> Iterator[tuple[str, Ranked]]:
            for path in paths:
                yield from progress(rows_of(path, Ranked), unit="query", label=path.name)

        self._split(split, rows)

    def tables(self, corpus: Places, queries: Places, qrels: Places) -> None:
        """Corpus, queries and judgments, each in files of their own. Queries that nobody judged are left out."""
        passages = self._texts("passages", corpus)
        questions = self._texts("queries", queries)
        judged: dict[str, dict[str, list[Passage]]] = {}
        for path, split in qrels:
            for _, row in rows_of(path, Judgment):
                query, passage = str(row.query), str(row.passage)
                if not row.score > 0:
                    self._findings.add(f"judgments of {split} with a score of 0 (left out)")
                elif query not in questions or passage not in passages:
                    what = f"judgments of {split} whose query or passage the copy lacks (left out)"
                    self._findings.add(what, 1, f"{query} {passage}")
                else:
                    judged.setdefault(split, {}).setdefault(query, []).append(passages[passage])
        for each in passages.values():
            self._passage(each)
        if again := len(passages) - len(self._known):
            self._findings.add("passages whose text came before (one passage)", again)
        if unjudged := questions.keys() - {query for found in judged.values() for query in found}:
            self._findings.add("queries that nobody judged (left out)", len(unjudged), min(unjudged))
        for split, found in judged.items():
            rows = [("", Ranked(questions[query].text, positive, query)) for query, positive in found.items()]
            self._split(split, lambda rows=rows: rows)  # type: ignore[misc]

    def _texts(self, what: str, places: Places) -> dict[str, Passage]:
        found: dict[str, Passage] = {}
        for path, _ in places:
            for place, row in rows_of(path, Text):
                name = str(row.id)
                if not row.text.strip():
                    self._findings.add(f"{what} without a text (left out)", 1, name)
                    continue
                self._held(what, name, row.text)
                if found.setdefault(name, Passage(row.text, name, row.title)).text != row.text:
                    raise InputError(f"a second text for the id {name!r}", path=place)
        return found

    def _held(self, what: str, name: str, text: str) -> str:
        """The id of a text; counted where the copy has another one for it."""
        own = text_id(text)
        if name and name != own:
            self._findings.add(f"{what} whose id in the copy is not the MD5 of the text", 1, name)
        return own

    def _passage(self, passage: Passage) -> dict[str, str]:
        """The passage as joined rows have it; it joins the corpus when it first comes."""
        own = text_id(passage.text)
        if (key := bytes.fromhex(own)) not in self._known:
            self._known.add(key)
            self._lengths.append(len(passage.text))
            self._corpus.add({"_id": own, "title": passage.title or "", "text": passage.text})
        return {"docid": own, "title": passage.title or "", "text": passage.text}

    def _split(self, split: str, rows: Callable[[], Iterable[tuple[str, Ranked]]]) -> None:
        """Write the rows of a split. Those of one question are one row, where the first stands, with all passages."""
        again = self._again(split, rows())
        configs = {"queries": QUERIES, "qrels": QRELS, split: JOINED}
        queries, qrels, joined = (_Rows(self._draft, name, split, schema) for name, schema in configs.items())
        seen: set[str] = set()
        chars, lengths = 0, array("I")
        for place, row in rows():
            query = text_id(row.query)
            if query in seen:
                continue
            seen.add(query)
            same = [row, *again.get(query, ())]
            positives = self._found((each for one in same for each in one.positive_passages), bool(place))
            negatives = self._found((each for one in same for each in one.negative_passages), bool(place), positives)
            queries.add({"_id": query, "text": row.query})
            for docid, passage in positives.items():
                qrels.add({"query-id": query, "corpus-id": docid, "score": 1})
                lengths.append(len(passage["text"]))
            both = {"positive_passages": [*positives.values()], "negative_passages": [*negatives.values()]}
            joined.add({"query_id": query, "query": row.query, **both})
            chars += len(row.query)
        if not seen:
            return
        for each in (queries, qrels, joined):
            each.end()
        self._draft.stats["table3"][split] = table3_column(len(seen), chars, len(lengths), _counted(lengths))

    def _again(self, split: str, rows: Iterable[tuple[str, Ranked]]) -> dict[str, list[Ranked]]:
        """The rows whose question came before, by its id. :class:`InputError` for a row without a question."""
        seen, again = set[str](), dict[str, list[Ranked]]()
        for place, row in rows:
            if not row.query.strip():
                raise InputError("expected the text of a query, found nothing", path=place)
            query = self._held("queries", str(row.query_id) if place else "", row.query)
            if query in seen:
                self._findings.add(f"rows of {split} whose query came before (their passages are united)", 1, query)
                again.setdefault(query, []).append(row)
            seen.add(query)
        return again

    def _found(
        self, passages: Iterable[Passage], hold: bool, but: Mapping[str, dict[str, str]] | None = None
    ) -> dict[str, dict[str, str]]:
        """The passages of a row by id, each once; without those of ``but``, and those without a text."""
        found = {}
        for each in passages:
            if not each.text.strip():
                self._findings.add("passages without a text (left out)", 1, str(each.docid))
                continue
            if hold:
                self._held("passages", str(each.docid), each.text)
            passage = self._passage(each)
            if passage["docid"] in (but or {}):
                self._findings.add("negatives that are a positive of their query (left out)", 1, passage["docid"])
            else:
                found[passage["docid"]] = passage
        return found


def _counted(lengths: array[int]) -> LengthCounter:
    counter = LengthCounter()
    counter.add(np.array(lengths))
    return counter


class _Rows:
    """Rows of one split of a config, written in batches."""

    def __init__(self, draft: Draft, config: str, split: str, schema: pa.Schema) -> None:
        self._place, self._schema = (draft, config, split), schema
        self._batch = _JOINED_BATCH if schema is JOINED else _BATCH
        self._writer: Any = None
        self._waiting: list[dict[str, Any]] = []

    def add(self, row: dict[str, Any]) -> None:
        self._waiting.append(row)
        if len(self._waiting) == self._batch:
            self.end()

    def end(self) -> None:
        if self._waiting:
            draft, config, split = self._place
            self._writer = self._writer or draft.writer(config, split)
            self._writer.write(pa.Table.from_pylist(self._waiting, self._schema))
            self._waiting = []
