"""Build indexes of texts: encode chunks of rows on all devices, verify the files, and resume an interrupted build.

An index is a directory of NumPy files and ``manifest.json``, which is written last. A chunk is a file, or a folder of
files for models with several arrays. Row n of an index is row n of a split of the release, so ids are not stored. The
manifest records the source (``of``: passages or queries, ``config``, ``split``, ``fingerprint``), the model (``model``:
name and fingerprint, ``similarity``) and the files (``shards``), without times and local paths. A directory of
embeddings that `encode` writes is an index with chunks of 16-bit floats, shape (rows, dimensions).
"""

import abc
import contextlib
import functools
import importlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from baselines.core.passages import Passages, Rows, first_fault, open_passages
from baselines.core.settings import ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve.devices import Work, moved, over_devices
from baselines.retrieve.encoder import Side, encode_queries
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.index_files import MANIFEST, NAME, File, Halves, Index, chunk_name, longest_vector
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import described, settings_in_use
from builders.core.cache import describe
from builders.core.errors import InputError, log
from builders.core.exit_codes import raise_if_stopped
from builders.core.files import check_place, new_file, write_text
from builders.core.folders import (
    check_output,
    expect_known_output,
    key_of,
    replace_directory,
    states_of_output,
    work_beside,
)
from builders.core.jobs import LastResult
from builders.core.progress import progress
from builders.core.typed import read_json
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, best_first

# Rows per chunk: 200 MB at 768 dimensions on a GPU, a few minutes on a CPU. An interruption loses a chunk per device.
ROWS_ON_GPU, ROWS_ON_CPU = 1 << 17, 1 << 13
Arrays = dict[str, npt.NDArray[Any]]
Scores = npt.NDArray[np.float64]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Retriever(abc.ABC):
    """Find the best passages of queries. Each kind of model has a subclass.

    ``settings.revision`` is the commit of a model on the hub, or empty for a folder.
    """

    settings: ModelSettings
    work: Work
    kind: ClassVar[str]  # with the version of the index's format, if greater than 1
    side: ClassVar[type[Side]]

    @abc.abstractmethod
    def open_model(self) -> Any:
        """Open the model in fp32 on the CPU."""

    @abc.abstractmethod
    def arrays(self, found: Any) -> Arrays:
        """Return a chunk's arrays by the ends of the file names. ``found`` is the result of ``side.encode``."""

    @abc.abstractmethod
    def pair_scores(self, index: Index, queries: Any, rows: Rows) -> npt.NDArray[Any]:
        """Return the same scores as :meth:`found` for the given rows of an index, shape (queries, n).

        ``queries`` is the result of ``side.encode``. Row -1 and passages that a search never returns, for example
        passages without tokens, have the score -inf.
        """

    @abc.abstractmethod
    def found(
        self, index: Index, passages: Passages, queries: Sequence[str], top_k: int
    ) -> Iterator[tuple[Rows, npt.NDArray[Any]]]:
        """Yield (rows, scores) of each query's ``top_k`` best passages and of passages that tie with the last.

        The rows are unsorted. A query may have no passages. The caller rounds the scores to 32 bits.
        """

    def size(self, model: Any) -> dict[str, Any]:
        """Return the number of dimensions as ``dim``, if the model has one vector per text."""
        return {}

    @functools.cached_property
    def about(self) -> dict[str, Any]:
        """Everything about the model that affects results: its name, fingerprint, precision and settings (JSON)."""
        model = self.open_model()
        about = {**described(self.settings, model, self.work.dtype), "similarity": model.similarity_fn_name}
        return {**about, **self.size(model), "used": settings_in_use(model)}

    @property
    def batch_tokens(self) -> int:
        return self.work.batch_tokens

    @property
    def chunk_rows(self) -> int:
        return ROWS_ON_CPU if self.work.devices[0] == "cpu" else ROWS_ON_GPU

    def encoder(self, device: str, task: str) -> Any:
        """Open the model's encoder for a task (query or document) on a device."""
        model = moved(self.open_model(), device, self.work.dtype)
        return self.side(model, task, self.batch_tokens, self.work.tokenizers)

    def index(
        self,
        release: Release,
        config: str,
        out: Path,
        split: str = "corpus",
        chunk_rows: int | None = None,
        chosen: Sequence[int] | None = None,
        again: bool = False,
    ) -> Index:
        """Build the index of a split in the directory ``out``. The split ``corpus`` has passages, other splits queries.

        ``chosen`` selects rows of the split (ascending), and the manifest lists the selected rows. An existing index of
        the same release, model and settings is reused, unless ``again`` is True. An interrupted build resumes. Raises
        :class:`InputError` if ``out`` has other files.
        """
        out = check_output(out, "an index", MANIFEST)
        check_place(out)
        if not (total := release.rows(config, split)):
            raise InputError(f"has no rows in {config}/{split}", path=release.path)
        # Unpack the passages now, before several processes need the texts.
        _texts(release, config, split, range(0))
        every: Sequence[int] = range(total) if chosen is None else chosen
        rows, total = chunk_rows or self.chunk_rows, len(every)
        whole = {**self._origin(release, config, split), "shard_rows": rows}
        whole |= {} if chosen is None else {"rows": chosen}
        known_states = states_of_output(out, MANIFEST)
        with work_beside(out, key_of(whole), wait=True) as work:
            earlier = Index.read(out) if (out / MANIFEST).exists() else None
            if earlier is None or not _is_of(earlier, {"rows": None, **whole}):
                expect_known_output(out, MANIFEST, known_states)
            elif not again:
                if not (fault := earlier.fault()):
                    log.info("%s: already encoded; precision: %s", out, self.work.dtype)
                    return earlier
                log.warning("%s: damaged (%s); encoded again", out, fault)
            spans = [every[start : start + rows] for start in range(0, total, rows)]
            places = [work / chunk_name(whole["of"], number, len(spans)) for number in range(len(spans))]
            stored = self._stored_parts(release, config, out) if split == "corpus" and chosen is None else []
            tasks = [(self, release.path, config, split, *each, stored) for each in zip(spans, places, strict=True)]
            files: list[File] = []
            try:
                # Chunks of an interrupted build are verified quickly, so they are no measure of the speed.
                left = [0 if _note_of(place).exists() else len(span) for span, place in zip(spans, places, strict=True)]
                encoded = over_devices(_encode_chunk, tasks, self.work.devices)
                with progress(total=total, unit="row", label="encode", done=total - sum(left)) as bar:
                    for chunk_files in bar.follow(encoded, left):
                        files += chunk_files
            finally:  # also after an error, because the model's files may change before the next call
                _encoder_of.cache_clear()
            for path in [*work.rglob(".*"), *work.glob("*.npy.json")]:
                path.unlink()
            whole["shards"] = msgspec.to_builtins(files)
            write_text(work / MANIFEST, json.dumps(whole, indent=1, sort_keys=True) + "\n")
            replace_directory(work, out)
        log.info("%s: %d rows; precision: %s", out, total, self.work.dtype)
        return Index.read(out)

    def _stored_parts(self, release: Release, config: str, folder: Path) -> list[Path]:
        """Return the folders with vectors of some passages that :meth:`scores` has written beside an index."""
        if "dim" not in self.about:  # other kinds of models have several arrays with limits of their own
            return []
        parts = [index.path for index in self._kept(sorted(_parts_of(folder).glob("*")), release, config)]
        if parts:
            log.info("%s: vectors of some passages are reused from %s", folder, _parts_of(folder))
        return parts

    def _origin(self, release: Release, config: str, split: str) -> dict[str, Any]:
        """Return the manifest of an index without the entries for rows and files."""
        about = self.about
        return {
            "name": NAME,
            "format": 1,
            "of": "passages" if split == "corpus" else "queries",
            "config": config,
            "split": split,
            "fingerprint": release.fingerprint(config, split),
            "model": {key: value for key, value in about.items() if key not in ("similarity", "dim", "used")},
            "similarity": about["similarity"],
            **({"dim": about["dim"], "dtype": "float16"} if "dim" in about else {"kind": self.kind}),
            "batch_tokens": self.batch_tokens,
        }

    def scores(
        self, release: Release, config: str, folder: Path, groups: Sequence[tuple[str, Sequence[str]]]
    ) -> tuple[list[list[float]], int]:
        """Return (scores of each group's passages, number of passages that this call encoded).

        A group is the text of a query and ids of passages. The scores are the same as those of :meth:`search`, or -inf
        for a passage that a search never returns. A passage is encoded once. Encodings are reused from the index
        ``folder`` and from the indexes in the directory ``folder.parts``. New encodings are written to this directory.
        """
        passages, sizes = open_passages(release, config), np.array([len(ids) for _, ids in groups], np.int64)
        inside = np.arange(sizes.max(initial=0)) < sizes[:, None]
        wanted, scores = np.full(inside.shape, -1), np.full(inside.shape, -np.inf, np.float32)
        wanted[inside] = passages.rows([corpus for _, ids in groups for corpus in ids])
        beside = _parts_of(folder)
        parts = [(each, _rows_of(each)) for each in self._kept([folder, *sorted(beside.glob("*"))], release, config)]
        asked = np.unique(wanted[inside])
        if len(missing := np.setdiff1d(asked, np.concatenate([[-1], *(rows for _, rows in parts)]))):
            beside.mkdir(exist_ok=True)
            chosen, size = missing.tolist(), max(1, self.chunk_rows // 8)  # an interruption loses a chunk
            index = self.index(release, config, beside / key_of(chosen), chunk_rows=size, chosen=chosen)
            parts.append((index, missing))
        queries = None
        if parts:
            queries = encode_queries(self.encoder(self.work.devices[0], "query"), [text for text, _ in groups])
        for index, rows in parts:
            places = np.minimum(np.searchsorted(rows, wanted), len(rows) - 1)
            here = rows[places] == wanted
            scores[here] = self.pair_scores(index, queries, np.where(here, places, -1))[here]
            wanted[here] = -1  # other parts may have the same passage
        found = [[_digits(score) for score in own[:size]] for own, size in zip(scores, sizes, strict=True)]
        return found, len(missing)

    def _kept(self, folders: Iterable[Path], release: Release, config: str) -> Iterator[Index]:
        """Yield the intact indexes of this model and corpus. A damaged index is skipped, with a warning."""
        about = self._origin(release, config, "corpus")
        for folder in folders:
            with contextlib.suppress(InputError):
                if _is_of(index := Index.read(folder), about):
                    if not (fault := index.fault()):
                        yield index
                    else:
                        log.warning("%s: damaged (%s); not used", folder, fault)

    def search(
        self, release: Release, config: str, index: Index, queries: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        """Yield each query's ``top_k`` best passages, by falling score, then by corpus id.

        ``index`` is the result of :meth:`index` for ``release`` and ``config``. ``queries`` are texts without a prompt.
        """
        passages = open_passages(release, config)
        yield from named(self.found(index, passages, queries, top_k) if queries else [], passages, top_k)

    def hits(
        self, release: Release, config: str, folder: Path, queries: Sequence[tuple[str, str]], top_k: int
    ) -> Iterator[tuple[str, list[Hit]]]:
        """Return (query id, best passages) for each (query id, text). Build or reuse the index in ``folder``."""
        texts = [text for _, text in queries]
        found = self.search(release, config, self.index(release, config, folder), texts, top_k)
        return zip((query for query, _ in queries), found, strict=True)


# Module and class of the retriever for each kind of model.
RETRIEVERS = {
    "dense": ("dense", "Dense"),
    "static": ("dense", "Static"),
    "sparse": ("sparse", "Sparse"),
    "multi-vector": ("multi_vector", "MultiVector"),
}


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """Return a model's retriever. The model's files determine an empty ``kind``. Raises :class:`InputError`."""
    kind = kind or kind_of_model(settings)
    if kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    module, name = RETRIEVERS[kind]
    retriever: type[Retriever] = getattr(importlib.import_module(f"baselines.retrieve.{module}"), name)
    return retriever(structs.replace(settings, revision=commit_of(settings.name, settings.revision)), work)


def _is_of(index: Index, about: dict[str, Any]) -> bool:
    """True if the manifest's fields equal ``about``. The commits of the models may differ."""
    have: dict[str, Any] = {key: index.manifest.get(key) for key in about}
    one, other = ({**each, "model": {**each["model"], "commit": None}} for each in (have, about))
    return one == other


def _parts_of(folder: Path) -> Path:
    """Return the directory beside an index for the vectors of some passages."""
    return folder.with_name(f"{folder.name}.parts")


def _stored_vectors(folders: Sequence[Path], span: Rows) -> tuple[npt.NDArray[np.bool_], Halves]:
    """Return which rows of ``span`` the indexes in ``folders`` have, and the vectors of all rows (zeros if missing)."""
    is_stored = np.zeros(len(span), bool)
    vectors: Halves = np.zeros((len(span), 0), np.float16)
    for folder in folders:
        index = Index.read(folder)
        rows = _rows_of(index)
        if not vectors.shape[1]:
            vectors = np.zeros((len(span), index.dim), np.float16)
        places = np.minimum(np.searchsorted(rows, span), len(rows) - 1)
        is_here = (rows[places] == span) & ~is_stored
        for start, block in index.blocks():
            is_in_block = is_here & (places >= start) & (places < start + len(block))
            vectors[is_in_block] = block[places[is_in_block] - start]
        is_stored |= is_here
    return is_stored, vectors


def _rows_of(index: Index) -> Rows:
    """Return the corpus rows in an index, in ascending order."""
    listed = index.manifest.get("rows")
    return np.arange(index.rows) if listed is None else np.array(listed, np.int64)


def _digits(score: np.floating[Any]) -> float:
    """Return the decimal number with the fewest digits that identifies a 32-bit score."""
    return float(str(score))


def _texts(release: Release, config: str, split: str, span: Sequence[int]) -> list[str]:
    """Return the texts of the rows in ``span``. Passages that the cache lacks are unpacked first."""
    if split == "corpus":
        return open_passages(release, config).texts(span)
    queries = read_queries(release, split, config)
    return [queries[row][1] for row in span]


def _encode_chunk(of: tuple[Retriever, Path, str, str, Sequence[int], Path, list[Path]], device: str) -> list[File]:
    """Encode one chunk and return the chunk's files.

    A chunk that an interrupted build finished is reused, and so are the vectors in the folders of the task's last item.
    """
    retriever, path, config, split, span, place, stored = of
    release, work = open_release(path), place.parent

    def make() -> list[File]:
        task = "document" if split == "corpus" else "query"
        is_stored, vectors = _stored_vectors(stored, np.asarray(span))
        if is_stored.any():
            new_rows = np.asarray(span)[~is_stored].tolist()
            if new_rows:
                encoder = _encoder_of(retriever, device, task)
                vectors[~is_stored] = encoder.encode(_texts(release, config, split, new_rows))
            arrays = retriever.arrays(vectors)
        else:
            encoder = _encoder_of(retriever, device, task)
            arrays = retriever.arrays(encoder.encode(_texts(release, config, split, span)))
        found = [_saved(work, f"{place.name}{end}.npy", array) for end, array in arrays.items()]
        log.info("%s is done", place.name)
        return found

    return resumed(_note_of(place), list[File], lambda files: bool(files) and not first_fault(work, files), make)


def _note_of(place: Path) -> Path:
    """Return the path of the JSON file that lists the files of a finished chunk."""
    return place.with_name(f"{place.name}.npy.json")


@LastResult
def _encoder_of(retriever: Retriever, device: str, task: str) -> Any:
    return retriever.encoder(device, task)


def _saved(work: Path, name: str, array: npt.NDArray[Any]) -> File:
    (work / name).parent.mkdir(exist_ok=True)
    with new_file(work / name) as beside, open(beside, "wb") as file:
        np.save(file, array)
    return File(
        **structs.asdict(describe(work, name, len(array))), longest=1.0001 * longest_vector(array)
    )  # rounded up


def resumed(note: Path, kind: type[Made], is_right: Callable[[Made], bool], make: Callable[[], Made]) -> Made:
    """Return a task's result from the JSON file ``note`` of an interrupted job. Otherwise make and write the result.

    ``kind`` is the type of the result. ``make`` writes all other files of the task, so ``note`` is written last.
    ``is_right`` returns False for the result of another task, or if a file of the task is missing or damaged.
    """
    with contextlib.suppress(FileNotFoundError, InputError):
        found = read_json(note, kind)
        if is_right(found):
            return found
    found = make()
    write_text(note, json.dumps(msgspec.to_builtins(found)))
    return found


class Best:
    """Collect each query's ``top_k`` best passages chunk by chunk, and passages within ``slack`` of the last score."""

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
    """Convert each query's (rows, scores) to its ``top_k`` best hits, by falling score, then by corpus id."""
    for rows, scores in found:
        raise_if_stopped()
        hits = zip(passages.ids(rows.tolist()), map(_digits, scores.astype(np.float32)), strict=True)
        yield best_first(hits)[:top_k]
