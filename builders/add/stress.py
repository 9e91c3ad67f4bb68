"""Write the sets of perturbed development and test questions (Section 3.5 names typos among the errors)."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.add.collection import open_base
from builders.add.homophones import stress_settings
from builders.add.stress_rules import describe_libraries, perturb
from builders.core.errors import InputError, log
from builders.core.progress import show_progress
from builders.core.results import Report, Table
from builders.core.tables import text_table
from builders.store.benchmark_tasks import part_id
from builders.store.draft import draft_release
from builders.store.layout import SETS, STRESS, STRESS_KINDS, STRESS_QUERIES, text_id
from builders.store.names import TESTED_SPLITS
from builders.store.reader import Release

_MAIN_QUERIES = SETS["main"].queries
_COLUMNS = ("kind", "split", "queries", "unchanged", "taken")

# Rows (id of the perturbed text, perturbed text, id of the original query)
StressRows = list[tuple[str, str, str]]


def read_tested_queries(release: Release | Path, splits: Sequence[str]) -> tuple[Release, dict[str, dict[str, str]]]:
    """Return a release, and the texts of the queries of ``splits`` by split and id.

    A query of both test and dev stays in test. Splits that the release lacks are skipped. Raises :class:`InputError`
    if the release has none of the splits.
    """
    base = open_base(release, "stress")
    texts_by_split: dict[str, dict[str, str]] = {}
    earlier_ids: set[str] = set()
    for split in reversed(TESTED_SPLITS):
        if split in splits and (_MAIN_QUERIES, split) in base.splits():
            split_texts = base.texts(_MAIN_QUERIES, split)
            texts_by_split[split] = {
                query_id: text for query_id, text in split_texts.items() if query_id not in earlier_ids
            }
            earlier_ids |= split_texts.keys()
    if not any(texts_by_split.values()):
        raise InputError(f"has no {' or '.join(splits)} queries to perturb", path=base.path)
    return base, texts_by_split


def perturb_queries(
    query_texts: Mapping[str, str], kind: str, seed: int, taken_texts: Collection[str]
) -> tuple[StressRows, dict[str, int]]:
    """Perturb each query by the rule of a kind. Return the rows of the set, and counts.

    ``query_texts`` maps ids to texts. ``taken_texts`` are the texts that no query may become, such as every query of
    the release. A query whose first drawn form is taken gets the next form. ``queries`` counts the rows, ``unchanged``
    the queries that the rule cannot change, and ``taken`` the queries whose every form is taken.
    """
    rows: StressRows = []
    used_texts: set[str] = set()
    counts = {"queries": 0, "unchanged": 0, "taken": 0}
    for query_id, text in show_progress(query_texts.items(), total=len(query_texts), unit="query", label=kind):
        forms = perturb(text, kind, seed)
        free_forms = [form for form in forms if form.strip() and form not in taken_texts and form not in used_texts]
        if free_forms:
            used_texts.add(free_forms[0])
            rows.append((text_id(free_forms[0]), free_forms[0], query_id))
            counts["queries"] += 1
        elif forms:
            counts["taken"] += 1
        else:
            counts["unchanged"] += 1
    return rows, counts


def build_stress(
    base: Release,
    texts_by_split: Mapping[str, Mapping[str, str]],
    out: Path,
    *,
    kinds: Sequence[str],
    seed: int | None,
) -> Report:
    """Write a copy of ``base`` with the sets of ``kinds``. Return the report: a row for each kind and split.

    ``texts_by_split`` has the texts of the queries to perturb, by split and id. ``kinds`` are names of
    :data:`STRESS_KINDS`. ``seed`` is the seed of the draw of the changed place (None: the seed of ``stress.toml``).

    Raises:
        InputError: a library is missing, or no rule can change a query.
    """
    settings = stress_settings()
    seed = settings["seed"] if seed is None else seed
    options = {
        "kinds": list(kinds),
        "splits": sorted(texts_by_split),
        "seed": seed,
        "rules": settings["version"],
        "libraries": ", ".join(f"{name} {version}" for name, version in describe_libraries(kinds).items()),
    }
    # Texts that a perturbed query must not have. Training questions count, too: a model may have learned them.
    query_texts: set[str] = set()
    for config, split in base.splits():
        if config == _MAIN_QUERIES:
            query_texts.update(base.texts(_MAIN_QUERIES, split).values())

    figures: dict[str, dict[str, int]] = {}  # set and split, such as stress-swap_dev -> counts
    table_rows: list[tuple[Any, ...]] = []
    with draft_release(out, {"verb": "stress", "options": options, "sources": []}, base) as draft:
        # The copied release may have earlier sets, with another seed or of other kinds.
        for kind in STRESS_KINDS:
            draft.drop(SETS[f"{STRESS}{kind}"].queries)
        for kind in kinds:
            set_name = f"{STRESS}{kind}"
            # Two splits must not share a perturbed query.
            taken_texts = set(query_texts)
            for split in sorted(texts_by_split):
                rows, counts = perturb_queries(texts_by_split[split], kind, seed, taken_texts)
                figures[part_id(set_name, split)] = counts
                table_rows.append((kind, split, *counts.values()))
                if not rows:
                    continue
                taken_texts.update(text for _, text, _ in rows)
                columns = [pa.array(values) for values in zip(*rows, strict=True)]
                draft.write(SETS[set_name].queries, split, [pa.table(columns, schema=STRESS_QUERIES)])
        if not any(counts["queries"] for counts in figures.values()):
            raise InputError("no rule can change a query; expected Chinese questions", path=base.path)
        for part, counts in figures.items():
            if not counts["queries"]:
                log.warning("%s: the rule can change no query, so the release lacks this split", part)
        draft.stats["stress"] = figures
    text = text_table(_COLUMNS, [tuple(map(str, row)) for row in table_rows])
    return Report(figures, f"{text}\nrelease: {out}", [Table(_COLUMNS, table_rows, text_columns=2)])
