"""Show a question with the passages of each run, or serve a page.

--query names a question by its id, its text or a part of its text. Without --query, the first question that every run
answers is shown. Positives are marked. A passage longer than --chars characters is shown as an excerpt around the terms
that passage and question share. The terms are BM25's tokens. Terminals show terms in colour, unless NO_COLOR is set.

--serve starts a page (Gradio) that searches the release. Each system has a column with ranks, scores, positives and
shared terms. The query is a question of the split or any other text. The first column is BM25. --model adds a
dual-encoder, and needs --passages, the output of `encode`. --reranker adds a cross-encoder, which re-ranks the passages
of the dual-encoder or, without --model, of BM25. By default, only this machine can open the page. With --host 0.0.0.0,
other machines can open it, too. If build/sample is missing, the embedded sample is built.

examples:

  python -m baselines show --release build/sample --split dev --query 机 build/runs/bm25.dev.run.gz
  python -m baselines show --serve
  python -m baselines show --serve --release DIR --model M --passages build/embeddings/passages --reranker M2
"""

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from baselines.core.settings import DEVICE, add_options
from baselines.look.excerpts import SAMPLE, excerpt, marked, positives_of, tally
from baselines.measure.qrels import add_set, read_queries
from builders.core.command import whole_number
from builders.core.errors import InputError, visible
from builders.store.layout import SETS
from builders.store.reader import open_release
from builders.store.runs import Run, read_run

Question = tuple[str, str]  # id, text
_TERM, _POSITIVE, _HEAD, _PLAIN = "\033[1;33m", "\033[1;32m", "\033[1m", "\033[0m"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--release", type=Path, default=SAMPLE, metavar="DIR", help=f"release to read (default: {SAMPLE})"
    )
    add_set(parser)
    parser.add_argument("--split", default="dev", help="split of the questions (default: dev)")
    parser.add_argument("--query", metavar="TEXT_OR_ID", help="question by its id, its text or a part of its text")
    parser.add_argument(
        "--top-k", type=whole_number(1), metavar="K", help="passages of each run (default: 3) or column (default: 10)"
    )
    parser.add_argument(
        "--chars", type=whole_number(10), default=100, metavar="N", help="characters of an excerpt (default: 100)"
    )
    page = parser.add_argument_group("the search page")
    page.add_argument("--serve", action="store_true", help="serve the page until Ctrl-C")
    page.add_argument("--model", metavar="M", help="dual-encoder (hub name or folder); needs --passages")
    page.add_argument("--passages", type=Path, metavar="DIR", help="embeddings of the passages by --model")
    page.add_argument("--reranker", metavar="M", help="cross-encoder (hub name or folder)")
    page.add_argument(
        "--candidates", type=whole_number(1), default=50, metavar="N", help="passages to re-rank (default: 50)"
    )
    page.add_argument("--host", default="127.0.0.1", metavar="H", help="address to listen on (default: 127.0.0.1)")
    page.add_argument("--port", type=whole_number(0), metavar="P", help="port (default: first free port from 7860)")
    add_options(parser, *DEVICE)
    parser.add_argument("runs", type=Path, nargs="*", metavar="RUN", help="TREC run or official predictions (JSON)")


def run(args: argparse.Namespace) -> None:
    if args.serve:
        from baselines.look.serve import serve

        serve(args)
    elif not args.runs:
        raise InputError("no runs given; name runs to show, or add --serve")
    else:
        _show(args)


def _show(args: argparse.Namespace) -> None:
    from baselines.bm25.tokens import tokens

    top_k = args.top_k or 3
    release, configs = open_release(args.release), SETS[args.set]
    runs = [read_run(path) for path in args.runs]
    question, why = _chosen(read_queries(release, args.split, configs.queries), runs, args)
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
    """Return the question of ``--query``, or the first question that every run answers, and a note on the choice."""
    wanted = args.query
    if wanted is None:
        every = "every run" if len(runs) > 1 else "the run"
        found = [each for each in questions if all(run.hits.get(each[0]) for run in runs)]
        why, missing = f" (the first that {every} answers; --query TEXT_OR_ID names another)", "that every run answers"
    else:
        exact = [each for each in questions if wanted in each]
        found = exact or [each for each in questions if wanted in each[1]]
        why = f" (the first of {len(found)} with {wanted} in them)" if len(found) > 1 and not exact else ""
        missing = f"that has the id {wanted!r} or contains this text"
    if not found:
        raise InputError(f"no question of {args.split!r} {missing}", path=args.release)
    return found[0], why
