"""Answer recall: the share of queries whose best passages contain an answer. Passages need no judgment.

A passage contains an answer if one of its spans reaches the threshold of span-F1 with the answer, as in Algorithm 1
(Section 2.2.2). A passage contains an entity if the text has the entity's exact characters. If people gave several
answers or entities, one suffices. Queries without an answer do not count.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, compress
from typing import Any

import numpy as np
import pyarrow as pa

from baselines.measure.measures import LIST_DEPTH, exact_mean, first_rank, reciprocal_rank
from baselines.measure.significance import rank_agreement
from builders.core.errors import InputError
from builders.core.progress import slices_with_progress
from builders.core.results import Table
from builders.core.tables import format_percent, text_table
from builders.store.reader import Release
from builders.store.runs import Run
from builders.text.answer_spans import AT_ONCE, contain_answer
from builders.text.span_options import SpanOptions

DEPTHS = (1, 5, 10, LIST_DEPTH)
KINDS = ("answer", "entity")

# Kind -> query -> rank of the first passage that contains an answer (or an entity), None if no passage does.
Ranks = dict[str, dict[str, int | None]]


def first_answers(
    runs: Sequence[Run],
    answer_rows: Mapping[str, Mapping[str, Any]],
    release: Release,
    corpus: str,
    options: SpanOptions,
) -> list[Ranks]:
    """Return, for each run, the rank of every query's first passage with an answer, and with an entity, in the top 50.

    Args:
        runs: the runs.
        answer_rows: rows of the config ``answers`` by query id.
        release, corpus: the release, and the config with the passages of the runs.
        options: the unit, the threshold and the segmenter of span-F1.

    Returns:
        ``answer`` has the queries with an answer, and ``entity`` those of them with an entity.

    Raises:
        InputError: no query has an answer, or the corpus lacks a retrieved passage.
    """
    answer_rows = {query_id: row for query_id, row in answer_rows.items() if row["answers"]}
    if not answer_rows:
        raise InputError("no query of the split has an answer (raw test rows have none)", path=release.path)
    top_lists = [_top_lists(run, answer_rows) for run in runs]
    # The passages of a query in any run, so that a passage in several runs is compared only once.
    candidates: dict[str, list[str]] = {}
    for query_id in answer_rows:
        passages = chain.from_iterable(lists[query_id] for lists in top_lists)
        candidates[query_id] = list(dict.fromkeys(passages))
    texts = release.texts(corpus, "corpus", set(chain.from_iterable(candidates.values())))
    for run, lists in zip(runs, top_lists, strict=True):
        unknown_ids = set(chain.from_iterable(lists.values())) - texts.keys()
        if unknown_ids:
            raise InputError(f"has a passage {min(unknown_ids)!r} that {corpus} lacks", path=run.path)

    ranks_by_run: list[Ranks] = []
    for _ in runs:
        ranks_by_run.append({kind: {} for kind in KINDS})
    query_ids = list(answer_rows)
    for block in slices_with_progress(len(query_ids), AT_ONCE, unit="query", label="answers"):
        block_ids = query_ids[block]
        passage_texts = []
        for query_id in block_ids:
            passage_texts.append([texts[passage_id] for passage_id in candidates[query_id]])
        answers = [answer_rows[query_id]["answers"] for query_id in block_ids]
        labels = contain_answer(passage_texts, answers, options)
        for query_id, query_labels in zip(block_ids, labels, strict=True):
            matches = {"answer": set(compress(candidates[query_id], query_labels))}
            # The row has a list of entities for each answer.
            entities = list(chain.from_iterable(answer_rows[query_id]["entity_answers"]))
            if entities:
                matches["entity"] = _passages_with(entities, candidates[query_id], texts)
            for ranks, lists in zip(ranks_by_run, top_lists, strict=True):
                for kind, matching_ids in matches.items():
                    ranks[kind][query_id] = first_rank(lists[query_id], matching_ids)
    return ranks_by_run


def _top_lists(run: Run, query_ids: Iterable[str]) -> dict[str, list[str]]:
    """Return the first 50 passages of each query, empty for a query that the run lacks."""
    return {query_id: run.rankings.get(query_id, [])[:LIST_DEPTH] for query_id in query_ids}


def _passages_with(entities: Sequence[str], passage_ids: Iterable[str], texts: Mapping[str, str]) -> set[str]:
    """Return the passages whose texts contain one of the entities."""
    matching_ids = set()
    for passage_id in passage_ids:
        if any(entity in texts[passage_id] for entity in entities):
            matching_ids.add(passage_id)
    return matching_ids


def answer_recall(ranks: Ranks) -> dict[str, float | None]:
    """Return the means of one run over queries, as fractions.

    ``answer MRR@10`` is the mean reciprocal rank of the first answer. ``answer@k`` is the share of queries with an
    answer in the top k. ``answer queries`` is the number of queries. The values of entities have the same names with
    ``entity``. If no query has an entity, ``entity queries`` is 0, and the other values of entities are missing.
    """
    means: dict[str, float | None] = {}
    for kind in KINDS:
        first_ranks = list(ranks[kind].values())
        means[f"{kind} queries"] = len(first_ranks)
        if not first_ranks:
            continue
        means[f"{kind} MRR@10"] = exact_mean([reciprocal_rank(rank) for rank in first_ranks])
        for depth in DEPTHS:
            means[f"{kind}@{depth}"] = exact_mean([float(rank is not None and rank <= depth) for rank in first_ranks])
    return means


def rank_columns(ranks: Ranks, queries: Sequence[str]) -> dict[str, pa.Array]:
    """Return the ranks of the first answer and of the first entity, in the order of ``queries`` (null: no rank)."""
    columns = {}
    for kind in KINDS:
        first_ranks = [ranks[kind].get(query_id) for query_id in queries]
        columns[f"first_{kind}_rank"] = pa.array(first_ranks, pa.int64())
    return columns


def order_agreement(tables: Sequence[pa.Table], ranks: Sequence[Ranks]) -> dict[str, Any] | None:
    """Compare the order of systems by MRR@10 of the qrels with the order by MRR@10 of the answers.

    ``tables`` are those of :func:`~.measures.measure_run`, and ``ranks`` those of :func:`first_answers`, one for each
    run. Returns Kendall's ``tau``, its 95 % ``interval`` over queries, and the numbers of ``systems`` and ``queries``.
    Tau and interval may be None (:func:`.rank_agreement`), for example for equal runs. Only queries with a positive
    passage and an answer count. Returns None for fewer than two runs or queries.
    """
    query_ids = tables[0]["query_id"].to_pylist()
    answered_rows = [row for row, query_id in enumerate(query_ids) if query_id in ranks[0]["answer"]]
    if len(tables) < 2 or len(answered_rows) < 2:
        return None
    # Both tables have a row for each query and a column for each system.
    by_qrels = np.array([table["RR@10"].to_numpy()[answered_rows] for table in tables]).T
    by_answers = np.empty((len(answered_rows), len(ranks)))
    for system_number, system_ranks in enumerate(ranks):
        first_ranks = [system_ranks["answer"][query_ids[row]] for row in answered_rows]
        by_answers[:, system_number] = [reciprocal_rank(rank) for rank in first_ranks]
    tau, interval = rank_agreement(by_qrels, by_answers, same_queries=True)
    return {
        "tau": tau,
        "interval": list(interval) if interval else None,
        "systems": len(tables),
        "queries": len(answered_rows),
    }


def format_tau(tau: float | None, interval: Sequence[float] | None) -> str:
    """Format a tau and its interval, the result of :func:`.rank_agreement`. Without a tau, the text has "-"."""
    text = "-" if tau is None else f"{tau:.2f}"
    if interval:
        low, high = interval
        text += f" ({low:.2f} to {high:.2f})"
    return text


def answers_text(results: Sequence[Mapping[str, Any]]) -> str:
    """Format the answer recall of all runs as a table.

    ``results`` are those of `evaluate`: for each run, ``run`` (its name) and ``answers`` (:func:`answer_recall`, and
    ``agreement`` of :func:`order_agreement` if known).
    """
    first_figures = results[0]["answers"]
    measure_names = _measure_names(results)
    rows = []
    for result in results:
        cells = [format_percent(result["answers"][name]) for name in measure_names]
        rows.append([result["run"], *cells])
    lines = [
        f"answers, percent of {first_figures['answer queries']:,} queries with an answer; entity@k: of"
        f" {first_figures['entity queries']:,} queries with entities",
        text_table(["run", *measure_names], rows),
    ]
    agreement = first_figures.get("agreement")
    if agreement:
        tau = format_tau(agreement["tau"], agreement["interval"])
        lines.append(
            f"order of the {agreement['systems']} runs by MRR@10 of qrels and of answers, {agreement['queries']:,}"
            f" queries: Kendall's tau {tau}"
        )
    return "\n".join(lines)


def answers_table(results: Sequence[Mapping[str, Any]]) -> Table:
    """Return the answer recall of all runs, with the numbers of queries that have answers or entities.

    ``results`` are those of :func:`answers_text`.
    """
    measure_names = _measure_names(results)
    columns = [f"{kind} queries" for kind in KINDS] + measure_names
    rows = []
    for result in results:
        rows.append([result["run"]] + [result["answers"][name] for name in columns])
    title = "passages with an answer, percent of queries"
    return Table(["run", *columns], rows, title=title, percent_columns=measure_names)


def _measure_names(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the measures, which are the same for all runs."""
    return [name for name in results[0]["answers"] if not name.endswith(" queries") and name != "agreement"]
