"""Caches: entries are valid until the file changes. An error names a cache that cannot be written."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from small_disks import small_disk

from baselines.retrieve.passages import Cache
from builders.core import cache as verified
from builders.core.cache import fault_once
from builders.core.errors import InputError
from builders.core.jobs import compiled

LONG_AGO = (1_000_000_000, 1_000_000_000)


class Look:
    def __init__(self, fault: str = "") -> None:
        self.times, self.fault = 0, fault

    def __call__(self) -> str:
        self.times += 1
        return self.fault


pytestmark = pytest.mark.usefixtures("own_cache", "settled")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(b"content")
    os.utime(path, LONG_AGO)  # the mtime never changes here
    return path


def test_a_file_is_looked_at_once_for_each_claim(file: Path) -> None:
    one, other = Look(), Look()
    os.link(file, file.with_name("link"))
    for path in (file, file, file.with_name("link")):
        assert fault_once(path, "one", one) == fault_once(path, ["other", 1], other) == ""
    assert (one.times, other.times) == (1, 1)
    fault_once(file, "one", one, again=True)
    assert one.times == 2


def _written_again_with_the_old_mtime(file: Path) -> None:
    before = file.stat()
    while file.stat().st_ctime_ns == before.st_ctime_ns:  # wait for the next tick of the disk's clock
        file.write_bytes(b"CONTENT")
        os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))


def _replaced(file: Path) -> None:
    file.rename(file.with_name("old"))
    file.write_bytes(b"CONTENT")
    os.utime(file, LONG_AGO)


@pytest.mark.parametrize("change", [_written_again_with_the_old_mtime, _replaced])
def test_a_file_that_has_changed_is_looked_at_again(file: Path, change: Callable[[Path], None]) -> None:
    look = Look()
    fault_once(file, "x", look)
    change(file)
    fault_once(file, "x", look)
    assert look.times == 2


def test_a_file_that_has_only_just_changed_is_not_trusted_yet(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new file may change again within the same tick of the disk's clock."""
    monkeypatch.setattr(verified, "_SETTLED", 10**18)
    look = Look()
    fault_once(file, "x", look)
    fault_once(file, "x", look)
    assert look.times == 2


def test_where_the_cache_cannot_be_written_a_process_looks_once(file: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    look = Look()
    assert [fault_once(file, "x", look) for _ in range(2)] == ["", ""]
    assert look.times == 1


def build(folder: Path) -> None:
    (folder / "content").write_text("worked out")


def test_a_cache_that_cannot_be_written_is_named_by_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = Cache("texts")
    with small_disk(tmp_path / "disk", mode="ro") as disk:
        monkeypatch.setenv("XDG_CACHE_HOME", str(disk))
        for keep in (None, disk / "given"):
            with pytest.raises(InputError, match=f"^{disk}: is not writable"):
                cache.folder(keep, {}, build)


def test_loops_are_compiled_without_a_cache(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    from numba.core.caching import CompileResultCacheImpl

    monkeypatch.setattr(CompileResultCacheImpl, "_locator_classes", [])
    assert compiled(lambda number: number + 1)(1) == 2
    assert "set NUMBA_CACHE_DIR to a writable folder" in caplog.text
