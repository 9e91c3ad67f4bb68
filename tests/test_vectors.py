"""A directory of embeddings is what its manifest says, or it is not searched."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from releases import TEXTS, make_release
from test_exact_search import write_vectors

from baselines.retrieve import embeddings
from baselines.retrieve.embeddings import open_vectors
from builders.common.command import InputError
from builders.common.files import sha256_of
from builders.store.reader import open_release

SHARD = "passages-00001-of-00003.npy"
VALUES = np.arange(48, dtype=np.float16).reshape(6, 8) + 1
Damage = Callable[[Path], Any]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Embeddings of 6 passages in 3 shards."""
    return write_vectors(tmp_path / "passages", VALUES, 2).path


def edit(folder: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    manifest = json.loads((folder / "manifest.json").read_text())
    change(manifest)
    (folder / "manifest.json").write_text(json.dumps(manifest))


def rewritten(folder: Path, change: Callable[[np.ndarray], Any]) -> None:
    """A shard of other numbers, whose size and SHA-256 the manifest lists."""
    values = np.load(folder / SHARD)
    change(values)
    np.save(folder / SHARD, values)
    edit(folder, lambda manifest: manifest["shards"][1].update(sha256=sha256_of(folder / SHARD)))


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def swap(folder: Path) -> None:
    first, second = folder / "passages-00000-of-00003.npy", folder / SHARD
    one, other = first.read_bytes(), second.read_bytes()
    first.write_bytes(other)
    second.write_bytes(one)


@pytest.mark.parametrize(
    ("damage", "where", "message"),
    [
        (lambda f: (f / SHARD).unlink(), SHARD, "is listed in the manifest but missing"),
        (lambda f: (f / SHARD).write_bytes((f / SHARD).read_bytes()[:-2]), SHARD, "bytes where the manifest says"),
        (lambda f: flip(f / SHARD, -1), SHARD, "has the SHA-256"),
        (lambda f: flip(f / SHARD, 10), SHARD, "has the SHA-256"),
        (swap, "passages-00000-of-00003.npy", "has the SHA-256"),
        (lambda f: edit(f, lambda m: m["shards"][1].update(rows=1)), SHARD, "says float16 of (1, 8)"),
        (lambda f: rewritten(f, lambda values: values.__setitem__((1, 3), np.nan)), SHARD, "as long as nan where"),
        (lambda f: rewritten(f, lambda values: values.__setitem__((1, 3), np.inf)), SHARD, "as long as inf where"),
        (lambda f: edit(f, lambda m: m["shards"][1].update(longest=1.0)), SHARD, "where the manifest says 1.0"),
        (lambda f: edit(f, lambda m: m["shards"][1].update(longest=1e9)), SHARD, "where the manifest says 1000000000"),
        (lambda f: edit(f, lambda m: m["shards"].pop(1)), "manifest.json", "expected passages-00000-of-00002.npy"),
        (lambda f: edit(f, lambda m: m["shards"].pop()), "manifest.json", "expected passages-00000-of-00002.npy"),
        (lambda f: edit(f, lambda m: m["shards"].reverse()), "manifest.json", "expected passages-00000-of-00003.npy"),
        (lambda f: edit(f, lambda m: m["shards"].append(m["shards"][2])), "manifest.json", "shards[0].path: expected"),
        (lambda f: edit(f, lambda m: m["shards"].clear()), "manifest.json", "shards: expected `array` of length >= 1"),
        (lambda f: edit(f, lambda m: m["shards"][0].pop("sha256")), "manifest.json", "shards[0]: lacks sha256"),
        (lambda f: edit(f, lambda m: m["shards"][0].update(rows=0)), "manifest.json", "shards[0].rows: expected"),
        (
            lambda f: edit(f, lambda m: m["model"].update(max_length="no")),
            "manifest.json",
            "model.max_length: expected",
        ),
        (lambda f: (f / "manifest.json").write_text("{"), "manifest.json", "expected JSON"),
    ],
)
def test_damaged_embeddings_are_one_error(folder: Path, damage: Damage, where: str, message: str) -> None:
    damage(folder)
    with pytest.raises(InputError) as error:
        open_vectors(folder)
    assert where in str(error.value) and message in str(error.value)


def test_embeddings_of_fewer_rows_than_the_release_are_one_error(folder: Path, tmp_path: Path) -> None:
    release = open_release(make_release(tmp_path / "release"))
    of_release = {"fingerprint": release.fingerprint("corpus", "corpus")}
    edit(folder, lambda manifest: manifest.update(of_release))
    assert release.rows("corpus", "corpus") == len(TEXTS) == 6
    open_vectors(folder).check("passages", release, "corpus", "corpus")
    fewer = write_vectors(tmp_path / "fewer", VALUES[:4], 2).path
    edit(fewer, lambda manifest: manifest.update(of_release))
    with pytest.raises(InputError, match="fewer: holds 4 rows where the release has 6"):
        open_vectors(fewer).check("passages", release, "corpus", "corpus")


def test_embeddings_are_read_through_once(folder: Path, settled: None, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    digest = embeddings.other_sha256
    monkeypatch.setattr(embeddings, "other_sha256", lambda path, sha256: looked.append(path) or digest(path, sha256))
    open_vectors(folder)
    assert len(looked) == 3
    open_vectors(folder)
    assert len(looked) == 3
    flip(folder / SHARD, -1)
    with pytest.raises(InputError, match=SHARD):
        open_vectors(folder)
    assert len(looked) == 4
