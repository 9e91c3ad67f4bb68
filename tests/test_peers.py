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

from baselines import report_no_answer
from baselines.measure.confidence import nauc
from builders.store.names import STRESS_KINDS

REQUIREMENTS = Path(__file__).with_name("peers-requirements.txt")


def block(tool: str, language: str, number: int = 0) -> str:
    """Return a code block of a tool's page in docs/tools/."""
    page = ROOT / "docs" / "tools" / f"{tool}.md"
    return [code_block.text for code_block in blocks(page) if code_block.language == language][number]


@pytest.fixture(scope="session")
def peers() -> Path:
    """The environment of the other tools."""
    if sys.version_info[:2] != (3, 11):
        pytest.skip("the other tools' environment is pinned for Python 3.11")
    return environment("peers", REQUIREMENTS, "DUREADER_RETRIEVAL_VENV_PEERS", borrow=True)


def rows_of_some_size() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return rows of every config. The main set has 30 passages more, so that ranks differ."""
    generator = random.Random(7)
    rows = all_tables()
    # Every character once, in the order of the texts.
    characters = "".join(dict.fromkeys("".join(row["text"] for row in rows["corpus", "corpus"])))
    texts = ["".join(generator.choices(characters, k=40)) for _ in range(30)]
    rows["corpus", "corpus"] += [{"_id": md5(text), "title": "", "text": text} for text in texts]
    for first_text, second_text in zip(texts[:10], texts[10:20], strict=True):
        question = first_text[:15]
        query_id = md5(question)
        rows["queries", "dev"].append({"_id": query_id, "text": question})
        for text in (first_text, second_text):
            rows["qrels", "dev"].append({"query-id": query_id, "corpus-id": md5(text), "score": 1})
        positives = [passage(first_text), passage(second_text)]
        joined_row = {"query_id": query_id, "query": question}
        rows["dev", "dev"].append(joined_row | {"negative_passages": [], "positive_passages": positives})
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
    """A folder with a release, where commands and code of another tool run."""

    def __init__(self, folder: Path, commands: Path) -> None:
        self.folder = folder
        self.commands = commands
        make_release(folder / "RELEASE", ROWS, rows_per_shard=20)
        self.environment = clean_environ()
        for variable in ("HF_HOME", "IR_DATASETS_HOME", "MTEB_CACHE"):
            self.environment[variable] = str(folder / "home")
        self.environment["PATH"] = f"{commands}{os.pathsep}{os.environ.get('PATH', '')}"
        self.environment["HF_HUB_OFFLINE"] = "1"
        self.environment["OMP_NUM_THREADS"] = "1"

    def python(self, code: str, show: str) -> Any:
        """Run ``code``, and return the JSON value of the expression ``show``."""
        # Left at once when done: a Parquet reader stopped while streaming can abort an interpreter that shuts down.
        code += f"\nimport json, os, sys\nprint(json.dumps({show}))\nsys.stdout.flush()\nos._exit(0)\n"
        printed = output([self.commands / "python", "-c", code], self.folder, self.environment)
        return json.loads(printed.splitlines()[-1])

    def shell(self, lines: str) -> str:
        """Run commands, and return the output of the last command. This project's commands use its own interpreter."""
        printed = ""
        for line in lines.replace("\\\n", " ").splitlines():
            words = shlex.split(line)
            if words[:2] == ["python", "-m"] and words[2] in ("builders", "baselines"):
                argv: list[Any] = [sys.executable, *words[1:]]
                environment = self.environment | {"PYTHONPATH": str(ROOT)}
            else:
                script = [] if words[0] == "python" else ["-c", COMMAND, words[0]]
                argv = [self.commands / "python", *script, *words[1:]]
                environment = self.environment
            printed = output(argv, self.folder, environment)
        return printed


@pytest.fixture
def place(peers: Path, tmp_path: Path) -> Place:
    return Place(tmp_path, peers)


Values = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def model_and_values(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Values]:
    """A tiny sentence-transformers model with the release's characters, and its vectors and tokens of each text."""
    from sentence_transformers import SentenceTransformer
    from tiny_models import write_dual

    all_texts = []
    for (config, _), rows in ROWS.items():
        if config in ("corpus", "queries"):
            all_texts += [row["text"] for row in rows]
    texts = list(dict.fromkeys(all_texts))
    model_folder = tmp_path_factory.mktemp("peers") / "MODEL"
    write_dual(model_folder, 1, "cosine", query_length=None, document_length=None, texts=texts)
    model = SentenceTransformer(str(model_folder), device="cpu")
    vectors = model.encode(texts, normalize_embeddings=True).tolist()
    tokens = model.tokenizer(texts, add_special_tokens=False).input_ids
    values = {"vectors": dict(zip(texts, vectors, strict=True)), "tokens": dict(zip(texts, tokens, strict=True))}
    return model_folder, values


@pytest.fixture
def model(place: Place, model_and_values: tuple[Path, Values]) -> Values:
    """Copy the model to MODEL beside the release. Return its vectors and tokens of each text."""
    model_folder, values = model_and_values
    shutil.copytree(model_folder, place.folder / "MODEL")
    return values


def reciprocal_rank(scores: Mapping[str, Any], qrels: Iterable[dict[str, Any]] = ROWS["qrels", "dev"]) -> float:
    """Return MRR@10 by definition, from the scores of all passages for each judged query."""
    positive_ids: dict[str, set[str]] = {}
    for row in qrels:
        positive_ids.setdefault(row["query-id"], set()).add(row["corpus-id"])
    total = 0.0
    for query_id, relevant in positive_ids.items():
        query_scores = scores.get(query_id, {})
        ranking = sorted(query_scores, key=query_scores.__getitem__, reverse=True)
        for rank, passage_id in enumerate(ranking[:10], 1):
            if passage_id in relevant:
                total += 1 / rank
                break
    return total / len(positive_ids)


def test_datasets_sentence_transformers_and_mteb(place: Place, model: Values) -> None:
    """All pages run in one process, so that torch is loaded once."""
    mteb_code = block("mteb", "python")
    code_of_sets = mteb_code.replace('["zho-Hans"]', '{"cmedqa": ["zho-Hans"], "ccovid": ["zho-Hans"]}')
    assert code_of_sets != mteb_code
    code_of_nano = mteb_code.replace("RELEASE", "NANO")
    pages = [block("datasets", "python"), block("sentence-transformers", "python")]
    pages += [mteb_code, code_of_sets, code_of_nano]
    place.shell("python -m baselines bm25 --release RELEASE --split dev --out RUN")
    place.shell("python -m builders add samples --release RELEASE --nano --hard RUN --extract --out NANO")
    code = "pages = []\n"
    for page in pages:
        code += f"pages.append({{}})\nexec({page!r}, pages[-1])\n"
    rows, score, main, sets, nano = place.python(
        f"{code}datasets, trainer, main, sets, nano = pages",
        "[[list(datasets['corpus']), list(datasets['dev'])], trainer['results']['dev_cosine_mrr@10'],"
        " *(page['results'][0].scores['dev'] for page in (main, sets, nano))]",
    )
    assert rows == [ROWS["corpus", "corpus"], ROWS["dev", "dev"]]
    expected = reciprocal_rank(scores_by_vectors(model["vectors"]))
    assert 0 < expected < 1
    assert score == pytest.approx(expected, abs=1e-5)
    assert main[0]["main_score"] == main[0]["mrr_at_10"] == pytest.approx(expected, abs=1e-5)
    assert nano[0]["main_score"] == main[0]["main_score"]  # the release is smaller than a nano release
    assert {result["hf_subset"] for result in sets} == {"cmedqa", "ccovid"}
    assert all(0 < result["main_score"] <= 1 for result in sets)  # one of three passages is relevant


def test_mteb_reads_the_perturbed_questions_of_a_nano_release(place: Place, model: Values) -> None:
    from sentence_transformers import SentenceTransformer

    # The first command of the page, add stress, changes few of the random texts. RELEASE has perturbed questions.
    shutil.copytree(place.folder / "RELEASE", place.folder / "STRESS")
    place.shell(block("mteb", "bash").split("\n", 1)[1])
    shown = "{row['hf_subset']: row['mrr_at_10'] for row in results[0].scores['dev']}"
    scores = place.python(block("mteb", "python", 1), shown)
    assert set(scores) == {"default", *(f"stress-{kind}" for kind in STRESS_KINDS if kind != "full-width")}
    assert scores["default"] == pytest.approx(reciprocal_rank(scores_by_vectors(model["vectors"])), abs=1e-5)

    # The perturbed questions have the judgments of their originals.
    rows = ROWS["stress-swap-queries", "dev"]
    query_vectors = SentenceTransformer(str(place.folder / "MODEL"), device="cpu").encode(
        [row["text"] for row in rows], normalize_embeddings=True
    )
    scores_by_original = {}
    for row, query_vector in zip(rows, query_vectors, strict=True):
        passage_scores = {
            text["_id"]: query_vector @ model["vectors"][text["text"]] for text in ROWS["corpus", "corpus"]
        }
        scores_by_original[row["original_id"]] = passage_scores
    qrels = [row for row in ROWS["qrels", "dev"] if row["query-id"] in scores_by_original]
    assert len(qrels) == 2
    assert scores["stress-swap"] == pytest.approx(reciprocal_rank(scores_by_original, qrels), abs=1e-5)


def scores_by_vectors(vectors: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the scores of all passages for each dev query."""
    scores: dict[str, dict[str, float]] = {}
    for query in ROWS["queries", "dev"]:
        query_vector = np.array(vectors[query["text"]])
        scores[query["_id"]] = {row["_id"]: query_vector @ vectors[row["text"]] for row in ROWS["corpus", "corpus"]}
    return scores


def test_tevatron(place: Place, model: Values) -> None:
    place.shell(block("tevatron", "bash"))
    train, corpus = place.python(block("tevatron", "python"), "[list(train), list(corpus)]")
    tokens = model["tokens"]
    for tevatron_row, row in zip(train, ROWS["train", "train"], strict=True):
        assert tevatron_row["query"] == tokens[row["query"]]
        assert tevatron_row["positives"] == [tokens[passage["text"]] for passage in row["positive_passages"]]
        assert tevatron_row["negatives"] == [tokens[passage["text"]] for passage in row["negative_passages"]]
    assert corpus == [{"text_id": row["_id"], "text": tokens[row["text"]]} for row in ROWS["corpus", "corpus"]]


def test_ir_measures(place: Place) -> None:
    # Each query's first row counts.
    positive_ids = {row["query-id"]: row["corpus-id"] for row in reversed(ROWS["qrels", "dev"])}
    wrong_id = ROWS["corpus", "corpus"][0]["_id"]
    run_lines = []
    for number, (query_id, positive_id) in enumerate(positive_ids.items()):
        # Half of the queries have the positive at rank 1, and the others at rank 2.
        ranking = [positive_id, wrong_id] if number % 2 else [wrong_id, positive_id]
        for rank, passage_id in enumerate(ranking, 1):
            run_lines.append(f"{query_id} Q0 {passage_id} {rank} {9 - rank} tag\n")
    (place.folder / "RUN").write_text("".join(run_lines), encoding="utf-8")
    printed = dict(line.split() for line in place.shell(block("ir_measures", "bash")).splitlines())
    assert printed == {"RR@10": "0.7500", "Success@1": "0.5000", "Success@50": "1.0000"}


@pytest.mark.usefixtures("model")
def test_mteb_computes_the_same_nauc(place: Place) -> None:
    """mteb's own scores of its predictions, and its function on random inputs with ties."""
    random_inputs = []
    generator = np.random.default_rng(0)
    for count in range(2, 42):
        confidences = generator.integers(0, 5, count) if count % 2 else generator.normal(size=count)
        values = generator.choice([0, 0.1, 0.25, 0.5, 1], count)
        values[:2] = (0, 1)  # nAUC is undefined if all values are equal
        random_inputs.append([confidences.tolist(), values.tolist()])
    code = block("mteb", "python").replace("cache=None", 'cache=None, prediction_folder="PREDICTIONS"')
    code += f"""
import numpy as np
from mteb._evaluators.retrieval_metrics import nauc
areas = [nauc(np.array(keys, float), np.array(values, float)) for keys, values in {random_inputs!r}]
"""
    (scores,), areas = place.python(code, "[results[0].scores['dev'], areas]")
    own_areas = [nauc(np.array(keys, float), np.array(values, float)) for keys, values in random_inputs]
    assert own_areas == pytest.approx(areas, abs=1e-12)
    (predictions_path,) = (place.folder / "PREDICTIONS").rglob("*.json")
    (result,) = report_no_answer([predictions_path], release=place.folder / "RELEASE").value
    expected = {name: scores[name] for name in result["nAUC"]}
    assert {name: figures["value"] for name, figures in result["nAUC"].items()} == pytest.approx(expected, abs=1e-5)
