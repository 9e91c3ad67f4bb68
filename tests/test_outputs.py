"""What may stand in the place of an output: links are followed, streams written to, anything else left alone."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
import tty
from pathlib import Path

import pytest
from commands import ROOT, run
from releases import make_release

from builders.core.errors import InputError
from builders.core.files import new_file, write_text
from builders.core.folders import new_directory, work_beside


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def disks(tmp_path: Path) -> tuple[Path, Path]:
    """Two folders, in the place of two disks."""
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
    return tmp_path / "here", tmp_path / "there"


@pytest.mark.parametrize("there_already", [True, False])
def test_a_link_to_a_file_is_followed(disks: tuple[Path, Path], there_already: bool) -> None:
    here, there = disks
    if there_already:
        (there / "run").write_text("earlier")
    (here / "run").symlink_to(Path("../there/run"))
    with new_file(here / "run") as beside:
        beside.write_text("new")
        assert beside.parent == there  # renamed on the disk where it stays
    assert (here / "run").is_symlink() and not (there / "run").is_symlink()
    assert (there / "run").read_text() == "new" and names(here) == names(there) == ["run"]


def test_a_link_to_a_link_is_followed_to_its_end(disks: tuple[Path, Path]) -> None:
    here, there = disks
    (here / "first").symlink_to("second")
    (here / "second").symlink_to(there / "run")
    write_text(here / "first", "new")
    assert (there / "run").read_text() == "new" and (here / "first").is_symlink() and (here / "second").is_symlink()


def test_a_link_to_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").symlink_to("run")
    for writing in (
        new_file(tmp_path / "run"),
        work_beside(tmp_path / "run"),
        new_directory(tmp_path / "run", "a", "b"),
    ):
        with pytest.raises(InputError, match="run: is a link that leads back to itself"), writing:
            pytest.fail("it began")
    assert (tmp_path / "run").is_symlink() and names(tmp_path) == ["run"]


def test_a_pipe_is_written_to_and_stays(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for name in ("pipe", "link"):
        found: list[str] = []
        reader = threading.Thread(target=lambda found=found: found.append((tmp_path / "pipe").read_text()), daemon=True)
        reader.start()
        write_text(tmp_path / name, "a run\n")
        reader.join(10)
        assert found == ["a run\n"]
    assert (tmp_path / "pipe").is_fifo() and names(tmp_path) == ["link", "pipe"]


def test_a_device_is_written_to_and_stays() -> None:
    terminal, other_end = os.openpty()
    try:
        tty.setraw(other_end)
        device = Path(os.ttyname(other_end))
        write_text(device, "a run\n")
        assert os.read(terminal, 100) == b"a run\n" and device.is_char_device()
    finally:
        os.close(terminal)
        os.close(other_end)


@pytest.mark.parametrize("name", ["/dev/stdout", "/dev/fd/1", "/proc/self/fd/1", "-", "LINK"])
def test_what_the_shell_has_opened_is_written_on_not_replaced(tmp_path: Path, name: str) -> None:
    (tmp_path / "LINK").symlink_to("/dev/stdout")
    write = "from pathlib import Path; from builders.core.files import check_file, write_text"
    write += "; import sys; check_file(Path(sys.argv[1])); print('first'); write_text(Path(sys.argv[1]), 'a run\\n')"
    words = [sys.executable, "-c", write, str(tmp_path / name) if name == "LINK" else name]
    with open(tmp_path / "all", "w") as out:
        out.write("before\n")
        out.flush()
        subprocess.run(words, cwd=ROOT, stdout=out, check=True)
        out.write("after\n")
    assert (tmp_path / "all").read_text() == "before\nfirst\na run\nafter\n"
    assert names(tmp_path) == ["LINK", "all"]


def test_what_is_no_file_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "folder").mkdir()
    with socket.socket(socket.AF_UNIX) as listening:
        monkeypatch.chdir(tmp_path)  # a socket's name may be short alone
        listening.bind("socket")
    for name, kind in (("folder", "a directory"), ("socket", "a socket")):
        with (
            pytest.raises(InputError, match=f"{name}: is {kind}; expected the name of a file"),
            new_file(tmp_path / name),
        ):
            pytest.fail("it began")
    assert names(tmp_path) == ["folder", "socket"]


def test_a_link_to_a_directory_is_followed_every_time(disks: tuple[Path, Path]) -> None:
    here, there = disks
    release = make_release(here / "release")
    (there / "out").mkdir()
    (here / "out").symlink_to("../there/out")
    for form, file in (("beir", "corpus.jsonl"), ("msmarco", "collection.tsv"), ("beir", "corpus.jsonl")):
        run("builders", "export", "--release", release, "--format", form, "--out", here / "out")
        assert (here / "out").is_symlink() and not (there / "out").is_symlink()
        assert file in names(there / "out")
    assert names(here) == ["out", "release"] and names(there) == ["out"]


def test_work_lies_beside_where_a_link_leads(disks: tuple[Path, Path]) -> None:
    here, there = disks
    (here / "out").symlink_to(there / "out")  # which is not there yet
    with work_beside(here / "out") as work:
        assert there in work.parents
        with pytest.raises(InputError, match="being built by another"), work_beside(there / "out"):
            pytest.fail("it began")  # two names of one place


def test_a_release_in_the_place_of_a_stream_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe: is a device or a pipe"), work_beside(tmp_path / "pipe"):
        pytest.fail("it began")
    release = make_release(tmp_path / "release")
    done = run("builders", "export", "--release", release, "--format", "beir", "--out", tmp_path / "pipe", code=1)
    assert "pipe: exists and is not an export" in done.error
    assert names(tmp_path) == ["pipe", "release"]


def test_an_export_that_a_link_leads_into_its_release_is_refused(tmp_path: Path) -> None:
    release = make_release(tmp_path / "release")
    (tmp_path / "link").symlink_to("release")
    out = tmp_path / "link" / "out"
    assert "overlaps" in run("builders", "export", "--release", release, "--format", "beir", "--out", out, code=1).error
