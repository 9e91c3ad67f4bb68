"""The lines of docs/tools/ and docs/bm25.md run in the tools' own environments (``TEST_TOOLS=1``, ``make test-tools``).

Each tool reads an export or a release by its own loader. Trainings take two steps. bm25s and mteb use BM25's tokens.
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from commands import ROOT, run
from environments import environment
from pages import blocks
from test_peers import ROWS, Place, block, reciprocal_rank
from tiny_models import write_bert

from builders.store.runs import read_run

pytestmark = pytest.mark.skipif(not os.environ.get("TEST_TOOLS"), reason="set TEST_TOOLS=1: environments of 200 MB")
TRAIN = ROWS["train", "train"]
MINED = ROWS["corpus", "corpus"][3:6]
TEXTS = [
    row["text"] for name in ("corpus", "queries") for place, rows in ROWS.items() if place[0] == name for row in rows
]
Make = Callable[..., Place]


@pytest.fixture
def place_of(tmp_path: Path) -> Make:
    """``place_of(tool)`` returns a folder with RELEASE, MODEL, NEGATIVES and RUN.run.gz for this tool."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the other tools' environments are pinned for Python 3.11")

    def make(tool: str, alone: bool = False) -> Place:
        requirements = Path(__file__).with_name(f"{tool}-requirements.txt")
        variable = f"DUREADER_RETRIEVAL_VENV_{tool.upper()}"
        place = Place(tmp_path, environment(tool, requirements, variable, borrow=True, alone=alone))
        write_bert(tmp_path / "MODEL", TEXTS)
        rows = ({"query-id": row["query_id"], "negative-ids": [each["_id"] for each in MINED]} for row in TRAIN)
        (tmp_path / "NEGATIVES").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        release = ["--release", tmp_path / "RELEASE", "--split", "dev", "--quiet"]
        run("baselines", "bm25", release, "--out", tmp_path / "RUN.run.gz")
        return place

    return make


def test_flagembedding_trains_on_an_export(place_of: Make) -> None:
    place = place_of("flagembedding")
    place.environment |= {"CUDA_VISIBLE_DEVICES": ""}
    place.shell(block("flagembedding", "bash"))
    state = json.loads((place.folder / "TRAINED" / "checkpoint-2" / "trainer_state.json").read_text())
    assert state["global_step"] == 2
    code = """
from FlagEmbedding.abc.finetune.embedder import AbsEmbedderDataArguments, AbsEmbedderTrainDataset
arguments = AbsEmbedderDataArguments(train_data=["FLAG/train.jsonl"], train_group_size=4)
read = AbsEmbedderTrainDataset(arguments, None)
"""
    read = place.python(code, "[list(read.dataset), [read[n] for n in range(len(read))]]")
    assert [row["query"] for row in read[0]] == [row["query"] for row in TRAIN]
    for row, (query, passages, _), expected in zip(*read, TRAIN, strict=True):
        positives = [each["text"] for each in expected["positive_passages"]]
        assert row["pos"] == positives and query == expected["query"]
        assert passages[0] in positives and not {*passages[1:]} & {*positives} and len(passages) == 4


def test_pylate_trains_on_an_export(place_of: Make) -> None:
    place = place_of("pylate", alone=True)
    place.environment |= {"CUDA_VISIBLE_DEVICES": ""}
    place.shell(block("pylate", "bash"))
    shown = "[train.column_names, train['query'][:], trainer.state.log_history[-1]]"
    columns, queries, last = place.python(block("pylate", "python"), shown)
    assert columns == ["query", "positive", *(f"negative_{n}" for n in range(1, 5))]
    assert queries == [row["query"] for row in TRAIN for _ in row["positive_passages"]]
    assert last["step"] == 2 and 0 < last["train_loss"] < 100


def test_sentence_transformers_trains_on_an_export(place_of: Make) -> None:
    place = place_of("tevatron")
    place.commands = Path(sys.executable).parent
    place.shell(block("sentence-transformers", "bash"))
    code = """
from datasets import load_dataset
from sentence_transformers import SentenceTransformer, SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
train = load_dataset("json", data_files="ST/train.jsonl", split="train")
model = SentenceTransformer("MODEL", device="cpu")
arguments = SentenceTransformerTrainingArguments("TRAINED", max_steps=2, report_to="none", use_cpu=True)
trainer = SentenceTransformerTrainer(model, arguments, train, loss=MultipleNegativesRankingLoss(model))
trainer.train()
"""
    assert place.python(code, "trainer.state.global_step") == 2


def found_by_beir(place: Place, code: str) -> None:
    shown = "[list(map(dict, corpus)), list(map(dict, queries)), qrels]"
    if "Generic" in code:
        shown = (
            "[[{'id': k, **v} for k, v in corpus.items()], [{'id': k, 'text': v} for k, v in queries.items()], qrels]"
        )
    corpus, queries, qrels = place.python(code, shown)
    assert {row["id"]: row["text"] for row in corpus} == {row["_id"]: row["text"] for row in ROWS["corpus", "corpus"]}
    assert {row["id"]: row["text"] for row in queries} == {row["_id"]: row["text"] for row in ROWS["queries", "dev"]}
    expected: dict[str, dict[str, int]] = {}
    for row in ROWS["qrels", "dev"]:
        expected.setdefault(row["query-id"], {})[row["corpus-id"]] = row["score"]
    assert qrels == expected


def test_beir_reads_a_release_and_an_export_and_measures_a_run_as_we_do(place_of: Make) -> None:
    place = place_of("beir")
    found_by_beir(place, block("beir", "python"))
    place.shell(block("beir", "bash"))
    code = block("beir", "python", 1)
    found_by_beir(place, code)
    assert place.python(code, "mrr['MRR@10']") == pytest.approx(ours(place)["MRR@10"] / 100, abs=1e-4)


def ours(place: Place) -> dict[str, Any]:
    words = ["--release", place.folder / "RELEASE", "--split", "dev", "--format", "json", place.folder / "RUN.run.gz"]
    figures: dict[str, Any] = json.loads(run("baselines", "evaluate", words).stdout)[0]["official"]
    return {name: 100 * value for name, value in figures.items()}


def test_ranx_reads_the_parquet_files_and_measures_as_we_do(place_of: Make) -> None:
    place = place_of("ranx")
    place.shell(block("ranx", "bash"))
    found = place.python(block("ranx", "python"), "{name: float(value) for name, value in figures.items()}")
    expected = ours(place)
    for theirs, mine in (("mrr@10", "MRR@10"), ("hit_rate@1", "recall@1"), ("hit_rate@50", "recall@50")):
        assert 100 * found[theirs] == pytest.approx(expected[mine])


PASSAGES, QUESTIONS = ROWS["corpus", "corpus"], ROWS["queries", "dev"]


def lines_of(tool: str) -> str:
    return next(each.text for each in blocks(ROOT / "docs" / "bm25.md") if each.text.startswith(f"import {tool}\n"))


def bm25_of(place: Place, *options: str) -> dict[str, dict[str, float]]:
    words = ["--release", place.folder / "RELEASE", "--split", "dev", "--quiet", "--top-k", 1000]
    run("baselines", "bm25", words, "--k1", "1.2", "--b", "0.75", options, "--out", place.folder / "ours.run")
    return {query: dict(hits) for query, hits in read_run(place.folder / "ours.run").hits.items()}


def test_bm25s_scores_our_tokens_as_we_do(place_of: Make) -> None:
    place = place_of("bm25s")
    place.environment["PYTHONPATH"] = str(ROOT)
    given = f"passages = {[row['text'] for row in PASSAGES]!r}\nquestions = {[row['text'] for row in QUESTIONS]!r}\n"
    code = lines_of("bm25s").replace("k=50", f"k={len(PASSAGES)}")
    rows, scores = place.python(given + code, "[rows.tolist(), scores.tolist()]")
    expected = bm25_of(place, "--stop-words", "drop")
    assert any(expected.values())
    for question, own, reached in zip(QUESTIONS, rows, scores, strict=True):
        found = {PASSAGES[row]["_id"]: score for row, score in zip(own, reached, strict=True) if score > 0}
        # Lucene counts lengths above 39 tokens in steps; these are shorter.
        assert found == pytest.approx(expected.get(question["_id"], {}), rel=1e-4)


def test_mteb_scores_with_our_tokens(place_of: Make) -> None:
    place = place_of("bm25s")
    place.environment["PYTHONPATH"] = str(ROOT)
    task = block("mteb", "python").rpartition("results = ")[0]
    (scores,) = place.python(f"{task}\n{lines_of('mteb')}", "results[0].scores['dev']")
    assert scores["mrr_at_10"] == pytest.approx(reciprocal_rank(bm25_of(place)), abs=1e-5)
