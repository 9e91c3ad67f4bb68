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
from builders.annotate.pool import PooledCandidates, write_pool
from builders.core.sampling import draw_sample
from builders.store.reader import open_release

ANNA, BEN, CARL = "anna@example.com", "ben@example.com", "carl@example.com"
Label = Callable[[dict[str, Any]], int | str]  # an annotator: the label of a row of a sheet


def annotate(action: str, round_path: Path, *words: object, code: int | None = 0) -> Done:
    """Run a step of `annotate` on a round, with the further words ``words``."""
    return run("builders", "annotate", action, "--quiet", "--round", round_path, words, code=code)


def make_pool(folder: Path, passages: int = 12) -> Path:
    """Write a release of so many passages, and a pool of all of them for each dev question. Return the pool's path."""
    # The first texts are the usual ones. The further texts repeat these with a number in front.
    numbered_texts = [f"第{number}条：{TEXTS[number % 6]}" for number in range(passages - len(TEXTS))]
    passage_texts = (TEXTS + numbered_texts)[:passages]
    make_release(folder / "release", tables(passage_texts), rows_per_shard=1_000)
    pairs = []
    for question in QUESTIONS["dev"]:
        for rank, text in enumerate(passage_texts, start=1):
            pairs.append(
                PooledCandidates(
                    query_id=md5(question),
                    corpus_id=md5(text),
                    rank=rank,
                    score=1 / rank,
                    runs={"bm25": rank},
                    judged=None,
                )
            )
    pool_path = folder / "pool.jsonl"
    write_pool(pool_path, pairs)
    return pool_path


def make_round(folder: Path, *words: object, passages: int = 12, size: int = 12) -> Path:
    """Export a round over a new pool, in packages of ``size`` pairs. Return the path of the round.

    ``words``: further words of `annotate export`.
    """
    pool_path = make_pool(folder, passages)
    round_path = folder / "round"
    release_path = folder / "release"
    annotate("export", round_path, "--pool", pool_path, "--release", release_path, "--package-size", size, *words)
    return round_path


def read_table(path: Path) -> list[dict[str, str]]:
    """Read the rows of a CSV table."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file))


def fill(sheet: Path, label: Label, out: Path | None = None) -> Path:
    """Fill in a sheet with the labels ``label(row)``, as a spreadsheet saves it. Return the path of the filled sheet.

    ``out`` is this path (default: the sheet's path with the suffix ``.filled.csv``).
    """
    rows = read_table(sheet)
    filled_path = out or sheet.with_suffix(".filled.csv")
    with open(filled_path, "w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        for row in rows:
            writer.writerow(row | {"label": label(row)})
    return filled_path


def judge(round_path: Path, annotator: str, sheet: Path, label: Label) -> Done:
    """Import a sheet that the annotator has filled in."""
    return annotate("import", round_path, "--annotator", annotator, fill(sheet, label))


def export_of(tasks_path: Path, annotator: str, label: Label, export_path: Path) -> Path:
    """Write Label Studio's export of tasks that the annotator has labelled. Return its path."""
    rows = json.loads(tasks_path.read_bytes())
    for row in rows:
        chosen_label = str(label(row["data"]))
        choice = {"from_name": "label", "type": "choices", "value": {"choices": [chosen_label]}}
        annotation = {
            "result": [choice],
            "completed_by": {"id": 1, "email": annotator},
            "updated_at": "2024-05-01T12:00:00Z",
        }
        row["annotations"] = [annotation]
    export_path.write_text(json.dumps(rows), encoding="utf-8")
    return export_path


def truth(row: dict[str, Any]) -> int:
    """Return the right label: 1 for the question's own passage, otherwise 0."""
    # Texts 0 to 3 answer the four training questions.
    query_ids = map(md5, QUESTIONS["dev"])
    answer_ids = map(md5, TEXTS[4:])
    answer_by_query = dict(zip(query_ids, answer_ids, strict=False))
    return int(answer_by_query[row["query-id"]] == row["corpus-id"])


def wrong_in(error_count: int, rows: Iterable[dict[str, Any]], seed: str, right: Callable[[Any], int] = truth) -> Label:
    """Return an annotator who labels as ``right`` does, except for ``error_count`` of ``rows``, drawn by ``seed``."""

    def pair_key(row: dict[str, Any]) -> str:
        return f"{row['query-id']} {row['corpus-id']}"

    wrong_pairs = draw_sample(map(pair_key, rows), error_count, seed)
    return lambda row: right(row) ^ (pair_key(row) in wrong_pairs)


def judgments(round_path: Path) -> list[dict[str, Any]]:
    """Read all judgments of a round, in the order of the files."""
    rows = []
    for path in sorted((round_path / "judgments").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            rows.append(json.loads(line))
    return rows


def check(round_path: Path) -> dict[str, Any]:
    """Run `annotate check`, and return its report."""
    return json.loads(annotate("check", round_path, "--format", "json").stdout)


NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
Labels = Mapping[tuple[str, str], int]  # (query id, passage id) -> label


def judgment(pair: tuple[str, str], label: int, package: str, kind: rounds.Kind = "annotation") -> rounds.Judgment:
    """Return a judgment of a (query id, passage id) pair by Anna, or with the kind ``model`` by a model."""
    query_id, passage_id = pair
    model = "a model" if kind == "model" else None
    return rounds.Judgment(
        query_id=query_id,
        corpus_id=passage_id,
        label=label,
        annotator=model or "anna",
        time=NOON,
        package=package,
        version=1,
        kind=kind,
        model=model,
    )


def judged_round(
    round_path: Path, release: Path, packages: Mapping[str, tuple[Any, Labels]], split: str = "dev"
) -> Path:
    """Write a round without `annotate`. ``packages``: name -> (state, for example "accepted"; Anna's labels)."""
    (round_path / "packages").mkdir(parents=True)
    package_records = []
    for name, (state, labels) in packages.items():
        package_records.append(rounds.Package(name, len(labels), state=state))
        package_text = b""
        for query_id, passage_id in labels:
            package_text += msgspec.json.encode(rounds.PackageItem(query_id, passage_id, "", "")) + b"\n"
        (round_path / f"packages/{name}.jsonl").write_bytes(package_text)
        rounds.add_judgments(round_path, [judgment(pair, label, name) for pair, label in labels.items()])
    fingerprint = rounds.fingerprint_of(open_release(release), split)
    draft = rounds.AnnotationRound(1, release.name, fingerprint, split, "0" * 64, rounds.QualityRule(), package_records)
    # An accepted package names the digest of its labels, which is known only after the labels are written.
    final_records = []
    for standing in rounds.read_standings(round_path, draft):
        label_digest = standing.digest if standing.package.state == "accepted" else ""
        final_records.append(msgspec.structs.replace(standing.package, labels=label_digest))
    rounds.write_round(round_path, msgspec.structs.replace(draft, packages=final_records))
    return round_path
