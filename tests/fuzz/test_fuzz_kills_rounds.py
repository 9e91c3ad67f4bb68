"""Every step of an annotation round is killed and run again: no judgment is lost, and no other files are left.

A step kills itself at a point where it writes, or asks a language model (loaded.py): at one point in ``make test``, at
five points in ``make test-slow``.
"""

import json
import os
import random
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from annotating import ANNA, BEN, CARL, annotate, export_of, fill, judge, make_pool, read_table, truth, wrong_in
from fuzzing import CASES
from killing import Place, Verb, content, expect_same_end
from loaded import ANNOTATION, Loaded
from loopback import Chat
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.annotate.rounds import read_judgments
from builders.store.reader import open_release
from builders.store.runs import write_run

POINTS = 5 if CASES else 1
PARALLEL = 4


def round_content(round_path: Path) -> dict[str, bytes]:
    """Return the files and judgments of a round, without times and without the number of files of judgments."""
    files = {}
    for name, file_content in content(round_path).items():
        if not (name.startswith("judgments/") and name.endswith(".jsonl")):
            files[name] = file_content
    judgment_lines = []
    for judgment in read_judgments(round_path):
        judgment_lines.append(json.dumps([judgment.identity, judgment.label, judgment.note]))
    files["judgments"] = "\n".join(sorted(judgment_lines)).encode()
    return files


class Judge:
    """A language model that judges pairs, as :mod:`killing` needs a server."""

    def __init__(self, chat: Chat) -> None:
        self.requests = chat.asked
        self.url = chat.url

    def environment(self, home: Path) -> dict[str, str]:
        return dict(os.environ) | {"OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "none"}

    def content(self) -> dict[str, bytes]:
        return {}

    def forget(self) -> None:
        self.requests.clear()


@contextmanager
def serve_judge(_: Path) -> Iterator[Judge]:
    """Start a language model whose grade depends only on the prompt."""
    with Chat(lambda prompt: f"最终得分：{len(prompt) % 4}") as chat:
        yield Judge(chat)


_RUN_OPTIONS = "--release {given}/release --split dev --runs {given}/one.run {given}/two.run"
_TRAIN_OPTIONS = "--release {given}/release --negatives {given}/negatives.jsonl"
_ROUND_OPTION = "--round {here}/out"


def round_step(words: str, begin: str, **options: object) -> Verb:
    """Return a step that changes a round. ``begin``: the input folder with the round before the step."""
    return Verb(f"builders annotate {words}", begin=begin, content=round_content, **options)  # type: ignore[arg-type]


VERBS = {
    "pool candidates": Verb(f"builders annotate pool candidates {_RUN_OPTIONS} --out {{here}}/out"),
    "pool select": Verb(
        f"builders annotate pool select {_RUN_OPTIONS} --scores {{given}}/scores.run --scale none --out {{here}}/out"
    ),
    "annotate export": Verb(
        f"builders annotate export {_ROUND_OPTION} --pool {{given}}/pool.jsonl --release {{given}}/release"
        " --package-size 12",
        refused="is a round already",
    ),
    "annotate prefill": round_step(
        f"prefill {_ROUND_OPTION} --model judge-7b --show --parallel {PARALLEL}",
        "fresh",
        server=serve_judge,
        repeats=20 + PARALLEL,
    ),
    "annotate import": round_step(
        f"import {_ROUND_OPTION} --annotator {ANNA} {{given}}/1.csv {{given}}/2.csv", "fresh"
    ),
    "annotate import of an export": round_step(f"import {_ROUND_OPTION} {{given}}/1.json {{given}}/2.json", "fresh"),
    "annotate translate": Verb(
        "builders annotate translate --release {given}/release --split train dev --model llm-7b"
        " --out {here}/out/machine.tsv",
        server=serve_judge,
    ),
    "annotate review": round_step(f"review {_ROUND_OPTION} --reviewers {BEN} {CARL}", "annotated"),
    "annotate check": round_step(f"check {_ROUND_OPTION}", "reviewed"),
    "annotate adjudicate": round_step(f"adjudicate {_ROUND_OPTION}", "reviewed"),
    "annotate merge": Verb(
        "builders annotate merge --round {given}/checked --release {given}/release --out {here}/out"
    ),
    "relabel candidates": Verb(f"builders annotate relabel candidates {_TRAIN_OPTIONS} --out {{here}}/out"),
    "relabel move": Verb(
        f"builders annotate relabel move {_TRAIN_OPTIONS} --scores {{given}}/train.run --out {{here}}/out"
    ),
    "similar": Verb("builders similar --release {given}/release --list {here}/out/list --out {here}/out/release"),
}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all inputs, with a copy of the round after each step."""
    folder = tmp_path_factory.mktemp("given")
    pool_path = make_pool(folder)
    passage_rows = _corpus(folder)
    write_release_with_similar_question(folder / "release", [row["text"] for row in passage_rows])
    hits = [(row["_id"], 1 / rank) for rank, row in enumerate(passage_rows, start=1)]
    for name in ("one", "two", "scores"):
        write_run(folder / f"{name}.run", [(md5(question), hits) for question in QUESTIONS["dev"]])
    write_negatives(folder)
    round_path = folder / "round"
    sizes = ("--package-size", 12, "--review-pairs", 6)
    annotate("export", round_path, "--pool", pool_path, "--release", folder / "release", *sizes)
    # A copy of the round before each step, where the step begins.
    shutil.copytree(round_path, folder / "fresh")
    annotate_packages(round_path, folder)
    shutil.copytree(round_path, folder / "annotated")
    annotate("review", round_path, "--reviewers", BEN, CARL)
    for sheet in (round_path / "reviews").rglob("*.csv"):
        judge(round_path, sheet.parent.name, sheet, truth)
    shutil.copytree(round_path, folder / "reviewed")
    report = json.loads(annotate("check", round_path, "--format", "json").stdout)
    states = [package["state"] for package in report["packages"]]
    assert states == ["sent back as version 2", "accepted"]
    shutil.copytree(round_path, folder / "checked")
    return folder


def write_release_with_similar_question(path: Path, passage_texts: list[str]) -> None:
    """Write a release of these passages, with a training question that is similar to a dev question."""
    rows = tables(passage_texts)
    question = "高铁票 提前几天买？"
    query_id = md5(question)
    rows["queries", "train"].append({"_id": query_id, "text": question})
    training_row = rows["train", "train"][0] | {"query_id": query_id, "query": question}
    rows["train", "train"].append(training_row)
    rows["qrels", "train"].append(rows["qrels", "train"][0] | {"query-id": query_id})
    make_release(path, rows, rows_per_shard=1_000)


def write_negatives(folder: Path) -> None:
    """Write negatives of the training questions, and a run that scores two of them for each question."""
    negative_ids = [md5(text) for text in TEXTS[4:]]
    hits = [(negative_ids[0], 2.0), (negative_ids[1], -2.0)]
    query_ids = [md5(question) for question in QUESTIONS["train"]]
    lines = [json.dumps({"query-id": query_id, "negative-ids": negative_ids}) for query_id in query_ids]
    (folder / "negatives.jsonl").write_text("\n".join(lines))
    write_run(folder / "train.run", [(query_id, hits) for query_id in query_ids])


def annotate_packages(round_path: Path, folder: Path) -> None:
    """Let Anna judge both packages, the first with 6 errors. Write her sheets and Ben's exports to ``folder``."""
    for number, sheet in enumerate(sorted((round_path / "packages").glob("*.csv")), start=1):
        label = wrong_in(6, read_table(sheet), "wrong") if number == 1 else truth
        filled_sheet = fill(sheet, label, folder / f"{number}.csv")
        judge(round_path, ANNA, filled_sheet, lambda row: row["label"])
        tasks_path = round_path / "label-studio" / f"{sheet.stem}.json"
        export_of(tasks_path, BEN, truth, folder / f"{number}.json")


def _corpus(folder: Path) -> list[dict[str, str]]:
    return open_release(folder / "release").table("corpus", "corpus").to_pylist()


@pytest.fixture(scope="module")
def forks() -> Iterator[Loaded]:
    """A process whose forks run the steps without delay."""
    with Loaded(ANNOTATION) as process:
        yield process


@pytest.mark.parametrize("name", VERBS)
def test_a_step_that_was_killed_at_a_random_point_ends_the_same(
    name: str, inputs: Path, forks: Loaded, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    verb = VERBS[name]
    with verb.serve(inputs) as server, verb.serve(inputs) as server_of_killed:
        undisturbed = Place(tmp_path / "whole", verb, inputs, server)
        done = forks.run(*undisturbed.words, code=None, at=0, **undisturbed.environment)
        undisturbed.expect_success(done.code, done.stderr)
        # The last line of an undisturbed step is the number of its points.
        point_count = int(done.stderr.rpartition("\n")[2])
        rng = random.Random(f"points {name}")
        points = rng.sample(range(1, point_count + 1), min(POINTS, point_count))
        place = Place(tmp_path / "killed", verb, inputs, server_of_killed)
        # A point is a place where the step writes a file or asks the model.
        for point in points:
            place.forget()
            forks.run(*place.words, code=None, at=point, **place.environment)
            resumed = forks.run(*place.words, code=None, **place.environment)
            place.expect_success(resumed.code, f"point {point}: {resumed.stderr}")
            expect_same_end(place, undisturbed, 1)
    record_property("fuzz", f"{name}: killed at {len(points)} of {point_count} points")
