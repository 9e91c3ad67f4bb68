"""Full disks: every library that writes, and what nobody asked to write, ends in one line that names the disk."""

from __future__ import annotations

import errno
import functools
import os
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from commands import Done
from hub_client import error_of
from hub_server import Hub
from small_disks import enlarge, small_disk

from builders.core import jobs
from builders.core.errors import InputError
from builders.core.exit_codes import exit_code
from builders.core.folders import work_beside
from builders.core.limits import DiskFull, writing
from builders.core.words import cutter

_MANY = 400_000  # bytes that each writes at least, which are no shorter when they are compressed


@functools.cache
def _bytes() -> bytes:
    return np.random.default_rng(0).bytes(_MANY)


def _texts() -> list[str]:
    return [_bytes()[place : place + 200].hex() for place in range(0, _MANY, 200)]


def _numpy(disk: Path) -> None:
    with open(disk / "a.npy", "wb") as file:
        np.save(file, np.frombuffer(_bytes(), np.uint8))


def _parquet(disk: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"text": _texts()}), disk / "a.parquet")


def _zip(disk: Path) -> None:
    with zipfile.ZipFile(disk / "a.zip", "w") as archive:
        archive.writestr("a", _bytes())


def _duckdb(disk: Path) -> None:
    import duckdb

    with duckdb.connect(str(disk / "a.duckdb")) as con:
        con.execute("CREATE TABLE t AS SELECT md5(range::VARCHAR) FROM range(20000)")


def _safetensors(disk: Path) -> None:
    import torch
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(_MANY, dtype=torch.uint8)}, str(disk / "a.safetensors"))


def _torch(disk: Path) -> None:
    import torch

    torch.save({"a": torch.zeros(_MANY, dtype=torch.uint8)}, disk / "a.pt")


def _tokenizers(disk: Path) -> None:
    from tokenizers import Tokenizer, models

    Tokenizer(models.WordLevel({text: number for number, text in enumerate(_texts())})).save(str(disk / "a.json"))


def _matplotlib(disk: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure()
    figure.add_subplot().imshow(np.random.default_rng(0).random((500, 500)))
    figure.savefig(disk / "a.png", dpi=200)


WRITERS = (_numpy, _parquet, _zip, _duckdb, _safetensors, _torch, _tokenizers, _matplotlib)


@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__.strip("_"))
def test_whatever_library_fills_a_disk_the_disk_is_named(write: Callable[[Path], None], tmp_path: Path) -> None:
    for number, size in enumerate((4 << 10, 20 << 10, 100 << 10, 300 << 10)):
        with (
            small_disk(tmp_path / str(number), size) as disk,
            pytest.raises(DiskFull, match=f"^{disk}: no space left on device .* while writing to {disk};"),
            writing(disk),
        ):
            write(disk)


def test_what_is_free_is_said_before_the_work_that_filled_the_disk_is_removed(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk") as disk:
        with pytest.raises(DiskFull, match=rf"^{disk}: .* \(0 bytes are free\)"), work_beside(disk / "out") as work:
            (work / "a").write_bytes(bytes(2 << 20))
        assert not list(disk.iterdir())


def test_a_disk_that_a_library_fills_by_itself_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    from huggingface_hub import constants

    def open_model() -> int:
        try:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        except OSError as error:
            raise InputError("org/name: cannot be opened") from error

    with small_disk(tmp_path / "disk", 64 << 10) as disk:
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(disk / "hub"))
        (disk / "earlier").write_bytes(bytes(44 << 10))  # what did not fit was removed
        assert exit_code(open_model) == 1
        (line,) = capfd.readouterr().err.splitlines()
    words = "no space left on device (20,480 bytes are free), while writing to"
    assert line.startswith(f"error: {disk}: {words} {disk}/hub;")


def test_a_pull_that_fills_the_disk_names_it_and_goes_on_when_there_is_room(
    hub: Hub, call: Callable[..., Done], checkpoint: Path, tmp_path: Path
) -> None:
    call("push", "--quiet", "--model", checkpoint, "--repo", "org/name", "--create")
    with small_disk(tmp_path / "disk", 40 << 10) as disk:
        said = error_of(call("pull", "--quiet", "org/name", "--out", disk / "out", code=1))
        assert said.startswith(f"error: {disk}: no space left on device")
        enlarge(disk)
        call("pull", "--quiet", "org/name", "--out", disk / "out")
        assert [path.name for path in disk.iterdir()] == ["out"]


def test_loops_are_compiled_where_the_disk_for_them_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("numba")
    from numba.core import config

    from builders.core import compiled

    compiled._warn.cache_clear()  # it warns once
    with small_disk(tmp_path / "disk", 4096) as disk:
        monkeypatch.setattr(config, "CACHE_DIR", str(disk))
        (disk / "full").write_bytes(bytes(4096))
        assert compiled.compiled(lambda number: number + 1)(1) == 2
    assert "its disk is full" in caplog.text
    compiled._warn.cache_clear()


def test_jieba_reads_and_writes_nothing_in_the_folder_of_temporary_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    jieba = pytest.importorskip("jieba")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr(jieba, "dt", jieba.Tokenizer())
    for name in ("initialize", "lcut"):
        monkeypatch.setattr(jieba, name, getattr(jieba.dt, name))
    cutter.cache_clear()
    assert cutter("jieba")("北京的冬天") == ["北京", "的", "冬天"]
    cutter.cache_clear()
    assert not list(tmp_path.iterdir()) and not capfd.readouterr().err


@pytest.mark.parametrize(
    "said",
    [
        "DataLoader worker (pid 7) is killed by signal: Bus error.",
        "Caught RuntimeError in DataLoader worker process 0.\nRuntimeError: unable to allocate shared memory(shm) for"
        " file </torch_7_8_9>: No space left on device (28)",
    ],
)
def test_a_full_shared_memory_is_not_taken_for_the_disk_that_is_written_to(said: str, tmp_path: Path) -> None:
    with pytest.raises(jobs.WorkerDied, match="/dev/shm"), writing(tmp_path), jobs.loading():
        raise RuntimeError(said)
