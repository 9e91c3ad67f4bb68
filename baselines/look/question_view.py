"""A question with the best passages of each run, and the positive passages that the runs miss."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from baselines.bm25.search_bm25 import search_bm25
from baselines.look.excerpts import EXCERPT_SOURCE_CHARS, best_excerpt, describe_ranking, flag_terms, positives_of
from baselines.measure.qrels import read_queries
from baselines.measure.run_origin import expect_passages
from builders.core.errors import InputError, UsageError, make_visible
from builders.core.results import Report, Table
from builders.core.word_tokens import word_tokens
from builders.store.layout import SETS, text_id
from builders.store.own_queries import OwnQueries
from builders.store.reader import Release
from builders.store.runs import Run

Question = tuple[str, str]  # id, text
# Colours of a terminal.
_TERM, _POSITIVE, _HEAD, _PLAIN = "\033[1;33m", "\033[1;32m", "\033[1m", "\033[0m"


@dataclass(frozen=True)
class QuestionView:
    """A question, the best passages of each run, and the positive passages that are not among them.

    Attributes:
        question: id and text of the question.
        note: which of several questions was chosen, for the text after the question's id, or "".
        split: the split of the question, or the name of the file of own queries; "" for a text of no split.
        runs: the runs. A run may have no passages for the question.
        top_k: number of passages of each run.
        texts: texts of the runs' best passages and of the positive passages, by id.
        positives: the question's positive passages; None if the split has no judgments.
    """

    question: Question
    note: str
    split: str
    runs: Sequence[Run]
    top_k: int
    texts: dict[str, str] = field(repr=False)
    positives: set[str] | None

    def is_positive(self, passage_id: str) -> bool | None:
        """True for a positive passage; None if the split has no judgments."""
        if self.positives is None:
            return None
        return passage_id in self.positives

    def missed_positives(self) -> list[str]:
        """Return the ids of positive passages that are not among the first ``top_k`` passages of any run.

        Ids that the corpus lacks are left out; `check` reports them.
        """
        # Passages that the corpus lacks have no text.
        missed = (self.positives or set()) & self.texts.keys()
        for run in self.runs:
            missed -= {passage_id for passage_id, _ in self._hits(run)}
        return sorted(missed)

    def report(self, chars: int, colour: bool) -> Report:
        """Return the passages as a result. Its text has excerpts of at most ``chars`` characters.

        ``colour``: mark terms and positives in a terminal's colours.
        """
        return Report(self.value(), text=lambda: self.text(chars, colour), tables=lambda: [self.table()])

    def value(self) -> dict[str, Any]:
        """Return the question and the passages as a JSON value."""
        runs = []
        for run in self.runs:
            passages = []
            for rank, (passage_id, score) in enumerate(self._hits(run), 1):
                passages.append(
                    {
                        "rank": rank,
                        "score": score,
                        "corpus-id": passage_id,
                        "positive": self.is_positive(passage_id),
                        "text": self.texts[passage_id],
                    }
                )
            runs.append({"run": str(run.path), "passages": passages})
        missed = []
        for passage_id in self.missed_positives():
            missed.append({"corpus-id": passage_id, "text": self.texts[passage_id], "ranks": self._ranks(passage_id)})
        query_id, text = self.question
        return {"query-id": query_id, "text": text, "split": self.split, "runs": runs, "missed-positives": missed}

    def table(self) -> Table:
        """Return the passages of each run as a table. Missed positives follow, with "(missed)" as their run."""
        rows = []
        for run in self.runs:
            for rank, (passage_id, score) in enumerate(self._hits(run), 1):
                text = self.texts[passage_id]
                rows.append([str(run.path), rank, score, passage_id, self.is_positive(passage_id), text])
        for passage_id in self.missed_positives():
            rows.append(["(missed)", None, None, passage_id, True, self.texts[passage_id]])
        return Table(["run", "rank", "score", "passage", "positive", "text"], rows, title=self.question[1])

    def text(self, chars: int, colour: bool) -> str:
        """Format the passages for a terminal, with excerpts around the terms that passage and question share.

        An excerpt has at most ``chars`` characters. ``colour``: mark terms and positives in a terminal's colours.
        """

        def style(text: str, code: str) -> str:
            return f"{code}{text}{_PLAIN}" if colour else text

        def excerpt_line(passage_id: str) -> str:
            source_text = self.texts[passage_id][:EXCERPT_SOURCE_CHARS]
            excerpt = best_excerpt(flag_terms(source_text, terms), chars)
            styled_words = [style(word, _TERM) if is_term else word for word, is_term in excerpt]
            return "     " + "".join(styled_words)

        query_id, query_text = self.question
        terms = set(word_tokens(query_text))
        source = f" of {self.split}" if self.split else ""
        lines = [style(make_visible(query_text), _HEAD), f"question {make_visible(query_id)}{source}{self.note}"]
        unjudged = ", no judgments" if self.positives is None else ""
        for run in self.runs:
            counts = describe_ranking(run.rankings.get(query_id, []), self.positives)
            lines += ["", f"{style(str(run.path), _HEAD)}: {counts}{unjudged}"]
            for rank, (passage_id, score) in enumerate(self._hits(run), 1):
                mark = f"  {style('positive', _POSITIVE)}" if self.is_positive(passage_id) else ""
                lines.append(f"{rank:3}  {score:.4f}  {make_visible(passage_id)}{mark}")
                lines.append(excerpt_line(passage_id))
        missed = self.missed_positives()
        if missed:
            lines += ["", style(f"positive passages that are not shown above: {len(missed)}", _HEAD)]
            for passage_id in missed:
                lines.append(f"  -  {make_visible(passage_id)}  {self._ranks_text(passage_id)}")
                lines.append(excerpt_line(passage_id))
        return "\n".join(lines)

    def _hits(self, run: Run) -> list[tuple[str, float]]:
        """Return (id, score) of the run's first ``top_k`` passages for the question."""
        return run.hits.get(self.question[0], [])[: self.top_k]

    def _ranks(self, passage_id: str) -> list[int | None]:
        """Return the passage's rank in each run. None for a run that lacks the passage."""
        ranks = []
        for run in self.runs:
            ranking = run.rankings.get(self.question[0], [])
            ranks.append(ranking.index(passage_id) + 1 if passage_id in ranking else None)
        return ranks

    def _ranks_text(self, passage_id: str) -> str:
        """Describe the passage's ranks, for example "at rank 7; not in dense.run"."""
        parts = []
        for run, rank in zip(self.runs, self._ranks(passage_id), strict=True):
            if rank is None:
                parts.append(f"not in {run.path}")
            elif len(self.runs) == 1:
                parts.append(f"at rank {rank}")
            else:
                parts.append(f"at rank {rank} of {run.path}")
        return "; ".join(parts)


def view_question(
    release: Release,
    runs: Sequence[Run],
    *,
    set_name: str,
    split: str,
    query: str | None,
    top_k: int,
    own_queries: OwnQueries | None = None,
) -> QuestionView:
    """Return the question that ``query`` names, with the passages of each run.

    ``query`` is the id of a question, its text, or a part of its text. None: the first question that every run answers.
    ``own_queries`` are the queries of the runs, in place of the split's, and have no judgments. Raises
    :class:`InputError` if there is no such question, or a passage is unknown.
    """
    questions, source = _read_questions(release, set_name, split, own_queries)
    question, note = _choose_question(questions, runs, query, source, release)
    judged_split = split if own_queries is None else ""
    return _view(release, runs, question, note=note, source=source, set_name=set_name, split=judged_split, top_k=top_k)


def search_question(
    release: Release, query: str, *, set_name: str, split: str, top_k: int, own_queries: OwnQueries | None = None
) -> QuestionView:
    """Search by a question with BM25, and return the question with its passages.

    ``query`` is the id or the text of a question of the split, or of ``own_queries`` if they are given. Any other text
    is searched, too. Only questions of the split have judgments. Raises :class:`UsageError` for an empty text.
    """
    if not query.strip():
        raise UsageError("--query: the text is empty; expected a question")
    questions, source = _read_questions(release, set_name, split, own_queries)
    # A question is the pair (id, text), so `query` must equal one of the two.
    matches = [question for question in questions if query in question]
    judged_split = split if matches and own_queries is None else ""
    if matches:
        question = matches[0]
    else:
        question = (text_id(query), query)
        source = ""
    query_id, text = question
    run = search_bm25(release, set=set_name, top_k=top_k, queries_file=OwnQueries("query", {query_id: text}))
    return _view(release, [run], question, note="", source=source, set_name=set_name, split=judged_split, top_k=top_k)


def _read_questions(
    release: Release, set_name: str, split: str, own_queries: OwnQueries | None
) -> tuple[list[Question], str]:
    """Return the questions of ``own_queries``, or else of the split, and the name of the file or split."""
    if own_queries is not None:
        return own_queries.rows, own_queries.name
    return read_queries(release, split, SETS[set_name].queries), split


def _view(
    release: Release,
    runs: Sequence[Run],
    question: Question,
    *,
    note: str,
    source: str,
    set_name: str,
    split: str,
    top_k: int,
) -> QuestionView:
    """Read the judgments and texts of a question, and return its view.

    ``split`` is the split of the judgments, or "" for none. ``source`` is the name of the split or file that has the
    question. Raises :class:`InputError` if the corpus lacks a passage of a run.
    """
    configs = SETS[set_name]
    query_id, _ = question
    positives = None
    judgments = positives_of(release, configs, split) if split else None
    if judgments is not None:
        positives = judgments.get(query_id, set())
    # Read the texts of all passages that the view can print.
    shown_ids = set(positives or ())
    for run in runs:
        shown_ids.update(run.rankings.get(query_id, [])[:top_k])
    texts = release.texts(configs.corpus, "corpus", shown_ids)
    for run in runs:
        expect_passages(run, run.rankings.get(query_id, [])[:top_k], texts, "corpus")
    return QuestionView(question, note, source, runs, top_k, texts, positives)


def _choose_question(
    questions: Sequence[Question], runs: Sequence[Run], query: str | None, source: str, release: Release
) -> tuple[Question, str]:
    """Return the question that ``query`` names, or the first that every run answers, and a note on the choice.

    ``query`` is an id, a text, or a part of a text. An id or a whole text takes precedence. ``source``, the name of the
    split or file of the questions, and ``release`` are for the error.
    """
    if query is None:
        runs_noun = "every run" if len(runs) > 1 else "the run"
        candidates = [question for question in questions if all(run.hits.get(question[0]) for run in runs)]
        note = f" (the first that {runs_noun} answers; --query TEXT_OR_ID names another)"
        description = "that every run answers"
    else:
        # A question is the pair (id, text), so `query` must equal one of the two.
        exact_matches = [question for question in questions if query in question]
        candidates = exact_matches or [question for question in questions if query in question[1]]
        note = ""
        if len(candidates) > 1 and not exact_matches:
            note = f" (the first of {len(candidates)} with {query} in them)"
        description = f"that has the id {query!r} or contains this text"
    if not candidates:
        problem = f"no question of {source!r} {description}"
        if query is not None:
            problem += "; without runs, `show --query TEXT` searches by any text"
        raise InputError(problem, path=release.path)
    return candidates[0], note
