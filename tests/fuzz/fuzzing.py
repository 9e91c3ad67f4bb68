"""The steps of every fuzzer: a reader returns the content of a damaged file or ends in one error line."""

import contextlib
import io
import json
import os
import shutil
import sys
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from commands import ROOT, Done
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from spoil import Change

from builders.core.exit_codes import exit_code

CASES = int(os.environ.get("FUZZ_CASES", "0"))  # make test-slow
_QUICK_CASES = 3  # pytest tests/fuzz; make test-slow tries 1,000
_REPEATABLE_CASES = 1_000  # up to this number, every run tries the same cases
_NUMBER = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Reader:
    """A reader of files, its intact files, the damages to try, and the values that are correct."""

    reaches: str  # the tested code: words of the form ``module:function,function`` (see test_fuzz_complete.py)
    make: Callable[[Path], object]  # writes intact files into an empty folder
    spoils: Mapping[str, list[Change]]  # changes of the files that match a glob
    read: Callable[[Path], Any]  # reads the folder; may write ``folder / "out"``
    # ``right(value, intact value, damaged folder)``: True if the value is correct. By default, every value is accepted.
    right: Callable[[Any, Any, Path], bool] = lambda *_: True
    mend: Callable[[Path], object] = lambda _: None  # corrects the checksums of damaged files, as an attacker does
    share: float = 1.0  # of the usual number of cases
    makes_good: bool = False  # the reader may repair a damaged file of its cache
    name: str = ""  # tells readers of the same function apart
    names_files: bool = True  # an error must name a file

    def __str__(self) -> str:
        return self.name or self.functions[0].rpartition(".")[2]

    @property
    def functions(self) -> list[str]:
        """``module:function`` of all tested code."""
        functions = []
        for word in self.reaches.split():
            module, names = word.split(":")
            functions += [f"{module}:{name}" for name in names.split(",")]
        return functions


def writing(name: str, text: str) -> Callable[[Path], object]:
    """Return a function that writes a file with this text into a folder."""
    return lambda folder: (folder / name).write_text(text)


def same(value: Any, intact_value: Any, _: Path) -> bool:
    """Accept only the intact content, which a SHA-256 verifies."""
    return bool(value == intact_value)


def as_json(name: str) -> Callable[[Any, Any, Path], bool]:
    """Accept the values that Python's JSON reader finds in the file ``name``."""

    def is_right(value: Any, _: Any, folder: Path) -> bool:
        try:
            json_value = loads((folder / name).read_text(encoding="utf-8-sig"))
        except RecursionError:
            return True  # the nesting is in a field that the reader skips
        return equal(msgspec.to_builtins(value), json_value)

    return is_right


def loads(text: str | bytes) -> Any:
    """Read JSON by Python. A number of 4,000 digits or more stays a text, because Python refuses to convert it."""

    def parse_digits(digits: str) -> int | str:
        return int(digits) if len(digits) < 4000 else digits

    return json.loads(text, parse_int=parse_digits)


def equal(value: Any, json_value: Any) -> bool:
    """True if the values are equal. A key that only one of the objects has is a default, or a field that is ignored."""
    if isinstance(value, dict) and isinstance(json_value, dict):
        common_keys = value.keys() & json_value.keys()
        return all(equal(value[key], json_value[key]) for key in common_keys)
    if isinstance(value, (list, tuple)) and isinstance(json_value, list):
        return len(value) == len(json_value) and all(map(equal, value, json_value))
    # Python's True equals 1, but a flag is no number in JSON.
    return isinstance(value, bool) == isinstance(json_value, bool) and bool(value == json_value)


def functions_called(work: Callable[[], object]) -> set[str]:
    """Return ``module:function`` of all code of the project that runs in ``work``."""
    calls: set[tuple[str, str]] = set()  # file and name of each called function

    def note_call(frame: Any, event: str, _: object) -> None:
        if event == "call":
            calls.add((frame.f_code.co_filename, frame.f_code.co_name))

    # Readers may work in threads, which have profilers of their own.
    threading.setprofile(note_call)
    sys.setprofile(note_call)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    functions = set()
    for file, name in list(calls):  # a copy, because a thread of the project may still run
        if file.startswith(str(ROOT)):
            module_parts = Path(file).relative_to(ROOT).with_suffix("").parts
            functions.add(f"{'.'.join(module_parts)}:{name}")
    return functions


# Python's audit events, and which of their arguments are paths. The last argument is an open folder, or -1.
_PATH_ARGUMENTS = {
    "os.mkdir": slice(1),
    "os.rename": slice(2),
    "os.remove": slice(1),
    "os.rmdir": slice(1),
    "os.symlink": slice(1, 2),
    "os.link": slice(1, 2),
}
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
_watched: list[tuple[Path, list[str]]] = []  # each home, and the writes outside of it


def _written_paths(event: str, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the paths that an audit event writes, creates, renames or removes."""
    if event == "open":
        flags = arguments[2]
        return arguments[:1] if isinstance(flags, int) and flags & _WRITING_FLAGS else ()
    if event not in _PATH_ARGUMENTS or arguments[-1] != -1:  # a name in an open folder: the open was an event
        return ()
    return arguments[_PATH_ARGUMENTS[event]]


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    """Note the paths outside of the watched home that an event writes."""
    if not _watched:
        return
    home, outside_writes = _watched[-1]
    for path in _written_paths(event, arguments):
        if isinstance(path, str | bytes | os.PathLike):
            real_path = os.path.realpath(os.fsdecode(path))
            is_allowed = real_path == os.devnull or "__pycache__" in real_path
            if not is_allowed and not real_path.startswith(f"{home}{os.sep}"):
                outside_writes.append(f"{event} {real_path}")


@contextlib.contextmanager
def nothing_written_outside(home: Path) -> Iterator[None]:
    """Fail if Python code writes, creates, renames or removes a file outside ``home``."""
    if not getattr(sys, "_fuzz_audit", False):
        sys.addaudithook(_audit)  # Python cannot remove a hook
        sys._fuzz_audit = True  # type: ignore[attr-defined]
    outside_writes: list[str] = []
    _watched.append((home, outside_writes))
    try:
        yield
    finally:
        _watched.pop()
    assert not outside_writes, f"written outside: {outside_writes}"


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and mtime of every file below a folder, without the folder ``cache``."""
    states = {}
    for parent, folders, names in os.walk(folder):
        if parent == str(folder) and "cache" in folders:
            folders.remove("cache")
        for name in folders:
            states[os.path.join(parent, name)] = (0, 0)
        for name in names:
            path = os.path.join(parent, name)
            status = os.lstat(path)
            states[path] = (status.st_size, status.st_mtime_ns)
    return states


@contextlib.contextmanager
def home_of(folder: Path) -> Iterator[Path]:
    """Let commands put the user's cache and temporary files into ``folder``."""
    home = folder.resolve()
    with pytest.MonkeyPatch.context() as patch:
        for name in ("cache", "tmp"):
            (home / name).mkdir(parents=True)
        patch.setenv("XDG_CACHE_HOME", str(home / "cache"))
        patch.setenv("TMPDIR", str(home / "tmp"))
        patch.setattr("tempfile.tempdir", str(home / "tmp"))
        yield home


def outcome(home: Path, work: Callable[[], Any]) -> tuple[int, Any, str]:
    """Return exit code, result and error of ``work``. Fail if the error has more than one line."""
    results: list[Any] = []
    stdout = io.StringIO()
    stderr = io.StringIO()

    def work_with_code() -> int:
        result = work()
        results.append(result)
        if not isinstance(result, Done):
            return 0
        print(result.stderr, end="", file=sys.stderr)
        return result.code

    with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), nothing_written_outside(home):
        code = exit_code(work_with_code)
    if not code:
        return code, results[0], ""
    # Warnings may come before the error line, and nothing after.
    error_text = stderr.getvalue()
    error_lines = [line for line in error_text.splitlines() if line.startswith("error: ")]
    assert code == 1, error_text
    assert len(error_lines) == 1, error_text
    assert error_text.endswith(f"{error_lines[0]}\n"), error_text
    return code, None, error_lines[0]


@dataclass(frozen=True)
class World:
    """The intact files of a reader, and the value that the reader returns for them."""

    home: Path
    contents: dict[Path, bytes]
    records: Collection[Path]  # records of outputs that are inputs of the reader
    intact_value: Any

    @property
    def folder(self) -> Path:
        return self.home / "world"

    def restore(self, paths: Collection[str]) -> None:
        """Remove all files but these paths, and write the intact contents again."""
        for path in sorted(tree(self.home).keys() - set(paths)):
            _remove(Path(path))
        for path, content in self.contents.items():
            if not path.is_file() or path.read_bytes() != content:
                path.write_bytes(content)


def make_intact_world(reader: Reader, home: Path) -> World:
    """Write the reader's files and read them. Fail if the reader does not call all tested functions."""
    folder = home / "world"
    folder.mkdir()
    reader.make(folder)
    records = set(_records_of_output(folder))
    # The intact files must be read without an error, or every damage would be refused.
    values: list[Any] = []
    called_functions = functions_called(lambda: values.append(reader.read(folder)))
    _remove_output(folder, records)
    assert not isinstance(values[0], Done), values[0].stderr
    assert set(reader.functions) <= called_functions, "the fuzzer does not reach all functions"
    contents = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    return World(home, contents, records, values[0])


def fuzz(reader: Reader, folder: Path) -> Counter[str]:
    """Try damaged files. Return the number of cases, and of those that were refused by an error."""
    counts: Counter[str] = Counter()
    with home_of(folder) as home:
        world = make_intact_world(reader, home)
        targets = []  # each file that is damaged, with its changes
        for glob, changes in reader.spoils.items():
            paths = sorted(world.folder.glob(glob))
            assert paths, f"no file matches {glob}"
            targets += [(path, changes) for path in paths]
        intact_paths = tree(home).keys()
        case_count = max(1, round((CASES or _QUICK_CASES) * reader.share))

        @settings(
            max_examples=case_count,
            derandomize=CASES <= _REPEATABLE_CASES,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(st.integers(0, 2**16), st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), min_size=1, max_size=3))
        def try_case(file_number: int, choices: list[tuple[int, int, int]]) -> None:
            path, changes = targets[file_number % len(targets)]
            content = world.contents[path]
            for change_number, first, second in choices:
                change = changes[change_number % len(changes)]
                content = change(content, first, second)
            # Up to three changes of one file.
            path.write_bytes(content)
            reader.mend(world.folder)
            try:
                counts["refused"] += _one_case(reader, world, path)
                counts["cases"] += 1
            finally:
                world.restore(intact_paths)  # the next case begins with intact files

        try_case()
    return counts


def _one_case(reader: Reader, world: World, damaged_path: Path) -> int:
    """Read the world with one damaged file, and return the exit code. Fail if the outcome is wrong."""
    files_before = tree(world.home)
    code, value, error = outcome(world.home, lambda: reader.read(world.folder))
    if code:
        is_file_named = str(world.home) in error or damaged_path.name in error
        assert is_file_named or not reader.names_files, f"names no file: {error}"
    else:
        is_right = reader.right(value, world.intact_value, world.folder)
        assert is_right, f"differs from {damaged_path.name}: {value!r}"
        _remove_output(world.folder, world.records)
    # Neither an error nor a success may leave temporary files.
    files_after = tree(world.home)
    if reader.makes_good:  # compare only the names
        files_before = dict.fromkeys(files_before, (0, 0))
        files_after = dict.fromkeys(files_after, (0, 0))
    changed_files = sorted(files_before.items() ^ files_after.items())
    assert not changed_files, f"{error}: left behind or changed: {changed_files}"
    return code


def _remove(path: Path) -> None:
    """Remove a file or a folder, if it is there."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _records_of_output(folder: Path) -> Iterator[Path]:
    return folder.glob(".out*.made.json")


def _remove_output(folder: Path, input_records: Collection[Path] = ()) -> None:
    """Remove the output of a verb and the record that the output is finished.

    ``input_records`` are inputs of the reader, so they stay, and their outputs stay as well.
    """
    if not input_records:
        _remove(folder / "out")
    for record in set(_records_of_output(folder)) - set(input_records):
        record.unlink()


def fuzz_and_count(reader: Reader, folder: Path, record: Callable[[str, object], None]) -> None:
    """Run the fuzzer as the body of a test. The counts are printed after all tests."""
    counts = fuzz(reader, folder / "home")
    record("fuzz", f"{reader}: {counts['cases']:,} cases, {counts['refused']:,} refused")


def fuzz_of(readers: Sequence[Reader]) -> Callable[..., None]:
    """Return a test that runs the fuzzer of each reader."""

    @pytest.mark.parametrize("reader", readers, ids=str)
    def test(reader: Reader, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
        fuzz_and_count(reader, tmp_path, record_property)

    return test
