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
    if out.is_file():
        return {"": out.read_bytes()}
    # Two trainings differ only in their durations.
    files = {}
    for path in out.rglob("*"):
        if path.is_file():
            files[path.relative_to(out).as_posix()] = path.read_bytes()
    if "training.json" in files:
        record = json.loads(files["training.json"])
        for key in ("seconds", "rows_per_second"):
            del record[key]
        files["training.json"] = json.dumps(record).encode()
        card_lines = files["README.md"].splitlines()
        files["README.md"] = b"\n".join(line for line in card_lines if not line.startswith(b"| seconds |"))
    return files


@dataclass
class Verb:
    """A command that is killed, and the input that it needs."""

    words: str  # of the command; it reads the folder {given} and writes {here}/out
    make: Callable[[Path], object] = lambda _: None  # writes the input
    slow: bool = True  # a run takes more than two seconds
    begin: str = ""  # a folder of the input that is copied to {here}/out first
    server: Callable[[Path], AbstractContextManager[Server]] | None = None  # takes the folder of the input
    content: Callable[[Path], dict[str, bytes]] = content  # the content of an output that must be the same
    refused: str = ""  # the error if a finished command is run again
    repeats: int | None = None  # the most requests that are repeated after a kill

    def serve(self, input_folder: Path) -> AbstractContextManager[Server | None]:
        """Start the command's server, if it needs one."""
        return self.server(input_folder) if self.server else nullcontext()


def names(folder: Path) -> list[str]:
    """List the names of outputs and of temporary files."""
    paths = list(folder.iterdir()) + list((folder / "tmp").iterdir())
    return sorted(path.name for path in paths)


class Place:
    """The places that a command writes to: output, cache, temporary files, and server."""

    def __init__(self, folder: Path, verb: Verb, input_folder: Path, server: Server | None) -> None:
        self.folder = folder
        self.verb = verb
        self.input_folder = input_folder
        self.server = server
        for name in ("cache", "tmp"):
            (folder / name).mkdir(parents=True)
        self.words = [word.format(given=input_folder, here=folder) for word in verb.words.split()]
        self.environment = dict(server.environment(folder / "cache" / "hub") if server else os.environ)
        self.environment["XDG_CACHE_HOME"] = str(folder / "cache")
        self.environment["TMPDIR"] = str(folder / "tmp")
        self.environment["OMP_NUM_THREADS"] = "1"
        self.forget()
        self.before = names(folder)

    def start(self) -> subprocess.Popen[bytes]:
        """Start the command in its own group of processes."""
        self._names_at_start = self._all_names()
        self._requests_at_start = self._count_requests()
        return subprocess.Popen(
            command(*self.words),
            cwd=ROOT,
            env=self.environment,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def _all_names(self) -> list[str]:
        names_in_output = []
        for _, folders, files in os.walk(self.folder / "out"):
            names_in_output += folders + files
        return names(self.folder) + sorted(names_in_output)

    def _count_requests(self) -> int:
        return len(self.server.requests) if self.server else 0

    def has_begun(self) -> bool:
        """True if the last command has written a file or sent a request."""
        return self._all_names() != self._names_at_start or self._count_requests() > self._requests_at_start

    def end(self) -> float:
        """Let the command end. Return the seconds from its first writing to its end."""
        process = self.start()
        assert process.stderr is not None
        while not self.has_begun() and process.poll() is None:
            time.sleep(0.01)
        begin = time.monotonic()
        stderr = process.stderr.read().decode()  # before wait(), because a full pipe stops the command
        self.expect_success(process.wait(), stderr)
        return time.monotonic() - begin

    def expect_success(self, code: int, stderr: str) -> None:
        """Fail if the command failed with another error than ``refused``."""
        assert code == 0 or (self.verb.refused and self.verb.refused in stderr), stderr

    def result(self) -> dict[str, bytes]:
        """Return the files of the output and of the server."""
        out = self.folder / "out"
        files = self.verb.content(out) if out.exists() else {}
        if self.server:
            files |= self.server.content()
        return files

    def forget(self) -> None:
        """Remove a finished output, so that the command runs again."""
        out = self.folder / "out"
        if out.is_dir():
            shutil.rmtree(out)
        else:
            out.unlink(missing_ok=True)
        if self.verb.begin:
            shutil.copytree(self.input_folder / self.verb.begin, out)
        if self.server:
            self.server.forget()


def kill_at_random(place: Place, seconds: float, kills: int, rng: random.Random) -> None:
    """Kill the command with its processes ``kills`` times: before, while or after it writes."""
    killed = 0
    while killed < kills:
        process = place.start()
        while process.poll() is None and not place.has_begun():
            time.sleep(0.005)
        time.sleep(rng.uniform(0, seconds))
        if process.poll() is None:
            # The whole group, because workers would write on.
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        else:
            seconds *= 0.7  # a resumed command takes less time
            place.forget()
        process.communicate()


def killed_and_given_again(verb: Verb, input_folder: Path, folder: Path, name: str) -> str:
    """Kill a command ``KILLS`` times, let it end, and compare with an undisturbed command. Return a report."""
    with verb.serve(input_folder) as server, verb.serve(input_folder) as server_of_killed:
        undisturbed = Place(folder / "whole", verb, input_folder, server)
        seconds = undisturbed.end()
        place = Place(folder / "killed", verb, input_folder, server_of_killed)
        kill_at_random(place, seconds, KILLS, random.Random(f"kill {name}"))
        place.end()
        expect_same_end(place, undisturbed, KILLS)
        return f"{name}: {KILLS} kills, the same {len(undisturbed.result())} files, nothing left"


def expect_same_end(place: Place, undisturbed: Place, kills: int) -> None:
    """Fail if the killed command has another output, left other files, or repeated too many requests."""
    expected_files = undisturbed.result()
    assert expected_files
    assert place.result() == expected_files
    names_at_end = names(undisturbed.folder)
    assert names(place.folder) == names_at_end
    # A training keeps its states, a run has a manifest, and a finished output has a record.
    output_names = {"out", "out.training", "out.manifest.json", ".out.made.json"}
    assert set(names_at_end) <= output_names.union(undisturbed.before)
    if place.verb.repeats is not None and place.server and undisturbed.server:
        most_requests = len(undisturbed.server.requests) + kills * place.verb.repeats
        assert len(place.server.requests) <= most_requests
