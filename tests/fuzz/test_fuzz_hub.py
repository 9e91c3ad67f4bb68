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
from test_fuzz_models import write_checkpoint

REPO = "org/name"
_HUB = "http://the-hub"  # stands for the address of the server, which changes
AnswerChange = Callable[[str, str, Answer], Answer]  # method, path, answer of the hub
_pushed_commits: list[Commit] = []  # the history of the pushed checkpoint, the same in every case


def _base_path(answers: Path, method: str, path: str) -> Path:
    """Return the path of the files of an answer, without their suffixes."""
    return answers / re.sub(r"[^\w.-]+", "_", f"{method} {path}")


def _with_suffix(base_path: Path, suffix: str) -> Path:
    return base_path.with_name(f"{base_path.name}.{suffix}")


def _record(answers: Path, hub: Hub) -> AnswerChange:
    """Write each answer of the hub to files, and send it as it is."""

    def record_answer(method: str, path: str, hub_answer: Answer) -> Answer:
        status, content, headers = hub_answer
        base_path = _base_path(answers, method, path)
        header_text = json.dumps({"status": status} | headers).replace(hub.url, _HUB)
        _with_suffix(base_path, "headers").write_text(header_text)
        if method != "HEAD":
            suffix = "json" if content[:1] in (b"{", b"[") else "bytes"
            content_path = _with_suffix(base_path, suffix)
            content_path.write_bytes(content.replace(hub.url.encode(), _HUB.encode()))
        return hub_answer

    return record_answer


def _play(answers: Path, hub: Hub) -> AnswerChange:
    """Answer from the recorded files. The hub answers a request that was not recorded."""

    def play_answer(method: str, path: str, hub_answer: Answer) -> Answer:
        status, content, _ = hub_answer
        if method == "POST" and status >= 400:  # a refused commit must not be reported as done
            return hub_answer
        base_path = _base_path(answers, method, path)
        for suffix in ("json", "bytes"):
            content_path = _with_suffix(base_path, suffix)
            if content_path.is_file():
                content = content_path.read_bytes().replace(_HUB.encode(), hub.url.encode())
        try:
            header_text = _with_suffix(base_path, "headers").read_text(encoding="utf-8")
            headers = dict(json.loads(header_text.replace(_HUB, hub.url)))
        except FileNotFoundError:
            return hub_answer
        except (ValueError, TypeError, RecursionError):
            headers = {"status": 500}
        status = headers.pop("status", status)
        if status not in range(200, 600):
            status = 500
        plain_headers = {_plain(name): _plain(value) for name, value in headers.items()}
        return status, content, plain_headers

    return play_answer


def _plain(value: Any) -> str:
    """Return a text that HTTP allows in a header."""
    return re.sub(r"[^ -~]", "?", str(value))[:4000]


def _run_at_hub(
    folder: Path, answers_of: Callable[[Hub], AnswerChange], words: list[Any]
) -> tuple[Done, dict[str, bytes]]:
    """Run a command at a hub, which has a checkpoint for `pull`. Return the result and the hub's files."""
    home = folder.parent / "cache" / "hub"
    with Hub() as hub:
        hub.create(REPO, "model")
        if words[0] == "pull":
            # The checkpoint is pushed once, so that every case pulls the same commits.
            if not _pushed_commits:
                run_at(hub, home, "baselines", "push", "--quiet", "--model", folder / "checkpoint", "--repo", REPO)
                _pushed_commits.extend(hub.repos["model", REPO].commits)
            hub.repos["model", REPO].commits[:] = _pushed_commits
        hub.answer = answers_of(hub)
        done = run_at(hub, home, "baselines", *words, "--quiet", code=None)
        if "the same command again" in done.stderr:  # the next case must not resume
            shutil.rmtree(folder / ".out.building", ignore_errors=True)
        return done, hub.repos["model", REPO].files


def _world(words_of: Callable[[Path], list[Any]]) -> Callable[[Path], None]:
    """Return a function that writes a checkpoint and the hub's answers to a command."""

    def make(folder: Path) -> None:
        for name in ("checkpoint", "answers"):
            (folder / name).mkdir()
        write_checkpoint(folder / "checkpoint")
        done, _ = _run_at_hub(folder, partial(_record, folder / "answers"), words_of(folder))
        assert not done.code, done.stderr
        shutil.rmtree(folder / "out", ignore_errors=True)

    return make


def _pull_words(folder: Path) -> list[Any]:
    return ["pull", REPO, "--out", folder / "out"]


def _push_words(folder: Path) -> list[Any]:
    return ["push", "--model", folder / "checkpoint", "--repo", REPO]


def _read_pulled(folder: Path) -> Any:
    """Pull from the damaged hub. Return the files, or the failed command."""
    done, _ = _run_at_hub(folder, partial(_play, folder / "answers"), _pull_words(folder))
    if done.code:
        return done
    out = folder / "out"
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in out.rglob("*") if path.is_file()}


def _are_listed_files(files: dict[str, bytes], pushed_files: dict[str, bytes], folder: Path) -> bool:
    """Accept only the pushed files that the hub's manifest lists."""
    (manifest_path,) = (folder / "answers").glob("GET_*_manifest.json.json")
    manifest = loads(manifest_path.read_bytes().decode("utf-8-sig"))
    listed_paths = {file["path"] for file in manifest["files"]}
    expected_files = {path: content for path, content in pushed_files.items() if path in listed_paths}
    return expected_files.items() <= files.items() and files.keys() <= listed_paths


def _read_pushed(folder: Path) -> Any:
    """Push to the damaged hub. Return the hub's files, or the failed command."""
    done, hub_files = _run_at_hub(folder, partial(_play, folder / "answers"), _push_words(folder))
    return done if done.code else hub_files


_ANSWERS = {"answers/*.headers": JSON, "answers/*.json": JSON}
READERS = [  # errors name the repository
    Reader(
        "builders.core.hub:commit_in baselines.hub.published_checkpoint:fetch_checkpoint",
        make=_world(_pull_words),
        spoils=_ANSWERS | {"answers/*.bytes": BYTES},
        read=_read_pulled,
        right=_are_listed_files,
        names_files=False,
    ),
    Reader(
        "builders.core.hub:upload_files",
        make=_world(_push_words),
        spoils=_ANSWERS,
        read=_read_pushed,
        right=same,
        names_files=False,
    ),
]
test_a_damaged_answer_gives_its_content_or_one_error = fuzz_of(READERS)
