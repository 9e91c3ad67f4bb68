"""Damaged model folders of every kind, embeddings, and finished windows, which need PyTorch to be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from fuzzing import Reader, fuzz_of, same
from spoil import BYTES, JSON
from tiny_families import with_modules, write_encoder
from tiny_kinds import write_language_model, write_multi_vector, write_sparse, write_static
from tiny_models import write_bert, write_cross, write_dual

from baselines.core.passages import first_fault
from baselines.core.settings import ModelSettings
from baselines.retrieve import rerankers
from baselines.retrieve.dense import DenseRetriever
from baselines.retrieve.devices import Work
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.exact_search import largest_norm
from baselines.retrieve.index_files import MANIFEST, NAME, IndexFile, open_vectors
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import open_encoder
from baselines.retrieve.multi_vector import MultiVector
from baselines.retrieve.own_vectors import _open_stored, build_vectors
from baselines.retrieve.rerankers import open_reranker
from baselines.retrieve.sparse import SparseRetriever
from baselines.retrieve.vector_index import resume_or_run
from baselines.retrieve.vector_stores import measure_ranges, open_store
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder, masked_language_model
from builders.core.cache import describe_file
from builders.core.read_files import sha256_of

_TEXTS = ["北京的冬天很冷", "饺子怎么煮，问一问"]
_PAIRS = [("北京冬天冷吗", text) for text in _TEXTS]
_WORK = Work(("cpu",), "fp32")


def read_dense(folder: Path) -> Any:
    """Open a dense model, and encode the texts as queries and as passages."""
    settings = ModelSettings(str(folder / "model"), max_length=64)
    kind_name = kind_of_model(settings)
    assert DenseRetriever(settings, _WORK).result_inputs
    model = open_encoder(settings)
    vectors = [TextEncoder(model, task).encode(_TEXTS).tolist() for task in ("query", "document")]
    return kind_name, vectors


def read_sparse(folder: Path) -> Any:
    """Encode the texts by a sparse model."""
    model = SparseRetriever(ModelSettings(str(folder / "model")), _WORK)
    encodings = []
    for task in ("query", "document"):
        parts = model.encoder("cpu", task).encode(_TEXTS)
        encodings.append([part.tolist() for part in parts])
    return encodings


def read_multi_vector(folder: Path) -> Any:
    """Encode the texts by a model with a vector for each token."""
    model = MultiVector(ModelSettings(str(folder / "model")), _WORK)
    encodings = []
    for task in ("query", "document"):
        token_vectors = model.encoder("cpu", task).encode(_TEXTS)
        encodings.append([vectors.tolist() for vectors in token_vectors])
    return encodings


def read_reranker(folder: Path) -> Any:
    """Score the pairs by a re-ranker."""
    reranker = open_reranker(ModelSettings(str(folder / "model")), _WORK)
    reranker.result_inputs()
    return reranker.score(_PAIRS, "cpu")


def read_starting_checkpoint(folder: Path) -> Any:
    """Start a training of each kind from the model, and use it once."""
    start = str(folder / "model")
    lengths = ["data.passage_length=64", "data.query_length=16"]
    dual_encoder(read_recipe("de-bm25-neg-scratch", lengths), start, "cpu").encode(_TEXTS)
    cross_encoder(read_recipe("ce-bm25-neg-scratch", lengths), start, "cpu").predict(_PAIRS)
    model, tokenizer = masked_language_model(read_recipe("mlm-scratch", lengths), start)
    tokens = tokenizer(_TEXTS, padding=True, return_tensors="pt")
    model(tokens["input_ids"], attention_mask=tokens["attention_mask"], labels=tokens["input_ids"])
    return np.zeros(0)


def family_writer(name: str, pooling: str) -> Callable[[Path], Any]:
    """Return a function that writes a tiny model of a published family."""
    return lambda folder: with_modules(write_encoder(folder, name), pooling).rename(folder / "model")


def model_reader(name: str, write: Callable[[Path], Any], read: Callable[[Path], Any], reaches: str) -> Reader:
    """Return a fuzzer of a model folder. It has fewer cases, because models open slowly."""
    return Reader(
        reaches,
        name=f"a model: {name}",
        make=write,
        spoils={"model/**/*.json": JSON, "model/**/*.safetensors": BYTES},
        read=read,
        share=0.4,
    )


_MODELS = "baselines.retrieve.models"
READERS = [
    model_reader(
        "dual-encoder",
        lambda folder: write_dual(folder / "model"),
        read_dense,
        f"{_MODELS}:open_encoder baselines.retrieve.model_kinds:kind_of_model,_read_config",
    ),
    model_reader(
        "two towers",
        lambda folder: write_dual(folder / "model", router=True),
        read_dense,
        f"{_MODELS}:open_encoder",
    ),
    model_reader(
        "Qwen3",
        family_writer("Qwen/Qwen3-Embedding-0.6B", "lasttoken"),
        read_dense,
        f"{_MODELS}:open_encoder",
    ),
    model_reader(
        "XLM-R",
        family_writer("intfloat/multilingual-e5-large", "mean"),
        read_dense,
        f"{_MODELS}:open_encoder",
    ),
    model_reader(
        "static",
        lambda folder: write_static(folder / "model"),
        read_dense,
        f"{_MODELS}:check_tokenizer",
    ),
    model_reader(
        "sparse",
        lambda folder: write_sparse(folder / "model", inference_free=True),
        read_sparse,
        f"{_MODELS}:open_as",
    ),
    model_reader(
        "late interaction",
        lambda folder: write_multi_vector(folder / "model"),
        read_multi_vector,
        f"{_MODELS}:open_as",
    ),
    model_reader(
        "cross-encoder",
        lambda folder: write_cross(folder / "model"),
        read_reranker,
        f"{_MODELS}:open_cross",
    ),
    model_reader(
        "language model",
        lambda folder: write_language_model(folder / "model"),
        read_reranker,
        f"{_MODELS}:open_cross",
    ),
    model_reader(
        "start",
        lambda folder: write_bert(folder / "model"),
        read_starting_checkpoint,
        f"baselines.train.trained_models:cross_encoder {_MODELS}:class_names",
    ),
]


def write_embeddings(folder: Path) -> None:
    """Write two chunks: a file, and a folder of two arrays."""
    vectors = [np.random.default_rng(seed).normal(size=(3, 4)).astype(np.float16) for seed in range(2)]
    (folder / "passages-00001-of-00002").mkdir()
    arrays = {
        "passages-00000-of-00002.npy": vectors[0],
        "passages-00001-of-00002/a.npy": vectors[1],
        "passages-00001-of-00002/b.npy": np.arange(3),
    }
    chunks = []
    for number, (name, array) in enumerate(arrays.items(), start=1):
        path = folder / name
        np.save(path, array)
        longest = 1.0001 * largest_norm(array) if array.dtype == np.float16 else 0.0
        chunk = {
            "path": name,
            "rows": 3,
            "bytes": path.stat().st_size,
            "sha256": sha256_of(path),
            "longest": longest,
        }
        chunks.append(chunk)
        (folder / f"{number}.npy.json").write_text(json.dumps([chunk]))
    manifest = {
        "name": NAME,
        "format": 1,
        "of": "passages",
        "config": "corpus",
        "split": "corpus",
        "dim": 4,
        "fingerprint": "00",
        "model": {"name": "m", "fingerprint": "11"},
        "dtype": "float16",
        "shards": chunks,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest))


def write_small_embeddings(folder: Path, store_name: str) -> None:
    """Write two chunks of smaller embeddings."""
    vectors = [np.random.default_rng(seed).normal(size=(3, 12)).astype(np.float16) for seed in range(2)]
    manifest: dict[str, Any] = {
        "name": NAME,
        "format": 2,
        "of": "passages",
        "config": "corpus",
        "split": "corpus",
        "dim": 12,
        "fingerprint": "00",
        "model": {"name": "m", "fingerprint": "11"},
        "dtype": store_name,
        "shards": [],
    }
    ranges = None
    if store_name == "int8":
        ranges = measure_ranges(vectors[0])
        np.save(folder / "ranges.npy", ranges)
        manifest["ranges"] = msgspec.to_builtins(describe_file(folder, "ranges.npy", 2))
    store = open_store(store_name, 12, ranges)
    for number, part in enumerate(vectors):
        name = f"passages-{number:05d}-of-00002.npy"
        codes = store.pack(part)
        np.save(folder / name, codes)
        entry = msgspec.to_builtins(describe_file(folder, name, 3))
        manifest["shards"].append(entry | {"longest": 1.0001 * store.largest_norm(codes)})
    (folder / MANIFEST).write_text(json.dumps(manifest))


def read_small_embeddings(folder: Path) -> Any:
    """Return the unpacked embeddings."""
    return [block.tolist() for _, block in open_vectors(folder).blocks()]


def small_reader(store_name: str) -> Reader:
    return Reader(
        "baselines.retrieve.index_files:_describe_wrong_store",
        make=lambda folder: write_small_embeddings(folder, store_name),
        spoils={"manifest.json": JSON, "*.npy": BYTES},
        read=read_small_embeddings,
        right=same,
        name=f"{store_name} embeddings",
    )


def read_embeddings(folder: Path) -> Any:
    """Read the arrays of both chunks."""
    embeddings = open_vectors(folder)
    first_chunk, second_chunk = embeddings.chunks
    arrays = list(embeddings.arrays(first_chunk, ""))
    arrays += embeddings.arrays(second_chunk, "/a", "/b")
    return [array.tolist() for array in arrays], embeddings.dim


def read_notes(folder: Path) -> Any:
    """Return the chunks that a killed `encode` has left complete."""
    hashes = []
    # A chunk that is encoded again would write its note.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("baselines.retrieve.vector_index.write_text", lambda *_: None)
        for note_path in sorted(folder.glob("*.npy.json")):
            files = resume_or_run(note_path, list[IndexFile], lambda files: not first_fault(folder, files), lambda: [])
            hashes.append({"sha256": files[0].sha256} if files else None)
    return hashes


def are_notes_of_files(notes: list[Any], intact_notes: list[Any], _: Path) -> bool:
    """True if every complete chunk has the bytes that its note describes. Other chunks are encoded again."""
    for note, intact_note in zip(notes, intact_notes, strict=True):
        if note is not None and note["sha256"] != intact_note["sha256"]:
            return False
    return True


def write_window(folder: Path) -> None:
    """Write the scores of a window of two queries."""
    (folder / "window-000000.json").write_text(json.dumps([[0.5, -1.25], [3.0]]))


def read_window(folder: Path) -> Any:
    """Return the scores that a killed `rerank` has left. Nothing else is scored here."""
    candidates = [("q", ["a", "b"]), ("r", ["c"])]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "score_groups", lambda *_: [])
        patch.setattr("baselines.retrieve.vector_index.write_text", lambda *_: None)
        job: Any = None
        return rerankers._score_window((job, folder / "window-000000.json", candidates), "cpu")


def are_scores_of_candidates(scores_by_query: list[list[float]], *_: object) -> bool:
    """Accept no scores, or a score for each candidate."""
    score_counts = [len(scores) for scores in scores_by_query]
    return score_counts in ([], [2, 1])


def write_own_vectors(folder: Path) -> None:
    """Write the vectors of a user's own encoder."""
    vectors = np.arange(1.0, 16.0).reshape(5, 3)
    build_vectors(
        folder / "own",
        {"model": "encode", "dim": 3},
        corpus_rows=5,
        chosen=None,
        texts_of=lambda rows: [str(row) for row in rows],
        encode=lambda texts: vectors[[int(text) for text in texts]],
        texts_per_call=2,
    )


def read_own_vectors(folder: Path) -> Any:
    """Return the vectors of an own encoder. A damaged folder is encoded again."""
    stored = _open_stored(folder / "own", {"model": "encode", "dim": 3}, 5)
    if stored is None:
        return None
    blocks = [block.tolist() for _, block in stored.blocks()]
    return [stored.longest, stored.zeros, blocks]


def is_same_or_none(value: Any, intact_value: Any, _: Path) -> bool:
    """Accept the intact vectors, or None for vectors that are encoded again."""
    return value is None or value == intact_value


READERS += [
    small_reader("int8"),
    small_reader("binary"),
    Reader(
        "baselines.retrieve.index_files:read,_map_array",
        make=write_embeddings,
        spoils={"manifest.json": JSON, "*.npy": BYTES, "*/*.npy": BYTES},
        read=read_embeddings,
        right=same,
    ),
    Reader(
        "baselines.retrieve.vector_index:resume_or_run",
        make=write_embeddings,
        spoils={"*.npy.json": JSON, "*.npy": BYTES},
        read=read_notes,
        right=are_notes_of_files,
    ),
    Reader(
        "baselines.retrieve.own_vectors:_open_stored",
        make=write_own_vectors,
        spoils={"own/manifest.json": JSON, "own/vectors": BYTES},
        read=read_own_vectors,
        right=is_same_or_none,
    ),
    Reader(
        "baselines.retrieve.rerankers:_score_window",
        make=write_window,
        spoils={"*.json": JSON},
        read=read_window,
        right=are_scores_of_candidates,
    ),
]
test_a_damaged_model_is_used_or_refused_by_one_error = fuzz_of(READERS)
