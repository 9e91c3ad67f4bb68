"""A tiny release with every kind of config, written as the builders write releases."""

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from releases import md5, tables

from builders.check.release_report import run_check
from builders.core.write_files import write_text
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.manifest import Build, write_manifest
from builders.store.reader import open_release

Rows = dict[tuple[str, str], list[dict[str, Any]]]
ENGLISH = {"北京冬天冷吗": "Is Beijing cold in winter", "高铁票提前几天买": "How early can I buy a train ticket"}


def whole_tables() -> Rows:
    """Return the rows of every config of the tiny release."""
    rows = tables()
    add_domain(
        rows, "cmedqa", passages=["多喝水，注意休息。", "建议去医院检查。", "按时吃药。"], test_question="感冒了怎么办"
    )
    add_domain(
        rows, "ccovid", passages=["社区将对返京人员进行登记。", "学校推迟开学。"], test_question="学校什么时候开学"
    )
    add_english_question(rows, "train", "北京冬天冷吗")
    add_english_question(rows, "dev", "高铁票提前几天买")

    perturbed = "高票铁提前几天买"
    stress_row = {"_id": md5(perturbed), "text": perturbed, "original_id": md5("高铁票提前几天买")}
    rows["stress-swap-queries", "dev"] = [stress_row]

    removed_question = "冬天的北京冷不冷"
    similar_row = copy.deepcopy(rows["train", "train"][0])
    rows["train-similar", "train"] = [similar_row | {"query_id": md5(removed_question), "query": removed_question}]
    rows["duplicated", "dev"] = rows["queries", "dev"][:1]
    rows["others", "dev"] = rows["queries", "dev"][1:]
    rows["qrels-before", "dev"] = rows["qrels", "dev"][1:]
    judgments = rows["qrels", "train"]
    # All files have different contents, so that tests can identify a sent file.
    rows["restrain-2-interpolation", "train"] = judgments[:2]
    rows["restrain-2-extrapolation", "train"] = judgments[2:]
    rows["resttest-bucket1", "train"] = judgments[1:]
    rows["resttest-bucket1", "interpolation"] = judgments[:1]
    rows["resttest-bucket1", "extrapolation"] = rows["qrels", "dev"][:1]
    return rows


def add_domain(rows: Rows, domain: str, *, passages: list[str], test_question: str) -> None:
    """Add the set of a domain: the first passage answers a training question, the others the test question."""
    rows[f"{domain}-corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in passages]
    train_question = f"还有什么{domain}办法"
    for split, question, answers in (("train", train_question, passages[:1]), ("test", test_question, passages[1:])):
        query_id = md5(question)
        rows[f"{domain}-queries", split] = [{"_id": query_id, "text": question}]
        judgments = [{"query-id": query_id, "corpus-id": md5(answer), "score": 1} for answer in answers]
        rows[f"{domain}-qrels", split] = judgments


def add_english_question(rows: Rows, split: str, chinese: str) -> None:
    """Add the English translation of a question of the main set."""
    english = ENGLISH[chinese]
    rows["crosslingual-queries", split] = [{"_id": md5(english), "text": english, "zh_id": md5(chinese)}]
    chinese_row = next(row for row in rows[split, split] if row["query"] == chinese)
    translation = {"query_id": md5(english), "query": english, "query_zh": chinese}
    rows["crosslingual", split] = [copy.deepcopy(chinese_row) | translation]


def make_whole(path: Path, change: Callable[[Rows], Any] | None = None, verb: str = "test") -> Path:
    """Write :func:`whole_tables` after ``change`` as a release with the figures of its rows. Return its path.

    ``change`` changes the rows in place. ``verb``: the verb of the release's only build.
    """
    rows = whole_tables()
    if change:
        change(rows)
    build: dict[str, Any] = {"verb": verb, "options": {"size": "tiny"}, "sources": []}
    with draft_release(path, build) as draft:
        for (config, split), content in rows.items():
            draft.write(config, split, [pa.Table.from_pylist(content, schema_of(config))])
    # First the figures, then the card and the manifest, which depend on them.
    stats = run_check(open_release(path)).figures.stats
    with draft_release(path, build, open_release(path)) as draft:
        draft.stats |= stats
    # The second draft has added its build to that of the first.
    _rewrite_manifest(path, [Build(**build)])
    return path


def edit_stats(path: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    """Change stats.json, and record its new checksum in the manifest."""
    stats = json.loads((path / "stats.json").read_text(encoding="utf-8"))
    change(stats)
    write_text(path / "stats.json", json.dumps(stats))
    _rewrite_manifest(path, open_release(path).manifest.builds)


def edit_builds(path: Path, builds: list[dict[str, Any]]) -> None:
    """Replace the builds of the manifest, as a stranger could."""
    manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
    write_text(path / "manifest.json", json.dumps(manifest | {"builds": builds}))


def edit_everything(path: Path) -> None:
    """Add a figure of every kind to stats.json, and builds with the options that later builds read."""
    overlap = {"overlapping": 1, "overlapping_share": 0.5}
    query_counts = {"train_queries": 2, "test_queries": 2, "nearest_cosine": 0.5} | overlap
    first_bucket = {"config": "resttest-bucket1", "test": "interpolation"} | query_counts
    removal = {"removed": 1, "duplicated": 1, "share": 0.5}
    relabelling = {"queries": 2, "per_query_before": 1.0, "per_query_after": 1.0, "without_positives": 0}
    relabelling |= {"share_with_false_negatives": 0.0, "share_with_false_positives": 0.5}
    relabelling |= {"false_negatives": 0, "false_positives": 1}
    similar = {"queries": 2, "by": {"exact": 1}, "splits": {"dev": {"queries": 2, "duplicated": 1}}}
    sample = {"config": "sample-2", "passages": 2, "positives": 1, "hard": None, "split": ["dev"]}
    new_stats: dict[str, Any] = {
        "crosslingual": {"machine": 1},
        "relabelled": {"dev": relabelling},
        "similar": removal | similar | {"paper": removal},
        "label_overlap": {"qrels/dev": {"test_queries": 2} | overlap},
        "extrapolation": {
            "restrain-2-interpolation": {"config": "restrain-2-interpolation", "test": "dev"} | query_counts,
            "resttest-bucket1": [first_bucket, first_bucket | {"test": "extrapolation"}],
        },
        "nano": {"split": "dev", "queries": 2, "passages": 6, "judged": 2, "hard": 1},
        "samples": {"sample-2": sample},
    }
    edit_stats(path, lambda stats: stats.update(new_stats))
    rule = {"unit": "word", "threshold": "1/2", "segmenter": "rjieba 0.2.1"}
    edit_builds(path, [{"verb": "release", "options": rule | {"match": "best", "min_chars": 256}, "sources": []}])


def _rewrite_manifest(path: Path, builds: list[Build]) -> None:
    # Only tables have rows. The writer adds the entries of stats.json and the card itself.
    tables_of_release = [entry for entry in open_release(path).manifest.files if entry.rows is not None]
    write_manifest(path, tables_of_release, builds)
