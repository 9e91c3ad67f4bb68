"""The source of every archive: builders/sources.json, as `builders official --list` prints it."""

from __future__ import annotations

import pytest

from builders.__main__ import VERBS
from builders.core.command import main
from builders.sources.archives import read_archives


def sources(*words: str) -> int:
    return main("builders", "", VERBS, ["official", "--list", *words])


def test_the_list_names_addresses_checksums_and_what_is_got_by_hand(capsys: pytest.CaptureFixture[str]) -> None:
    assert sources() == 0
    printed = capsys.readouterr().out
    assert "  from     https://dataset-bj.cdn.bcebos.com/dureader/dureader_raw.zip\n" in printed
    assert "  md5      dc7658b8cdf4f94b8714d130b7d15196\n  sha256   unknown\n" in printed
    assert printed.count("\n\n") == len(read_archives()) - 1
    assert sources("datafountain-424") == 0
    assert "  by hand  competition 424 on DataFountain" in capsys.readouterr().out
