"""Replace the judgments of a split in a draft of a release: qrels, joined rows and statistics."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa

from builders.store.draft import Draft
from builders.store.judgments import Judged, joined_passage, qrels_table, texts_of_judged
from builders.store.layout import PASSAGES, SETS, Set, schema_of
from builders.store.reader import Release
from builders.store.table3 import POSITIVES_EDGES, LengthCounter, table3_column


def rejudge(draft: Draft, base: Release, split: str, judged: Judged) -> None:
    """Replace a split's judgments with ``judged`` in the main set's qrels, and in the Chinese and English joined rows.

    A passage with a score above 0 becomes a positive of its query's joined row. A passage with another score
    becomes a negative. Other negatives stay. Raises :class:`InputError` if the corpus lacks a judged passage.
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
        columns = {name: batch[name] for name in schema_of(config).names}
        positive, negative = [], []
        for query, earlier in zip(batch["query_id"].to_pylist(), batch["negative_passages"].to_pylist(), strict=True):
            scores = judged.get(zh_ids.get(query, query), {})
            positive.append([joined_passage(docid, texts) for docid, score in scores.items() if score > 0])
            refuted = [joined_passage(docid, texts) for docid, score in scores.items() if score <= 0]
            known = {passage["docid"] for passage in earlier}
            earlier = [passage for passage in earlier if scores.get(passage["docid"], 0) <= 0]
            negative.append([*earlier, *(passage for passage in refuted if passage["docid"] not in known)])
        columns |= {
            "positive_passages": pa.array(positive, PASSAGES),
            "negative_passages": pa.array(negative, PASSAGES),
        }
        yield pa.table(columns, schema=schema_of(config))


def count_judged(draft: Draft, split: str, queries: Sequence[str], judged: Judged, texts: Mapping[str, str]) -> None:
    """Write a split's column of Table 3 and its histogram of positives per query into the draft's statistics.

    ``queries`` are the texts of all queries of the split. ``texts`` maps the ids of judged passages to their texts.
    """
    positives = [passage for scores in judged.values() for passage, score in scores.items() if score > 0]
    lengths = LengthCounter(np.array([len(texts[passage]) for passage in positives], np.int64))
    counts = np.array([sum(score > 0 for score in scores.values()) for scores in judged.values()], np.int64)
    chars = sum(map(len, queries))
    draft.stats["table3"][split] = table3_column(len(queries), chars, len(positives), lengths)
    bars = LengthCounter(counts[counts > 0]).histogram(POSITIVES_EDGES)
    draft.stats.setdefault("positives_per_query", {})[split] = bars
