"""Indexes of texts: encoded a chunk of rows at a time by any process, verified, resumed after a kill.

An index is a directory of NumPy files and a manifest, which is written last. The manifest says what was encoded by
what, and lists every file with its SHA-256; it holds no times and no machine's paths. Every kind of model has a module
with ``encode_chunk(job, device, texts)``: the arrays of a chunk, by the ends of their files' names.
"""

from __future__ import annotations

import abc
import contextlib
import importlib
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from baselines.measure.qrels import read_queries
from baselines.retrieve.cache import first_fault, resumed
from baselines.retrieve.devices import Work, batch_tokens, over_devices, tokenizers
from baselines.retrieve.encoder import Floats, largest_norm
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.models import described, settings_in_use
from baselines.retrieve.passages import Passages, Rows, open_passages
from baselines.retrieve.settings import ModelSettings
from builders.core.errors import InputError, log
from builders.core.files import check_place, new_file, real_path, sha256_of, write_text
from builders.core.folders import key_of, replace_directory, work_beside
from builders.core.progress import progress
from builders.core.typed import Count, name_within, read_json
from builders.store.reader import Release, open_release
from builders.store.runs import Hit

# 200 MB at 768 dimensions; on a CPU some minutes. At most that much is encoded again after an interruption.
ROWS_ON_GPU, ROWS_ON_CPU = 1 << 17, 1 << 13
Arrays = dict[str, npt.NDArray[Any]]
Scores = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Job:
    """All that a process needs to encode any chunk.

    Attributes:
        kind: the module with ``encode_chunk``.
        release, config, split: what is encoded; ``corpus`` is the split of passages, any other one of queries.
        settings: of the model; its revision is the commit of a model on the hub, else empty.
        dtype: fp32, fp16 or bf16.
        batch_tokens: of a batch, padding included.
        tokenizers: processes a device; they change no embedding.
        chunk_rows: texts of a chunk.
    """

    kind: str
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


def job_of(
    kind: str,
    release: Release,
    config: str,
    settings: ModelSettings,
    work: Work,
    *,
    split: str = "corpus",
    chunk_rows: int | None = None,
) -> Job:
    """The job of encoding a split, with what the devices want where ``work`` and ``chunk_rows`` do not say."""
    return Job(
        kind=kind,
        release=release.path,
        config=config,
        split=split,
        settings=settings,
        dtype=work.dtype,
        batch_tokens=work.batch_tokens or batch_tokens(work.devices[0]),
        tokenizers=tokenizers(work.devices) if work.tokenizers is None else work.tokenizers,
        chunk_rows=chunk_rows or (ROWS_ON_CPU if work.devices[0] == "cpu" else ROWS_ON_GPU),
    )


class File(msgspec.Struct):
    """A file of an index: its rows, size, SHA-256 (hex), and a little more than the length of its longest embedding."""

    path: str
    rows: Annotated[int, msgspec.Meta(ge=1)]
    bytes: Count
    sha256: str
    longest: Annotated[float, msgspec.Meta(ge=0)]

    def __post_init__(self) -> None:
        name_within(self.path)


@dataclass(frozen=True)
class Index(abc.ABC):
    """An index, opened: its directory and its manifest. A format is a subclass."""

    path: Path
    manifest: dict[str, Any]

    name, file, listing = "dureader_retrieval index", "index.json", "files"  # of the format
    remedy = "make it again"

    @classmethod
    @abc.abstractmethod
    def read(cls, path: Path) -> Index:
        """Read the manifest in a directory. Raises :class:`InputError` where there is none of this format."""

    @classmethod
    def earlier(cls, path: Path) -> Index | None:
        """The index in a place; None where nothing is there. :class:`InputError` for anything else."""
        return cls.read(path) if path.exists() and not (path.is_dir() and not any(path.iterdir())) else None

    @staticmethod
    @abc.abstractmethod
    def chunk_name(of: str, number: int, chunks: int) -> str:
        """The name of a chunk of so many ``of`` passages or queries: a file without its suffix, or a folder."""

    @staticmethod
    @abc.abstractmethod
    def listed(files: list[list[File]]) -> Any:
        """The list of the chunks' files in the manifest."""

    @abc.abstractmethod
    def fault(self) -> str:
        """Describe the first damaged file; empty if the index is whole. Files are read for this once."""

    def is_of(self, about: dict[str, Any]) -> bool:
        """True if the index was made of just this. Models are told apart by their fingerprint, not their commit."""
        have = {key: value for key, value in self.manifest.items() if key != self.listing}
        one, other = ({**each, "model": {**each["model"], "commit": None}} for each in (have, about))
        return one == other


def check_input(index: type[Index], release: Release, config: str, split: str, out: Path) -> None:
    """Find what can be wrong before a model is opened: raises :class:`InputError` where nothing can be encoded.

    The texts are read for it: passages are unpacked, by one process.
    """
    index.earlier(out)
    check_place(out)
    if not release.rows(config, split):
        raise InputError(f"has no rows in {config}/{split}", path=release.path)
    if split == "corpus":
        open_passages(release, config)
    else:
        read_queries(release, split, config)


def build(index: type[Index], job: Job, out: Path, about: dict[str, Any], devices: Sequence[str]) -> None:
    """Write the index ``about`` a job into the directory ``out``, or leave the same index that is there.

    Raises :class:`InputError` where ``out`` is something else. See :func:`check_input`.
    """
    rows, out = open_release(job.release).rows(job.config, job.split), real_path(out)
    with work_beside(out, key_of(about)) as work:
        if (earlier := index.earlier(out)) and earlier.is_of(about):
            if not (fault := earlier.fault()):
                log.info("%s: already encoded; precision: %s", out, job.dtype)
                return
            log.warning("%s: damaged (%s); it is made again", out, fault)
        if done := len(list(work.glob("*.npy.json"))):
            log.info("%d chunks are done already", done)
        tasks = [(index, job, work, number) for number in range(-(-rows // job.chunk_rows))]
        files = []
        with progress(total=rows, unit="row", label="encode") as bar:
            for own in over_devices(_encode_chunk, tasks, devices):
                files.append(own)
                bar.update(min(job.chunk_rows, rows - (len(files) - 1) * job.chunk_rows))
        for path in [*work.rglob(".*"), *work.glob("*.npy.json")]:
            path.unlink()
        whole = {**about, index.listing: index.listed(files)}
        write_text(work / index.file, json.dumps(whole, indent=1, sort_keys=True) + "\n")
        replace_directory(work, out)
    log.info("%s: %d rows; precision: %s", out, rows, job.dtype)


def _encode_chunk(task: tuple[type[Index], Job, Path, int], device: str) -> list[File]:
    """Encode one chunk, or find it done; returns its files."""
    index, job, work, number = task
    release, kind = open_release(job.release), importlib.import_module(job.kind)
    rows = release.rows(job.config, job.split)
    name = index.chunk_name(job.of, number, -(-rows // job.chunk_rows))

    def make() -> list[File]:
        span = range(number * job.chunk_rows, min((number + 1) * job.chunk_rows, rows))
        if job.split == "corpus":
            texts = open_passages(release, job.config).texts(span)
        else:
            texts = [text for _, text in read_queries(release, job.split, job.config)[span.start : span.stop]]
        arrays = kind.encode_chunk(job, device, texts).items()
        found = [_saved(work, f"{name}{end}.npy", array) for end, array in arrays]
        log.info("%s is done", name)
        return found

    files: list[File] = resumed(work / f"{name}.npy.json", list[File], lambda files: files_are_whole(work, files), make)
    return files


def files_are_whole(work: Path, files: list[File]) -> bool:
    """True if a chunk's files are those that were noted of it."""
    return bool(files) and not first_fault(work, {file.path: file.sha256 for file in files})


def _saved(work: Path, name: str, array: npt.NDArray[Any]) -> File:
    path = work / name
    path.parent.mkdir(exist_ok=True)
    with new_file(path) as beside, open(beside, "wb") as file:
        np.save(file, array)
    longest = 1.0001 * largest_norm(array) if array.dtype == np.float16 else 0.0  # rounded up
    return File(name, len(array), path.stat().st_size, sha256_of(path), longest)


class Retriever(abc.ABC):
    """Finds the best passages of queries. A model is opened with its settings, at its commit."""

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        self.settings, self.work = settings.but(revision=commit_of(settings.name, settings.revision)), work

    @abc.abstractmethod
    def open_model(self) -> Any:
        """The model as it is used, in fp32 on the CPU."""

    def about(self) -> dict[str, Any]:
        """Everything that decides the results, as JSON values: the model's name, fingerprint, precision, settings."""
        model = self.open_model()
        about = {**described(self.settings, model, self.work.dtype), "similarity": model.similarity_fn_name}
        return {**about, **self.size(model), "used": settings_in_use(model)}

    def size(self, model: Any) -> dict[str, Any]:
        """Further settings that decide the results."""
        return {}

    @abc.abstractmethod
    def index(self, release: Release, config: str, folder: Path) -> None:
        """Have the index of the passages of a corpus config in ``folder``.

        An index from the same release, model and settings is left as it is; killed, the work goes on where it was.
        :class:`InputError` where ``folder`` is something else.
        """

    @abc.abstractmethod
    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        """The ``top_k`` best passages of each query, in the queries' order: scores falling, ties by corpus id.

        Args:
            release, config, folder: as of :meth:`index`, which has been called.
            queries: texts, without any prompt.
            top_k: passages a query; fewer, where fewer are found.
        """


class PartsIndex(Index):
    """Some arrays a chunk, in a folder of their own."""

    @classmethod
    def read(cls, path: Path) -> PartsIndex:
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):
            if read_json(path / cls.file, _Parts, cls.remedy).name == cls.name:
                return cls(path, read_json(path / cls.file, dict[str, Any]))
        raise InputError(f"exists and is not a {cls.name}; expected a new path or an earlier index", path=path)

    @staticmethod
    def chunk_name(of: str, number: int, chunks: int) -> str:
        return f"part-{number:05d}"

    @staticmethod
    def listed(files: list[list[File]]) -> dict[str, str]:
        return {file.path: file.sha256 for own in files for file in own}

    def fault(self) -> str:
        return first_fault(self.path, self.manifest[self.listing])


class _Parts(msgspec.Struct):
    """The fields of a manifest that are read; the others are only compared as a whole."""

    files: dict[str, str]
    name: str = ""
    model: dict[str, Any] = {}

    def __post_init__(self) -> None:
        for name in self.files:
            name_within(name)


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
    index = PartsIndex.earlier(folder)
    if index is None or not index.is_of(about):
        raise InputError("is not the index of these passages by this model with these settings", path=folder)
    if fault := index.fault():
        raise InputError(f"{fault}; {index.remedy}", path=folder)
    names = [index.chunk_name("", number, 0) for number in range(-(-rows // about["part_rows"]))]
    if lacking := set(names) - {name.partition("/")[0] for name in index.manifest[index.listing]}:
        raise InputError(f"lists no file of {min(lacking)}; {index.remedy}", path=folder)
    return [Part(folder / name, number * about["part_rows"]) for number, name in enumerate(names)]


class PartsRetriever(Retriever):
    """A retriever whose index is a :class:`PartsIndex`. A kind gives ``open_model`` and ``found``."""

    @abc.abstractmethod
    def found(self, parts: Sequence[Part], queries: Sequence[str], top_k: int) -> Iterator[tuple[Rows, Scores]]:
        """Of each query (rows, scores) of its best passages, in any order: ``top_k``, and all that tie with the last.

        None, where there is nothing to be found. What is left of scores is 32 bits.
        """

    def index(self, release: Release, config: str, folder: Path) -> None:
        check_input(PartsIndex, release, config, "corpus", folder)
        build(PartsIndex, self._job(release, config), folder, self._key(release, config), self.work.devices)

    def search(
        self, release: Release, config: str, folder: Path, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        parts = open_parts(folder, self._key(release, config), release.rows(config, "corpus"))
        found = self.found(parts, queries, top_k) if queries else iter([])
        as_floats = ((rows, scores.astype(np.float32)) for rows, scores in found)
        yield from named(as_floats, open_passages(release, config), top_k)

    def _job(self, release: Release, config: str) -> Job:
        return job_of(type(self).__module__, release, config, self.settings, self.work)

    def _key(self, release: Release, config: str) -> dict[str, Any]:
        """Everything that the index depends on: its manifest, but for the list of files."""
        job = self._job(release, config)
        return {
            "name": PartsIndex.name,
            "format": 1,
            "kind": job.kind.rpartition(".")[2],
            "config": config,
            "fingerprint": release.fingerprint(config, "corpus"),
            "model": self.about(),
            "part_rows": job.chunk_rows,
            "batch_tokens": job.batch_tokens,
        }


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


def named(found: Iterable[tuple[Rows, Floats]], passages: Passages, top_k: int) -> Iterator[list[Hit]]:
    """The ``top_k`` best of each query's (rows, scores): scores falling, ties by corpus id."""
    for rows, scores in found:
        # The shortest digits that tell 32-bit numbers apart.
        hits = zip(passages.ids(rows.tolist()), (float(str(score)) for score in scores), strict=True)
        yield sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]
