"""Add cMedQA, the medical out-of-domain set (Section 2.4).

Table 3 has its figures. It is made from the files of cMedQA2 as they are published, alone or beside a copy of a
release. Read are question.csv (question_id,content), answer.csv (ans_id,question_id,content) and the candidates: dev
and test (question_id,ans_id,cnt,label; positive: label 1), train (the same, or question_id,pos_ans_id,neg_ans_id).
Files are known by their header, candidates by train, dev or test in their name; UTF-8 or GB18030, plain, .gz or .zip.

All answers are the corpus. The paper prints 3,999 queries with 7,527 passages; cMedQA2's dev candidates have 4,000
questions and 7,527 pairs labelled 1, and questions of one text are merged. So these are the test split, the test
candidates are dev, the train candidates train. A question that no candidates file names is in train, with the
answers that answer.csv gives it. cMedQA2 is for non-commercial research only.

example:
  python -m builders add cmedqa --source cMedQA2 --out build/cmedqa
  python -m builders add cmedqa --source *.zip --release build/sample --out build/with-cmedqa
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from builders.add.collection import Collection, SourceTexts, add_options, files_of, merge, write_release
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.sources.files import Source, split_of
from builders.sources.tables import Table, open_table

HEADERS = {
    "questions": ("question_id", "content"),
    "answers": ("ans_id", "question_id", "content"),
    "candidates": ("question_id", "ans_id", "cnt", "label"),
    "pairs": ("question_id", "pos_ans_id", "neg_ans_id"),
}
SPLITS_OF = {"train": "train", "dev": "test", "test": "dev"}  # by the candidates' name

_Judged = dict[str, dict[str, None]]  # by question: its positive answers, in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, test_size=None)


def run(args: argparse.Namespace) -> None:
    collection, used = read(args.source, args.encoding)
    write_release(collection, args, used)


def read(paths: Sequence[Path], encoding: str = "auto") -> tuple[Collection, list[Source]]:
    """Return the set, and the files that it came from.

    :class:`InputError` for a file that ``paths`` name and that is none of cMedQA's, a wrong row, and without test
    candidates.
    """
    questions, answers = SourceTexts("question"), SourceTexts("answer")
    own: _Judged = {}  # the answers of each question by answer.csv
    judged: dict[str, _Judged] = {}
    used = []
    for kind, source in files_of("cMedQA's", HEADERS, paths):
        used.append(source)
        table = open_table(source, encoding)
        if kind == "questions":
            for line, (question, text) in table.rows(HEADERS[kind]):
                questions.add(question, text, source, line)
        elif kind == "answers":
            for line, (answer, question, text) in table.rows(HEADERS[kind]):
                answers.add(answer, text, source, line)
                own.setdefault(question, {})[answer] = None
        elif split := split_of(source.member or source.path.name):
            _read_candidates(table, kind, judged.setdefault(SPLITS_OF[split], {}))
        else:
            raise InputError("candidates of which split? expected train, dev or test in its name", path=source.shown)
    if not judged.get("test"):
        raise InputError("no candidates of the test questions in what --source names; expected dev_candidates.txt")
    named = {question for split in judged.values() for question in split}
    rest = {question: own[question] for question in questions.by_source if question in own and question not in named}
    if rest:
        log.info("%d questions that no candidates name go to train, with the answers of answer.csv", len(rest))
        judged["train"] = judged.get("train", {}) | rest
    return merge("cmedqa", questions, answers, judged), used


def _read_candidates(table: Table, kind: str, judged: _Judged) -> None:
    """Add a file's questions, each with its positive answers: label 1, or named as positive in ``pairs``."""
    columns = ("question_id", "pos_ans_id") if kind == "pairs" else ("question_id", "ans_id", "label")
    for line, (question, answer, *label) in progress(table.rows(columns), unit="pair", label=table.source.name):
        found = judged.setdefault(question, {})  # one without a positive answer is there, too
        if kind == "pairs" or label[0] == "1":
            found[answer] = None
        elif label[0] != "0":
            raise InputError(f"expected the label 0 or 1, found {label[0]!r}", path=table.source.shown, line=line)
