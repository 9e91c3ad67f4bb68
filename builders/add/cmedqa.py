"""Add cMedQA, the medical out-of-domain set (Section 2.4).

The source is cMedQA2, and Table 3 has the figures of the set. --release adds the set to a copy of a release.
question.csv (question_id,content) and answer.csv (ans_id,question_id,content) have the texts. The candidates of dev and
test have the columns question_id,ans_id,cnt,label, where label 1 is positive. The candidates of train have these
columns, or question_id,pos_ans_id,neg_ans_id. The kind of a file is detected from its header. A candidates file also
needs train, dev or test in its name. Files are UTF-8 or GB18030, plain, .gz or .zip.

The corpus has all answers. cMedQA2's dev candidates become test, and its test candidates become dev, because the sizes
match: the paper's test split has 3,999 queries and 7,527 positives, and cMedQA2's dev candidates have 4,000 questions
and 7,527 positives. Equal questions are merged. Questions without candidates go to train, and answer.csv has their
positives. cMedQA2 is for non-commercial research only.

example:
  python -m builders add cmedqa --source cMedQA2 --out build/cmedqa
  python -m builders add cmedqa --source *.zip --release build/sample --out build/with-cmedqa
"""

import argparse
from collections.abc import Sequence
from pathlib import Path

from builders.add.collection import Collection, SourceTexts, add_options, files_of, merge, write_release
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.sources.source_files import Source, split_of
from builders.sources.source_tables import Table, open_table

HEADERS = {
    "questions": ("question_id", "content"),
    "answers": ("ans_id", "question_id", "content"),
    "candidates": ("question_id", "ans_id", "cnt", "label"),
    "pairs": ("question_id", "pos_ans_id", "neg_ans_id"),
}
SPLITS_OF = {"train": "train", "dev": "test", "test": "dev"}  # split in the candidates' name -> split of the release

_Judged = dict[str, dict[str, None]]  # question -> its positive answers, in order


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_options(parser, test_size=None)


def run(args: argparse.Namespace) -> None:
    write_release(*read(args.source, args.encoding), args)


def read(paths: Sequence[Path], encoding: str = "auto") -> tuple[Collection, list[Source]]:
    """Return the set, and the files that were read.

    Raises :class:`InputError` for a wrong row, missing test candidates, or a file in ``paths`` with another header.
    """
    questions, answers = SourceTexts("question"), SourceTexts("answer")
    own: _Judged = {}  # question -> its answers in answer.csv
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
            raise InputError("the split is unknown; expected train, dev or test in the name", path=source.shown)
    if not judged.get("test"):
        raise InputError(
            "--source has no candidates of the test questions; expected dev_candidates.txt, which becomes test"
        )
    named = {question for split in judged.values() for question in split}
    rest = {question: own[question] for question in questions.by_source if question in own and question not in named}
    if rest:
        log.info("%d questions without candidates go to train; answer.csv has their positives", len(rest))
        judged["train"] = judged.get("train", {}) | rest
    return merge("cmedqa", questions, answers, judged), used


def _read_candidates(table: Table, kind: str, judged: _Judged) -> None:
    columns = ("question_id", "pos_ans_id") if kind == "pairs" else ("question_id", "ans_id", "label")
    for line, (question, answer, *label) in progress(table.rows(columns), unit="pair", label=table.source.name):
        found = judged.setdefault(question, {})  # also adds questions without a positive answer
        if kind == "pairs" or label[0] == "1":
            found[answer] = None
        elif label[0] != "0":
            raise InputError(f"expected the label 0 or 1, found {label[0]!r}", path=table.source.shown, line=line)
