"""Re-ranking: CrossEncoder's scores, the run's queries and passages, whatever interrupts it."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
import torch
from interrupting import scoring_noted
from releases import QUESTIONS, TEXTS, make_release, md5
from sentence_transformers import CrossEncoder
from tiny_models import write_cross, write_dual

from baselines.retrieve import scoring
from builders.common.command import main
from builders.store.runs import read_run, write_run

VERBS = {"rerank": "baselines.retrieve.rerank"}
BY_ID = {md5(text): text for text in [*TEXTS, *(q for questions in QUESTIONS.values() for q in questions)]}
pytestmark = pytest.mark.usefixtures("own_cache")


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("world")
    make_release(folder / "release")
    write_cross(folder / "cross")
    write_cross(folder / "two", labels=2)
    write_cross(folder / "three", labels=3)
    write_dual(folder / "dual")
    rng = random.Random(4)
    questions = [md5(question) for question in reversed(QUESTIONS["train"])]  # not the release's order
    rankings = [(query, [(md5(text), 1 / n) for n, text in enumerate(rng.sample(TEXTS, 5), 1)]) for query in questions]
    write_run(folder / "first.run", rankings)
    return folder


def run_rerank(world: Path, out: Path, *words: str | Path) -> int:
    first = ["--release", world / "release", "--split", "train", "--run", world / "first.run", "--out", out]
    return main("baselines", "", VERBS, ["rerank", "--model", *map(str, [world / "cross", *first, *words])])


def test_scores_are_the_cross_encoders_in_the_runs_order(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--top-k", "4") == 0
    given, found = read_run(world / "first.run"), read_run(tmp_path / "a.run")
    assert list(found.hits) == list(given.hits)
    model = CrossEncoder(str(world / "cross"), device="cpu")
    for query, hits in found.hits.items():
        assert {corpus for corpus, _ in hits} == set(given.rankings[query][:4])
        pairs = [(BY_ID[query], BY_ID[corpus]) for corpus, _ in hits]
        scores = np.array([score for _, score in hits])
        np.testing.assert_allclose(scores, model.predict(pairs, activation_fn=torch.nn.Identity()), atol=1e-5)
        np.testing.assert_allclose(1 / (1 + np.exp(-scores)), model.predict(pairs), atol=1e-5)
        assert scores.tolist() == sorted(scores.tolist(), reverse=True)


def test_batches_windows_and_processes_change_nothing(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run_rerank(world, tmp_path / "a.run") == 0
    monkeypatch.setattr(scoring, "WINDOW", 3)
    assert run_rerank(world, tmp_path / "b.run", "--batch-tokens", "50", "--device", "cpu,cpu") == 0
    one, other = read_run(tmp_path / "a.run"), read_run(tmp_path / "b.run")
    assert one.rankings == other.rankings
    for query, hits in one.hits.items():
        np.testing.assert_allclose([s for _, s in hits], [s for _, s in other.hits[query]], atol=1e-5)


def test_a_shorter_length_is_another_score(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--max-length", "12") == 0
    model = CrossEncoder(str(world / "cross"), device="cpu", max_length=12)
    query, hits = next(iter(read_run(tmp_path / "a.run").hits.items()))
    pairs = [(BY_ID[query], BY_ID[corpus]) for corpus, _ in hits]
    expected = model.predict(pairs, activation_fn=torch.nn.Identity())
    np.testing.assert_allclose([score for _, score in hits], expected, atol=1e-5)


def test_an_interrupted_run_goes_on(world: Path, tmp_path: Path) -> None:
    scored: list[str] = []
    with scoring_noted(scored, most=2):
        assert run_rerank(world, tmp_path / "a.run") == 130
    assert not (tmp_path / "a.run").exists()
    with scoring_noted(scored):
        assert run_rerank(world, tmp_path / "a.run") == 0
    assert scored == [BY_ID[query] for query in read_run(world / "first.run").hits]  # each once
    with scoring_noted([]):
        assert run_rerank(world, tmp_path / "b.run") == 0
    assert (tmp_path / "a.run").read_bytes() == (tmp_path / "b.run").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "a.run",
        "a.run.manifest.json",
        "b.run",
        "b.run.manifest.json",
        "cache",
    ]


def test_two_outputs_rank_by_the_probability_of_the_second(world: Path, tmp_path: Path) -> None:
    assert run_rerank(world, tmp_path / "a.run", "--model", world / "two") == 0
    model = CrossEncoder(str(world / "two"), device="cpu")
    for query, hits in read_run(tmp_path / "a.run").hits.items():
        probability = model.predict([(BY_ID[query], BY_ID[corpus]) for corpus, _ in hits], apply_softmax=True)[:, 1]
        assert probability.tolist() == sorted(probability.tolist(), reverse=True)
        np.testing.assert_allclose([1 / (1 + np.exp(-score)) for _, score in hits], probability, atol=1e-5)


def test_what_another_run_left_is_dropped(world: Path, tmp_path: Path) -> None:
    folder = tmp_path / ".a.run.building" / "of-another-run"
    folder.mkdir(parents=True)
    (folder / "window-000000.json").write_text("[[9, 9, 9, 9, 9], [9, 9, 9, 9, 9], [9, 9, 9, 9, 9], [9, 9, 9, 9, 9]]")
    assert run_rerank(world, tmp_path / "a.run") == 0
    assert 9 not in {score for hits in read_run(tmp_path / "a.run").hits.values() for _, score in hits}


@pytest.mark.parametrize(
    ("line", "words", "message"),
    [
        ("QUERY Q0 unknown 1 1.0 t", [], "has a passage 'unknown' that the release's corpus lacks"),
        ("who Q0 PASSAGE 1 1.0 t", [], "has a query 'who' that queries/train lacks"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--split", "dev"], "that queries/dev lacks"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--model", "WORLD/three"], "gives 3 scores a pair"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--model", "WORLD/dual"], "holds a SentenceTransformer; expected a CrossEncoder"),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--device", "cuda"], "no GPU that PyTorch can use"),
        (
            "QUERY Q0 PASSAGE 1 1.0 t",
            ["--model", "WORLD/none", "--out", "WORLD"],
            "is a directory; expected the name of",
        ),
        ("QUERY Q0 PASSAGE 1 1.0 t", ["--out", "RUN"], "is both --run and --out"),
    ],
)
def test_bad_input_is_one_error(
    world: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str, words: list[str], message: str
) -> None:
    if "cuda" in words and torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    run = tmp_path / "bad.run"
    run.write_text(line.replace("QUERY", md5(QUESTIONS["train"][0])).replace("PASSAGE", md5(TEXTS[0])) + "\n")
    words = [word.replace("WORLD", str(world)).replace("RUN", str(run)) for word in words]
    assert run_rerank(world, tmp_path / "a.run", "--run", run, *words) == 1
    errors = [line for line in capsys.readouterr().err.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and message in errors[0]
    assert not (tmp_path / "a.run").exists()
