"""Replace the judgments of a split in a draft of a release: qrels, joined rows and statistics."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from builders.core.errors import log
from builders.store.draft import Draft
from builders.store.judgments import Judgments, joined_row, qrels_table, texts_of_judged
from builders.store.layout import DRAWN, SETS, Set, schema_of
from builders.store.reader import Release
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column


def replace_judgments(draft: Draft, base_release: Release, split: str, judged: Judgments) -> None:
    """Replace a split's judgments with ``judged`` in the main set's qrels, and in the Chinese and English joined rows.

    In a query's joined row, a passage with a score above 0 becomes a positive, and a passage with another score becomes
    a negative. Negatives without a judgment stay. Positives without a judgment are removed, so ``judged`` must have all
    judgments of the split. The split's statistics are computed again. Drawn sets and samples, which depend on the
    judgments, are dropped with a warning. Raises :class:`InputError` if the corpus lacks a judged passage.
    """
    draft.write("qrels", split, [qrels_table(judged)])
    texts = texts_of_judged(base_release, judged)
    for dataset_set in (SETS["main"], SETS["crosslingual"]):
        joined_config = dataset_set.joined[split]
        if (joined_config, split) in base_release.splits():
            rows = _rejudged_rows(base_release, dataset_set, split, judged, texts)
            draft.write(joined_config, split, rows)
    queries = base_release.table("queries", split, ["text"])["text"].to_pylist()
    write_judged_stats(draft, split, queries, judged, texts)
    drop_drawn_sets(draft, base_release)
    _drop_samples(draft, base_release, split)


def drop_drawn_sets(draft: Draft, release: Release) -> None:
    """Drop the sets that `add` draws from training questions, because their questions or judgments have changed."""
    drawn_configs = sorted({config for config, _ in release.splits() if config.startswith(DRAWN)})
    for config in drawn_configs:
        draft.drop(config)
    draft.stats.pop("extrapolation", None)
    if drawn_configs:
        log.warning("dropped %s; draw them again with `python -m builders add`", ", ".join(drawn_configs))


def _drop_samples(draft: Draft, release: Release, split: str) -> None:
    """Drop the samples with the positives of a split, because a sample lacks the new positives."""
    release_configs = {config for config, _ in release.splits()}
    samples = draft.stats.get("samples", {})
    dropped = sorted(name for name, sample in samples.items() if split in sample["split"] and name in release_configs)
    for name in dropped:
        draft.drop(name)
        del samples[name]
    if not samples:
        draft.stats.pop("samples", None)
    if dropped:
        log.warning("dropped %s; draw them again with `python -m builders add samples`", ", ".join(dropped))


def _rejudged_rows(
    base_release: Release, dataset_set: Set, split: str, judged: Judgments, passage_texts: Mapping[str, str]
) -> Iterator[pa.Table]:
    """Yield the joined rows of ``base_release`` with the new judgments."""
    # Judgments of translated queries refer to the Chinese query. Other queries are absent from this dictionary.
    judged_ids: dict[str, str] = {}  # id of a translated query -> id of the Chinese query
    if dataset_set.original_column:
        queries = base_release.table(dataset_set.queries, split)
        original_ids = queries[dataset_set.original_column].to_pylist()
        judged_ids = dict(zip(queries["_id"].to_pylist(), original_ids, strict=True))
    config = dataset_set.joined[split]
    for batch in base_release.batches(config, split):
        rows = batch.to_pylist()
        for row in rows:
            query_id = row["query_id"]
            judged_id = judged_ids.get(query_id, query_id)
            scores = judged.get(judged_id, {})
            # Earlier negatives stay before new negatives, unless they are positives now.
            negatives = [passage for passage in row["negative_passages"] if scores.get(passage["docid"], 0) <= 0]
            negative_ids = {passage["docid"] for passage in negatives}
            judged_row = joined_row(query_id, row["query"], scores, passage_texts)
            for passage in judged_row["negative_passages"]:
                if passage["docid"] not in negative_ids:
                    negatives.append(passage)
            row.update(judged_row)
            row["negative_passages"] = negatives
        yield pa.Table.from_pylist(rows, schema_of(config))


def write_judged_stats(
    draft: Draft, split: str, query_texts: Sequence[str], judged: Judgments, passage_texts: Mapping[str, str]
) -> None:
    """Write a split's column of Table 3 and histogram of positives per query into the draft's statistics.

    ``query_texts`` are the texts of all queries of the split. ``passage_texts`` maps ids of judged passages to their
    texts.
    """
    # A passage counts once for each query that it answers, as in the paper's Table 3.
    positive_lengths = []
    positive_counts = []
    for scores in judged.values():
        positive_ids = [passage_id for passage_id, score in scores.items() if score > 0]
        positive_lengths += [len(passage_texts[passage_id]) for passage_id in positive_ids]
        positive_counts.append(len(positive_ids))
    lengths = LengthCounter(np.array(positive_lengths, np.int64))
    counts = np.array(positive_counts, np.int64)
    query_chars = sum(map(len, query_texts))
    draft.stats["table3"][split] = table3_column(len(query_texts), query_chars, len(positive_lengths), lengths)
    # Queries without a positive passage are skipped, as in averages of measures.
    bars = LengthCounter(counts[counts > 0]).histogram(POSITIVES_EDGES)
    draft.stats.setdefault("positives_per_query", {})[split] = bars
