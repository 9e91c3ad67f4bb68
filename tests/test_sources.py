"""The sources of the archives in builders/sources.json, as printed by `builders official --list`."""

from commands import run

from builders.sources.archives import read_archives


def test_the_list_names_addresses_checksums_and_what_is_got_by_hand() -> None:
    printed = run("builders", "official", "--list").stdout
    assert "  from     https://dataset-bj.cdn.bcebos.com/dureader/dureader_raw.zip\n" in printed
    assert "  md5      dc7658b8cdf4f94b8714d130b7d15196\n  sha256   unknown\n" in printed
    assert printed.count("\n\n") == len(read_archives()) - 1
    found = run("builders", "official", "--list", "datafountain-424").stdout
    assert "  by hand  competition 424 on DataFountain" in found
