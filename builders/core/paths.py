"""Kinds of paths, and checks that a verb may write to a path."""

import os
import re
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

from builders.core.errors import InputError, UsageError

STDOUT_PATHS = {Path("-"), Path("/dev/stdout"), Path("/dev/fd/1"), Path("/proc/self/fd/1")}


def real_path(path: Path) -> Path:
    """Return the absolute path of ``path``. For a link, return the path of its target, so that writing keeps the link.

    Raises :class:`InputError` for a link that leads back to itself, and for the address of an object store.
    """
    # Path makes s3:/ of s3://. At least two letters, because C:/ is a drive of Windows.
    if re.match(r"[a-z0-9]{2,}:/", str(path)):
        raise InputError("is an address; expected a local path: copy the files with another tool", path=path)
    absolute_path = Path(os.path.abspath(path))
    if not absolute_path.is_symlink():
        return absolute_path
    target_path = Path(os.path.realpath(absolute_path))
    # realpath() stops at a link of a circle of links, so a resolved path may still be a link.
    if target_path.is_symlink():
        raise InputError("is a link that leads back to itself", path=path)
    return target_path


def expect_inside(file_path: Path, folder: Path) -> Path:
    """Return ``file_path``. Raise :class:`InputError` if it is a link that leads out of ``folder``, which is copied.

    Such a link could copy any file of this machine into an output. The hub's cache has links from each
    ``snapshots/COMMIT`` to the folder ``blobs`` beside ``snapshots``, which are allowed.
    """
    target_path = Path(os.path.realpath(file_path))
    real_folder = Path(os.path.realpath(folder))
    allowed_folders = [real_folder]
    if real_folder.parent.name == "snapshots":
        allowed_folders.append(real_folder.parent.parent / "blobs")
    if not any(target_path.is_relative_to(allowed_folder) for allowed_folder in allowed_folders):
        problem = f"is a link to {target_path}, outside of {folder}; copy the folder with `cp -rL`"
        raise InputError(problem, path=file_path)
    return file_path


def kind_of(output_path: Path) -> str:
    """Return the kind of an output path: ``stream``, ``directory``, ``disk``, ``socket``, or empty.

    A ``stream`` is a terminal, a pipe, ``/dev/null`` or stdout (``-``, ``/dev/stdout``). Empty means a regular file or
    a path that does not exist.
    """
    if output_path in STDOUT_PATHS:
        return "stream"
    try:
        mode = output_path.stat().st_mode
    except OSError:  # missing, or not accessible, which the caller's open() reports
        return ""
    if stat.S_ISCHR(mode) or stat.S_ISFIFO(mode):
        return "stream"
    if stat.S_ISDIR(mode):
        return "directory"
    if stat.S_ISBLK(mode):
        return "disk"
    if stat.S_ISREG(mode):
        return ""
    return "socket"


def check_file(output_path: Path) -> None:
    """Raise :class:`InputError` if :func:`.write_files.new_file` could not write a path.

    Call this function before long work.
    """
    output_kind = kind_of(output_path)
    if output_kind not in ("", "stream"):
        raise InputError(f"is a {output_kind}; expected the name of a file", path=output_path)
    if not output_kind:
        check_place(output_path)


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[object]) -> None:
    """Check the files that a verb writes (:func:`check_file`). No file may be written twice, or belong to an input.

    Args:
        outputs: the files by option. None is not written.
        inputs: the files and folders that the verb reads. Only paths count, not objects in memory.

    Raises:
        UsageError: two options name the same file.
        InputError: an output is also an input, is inside a folder that is an input, or cannot be written.
    """
    read_paths = set()
    for verb_input in inputs:
        if isinstance(verb_input, Path) and kind_of(verb_input) != "stream":
            read_paths.add(real_path(verb_input))
    options_by_path: dict[Path, str] = {}
    for option, output_path in outputs.items():
        if output_path is None:
            continue
        check_file(output_path)
        if kind_of(output_path) == "stream":
            continue
        target_path = real_path(output_path)
        if target_path in options_by_path:
            raise UsageError(f"{options_by_path[target_path]} and {option} name the same file {output_path}")
        if target_path in read_paths:
            raise InputError(f"is both a file to read and {option}; expected different files", path=output_path)
        for folder in target_path.parents:
            if folder in read_paths:
                problem = f"{option} is inside {folder}, which this command reads; choose another place"
                raise InputError(problem, path=output_path)
        options_by_path[target_path] = option


def check_place(output_path: Path) -> None:
    """Raise :class:`InputError` if the nearest existing parent of ``output_path`` is no folder or not writable."""
    nearest_folder = next(parent for parent in real_path(output_path).parents if parent.exists())
    if not nearest_folder.is_dir():
        raise InputError("is a file; expected a directory", path=nearest_folder)
    if not os.access(nearest_folder, os.W_OK | os.X_OK):
        raise InputError("is not writable; choose another directory", path=nearest_folder)
