"""builders/sources.json: where every archive comes from."""

from __future__ import annotations

import json

from commands import ROOT


def test_sources_have_all_fields() -> None:
    sources = json.loads((ROOT / "builders" / "sources.json").read_text(encoding="utf-8"))
    for name, source in sources.items():
        assert set(source) == {"url", "bytes", "md5", "sha256", "licence", "holds", "by_hand"}, name
        assert source["url"] or source["by_hand"], name
        assert source["url"] is None or source["url"].startswith("https://"), name
        assert source["md5"] is None or len(bytes.fromhex(source["md5"])) == 16, name
