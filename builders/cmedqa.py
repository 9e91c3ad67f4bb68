"""Add cMedQA, the medical out-of-domain set (Section 2.4).

Table 3 has its figures. It is made from the files of cMedQA2 as they are published, alone or beside a copy of a
release. Read are question.csv (question_id,content), answer.csv (ans_id,question_id,content) and the candidates: dev
and test (question_id,ans_id,cnt,label; positive: label 1), train (the same, or question_id,pos_ans_id,neg_ans_id).
Files are known by their header, candidates by train, dev or test in their name; UTF-8 or GB18030, plain, .gz or .zip.

All answers are the corpus. The paper prints 3,999 queries with 7,527 passages; cMedQA2's dev candidates have 4,000
questions and 7,527 pairs labelled 1, and questions of one text are merged. So these are the test split by default, the
test candidates are then dev, the train candidates train. A question that no candidates file names is in train, with the
answers that answer.csv gives it. cMedQA2 is for non-commercial research only.

example:
  python -m builders cmedqa --source cMedQA2 --out build/cmedqa
  python -m builders cmedqa --source *.zip --release build/sample --out build/with-cmedqa
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from builders import collection as out_of_domain
from builders.collection import Collection, Texts, merge
from builders.common.command import InputError, log, progress
from builders.sources.files import Source
from builders.sources.splits import split_of
from builders.sources.tables import find_tables, header_of, open_table

QUESTIONS = ("question_id", "content")
ANSWERS = ("ans_id", "question_id", "content")
CANDIDATES = ("question_id", "ans_id", "cnt", "label")
PAIRS = ("question_id", "pos_ans_id", "neg_ans_id")

_Judged = dict[str, dict[str, None]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    out_of_domain.add_arguments(parser, test_size=None)
    parser.add_argument(
        "--test-candidates",
        choices=["dev", "test"],
        default="dev",
        help="the candidates that are the test split (default: dev, the paper's); the other ones are the dev split",
    )


def run(args: argparse.Namespace) -> None:
    files = find_tables(args.source)
    collection, used = read(files, args.source, args.test_candidates, args.encoding)
    out_of_domain.build(collection, args, used, {"test_candidates": args.test_candidates})


def read(
    files: Sequence[Source], given: Sequence[Path] = (), test_candidates: str = "dev", encoding: str = "auto"
) -> tuple[Collection, list[Source]]:
    """The set, and the files that it came from.

    Args:
        files: where to look.
        given: paths that the user named: one of these that is no file of cMedQA is an error, not passed over.
        test_candidates: ``dev`` or ``test``: the candidates that are the test split.
        encoding: of every file, see :mod:`builders.sources.encoding`.

    Raises:
        InputError: for a file that is none of cMedQA's, a wrong row, or where a needed file is missing.
    """
    questions, answers = Texts("question"), Texts("answer")
    own: _Judged = {}  # the answers of each question by answer.csv
    judged: dict[str, _Judged] = {}
    splits = {"dev": "dev", "test": "test", "train": "train"}
    if test_candidates == "dev":
        splits |= {"dev": "test", "test": "dev"}
    used = []
    for source in files:
        header = sorted(header_of(source))
        if header == sorted(QUESTIONS):
            for line, (question, text) in open_table(source, encoding).rows(QUESTIONS):
                questions.add(question, text, source, line)
        elif header == sorted(ANSWERS):
            for line, (answer, question, text) in open_table(source, encoding).rows(ANSWERS):
                answers.add(answer, text, source, line)
                own.setdefault(question, {})[answer] = None
        elif header in (sorted(CANDIDATES), sorted(PAIRS)):
            split = split_of(source.member or source.path.name)
            if split is None:
                raise InputError(
                    "candidates of which split? expected train, dev or test in its name", path=source.shown
                )
            _candidates(source, encoding, header == sorted(PAIRS), judged.setdefault(splits[split], {}))
        elif source.member is None and source.path in given:
            raise InputError(
                "none of cMedQA's files; expected a header such as question_id,content", path=source.shown, line=1
            )
        else:
            log.info("%s: not one of cMedQA's files, passed over", source.name)
            continue
        used.append(source)
    for what, found, name in (
        (questions.by_source, "questions", "question.csv"),
        (answers.by_source, "answers", "answer.csv"),
        (judged.get("test"), "test candidates", f"{test_candidates}_candidates.txt"),
    ):
        if not what:
            raise InputError(f"no {found} of cMedQA in what --source names; expected {name}")
    named = {question for split in judged.values() for question in split}
    rest = {question: own[question] for question in questions.by_source if question in own and question not in named}
    if rest:
        log.info("%d questions that no candidates name go to train, with the answers of answer.csv", len(rest))
        judged["train"] = judged.get("train", {}) | rest
    return merge("cmedqa", questions, answers, judged), used


def _candidates(source: Source, encoding: str, pairs: bool, judged: _Judged) -> None:
    """Add a candidates file's questions, each with its positive answers; those without one are there, too."""
    table = open_table(source, encoding)
    columns = ("question_id", "pos_ans_id") if pairs else ("question_id", "ans_id", "label")
    for line, (question, answer, *label) in progress(table.rows(columns), unit="pair", label=source.name):
        found = judged.setdefault(question, {})
        if pairs or label[0] == "1":
            found[answer] = None
        elif label[0] != "0":
            raise InputError(f"expected the label 0 or 1, found {label[0]!r}", path=source.shown, line=line)
