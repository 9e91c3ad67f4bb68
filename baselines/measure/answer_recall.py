"""Answer recall: the share of queries whose best passages contain an answer. Passages need no judgment.

A passage contains an answer if one of its spans reaches the threshold of span-F1 with the answer, as in Algorithm 1
(Section 2.2.2). A passage contains an entity if the text has the entity's exact characters. If people gave several
answers or entities, one suffices. Queries without an answer do not count.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import LIST_DEPTH, mean, reciprocal_rank
from baselines.measure.significance import rank_agreement
from builders.core.errors import InputError
from builders.core.progress import slices
from builders.core.results import Table
from builders.core.tables import percent, text_table
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.span_options import Options

DEPTHS = (1, 5, 10, LIST_DEPTH)
KINDS = ("answer", "entity")

# Kind -> query -> rank of the first passage that contains an answer (or an entity), None if no passage does.
Ranks = dict[str, dict[str, int | None]]


def first_answers(
    runs: Sequence[Run], asked: Mapping[str, Mapping[str, Any]], release: Release, corpus: str, options: Options
) -> list[Ranks]:
    """Return, for each run, the rank of every query's first passage with an answer, and with an entity, in the top 50.

    Args:
        runs: the runs.
        asked: rows of the config ``answers`` by query id.
        release, corpus: the release, and the config with the passages of the runs.
        options: the unit, the threshold and the segmenter of span-F1.

    Raises:
        InputError: no query has an answer, or the corpus lacks a retrieved passage.
    """
    asked = {query: row for query, row in asked.items() if row["answers"]}
    if not asked:
        raise InputError("no query of the split has an answer (raw test rows have none)", path=release.path)
    tops = [{query: run.rankings.get(query, [])[:LIST_DEPTH] for query in asked} for run in runs]
    wanted = {query: list(dict.fromkeys(passage for top in tops for passage in top[query])) for query in asked}
    texts = release.texts(corpus, "corpus", {passage for own in wanted.values() for passage in own})
    for run, top in zip(runs, tops, strict=True):
        if missing := {passage for own in top.values() for passage in own} - texts.keys():
            raise InputError(f"has a passage {min(missing)!r} that {corpus} lacks", path=run.path)
    found: list[Ranks] = [{kind: {} for kind in KINDS} for _ in runs]
    queries = list(asked)
    for some_queries in slices(len(queries), AT_ONCE, unit="query", label="answers"):
        some = queries[some_queries]
        passages = [[texts[passage] for passage in wanted[query]] for query in some]
        labels = contain_answer(passages, [asked[query]["answers"] for query in some], options)
        for query, own in zip(some, labels, strict=True):
            good = {"answer": {passage for passage, label in zip(wanted[query], own, strict=True) if label}}
            if entities := [entity for answer in asked[query]["entity_answers"] for entity in answer]:
                good["entity"] = {p for p in wanted[query] if any(entity in texts[p] for entity in entities)}
            for ranks, top in zip(found, tops, strict=True):
                for kind, passages_with in good.items():
                    ranks[kind][query] = next((n for n, p in enumerate(top[query], 1) if p in passages_with), None)
    return found


def answer_recall(ranks: Ranks) -> dict[str, float | None]:
    """Return the means over queries, as fractions.

    ``answer MRR@10`` has the reciprocal rank of the first answer. ``answer@k`` is the share of queries with an answer
    in the top k. ``answer queries`` is the number of queries. The values of entities have the same names with
    ``entity``.
    """
    found: dict[str, float | None] = {}
    for kind in KINDS:
        own = list(ranks[kind].values())
        found[f"{kind} queries"] = len(own)
        if own:
            found[f"{kind} MRR@10"] = mean(list(map(reciprocal_rank, own)))
            found |= {f"{kind}@{k}": mean([float(rank is not None and rank <= k) for rank in own]) for k in DEPTHS}
    return found


def rank_columns(ranks: Ranks, queries: Sequence[str]) -> dict[str, pa.Array]:
    """Return the ranks of the first answer and of the first entity, in the order of ``queries`` (null: no rank)."""
    return {f"first_{kind}_rank": pa.array([ranks[kind].get(each) for each in queries], pa.int64()) for kind in KINDS}


def agreement(tables: Sequence[pa.Table], ranks: Sequence[Ranks]) -> dict[str, Any] | None:
    """Compare the order of systems by MRR@10 of the qrels with the order by MRR@10 of the answers.

    ``tables`` are those of :func:`~.measures.measure_run`, and ``ranks`` those of :func:`first_answers`,
    one for each run. Returns Kendall's ``tau``, its 95 % ``interval`` over queries, and the numbers of ``systems`` and
    ``queries``. Only queries with a positive passage and an answer count. Returns None for fewer than two runs or
    queries.
    """
    queries = tables[0]["query_id"].to_pylist()
    rows = [row for row, query in enumerate(queries) if query in ranks[0]["answer"]]
    if len(tables) < 2 or len(rows) < 2:
        return None
    by_qrels = np.array([table["RR@10"].to_numpy()[rows] for table in tables]).T
    by_answers = np.array([[reciprocal_rank(own["answer"][queries[row]]) for own in ranks] for row in rows])
    tau, interval = rank_agreement(by_qrels, by_answers, same_queries=True)
    return {"tau": tau, "interval": list(interval), "systems": len(tables), "queries": len(rows)}


def answers_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the answer recall of all runs as a table."""
    first = results[0]["answers"]
    names = _measure_names(results)
    rows = [[result["run"], *(percent(result["answers"][name]) for name in names)] for result in results]
    lines = [
        f"answers, percent of {first['answer queries']:,} queries with an answer; entity@k: of"
        f" {first['entity queries']:,} queries with entities",
        text_table(["run", *names], rows),
    ]
    if tau := first.get("agreement"):
        low, high = tau["interval"]
        lines.append(
            f"order of the {tau['systems']} runs by MRR@10 of qrels and of answers, {tau['queries']:,} queries:"
            f" Kendall's tau {tau['tau']:.2f} ({low:.2f} to {high:.2f})"
        )
    return "\n".join(lines)


def answers_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the answer recall of all runs, with the numbers of queries that have answers or entities."""
    counts, names = [f"{kind} queries" for kind in KINDS], _measure_names(results)
    rows = [[result["run"], *(result["answers"][name] for name in (*counts, *names))] for result in results]
    return Table(
        ["run", *counts, *names], rows, title="passages with an answer, percent of queries", percent_columns=names
    )


def _measure_names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the measures, which are the same for all runs."""
    return [name for name in results[0]["answers"] if not name.endswith(" queries") and name != "agreement"]
