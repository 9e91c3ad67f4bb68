"""Build indexes of texts: encode chunks of rows on all devices, verify the files, and resume an interrupted build.

An index is a directory of NumPy files and ``manifest.json``, which is written last. A chunk is a file, or a folder of
files for models with several arrays. Row n of an index is row n of a split of the release, so ids are not stored. The
manifest records the source (``of``: passages or queries, ``config``, ``split``, ``fingerprint``), the model (``model``:
name and fingerprint, ``similarity``) and the files (``shards``), without times and local paths. A directory of
embeddings that `encode` writes is an index with chunks of 16-bit floats, shape (rows, dimensions), or of smaller
numbers (:mod:`.vector_stores`). The ranges of 8-bit embeddings are measured first, from a fixed sample of the rows, and
saved as ``ranges.npy``. So all chunks have the same ranges, also after an interruption.
"""

import abc
import contextlib
import functools
import importlib
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import structs

from baselines.core.passages import CachedPassages, Rows, first_fault, open_passages
from baselines.core.run_costs import preparing, report_texts
from baselines.core.settings import ModelSettings
from baselines.measure.qrels import read_queries
from baselines.retrieve.devices import Work, move_model, over_devices
from baselines.retrieve.encoder import EncoderSide, encode_queries
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.index_files import (
    MANIFEST,
    NAME,
    RANGES,
    ROUNDED_UP,
    Halves,
    IndexFile,
    VectorIndex,
    chunk_name,
    longest_vector,
)
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import describe_model, settings_in_use
from baselines.retrieve.vector_stores import (
    FLOAT16,
    INT8,
    VectorStore,
    measure_ranges,
    open_store,
    sample_positions,
)
from builders.core.cache import describe_file
from builders.core.errors import InputError, log
from builders.core.exit_codes import raise_if_stopped
from builders.core.folders import (
    check_output,
    expect_known_output,
    key_of,
    remove_tree,
    replace_directory,
    states_of_output,
    work_beside,
)
from builders.core.jobs import LastResult
from builders.core.paths import check_place
from builders.core.progress import show_progress
from builders.core.typed import read_json
from builders.core.write_files import new_file, write_text
from builders.store.reader import Release, open_release
from builders.store.runs import Hit, best_first

# Rows per chunk: 200 MB at 768 dimensions on a GPU, a few minutes on a CPU. An interruption loses a chunk per device.
ROWS_ON_GPU = 1 << 17
ROWS_ON_CPU = 1 << 13
_PARTS_PER_CHUNK = 8  # chunks with the vectors of some passages are smaller by this factor
# Rows from which the ranges of 8-bit embeddings are measured. An interruption loses a chunk of them.
RANGE_SAMPLE_ROWS = 1 << 13
_RANGE_CHUNK_ROWS = 1 << 10
_SAMPLE_FOLDER = "sample"
Arrays = dict[str, npt.NDArray[Any]]
Scores = npt.NDArray[np.float64]
Floats = npt.NDArray[np.float32]
Made = TypeVar("Made")


@dataclass(frozen=True)
class Retriever(abc.ABC):
    """Find the best passages of queries. Each kind of model has a subclass.

    ``settings.revision`` is the commit of a model on the hub, or empty for a folder.
    """

    settings: ModelSettings
    work: Work
    kind: ClassVar[str]  # with the version of the index's format, if greater than 1
    side: ClassVar[type[EncoderSide]]

    @abc.abstractmethod
    def open_model(self) -> Any:
        """Open the model in fp32 on the CPU."""

    @abc.abstractmethod
    def arrays(self, encodings: Any) -> Arrays:
        """Return a chunk's arrays by the ends of the file names. ``encodings`` is the result of ``side.encode``."""

    @abc.abstractmethod
    def pair_scores(self, index: VectorIndex, query_encodings: Any, rows: Rows) -> npt.NDArray[Any]:
        """Return the same scores as :meth:`search_encodings` for the given rows of an index, shape (queries, n).

        ``query_encodings`` is the result of ``side.encode``. Row -1 and passages that a search never returns, for
        example passages without tokens, have the score -inf.
        """

    @abc.abstractmethod
    def search_encodings(
        self, index: VectorIndex, passages: CachedPassages, query_encodings: Any, query_count: int, top_k: int
    ) -> Iterator[tuple[Rows, npt.NDArray[Any]]]:
        """Yield (rows, scores) of each query's ``top_k`` best passages and of passages that tie with the last.

        ``query_encodings`` is the result of ``side.encode``. The rows are unsorted. A query may have no passages. The
        caller rounds the scores to 32 bits.
        """

    def size(self, model: Any) -> dict[str, Any]:
        """Return the number of dimensions as ``dim``, if the model has one vector per text."""
        return {}

    @functools.cached_property
    def result_inputs(self) -> dict[str, Any]:
        """Everything about the model that affects results: its name, fingerprint, precision and settings (JSON)."""
        model = self.open_model()
        description = describe_model(self.settings, model, self.work.dtype)
        description["similarity"] = model.similarity_fn_name
        description.update(self.size(model))
        description["used"] = settings_in_use(model)
        return description

    @property
    def is_remote(self) -> bool:
        """True for a model behind an endpoint. It has no files and no tokenizer here, and each request costs money."""
        return False

    def measured_costs(self) -> dict[str, Any]:
        """Return the costs of a model behind an endpoint, for a manifest (JSON). Other models have none."""
        return {}

    @property
    def batch_tokens(self) -> int:
        return self.work.batch_tokens

    @property
    def chunk_rows(self) -> int:
        return ROWS_ON_CPU if self.work.devices[0] == "cpu" else ROWS_ON_GPU

    def encoder(self, device: str, task: str) -> Any:
        """Open the model's encoder for a task (query or document) on a device."""
        model = move_model(self.open_model(), device, self.work.dtype)
        return self.side(model, task, self.batch_tokens, self.work.tokenizers)

    def index(
        self,
        release: Release,
        config: str,
        out: Path,
        split: str = "corpus",
        chunk_rows: int | None = None,
        chosen_rows: Sequence[int] | None = None,
        again: bool = False,
        store: str = FLOAT16,
        reused: VectorIndex | None = None,
    ) -> VectorIndex:
        """Build the index of a split in the directory ``out``. The split ``corpus`` has passages, other splits queries.

        An existing index of the same release, model and settings is reused. An interrupted build resumes.

        Args:
            release, config, split: source of the texts (default: passages).
            out: directory of the index.
            chunk_rows: rows per file (default: by the device).
            chosen_rows: rows of the split, ascending (default: all rows). The manifest lists these rows.
            again: build the index even if it exists (default: False).
            store: form of the embeddings (:mod:`.vector_stores`; default: 16-bit floats).
            reused: an intact index whose 16-bit embeddings are copied instead of encoded (default: None).

        Raises:
            InputError: ``out`` has other files, the split has no rows, or ``reused`` is of another model or source.
        """
        out = check_output(out, "an index", MANIFEST)
        check_place(out)
        split_rows = release.rows(config, split)
        if not split_rows:
            raise InputError(f"has no rows in {config}/{split}", path=release.path)
        # Unpack the passages now, before several processes need the texts.
        _read_texts(release, config, split, range(0))
        rows: Sequence[int] = range(split_rows) if chosen_rows is None else chosen_rows
        rows_per_chunk = chunk_rows or self.chunk_rows
        manifest = self._origin(release, config, split, store)
        if reused is not None and not _is_of(reused, self._origin(release, config, split)):
            raise InputError(
                f"has not the 16-bit embeddings of {config}/{split} of {release.path} by {self.settings.name} with the "
                "same settings",
                path=reused.path,
            )
        manifest["shard_rows"] = rows_per_chunk
        if chosen_rows is not None:
            manifest["rows"] = chosen_rows
        known_states = states_of_output(out, MANIFEST)
        with work_beside(out, key_of(manifest), wait=True) as work_folder:
            # Return an index of an earlier, equal call. Replace a damaged index, but no directory of other origin.
            # "rows": None for an index of all rows, because an index that lists some rows does not equal it.
            earlier_index = VectorIndex.read(out) if (out / MANIFEST).exists() else None
            if earlier_index is None or not _is_of(earlier_index, {"rows": None, **manifest}):
                expect_known_output(out, MANIFEST, known_states)
                if earlier_index is not None and earlier_index.manifest["of"] != manifest["of"]:
                    encoded_kind = earlier_index.manifest["of"]
                    raise InputError(f"has embeddings of {encoded_kind}; choose another directory", path=out)
            elif not again:
                fault = earlier_index.fault()
                if not fault:
                    log.info("%s: already encoded; precision: %s", out, self.work.dtype)
                    return earlier_index
                log.warning("%s: damaged (%s); encoded again", out, fault)

            # Encode one chunk per task.
            stored_folders: list[Path] = [] if reused is None else [reused.path]
            if split == "corpus" and chosen_rows is None:
                stored_folders += self._stored_parts(release, config, out)
            chunk_store = None
            if store != FLOAT16:
                ranges = None
                if store == INT8:
                    sample_folder = work_folder / _SAMPLE_FOLDER
                    ranges = self._measure_ranges(release, config, split, rows, sample_folder, reused)
                    stored_folders.append(sample_folder)
                    np.save(work_folder / RANGES, ranges)
                chunk_store = open_store(store, self.result_inputs["dim"], ranges)
            rows_of_chunks = [rows[start : start + rows_per_chunk] for start in range(0, len(rows), rows_per_chunk)]
            tasks = []
            for number, rows_of_chunk in enumerate(rows_of_chunks):
                chunk_path = work_folder / chunk_name(manifest["of"], number, len(rows_of_chunks))
                tasks.append(
                    _ChunkTask(
                        self, release.path, config, split, rows_of_chunk, chunk_path, stored_folders, chunk_store
                    )
                )
            files = self._run_tasks(tasks, work_folder)

            # Remove the files of the build (temporary files and notes of chunks), and write the manifest last.
            if store == INT8:
                remove_tree(work_folder / _SAMPLE_FOLDER)
                manifest["ranges"] = msgspec.to_builtins(describe_file(work_folder, RANGES, 2))
            for path in [*work_folder.rglob(".*"), *work_folder.glob("*.npy.json")]:
                path.unlink()
            manifest["shards"] = msgspec.to_builtins(files)
            manifest |= self.measured_costs()
            write_text(work_folder / MANIFEST, json.dumps(manifest, indent=1, sort_keys=True) + "\n")
            replace_directory(work_folder, out)
        log.info("%s: %d rows; precision: %s", out, len(rows), self.work.dtype)
        return VectorIndex.read(out)

    def _measure_ranges(
        self,
        release: Release,
        config: str,
        split: str,
        rows: Sequence[int],
        sample_folder: Path,
        reused: VectorIndex | None,
    ) -> Floats:
        """Return the lowest and the highest number of each dimension, shape (2, dim), in a fixed sample of ``rows``.

        The 16-bit embeddings of the sample are written into ``sample_folder``, so that they are encoded only once. The
        folder's chunks have a fixed size, because a model's rounding may depend on the batches of a chunk.
        """
        chosen_rows = [rows[position] for position in sample_positions(len(rows), RANGE_SAMPLE_ROWS).tolist()]
        sample_index = self.index(
            release,
            config,
            sample_folder,
            split,
            chunk_rows=_RANGE_CHUNK_ROWS,
            chosen_rows=chosen_rows,
            reused=reused,
        )
        return measure_ranges(sample_index.all())

    def _run_tasks(self, tasks: Sequence["_ChunkTask"], work_folder: Path) -> list[IndexFile]:
        """Encode the chunks on all devices. Return their files, in order."""
        files: list[IndexFile] = []
        try:
            # Chunks of an interrupted build are verified quickly, so they are no measure of the speed.
            rows_to_encode = []
            for task in tasks:
                is_finished = _note_of(task.path).exists()
                rows_to_encode.append(0 if is_finished else len(task.rows))
            all_rows = sum(len(task.rows) for task in tasks)
            new_rows = sum(rows_to_encode)
            with (
                contextlib.closing(over_devices(_encode_chunk, tasks, self.work, work_folder)) as encoded_chunks,
                report_texts("passages", new_rows),
                show_progress(total=all_rows, unit="row", label="encode", done=all_rows - new_rows) as bar,
            ):
                for chunk_files in bar.follow(encoded_chunks, rows_to_encode):
                    files += chunk_files
        finally:  # also after an error, because the model's files may change before the next call
            _encoder_of.cache_clear()
        return files

    def _stored_parts(self, release: Release, config: str, index_folder: Path) -> list[Path]:
        """Return the folders with vectors of some passages that :meth:`scores` has written beside an index."""
        # Other kinds of models have several arrays with limits of their own.
        if "dim" not in self.result_inputs:
            return []
        part_folders = sorted(_parts_of(index_folder).glob("*"))
        intact_folders = [index.path for index in self._intact_indexes(part_folders, release, config)]
        if intact_folders:
            log.info("%s: vectors of some passages are reused from %s", index_folder, _parts_of(index_folder))
        return intact_folders

    def _origin(self, release: Release, config: str, split: str, store: str = FLOAT16) -> dict[str, Any]:
        """Return the manifest of an index without the entries for rows and files."""
        model_facts = self.result_inputs
        # "used" is left out, because the fingerprint covers it. "similarity" and "dim" are entries of the index.
        not_of_model = ("similarity", "dim", "used")
        origin = {
            "name": NAME,
            "format": 1,
            "of": "passages" if split == "corpus" else "queries",
            "config": config,
            "split": split,
            "fingerprint": release.fingerprint(config, split),
            "model": {key: value for key, value in model_facts.items() if key not in not_of_model},
            "similarity": model_facts["similarity"],
            "batch_tokens": self.batch_tokens,
        }
        if "dim" in model_facts:
            origin["dim"] = model_facts["dim"]
            origin["dtype"] = store
            if store != FLOAT16:
                origin["format"] = 2  # an earlier version would take the codes for embeddings
        else:
            # A text has several vectors or weights. The kind says which arrays a chunk has.
            origin["kind"] = self.kind
        return origin

    def scores(
        self, release: Release, config: str, index_folder: Path, groups: Sequence[tuple[str, Sequence[str]]]
    ) -> tuple[list[list[float]], int]:
        """Return (scores of each group's passages, number of passages that this call encoded).

        A group is the text of a query and ids of passages. The scores are the same as those of :meth:`search`, or -inf
        for a passage that a search never returns. A passage is encoded once. Encodings are reused from the index
        ``index_folder`` and from the indexes in the directory ``index_folder.parts``. New encodings are written to this
        directory.
        """
        scorer, new_count = self.open_scorer(release, config, index_folder, [ids for _, ids in groups])
        return scorer.scores(groups), new_count

    def open_scorer(
        self, release: Release, config: str, index_folder: Path, id_groups: Iterable[Sequence[str]]
    ) -> tuple["PassageScorer", int]:
        """Open a scorer of the passages ``id_groups``, and return it with the number of passages encoded now.

        ``id_groups`` has the passage ids of each group. Only passages that no index has are encoded. The other
        arguments are those of :meth:`scores`.
        """
        _expect_full_embeddings(index_folder)
        # Find the passages that no index has, and encode these passages.
        passages = open_passages(release, config)
        all_passage_ids = list(itertools.chain.from_iterable(id_groups))
        wanted_rows = np.unique(np.asarray(passages.rows(all_passage_ids), np.int64))
        parts_folder = _parts_of(index_folder)
        index_folders = [index_folder, *sorted(parts_folder.glob("*"))]
        parts = [(index, _rows_of(index)) for index in self._intact_indexes(index_folders, release, config)]
        # -1 is the row of an unknown id, which is never encoded.
        stored_rows = np.concatenate([[-1], *(rows for _, rows in parts)])
        new_rows = np.setdiff1d(wanted_rows, stored_rows)
        if len(new_rows):
            parts_folder.mkdir(exist_ok=True)
            chosen_rows = new_rows.tolist()
            # An interruption loses a chunk.
            chunk_rows = max(1, self.chunk_rows // _PARTS_PER_CHUNK)
            part_path = parts_folder / key_of(chosen_rows)
            index = self.index(release, config, part_path, chunk_rows=chunk_rows, chosen_rows=chosen_rows)
            parts.append((index, new_rows))
        encoder = self.encoder(self.work.devices[0], "query") if parts else None
        return PassageScorer(self, passages, parts, encoder), len(new_rows)

    def _intact_indexes(self, index_folders: Iterable[Path], release: Release, config: str) -> Iterator[VectorIndex]:
        """Yield the intact indexes of this model and corpus. A damaged index is skipped, with a warning."""
        origin = self._origin(release, config, "corpus")
        for folder in index_folders:
            try:
                index = VectorIndex.read(folder)
                if not _is_of(index, origin):
                    continue
                fault = index.fault()
            except InputError:  # no index
                continue
            if fault:
                log.warning("%s: damaged (%s); not used", folder, fault)
            else:
                yield index

    def search(
        self, release: Release, config: str, index: VectorIndex, query_texts: Sequence[str], top_k: int
    ) -> Iterator[list[Hit]]:
        """Yield each query's ``top_k`` best passages, by falling score, then by corpus id.

        ``index`` is the result of :meth:`index` for ``release`` and ``config``. ``query_texts`` have no prompt.
        """
        if query_texts:
            yield from self.open_search(release, config, index, top_k).hits(query_texts)

    def passage_index(self, release: Release, config: str, index_folder: Path) -> VectorIndex:
        """Build or reuse the index of all passages in ``index_folder``.

        Raises :class:`InputError` for a folder of smaller embeddings.
        """
        _expect_full_embeddings(index_folder)
        return self.index(release, config, index_folder)

    def open_search(self, release: Release, config: str, index: VectorIndex, top_k: int) -> "OpenSearch":
        """Open the model to search an index of :meth:`index`."""
        passages = open_passages(release, config)
        return OpenSearch(self, index, passages, self.encoder(self.work.devices[0], "query"), top_k)

    def hits(
        self, release: Release, config: str, index_folder: Path, queries: Sequence[tuple[str, str]], top_k: int
    ) -> Iterator[tuple[str, list[Hit]]]:
        """Return (query id, best passages) for each (query id, text). Build or reuse the index in ``index_folder``."""
        query_ids = [query_id for query_id, _ in queries]
        query_texts = [query_text for _, query_text in queries]
        index = self.passage_index(release, config, index_folder)
        return zip(query_ids, self.search(release, config, index, query_texts, top_k), strict=True)


@dataclass(frozen=True)
class OpenSearch:
    """A model and an index that are open for queries.

    ``encoder`` is the model's query encoder. ``top_k`` is the number of passages per query.
    """

    retriever: Retriever
    index: VectorIndex
    passages: CachedPassages
    encoder: Any
    top_k: int

    def hits(self, query_texts: Sequence[str]) -> Iterator[list[Hit]]:
        """Yield the best passages of each query, by falling score, then by corpus id. At least one query is needed."""
        with report_texts("queries", len(query_texts)):
            query_encodings = encode_queries(self.encoder, query_texts)
            rows_and_scores = self.retriever.search_encodings(
                self.index, self.passages, query_encodings, len(query_texts), self.top_k
            )
            yield from name_hits(rows_and_scores, self.passages, self.top_k)

    def search_alone(self, query_text: str) -> list[Hit]:
        """Return the best passages of one query."""
        (best_hits,) = self.hits([query_text])
        return best_hits


@dataclass(frozen=True)
class PassageScorer:
    """A model and encoded passages that are open to score queries with some of these passages.

    Attributes:
        parts: the indexes with the passages, and the rows of the corpus in each index.
        encoder: the model's query encoder. None if there are no passages.
    """

    retriever: Retriever
    passages: CachedPassages
    parts: Sequence[tuple[VectorIndex, Rows]]
    encoder: Any | None

    def scores(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[list[float]]:
        """Return the scores of each group's passages, or -inf for a passage that a search never returns.

        A group is the text of a query and ids of passages.
        """
        with report_texts("queries", len(groups)):
            return self._score_groups(groups)

    def _score_groups(self, groups: Sequence[tuple[str, Sequence[str]]]) -> list[list[float]]:
        """Return the result of :meth:`scores`, which measures the time of this method."""
        # Make a matrix of passage rows with one line per group. The row -1 fills up the lines of shorter groups.
        group_sizes = np.array([len(passage_ids) for _, passage_ids in groups], np.int64)
        is_passage = np.arange(group_sizes.max(initial=0)) < group_sizes[:, None]
        all_passage_ids: list[str] = []
        for _, passage_ids in groups:
            all_passage_ids.extend(passage_ids)
        unscored_rows = np.full(is_passage.shape, -1)
        unscored_rows[is_passage] = self.passages.rows(all_passage_ids)

        # Score each passage by the first index that has it.
        scores = np.full(is_passage.shape, -np.inf, np.float32)
        query_encodings = None
        if self.encoder is not None:
            query_encodings = encode_queries(self.encoder, [query_text for query_text, _ in groups])
        for index, rows in self.parts:
            positions, is_in_index = _find_rows(rows, unscored_rows)
            rows_in_index = np.where(is_in_index, positions, -1)
            part_scores = self.retriever.pair_scores(index, query_encodings, rows_in_index)
            scores[is_in_index] = part_scores[is_in_index]
            unscored_rows[is_in_index] = -1  # other parts may have the same passage
        group_scores = []
        for line, group_size in zip(scores, group_sizes, strict=True):
            group_scores.append([_shortest_decimal(score) for score in line[:group_size]])
        return group_scores


# Module and class of the retriever for each kind of model. The modules import PyTorch, so they are imported on use.
RETRIEVERS = {
    "dense": ("dense", "DenseRetriever"),
    "static": ("dense", "StaticRetriever"),
    "sparse": ("sparse", "SparseRetriever"),
    "multi-vector": ("multi_vector", "MultiVector"),
}


def open_retriever(settings: ModelSettings, work: Work, kind: str = "") -> Retriever:
    """Return a model's retriever. The model's files determine an empty ``kind``. Raises :class:`InputError`."""
    model_kind = kind or kind_of_model(settings)
    if model_kind not in RETRIEVERS:
        raise InputError(f"is a model of kind {model_kind}; expected {', '.join(RETRIEVERS)}", path=settings.name)
    module_name, class_name = RETRIEVERS[model_kind]
    module = importlib.import_module(f"baselines.retrieve.{module_name}")
    retriever_class: type[Retriever] = getattr(module, class_name)
    commit = commit_of(settings.name, settings.revision)
    return retriever_class(structs.replace(settings, revision=commit), work)


def _expect_full_embeddings(index_folder: Path) -> None:
    """Raise :class:`InputError` for a folder of smaller embeddings, which `encode --store` wrote.

    Without the error, `run --index` would replace the embeddings.
    """
    try:
        store_name = VectorIndex.read(index_folder).store_name
    except InputError:  # no index yet, or a damaged one, which is encoded again
        return
    if store_name != FLOAT16:
        raise InputError(
            f"has {store_name} embeddings; expected 16-bit embeddings or a new path (`python -m baselines search "
            "--passages` searches smaller embeddings)",
            path=index_folder,
        )


def _is_of(index: VectorIndex, origin: dict[str, Any]) -> bool:
    """True if the manifest's fields equal those of ``origin``. The commits of the models may differ."""
    recorded_origin = {key: index.manifest.get(key) for key in origin}
    return _without_commit(recorded_origin) == _without_commit(origin)


def _without_commit(origin: dict[str, Any]) -> dict[str, Any]:
    model = {**origin["model"], "commit": None}
    return {**origin, "model": model}


def _parts_of(index_folder: Path) -> Path:
    """Return the directory beside an index for the vectors of some passages."""
    return index_folder.with_name(f"{index_folder.name}.parts")


def _load_stored_vectors(index_folders: Sequence[Path], chunk_rows: Rows) -> tuple[npt.NDArray[np.bool_], Halves]:
    """Return (True for each of ``chunk_rows`` that an index has, vectors of all these rows). Other vectors are zeros.

    ``chunk_rows`` are rows of the split that the indexes encode.
    """
    is_stored = np.zeros(len(chunk_rows), bool)
    vectors: Halves = np.zeros((len(chunk_rows), 0), np.float16)
    for folder in index_folders:
        index = VectorIndex.read(folder)
        if not vectors.shape[1]:  # the first index has the number of dimensions
            vectors = np.zeros((len(chunk_rows), index.dim), np.float16)
        positions, is_in_index = _find_rows(_rows_of(index), chunk_rows)
        is_new = is_in_index & ~is_stored
        for start, block in index.blocks():
            is_in_block = is_new & (positions >= start) & (positions < start + len(block))
            vectors[is_in_block] = block[positions[is_in_block] - start]
        is_stored |= is_new
    return is_stored, vectors


def _find_rows(sorted_rows: Rows, wanted_rows: Rows) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the position of each wanted row in ``sorted_rows``, and True where ``sorted_rows`` has the row.

    A row that is missing has the position of some other row. For example, ``[3, 5, 8]`` has the rows 5 and 6 at the
    positions 1 and 2, and only the first of them is True.
    """
    # searchsorted returns the length for a row after the last one.
    positions = np.minimum(np.searchsorted(sorted_rows, wanted_rows), len(sorted_rows) - 1)
    return positions, sorted_rows[positions] == wanted_rows


def _rows_of(index: VectorIndex) -> Rows:
    """Return the corpus rows in an index, in ascending order."""
    listed_rows = index.manifest.get("rows")
    if listed_rows is None:
        return np.arange(index.rows)
    return np.array(listed_rows, np.int64)


def _shortest_decimal(score: np.floating[Any]) -> float:
    """Return the decimal number with the fewest digits that identifies a 32-bit score."""
    return float(str(score))


def _read_texts(release: Release, config: str, split: str, rows: Sequence[int]) -> list[str]:
    """Return the texts of some rows of a split. Passages that the cache lacks are unpacked first."""
    if split == "corpus":
        return open_passages(release, config).texts(rows)
    queries = read_queries(release, split, config)
    return [queries[row][1] for row in rows]


@dataclass(frozen=True)
class _ChunkTask:
    """A chunk to encode, as a task for a process.

    Attributes:
        release_path, config, split: source of the texts.
        rows: rows of the split.
        path: path of the chunk's files without their endings.
        stored_folders: indexes whose vectors are reused.
        store: smaller form of the embeddings; None for the arrays of the model.
    """

    retriever: Retriever
    release_path: Path
    config: str
    split: str
    rows: Sequence[int]
    path: Path
    stored_folders: list[Path]
    store: VectorStore | None = None


def _encode_chunk(task: _ChunkTask, device: str) -> list[IndexFile]:
    """Encode one chunk and return the chunk's files. A chunk that an interrupted build finished is reused."""
    release = open_release(task.release_path)
    work_folder = task.path.parent
    side = "document" if task.split == "corpus" else "query"

    def encode_rows(rows: Sequence[int]) -> Any:
        encoder = _encoder_of(task.retriever, device, side)
        return encoder.encode(_read_texts(release, task.config, task.split, rows))

    def write_chunk() -> list[IndexFile]:
        """Encode the rows that no index in ``stored_folders`` has, and write the files of the chunk."""
        chunk_rows = np.asarray(task.rows)
        is_stored, encodings = _load_stored_vectors(task.stored_folders, chunk_rows)
        if not is_stored.any():
            encodings = encode_rows(task.rows)
        elif not is_stored.all():
            encodings[~is_stored] = encode_rows(chunk_rows[~is_stored].tolist())
        arrays = task.retriever.arrays(encodings)
        if task.store is not None:
            arrays = {"": task.store.pack(encodings)}
        files = []
        for name_end, array in arrays.items():
            files.append(_save_array(work_folder, f"{task.path.name}{name_end}.npy", array, task.store))
        log.info("%s is done", task.path.name)
        return files

    def is_intact(files: list[IndexFile]) -> bool:
        return bool(files) and not first_fault(work_folder, files)

    return resume_or_run(_note_of(task.path), list[IndexFile], is_intact, write_chunk)


def _note_of(chunk_path: Path) -> Path:
    """Return the path of the JSON file that lists the files of a finished chunk."""
    return chunk_path.with_name(f"{chunk_path.name}.npy.json")


@LastResult
def _encoder_of(retriever: Retriever, device: str, task: str) -> Any:
    with preparing():
        return retriever.encoder(device, task)


def _save_array(folder: Path, file_name: str, array: npt.NDArray[Any], store: VectorStore | None) -> IndexFile:
    """Save an array, and return its entry for the manifest. ``store`` is its form; None for an array of the model."""
    path = folder / file_name
    path.parent.mkdir(exist_ok=True)  # a model with several arrays has a folder for each chunk
    with new_file(path) as temporary_path, open(temporary_path, "wb") as stream:
        np.save(stream, array)
    entry = structs.asdict(describe_file(folder, file_name, len(array)))
    return IndexFile(**entry, longest=ROUNDED_UP * longest_vector(array, store))


def resume_or_run(
    note_path: Path, result_type: type[Made], is_right: Callable[[Made], bool], make_result: Callable[[], Made]
) -> Made:
    """Return the result that an interrupted job has written, or make and write the result.

    Args:
        note_path: JSON file with the result, which is written last.
        result_type: type of the result.
        is_right: returns False for the result of another task, or if a file of the task is missing or damaged.
        make_result: runs the task and writes all its other files.
    """
    with contextlib.suppress(FileNotFoundError, InputError):
        earlier_result = read_json(note_path, result_type)
        if is_right(earlier_result):
            return earlier_result
    result = make_result()
    write_text(note_path, json.dumps(msgspec.to_builtins(result)))
    return result


class BestHits:
    """Collect each query's ``top_k`` best passages chunk by chunk, and passages within ``slack`` of the last score.

    Args:
        query_count: number of queries.
        top_k: passages per query.
        slack: for each query, the largest error of the difference of two scores (default: 0).
    """

    def __init__(self, query_count: int, top_k: int, slack: npt.NDArray[Any] | None = None) -> None:
        self._top_k = top_k
        if slack is None:
            slack = np.zeros(query_count)
        self._slack = slack
        no_hits = (np.empty(0, np.int64), np.empty(0))
        self._hits: list[tuple[Rows, Scores]] = [no_hits] * query_count

    def add(self, query: int, new_rows: Rows, new_scores: Scores) -> None:
        """Add passages of a chunk to the passages of the query with this number."""
        best_rows, best_scores = self._hits[query]
        rows = np.concatenate([best_rows, new_rows])
        scores = np.concatenate([best_scores, new_scores])
        if len(rows) > self._top_k:
            # partition puts the number that a sorted array would have there at this position.
            position = len(scores) - self._top_k
            last_score = np.partition(scores, position)[position]
            is_kept = scores >= last_score - self._slack[query]
            rows = rows[is_kept]
            scores = scores[is_kept]
        self._hits[query] = rows, scores

    def __iter__(self) -> Iterator[tuple[Rows, Scores]]:
        return iter(self._hits)


def name_hits(
    rows_and_scores: Iterable[tuple[Rows, npt.NDArray[Any]]], passages: CachedPassages, top_k: int
) -> Iterator[list[Hit]]:
    """Convert each query's (rows, scores) to its ``top_k`` best hits, by falling score, then by corpus id."""
    for rows, scores in rows_and_scores:
        raise_if_stopped()
        passage_ids = passages.ids(rows.tolist())
        rounded_scores = [_shortest_decimal(score) for score in scores.astype(np.float32)]
        yield best_first(zip(passage_ids, rounded_scores, strict=True))[:top_k]
