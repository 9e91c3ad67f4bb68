"""benchmarks/distillation.py: three trainings, and a comparison that `compare` repeats; resumed."""

import json
import os
import sys
from pathlib import Path

import pytest
from commands import ROOT, output

from baselines.measure.compare import compare_runs


@pytest.mark.slow
def test_one_command_trains_compares_and_resumes(tmp_path: Path) -> None:
    words = [sys.executable, ROOT / "benchmarks/distillation.py", "--small", "--work", tmp_path / "work"]
    words += ["--out", tmp_path / "figures"]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    first_page = output(words, tmp_path, environment)

    names = ["BM25", "start", "plain", "distilled", "denoised"]
    runs = [tmp_path / "work" / f"{name.lower()}.dev.run.gz" for name in names]
    report = compare_runs(runs, name=names, release=tmp_path / "work/sample", measure=["MRR@10", "recall@1"], changed=0)
    figures = json.loads((tmp_path / "figures.json").read_text("utf-8"))
    assert figures["comparison"]["measures"] == json.loads(report.to_json())["measures"]
    assert (tmp_path / "figures.md").read_text("utf-8") + "\n" == first_page
    # The three dual-encoders have learned different weights from the same start.
    checkpoints = [tmp_path / "work" / name for name in ("plain", "distilled", "denoised")]
    weights = {(checkpoint / "model.safetensors").read_bytes() for checkpoint in checkpoints}
    assert len(weights) == 3

    # A second call trains no more.
    last_weights = tmp_path / "work/denoised/model.safetensors"
    written_at = last_weights.stat().st_mtime_ns
    assert output(words, tmp_path, environment) == first_page
    assert last_weights.stat().st_mtime_ns == written_at
