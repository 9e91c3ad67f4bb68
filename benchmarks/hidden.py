"""Hide positive passages among the negatives of cmrc2018, and measure how many `relabel` and `mine` find.

relabel: each dev question loses its judgment. Its positive passage is hidden among five negatives, which are drawn from
the passages that the re-rankers scored. (In the paper's error analysis, 14.8 % of the wrong predictions are
unjudged positives: Table 10.)

mine: some dev questions get a second positive without a judgment. This hidden passage consists of the sentences around
the answer. `mine` samples from the top 20 of a dual-encoder in a small collection. The limits of `mine` apply to the
dual-encoder's cosines.

A found passage that answers the question but was not hidden counts as wrong, so precision is a lower bound.

Example:

  python benchmarks/hidden.py --release build/cmrc --scores CE.dev.run.gz CE2.dev.run.gz --dual DE \\
    --raw dev.json.gz --work build/hidden
"""

import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from common import command, parser_of, write_json

from builders.core.tables import text_table
from builders.store.draft import draft_release
from builders.store.judgments import read_judged
from builders.store.layout import CORPUS, QRELS, QUERIES, text_id
from builders.store.reader import Release, open_release
from builders.store.runs import read_run

NEGATIVES = 5
LEAST = 100  # least number of characters of a second positive
OTHERS = 3  # unjudged passages per question in the small collection, from the first run
TOP = 20  # hits per question of the dual-encoder
Pairs = set[tuple[str, str]]  # query, passage


def call(program: str, *words: object) -> None:
    """Run a verb of the project in this process. Exit if the verb fails."""
    if code := command(program, *words, "--quiet"):
        raise SystemExit(code)


def write(base: Release, queries: set[str], judged: Pairs, out: Path, passages: dict[str, str] | None = None) -> None:
    """Write a release whose training queries are ``queries`` of dev.

    The corpus consists of ``passages`` (texts by id), or of all passages of ``base`` if None.
    """
    asked = [row for row in base.table("queries", "dev").to_pylist() if row["_id"] in queries]
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


def figures(way: str, found: Pairs, hidden: Pairs, negatives: int) -> dict[str, Any]:
    """Compare the pairs found with the hidden pairs. Precision or recall is None if its denominator is 0."""
    right = len(found & hidden)
    precision, recall = (right / len(each) if each else None for each in (found, hidden))
    counts = {"negatives": negatives, "hidden": len(hidden), "found": len(found), "right": right}
    return {"way": way, **counts, "precision": precision, "recall": recall}


def read_negatives(path: Path) -> Pairs:
    rows = (json.loads(line) for line in path.read_text(encoding="utf-8").splitlines())
    return {(row["query-id"], each) for row in rows for each in row["negative-ids"]}


def relabelling(base: Release, runs: list[Path], work: Path) -> list[dict[str, Any]]:
    """Run `relabel` on dev questions without judgments, with each re-ranker and with all re-rankers."""
    judged = read_judged(base, "qrels", "dev")
    scored = [read_run(path).rankings for path in runs]
    hidden: Pairs = set()
    lines = []
    for query, positives in judged.items():
        common = set.intersection(*(set(each.get(query, ())) for each in scored))
        positive = drawn(query, common & set(positives))[:1]
        others = drawn(query, common - set(positives))[:NEGATIVES]
        if positive and len(others) == NEGATIVES:
            hidden.add((query, positive[0]))
            lines.append(json.dumps({"query-id": query, "negative-ids": drawn(query, [*others, *positive])}))
    if not hidden:
        raise SystemExit(f"--scores: no dev question has a positive and {NEGATIVES} negatives that every run scores")
    negatives, out = work / "negatives.jsonl", work / "relabelled"
    negatives.write_text("\n".join([*lines, ""]), encoding="utf-8")
    write(base, {query for query, _ in hidden}, set(), work / "release")
    rows = []
    groups = [(f"re-ranker {number}", [path]) for number, path in enumerate(runs, 1)]
    for name, group in [*groups, ("mean of all", runs), ("all agree", runs)]:
        for threshold in (0.5, 0.7, 0.8, 0.9):
            words = ("--negatives", negatives, "--threshold", threshold, "--scores", *group)
            words += ("--agree", "all" if name == "all agree" else "mean", "--out", out)
            call("builders", "annotate", "relabel", "move", "--release", work / "release", *words)
            moved = map(json.loads, (out / "relabelled.train.jsonl").read_text(encoding="utf-8").splitlines())
            found = {(row["query-id"], row["corpus-id"]) for row in moved}
            way = f"relabel --threshold {threshold}, {name}"
            rows.append(figures(way, found, hidden, len(hidden) * (NEGATIVES + 1)))
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
    """Yield questions and answering passages from files in SQuAD's format."""
    for path in paths:
        for article in json.loads(gzip.decompress(path.read_bytes()))["data"]:
            for paragraph in article["paragraphs"]:
                for question in paragraph["qas"]:
                    text = question["answers"][0]["text"]
                    if len(text) > 1 and text in paragraph["context"]:
                        yield question["question"], around(paragraph["context"], text)


def mining(
    base: Release, work: Path, *, scores: Path, raw: Sequence[Path], dual: str, question_count: int, max_length: int
) -> list[dict[str, Any]]:
    """Run `mine` on dev questions with a second positive that has no judgment."""
    judged, given = read_judged(base, "qrels", "dev"), read_run(scores).rankings
    answers = dict(answered(raw))
    texts = {row["_id"]: row["text"] for row in base.table("queries", "dev").to_pylist()}
    corpus = {row["_id"]: row["text"] for row in base.table("corpus", "corpus").to_pylist()}
    hidden: Pairs = set()
    known: Pairs = set()
    passages: dict[str, str] = {}
    for query in drawn("", judged):
        text = answers.get(texts[query], "")
        if len(hidden) == question_count or len(text) < LEAST or text_id(text) in corpus:
            continue
        hidden.add((query, text_id(text)))
        known |= {(query, each) for each in judged[query]}
        others = drawn(query, set(given.get(query, ())) - set(judged[query]))[:OTHERS]
        passages |= {text_id(text): text} | {each: corpus[each] for each in (*judged[query], *others)}
    if not hidden:
        raise SystemExit(f"--raw: no dev question has a new passage of {LEAST} characters around its answer")
    release, vectors, run, all_file = (work / name for name in ("release2", "vectors", "dense.run", "all.jsonl"))
    write(base, {query for query, _ in hidden}, known, release, passages)
    model = ("--release", release, "--model", dual)
    call("baselines", "encode", *model, "--max-length", max_length, "--out", vectors)
    call("baselines", "search", *model, "--split", "train", "--passages", vectors, "--top-k", TOP, "--out", run)
    options = ("--release", release, "--run", run, "--negatives", TOP, "--out")
    call("baselines", "mine", *options, all_file)
    every = read_negatives(all_file)
    rows = []
    for limit in ("--relative-margin", "--margin"):
        for value in (0, 0.02, 0.05, 0.1, 0.15, 0.2, 0.3):
            call("baselines", "mine", *options, work / "kept.jsonl", limit, value)
            found = every - read_negatives(work / "kept.jsonl")
            rows.append(figures(f"mine {limit} {value}", found, hidden & every, len(every)))
    return rows


def main() -> None:
    parser = parser_of(__doc__, "--json")
    parser.add_argument("--release", type=Path, required=True, help="the release directory")
    parser.add_argument("--scores", type=Path, nargs="+", required=True, help="re-ranked runs of dev, with logits")
    parser.add_argument("--dual", required=True, help="the dual-encoder for `mine`")
    parser.add_argument(
        "--raw", type=Path, nargs="+", required=True, help="gzipped files with the answers, in SQuAD's format"
    )
    parser.add_argument("--questions", type=int, default=60, help="questions with a second passage (default: 60)")
    parser.add_argument("--max-length", type=int, default=96, help="most tokens of a text (default: 96)")
    parser.add_argument("--work", type=Path, required=True, help="folder for intermediate files")
    args = parser.parse_args()
    work = args.work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    base = open_release(args.release)
    rows = relabelling(base, args.scores, work)
    rows += mining(
        base,
        work,
        scores=args.scores[0],
        raw=args.raw,
        dual=args.dual,
        question_count=args.questions,
        max_length=args.max_length,
    )
    write_json(args.json, {"rows": rows})
    lines = []
    for *counts, precision, recall in (row.values() for row in rows):
        shares = ("-" if share is None else f"{share:.1%}" for share in (precision, recall))
        lines.append([*map(str, counts), *shares])
    print(text_table(list(rows[0]), lines))


if __name__ == "__main__":
    main()
