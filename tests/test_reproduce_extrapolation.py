"""``reproduce --extrapolation``: what is trained on what, and interpolation, extrapolation and the gap by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import run
from releases import TEXTS, make_release, md5, put_stats, tables

from baselines.measure.significance import of_means
from baselines.reproduce.extrapolation import gap_interval

NEAR, FAR = "restrain-2-interpolation", "restrain-2-extrapolation"
DEV = ["高铁票提前几天买", "手机进水怎么办", "多肉怎么养", "饺子怎么煮熟"]


def rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Four training questions and four of dev; the first two of each are near to each other, and bucket 1."""
    found = tables()
    answers = dict(zip(DEV, (TEXTS[4], TEXTS[5], TEXTS[0], TEXTS[1]), strict=True))  # the third is wrong
    found["queries", "dev"] = [{"_id": md5(text), "text": text} for text in DEV]
    dev = [{"query-id": md5(q), "corpus-id": md5(text), "score": 1} for q, text in answers.items()]
    train = found["qrels", "train"]
    found["qrels", "dev"], found["dev", "dev"] = dev, []
    del found["dev", "dev"]
    found[NEAR, "train"], found[FAR, "train"] = train[:2], train[2:]
    for bucket, own in ((1, slice(0, 1)), (2, slice(1, 4))):
        inside = dev[own]
        found[f"resttest-bucket{bucket}", "train"] = train[2:] if bucket == 1 else train[:2]
        found[f"resttest-bucket{bucket}", "extrapolation"] = inside
        found[f"resttest-bucket{bucket}", "interpolation"] = [row for row in dev if row not in inside]
    return found


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release = make_release(tmp_path / "release", rows())
    about = {"test_queries": 4, "overlapping": 0, "overlapping_share": 0.0, "train_queries": 2, "nearest_cosine": 0.5}
    figures: dict[str, Any] = {name: {"config": name, "test": "dev", **about} for name in (NEAR, FAR)}
    for bucket in (1, 2):
        name = f"resttest-bucket{bucket}"
        figures[name] = [{"config": name, "test": kind, **about} for kind in ("interpolation", "extrapolation")]
    put_stats(release, extrapolation=figures)
    return tmp_path


def reproduce(world: Path, *words: str, code: int = 0) -> Any:
    options = ["--release", world / "release", "--out", world / "runs", "--one-process", "--extrapolation"]
    done = run("baselines", "reproduce", *options, *words, code=code)
    return done.error if code else done.stdout


def test_of_the_buckets_the_mean_is_taken_and_of_restrain_both_are_of_all_test_queries(world: Path) -> None:
    report = json.loads(reproduce(world, "--row", "bm25", "--table", "4", "--format", "json"))
    found = {(row["test"], row["metric"]): row for row in report["rows"]}
    assert set(test for test, _ in found) == {"restrain-2", "resttest"}
    # BM25 finds the first, the second and the fourth at once, and nothing for the third, whose answer is a wrong one.
    restrain = found["restrain-2", "Recall@1"]
    assert (restrain["interpolation"], restrain["extrapolation"], restrain["gap"]) == (75.0, 75.0, 0.0)
    assert restrain["gap_interval"] == [0.0, 0.0]
    resttest = found["resttest", "Recall@1"]
    assert resttest["interpolation"] == round(100 * (2 / 3 + 1 / 1) / 2, 2)  # outside of bucket 1, outside of bucket 2
    assert resttest["extrapolation"] == round(100 * (1 / 1 + 2 / 3) / 2, 2)
    assert resttest["relative_gap"] == 0
    shown = reproduce(world, "resttest", "--row", "bm25", "--table", "4")
    assert "restrain-2" not in shown and "BM25: MRR@10" in shown


def test_what_the_release_lacks_is_said(world: Path) -> None:
    error = reproduce(world, "restrain-14K", code=1)
    assert "has no restrain-14K of the dev queries; it has restrain-2, resttest; `python -m builders add" in error
    put_stats(world / "release", extrapolation={})
    assert "has no sets for interpolation and extrapolation of the dev queries; it has none" in reproduce(world, code=1)


def test_bm25_is_run_once_and_the_trained_models_once_a_set(world: Path) -> None:
    commands = [" ".join(words) for words in json.loads(reproduce(world, "--scratch", "--dry-run", "--format", "json"))]
    trained = [command.split(" --out ")[1] for command in commands if command.startswith("baselines train ")]
    sets = [NEAR, FAR, "resttest-bucket1", "resttest-bucket2"]
    models = world / "runs" / "models"
    kinds = ("de-bm25-neg-scratch", "ce-bm25-neg-scratch")
    assert sorted(trained) == sorted([f"{models}/mlm-scratch", *(f"{models}/{k}.{s}" for k in kinds for s in sets)])
    for name in sets:
        assert sum(f"--set data.set={name} " in command for command in commands) == 2
    assert sum("baselines bm25 " in command for command in commands) == 2  # dev, and train for the negatives
    (search,) = [command for command in commands if "baselines search" in command and f"/{NEAR}/" in command]
    assert f"--model {models}/de-bm25-neg-scratch.{NEAR} " in search
    assert f"--passages {world}/runs/{NEAR}/embeddings/" in search


def test_the_gaps_interval_is_that_of_paired_queries() -> None:
    random = np.random.default_rng(1)
    one, other = random.random((300, 3)), random.random((300, 3)) * 0.8
    folds = [[{str(n): row for n, row in enumerate(each)} for each in (one, other)]]
    low, high = gap_interval(folds)
    assert np.column_stack([low, high]) == pytest.approx(np.array(of_means(other - one)), abs=0.005)
    same = gap_interval([[folds[0][0], folds[0][0]]])
    assert not np.any(same)
    # A bucket of one query is left out of the draws that do not have it.
    assert np.isfinite(gap_interval([*folds, [folds[0][0], {"0": other[0]}]])).all()
