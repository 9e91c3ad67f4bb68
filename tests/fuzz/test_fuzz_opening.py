"""Damaged model folders of every kind, embeddings, and finished windows, which need PyTorch to be read."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

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
from baselines.retrieve.dense import Dense
from baselines.retrieve.devices import Work
from baselines.retrieve.encoder import TextEncoder
from baselines.retrieve.exact_search import largest_norm
from baselines.retrieve.index_files import MANIFEST, NAME, File, open_vectors
from baselines.retrieve.model_kinds import kind_of_model
from baselines.retrieve.models import open_encoder
from baselines.retrieve.multi_vector import MultiVector
from baselines.retrieve.own_vectors import _open_stored, build_vectors
from baselines.retrieve.rerankers import open_reranker
from baselines.retrieve.sparse import Sparse
from baselines.retrieve.vector_index import resumed
from baselines.train.recipe import read_recipe
from baselines.train.trained_models import cross_encoder, dual_encoder, masked_language_model
from builders.core.files import sha256_of

_TEXTS = ["北京的冬天很冷", "饺子怎么煮，问一问"]
_PAIRS = [("北京冬天冷吗", text) for text in _TEXTS]
_WORK = Work(("cpu",), "fp32")


def _dense(folder: Path) -> Any:
    settings = ModelSettings(str(folder / "model"), max_length=64)
    kind = kind_of_model(settings)
    assert Dense(settings, _WORK).about
    model = open_encoder(settings)
    return kind, [TextEncoder(model, task).encode(_TEXTS).tolist() for task in ("query", "document")]


def _sparse(folder: Path) -> Any:
    model = Sparse(ModelSettings(str(folder / "model")), _WORK)
    return [[part.tolist() for part in model.encoder("cpu", task).encode(_TEXTS)] for task in ("query", "document")]


def _multi_vector(folder: Path) -> Any:
    model = MultiVector(ModelSettings(str(folder / "model")), _WORK)
    return [[own.tolist() for own in model.encoder("cpu", task).encode(_TEXTS)] for task in ("query", "document")]


def _reranked(folder: Path) -> Any:
    reranker = open_reranker(ModelSettings(str(folder / "model")), _WORK)
    reranker.about()
    return reranker.score(_PAIRS, "cpu")


def _started(folder: Path) -> Any:
    start = str(folder / "model")
    lengths = ["data.passage_length=64", "data.query_length=16"]
    dual_encoder(read_recipe("de-bm25-neg-scratch", lengths), start, "cpu").encode(_TEXTS)
    cross_encoder(read_recipe("ce-bm25-neg-scratch", lengths), start, "cpu").predict(_PAIRS)
    model, tokenizer = masked_language_model(read_recipe("mlm-scratch", lengths), start)
    tokens = tokenizer(_TEXTS, padding=True, return_tensors="pt")
    model(tokens["input_ids"], attention_mask=tokens["attention_mask"], labels=tokens["input_ids"])
    return np.zeros(0)


def _family(name: str, pooling: str) -> Callable[[Path], Any]:
    return lambda folder: with_modules(write_encoder(folder, name), pooling).rename(folder / "model")


_SPOILS = {"model/**/*.json": JSON, "model/**/*.safetensors": BYTES}


def _reader(name: str, write: Callable[[Path], Any], read: Callable[[Path], Any], reaches: str) -> Reader:
    return Reader(reaches, name=f"a model: {name}", make=write, spoils=_SPOILS, read=read, share=0.4)


_OPEN, _TRAIN = "baselines.retrieve.models", "baselines.train.trained_models"
READERS = [
    _reader(
        "dual-encoder",
        lambda f: write_dual(f / "model"),
        _dense,
        f"{_OPEN}:open_encoder baselines.retrieve.model_kinds:kind_of_model,_read_config",
    ),
    _reader("two towers", lambda f: write_dual(f / "model", router=True), _dense, f"{_OPEN}:open_encoder"),
    _reader("Qwen3", _family("Qwen/Qwen3-Embedding-0.6B", "lasttoken"), _dense, f"{_OPEN}:open_encoder"),
    _reader("XLM-R", _family("intfloat/multilingual-e5-large", "mean"), _dense, f"{_OPEN}:open_encoder"),
    _reader("static", lambda f: write_static(f / "model"), _dense, f"{_OPEN}:check_tokenizer"),
    _reader("sparse", lambda f: write_sparse(f / "model", inference_free=True), _sparse, f"{_OPEN}:open_as"),
    _reader("late interaction", lambda f: write_multi_vector(f / "model"), _multi_vector, f"{_OPEN}:open_as"),
    _reader("cross-encoder", lambda f: write_cross(f / "model"), _reranked, f"{_OPEN}:open_cross"),
    _reader("language model", lambda f: write_language_model(f / "model"), _reranked, f"{_OPEN}:open_cross"),
    _reader(
        "start",
        lambda f: write_bert(f / "model"),
        _started,
        f"baselines.train.trained_models:cross_encoder {_OPEN}:classes",
    ),
]


def _embeddings(folder: Path) -> None:
    """Write two chunks: a file, and a folder of two arrays."""
    rows = [np.random.default_rng(number).normal(size=(3, 4)).astype(np.float16) for number in range(2)]
    (folder / "passages-00001-of-00002").mkdir()
    chunks = []
    for name, array in (("00000-of-00002", rows[0]), ("00001-of-00002/a", rows[1]), ("00001-of-00002/b", np.arange(3))):
        path = folder / f"passages-{name}.npy"
        np.save(path, array)
        longest = 1.0001 * largest_norm(array) if array.dtype == np.float16 else 0.0
        of_file = {"rows": 3, "bytes": path.stat().st_size, "sha256": sha256_of(path), "longest": longest}
        chunks.append({"path": path.relative_to(folder).as_posix(), **of_file})
        (folder / f"{len(chunks)}.npy.json").write_text(json.dumps([chunks[-1]]))
    about = {"name": NAME, "format": 1, "of": "passages", "config": "corpus", "split": "corpus", "dim": 4}
    about |= {"fingerprint": "00", "model": {"name": "m", "fingerprint": "11"}, "dtype": "float16", "shards": chunks}
    (folder / MANIFEST).write_text(json.dumps(about))


def _read_embeddings(folder: Path) -> Any:
    found = open_vectors(folder)
    first, second = found.chunks
    return [array.tolist() for array in [*found.arrays(first, ""), *found.arrays(second, "/a", "/b")]], found.dim


def _read_notes(folder: Path) -> Any:
    """Return the chunks that a killed `encode` has left complete."""
    notes = sorted(folder.glob("*.npy.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("baselines.retrieve.vector_index.write_text", lambda *_: None)
        found = [resumed(note, list[File], lambda files: not first_fault(folder, files), lambda: []) for note in notes]
    return [{"sha256": files[0].sha256} if files else None for files in found]


def _true_notes(found: list[Any], good: list[Any], folder: Path) -> bool:
    """True if every complete chunk has the bytes that its note describes. Other chunks are encoded again."""
    return all(note is None or note["sha256"] == real["sha256"] for note, real in zip(found, good, strict=True))


def _window(folder: Path) -> None:
    (folder / "window-000000.json").write_text(json.dumps([[0.5, -1.25], [3.0]]))


def _read_window(folder: Path) -> Any:
    """Return the scores that a killed `rerank` has left. Nothing else is scored here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "score_groups", lambda *_: [])
        patch.setattr("baselines.retrieve.vector_index.write_text", lambda *_: None)
        job: Any = None
        return rerankers._score_window((job, folder / "window-000000.json", [("q", ["a", "b"]), ("r", ["c"])]), "cpu")


def _scores(found: list[list[float]], *_: object) -> bool:
    return found == [] or [len(own) for own in found] == [2, 1]


def _own_vectors(folder: Path) -> None:
    about = {"model": "encode", "dim": 3}
    vectors = np.arange(1.0, 16.0).reshape(5, 3)
    build_vectors(
        folder / "own",
        about,
        corpus_rows=5,
        chosen=None,
        texts_of=lambda rows: [str(row) for row in rows],
        encode=lambda texts: vectors[[int(text) for text in texts]],
        texts_per_call=2,
    )


def _read_own_vectors(folder: Path) -> Any:
    """Return the vectors of an own encoder. A damaged folder is encoded again."""
    stored = _open_stored(folder / "own", {"model": "encode", "dim": 3}, 5)
    return None if stored is None else [stored.longest, stored.zeros, [block.tolist() for _, block in stored.blocks()]]


def _same_or_none(found: Any, good: Any, folder: Path) -> bool:
    return found is None or found == good


_ARRAYS = {"manifest.json": JSON, "*.npy": BYTES, "*/*.npy": BYTES}
_OWN = {"own/manifest.json": JSON, "own/vectors": BYTES}
_NOTES = {"*.npy.json": JSON, "*.npy": BYTES}
READERS += [
    Reader("baselines.retrieve.index_files:read,_map_array", _embeddings, _ARRAYS, _read_embeddings, same),
    Reader("baselines.retrieve.vector_index:resumed", _embeddings, _NOTES, _read_notes, _true_notes),
    Reader("baselines.retrieve.own_vectors:_open_stored", _own_vectors, _OWN, _read_own_vectors, _same_or_none),
    Reader("baselines.retrieve.rerankers:_score_window", _window, {"*.json": JSON}, _read_window, _scores),
]
test_a_damaged_model_is_used_or_refused_by_one_error = fuzz_of(READERS)
