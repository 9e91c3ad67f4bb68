"""Caches on a machine that lets nothing be written: said with what to do, or done without."""

from __future__ import annotations

from pathlib import Path

import pytest
from small_disks import small_disk

from baselines.retrieve.cache import Cache
from builders.core.errors import InputError


def build(folder: Path) -> None:
    (folder / "content").write_text("worked out")


def test_a_cache_that_cannot_be_written_is_an_error_that_names_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache = Cache("texts", "texts.json")
    with small_disk(tmp_path / "disk", mode="ro") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        words = f"^{cache.home()}: is a folder that cannot be written to; XDG_CACHE_HOME, `bm25 --index` or"
        with pytest.raises(InputError, match=words):
            cache.folder(None, {}, build)
        with pytest.raises(InputError, match=f"^{disk}/given: is a folder that cannot be written to$"):
            cache.folder(disk / "given", {}, build)


def test_a_cache_that_cannot_be_written_is_read(tmp_path: Path) -> None:
    cache = Cache("texts", "texts.json")
    folder, made = cache.folder(tmp_path / "kept", {}, build)
    assert made
    (tmp_path / "kept").chmod(0o500)  # the superuser's tests write there all the same
    assert cache.folder(tmp_path / "kept", {}, build) == (folder, False)
    (tmp_path / "kept").chmod(0o700)


def test_loops_are_compiled_where_nothing_can_be_kept(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba")
    from numba.core.caching import CompileResultCacheImpl

    from builders.core.compiled import compiled

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda number: number + 1)(1) == 2
    assert "NUMBA_CACHE_DIR names a folder" in caplog.text
