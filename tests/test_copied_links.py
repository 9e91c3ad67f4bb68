"""Links that lead out of a folder which a verb copies or converts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SAMPLE, error_of, run
from releases import make_release

from builders.core.errors import InputError
from builders.core.paths import expect_inside


def replace_by_link(file: Path, outside: Path) -> None:
    """Move a file to the folder ``outside`` and leave a link in its place."""
    outside.mkdir()
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)


# Each of the next functions makes a folder with a link to ``outside``, and returns the words of a command that reads
# the folder.


def copy_raw(folder: Path, outside: Path) -> list[object]:
    raw = folder / "raw"
    raw.mkdir()
    for file in SAMPLE.glob("*.json*"):
        (raw / file.name).write_bytes(file.read_bytes())
    replace_by_link(next(raw.glob("*train*")), outside)
    return ["release", "--raw", raw]


def copy_of_hub(folder: Path, outside: Path) -> list[object]:
    rows = folder / "copy" / "dev.jsonl"
    rows.parent.mkdir()
    rows.write_text('{"query_id": "1", "query": "a", "positive_passages": []}\n')
    replace_by_link(rows, outside)
    return ["official", "--copy", rows.parent]


def archive_folder(folder: Path, outside: Path) -> list[object]:
    rows = folder / "archive" / "dev.json"
    rows.parent.mkdir()
    rows.write_text("{}\n")
    replace_by_link(rows, outside)
    return ["official", "--archive", rows.parent]


def extend_release(folder: Path, outside: Path) -> list[object]:
    release = make_release(folder / "release")
    replace_by_link(next((release / "corpus").iterdir()), outside)
    return ["add", "samples", "--release", release, "--sizes", 2]


def export_release(folder: Path, outside: Path) -> list[object]:
    release = make_release(folder / "release")
    replace_by_link(next((release / "queries").iterdir()), outside)
    return ["export", "--format", "trec", "--release", release]


@pytest.mark.parametrize("make", [copy_raw, copy_of_hub, archive_folder, extend_release, export_release])
def test_a_link_out_of_a_copied_folder_is_refused(make: Callable[[Path, Path], list[object]], tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    out = tmp_path / "out"
    done = run("builders", *make(tmp_path, outside), "--out", out, code=1)
    assert f"is a link to {outside}" in error_of(done)
    assert "copy the folder with `cp -rL`" in done.stderr
    assert not out.exists()


def test_links_inside_a_folder_and_of_the_hubs_cache_are_allowed(tmp_path: Path) -> None:
    # The hub's cache has a snapshot folder with links to its folder of blobs.
    snapshot = tmp_path / "snapshots" / "0123"
    snapshot.mkdir(parents=True)
    blobs = tmp_path / "blobs"
    blobs.mkdir()
    targets = {"blob": blobs / "1", "inside": snapshot / "file", "outside": tmp_path / "mine"}
    for link_name, target in targets.items():
        target.touch()
        (snapshot / link_name).symlink_to(target)
    assert expect_inside(snapshot / "blob", snapshot)
    assert expect_inside(snapshot / "inside", snapshot)
    with pytest.raises(InputError, match="outside: is a link to"):
        expect_inside(snapshot / "outside", snapshot)
