"""A tiny release directory, created with the project's own writer."""

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from builders.core.cache import FileEntry
from builders.core.read_files import sha256_of
from builders.store import layout
from builders.store.card import card_markdown
from builders.store.draft import SplitWriter, draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, write_manifest
from builders.store.names import STRESS_KINDS

TEXTS = [
    "北京的冬天很冷，一月的平均气温在零下四度左右。",
    "煮饺子时水要开，饺子下锅以后加三次凉水。",
    "身份证丢失以后，应当先到派出所挂失，再补办。",
    "多肉植物喜欢阳光，一周浇一次水就够了。",
    "高铁票可以在开车前十五天购买。",
    "手机进水后先关机，不要急着充电。",
]
QUESTIONS = {
    "train": ["北京冬天冷吗", "饺子怎么煮", "身份证丢了怎么办", "多肉怎么浇水"],
    "dev": ["高铁票提前几天买", "手机进水怎么办"],
    "test": ["哪里可以看雪"],
}


def md5(text: str) -> str:
    """Return the id of a query or passage."""
    return hashlib.md5(text.encode()).hexdigest()


def passage(text: str) -> dict[str, str]:
    """Return a passage as the rows of train, dev and test have it."""
    return {"docid": md5(text), "title": "", "text": text}


def corpus_rows(texts: list[str]) -> list[dict[str, Any]]:
    """Return the rows of a corpus."""
    return [{"_id": md5(text), "title": "", "text": text} for text in texts]


def query_rows(questions: list[str]) -> list[dict[str, Any]]:
    """Return the rows of the config ``queries``."""
    return [{"_id": md5(question), "text": question} for question in questions]


def judgment_row(query_id: str, corpus_id: str, score: int = 1) -> dict[str, Any]:
    """Return a row of the config ``qrels``."""
    return {"query-id": query_id, "corpus-id": corpus_id, "score": score}


def tables(texts: list[str] = TEXTS) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of every (config, split). Question n of train and dev together is answered by text n."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows["corpus", "corpus"] = corpus_rows(texts)
    answers = iter(texts)
    for split, questions in QUESTIONS.items():
        rows["queries", split] = query_rows(questions)
        rows[split, split] = []
        if split != "test":
            rows["qrels", split] = []
        for question in questions:
            row: dict[str, Any] = {"query_id": md5(question), "query": question}
            # Questions of test have no judged passage.
            row["positive_passages"] = []
            row["negative_passages"] = []
            if split != "test":
                answer = next(answers)
                row["positive_passages"] = [passage(answer)]
                row["negative_passages"] = [passage(text) for text in texts[:2] if text != answer]
                rows["qrels", split].append(judgment_row(md5(question), md5(answer)))
            rows[split, split].append(row)
    return rows


BUILD: dict[str, Any] = {"verb": "test", "options": {}, "sources": []}
SIMILAR = "手机进了水怎么办"  # removed from the training questions, because it asks the same as the second dev question


def quality_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return :func:`tables` with the configs about similar questions and about earlier judgments."""
    rows = tables()
    similar_row = {"query_id": md5(SIMILAR), "query": SIMILAR, "negative_passages": []}
    rows["train-similar", "train"] = [similar_row | {"positive_passages": [passage(TEXTS[5])]}]
    rows["others", "dev"] = rows["queries", "dev"][:1]
    rows["duplicated", "dev"] = rows["queries", "dev"][1:]
    first_id, second_id = map(md5, QUESTIONS["dev"])
    rows["qrels-before", "dev"] = [
        judgment_row(first_id, md5(TEXTS[0])),
        judgment_row(first_id, md5(TEXTS[4]), score=0),
        judgment_row(second_id, md5(TEXTS[5])),
    ]
    return rows


def all_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return rows for configs of every kind: those of :func:`tables`, and the sets that `add` adds."""
    rows = tables()
    for name, splits in (("cmedqa", ["train", "dev", "test"]), ("ccovid", ["train", "dev"])):
        texts = [f"{name} {text}" for text in TEXTS[:3]]
        rows[f"{name}-corpus", "corpus"] = corpus_rows(texts)
        for split, text in zip(splits, texts, strict=False):
            question = f"{text}?"
            rows[f"{name}-queries", split] = query_rows([question])
            rows[f"{name}-qrels", split] = [judgment_row(md5(question), md5(text))]
    for split in QUESTIONS:
        rows["crosslingual-queries", split] = []
        rows["crosslingual", split] = []
        for number, row in enumerate(rows[split, split]):
            english = f"question {number} of {split}"
            english_row = {"_id": md5(english), "text": english, "zh_id": row["query_id"]}
            rows["crosslingual-queries", split].append(english_row)
            english_columns = {"query_id": md5(english), "query": english, "query_zh": row["query"]}
            rows["crosslingual", split].append(row | english_columns)
    for kind in STRESS_KINDS:
        for split in ("dev", "test"):
            rows[f"stress-{kind}-queries", split] = [
                {"_id": md5(f"{kind} {question}"), "text": f"{kind} {question}", "original_id": md5(question)}
                for question in QUESTIONS[split]
            ]
    rows["original-ids", "corpus"] = [{"original-id": "p0", "_id": md5(TEXTS[0])}]
    rows["original-ids", "queries"] = [{"original-id": "q0", "_id": md5(QUESTIONS["train"][0])}]
    rows["train-similar", "train"] = rows["train", "train"][:1]
    rows["duplicated", "dev"] = rows["queries", "dev"][:1]
    rows["others", "dev"] = rows["queries", "dev"][1:]
    rows["duplicated", "test"] = rows["queries", "test"][:1]
    rows["qrels-before", "dev"] = rows["qrels", "dev"][:1]
    # The sets have two or three rows.
    for name in ("14K-interpolation", "14K-extrapolation", "3-interpolation", "1000K-extrapolation"):
        rows[f"restrain-{name}", "train"] = rows["qrels", "train"][: 2 + len(name) % 2]
    # The buckets have one or two rows a split.
    for number in (1, 2, 5, 11):
        first_row = -1 - number % 2
        for split, source_split in (("train", "train"), ("interpolation", "train"), ("extrapolation", "dev")):
            rows[f"resttest-bucket{number}", split] = rows["qrels", source_split][first_row:]
    return rows


def draft_everything(path: Path) -> Path:
    """Write a release of :func:`all_tables`. Return its path."""
    with draft_release(path, BUILD) as draft:
        for (config, split), rows in all_tables().items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])
    return path


# Two strings; the second is not UTF-8, which Arrow cannot create from Python texts.
_ENDS = np.array([0, 1, 2], np.int32)
NO_UTF8 = pa.Array.from_buffers(pa.string(), 2, [None, pa.py_buffer(_ENDS), pa.py_buffer(b"a\xff")])


def release_of(path: Path, table: pa.Table, config: str = "corpus", split: str = "corpus") -> Path:
    """Write a release of one shard with this table, with any columns. The manifest describes the shard correctly."""
    shard = path / config / f"{split}-00000-of-00001.parquet"
    shard.parent.mkdir(parents=True)
    pq.write_table(table, shard)
    entry = FileEntry(f"{config}/{shard.name}", shard.stat().st_size, table.num_rows, sha256_of(shard))
    write_manifest(path, [entry], [Build(**BUILD)])
    return path


def make_release(
    path: Path,
    rows: dict[tuple[str, str], list[dict[str, Any]]] | None = None,
    rows_per_shard: int = 2,
    extra_column: str | None = None,
) -> Path:
    """Write the ``rows`` (default: :func:`tables`) as a release with a card. An older release is replaced.

    ``extra_column`` adds a column of that name to every config, as a newer version might.
    """
    rows = tables() if rows is None else rows
    shutil.rmtree(path, ignore_errors=True)  # an earlier release may have more shards
    path.mkdir(parents=True)
    entries: list[FileEntry] = []
    # _PASSAGES_PER_ROW: shards of joined rows are as long as the others.
    sizes = {"ROWS_PER_GROUP": rows_per_shard, "ROWS_PER_SHARD": rows_per_shard, "_PASSAGES_PER_ROW": 1}
    with mock.patch.multiple(layout, **sizes):
        for (config, split), content in rows.items():
            schema = schema_of(config)
            if extra_column:
                schema = schema.append(pa.field(extra_column, pa.string()))
                content = [row | {extra_column: "x"} for row in content]
            split_writer = SplitWriter(path, config, split, schema)
            split_writer.write(pa.Table.from_pylist(content, schema))
            entries += split_writer.close()
    stats: dict[str, Any] = {"table3": {}, "collections": {}}
    (path / "stats.json").write_text(json.dumps(stats), encoding="utf-8")
    (path / "README.md").write_text(card_markdown(entries, stats, [Build(**BUILD)]), encoding="utf-8")
    write_manifest(path, entries, [Build(**BUILD)])
    return path


def put_stats(release: Path, **figures: Any) -> None:
    """Add figures to a release's stats.json."""
    stats_path = release / "stats.json"
    stats = json.loads(stats_path.read_text("utf-8"))
    stats_path.write_text(json.dumps(stats | figures), encoding="utf-8")


def raw_row(number: int, question: str, documents: list[list[str]], answers: list[str] | None = None) -> dict[str, Any]:
    """Return a raw row with the given paragraphs, a list for each document. ``answers`` is omitted if None."""
    content: dict[str, Any] = {
        "question_id": number,
        "question": question,
        "question_type": "DESCRIPTION",
        "fact_or_opinion": "FACT",
        "documents": [
            {"title": f"标题{i}", "bs_rank_pos": i, "is_selected": i == 0, "paragraphs": paragraphs}
            for i, paragraphs in enumerate(documents)
        ],
    }
    if answers is not None:
        content["answers"] = answers
    return content


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    """Write rows as JSON lines. Return the path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    json_rows = [json.dumps(row, ensure_ascii=False) + "\n" for row in rows]
    path.write_text("".join(json_rows), encoding="utf-8")
    return path


def json_lines(path: Path) -> list[Any]:
    """Return the values of JSON lines."""
    # splitlines() ends lines at more characters than any reader of JSON lines does.
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]


def rows_by_split(splits_by_config: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Return the rows by (config, split) from config -> split -> rows, as ``datasets`` loads them.

    The split of all queries is checked and left out. The order of the splits is checked, too.
    """
    split_order = ["corpus", "queries", "train", "dev", "test", "interpolation", "extrapolation"]
    rows_by_config_split = {}
    queries_of_splits = []
    for config, splits in splits_by_config.items():
        assert list(splits) == sorted(splits, key=split_order.index)
        for split, rows in splits.items():
            if (config, split) == ("queries", "queries"):
                continue
            rows_by_config_split[config, split] = rows
            if config == "queries":
                queries_of_splits += map(str, rows)
    all_queries = splits_by_config.get("queries", {}).get("queries", [])
    if all_queries:
        assert sorted(map(str, all_queries)) == sorted(queries_of_splits)
    return rows_by_config_split
