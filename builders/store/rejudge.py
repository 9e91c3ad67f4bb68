"""Replace the judgments of a split in a draft of a release: qrels, joined rows and statistics."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from builders.store.draft import Draft
from builders.store.judgments import Judged, joined_row, qrels_table, texts_of_judged
from builders.store.layout import SETS, Set, schema_of
from builders.store.reader import Release
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column


def rejudge(draft: Draft, base: Release, split: str, judged: Judged) -> None:
    """Replace a split's judgments with ``judged`` in the main set's qrels, and in the Chinese and English joined rows.

    In a query's joined row, a passage with a score above 0 becomes a positive, and a passage with another score becomes
    a negative. Negatives without a judgment stay. Raises :class:`InputError` if the corpus lacks a judged passage.
    """
    draft.write("qrels", split, [qrels_table(judged)])
    texts = texts_of_judged(base, judged)
    for configs in (SETS["main"], SETS["crosslingual"]):
        if (configs.joined[split], split) in base.splits():
            draft.write(configs.joined[split], split, _joined(base, configs, split, judged, texts))
    queries = base.table("queries", split, ["text"])["text"].to_pylist()
    count_judged(draft, split, queries, judged, texts)


def _joined(base: Release, configs: Set, split: str, judged: Judged, texts: Mapping[str, str]) -> Iterator[pa.Table]:
    zh_ids: dict[str, str] = {}
    if configs.translated:
        rows = base.table(configs.queries, split)
        zh_ids = dict(zip(rows["_id"].to_pylist(), rows["zh_id"].to_pylist(), strict=True))
    config = configs.joined[split]
    for batch in base.batches(config, split):
        rows = batch.to_pylist()
        for row in rows:
            query = row["query_id"]
            scores = judged.get(zh_ids.get(query, query), {})
            earlier = [passage for passage in row["negative_passages"] if scores.get(passage["docid"], 0) <= 0]
            known = {passage["docid"] for passage in earlier}
            row.update(joined_row(query, row["query"], scores, texts))
            refuted = [passage for passage in row["negative_passages"] if passage["docid"] not in known]
            row["negative_passages"] = [*earlier, *refuted]
        yield pa.Table.from_pylist(rows, schema_of(config))


def count_judged(draft: Draft, split: str, queries: Sequence[str], judged: Judged, texts: Mapping[str, str]) -> None:
    """Write a split's column of Table 3 and histogram of positives per query into the draft's statistics.

    ``queries`` are the texts of all queries of the split. ``texts`` maps the ids of judged passages to their texts.
    """
    positives = [passage for scores in judged.values() for passage, score in scores.items() if score > 0]
    lengths = LengthCounter(np.array([len(texts[passage]) for passage in positives], np.int64))
    counts = np.array([sum(score > 0 for score in scores.values()) for scores in judged.values()], np.int64)
    draft.stats["table3"][split] = table3_column(len(queries), sum(map(len, queries)), len(positives), lengths)
    bars = LengthCounter(counts[counts > 0]).histogram(POSITIVES_EDGES)
    draft.stats.setdefault("positives_per_query", {})[split] = bars
