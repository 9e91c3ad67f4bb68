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
from builders.core.folders import remove_abandoned_work
from builders.core.paths import kind_of, real_path
from builders.core.read_files import convert_read_errors, rereadable_path
from builders.core.typed import Count, Sha256, read_json
from builders.core.write_files import write_text

_RECORD_NAME = "dureader_retrieval finished output"
_LISTED_PARTS = 3  # parts of an input that a message lists
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

    ``arguments`` are by parameter name. A call with wrong input is not finished, because an input may be the output of
    another call that has not run.
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
    """Return the options of a call that are recorded: all arguments but the inputs, ``without``, and out, again, quiet.

    ``arguments`` and ``inputs`` are by parameter name, and ``without`` are parameter names. A new parameter is recorded
    unless a verb excludes it, so that a forgotten parameter cannot return an old output.
    """
    excluded_names = _NEVER_RECORDED.union(inputs, without)
    recorded_options = {}
    for name, value in arguments.items():
        if name in excluded_names:
            continue
        if isinstance(value, tuple):
            value = list(value)  # as in the record, because JSON has no tuples
        recorded_options[name] = value
    return recorded_options


def file_input(label: str, input_path: Path) -> VerbInput:
    """Describe a file that a verb reads. Raises :class:`InputError` if the file cannot be read."""
    with convert_read_errors(input_path):
        return VerbInput(label, {"": cached_sha256(rereadable_path(input_path))})


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
    # Compare the earlier call and its files with the present call.
    if out is not None and call is not None and not again:
        record = _read_record(out)
        if record is not None:
            reason = "; ".join(_describe_changes(record, call))
            if not reason:
                reason = _describe_damage(out, record)
            if not reason:
                _warn_of_unknown_inputs(out, record, call)
                # A call that was killed after it had written the output left its work, or the lock of a file.
                for path in (out, record_path(out), *_files_beside(out, record)):
                    remove_abandoned_work(path)
                log.info("%s: already done; --again repeats the work", out)
                return FinishedOutput(out, record.result)
    # The verb has to run.
    if _only_finished.get():
        raise NotFinished(f"{out}: {reason or 'is not made yet'}")
    if call is not None:
        for verb_input in call.inputs.values():
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
        checksums: SHA-256 of output files by real path, if they were computed during the writing.
        result: JSON values for :class:`FinishedOutput`, which the files lack.
    """
    if out is None or call is None:
        return
    output = real_path(out)
    # Hash the files of the output, unless the writer has hashed them already.
    if files is None:
        output_files = _list_files(output)
    else:
        output_files = [real_path(file_path) for file_path in files if file_path.is_file()]
    if checksums is None:
        checksums = {}
    file_hashes = {}
    for file_path in output_files:
        # Relative, because an output may be moved with its folder. If OUT is a link, OUT.manifest.json is elsewhere.
        relative_path = Path(os.path.relpath(file_path, output.parent)).as_posix()
        file_hashes[relative_path] = checksums.get(file_path) or cached_sha256(file_path)
    # Write the record last: a record means that the output is complete.
    input_hashes = {name: dict(verb_input.hashes) for name, verb_input in call.inputs.items()}
    content = {
        "name": _RECORD_NAME,
        "verb": call.verb,
        "version": call.version,
        "options": call.options,
        "inputs": input_hashes,
        "files": file_hashes,
        "result": result or {},
    }
    write_text(record_path(out), json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def known_checksums(folder: Path, entries: Iterable[FileEntry]) -> dict[Path, str]:
    """Return the SHA-256 of files by real path, from the manifest entries of a folder, for :func:`record_finished`."""
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


def _list_files(output: Path) -> list[Path]:
    """Return the files of an output, without hidden files."""
    if output.is_file():
        return [output]
    visible_files = []
    for file_path in sorted(output.rglob("*")):
        names = file_path.relative_to(output).parts
        is_hidden = any(name.startswith(".") for name in names)
        if file_path.is_file() and not is_hidden:
            visible_files.append(file_path)
    return visible_files


def _describe_damage(out: Path, record: _Record) -> str:
    """Describe the first file of an output that is missing or differs; empty if the output is as it was made."""
    parent_folder = real_path(out).parent
    for file_name, sha256 in record.files.items():
        file_path = parent_folder / file_name
        try:
            if not file_path.is_file():
                return f"{file_name} is missing"
            if cached_sha256(file_path) != sha256:
                return f"{file_name} differs from the file that was made"
        except (OSError, ValueError) as error:  # a damaged record may have an impossible name
            return f"{file_name} cannot be read ({error})"
    return ""


def _files_beside(out: Path, record: _Record) -> list[Path]:
    """Return the recorded files that are neither the output nor inside it, for example ``OUT.manifest.json``."""
    output = real_path(out)
    recorded_files = [output.parent / file_name for file_name in record.files]
    return [file_path for file_path in recorded_files if not file_path.is_relative_to(output)]


def _describe_changes(record: _Record, call: VerbCall) -> list[str]:
    """Describe the differences between the call of a record and the present call."""
    if record.verb != call.verb:
        return [f"{record.verb} made the earlier output"]
    changes = []
    if record.version != call.version:
        changes.append(f"version of {call.verb}: {record.version} -> {call.version}")
    # Options.
    recorded_options = dict(_flatten_options(record.options))
    present_options = dict(_flatten_options(call.options))
    for option in sorted(recorded_options.keys() | present_options.keys()):
        before = recorded_options.get(option)
        after = present_options.get(option)
        # Compared as JSON, because the record is JSON: 1 and True differ.
        if json.dumps(before) != json.dumps(after):
            changes.append(f"{option}: {_format_value(before)} -> {_format_value(after)}")
    # Inputs.
    for input_name in sorted(record.inputs.keys() | call.inputs.keys()):
        if input_name not in call.inputs:
            changes.append(f"without {input_name}")
        elif input_name not in record.inputs:
            changes.append(f"with {call.inputs[input_name].label}")
        else:
            change = _describe_changed_input(record.inputs[input_name], call.inputs[input_name])
            if change:
                changes.append(change)
    return changes


def _describe_changed_input(recorded_hashes: Mapping[str, str], present_input: VerbInput) -> str:
    """Describe the difference between an input's recorded hashes and its present hashes; empty if there is none."""
    changed_parts = []
    for part_name in sorted(recorded_hashes.keys() | present_input.hashes.keys()):
        before = recorded_hashes.get(part_name)
        after = present_input.hashes.get(part_name)
        # An unknown input counts as unchanged, so that a finished output can be used offline.
        is_unknown = after == UNKNOWN and before is not None
        if before != after and not is_unknown:
            changed_parts.append(part_name)
    if not changed_parts:
        return ""
    if "" in changed_parts:  # the input is a single file
        return f"{present_input.label} changed"
    part_names = ", ".join(changed_parts[:_LISTED_PARTS])
    if len(changed_parts) > _LISTED_PARTS:
        part_names += ", ..."
    return f"{present_input.label} changed ({part_names})"


def _warn_of_unknown_inputs(out: Path, record: _Record, call: VerbCall) -> None:
    """Warn of each present hash that is unknown, with the recorded hash, which is used instead."""
    for input_name, verb_input in call.inputs.items():
        for part_name, present_hash in verb_input.hashes.items():
            if present_hash == UNKNOWN:
                log.warning(
                    "%s; continuing, because %s was made with the %s %s",
                    verb_input.problem,
                    out,
                    part_name,
                    record.inputs[input_name][part_name],
                )


def _flatten_options(options: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of nested options. The names of the levels are joined by dots.

    ``prefix`` has the names of the outer levels, with a dot at the end.
    """
    for name, value in options.items():
        full_name = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            yield from _flatten_options(value, f"{full_name}.")
        else:
            yield full_name, value


def _format_value(value: Any) -> str:
    """Format an option's value for a message."""
    if value is None:
        return "default"
    if isinstance(value, str) and value:
        return value
    return json.dumps(value, ensure_ascii=False)
