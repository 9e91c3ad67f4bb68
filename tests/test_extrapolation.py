"""Sets for interpolation and extrapolation: configs added to a copy of a release, label overlap, errors."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pytest
from commands import run
from releases import md5

from builders.__main__ import VERBS
from builders.core.command import main
from builders.store.draft import draft_release
from builders.store.layout import QRELS, QUERIES
from builders.store.reader import open_release

TRAINS, TESTS = 60, 12


def make(folder: Path) -> tuple[Path, Path, dict[str, np.ndarray]]:
    """A release of 60 training and 12 dev queries with judgments, and its embeddings; query 0 of both is the same."""
    generator = np.random.default_rng(7)
    queries = {
        "train": [f"训练 {n}" for n in range(TRAINS)],
        "dev": [f"开发 {n}" for n in range(TESTS)],
        "test": ["测试"],
    }
    queries["dev"][0] = queries["train"][0]
    vectors = {md5(text): generator.normal(size=4) for texts in queries.values() for text in texts}
    release = folder / "release"
    with draft_release(release, {"verb": "test", "options": {}, "sources": []}) as draft:
        for split, texts in queries.items():
            ids = [md5(text) for text in texts]
            draft.write("queries", split, [pa.table([ids, texts], schema=QUERIES)])
            if split == "test":
                continue
            # Two positives and a negative each; the dev queries 0, 4 and 8 share one positive with training.
            rows = []
            for number, query in enumerate(ids):
                shared = split == "train" or number % 4 == 0
                rows.append((query, md5(f"{'train' if shared else 'dev'} {number}"), 1))
                rows.append((query, md5(f"{split} second {number}"), 1))
                rows.append((query, md5("train 1"), 0))
            table = pa.Table.from_pylist([dict(zip(QRELS.names, row, strict=True)) for row in rows], QRELS)
            draft.write("qrels", split, [table])
    path = folder / "vectors.npz"
    np.savez(path, ids=np.array(list(vectors)), vectors=np.array(list(vectors.values())))
    return release, path, vectors


def call(*words: Any) -> int:
    return main("builders", "", VERBS, ["add", *map(str, words)])


def queries_of(release: Path, config: str, split: str = "train") -> set[str]:
    return set(open_release(release).table(config, split)["query-id"].to_pylist())


def test_restrain_adds_configs_to_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release, path, vectors = make(tmp_path)
    out = tmp_path / "out"
    options = ["restrain", "--release", release, "--embeddings", path, "--size", "15", "5", "--exclude", "2"]
    assert call(*options, "--out", out, "--format", "json") == 0
    printed = capsys.readouterr()
    figures = {row["config"]: row for row in json.loads(printed.out)}
    assert "12 test queries are many for 60 training queries: ReSTrain is for small test sets" in printed.err
    train = open_release(out).table("qrels", "train").to_pylist()
    assert train == open_release(release).table("qrels", "train").to_pylist()
    dev = queries_of(out, ["queries", "..", "qrels"][-1], "dev")
    everything = {md5(f"训练 {n}") for n in range(TRAINS)}

    def cosine(one: str, two: str) -> float:
        a, b = vectors[one], vectors[two]
        return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))

    for size in (5, 15):
        inter = queries_of(out, f"restrain-{size}-interpolation")
        extra = queries_of(out, f"restrain-{size}-extrapolation")
        assert len(inter) == len(extra) == size and not inter & extra and inter | extra <= everything
        for query in dev:
            top = sorted(everything, key=lambda train: -cosine(query, train))[:2]
            assert not extra & set(top)
        near = np.mean([max(cosine(query, train) for train in inter) for query in dev])
        far = np.mean([max(cosine(query, train) for train in extra) for query in dev])
        assert near > far
        assert figures[f"restrain-{size}-interpolation"]["nearest_cosine"] == pytest.approx(near, abs=2e-3)
        assert figures[f"restrain-{size}-extrapolation"]["nearest_cosine"] == pytest.approx(far, abs=2e-3)
        # All judgments of the chosen queries, in the order of qrels.
        for kind, chosen in (("interpolation", inter), ("extrapolation", extra)):
            rows = open_release(out).table(f"restrain-{size}-{kind}", "train").to_pylist()
            assert rows == [row for row in train if row["query-id"] in chosen]
            loaded = datasets.load_dataset(str(out), f"restrain-{size}-{kind}", cache_dir=str(tmp_path / "cache"))
            assert loaded["train"].to_list() == rows
    assert md5("训练 0") in queries_of(out, "restrain-15-interpolation")  # the query that is a dev query
    # The same command gives the same bytes, in place too, and leaves the other sizes.
    manifest = (out / "manifest.json").read_text()
    assert call(*options, "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "manifest.json").read_text() == manifest
    more = ["restrain", "--release", out, "--embeddings", path, "--size", "10", "--split", "dev", "test", "--out", out]
    assert call(*more) == 0
    assert f"{out} has sets of 5, 15 training queries of other embeddings, test queries" in capsys.readouterr().err
    assert len(queries_of(out, "restrain-10-extrapolation")) == 10
    assert len(queries_of(out, "restrain-5-interpolation")) == 5
    assert set(json.loads((out / "stats.json").read_text())["extrapolation"]) == {
        f"restrain-{size}-{kind}" for size in (5, 10, 15) for kind in ("interpolation", "extrapolation")
    }


def test_resttest_adds_configs_to_a_copy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    release, path, _ = make(tmp_path)
    out = tmp_path / "out"
    for buckets in (4, 3):  # the second time in place: no bucket of the first is left
        source = release if buckets == 4 else out
        options = ["resttest", "--release", source, "--embeddings", path, "--out", out]
        assert call(*options, "--buckets", buckets, "--format", "json") == 0
    rows = json.loads(capsys.readouterr().out.split("\n]\n")[1] + "\n]")
    configs = {config for config, _ in open_release(out).splits() if config.startswith("resttest-")}
    assert configs == {f"resttest-bucket{number}" for number in (1, 2, 3)}
    trains, dev = {md5(f"训练 {n}") for n in range(TRAINS)}, queries_of(release, "qrels", "dev")
    left_out, extrapolated = [], []
    for config in sorted(configs):
        train, inter, extra = (queries_of(out, config, split) for split in ("train", "interpolation", "extrapolation"))
        assert train < trains and inter | extra == dev and not inter & extra
        assert not train & extra
        left_out += trains - train
        extrapolated += extra
        loaded = datasets.load_dataset(str(out), config, cache_dir=str(tmp_path / "cache"))
        assert {row["query-id"] for row in loaded["extrapolation"]} == extra
    assert len(left_out) == TRAINS and set(left_out) == trains  # every training query is left out once
    assert len(extrapolated) == TESTS and set(extrapolated) == dev
    mean = {
        kind: np.average(
            [row["nearest_cosine"] for row in rows if row["test"] == kind],
            weights=[row["test_queries"] for row in rows if row["test"] == kind],
        )
        for kind in ("interpolation", "extrapolation")
    }
    assert mean["interpolation"] > mean["extrapolation"]


def test_check_counts_overlap_from_one_shared_passage_on(tmp_path: Path) -> None:
    release, path, _ = make(tmp_path)
    check = ("builders", "check", "--release")
    found = json.loads(run(*check, release, "--format", "json", code=1).stdout)
    # Dev queries 0, 4 and 8 share one positive each; passages that are negative in training do not count.
    figures = {"test_queries": TESTS, "overlapping": 3, "overlapping_share": 0.25}
    assert found["release"]["label_overlap"] == {"qrels/dev": figures} and not found["overlap"]
    text = run(*check, release, code=1).stdout
    assert "qrels/dev: 3 of 12 queries (25.00%) share a positive" in text and "label overlap" not in text
    out = tmp_path / "out"
    assert call("restrain", "--release", release, "--embeddings", path, "--size", "5", "--out", out) == 0
    assert call("resttest", "--release", out, "--embeddings", path, "--buckets", "2", "--out", out) == 0
    rows = json.loads(run(*check, out, "--format", "json", code=1).stdout)["overlap"]
    assert [(row["config"], row["test"]) for row in rows] == [
        ("restrain-5-extrapolation", "dev"),
        ("restrain-5-interpolation", "dev"),
        *((f"resttest-bucket{number}", kind) for number in (1, 2) for kind in ("extrapolation", "interpolation")),
    ]
    for row in rows:
        resampled = row["config"].startswith("resttest-")
        passages = {
            row["corpus-id"] for row in open_release(out).table(row["config"], "train").to_pylist() if row["score"] > 0
        }
        tests = open_release(out).table(row["config"] if resampled else "qrels", row["test"]).to_pylist()
        expected = {test["query-id"] for test in tests if test["score"] > 0 and test["corpus-id"] in passages}
        assert row["overlapping"] == len(expected)
    lines = run(*check, out, code=1).stdout.splitlines()
    (head,) = [number for number, line in enumerate(lines) if line.startswith("label overlap")]
    assert lines[head + 1].split()[:4] == ["config", "test", "train", "queries"]
    assert lines[head + 2].split()[:4] == ["restrain-5-extrapolation", "dev", "5", "12"]


def test_the_card_has_the_label_overlap_of_train_with_dev_and_of_the_new_sets(tmp_path: Path) -> None:
    release, path, _ = make(tmp_path)
    # Dev queries 0, 4 and 8 share a positive with training, see make().
    assert "## Label overlap with `train`" in (card := (release / "README.md").read_text("utf-8"))
    assert "- `qrels/dev`: 3 of 12 queries (25.00%)" in card and "Interpolation" not in card
    options = ["--release", release, "--embeddings", path, "--buckets", "2", "--out", tmp_path / "out"]
    assert call("resttest", *options) == 0
    card = (tmp_path / "out" / "README.md").read_text("utf-8")
    assert "- `qrels/dev`: 3 of 12 queries (25.00%)" in card
    section = card.partition("## Interpolation and extrapolation")[2]
    rows = [line.split(" | ") for line in section.splitlines() if line.startswith("| `resttest-")]
    assert [row[1] for row in rows] == ["interpolation", "extrapolation"] * 2
    assert sum(int(row[3]) for row in rows if row[1] == "extrapolation") == TESTS


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["restrain", "--size", "14K"],
            r"a size of 14,000 is too large for 60 training queries.* \d+ is the largest",
        ),
        (["restrain", "--size", "5", "--exclude", "99"], "0 is the largest possible"),
        (["restrain", "--size", "5", "--split", "nothing"], "has no config 'queries' with a split 'nothing'"),
        (["resttest", "--split", "test"], "has no config 'qrels' with a split 'test'"),
        (["resttest", "--buckets", "72"], "72"),
        (["resttest", "--buckets", "500"], "72 queries do not fill 500 buckets"),
    ],
)
def test_what_cannot_be_made_is_one_line(
    tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    release, path, _ = make(tmp_path)
    assert call(*words, "--release", release, "--embeddings", path, "--out", tmp_path / "out") == 1
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ") and re.search(message, error)
    assert sorted(child.name for child in tmp_path.iterdir()) == ["release", "vectors.npz"]


def test_wrong_usage_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (
        [],
        ["restrain"],
        ["restrain", "--release", "r", "--embeddings", "e", "--out", "o", "--size", "0"],
        ["restrain", "--release", "r", "--embeddings", "e", "--out", "o", "--size", "1.5K"],
        ["resttest", "--release", "r", "--out", "o"],
    ):
        with pytest.raises(SystemExit) as stopped:
            call(*words)
        assert stopped.value.code == 2
    with pytest.raises(SystemExit) as stopped:
        call("restrain", "--help")
    assert stopped.value.code == 0
    assert "python -m builders add restrain --release" in capsys.readouterr().out
