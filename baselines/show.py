"""Show a question with its best passages under each run.

The positives are marked. The question is named by its id, its text or a part of its text; without --query it is the
first of the split that every run answers. A passage that is longer than --chars is cut around the terms that it has in
common with the question, by the tokens that BM25 counts. On a terminal those terms are highlighted (NO_COLOR is
respected).

Example:

  python -m baselines show --release build/sample --split dev --query 机 build/runs/bm25.dev.run.gz
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from baselines.runs.sets import add_set, read_judgments, read_queries
from builders.core.command import whole_number
from builders.core.errors import InputError, visible
from builders.store.layout import SETS, Set
from builders.store.reader import Release, open_release
from builders.store.runs import Run, read_run

Question = tuple[str, str]  # id, text
Word = tuple[str, bool]  # a word of a text, and whether the question has it too
_TERM, _POSITIVE, _HEAD, _PLAIN = "\033[1;33m", "\033[1;32m", "\033[1m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose questions (default: dev)")
    parser.add_argument("--query", metavar="TEXT_OR_ID", help="the question: its id, its text or a part of its text")
    parser.add_argument("--top-k", type=whole_number(1), default=3, metavar="K", help="passages a run (default: 3)")
    parser.add_argument("--chars", type=whole_number(10), default=100, metavar="N", help="of a passage (default: 100)")
    parser.add_argument("runs", type=Path, nargs="+", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    from baselines.bm25.tokens import tokens

    release, configs = open_release(args.release), SETS[args.set]
    runs = [read_run(path) for path in args.runs]
    questions = read_queries(release, args.split, configs.queries)
    if args.query is None:
        question, why = _first_answered(questions, runs, args.split)
    else:
        question, why = _named(questions, args.query, release, args.split)
    shown = {each.path: each.rankings.get(question[0], [])[: args.top_k] for each in runs}
    for path, ids in shown.items():
        if not ids:
            raise InputError(f"has no passages for the question {question[0]} ({question[1]})", path=path)
    texts = release.texts(configs.corpus, "corpus", {corpus for ids in shown.values() for corpus in ids})
    for path, ids in shown.items():
        if unknown := [corpus for corpus in ids if corpus not in texts]:
            raise InputError(f"has a passage {unknown[0]!r} that the release's corpus lacks", path=path)
    positive = _positives(release, configs, args.split, question[0])
    style = _styled if sys.stdout.isatty() and not os.environ.get("NO_COLOR") else _unstyled
    print(f"{style(visible(question[1]), _HEAD)}\nquestion {visible(question[0])} of {args.split}{why}")
    terms = set(tokens(question[1]))
    for each in runs:
        hits = each.hits[question[0]]
        print(f"\n{style(str(each.path), _HEAD)}: {_summary([corpus for corpus, _ in hits], positive)}")
        for rank, (corpus, score) in enumerate(hits[: args.top_k], 1):
            mark = f"  {style('positive', _POSITIVE)}" if positive and corpus in positive else ""
            print(f"{rank:3}  {score:.4f}  {visible(corpus)}{mark}")
            found = "".join(
                style(word, _TERM) if common else word
                for word, common in excerpt(marked(texts[corpus], terms), args.chars)
            )
            print(f"     {found}")


def _named(questions: Sequence[Question], wanted: str, release: Release, split: str) -> tuple[Question, str]:
    """The question with this id or text, or else the first with this part in its text; and what else there is."""
    if exact := [each for each in questions if wanted in each]:
        return exact[0], ""
    found = [each for each in questions if wanted in each[1]]
    if not found:
        message = f"no question of {split!r} has the id or text {wanted!r}, or this as a part of its text"
        raise InputError(message, path=release.path)
    return found[0], f" (the first of {len(found)} with {wanted} in them)" if len(found) > 1 else ""


def _first_answered(questions: Sequence[Question], runs: Sequence[Run], split: str) -> tuple[Question, str]:
    for question in questions:
        if all(run.hits.get(question[0]) for run in runs):
            every = "every run" if len(runs) > 1 else "the run"
            return question, f" (the first that {every} answers; --query TEXT_OR_ID names another)"
    paths = ", ".join(str(run.path) for run in runs)
    raise InputError(f"expected passages for at least one of the {len(questions)} questions of {split!r}", path=paths)


def _positives(release: Release, configs: Set, split: str, query: str) -> set[str] | None:
    """The positive passages of a question; None where the split has no judgments."""
    if (configs.qrels, split) not in release.splits():
        return None
    return {corpus for corpus, score in read_judgments(release, configs, split).get(query, {}).items() if score > 0}


def _summary(ranking: Sequence[str], positive: set[str] | None) -> str:
    """Where in a run's list the positives are."""
    passages = f"{len(ranking)} passage{'s' * (len(ranking) != 1)}"
    if positive is None:
        return f"{passages}, no judgments"
    ranks = [str(rank) for rank, corpus in enumerate(ranking, 1) if corpus in positive]
    where = f", at rank {', '.join(ranks)}" if ranks else ""
    return f"{passages}, {len(ranks)} of {len(positive)} positive{where}"


def marked(text: str, terms: set[str]) -> list[Word]:
    """The words of a text, blanks and line ends each as one blank, and whether they are among the ``terms``."""
    from builders.core.words import words

    return [(word, word.lower() in terms) for word in words(visible(" ".join(text.split())))]


def excerpt(text: Sequence[Word], chars: int) -> list[Word]:
    """At most ``chars`` characters of the words of a text: where they hold most characters of different terms.

    Of equally good places the middle one, so that the terms have words on both sides; the beginning where there is
    no term. What is left out is shown as "…".
    """
    windows = list(_windows(text, chars))
    values = []
    for first, end in windows:
        found = [word.lower() for word, common in text[first:end] if common]
        values.append((sum(map(len, set(found))), len(found)))
    best = [window for window, value in zip(windows, values, strict=True) if value == max(values) != (0, 0)]
    first, end = best[len(best) // 2] if best else windows[0]
    cut: Word = ("…", False)
    return [cut] * (first > 0) + list(text[first:end]) + [cut] * (end < len(text))


def _windows(text: Sequence[Word], chars: int) -> Iterator[tuple[int, int]]:
    """From each word on, as many words as have ``chars`` characters (one at least), until the end is reached."""
    if not text:
        yield 0, 0
    end = size = 0
    for first, (word, _) in enumerate(text):
        while end < len(text) and (end == first or size + len(text[end][0]) <= chars):
            size += len(text[end][0])
            end += 1
        yield first, end
        if end == len(text):
            return
        size -= len(word)


def _styled(text: str, code: str) -> str:
    return f"{code}{text}{_PLAIN}"


def _unstyled(text: str, code: str) -> str:
    return text
