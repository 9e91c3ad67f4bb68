"""Measure how many known positives `relabel` and `mine` find among the hard negatives of cmrc2018.

relabel: each dev question loses its one judgment. Its positive passage is hidden among five negatives. The negatives
are drawn from the passages that the re-rankers scored. (In Section 4, 14.8 % of the passages that models rank first are
such false negatives.)

mine: some dev questions get a second answering passage, made of the sentences around the answer. `mine` samples from
the top 20 of a dual-encoder in a small collection. The limits of `mine` apply to the dual-encoder's cosines.

If a found passage answers the question but was not hidden, it counts as a false alarm. Precision is therefore a lower
bound.

Example:

  python benchmarks/hidden.py --release build/cmrc --scores CE.dev.run.gz CE2.dev.run.gz --dual DE \\
    --raw dev.json.gz --work build/hidden
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import write_json

from baselines.__main__ import VERBS as BASELINES
from builders.__main__ import VERBS as BUILDERS
from builders.core.command import main as run
from builders.store.draft import draft_release
from builders.store.judgments import read_judged
from builders.store.layout import CORPUS, QRELS, QUERIES, text_id
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

NEGATIVES = 5
LEAST = 100  # characters of a hidden passage
OTHERS = 3  # further passages per question, from the first run
TOP = 20  # hits per question of the dual-encoder
Pairs = set[tuple[str, str]]  # query, passage


def command(program: str, *words: object) -> None:
    """Run a verb of the project in this process."""
    verbs = BASELINES if program == "baselines" else BUILDERS
    if code := run(program, "", verbs, ["--quiet" if word == "-q" else str(word) for word in words]):
        raise SystemExit(code)


def write(
    base: Release, split: str, queries: Iterable[str], judged: Pairs, out: Path, passages: dict[str, str] | None = None
) -> None:
    """Write a release whose training queries are some queries of a split. ``passages``: the corpus, or None for all."""
    wanted = set(queries)
    asked = [row for row in base.table("queries", split).to_pylist() if row["_id"] in wanted]
    rows = [{"query-id": query, "corpus-id": passage, "score": 1} for query, passage in sorted(judged)]
    if passages is None:
        corpus = (pa.Table.from_batches([each]) for each in base.batches("corpus", "corpus"))
    else:
        content = [{"_id": each, "title": "", "text": text} for each, text in passages.items()]
        corpus = iter([pa.Table.from_pylist(content, CORPUS)])
    with draft_release(out, {"verb": "hidden", "options": {}, "sources": []}) as draft:
        draft.write("corpus", "corpus", corpus)
        draft.write("queries", "train", [pa.Table.from_pylist(asked, QUERIES)])
        draft.write("qrels", "train", [pa.Table.from_pylist(rows, QRELS)])


def drawn(query: str, passages: Iterable[str]) -> list[str]:
    """Return the passages in a random order that is the same in every run."""
    return sorted(passages, key=lambda each: hashlib.sha256(f"{query} {each}".encode()).digest())


def figures(found: Pairs, planted: Pairs) -> dict[str, Any]:
    right = len(found & planted)
    precision = right / len(found) if found else None
    return {"found": len(found), "planted": right, "precision": precision, "recall": right / len(planted)}


def lists(path: Path) -> Pairs:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {(row["query-id"], each) for row in rows for each in row["negative-ids"]}


def relabelling(base: Release, runs: list[Path], work: Path) -> list[dict[str, Any]]:
    """Run `relabel` on dev questions without judgments, with each re-ranker and with all re-rankers."""
    judged = read_judged(base, "qrels", "dev")
    scored = [read_run(path).rankings for path in runs]
    planted: Pairs = set()
    lines = []
    for query, positives in judged.items():
        common = set.intersection(*(set(each.get(query, ())) for each in scored))
        hidden = drawn(query, common & set(positives))[:1]
        others = drawn(query, common - set(positives))[:NEGATIVES]
        if hidden and len(others) == NEGATIVES:
            planted.add((query, hidden[0]))
            lines.append(json.dumps({"query-id": query, "negative-ids": drawn(query, [*others, *hidden])}))
    negatives, out = work / "negatives.jsonl", work / "relabelled"
    negatives.write_text("\n".join([*lines, ""]), encoding="utf-8")
    write(base, "dev", {query for query, _ in planted}, set(), work / "release")
    rows = []
    groups = [(f"re-ranker {number}", [path]) for number, path in enumerate(runs, 1)]
    for name, group in [*groups, ("mean of all", runs), ("all agree", runs)]:
        for threshold in (0.5, 0.7, 0.8, 0.9):
            words = ("--negatives", negatives, "--threshold", threshold, "--scores", *group)
            words += ("--agree", "all" if name == "all agree" else "mean", "--out", out)
            command("builders", "annotate", "relabel", "move", "--release", work / "release", *words, "-q")
            moved = map(json.loads, (out / "relabelled.train.jsonl").read_text(encoding="utf-8").splitlines())
            found = {(row["query-id"], row["corpus-id"]) for row in moved}
            among = {"planted_of": len(planted), "negatives": len(planted) * (NEGATIVES + 1)}
            rows.append({"what": f"relabel --threshold {threshold}, {name}", **figures(found, planted), **among})
    return rows


def around(context: str, answer: str) -> str:
    """Return the sentences around an answer, at least LEAST characters in total."""
    place = context.find(answer)
    ends = [0, *(found.end() for found in re.finditer("[。！？]", context)), len(context)]
    first = max(position for position, end in enumerate(ends) if end <= place)
    last = min(position for position, end in enumerate(ends) if end >= place + len(answer))
    while ends[last] - ends[first] < LEAST and (first > 0 or last < len(ends) - 1):
        first, last = max(0, first - 1), min(len(ends) - 1, last + 1)
    return context[ends[first] : ends[last]]


def answered(paths: list[Path]) -> Iterator[tuple[str, str]]:
    """Yield questions with an answering passage from files in SQuAD's format."""
    for path in paths:
        for article in json.loads(gzip.decompress(path.read_bytes()))["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    text = question["answers"][0]["text"]
                    if len(text) > 1 and text in paragraph["context"]:
                        yield question["question"], around(paragraph["context"], text)


def mining(args: argparse.Namespace, base: Release, work: Path) -> list[dict[str, Any]]:
    """Run `mine` on dev questions with an unjudged second passage, the sentences around their answer."""
    judged, given = read_judged(base, "qrels", "dev"), read_run(args.scores[0]).rankings
    answers = dict(answered(args.raw))
    texts = {row["_id"]: row["text"] for row in base.table("queries", "dev").to_pylist()}
    corpus = {row["_id"]: row["text"] for row in base.table("corpus", "corpus").to_pylist()}
    planted: Pairs = set()
    known: Pairs = set()
    passages: dict[str, str] = {}
    for query in drawn("", judged):
        text = answers.get(texts[query], "")
        if len(planted) == args.questions or len(text) < LEAST or text_id(text) in corpus:
            continue
        planted.add((query, text_id(text)))
        known |= {(query, each) for each in judged[query]}
        others = drawn(query, set(given.get(query, ())) - set(judged[query]))[:OTHERS]
        passages |= {text_id(text): text} | {each: corpus[each] for each in (*judged[query], *others)}
    release = work / "release2"
    write(base, "dev", {query for query, _ in planted}, known, release, passages)
    common = ("--release", release, "--model", args.dual, "-q", "--max-length", args.max_length)
    command("baselines", "encode", *common, "--out", work / "vectors")
    options = ("--release", release, "-q", "--out")
    run_file, vectors = work / "dense.run", work / "vectors"
    words = ("--split", "train", "--model", args.dual, "--passages", vectors, "--top-k", TOP)
    command("baselines", "search", *options, run_file, *words)
    options = ("--run", run_file, "--negatives", TOP, *options)
    command("baselines", "mine", *options, work / "all.jsonl")
    every = lists(work / "all.jsonl")
    rows = []
    for limit in ("--relative-margin", "--margin"):
        for value in (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
            command("baselines", "mine", *options, work / "kept.jsonl", limit, value)
            found = every - lists(work / "kept.jsonl")
            among = {"planted_of": len(planted & every), "negatives": len(every)}
            rows.append({"what": f"mine {limit} {value}", **figures(found, planted & every), **among})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--release", type=Path, required=True, help="the release directory")
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="re-ranked runs of dev, with logits")
    parser.add_argument("--dual", required=True, help="the dual-encoder for `mine`")
    parser.add_argument("--raw", type=Path, nargs="+", required=True, help="source files with the answers (gzipped)")
    parser.add_argument("--questions", type=int, default=60, help="questions with a second passage (default: 60)")
    parser.add_argument("--max-length", type=int, default=96, help="tokens of a text (default: 96)")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    parser.add_argument("--out", type=Path, help="JSON file for the figures (default: no file)")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    base = open_release(args.release)
    rows = [*relabelling(base, args.scores, work), *mining(args, base, work)]
    write_json(args.out, {"rows": rows})
    print(f"{'':<40} {'negatives':>9} {'hidden':>6} {'found':>6} {'right':>6} {'precision':>9} {'recall':>7}")
    for row in rows:
        precision = "-" if row["precision"] is None else f"{row['precision']:.1%}"
        counts = f"{row['negatives']:9} {row['planted_of']:6} {row['found']:6} {row['planted']:6}"
        print(f"{row['what']:<40} {counts} {precision:>9} {row['recall']:>7.1%}")


if __name__ == "__main__":
    main()
