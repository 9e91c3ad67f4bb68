"""Test nested samples of the collection: their passages, and searching a sample."""

import json
from pathlib import Path
from typing import Any

import pytest
from commands import run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

pytestmark = pytest.mark.usefixtures("own_cache")
TEXTS_OF_90 = [*TEXTS, *(f"{number}号{text}" for text in TEXTS for number in range(14))]


@pytest.fixture
def release(tmp_path: Path) -> Path:
    return make_release(tmp_path / "release", tables(TEXTS_OF_90), rows_per_shard=40)


def a_run(path: Path, ranked: dict[str, list[str]]) -> Path:
    write_run(path, ((md5(q), [(md5(text), -rank) for rank, text in enumerate(own)]) for q, own in ranked.items()))
    return path


def samples(release: Path, out: Path, *words: Any) -> list[dict[str, Any]]:
    made = run("builders", "add", "samples", "--release", release, "--out", out, "--format", "json", *words)
    found: list[dict[str, Any]] = json.loads(made.stdout)
    return found


def listed(release: Path, config: str) -> list[str]:
    return open_release(release).table(config, "corpus")["_id"].to_pylist()  # type: ignore[no-any-return]


def test_samples_are_nested_and_do_not_depend_on_the_order_of_the_passages(release: Path, tmp_path: Path) -> None:
    first, second = QUESTIONS["dev"]
    ranked = {first: TEXTS_OF_90[10:30], second: [TEXTS[4], *TEXTS_OF_90[20:40]], "another": TEXTS_OF_90[60:]}
    hard = a_run(tmp_path / "hard.run", ranked)
    sizes = ["--sizes", "40", "8", "20", "--seed", "3", "--hard", hard]
    rows = samples(release, tmp_path / "out", *sizes)
    assert [row["config"] for row in rows] == [f"sample-{n}{kind}" for kind in ("", "-hard") for n in (8, 20, 40)]
    order = [md5(text) for text in TEXTS_OF_90]
    for kind in ("", "-hard"):
        nested = [listed(tmp_path / "out", f"sample-{size}{kind}") for size in (8, 20, 40)]
        assert [len(ids) for ids in nested] == [8, 20, 40]
        assert {md5(TEXTS[4]), md5(TEXTS[5])} <= set(nested[0]) < set(nested[1]) < set(nested[2])
        assert all(ids == sorted(set(ids), key=order.index) for ids in nested)
    # Ranks 1 to 4 of both questions are passages 10 to 13, 20 to 22, and one positive. The next rank is cut.
    best = {order[number] for number in (10, 11, 12, 20, 21)}
    chosen = set(listed(tmp_path / "out", "sample-8-hard")) - {order[4], order[5]}
    assert best < chosen and chosen - best < {order[13], order[22]}
    assert not set(listed(tmp_path / "out", "sample-20-hard")) & set(order[60:])
    assert rows[-1]["hard"] == 30 and rows[-1]["passages"] == 40  # the runs have 30 passages, and 8 are random
    turned = make_release(tmp_path / "turned", tables(TEXTS_OF_90[:6] + TEXTS_OF_90[:5:-1]))
    samples(turned, tmp_path / "again", *sizes)
    for config in ("sample-20", "sample-20-hard"):
        assert set(listed(tmp_path / "again", config)) == set(listed(tmp_path / "out", config))
    samples(tmp_path / "out", tmp_path / "out", "--sizes", "20", "--seed", "4")  # replaces the samples
    assert "sample-8" not in {config for config, _ in open_release(tmp_path / "out").splits()}
    assert set(listed(tmp_path / "out", "sample-20")) != set(listed(tmp_path / "again", "sample-20"))


def test_check_names_what_a_sample_lists_twice_and_what_is_not_there(tmp_path: Path) -> None:
    ids = [md5(text) for text in (TEXTS[0], TEXTS[0], TEXTS[1], "lost")]
    rows: Any = tables() | {("sample-4", "corpus"): [{"_id": each} for each in ids]}
    found = run("builders", "check", "--release", make_release(tmp_path / "release", rows), code=1).stdout
    assert f"1 that corpus lacks: {md5('lost')}" in found
    assert f"1 ids listed more than once: {md5(TEXTS[0])}" in found


def test_an_extract_is_a_release_of_its_own(release: Path, tmp_path: Path) -> None:
    samples(release, tmp_path / "out", "--sizes", "30")
    small = tmp_path / "small"
    words = ["add", "samples", "--release", tmp_path / "out", "--out", small, "--extract"]
    assert run("builders", *words, "sample-30").stdout == f"{small}: 30 passages, the queries of dev\n"
    assert "expected a config of `add samples`" in run("builders", *words, "corpus", code=1).error
    # BM25 on the extract finds the same passages as `bm25 --sample`.
    found = []
    for given in (["--release", small], ["--release", tmp_path / "out", "--sample", "sample-30"]):
        out = tmp_path / f"{len(found)}.run"
        run("baselines", "bm25", *given, "--threads", "1", "--top-k", "7", "--split", "dev", "--out", out)
        found.append(read_run(out).hits)
    assert found[0] == found[1]
