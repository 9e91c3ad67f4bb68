"""What a round asks of each pair: one question with its choices, each with a label, a key and a name.

``relevance`` is what people judge for the qrels (Section 2.3, A.3). ``errors`` is the paper's analysis of errors
(Section 3.5, Table 10): what went wrong where a passage that is no positive was ranked so high.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, NamedTuple

from builders.annotate.quality import answer_of

Asked = Literal["relevance", "errors"]


class Choice(NamedTuple):
    """One answer: its label, which is also its key, its name in Chinese, what it means, and its English name."""

    label: int
    name: str
    means: str = ""
    english: str = ""

    @property
    def key(self) -> str:
        """What it is called in files."""
        return self.english.replace(" ", "_")


@dataclass(frozen=True)
class Question:
    """A question.

    Attributes:
        text: as it is put to people; ``hint`` is what they are told who hand in nothing.
        highest: the highest label a person may give, and a model (UMBRELA's grades of relevance go to 3).
    """

    name: Asked
    text: str
    hint: str
    choices: tuple[Choice, ...]
    highest: tuple[int, int]

    @property
    def lowest(self) -> int:
        return min(choice.label for choice in self.choices)

    @property
    def expected(self) -> str:
        """What a label is, for errors."""
        labels = sorted((choice.label for choice in self.choices), reverse=self.name == "relevance")
        return f"{labels[0]} {'or' if len(labels) == 2 else 'to'} {labels[-1]}"

    def label_of(self, text: str) -> int | None:
        """The label that somebody has written, as a number or a name; None where it is none of the choices."""
        if self.name == "relevance":
            answer = answer_of(text)
            return None if answer is None else int(answer)
        said = text.strip().lower().replace("_", " ").replace("-", " ")
        return next((c.label for c in self.choices if said in (str(c.label), c.name, c.english)), None)


RELEVANCE = Question(
    "relevance",
    "这个段落能回答这个查询吗？",
    "请选择：相关（1）或不相关（0）",
    (Choice(1, "相关"), Choice(0, "不相关")),
    (1, 3),
)
ERRORS = Question(
    "errors",
    "这个段落排在前几名，却没有标为相关：主要错在哪里？",
    "请选择一类（1 至 8）",
    (
        Choice(1, "实体不符", "查询和段落说的不是同一个人、地方、机构或东西", "entity mismatch"),
        Choice(2, "数字不符", "年份、数量、型号等数字不同", "numeral mismatch"),
        Choice(3, "修饰语不符", "说的是同一件东西，条件、时间、方式等修饰不同", "modifier mismatch"),
        Choice(4, "句法不符", "词都相同，主语和宾语等关系反了", "syntactic mismatch"),
        Choice(5, "错别字", "查询或段落里的错字使意思难认", "typos"),
        Choice(6, "仅词语重合", "有少见的词重合，意思并不相关", "term overlap"),
        Choice(7, "漏标的正例", "段落其实能回答查询", "false negative"),
        Choice(8, "其他", "以上都不是", "other"),
    ),
    (8, 8),
)
QUESTIONS: Mapping[str, Question] = {question.name: question for question in (RELEVANCE, ERRORS)}
