"""The shards of a release are what its manifest says, or nothing is made of them."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from baselines.retrieve.passages import open_passages
from builders.core import cache
from builders.core.errors import InputError
from builders.store.layout import MANIFEST, schema_of
from builders.store.reader import Release, open_release
from builders.store.runs import write_run

SHARD = "corpus/corpus-00001-of-00003.parquet"
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture
def release(tmp_path: Path) -> Path:
    """6 passages in 3 shards."""
    return make_release(tmp_path / "release")


def texts(release: Release) -> list[str]:
    return [text for batch in release.batches("corpus", "corpus", ["text"]) for text in batch["text"].to_pylist()]


def flipped(path: Path, bit: int) -> bytes:
    """Flip one bit of a file; what it was."""
    before = path.read_bytes()
    content = bytearray(before)
    content[bit // 8] ^= 1 << bit % 8
    path.write_bytes(content)
    return before


def test_no_flipped_bit_gives_other_rows(release: Path) -> None:
    opened, path = open_release(release), release / SHARD
    for bit in range(0, 8 * path.stat().st_size, 97):
        whole = flipped(path, bit)
        with pytest.raises(InputError, match=f"{SHARD}: has the SHA-256"):
            texts(opened)
        path.write_bytes(whole)
    assert texts(opened) == TEXTS


def test_a_shard_that_is_rewritten_in_place_with_its_old_mtime_is_read_again(release: Path) -> None:
    path = release / SHARD
    before = path.stat()
    assert texts(open_release(release)) == TEXTS
    flipped(path, 500)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(InputError, match=f"{SHARD}: has the SHA-256"):
        texts(open_release(release))


def test_bits_that_rot_after_a_shard_was_verified_give_no_other_rows(
    release: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that forgets moves none of a file's times: what was verified is still known as whole."""
    monkeypatch.setattr(cache, "fault_once", lambda *_, **__: "")
    opened, path = open_release(release), release / SHARD
    damaged = 0
    for bit in range(0, 8 * path.stat().st_size, 29):
        whole = flipped(path, bit)
        try:
            assert texts(opened) == TEXTS  # the bit is in a part of the footer that no reader needs
        except InputError as error:
            assert str(error).startswith(f"{path}: is damaged (") and "\n" not in str(error)
            damaged += 1
        with pytest.raises(InputError, match=f"{SHARD}: has the SHA-256"), opened.files("corpus", "corpus"):
            pass
        path.write_bytes(whole)
    assert damaged > 100


def test_texts_are_found_by_id_in_all_shards_and_what_is_missing_is_told(release: Path) -> None:
    opened = open_release(release)
    ids = {md5(TEXTS[5]), md5(TEXTS[0]), "nowhere"}
    assert opened.texts("corpus", "corpus", ids) == {md5(TEXTS[0]): TEXTS[0], md5(TEXTS[5]): TEXTS[5]}
    assert opened.texts("corpus", "corpus") == {md5(text): text for text in TEXTS}
    assert opened.missing("corpus", "corpus", ids) == ["nowhere"]
    assert opened.texts("corpus", "corpus", ()) == {} and opened.missing("corpus", "corpus", ()) == []


def test_an_empty_split_has_the_columns_of_its_config(tmp_path: Path) -> None:
    opened = open_release(make_release(tmp_path / "release", {**tables(), ("dev", "dev"): []}))
    assert opened.table("dev", "dev").schema == schema_of("dev")
    fields = ["query_id", "positive_passages.list.element.docid"]
    assert opened.table("dev", "dev", fields).column_names == ["query_id", "positive_passages"]
    assert not opened.table("dev", "dev").num_rows


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("check",), ""),
        (("annotate", "translations", "export", "--out", "OUT.tsv"), ""),
        (("add", "restrain", "--size", "2", "--embeddings", "V.npy", "--out", "OUT"), "has no queries in dev"),
        (("annotate", "pool", "candidates", "--runs", "RUN", "--out", "OUT"), "queries/dev lacks"),
        (("add", "samples", "--sizes", "5", "--out", "OUT", "--split", "dev"), "has 0 positives in qrels/dev"),
    ],
)
def test_verbs_read_an_empty_split(tmp_path: Path, words: tuple[str, ...], error: str) -> None:
    release = make_release(
        tmp_path / "release", {pair: [] if "dev" in pair else rows for pair, rows in tables().items()}
    )
    write_run(tmp_path / "RUN", [("q", [("p", 1.0)])])
    np.save(tmp_path / "V.npy", np.eye(5))
    (tmp_path / "V.ids.txt").write_text("".join(f"{md5(query)}\n" for query in QUESTIONS["train"] + QUESTIONS["test"]))
    given = [str(tmp_path / word) if word.isupper() or word[:1] in "VO" else word for word in words]
    done = run("builders", *given, "--release", release, code=1 if error else 0)
    assert not error or error in done.error


def entries(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of the corpus."""
    return [entry for entry in manifest["files"] if entry["path"].startswith("corpus/")]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m["files"].remove(entries(m)[1]), "expected corpus/corpus-00000-of-00002.parquet where it says"),
        (lambda m: m["files"].append(entries(m)[1]), f"'{SHARD}' is listed twice"),
        (lambda m: m["files"].reverse(), "expected corpus/corpus-00000-of-00003.parquet where it says"),
        (lambda m: entries(m)[0].update(path="corpus/corpus-0/../../../x"), "has the part '..'; expected a plain one"),
        (lambda m: entries(m)[1].update(rows=1), f"{SHARD}: has 2 rows where the manifest says 1"),
        (lambda m: entries(m)[1].update(sha256=entries(m)[0]["sha256"]), f"{SHARD}: has the SHA-256"),
    ],
)
def test_a_manifest_of_other_shards_is_one_error(
    release: Path, change: Callable[[dict[str, Any]], Any], message: str
) -> None:
    manifest = json.loads((release / MANIFEST).read_text())
    change(manifest)
    (release / MANIFEST).write_text(json.dumps(manifest))
    with pytest.raises(InputError) as error:
        texts(open_release(release))
    assert message in str(error.value)


@pytest.mark.usefixtures("settled")
def test_a_shard_is_read_through_once(release: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[Path] = []
    digest = cache.other_sha256
    monkeypatch.setattr(cache, "other_sha256", lambda path, sha256: looked.append(path) or digest(path, sha256))
    for _ in range(3):
        assert texts(open_release(release)) == TEXTS
    assert len(looked) == 3
    flipped(release / SHARD, 500)
    with pytest.raises(InputError, match=SHARD):
        texts(open_release(release))


def test_nothing_is_kept_of_a_damaged_shard(release: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    whole = flipped(release / SHARD, 500)
    with pytest.raises(InputError, match=SHARD):
        open_passages(open_release(release), keep=keep)
    words = ("bm25", "--release", release, "--out", tmp_path / "run", "--index", keep, "--threads", 1)
    assert f"{SHARD}: has the SHA-256" in run("baselines", *words, "--quiet", code=1).error
    assert not (tmp_path / "run").exists() and not list(keep.iterdir())
    (release / SHARD).write_bytes(whole)
    assert open_passages(open_release(release), keep=keep).texts(range(6)) == TEXTS


def test_unpacked_texts_that_have_changed_are_unpacked_again(release: Path, tmp_path: Path) -> None:
    keep = tmp_path / "keep"
    folder = open_passages(open_release(release), keep=keep).folder
    flipped(folder / "texts", 16)
    assert open_passages(open_release(release), keep=keep).texts(range(6)) == TEXTS


@pytest.mark.parametrize(
    "words",
    [
        ("builders", "export", "--format", "beir", "--out", "OUT"),
        ("builders", "export", "--format", "tevatron", "--set", "cmedqa", "--out", "OUT"),
        ("baselines", "evaluate", "RUN", "--split", "dev"),
    ],
)
def test_every_verb_says_which_shard_is_damaged(whole_copy: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    corpus, qrels = (whole_copy / name for name in ("corpus", "qrels"))
    for path in [*whole_copy.glob("*corpus/*.parquet"), qrels / "dev-00000-of-00001.parquet"]:
        flipped(path, 400)
    assert corpus.is_dir()
    (tmp_path / "RUN").write_text("q Q0 d 1 1.0 t\n")
    given = [str(tmp_path / word) if word.isupper() else word for word in words]
    error = run(given[0], given[1], "--release", whole_copy, *given[2:], code=1).stderr
    assert [line for line in error.splitlines() if line.startswith("error: ") and "has the SHA-256" in line]
    assert not (tmp_path / "OUT").exists()


def _claim(release: Path, **values: object) -> None:
    manifest = json.loads((release / MANIFEST).read_text())
    entries(manifest)[1].update(values)
    (release / MANIFEST).write_text(json.dumps(manifest))


@pytest.mark.parametrize("rows", [3, 2**62])
def test_rows_that_the_manifest_alone_has_are_refused_before_anything_is_made_for_them(
    release: Path, tmp_path: Path, rows: int
) -> None:
    open_passages(open_release(release), keep=tmp_path / "keep")  # kept: the shards need not be read again
    _claim(release, rows=rows)
    with pytest.raises(InputError, match=f"{SHARD}: has 2 rows where the manifest says {rows:,}"):
        open_release(release).rows("corpus", "corpus")
    with pytest.raises(InputError, match=f"{SHARD}: has 2 rows"):
        open_passages(open_release(release), keep=tmp_path / "keep")


def test_bytes_that_the_manifest_alone_has_are_refused(release: Path) -> None:
    _claim(release, bytes=2**62)
    with pytest.raises(InputError, match=f"{SHARD}: has [0-9,]+ bytes where the manifest says {2**62:,}"):
        open_release(release).rows("corpus", "corpus")


def test_rows_that_a_shards_own_footer_makes_up_are_refused(release: Path) -> None:
    content = (release / SHARD).read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    # The first 64-bit number of the metadata (Thrift, compact: type 6, then 2 or 3 in zigzag) counts the rows.
    forged = content[:footer] + content[footer:].replace(b"\x16\x04", b"\x16\x06", 1)
    (release / SHARD).write_bytes(forged)
    assert pq.read_metadata(release / SHARD).num_rows == 3
    _claim(release, rows=3, sha256=hashlib.sha256(forged).hexdigest())
    with pytest.raises(InputError, match=f"{SHARD}: has 2 rows where the manifest says 3"):
        texts(open_release(release))


def test_a_release_that_another_replaces_while_it_is_read_is_said_so(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    batches = opened.batches("corpus", "corpus", ["text"])
    found = next(batches).column("text").to_pylist()
    other = make_release(tmp_path / "other", tables([f"other {text}" for text in TEXTS]))
    release.rename(tmp_path / "old")
    other.rename(release)
    assert found == TEXTS[:2]
    for read in (lambda: next(batches), lambda: opened.rows("corpus", "corpus")):
        with pytest.raises(InputError, match="release: another release took its place while it was read; run the same"):
            read()


def test_what_duckdb_reads_meanwhile_is_of_one_release(release: Path, tmp_path: Path) -> None:
    opened = open_release(release)
    other = make_release(tmp_path / "other", tables([f"other {text}" for text in TEXTS]))
    with (
        pytest.raises(InputError, match="another release took its place"),
        opened.files("corpus", "corpus") as paths,
    ):
        assert len(paths) == 3
        release.rename(tmp_path / "old")
        other.rename(release)
