"""The release directory: one folder of Parquet shards per config, a manifest, a card.

Layout: ``CONFIG/SPLIT-NNNNN-of-NNNNN.parquet``, ``README.md``, ``stats.json``, ``manifest.json``. The manifest lists
every file with its size, rows and SHA-256 and the builds it came from; it holds no times and no machine's paths, so the
same input and options give the same bytes. It is written last.
"""

from __future__ import annotations

import pyarrow as pa

FORMAT = 1
MANIFEST = "manifest.json"
NAME = "dureader_retrieval"  # whose manifest it is

CORPUS = pa.schema([("_id", pa.string()), ("title", pa.string()), ("text", pa.string())])
QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string())])
QRELS = pa.schema([("query-id", pa.string()), ("corpus-id", pa.string()), ("score", pa.int64())])
PASSAGES = pa.list_(pa.struct([("docid", pa.string()), ("title", pa.string()), ("text", pa.string())]))
JOINED = pa.schema(
    [
        ("query_id", pa.string()),
        ("query", pa.string()),
        ("positive_passages", PASSAGES),
        ("negative_passages", PASSAGES),
    ]
)

CROSSLINGUAL_QUERIES = pa.schema([("_id", pa.string()), ("text", pa.string()), ("zh_id", pa.string())])
CROSSLINGUAL = JOINED.append(pa.field("query_zh", pa.string()))

# By config, or by the config's last word: cmedqa-corpus has the columns of corpus.
_SCHEMAS = {
    "corpus": CORPUS,
    "queries": QUERIES,
    "qrels": QRELS,
    "train": JOINED,
    "dev": JOINED,
    "test": JOINED,
    "crosslingual-queries": CROSSLINGUAL_QUERIES,
    "crosslingual": CROSSLINGUAL,
}


def schema_of(config: str) -> pa.Schema:
    """The columns of a config; ValueError for a name that is none."""
    if config.startswith(("restrain-", "resttest-")):
        return QRELS
    schema = _SCHEMAS.get(config) or _SCHEMAS.get(config.rsplit("-", 1)[-1])
    if schema is None:
        raise ValueError(f"{config!r} is no config of a release")
    return schema


ROWS_PER_GROUP = 16_384
ROWS_PER_SHARD = 8 * ROWS_PER_GROUP  # about 60 MB of passages: files are written, and read, in parallel
_PASSAGES_PER_ROW = 8  # of a split with its passages, for the size of its files: a guess
BYTES_PER_GROUP = 64 << 20  # the design's bound: a reader never holds more than this of one column chunk set


def rows_per_shard(schema: pa.Schema) -> int:
    """Rows of each file of a split but its last."""
    return max(1, ROWS_PER_SHARD // _PASSAGES_PER_ROW) if PASSAGES in schema.types else ROWS_PER_SHARD
