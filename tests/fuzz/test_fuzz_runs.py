"""Damaged runs, predictions, judgments, weights, negatives, recipes, settings, scores, and records of steps."""

import gzip
import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
from fuzzing import Reader, as_json, equal, fuzz_of, loads, writing
from releases import QUESTIONS, TEXTS, make_release, md5
from spoil import BYTES, JSON, JSON_LINES, TEXT

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
from builders.annotate.pool import Pooled, read_pool, scored_depth, write_pool
from builders.core.files import read_toml
from builders.core.finished_outputs import VerbCall, VerbInput, _read_record, record_finished
from builders.core.images import draw_image
from builders.publish.pages import read_scores
from builders.store.reader import open_release
from builders.store.runs import Run, read_run, write_run

IDS = [md5(text) for text in TEXTS]
ASKED = [md5(question) for question in QUESTIONS["dev"]]


def _run(name: str) -> Callable[[Path], object]:
    return lambda folder: write_run(folder / name, [(q, [(p, 1 / (n + 1)) for n, p in enumerate(IDS)]) for q in ASKED])


def _tabs(folder: Path) -> None:
    _run("run")(folder)
    (folder / "run").write_bytes((folder / "run").read_bytes().replace(b" ", b"\t"))


def _as_a_trec_run(found: dict[str, Any], _: Any, folder: Path) -> bool:
    path = next(folder.glob("run*"))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    said: dict[str, list[tuple[float, int, str]]] = {}
    if data.removeprefix(b"\xef\xbb\xbf").lstrip()[:1] == b"{":
        return True
    for line in data.split(b"\n"):
        if words := line.removeprefix(b"\xef\xbb\xbf").split():
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
    """Accept positive judgments that a line of the file has."""
    lines = {tuple(line.split()) for line in (folder / "qrels").read_bytes().split(b"\n")}
    triples = {(row[0], row[-2], int(row[-1])) for row in lines if len(row) in (3, 4) and row[-1] != b"score"}
    pairs = [(q.encode(), p.encode(), score) for q, passages in found.items() for p, score in passages.items()]
    bom = {(query.removeprefix(b"\xef\xbb\xbf"), passage, score) for query, passage, score in triples}
    return set(pairs) <= triples | bom and all(score > 0 for _, _, score in pairs)


_WEIGHTS = {"weights": [0.3, 0.7], "tuned_on": "dev", "MRR@10": 0.5}


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
    said: dict[str, list[str]] = {}
    for row in (loads(line) for line in lines if line.strip()):
        said.setdefault(row["query-id"], []).extend(row["negative-ids"])  # a query may have several lines
    return found == {q: [IDS.index(p) for p in said[q] if p != IDS[0]] for q in ASKED if q in said}


def _pool(folder: Path) -> None:
    pairs = [Pooled(q, p, n, 1 / n, {"bm25": n}, None if n % 2 else 1) for q in ASKED for n, p in enumerate(IDS, 1)]
    write_pool(folder / "pool.jsonl", pairs)


def _as_a_pool(found: list[Pooled], _: Any, folder: Path) -> bool:
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


def _trec_run(name: str, reaches: str, make: Callable[[Path], object], file: str, how: Any) -> Reader:
    return Reader(reaches, make, {file: how}, lambda f: read_run(f / file).hits, _as_a_trec_run, name=name)


def _qrels(name: str, function: str, make: Callable[[Path], object], how: Any, right: Any = Reader.right) -> Reader:
    reaches = f"baselines.measure.qrels:{function}"
    return Reader(reaches, make, {"qrels": how}, lambda f: read_qrels(f / "qrels").positives, right, name=name)


def _beir(folder: Path) -> None:
    _judgments("{}\t{}\t1\n")(folder)
    (folder / "qrels").write_text("query-id\tcorpus-id\tscore\n" + (folder / "qrels").read_text())


def _read_weights_of_two(folder: Path) -> Any:
    return {"weights": read_weights(folder / "weights.json", "weighted", 2)}


def _records(folder: Path) -> None:
    (folder / "run").write_text("q Q0 p 1 1.0 t\n")
    record = {"kind": "dense", "model": {"left_out": "tuning"}, "reranked": {"file": "run", "sha256": "0"}, "top_k": 9}
    record |= {"set": "main", "split": "dev", "release": {"corpus": "0"}, "run": {"bytes": 15}}
    (folder / "run.manifest.json").write_text(json.dumps(record))
    (folder / RECIPE).write_text(
        json.dumps({"model": {"kind": "dual", "start": "a"}, "data": {"leave_out": "tuning"}, "name": "de"})
    )


def _read_records(folder: Path) -> Any:
    run = Run(folder / "run")
    return scored_depth(run), _is_apart(run, uses_all=False), left_out(folder), read_record(run)


_RECORDS_READ = (
    "builders.annotate.pool:scored_depth baselines.measure.fusion_weights:_is_apart baselines.core.checkpoint:left_out "
    "baselines.measure.run_origin:read_record"
)
_PAIRS_READ = "baselines.retrieve.question_pairs:_read_table,_read_json_lines,read_question_pairs"
_HOW_PAIRS = {"pairs.tsv": TEXT, "pairs.csv": TEXT, "pairs.json": JSON_LINES}
_NEGATIVES, _POOL = {"negatives.jsonl": JSON_LINES}, {"pool.jsonl": JSON_LINES}
READERS = [
    Reader(_PAIRS_READ, _question_pairs, _HOW_PAIRS, _read_question_pairs, _with_two_questions_and_a_label),
    Reader("builders.annotate.pool:read_pool", _pool, _POOL, lambda f: read_pool(f / "pool.jsonl"), _as_a_pool),
    _trec_run("a TREC run", "builders.store.runs:_parse_block", _run("run"), "run", TEXT),
    _trec_run("a TREC run with tabs", "builders.store.runs:_parse_lines", _tabs, "run", TEXT),
    _trec_run("a gzipped TREC run", "builders.core.files:first_character", _run("run.gz"), "run.gz", BYTES),
    Reader(
        "builders.store.runs:read_run", writing("predictions.json", json.dumps(dict.fromkeys(ASKED, IDS))),
        {"predictions.json": JSON}, lambda f: read_run(f / "predictions.json").hits, _as_predictions,
    ),
    _qrels("TREC qrels", "_column_rows", _judgments("{} 0 {} 1\n"), TEXT, _as_columns),
    _qrels("BEIR's qrels", "_column_rows", _beir, TEXT, _as_columns),
    _qrels("an official dev.json", "_official_questions", _official, JSON_LINES),
    _qrels("an official dev.json of one object", "_official_questions", lambda folder: _official(folder, True), JSON),
    Reader(
        "baselines.measure.fusion_weights:read_weights",
        writing("weights.json", json.dumps(_WEIGHTS)), {"weights.json": JSON},
        _read_weights_of_two, as_json("weights.json"),
    ),
    Reader(_RECORDS_READ, _records, {"*.json": JSON}, _read_records),
    Reader("builders.store.judgments:read_negative_ids", _negatives, _NEGATIVES, _read_negatives, _as_negatives),
]  # fmt: skip
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


def _as_toml(name: str) -> Callable[[Any, Any, Path], bool]:
    return lambda found, _, folder: equal(msgspec.to_builtins(found), read_toml(folder / name))


def _overridden(folder: Path) -> Any:
    return read_recipe("de-bm25-neg", (folder / "words").read_bytes().decode(errors="replace").splitlines())


def _make_record(folder: Path) -> None:
    (folder / "out").write_text("content")
    call = VerbCall("bm25", 1, {"top_k": 5}, {"release": VerbInput("the release", {"corpus/corpus": "0" * 64})})
    record_finished(folder / "out", call)


def _make_training(folder: Path) -> None:
    (folder / "x").mkdir()
    record = {"losses": [[1, 2.5], [2, 1.5]], "dev": [{"step": 2, "MRR@10": 0.5}], "steps": 2, "device": "cpu"}
    (folder / "x" / "training.json").write_text(json.dumps(record))


def _read_training(folder: Path) -> Any:
    curve = read_training_curve(folder / "x")
    return draw_image(lambda figure: draw_curve(figure.subplots(), curve, font_size=8), "svg", width=3, height=2)


_RECIPE = "baselines.train.recipe:"
READERS += [
    Reader(
        f"{_RECIPE}read_recipe,_read_content", lambda f: shutil.copy(RECIPES / "de-bm25-neg.toml", f / "mine.toml"),
        {"mine.toml": TEXT}, lambda f: read_recipe(str(f / "mine.toml")), _as_toml("mine.toml"),
    ),
    Reader(f"{_RECIPE}_apply_override", writing("words", _OVERRIDES), {"words": TEXT}, _overridden, names_files=False),
    Reader(
        "baselines.reproduce.step_settings:read_settings", writing("settings.toml", _SETTINGS), {"settings.toml": TEXT},
        lambda f: read_settings(f / "settings.toml"),
    ),
    Reader(
        "baselines.hub.training_curve:read_training_curve", _make_training, {"x/training.json": JSON}, _read_training,
    ),
    Reader(
        "builders.core.finished_outputs:_read_record", _make_record, {".out.made.json": JSON},
        lambda f: _read_record(f / "out"), lambda found, good, _: found is None or type(found) is type(good),
    ),
    Reader(
        "baselines.reproduce.run_steps:_read_runs", writing("steps.json", '{"a": {"seconds": 1.5, "processes": 2}}'),
        {"steps.json": JSON}, _read_runs,
    ),
    Reader(
        "builders.publish.pages:read_scores", writing("scores.json", json.dumps(_SCORES)), {"scores.json": JSON},
        lambda f: msgspec.to_builtins(read_scores(f / "scores.json")), as_json("scores.json"),
    ),
]  # fmt: skip
test_a_damaged_file_gives_its_content_or_one_error = fuzz_of(READERS)
