"""Let a model judge a round first; marked as a model's, never counted as a person's.

Off unless this command is given. Every pair gets a grade from 0 to 3, in the manner of UMBRELA: 3 answers exactly, 2
answers among other things, 1 is about the subject, 0 is not; 2 and 3 count as relevant; in a round of errors
(`baselines errors`), one of the eight categories. The judge is --model of the endpoint in OPENAI_BASE_URL (any that
speaks OpenAI's chat API; OPENAI_API_KEY where it needs a key), to which queries and passages are sent; or, without an
endpoint, the scores of a model in a run (--scores, as `baselines rerank` writes; of relevance alone).

Its judgments have the kind model: no review, no agreement between people and no `merge` takes them; `annotate compare`
says how far they agree with people's. Each is kept as it comes: killed and given again, the command asks again what was
under way, at most --parallel questions. With --show the tasks for Label Studio have the grade as a prediction, which
annotators see and may correct: quicker, and no longer independent.

--rerankers names the models that ranked what is judged: a judge of the same family is warned of.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from builders.core.command import whole_number
from builders.core.errors import InputError, log
from builders.core.progress import progress
from builders.pool import SCALES

if TYPE_CHECKING:
    from builders.annotate.answers import Answers
    from builders.annotate.judgments import Judgment
    from builders.annotate.questions import Asked
    from builders.annotate.rounds import Item, Package, Round

Waiting: TypeAlias = "Sequence[tuple[Package, Item]]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", required=True, metavar="NAME", help="who judges: as the endpoint calls it")
    parser.add_argument("--scores", type=Path, metavar="RUN", help="its scores, instead of an endpoint")
    parser.add_argument("--scale", choices=SCALES, default=SCALES[0], help="of the scores: sigmoid of logits (sigmoid)")
    parser.add_argument("--rerankers", nargs="+", default=[], metavar="NAME", help="the models that ranked the pool")
    parser.add_argument("--parallel", type=whole_number(1), default=4, metavar="N", help="questions at a time (4)")
    parser.add_argument("--show", action="store_true", help="as predictions in the tasks for Label Studio, too")


def run(args: argparse.Namespace) -> None:
    from builders.annotate.answers import answers_of
    from builders.annotate.families import warn_of_kin
    from builders.annotate.judgments import read_judgments
    from builders.annotate.rounds import items_of, open_round

    found = open_round(args.round, "relevance" if args.scores else None)
    warn_of_kin(args.model, args.rerankers)
    with answers_of(args.round, args.model) as answers:  # what a killed process was told is a judgment from here on
        done = {(each.package, each.pair) for each in read_judgments(args.round) if each.model == args.model}
        waiting = [
            (package, item)
            for package in found.packages
            for item in items_of(args.round, package)
            if (package.name, item.pair) not in done
        ]
        if done:
            log.info("%d pairs are judged by %s already", len(done), args.model)
        new = 0
        if waiting and args.scores:
            new = _take_scores(args, waiting)
        elif waiting:
            new = _ask(args, found, waiting, answers)
    if none := len(waiting) - new:
        log.warning("%d answers gave no grade; these pairs are not judged: run it again, or take another model", none)
    if args.show:
        _show(args.round, found, args.model)
    print(f"{new:,} pairs judged by {args.model} (a model): {args.round}")


def _ask(args: argparse.Namespace, found: Round, waiting: Waiting, answers: Answers) -> int:
    """Ask an endpoint about pairs, several at a time; returns how many it gave a grade.

    What was answered before an error is kept, too: each thread keeps what it is told, before it asks again.
    """
    from concurrent.futures import ThreadPoolExecutor

    from builders.annotate.endpoint import Endpoint
    from builders.annotate.umbrela import category_in, category_prompt, grade_in, prompt_of

    prompt, answered = (category_prompt, category_in) if found.question == "errors" else (prompt_of, grade_in)
    endpoint = Endpoint(args.model)

    def ask(package: Package, item: Item) -> bool:
        label = answered(endpoint.answer(prompt(item.query, item.passage)))
        if label is not None:
            answers.keep(_judgment(args.model, found.question, package, item, label))
        return label is not None

    with (
        progress(total=len(waiting), unit="pair", label="prefill") as bar,
        ThreadPoolExecutor(args.parallel) as pool,
    ):
        new = 0
        try:
            for answer in [pool.submit(ask, package, item) for package, item in waiting]:
                new += answer.result()
                bar.update(1)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise
    return new


def _take_scores(args: argparse.Namespace, waiting: Waiting) -> int:
    """The grades that a model's scores of the pairs stand for; returns their number."""
    from builders.annotate.judgments import add_judgments
    from builders.annotate.umbrela import grade_of
    from builders.pool.ensemble import columns
    from builders.pool.union import Union
    from builders.store.runs import read_run

    ranks: dict[str, dict[str, tuple[int, ...]]] = {}
    for _, item in waiting:
        ranks.setdefault(item.query_id, {})[item.corpus_id] = (1,)
    union = Union(["round"], ranks)
    (scores,) = columns(union, [read_run(args.scores)], args.scale, "pool candidates")
    if wrong := next((score for score in scores if not 0 <= score <= 1), None):
        raise InputError(f"has a score {wrong}; expected probabilities, or --scale sigmoid", path=args.scores)
    found = {(query, passage): score for (query, passage, _), score in zip(union.pairs(), scores, strict=True)}
    return add_judgments(
        args.round,
        (
            _judgment(
                args.model, "relevance", package, item, grade_of(found[item.pair]), f"score {found[item.pair]:.6g}"
            )
            for package, item in waiting
        ),
    )


def _judgment(
    model: str, question: Asked, package: Package, item: Item, label: int, note: str | None = None
) -> Judgment:
    from datetime import datetime, timezone

    from builders.annotate.judgments import Judgment

    now = datetime.now(timezone.utc)
    return Judgment(*item.pair, label, model, now, package.name, package.version, "model", model, note, question)


def _show(round_: Path, found: Round, model: str) -> None:
    """The tasks of the packages that people work on, with the model's judgments as predictions."""
    from builders.annotate.compare import grades_by
    from builders.annotate.rounds import STUDIO, items_of
    from builders.annotate.sheets import Task
    from builders.annotate.studio import write_tasks
    from builders.annotate.umbrela import RELEVANT

    grades = grades_by(round_, model)
    for package in found.packages:
        if package.state == "accepted":
            continue
        tasks = []
        for item in items_of(round_, package):
            label = grades.get((package.name, item.pair))
            if label is not None and found.question == "relevance":
                label = int(label >= RELEVANT)
            tasks.append(Task(item, package.name, package.version, label=label, by="" if label is None else model))
        write_tasks(round_ / STUDIO / f"{package.stem}.json", tasks)
