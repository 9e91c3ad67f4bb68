"""Build a release from a copy of the data: queries with their passages, or corpus, queries and qrels.

``zyznull/dureader-retrieval-ranking`` has ``train.jsonl.gz`` and ``dev.jsonl.gz`` in Tevatron's format.
``mteb/DuRetrieval`` has corpus, queries and judgments of dev. ``C-MTEB/DuRetrieval`` has corpus and queries, and
``C-MTEB/DuRetrieval-qrels`` has the judgments. A folder of BEIR, MS MARCO or TREC also is a copy. The kind of a file is
detected from its content (:mod:`.copy_rows`).

A text's id is its MD5. The ids of the copy are kept in the config ``original-ids`` (:mod:`.original_ids`), if they
differ from the MD5. Passages with equal texts become one passage, which gets the highest of their grades.
"""

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa

from builders.core.errors import InputError
from builders.core.tables import text_table
from builders.official.blocks import BlockWork, Corpus, open_work
from builders.official.copy_files import CopyFile, find_copy_files
from builders.official.copy_rows import Judgment, Passage, Ranked, Text, rows_with_bar
from builders.official.official_formats import texts_of
from builders.official.original_ids import OriginalIds
from builders.official.questions import OfficialQuestion, OfficialSplit, ids_in, write_questions
from builders.store.card import JOINED_TITLES, OTHER_GRADES
from builders.store.draft import describe_files
from builders.store.layout import LONGEST_TEXT, SPLITS, long_text_fault
from builders.store.published import published_figures as paper_figures

_PASSAGES_PER_BATCH = 4_096
_DEFAULT_SPLIT = "dev"  # of judgments without a split in the file's name
_HIGHEST_GRADE = 1_000_000  # as in files of judgments that `evaluate` reads
Pair = tuple[bytes, int]  # the MD5 and the number of a text
Titles = Literal["join", "drop"]


def build_copy(sources: Sequence[str], out: Path, titles: Titles = "join") -> dict[str, Any]:
    """Build the release ``out`` from copies, and return the content of its ``stats.json``.

    Args:
        sources: folders, files, or dataset repositories on a hub: ORG/NAME, or ORG/NAME/PATH for a file or folder.
        titles: "join" to put the title of a passage before its text, or "drop". Both are counted.

    Raises:
        InputError: a wrong or missing file, an error of the hub, or ``out`` is not a release.
    """
    with open_work(out) as work:
        # Find the files, and sort them by their kind.
        files: list[CopyFile] = []
        for source in sources:
            files += find_copy_files(source)
        by_kind: dict[str, list[CopyFile]] = {}
        for file in files:
            by_kind.setdefault(file.kind, []).append(file)
        if by_kind.keys() not in ({"ranking"}, {"ranking", "corpus"}, {"corpus", "queries", "qrels"}):
            raise InputError(
                f"the copy has {', '.join(by_kind)}; expected queries with passages, or corpus, queries and qrels"
                " (C-MTEB has the qrels of NAME in NAME-qrels)",
                path=sources[0],
            )
        # Read the files.
        splits = {name: OfficialSplit(name, labelled=True) for name in SPLITS}
        reader = _CopyReader(work, splits, titles)
        if "ranking" in by_kind:
            passages = reader.read_passages(by_kind.get("corpus", ()))
            paths_by_split: dict[str, list[Path]] = {name: [] for name in SPLITS}
            for file in by_kind["ranking"]:
                paths_by_split[file.split or _DEFAULT_SPLIT].append(file.path)
            for split in splits.values():
                reader.read_ranking(split, paths_by_split[split.name])
                passages += _passages_of(split)
        else:
            passages = reader.read_tables(by_kind["corpus"], by_kind["queries"], by_kind["qrels"])
        if not passages:
            raise InputError("the copy has no passage; expected a complete copy", path=sources[0])
        # Write the release.
        _write_corpus(work, passages)
        for split in splits.values():
            write_questions(work, split)
        reader.original_ids.write(work, passages, splits.values())
        draft = work.draft
        draft.stats["copy"] = {**work.findings.described(), "published": compare_with_published(draft.stats)}
        options: dict[str, Any] = {"copy": [_public_name(source) for source in sources]}
        if titles != "join":
            options["titles"] = titles
        draft.build = {
            "verb": "official",
            "options": options,
            "sources": describe_files((file.shown, file.path) for file in files),
        }
    return draft.stats


def _public_name(source: str) -> str:
    """Return the name of a repository, or the name of a local file or folder without its path."""
    return Path(source).name if os.path.exists(source) else source


def _passages_of(split: OfficialSplit) -> list[int]:
    """Return the numbers of the passages' texts, with repetitions, in the order of the questions.

    The split is from rows of queries with passages, which have no judged negatives.
    """
    texts: list[int] = []
    for question in split.by_id.values():
        texts += [text for _, text in question.positives]
        texts += question.negatives
    return texts


def add_judgments(
    split: OfficialSplit, query: Pair, grades: Iterable[tuple[Pair, int]]
) -> tuple[OfficialQuestion, int]:
    """Add graded passages to a question. Return the question, and the number of passages that were judged before.

    ``query`` is (MD5, number) of the question's text. A question that the split lacks is added. ``grades`` are pairs of
    a passage, as (MD5, number) of its text, and its grade; a grade above 0 is a positive. A passage that is judged
    again keeps the highest of its grades.
    """
    query_id, query_text = query
    question = split.by_id.get(query_id) or split.add(query_id, query_text)
    repeated_count = 0
    for passage, grade in grades:
        earlier_grade = question.positives.get(passage, question.judged_negatives.get(passage))
        if earlier_grade is not None:
            repeated_count += 1
            if grade <= earlier_grade:
                continue
        question.judged_negatives.pop(passage, None)
        if grade > 0:
            question.positives[passage] = grade
        else:
            question.judged_negatives[passage] = grade
    return question, repeated_count


class _CopyReader:
    """Read the files of a copy into splits.

    Attributes:
        work: the release being written.
        splits: the splits to fill, by name.
        titles: the use of titles, see :func:`build_copy`.
        original_ids: the ids of the copy.
    """

    def __init__(self, work: BlockWork, splits: Mapping[str, OfficialSplit], titles: Titles) -> None:
        self.work = work
        self.splits = splits
        self.titles = titles
        self.original_ids = OriginalIds()

    def read_ranking(self, split: OfficialSplit, paths: Iterable[Path]) -> None:
        """Read queries with their passages into ``split``. Passages of a repeated query are merged.

        Raises :class:`InputError` for a blank query, and for a query that is too long.
        """
        findings = self.work.findings
        for path in paths:
            for location, row in rows_with_bar(path, Ranked):
                if not row.query.strip():
                    raise InputError("the query is empty; expected a text", path=location)
                fault = long_text_fault(row.query)
                if fault:
                    raise InputError(fault, path=location)
                # No query is skipped, because blank and long queries are errors above.
                (query,) = self._number_texts("queries", [(row.query_id, row.query)])
                positives = self._number_passages(row.positive_passages)
                negatives = self._number_passages(row.negative_passages)
                if query[0] in split.by_id:
                    finding = f"rows of {split.name} whose query occurred before (passages are merged)"
                    findings.add(finding, 1, query[0].hex())
                question, _ = add_judgments(split, query, [(positive, 1) for positive in positives])
                question.negatives += [text for _, text in negatives]
        # A later row of the same query can have the positives, so negatives are checked last.
        for question in split.by_id.values():
            positive_texts = {text for _, text in question.positives}
            contradictions = sum(text in positive_texts for text in question.negatives)
            findings.add("negatives that are a positive of their query (skipped)", contradictions)
            distinct_negatives = dict.fromkeys(question.negatives)
            question.negatives = [text for text in distinct_negatives if text not in positive_texts]

    def read_passages(self, corpus: Iterable[CopyFile]) -> list[int]:
        """Read the passages of Tevatron's corpus. Return the numbers of the texts."""
        return [number for _, number in self._read_texts("passages", corpus).values()]

    def read_tables(
        self, corpus: Iterable[CopyFile], queries: Iterable[CopyFile], qrels: Sequence[CopyFile]
    ) -> list[int]:
        """Read files of corpus, queries and judgments into the splits. Return the numbers of the passages' texts.

        Queries without a judgment are skipped, unless they are of a test set without judgments.
        """
        passages = self._read_texts("passages", corpus)
        questions: dict[str, Pair] = {}
        # Queries of a test set without judgments are kept, if the name of their file has the split.
        unlabelled_questions: dict[str, Pair] = {}
        judged_splits = {file.split or _DEFAULT_SPLIT for file in qrels}
        for file in queries:
            file_questions = self._read_texts("queries", [file], questions)
            questions |= file_questions
            if file.split == "test" and "test" not in judged_splits:
                unlabelled_questions |= file_questions
        judged_queries = self._read_judgments(qrels, questions, passages)
        if unlabelled_questions:
            self.splits["test"].labelled = False
            for query_id, query_text in unlabelled_questions.values():
                if query_id not in self.splits["test"].by_id:
                    self.splits["test"].add(query_id, query_text)
        unjudged_queries = questions.keys() - judged_queries - unlabelled_questions.keys()
        if unjudged_queries:
            finding = "queries without a judgment (skipped)"
            self.work.findings.add(finding, len(unjudged_queries), min(unjudged_queries))
        # Two ids of the copy can have the same text, which becomes one passage.
        text_numbers = [number for _, number in passages.values()]
        repeated_count = len(text_numbers) - len(set(text_numbers))
        self.work.findings.add("passages whose text occurred before (merged)", repeated_count)
        return text_numbers

    def _read_judgments(
        self, qrels: Iterable[CopyFile], questions: Mapping[str, Pair], passages: Mapping[str, Pair]
    ) -> set[str]:
        """Read judgments into the splits. Return the copy's ids of the judged queries, also of skipped queries.

        ``questions`` and ``passages`` map the copy's ids to (MD5, number) of the texts. Judgments of other ids, and
        queries without a positive, are counted and skipped.
        """
        findings = self.work.findings
        # (split, copy's id of a query) -> passages with their grades.
        grades_by_query: dict[tuple[str, str], list[tuple[Pair, int]]] = {}
        for file in qrels:
            split_name = file.split or _DEFAULT_SPLIT
            for location, row in rows_with_bar(file.path, Judgment):
                query, passage = str(row.query), str(row.passage)
                grade = self._whole_grade(row.score, split_name, location)
                if query not in questions or passage not in passages:
                    finding = f"judgments of {split_name} whose query or passage the copy lacks (skipped)"
                    findings.add(finding, 1, f"{query} {passage}")
                elif grade is not None:
                    grades_by_query.setdefault((split_name, query), []).append((passages[passage], grade))
        for (split_name, query), grades in grades_by_query.items():
            # A labelled question needs a positive passage.
            if max(grade for _, grade in grades) <= 0:
                findings.add(f"queries of {split_name} without a positive judgment (skipped)", 1, query)
                continue
            split = self.splits[split_name]
            if questions[query][0] in split.by_id:
                findings.add(f"queries of {split_name} whose text occurred before (merged)", 1, query)
            _, repeated_count = add_judgments(split, questions[query], grades)
            finding = f"judgments of {split_name} of a pair that was judged before (the highest grade is kept)"
            findings.add(finding, repeated_count)
        return {query for _, query in grades_by_query}

    def _whole_grade(self, score: float, split_name: str, location: str) -> int | None:
        """Return the grade of a judgment: its score, rounded up. None for a score that is no number.

        Unusual scores are counted. Raises :class:`InputError` for a score above the highest grade.
        """
        findings = self.work.findings
        if not math.isfinite(score):
            findings.add(f"judgments of {split_name} whose score is no number (skipped)")
            return None
        if abs(score) > _HIGHEST_GRADE:
            raise InputError(f"expected scores of at most {_HIGHEST_GRADE:,}, found {score:g}", path=location)
        grade = math.ceil(score)  # a fraction above 0 is a positive
        if grade != score:
            findings.add(f"judgments of {split_name} with a fraction as the grade (rounded up)")
        if grade <= 0:
            findings.add(f"judgments of {split_name} with a score of 0 or less (kept as judged negatives)")
        elif grade != 1:
            findings.add(f"judgments of {split_name} {OTHER_GRADES}")
        return grade

    def _read_texts(
        self, noun: str, files: Iterable[CopyFile], earlier_texts: Mapping[str, Pair] | None = None
    ) -> dict[str, Pair]:
        """Return (MD5, number) of the texts of corpus or queries by the copy's ids. ``noun`` is passages or queries.

        ``earlier_texts`` are the results for other files. Raises :class:`InputError` for an id that has another text in
        the files, or in ``earlier_texts``.
        """
        texts_by_id: dict[str, Pair] = {}
        for file in files:
            for location, row in rows_with_bar(file.path, Text):
                text = self._text_with_title(noun, row)
                for pair in self._number_texts(noun, [(row.id, text)]):  # none for a skipped text
                    copy_id = str(row.id)
                    earlier_pair = (earlier_texts or {}).get(copy_id, pair)
                    if texts_by_id.setdefault(copy_id, pair) != pair or earlier_pair != pair:
                        raise InputError(f"the id {copy_id!r} has a second text; expected one text", path=location)
        return texts_by_id

    def _number_passages(self, passages: Iterable[Passage]) -> list[Pair]:
        """Return (MD5, number) of each passage's text. Passages without a text, or with a long text, are skipped."""
        return self._number_texts(
            "passages", ((passage.docid, self._text_with_title("passages", passage)) for passage in passages)
        )

    def _text_with_title(self, noun: str, row: Passage | Text) -> str:
        """Return the text, with its title before it if titles of passages are joined. Count a row with a title."""
        title = str(row.title).strip() if row.title else ""
        if not title:
            return row.text
        if noun == "passages" and self.titles == "join":
            self.work.findings.add(f"{noun} {JOINED_TITLES}", 1, title)
            # As BEIR joins them.
            return f"{title} {row.text}" if row.text.strip() else title
        self.work.findings.add(f"{noun} with a title (dropped)", 1, title)
        return row.text

    def _number_texts(self, noun: str, ids_and_texts: Iterable[tuple[str | int, str]]) -> list[Pair]:
        """Return (MD5, number) of each text, without blank or long texts, which are counted and skipped.

        An id that is not the MD5 of its text is counted, and recorded for the config original-ids. ``noun`` is the word
        for the texts in findings: passages or queries.
        """
        findings = self.work.findings
        copy_ids: list[str] = []
        texts: list[bytes] = []
        for copy_id, text in ids_and_texts:
            if not text.strip():
                findings.add(f"{noun} without a text (skipped)", 1, str(copy_id))
                continue
            if long_text_fault(text):
                findings.add(f"{noun} of more than {LONGEST_TEXT:,} characters (skipped)", 1, str(copy_id))
                continue
            copy_ids.append(str(copy_id))
            texts.append(text.encode())
        column = texts_of(texts, noun)
        digests = list(ids_in(column.digests))
        for copy_id, digest in zip(copy_ids, digests, strict=True):
            if copy_id and copy_id != digest.hex():
                findings.add(f"{noun} whose id in the copy is not the MD5 of the text", 1, copy_id)
                self.original_ids.add(noun, copy_id, digest, findings)
        return list(zip(digests, self.work.number(column).tolist(), strict=True))


def _write_corpus(work: BlockWork, passages: Iterable[int]) -> None:
    """Write the config ``corpus``. ``passages`` are numbers of texts. Each text is written once."""
    corpus = Corpus(work.draft)
    digests = work.texts.digests()
    text_numbers = np.array(list(dict.fromkeys(passages)))
    for start in range(0, len(text_numbers), _PASSAGES_PER_BATCH):
        batch = text_numbers[start : start + _PASSAGES_PER_BATCH]
        corpus.write(digests[batch], pa.array(work.texts.get(batch)))
    work.draft.stats["collections"]["corpus"] = corpus.lengths.summary()


def compare_with_published(stats: Mapping[str, Any]) -> dict[str, list[int | None]]:
    """Return figure -> [the copy's number or None, the published number]. A figure is "dev queries", for example.

    ``stats`` is the content of the copy's ``stats.json``.
    """
    paper_stats = paper_figures()  # Table 3, which has the number of passages, too
    copy_passages = stats["collections"]["corpus"]["passages"]
    paper_passages = paper_stats["collections"]["corpus"]["passages"]
    figures: dict[str, list[int | None]] = {"passages": [copy_passages, paper_passages]}
    for split in SPLITS:
        copy_column = stats["table3"].get(split, {})
        paper_column = paper_stats["table3"].get(split, {})
        for key, noun in (("queries", "queries"), ("positive_passages", "judgments")):
            figures[f"{split} {noun}"] = [copy_column.get(key), paper_column.get(key)]
    return figures


def differences_text(copy_stats: Mapping[str, Any]) -> str:
    """Return the comparison of :func:`compare_with_published`, in ``copy_stats["published"]``, as aligned text.

    Figures that the copy lacks are omitted.
    """
    rows: list[tuple[str, str, str, str]] = []
    for noun, (copy_count, paper_count) in copy_stats["published"].items():
        if copy_count is not None:
            difference = copy_count - paper_count
            rows.append((noun, f"{copy_count:,}", f"{paper_count:,}", f"{difference:+,}"))
    return text_table(("", "this copy", "published", "difference"), rows)
