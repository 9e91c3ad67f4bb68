"""Groups of outputs that depend on a model: each function runs verbs with tiny models and returns what they write.

The release has 12 passages. The models' weights are drawn by NumPy's old generator, whose numbers are the same in every
version. The models have no dropout, so trainings depend on no generator of PyTorch. Ids are replaced by names such as
``passage-03`` and ``dev-1``. Values that differ between machines and versions are replaced: hashes, sizes in bytes,
versions, times and folders.
"""

import json
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
PASSAGES = [*TEXTS, *(other[:5] + text for text, other in zip(TEXTS, TEXTS[1:] + TEXTS[:1], strict=True))]
NAMES = {md5(text): f"passage-{number:02}" for number, text in enumerate(PASSAGES, start=1)}
for split_name, split_questions in QUESTIONS.items():
    NAMES |= {md5(text): f"{split_name}-{number}" for number, text in enumerate(split_questions, start=1)}

CPU = ("--device", "cpu", "--dtype", "fp32")
# Values that differ between machines or versions, by key. `template` is the chat template of a library's default.
VARYING = {"bytes": "BYTES", "seconds": "SECONDS", "rows_per_second": "RATE", "template": "TEMPLATE"}
WEIGHT_SCALE = 0.3  # large enough for scores that differ clearly between passages
FLOATS_SHOWN = 4  # leading numbers of each embedding


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
        run("baselines", verb, "--quiet", *self.release, *words)

    def print_json(self, verb: str, *words: object) -> Any:
        stdout = run("baselines", verb, "--quiet", *words, "--format", "json").stdout
        return self.stable(json.loads(stdout))

    def stable(self, value: Any, key: str = "") -> Any:
        """Replace ids by names, and values that differ between machines or versions by words."""
        if key in VARYING and value is not None:
            return VARYING[key]
        if key == "versions":
            return sorted(value)
        if isinstance(value, dict):
            return {self.stable(name): self.stable(part, name) for name, part in value.items()}
        if isinstance(value, list):
            return [self.stable(part) for part in value]
        if isinstance(value, float):
            return round(value, 4) + 0.0
        return self.stable_text(value) if isinstance(value, str) else value

    def stable_text(self, text: str) -> str:
        for text_id, name in NAMES.items():
            text = text.replace(text_id, name)
        for folder in (self.base, self.out):
            text = text.replace(f"{folder}/", "")
        text = re.sub(r"\bCPU, \d+ threads", "CPU, N threads", text)
        return re.sub(r"\b[0-9a-f]{8,64}\b", "HASH", text)

    def json_file(self, path: Path) -> Any:
        return self.stable(json.loads(path.read_text(encoding="utf-8")))

    def run_file(self, path: Path) -> Golden:
        """Return a run and its manifest. In the run, ranks count from 1, and scores fall."""
        scores: dict[str, dict[str, float]] = {}
        tags = set()
        for line in lines(path):
            query_id, _, passage_id, rank, score, tag = line.split()
            hits = scores.setdefault(query_id, {})
            assert int(rank) == len(hits) + 1 and float(score) <= min(hits.values(), default=float("inf")), line
            hits[passage_id] = float(score)
            tags.add(tag)
        found = {"scores": self.stable(scores), "tags": sorted(map(self.stable_text, tags))}
        manifest = path.with_name(f"{path.name}.manifest.json")
        if manifest.exists():
            found["manifest"] = self.json_file(manifest)
        return found

    def embeddings(self, folder: Path) -> Golden:
        vectors = {path.name: np.load(path) for path in sorted(folder.glob("*.npy"))}
        found: Golden = {"manifest": self.json_file(folder / "manifest.json")}
        for name, rows in vectors.items():
            shown = [[round(float(number), 4) for number in row[:FLOATS_SHOWN]] for row in rows]
            norms = [round(float(np.linalg.norm(row.astype(np.float32))), 4) for row in rows]
            found[name] = {"shape": list(rows.shape), "dtype": str(rows.dtype), "first": shown, "norms": norms}
        return found


def fix_weights(folder: Path) -> Path:
    """Replace a model's weights by numbers that are equal on every machine, and switch off its dropout."""
    for path in sorted(folder.rglob("*.safetensors")):
        numbers, weights = np.random.RandomState(0), load_file(path)
        for name in sorted(weights):
            # Norms and biases keep their initial ones and zeros.
            if not re.search("norm", name.lower()) and not name.endswith("bias"):
                weights[name] = numbers.normal(0, WEIGHT_SCALE, weights[name].shape).astype(np.float32)
        save_file(weights, path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    for key in config.keys() & {"hidden_dropout_prob", "attention_probs_dropout_prob"}:
        config[key] = 0.0
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def make_model_world(folder: Path) -> None:
    folder.mkdir()
    world = ModelWorld(folder, folder)
    make_release(folder / "release", tables(PASSAGES))
    fix_weights(write_dual(world.dual))
    fix_weights(write_cross(world.cross))
    fix_weights(write_language_model(folder / "llm"))
    fix_weights(folder / "dual-bert")  # the BERT inside of the dual-encoder: the start of a training
    rankings = []
    for question in QUESTIONS["train"]:
        order = random.Random(question).sample(PASSAGES, len(PASSAGES))
        rankings.append((md5(question), [(md5(text), 1 / rank) for rank, text in enumerate(order, start=1)]))
    write_run(world.train_run, rankings)
    world.call("encode", "--model", world.dual, "--out", folder / "passages", *CPU)
    words = ("--model", world.dual, "--passages", folder / "passages", "--out", folder / "dense.run", *CPU)
    world.call("search", *words)


def encode(world: ModelWorld) -> Golden:
    found = {"passages": world.embeddings(world.base / "passages")}
    for name, options in {
        "queries": ["--queries"],
        "options": ["--queries", "--split", "train", "--shard-rows", 3, "--max-length", 6, "--batch-tokens", 64],
    }.items():
        world.call("encode", "--model", world.dual, "--out", world.out / name, *options, *CPU)
        found[name] = world.embeddings(world.out / name)
    return found


def search(world: ModelWorld) -> Golden:
    found = {"model": world.run_file(world.base / "dense.run")}
    queries = world.out / "queries"
    world.call("encode", "--model", world.dual, "--out", queries, "--queries", "--split", "test", *CPU)
    words = ("--queries", queries, "--split", "test", "--passages", world.base / "passages")
    for engine in ("faiss", "torch"):
        out = world.out / f"{engine}.run.gz"
        world.call("search", *words, "--engine", engine, "--top-k", 6, "--device", "cpu", "--out", out)
        found[engine] = world.run_file(out)
    return found


def rerank(world: ModelWorld) -> Golden:
    found: Golden = {}
    for name, options in {
        "cross": ["--model", world.cross],
        "options": ["--model", world.cross, "--top-k", 5, "--max-length", 32, "--query-prompt", "问"],
        "dense": ["--model", world.dual, "--similarity", "cosine", "--truncate-dim", 16],
        "llm": ["--model", world.base / "llm", "--kind", "llm", "--prompt", "北京"],
    }.items():
        out = world.out / f"{name}.run"
        world.call("rerank", "--run", world.base / "dense.run", "--out", out, *options, *CPU)
        found[name] = world.run_file(out)
    return found


def run_model(world: ModelWorld) -> Golden:
    """Outputs of `run`: the run, its manifest, and the printed settings and measures."""
    found: Golden = {}
    changes = ["--query-prompt", "问：", "--passage-prompt", "文：", "--max-length", 12, "--truncate-dim", 16]
    for name, words in {
        "dense": [world.dual],
        "options": [world.dual, *changes, "--normalize", "--pooling", "mean", "--family", "none", "--split", "train"],
        "over": [world.cross, "--over", world.base / "dense.run", "--top-k", 6],
    }.items():
        out = world.out / f"{name}.run"
        printed = world.print_json("run", *words, *world.release, "--out", out, *CPU)
        found[name] = world.run_file(out)
        assert printed.pop("manifest") == found[name]["manifest"]
        found[f"{name}/printed"] = printed
    return found


def match(world: ModelWorld) -> Golden:
    found: Golden = {}
    for name, options in {
        "cross": ["--model", world.cross, "--encoder", world.dual, "--top-k", 2, "--recall-sample", 3],
        "dual": ["--model", world.dual, "--split", "dev", "--threshold", 0.75],
    }.items():
        out = world.out / f"{name}.run"
        found[f"{name}/printed"] = world.print_json("match", *world.release, *options, "--out", out, *CPU)
        found[name] = world.run_file(out)
    questions = [question for split in QUESTIONS.values() for question in split]
    labelled = [(question, question, 1) for question in questions * 10]
    for first in questions:
        labelled += [(first, second, 0) for second in questions if first != second]
    pairs = write_pairs(world.out / "pairs.tsv", labelled)
    out = world.out / "threshold.json"
    words = ("--model", world.dual, "--calibrate", pairs, "--precision", 0.9, "--out", out, *CPU)
    found["calibrate/printed"] = world.print_json("match", *words)
    found["calibrate"] = world.json_file(out)
    return found


def write_pairs(path: Path, pairs: list[tuple[str, str, int]]) -> Path:
    rows = [("text1", "text2", "label"), *pairs]
    path.write_text("".join(f"{first}\t{second}\t{label}\n" for first, second, label in rows), encoding="utf-8")
    return path


def mine(world: ModelWorld) -> Golden:
    found: Golden = {}
    for name, options in {
        "margin": ["--cross-encoder", world.cross, "--margin", 0.0],
        "max-score": ["--cross-encoder", world.cross, "--max-score", 0.4, "--negatives", 12, "--top-k", 11],
        "bi-encoder": ["--bi-encoder", world.dual, "--relative-margin", 0.05, "--seed", 3],
    }.items():
        out = world.out / f"{name}.jsonl"
        world.call("mine", "--split", "train", "--run", world.train_run, "--out", out, *options, *CPU)
        rows = [world.stable(json.loads(line)) for line in lines(out)]
        found[name] = {row["query-id"]: row["negative-ids"] for row in rows}
    return found


def train(world: ModelWorld) -> Golden:
    negatives = world.out / "negatives.jsonl"
    world.call("mine", "--run", world.train_run, "--out", negatives)
    shared = ["data.passage_length=24", "data.query_length=12", "data.dev_passages=8", "train.saves=1"]
    shared += ["train.batch=2", "train.logs=3", "train.evaluations=1"]
    pairs = [(first, second, int(first == second)) for first in QUESTIONS["train"] for second in QUESTIONS["train"]]
    labelled = write_pairs(world.out / "pairs.tsv", pairs)
    mined = [*world.release, "--negatives", negatives]
    found: Golden = {}
    for name, words in {
        "dual": ["de-bm25-neg-scratch", *mined, "--start", world.base / "dual-bert", "--set", "train.epochs=3"],
        "cross": ["ce-bm25-neg-scratch", *mined, "--start", world.cross, "--dev-run", world.base / "dense.run"],
        "pairs": ["question-matching-cpu", "--pairs", labelled, "--dev-pairs", labelled, "--start", world.cross],
    }.items():
        out = world.out / name
        values = [*shared, "train.max_steps=6"]
        overrides = [word for value in values for word in ("--set", value)]
        done = run("baselines", "train", "--quiet", *words, *overrides, "--device", "cpu", "--out", out)
        found[f"{name}/printed"] = world.stable(json.loads(done.stdout))
        found[name] = world.json_file(out / "training.json")
        found[f"{name}/files"] = sorted(path.relative_to(out).as_posix() for path in out.rglob("*") if path.is_file())
    return found


MODEL_GROUPS: tuple[Callable[[ModelWorld], Golden], ...] = (encode, search, rerank, run_model, match, mine, train)
