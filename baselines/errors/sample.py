"""Which pairs are analysed (Section 3.5), and what the rules say of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.errors.rules import RULES, Error, Finding, findings
from baselines.measure.qrels import read_judgments, read_queries, release_qrels
from builders.annotate.judgments import Pair
from builders.annotate.making import Hint, make_round
from builders.annotate.questions import ERRORS
from builders.annotate.rounds import Rule
from builders.common.command import InputError, log
from builders.common.sampling import draw
from builders.common.tables import percent, text_table
from builders.stats.paper import published
from builders.store.layout import SETS
from builders.store.reader import Release
from builders.store.runs import Run

BY_RULES = "rules"  # who says what the rules say


@dataclass
class Drawn:
    """The pairs that are analysed.

    Attributes:
        run, top_k: of which run, how many passages of a query.
        measured, failed: queries of the run that have a positive; those with none of them among the first passages.
        errors: the drawn queries' first passages, by their pair: in the order of the queries, and then of the ids.
        positives: each positive passage of these queries as a pair, as if it were an error among the others.
    """

    run: Path
    top_k: int
    measured: int
    failed: int
    errors: dict[Pair, Error]
    positives: dict[Pair, Error]


def draw_errors(release: Release, split: str, run: Run, queries: int, top_k: int, seed: int) -> Drawn:
    """Draw ``queries`` of those whose first ``top_k`` passages are no positives (all, where there are no more).

    Raises:
        InputError: the split has no judgments, no query fails, or the run has a passage that the release lacks.
    """
    positives = release_qrels(release, split).positives
    rankings, asked = run.rankings, dict(read_queries(release, split))
    answered = [query for query in asked if query in positives and rankings.get(query)]
    measured = {query: list(dict.fromkeys(rankings[query]))[:top_k] for query in answered}
    failed = {query: passages for query, passages in measured.items() if not positives[query].keys() & set(passages)}
    if not failed:
        what = f"no query of {release.path} {split} has a top {top_k} without a positive: there is no error to analyse"
        raise InputError(what, path=run.path)
    chosen = draw(failed, queries, seed)
    if len(chosen) < queries:
        log.warning("%d queries have no positive in their top %d: all are taken", len(chosen), top_k)
    wanted = {passage for query in chosen for passage in (*failed[query], *positives[query])}
    texts = release.texts(SETS["main"].corpus, "corpus", wanted)
    if unknown := [p for query in failed if query in chosen for p in failed[query] if p not in texts]:
        raise InputError(f"has a passage {unknown[0]!r} that the release's corpus lacks", path=run.path)
    judged = read_judgments(release, SETS["main"], split)
    drawn = Drawn(run.path, top_k, len(measured), len(failed), {}, {})
    for query in (query for query in failed if query in chosen):
        right = {passage: texts[passage] for passage in positives[query] if passage in texts}
        for passage in sorted(failed[query]):
            error = Error(asked[query], texts[passage], list(right.values()), passage in judged[query])
            drawn.errors[query, passage] = error
        for passage in right:
            others = [each for other, each in right.items() if other != passage]
            drawn.positives[query, passage] = Error(asked[query], right[passage], others, judged=True)
    return drawn


def report(drawn: Drawn, said: Mapping[Pair, Sequence[Finding]]) -> dict[str, Any]:
    """What the rules say, as JSON: of the pairs, by the first rule that applies; of positives, by every rule."""
    first = Counter(found[0].category if found else "" for found in said.values())
    alarms = Counter(each.rule for error in drawn.positives.values() for each in findings(error))
    rules = {category: name for name, (category, _) in RULES.items()}
    tried = RULES.keys() - {"duplicates"}  # which looks at what is not judged
    rows: dict[str, Any] = {}
    for choice in ERRORS.choices:
        rule = rules.get(choice.key)
        rows[choice.key] = {
            "rule": rule,
            "pairs": first[choice.key] if rule else None,
            "share": first[choice.key] / len(said) if rule else None,
            "paper": published()["table10"][choice.key],
            "on_positives": alarms[rule] / len(drawn.positives) if rule in tried and drawn.positives else None,
        }
    return {
        **{"run": str(drawn.run), "top_k": drawn.top_k, "measured": drawn.measured, "failed": drawn.failed},
        **{"queries": len({query for query, _ in said}), "pairs": len(said), "positives": len(drawn.positives)},
        **{"categories": rows, "undecided": first[""]},
    }


def as_text(found: dict[str, Any]) -> str:
    """A report as a table; shares in percent."""
    header = ("category", "rule", "pairs", "by rule", "Table 10", "on positives")
    rows = [
        (
            *(key.replace("_", " "), row["rule"] or "-", shown(row["pairs"])),
            *(percents(row[name]) for name in ("share", "paper", "on_positives")),
        )
        for key, row in found["categories"].items()
    ]
    undecided = percents(found["undecided"] / found["pairs"])
    rows.append(("no rule applies", "", shown(found["undecided"]), undecided, "", ""))
    called = f"how many of these queries' {found['positives']:,} positives a rule would call an error; percent"
    first = f"{found['failed']:,} of {found['measured']:,} queries have no positive in their top {found['top_k']}"
    return "\n".join(
        [
            f"{found['run']}: {first}; {found['queries']:,} of them, {found['pairs']:,} pairs\n",
            text_table(header, rows),
            f"\non positives: {called}",
        ]
    )


def shown(number: int | None) -> str:
    """A count as the tables have it; ``-`` for none."""
    return "-" if number is None else f"{number:,}"


def percents(share: float | None) -> str:
    """A share likewise, in percent."""
    return "-" if share is None else percent(share)


def write_round(
    path: Path,
    release: Release,
    split: str,
    run: Path,
    drawn: Drawn,
    said: Mapping[Pair, Sequence[Finding]],
    seed: int,
    blind: bool,
) -> int:
    """The pairs as a round of annotation, with what the rules say; returns the number of packages."""
    labels = {choice.key: choice.label for choice in ERRORS.choices}
    hints = {
        pair: Hint(labels[found[0].category], "；".join(each.why for each in found), BY_RULES)
        for pair, found in said.items()
        if found
    }
    rule = Rule(seed=seed)
    return make_round(path, release, split, list(drawn.errors), run, rule, question=ERRORS, hints=hints, show=not blind)
