"""A whole round, from the pool to new qrels, at a stand-in for Label Studio; at a real one: test_label_studio."""

from __future__ import annotations

from pathlib import Path

import pytest
from annotation_round import play
from studio_server import Studio


@pytest.mark.parametrize("rows", ["demo_release", "sample_release"])
def test_a_round_from_the_pool_to_new_qrels(
    rows: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Studio() as server:
        monkeypatch.setenv("LABEL_STUDIO_URL", server.url)
        monkeypatch.setenv("LABEL_STUDIO_API_KEY", "token")
        size, reviewed = (250, 100) if rows == "demo_release" else (40, 16)
        play(request.getfixturevalue(rows), server, tmp_path, size, reviewed)
