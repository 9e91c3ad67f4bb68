"""Annotation rounds for tests: a pool over a tiny release, and annotators whose errors are known."""

import csv
import json
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
from commands import Done, run
from releases import QUESTIONS, TEXTS, make_release, md5, tables

from builders.annotate import rounds
from builders.annotate.pool import Pooled, write_pool
from builders.core.sampling import draw
from builders.store.reader import open_release

ANNA, BEN, CARL = "anna@example.com", "ben@example.com", "carl@example.com"
Label = Callable[[dict[str, Any]], int | str]


def annotate(action: str, round_: Path, *words: object, code: int | None = 0) -> Done:
    return run("builders", "annotate", action, "--quiet", "--round", round_, *words, code=code)


def make_pool(folder: Path, passages: int = 12) -> Path:
    """Write a release, and a pool of all its passages for each dev question. Return the path of the pool."""
    texts = [*TEXTS, *(f"第{number}条：{TEXTS[number % 6]}" for number in range(passages - len(TEXTS)))][:passages]
    make_release(folder / "release", tables(texts), rows_per_shard=1_000)
    pairs = [
        Pooled(md5(question), md5(text), rank, 1 / rank, {"bm25": rank}, None)
        for question in QUESTIONS["dev"]
        for rank, text in enumerate(texts, 1)
    ]
    write_pool(folder / "pool.jsonl", pairs)
    return folder / "pool.jsonl"


def make_round(folder: Path, *words: object, passages: int = 12, size: int = 12) -> Path:
    pool, place = make_pool(folder, passages), folder / "round"
    annotate("export", place, "--pool", pool, "--release", folder / "release", "--package-size", size, *words)
    return place


def read_table(path: Path) -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def fill(sheet: Path, label: Label, out: Path | None = None) -> Path:
    """Fill in a sheet with the labels ``label(row)``, as a spreadsheet saves it. Return its path."""
    rows = read_table(sheet)
    out = out or sheet.with_suffix(".filled.csv")
    with open(out, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows({**row, "label": label(row)} for row in rows)
    return out


def judge(round_: Path, who: str, sheet: Path, label: Label) -> Done:
    return annotate("import", round_, "--annotator", who, fill(sheet, label))


def export_of(tasks: Path, who: str, label: Label, out: Path) -> Path:
    rows = json.loads(tasks.read_bytes())
    for row in rows:
        choice = {"from_name": "label", "type": "choices", "value": {"choices": [str(label(row["data"]))]}}
        about = {"completed_by": {"id": 1, "email": who}, "updated_at": "2024-05-01T12:00:00Z"}
        row["annotations"] = [{"result": [choice], **about}]
    out.write_text(json.dumps(rows), encoding="utf-8")
    return out


def truth(row: dict[str, Any]) -> int:
    """Return the right label: 1 for the question's own passage, otherwise 0."""
    answers = dict(zip(map(md5, QUESTIONS["dev"]), map(md5, TEXTS[4:]), strict=False))
    return int(answers[row["query-id"]] == row["corpus-id"])


def wrong_in(wrong: int, rows: Iterable[dict[str, Any]], seed: str, right: Callable[[Any], int] = truth) -> Label:
    """Return the answers ``right`` with this number of random errors."""
    chosen = draw((f"{row['query-id']} {row['corpus-id']}" for row in rows), wrong, seed)
    return lambda row: right(row) ^ (f"{row['query-id']} {row['corpus-id']}" in chosen)


def judgments(round_: Path) -> list[dict[str, Any]]:
    files = sorted((round_ / "judgments").glob("*.jsonl"))
    return [json.loads(line) for path in files for line in path.read_text(encoding="utf-8").splitlines()]


def check(round_: Path) -> dict[str, Any]:
    return json.loads(annotate("check", round_, "--format", "json").stdout)


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
Labels = Mapping[tuple[str, str], int]


def judgment(pair: tuple[str, str], label: int, package: str, kind: rounds.Kind = "annotation") -> rounds.Judgment:
    model = "a model" if kind == "model" else None
    return rounds.Judgment(*pair, label, "anna" if model is None else model, NOON, package, 1, kind, model)


def judged_round(path: Path, release: Path, packages: Mapping[str, tuple[Any, Labels]], split: str = "dev") -> Path:
    """Write a round with these packages and states, and Anna's labels of the pairs."""
    (path / "packages").mkdir(parents=True)
    found = []
    for name, (state, labels) in packages.items():
        found.append(rounds.Package(name, len(labels), state=state))
        lines = [msgspec.json.encode(rounds.Item(*pair, "", "")) for pair in labels]
        (path / f"packages/{name}.jsonl").write_bytes(b"\n".join([*lines, b""]))
        rounds.add_judgments(path, [judgment(pair, label, name) for pair, label in labels.items()])
    fingerprint = rounds.fingerprint_of(open_release(release), split)
    whole = rounds.Round(1, release.name, fingerprint, split, "0" * 64, rounds.Rule(), found)
    packed = [
        msgspec.structs.replace(each.package, labels=each.digest if each.package.state == "accepted" else "")
        for each in rounds.standings(path, whole)
    ]
    rounds.write_round(path, msgspec.structs.replace(whole, packages=packed))
    return path
