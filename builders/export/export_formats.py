"""The formats of :mod:`builders.export.export_release`: names and lines of the files.

A format is a function that writes a set of a release into an output. :data:`FORMATS` lists the formats.
:func:`export_set` writes the directory.

In training data, the negatives of a query are dealt to its positives in turn. If the negatives run out, dealing starts
again with the first negative. `baselines mine` draws 4 negatives for each positive, so by default each negative is used
once. Training in ``baselines/train`` deals negatives in this way, too.
"""

import itertools
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from builders.core.errors import InputError, UsageError, log
from builders.core.folders import new_directory
from builders.core.progress import show_progress
from builders.core.read_files import sha256_of
from builders.core.write_files import write_text
from builders.export.exported_runs import FORMS, write_runs
from builders.export.output import Output
from builders.export.sets import ROWS, DrawnSet, ReleaseSet, joined_with
from builders.store.layout import JOINED, MANIFEST, SETS
from builders.store.reader import Release, refuse_outer_links
from builders.store.runs import Run

# Several files, because Pyserini's indexer reads one file in each thread.
PASSAGES_PER_FILE = 500_000
MARKER = "EXPORT"  # without .json, because some tools read every JSON file of a folder


def write_beir(release_set: ReleaseSet, output: Output) -> None:
    """Write BEIR's files: the corpus, a file with the queries of all splits, and judgments with a header."""
    output.json(
        "corpus.jsonl", (batch.to_pylist() for batch in release_set.corpus()), total=release_set.passage_count()
    )
    output.json("queries.jsonl", _distinct_queries(release_set), total=_total_queries(release_set))
    for split in release_set.qrels_splits():
        output.qrels(
            f"qrels/{split}.tsv",
            release_set.qrels(split),
            ["query-id", "corpus-id", "score"],
            "\t",
            header=True,
            total=release_set.qrels_count(split),
        )


def _distinct_queries(release_set: ReleaseSet) -> Iterator[list[dict[str, Any]]]:
    """Yield the queries of all splits. BEIR has one file of queries, so a question of two splits is written once."""
    written_ids: set[str] = set()
    for split in release_set.query_splits():
        for batch in release_set.queries(split):
            rows = {row["_id"]: row for row in batch.to_pylist() if row["_id"] not in written_ids}
            written_ids.update(rows)
            yield list(rows.values())


def _total_queries(release_set: ReleaseSet) -> int | None:
    """Return the number of queries of all splits, or None if a split's number is unknown."""
    total = 0
    for split in release_set.query_splits():
        query_count = release_set.query_count(split)
        if query_count is None:
            return None
        total += query_count
    return total


def write_trec(release_set: ReleaseSet, output: Output) -> None:
    """Write TREC files for Pyserini: a collection of JSON files, topics, judgments."""
    documents = _pyserini_documents(release_set)
    passage_count = release_set.release.rows(release_set.configs.corpus, "corpus")
    file_count = math.ceil(passage_count / PASSAGES_PER_FILE)
    digits = max(2, len(str(file_count - 1)))  # of the files' numbers
    for number in range(file_count):
        rest = passage_count - number * PASSAGES_PER_FILE
        # All files are read from the same iterator.
        file_documents = itertools.islice(documents, PASSAGES_PER_FILE)
        name = f"corpus/docs-{number:0{digits}d}.jsonl"
        output.json(name, _batches_of(file_documents, ROWS), total=min(rest, PASSAGES_PER_FILE))
    _write_topics(release_set, output, "topics.{}.tsv", "qrels.{}.txt", " ")


def _pyserini_documents(release_set: ReleaseSet) -> Iterator[dict[str, str]]:
    """Yield the passages as rows of Pyserini's JsonCollection."""
    for ids, texts in release_set.contents():
        for passage_id, text in zip(ids.to_pylist(), texts.to_pylist(), strict=True):
            yield {"id": passage_id, "contents": text}


def _batches_of(rows: Iterator[dict[str, str]], size: int) -> Iterator[list[dict[str, str]]]:
    """Yield the rows in lists of ``size`` rows. The last list may be shorter."""
    while True:
        # An empty batch marks the end.
        batch = list(itertools.islice(rows, size))
        if not batch:
            return
        yield batch


def _write_topics(release_set: ReleaseSet, output: Output, queries_name: str, qrels_name: str, gap: str) -> None:
    """Write queries and judgments as TREC or MS MARCO has them.

    In the names of the files, {} stands for the split. ``gap`` separates the columns of the judgments.
    """
    for split in release_set.query_splits():
        id_and_text = ((batch["_id"], batch["text"]) for batch in release_set.queries(split))
        output.texts(queries_name.format(split), id_and_text, total=release_set.query_count(split))
    for split in release_set.qrels_splits():
        columns = ["query-id", "0", "corpus-id", "score"]
        output.qrels(
            qrels_name.format(split), release_set.qrels(split), columns, gap, total=release_set.qrels_count(split)
        )


def write_msmarco(release_set: ReleaseSet, output: Output) -> None:
    """Write MS MARCO's files: collection, queries and judgments as TSV."""
    output.texts("collection.tsv", release_set.contents(), total=release_set.passage_count())
    _write_topics(release_set, output, "queries.{}.tsv", "qrels.{}.tsv", "\t")


def write_tevatron(release_set: ReleaseSet, output: Output) -> None:
    """Write Tevatron's files: the corpus, and a line with all passages for each query."""
    corpus = (batch.rename_columns(["docid", "title", "text"]) for batch in release_set.corpus())
    output.json("corpus.jsonl", (batch.to_pylist() for batch in corpus), total=release_set.passage_count())
    with joined_with(release_set, output.negatives) as read_joined:
        for split in release_set.query_splits():
            rows = (batch.select(JOINED.names).to_pylist() for batch in read_joined(split))
            output.json(f"{split}.jsonl", rows, total=release_set.joined_count(split))


_BASELINE_FOLDER = "dureader-retrieval-baseline-dataset"
# Config of the release -> (official file, columns).
_OFFICIAL_FILES = {
    "corpus": ("passage_collection", ["_id", "text"]),
    "train": ("train", ["query_id", "query", "positive_passages"]),
    "dev": ("dev", ["query_id", "query", "positive_passages"]),
    "test": ("test1", ["query_id", "query"]),
}
_OFFICIAL_NAMES = {
    "_id": "paragraph_id",
    "docid": "paragraph_id",
    "text": "paragraph_text",
    "query_id": "question_id",
    "query": "question",
    "positive_passages": "answer_paragraphs",
}
_TSV_SEPARATORS = r"[\t\r\n]"  # separators of fields and lines in the official code


def write_official(release_set: ReleaseSet, output: Output) -> None:
    """Write the original release's files, and the baseline's training files if train has negatives.

    Raises :class:`InputError` for another set than main.
    """
    release = release_set.release
    if release_set.name != "main":
        raise InputError(
            f"the official format has only the main set; remove --set {release_set.name}", path=release.path
        )
    # The files of the original release.
    for config, split in release.splits():
        if config in _OFFICIAL_FILES:
            name, columns = _OFFICIAL_FILES[config]
            batches = release.batches(config, split, columns, ROWS)
            if "positive_passages" in columns and not _has_passages(release, split, "positive_passages"):
                # A split without judgments is a JSON object {question: id}, as in the pre-processed release.
                ids_by_question: dict[str, str] = {}
                for batch in batches:
                    ids_by_question |= zip(batch["query"].to_pylist(), batch["query_id"].to_pylist(), strict=True)
                content = json.dumps(ids_by_question, ensure_ascii=False).encode()
                row_count = len(ids_by_question)
                output.blocks(f"{_BASELINE_FOLDER}/{split}/q2qid.{split}.json", [(row_count, content)], row_count)
            else:
                blocks = map(_official_json, batches)
                output.blocks(f"dureader_retrieval-data/{name}.json", blocks, release_set.count_rows(config, split))
    # The baseline's training files.
    if ("train", "train") in release.splits() and _has_passages(release, "train", "negative_passages"):
        for name, lines_of in (("dual", _dual_lines), ("cross", _cross_lines)):
            file_name = f"{_BASELINE_FOLDER}/train/{name}.train.tsv"
            # The number of lines is unknown, so the bar counts questions.
            with show_progress(total=release_set.count_rows("train", "train"), unit="query", label=file_name) as bar:
                output.tsv(file_name, _training_columns(release, lines_of, bar), _TSV_SEPARATORS, bar=bar)


def _has_passages(release: Release, split: str, column: str) -> bool:
    """True if a list of passages in this column is not empty. The config of joined rows has the name of its split."""
    return any(len(batch[column].flatten()) for batch in release.batches(split, split, [column], ROWS))


def _official_json(batch: pa.RecordBatch) -> tuple[int, bytes]:
    """Return the number of rows, and the rows as JSON lines with the official names and Python's separators."""
    lines = [json.dumps(_rename_keys(row), ensure_ascii=False) + "\n" for row in batch.to_pylist()]
    return len(lines), "".join(lines).encode()


def _rename_keys(value: Any) -> Any:
    """Return a value with the official names. Titles are dropped."""
    if isinstance(value, dict):
        return {_OFFICIAL_NAMES[name]: _rename_keys(inner) for name, inner in value.items() if name != "title"}
    if isinstance(value, list):
        return [_rename_keys(inner) for inner in value]
    return value


def _training_columns(
    release: Release, lines_of: Callable[[dict[str, Any]], Iterator[list[str]]], bar: Any
) -> Iterator[list[pa.Array]]:
    """Yield the columns of the baseline's training lines, and move the bar by the questions of each batch.

    ``lines_of`` returns the lines of a joined row. A line is a list of fields.
    """
    for batch in release.batches("train", "train", ["query", "positive_passages", "negative_passages"], ROWS):
        lines: list[list[str]] = []
        for row in batch.to_pylist():
            lines += lines_of(row)
        if lines:
            yield [pa.array(column) for column in zip(*lines, strict=True)]
        bar.update(batch.num_rows)


def _dual_lines(row: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a line for each negative: query, empty title, positive, empty title, negative, label.

    Positives are repeated in turn. If a query has more positives than negatives, the last positives have no line.
    """
    for positive, negative in zip(itertools.cycle(row["positive_passages"]), row["negative_passages"], strict=False):
        yield [row["query"], "", positive["text"], "", negative["text"], "0"]


def _cross_lines(row: dict[str, Any]) -> Iterator[list[str]]:
    """Yield a line for each positive, then a line for each negative: query, empty title, passage, label."""
    for passage in row["positive_passages"]:
        yield [row["query"], "", passage["text"], "1"]
    for passage in row["negative_passages"]:
        yield [row["query"], "", passage["text"], "0"]


@dataclass(frozen=True)
class QueryTexts:
    """The texts of a query and its passages, from which the lines of training data are made.

    Attributes:
        query: the query.
        positives: the positive passages.
        negatives: the negative passages.
        dealt: each positive, and the negatives dealt to it.
    """

    query: str
    positives: list[str]
    negatives: list[str]
    dealt: list[tuple[str, list[str]]]


RowsFunction = Callable[[QueryTexts], Iterator[dict[str, Any]]]  # yields the lines of a query


def _flagembedding_rows(texts: QueryTexts) -> Iterator[dict[str, Any]]:
    yield {"query": texts.query, "pos": texts.positives, "neg": texts.negatives}


def _triplet_rows(texts: QueryTexts) -> Iterator[dict[str, Any]]:
    for positive, negatives in texts.dealt:
        for negative in dict.fromkeys(negatives):  # each once
            yield {"query": texts.query, "positive": positive, "negative": negative}


def _tuple_rows(texts: QueryTexts) -> Iterator[dict[str, Any]]:
    for positive, negatives in texts.dealt:
        row = {"query": texts.query, "positive": positive}
        for number, negative in enumerate(negatives, 1):
            row[f"negative_{number}"] = negative
        yield row


def _pair_rows(texts: QueryTexts) -> Iterator[dict[str, Any]]:
    for positive, negatives in texts.dealt:
        yield {"query": texts.query, "passage": positive, "label": 1.0}
        for negative in dict.fromkeys(negatives):  # each once
            yield {"query": texts.query, "passage": negative, "label": 0.0}


def _write_training(release_set: ReleaseSet, output: Output, files: dict[str, RowsFunction]) -> None:
    """Write training data. A file without a line is not kept.

    ``files`` maps the name of a file, in which {} stands for the split, to the function that makes the file's lines.

    Raises:
        InputError: no query has a positive and a negative passage.
    """
    skipped_counts = output.notes.setdefault("queries_without_a_positive_or_a_negative", {})
    with joined_with(release_set, output.negatives) as read_joined:
        for split, (pattern, rows_of) in itertools.product(release_set.qrels_splits(), files.items()):
            name = pattern.format(split)
            skipped_ids: list[str] = []
            # The number of lines is unknown, so the bar counts queries.
            with show_progress(total=release_set.joined_count(split), unit="query", label=name) as bar:
                batches = _training_batches(
                    read_joined(split), rows_of, output.negatives_per_positive, skipped_ids, bar
                )
                output.json(name, batches, bar=bar)
            # No empty file is left for a split whose queries were all skipped.
            if not output.rows[name]:
                del output.rows[name]
                (output.folder / name).unlink()
            elif skipped_ids:
                skipped_counts[name] = len(skipped_ids)
                log.warning("%s: skipped %d queries without a positive or negative passage", name, len(skipped_ids))
    if not output.rows:
        raise InputError(
            "no query has both a positive and a negative passage; add hard negatives of `python -m baselines mine` with"
            " --negatives F",
            path=release_set.release.path,
        )


def _training_batches(
    batches: Iterable[pa.RecordBatch],
    rows_of: RowsFunction,
    negatives_per_positive: int,
    skipped_ids: list[str],
    bar: Any,
) -> Iterator[list[dict[str, Any]]]:
    """Yield the lines of each batch of joined rows, and move the bar by the queries of the batch.

    Ids of queries without a positive or without a negative are appended to ``skipped_ids``.
    """
    for batch in batches:
        lines: list[dict[str, Any]] = []
        for row in batch.to_pylist():
            positives = [_titled_text(passage) for passage in row["positive_passages"]]
            negatives = [_titled_text(passage) for passage in row["negative_passages"]]
            if positives and negatives:
                dealt = _deal_negatives(positives, negatives, negatives_per_positive)
                lines += rows_of(QueryTexts(row["query"], positives, negatives, dealt))
            else:
                skipped_ids.append(row["query_id"])
        yield lines
        bar.update(batch.num_rows)


def _titled_text(passage: dict[str, str]) -> str:
    """Return the text of a passage. A title, if any, is put before the text."""
    if passage["title"]:
        return f"{passage['title']} {passage['text']}"
    return passage["text"]


def _deal_negatives(positives: list[str], negatives: list[str], count: int) -> list[tuple[str, list[str]]]:
    """Return each positive with the next ``count`` negatives.

    For example, with count 2, the positives A and B and the negatives 1, 2 and 3: (A, [1, 2]), (B, [3, 1]). Negatives
    are repeated if necessary, because all lines need the same columns.
    """
    endless_negatives = itertools.cycle(negatives)
    return [(positive, list(itertools.islice(endless_negatives, count))) for positive in positives]


def _write_nothing(release_set: ReleaseSet, output: Output) -> None:
    """Write no file of a set. The format ``rag`` has only runs."""


FORMATS: dict[str, Callable[[ReleaseSet, Output], None]] = {
    "beir": write_beir,
    "trec": write_trec,
    "msmarco": write_msmarco,
    "tevatron": write_tevatron,
    "flagembedding": partial(_write_training, files={"{}.jsonl": _flagembedding_rows}),
    "triplets": partial(_write_training, files={"{}.jsonl": _triplet_rows}),
    "pylate": partial(_write_training, files={"{}.jsonl": _tuple_rows}),
    # Tuples for the losses of a SentenceTransformer, and labelled pairs for the losses of a CrossEncoder.
    "sentence-transformers": partial(_write_training, files={"{}.jsonl": _tuple_rows, "{}.pairs.jsonl": _pair_rows}),
    "official": write_official,
    "rag": _write_nothing,
}
WITH_NEGATIVES = ("tevatron", "flagembedding", "triplets", "pylate", "sentence-transformers")


def export_set(
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
    _check_options(form, negatives, runs, runs_only)
    # Refuse links that would copy files from outside the release, and an ``out`` inside the release.
    refuse_outer_links(release)
    source = Path(os.path.realpath(release.path))
    if source in Path(os.path.realpath(out)).parents:
        raise InputError(f"is inside the release {source}; choose a directory outside", path=out)
    # Write all files into a temporary folder, which becomes ``out`` when it is complete.
    set_class = ReleaseSet if name in SETS else DrawnSet
    with new_directory(out, "an export", MARKER) as folder:
        output = Output(folder, release.path, negatives, negatives_per_positive)
        release_set = set_class(release, name, top_k)
        if not runs_only:
            FORMATS[form](release_set, output)
            # The release may have runs of its own, whose queries are those of the set main.
            if form == "trec" and name == "main":
                release_runs = [entry.path for entry in release.manifest.files if entry.path.startswith("runs/")]
                runs = [*map(release.verified_path, release_runs), *runs]
        write_runs(output, runs, form, release_set)
        # The marker tells a later export that this folder can be replaced.
        marker: dict[str, Any] = {"format": form, "set": name, "release": sha256_of(release.path / MANIFEST)}
        marker.update(output.notes)
        marker["files"] = output.rows
        write_text(folder / MARKER, json.dumps(marker, ensure_ascii=False, indent=1) + "\n")
    return output.rows


def _check_options(form: str, negatives: Sequence[Path], runs: Sequence[Run | Path], runs_only: bool) -> None:
    """Raise :class:`UsageError` for options that do not fit the format."""
    if negatives and form not in WITH_NEGATIVES:
        raise UsageError(f"--negatives needs --format {', '.join(WITH_NEGATIVES)}, not {form}")
    if runs and form not in FORMS:
        raise UsageError(f"--run needs --format {', '.join(FORMS)}, not {form}")
    if not runs and runs_only:
        raise UsageError("--runs-only needs --run")
    if not runs and form == "rag":
        raise UsageError("--format rag needs --run")
