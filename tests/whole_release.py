"""A tiny release with every kind of config, written as the builders write releases."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from releases import md5, tables

from builders.check.release_report import check
from builders.core.files import write_text
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, write_manifest
from builders.store.reader import open_release

Rows = dict[tuple[str, str], list[dict[str, Any]]]
ENGLISH = {"北京冬天冷吗": "Is Beijing cold in winter", "高铁票提前几天买": "How early can I buy a train ticket"}


def whole_tables() -> Rows:
    rows = tables()
    for name, texts, question in (
        ("cmedqa", ["多喝水，注意休息。", "建议去医院检查。", "按时吃药。"], "感冒了怎么办"),
        ("ccovid", ["社区将对返京人员进行登记。", "学校推迟开学。"], "学校什么时候开学"),
    ):
        more = f"还有什么{name}办法"
        rows[f"{name}-corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
        for split, asked, answers in (("train", more, texts[:1]), ("test", question, texts[1:])):
            rows[f"{name}-queries", split] = [{"_id": md5(asked), "text": asked}]
            rows[f"{name}-qrels", split] = [
                {"query-id": md5(asked), "corpus-id": md5(text), "score": 1} for text in answers
            ]
    for split, chinese in (("train", "北京冬天冷吗"), ("dev", "高铁票提前几天买")):
        english = ENGLISH[chinese]
        rows["crosslingual-queries", split] = [{"_id": md5(english), "text": english, "zh_id": md5(chinese)}]
        row = next(row for row in rows[split, split] if row["query"] == chinese)
        rows["crosslingual", split] = [
            {**copy.deepcopy(row), "query_id": md5(english), "query": english, "query_zh": chinese}
        ]
    removed = "冬天的北京冷不冷"
    rows["train-similar", "train"] = [
        {**copy.deepcopy(rows["train", "train"][0]), "query_id": md5(removed), "query": removed}
    ]
    rows["duplicated", "dev"], rows["others", "dev"] = rows["queries", "dev"][:1], rows["queries", "dev"][1:]
    rows["qrels-before", "dev"] = rows["qrels", "dev"][1:]
    judged = rows["qrels", "train"]
    # All files have different contents, so that tests can identify a sent file.
    rows["restrain-2-interpolation", "train"] = judged[:2]
    rows["restrain-2-extrapolation", "train"] = judged[2:]
    rows["resttest-bucket1", "train"] = judged[1:]
    rows["resttest-bucket1", "interpolation"] = judged[:1]
    rows["resttest-bucket1", "extrapolation"] = rows["qrels", "dev"][:1]
    return rows


def make_whole(path: Path, change: Callable[[Rows], Any] | None = None, verb: str = "test") -> Path:
    """Write :func:`whole_tables` after ``change`` as a release with the figures of its rows."""
    rows = whole_tables()
    if change:
        change(rows)
    build: dict[str, Any] = {"verb": verb, "options": {"size": "tiny"}, "sources": []}
    with draft_release(path, build) as draft:
        for (config, split), content in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(content, schema_of(config))])
    # First the figures, then the card and the manifest, which depend on them.
    stats = check(open_release(path)).figures.stats
    with draft_release(path, build, open_release(path)) as draft:
        draft.stats |= stats
    _rewrite_manifest(path, [Build(**build)])
    return path


def edit_stats(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    stats = json.loads((path / "stats.json").read_text(encoding="utf-8"))
    change(stats)
    write_text(path / "stats.json", json.dumps(stats))
    _rewrite_manifest(path, open_release(path).manifest.builds)


def edit_builds(path: Path, builds: list[dict[str, Any]]) -> None:
    """Replace the builds of the manifest, as a stranger could."""
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    write_text(path / "manifest.json", json.dumps({**manifest, "builds": builds}))


def edit_everything(path: Path) -> None:
    """Add a figure of every kind to stats.json, and builds with the options that later builds read."""
    overlap = {"overlapping": 1, "overlapping_share": 0.5}
    counts = {"train_queries": 2, "test_queries": 2, "nearest_cosine": 0.5, **overlap}
    bucket = {"config": "resttest-bucket1", "test": "interpolation", **counts}
    removed = {"removed": 1, "duplicated": 1, "share": 0.5}
    relabelled = {"queries": 2, "per_query_before": 1.0, "per_query_after": 1.0, "without_positives": 0}
    relabelled |= {"share_with_false_negatives": 0.0, "share_with_false_positives": 0.5}
    stats: dict[str, Any] = {
        "crosslingual": {"machine": 1},
        "relabelled": {"dev": relabelled | {"false_negatives": 0, "false_positives": 1}},
        "similar": {**removed, "queries": 2, "by": {"exact": 1}, "splits": {"dev": {"queries": 2, "duplicated": 1}}},
        "label_overlap": {"qrels/dev": {"test_queries": 2, **overlap}},
        "extrapolation": {
            "restrain-2-interpolation": {"config": "restrain-2-interpolation", "test": "dev", **counts},
            "resttest-bucket1": [bucket, {**bucket, "test": "extrapolation"}],
        },
        "nano": {"split": "dev", "queries": 2, "passages": 6, "judged": 2, "hard": 1},
        "samples": {"sample-2": {"config": "sample-2", "passages": 2, "positives": 1, "hard": None, "split": ["dev"]}},
    }
    stats["similar"]["paper"] = removed
    edit_stats(path, lambda written: written.update(stats))
    rule = {"unit": "word", "threshold": "1/2", "segmenter": "rjieba 0.2.1"}
    edit_builds(path, [{"verb": "release", "options": rule | {"match": "best", "min_chars": 256}, "sources": []}])


def _rewrite_manifest(path: Path, builds: list[Build]) -> None:
    write_manifest(path, [entry for entry in open_release(path).manifest.files if entry.rows is not None], builds)
