"""Finished outputs: a verb that is called again with the same input and options returns its output at once.

The record ``.NAME.made.json`` beside an output ``NAME`` describes the call that made the output: the verb and its
version, the options, and hashes of everything that the verb read. The record also has the SHA-256 of the output's
files. A verb writes the record last, and uses this module in two places::

    call = VerbCall("mine", RESULT_VERSION, options, inputs) if is_kept(out) else None
    finished = find_finished(out, call, again=again)
    if finished:
        return ...  # the output, without any work
    ...
    record_finished(out, call)

Local paths are in no record, so a moved or copied input is the same input.
"""

import contextlib
import json
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from msgspec import Struct

from builders.core.cache import FileEntry, cached_sha256
from builders.core.errors import InputError, log
from builders.core.files import kind_of, reading, real_path, rereadable, write_text
from builders.core.typed import Count, Sha256, read_json

_NAME = "dureader_retrieval finished output"
_LISTED = 3  # parts of an input that a message lists
# The hash of an input that cannot be determined now, for example the commit of a model while the hub is unreachable.
UNKNOWN = "unknown"
# Parameters that no result depends on. Inputs are hashed instead of their paths.
_NEVER_RECORDED = {"out", "again", "quiet"}

_only_finished: ContextVar[bool] = ContextVar("only_finished", default=False)


class NotFinished(Exception):
    """A verb inside :func:`only_if_finished` would have to work. The message says why."""


@dataclass(frozen=True)
class VerbInput:
    """Something that a verb reads.

    Attributes:
        label: the input's name in messages, for example "the run bm25.dev.run".
        hashes: a hash of each part by its name. A single file has one part, "". A hash may be :data:`UNKNOWN`.
        problem: the error because of which a hash is unknown.
    """

    label: str
    hashes: Mapping[str, str]
    problem: InputError | None = None


@dataclass(frozen=True)
class VerbCall:
    """Everything that the output of a verb depends on.

    Attributes:
        verb: the verb as on the command line.
        version: version of the verb's result. It goes up when the same call gives another result than before, for
            example because a fault was mended.
        options: values of the options that affect the result, by parameter name.
        inputs: what the verb reads, by parameter name.
    """

    verb: str
    version: int
    options: Mapping[str, Any]
    inputs: Mapping[str, VerbInput]


@dataclass(frozen=True)
class FinishedOutput:
    """A finished output: its path, and the values that the verb recorded besides the output's files."""

    path: Path
    result: dict[str, Any] = field(default_factory=dict)


class _Record(Struct):
    """The content of a record file."""

    name: Literal["dureader_retrieval finished output"]
    verb: str
    version: Count
    options: dict[str, Any]
    inputs: dict[str, dict[str, str]]
    files: dict[str, Sha256]
    result: dict[str, Any] = {}


@contextlib.contextmanager
def only_if_finished() -> Iterator[None]:
    """Inside the block, a verb returns its finished output or raises :class:`NotFinished` before it begins to work."""
    token = _only_finished.set(True)
    try:
        yield
    finally:
        _only_finished.reset(token)


def is_finished(function: Callable[..., Any], arguments: Mapping[str, Any]) -> bool:
    """True if an equal call of a verb's function has finished its output, so that a call would return at once.

    A call with wrong input is not finished. An input may be the output of another call that has not run.
    """
    try:
        with only_if_finished():
            function(**arguments, quiet=True)
    except (NotFinished, InputError):
        return False
    return True


def is_kept(out: Path | None) -> bool:
    """True if an output can be found again: it is neither a stream nor in memory."""
    return out is not None and kind_of(out) != "stream"


def option_values(
    arguments: Mapping[str, Any], inputs: Mapping[str, VerbInput], without: Collection[str]
) -> dict[str, Any]:
    """Return the options of a call that are recorded: all arguments but the inputs, ``out``, and ``without``.

    A new parameter is recorded unless a verb excludes it, so that a forgotten parameter cannot return an old output.
    """
    excluded = {*_NEVER_RECORDED, *inputs, *without}
    values = {}
    for name, value in arguments.items():
        if name not in excluded:
            values[name] = list(value) if isinstance(value, tuple) else value
    return values


def file_input(label: str, path: Path) -> VerbInput:
    """Describe a file that a verb reads. Raises :class:`InputError` if the file cannot be read."""
    with reading(path):
        return VerbInput(label, {"": cached_sha256(rereadable(path))})


def find_finished(out: Path | None, call: VerbCall | None, *, again: bool) -> FinishedOutput | None:
    """Return the finished output of an equal call, or None if the verb has to run. Log the reason if there is one.

    Args:
        out: file or directory that the verb writes.
        call: the present call. None if the output is not kept (:func:`is_kept`).
        again: True to run in any case.

    Raises:
        NotFinished: the verb would have to run inside :func:`only_if_finished`.
        InputError: the verb has to run, but an input is unknown, for example because the hub is unreachable.
    """
    reason = ""
    if out is not None and call is not None and not again:
        record = _read_record(out)
        if record is not None:
            reason = "; ".join(_changes(record, call)) or _wrong_output(out, record)
            if not reason:
                _warn_of_unknown_inputs(out, record, call)
                log.info("%s: already done; --again repeats the work", out)
                return FinishedOutput(out, record.result)
    if _only_finished.get():
        raise NotFinished(f"{out}: {reason or 'is not made yet'}")
    for verb_input in call.inputs.values() if call else ():
        if verb_input.problem:
            raise verb_input.problem
    if reason:
        log.info("%s: made again, because %s", out, reason)
    return None


def record_finished(
    out: Path | None,
    call: VerbCall | None,
    *,
    files: Sequence[Path] | None = None,
    checksums: Mapping[Path, str] | None = None,
    result: Mapping[str, Any] | None = None,
) -> None:
    """Write the record of a finished output. Does nothing for ``call`` None, an output that is not kept.

    Args:
        out: the file or directory that the verb has written.
        call: the call, described before the work began. Input that changes during the work makes the next call run.
        files: files of the output (default: the file, or all files of the directory). Missing files are skipped.
        checksums: SHA-256 of files that were computed during the writing.
        result: JSON values for :class:`FinishedOutput`, which the files lack.
    """
    if out is None or call is None:
        return
    output = real_path(out)
    output_files = _files_of(output) if files is None else [real_path(path) for path in files if path.is_file()]
    hashes = {}
    for path in output_files:
        sha256 = (checksums or {}).get(path)
        # Relative, because an output may be moved with its folder. If OUT is a link, OUT.manifest.json is elsewhere.
        name = Path(os.path.relpath(path, output.parent)).as_posix()
        hashes[name] = sha256 or cached_sha256(path)
    content = {
        "name": _NAME,
        "verb": call.verb,
        "version": call.version,
        "options": call.options,
        "inputs": {name: dict(part.hashes) for name, part in call.inputs.items()},
        "files": hashes,
        "result": result or {},
    }
    write_text(record_path(out), json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def known_checksums(folder: Path, entries: Iterable[FileEntry]) -> dict[Path, str]:
    """Return the SHA-256 of files by path, from the manifest of a directory, for :func:`record_finished`."""
    return {real_path(folder) / entry.path: entry.sha256 for entry in entries}


def record_path(out: Path) -> Path:
    """Return the path of an output's record."""
    output = real_path(out)
    return output.with_name(f".{output.name}.made.json")


def _read_record(out: Path) -> _Record | None:
    """Return the record of an output that exists, or None. A damaged record counts as none."""
    if not out.exists():
        return None
    try:
        return read_json(record_path(out), _Record)
    except (FileNotFoundError, NotADirectoryError, InputError):
        return None


def _files_of(output: Path) -> list[Path]:
    """Return the files of an output, without hidden files."""
    if output.is_file():
        return [output]
    files = []
    for path in sorted(output.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(output).parts)
        if path.is_file() and not is_hidden:
            files.append(path)
    return files


def _wrong_output(out: Path, record: _Record) -> str:
    """Describe the first file of an output that is missing or differs; empty if the output is as it was made."""
    folder = real_path(out).parent
    for name, sha256 in record.files.items():
        path = folder / name
        try:
            if not path.is_file():
                return f"{name} is missing"
            if cached_sha256(path) != sha256:
                return f"{name} differs from the file that was made"
        except (OSError, ValueError) as error:  # a damaged record may have an impossible name
            return f"{name} cannot be read ({error})"
    return ""


def _changes(record: _Record, call: VerbCall) -> list[str]:
    """Describe the differences between the call of a record and the present call."""
    if record.verb != call.verb:
        return [f"{record.verb} made the earlier output"]
    changes = []
    if record.version != call.version:
        changes.append(f"version of {call.verb}: {record.version} -> {call.version}")
    earlier, present = dict(_flat(record.options)), dict(_flat(call.options))
    for name in sorted({*earlier, *present}):
        before, after = earlier.get(name), present.get(name)
        if json.dumps(before) != json.dumps(after):
            changes.append(f"{name}: {_shown(before)} -> {_shown(after)}")
    for name in sorted({*record.inputs, *call.inputs}):
        if name not in call.inputs:
            changes.append(f"without {name}")
        elif name not in record.inputs:
            changes.append(f"with {call.inputs[name].label}")
        else:
            changes += _changed_input(record.inputs[name], call.inputs[name])
    return changes


def _changed_input(earlier: Mapping[str, str], present: VerbInput) -> list[str]:
    """Describe the difference between an input's recorded hashes and its present hashes, as a list of 0 or 1 texts."""
    parts = []
    for part in sorted({*earlier, *present.hashes}):
        before, after = earlier.get(part), present.hashes.get(part)
        is_unknown = after == UNKNOWN and before is not None
        if before != after and not is_unknown:
            parts.append(part)
    if not parts:
        return []
    names = ", ".join(parts[:_LISTED]) + (", ..." if len(parts) > _LISTED else "")
    return [f"{present.label} changed ({names})" if "" not in parts else f"{present.label} changed"]


def _warn_of_unknown_inputs(out: Path, record: _Record, call: VerbCall) -> None:
    for name, present in call.inputs.items():
        for part, value in present.hashes.items():
            if value == UNKNOWN:
                recorded = record.inputs[name][part]
                log.warning("%s; continuing, because %s was made with the %s %s", present.problem, out, part, recorded)


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of nested options. The names of the levels are joined by dots."""
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def _shown(value: Any) -> str:
    """Format an option's value for a message."""
    if value is None:
        return "default"
    return value if isinstance(value, str) and value else json.dumps(value, ensure_ascii=False)
