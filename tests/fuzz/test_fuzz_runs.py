"""Runs, predictions, judgments, weights and negatives, spoiled."""

from __future__ import annotations

import argparse
import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from fuzzing import Reader, as_json, equal, fuzz_of, loads
from releases import QUESTIONS, TEXTS, make_release, md5
from spoil import BYTES, JSON, JSON_LINES, TEXT

from baselines.measure.fuse import _read_weights
from baselines.measure.qrels import read_qrels
from baselines.retrieve.passages import open_passages
from baselines.train.data import read_negatives
from baselines.train.question_pairs import pair_file, read_question_pairs
from builders.annotate.pool import Pooled, read_pool, write_pool
from builders.store.reader import open_release
from builders.store.runs import read_run, write_run

IDS = [md5(text) for text in TEXTS]
ASKED = [md5(question) for question in QUESTIONS["dev"]]


def _run(name: str) -> Callable[[Path], object]:
    return lambda folder: write_run(folder / name, [(q, [(p, 1 / (n + 1)) for n, p in enumerate(IDS)]) for q in ASKED])


def _tabs(folder: Path) -> None:
    _run("run")(folder)
    (folder / "run").write_bytes((folder / "run").read_bytes().replace(b" ", b"\t"))


def _as_a_trec_run(found: dict[str, Any], _: Any, folder: Path) -> bool:
    """By the rules of the format, read once more."""
    path = next(folder.glob("run*"))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    said: dict[str, list[tuple[float, int, str]]] = {}
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return True
    for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n"):
        if words := line.split():
            query, _q0, passage, rank, score, _tag = words
            said.setdefault(query.decode(), []).append((-float(score), int(rank), passage.decode()))
    assert all(math.isfinite(score) for hits in found.values() for _, score in hits)
    for hits in said.values():
        hits.sort(key=lambda hit: hit[:2])
    return found == {query: [(passage, -score) for score, _, passage in hits] for query, hits in said.items()}


def _as_predictions(found: dict[str, Any], _: Any, folder: Path) -> bool:
    content = (folder / "predictions.json").read_bytes().removeprefix(b"\xef\xbb\xbf")
    if not content.lstrip().startswith(b"{"):
        return True
    return {query: [passage for passage, _ in hits] for query, hits in found.items()} == loads(content)


def _judgments(text: str) -> Callable[[Path], object]:
    lines = [text.format(query, passage) for query, passage in zip(ASKED, IDS, strict=False)]
    return lambda folder: (folder / "qrels").write_text("".join(lines))


def _as_columns(found: dict[str, dict[str, int]], _: Any, folder: Path) -> bool:
    """Every positive judgment stands in a line of its own words."""
    lines = {tuple(line.split()) for line in (folder / "qrels").read_bytes().split(b"\n")}
    triples = {
        (words[0], words[-2], int(words[-1])) for words in lines if len(words) in (3, 4) and words[-1] != b"score"
    }
    pairs = [(q.encode(), p.encode(), score) for q, passages in found.items() for p, score in passages.items()]
    bom = {(query.removeprefix(b"\xef\xbb\xbf"), passage, score) for query, passage, score in triples}
    return set(pairs) <= triples | bom and all(score > 0 for _, _, score in pairs)


def _weights(folder: Path) -> None:
    (folder / "weights.json").write_text(json.dumps({"weights": [0.3, 0.7], "tuned_on": "dev", "MRR@10": 0.5}))


def _official(folder: Path, whole: bool = False) -> None:
    rows: list[Any] = [
        {"question_id": q, "question": "?", "answer_paragraphs": [{"paragraph_id": p, "paragraph_text": "x"}]}
        for q, p in zip(ASKED, IDS, strict=False)
    ]
    text = json.dumps({"data": rows}) if whole else "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "qrels").write_text(text)


def _negatives(folder: Path) -> None:
    make_release(folder / "release")
    rows = [{"query-id": query, "negative-ids": IDS[2:]} for query in ASKED]
    (folder / "negatives.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))


def _read_negatives(folder: Path) -> Any:
    return read_negatives(
        folder / "negatives.jsonl", open_passages(open_release(folder / "release")), {q: [0] for q in ASKED}
    )


def _as_negatives(found: dict[str, list[int]], _: Any, folder: Path) -> bool:
    lines = (folder / "negatives.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    rows = (loads(line) for line in lines if line.strip())
    said = {row["query-id"]: row["negative-ids"] for row in rows}
    return found == {q: [IDS.index(p) for p in said[q] if p != IDS[0]] for q in ASKED if q in said}


def _pool(folder: Path) -> None:
    pairs = [Pooled(q, p, n, 1 / n, {"bm25": n}, None if n % 2 else 1) for q in ASKED for n, p in enumerate(IDS, 1)]
    write_pool(folder / "pool.jsonl", pairs)


def _as_a_pool(found: list[Pooled], _: Any, folder: Path) -> bool:
    """Every pair is what its line says, which says all of it."""
    lines = (folder / "pool.jsonl").read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")
    said = [loads(line) for line in lines if line.strip()]
    return equal(msgspec.to_builtins(found), said) and all(row.keys() >= _POOLED for row in said)


_POOLED = {"query-id", "corpus-id", "rank", "score", "runs", "judged"}
PAIRS = [("怎么煮饺子", "饺子怎么煮", 1), ("高铁票, 几天", "多肉", 0), ("哪里看雪", "哪里可以看雪", 1)]


def _question_pairs(folder: Path) -> None:
    (folder / "pairs.tsv").write_text(
        "text1\ttext2\tlabel\n" + "".join(f"{one}\t{other}\t{label}\n" for one, other, label in PAIRS)
    )
    (folder / "pairs.csv").write_text("".join(f'{label},"{one}",{other}\n' for one, other, label in PAIRS))
    rows = [{"sentence1": one, "sentence2": other, "label": str(label)} for one, other, label in PAIRS]
    (folder / "pairs.json").write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


def _read_question_pairs(folder: Path) -> Any:
    columns = {"pairs.csv": ":label,text1,text2"}
    names = ("pairs.tsv", "pairs.csv", "pairs.json")
    return read_question_pairs([pair_file(f"{folder / name}{columns.get(name, '')}") for name in names])


def _with_two_questions_and_a_label(found: list[Any], *_: object) -> bool:
    return bool(found) and all(one.strip() and other.strip() and label in (0, 1) for one, other, label in found)


_RUN, _QRELS = "builders.store.runs:", "baselines.measure.qrels:"
READERS = [
    Reader(
        "labelled pairs of questions",
        reaches=(
            "baselines.train.question_pairs:_table",
            "baselines.train.question_pairs:_json_lines",
            "baselines.train.question_pairs:read_question_pairs",
        ),
        make=_question_pairs,
        spoils={"pairs.tsv": TEXT, "pairs.csv": TEXT, "pairs.json": JSON_LINES},
        read=_read_question_pairs,
        right=_with_two_questions_and_a_label,
    ),
    Reader(
        "a pool",
        reaches=("builders.annotate.pool:read_pool",),
        make=_pool,
        spoils={"pool.jsonl": JSON_LINES},
        read=lambda folder: read_pool(folder / "pool.jsonl"),
        right=_as_a_pool,
    ),
    Reader(
        "a TREC run",
        reaches=("builders.store.runs:_parsed",),
        make=_run("run"),
        spoils={"run": TEXT},
        read=lambda folder: read_run(folder / "run").hits,
        right=_as_a_trec_run,
    ),
    Reader(
        "a TREC run with tabs",
        reaches=(f"{_RUN}_by_line",),
        make=_tabs,
        spoils={"run": TEXT},
        read=lambda folder: read_run(folder / "run").hits,
        right=_as_a_trec_run,
    ),
    Reader(
        "a gzipped TREC run",
        reaches=("builders.core.files:raw_lines", "builders.core.files:first_character"),
        make=_run("run.gz"),
        spoils={"run.gz": BYTES},
        read=lambda folder: read_run(folder / "run.gz").hits,
        right=_as_a_trec_run,
    ),
    Reader(
        "predictions",
        reaches=(f"{_RUN}read_run",),
        make=lambda folder: (folder / "predictions.json").write_text(json.dumps(dict.fromkeys(ASKED, IDS))),
        spoils={"predictions.json": JSON},
        read=lambda folder: read_run(folder / "predictions.json").hits,
        right=_as_predictions,
    ),
    Reader(
        "TREC qrels",
        reaches=(f"{_QRELS}_columns",),
        make=_judgments("{} 0 {} 1\n"),
        spoils={"qrels": TEXT},
        read=lambda folder: read_qrels(folder / "qrels").positives,
        right=_as_columns,
    ),
    Reader(
        "BEIR's qrels",
        reaches=(f"{_QRELS}_columns",),
        make=lambda folder: (folder / "qrels").write_text(
            "query-id\tcorpus-id\tscore\n" + "".join(f"{q}\t{p}\t1\n" for q in ASKED for p in IDS)
        ),
        spoils={"qrels": TEXT},
        read=lambda folder: read_qrels(folder / "qrels").positives,
        right=_as_columns,
    ),
    Reader(
        "an official dev.json",
        reaches=(f"{_QRELS}_official",),
        make=_official,
        spoils={"qrels": JSON_LINES},
        read=lambda folder: read_qrels(folder / "qrels").positives,
    ),
    Reader(
        "an official dev.json of one object",
        reaches=(f"{_QRELS}_official",),
        make=lambda folder: _official(folder, True),
        spoils={"qrels": JSON},
        read=lambda folder: read_qrels(folder / "qrels").positives,
    ),
    Reader(
        "weights of runs",
        reaches=("baselines.measure.fuse:_read_weights",),
        make=_weights,
        spoils={"weights.json": JSON},
        read=lambda folder: {
            "weights": _read_weights(
                argparse.Namespace(weights=folder / "weights.json", runs=["a", "b"], method="weighted")
            )
        },
        right=as_json("weights.json"),
    ),
    Reader(
        "hard negatives",
        reaches=("builders.store.judgments:read_negative_ids",),
        make=_negatives,
        spoils={"negatives.jsonl": JSON_LINES},
        read=_read_negatives,
        right=_as_negatives,
    ),
]
test_spoiled_files_give_what_they_say_or_one_line = fuzz_of(READERS)
