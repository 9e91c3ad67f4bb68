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
from killing import Place, Verb, content, same_in_the_end
from loaded import ANNOTATION, Loaded
from loopback import Chat
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.annotate.rounds import read_judgments
from builders.store.reader import open_release
from builders.store.runs import write_run

POINTS = 5 if CASES else 1
PARALLEL = 4


def judged(out: Path) -> dict[str, bytes]:
    """Return the files and judgments of a round, without times and without the number of files of judgments."""
    found = content(out)
    ours = [name for name in found if name.startswith("judgments/") and name.endswith(".jsonl")]
    for name in ours:
        del found[name]
    lines = [[each.identity, each.label, each.note] for each in read_judgments(out)]
    return found | {"judgments": "\n".join(sorted(map(json.dumps, lines))).encode()}


class Judge:
    def __init__(self, server: Chat) -> None:
        self.requests, self.url = server.asked, server.url

    def environment(self, home: Path) -> dict[str, str]:
        return {**os.environ, "OPENAI_BASE_URL": self.url, "OPENAI_API_KEY": "none"}

    def content(self) -> dict[str, bytes]:
        return {}

    def forget(self) -> None:
        self.requests.clear()


@contextmanager
def judging(_: Path) -> Iterator[Judge]:
    with Chat(lambda prompt: f"最终得分：{len(prompt) % 4}") as server:
        yield Judge(server)


_RUNS = "--release {given}/release --split dev --runs {given}/one.run {given}/two.run"
_TRAIN = "--release {given}/release --negatives {given}/negatives.jsonl"


def _step(words: str, begin: str, **more: object) -> Verb:
    return Verb(f"builders annotate {words}", begin=begin, content=judged, **more)  # type: ignore[arg-type]


_AT = "--round {here}/out"
VERBS = {
    "pool candidates": Verb(f"builders annotate pool candidates {_RUNS} --out {{here}}/out"),
    "pool select": Verb(
        f"builders annotate pool select {_RUNS} --scores {{given}}/scores.run --scale none --out {{here}}/out"
    ),
    "annotate export": Verb(
        f"builders annotate export {_AT} --pool {{given}}/pool.jsonl --release {{given}}/release --package-size 12",
        refused="is a round already",
    ),
    "annotate prefill": _step(
        f"prefill {_AT} --model judge-7b --show --parallel {PARALLEL}", "fresh", server=judging, repeats=20 + PARALLEL
    ),
    "annotate import": _step(f"import {_AT} --annotator {ANNA} {{given}}/1.csv {{given}}/2.csv", "fresh"),
    "annotate import of an export": _step(f"import {_AT} {{given}}/1.json {{given}}/2.json", "fresh"),
    "annotate translate": Verb(
        "builders annotate translate --release {given}/release --split train dev --model llm-7b"
        " --out {here}/out/machine.tsv",
        server=judging,
    ),
    "annotate review": _step(f"review {_AT} --reviewers {BEN} {CARL}", "annotated"),
    "annotate check": _step(f"check {_AT}", "reviewed"),
    "annotate adjudicate": _step(f"adjudicate {_AT}", "reviewed"),
    "annotate merge": Verb(
        "builders annotate merge --round {given}/checked --release {given}/release --out {here}/out"
    ),
    "relabel candidates": Verb(f"builders annotate relabel candidates {_TRAIN} --out {{here}}/out"),
    "relabel move": Verb(f"builders annotate relabel move {_TRAIN} --scores {{given}}/train.run --out {{here}}/out"),
    "similar": Verb("builders similar --release {given}/release --list {here}/out/list --out {here}/out/release"),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("given")
    pool = make_pool(folder)
    rows = tables([each["text"] for each in _corpus(folder)])
    alike = {"_id": md5("高铁票 提前几天买？"), "text": "高铁票 提前几天买？"}  # similar to a dev question
    rows["queries", "train"].append(alike)
    rows["train", "train"].append({**rows["train", "train"][0], "query_id": alike["_id"], "query": alike["text"]})
    rows["qrels", "train"].append({**rows["qrels", "train"][0], "query-id": alike["_id"]})
    make_release(folder / "release", rows, rows_per_shard=1_000)
    hits = [(each["_id"], 1 / rank) for rank, each in enumerate(_corpus(folder), 1)]
    for name in ("one", "two", "scores"):
        write_run(folder / f"{name}.run", [(query, hits) for query in map(md5, QUESTIONS["dev"])])
    negatives = [(md5(question), [md5(text) for text in TEXTS[4:]]) for question in QUESTIONS["train"]]
    lines = [json.dumps({"query-id": query, "negative-ids": own}) for query, own in negatives]
    (folder / "negatives.jsonl").write_text("\n".join(lines))
    write_run(folder / "train.run", [(query, [(own[0], 2.0), (own[1], -2.0)]) for query, own in negatives])
    round_ = folder / "round"
    words = ("--pool", pool, "--release", folder / "release", "--package-size", 12, "--review-pairs", 6)
    annotate("export", round_, *words)
    shutil.copytree(round_, folder / "fresh")
    for number, sheet in enumerate(sorted((round_ / "packages").glob("*.csv")), 1):
        wrong = wrong_in(6, read_table(sheet), "wrong") if number == 1 else truth
        judge(round_, ANNA, fill(sheet, wrong, folder / f"{number}.csv"), lambda row: row["label"])
        export_of(round_ / "label-studio" / f"{sheet.stem}.json", BEN, truth, folder / f"{number}.json")
    shutil.copytree(round_, folder / "annotated")
    annotate("review", round_, "--reviewers", BEN, CARL)
    for sheet in (round_ / "reviews").rglob("*.csv"):
        judge(round_, sheet.parent.name, sheet, truth)
    shutil.copytree(round_, folder / "reviewed")
    states = json.loads(annotate("check", round_, "--format", "json").stdout)["packages"]
    assert [each["state"] for each in states] == ["sent back as version 2", "accepted"]
    shutil.copytree(round_, folder / "checked")
    return folder


def _corpus(folder: Path) -> list[dict[str, str]]:
    return open_release(folder / "release").table("corpus", "corpus").to_pylist()


@pytest.fixture(scope="module")
def forks() -> Iterator[Loaded]:
    with Loaded(ANNOTATION) as found:
        yield found


@pytest.mark.parametrize("name", VERBS)
def test_a_step_that_was_killed_at_any_point_ends_the_same(
    name: str, given: Path, forks: Loaded, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    verb = VERBS[name]
    with verb.serve(given) as one, verb.serve(given) as other:
        whole = Place(tmp_path / "whole", verb, given, one)
        done = forks.run(*whole.words, code=None, at=0, **whole.environment)
        whole.ended(done.code, done.stderr)
        points = int(done.stderr.rpartition("\n")[2])
        chosen = random.Random(f"points {name}").sample(range(1, points + 1), min(POINTS, points))
        place = Place(tmp_path / "killed", verb, given, other)
        for at in chosen:
            place.forget()
            forks.run(*place.words, code=None, at=at, **place.environment)
            again = forks.run(*place.words, code=None, **place.environment)
            place.ended(again.code, f"point {at}: {again.stderr}")
            same_in_the_end(place, whole, 1)
    record_property("fuzz", f"{name}: killed at {len(chosen)} of {points} points")
