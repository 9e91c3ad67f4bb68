"""Read outputs of the verbs as rows to hash, without the project's readers, with rounded floats."""

import csv
import gzip
import hashlib
import io
import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from commands import run

Outputs = dict[str, list[Any]]  # rows by the name of the output


def rounded(value: Any, digits: int = 6) -> Any:
    if isinstance(value, dict):
        return {key: rounded(each, digits) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(each, digits) for each in value]
    return round(value, digits) + 0.0 if isinstance(value, float) else value


def lines(path: Path) -> list[str]:
    """Return the lines of a file, gzipped or not, with their ends. Only a line feed ends a line."""
    data = path.read_bytes()
    return list(io.StringIO((gzip.decompress(data) if path.suffix == ".gz" else data).decode(), newline="\n"))


def json_rows(path: Path) -> list[Any]:
    return [rounded(json.loads(line)) for line in lines(path)]


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def trec(path: Path) -> list[Any]:
    found = [line.split() for line in lines(path)]
    return [(query, passage, int(rank), round(float(score), 4), tag) for query, _, passage, rank, score, tag in found]


def release(path: Path) -> Outputs:
    found: Outputs = {"stats.json": [rounded(json.loads((path / "stats.json").read_text("utf-8")))]}
    for shard in sorted(path.glob("*/*.parquet")):
        rows = pq.read_table(shard).to_pylist()
        found.setdefault(f"{shard.parent.name}/{shard.name.partition('-0')[0]}", []).extend(rows)
    found |= {f"runs/{each.name}": trec(each) for each in path.glob("runs/*.trec")}
    return found | {each.name: json_rows(each) for each in path.glob("*.jsonl")}


def export(path: Path) -> Outputs:
    """Return the lines of every file. For runs, return the hits with rounded scores."""
    found: Outputs = {}
    for file in sorted(each for each in path.rglob("*") if each.is_file() and each.name != "EXPORT"):
        name = file.relative_to(path).as_posix()
        if name.startswith("runs/") and file.suffix == ".json":
            scores = json.loads(file.read_text("utf-8"))
            found[name] = rounded([(query, *hit) for query, hits in scores.items() for hit in hits.items()], 4)
        elif name.startswith("rag/"):
            found[name] = rounded([json.loads(line) for line in lines(file)], 4)
        else:
            found[name] = trec(file) if name.startswith("runs/") else lines(file)
    return found


def within(name: str, outputs: Outputs) -> Outputs:
    return {f"{name}/{key}": rows for key, rows in outputs.items()}


def printed(program: str, *words: object) -> list[Any]:
    text = run(program, *words, "--quiet", "--format", "json").stdout
    found = rounded(json.loads(re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', text)))
    return found if isinstance(found, list) else [found]


def chance(*words: object) -> float:
    """Return a number from 0 to 1 that depends only on the words."""
    return hashlib.md5(" ".join(map(str, words)).encode()).digest()[0] / 255


def scored(candidates: Path, out: Path) -> Path:
    """Write a re-ranker's run of the candidates with random logits, distinct for each query."""
    logits: dict[str, dict[str, float]] = {}
    for query, passage, rank, *_ in trec(candidates):
        logits.setdefault(query, {})[passage] = 8 * chance(out.name, query, passage) - 4 + rank / 4096
    hits = [(q, p, s) for q, own in logits.items() for p, s in sorted(own.items(), key=lambda each: -each[1])]
    out.write_text("".join(f"{q} Q0 {p} {n} {s!r} ce\n" for n, (q, p, s) in enumerate(hits, 1)))
    return out
