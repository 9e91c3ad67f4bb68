"""An index in parts: arrays of some passages each, encoded by one process, whole or not there.

A part is a folder of NumPy files. ``index.json`` says what was encoded by what and lists every file with its SHA-256;
it is written last, and holds no times and no machine's paths.
"""

from __future__ import annotations

import importlib
import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from msgspec import Struct

from baselines.encode import ROWS_ON_CPU, ROWS_ON_GPU
from baselines.kinds import Work
from baselines.models.devices import batch_tokens, over_devices, tokenizers
from baselines.models.loading import commit_of, described
from baselines.models.settings import ModelSettings
from baselines.models.used import used
from baselines.passages import open_passages
from baselines.search.retrieve import named
from builders.core.cache import wrong_sha256
from builders.core.errors import InputError, log
from builders.core.files import real_path, sha256_of, write_text
from builders.core.folders import key_of, replace_directory, task_folder, work_beside
from builders.core.progress import progress
from builders.core.typed import name_within, read_json
from builders.store.reader import Release, open_release
from builders.store.runs import Hit

MANIFEST = "index.json"
NAME = "dureader_retrieval index"
_FORMAT = 1
_REMEDY = "make it again"

Arrays = dict[str, npt.NDArray[Any]]
Rows = npt.NDArray[np.int64]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """All that a process needs to encode any part. ``kind``: the module with ``encode_part(job, device, texts)``."""

    kind: str
    release: Path
    config: str
    settings: ModelSettings
    dtype: str
    batch_tokens: int
    tokenizers: int
    part_rows: int


class Parts:
    """What retrievers with an index in parts have in common: see :class:`baselines.kinds.Retriever`.

    A kind gives ``open_model`` (fp32, on the CPU) and ``found``, which searches the parts; its module ``encode_part``.
    """

    rows_on_cpu, rows_on_gpu = ROWS_ON_CPU, ROWS_ON_GPU  # of a part

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        self.settings, self.work = replace(settings, revision=commit_of(settings.name, settings.revision)), work

    def open_model(self) -> Any:
        raise NotImplementedError

    def found(self, parts: Sequence[Part], queries: Sequence[str], top_k: int) -> Iterator[tuple[Rows, Scores]]:
        """Of each query (rows, scores) of its best passages, in any order: ``top_k``, and all that tie with the last.

        None, where there is nothing to be found. What is left of scores is 32 bits.
        """
        raise NotImplementedError

    def about(self) -> dict[str, Any]:
        model = self.open_model()
        about = described(self.settings, model, self.work.dtype)
        return {**about, "similarity": model.similarity_fn_name, "used": used(model)}

    def index(self, release: Release, config: str, folder: Path) -> None:
        job, folder = self._job(release, config), real_path(folder)
        rows = release.rows(config, "corpus")
        open_passages(release, config)  # unpacked by one process
        about = self._key(release, config)
        _earlier(folder)
        with work_beside(folder, key_of(about)) as work:
            if _is_done(folder, about):
                log.info("%s: already made", folder)
                return
            tasks = [(job, work, number) for number in range(-(-rows // job.part_rows))]
            files: dict[str, str] = {}
            with progress(total=rows, unit="passage", label="index") as bar:
                for number, own in enumerate(over_devices(_make_part, tasks, list(self.work.devices))):
                    files |= own
                    bar.update(min(job.part_rows, rows - number * job.part_rows))
            for half in work.glob("*.half"):  # left by a kill
                shutil.rmtree(half)
            write_text(work / MANIFEST, json.dumps({**about, "files": files}, indent=1, sort_keys=True) + "\n")
            replace_directory(work, folder)
        log.info("%s: %d passages in %d parts", folder, rows, len(tasks))

    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        parts = open_parts(folder, self._key(release, config), release.rows(config, "corpus"))
        found = self.found(parts, queries, top_k) if queries else iter([])
        as_floats = ((rows, scores.astype(np.float32)) for rows, scores in found)
        yield from named(as_floats, open_passages(release, config), top_k)

    def _job(self, release: Release, config: str) -> Job:
        devices = list(self.work.devices)
        return Job(
            kind=type(self).__module__,
            release=release.path,
            config=config,
            settings=self.settings,
            dtype=self.work.dtype,
            batch_tokens=self.work.batch_tokens or batch_tokens(devices[0]),
            tokenizers=tokenizers(devices) if self.work.tokenizers is None else self.work.tokenizers,
            part_rows=self.rows_on_cpu if devices[0] == "cpu" else self.rows_on_gpu,
        )

    def _key(self, release: Release, config: str) -> dict[str, Any]:
        """What the index depends on: its manifest, but for the list of files."""
        job = self._job(release, config)
        return {
            "name": NAME,
            "format": _FORMAT,
            "kind": job.kind.rpartition(".")[2],
            "config": config,
            "fingerprint": release.fingerprint(config, "corpus"),
            "model": self.about(),
            "part_rows": job.part_rows,
            "batch_tokens": job.batch_tokens,
        }


@dataclass(frozen=True)
class Part:
    """Some passages' arrays, memory-mapped when they are asked for; the first passage is row ``start``."""

    folder: Path
    start: int

    def array(self, name: str) -> npt.NDArray[Any]:
        found: npt.NDArray[Any] = np.load(self.folder / f"{name}.npy", mmap_mode="c", allow_pickle=False)
        return found


def open_parts(folder: Path, about: dict[str, Any], rows: int) -> list[Part]:
    """The parts of an index of so many rows; :class:`InputError` where it is none ``about`` these, or damaged."""
    told = _earlier(folder)
    if told is None or {key: value for key, value in told.items() if key != "files"} != about:
        raise InputError("is not the index of these passages by this model with these settings", path=folder)
    if fault := _fault(folder, told):
        raise InputError(f"{fault}; {_REMEDY}", path=folder)
    numbers = range(-(-rows // about["part_rows"]))
    if lacking := {_part(number) for number in numbers} - {name.partition("/")[0] for name in told["files"]}:
        raise InputError(f"lists no file of {min(lacking)}; {_REMEDY}", path=folder)
    return [Part(folder / _part(number), number * about["part_rows"]) for number in numbers]


class Best:
    """The best of each query while parts go by: ``top_k``, and all that reach the last of them but for ``slack``."""

    def __init__(self, queries: int, top_k: int, slack: npt.NDArray[Any] | None = None) -> None:
        self._top_k, self._slack = top_k, np.zeros(queries) if slack is None else slack
        self._found: list[tuple[Rows, Scores]] = [(np.empty(0, np.int64), np.empty(0))] * queries

    def add(self, query: int, rows: Rows, scores: Scores) -> None:
        rows, scores = (np.concatenate(pair) for pair in zip(self._found[query], (rows, scores), strict=True))
        if len(rows) > self._top_k:
            last = np.partition(scores, len(scores) - self._top_k)[len(scores) - self._top_k]
            keep = scores >= last - self._slack[query]
            rows, scores = rows[keep], scores[keep]
        self._found[query] = rows, scores

    def __iter__(self) -> Iterator[tuple[Rows, Scores]]:
        return iter(self._found)


class _Index(Struct):
    """What an index's manifest must say; what else it says is only compared as a whole."""

    files: dict[str, str]
    name: str = ""

    def __post_init__(self) -> None:
        for name in self.files:
            folder, _, file = name.partition("/")
            name_within(folder), name_within(file)


def _earlier(folder: Path) -> dict[str, Any] | None:
    """The manifest of the index in a place; None where nothing is there. :class:`InputError` for anything else."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return None
    try:
        if read_json(folder / MANIFEST, _Index, _REMEDY).name == NAME:
            return read_json(folder / MANIFEST, dict[str, Any])
    except (FileNotFoundError, NotADirectoryError):
        pass
    raise InputError(f"exists and is not a {NAME}; expected a new path or an earlier index", path=folder)


def _is_done(folder: Path, about: dict[str, Any]) -> bool:
    told = _earlier(folder)
    if told is None or {key: value for key, value in told.items() if key != "files"} != about:
        return False
    if fault := _fault(folder, told):
        log.warning("%s: damaged (%s); it is made again", folder, fault)
    return not fault


def _fault(folder: Path, told: dict[str, Any]) -> str:
    """What is not as it was made, in words; empty where all is. Files are read for it once."""
    for name, sha256 in told["files"].items():
        try:
            if fault := wrong_sha256(folder / name, sha256):
                return f"{name} {fault}"
        except OSError as error:
            return f"{name} cannot be read ({error.strerror})"
    return ""


def _part(number: int) -> str:
    return f"part-{number:05d}"


def _make_part(task: tuple[Job, Path, int], device: str) -> dict[str, str]:
    """Encode one part, or find it done; returns the SHA-256 of its files by their names in the index."""
    job, work, number = task
    release = open_release(job.release)
    start, rows = number * job.part_rows, release.rows(job.config, "corpus")
    folder = work / _part(number)
    if not folder.exists():
        texts = open_passages(release, job.config).texts(range(start, min(start + job.part_rows, rows)))
        encode: Callable[[Job, str, list[str]], Arrays] = importlib.import_module(job.kind).encode_part
        with task_folder(folder) as half:
            for name, array in encode(job, device, texts).items():
                np.save(half / f"{name}.npy", array)
    return {f"{folder.name}/{path.name}": sha256_of(path) for path in sorted(folder.glob("*.npy"))}
