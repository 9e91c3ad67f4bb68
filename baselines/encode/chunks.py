"""A split's embeddings, a chunk of rows at a time: a chunk is one file, encoded by one process, whole or not there.

The manifest calls a chunk a shard (:mod:`baselines.vectors.embeddings`).
"""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from baselines.measure.qrels import read_queries
from baselines.models.devices import over_devices
from baselines.models.encoder import Encoder
from baselines.models.loading import described, open_encoder
from baselines.models.settings import ModelSettings
from baselines.passages import open_passages
from baselines.vectors.embeddings import FORMAT, MANIFEST, NAME, Chunk, Vectors, chunk_name, longest, read_vectors
from builders.core.cache import wrong_sha256
from builders.core.errors import InputError, log
from builders.core.files import check_place, new_file, real_path, sha256_of, write_text
from builders.core.folders import key_of, replace_directory, work_beside
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release, open_release


@dataclass(frozen=True)
class Job:
    """What is encoded, by what and how: all that a process needs to encode any chunk.

    ``split`` is ``corpus`` for passages. ``settings``: of the model; its revision is the commit of a model on the hub,
    else empty. ``batch_tokens``: of a batch, padding included. ``tokenizers``: processes a device; they change no
    embedding.
    """

    release: Path
    config: str
    split: str
    settings: ModelSettings
    dtype: str
    batch_tokens: int
    tokenizers: int
    chunk_rows: int

    @property
    def of(self) -> str:
        return "passages" if self.split == "corpus" else "queries"


def check_input(path: Path, config: str, split: str, out: Path) -> None:
    """What can be wrong before a model is opened: raises :class:`InputError` where nothing can be encoded.

    The texts are read for it: passages are unpacked, as for the encoding.
    """
    _earlier(out)
    check_place(out)
    release = open_release(path)
    if not release.rows(config, split):
        raise InputError(f"has no rows in {config}/{split}", path=release.path)
    if split == "corpus":
        open_passages(release, config)
    else:
        read_queries(release, split, config)


def encode(job: Job, out: Path, devices: list[str]) -> None:
    """Write the embeddings of one split into the directory ``out``, or leave what is there from the same job.

    Raises :class:`InputError` where ``out`` is something else. The input is :func:`check_input`'s.
    """
    release = open_release(job.release)
    rows = release.rows(job.config, job.split)
    out = real_path(out)
    about = describe(job, release)
    with work_beside(out, key_of(about)) as folder:
        if is_done(out, about):
            log.info("%s: already encoded; precision: %s", out, job.dtype)
            return
        if done := len(list(folder.glob("*.npy.json"))):
            log.info("%d files are done already", done)
        tasks = [(job, folder, number) for number in range(-(-rows // job.chunk_rows))]
        entries = []
        with progress(total=rows, unit="row", label="encode") as bar:
            for entry in over_devices(_encode_chunk, tasks, devices):
                entries.append(entry)
                bar.update(entry["rows"])
        _encoder.cache_clear()
        for path in [*folder.glob(".*"), *folder.glob("*.npy.json")]:
            path.unlink()
        write_text(folder / MANIFEST, json.dumps({**about, "shards": entries}, indent=1, sort_keys=True) + "\n")
        replace_directory(folder, out)
    log.info("%s: %d rows of %d dimensions; precision: %s", out, rows, about["dim"], job.dtype)


def describe(job: Job, release: Release) -> dict[str, Any]:
    """What the embeddings depend on, without paths of this machine: the manifest, but for the list of its files."""
    # On the CPU, and given back: each process opens its own, on its device.
    model = open_encoder(job.settings)
    return {
        "name": NAME,
        "format": FORMAT,
        "of": job.of,
        "config": job.config,
        "split": job.split,
        "fingerprint": release.fingerprint(job.config, job.split),
        "model": described(job.settings, model, job.dtype),
        "similarity": model.similarity_fn_name,
        "dim": model.get_embedding_dimension(),
        "dtype": "float16",
        "shard_rows": job.chunk_rows,
        "batch_tokens": job.batch_tokens,
    }


def is_done(out: Path, about: dict[str, Any]) -> bool:
    """Whether ``out`` holds just these embeddings. :class:`InputError` where it is something else."""
    if (earlier := _earlier(out)) is None:
        return False
    have = {key: value for key, value in earlier.manifest.items() if key != "shards"}
    # The fingerprint tells models apart; of another commit with the same files nothing is encoded again.
    one, other = ({**each, "model": {**each["model"], "commit": None}} for each in (have, about))
    if one == other and (fault := earlier.fault()):
        log.warning("%s: damaged (%s); it is encoded again", out, fault)
        return False
    return one == other


def _earlier(out: Path) -> Vectors | None:
    """The embeddings that are in the output's place; None where nothing is. :class:`InputError` for anything else."""
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return None
    return read_vectors(out)


def _encode_chunk(task: tuple[Job, Path, int], device: str) -> dict[str, Any]:
    """Encode one chunk, or find it done; returns its entry in the manifest."""
    job, folder, number = task
    rows = open_release(job.release).rows(job.config, job.split)
    path = folder / chunk_name(job.of, number, -(-rows // job.chunk_rows))
    done = path.with_name(f"{path.name}.json")
    if entry := _entry_of(path, done):
        return entry
    start = number * job.chunk_rows
    vectors = _encoder(job, device).encode(_texts(job, range(start, min(start + job.chunk_rows, rows))))
    with new_file(path) as beside, open(beside, "wb") as file:
        np.save(file, vectors)
    entry = {
        "path": path.name,
        "rows": len(vectors),
        "bytes": path.stat().st_size,
        "sha256": sha256_of(path),
        "longest": longest(vectors),
    }
    write_text(done, json.dumps(entry))  # last: what is listed is whole
    log.info("%s is done", path.name)
    return entry


def _entry_of(path: Path, done: Path) -> dict[str, Any] | None:
    """What was noted of a chunk that is done; None where there is none, or not as it was written."""
    try:
        entry = read_json(done, Chunk)
        return None if wrong_sha256(path, entry.sha256) else msgspec.to_builtins(entry)
    except (FileNotFoundError, InputError):
        return None


@functools.lru_cache(maxsize=1)
def _encoder(job: Job, device: str) -> Encoder:
    model = open_encoder(job.settings, device, job.dtype)
    return Encoder(model, "document" if job.of == "passages" else "query", job.batch_tokens, job.tokenizers)


def _texts(job: Job, rows: range) -> list[str]:
    release = open_release(job.release)
    if job.of == "passages":
        return open_passages(release, job.config).texts(rows)
    return [text for _, text in read_queries(release, job.split, job.config)[rows.start : rows.stop]]
