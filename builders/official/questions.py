"""Read the questions of the official archives, with judgments and negatives: the splits train, dev and test.

- ``train.json`` and ``dev.json`` have questions with their positive passages. The test files have only questions.
- Without ``dev.json``, the dev questions come from ``q2qid.dev.json`` or ``dev.q.format``.
- Without ``train.json``, the train questions and judgments come from ``dual.train.tsv`` and ``cross.train.tsv``. With
  ``train.json``, questions and positives that only the TSVs have are counted and skipped. The negatives of the TSVs
  become ``negative_passages``: each negative once, in order, without positives of the question.

The official dual-encoder's top 50 passages for dev become the run ``runs/official-dev-top50.trec``. The archive has
these rankings twice, as pairs of texts and as pairs of ids, but without scores. The run's scores are reversed ranks (50
for the first of 50 passages), because measures such as MRR depend only on the order.
"""

import functools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.files import write_text
from builders.core.typed import json_of, repeated_key
from builders.official.blocks import HEAD, Work
from builders.official.numbered import as_keys, hex_ids
from builders.official.official_archives import OfficialFile
from builders.official.official_formats import BadLine, Id, parse_pairs, parse_questions, texts_of
from builders.store.layout import JOINED, QRELS, QUERIES
from builders.store.table3 import LengthCounter, table3_column

_BATCH = 512  # rows of a batch; a row with its passages can have 100 kB
RUN = "runs/official-dev-top50.trec"
TAG = "official-dual-encoder"


@dataclass
class Question:
    """A question.

    Attributes:
        key: id of the question, 16 bytes.
        text: number of the question's text.
        positives: (id, number of the text) of each positive passage, in order, each once.
        negatives: numbers of the negative passages' texts.
    """

    key: bytes
    text: int
    positives: dict[tuple[bytes, int], None] = field(default_factory=dict)
    negatives: list[int] = field(default_factory=list)


class Split:
    """The questions of a split, by id and by number of the text. ``labelled`` is True if the split has judgments."""

    def __init__(self, name: str, labelled: bool = False) -> None:
        self.name, self.labelled = name, labelled
        self.by_id: dict[bytes, Question] = {}
        self.by_text: dict[int, Question] = {}

    def add(self, key: bytes, text: int) -> Question:
        """Add a question. If several questions have the same text, :attr:`by_text` has the first."""
        question = self.by_id[key] = Question(key, text)
        self.by_text.setdefault(text, question)
        return question


def ids_in(data: bytes) -> Iterator[bytes]:
    """Split concatenated ids of 16 bytes."""
    return (data[start : start + 16] for start in range(0, len(data), 16))


def read_questions(work: Work, file: OfficialFile, split: Split) -> None:
    """Read ``train.json``, ``dev.json`` or a test file into ``split``. The test files have no judgments."""
    labelled = file.role != "test"
    split.labelled |= labelled
    for (questions, counts, passages), lines in work.parsed(
        file, functools.partial(parse_questions, labelled=labelled)
    ):
        texts, keys = work.number(questions).tolist(), as_keys(questions.ids)
        what = f"questions of {split.name} whose id is not the MD5 of their text"
        work.findings.add_ids(what, keys, (keys != as_keys(questions.digests)).any(axis=1))
        ids, digests = as_keys(passages.ids), as_keys(passages.digests)
        what = f"judged passages of {split.name} whose id is not the MD5 of their text"
        work.findings.add_ids(what, ids, (ids != digests).any(axis=1))
        what = f"judged passages of {split.name} whose text differs from the collection's text with the same id"
        work.findings.add_ids(what, ids, work.passages.differ(ids, digests))
        positives = zip(ids_in(passages.ids), work.number(passages).tolist(), strict=True)
        for line, key, text, count in zip(lines.tolist(), ids_in(questions.ids), texts, counts, strict=True):
            judged = list(islice(positives, count))
            question = split.by_id.get(key) or split.add(key, text)
            if question.text != text:
                work.findings.skip(file, line, f"question_id {key.hex()} has two texts; expected one text for each id")
                continue
            question.positives.update(dict.fromkeys(judged))
            file.rows = (file.rows or 0) + 1


def read_question_list(work: Work, file: OfficialFile, split: Split) -> None:
    """Read the questions of ``q2qid.dev.json`` ({question: id}) or ``dev.q.format``."""
    if file.role == "ids":
        content = file.read(file.size)
        pairs = json_of(content, dict[str, Id], file.shown, remedy="expected one JSON {question: id}")
        if (repeated := repeated_key(content)) is not None:
            raise file.error(f"has the question {repeated!r} twice; expected every question once")
        try:
            texts = work.number(texts_of([text.encode() for text in pairs], "question")).tolist()
        except BadLine as error:
            raise file.error(error.message) from None
        keys = [bytes.fromhex(key) for key in pairs.values()]
    else:  # dev.q.format has no ids, so the ids are the MD5 of the texts
        texts = work.columns(file)[0]["query"].tolist()
        keys = list(ids_in(work.texts.digests()[texts].tobytes()))
    file.rows = len(texts)
    for text, key in zip(texts, keys, strict=True):
        if key in split.by_id:
            work.findings.add(f"questions of {split.name} whose id occurred before (skipped)")
        else:
            split.add(key, text)


def read_training(work: Work, files: list[OfficialFile], split: Split) -> None:
    """Read the TSVs of train into ``split``: whole files before excerpts (``demo``), dual before cross."""
    pairs: tuple[list[npt.NDArray[np.int32]], ...] = ([], [])  # text numbers of (question, passage)
    for file in sorted(files, key=lambda file: (".demo." in file.name, file.role == "cross")):
        texts, labels = work.columns(file)
        for kind, found in enumerate(pairs):  # positives, negatives
            column = ("positive", "negative")[kind] if file.role == "dual" else "passage"
            both = np.stack([texts["query"], texts[column]], axis=1)
            found.append(both if file.role == "dual" else both[labels == 1 - kind])
    positives, negatives = map(_distinct, pairs)
    digests = work.texts.digests()
    ids = work.passages.ids_of(digests)
    judged = split.labelled  # True if train.json was read
    split.labelled = True
    for query, passage in () if judged else positives:
        question = split.by_text.get(query) or split.add(digests[query].tobytes(), query)
        question.positives[ids[passage].tobytes(), passage] = None
    known = {(key, text) for key, question in split.by_text.items() for _, text in question.positives}
    # Pairs that a TSV labels positive are never negatives, even if train.json lacks the judgment.
    positive = {pair for pair in positives if pair[0] in split.by_text}
    work.findings.add("positives of the TSVs that train.json does not judge (skipped)", len(positive - known))
    for pair in negatives:
        if pair in known or pair in positive:
            what = "negatives of the TSVs that are positives of their question (skipped)"
            work.findings.add(what, 1, hex_ids(ids[pair[1]])[0])
        elif pair[0] in split.by_text:
            split.by_text[pair[0]].negatives.append(pair[1])
    unknown = {query for query, _ in [*positives, *negatives]} - split.by_text.keys()
    reason = "that train.json lacks" if judged else "without a positive passage"
    work.findings.add(f"questions of the TSVs {reason} (skipped)", len(unknown))


def _distinct(pairs: list[npt.NDArray[np.int32]]) -> list[tuple[int, int]]:
    every = np.concatenate(pairs)
    first = np.unique(every, axis=0, return_index=True)[1]
    return [(query, passage) for query, passage in every[np.sort(first)].tolist()]


def read_top50(work: Work, by_role: Mapping[str, list[OfficialFile]], dev: Split) -> None:
    """Write the run from the file of ids or, if it is missing, from the file of texts."""
    if by_role["top50ids"]:
        file = by_role["top50ids"][0]
        blocks = [[as_keys(ids) for ids in found] for found, _ in work.parsed(file, parse_pairs)]
        queries, passages = (np.concatenate([block[column] for block in blocks]) for column in (0, 1))
        file.rows = len(queries)
    elif by_role["top50"]:
        file = by_role["top50"][0]
        if b"".join(file.read(HEAD).split(b"\t", 2)[1:2]).isdigit():
            raise file.error(
                "is a retriever's output (query, line number, rank, score); expected the archive's file (query, -,"
                " passage, -)",
                1,
            )
        columns, digests = work.columns(file)[0], work.texts.digests()
        own = {text: question.key for text, question in dev.by_text.items()}
        queries = as_keys(b"".join(own.get(n, digests[n].tobytes()) for n in columns["query"].tolist()))
        passages = work.passages.ids_of(digests[columns["passage"]])
    else:
        return
    found: dict[str, dict[str, None]] = {}
    for query, passage in zip(hex_ids(queries), hex_ids(passages), strict=True):
        found.setdefault(query, {})[passage] = None
    lines = [
        f"{query} Q0 {passage} {rank} {len(ranked) - rank + 1} {TAG}\n"
        for query, ranked in found.items()
        for rank, passage in enumerate(ranked, 1)
    ]
    work.findings.add("repeated passages in the top 50 of a question (skipped)", len(queries) - len(lines))
    missing = ~work.passages.has(passages) & (work.passages.ids.count > 0)
    work.findings.add_ids("passages of the top 50 that the collection lacks", passages, missing)
    (work.draft.folder / "runs").mkdir()
    write_text(work.draft.folder / RUN, "".join(lines))
    work.draft.add_file(RUN)


def write_questions(work: Work, split: Split) -> None:
    """Write a split's ``queries``, ``qrels`` and joined rows, and its column of Table 3.

    The qrels omit judgments of passages that the collection lacks, if the archives have a collection. Table 3 counts
    all judgments.
    """
    questions = list(split.by_id.values())
    if not questions:
        return
    texts = work.texts.get(np.array([question.text for question in questions]))
    queries = hex_ids(as_keys(b"".join(split.by_id)))
    work.draft.write("queries", split.name, [pa.table([queries, texts], schema=QUERIES)])
    keys = as_keys(b"".join(key for question in questions for key, _ in question.positives))
    held = work.passages.has(keys) | (not work.passages.ids.count)
    if split.labelled:
        what = f"questions of {split.name} without a positive passage"
        work.findings.add(what, sum(not question.positives for question in questions))
        what = f"judgments of {split.name} whose passage the collection lacks (not in the qrels)"
        work.findings.add_ids(what, keys, ~held)
    if held.any():
        judged = np.repeat(queries, [len(question.positives) for question in questions])[held]
        table = pa.table([judged, hex_ids(keys[held]), [1] * len(judged)], schema=QRELS)
        work.draft.write("qrels", split.name, [table])
    lengths = LengthCounter()
    work.draft.write(split.name, split.name, _joined(work, questions, lengths))
    table3 = work.draft.stats["table3"]
    table3[split.name] = table3_column(len(questions), sum(map(len, texts)), lengths.count, lengths)


def _joined(work: Work, questions: list[Question], lengths: LengthCounter) -> Iterator[pa.Table]:
    """Yield the questions with their passages as joined rows. Add the positives' characters to ``lengths``."""
    ids = work.passages.ids_of(work.texts.digests())
    for start in range(0, len(questions), _BATCH):
        rows: list[dict[str, Any]] = []
        for question in questions[start : start + _BATCH]:
            numbers = [question.text, *(text for _, text in question.positives), *question.negatives]
            query, *texts = work.texts.get(np.array(numbers))
            docids = [*(key.hex() for key, _ in question.positives), *hex_ids(ids[question.negatives])]
            passages = [{"docid": key, "title": "", "text": text} for key, text in zip(docids, texts, strict=True)]
            count = len(question.positives)
            lengths.add(np.array([len(text) for text in texts[:count]], np.int64))
            both = {"positive_passages": passages[:count], "negative_passages": passages[count:]}
            rows.append({"query_id": question.key.hex(), "query": query, **both})
        yield pa.Table.from_pylist(rows, schema=JOINED)
