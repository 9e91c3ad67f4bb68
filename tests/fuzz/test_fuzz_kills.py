"""Commands killed at random moments, as by ``kill -9``: the same bytes afterwards, and nothing that stays behind."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from commands import ROOT, SAMPLE, command
from fuzzing import CASES
from hub_server import Hub
from judged_rounds import make_round
from official_archives import BOTH, write_tar
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from whole_release import make_whole

from builders.store.runs import write_run

KILLS = 10 if CASES else 1
REPO = "org/name"


@dataclass
class Verb:
    """A command to be killed.

    Attributes:
        words: {given} is the folder of its input, {here} that of its output, {here}/out, if it has one.
        make: writes the input.
        slow: more than a second or two a run.
    """

    words: str
    make: Callable[[Path], object]
    slow: bool = True


def _models(folder: Path) -> None:
    from tiny_models import write_bert, write_cross, write_dual

    texts = [f"{text} {number}" for number in range(300) for text in TEXTS]
    make_release(folder / "release", rows_per_shard=1_000)
    make_release(folder / "large", tables(texts), rows_per_shard=1_000)
    write_bert(folder / "bert")
    write_dual(folder / "dual")
    write_cross(folder / "cross")
    hits = [(md5(text), 1 / rank) for rank, text in enumerate(texts, 1)]
    write_run(folder / "dev.run", [(md5(question), hits) for question in QUESTIONS["dev"]])


def _judged(folder: Path) -> None:
    make_whole(folder / "release")
    one, two = map(md5, QUESTIONS["dev"])
    make_round(folder / "round", folder / "release", {"dev-001": ("accepted", {(one, md5(TEXTS[0])): 1})})
    write_run(folder / "dev.run", [(query, [(md5(text), 1.0) for text in TEXTS]) for query in (one, two)])


_TRAIN = " ".join(
    f"--set {value}"
    for value in (
        *("train.batch=4", "train.max_steps=40", "train.saves=8", "train.evaluations=1"),
        *("data.passage_length=24", "data.query_length=12", "data.negatives_per_positive=0"),
    )
)
_LARGE = "--release {given}/large --device cpu"
VERBS = {
    "release": Verb(
        f"builders release --raw {SAMPLE} --workers 2 --out {{here}}/out", lambda folder: folder.mkdir(), slow=False
    ),
    "official": Verb(
        "builders official --archive {given}/all.tar.gz --workers 2 --out {here}/out",
        lambda folder: (folder.mkdir(), write_tar(folder / "all.tar.gz", BOTH, folder / "files")),
        slow=False,
    ),
    "export": Verb("builders export --release {given} --format official --out {here}/out", make_whole, slow=False),
    "annotate merge": Verb(
        "builders annotate merge --round {given}/round --release {given}/release --out {here}/out", _judged, slow=False
    ),
    "pool": Verb(
        "builders pool select --release {given}/release --runs {given}/dev.run --scores {given}/dev.run --scale none"
        " --out {here}/out",
        _judged,
        slow=False,
    ),
    "bm25": Verb("baselines bm25 --release {given} --split dev --out {here}/out --engine tantivy", make_whole),
    "encode": Verb(f"baselines encode {_LARGE} --model {{given}}/dual --shard-rows 200 --out {{here}}/out", _models),
    "rerank": Verb(
        f"baselines rerank {_LARGE} --model {{given}}/cross --run {{given}}/dev.run --top-k 1000 --out {{here}}/out",
        _models,
    ),
    "train": Verb(
        "baselines train de-bm25-neg-scratch --release {given}/release --start {given}/bert --device cpu"
        f" --out {{here}}/out {_TRAIN}",
        _models,
    ),
    "publish": Verb("builders publish --release {given} --repo org/name", make_whole),
}


def _content(out: Path) -> dict[str, bytes]:
    """The files of an output; of a training's record and card without how long it took."""
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


def _names(place: Path) -> list[str]:
    """What lies in an output's place and among the temporary files."""
    return sorted(path.name for path in [*place.iterdir(), *(place / "tmp").iterdir()])


class Place:
    """Where a command writes: its output, its cache, its temporary files, and its hub."""

    def __init__(self, folder: Path, verb: Verb, given: Path, hub: Hub | None) -> None:
        self.folder, self.hub = folder, hub
        for name in ("cache", "tmp"):
            (folder / name).mkdir(parents=True)
        self.command = command(*(word.format(given=given, here=folder) for word in verb.words.split()))
        home = {"XDG_CACHE_HOME": str(folder / "cache"), "TMPDIR": str(folder / "tmp"), "OMP_NUM_THREADS": "1"}
        self.environment = {**(hub.environment(folder / "cache" / "hub") if hub else os.environ), **home}
        if hub:
            hub.create(REPO)
        self.before = _names(folder)

    def start(self) -> subprocess.Popen[bytes]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE}
        return subprocess.Popen(self.command, cwd=ROOT, env=self.environment, start_new_session=True, **quiet)

    def end(self) -> float:
        """Run the command to its end; returns how long that took after it had begun to write."""
        process, begun = self.start(), None
        assert process.stderr is not None
        while begun is None and process.poll() is None:
            begun = time.monotonic() if self.has_begun() else None
            time.sleep(0.01)
        said = process.stderr.read().decode()
        assert process.wait() == 0, said
        return time.monotonic() - (begun or time.monotonic())

    def has_begun(self) -> bool:
        return _names(self.folder) != self.before or bool(self.hub and self.hub.requests)

    def result(self) -> dict[str, bytes]:
        return self.hub.repos["dataset", REPO].files if self.hub else _content(self.folder / "out")

    def forget(self) -> None:
        """Remove what was finished, as a user would who wants it made again."""
        out = self.folder / "out"
        shutil.rmtree(out) if out.is_dir() else out.unlink(missing_ok=True)
        if self.hub:
            self.hub.create(REPO)


def _kill_at_random(place: Place, seconds: float, kills: int, chosen: random.Random) -> None:
    """Kill the command, and all its processes, ``kills`` times in a row: before it writes, while it does, or after."""
    killed = 0
    while killed < kills:
        if place.hub:
            place.hub.requests.clear()
        before, process = _names(place.folder), place.start()
        while process.poll() is None and _names(place.folder) == before and not (place.hub and place.hub.requests):
            time.sleep(0.005)
        time.sleep(chosen.uniform(0, seconds))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        else:
            seconds *= 0.7  # what is done already is not done again: the rest takes less
            place.forget()
        process.communicate()


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.skipif(verb.slow and not CASES, reason="takes minutes: make fuzz"))
        for name, verb in VERBS.items()
    ],
)
def test_a_killed_command_ends_in_the_same_bytes_and_leaves_nothing(
    name: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    verb, given = VERBS[name], tmp_path / "given"
    verb.make(given)
    with ExitStack() as hubs:
        ours = [hubs.enter_context(Hub()) if name == "publish" else None for _ in range(2)]
        whole = Place(tmp_path / "whole", verb, given, ours[0])
        seconds = whole.end()
        place = Place(tmp_path / "killed", verb, given, ours[1])
        _kill_at_random(place, seconds, KILLS, random.Random(f"kill {name}"))
        place.end()
        assert place.result() == whole.result() and whole.result()
        assert _names(place.folder) == _names(whole.folder)
        assert not {*_names(whole.folder)} - {*whole.before, "out", "out.training"}  # a training's states stay
    record_property("fuzz", f"{name}: {KILLS} kills, the same {len(whole.result())} files, nothing left")
