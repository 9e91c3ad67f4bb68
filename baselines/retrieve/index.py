"""Indexes of texts: encoded a chunk of rows at a time by any process, verified, resumed after a kill.

An index is a directory of NumPy files and ``manifest.json``, which is written last. A chunk is a file, or a folder of
files where a kind of model keeps several arrays. Row n of all chunks together is row n of the split of the release that
the manifest names by its fingerprint, so no ids are kept. The manifest says what was encoded (``of``: passages or
queries, ``config``, ``split``, ``fingerprint``), by what (``model``: name and fingerprint, ``similarity``) and lists
the files under ``shards``. It holds no times and no machine's paths. :class:`Index` with chunks of 16-bit floats of
shape (rows, dimensions) is what `encode` calls a directory of embeddings.
"""

from __future__ import annotations

import abc
import contextlib
import functools
import importlib
import json
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from baselines.measure.qrels import read_queries
from baselines.retrieve.devices import Work, moved, over_devices
from baselines.retrieve.encoder import Halves, Side, largest_norm
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.models import described, kind_of_model, settings_in_use
from baselines.retrieve.passages import Passages, Rows, first_fault, open_passages
from baselines.retrieve.settings import ModelSettings, Overrides
from builders.core.cache import FileEntry, describe, wrong_file
from builders.core.errors import InputError, log
from builders.core.files import check_place, new_file, write_text
from builders.core.folders import check_output, key_of, replace_directory, work_beside
from builders.core.jobs import in_threads
from builders.core.limits import usable_cores
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release, open_release
from builders.store.runs import Hit

# 200 MB at 768 dimensions; on a CPU some minutes. At most that much is encoded again after an interruption.
ROWS_ON_GPU, ROWS_ON_CPU = 1 << 17, 1 << 13
NAME, MANIFEST = "dureader_retrieval embeddings", "manifest.json"
_REMEDY = "encode it again"
_HEADERS = threading.Lock()  # NumPy reads a file's head by ast, which in Python 3.11 two threads may not do at once
Arrays = dict[str, npt.NDArray[Any]]
Scores = npt.NDArray[np.float64]


class File(FileEntry, frozen=True):
    """A file of an index; ``longest``: of 16-bit vectors, a little more than the length of the longest, else 0."""

    longest: Annotated[float, msgspec.Meta(ge=0)] = 0.0


class _Model(msgspec.Struct):
    name: str
    fingerprint: str
    max_length: Annotated[int, msgspec.Meta(ge=1)] | None = None
    settings: Overrides | None = None


class _Manifest(msgspec.Struct):
    """The fields of a manifest that are read; the others are only compared as a whole."""

    name: Literal["dureader_retrieval embeddings"]
    format: Literal[1]
    of: Literal["passages", "queries"]
    config: str
    split: str
    fingerprint: str
    model: _Model
    shards: Annotated[list[File], msgspec.Meta(min_length=1)]


@dataclass(frozen=True)
class Index:
    """An index, opened. ``chosen``: only these rows (ascending) are seen, numbered from 0, in their order."""

    path: Path
    manifest: dict[str, Any]
    files: list[File]
    chosen: Rows | None = None

    @classmethod
    def read(cls, path: Path) -> Index:
        """Read the manifest in a directory. Raises :class:`InputError` where there is none."""
        try:
            files = read_json(path / MANIFEST, _Manifest, _REMEDY).shards
        except (FileNotFoundError, NotADirectoryError):
            raise InputError(
                f"not a directory of embeddings (no {MANIFEST}); `python -m baselines encode` makes one", path=path
            ) from None
        index = cls(path, read_json(path / MANIFEST, dict[str, Any]), files)
        expected = [chunk_name(index.manifest["of"], number, len(index.chunks)) for number in range(len(index.chunks))]
        if index.chunks != expected:
            raise InputError(
                f"shards: expected the files of {expected[0]} to {expected[-1]}, in order; {_REMEDY}",
                path=path / MANIFEST,
            )
        return index

    @functools.cached_property
    def chunks(self) -> list[str]:
        """The names of the chunks: each a file without its suffix, or a folder."""
        return list(dict.fromkeys(file.path.partition("/")[0].removesuffix(".npy") for file in self.files))

    @property
    def rows(self) -> int:
        return sum(file.rows or 0 for file in self.files) if self.chosen is None else len(self.chosen)

    @functools.cached_property
    def dim(self) -> int:
        """The dimensions of its embeddings."""
        return int(_mapped(self.path / self.files[0].path).shape[1])

    @property
    def longest(self) -> float:
        """The length (Euclidean norm) of the longest embedding, or a little more."""
        return max(file.longest for file in self.files)

    @property
    def precision(self) -> str:
        """The precision that the model computed in."""
        return str(self.manifest["model"].get("computed_in", "unknown"))

    def arrays(self, chunk: str, *names: str) -> list[npt.NDArray[Any]]:
        """Arrays of a chunk, memory-mapped. Private ("c"): PyTorch wants arrays that could be written to."""
        return [np.asarray(_mapped(self.path / f"{chunk}{name}.npy")) for name in names]

    def blocks(self, rows: int = 1 << 16) -> Iterator[tuple[int, Halves]]:
        """(first row, at most ``rows`` embeddings of one chunk), in order: views of the files, nothing is read yet.

        Blocks of chosen rows are copied, and may be short.
        """
        start = begin = 0
        for chunk in self.chunks:
            # A map a chunk: pages of a chunk that is done with do not count as this process's memory.
            (whole,) = self.arrays(chunk, "")
            for low in range(0, len(whole), rows):
                block = whole[low : low + rows]
                if self.chosen is not None:
                    own = self.chosen[begin : int(np.searchsorted(self.chosen, start + low + len(block)))]
                    block = block[own - start - low]
                if len(block):
                    yield begin, block
                begin += len(block)
            start += len(whole)

    def all(self) -> Halves:
        """Every embedding in memory: for queries."""
        return np.concatenate([np.asarray(block) for _, block in self.blocks()])

    def fault(self) -> str:
        """Describe the first damaged file; empty if the index is whole. Files are read for this once."""

        def look(file: File) -> str:
            path = self.path / file.path
            return wrong_file(path, file, lambda: _wrong_array(path, file))

        faults = in_threads(look, self.files, usable_cores())
        bar = progress(faults, total=len(self.files), unit="file", label="verify")
        return next((f"{file.path} {fault}" for file, fault in zip(self.files, bar, strict=True) if fault), "")

    def check(self, of: str, release: Release, config: str, split: str) -> None:
        """Raise :class:`InputError` unless these are the ``of`` (passages, queries) of this split of the release."""
        have = [self.manifest[key] for key in ("of", "config", "split")]
        if have != [of, config, split]:
            raise InputError(
                f"holds the {have[0]} of {have[1]}/{have[2]}; expected the {of} of {config}/{split}", path=self.path
            )
        if self.manifest["fingerprint"] != release.fingerprint(config, split):
            raise InputError(
                f"was encoded from another release: {config}/{split} of {release.path} has other bytes; {_REMEDY}",
                path=self.path,
            )
        if self.rows != (rows := release.rows(config, split)):
            raise InputError(f"holds {self.rows:,} rows where the release has {rows:,}; {_REMEDY}", path=self.path)


def chunk_name(of: str, number: int, chunks: int) -> str:
    """The name of a chunk of so many ``of`` passages or queries."""
    return f"{of}-{number:05d}-of-{chunks:05d}"


def _mapped(path: Path) -> npt.NDArray[Any]:
    with _HEADERS:
        return np.lib.format.open_memmap(path, mode="c")


def _wrong_array(path: Path, file: File) -> str:
    """Describe what a file holds other than its entry says, or that its numbers are not finite; empty if nothing."""
    try:
        found = _mapped(path)
    except Exception as error:  # NumPy raises a dozen kinds for wrong bytes
        return f"is damaged ({error})"
    if len(found) != file.rows:
        return f"holds {len(found):,} rows where the manifest says {file.rows}"
    norm = _longest(found)
    # Not a number is no more than any.
    if not norm <= 1.00001 * file.longest <= 1.01 * norm:
        return f"has embeddings as long as {norm} where the manifest says {file.longest}"
    return ""


def _longest(array: npt.NDArray[Any]) -> float:
    return largest_norm(array) if array.dtype == np.float16 else 0.0


def open_vectors(path: Path) -> Index:
    """Open a directory of embeddings: :class:`InputError` for what is none, and for chunks that are damaged."""
    vectors = Index.read(path)
    if "dim" not in vectors.manifest:  # `run` keeps the index of a sparse or late-interaction model in the same form
        raise InputError("holds no embeddings of one vector a text; `python -m baselines encode` makes them", path=path)
    if fault := vectors.fault():
        raise InputError(f"{fault}; {_REMEDY}", path=path)
    return vectors


@dataclass(frozen=True)
class Retriever(abc.ABC):
    """Finds the best passages of queries. A kind is a subclass.

    Attributes:
        settings: of the model; its revision is the commit of a model on the hub, else empty.
        work: the devices and batches.
    """

    settings: ModelSettings
    work: Work
    kind: ClassVar[str]  # with the version of its arrays
    side: ClassVar[type[Side]]

    @abc.abstractmethod
    def open_model(self) -> Any:
        """The model as it is used, in fp32 on the CPU."""

    @abc.abstractmethod
    def arrays(self, found: Any) -> Arrays:
        """The arrays of a chunk, by the ends of their files' names, from what ``side`` encodes."""

    @abc.abstractmethod
    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, npt.NDArray[Any]]]:
        """Of each query (rows, scores) of its best passages, in any order: ``top_k``, and all that tie with the last.

        None, where there is nothing to be found. What is left of scores is 32 bits.
        """

    def size(self, model: Any) -> dict[str, Any]:
        """Further settings that decide the results."""
        return {}

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Everything that decides the results, as JSON values: the model's name, fingerprint, precision, settings."""
        model = self.open_model()
        about = {**described(self.settings, model, self.work.dtype), "similarity": model.similarity_fn_name}
        return {**about, **self.size(model), "used": settings_in_use(model)}

    @property
    def batch_tokens(self) -> int:
        """Tokens of a batch, padding included."""
        return self.work.batch_tokens

    @property
    def chunk_rows(self) -> int:
        """Texts of a chunk."""
        return ROWS_ON_CPU if self.work.devices[0] == "cpu" else ROWS_ON_GPU

    def encoder(self, device: str, task: str) -> Any:
        """The side of the model for a task (query or document), on a device."""
        model = moved(self.open_model(), device, self.work.dtype)
        return self.side(model, task, self.batch_tokens, self.work.tokenizers)

    def index(
        self, release: Release, config: str, out: Path, split: str = "corpus", chunk_rows: int | None = None
    ) -> Index:
        """Have the index of a split in the directory ``out``: of ``corpus`` its passages, of any other one queries.

        An index from the same release, model and settings is left as it is; killed, the work goes on where it was.
        :class:`InputError` where ``out`` is something else.
        """
        out = check_output(out, "an index", MANIFEST)
        check_place(out)
        if not (total := release.rows(config, split)):
            raise InputError(f"has no rows in {config}/{split}", path=release.path)
        # The texts are read before the model is opened: passages are unpacked, by one process.
        _texts(release, config, split, range(0))
        rows, of, about = chunk_rows or self.chunk_rows, "passages" if split == "corpus" else "queries", self.about
        whole = {
            "name": NAME,
            "format": 1,
            "of": of,
            "config": config,
            "split": split,
            "fingerprint": release.fingerprint(config, split),
            "model": {key: value for key, value in about.items() if key not in ("similarity", "dim", "used")},
            "similarity": about["similarity"],
            **({"dim": about["dim"], "dtype": "float16"} if "dim" in about else {"kind": self.kind}),
            "shard_rows": rows,
            "batch_tokens": self.batch_tokens,
        }
        with work_beside(out, key_of(whole)) as work:
            if (out / MANIFEST).exists() and _is_of(earlier := Index.read(out), whole):
                if not (fault := earlier.fault()):
                    log.info("%s: already encoded; precision: %s", out, self.work.dtype)
                    return earlier
                log.warning("%s: damaged (%s); it is made again", out, fault)
            spans = [range(start, min(start + rows, total)) for start in range(0, total, rows)]
            places = [work / chunk_name(of, number, len(spans)) for number in range(len(spans))]
            tasks = [(self, release.path, config, split, *each) for each in zip(spans, places, strict=True)]
            files: list[File] = []
            with progress(total=total, unit="row", label="encode") as bar:
                for span, own in zip(spans, over_devices(_encode_chunk, tasks, self.work.devices), strict=True):
                    files += own
                    bar.update(len(span))
            _encoder_of.cache_clear()
            for path in [*work.rglob(".*"), *work.glob("*.npy.json")]:
                path.unlink()
            whole["shards"] = msgspec.to_builtins(files)
            write_text(work / MANIFEST, json.dumps(whole, indent=1, sort_keys=True) + "\n")
            replace_directory(work, out)
        log.info("%s: %d rows; precision: %s", out, total, self.work.dtype)
        return Index.read(out)

    def search(
        self, release: Release, config: str, index: Index, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        """The ``top_k`` best passages of each query, in the queries' order: scores falling, ties by corpus id.

        Args:
            release, config: as of :meth:`index`, which gave ``index``.
            queries: texts, without any prompt.
            top_k: passages a query; fewer, where fewer are found.
        """
        passages = open_passages(release, config)
        yield from named(self.found(index, passages, queries, top_k) if queries else [], passages, top_k)

    def hits(
        self, release: Release, config: str, folder: Path, queries: Sequence[tuple[str, str]], top_k: int
    ) -> Iterator[tuple[str, list[Hit]]]:
        """Have the index in ``folder``, and return (query id, best passages) of each (query id, text), in order."""
        built = self.index(release, config, folder)
        found = self.search(release, config, built, [text for _, text in queries], top_k)
        bar = progress(found, total=len(queries), unit="query", label="search")
        return zip((query for query, _ in queries), bar, strict=True)


# By the name that `--kind` takes: the module and its class. Without `--kind`, a model's own files decide.
RETRIEVERS = {
    "dense": ("dense", "Dense"),
    "static": ("dense", "Static"),
    "sparse": ("sparse", "Sparse"),
    "multi-vector": ("multi_vector", "MultiVector"),
}


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """The retriever of a model: of ``kind``, else of the kind of its own files. Raises :class:`InputError`.

    ::

      retriever = open_retriever(ModelSettings("BAAI/bge-small-zh-v1.5"), Work(("cpu",), "fp32"))
      index = retriever.index(release, "corpus", folder)
      for hits in retriever.search(release, "corpus", index, ["a question", "another"], top_k=50): ...
    """
    kind = kind or kind_of_model(settings)
    if kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    module, name = RETRIEVERS[kind]
    at_commit = structs.replace(settings, revision=commit_of(settings.name, settings.revision))
    found: Retriever = getattr(importlib.import_module(f"baselines.retrieve.{module}"), name)(at_commit, work)
    return found


def _is_of(index: Index, about: dict[str, Any]) -> bool:
    """True if an index was made of just this. Models are told apart by their fingerprint, not their commit."""
    models = index.manifest.get("model"), about["model"]
    one, other = ({**model, "commit": None} if isinstance(model, dict) else {} for model in models)
    rest = {key: value for key, value in index.manifest.items() if key not in ("shards", "model")}
    return one == other and {**rest, "model": None} == {**about, "model": None}


def _texts(release: Release, config: str, split: str, span: range) -> list[str]:
    """The texts of some rows of passages, which are unpacked if they are not yet, or of queries."""
    if split == "corpus":
        return open_passages(release, config).texts(span)
    return [text for _, text in read_queries(release, split, config)[span.start : span.stop]]


def _encode_chunk(of: tuple[Retriever, Path, str, str, range, Path], device: str) -> list[File]:
    """Encode one chunk, or find it done; returns its files."""
    retriever, path, config, split, span, place = of
    release, work = open_release(path), place.parent

    def make() -> list[File]:
        task = "document" if split == "corpus" else "query"
        arrays = retriever.arrays(_encoder_of(retriever, device, task).encode(_texts(release, config, split, span)))
        found = [_saved(work, f"{place.name}{end}.npy", array) for end, array in arrays.items()]
        log.info("%s is done", place.name)
        return found

    note = place.with_name(f"{place.name}.npy.json")
    files: list[File] = resumed(note, list[File], lambda files: bool(files) and not first_fault(work, files), make)
    return files


@functools.lru_cache(maxsize=1)
def _encoder_of(retriever: Retriever, device: str, task: str) -> Any:
    """A retriever's :meth:`Retriever.encoder`, opened once in this process."""
    return retriever.encoder(device, task)


def _saved(work: Path, name: str, array: npt.NDArray[Any]) -> File:
    (work / name).parent.mkdir(exist_ok=True)
    with new_file(work / name) as beside, open(beside, "wb") as file:
        np.save(file, array)
    entry = structs.asdict(describe(work, name, len(array)))
    return File(**entry, longest=1.0001 * _longest(array))  # rounded up


def resumed(note: Path, kind: Any, is_right: Callable[[Any], bool], make: Callable[[], Any]) -> Any:
    """Return the result of a task that an interrupted job left in the file ``note``; else ``make`` and write it.

    Args:
        note: a JSON file. It is written after all other files of the task.
        kind: the type of the result.
        is_right: False for a result that is not of this task, or whose files are missing or damaged.
        make: does the task.
    """
    with contextlib.suppress(FileNotFoundError, InputError):
        found = read_json(note, kind)
        if is_right(found):
            return found
    found = make()
    write_text(note, json.dumps(msgspec.to_builtins(found)))
    return found


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


def named(found: Iterable[tuple[Rows, npt.NDArray[Any]]], passages: Passages, top_k: int) -> Iterator[list[Hit]]:
    """The ``top_k`` best of each query's (rows, scores): scores falling, ties by corpus id."""
    for rows, scores in found:
        # The shortest digits that tell 32-bit numbers apart.
        digits = (float(str(score)) for score in scores.astype(np.float32))
        hits = zip(passages.ids(rows.tolist()), digits, strict=True)
        yield sorted(hits, key=lambda hit: (-hit[1], hit[0]))[:top_k]
