"""Embeddings and finished windows, spoiled: what needs PyTorch to be read."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from fuzzing import Reader, fuzz_of, same
from spoil import BYTES, JSON

from builders.core.files import sha256_of


def _embeddings(folder: Path) -> None:
    """Two chunks: one a file, one a folder of two arrays."""
    from baselines.retrieve.encoder import largest_norm
    from baselines.retrieve.index import MANIFEST, NAME

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
    from baselines.retrieve.index import open_vectors

    found = open_vectors(folder)
    first, second = found.chunks
    return [array.tolist() for array in [*found.arrays(first, ""), *found.arrays(second, "/a", "/b")]], found.dim


def _read_notes(folder: Path) -> Any:
    """Return the work that a killed `encode` finds done."""
    from baselines.retrieve.index import File, resumed
    from baselines.retrieve.passages import first_fault

    notes = sorted(folder.glob("*.npy.json"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("baselines.retrieve.index.write_text", lambda *_: None)
        found = [resumed(note, list[File], lambda files: not first_fault(folder, files), lambda: []) for note in notes]
    return [{"sha256": files[0].sha256} if files else None for files in found]


def _true_notes(found: list[Any], good: list[Any], folder: Path) -> bool:
    """A chunk that is done has the bytes that its note says; one that is not is encoded again."""
    return all(note is None or note["sha256"] == real["sha256"] for note, real in zip(found, good, strict=True))


def _window(folder: Path) -> None:
    (folder / "window-000000.json").write_text(json.dumps([[0.5, -1.25], [3.0]]))


def _read_window(folder: Path) -> Any:
    """Return the work that a killed `rerank` finds done; the rest is scored, here by nobody."""
    from baselines.retrieve import rerankers

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rerankers, "score_groups", lambda *_: [])
        patch.setattr("baselines.retrieve.index.write_text", lambda *_: None)
        job: Any = None
        return rerankers._score_window((job, folder / "window-000000.json", [("q", ["a", "b"]), ("r", ["c"])]), "cpu")


def _scores(found: list[list[float]], *_: object) -> bool:
    return found == [] or [len(own) for own in found] == [2, 1]


_INDEX, _WINDOW = "baselines.retrieve.index:", ("baselines.retrieve.rerankers:_score_window",)
_ARRAYS = {"manifest.json": JSON, "*.npy": BYTES, "*/*.npy": BYTES}
_NOTES = {"*.npy.json": JSON, "*.npy": BYTES}
READERS = [
    Reader((f"{_INDEX}read", f"{_INDEX}_mapped"), _embeddings, _ARRAYS, _read_embeddings, same),
    Reader((f"{_INDEX}resumed",), _embeddings, _NOTES, _read_notes, _true_notes),
    Reader(_WINDOW, _window, {"*.json": JSON}, _read_window, _scores),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
