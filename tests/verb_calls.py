"""One call of each verb, and the inputs of the calls: tiny releases, runs, models and rounds.

The arguments are those of a call from Python. ``VerbSpec.words`` makes the words of the command line from the same
arguments, so each call stands here once. All paths are relative to a folder whose folder ``inputs`` has the inputs.
"""

import csv
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from annotating import ANNA, BEN, CARL, annotate, judge, make_round, truth
from checkpoints import describe
from commands import SAMPLE, run
from golden_model_outputs import CPU, labelled_question_pairs, make_model_world, write_pairs
from official_archives import BOTH, DEV, PASSAGES, TRAIN, write_files
from official_parameters import unpack
from releases import QUESTIONS, TEXTS, make_release, md5, quality_tables, raw_row, write_rows
from whole_release import make_whole

from builders.store.runs import write_run

CHAT_MODEL = "judge-7b"  # model at the loopback endpoint
REPOSITORY = "org/name"
ELASTICSEARCH = "http://elasticsearch"  # replaced by the address of the loopback server


class VerbCall(NamedTuple):
    """A call of a verb.

    Attributes:
        command: words of the verb, for example "builders add cmedqa".
        arguments: the arguments of the call from Python.
        changes: inputs that the verb changes. The test copies these inputs.
        needs: loopback servers and stand-ins of the call: hub, chat, elasticsearch, or page.
    """

    command: str
    arguments: dict[str, Any]
    changes: tuple[str, ...] = ()
    needs: str = ""


RELEASE = "inputs/release"
RUNS = ["inputs/dense.run", "inputs/other.run"]
TRAINING = [
    *("train.max_steps=2", "train.saves=1", "train.batch=2", "train.logs=1", "train.evaluations=1"),
    *("data.passage_length=24", "data.query_length=12", "data.dev_passages=8"),
]
ON_CPU = {"device": "cpu", "dtype": "fp32"}

CALLS = (
    VerbCall("builders release", {"raw": ["inputs/raw"], "out": "out", "min_chars": 200, "workers": 1}),
    VerbCall("builders official", {"archive": ["inputs/official-files"], "out": "out"}),
    VerbCall("builders official", {"copy": ["inputs/copy/dev.jsonl"], "out": "out"}),
    VerbCall("builders official", {"list": ["cmedqa2"]}),
    VerbCall("builders official", {"list": []}),
    VerbCall(
        "builders squad",
        {
            "train": ["inputs/squad-train.json"],
            "dev": ["inputs/squad-dev.json"],
            "out": "out",
            "dev_size": 1,
            "seed": 3,
        },
    ),
    VerbCall("builders add cmedqa", {"source": ["inputs/cmedqa"], "release": RELEASE, "out": "out"}),
    VerbCall("builders add ccovid", {"source": ["inputs/ccovid"], "out": "out", "test_size": 4, "seed": 3}),
    VerbCall("builders add crosslingual", {"source": ["inputs/translations.tsv"], "release": RELEASE, "out": "out"}),
    VerbCall("builders add stress", {"release": RELEASE, "kind": ["swap", "full-width"], "seed": 3, "out": "out"}),
    VerbCall(
        "builders add restrain",
        {
            "release": RELEASE,
            "embeddings": ["inputs/train-vectors", "inputs/dev-vectors"],
            "size": [1],
            "exclude": 1,
            "out": "out",
        },
    ),
    VerbCall(
        "builders add resttest",
        {
            "release": RELEASE,
            "embeddings": ["inputs/train-vectors", "inputs/dev-vectors"],
            "buckets": 2,
            "seed": 1,
            "out": "out",
        },
    ),
    VerbCall("builders add answers", {"raw": ["inputs/zhidao.train.json"], "release": "inputs/official", "out": "out"}),
    VerbCall("builders add samples", {"release": RELEASE, "sizes": [4, 8], "hard": RUNS, "out": "out"}),
    VerbCall("builders add samples", {"release": "inputs/sampled", "extract": ["sample-8-hard"], "out": "out"}),
    VerbCall(
        "builders similar",
        {"release": "inputs/quality", "out": "out", "jaccard": 0.5, "list": "pairs.jsonl", "by": ["n-gram", "exact"]},
    ),
    VerbCall(
        "builders similar",
        {"release": RELEASE, "out": "out", "scores": ["inputs/similar.run"], "threshold": 0.99, "split": ["dev"]},
    ),
    VerbCall("builders similar", {"release": RELEASE, "against": ["inputs/pairs.jsonl"]}),
    VerbCall(
        "builders similar",
        {"release": RELEASE, "against": ["inputs/pairs.jsonl"], "out": "report.csv", "format": "csv"},
    ),
    VerbCall("builders similar", {"release": RELEASE, "against": ["inputs/pairs.jsonl"], "questions": "out"}),
    VerbCall(
        "builders annotate pool",
        {"action": "candidates", "release": RELEASE, "runs": RUNS, "depth": 5, "out": "candidates.run.gz"},
    ),
    VerbCall(
        "builders annotate pool",
        {
            "action": "select",
            "release": RELEASE,
            "runs": RUNS,
            "scores": ["inputs/cross.run"],
            "depth": 5,
            "out": "pool.jsonl",
        },
    ),
    VerbCall(
        "builders annotate export",
        {"round": "round", "pool": "inputs/pool.jsonl", "release": RELEASE, "package_size": 5, "unjudged": True},
    ),
    VerbCall(
        "builders annotate import",
        {"round": "round", "files": ["inputs/sheet.csv"], "annotator": ANNA},
        changes=("round",),
    ),
    VerbCall("builders annotate review", {"round": "judged", "reviewers": [BEN, CARL]}, changes=("judged",)),
    VerbCall("builders annotate check", {"round": "reviewed"}, changes=("reviewed",)),
    VerbCall("builders annotate adjudicate", {"round": "reviewed"}, changes=("reviewed",)),
    VerbCall(
        "builders annotate merge",
        {"round": "accepted", "release": "inputs/round-release", "out": "out"},
        changes=("accepted",),
    ),
    VerbCall(
        "builders annotate prefill",
        {"round": "round", "model": CHAT_MODEL, "show": True, "rerankers": ["judge-1b"], "parallel": 1},
        changes=("round",),
        needs="chat",
    ),
    VerbCall(
        "builders annotate prefill",
        {"round": "round", "model": "ce", "scores": "inputs/round-scores.run"},
        changes=("round",),
    ),
    VerbCall(
        "builders annotate compare",
        {"round": "accepted", "model": "ce", "runs": ["inputs/round-scores.run"]},
        changes=("accepted",),
    ),
    VerbCall("builders annotate relabel", {"action": "candidates", "release": RELEASE, "out": "candidates.run"}),
    VerbCall(
        "builders annotate relabel",
        {
            "action": "move",
            "release": RELEASE,
            "negatives": "inputs/negatives.jsonl",
            "scores": ["inputs/negative-scores.run"],
            "threshold": 0.6,
            "agree": "all",
            "out": "out",
        },
    ),
    VerbCall(
        "builders annotate translate",
        {"release": RELEASE, "split": ["train", "dev"], "model": CHAT_MODEL, "parallel": 1, "out": "machine.tsv"},
        needs="chat",
    ),
    VerbCall(
        "builders annotate translations",
        {"action": "export", "release": RELEASE, "split": ["dev"], "package_size": 1, "out": "packages.tsv"},
    ),
    VerbCall(
        "builders annotate translations",
        {"action": "review", "release": RELEASE, "source": ["inputs/packages.tsv"], "pairs": 1, "out": "review.tsv"},
    ),
    VerbCall(
        "builders annotate translations",
        {
            "action": "import",
            "release": RELEASE,
            "source": ["inputs/packages.tsv"],
            "reviews": ["inputs/review.1.tsv", "inputs/review.2.tsv"],
            "pairs": 1,
            "out": "out",
        },
    ),
    VerbCall(
        "builders annotate translations",
        {
            "action": "import",
            "release": RELEASE,
            "source": ["inputs/packages.tsv"],
            "reviews": ["inputs/wrong-review.tsv", "inputs/review.2.tsv"],
            "pairs": 1,
            "out": "out",
        },
    ),
    VerbCall("builders check", {"release": "inputs/whole"}),
    VerbCall("builders check", {"release": RELEASE, "accept": ["stats"]}),  # finds faults
    VerbCall("builders export", {"release": RELEASE, "format": "beir", "run": RUNS[:1], "out": "out"}),
    VerbCall(
        "builders export",
        {"release": RELEASE, "format": "triplets", "negatives": ["inputs/negatives.jsonl"], "out": "out"},
    ),
    VerbCall(
        "builders publish",
        {"release": "inputs/whole", "repo": REPOSITORY, "create": True, "scores": ["dev=inputs/scores.json"]},
        needs="hub",
    ),
    VerbCall("baselines run", {"model": "inputs/dual", "release": RELEASE, "out": "out.run", **ON_CPU}),
    VerbCall(
        "baselines run",
        {"model": "inputs/cross", "release": RELEASE, "over": RUNS[0], "top_k": 3, "out": "out.run", **ON_CPU},
    ),
    VerbCall("baselines bm25", {"release": RELEASE, "out": "out.run.gz", "k1": 0.9, "b": 0.4, "analyzer": "both"}),
    VerbCall(
        "baselines bm25", {"release": RELEASE, "split": "test", "tune": "train", "stop_words": "keep", "out": "out.run"}
    ),
    VerbCall(
        "baselines bm25",
        {"release": RELEASE, "engine": "elasticsearch", "address": ELASTICSEARCH, "out": "out.run"},
        needs="elasticsearch",
    ),
    VerbCall("baselines mine", {"release": RELEASE, "run": "inputs/train.run", "seed": 3, "out": "negatives.jsonl"}),
    VerbCall(
        "baselines mine",
        {
            "release": RELEASE,
            "run": "inputs/train.run",
            "cross_encoder": "inputs/cross",
            "margin": -0.5,
            "out": "negatives.jsonl",
            **ON_CPU,
        },
    ),
    VerbCall(
        "baselines train",
        {
            "recipe": "de-bm25-neg-scratch",
            "release": RELEASE,
            "negatives": ["inputs/negatives.jsonl"],
            "start": "inputs/dual-bert",
            "set": TRAINING,
            "device": "cpu",
            "out": "out",
        },
    ),
    VerbCall(
        "baselines encode",
        {"release": RELEASE, "model": "inputs/dual", "queries": True, "split": "test", "out": "out", **ON_CPU},
    ),
    VerbCall(
        "baselines search",
        {"release": RELEASE, "passages": "inputs/passages", "model": "inputs/dual", "out": "out.run", **ON_CPU},
    ),
    VerbCall(
        "baselines rerank",
        {
            "release": RELEASE,
            "run": RUNS[0],
            "model": "inputs/cross",
            "query_prompt": "问：",
            "top_k": 4,
            "out": "out.run",
            **ON_CPU,
        },
    ),
    VerbCall(
        "baselines rerank",
        {"release": RELEASE, "run": RUNS[0], "model": "inputs/dual", "normalize": False, "out": "out.run", **ON_CPU},
    ),
    VerbCall("baselines fuse", {"runs": RUNS, "top_k": 7, "out": "out.run"}),
    VerbCall(
        "baselines fuse",
        {
            "runs": RUNS,
            "method": "weighted",
            "tune": "dev",
            "tune_on_these": True,
            "step": 0.25,
            "release": RELEASE,
            "weights": "weights.json",
            "out": "out.run",
        },
    ),
    VerbCall(
        "baselines match",
        {"release": RELEASE, "model": "inputs/dual", "split": ["dev"], "threshold": 0.75, "out": "out.run", **ON_CPU},
    ),
    VerbCall(
        "baselines match",
        {"model": "inputs/dual", "calibrate": ["inputs/calibration.tsv"], "out": "threshold.json", **ON_CPU},
    ),
    VerbCall("baselines evaluate", {"runs": RUNS[:1], "release": RELEASE, "per_query": "values.parquet"}),
    VerbCall(
        "baselines compare",
        {"runs": RUNS, "release": RELEASE, "measure": ["MRR@10", "R@10"], "name": ["one", "two"], "resamples": 99},
    ),
    VerbCall("baselines show", {"runs": RUNS, "release": RELEASE, "query": "手机", "top_k": 2, "chars": 12}),
    VerbCall(
        "baselines show",
        {"release": RELEASE, "serve": True, "candidates": 7, "port": 0, "top_k": 3},
        needs="page",
    ),
    VerbCall(
        "baselines errors draw",
        {"run": "inputs/errors.run", "release": RELEASE, "top_k": 2, "round": "errors", "seed": 4},
    ),
    VerbCall("baselines errors tally", {"round": "inputs/errors-round"}),
    VerbCall("baselines errors holes", {"runs": RUNS, "release": RELEASE, "per_query": "values.parquet"}),
    VerbCall("baselines errors duplicates", {"runs": RUNS, "release": RELEASE, "list": "copies.jsonl"}),
    VerbCall(
        "baselines errors stages",
        {"first": RUNS[0], "second": RUNS[1], "release": RELEASE, "top_k": 1, "list": "failed.jsonl"},
    ),
    VerbCall("baselines errors no-answer", {"runs": RUNS[:1], "release": RELEASE, "list": "lists.jsonl"}),
    VerbCall(
        "baselines reproduce", {"table": [4], "row": "bm25", "release": RELEASE, "one_process": True, "out": "out"}
    ),
    VerbCall("baselines reproduce", {"table": [4], "release": RELEASE, "dry_run": True, "scratch": True}),
    VerbCall("baselines reproduce", {"leaderboard": RUNS, "release": RELEASE, "top": 3}),
    VerbCall("baselines reproduce", {"leaderboard": [], "searched": "sample"}),
    VerbCall(
        "baselines convert",
        {
            "params": "inputs/paddle/cross_params",
            "config": "inputs/paddle/ernie_config.json",
            "vocab": "inputs/paddle/vocab.txt",
            "out": "out",
        },
    ),
    VerbCall(
        "baselines push",
        {
            "model": "inputs/checkpoint",
            "repo": REPOSITORY,
            "create": True,
            "private": True,
            "release": RELEASE,
            "run": RUNS[:1],
        },
        needs="hub",
    ),
    VerbCall("baselines pull", {"repo": REPOSITORY, "out": "out"}, needs="hub"),
)


def make_inputs(folder: Path) -> None:
    """Write the inputs of all calls."""
    make_model_world(folder)
    _write_runs(folder)
    _write_releases(folder)
    _write_sources(folder)
    _write_rounds(folder)
    _write_translations(folder)
    unpack_folder = folder / "paddle"
    unpack_folder.mkdir()
    unpack(unpack_folder)
    describe(Path(shutil.copytree(folder / "dual", folder / "checkpoint")), "dual")
    write_pairs(folder / "calibration.tsv", labelled_question_pairs())
    release = ("--release", folder / "release")
    scores = run("baselines", "evaluate", release, folder / "dense.run", "--quiet", "--format", "json").stdout
    (folder / "scores.json").write_text(scores, encoding="utf-8")


def _write_runs(folder: Path) -> None:
    """Write runs, negatives that are mined from a run, and vectors of the train and dev questions."""

    def rank(name: str, questions: Sequence[str], texts: Sequence[str]) -> None:
        """Write a run that ranks the same ``texts``, best first, for each question."""
        hits = [(md5(text), 1 / place) for place, text in enumerate(texts, start=1)]
        write_run(folder / name, [(md5(question), hits) for question in questions])

    release = ("--quiet", "--release", folder / "release")
    rank("other.run", QUESTIONS["dev"], TEXTS[::-1])
    rank("cross.run", QUESTIONS["dev"], [row["text"] for row in _corpus(folder / "release")])
    rank("errors.run", QUESTIONS["dev"], TEXTS[:4])
    rank("similar.run", QUESTIONS["dev"][:1], QUESTIONS["train"][:1])
    run("baselines", "mine", release, "--run", folder / "train.run", "--out", folder / "negatives.jsonl")
    rank("negative-scores.run", QUESTIONS["train"], [row["text"] for row in _corpus(folder / "release")])
    for split in ("train", "dev"):
        words = ("--model", folder / "dual", "--queries", "--split", split, "--out", folder / f"{split}-vectors")
        run("baselines", "encode", release, words, CPU)


def _corpus(release: Path) -> list[dict[str, Any]]:
    from builders.store.reader import open_release

    rows: list[dict[str, Any]] = open_release(release).table("corpus", "corpus", ["_id", "text"]).to_pylist()
    return rows


def _write_releases(folder: Path) -> None:
    """Write the releases besides ``release``, official files, raw rows of answers, and a copy in Tevatron's format."""
    make_whole(folder / "whole")
    make_release(folder / "quality", quality_tables())
    words = ("--sizes", 8, "--hard", folder / "dense.run", "--out", folder / "sampled")
    run("builders", "add", "samples", "--quiet", "--release", folder / "release", words)
    write_files(folder / "official-files", BOTH)
    run("builders", "official", "--quiet", "--archive", folder / "official-files", "--out", folder / "official")
    raw_rows = []
    for number, (question, places) in enumerate({**TRAIN, **DEV}.items()):
        answers = [PASSAGES[place] for place in places]
        raw_rows.append(raw_row(number, question, [[PASSAGES[0]]], answers[:3]))
    write_rows(folder / "zhidao.train.json", raw_rows)
    words = ("--format", "tevatron", "--out", folder / "copy")
    run("builders", "export", "--quiet", "--release", folder / "release", words)


def _write_sources(folder: Path) -> None:
    """Write files of other projects: raw DuReader, cMedQA2, cCOVID-News, translations, question pairs and SQuAD."""
    (folder / "raw").mkdir()
    for path in sorted(SAMPLE.glob("*.json")):
        first_rows = path.read_text(encoding="utf-8").splitlines(keepends=True)[:4]
        (folder / "raw" / path.name).write_text("".join(first_rows), encoding="utf-8")
    sources = {
        "cmedqa/question.csv": "question_id,content\n" + "".join(f"{n},{n % 5}号疼怎么办\n" for n in range(1, 8)),
        "cmedqa/answer.csv": "ans_id,question_id,content\n"
        + "".join(f"{n},{n // 10},休息{n % 9}天\n" for n in range(10, 80)),
        "cmedqa/dev_candidates.txt": "question_id,ans_id,cnt,label\n1,10,0,1\n1,11,1,0\n6,60,0,1\n2,99,0,1\n2,21,0,1\n",
        "cmedqa/test_candidates.txt": "question_id,ans_id,cnt,label\n3,30,0,1\n3,11,1,0\n",
        "cmedqa/train_candidates.txt": "question_id,pos_ans_id,neg_ans_id\n4,40,11\n4,41,12\n",
        "ccovid/NCPPolicies_context.csv": "docid\ttext\n" + "".join(f"d{n}\t第{n % 8}号通知。\n" for n in range(10)),
        "ccovid/NCPPolicies_train.csv": "id\tdocid\tquestion\tanswer\n"
        + "".join(f"{n}\td{n % 11}\t第{n % 17}问是什么？\t略\n" for n in range(20)),
        "translations.tsv": "".join(
            f"{md5(question)}\tQuestion {number}, in English\n"
            for number, question in enumerate(QUESTIONS["train"] + QUESTIONS["dev"])
        ),
        "pairs.jsonl": "".join(
            json.dumps({"query": question, "pos": [text], "neg": []}) + "\n"
            for question, text in zip(QUESTIONS["dev"], TEXTS[4:], strict=True)
        ),
    }
    for name, text in sources.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    for name, questions in (("train", [f"别的问题{number}" for number in range(5)]), ("dev", QUESTIONS["dev"])):
        paragraphs = []
        for number, question in enumerate(questions):
            paragraphs.append({"context": f"第{number}段：{question}的答案。", "qas": [{"question": question}]})
        content = json.dumps({"data": [{"paragraphs": paragraphs}]})
        (folder / f"squad-{name}.json").write_text(content, encoding="utf-8")


def _write_rounds(folder: Path) -> None:
    """Write rounds in different states: new, judged, reviewed and accepted, and a round about errors."""
    work = folder / "rounds"
    round_path = make_round(work, "--review-pairs", 3, passages=6, size=6)
    shutil.copytree(work / "release", folder / "round-release")
    shutil.copytree(round_path, folder / "round")
    annotate_words = ("--release", folder / "release", "--runs", folder / "dense.run", folder / "other.run")
    words = ("select", *annotate_words, "--scores", folder / "cross.run", "--out", folder / "pool.jsonl")
    run("builders", "annotate", "pool", words, "--quiet")
    for sheet in sorted((round_path / "packages").glob("*.csv")):
        judge(round_path, ANNA, sheet, truth)
        shutil.copy(sheet.with_suffix(".filled.csv"), folder / "sheet.csv")
    shutil.copytree(round_path, folder / "judged")
    annotate("review", round_path, "--reviewers", BEN, CARL)
    for sheet in sorted((round_path / "reviews").rglob("*.csv")):
        judge(round_path, sheet.parent.name, sheet, truth)
    rankings = [(md5(question), [(md5(text), 1.0) for text in TEXTS]) for question in QUESTIONS["dev"]]
    write_run(folder / "round-scores.run", rankings)
    shutil.copytree(round_path, folder / "reviewed")
    # Dora contradicts Anna, so that there are pairs to adjudicate.
    judge(folder / "reviewed", "dora", folder / "reviewed" / "packages" / "dev-001.csv", lambda row: 1 - truth(row))
    annotate("check", round_path)
    annotate("prefill", round_path, "--model", "ce", "--scores", folder / "round-scores.run")
    shutil.copytree(round_path, folder / "accepted")
    shutil.rmtree(work)
    words = ("--release", folder / "release", "--top-k", 2, "--round", folder / "errors-round")
    run("baselines", "errors", "draw", "--quiet", folder / "errors.run", words)
    judge(folder / "errors-round", ANNA, folder / "errors-round" / "packages" / "dev-001.csv", lambda row: 1)


def _write_translations(folder: Path) -> None:
    """Write packages of English questions, and the sheets of two reviewers, one of them also with all marked wrong."""
    step = ("annotate", "translations")
    release = ("--quiet", "--release", folder / "release")
    packages, review = folder / "packages.tsv", folder / "review.tsv"
    run("builders", step, "export", release, "--package-size", 3, "--out", packages)
    _fill_column(packages, packages, "english", "An English question")
    run("builders", step, "review", release, "--source", packages, "--pairs", 1, "--out", review)
    for number in (1, 2):
        _fill_column(folder / f"review.{number}.tsv", folder / f"review.{number}.tsv", "correct", "1")
    _fill_column(folder / "review.1.tsv", folder / "wrong-review.tsv", "correct", "0")


def _fill_column(path: Path, out: Path, column: str, text: str) -> None:
    """Copy a sheet to ``out`` with ``text`` in each row of a column. English texts get the number of the row, too."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter="\t")
        writer.writeheader()
        for number, row in enumerate(rows):
            value = text if column == "correct" else f"{text} {number}"
            writer.writerow({**row, column: value})
