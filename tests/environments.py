"""Virtual environments for packages that conflict with the project, created once; full or read-only disks."""

import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from commands import ROOT
from filelock import FileLock

# pip's messages for an unreachable registry. Any other error is a failure.
UNREACHABLE = re.compile(r"connection broken by|NewConnectionError|NameResolutionError|ConnectTimeout|ProxyError")


def environment(name: str, requirements: Path, variable: str, borrow: bool = False, alone: bool = False) -> Path:
    """Create the virtual environment ``.venvs/NAME`` with the ``requirements``, and return its folder of commands.

    ``variable`` names an environment variable with another folder. ``borrow``: packages of the project's environment
    can be imported, but not the project itself. ``alone``: install the listed packages without their dependencies.
    Skips the test if no package registry can be reached.
    """
    folder = Path(os.environ.get(variable) or ROOT / ".venvs" / name).absolute()
    commands = folder / ("Scripts" if os.name == "nt" else "bin")
    stamp = folder / "requirements.sha256"
    lent = [path for path in sys.path if Path(path).name == "site-packages"] if borrow else []
    wanted = hashlib.sha256("\n".join([sys.version, *lent, requirements.read_text("utf-8")]).encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # parallel test processes share the environment
        if not stamp.is_file() or stamp.read_text() != wanted:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            (own,) = folder.rglob("site-packages")
            (own / "lent.pth").write_text("".join(f"{path}\n" for path in lent), encoding="utf-8")
            # Do not compile: most modules are never imported, and compilation takes as long as unpacking.
            pip = [sys.executable, "-m", "pip", "--python", str(commands / "python"), "install", "--quiet"]
            pip += ["--retries", "1", "--no-compile", "-r", str(requirements)]
            pip += ["--no-deps"] * alone
            result = subprocess.run(pip, capture_output=True, text=True, check=False)
            if result.returncode and UNREACHABLE.search(result.stdout + result.stderr):
                pytest.skip(f"{name} is not installed and no package registry can be reached")
            assert result.returncode == 0, result.stderr
            stamp.write_text(wanted)
    return commands


def clean_environ() -> dict[str, str]:
    """Return this process's variables without the path to the project. Compiled modules may be written and reused."""
    return {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")}


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
