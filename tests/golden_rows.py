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
    """Return a value of JSON with rounded floats."""
    if isinstance(value, dict):
        return {key: rounded(part, digits) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(part, digits) for part in value]
    if isinstance(value, float):
        return round(value, digits) + 0.0  # the sum makes -0.0 to 0.0
    return value


def lines(path: Path) -> list[str]:
    """Return the lines of a file, gzipped or not, with their ends. Only a line feed ends a line."""
    content = path.read_bytes()
    if path.suffix == ".gz":
        content = gzip.decompress(content)
    return list(io.StringIO(content.decode(), newline="\n"))


def json_rows(path: Path) -> list[Any]:
    """Read JSON lines with rounded floats."""
    return [rounded(json.loads(line)) for line in lines(path)]


def table(path: Path, delimiter: str = ",") -> list[dict[str, str]]:
    """Read the rows of a table."""
    with open(path, encoding="utf-8-sig", newline="") as file:
        return list(csv.DictReader(file, delimiter=delimiter))


def trec(path: Path) -> list[Any]:
    """Read the hits of a TREC run with rounded scores."""
    hits = []
    for line in lines(path):
        query_id, _, passage_id, rank, score, tag = line.split()
        hits.append((query_id, passage_id, int(rank), round(float(score), 4), tag))
    return hits


def release(release_path: Path) -> Outputs:
    """Read the rows of every table, run and file of JSON lines of a release, and its figures."""
    stats = json.loads((release_path / "stats.json").read_text("utf-8"))
    outputs: Outputs = {"stats.json": [rounded(stats)]}
    for shard in sorted(release_path.glob("*/*.parquet")):
        split = shard.name.partition("-0")[0]
        rows = outputs.setdefault(f"{shard.parent.name}/{split}", [])
        rows += pq.read_table(shard).to_pylist()
    for path in release_path.glob("runs/*.trec"):
        outputs[f"runs/{path.name}"] = trec(path)
    for path in release_path.glob("*.jsonl"):
        outputs[path.name] = json_rows(path)
    return outputs


def export(folder: Path) -> Outputs:
    """Return the lines of every file. For runs, return the hits with rounded scores."""
    outputs: Outputs = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.name != "EXPORT":
            name = path.relative_to(folder).as_posix()
            outputs[name] = exported_rows(path, name)
    return outputs


def exported_rows(path: Path, name: str) -> list[Any]:
    """Read an exported file. ``name``: its path in the export, which tells the format."""
    if name.startswith("runs/") and path.suffix == ".json":
        hits = []
        for query_id, scores in json.loads(path.read_text("utf-8")).items():
            for passage_id, score in scores.items():
                hits.append((query_id, passage_id, score))
        return rounded(hits, 4)
    if name.startswith("rag/"):
        return rounded([json.loads(line) for line in lines(path)], 4)
    if name.startswith("runs/"):
        return trec(path)
    return lines(path)


def within(prefix: str, outputs: Outputs) -> Outputs:
    """Put a prefix before the names of outputs."""
    return {f"{prefix}/{name}": rows for name, rows in outputs.items()}


def printed(program: str, *words: object) -> list[Any]:
    """Run a verb, and return the JSON that it prints, without the folders of paths."""
    stdout = run(program, words, "--quiet", "--format", "json").stdout
    report = rounded(json.loads(re.sub(r'"/[^"]*/([^"/]+)"', r'"\1"', stdout)))
    return report if isinstance(report, list) else [report]


def chance(*words: object) -> float:
    """Return a number from 0 to 1 that depends only on the words."""
    digest = hashlib.md5(" ".join(map(str, words)).encode()).digest()
    return digest[0] / 255


def scored(candidates: Path, run_path: Path) -> Path:
    """Write a re-ranker's run of the candidates with random logits, distinct for each query. Return ``run_path``."""
    logits_by_query: dict[str, dict[str, float]] = {}
    for query_id, passage_id, rank, _, _ in trec(candidates):
        logits = logits_by_query.setdefault(query_id, {})
        # The rank adds less than a step of `chance`, and makes the logits distinct.
        logits[passage_id] = 8 * chance(run_path.name, query_id, passage_id) - 4 + rank / 4096
    run_lines = []
    for query_id, logits in logits_by_query.items():
        # Ranks count on from query to query. Readers compare ranks only within a query.
        for passage_id, logit in sorted(logits.items(), key=lambda hit: -hit[1]):
            run_lines.append(f"{query_id} Q0 {passage_id} {len(run_lines) + 1} {logit!r} ce\n")
    run_path.write_text("".join(run_lines))
    return run_path
