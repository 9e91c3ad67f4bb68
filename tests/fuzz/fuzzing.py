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
_FEW = 10  # make test
_SAME = 1_000  # up to this number, every run tries the same cases
_NUMBER = st.integers(0, 2**32 - 1)


@dataclass(frozen=True)
class Reader:
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
        parts = (word.split(":") for word in self.reaches.split())
        return [f"{module}:{name}" for module, names in parts for name in names.split(",")]


def writing(name: str, text: str) -> Callable[[Path], object]:
    """Return a function that writes a file with this text into a folder."""
    return lambda folder: (folder / name).write_text(text)


def same(found: Any, good: Any, _: Path) -> bool:
    """Accept only the intact content, which a SHA-256 verifies."""
    return bool(found == good)


def as_json(name: str) -> Callable[[Any, Any, Path], bool]:
    """Accept the values that Python's JSON reader finds in the file ``name``."""

    def right(found: Any, _: Any, folder: Path) -> bool:
        try:
            said = loads((folder / name).read_text(encoding="utf-8-sig"))
        except RecursionError:
            return True  # the nesting is in a field that the reader skips
        return equal(msgspec.to_builtins(found), said)

    return right


def loads(text: str | bytes) -> Any:
    """Read JSON by Python. A number of 4,000 digits or more stays a text, because Python refuses to convert it."""
    return json.loads(text, parse_int=lambda digits: int(digits) if len(digits) < 4000 else digits)


def equal(found: Any, said: Any) -> bool:
    """True if the values are equal. A key that only one of the objects has is a default, or a field that is ignored."""
    if isinstance(found, dict) and isinstance(said, dict):
        return all(equal(value, said[key]) for key, value in found.items() if key in said)
    if isinstance(found, (list, tuple)) and isinstance(said, list):
        return len(found) == len(said) and all(map(equal, found, said))
    return isinstance(found, bool) == isinstance(said, bool) and bool(found == said)


def functions_called(work: Callable[[], object]) -> set[str]:
    """Return ``module:function`` of all code of the project that runs in ``work``."""
    found: set[tuple[str, str]] = set()

    def note(frame: Any, event: str, _: object) -> None:
        if event == "call":
            found.add((frame.f_code.co_filename, frame.f_code.co_name))

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    inside = ((Path(file), name) for file, name in list(found) if file.startswith(str(ROOT)))
    return {f"{'.'.join(file.relative_to(ROOT).with_suffix('').parts)}:{name}" for file, name in inside}


# Python's audit events, and which of their arguments are paths. The last argument is an open folder, or -1.
_WRITING = {"os.mkdir": slice(1), "os.rename": slice(2), "os.remove": slice(1), "os.rmdir": slice(1)}
_WRITING |= {"os.symlink": slice(1, 2), "os.link": slice(1, 2)}
_watched: list[tuple[Path, list[str]]] = []


def _audit(event: str, given: tuple[Any, ...]) -> None:
    if not _watched:
        return
    home, found = _watched[-1]
    if event == "open":
        if not isinstance(given[2], int) or not given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC):
            return
    elif event not in _WRITING or given[-1] != -1:  # a name in an open folder: the open was an event
        return
    for path in given[_WRITING.get(event, slice(1))]:
        if isinstance(path, str | bytes | os.PathLike):
            real = os.path.realpath(os.fsdecode(path))
            if real != os.devnull and "__pycache__" not in real and not real.startswith(f"{home}{os.sep}"):
                found.append(f"{event} {real}")


@contextlib.contextmanager
def nothing_written_outside(home: Path) -> Iterator[None]:
    """Fail if Python code writes, creates, renames or removes a file outside ``home``."""
    if not getattr(sys, "_fuzz_audit", False):
        sys.addaudithook(_audit)  # Python cannot remove a hook
        sys._fuzz_audit = True  # type: ignore[attr-defined]
    found: list[str] = []
    _watched.append((home, found))
    try:
        yield
    finally:
        _watched.pop()
    assert not found, f"written outside: {found}"


def tree(folder: Path) -> dict[str, tuple[int, int]]:
    """Return size and mtime of every file below a folder, without the folder ``cache``."""
    found = {}
    for parent, folders, names in os.walk(folder):
        if parent == str(folder) and "cache" in folders:
            folders.remove("cache")
        for name in [*names, *folders]:
            state = os.lstat(os.path.join(parent, name))
            found[os.path.join(parent, name)] = (0, 0) if name in folders else (state.st_size, state.st_mtime_ns)
    return found


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
    found: list[Any] = []
    out, err = io.StringIO(), io.StringIO()

    def done() -> int:
        found.append(work())
        if not isinstance(found[0], Done):
            return 0
        print(found[0].stderr, end="", file=sys.stderr)
        return found[0].code

    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), nothing_written_outside(home):
        code = exit_code(done)
    if code:
        lines = [line for line in err.getvalue().splitlines() if line.startswith("error: ")]
        assert code == 1 and len(lines) == 1 and err.getvalue().endswith(f"{lines[0]}\n"), err.getvalue()
        return code, None, lines[0]
    return code, found[0], ""


def fuzz(reader: Reader, folder: Path) -> Counter[str]:
    """Try damaged files. Return the number of cases, and of those that were refused by an error."""
    counts: Counter[str] = Counter()
    with home_of(folder) as home:
        world = home / "world"
        world.mkdir()
        reader.make(world)
        records = {*_records_of_output(world)}  # inputs of a reader of records
        files = [(path, changes) for glob, changes in reader.spoils.items() for path in sorted(world.glob(glob))]
        assert {glob for glob in reader.spoils if not any(world.glob(glob))} == set()
        good: list[Any] = []
        reached = functions_called(lambda: good.append(reader.read(world)))
        _remove_output(world, records)
        assert not isinstance(good[0], Done), good[0].stderr
        assert not {*reader.functions} - reached, "the fuzzer does not reach these functions"
        whole = {path: path.read_bytes() for path in world.rglob("*") if path.is_file()}
        places = {*tree(home)}
        number = max(1, round((CASES or _FEW) * reader.share))

        @settings(
            max_examples=number,
            derandomize=CASES <= _SAME,
            database=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
            phases=(Phase.generate, Phase.shrink),
        )
        @given(st.integers(0, 2**16), st.lists(st.tuples(_NUMBER, _NUMBER, _NUMBER), min_size=1, max_size=3))
        def one(file: int, changes: list[tuple[int, int, int]]) -> None:
            path, kinds = files[file % len(files)]
            content = whole[path]
            for kind, a, b in changes:
                content = kinds[kind % len(kinds)](content, a, b)
            path.write_bytes(content)
            reader.mend(world)
            try:
                counts["refused"] += _one_case(reader, home, path, good[0], records)
                counts["cases"] += 1
            finally:  # the next case begins with intact files
                for left in sorted({*tree(home)} - places):
                    _remove(Path(left))
                for other, content in whole.items():
                    if not other.is_file() or other.read_bytes() != content:
                        other.write_bytes(content)

        one()
    return counts


def _one_case(reader: Reader, home: Path, spoiled: Path, good: Any, records: Collection[Path]) -> int:
    """Read the world with one damaged file, and return the exit code. Fail if the outcome is wrong.

    ``records`` are records of outputs that the reader reads, so they stay.
    """
    world, before = home / "world", tree(home)
    code, found, error = outcome(home, lambda: reader.read(world))
    if code:
        assert str(home) in error or spoiled.name in error or not reader.names_files, f"names no file: {error}"
    else:
        assert reader.right(found, good, world), f"differs from {spoiled.name}: {found!r}"
        _remove_output(world, records)
    after = tree(home)
    if reader.makes_good:
        before, after = dict.fromkeys(before, (0, 0)), dict.fromkeys(after, (0, 0))
    assert after == before, f"{error}: left behind or changed: {sorted({*before.items()} ^ {*after.items()})}"
    return code


def _remove(out: Path) -> None:
    if out.is_dir():
        shutil.rmtree(out)
    else:
        out.unlink(missing_ok=True)


def _records_of_output(world: Path) -> Iterator[Path]:
    return world.glob(".out*.made.json")


def _remove_output(world: Path, kept: Collection[Path] = ()) -> None:
    """Remove the output of a verb and the record that the output is finished. ``kept`` records and outputs stay."""
    if not kept:
        _remove(world / "out")
    for record in {*_records_of_output(world)} - {*kept}:
        record.unlink()


def fuzz_and_count(reader: Reader, folder: Path, record: Callable[[str, object], None]) -> None:
    """Run the fuzzer as the body of a test. The counts are printed after all tests."""
    counts = fuzz(reader, folder / "home")
    record("fuzz", f"{reader}: {counts['cases']:,} cases, {counts['refused']:,} refused")


def fuzz_of(readers: Sequence[Reader]) -> Callable[..., None]:
    @pytest.mark.parametrize("reader", readers, ids=str)
    def test(reader: Reader, tmp_path: Path, record_property: Callable[[str, object], None]) -> None:
        fuzz_and_count(reader, tmp_path, record_property)

    return test
