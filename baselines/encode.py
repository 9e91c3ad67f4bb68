"""Embed a release's passages or queries by a dual-encoder.

Written are memory-mapped shards of 16-bit floats. Row n is passage n of the release. Each shard is sorted by length
while it is encoded, and finished shards are kept: the command started again after an interruption goes on where it was.
One process a GPU; memory holds one shard's texts and embeddings a process. A finished directory that was made from the
same release, model and options is left as it is.

The passages are unpacked once into $XDG_CACHE_HOME (or ~/.cache)/dureader_retrieval/texts.

Example:

  python -m baselines encode --release build/sample --model build/models/de-bm25-neg --out build/embeddings/passages
  python -m baselines encode --release DIR --model ORG/NAME --queries --split dev --out DIR2
"""

from __future__ import annotations

import argparse
import functools
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from baselines.models.encoder import Encoder, batch_tokens
from baselines.models.loading import add_device, devices_of, dtype_of, fingerprint, open_dual, over_devices, shown_name
from baselines.passages import open_passages
from baselines.runs.sets import SETS, add_set, read_queries
from baselines.vectors.embeddings import FORMAT, MANIFEST, NAME, check_shard, longest, open_vectors
from builders.common.command import InputError, log, progress, whole_number
from builders.common.files import new_file, sha256_of, write_text
from builders.common.folders import key_of, replace_directory, work_beside
from builders.store.reader import Release, open_release

# 200 MB at 768 dimensions; on a CPU some minutes. At most that much is encoded again after an interruption.
ROWS_PER_SHARD, ROWS_PER_SHARD_CPU = 1 << 17, 1 << 13


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--release", type=Path, required=True, metavar="DIR", help="the release directory")
    add_set(parser)
    parser.add_argument("--model", required=True, metavar="M", help="a sentence-transformers model: hub name or folder")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the directory of embeddings")
    parser.add_argument("--queries", action="store_true", help="encode queries instead of passages")
    parser.add_argument("--split", help="whose queries (with --queries; default: dev)")
    parser.add_argument(
        "--shard-rows",
        type=whole_number(1),
        metavar="N",
        help=f"rows of a shard (default: {ROWS_PER_SHARD:,} on a GPU, {ROWS_PER_SHARD_CPU:,} on a CPU)",
    )
    parser.add_argument(
        "--batch-tokens",
        type=whole_number(1),
        metavar="N",
        help="tokens of a batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)",
    )
    add_device(parser)


def run(args: argparse.Namespace) -> None:
    if args.split and not args.queries:
        raise InputError("--split goes with --queries: passages have no split")
    release, configs = open_release(args.release), SETS[args.set]
    config, split = (configs.queries, args.split or "dev") if args.queries else (configs.corpus, "corpus")
    encode(
        release,
        config,
        split,
        args.model,
        args.out,
        devices=devices_of(args.device),
        dtype=args.dtype,
        shard_rows=args.shard_rows,
        tokens=args.batch_tokens,
    )


@dataclass(frozen=True)
class _Job:
    """What a process needs to encode any shard."""

    release: Path
    config: str
    split: str
    model: str
    dtype: str
    tokens: int
    rows: int
    shard_rows: int
    folder: Path

    @property
    def of(self) -> str:
        return "passages" if self.split == "corpus" else "queries"


def encode(
    release: Release,
    config: str,
    split: str,
    model: str,
    out: Path,
    devices: list[str],
    dtype: str = "auto",
    shard_rows: int | None = None,
    tokens: int | None = None,
) -> None:
    """Write the embeddings of one split (``corpus``: passages, else queries) into the directory ``out``.

    Raises :class:`InputError` where ``out`` is something else, or the split has no rows.
    """
    rows = release.rows(config, split)
    shard_rows = shard_rows or (ROWS_PER_SHARD_CPU if devices[0] == "cpu" else ROWS_PER_SHARD)
    if not rows:
        raise InputError(f"has no rows in {config}/{split}", path=release.path)
    out = Path(os.path.abspath(out))
    dtype, tokens = dtype_of(dtype, devices[0]), tokens or batch_tokens(devices[0])
    opened = open_dual(model)
    about: dict[str, Any] = {
        "name": NAME,
        "format": FORMAT,
        "of": "passages" if split == "corpus" else "queries",
        "config": config,
        "split": split,
        "fingerprint": release.fingerprint(config, split),
        "model": {"name": shown_name(model), "fingerprint": fingerprint(opened), "computed_in": dtype},
        "similarity": opened.similarity_fn_name,
        "dim": opened.get_embedding_dimension(),
        "dtype": "float16",
        "shard_rows": shard_rows,
        "batch_tokens": tokens,
    }
    del opened  # each process opens its own, on its device
    if _is_done(out, about):
        return
    with work_beside(out, key_of(about)) as folder:
        if done := len(list(folder.glob("*.npy.json"))):
            log.info("%d shards are done already", done)
        job = _Job(release.path, config, split, model, dtype, tokens, rows, shard_rows, folder)
        shards = []
        with progress(total=rows, unit="row", label="encode") as bar:
            for entry in over_devices(_encode_shard, _tasks(job), devices):
                shards.append(entry)
                bar.update(entry["rows"])
        _encoder.cache_clear()
        for path in [*folder.glob(".*"), *folder.glob("*.npy.json")]:
            path.unlink()
        write_text(folder / MANIFEST, json.dumps({**about, "shards": shards}, indent=1, sort_keys=True) + "\n")
        replace_directory(folder, out)
    log.info("%s: %d rows of %d dimensions in %d shards", out, rows, about["dim"], len(shards))


def _is_done(out: Path, about: dict[str, Any]) -> bool:
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return False
    have = dict(open_vectors(out).manifest)  # raises for anything that is no directory of embeddings
    del have["shards"]
    if have == about:
        log.info("%s: already encoded", out)
    return have == about


def _tasks(job: _Job) -> list[tuple[_Job, int]]:
    return [(job, number) for number in range(-(-job.rows // job.shard_rows))]


def _encode_shard(task: tuple[_Job, int], device: str) -> dict[str, Any]:
    """Encode one shard, or find it done; returns its entry in the manifest."""
    job, number = task
    count = -(-job.rows // job.shard_rows)
    path = job.folder / f"{job.of}-{number:05d}-of-{count:05d}.npy"
    done = path.with_name(f"{path.name}.json")
    if done.exists():
        entry: dict[str, Any] = json.loads(done.read_text(encoding="utf-8"))
        return entry
    encoder = _encoder(job, device)
    start = number * job.shard_rows
    vectors = encoder.encode(_texts(job, range(start, min(start + job.shard_rows, job.rows))))
    with new_file(path) as beside, open(beside, "wb") as file:
        np.save(file, vectors)
    entry = {
        "path": path.name,
        "rows": len(vectors),
        "bytes": path.stat().st_size,
        "sha256": sha256_of(path),
        "longest": longest(vectors),
    }
    check_shard(path, entry, vectors.shape[1])
    write_text(done, json.dumps(entry))  # last: what is listed is whole
    log.info("shard %d of %d is done", number + 1, count)
    return entry


@functools.lru_cache(maxsize=1)
def _encoder(job: _Job, device: str) -> Encoder:
    return Encoder(open_dual(job.model, device, job.dtype), "document" if job.of == "passages" else "query", job.tokens)


def _texts(job: _Job, rows: range) -> list[str]:
    if job.of == "passages":
        return open_passages(open_release(job.release), job.config).texts(rows)
    return [text for _, text in read_queries(open_release(job.release), job.split, job.config)[rows.start : rows.stop]]
