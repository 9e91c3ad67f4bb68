"""A killed build resumes."""

import gzip
import subprocess
import time
from pathlib import Path

import psutil
from commands import ROOT, command, run, tree


def test_a_build_or_its_worker_is_killed_and_goes_on(shared_data: Path, tmp_path: Path) -> None:
    """A kill leaves no release or a complete one, and no processes. The next build reuses finished blocks."""
    source, out = tmp_path / "raw", tmp_path / "out"
    source.mkdir()
    for split in ("train", "dev", "test"):
        packed = (shared_data / f"dureader-2.0-demo/search.{split}.json.gz").read_bytes()
        # The same rows again are merged away: more work to be killed in, the same release.
        (source / f"search.{split}.json").write_bytes(gzip.decompress(packed) * 7)
    options = ["--raw", source, "--unit", "char", "--workers", 2]
    run("builders", "release", *options, "--out", tmp_path / "whole")
    finished = dict[str, int]()
    for number in range(4):
        words = command("builders", "release", *options, "--out", out)
        process = psutil.Popen(words, cwd=ROOT, stderr=subprocess.DEVNULL, start_new_session=True)
        while process.poll() is None and len(blocks_of(tmp_path)) <= len(finished):
            time.sleep(0.01)
        children = process.children(recursive=True)
        for each in children[-1:] if number % 2 else [process, *children]:
            each.kill()
        assert process.wait(60) and not psutil.wait_procs(children, timeout=30)[1] and not out.exists()
        assert finished.items() <= blocks_of(tmp_path).items()  # no block was built again
        finished = blocks_of(tmp_path)
    run("builders", "release", *options, "--out", out)
    assert tree(out) == tree(tmp_path / "whole")
    assert {p.name for p in tmp_path.iterdir()} == {"raw", "out", "whole"}


def blocks_of(folder: Path) -> dict[str, int]:
    """Return the finished blocks of the build under ``folder``, and the inode or time that changes on relabelling."""
    found = folder.glob(".out.building/*/*")
    return {p.name: p.stat().st_ino for p in found if p.name.isdigit() and p.parent.name != "discarded"}
