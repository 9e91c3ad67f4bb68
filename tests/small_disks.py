"""Full or read-only disks for a test, if the system allows mounting."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path, size: int = 1 << 20, mode: str = "rw") -> Iterator[Path]:
    """Mount a disk of ``size`` bytes at ``folder`` for the block. ``mode``: rw or ro.

    Skips the test if mounting is not allowed.
    """
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size},{mode}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def enlarge(disk: Path, size: int = 1 << 28) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", "tmpfs", disk], check=True)
