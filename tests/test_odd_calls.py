"""Odd calls from Python, made by a seeded generator: each ends in the command line's result or in one InputError."""

import json
import math
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from commands import run as run_command

from baselines import (
    InputError,
    compare_runs,
    evaluate,
    evaluate_runs,
    fuse_runs,
    read_run,
    report_duplicates,
    report_holes,
    search,
    search_bm25,
)
from builders.store.reader import open_release
from builders.store.runs import best_first, write_ranked_hits

CALLS = 500
PARTS = 5  # the calls are split into tests, so that a failure names fewer calls

# Values that no option of these verbs accepts, or only few options.
# The order is part of the seeds: a new value changes every later draw.
ODD_VALUES: list[Any] = [None, True, 0, -1, 1, 2.5, 10**400, math.nan, math.inf]
ODD_VALUES += ["", "x", "0.9", "5", b"x", "\0", "a" * 300, "\ud800"]
ODD_VALUES += [[], ["a"], {}, (), object(), len]
ODD_VALUES += [np.int64(3), np.float32(0.5), np.float64("nan"), np.array([1, 2])]
ODD_VALUES += [Path("nowhere"), 1 + 2j, {"a"}, range(3), pd.Series([1.0]), torch.tensor(2.0)]
# Options with values that are accepted.
BM25_OPTIONS: dict[str, list[Any]] = {
    "split": ["dev", "train", "test"],
    "top_k": [1, 7, np.int32(50), 100_000],
    "k1": [0, 0.9, np.float64(1.5)],
    "b": [0, 1, 0.4],
    "analyzer": ["words", "characters", "bigrams", "both"],
    "stop_words": ["keep", "drop"],
    "max_chars": [1, 64],
    "threads": [1, 2],
    "tune": ["train"],
    "seed": [0, 7],
}
EVALUATE_OPTIONS: dict[str, list[Any]] = {
    "split": ["dev", "train"],
    "by": ["query_length", "question_type"],
    "answers": [True, False],
    "threshold": [0.1, 0.9],
}
HOLES_OPTIONS: dict[str, list[Any]] = {"split": ["dev", "train"], "ties": ["listed", "id"]}
DUPLICATES_OPTIONS: dict[str, list[Any]] = {
    "split": ["dev", "train"],
    "ties": ["listed", "id"],
    "copies": ["removed", "kept"],
    "ngram": [2, 5],
    "jaccard": [0.5, 1],
}
COMPARE_OPTIONS: dict[str, list[Any]] = {
    "split": ["dev"],
    "measure": [["nDCG@10"], ["MRR@10", "AP"]],
    "test": ["t", "randomisation"],
    "alpha": [0.01, 0.5],
    "power": [0.6],
    "resamples": [99, 999],
    "seed": [3],
    "changed": [0, 2],
}
FUSE_OPTIONS: dict[str, list[Any]] = {"top_k": [1, 9, 500], "method": ["rrf"], "step": [0.5, 0.1]}


class Generator:
    """Makes calls. Equal seeds make equal calls."""

    def __init__(self, seed: int, sample: Path, folder: Path) -> None:
        self.random = random.Random(seed)
        self.sample = sample
        self.folder = folder
        self.number = 0
        self.base_runs = [
            search_bm25(sample, analyzer="words", top_k=20).to_dict(),
            search_bm25(sample, analyzer="characters", top_k=20).to_dict(),
        ]

    def path(self) -> Path:
        """Return the path of a new run file."""
        self.number += 1
        return self.folder / f"{self.number}.run"

    def options(self, accepted: dict[str, list[Any]]) -> dict[str, Any]:
        """Return up to three options. Half of the calls have an odd value, and few have an unknown option."""
        names = self.random.sample(sorted(accepted), self.random.randint(0, min(3, len(accepted))))
        options = {name: self.random.choice(accepted[name]) for name in names}
        if names and self.random.random() < 0.5:
            options[self.random.choice(names)] = self.random.choice(ODD_VALUES)
        if self.random.random() < 0.05:
            options[self.random.choice(["topk", "K1", "splits", "_", "out_"])] = 1
        return options

    def run(self) -> Any:
        """Return a run in any form. Some are damaged."""
        run = self.random.choice(self.base_runs)
        query_id = self.random.choice(sorted(run))
        forms: list[Callable[[], Any]] = [
            lambda: run,
            lambda: {query: list(scores) for query, scores in run.items()},
            lambda: {query: list(scores.items()) for query, scores in run.items()},
            lambda: read_run(run),
            lambda: read_run(run).to_pandas(),
            lambda: read_run(run).to_pandas().sample(frac=1, random_state=3),
            lambda: self.file_of(run),
            lambda: str(self.file_of(run)),
            lambda: run | {query_id: self.random.choice(ODD_VALUES)},
            lambda: run | {query_id: {"p": self.random.choice(ODD_VALUES)}},
            lambda: run | {self.random.choice([3, None, "", b"q"]): {"p": 1.0}},
            lambda: {query_id: run[query_id]},
            lambda: self.random.choice(ODD_VALUES),
        ]
        return self.random.choice(forms)()

    def file_of(self, run: Any) -> Path:
        """Write a run of any form to a file for the command line."""
        path = self.path()
        write_ranked_hits(path, read_run(run).hits.items())
        return path


def words_of(options: dict[str, Any]) -> list[str]:
    """Return the options as words of the command line. The values have passed the checks of the call from Python."""
    words: list[str] = []
    for name, value in options.items():
        flag = f"--{name.replace('_', '-')}"
        if value is None or value is False:
            continue
        if value is True:
            words.append(flag)
            continue
        for repeated_value in value if name == "measure" else [value]:
            plain_value = repeated_value.item() if isinstance(repeated_value, np.generic) else repeated_value
            words += [flag, str(plain_value)]
    return words


def strip_names(results: Any) -> Any:
    """Remove the names of the runs, which differ between files and objects, from the JSON value of a report."""
    if isinstance(results, list):
        return [strip_names(result) for result in results]
    if isinstance(results, dict):
        return {key: strip_names(value) for key, value in results.items() if key not in ("run", "name")}
    return results


def read_report(verb_words: list[str], sample: Path, run_paths: list[Path], options: dict[str, Any]) -> Any:
    """Return what a verb of `baselines` prints about runs as JSON."""
    words: list[object] = ["baselines"]
    words += verb_words
    words += ["--release", sample]
    words += run_paths
    words += words_of(options)
    return json.loads(run_command(*words, "--format", "json").stdout)


def check_bm25(make: Generator) -> None:
    """BM25 from Python gives the run of the command line."""
    options = make.options(BM25_OPTIONS)
    # Two functions of the API have the same options.
    if make.random.random() < 0.5:
        hits = search("bm25", make.sample, **options)
    else:
        hits = search_bm25(make.sample, **options).to_dict()
    run_path = make.path()
    run_command("baselines", "bm25", "--release", make.sample, "--out", run_path, *words_of(options))
    assert hits == read_run(run_path).to_dict(), options


def check_evaluate(make: Generator) -> None:
    """A report from Python has the values of the command line."""
    verb_words, verb, accepted = make.random.choice(
        [
            (["evaluate"], evaluate_runs, EVALUATE_OPTIONS),
            (["errors", "holes"], report_holes, HOLES_OPTIONS),
            (["errors", "duplicates"], report_duplicates, DUPLICATES_OPTIONS),
        ]
    )
    options = make.options(accepted)
    run = make.run()
    report = verb([run], release=make.sample, **options)
    printed = read_report(verb_words, make.sample, [make.file_of(run)], options)
    assert strip_names(report.value) == strip_names(printed)


def check_front_evaluate(make: Generator) -> None:
    """`evaluate` gives the figures of the command line."""
    options = make.options({"split": ["dev", "train"]})
    run = make.run()
    figures = evaluate(run, make.sample, **options)
    (printed,) = read_report(["evaluate"], make.sample, [make.file_of(run)], options)
    assert figures == printed["official"] | printed["ir_measures"]


def check_compare(make: Generator) -> None:
    """A comparison from Python has the values of the command line."""
    options = make.options(COMPARE_OPTIONS)
    runs = [make.run(), make.run()]
    report = compare_runs(runs, release=make.sample, **options)
    run_paths = [make.file_of(run) for run in runs]
    printed = read_report(["compare"], make.sample, run_paths, options)
    assert strip_names(report.value) == strip_names(printed)


def check_fuse(make: Generator) -> None:
    """A fused run from Python is the one of the command line."""
    options = make.options(FUSE_OPTIONS)
    runs = [make.run() for _ in range(make.random.randint(1, 3))]
    fused = fuse_runs(runs, **options)
    fused_path = make.path()
    run_paths = [make.file_of(run) for run in runs]
    run_command("baselines", "fuse", run_paths, "--out", fused_path, *words_of(options))
    assert fused.to_dict() == read_run(fused_path).to_dict()


def clean_vectors(texts: list[str]) -> np.ndarray:
    """Count characters in 64 bits. Every text has a vector other than zero."""
    vectors = np.zeros((len(texts), 61))
    for row, text in enumerate(texts):
        for character in text:
            vectors[row, ord(character) % 61] += 1
    return vectors


def reused_buffer() -> Callable[[list[str]], Any]:
    """Return an encoder that returns views of the same array at every call."""
    buffer = np.zeros((4_096, 61), np.float32)

    def encode(texts: list[str]) -> Any:
        buffer[: len(texts)] = clean_vectors(texts)
        return buffer[: len(texts)]

    return encode


# What an encoder may return in place of clean vectors. The scores stay the same.
RETURNED: list[Callable[[np.ndarray], Any]] = [
    lambda vectors: vectors,
    lambda vectors: vectors.tolist(),
    lambda vectors: list(vectors),
    lambda vectors: vectors.astype(np.float16),
    lambda vectors: vectors.astype(np.int32),
    lambda vectors: np.asfortranarray(vectors),
    lambda vectors: torch.tensor(vectors, requires_grad=True),
    lambda vectors: torch.tensor(vectors, dtype=torch.bfloat16),
    lambda vectors: vectors * 2.0**60,
    lambda vectors: vectors * 2.0**-70,
]
# What is no array of shape (texts, dimensions).
REFUSED: list[Callable[[np.ndarray], Any]] = [
    lambda vectors: None,
    lambda vectors: "vectors",
    lambda vectors: 1.0,
    lambda vectors: vectors[0],
    lambda vectors: vectors[:-1],
    lambda vectors: vectors[:, :0],
    lambda vectors: vectors[:, :, None],
    lambda vectors: {"dense_vecs": vectors},
    lambda vectors: vectors + 1j,
    lambda vectors: vectors.astype(object),
    lambda vectors: vectors.astype(str),
    lambda vectors: np.where(vectors > 3, np.nan, vectors),
    lambda vectors: np.ma.masked_greater(vectors, 3),
    lambda vectors: vectors * 0,
    lambda vectors: (row for row in vectors),
    lambda vectors: [row[: 3 + number % 2] for number, row in enumerate(vectors)],
]


def cosine_reference(sample: Path) -> dict[str, dict[str, float]]:
    """Search by cosine in 64 bits."""
    release = open_release(sample)
    passages = release.texts("corpus", "corpus")
    queries = release.texts("queries", "dev")
    vectors = clean_vectors(list(passages.values()))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    run = {}
    for query_id, text in queries.items():
        query_vector = clean_vectors([text])[0]
        scores = vectors @ (query_vector / np.linalg.norm(query_vector))
        run[query_id] = dict(best_first(zip(passages, scores.tolist(), strict=True)))
    return run


def check_encoder(make: Generator) -> None:
    """An encoder gives the run of a search in 64 bits, or is refused."""
    is_right = make.random.random() < 0.5
    convert = make.random.choice(RETURNED if is_right else REFUSED)

    def encode(texts: list[str]) -> Any:
        return convert(clean_vectors(texts))

    model = reused_buffer() if is_right and make.random.random() < 0.2 else encode
    options = make.options({"batch_size": [1, 100, 1_000], "top_k": [10_000], "similarity": ["cosine"]})
    options["top_k"] = 10_000
    run = search(model, make.sample, **options)
    assert is_right, f"accepted: {convert(clean_vectors(['北京', '水']))!r}"
    expected = cosine_reference(make.sample)
    for query_id, scores in run.items():
        assert scores.keys() == expected[query_id].keys()
        for passage_id, score in scores.items():
            assert score == pytest.approx(expected[query_id][passage_id], abs=2e-3), options


# What is no list of one finite number for each pair.
REFUSED_SCORES: list[Callable[[list[float]], Any]] = [
    lambda scores: None,
    lambda scores: scores[1:],
    lambda scores: [[score] * 2 for score in scores],
    lambda scores: {"scores": scores},
    lambda scores: [math.nan] * len(scores),
    lambda scores: map(float, scores),
    lambda scores: [str(score) for score in scores],
    lambda scores: [score * 1j for score in scores],
]


def check_reranker(make: Generator) -> None:
    """A re-ranker orders passages by its scores, or is refused."""
    is_right = make.random.random() < 0.6
    scale = make.random.choice([1.0, 1e-300, 1e300, -1.0, 2.0**60])
    convert = (lambda scores: scores) if is_right else make.random.choice(REFUSED_SCORES)

    def predict(pairs: list[tuple[str, str]]) -> Any:
        return convert([scale * len(text) for _, text in pairs])

    first_run = make.base_runs[0]
    reranked = search(predict, make.sample, run=first_run, **make.options({"top_k": [5, 100], "batch_size": [3]}))
    assert is_right
    texts = open_release(make.sample).texts("corpus", "corpus")
    for query_id, scores in reranked.items():
        assert scores.keys() == first_run[query_id].keys()
        lengths = [len(texts[passage_id]) for passage_id in list(scores)[:5]]
        assert lengths == sorted(lengths, reverse=scale > 0)


# A check that is listed twice is drawn twice as often.
CHECKS = [check_bm25, check_bm25, check_bm25]
CHECKS += [check_evaluate, check_evaluate, check_front_evaluate, check_compare, check_fuse]
CHECKS += [check_encoder, check_encoder, check_reranker]


SLOW_PARTS = [pytest.param(part, marks=pytest.mark.slow) for part in range(1, PARTS)]


@pytest.mark.parametrize("part", [0, *SLOW_PARTS])
def test_an_odd_call_ends_in_the_result_of_the_command_line_or_in_one_error(
    part: int, sample_release: Path, tmp_path: Path, own_cache: None
) -> None:
    make = Generator(part, sample_release, tmp_path)
    outcomes = {"results": 0, "errors": 0}
    for number in range(CALLS // PARTS):
        check = make.random.choice(CHECKS)
        try:
            check(make)
            outcomes["results"] += 1
        except InputError as error:
            outcomes["errors"] += 1
            assert str(error) and "\n" not in str(error)
        except Exception as error:
            error.add_note(f"call {number} of part {part}: {check.__name__}")
            raise
    assert min(outcomes.values()) > CALLS // PARTS // 5, outcomes
