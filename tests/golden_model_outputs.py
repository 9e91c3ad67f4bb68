"""Groups of outputs that depend on a model: each function runs verbs with tiny models and returns what they write.

The release has 12 passages. The models' weights are drawn by NumPy's old generator, whose numbers are the same in every
version. The models have no dropout, so trainings depend on no generator of PyTorch. Ids are replaced by names such as
``passage-03`` and ``dev-1``. Values that differ between machines and versions are replaced: hashes, sizes in bytes,
versions, times and folders.
"""

import json
import math
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from commands import run
from golden_rows import lines
from releases import QUESTIONS, TEXTS, make_release, md5, tables
from safetensors.numpy import load_file, save_file
from tiny_kinds import write_language_model
from tiny_models import write_cross, write_dual

from builders.store.runs import write_run

Golden = dict[str, Any]  # readable values by the name of the output

# Six passages, and six longer ones, which begin like another passage. All differ in their first eight characters, so
# that no scores tie where a model cuts its input.
PASSAGES = list(TEXTS)
for passage_text, next_text in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True):
    PASSAGES.append(next_text[:5] + passage_text)
NAMES = {md5(text): f"passage-{number:02}" for number, text in enumerate(PASSAGES, start=1)}
for split_name, split_questions in QUESTIONS.items():
    NAMES |= {md5(text): f"{split_name}-{number}" for number, text in enumerate(split_questions, start=1)}

CPU = ("--device", "cpu", "--dtype", "fp32")
# Values that differ between machines or versions, by key. `template` is the chat template of a library's default.
VARYING = {
    "bytes": "BYTES",
    "seconds": "SECONDS",
    "rows_per_second": "RATE",
    "template": "TEMPLATE",
    "throughput": "THROUGHPUT",
    "query_latency": "LATENCY",
}
WEIGHT_SCALE = 0.3  # large enough for scores that differ clearly between passages
FLOATS_SHOWN = 4  # leading numbers of each embedding
# Changes of every recipe, for a training of some seconds.
TRAINING_VALUES = (
    "data.passage_length=24",
    "data.query_length=12",
    "data.dev_passages=8",
    "train.saves=1",
    "train.batch=2",
    "train.logs=3",
    "train.evaluations=1",
    "train.max_steps=6",
)


@dataclass
class ModelWorld:
    """``base``: release, models, runs and embeddings, which are created once. ``out``: folder of a group's outputs."""

    base: Path
    out: Path

    @property
    def release(self) -> tuple[str, Path]:
        return "--release", self.base / "release"

    @property
    def dual(self) -> Path:
        return self.base / "dual"

    @property
    def cross(self) -> Path:
        return self.base / "cross"

    @property
    def train_run(self) -> Path:
        return self.base / "train.run"

    def call(self, verb: str, *words: object) -> None:
        """Run a verb of baselines on the release."""
        run("baselines", verb, "--quiet", self.release, words)

    def call_on_cpu(self, verb: str, *words: object) -> None:
        """Run a verb that computes with a model, in full precision."""
        self.call(verb, *words, *CPU)

    def print_json(self, verb: str, *words: object) -> Any:
        """Run a verb that computes with a model, and return the JSON that it prints."""
        stdout = run("baselines", verb, "--quiet", words, CPU, "--format", "json").stdout
        return self.stable(json.loads(stdout))

    def stable(self, value: Any, key: str = "") -> Any:
        """Replace ids by names, and values that differ between machines or versions by words.

        ``key``: the key of ``value`` in its dictionary, empty elsewhere. Lists of versions keep only their names.
        """
        if key in VARYING and value is not None:
            return VARYING[key]
        if key == "versions":
            return sorted(value)
        if isinstance(value, dict):
            return {self.stable(name): self.stable(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [self.stable(part) for part in value]
        if isinstance(value, float):
            return round(value, 4) + 0.0  # the sum makes -0.0 to 0.0
        return self.stable_text(value) if isinstance(value, str) else value

    def stable_text(self, text: str) -> str:
        """Replace ids, folders, hashes and the number of threads in a text."""
        for text_id, name in NAMES.items():
            text = text.replace(text_id, name)
        for folder in (self.base, self.out):
            text = text.replace(f"{folder}/", "")
        text = re.sub(r"\bCPU, \d+ threads", "CPU, N threads", text)
        return re.sub(r"\b[0-9a-f]{8,64}\b", "HASH", text)

    def json_file(self, path: Path) -> Any:
        """Read a JSON file with stable values."""
        return self.stable(json.loads(path.read_text(encoding="utf-8")))

    def run_file(self, path: Path) -> Golden:
        """Return a run and its manifest. In the run, ranks count from 1, and scores fall."""
        scores: dict[str, dict[str, float]] = {}
        tags = set()
        for line in lines(path):
            query_id, _, passage_id, rank, score, tag = line.split()
            hits = scores.setdefault(query_id, {})
            assert int(rank) == len(hits) + 1, line
            lowest_score = min(hits.values(), default=math.inf)
            assert float(score) <= lowest_score, line
            hits[passage_id] = float(score)
            tags.add(tag)
        golden_run = {"scores": self.stable(scores), "tags": sorted(map(self.stable_text, tags))}
        manifest_path = path.with_name(f"{path.name}.manifest.json")
        if manifest_path.exists():
            golden_run["manifest"] = self.json_file(manifest_path)
        return golden_run

    def embeddings(self, folder: Path) -> Golden:
        """Return the manifest of embeddings, and the first numbers and the norm of each vector."""
        golden_folder: Golden = {"manifest": self.json_file(folder / "manifest.json")}
        for path in sorted(folder.glob("*.npy")):
            vectors = np.load(path)
            first_numbers = []
            norms = []
            for vector in vectors:
                first_numbers.append([round(float(number), 4) for number in vector[:FLOATS_SHOWN]])
                norm = np.linalg.norm(vector.astype(np.float32))
                norms.append(round(float(norm), 4))
            golden_folder[path.name] = {
                "shape": list(vectors.shape),
                "dtype": str(vectors.dtype),
                "first": first_numbers,
                "norms": norms,
            }
        return golden_folder


def fix_weights(folder: Path) -> Path:
    """Replace a model's weights by numbers that are equal on every machine, and switch off its dropout."""
    for path in sorted(folder.rglob("*.safetensors")):
        generator = np.random.RandomState(0)
        weights = load_file(path)
        for name in sorted(weights):
            # Norms and biases keep their initial ones and zeros.
            if not re.search("norm", name.lower()) and not name.endswith("bias"):
                numbers = generator.normal(0, WEIGHT_SCALE, weights[name].shape)
                weights[name] = numbers.astype(np.float32)
        save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key in config.keys() & {"hidden_dropout_prob", "attention_probs_dropout_prob"}:
        config[key] = 0.0
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_model_world(folder: Path) -> None:
    """Write the release, the models, the runs and the embeddings of a :class:`ModelWorld`."""
    folder.mkdir()
    world = ModelWorld(folder, folder)
    make_release(folder / "release", tables(PASSAGES))
    fix_weights(write_dual(world.dual))
    fix_weights(write_cross(world.cross))
    fix_weights(write_language_model(folder / "llm"))
    fix_weights(folder / "dual-bert")  # the BERT inside of the dual-encoder: the start of a training
    rankings = []  # (query id, hits) pairs
    for question in QUESTIONS["train"]:
        # A run without a retriever: a fixed order for each question.
        shuffled_texts = random.Random(question).sample(PASSAGES, len(PASSAGES))
        hits = [(md5(text), 1 / rank) for rank, text in enumerate(shuffled_texts, start=1)]
        rankings.append((md5(question), hits))
    write_run(world.train_run, rankings)
    world.call_on_cpu("encode", "--model", world.dual, "--out", folder / "passages")
    passages = folder / "passages"
    world.call_on_cpu("search", "--model", world.dual, "--passages", passages, "--out", folder / "dense.run")


def encode(world: ModelWorld) -> Golden:
    """Embeddings of passages, and of queries with and without options."""
    outputs = {"passages": world.embeddings(world.base / "passages")}
    options_by_name = {
        "queries": ["--queries"],
        "options": ["--queries", "--split", "train", "--shard-rows", 3, "--max-length", 6, "--batch-tokens", 64],
    }
    for name, options in options_by_name.items():
        out = world.out / name
        world.call_on_cpu("encode", "--model", world.dual, "--out", out, *options)
        outputs[name] = world.embeddings(out)
    return outputs


def search(world: ModelWorld) -> Golden:
    """Runs of a model, and of encoded queries with each engine."""
    outputs = {"model": world.run_file(world.base / "dense.run")}
    queries = world.out / "queries"
    world.call_on_cpu("encode", "--model", world.dual, "--out", queries, "--queries", "--split", "test")
    inputs = ("--queries", queries, "--split", "test", "--passages", world.base / "passages")
    for engine in ("faiss", "torch"):
        run_path = world.out / f"{engine}.run.gz"
        options = ("--engine", engine, "--top-k", 6, "--device", "cpu")
        world.call("search", *inputs, *options, "--out", run_path)
        outputs[engine] = world.run_file(run_path)
    return outputs


def rerank(world: ModelWorld) -> Golden:
    """Runs that models of each kind have re-ranked."""
    outputs: Golden = {}
    options_by_name = {
        "cross": ["--model", world.cross],
        "options": ["--model", world.cross, "--top-k", 5, "--max-length", 32, "--query-prompt", "问"],
        "dense": ["--model", world.dual, "--similarity", "cosine", "--truncate-dim", 16],
        "llm": ["--model", world.base / "llm", "--kind", "llm", "--prompt", "北京"],
    }
    for name, options in options_by_name.items():
        run_path = world.out / f"{name}.run"
        world.call_on_cpu("rerank", "--run", world.base / "dense.run", "--out", run_path, *options)
        outputs[name] = world.run_file(run_path)
    return outputs


def run_model(world: ModelWorld) -> Golden:
    """Outputs of `run`: the run, its manifest, and the printed settings and measures."""
    outputs: Golden = {}
    changed_inputs = ["--query-prompt", "问：", "--passage-prompt", "文：", "--max-length", 12, "--truncate-dim", 16]
    changed_model = ["--normalize", "--pooling", "mean", "--family", "none", "--split", "train"]
    words_by_name = {
        "dense": [world.dual],
        "options": [world.dual, *changed_inputs, *changed_model],
        "over": [world.cross, "--over", world.base / "dense.run", "--top-k", 6],
    }
    for name, words in words_by_name.items():
        run_path = world.out / f"{name}.run"
        report = world.print_json("run", *words, *world.release, "--out", run_path)
        outputs[name] = world.run_file(run_path)
        assert report.pop("manifest") == outputs[name]["manifest"]
        outputs[f"{name}/printed"] = report
    return outputs


def match(world: ModelWorld) -> Golden:
    """Runs of `match`, and a threshold that it calibrates."""
    outputs: Golden = {}
    options_by_name = {
        "cross": ["--model", world.cross, "--encoder", world.dual, "--top-k", 2, "--recall-sample", 3],
        "dual": ["--model", world.dual, "--split", "dev", "--threshold", 0.75],
    }
    for name, options in options_by_name.items():
        run_path = world.out / f"{name}.run"
        report = world.print_json("match", *world.release, *options, "--out", run_path)
        outputs[f"{name}/printed"] = report
        outputs[name] = world.run_file(run_path)
    pairs_path = write_pairs(world.out / "pairs.tsv", labelled_question_pairs())
    threshold_path = world.out / "threshold.json"
    words = ("--model", world.dual, "--calibrate", pairs_path, "--precision", 0.9, "--out", threshold_path)
    report = world.print_json("match", *words)
    outputs["calibrate/printed"] = report
    outputs["calibrate"] = world.json_file(threshold_path)
    return outputs


def labelled_question_pairs() -> list[tuple[str, str, int]]:
    """Return each question with itself ten times as a match, and all other pairs as no matches."""
    # Calibration needs many matches to promise a precision of 0.9.
    questions = []
    for split_questions in QUESTIONS.values():
        questions += split_questions
    pairs = [(question, question, 1) for question in questions * 10]
    for first in questions:
        pairs += [(first, second, 0) for second in questions if first != second]
    return pairs


def write_pairs(path: Path, pairs: list[tuple[str, str, int]]) -> Path:
    """Write labelled pairs of questions as a table. Return its path."""
    text = "text1\ttext2\tlabel\n"
    for first, second, label in pairs:
        text += f"{first}\t{second}\t{label}\n"
    path.write_text(text, encoding="utf-8")
    return path


def mine(world: ModelWorld) -> Golden:
    """Negatives that a cross-encoder or a bi-encoder has filtered."""
    outputs: Golden = {}
    options_by_name = {
        "margin": ["--cross-encoder", world.cross, "--margin", 0.0],
        "max-score": ["--cross-encoder", world.cross, "--max-score", 0.4, "--negatives", 12, "--top-k", 11],
        "bi-encoder": ["--bi-encoder", world.dual, "--relative-margin", 0.05, "--seed", 3],
    }
    for name, options in options_by_name.items():
        negatives_path = world.out / f"{name}.jsonl"
        inputs = ("--split", "train", "--run", world.train_run, "--out", negatives_path)
        world.call_on_cpu("mine", *inputs, *options)
        rows = [world.stable(json.loads(line)) for line in lines(negatives_path)]
        outputs[name] = {row["query-id"]: row["negative-ids"] for row in rows}
    return outputs


def train(world: ModelWorld) -> Golden:
    """Records, printed reports and file names of a training of each kind."""
    negatives_path = world.out / "negatives.jsonl"
    world.call("mine", "--run", world.train_run, "--out", negatives_path)
    # A question matches only itself.
    pairs = []
    for first in QUESTIONS["train"]:
        pairs += [(first, second, int(first == second)) for second in QUESTIONS["train"]]
    pairs_path = write_pairs(world.out / "pairs.tsv", pairs)
    data_words = [*world.release, "--negatives", negatives_path]
    words_by_name = {
        "dual": ["de-bm25-neg-scratch", *data_words, "--start", world.base / "dual-bert", "--set", "train.epochs=3"],
        "cross": [
            "ce-bm25-neg-scratch",
            *data_words,
            "--start",
            world.cross,
            "--dev-run",
            world.base / "dense.run",
        ],
        "pairs": ["question-matching-cpu", "--pairs", pairs_path, "--dev-pairs", pairs_path, "--start", world.cross],
    }
    overrides: list[str] = []
    for value in TRAINING_VALUES:
        overrides += ["--set", value]
    outputs: Golden = {}
    for name, words in words_by_name.items():
        out = world.out / name
        done = run("baselines", "train", "--quiet", words, overrides, "--device", "cpu", "--out", out)
        outputs[f"{name}/printed"] = world.stable(json.loads(done.stdout))
        outputs[name] = world.json_file(out / "training.json")
        file_paths = [path for path in out.rglob("*") if path.is_file()]
        outputs[f"{name}/files"] = sorted(path.relative_to(out).as_posix() for path in file_paths)
    return outputs


MODEL_GROUPS: tuple[Callable[[ModelWorld], Golden], ...] = (encode, search, rerank, run_model, match, mine, train)
