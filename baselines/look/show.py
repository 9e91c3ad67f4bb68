"""Show a question with its passages under each run; a search page.

The positives are marked. The question is named by its id, its text or a part of its text; without --query it is the
first of the split that every run answers. A passage that is longer than --chars is cut around the terms that it has in
common with the question, by the tokens that BM25 counts. On a terminal those terms are highlighted (NO_COLOR is
respected).

--serve opens a page (Gradio) to search the release: one column a system, with ranks, scores, positives and the terms in
common. The query is one of the split's or any other text, whose positives nobody knows. BM25 alone, unless --model and
--passages (its embeddings, by `encode`) add a dual-encoder, and --reranker a cross-encoder, which re-ranks what the
dual-encoder has found, or else BM25. The page is for this machine alone (--host 0.0.0.0: for others, too). The embedded
sample is built where build/sample is missing. --assemble DIR writes a folder that is ready to be pushed as a Hugging
Face Space, and starts nothing.

examples:

  python -m baselines show --release build/sample --split dev --query 机 build/runs/bm25.dev.run.gz
  python -m baselines show --serve
  python -m baselines show --serve --release DIR --model M --passages build/embeddings/passages --reranker M2
  python -m baselines show --assemble build/space --release DIR
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from baselines.look.excerpts import SAMPLE, excerpt, marked, positives_of, tally
from baselines.measure.qrels import add_set, read_queries
from baselines.retrieve.settings import DEVICE, add_options
from builders.core.command import whole_number
from builders.core.errors import InputError, visible
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import Run, read_run

Question = tuple[str, str]  # id, text
_TERM, _POSITIVE, _HEAD, _PLAIN = "\033[1;33m", "\033[1;32m", "\033[1m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, default=SAMPLE, metavar="DIR", help=f"the release (default: {SAMPLE})")
    add_set(parser)
    parser.add_argument("--split", default="dev", help="whose questions (default: dev)")
    parser.add_argument("--query", metavar="TEXT_OR_ID", help="the question: its id, its text or a part of its text")
    parser.add_argument(
        "--top-k", type=whole_number(1), metavar="K", help="passages a run, or a column of the page (default: 3, 10)"
    )
    parser.add_argument("--chars", type=whole_number(10), default=100, metavar="N", help="of a passage (default: 100)")
    page = parser.add_argument_group("the search page")
    page.add_argument("--serve", action="store_true", help="open the page, until Ctrl-C")
    page.add_argument("--model", metavar="M", help="a dual-encoder: hub name or folder; with --passages")
    page.add_argument("--passages", type=Path, metavar="DIR", help="the passages' embeddings by --model")
    page.add_argument("--reranker", metavar="M", help="a cross-encoder: hub name or folder")
    page.add_argument(
        "--candidates", type=whole_number(1), default=50, metavar="N", help="that --reranker reads (default: 50)"
    )
    page.add_argument("--host", default="127.0.0.1", metavar="H", help="where it listens (default: 127.0.0.1)")
    page.add_argument("--port", type=whole_number(0), metavar="P", help="default: the first free from 7860")
    page.add_argument("--assemble", type=Path, metavar="DIR", help="write a Hugging Face Space's folder instead")
    add_options(parser, *DEVICE)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    if args.serve or args.assemble:
        from baselines.look.serve import serve

        serve(args)
    elif not args.runs:
        raise InputError("expected runs to show, or --serve")
    else:
        _show(args)


def _show(args: argparse.Namespace) -> None:
    from baselines.bm25.tokens import tokens

    top_k = args.top_k or 3
    release, configs = open_release(args.release), SETS[args.set]
    runs = [read_run(path) for path in args.runs]
    questions = read_queries(release, args.split, configs.queries)
    question, why = _chosen(questions, runs, args)
    shown = {each.path: each.rankings.get(question[0], [])[:top_k] for each in runs}
    for path, ids in shown.items():
        if not ids:
            raise InputError(f"has no passages for the question {question[0]} ({question[1]})", path=path)
    texts = release.texts(configs.corpus, "corpus", {corpus for ids in shown.values() for corpus in ids})
    for path, ids in shown.items():
        if unknown := [corpus for corpus in ids if corpus not in texts]:
            raise InputError(f"has a passage {unknown[0]!r} that the release's corpus lacks", path=path)
    known = positives_of(release, configs, args.split)
    positive = None if known is None else known.get(question[0], set())
    unjudged = ", no judgments" * (positive is None)
    colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")

    def style(text: str, code: str) -> str:
        return f"{code}{text}{_PLAIN}" if colour else text

    print(f"{style(visible(question[1]), _HEAD)}\nquestion {visible(question[0])} of {args.split}{why}")
    terms = set(tokens(question[1]))
    for each in runs:
        hits = each.hits[question[0]]
        print(f"\n{style(str(each.path), _HEAD)}: {tally([corpus for corpus, _ in hits], positive)}{unjudged}")
        for rank, (corpus, score) in enumerate(hits[:top_k], 1):
            mark = f"  {style('positive', _POSITIVE)}" if positive and corpus in positive else ""
            print(f"{rank:3}  {score:.4f}  {visible(corpus)}{mark}")
            found = "".join(
                style(word, _TERM) if common else word
                for word, common in excerpt(marked(texts[corpus], terms), args.chars)
            )
            print(f"     {found}")


def _chosen(questions: Sequence[Question], runs: Sequence[Run], args: argparse.Namespace) -> tuple[Question, str]:
    """The question that ``--query`` names, or the first that every run answers; and why it is this question."""
    wanted = args.query
    if wanted is None:
        every = "every run" if len(runs) > 1 else "the run"
        found = [each for each in questions if all(run.hits.get(each[0]) for run in runs)]
        why, missing = f" (the first that {every} answers; --query TEXT_OR_ID names another)", "that every run answers"
    else:
        exact = [each for each in questions if wanted in each]
        found = exact or [each for each in questions if wanted in each[1]]
        why = f" (the first of {len(found)} with {wanted} in them)" if len(found) > 1 and not exact else ""
        missing = f"with the id or text {wanted!r}, or this as a part of its text"
    if not found:
        raise InputError(f"no question of {args.split!r} {missing}", path=args.release)
    return found[0], why
