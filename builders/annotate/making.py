"""Pairs as a new round: in packages, as tasks for Label Studio, as sheets and as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import NamedTuple

from builders.annotate.judgments import Judgment, Pair, add_judgments
from builders.annotate.quality import PACKAGE
from builders.annotate.questions import RELEVANCE, Question
from builders.annotate.rounds import PACKAGES, ROUND, STUDIO, Item, Package, Round, Rule, fingerprint_of, write_round
from builders.annotate.sheets import Task
from builders.annotate.studio import CONFIG_FILE, config_of, write_package
from builders.common.command import InputError
from builders.common.files import sha256_of, write_text
from builders.common.folders import new_directory, work_beside
from builders.store.reader import Release


class Hint(NamedTuple):
    """What a program, called ``by``, says of a pair before anybody has judged it, and why."""

    label: int
    why: str
    by: str


def expect_new(path: Path) -> None:
    """:class:`InputError` where a round is there already."""
    if (path / ROUND).exists():
        with work_beside(path):  # what is left of an export that was killed when it was done goes
            pass
        raise InputError("is a round already, which may hold judgments; expected a new path", path=path)


def make_round(
    path: Path,
    release: Release,
    split: str,
    pairs: Sequence[Pair],
    source: Path,
    rule: Rule,
    size: int = PACKAGE,
    question: Question = RELEVANCE,
    hints: Mapping[Pair, Hint] | None = None,
    show: bool = True,
) -> int:
    """Write the round ``path``, which must not be there; returns the number of its packages.

    Args:
        pairs: in their order; those of a query stand together.
        source: the file that they come from.
        size: pairs a package.
        hints: kept as judgments of the kind model, which never count as a person's; people see them, too, where
            ``show``: as what others have said, and in Label Studio as predictions.

    Raises:
        InputError: a query or a passage that the release lacks.
    """
    expect_new(path)
    items, now, hints = list(_items(release, split, pairs, source)), datetime.now(timezone.utc), hints or {}
    packages: list[Package] = []
    with new_directory(path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / CONFIG_FILE, config_of(question))
        said: list[Judgment] = []
        for start in range(0, len(items), size):
            part = items[start : start + size]
            package = Package(f"{split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(item, package.name, 1) for item in part]
            if show:
                tasks = [_hinted(task, hints.get(task.item.pair)) for task in tasks]
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            for pair, hint in ((item.pair, hints[item.pair]) for item in part if item.pair in hints):
                said.append(_model_judgment(pair, hint, package, question, now))
            packages.append(package)
        if said:
            add_judgments(folder, said)
        name, fingerprint = release.path.resolve().name, fingerprint_of(release, split)
        write_round(folder, Round(1, name, fingerprint, split, sha256_of(source), rule, packages, question.name))
    return len(packages)


def _model_judgment(pair: Pair, hint: Hint, package: Package, question: Question, time: datetime) -> Judgment:
    by, why = hint.by, hint.why
    return Judgment(*pair, hint.label, by, time, package.name, package.version, "model", by, why, question.name)


def _hinted(task: Task, hint: Hint | None) -> Task:
    """The task with what a program says: to be seen in every form, and in Label Studio a prediction."""
    if hint is None:
        return task
    return Task(task.item, task.package, task.version, task.kind, hint.label, hint.why, hint.by)


def _items(release: Release, split: str, pairs: Sequence[Pair], source: Path) -> Iterator[Item]:
    """The pairs with their texts. :class:`InputError` for a query or a passage that the release lacks."""
    queries = release.texts("queries", split)
    passages = release.texts("corpus", "corpus", {passage for _, passage in pairs})
    for query, passage in pairs:
        if query not in queries:
            raise InputError(f"has a query {query!r} that queries/{split} lacks", path=source)
        if passage not in passages:
            raise InputError(f"has a passage {passage!r} that the corpus lacks", path=source)
        yield Item(query, passage, queries[query], passages[passage])
