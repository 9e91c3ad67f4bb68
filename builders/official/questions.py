"""The questions of the official archives with judgments and negatives: the splits train, dev and test.

- ``train.json``, ``dev.json`` and the test files say the questions, their order and which passages are positive.
- ``q2qid.dev.json`` and ``dev.q.format`` of the pre-processed release are held against the split. Where nothing else
  says its questions, they do.
- ``dual.train.tsv`` and ``cross.train.tsv`` say the questions of train and their judgments where there is no
  ``train.json``. Where both are given, ``train.json`` counts, and what the TSVs hold beyond it is counted. Their
  negatives become ``negative_passages``: each once, in order, without those that are positive for their question.

At the end, :func:`write_split` writes a split's queries, qrels, joined rows and figures of Table 3.

The official dual-encoder's top 50 of dev becomes a run of the release, ``runs/official-dev-top50.trec``. The archive
gives it as pairs, texts in one file and ids in the other, best first inside a question; it gives no scores. The run's
scores are the ranks turned round (50 for the first of 50): rank measures come out as for the true scores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from builders.core.files import write_text
from builders.official.archives import OfficialFile
from builders.official.blocks import Work
from builders.official.formats import BadLine, Id, Questions, parse_pairs, parse_questions, texts_of
from builders.official.numbered import Keys, as_keys, hex_ids
from builders.sources.files import split_of
from builders.store.draft import Draft, SplitWriter
from builders.store.layout import schema_of
from builders.store.table3 import LengthCounter, table3_column

_BATCH = 512  # a row with its passages can be 100 kB
RUN = "runs/official-dev-top50.trec"
TAG = "official-dual-encoder"


@dataclass
class Question:
    """A question.

    Attributes:
        key: its id, 16 bytes.
        text: the number of its text.
        positives: the id of each judged passage, and the number of its text; in order, each once.
        negatives: the numbers of their texts.
    """

    key: bytes
    text: int
    positives: dict[tuple[bytes, int], None] = field(default_factory=dict)
    negatives: list[int] = field(default_factory=list)


class Split:
    """The questions of one split, in order, by id and by the number of their text. ``labelled``: it has judgments."""

    def __init__(self, name: str) -> None:
        self.name, self.labelled = name, False
        self.questions: list[Question] = []
        self.by_id: dict[bytes, Question] = {}
        self.by_text: dict[int, Question] = {}

    def add(self, key: bytes, text: int) -> Question:
        """Add a question. Where several have one text, :attr:`by_text` has the first."""
        question = self.by_id[key] = Question(key, text)
        self.questions.append(question)
        self.by_text.setdefault(text, question)
        return question


def ids_in(data: bytes) -> Iterator[bytes]:
    """Yield the ids of 16 bytes that stand one after the other."""
    return (data[start : start + 16] for start in range(0, len(data), 16))


def read_questions(work: Work, file: OfficialFile, split: Split) -> None:
    """Read ``train.json``, ``dev.json`` (with judgments), ``test1.json`` or ``test2.json`` (without) into ``split``."""
    labelled = file.role != "test"
    work.head(file, parse_questions, labelled)
    split.labelled |= labelled
    for parsed in work.parsed(file, parse_questions, labelled):
        block: Questions = parsed.found
        texts, keys = work.number(block.questions).tolist(), as_keys(block.questions.ids)
        what = f"questions of {split.name} whose id is not the MD5 of their text"
        work.findings.add_ids(what, keys, (keys != as_keys(block.questions.digests)).any(axis=1))
        found: list[Question | None] = []
        for line, key, text in zip(parsed.lines(len(texts)).tolist(), ids_in(block.questions.ids), texts, strict=True):
            question = split.by_id.get(key)
            if question is None:
                question = split.add(key, text)
            elif question.text != text:
                work.findings.skip(file, line, f"question_id {key.hex()} has two texts; expected one text for one id")
                question = None
            else:
                work.findings.add(f"questions of {split.name} that came before")
            found.append(question)
        file.rows = (file.rows or 0) + sum(question is not None for question in found)
        if labelled:
            _take_judgments(work, split, block, found)


def _take_judgments(work: Work, split: Split, block: Questions, questions: list[Question | None]) -> None:
    """Give the questions of a block their positives; None stands for one that is left out."""
    ids, digests = as_keys(block.passages.ids), as_keys(block.passages.digests)
    what = f"judged passages of {split.name} whose id is not the MD5 of their text"
    work.findings.add_ids(what, ids, (ids != digests).any(axis=1))
    what = f"judged passages of {split.name} whose text is not the collection's under their id"
    work.findings.add_ids(what, ids, work.passages.differ(ids, digests))
    positives = zip(ids_in(block.passages.ids), work.number(block.passages).tolist(), strict=True)
    for question, count in zip(questions, block.counts, strict=True):
        for positive in islice(positives, count):
            if question is not None and positive in question.positives:
                work.findings.add(f"judgments of {split.name} that came before")
            elif question is not None:
                question.positives[positive] = None


def read_question_list(work: Work, file: OfficialFile, splits: dict[str, Split]) -> None:
    """Read ``q2qid.dev.json`` ({question: id}) or ``dev.q.format``: held against its split, or its only questions."""
    split = splits[str(split_of(file.name))]  # the pattern of its role has it
    known = bool(split.questions)
    if file.role == "ids":
        texts, keys = _read_ids(work, file)
    else:  # without ids, which are the MD5 of the texts
        texts = work.columns(file).texts["query"].tolist()
        keys = list(ids_in(work.texts.digests()[texts].tobytes()))
    file.rows = len(texts)
    for text, key in zip(texts, keys, strict=True):
        question = split.by_text.get(text)
        if question is None and known:
            what = f"questions of {file.name} that the split {split.name} does not have"
            work.findings.add(what, 1, key.hex())
        elif question is None:
            split.add(key, text)
        elif file.role == "ids" and question.key != key:
            work.findings.add(f"ids of {file.name} that are not those of the split {split.name}", 1, key.hex())


def _read_ids(work: Work, file: OfficialFile) -> tuple[list[int], list[bytes]]:
    """Return the numbers of the texts in ``q2qid.dev.json``, and their ids."""
    try:
        pairs = msgspec.json.decode(file.read(file.size), type=dict[str, Id])
        column = texts_of([text.encode() for text in pairs], "question")
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise file.error(f"expected one JSON object {{question: id}} ({error})") from None
    except BadLine as error:
        raise file.error(error.message) from None
    return work.number(column).tolist(), [bytes.fromhex(key) for key in pairs.values()]


def read_training(work: Work, files: list[OfficialFile], split: Split) -> None:
    """Read the files' rows into ``split``: the whole files before their excerpts (``demo``), dual before cross."""
    pairs: tuple[list[npt.NDArray[np.int32]], ...] = ([], [])  # numbers of a question's and a passage's text
    for file in sorted(files, key=lambda file: (".demo." in file.name, file.role == "cross")):
        texts, labels, _ = work.columns(file)
        for kind, found in enumerate(pairs):  # positives, negatives
            column = ("positive", "negative")[kind] if file.role == "dual" else "passage"
            both = np.stack([texts["query"], texts[column]], axis=1)
            found.append(both if file.role == "dual" else both[labels == 1 - kind])
    positives, negatives = map(_distinct, pairs)
    digests = work.texts.digests()
    ids = work.passages.ids_of(digests)
    judged = split.labelled  # by train.json
    for query, passage in () if judged else positives:
        new = split.by_text.get(query) or split.add(digests[query].tobytes(), query)
        new.positives[ids[passage].tobytes(), passage] = None
    split.labelled = True
    # The positives of each question, by train.json or by a TSV. Such a passage is never a negative.
    positive = {key: {text for _, text in question.positives} for key, question in split.by_text.items()}
    for query, passage in positives if judged else ():
        if passage not in positive.get(query, {passage}):
            positive[query].add(passage)
            what = "positives of the TSVs that train.json does not judge (left out)"
            work.findings.add(what, 1, hex_ids(ids[passage])[0])
    for query, passage in negatives:
        if passage in positive.get(query, ()):
            what = "negatives of the TSVs that are positives of their question (left out)"
            work.findings.add(what, 1, hex_ids(ids[passage])[0])
        elif query in positive:
            split.by_text[query].negatives.append(passage)
    if unknown := {query for query, _ in [*positives, *negatives]} - positive.keys():
        whose = "train.json does not" if judged else "their positives do not"
        work.findings.add(f"questions of the TSVs that {whose} have (left out)", len(unknown))


def _distinct(pairs: list[npt.NDArray[np.int32]]) -> list[list[int]]:
    """Return distinct pairs in the order in which they come first."""
    every = np.concatenate(pairs)
    first = np.unique(every, axis=0, return_index=True)[1]
    found: list[list[int]] = every[np.sort(first)].tolist()
    return found


class Pairs(NamedTuple):
    """The ids of questions and passages, row by row, each of shape (rows, 2), and the rows' lines, shape (rows,)."""

    questions: Keys
    passages: Keys
    lines: npt.NDArray[np.int64]


def read_top50(work: Work, files: list[OfficialFile], dev: Split) -> None:
    """Write the run, where the archives have it; hold the file of texts against the file of ids if both are there."""
    by_role = {file.role: file for file in reversed(files)}  # of several the first
    ids, texts = by_role.get("top50ids"), by_role.get("top50")
    by_id = _top50_by_id(work, ids) if ids else None
    by_text = _top50_by_text(work, texts, dev) if texts else None
    if ids and texts and by_id and by_text:
        bad = [line for file in (ids, texts) for line, _ in work.findings.skipped.get(file.name, ())]
        _compare(work, by_id, by_text, bad)
    if pairs := by_id or by_text:
        _write_run(work, pairs, dev)


def _top50_by_id(work: Work, file: OfficialFile) -> Pairs:
    """Read ``dev.retrieval.top50.res.id_map.tsv``."""
    blocks = [(*block.found, block.lines(len(block.found[0]) // 16)) for block in work.parsed(file, parse_pairs)]
    questions, passages = (as_keys(b"".join([block[column] for block in blocks])) for column in (0, 1))
    file.rows = len(questions)
    return Pairs(questions, passages, np.concatenate([block[2] for block in blocks]))


def _top50_by_text(work: Work, file: OfficialFile, dev: Split) -> Pairs:
    """Read ``dev.retrieval.top50.res.tsv``: the ids of its questions by dev, of its passages by the collection."""
    unused = work.first_nothing(file)
    if unused and unused[0].isdigit():
        raise file.error(
            "looks like a retriever's output (query, line number, rank, score); expected the archive's file"
            " (query, -, passage, -)",
            1,
        )
    columns = work.columns(file)
    digests = work.texts.digests()
    passages = work.passages.ids_of(digests[columns.texts["passage"]])
    ids = [dev.by_text[n].key if n in dev.by_text else digests[n].tobytes() for n in columns.texts["query"].tolist()]
    return Pairs(as_keys(b"".join(ids)), passages, columns.lines)


def _compare(work: Work, by_id: Pairs, by_text: Pairs, bad: list[int]) -> None:
    """Hold the ids of texts and of ids against each other, line by line; ``bad``: lines that one of the files lacks."""
    if len(apart := np.setdiff1d(np.setxor1d(by_id.lines, by_text.lines), bad)):
        work.findings.add("lines of the top 50's texts and ids apart", len(apart))
        return
    lines, *rows = np.intersect1d(by_id.lines, by_text.lines, return_indices=True)
    for what in ("questions", "passages"):
        one, other = (getattr(pairs, what)[chosen] for pairs, chosen in zip((by_id, by_text), rows, strict=True))
        if (wrong := (one != other).any(axis=1)).any():
            example = f"line {lines[wrong][0]}"
            work.findings.add(f"{what} of the top 50 whose id is not that of their text", int(wrong.sum()), example)


def _write_run(work: Work, pairs: Pairs, dev: Split) -> None:
    found: dict[str, dict[str, None]] = {}
    queries = hex_ids(pairs.questions)
    for query, passage in zip(queries, hex_ids(pairs.passages), strict=True):
        found.setdefault(query, {})[passage] = None
    if again := len(queries) - sum(map(len, found.values())):
        work.findings.add("passages twice in the top 50 of a question (left out)", again)
    if dev.questions and (other := [query for query in found if bytes.fromhex(query) not in dev.by_id]):
        work.findings.add("questions of the top 50 that are not in dev", len(other), other[0])
    if work.passages.given and (missing := int((~work.passages.has(pairs.passages)).sum())):
        work.findings.add("passages of the top 50 that the collection lacks", missing)
    lines = [
        f"{query} Q0 {passage} {rank} {len(ranked) - rank + 1} {TAG}\n"
        for query, ranked in found.items()
        for rank, passage in enumerate(ranked, 1)
    ]
    work.draft.stats["official_top50"] = {
        "questions": len(found),
        "passages": len(lines),
        "passages_per_question": {str(n): times for n, times in sorted(Counter(Counter(queries).values()).items())},
    }
    (work.draft.folder / "runs").mkdir()
    write_text(work.draft.folder / RUN, "".join(lines))
    work.draft.add_file(RUN)


def write_questions(work: Work, split: Split) -> None:
    """Write a split, with the judgments of passages that the collection holds; all, where there is no collection."""
    keys = as_keys(b"".join(key for question in split.questions for key, _ in question.positives))
    lacking = ~work.passages.has(keys) & work.passages.given
    if split.labelled:
        if empty := sum(not question.positives for question in split.questions):
            work.findings.add(f"questions of {split.name} without a positive passage", empty)
        what = f"judgments of {split.name} whose passage the collection lacks (left out of the qrels)"
        work.findings.add_ids(what, keys, lacking)
    write_split(work.draft, split.name, _joined(work, split), set(hex_ids(keys[lacking])))


def _joined(work: Work, split: Split) -> Iterator[dict[str, Any]]:
    """Yield the questions with their passages, as the configs train, dev and test have them."""
    ids = work.passages.ids_of(work.texts.digests())
    for question in split.questions:
        numbers = [question.text, *(text for _, text in question.positives), *question.negatives]
        query, *texts = work.texts.get(np.array(numbers))
        docids = [*(key.hex() for key, _ in question.positives), *hex_ids(ids[question.negatives])]
        passages = [{"docid": key, "title": "", "text": text} for key, text in zip(docids, texts, strict=True)]
        count = len(question.positives)
        both = {"positive_passages": passages[:count], "negative_passages": passages[count:]}
        yield {"query_id": question.key.hex(), "query": query, **both}


def write_split(draft: Draft, split: str, joined: Iterable[dict[str, Any]], lacking: Collection[str] = ()) -> None:
    """Write a split's ``queries``, ``qrels`` and joined rows, and its column of Table 3.

    A passage counts once for every question that it is a positive of.

    Args:
        draft: the release being written.
        split: its name.
        joined: its joined rows; nothing is written where there are none.
        lacking: ids of passages that no judgment may name.
    """
    writers: dict[str, SplitWriter] = {}
    queries, chars, lengths = 0, 0, LengthCounter()
    rows = iter(joined)
    while batch := list(islice(rows, _BATCH)):
        queries += len(batch)
        chars += sum(len(row["query"]) for row in batch)
        judged = [(row["query_id"], passage) for row in batch for passage in row["positive_passages"]]
        lengths.add(np.array([len(passage["text"]) for _, passage in judged], np.int64))
        tables = {
            "queries": [{"_id": row["query_id"], "text": row["query"]} for row in batch],
            "qrels": [
                {"query-id": query, "corpus-id": passage["docid"], "score": 1}
                for query, passage in judged
                if passage["docid"] not in lacking
            ],
            split: batch,
        }
        for config, part in tables.items():
            if part:
                writer = writers[config] = writers.get(config) or draft.writer(config, split)
                writer.write(pa.Table.from_pylist(part, schema=schema_of(config)))
    if queries:
        draft.stats["table3"][split] = table3_column(queries, chars, lengths.count, lengths)
