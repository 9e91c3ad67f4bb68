"""Run the lines of docs/tools/ unchanged with the real tools on a release.

The tools have their own virtual environment in ``.venvs/peers``, or in the folder that the variable
``DUREADER_RETRIEVAL_VENV_PEERS`` names. Pyserini is not tested, because it needs several gigabytes and a newer Java.
"""

import json
import os
import random
import shlex
import shutil
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from commands import ROOT, output
from environments import clean_environ, environment
from pages import blocks
from releases import all_tables, make_release, md5, passage

REQUIREMENTS = Path(__file__).with_name("peers-requirements.txt")


def block(tool: str, language: str, number: int = 0) -> str:
    return [each.text for each in blocks(ROOT / "docs" / "tools" / f"{tool}.md") if each.language == language][number]


@pytest.fixture(scope="session")
def peers() -> Path:
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the other tools' environment is pinned for Python 3.11")
    return environment("peers", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_PEERS", borrow=True)


def rows_of_some_size() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return rows of every config. The main set has 30 passages more, so that ranks differ."""
    draw, rows = random.Random(7), all_tables()
    letters = "".join({c: None for row in rows["corpus", "corpus"] for c in row["text"]})
    texts = ["".join(draw.choices(letters, k=40)) for _ in range(30)]
    rows["corpus", "corpus"] += [{"_id": md5(text), "title": "", "text": text} for text in texts]
    for text, other in zip(texts[:10], texts[10:20], strict=True):
        question = text[:15]
        rows["queries", "dev"].append({"_id": md5(question), "text": question})
        for found in (text, other):
            rows["qrels", "dev"].append({"query-id": md5(question), "corpus-id": md5(found), "score": 1})
        joined = {"query_id": md5(question), "query": question, "negative_passages": []}
        rows["dev", "dev"].append({**joined, "positive_passages": [passage(text), passage(other)]})
    return rows


ROWS = rows_of_some_size()
# Run a command of an installed package, because a borrowed package has no script in this environment.
COMMAND = """
import sys
from importlib.metadata import entry_points
del sys.argv[0]
(script,) = entry_points(group="console_scripts", name=sys.argv[0])
sys.exit(script.load()())
"""


class Place:
    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder, self.commands = folder, commands
        make_release(folder / "RELEASE", ROWS, rows_per_shard=20)
        homes = dict.fromkeys(("HF_HOME", "IR_DATASETS_HOME", "MTEB_CACHE"), str(folder / "home"))
        path = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment = {**clean_environ(), **homes, "PATH": path, "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}

    def python(self, code: str, show: str) -> Any:
        """Run ``code``, and return the JSON value of the expression ``show``."""
        # Left at once when done: a Parquet reader stopped while streaming can abort an interpreter that shuts down.
        code += f"\nimport json, os, sys\nprint(json.dumps({show}))\nsys.stdout.flush()\nos._exit(0)\n"
        return json.loads(self._run([self.commands / "python", "-c", code]).splitlines()[-1])

    def shell(self, lines: str) -> str:
        """Run commands, and return the output of the last command. This project's commands use its own interpreter."""
        printed = ""
        for line in lines.replace("\\\n", " ").splitlines():
            argv: list[Any] = shlex.split(line)
            ours = argv[:2] == ["python", "-m"] and argv[2] in ("builders", "baselines")
            program = [] if argv[0] == "python" else ["-c", COMMAND, argv[0]]
            argv[:1] = [sys.executable if ours else self.commands / "python", *program]
            printed = self._run(argv, {"PYTHONPATH": str(ROOT)} if ours else {})
        return printed

    def _run(self, argv: list[Any], extra: dict[str, str] | None = None) -> str:
        return output(argv, self.folder, {**self.environment, **(extra or {})})


@pytest.fixture
def place(peers: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, peers)


Values = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Values]:
    """A tiny sentence-transformers model with the release's characters, and its vectors and tokens of each text."""
    from sentence_transformers import SentenceTransformer
    from tiny_models import write_dual

    places = [place for place in ROWS if place[0] in ("corpus", "queries")]
    texts = list(dict.fromkeys(row["text"] for place in places for row in ROWS[place]))
    path = tmp_path_factory.mktemp("peers") / "MODEL"
    write_dual(path, 1, "cosine", query_length=None, document_length=None, texts=texts)
    model = SentenceTransformer(str(path), device="cpu")
    vectors = model.encode(texts, normalize_embeddings=True).tolist()
    tokens = model.tokenizer(texts, add_special_tokens=False).input_ids
    return path, {kind: dict(zip(texts, of, strict=True)) for kind, of in (("vectors", vectors), ("tokens", tokens))}


@pytest.fixture
def model(place: Place, made: tuple[Path, Values]) -> Values:
    """Copy the model to MODEL beside the release. Return its vectors and tokens of each text."""
    shutil.copytree(made[0], place.folder / "MODEL")
    return made[1]


def reciprocal_rank(scores: Mapping[str, Any], qrels: Iterable[dict[str, Any]] = ROWS["qrels", "dev"]) -> float:
    """Return MRR@10 by definition, from the scores of all passages for each judged query."""
    relevant = {(row["query-id"], row["corpus-id"]) for row in qrels}
    total, judged = 0.0, {query for query, _ in relevant}
    for query in judged:
        own = scores.get(query, {})
        best = sorted(own, key=lambda passage: -own[passage])[:10]
        total += next((1 / rank for rank, found in enumerate(best, 1) if (query, found) in relevant), 0)
    return total / len(judged)


def test_datasets_sentence_transformers_and_mteb(place: Place, model: Values) -> None:
    """All pages run in one process, so that torch is loaded once."""
    code = block("mteb", "python")
    sets = code.replace('["zho-Hans"]', '{"cmedqa": ["zho-Hans"], "ccovid": ["zho-Hans"]}')
    assert sets != code
    pages = [block("datasets", "python"), block("sentence-transformers", "python"), code, sets]
    place.shell("python -m baselines bm25 --release RELEASE --split dev --out RUN")
    place.shell("python -m builders add samples --release RELEASE --nano --hard RUN --extract --out NANO")
    pages.append(code.replace("RELEASE", "NANO"))
    runs = "".join(f"pages.append({{}})\nexec({page!r}, pages[-1])\n" for page in pages)
    rows, score, main, others, nano = place.python(
        f"pages = []\n{runs}datasets, trainer, main, others, nano = pages",
        "[[list(datasets['corpus']), list(datasets['dev'])], trainer['results']['dev_cosine_mrr@10'],"
        " *(each['results'][0].scores['dev'] for each in (main, others, nano))]",
    )
    assert rows == [ROWS["corpus", "corpus"], ROWS["dev", "dev"]]
    vectors = {text: np.array(vector) for text, vector in model["vectors"].items()}
    passages = {row["_id"]: vectors[row["text"]] for row in ROWS["corpus", "corpus"]}
    asked = {row["_id"]: vectors[row["text"]] for row in ROWS["queries", "dev"]}
    scores = {query: {found: own @ each for found, each in passages.items()} for query, own in asked.items()}
    expected = reciprocal_rank(scores)
    assert 0 < expected < 1
    assert score == pytest.approx(expected, abs=1e-5)
    assert main[0]["main_score"] == main[0]["mrr_at_10"] == pytest.approx(expected, abs=1e-5)
    assert nano[0]["main_score"] == main[0]["main_score"]  # the release is smaller than a nano release
    assert {each["hf_subset"] for each in others} == {"cmedqa", "ccovid"}
    assert all(0 < each["main_score"] <= 1 for each in others)  # one of three passages is relevant


def test_tevatron(place: Place, model: Values) -> None:
    place.shell(block("tevatron", "bash"))
    train, corpus = place.python(block("tevatron", "python"), "[list(train), list(corpus)]")
    tokens = model["tokens"]
    for row, expected in zip(train, ROWS["train", "train"], strict=True):
        assert row["query"] == tokens[expected["query"]]
        assert row["positives"] == [tokens[passage["text"]] for passage in expected["positive_passages"]]
        assert row["negatives"] == [tokens[passage["text"]] for passage in expected["negative_passages"]]
    assert corpus == [{"text_id": row["_id"], "text": tokens[row["text"]]} for row in ROWS["corpus", "corpus"]]


def test_ir_measures(place: Place) -> None:
    judged = {row["query-id"]: row["corpus-id"] for row in reversed(ROWS["qrels", "dev"])}  # each query's first row
    wrong = ROWS["corpus", "corpus"][0]["_id"]
    with open(place.folder / "RUN", "w", encoding="utf-8") as run:
        for number, (query, document) in enumerate(judged.items()):
            ranked = [document, wrong] if number % 2 else [wrong, document]
            run.writelines(f"{query} Q0 {found} {rank} {9 - rank} tag\n" for rank, found in enumerate(ranked, 1))
    printed = dict(line.split() for line in place.shell(block("ir_measures", "bash")).splitlines())
    assert printed == {"RR@10": "0.7500", "Success@1": "0.5000", "Success@50": "1.0000"}
