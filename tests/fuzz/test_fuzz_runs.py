"""Damaged runs, predictions, judgments, weights, negatives, recipes, settings, scores, and records of steps."""

import gzip
import json
import math
import shutil
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from fuzzing import Reader, as_json, equal, fuzz_of, loads, writing
from releases import QUESTIONS, TEXTS, make_release, md5
from spoil import BYTES, JSON, JSON_LINES, PARQUET, TEXT, Change

from baselines.bm25.user_dictionary import read_user_words
from baselines.core.checkpoint import RECIPE, left_out
from baselines.core.passages import open_passages
from baselines.hub.training_curve import draw_curve, read_training_curve
from baselines.measure.fusion_weights import _is_apart, read_weights
from baselines.measure.qrels import read_qrels
from baselines.measure.run_origin import read_record
from baselines.reproduce.run_steps import _read_runs
from baselines.reproduce.step_settings import read_settings
from baselines.retrieve.question_pairs import pair_file, read_question_pairs
from baselines.train.recipe import RECIPES, read_recipe
from baselines.train.training_pairs import read_negatives
from builders.annotate.pool import PooledCandidates, read_pool, write_pool
from builders.core.finished_outputs import VerbCall, VerbInput, _read_record, record_finished
from builders.core.images import draw_image
from builders.core.read_files import read_toml
from builders.publish.pages import read_scores
from builders.store.judgments import MachineLabels, read_machine_labels
from builders.store.logged_runs import read_search_log
from builders.store.own_queries import open_queries
from builders.store.reader import open_release
from builders.store.runs import Run, read_run, scored_depth, write_run
from builders.store.search_log import SearchLog, is_search_log

PASSAGE_IDS = [md5(text) for text in TEXTS]
QUERY_IDS = [md5(question) for question in QUESTIONS["dev"]]
BOM = b"\xef\xbb\xbf"


def are_words_of_file(words: list[list[Any]], _: object, folder: Path) -> bool:
    """True if each word is the first of a line, in a form that may be normalised, and each frequency is positive."""
    text = (folder / "words.txt").read_bytes().decode("utf-8-sig")
    lines = [line.split() for line in text.split("\n")]
    first_words = [unicodedata.normalize("NFKC", line[0]) for line in lines if line]
    frequencies = [frequency for _, frequency in words if frequency is not None]
    return [word for word, _ in words] == first_words and all(frequency > 0 for frequency in frequencies)


def json_rows(path: Path) -> list[Any]:
    """Read JSON lines by Python."""
    content = path.read_bytes().removeprefix(BOM)
    return [loads(line) for line in content.split(b"\n") if line.strip()]


def run_writer(name: str) -> Callable[[Path], object]:
    """Return a function that writes a TREC run of all passages for each question."""
    hits = [(passage_id, 1 / rank) for rank, passage_id in enumerate(PASSAGE_IDS, start=1)]
    return lambda folder: write_run(folder / name, [(query_id, hits) for query_id in QUERY_IDS])


def write_log(folder: Path) -> None:
    """Write a log of two searches, a failed search and a passage."""
    for number, question in enumerate(QUESTIONS["dev"]):
        hits = {"top_k": 2, "passage_ids": PASSAGE_IDS[:2], "scores": [2.5, 0.5 + number]}
        SearchLog(folder / "log.jsonl").append("search", {"system": "BM25", "query": question, **hits})
    SearchLog(folder / "log.jsonl").append("search", {"query": "", "error": "query: expected a text"})
    SearchLog(folder / "log.jsonl").append("passage", {"passage_id": PASSAGE_IDS[0]})


def read_log(folder: Path) -> Any:
    """Return the hits of the log's questions. A file whose first line is no call is read as a run."""
    questions = list(zip(QUERY_IDS, QUESTIONS["dev"], strict=True))
    log_path = folder / "log.jsonl"
    if not is_search_log(log_path):
        return read_run(log_path).hits
    return read_search_log(log_path, {"dev": questions}, "dev").hits


def are_searches_of_file(hits_by_query: dict[str, Any], _: Any, folder: Path) -> bool:
    """Accept hits that a line of the file has, sorted by score."""
    searches = [row for row in json_rows(folder / "log.jsonl") if isinstance(row, dict) and row.get("passage_ids")]
    sorted_pairs = []
    for row in searches:
        pairs = zip(row["passage_ids"], row["scores"], strict=False)
        sorted_pairs.append(sorted(pairs, key=lambda pair: -pair[1]))
    return all(hits in sorted_pairs for hits in hits_by_query.values())


def write_run_with_tabs(folder: Path) -> None:
    """Write a TREC run whose columns are separated by tabs."""
    run_writer("run")(folder)
    run_path = folder / "run"
    run_path.write_bytes(run_path.read_bytes().replace(b" ", b"\t"))


def are_hits_of_file(hits_by_query: dict[str, Any], _: Any, folder: Path) -> bool:
    """Accept the hits of the lines, sorted by score and rank."""
    run_path = next(folder.glob("run*"))
    content = run_path.read_bytes()
    if run_path.suffix == ".gz":
        content = gzip.decompress(content)
    if content.removeprefix(BOM).lstrip()[:1] == b"{":  # read as predictions
        return True
    sort_keys: dict[str, list[tuple[float, int, str]]] = {}
    for line in content.split(b"\n"):
        words = line.removeprefix(BOM).split()
        if words:
            query_id, _q0, passage_id, rank, score, _tag = words
            sort_key = (-float(score), int(rank), passage_id.decode())
            sort_keys.setdefault(query_id.decode(), []).append(sort_key)
    expected_hits = {}
    for query_id, keys in sort_keys.items():
        keys.sort(key=lambda key: key[:2])  # equal scores and ranks stay in the order of the lines
        expected_hits[query_id] = [(passage_id, -negative_score) for negative_score, _, passage_id in keys]
    for hits in hits_by_query.values():
        assert all(math.isfinite(score) for _, score in hits)
    return hits_by_query == expected_hits


def are_predictions_of_file(hits_by_query: dict[str, Any], _: Any, folder: Path) -> bool:
    """Accept the passages of each query that are in the JSON object."""
    content = (folder / "predictions.json").read_bytes().removeprefix(BOM)
    if not content.lstrip().startswith(b"{"):  # read as a TREC run
        return True
    predictions = {}
    for query_id, hits in hits_by_query.items():
        predictions[query_id] = [passage_id for passage_id, _ in hits]
    return predictions == loads(content)


def are_results_of_file(hits_by_query: dict[str, Any], _: Any, folder: Path) -> bool:
    """Accept the scores of each query that are in the JSON object, or in the only split of mteb's object."""
    content = (folder / "results.json").read_bytes().removeprefix(BOM)
    if not content.lstrip().startswith(b"{"):  # read as a TREC run
        return True
    results = loads(content)
    results.pop("mteb_model_meta", None)
    scores_by_query = {query_id: dict(hits) for query_id, hits in hits_by_query.items()}
    values = [results, *results.values()]
    for value in results.values():
        if isinstance(value, dict):
            values += value.values()
    is_list = any(isinstance(value, list) for value in results.values())
    return is_list or not scores_by_query or scores_by_query in values


def write_results(folder: Path) -> None:
    """Write BEIR's results of all passages for each question."""
    scores = {passage_id: 1 / rank for rank, passage_id in enumerate(PASSAGE_IDS, start=1)}
    (folder / "results.json").write_text(json.dumps(dict.fromkeys(QUERY_IDS, scores), indent=1))


def write_mteb_results(folder: Path) -> None:
    """Write the results of one split in mteb's format."""
    write_results(folder)
    path = folder / "results.json"
    meta = {"model_name": "a", "revision": "b"}
    path.write_text(json.dumps({"mteb_model_meta": meta, "default": {"dev": json.loads(path.read_text())}}))


def write_rag(folder: Path) -> None:
    """Write the questions with their passages as `export --format rag` does."""
    passages = [{"docid": passage_id, "score": 1 / rank} for rank, passage_id in enumerate(PASSAGE_IDS, start=1)]
    rows = [{"query_id": query_id, "question": "?", "passages": passages} for query_id in QUERY_IDS]
    (folder / "rag.jsonl").write_text(as_json_lines(rows))


def write_parquet_run(folder: Path) -> None:
    """Write a run as Parquet, with scores."""
    rows = []
    for query_id in QUERY_IDS:
        for rank, passage_id in enumerate(PASSAGE_IDS, start=1):
            rows.append({"query_id": query_id, "docid": passage_id, "score": 1 / rank, "rank": rank})
    pq.write_table(pa.Table.from_pylist(rows), folder / "run.parquet")


def write_ms_marco(folder: Path) -> None:
    """Write a run in the format of MS MARCO."""
    lines = []
    for query_id in QUERY_IDS:
        lines += [f"{query_id}\t{passage_id}\t{rank}\n" for rank, passage_id in enumerate(PASSAGE_IDS, start=1)]
    (folder / "run.tsv").write_text("".join(lines))


def are_finite(hits_by_query: dict[str, Any], _: Any, folder: Path) -> bool:
    """Accept hits with ids and falling finite scores."""
    for query_id, hits in hits_by_query.items():
        scores = [score for _, score in hits]
        if not query_id or not all(map(math.isfinite, scores)) or scores != sorted(scores, reverse=True):
            return False
    return True


def judgment_writer(line_format: str) -> Callable[[Path], object]:
    """Return a function that writes a judgment of each question in this format."""
    lines = []
    for query_id, passage_id in zip(QUERY_IDS, PASSAGE_IDS, strict=False):
        lines.append(line_format.format(query_id, passage_id))
    return writing("qrels", "".join(lines))


def are_judgments_of_file(grades_by_query: dict[str, dict[str, int]], _: Any, folder: Path) -> bool:
    """Accept positive judgments that a line of the file has."""
    judgments_of_file = set()
    for line in (folder / "qrels").read_bytes().split(b"\n"):
        words = line.split()
        if len(words) in (3, 4) and words[-1] != b"score":
            # A byte order mark at the begin of the file is no part of the id.
            judgments_of_file.add((words[0], words[-2], int(words[-1])))
            judgments_of_file.add((words[0].removeprefix(BOM), words[-2], int(words[-1])))
    for query_id, grades in grades_by_query.items():
        for passage_id, grade in grades.items():
            if grade <= 0 or (query_id.encode(), passage_id.encode(), grade) not in judgments_of_file:
                return False
    return True


def official_rows() -> list[Any]:
    """Return a row of the official format for each question."""
    rows = []
    for query_id, passage_id in zip(QUERY_IDS, PASSAGE_IDS, strict=False):
        answers = [{"paragraph_id": passage_id, "paragraph_text": "x"}]
        rows.append({"question_id": query_id, "question": "?", "answer_paragraphs": answers})
    return rows


def as_json_lines(rows: list[Any]) -> str:
    """Return rows as JSON lines."""
    return "".join(json.dumps(row) + "\n" for row in rows)


def write_negatives(folder: Path) -> None:
    """Write a release, and negatives of each question."""
    make_release(folder / "release")
    rows = [{"query-id": query_id, "negative-ids": PASSAGE_IDS[2:]} for query_id in QUERY_IDS]
    (folder / "negatives.jsonl").write_text(as_json_lines(rows))


_MACHINE_LABELS = [
    {"query-id": query_id, "query": "问", "labelled-by": "m", "positive-ids": PASSAGE_IDS[:1], "negative-ids": ["x"]}
    for query_id in QUERY_IDS
]


def are_labels_of_file(labels: list[MachineLabels], _: Any, folder: Path) -> bool:
    """True if the labels equal the lines of the file."""
    lines = (folder / "labels.jsonl").read_text(encoding="utf-8").split("\n")
    rows = [json.loads(line) for line in lines if line.strip()]
    expected = []
    for row in rows:
        expected.append((row["query-id"], row.get("query"), row["positive-ids"], row.get("negative-ids", [])))
    return expected == [(row.query_id, row.query, row.positive_ids, row.negative_ids) for row in labels]


def read_negatives_of_queries(folder: Path) -> Any:
    """Read the negatives of questions whose positive passage is row 0."""
    passages = open_passages(open_release(folder / "release"))
    positive_rows = {query_id: [0] for query_id in QUERY_IDS}
    return read_negatives(folder / "negatives.jsonl", passages, positive_rows)


def are_negatives_of_file(rows_by_query: dict[str, list[int]], _: Any, folder: Path) -> bool:
    """Accept the negatives of the file without the positive passage."""
    negative_ids: dict[str, list[str]] = {}
    for row in json_rows(folder / "negatives.jsonl"):
        negative_ids.setdefault(row["query-id"], []).extend(row["negative-ids"])  # a query may have several lines
    expected_rows = {}
    for query_id in QUERY_IDS:
        if query_id in negative_ids:
            passage_ids = [passage_id for passage_id in negative_ids[query_id] if passage_id != PASSAGE_IDS[0]]
            expected_rows[query_id] = [PASSAGE_IDS.index(passage_id) for passage_id in passage_ids]
    return rows_by_query == expected_rows


def write_pool_of_all(folder: Path) -> None:
    """Write a pool of all passages for each question. Every second pair is judged."""
    pairs = []
    for query_id in QUERY_IDS:
        for rank, passage_id in enumerate(PASSAGE_IDS, start=1):
            judged = None if rank % 2 else 1
            pairs.append(PooledCandidates(query_id, passage_id, rank, 1 / rank, {"bm25": rank}, judged))
    write_pool(folder / "pool.jsonl", pairs)


def are_pairs_of_file(pairs: list[PooledCandidates], _: Any, folder: Path) -> bool:
    """Accept the values of the lines, which all have every field."""
    rows = json_rows(folder / "pool.jsonl")
    return equal(msgspec.to_builtins(pairs), rows) and all(row.keys() >= _POOL_FIELDS for row in rows)


_POOL_FIELDS = {"query-id", "corpus-id", "rank", "score", "runs", "judged"}
QUESTION_PAIRS = [("怎么煮饺子", "饺子怎么煮", 1), ("高铁票, 几天", "多肉", 0), ("哪里看雪", "哪里可以看雪", 1)]


def write_question_pairs(folder: Path) -> None:
    """Write pairs of questions as TSV with a head, as CSV without a head, and as JSON lines."""
    tsv_text = "text1\ttext2\tlabel\n"
    csv_text = ""
    json_text = ""
    for first, second, label in QUESTION_PAIRS:
        tsv_text += f"{first}\t{second}\t{label}\n"
        csv_text += f'{label},"{first}",{second}\n'
        row = {"sentence1": first, "sentence2": second, "label": str(label)}
        json_text += json.dumps(row, ensure_ascii=False) + "\n"
    (folder / "pairs.tsv").write_text(tsv_text)
    (folder / "pairs.csv").write_text(csv_text)
    (folder / "pairs.json").write_text(json_text)


def read_pair_files(folder: Path) -> Any:
    """Read the three files of pairs. The columns of the CSV file are named in the option."""
    files = [pair_file(str(folder / "pairs.tsv"))]
    files.append(pair_file(f"{folder / 'pairs.csv'}:label,text1,text2"))
    files.append(pair_file(str(folder / "pairs.json")))
    return read_question_pairs(files)


def are_complete_pairs(pairs: list[Any], *_: object) -> bool:
    """Accept pairs of two questions and a label."""
    if not pairs:
        return False
    return all(first.strip() and second.strip() and label in (0, 1) for first, second, label in pairs)


def write_beir_judgments(folder: Path) -> None:
    """Write judgments with the head of BEIR's files."""
    judgment_writer("{}\t{}\t1\n")(folder)
    qrels_path = folder / "qrels"
    qrels_path.write_text("query-id\tcorpus-id\tscore\n" + qrels_path.read_text())


def write_manifest_and_recipe(folder: Path) -> None:
    """Write a run with its manifest, and the recipe of a training."""
    (folder / "run").write_text("q Q0 p 1 1.0 t\n")
    manifest = {
        "kind": "dense",
        "model": {"left_out": "tuning"},
        "reranked": {"file": "run", "sha256": "0"},
        "top_k": 9,
        "set": "main",
        "split": "dev",
        "release": {"corpus": "0"},
        "run": {"bytes": 15},
    }
    (folder / "run.manifest.json").write_text(json.dumps(manifest))
    recipe = {"model": {"kind": "dual", "start": "a"}, "data": {"leave_out": "tuning"}, "name": "de"}
    (folder / RECIPE).write_text(json.dumps(recipe))


def read_manifest_and_recipe(folder: Path) -> Any:
    """Read the manifest by each of its readers, and the questions that the recipe leaves out."""
    run = Run(folder / "run")
    return scored_depth(run), _is_apart(run, uses_all=False), left_out(folder), read_record(run)


def run_reader(name: str, reaches: str, make: Callable[[Path], object], file: str, changes: list[Change]) -> Reader:
    """Return a fuzzer of a TREC run."""
    return Reader(
        reaches,
        make=make,
        spoils={file: changes},
        read=lambda folder: read_run(folder / file).hits,
        right=are_hits_of_file,
        name=name,
    )


def qrels_reader(
    name: str, function: str, make: Callable[[Path], object], changes: list[Change], right: Any = Reader.right
) -> Reader:
    """Return a fuzzer of a file of judgments."""
    return Reader(
        f"baselines.measure.qrels:{function}",
        make=make,
        spoils={"qrels": changes},
        read=lambda folder: read_qrels(folder / "qrels").positives,
        right=right,
        name=name,
    )


_MANIFEST_READERS = (
    "builders.store.runs:scored_depth"
    " baselines.measure.fusion_weights:_is_apart,_read_record"
    " baselines.core.checkpoint:left_out"
    " baselines.measure.run_origin:read_record"
)
_WEIGHTS = {"weights": [0.3, 0.7], "tuned_on": "dev", "MRR@10": 0.5}
READERS = [
    Reader(
        "baselines.bm25.user_dictionary:read_user_words",
        make=writing("words.txt", "云计算平台 5 n\n石墨烯电池\n电池 3\n"),
        spoils={"words.txt": TEXT},
        read=lambda folder: [list(word) for word in read_user_words(folder / "words.txt")],
        right=are_words_of_file,
    ),
    Reader(
        "baselines.retrieve.question_pairs:_read_table,_read_json_lines,read_question_pairs",
        make=write_question_pairs,
        spoils={"pairs.tsv": TEXT, "pairs.csv": TEXT, "pairs.json": JSON_LINES},
        read=read_pair_files,
        right=are_complete_pairs,
    ),
    Reader(
        "builders.annotate.pool:read_pool",
        make=write_pool_of_all,
        spoils={"pool.jsonl": JSON_LINES},
        read=lambda folder: read_pool(folder / "pool.jsonl"),
        right=are_pairs_of_file,
    ),
    Reader(
        "builders.store.search_log:is_search_log builders.store.logged_runs:read_search_log",
        make=write_log,
        spoils={"log.jsonl": JSON_LINES},
        read=read_log,
        right=are_searches_of_file,
    ),
    run_reader("a TREC run", "builders.store.run_lines:parse_block", run_writer("run"), "run", TEXT),
    run_reader("a TREC run with tabs", "builders.store.run_lines:parse_lines", write_run_with_tabs, "run", TEXT),
    run_reader("a gzipped TREC run", "builders.core.read_files:first_character", run_writer("run.gz"), "run.gz", BYTES),
    Reader(
        "builders.store.runs:read_run builders.store.run_formats:read_json_run",
        make=writing("predictions.json", json.dumps(dict.fromkeys(QUERY_IDS, PASSAGE_IDS))),
        spoils={"predictions.json": JSON},
        read=lambda folder: read_run(folder / "predictions.json").hits,
        right=are_predictions_of_file,
        name="predictions",
    ),
    Reader(
        "builders.store.run_formats:read_json_run",
        make=write_results,
        spoils={"results.json": JSON},
        read=lambda folder: read_run(folder / "results.json").hits,
        right=are_results_of_file,
        name="BEIR's results",
    ),
    Reader(
        "builders.store.run_formats:_mteb_parts",
        make=write_mteb_results,
        spoils={"results.json": JSON},
        read=lambda folder: read_run(folder / "results.json").hits,
        right=are_results_of_file,
        name="mteb's results",
    ),
    Reader(
        "builders.store.run_formats:_rag_rows,_begins_with_rag_line",
        make=write_rag,
        spoils={"rag.jsonl": JSON_LINES},
        read=lambda folder: read_run(folder / "rag.jsonl").hits,
        right=are_finite,
    ),
    Reader(
        "builders.store.run_formats:read_parquet_run",
        make=write_parquet_run,
        spoils={"run.parquet": PARQUET + BYTES},
        read=lambda folder: read_run(folder / "run.parquet").hits,
        right=are_finite,
    ),
    Reader(
        "builders.store.run_formats:detect_run_format builders.store.run_lines:read_line_run,parse_block",
        make=write_ms_marco,
        spoils={"run.tsv": TEXT},
        read=lambda folder: read_run(folder / "run.tsv").hits,
        right=are_finite,
    ),
    qrels_reader("TREC qrels", "_column_rows", judgment_writer("{} 0 {} 1\n"), TEXT, are_judgments_of_file),
    qrels_reader("BEIR's qrels", "_column_rows", write_beir_judgments, TEXT, are_judgments_of_file),
    qrels_reader(
        "an official dev.json",
        "_official_questions",
        writing("qrels", as_json_lines(official_rows())),
        JSON_LINES,
    ),
    qrels_reader(
        "an official dev.json of one object",
        "_official_questions",
        writing("qrels", json.dumps({"data": official_rows()})),
        JSON,
    ),
    Reader(
        "baselines.measure.fusion_weights:read_weights",
        make=writing("weights.json", json.dumps(_WEIGHTS)),
        spoils={"weights.json": JSON},
        read=lambda folder: {"weights": read_weights(folder / "weights.json", "weighted", 2)},
        right=as_json("weights.json"),
    ),
    Reader(
        _MANIFEST_READERS,
        make=write_manifest_and_recipe,
        spoils={"*.json": JSON},
        read=read_manifest_and_recipe,
    ),
    Reader(
        "builders.store.judgments:read_negative_ids",
        make=write_negatives,
        spoils={"negatives.jsonl": JSON_LINES},
        read=read_negatives_of_queries,
        right=are_negatives_of_file,
    ),
    Reader(
        "builders.store.judgments:read_machine_labels",
        make=writing("labels.jsonl", as_json_lines(_MACHINE_LABELS)),
        spoils={"labels.jsonl": JSON_LINES},
        read=lambda folder: read_machine_labels(folder / "labels.jsonl"),
        right=are_labels_of_file,
    ),
    Reader(
        "baselines.train.recipe:read_recipe,_read_content",
        make=lambda folder: shutil.copy(RECIPES / "de-distil.toml", folder / "distil.toml"),
        spoils={"distil.toml": TEXT},
        read=lambda folder: read_recipe(str(folder / "distil.toml")),
        name="a recipe that learns scores",
    ),
]
_SETTINGS = """
["*"]
train.seed = 1

[de-bm25-neg]
model.start = "models/a-small-one"
train.max_steps = 100

[options.rerank]
top-k = 20
"""
_OVERRIDES = "train.batch=8\ntrain.learning_rate=1e-4\ndata.negatives=release\nmodel.towers=2\n"
_OFFICIAL = {"MRR@10": 0.75, "recall@1": 0.5, "recall@50": 1.0, "QueriesRanked": 2}
_SCORES = [{"run": "de.run", "queries": 2, "official": _OFFICIAL, "ir_measures": {"AP": 0.5}}]


def is_content_of_toml(value: Any, _: Any, folder: Path) -> bool:
    """Accept the values of the recipe."""
    return equal(msgspec.to_builtins(value), read_toml(folder / "mine.toml"))


def read_changed_recipe(folder: Path) -> Any:
    """Read a recipe with the overrides of a file."""
    text = (folder / "words").read_bytes().decode(errors="replace")
    return read_recipe("de-bm25-neg", text.splitlines())


def write_finished_output(folder: Path) -> None:
    """Write an output and the record that it is finished."""
    (folder / "out").write_text("content")
    release_input = VerbInput("the release", {"corpus/corpus": "0" * 64})
    record_finished(folder / "out", VerbCall("bm25", 1, {"top_k": 5}, {"release": release_input}))


def is_record_or_none(record: Any, intact_record: Any, _: Path) -> bool:
    """Accept any record, or None for an output that is not finished."""
    return record is None or type(record) is type(intact_record)


def write_training_record(folder: Path) -> None:
    """Write the record of a training of two steps."""
    (folder / "x").mkdir()
    record = {"losses": [[1, 2.5], [2, 1.5]], "dev": [{"step": 2, "MRR@10": 0.5}], "steps": 2, "device": "cpu"}
    (folder / "x" / "training.json").write_text(json.dumps(record))


def draw_training_curve(folder: Path) -> Any:
    """Read the record of a training and draw its curve."""
    curve = read_training_curve(folder / "x")
    return draw_image(lambda figure: draw_curve(figure.subplots(), curve, font_size=8), "svg", width=3, height=2)


def are_queries_of_file(texts: dict[str, str], _: Any, folder: Path) -> bool:
    """Accept ids without white space, and texts that are in the file."""
    path = next(path for path in folder.iterdir() if path.is_file())
    content = path.read_bytes().decode()
    is_json = content.lstrip("\ufeff \n").startswith("{")
    return all(query_id.split() == [query_id] for query_id in texts) and (
        is_json or all(text in content for text in texts.values())
    )


READERS += [
    Reader(
        "builders.store.own_queries:open_queries,_read_rows",
        make=writing("queries.tsv", "".join(f"{query_id}\tquestion\n" for query_id in QUERY_IDS)),
        spoils={"queries.tsv": TEXT},
        read=lambda folder: dict(open_queries(folder / "queries.tsv").texts),
        right=are_queries_of_file,
    ),
    Reader(
        "builders.store.own_queries:_read_rows",
        make=writing("q.jsonl", as_json_lines([{"_id": query_id, "text": "?"} for query_id in QUERY_IDS])),
        spoils={"q.jsonl": JSON_LINES},
        read=lambda folder: dict(open_queries(folder / "q.jsonl").texts),
        right=are_queries_of_file,
        name="BEIR's queries",
    ),
    Reader(
        "baselines.train.recipe:read_recipe,_read_content",
        make=lambda folder: shutil.copy(RECIPES / "de-bm25-neg.toml", folder / "mine.toml"),
        spoils={"mine.toml": TEXT},
        read=lambda folder: read_recipe(str(folder / "mine.toml")),
        right=is_content_of_toml,
    ),
    Reader(
        "baselines.train.recipe:_apply_override",
        make=writing("words", _OVERRIDES),
        spoils={"words": TEXT},
        read=read_changed_recipe,
        names_files=False,
    ),
    Reader(
        "baselines.reproduce.step_settings:read_settings",
        make=writing("settings.toml", _SETTINGS),
        spoils={"settings.toml": TEXT},
        read=lambda folder: read_settings(folder / "settings.toml"),
    ),
    Reader(
        "baselines.hub.training_curve:read_training_curve",
        make=write_training_record,
        spoils={"x/training.json": JSON},
        read=draw_training_curve,
    ),
    Reader(
        "builders.core.finished_outputs:_read_record",
        make=write_finished_output,
        spoils={".out.made.json": JSON},
        read=lambda folder: _read_record(folder / "out"),
        right=is_record_or_none,
    ),
    Reader(
        "baselines.reproduce.run_steps:_read_runs",
        make=writing("steps.json", '{"a": {"seconds": 1.5, "processes": 2}}'),
        spoils={"steps.json": JSON},
        read=_read_runs,
    ),
    Reader(
        "builders.publish.pages:read_scores",
        make=writing("scores.json", json.dumps(_SCORES)),
        spoils={"scores.json": JSON},
        read=lambda folder: msgspec.to_builtins(read_scores(folder / "scores.json")),
        right=as_json("scores.json"),
    ),
]
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
