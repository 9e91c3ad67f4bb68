"""Rows, negatives, batches and the dev sample of a training."""

import gzip
import json
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from official_archives import BOTH, DUAL, PASSAGES, TRAIN, write_files
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from sentence_transformers import CrossEncoder, SentenceTransformer
from tiny_models import write_cross, write_dual

from baselines.core.passages import Passages, open_passages
from baselines.train.dev_sample import RerankedRun, SampledPassages, draw_dev_sample
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.training_pairs import Pairs, read_pairs
from baselines.train.training_rows import Batches, DualRows
from builders.core.errors import InputError
from builders.official.assembly import build_from_archives
from builders.store.reader import Release, open_release


class Apart:
    """``count`` rows in groups of ``group`` neighbours. Rows of a group must be in different batches."""

    def __init__(self, count: int, group: int) -> None:
        self.count, self.group = count, group

    def __len__(self) -> int:
        return self.count

    def apart(self, row: int) -> tuple[int]:
        return (row // self.group,)


@settings(max_examples=150)
@given(*(st.integers(*limits) for limits in ((1, 80), (1, 24), (1, 5), (1, 3), (1, 3), (0, 5))))
def test_processes_share_the_batches(count: int, batch: int, group: int, epochs: int, world: int, seed: int) -> None:
    rows = Apart(count, group)
    if min(batch, count) < world:
        with pytest.raises(InputError, match="too few"):
            Batches(rows, batch, epochs, seed, world=world)
        return
    parts = [list(Batches(rows, batch, epochs, seed, rank=rank, world=world)) for rank in range(world)]
    size = min(batch, count) // world * world
    assert [len(part) for part in parts] == [epochs * (count // size)] * world
    # All processes together see the batches of a single process.
    together = [[row for part in step for row in part] for step in zip(*parts, strict=True)]
    assert together == list(Batches(rows, size, epochs, seed))
    for epoch in range(epochs):
        per_epoch = count // size
        seen = [row for step in together[epoch * per_epoch : (epoch + 1) * per_epoch] for row in step]
        assert len(set(seen)) == len(seen) == per_epoch * size
        assert {row // count for row in seen} == {epoch}
        # If there are enough groups, no group occurs twice in a batch.
        first = Counter(row % count // group for row in together[epoch * per_epoch])
        assert max(first.values()) == 1 or len({row // group for row in range(count)}) < size


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Release, Passages]:
    release = open_release(make_release(tmp_path / "release", _rows()))
    return release, open_passages(release, keep=tmp_path / "keep")


def _rows() -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows = tables()
    # The first training query has two positives.
    rows["qrels", "train"].append({"query-id": md5(QUESTIONS["train"][0]), "corpus-id": md5(TEXTS[4]), "score": 1})
    rows["qrels", "train"].append({"query-id": md5(QUESTIONS["train"][1]), "corpus-id": md5(TEXTS[4]), "score": 0})
    return rows


def _recipe(*overrides: str) -> Recipe:
    return read_recipe("de-bm25-neg", ["data.negatives_per_positive=2", *overrides])


def _write(path: Path, rows: dict[str, list[str]]) -> Path:
    lines = [json.dumps({"query-id": md5(q), "negative-ids": [md5(t) for t in texts]}) for q, texts in rows.items()]
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_pairs_have_their_queries_negatives(opened: tuple[Release, Passages], tmp_path: Path) -> None:
    release, passages = opened
    first = QUESTIONS["train"][0]
    mined = {first: [TEXTS[n] for n in (1, 2, 3, 5)], QUESTIONS["train"][1]: TEXTS[:1], QUESTIONS["dev"][0]: TEXTS[:1]}
    pairs = read_pairs(release, _recipe(), passages, [_write(tmp_path / "negatives.jsonl.gz", mined)])
    assert pairs.positive.tolist() == [0, 4, 1, 2, 3]
    assert [pairs.texts[n] for n in pairs.query] == [first, first, *QUESTIONS["train"][1:]]
    assert sorted(pairs.negatives[:2].ravel().tolist()) == [1, 2, 3, 5]  # dealt out to the query's two positives
    assert pairs.negatives[2].tolist()[0] == 0  # the one mined negative comes first, then a random passage
    for own, positive, query in zip(pairs.negatives.tolist(), pairs.positive.tolist(), pairs.query, strict=True):
        assert len({*own, positive}) == 3
        assert query != 0 or not {0, 4} & set(own)
    assert pairs.counts == {"queries": 4, "positives": 5, "negatives": 5, "random_negatives": 5}
    again = read_pairs(release, _recipe(), passages, [tmp_path / "negatives.jsonl.gz"])
    assert np.array_equal(again.negatives, pairs.negatives)


@pytest.fixture
def laid_out() -> Pairs:
    """Two queries, answered by passages 0 and 1, with two negatives each. Passage 1 is also a negative of query 0."""
    return Pairs(list(QUESTIONS["train"][:2]), np.array([0, 1]), np.array([0, 1]), np.array([[2, 1], [4, 5]]))


def test_the_tuning_questions_are_left_out(tmp_path: Path) -> None:
    rows = _rows()
    ids = ["0" * 32, next(f"q{n}" for n in range(99) if md5(f"q{n}")[0] == "0"), "0 is no MD5"]
    for each in ids:  # the MD5 of the last id begins with another digit
        rows["queries", "train"].append({"_id": each, "text": each})
        rows["qrels", "train"].append({"query-id": each, "corpus-id": md5(TEXTS[4]), "score": 1})
    release = open_release(make_release(tmp_path / "release", rows))
    passages = open_passages(release, keep=tmp_path / "keep")
    whole, found = (read_pairs(release, _recipe(*each), passages, []) for each in ((), ["data.leave_out=tuning"]))
    assert whole.texts == [*QUESTIONS["train"], *ids] and "left_out" not in whole.counts
    assert found.texts == [*QUESTIONS["train"], ids[2]] and found.counts["left_out"] == 2
    assert found.query.max() == len(found.texts) - 1 == len(set(found.query)) - 1


def test_two_negatives_make_one_or_two_rows(opened: tuple[Release, Passages], laid_out: Pairs, tmp_path: Path) -> None:
    first, second = QUESTIONS["train"][:2]
    one = DualRows(laid_out, opened[1], "one-negative")
    assert [one[n] for n in range(len(one))] == [
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[2]},
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[1]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[4]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[5]},
    ]
    every = DualRows(laid_out, opened[1], "all-negatives")
    assert [every[n] for n in range(len(every))] == [
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[2], "negative_2": TEXTS[1]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[4], "negative_2": TEXTS[5]},
    ]
    without = Pairs(laid_out.texts, laid_out.query, laid_out.positive, np.empty((2, 0), np.int64))
    for layout in ("one-negative", "all-negatives"):
        rows = DualRows(without, opened[1], layout)
        assert (len(rows), rows[1]) == (2, {"query": second, "positive": TEXTS[1]})


def test_rows_with_a_common_query_or_passage_stay_apart(opened: tuple[Release, Passages], laid_out: Pairs) -> None:
    rows = DualRows(laid_out, opened[1], "one-negative")
    shared = {(a, b) for a in range(4) for b in range(a) if set(rows.apart(a)) & set(rows.apart(b))}
    # (1, 2) and (1, 3): the negative of row 1 is the positive of rows 2 and 3.
    assert shared == {(1, 0), (3, 2), (2, 1), (3, 1)}


def test_negatives_of_the_release_are_those_of_the_official_training_files(tmp_path: Path) -> None:
    build_from_archives([write_files(tmp_path / "in", BOTH)], tmp_path / "release")
    release = open_release(tmp_path / "release")
    passages = open_passages(release, keep=tmp_path / "keep")
    recipe = _recipe("data.negatives=release", "data.negatives_per_positive=1")
    pairs = read_pairs(release, recipe, passages, ())
    found = {
        pairs.texts[query]: passages.texts(own.tolist())
        for query, own in zip(pairs.query, pairs.negatives, strict=True)
    }
    # The negatives of each training question in the test's dual.train.tsv (DUAL) and cross.train.tsv.
    known = {name: {PASSAGES[(good[0] + 6) % 12]} for name, good in TRAIN.items()}
    for query, _, negative in DUAL:
        known[list(TRAIN)[query]].add(PASSAGES[negative])
    assert set(found) == set(TRAIN) and all(set(own) <= known[query] for query, own in found.items())
    assert pairs.counts["random_negatives"] == 0
    # A mined file takes precedence.
    path = tmp_path / "mined.jsonl"
    mined = {"query-id": md5(next(iter(TRAIN))), "negative-ids": [md5(PASSAGES[5])]}
    path.write_text(json.dumps(mined), encoding="utf-8")
    assert passages.texts(read_pairs(release, recipe, passages, [path]).negatives[0].tolist()) == [PASSAGES[5]]


def test_negatives_or_judgments_that_do_not_fit(tmp_path: Path) -> None:
    negatives = _write(tmp_path / "negatives.jsonl.gz", {QUESTIONS["dev"][0]: [TEXTS[0]]})
    for lost, said in ((False, "no negatives for the training queries"), (True, "has a passage 'nowhere' that the")):
        rows = _rows()
        rows["qrels", "train"][0] |= {"corpus-id": "nowhere"} if lost else {}
        release = open_release(make_release(tmp_path / f"release-{lost}", rows))
        with pytest.raises(InputError, match=said):
            read_pairs(release, _recipe(), open_passages(release, keep=tmp_path / "keep"), [negatives])
    unknown = _write(
        tmp_path / "unknown.jsonl.gz", {query: [TEXTS[0]] for query in QUESTIONS["train"]} | {"问": ["无"]}
    )
    release = open_release(make_release(tmp_path / "release"))
    with pytest.raises(
        InputError, match=rf"unknown.jsonl.gz:{len(QUESTIONS['train']) + 1}: has a passage '{md5('无')}'"
    ):
        read_pairs(release, _recipe(), open_passages(release, keep=tmp_path / "keep"), [unknown])


FIRST, SECOND = QUESTIONS["dev"]  # answered by texts 4 and 5


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Release, Passages]:
    release = open_release(make_release(tmp_path / "release"))
    return release, open_passages(release, keep=tmp_path / "keep")


def test_a_cross_encoder_ranks_only_the_top_of_the_run(plain: tuple[Release, Passages], tmp_path: Path) -> None:
    ranked = {FIRST: [0, 4, 1], SECOND: [2, 3]}  # no answer to the second question
    run = tmp_path / "run.json"
    run.write_text(json.dumps({md5(q): [md5(TEXTS[n]) for n in own] for q, own in ranked.items()}))
    sample = draw_dev_sample(plain[0], read_recipe("ce-bm25-neg", ["data.passage_length=32"]), plain[1], run)
    assert isinstance(sample, RerankedRun)
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), device="cpu")
    scores = model.predict([(FIRST, TEXTS[n]) for n in (0, 4, 1)])
    rank = 1 + int((scores > scores[1]).sum())
    found = sample.measures(model, 8)
    assert found == {"MRR@10": 1 / rank / 2, "recall@1": (rank == 1) / 2, "recall@50": 1 / 2}


def test_a_dual_encoder_ranks_the_passages_of_the_sample(plain: tuple[Release, Passages], tmp_path: Path) -> None:
    sample = draw_dev_sample(plain[0], read_recipe("de-bm25-neg", ["data.dev_passages=50"]), plain[1], None)
    assert isinstance(sample, SampledPassages) and set(sample.passages.values()) == set(TEXTS)
    for similarity in ("dot", "cosine"):
        model = SentenceTransformer(str(write_dual(tmp_path / similarity, similarity=similarity)), device="cpu")
        scores = np.asarray(model.similarity(model.encode_query([FIRST, SECOND]), model.encode_document(TEXTS)))
        ranks = [1 + int((scores[n] > scores[n, 4 + n]).sum()) for n in (0, 1)]
        found = sample.measures(model, 8)
        assert found["MRR@10"] == pytest.approx(np.mean([1 / rank for rank in ranks]))
        assert found["recall@1"] == np.mean([rank == 1 for rank in ranks]) and found["recall@50"] == 1
