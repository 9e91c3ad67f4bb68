"""Distillation from a run's scores, a machine's labels, and prompts that a checkpoint keeps."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from commands import error_of, run
from hub_client import run_at
from hub_server import Hub
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from safetensors.torch import load_file
from sentence_transformers import SentenceTransformer
from tiny_models import write_dual

from baselines.core.passages import open_passages
from baselines.train import trainers
from baselines.train.recipe import read_recipe
from baselines.train.training_job import TrainingJob
from baselines.train.training_pairs import read_pairs
from baselines.train.training_rows import ScoredRows, TrainingBatches
from builders.core.errors import InputError
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

QUERIES = [md5(question) for question in QUESTIONS["train"]]
IDS = [md5(text) for text in TEXTS]
SETTINGS = [
    "data.negatives_per_positive=2",
    "train.batch=4",
    "train.epochs=1",
    "train.scale=3",
    "model.query_prompt=问：",
]
SETTINGS += ["data.passage_length=24", "data.query_length=12", "train.evaluations=0", "train.saves=1"]
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release, a tiny model without dropout, and a teacher that scores all passages for each training question."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("distil")
    make_release(folder / "release", tables(TEXTS))
    write_dual(folder / "dual")
    hits = []
    for number, query_id in enumerate(QUERIES):
        rotated = IDS[number:] + IDS[:number]
        hits.append((query_id, [(passage_id, 5.0 - 0.7 * rank) for rank, passage_id in enumerate(rotated)]))
    write_run(folder / "teacher.run", hits)
    return folder


def pairs_of(world: Path, *settings: str, **options: Any) -> Any:
    release = open_release(world / "release")
    recipe = read_recipe("de-distil", [*SETTINGS, *settings])
    passages = open_passages(release, "corpus")
    negatives = options.pop("negatives", [])
    return recipe, passages, read_pairs(release, recipe, passages, negatives, teacher=world / "teacher.run", **options)


def expected_loss(loss: str, student: np.ndarray, teacher: np.ndarray) -> float:
    """Compute the loss from scores of the shape (rows, passages)."""
    if loss == "margin-mse":
        margins = (student[:, :1] - student[:, 1:]) - (teacher[:, :1] - teacher[:, 1:])
        return float((margins**2).mean())
    teacher_share = np.exp(teacher) / np.exp(teacher).sum(1, keepdims=True)
    student_share = np.exp(student) / np.exp(student).sum(1, keepdims=True)
    return float((teacher_share * np.log(teacher_share / student_share)).sum(1).mean())


@pytest.mark.parametrize("loss", ["kl", "margin-mse"])
def test_the_loss_equals_an_independent_computation(world: Path, tmp_path: Path, loss: str) -> None:
    recipe, passages, pairs = pairs_of(world, f"distil.loss={loss}", "distil.teacher_scale=0.5")
    rows = ScoredRows(pairs, passages, "all-negatives", 0.5)
    model = SentenceTransformer(str(world / "dual"), device="cpu")
    model.prompts = {"query": "问：", "document": ""}
    batches = TrainingBatches(rows, 4, 1, 0)
    options = trainers.training_arguments(recipe, tmp_path, batches, "cpu")
    trainer = trainers.dual_trainer(recipe, model, rows, batches, options)
    model.eval()
    batch = next(iter(trainer.get_train_dataloader()))
    actual = trainer.compute_loss(model, batch).item()

    # The scores of the run, and the cosines or dot products of the texts with the prompt.
    teacher_run = read_run(world / "teacher.run").hits
    students, teachers = [], []
    for number in range(len(rows)):
        row = rows[number]
        texts = [row["positive"], row["negative_1"], row["negative_2"]]
        query_id = QUERIES[QUESTIONS["train"].index(row["query"])]
        scores = dict(teacher_run[query_id])
        teachers.append([0.5 * scores[md5(text)] for text in texts])
        query_vector = model.encode(["问：" + row["query"]], prompt="")[0]
        students.append(3 * model.encode(texts, prompt="") @ query_vector)
    assert actual == pytest.approx(expected_loss(loss, np.array(students), np.array(teachers)), rel=1e-4)


def test_negatives_are_listed_by_the_teacher_or_by_a_file(world: Path, tmp_path: Path) -> None:
    _, _, pairs = pairs_of(world, "distil.top_k=3")
    # The top 3 of a question are its positive and two other passages.
    assert (pairs.counts["positives"], pairs.counts["negatives"]) == (4, 8)
    for pair in range(4):
        assert {int(row) for row in pairs.negatives[pair]} == {(pair + 1) % len(TEXTS), (pair + 2) % len(TEXTS)}
        assert pairs.scores[pair].max() == pairs.scores[pair][0] == 5
    negatives = tmp_path / "n.jsonl"
    lines = [{"query-id": query_id, "negative-ids": [IDS[-1], IDS[-2]]} for query_id in QUERIES[:1]]
    negatives.write_text(json.dumps(lines[0]) + "\n")
    _, _, pairs = pairs_of(world, negatives=[negatives])
    assert (pairs.counts["positives"], pairs.counts["positives_with_few_negatives"]) == (1, 3)
    with pytest.raises(InputError, match="leaves no pair to learn from"):
        pairs_of(world, "data.negatives_per_positive=99")


def test_passages_that_a_reranker_has_not_scored_teach_nothing(world: Path, tmp_path: Path) -> None:
    # The positive of every question is the teacher's first passage, except of the last question.
    hits = read_run(world / "teacher.run").hits
    last_query = QUERIES[-1]
    hits[last_query] = [*hits[last_query][1:4], hits[last_query][0]]
    run_path = tmp_path / "reranked.run"
    write_run(run_path, [(query_id, [(p, 9.0 - r) for r, (p, _) in enumerate(hits[query_id])]) for query_id in QUERIES])
    release = open_release(world / "release")
    recipe = read_recipe("de-distil", SETTINGS)
    passages = open_passages(release, "corpus")
    assert read_pairs(release, recipe, passages, [], teacher=run_path).counts["positives"] == len(QUERIES)
    manifest = tmp_path / "reranked.run.manifest.json"
    manifest.write_text(json.dumps({"name": "dureader_retrieval run", "top_k": 3, "reranked": {"file": "first.run"}}))
    pairs = read_pairs(release, recipe, passages, [], teacher=run_path)
    assert pairs.counts["positives"] == len(QUERIES) - 1
    assert pairs.scores is not None and pairs.scores.min() == 9 - 2


def test_a_teacher_without_scores_is_refused(world: Path, tmp_path: Path) -> None:
    lines = [f"{query_id}\t{passage_id}\t{rank}\n" for query_id in QUERIES for rank, passage_id in enumerate(IDS, 1)]
    (tmp_path / "ranks.tsv").write_text("".join(lines))
    release = open_release(world / "release")
    with pytest.raises(InputError, match="has ranks and no scores to learn"):
        read_pairs(
            release,
            read_recipe("de-distil", SETTINGS),
            open_passages(release, "corpus"),
            [],
            teacher=tmp_path / "ranks.tsv",
        )


def test_negatives_of_a_machines_labels_precede_the_teachers(world: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    # The teacher ranks the passages of the first question in the collection's order.
    line = {"query-id": QUERIES[0], "labelled-by": "ce", "positive-ids": IDS[:1], "negative-ids": [IDS[4], IDS[5]]}
    labels.write_text(json.dumps(line) + "\n", encoding="utf-8")
    _, _, without_labels = pairs_of(world, "distil.top_k=3")
    _, _, pairs = pairs_of(world, "distil.top_k=3", label_files=[labels])
    assert set(pairs.negatives[0]) == {4, 5}
    assert sorted(pairs.scores[0]) == pytest.approx([5 - 0.7 * 5, 5 - 0.7 * 4, 5])
    # The other questions have no labels.
    assert pairs.negatives[1:].tolist() == without_labels.negatives[1:].tolist()
    # Passages of the run follow if the labels have too few negatives.
    _, _, pairs = pairs_of(world, "distil.top_k=3", "data.negatives_per_positive=4", label_files=[labels])
    assert set(pairs.negatives[0]) == {4, 5, 1, 2}


def test_a_training_that_ignored_the_labels_negatives_is_not_finished(world: Path, tmp_path: Path) -> None:
    (tmp_path / "labels.jsonl").touch()

    def options_of(label_files: list[Path]) -> Any:
        job = TrainingJob(
            read_recipe("de-distil"),
            release=world / "release",
            out=tmp_path / "model",
            pairs=(),
            dev_pairs=(),
            negatives=(),
            machine_labels=label_files,
            teacher=world / "teacher.run",
            dev_run=None,
            start=str(world / "dual"),
            device="cpu",
            again=False,
            cache=None,
        )
        return job.call.options

    assert options_of([tmp_path / "labels.jsonl"]) == options_of([]) | {"negatives_from": "machine labels"}


def test_a_machines_labels_add_positives_and_questions(world: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    hidden = {"query-id": QUERIES[0], "labelled-by": "ce", "positive-ids": [IDS[3]]}
    new = {"query-id": "new", "query": "新？", "labelled-by": "ce", "positive-ids": IDS[:1], "negative-ids": IDS[2:4]}
    labels.write_text("\n".join(json.dumps(line) for line in (hidden, new)) + "\n")
    release = open_release(world / "release")
    passages = open_passages(release, "corpus")
    recipe = read_recipe("de-bm25-neg", ["data.negatives_per_positive=2"])
    pairs = read_pairs(release, recipe, passages, [], label_files=[labels])
    assert (pairs.counts["queries"], pairs.counts["positives"], pairs.counts["machine_positives"]) == (5, 6, 2)
    new_pair = [number for number, query in enumerate(pairs.query) if pairs.texts[query] == "新？"]
    assert pairs.positive[new_pair].tolist() == [0] and set(pairs.negatives[new_pair][0]) == {2, 3}
    first_pairs = pairs.query == 0
    assert set(pairs.positive[first_pairs]) == {0, 3} and not {0, 3} & set(pairs.negatives[first_pairs].ravel())


def test_no_files_positive_is_another_files_negative(world: Path, tmp_path: Path) -> None:
    first = {"query-id": "new", "query": "新？", "labelled-by": "a", "positive-ids": IDS[:1], "negative-ids": IDS[1:3]}
    second = {"query-id": "new", "query": "新？", "labelled-by": "b", "positive-ids": IDS[1:2]}
    paths = [tmp_path / "first.jsonl", tmp_path / "second.jsonl"]
    for path, line in zip(paths, (first, second), strict=True):
        path.write_text(json.dumps(line) + "\n")
    release = open_release(world / "release")
    recipe = read_recipe("de-bm25-neg", ["data.negatives_per_positive=1"])
    for label_files in (paths, paths[::-1]):
        pairs = read_pairs(release, recipe, open_passages(release, "corpus"), [], label_files=label_files)
        new_pairs = [number for number, query in enumerate(pairs.query) if pairs.texts[query] == "新？"]
        assert {(pairs.positive[pair], pairs.negatives[pair, 0]) for pair in new_pairs} == {(0, 2), (1, 2)}


def test_labels_of_other_questions_are_refused(world: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    labels.write_text(json.dumps({"query-id": "q", "labelled-by": "ce", "positive-ids": IDS[:1]}) + "\n")
    release = open_release(world / "release")
    passages = open_passages(release, "corpus")
    recipe = read_recipe("de-bm25-neg")
    with pytest.raises(InputError, match="has no labels of the training questions"):
        read_pairs(release, recipe, passages, [], label_files=[labels])
    with pytest.raises(InputError, match=r"jsonl:1: .*negative-ids"):
        read_pairs(release, recipe, passages, [labels])


def test_a_training_learns_a_machines_labels_but_no_dev_question(world: Path, tmp_path: Path) -> None:
    labels = tmp_path / "labels.jsonl"
    line = {"query-id": "new", "query": "新？", "labelled-by": "ce", "positive-ids": IDS[:1], "negative-ids": IDS[2:4]}
    negatives = tmp_path / "negatives.jsonl"
    negatives.write_text(json.dumps({"query-id": QUERIES[0], "negative-ids": IDS[3:5]}) + "\n")
    words = ["train", "de-bm25-neg", "--release", world / "release", "--start", world / "dual", "--device", "cpu"]
    words += ["--negatives", negatives, "--machine-labels", labels, "--out", tmp_path / "model"]
    for setting in [*SETTINGS, "train.max_steps=1", "model.pooling=", "model.similarity="]:
        words += ["--set", setting]

    labels.write_text(json.dumps(line) + "\n")
    run("baselines", words)
    training = json.loads((tmp_path / "model" / "training.json").read_text(encoding="utf-8"))
    assert training["counts"]["machine_positives"] == 1

    # The dev question has another width, a space and another sign at its end.
    leak = line | {"query": QUESTIONS["dev"][0].replace("？", "?") + " ！"}
    labels.write_text(json.dumps(line | {"query-id": "first"}) + "\n" + json.dumps(leak) + "\n")
    error = error_of(run("baselines", words, code=1))
    assert f"{labels}:2: the question 'new' is a dev or test question of the release" in error


def train(world: Path, out: Path, *settings: str, code: int = 0) -> Any:
    words = ["train", "de-distil", "--release", world / "release", "--out", out, "--start", world / "dual"]
    words += ["--teacher", world / "teacher.run", "--device", "cpu"]
    for setting in [*SETTINGS, *settings]:
        words += ["--set", setting]
    return run("baselines", words, code=code)


def test_prompts_travel_from_the_training_to_search_and_hub(world: Path, hub: Hub, tmp_path: Path) -> None:
    out = tmp_path / "distilled"
    train(world, out, "model.passage_prompt=文：")
    prompts = json.loads((out / "config_sentence_transformers.json").read_text(encoding="utf-8"))["prompts"]
    assert (prompts["query"], prompts["document"]) == ("问：", "文：")
    training = json.loads((out / "training.json").read_text(encoding="utf-8"))
    assert training["counts"]["positives"] == 4 and "teacher_sha256" in training["about"]
    before = load_file(next((world / "dual").rglob("model.safetensors")))
    after = load_file(next(out.rglob("model.safetensors")))
    assert any(not torch.equal(before[name], after[name]) for name in before)

    # encode and search
    here = ["--release", world / "release", "--model", out, "--device", "cpu"]
    run("baselines", "encode", here, "--out", tmp_path / "vectors")
    searched = ["--passages", tmp_path / "vectors", "--split", "dev", "--out", tmp_path / "dev.run"]
    run("baselines", "search", here, searched)
    model = SentenceTransformer(str(out), device="cpu")
    passage_vectors = model.encode(["文：" + text for text in TEXTS], prompt="")
    for question in QUESTIONS["dev"]:
        scores = dict(zip(IDS, passage_vectors @ model.encode(["问：" + question], prompt="")[0], strict=True))
        hits = dict(read_run(tmp_path / "dev.run").hits[md5(question)])
        assert hits == pytest.approx(
            {passage_id: scores[passage_id] for passage_id in hits}, rel=1e-3
        )  # stored in 16 bits

    # push and pull
    pushed = ["push", "--model", out, "--repo", "org/distilled", "--create"]
    run_at(hub, tmp_path / "home", "baselines", *pushed)
    run_at(hub, tmp_path / "other", "baselines", "pull", "org/distilled", "--out", tmp_path / "pulled")
    pulled = SentenceTransformer(str(tmp_path / "pulled"), device="cpu")
    assert pulled.prompts["query"] == "问：" and pulled.prompts["document"] == "文："


def test_a_missing_or_needless_teacher_is_one_line(world: Path, tmp_path: Path) -> None:
    words = ["--release", world / "release", "--out", tmp_path / "x", "--start", world / "dual", "--device", "cpu"]
    done = run("baselines", "train", "de-distil", words, code=1)
    assert "de-distil learns a teacher's scores; give --teacher RUN" in error_of(done)
    done = run("baselines", "train", "de-bm25-neg", words, "--teacher", world / "teacher.run", code=1)
    assert "--teacher needs a recipe with the section [distil]" in error_of(done)
    write_run(tmp_path / "dev.run", [(md5(QUESTIONS["dev"][0]), [(IDS[0], 1.0)])])
    done = run("baselines", "train", "de-distil", words, "--teacher", tmp_path / "dev.run", code=1)
    assert "has no hits for the training questions" in error_of(done)
