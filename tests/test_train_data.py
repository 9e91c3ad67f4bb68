"""Rows, negatives, batches and the dev sample of a training."""

import gzip
import itertools
import json
import math
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

from baselines.core.passages import CachedPassages, open_passages
from baselines.train.dev_sample import RerankedRun, SampledPassages, draw_dev_sample
from baselines.train.recipe import Recipe, read_recipe
from baselines.train.training_pairs import PairRows, read_pairs
from baselines.train.training_rows import DualRows, TrainingBatches
from builders.core.errors import InputError
from builders.official.assembly import build_from_archives
from builders.store.reader import Release, open_release


class Apart:
    """``count`` rows in groups of ``group`` neighbours. Rows of a group must be in different batches."""

    def __init__(self, count: int, group: int) -> None:
        self.count = count
        self.group = group

    def __len__(self) -> int:
        return self.count

    def distinct_values(self, index: int) -> tuple[int]:
        return (index // self.group,)


@settings(max_examples=150)
@given(
    count=st.integers(1, 80),
    batch=st.integers(1, 24),
    group=st.integers(1, 5),
    epochs=st.integers(1, 3),
    world=st.integers(1, 3),
    seed=st.integers(0, 5),
)
def test_processes_share_the_batches(count: int, batch: int, group: int, epochs: int, world: int, seed: int) -> None:
    rows = Apart(count, group)
    if min(batch, count) < world:
        with pytest.raises(InputError, match="too few"):
            TrainingBatches(rows, batch, epochs, seed, world=world)
        return
    rank_batches = [list(TrainingBatches(rows, batch, epochs, seed, rank=rank, world=world)) for rank in range(world)]
    size = min(batch, count) // world * world
    steps_per_epoch = count // size
    assert [len(batches) for batches in rank_batches] == [epochs * steps_per_epoch] * world
    # All processes together see the batches of a single process.
    whole_batches = [list(itertools.chain(*batches)) for batches in zip(*rank_batches, strict=True)]
    assert whole_batches == list(TrainingBatches(rows, size, epochs, seed))
    for epoch in range(epochs):
        epoch_batches = whole_batches[epoch * steps_per_epoch : (epoch + 1) * steps_per_epoch]
        epoch_rows = list(itertools.chain(*epoch_batches))
        assert len(set(epoch_rows)) == len(epoch_rows) == steps_per_epoch * size
        assert {row // count for row in epoch_rows} == {epoch}
        # If there are enough groups, no group occurs twice in a batch.
        group_count = math.ceil(count / group)
        rows_of_groups = Counter(row % count // group for row in epoch_batches[0])
        assert max(rows_of_groups.values()) == 1 or group_count < size


@pytest.fixture
def opened(tmp_path: Path) -> tuple[Release, CachedPassages]:
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
    """Write a file of negatives: ``rows`` has the texts of the negatives by the text of their query."""
    lines = []
    for question, texts in rows.items():
        lines.append(json.dumps({"query-id": md5(question), "negative-ids": list(map(md5, texts))}))
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    return path


def test_pairs_have_their_queries_negatives(opened: tuple[Release, CachedPassages], tmp_path: Path) -> None:
    release, passages = opened
    first_question, second_question = QUESTIONS["train"][:2]
    mined = {
        first_question: [TEXTS[1], TEXTS[2], TEXTS[3], TEXTS[5]],
        second_question: [TEXTS[0]],
        QUESTIONS["dev"][0]: [TEXTS[0]],
    }
    pairs = read_pairs(release, _recipe(), passages, [_write(tmp_path / "negatives.jsonl.gz", mined)])
    assert pairs.positive.tolist() == [0, 4, 1, 2, 3]
    assert [pairs.texts[query] for query in pairs.query] == [first_question, *QUESTIONS["train"]]
    assert sorted(pairs.negatives[:2].ravel().tolist()) == [1, 2, 3, 5]  # dealt out to the query's two positives
    assert pairs.negatives[2].tolist()[0] == 0  # the one mined negative comes first, then a random passage
    for negatives, positive, query in zip(pairs.negatives.tolist(), pairs.positive.tolist(), pairs.query, strict=True):
        assert len({positive, *negatives}) == 3
        assert query != 0 or not {0, 4} & set(negatives)
    assert pairs.counts == {"queries": 4, "positives": 5, "negatives": 5, "random_negatives": 5}
    again = read_pairs(release, _recipe(), passages, [tmp_path / "negatives.jsonl.gz"])
    assert np.array_equal(again.negatives, pairs.negatives)


@pytest.fixture
def laid_out() -> PairRows:
    """Two queries, answered by passages 0 and 1, with two negatives each. Passage 1 is also a negative of query 0."""
    return PairRows(list(QUESTIONS["train"][:2]), np.array([0, 1]), np.array([0, 1]), np.array([[2, 1], [4, 5]]))


def test_the_tuning_questions_are_left_out(tmp_path: Path) -> None:
    rows = _rows()
    ids = ["0" * 32, next(f"q{n}" for n in range(99) if md5(f"q{n}")[0] == "0"), "0 is no MD5"]
    for query_id in ids:  # the MD5 of the last id begins with another digit
        rows["queries", "train"].append({"_id": query_id, "text": query_id})
        rows["qrels", "train"].append({"query-id": query_id, "corpus-id": md5(TEXTS[4]), "score": 1})
    release = open_release(make_release(tmp_path / "release", rows))
    passages = open_passages(release, keep=tmp_path / "keep")
    all_pairs = read_pairs(release, _recipe(), passages, [])
    assert all_pairs.texts == QUESTIONS["train"] + ids and "left_out" not in all_pairs.counts
    pairs = read_pairs(release, _recipe("data.leave_out=tuning"), passages, [])
    assert pairs.texts == QUESTIONS["train"] + ids[2:] and pairs.counts["left_out"] == 2
    # The numbers of the queries have no gaps where questions were left out.
    assert pairs.query.max() == len(pairs.texts) - 1 == len(set(pairs.query)) - 1


def list_rows(rows: DualRows) -> list[dict[str, str]]:
    """Return the rows as a list. ``rows`` cannot be iterated, because its indexes go on in the next epoch."""
    return [rows[number] for number in range(len(rows))]


def test_two_negatives_make_one_or_two_rows(
    opened: tuple[Release, CachedPassages], laid_out: PairRows, tmp_path: Path
) -> None:
    first, second = QUESTIONS["train"][:2]
    passages = opened[1]
    rows = DualRows(laid_out, passages, "one-negative")
    assert list_rows(rows) == [
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[2]},
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[1]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[4]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[5]},
    ]
    rows = DualRows(laid_out, passages, "all-negatives")
    assert list_rows(rows) == [
        {"query": first, "positive": TEXTS[0], "negative_1": TEXTS[2], "negative_2": TEXTS[1]},
        {"query": second, "positive": TEXTS[1], "negative_1": TEXTS[4], "negative_2": TEXTS[5]},
    ]
    without = PairRows(laid_out.texts, laid_out.query, laid_out.positive, np.empty((2, 0), np.int64))
    for layout in ("one-negative", "all-negatives"):
        rows = DualRows(without, passages, layout)
        assert len(rows) == 2
        assert rows[1] == {"query": second, "positive": TEXTS[1]}


def test_rows_with_a_common_query_or_passage_stay_apart(
    opened: tuple[Release, CachedPassages], laid_out: PairRows
) -> None:
    rows = DualRows(laid_out, opened[1], "one-negative")
    pairs_with_common_text = set()
    for earlier, later in itertools.combinations(range(4), 2):
        if set(rows.distinct_values(earlier)) & set(rows.distinct_values(later)):
            pairs_with_common_text.add((earlier, later))
    # (1, 2) and (1, 3): the negative of row 1 is the positive of rows 2 and 3.
    assert pairs_with_common_text == {(0, 1), (2, 3), (1, 2), (1, 3)}
    # The batches of a training obey the rule wherever they can: (0, 2) and (0, 3) are the only allowed batches of two.
    for seed in range(10):
        first_batch = next(iter(TrainingBatches(rows, 2, 1, seed)))
        assert tuple(sorted(first_batch)) not in pairs_with_common_text


def test_negatives_of_the_release_are_those_of_the_official_training_files(tmp_path: Path) -> None:
    build_from_archives([write_files(tmp_path / "in", BOTH)], tmp_path / "release")
    release = open_release(tmp_path / "release")
    passages = open_passages(release, keep=tmp_path / "keep")
    recipe = _recipe("data.negatives=release", "data.negatives_per_positive=1")
    pairs = read_pairs(release, recipe, passages, ())
    negatives = {}
    for query, rows in zip(pairs.query, pairs.negatives, strict=True):
        negatives[pairs.texts[query]] = set(passages.texts(rows.tolist()))
    # The negatives of each training question in the test's dual.train.tsv (DUAL) and cross.train.tsv.
    official_negatives = {question: {PASSAGES[(good[0] + 6) % 12]} for question, good in TRAIN.items()}
    for query, _, negative in DUAL:
        official_negatives[list(TRAIN)[query]].add(PASSAGES[negative])
    assert set(negatives) == set(TRAIN)
    for question in TRAIN:
        assert negatives[question] <= official_negatives[question]
    assert pairs.counts["random_negatives"] == 0
    # A mined file takes precedence.
    path = tmp_path / "mined.jsonl"
    mined = {"query-id": md5(next(iter(TRAIN))), "negative-ids": [md5(PASSAGES[5])]}
    path.write_text(json.dumps(mined), encoding="utf-8")
    assert passages.texts(read_pairs(release, recipe, passages, [path]).negatives[0].tolist()) == [PASSAGES[5]]


def test_negatives_or_judgments_that_do_not_fit(tmp_path: Path) -> None:
    negatives = _write(tmp_path / "negatives.jsonl.gz", {QUESTIONS["dev"][0]: [TEXTS[0]]})
    rows = _rows()
    release = open_release(make_release(tmp_path / "release", rows))
    with pytest.raises(InputError, match="no negatives for the training queries"):
        read_pairs(release, _recipe(), open_passages(release, keep=tmp_path / "keep"), [negatives])
    rows["qrels", "train"][0]["corpus-id"] = "nowhere"
    release = open_release(make_release(tmp_path / "release-with-lost-passage", rows))
    with pytest.raises(InputError, match="has a passage 'nowhere' that the"):
        read_pairs(release, _recipe(), open_passages(release, keep=tmp_path / "keep"), [negatives])


def test_a_negative_that_the_release_lacks_is_named_with_its_line(
    plain: tuple[Release, CachedPassages], tmp_path: Path
) -> None:
    negatives = {question: [TEXTS[0]] for question in QUESTIONS["train"]}
    negatives["问"] = ["无"]
    path = _write(tmp_path / "unknown.jsonl.gz", negatives)
    last_line = len(QUESTIONS["train"]) + 1
    with pytest.raises(InputError, match=rf"unknown.jsonl.gz:{last_line}: has a passage '{md5('无')}'"):
        read_pairs(plain[0], _recipe(), plain[1], [path])


FIRST, SECOND = QUESTIONS["dev"]  # answered by texts 4 and 5


@pytest.fixture
def plain(tmp_path: Path) -> tuple[Release, CachedPassages]:
    release = open_release(make_release(tmp_path / "release"))
    return release, open_passages(release, keep=tmp_path / "keep")


def test_a_cross_encoder_ranks_only_passages_of_the_run(plain: tuple[Release, CachedPassages], tmp_path: Path) -> None:
    run = tmp_path / "run.json"
    ranked_passages = {
        md5(FIRST): [md5(TEXTS[0]), md5(TEXTS[4]), md5(TEXTS[1])],
        md5(SECOND): [md5(TEXTS[2]), md5(TEXTS[3])],  # no answer to the second question
    }
    run.write_text(json.dumps(ranked_passages))
    sample = draw_dev_sample(plain[0], read_recipe("ce-bm25-neg", ["data.passage_length=32"]), plain[1], run)
    assert isinstance(sample, RerankedRun)
    model = CrossEncoder(str(write_cross(tmp_path / "cross")), device="cpu")
    scores = model.predict([(FIRST, TEXTS[0]), (FIRST, TEXTS[4]), (FIRST, TEXTS[1])])
    rank = 1 + int((scores > scores[1]).sum())
    assert sample.measures(model, 8) == {"MRR@10": 1 / rank / 2, "recall@1": (rank == 1) / 2, "recall@50": 1 / 2}


def test_a_dual_encoder_ranks_the_passages_of_the_sample(plain: tuple[Release, CachedPassages], tmp_path: Path) -> None:
    sample = draw_dev_sample(plain[0], read_recipe("de-bm25-neg", ["data.dev_passages=50"]), plain[1], None)
    assert isinstance(sample, SampledPassages) and set(sample.passages.values()) == set(TEXTS)
    for similarity in ("dot", "cosine"):
        model = SentenceTransformer(str(write_dual(tmp_path / similarity, similarity=similarity)), device="cpu")
        scores = np.asarray(model.similarity(model.encode_query([FIRST, SECOND]), model.encode_document(TEXTS)))
        answer_scores = scores[[0, 1], [4, 5]]
        ranks = 1 + (scores > answer_scores[:, None]).sum(axis=1)
        means = sample.measures(model, 8)
        assert means["MRR@10"] == pytest.approx(np.mean(1 / ranks))
        assert means["recall@1"] == np.mean(ranks == 1) and means["recall@50"] == 1
