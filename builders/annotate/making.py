"""Pairs as a new round: in packages, as tasks for Label Studio, as sheets and as JSON lines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from builders.annotate.judgments import Pair
from builders.annotate.quality import PACKAGE
from builders.annotate.questions import RELEVANCE, Question
from builders.annotate.rounds import PACKAGES, ROUND, STUDIO, Item, Package, Round, Rule, fingerprint_of, write_round
from builders.annotate.sheets import Task
from builders.annotate.studio import CONFIG_FILE, config_of, write_package
from builders.core.errors import InputError
from builders.core.files import sha256_of, write_text
from builders.core.folders import new_directory, work_beside
from builders.store.reader import Release


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
) -> int:
    """Write the round ``path``, which must not be there; returns the number of its packages.

    Args:
        pairs: in their order; those of a query stand together.
        source: the file that they come from.
        size: pairs a package.

    Raises:
        InputError: a query or a passage that the release lacks.
    """
    expect_new(path)
    items = list(_items(release, split, pairs, source))
    packages: list[Package] = []
    with new_directory(path, "a round", ROUND) as folder:
        write_text(folder / STUDIO / CONFIG_FILE, config_of(question))
        for start in range(0, len(items), size):
            part = items[start : start + size]
            package = Package(f"{split}-{len(packages) + 1:03d}", len(part))
            tasks = [Task(item, package.name, 1) for item in part]
            write_package(folder / PACKAGES, package.stem, tasks, folder / STUDIO)
            packages.append(package)
        name, fingerprint = release.path.resolve().name, fingerprint_of(release, split)
        write_round(folder, Round(1, name, fingerprint, split, sha256_of(source), rule, packages, question.name))
    return len(packages)


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
