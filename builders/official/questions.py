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

from builders.core.typed import expect_unique_keys, json_of
from builders.core.write_files import write_text
from builders.official.blocks import HEAD, BlockWork
from builders.official.numbered import Keys, as_keys, hex_ids
from builders.official.official_archives import OfficialFile
from builders.official.official_formats import BadLine, Id, OfficialTexts, parse_pairs, parse_questions, texts_of
from builders.store.layout import JOINED, QRELS, QUERIES
from builders.store.table3 import LengthCounter, table3_column

_ROWS_PER_BATCH = 512  # a row with its passages can have 100 kB
_ID_BYTES = 16
RUN = "runs/official-dev-top50.trec"
TAG = "official-dual-encoder"


@dataclass
class OfficialQuestion:
    """A question.

    Attributes:
        key: id of the question, 16 bytes.
        text: number of the question's text.
        positives: (id, number of the text) of each positive passage -> grade, in order.
        judged_negatives: (id, number of the text) of each passage with a judgment of 0 or less -> grade.
        negatives: numbers of the other negative passages' texts.
    """

    key: bytes
    text: int
    positives: dict[tuple[bytes, int], int] = field(default_factory=dict)
    judged_negatives: dict[tuple[bytes, int], int] = field(default_factory=dict)
    negatives: list[int] = field(default_factory=list)


TextPair = tuple[int, int]  # numbers of the texts of a question and a passage


class OfficialSplit:
    """The questions of a split, by id and by number of the text. ``labelled`` is True if the split has judgments."""

    def __init__(self, name: str, labelled: bool = False) -> None:
        self.name = name
        self.labelled = labelled
        self.by_id: dict[bytes, OfficialQuestion] = {}
        self.by_text: dict[int, OfficialQuestion] = {}

    def add(self, key: bytes, text: int) -> OfficialQuestion:
        """Add a question. If several questions have the same text, :attr:`by_text` has the first."""
        question = OfficialQuestion(key, text)
        self.by_id[key] = question
        self.by_text.setdefault(text, question)
        return question


def ids_in(data: bytes) -> Iterator[bytes]:
    """Yield each id of concatenated ids of 16 bytes."""
    return (data[start : start + _ID_BYTES] for start in range(0, len(data), _ID_BYTES))


def read_questions(work: BlockWork, official_file: OfficialFile, split: OfficialSplit) -> None:
    """Read ``train.json``, ``dev.json`` or a test file into ``split``. The test files have no judgments."""
    labelled = official_file.role != "test"
    split.labelled |= labelled
    parse = functools.partial(parse_questions, labelled=labelled)
    for (questions, passage_counts, passages), lines in work.parsed(official_file, parse):
        question_texts = work.number(questions).tolist()
        _compare_ids(work, split, questions, passages)
        # The passages of all questions are in one column, so the next ones belong to the next question.
        positives = zip(ids_in(passages.ids), work.number(passages).tolist(), strict=True)
        rows = zip(lines.tolist(), ids_in(questions.ids), question_texts, passage_counts, strict=True)
        for line, key, text, passage_count in rows:
            question_positives = list(islice(positives, passage_count))
            question = split.by_id.get(key) or split.add(key, text)
            if question.text != text:
                work.findings.skip(
                    official_file, line, f"question_id {key.hex()} has two texts; expected one text for each id"
                )
                continue
            question.positives.update(dict.fromkeys(question_positives, 1))
            official_file.rows = (official_file.rows or 0) + 1


def _compare_ids(work: BlockWork, split: OfficialSplit, questions: OfficialTexts, passages: OfficialTexts) -> None:
    """Count the ids of questions and judged passages that are not the MD5 of their text.

    Judged passages whose text differs from the collection's text with the same id are also counted.
    """
    question_ids = as_keys(questions.ids)
    work.findings.add_ids(
        f"questions of {split.name} whose id is not the MD5 of their text",
        question_ids,
        (question_ids != as_keys(questions.digests)).any(axis=1),
    )
    passage_ids = as_keys(passages.ids)
    passage_digests = as_keys(passages.digests)
    work.findings.add_ids(
        f"judged passages of {split.name} whose id is not the MD5 of their text",
        passage_ids,
        (passage_ids != passage_digests).any(axis=1),
    )
    work.findings.add_ids(
        f"judged passages of {split.name} whose text differs from the collection's text with the same id",
        passage_ids,
        work.passages.differ(passage_ids, passage_digests),
    )


def read_question_list(work: BlockWork, official_file: OfficialFile, split: OfficialSplit) -> None:
    """Read the questions of ``q2qid.dev.json`` ({question: id}) or ``dev.q.format`` into ``split``, without judgments.

    Questions whose id occurred before are counted and skipped.
    """
    if official_file.role == "ids":
        content = official_file.read(official_file.size)
        ids_by_text = json_of(content, dict[str, Id], official_file.shown, remedy="expected one JSON {question: id}")
        expect_unique_keys(content, len(ids_by_text), official_file.shown)
        try:
            texts = work.number(texts_of([text.encode() for text in ids_by_text], "question")).tolist()
        except BadLine as error:
            raise official_file.error(error.message) from None
        keys = [bytes.fromhex(question_id) for question_id in ids_by_text.values()]
    else:  # dev.q.format has no ids, so the ids are the MD5 of the texts
        columns, _ = work.columns(official_file)
        texts = columns["query"].tolist()
        keys = list(ids_in(work.texts.digests()[texts].tobytes()))
    official_file.rows = len(texts)
    for text, key in zip(texts, keys, strict=True):
        if key in split.by_id:
            work.findings.add(f"questions of {split.name} whose id occurred before (skipped)")
        else:
            split.add(key, text)


def read_training(work: BlockWork, official_files: list[OfficialFile], split: OfficialSplit) -> None:
    """Add the negatives of the TSVs of train to the questions of ``split``.

    ``official_files`` are the files ``dual.train`` and ``cross.train``. Without ``train.json``, which is read before,
    the questions and positives of the TSVs are added, too. Disagreements of the TSVs with ``train.json`` are counted.
    """
    positives, negatives = _read_training_pairs(work, official_files)
    # The MD5 and the passage id of each text, by the text's number.
    digests = work.texts.digests()
    passage_ids = work.passages.ids_of(digests)
    # Without train.json, the positives of the TSVs are the judgments.
    has_train_json = split.labelled
    split.labelled = True
    if not has_train_json:
        for query, passage in positives:
            question = split.by_text.get(query) or split.add(digests[query].tobytes(), query)
            question.positives[passage_ids[passage].tobytes(), passage] = 1
    # Compare the TSVs with the judgments, and add the negatives.
    judged_pairs: set[TextPair] = set()
    for query, question in split.by_text.items():
        judged_pairs.update((query, passage) for _, passage in question.positives)
    # Pairs that a TSV labels positive are never negatives, even if train.json lacks the judgment.
    tsv_positives = {(query, passage) for query, passage in positives if query in split.by_text}
    unjudged_count = len(tsv_positives - judged_pairs)
    work.findings.add("positives of the TSVs that train.json does not judge (skipped)", unjudged_count)
    for query, passage in negatives:
        if (query, passage) in judged_pairs or (query, passage) in tsv_positives:
            finding = "negatives of the TSVs that are positives of their question (skipped)"
            work.findings.add(finding, 1, hex_ids(passage_ids[passage])[0])
        elif query in split.by_text:
            split.by_text[query].negatives.append(passage)
    # Questions of the TSVs that no question of the release has.
    tsv_queries = {query for query, _ in positives + negatives}
    reason = "that train.json lacks" if has_train_json else "without a positive passage"
    unknown_count = len(tsv_queries - split.by_text.keys())
    work.findings.add(f"questions of the TSVs {reason} (skipped)", unknown_count)


def _read_training_pairs(work: BlockWork, official_files: list[OfficialFile]) -> tuple[list[TextPair], list[TextPair]]:
    """Return the positive pairs and the negative pairs of the TSVs of train, each pair once.

    Whole files are read before excerpts (``demo``), and dual before cross.
    """
    positive_blocks: list[npt.NDArray[np.int32]] = []
    negative_blocks: list[npt.NDArray[np.int32]] = []
    # A pair keeps its first position, so the order of the files decides the order of the negatives.
    for official_file in sorted(official_files, key=_training_order):
        columns, labels = work.columns(official_file)
        if official_file.role == "dual":  # a line has a question, a positive and a negative
            positive_blocks.append(np.stack([columns["query"], columns["positive"]], axis=1))
            negative_blocks.append(np.stack([columns["query"], columns["negative"]], axis=1))
        else:  # a line has a question, a passage and a label
            pairs = np.stack([columns["query"], columns["passage"]], axis=1)
            positive_blocks.append(pairs[labels == 1])
            negative_blocks.append(pairs[labels == 0])
    return _distinct_pairs(positive_blocks), _distinct_pairs(negative_blocks)


def _training_order(official_file: OfficialFile) -> tuple[bool, bool]:
    """Return the sort key of a TSV of train. False sorts first: whole files before excerpts, dual before cross."""
    return ".demo." in official_file.name, official_file.role == "cross"


def _distinct_pairs(blocks: list[npt.NDArray[np.int32]]) -> list[TextPair]:
    """Return each pair once, in the order of first occurrence."""
    pairs = np.concatenate(blocks)
    _, first_rows = np.unique(pairs, axis=0, return_index=True)
    return [(query, passage) for query, passage in pairs[np.sort(first_rows)].tolist()]


def write_top50_run(work: BlockWork, by_role: Mapping[str, list[OfficialFile]], dev: OfficialSplit) -> None:
    """Write the official run from the file of ids or, if it is missing, from the file of texts. Else write nothing.

    ``by_role`` maps a role to its files. ``dev`` has the ids of the questions, which the file of texts lacks.
    """
    if by_role["top50ids"]:
        query_keys, passage_keys = _read_top50_ids(work, by_role["top50ids"][0])
    elif by_role["top50"]:
        query_keys, passage_keys = _read_top50_texts(work, by_role["top50"][0], dev)
    else:
        return
    # Dictionaries, because they keep the order and each passage once.
    rankings: dict[str, dict[str, None]] = {}
    for query_id, passage_id in zip(hex_ids(query_keys), hex_ids(passage_keys), strict=True):
        rankings.setdefault(query_id, {})[passage_id] = None
    # Write the run, with reversed ranks as scores.
    lines: list[str] = []
    for query_id, ranking in rankings.items():
        for rank, passage_id in enumerate(ranking, 1):
            score = len(ranking) - rank + 1
            lines.append(f"{query_id} Q0 {passage_id} {rank} {score} {TAG}\n")
    work.findings.add("repeated passages in the top 50 of a question (skipped)", len(query_keys) - len(lines))
    # Without a collection in the sources, no passage counts as missing.
    has_collection = work.passages.ids.count > 0
    is_missing = ~work.passages.has(passage_keys) & has_collection
    work.findings.add_ids("passages of the top 50 that the collection lacks", passage_keys, is_missing)
    (work.draft.folder / "runs").mkdir()
    write_text(work.draft.folder / RUN, "".join(lines))
    work.draft.add_file(RUN)


def _read_top50_ids(work: BlockWork, official_file: OfficialFile) -> tuple[Keys, Keys]:
    """Return the query's id and the passage's id of each line, as two arrays in the order of the lines."""
    query_blocks: list[Keys] = []
    passage_blocks: list[Keys] = []
    for (query_ids, passage_ids), _ in work.parsed(official_file, parse_pairs):
        query_blocks.append(as_keys(query_ids))
        passage_blocks.append(as_keys(passage_ids))
    query_keys = np.concatenate(query_blocks)
    official_file.rows = len(query_keys)
    return query_keys, np.concatenate(passage_blocks)


def _read_top50_texts(work: BlockWork, official_file: OfficialFile, dev: OfficialSplit) -> tuple[Keys, Keys]:
    """Return the query's id and the passage's id of each line, as two arrays. The file has their texts.

    A question of dev keeps its id. Another question gets the MD5 of its text. Raises :class:`InputError` for the output
    of a retriever, which has line numbers in place of the passages.
    """
    first_columns = official_file.read(HEAD).split(b"\t", 2)
    if len(first_columns) > 1 and first_columns[1].isdigit():
        raise official_file.error(
            "is a retriever's output (query, line number, rank, score); expected the archive's file (query, -,"
            " passage, -)",
            1,
        )
    columns, _ = work.columns(official_file)
    digests = work.texts.digests()
    query_ids: list[bytes] = []
    for text in columns["query"].tolist():
        question = dev.by_text.get(text)
        query_ids.append(digests[text].tobytes() if question is None else question.key)
    return as_keys(b"".join(query_ids)), work.passages.ids_of(digests[columns["passage"]])


def write_questions(work: BlockWork, split: OfficialSplit) -> None:
    """Write a split's ``queries``, ``qrels`` and joined rows, and its column of Table 3.

    A split without questions is not written. The qrels omit judgments of passages that the collection lacks, if the
    archives have a collection. Table 3 counts all judgments.
    """
    questions = list(split.by_id.values())
    if not questions:
        return
    # The config queries.
    texts = work.texts.get(np.array([question.text for question in questions]))
    query_ids = hex_ids(as_keys(b"".join(split.by_id)))
    work.draft.write("queries", split.name, [pa.table([query_ids, texts], schema=QUERIES)])
    # The config qrels.
    judged_counts: list[int] = []
    judged_ids: list[bytes] = []
    grades: list[int] = []
    for question in questions:
        judged_passages = question.positives | question.judged_negatives
        judged_counts.append(len(judged_passages))
        judged_ids += [passage_id for passage_id, _ in judged_passages]
        grades += judged_passages.values()
    judged_keys = as_keys(b"".join(judged_ids))
    has_no_collection = work.passages.ids.count == 0
    is_in_qrels = work.passages.has(judged_keys) | has_no_collection
    if split.labelled:
        unanswered_count = sum(not question.positives for question in questions)
        work.findings.add(f"questions of {split.name} without a positive passage", unanswered_count)
        finding = f"judgments of {split.name} whose passage the collection lacks (not in the qrels)"
        work.findings.add_ids(finding, judged_keys, ~is_in_qrels)
    if is_in_qrels.any():
        judged_queries = np.repeat(query_ids, judged_counts)[is_in_qrels]
        scores = np.array(grades, np.int64)[is_in_qrels]
        table = pa.table([judged_queries, hex_ids(judged_keys[is_in_qrels]), scores], schema=QRELS)
        work.draft.write("qrels", split.name, [table])
    # The joined rows, and the split's column of Table 3.
    lengths = LengthCounter()
    work.draft.write(split.name, split.name, _joined_tables(work, questions, lengths))
    query_characters = sum(len(text) for text in texts)
    table3 = work.draft.stats["table3"]
    table3[split.name] = table3_column(len(questions), query_characters, lengths.count, lengths)


def _joined_tables(work: BlockWork, questions: list[OfficialQuestion], lengths: LengthCounter) -> Iterator[pa.Table]:
    """Yield the questions with their passages as joined rows. Add the lengths of the positives to ``lengths``."""
    passage_ids = work.passages.ids_of(work.texts.digests())  # by number of the text
    for start in range(0, len(questions), _ROWS_PER_BATCH):
        rows: list[dict[str, Any]] = []
        for question in questions[start : start + _ROWS_PER_BATCH]:
            # Read all texts of a row at once: the query, the positives, then the negatives.
            judged_passages = list(question.positives) + list(question.judged_negatives)
            judged_texts = [text for _, text in judged_passages]
            query, *texts = work.texts.get(np.array([question.text, *judged_texts, *question.negatives]))
            docids = [passage_id.hex() for passage_id, _ in judged_passages]
            docids += hex_ids(passage_ids[question.negatives])
            passages = [{"docid": docid, "title": "", "text": text} for docid, text in zip(docids, texts, strict=True)]
            positive_count = len(question.positives)
            lengths.add(np.array([len(text) for text in texts[:positive_count]], np.int64))
            rows.append(
                {
                    "query_id": question.key.hex(),
                    "query": query,
                    "positive_passages": passages[:positive_count],
                    "negative_passages": passages[positive_count:],
                }
            )
        yield pa.Table.from_pylist(rows, schema=JOINED)
