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
from builders.core.files import sha256_of
from builders.store import layout
from builders.store.card import card
from builders.store.draft import SplitWriter, draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, write_manifest

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
    return hashlib.md5(text.encode()).hexdigest()


def passage(text: str) -> dict[str, str]:
    return {"docid": md5(text), "title": "", "text": text}


def tables(texts: list[str] = TEXTS) -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return the rows of every (config, split). Question n of train and dev together is answered by text n."""
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    rows["corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
    answers = iter(texts)
    for split, questions in QUESTIONS.items():
        rows["queries", split] = [{"_id": md5(question), "text": question} for question in questions]
        rows[split, split] = joined = []
        for question in questions:
            row: dict[str, Any] = {"query_id": md5(question), "query": question}
            answer = next(answers) if split != "test" else None
            row["positive_passages"] = [passage(answer)] if answer else []
            row["negative_passages"] = [passage(text) for text in texts[:2] if text != answer] if answer else []
            joined.append(row)
        if split != "test":
            rows["qrels", split] = [
                {"query-id": row["query_id"], "corpus-id": row["positive_passages"][0]["docid"], "score": 1}
                for row in joined
            ]
    return rows


BUILD: dict[str, Any] = {"verb": "test", "options": {}, "sources": []}
SIMILAR = "手机进了水怎么办"  # removed from the training questions, because it asks the same as the second dev question


def quality_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    found = tables()
    first, second = map(md5, QUESTIONS["dev"])
    row = {"query_id": md5(SIMILAR), "query": SIMILAR, "negative_passages": []}
    found["train-similar", "train"] = [{**row, "positive_passages": [passage(TEXTS[5])]}]
    found["others", "dev"], found["duplicated", "dev"] = found["queries", "dev"][:1], found["queries", "dev"][1:]
    found["qrels-before", "dev"] = [
        {"query-id": query, "corpus-id": md5(text), "score": score}
        for query, text, score in ((first, TEXTS[0], 1), (first, TEXTS[4], 0), (second, TEXTS[5], 1))
    ]
    return found


def all_tables() -> dict[tuple[str, str], list[dict[str, Any]]]:
    """Return rows for configs of every kind: those of :func:`tables`, and the sets that `add` adds."""
    rows = tables()
    for name in ("cmedqa", "ccovid"):
        texts = [f"{name} {text}" for text in TEXTS[:3]]
        rows[f"{name}-corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
        for split, text in zip(("train", "dev") if name == "ccovid" else ("train", "dev", "test"), texts, strict=False):
            question = md5(f"{text}?")
            rows[f"{name}-queries", split] = [{"_id": question, "text": f"{text}?"}]
            rows[f"{name}-qrels", split] = [{"query-id": question, "corpus-id": md5(text), "score": 1}]
    for split in QUESTIONS:
        english = [f"question {number} of {split}" for number in range(len(QUESTIONS[split]))]
        rows["crosslingual-queries", split] = [
            {"_id": md5(text), "text": text, "zh_id": md5(question)}
            for text, question in zip(english, QUESTIONS[split], strict=True)
        ]
        rows["crosslingual", split] = [
            {**row, "query_id": md5(text), "query": text, "query_zh": row["query"]}
            for text, row in zip(english, rows[split, split], strict=True)
        ]
    rows["train-similar", "train"] = rows["train", "train"][:1]
    for split in ("dev", "test"):
        rows["duplicated", split], rows["others", split] = rows["queries", split][:1], rows["queries", split][1:]
    del rows["others", "test"]
    rows["qrels-before", "dev"] = rows["qrels", "dev"][:1]
    for name in ("14K-interpolation", "14K-extrapolation", "3-interpolation", "1000K-extrapolation"):
        rows[f"restrain-{name}", "train"] = rows["qrels", "train"][: 2 + len(name) % 2]
    for number in (1, 2, 5, 11):
        for split, part in (("train", "train"), ("interpolation", "train"), ("extrapolation", "dev")):
            rows[f"resttest-bucket{number}", split] = rows["qrels", part][-1 - number % 2 :]
    return rows


def draft_everything(path: Path) -> Path:
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
    sizes = {"ROWS_PER_GROUP": rows_per_shard, "ROWS_PER_SHARD": rows_per_shard, "_PASSAGES_PER_ROW": 1}
    with mock.patch.multiple(layout, **sizes):
        for (config, split), content in rows.items():
            schema = schema_of(config)
            if extra_column:
                schema = schema.append(pa.field(extra_column, pa.string()))
                content = [{**row, extra_column: "x"} for row in content]
            split_writer = SplitWriter(path, config, split, schema)
            split_writer.write(pa.Table.from_pylist(content, schema))
            entries += split_writer.close()
    stats: dict[str, Any] = {"table3": {}, "collections": {}}
    (path / "stats.json").write_text(json.dumps(stats), encoding="utf-8")
    (path / "README.md").write_text(card(entries, stats, [Build(**BUILD)]), encoding="utf-8")
    write_manifest(path, entries, [Build(**BUILD)])
    return path


def put_stats(release: Path, **figures: Any) -> None:
    path = release / "stats.json"
    path.write_text(json.dumps(json.loads(path.read_text("utf-8")) | figures), encoding="utf-8")


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
    return content if answers is None else content | {"answers": answers}


def write_rows(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(r, ensure_ascii=False) + "\n" for r in rows), encoding="utf-8")
    return path


def json_lines(path: Path) -> list[Any]:
    # splitlines() ends lines at more characters than any reader of JSON lines does.
    return [json.loads(line) for line in path.read_bytes().decode().splitlines()]


def rows_by_split(found: dict[str, dict[str, Any]]) -> dict[tuple[str, str], Any]:
    """Return the rows by config and split. The split of all queries is checked and left out."""
    for splits in found.values():
        order = ["queries", "train", "dev", "test", "interpolation", "extrapolation", "corpus"]
        assert [*splits] == sorted(splits, key=order.index)
    queries = found.get("queries", {})
    if whole := queries.pop("queries", []):
        assert sorted(map(str, whole)) == sorted(str(row) for rows in queries.values() for row in rows)
    return {(config, split): rows for config, splits in found.items() for split, rows in splits.items()}
