"""Read the files of cMedQA2, the source of the medical out-of-domain set (Section 2.4)."""

from collections.abc import Sequence
from pathlib import Path

from builders.add.collection import Collection, SourceTexts, files_of, merge
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


def read_cmedqa(paths: Sequence[Path], encoding: str = "auto") -> tuple[Collection, list[Source]]:
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
