"""Damaged answers of a hub to `push` and `pull`: statuses, headers, names, sizes, commits and contents."""

import json
import re
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from commands import Done
from fuzzing import Reader, fuzz_of, loads, same
from hub_client import run_at
from hub_server import Answer, Commit, Hub
from spoil import BYTES, JSON
from test_fuzz_models import _checkpoint

REPO = "org/name"
_HUB = "http://the-hub"  # stands for the address of the server, which changes
Answers = Callable[[Hub], Callable[[str, str, Answer], Answer]]
_pushed: list[Commit] = []  # the history of the pushed checkpoint, the same in every case


def _files_of(answers: Path, method: str, path: str) -> Path:
    return answers / re.sub(r"[^\w.-]+", "_", f"{method} {path}")


def _record(answers: Path, hub: Hub) -> Callable[[str, str, Answer], Answer]:
    def answer(method: str, path: str, given: Answer) -> Answer:
        status, content, headers = given
        base = _files_of(answers, method, path)
        base.with_name(f"{base.name}.headers").write_text(
            json.dumps({"status": status, **headers}).replace(hub.url, _HUB)
        )
        if method == "HEAD":
            return given
        suffix = "json" if content[:1] in (b"{", b"[") else "bytes"
        base.with_name(f"{base.name}.{suffix}").write_bytes(content.replace(hub.url.encode(), _HUB.encode()))
        return given

    return answer


def _play(answers: Path, hub: Hub) -> Callable[[str, str, Answer], Answer]:
    """Answer from the recorded files. The hub answers a request that was not recorded."""

    def answer(method: str, path: str, given: Answer) -> Answer:
        status, content, _ = given
        if method == "POST" and status >= 400:  # a refused commit must not be reported as done
            return given
        base = _files_of(answers, method, path)
        for suffix in ("json", "bytes"):
            if (file := base.with_name(f"{base.name}.{suffix}")).is_file():
                content = file.read_bytes().replace(_HUB.encode(), hub.url.encode())
        try:
            text = base.with_name(f"{base.name}.headers").read_text(encoding="utf-8")
            said = dict(json.loads(text.replace(_HUB, hub.url)))
        except FileNotFoundError:
            return given
        except (ValueError, TypeError, RecursionError):
            said = {"status": 500}
        status = said.pop("status", status)
        return status if status in range(200, 600) else 500, content, {_plain(k): _plain(v) for k, v in said.items()}

    return answer


def _plain(value: Any) -> str:
    return re.sub(r"[^ -~]", "?", str(value))[:4000]


def _call(folder: Path, answers: Answers, words: list[Any]) -> tuple[Done, dict[str, bytes]]:
    """Run a command at a hub, which has a checkpoint for `pull`. Return the result and the hub's files."""
    home = folder.parent / "cache" / "hub"
    with Hub() as hub:
        hub.create(REPO, "model")
        if words[0] == "pull":
            if not _pushed:
                run_at(hub, home, "baselines", "push", "--quiet", "--model", folder / "checkpoint", "--repo", REPO)
                _pushed.extend(hub.repos["model", REPO].commits)
            hub.repos["model", REPO].commits[:] = _pushed
        hub.answer = answers(hub)
        done = run_at(hub, home, "baselines", *words, "--quiet", code=None)
        if "the same command again" in done.stderr:  # the next case must not resume
            shutil.rmtree(folder / ".out.building", ignore_errors=True)
        return done, hub.repos["model", REPO].files


def _world(words: Callable[[Path], list[Any]]) -> Callable[[Path], None]:
    def make(folder: Path) -> None:
        for name in ("checkpoint", "answers"):
            (folder / name).mkdir()
        _checkpoint(folder / "checkpoint")
        done, _ = _call(folder, partial(_record, folder / "answers"), words(folder))
        assert not done.code, done.stderr
        shutil.rmtree(folder / "out", ignore_errors=True)

    return make


def _pull(folder: Path) -> list[Any]:
    return ["pull", REPO, "--out", folder / "out"]


def _push(folder: Path) -> list[Any]:
    return ["push", "--model", folder / "checkpoint", "--repo", REPO]


def _read_pulled(folder: Path) -> Any:
    done, _ = _call(folder, partial(_play, folder / "answers"), _pull(folder))
    out = folder / "out"
    return done if done.code else {p.relative_to(out).as_posix(): p.read_bytes() for p in out.rglob("*") if p.is_file()}


def _as_its_manifest(found: dict[str, bytes], good: dict[str, bytes], folder: Path) -> bool:
    """Accept only the pushed files that the hub's manifest lists."""
    (manifest,) = (folder / "answers").glob("GET_*_manifest.json.json")
    listed = {file["path"] for file in loads(manifest.read_bytes().decode("utf-8-sig"))["files"]}
    return all(found.get(path) == content for path, content in good.items() if path in listed) and {*found} <= listed


def _read_pushed(folder: Path) -> Any:
    done, there = _call(folder, partial(_play, folder / "answers"), _push(folder))
    return done if done.code else there


_ANSWERS = {"answers/*.headers": JSON, "answers/*.json": JSON}
_CONTENT = _ANSWERS | {"answers/*.bytes": BYTES}
_FETCHED, _SENT = (
    "builders.core.hub:commit_in baselines.hub.published_checkpoint:fetch_checkpoint",
    "builders.core.hub:upload",
)
READERS = [  # errors name the repository
    Reader(_FETCHED, _world(_pull), _CONTENT, _read_pulled, _as_its_manifest, names_files=False),
    Reader(_SENT, _world(_push), _ANSWERS, _read_pushed, same, names_files=False),
]
test_a_damaged_answer_gives_its_content_or_one_error = fuzz_of(READERS)
