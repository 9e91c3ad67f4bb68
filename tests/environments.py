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
    lent_folders = [path for path in sys.path if Path(path).name == "site-packages"] if borrow else []
    # The stamp is the SHA-256 of everything that the environment depends on.
    stamp_path = folder / "requirements.sha256"
    stamp_lines = [sys.version]
    stamp_lines += lent_folders
    stamp_lines.append(requirements.read_text("utf-8"))
    stamp = hashlib.sha256("\n".join(stamp_lines).encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(f"{folder}.lock"):  # parallel test processes share the environment
        if not stamp_path.is_file() or stamp_path.read_text() != stamp:
            shutil.rmtree(folder, ignore_errors=True)
            venv.create(folder)
            (site_packages,) = folder.rglob("site-packages")
            path_lines = "".join(f"{path}\n" for path in lent_folders)
            (site_packages / "lent.pth").write_text(path_lines, encoding="utf-8")
            install_requirements(name, commands / "python", requirements, alone=alone)
            stamp_path.write_text(stamp)
    return commands


def install_requirements(name: str, interpreter: Path, requirements: Path, *, alone: bool) -> None:
    """Install packages into an environment. Skip the test if no package registry can be reached."""
    # Do not compile: most modules are never imported, and compilation takes as long as unpacking.
    pip_words = [sys.executable, "-m", "pip", "--python", str(interpreter), "install", "--quiet"]
    pip_words += ["--retries", "1", "--no-compile", "-r", str(requirements)]
    if alone:
        pip_words.append("--no-deps")
    completed = subprocess.run(pip_words, capture_output=True, text=True, check=False)
    if completed.returncode and UNREACHABLE.search(completed.stdout + completed.stderr):
        pytest.skip(f"{name} is not installed and no package registry can be reached")
    assert completed.returncode == 0, completed.stderr


def clean_environ() -> dict[str, str]:
    """Return this process's variables without the path to the project. Compiled modules may be written and reused."""
    variables = dict(os.environ)
    variables.pop("PYTHONPATH", None)
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


@contextlib.contextmanager
def small_disk(folder: Path, size: int = 1 << 20, mode: str = "rw") -> Iterator[Path]:
    """Mount a disk of ``size`` bytes at ``folder`` for the block. ``mode``: rw or ro.

    Skips the test if mounting is not allowed.
    """
    folder.mkdir()
    mount_words = ["mount", "-t", "tmpfs", "-o", f"size={size},{mode}", "tmpfs", str(folder)]
    if subprocess.run(mount_words, capture_output=True, check=False).returncode:
        pytest.skip("needs the right to mount a small disk")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", folder], check=True)


def enlarge(disk: Path, size: int = 1 << 28) -> None:
    """Give a small disk more space."""
    subprocess.run(["mount", "-o", f"remount,size={size}", "tmpfs", disk], check=True)
