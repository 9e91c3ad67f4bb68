"""Read the files of cMedQA2, the source of the medical out-of-domain set (Section 2.4)."""

from collections.abc import Sequence
from pathlib import Path

from builders.add.collection import Collection, SourceTexts, files_of, merge_texts
from builders.core.errors import InputError, log
from builders.sources.source_bars import read_rows_with_bar
from builders.sources.source_files import Source, split_of
from builders.sources.source_tables import Table, open_table

# Kind of a file -> its columns.
HEADERS = {
    "questions": ("question_id", "content"),
    "answers": ("ans_id", "question_id", "content"),
    "candidates": ("question_id", "ans_id", "cnt", "label"),
    "pairs": ("question_id", "pos_ans_id", "neg_ans_id"),
}
# Split in the candidates' name -> split of the release. The paper's test set has the size of cMedQA2's dev candidates.
SPLITS_OF = {"train": "train", "dev": "test", "test": "dev"}

_Judged = dict[str, dict[str, None]]  # id of a question -> ids of its positive answers, in order


def read_cmedqa(
    source_paths: Sequence[Path],
    encoding: str = "auto",
) -> tuple[Collection, list[Source]]:
    """Return the set, and the files that were read.

    ``encoding`` is a value of ``--encoding``. Raises :class:`InputError` for a wrong row, missing candidates of the
    release's test split, or a file in ``source_paths`` with another header.
    """
    questions = SourceTexts("question")
    answers = SourceTexts("answer")
    answers_by_question: _Judged = {}  # by the column question_id of answer.csv
    judged: dict[str, _Judged] = {}  # by split of the release
    used_sources = []
    # The files come in any order, so they are joined by ids after all are read.
    for file_kind, source in files_of("cMedQA's", HEADERS, source_paths):
        used_sources.append(source)
        table = open_table(source, encoding)
        if file_kind == "questions":
            for line, (question_id, text) in read_rows_with_bar(table, HEADERS[file_kind], "question"):
                questions.add(question_id, text, source, line)
        elif file_kind == "answers":
            for line, (answer_id, question_id, text) in read_rows_with_bar(table, HEADERS[file_kind], "answer"):
                answers.add(answer_id, text, source, line)
                answers_by_question.setdefault(question_id, {})[answer_id] = None
        else:
            # Only the name of a file of candidates tells its split.
            name_split = split_of(source.member or source.path.name)
            if not name_split:
                raise InputError("the split is unknown; expected train, dev or test in the name", path=source.shown)
            _read_candidates(table, file_kind, judged.setdefault(SPLITS_OF[name_split], {}))
    if not judged.get("test"):
        raise InputError(
            "--source has no candidates of the test questions; expected dev_candidates.txt, which becomes test"
        )

    # Questions without candidates are not part of any split of cMedQA2, so they only help to train.
    with_candidates: set[str] = set()
    for split_judged in judged.values():
        with_candidates.update(split_judged)
    further_train: _Judged = {}
    for question_id in questions.by_source:
        if question_id in answers_by_question and question_id not in with_candidates:
            further_train[question_id] = answers_by_question[question_id]
    if further_train:
        log.info("%d questions without candidates go to train; answer.csv has their positives", len(further_train))
        judged["train"] = judged.get("train", {}) | further_train
    return merge_texts("cmedqa", questions, answers, judged), used_sources


def _read_candidates(table: Table, file_kind: str, judged: _Judged) -> None:
    """Add the questions of a file of candidates to ``judged``, with their positive answers.

    ``file_kind`` is ``candidates`` (rows with a label) or ``pairs`` (rows with a positive and a negative answer). The
    negative answers of pairs are not used.
    """
    if file_kind == "pairs":
        for _, (question_id, answer_id) in read_rows_with_bar(table, ("question_id", "pos_ans_id"), "pair"):
            judged.setdefault(question_id, {})[answer_id] = None
        return
    for line, (question_id, answer_id, label) in read_rows_with_bar(table, ("question_id", "ans_id", "label"), "pair"):
        # Also adds questions without a positive answer.
        positives = judged.setdefault(question_id, {})
        if label == "1":
            positives[answer_id] = None
        elif label != "0":
            raise InputError(f"expected the label 0 or 1, found {label!r}", path=table.source.shown, line=line)
