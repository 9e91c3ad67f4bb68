"""The formats of :mod:`builders.export.export_release`: names and lines of the files.

A format is a function that writes a set of a release into an output. :data:`FORMATS` lists the formats. :func:`export`
writes the directory.

In training data, the negatives of a query are dealt to its positives in turn. If the negatives run out, dealing starts
again with the first negative. `baselines mine` draws 4 negatives for each positive, so by default each negative is used
once. ``baselines/train/pairs.py`` deals negatives in this way, too.
"""

import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.core.errors import InputError, UsageError, log
from builders.core.files import sha256_of, write_text
from builders.core.folders import new_directory
from builders.export.exported_runs import FORMS, write_runs
from builders.export.output import Output
from builders.export.sets import ROWS, DrawnSet, ReleaseSet, joined_with
from builders.store.layout import JOINED, MANIFEST, SETS
from builders.store.reader import Release, refuse_outer_links
from builders.store.runs import Run

PASSAGES_PER_FILE = 500_000  # several files, because Pyserini's indexer reads one file in each thread
MARKER = "EXPORT"  # without .json, because some tools read every JSON file of a folder


def beir(data: ReleaseSet, output: Output) -> None:
    """Write BEIR's files: the corpus, a file with the queries of all splits, and judgments with a header."""
    output.json("corpus.jsonl", (batch.to_pylist() for batch in data.corpus()))

    def queries() -> Iterator[list[dict[str, Any]]]:
        seen: set[str] = set()
        for batch in itertools.chain.from_iterable(map(data.queries, data.query_splits())):
            # BEIR has one file of queries, so a question of two splits is written once.
            rows = {row["_id"]: row for row in batch.to_pylist() if row["_id"] not in seen}
            seen.update(rows)
            yield list(rows.values())

    output.json("queries.jsonl", queries())
    for split in data.qrels_splits():
        output.qrels(f"qrels/{split}.tsv", data.qrels(split), ["query-id", "corpus-id", "score"], "\t", header=True)


def trec(data: ReleaseSet, output: Output) -> None:
    """Write TREC files for Pyserini: a collection of JSON files, topics, judgments."""
    documents = (
        {"id": docid, "contents": text}
        for ids, texts in data.contents()
        for docid, text in zip(ids.to_pylist(), texts.to_pylist(), strict=True)
    )
    files = -(-data.release.rows(data.configs.corpus, "corpus") // PASSAGES_PER_FILE)
    for number in range(files):
        own = itertools.islice(documents, PASSAGES_PER_FILE)
        name = f"corpus/docs-{number:0{max(2, len(str(files - 1)))}d}.jsonl"
        output.json(name, iter(lambda own=own: list(itertools.islice(own, ROWS)), []))  # type: ignore[misc]
    _topics(data, output, "topics.{}.tsv", "qrels.{}.txt", " ")


def _topics(data: ReleaseSet, output: Output, queries: str, qrels: str, gap: str) -> None:
    for split in data.query_splits():
        output.texts(queries.format(split), ((batch["_id"], batch["text"]) for batch in data.queries(split)))
    for split in data.qrels_splits():
        output.qrels(qrels.format(split), data.qrels(split), ["query-id", "0", "corpus-id", "score"], gap)


def msmarco(data: ReleaseSet, output: Output) -> None:
    """Write MS MARCO's files: collection, queries and judgments as TSV."""
    output.texts("collection.tsv", data.contents())
    _topics(data, output, "queries.{}.tsv", "qrels.{}.tsv", "\t")


def tevatron(data: ReleaseSet, output: Output) -> None:
    """Write Tevatron's files: the corpus, and a line with all passages for each query."""
    output.json(
        "corpus.jsonl", (batch.rename_columns(["docid", "title", "text"]).to_pylist() for batch in data.corpus())
    )
    with joined_with(data, output.negatives) as joined:
        for split in data.query_splits():
            output.json(f"{split}.jsonl", (batch.select(JOINED.names).to_pylist() for batch in joined(split)))


_BASELINE = "dureader-retrieval-baseline-dataset"
_QUESTION = ["query_id", "query"]
_ORIGINAL = {
    "corpus": ("passage_collection", ["_id", "text"]),
    "train": ("train", [*_QUESTION, "positive_passages"]),
    "dev": ("dev", [*_QUESTION, "positive_passages"]),
    "test": ("test1", _QUESTION),
}
_NAMES = {"_id": "paragraph_id", "docid": "paragraph_id", "text": "paragraph_text"}
_NAMES |= {"query_id": "question_id", "query": "question", "positive_passages": "answer_paragraphs"}
_ENDS = r"[\t\r\n]"  # separators of fields and lines in the official code


def official(data: ReleaseSet, output: Output) -> None:
    """Write the original release's files, and the baseline's training files if train has negatives."""
    release = data.release
    if data.name != "main":
        raise InputError(f"the official format has only the main set; remove --set {data.name}", path=release.path)
    for config, split in release.splits():
        if config in _ORIGINAL:
            name, columns = _ORIGINAL[config]
            batches = release.batches(config, split, columns, ROWS)
            if "positive_passages" in columns and not _has(release, split, "positive_passages"):
                pairs = {row["query"]: row["query_id"] for batch in batches for row in batch.to_pylist()}
                content = json.dumps(pairs, ensure_ascii=False).encode()
                output.blocks(f"{_BASELINE}/{split}/q2qid.{split}.json", [(len(pairs), content)])
            else:
                output.blocks(f"dureader_retrieval-data/{name}.json", map(_official_json, batches))
    if ("train", "train") in release.splits() and _has(release, "train", "negative_passages"):
        for name, rows_of in (("dual", _dual), ("cross", _cross)):
            batches = release.batches("train", "train", ["query", "positive_passages", "negative_passages"], ROWS)
            parts = ([line for row in batch.to_pylist() for line in rows_of(row)] for batch in batches)
            fields = ([pa.array(column) for column in zip(*rows, strict=True)] for rows in parts if rows)
            output.tsv(f"{_BASELINE}/train/{name}.train.tsv", fields, _ENDS)


def _has(release: Release, split: str, column: str) -> bool:
    return any(len(batch[column].flatten()) for batch in release.batches(split, split, [column], ROWS))


def _official_json(batch: pa.RecordBatch) -> tuple[int, bytes]:
    """Return the number of rows, and the rows as JSON lines with the official names and Python's separators."""

    def renamed(value: Any) -> Any:
        if isinstance(value, dict):
            return {_NAMES[name]: renamed(inner) for name, inner in value.items() if name != "title"}
        return [renamed(inner) for inner in value] if isinstance(value, list) else value

    lines = [json.dumps(renamed(row), ensure_ascii=False) + "\n" for row in batch.to_pylist()]
    return len(lines), "".join(lines).encode()


def _dual(row: dict[str, Any]) -> Iterator[list[str]]:
    for positive, negative in zip(itertools.cycle(row["positive_passages"]), row["negative_passages"], strict=False):
        yield [row["query"], "", positive["text"], "", negative["text"], "0"]


def _cross(row: dict[str, Any]) -> Iterator[list[str]]:
    for label, name in (("1", "positive_passages"), ("0", "negative_passages")):
        yield from ([row["query"], "", passage["text"], label] for passage in row[name])


# ``Dealt`` has (positive, negatives dealt to this positive) for each positive of a query. All values are texts.
# A ``Rows`` function yields the lines of a query. Its arguments are query, positives, negatives and ``Dealt``.
Dealt = list[tuple[str, list[str]]]
Rows = Callable[[str, list[str], list[str], Dealt], Iterator[dict[str, Any]]]


def _flagembedding(query: str, positives: list[str], negatives: list[str], _: Dealt) -> Iterator[dict[str, Any]]:
    yield {"query": query, "pos": positives, "neg": negatives}


def _triplets(query: str, _: list[str], __: list[str], dealt: Dealt) -> Iterator[dict[str, Any]]:
    for positive, negatives in dealt:
        yield from ({"query": query, "positive": positive, "negative": text} for text in dict.fromkeys(negatives))


def _tuples(query: str, _: list[str], __: list[str], dealt: Dealt) -> Iterator[dict[str, Any]]:
    for positive, negatives in dealt:
        row = {"query": query, "positive": positive}
        yield row | {f"negative_{number}": text for number, text in enumerate(negatives, 1)}


def _pairs(query: str, _: list[str], __: list[str], dealt: Dealt) -> Iterator[dict[str, Any]]:
    for positive, negatives in dealt:
        for text, label in ((positive, 1.0), *((negative, 0.0) for negative in dict.fromkeys(negatives))):
            yield {"query": query, "passage": text, "label": label}


def _training(data: ReleaseSet, output: Output, files: dict[str, Rows]) -> None:
    skipped = output.notes.setdefault("queries_without_a_positive_or_a_negative", {})
    with joined_with(data, output.negatives) as joined:
        for split, (pattern, rows_of) in itertools.product(data.qrels_splits(), files.items()):
            name, lacking = pattern.format(split), list[str]()
            groups = (_groups(batch, output.negatives_per_positive, lacking) for batch in joined(split))
            output.json(name, ([row for group in part for row in rows_of(*group)] for part in groups))
            if not output.rows[name]:
                del output.rows[name]
                (output.folder / name).unlink()
            elif lacking:
                skipped[name] = len(lacking)
                log.warning("%s: skipped %d queries without a positive or negative passage", name, len(lacking))
    if not output.rows:
        raise InputError(
            "no query has both a positive and a negative passage; add hard negatives of `python -m baselines mine` with"
            " --negatives F",
            path=data.release.path,
        )


def _groups(batch: pa.RecordBatch, each: int, lacking: list[str]) -> Iterator[tuple[str, list[str], list[str], Dealt]]:
    """Yield the arguments of ``Rows``. Ids of queries without a positive or a negative are appended to ``lacking``."""
    for row in batch.to_pylist():
        positives, negatives = (
            # A title, if any, is written before the text.
            [f"{one['title']} {one['text']}" if one["title"] else one["text"] for one in row[f"{kind}_passages"]]
            for kind in ("positive", "negative")
        )
        if positives and negatives:
            turn = itertools.cycle(negatives)  # repeats negatives if necessary, because all rows need the same columns
            dealt = [(positive, list(itertools.islice(turn, each))) for positive in positives]
            yield row["query"], positives, negatives, dealt
        else:
            lacking.append(row["query_id"])


FORMATS: dict[str, Callable[[ReleaseSet, Output], None]] = {
    "beir": beir,
    "trec": trec,
    "msmarco": msmarco,
    "tevatron": tevatron,
    "flagembedding": partial(_training, files={"{}.jsonl": _flagembedding}),
    "triplets": partial(_training, files={"{}.jsonl": _triplets}),
    "pylate": partial(_training, files={"{}.jsonl": _tuples}),
    # Tuples for the losses of a SentenceTransformer, and labelled pairs for the losses of a CrossEncoder.
    "sentence-transformers": partial(_training, files={"{}.jsonl": _tuples, "{}.pairs.jsonl": _pairs}),
    "official": official,
    "rag": lambda data, output: None,  # only runs
}
WITH_NEGATIVES = ("tevatron", "flagembedding", "triplets", "pylate", "sentence-transformers")


def export(
    release: Release,
    form: str,
    out: Path,
    name: str = "main",
    *,
    negatives: Sequence[Path] = (),
    negatives_per_positive: int = 4,
    runs: Sequence[Run | Path] = (),
    runs_only: bool = False,
    top_k: int = 10,
) -> dict[str, int]:
    """Write the set ``name`` of a release in the format ``form``. Return the number of rows of each file.

    The arguments are the options of `export`.

    Raises:
        InputError: the release lacks the set, an id or text does not fit the format, the format has no negatives or
            runs, or ``out`` exists and is not an earlier export.
    """
    for files, option, forms in ((negatives, "--negatives", WITH_NEGATIVES), (runs, "--run", FORMS)):
        if files and form not in forms:
            raise UsageError(f"{option} needs --format {', '.join(forms)}, not {form}")
    if not runs and (runs_only or form == "rag"):
        raise UsageError(f"{'--runs-only' if runs_only else '--format rag'} needs --run")
    refuse_outer_links(release)
    if (source := Path(os.path.realpath(release.path))) in Path(os.path.realpath(out)).parents:
        raise InputError(f"is inside the release {source}; choose a directory outside", path=out)
    with new_directory(out, "an export", MARKER) as folder:
        output = Output(folder, release.path, negatives, negatives_per_positive)
        data = (ReleaseSet if name in SETS else DrawnSet)(release, name, top_k)
        if not runs_only:
            FORMATS[form](data, output)
            if form == "trec" and name == "main":  # the runs of the release
                own = [entry.path for entry in release.manifest.files if entry.path.startswith("runs/")]
                runs = [*map(release.named, own), *runs]
        write_runs(output, runs, form, data)
        marker = {
            **{"format": form, "set": name, "release": sha256_of(release.path / MANIFEST)},
            **output.notes,
            "files": output.rows,
        }
        write_text(folder / MARKER, json.dumps(marker, ensure_ascii=False, indent=1) + "\n")
    return output.rows
