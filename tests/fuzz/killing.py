"""Commands that are killed by SIGKILL at random moments, and then run again."""

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from commands import ROOT, command
from fuzzing import CASES

KILLS = 3 if CASES else 1
# A server has ``requests``, ``environment(home)`` for its clients, the received ``content()``, and ``forget()``.
Server = Any


def content(out: Path) -> dict[str, bytes]:
    """Return the files of an output. The duration is removed from the record and the card of a training."""
    found = {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}
    if out.is_file():
        found = {"": out.read_bytes()}
    if "training.json" in found:
        record = json.loads(found["training.json"])
        for key in ("seconds", "rows_per_second"):
            del record[key]
        found["training.json"] = json.dumps(record).encode()
        card = found["README.md"].splitlines()
        found["README.md"] = b"\n".join(line for line in card if not line.startswith(b"| seconds |"))
    return found


@dataclass
class Verb:
    words: str  # of the command; it reads the folder {given} and writes {here}/out
    make: Callable[[Path], object] = lambda _: None  # writes the input
    slow: bool = True  # a run takes more than two seconds
    begin: str = ""  # a folder of the input that is copied to {here}/out first
    server: Callable[[Path], AbstractContextManager[Server]] | None = None  # takes the folder of the input
    content: Callable[[Path], dict[str, bytes]] = content  # the content of an output that must be the same
    refused: str = ""  # the error if a finished command is run again
    repeats: int | None = None  # the most requests that are repeated after a kill

    def serve(self, given: Path) -> AbstractContextManager[Server | None]:
        return self.server(given) if self.server else nullcontext()


def names(place: Path) -> list[str]:
    return sorted(path.name for path in [*place.iterdir(), *(place / "tmp").iterdir()])


class Place:
    """The places that a command writes to: output, cache, temporary files, and server."""

    def __init__(self, folder: Path, verb: Verb, given: Path, server: Server | None) -> None:
        self.folder, self.verb, self.given, self.server = folder, verb, given, server
        for name in ("cache", "tmp"):
            (folder / name).mkdir(parents=True)
        self.words = [word.format(given=given, here=folder) for word in verb.words.split()]
        home = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        self.environment = {**(server.environment(folder / "cache" / "hub") if server else os.environ), **home}
        self.forget()
        self.before = names(folder)

    def start(self) -> subprocess.Popen[bytes]:
        self._state, self._asked = self._now(), len(self.server.requests) if self.server else 0
        own = {"cwd": ROOT, "env": self.environment, "start_new_session": True}
        return subprocess.Popen(command(*self.words), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, **own)

    def _now(self) -> list[str]:
        within = [name for _, folders, files in os.walk(self.folder / "out") for name in (*folders, *files)]
        return names(self.folder) + sorted(within)

    def has_begun(self) -> bool:
        """True if the last command has written a file or sent a request."""
        return self._now() != self._state or bool(self.server and len(self.server.requests) > self._asked)

    def end(self) -> float:
        process, begun = self.start(), None
        assert process.stderr is not None
        while begun is None and process.poll() is None:
            begun = time.monotonic() if self.has_begun() else None
            time.sleep(0.01)
        said = process.stderr.read().decode()  # before wait(), because a full pipe stops the command
        self.ended(process.wait(), said)
        return time.monotonic() - (begun or time.monotonic())

    def ended(self, code: int, said: str) -> None:
        assert code == 0 or (self.verb.refused and self.verb.refused in said), said

    def result(self) -> dict[str, bytes]:
        out = self.folder / "out"
        found = self.verb.content(out) if out.exists() else {}
        return found | (self.server.content() if self.server else {})

    def forget(self) -> None:
        """Remove a finished output, so that the command runs again."""
        out = self.folder / "out"
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        if self.verb.begin:
            shutil.copytree(self.given / self.verb.begin, out)
        if self.server:
            self.server.forget()


def kill_at_random(place: Place, seconds: float, kills: int, chosen: random.Random) -> None:
    """Kill the command with its processes ``kills`` times: before, while or after it writes."""
    killed = 0
    while killed < kills:
        process = place.start()
        while process.poll() is None and not place.has_begun():
            time.sleep(0.005)
        time.sleep(chosen.uniform(0, seconds))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        else:
            seconds *= 0.7  # a resumed command takes less time
            place.forget()
        process.communicate()


def killed_and_given_again(verb: Verb, given: Path, folder: Path, name: str) -> str:
    """Kill a command ``KILLS`` times, let it end, and compare with an undisturbed command. Return a report."""
    with verb.serve(given) as one, verb.serve(given) as other:
        whole = Place(folder / "whole", verb, given, one)
        seconds = whole.end()
        place = Place(folder / "killed", verb, given, other)
        kill_at_random(place, seconds, KILLS, random.Random(f"kill {name}"))
        place.end()
        same_in_the_end(place, whole, KILLS)
        return f"{name}: {KILLS} kills, the same {len(whole.result())} files, nothing left"


def same_in_the_end(place: Place, whole: Place, kills: int) -> None:
    """Fail if the killed command has another output, left other files, or repeated too many requests."""
    assert place.result() == whole.result() and whole.result()
    assert names(place.folder) == names(whole.folder)
    # A training keeps its states, a run has a manifest, and a finished output has a record.
    further = {"out", "out.training", "out.manifest.json", ".out.made.json"}
    assert not {*names(whole.folder)} - {*whole.before, *further}
    if place.verb.repeats is not None and place.server and whole.server:
        assert len(place.server.requests) <= len(whole.server.requests) + kills * place.verb.repeats
