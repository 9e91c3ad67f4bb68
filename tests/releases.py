"""A tiny release directory, made with the project's own writer: what tests of a release's readers start from."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path
from typing import Any
from unittest import mock

import pyarrow as pa

from builders import store

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
    """The rows of every (config, split): question number n of train and dev together is answered by text n."""
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


SCHEMAS = {"corpus": store.CORPUS, "queries": store.QUERIES, "qrels": store.QRELS}


def make_release(
    path: Path,
    rows: dict[tuple[str, str], list[dict[str, Any]]] | None = None,
    rows_per_shard: int = 2,
    extra_column: str | None = None,
) -> Path:
    """Write the ``rows`` (of :func:`tables` where None) as a release with a card; over an older one in place.

    ``extra_column`` adds a column of that name to every config, as a newer version might.
    """
    rows = tables() if rows is None else rows
    shutil.rmtree(path, ignore_errors=True)  # an older release may have more shards
    path.mkdir(parents=True)
    entries: list[dict[str, Any]] = []
    with mock.patch.multiple(store, ROWS_PER_GROUP=rows_per_shard, ROWS_PER_SHARD=rows_per_shard):
        for (config, split), content in rows.items():
            schema = SCHEMAS.get(config, store.JOINED)
            if extra_column:
                schema = schema.append(pa.field(extra_column, pa.string()))
                content = [{**row, extra_column: "x"} for row in content]
            writer = store.SplitWriter(path, config, split, schema)
            writer.write(pa.Table.from_pylist(content, schema))
            entries += writer.close()
    (path / "README.md").write_text(card(rows, entries), encoding="utf-8")
    store.write_manifest(path, entries, [{"verb": "test"}])
    return path


_TEXT_COLUMN = "  - name: {}\n    dtype: string\n"
_PASSAGES = "  - name: {}\n    list:\n" + "".join(
    f"    - name: {name}\n      dtype: string\n" for name in ("docid", "title", "text")
)


def card(rows: dict[tuple[str, str], list[dict[str, Any]]], entries: list[dict[str, Any]]) -> str:
    """A dataset card by hand: every config with its files, columns and sizes.

    The description holds a hash of the content: ``datasets`` takes the card alone, and neither the files' content,
    times nor folder, for the key of its cache when a release is loaded by its path.
    """
    content = hashlib.sha256("".join(entry["sha256"] for entry in entries).encode()).hexdigest()
    configs, infos = "configs:\n", "dataset_info:\n"
    for config in dict.fromkeys(name for name, _ in rows):
        splits = [split for name, split in rows if name == config]
        configs += f"- config_name: {config}\n  description: content {content}\n  data_files:\n"
        infos += f"- config_name: {config}\n  features:\n"
        for column, kind in zip(*_columns(SCHEMAS.get(config, store.JOINED)), strict=True):
            infos += kind.format(column)
        infos += "  splits:\n"
        for split in splits:
            configs += f"  - split: {split}\n    path: {config}/{split}-*.parquet\n"
            # datasets ignores the whole dataset_info of a config whose splits lack one of the three.
            infos += f"  - name: {split}\n    num_bytes: 1\n    num_examples: {len(rows[config, split])}\n"
    return f"---\n{configs}{infos}---\n\nA tiny release.\n"


def _columns(schema: pa.Schema) -> tuple[list[str], list[str]]:
    kinds = []
    for field in schema:
        text = _TEXT_COLUMN.replace("string", "int64") if field.type == pa.int64() else _TEXT_COLUMN
        kinds.append(_PASSAGES if pa.types.is_list(field.type) else text)
    return schema.names, kinds
