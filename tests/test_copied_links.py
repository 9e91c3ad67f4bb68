"""Links that lead out of a folder which a verb copies or converts."""

from collections.abc import Callable
from pathlib import Path

import pytest
from commands import SAMPLE, error_of, run
from releases import make_release

from builders.core.errors import InputError
from builders.core.files import expect_inside


def replace_by_link(file: Path, outside: Path) -> None:
    """Move a file to the folder ``outside`` and leave a link in its place."""
    outside.mkdir()
    file.rename(outside / file.name)
    file.symlink_to(outside / file.name)


def copy_raw(folder: Path, outside: Path) -> list[object]:
    raw = folder / "raw"
    raw.mkdir()
    for file in SAMPLE.glob("*.json*"):
        (raw / file.name).write_bytes(file.read_bytes())
    replace_by_link(next(raw.glob("*train*")), outside)
    return ["release", "--raw", raw]


def copy_of_hub(folder: Path, outside: Path) -> list[object]:
    (folder / "copy").mkdir()
    (folder / "copy" / "dev.jsonl").write_text('{"query_id": "1", "query": "a", "positive_passages": []}\n')
    replace_by_link(folder / "copy" / "dev.jsonl", outside)
    return ["official", "--copy", folder / "copy"]


def archive_folder(folder: Path, outside: Path) -> list[object]:
    (folder / "archive").mkdir()
    (folder / "archive" / "dev.json").write_text("{}\n")
    replace_by_link(folder / "archive" / "dev.json", outside)
    return ["official", "--archive", folder / "archive"]


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
    words = make(tmp_path, tmp_path / "outside")
    done = run("builders", *words, "--out", tmp_path / "out", code=1)
    assert f"is a link to {tmp_path / 'outside'}" in error_of(done) and "copy the folder with `cp -rL`" in done.stderr
    assert not (tmp_path / "out").exists()


def test_links_inside_a_folder_and_of_the_hubs_cache_are_allowed(tmp_path: Path) -> None:
    snapshot, blobs = tmp_path / "snapshots" / "0123", tmp_path / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for target, name in ((blobs / "1", "blob"), (snapshot / "file", "inside"), (tmp_path / "mine", "outside")):
        target.touch()
        (snapshot / name).symlink_to(target)
    assert expect_inside(snapshot / "blob", snapshot) and expect_inside(snapshot / "inside", snapshot)
    with pytest.raises(InputError, match="outside: is a link to"):
        expect_inside(snapshot / "outside", snapshot)
