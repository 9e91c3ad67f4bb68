"""Data to run the paper's rows end to end: a tiny official release with every set, and tiny models on a hub."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
from commands import Done, process
from commands import run as run_verb
from hub_server import Hub
from loaded import Loaded
from official_archives import BOTH, DEV, PASSAGES, TRAIN, write_files
from releases import BUILD, md5

from builders.official.assembly import build_from_archives
from builders.store.draft import draft_release
from builders.store.layout import schema_of
from builders.store.reader import open_release

SETTINGS = """
["*"]
train.max_steps = 1
train.batch = 4
train.saves = 0
train.evaluations = 1
train.precision = "fp32"
data.query_length = 16
data.passage_length = 32
data.dev_passages = 4
"""
ENGLISH = {question: f"Question {number} in English" for number, question in enumerate([*TRAIN, *DEV])}
TEXTS = [*PASSAGES, *TRAIN, *DEV, *ENGLISH.values()]  # the vocabulary of the tiny models


def make_paper_release(path: Path) -> None:
    """Import the tiny official archives by `builders official`, and add the other sets."""
    build_from_archives([write_files(path.with_name(f"{path.name}-archives"), BOTH)], path)
    with draft_release(path, BUILD, open_release(path)) as draft:
        for (config, split), rows in _other_sets().items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])


def _other_sets() -> dict[tuple[str, str], list[dict[str, Any]]]:
    rows: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for name in ("cmedqa", "ccovid"):
        texts = [f"{name} {text}" for text in PASSAGES[:8]]
        rows[f"{name}-corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
        for split, own in (("train", texts[:4]), ("test", texts[4:])):
            asked = {text: f"{text[7:13]} {name}" for text in own}
            rows[f"{name}-queries", split] = [{"_id": md5(each), "text": each} for each in asked.values()]
            rows[f"{name}-qrels", split] = [
                {"query-id": md5(each), "corpus-id": md5(text), "score": 1} for text, each in asked.items()
            ]
    for split, judged in (("train", TRAIN), ("dev", DEV)):
        rows["crosslingual-queries", split] = [
            {"_id": md5(ENGLISH[chinese]), "text": ENGLISH[chinese], "zh_id": md5(chinese)} for chinese in judged
        ]
    return rows | _quality()


def _quality() -> dict[tuple[str, str], list[dict[str, Any]]]:
    first, *rest = DEV
    row = {"query_id": md5(f"{first}？"), "query": f"{first}？", "negative_passages": []}
    good = {"docid": md5(PASSAGES[DEV[first][0]]), "title": "", "text": PASSAGES[DEV[first][0]]}
    before = [(question, PASSAGES[places[-1]]) for question, places in DEV.items()]
    return {
        ("train-similar", "train"): [{**row, "positive_passages": [good]}],
        ("duplicated", "dev"): [{"_id": md5(first), "text": first}],
        ("others", "dev"): [{"_id": md5(each), "text": each} for each in rest],
        ("qrels-before", "dev"): [
            {"query-id": md5(question), "corpus-id": md5(text), "score": 1} for question, text in before
        ],
    }


def reproduce(folder: Path, *words: object, code: int = 0) -> Done:
    """Run `reproduce` in this process, by default on the release in a folder, with its output in the same folder."""
    where = ["--out", folder / "out", "--one-process"]
    if "--release" not in words:
        where += ["--release", folder / "release"]
    return run_verb("baselines", "reproduce", *where, *words, code=code)


def reported(folder: Path, *words: object) -> dict[str, Any]:
    return json.loads(reproduce(folder, *words, "--format", "json").stdout)


def planned(folder: Path, *words: object) -> list[list[str]]:
    return json.loads(reproduce(folder, "--dry-run", "--format", "json", *words).stdout)  # type: ignore[no-any-return]


class World:
    """A client of a hub: runs ``reproduce`` in a new process with only this hub and separate caches."""

    def __init__(self, hub: Hub, folder: Path, release: Path) -> None:
        self.hub, self.folder, self.release, self.out = hub, folder, release, folder / "out"

    def reproduce(
        self, *words: object, settings: str = SETTINGS, code: int = 0, loaded: Loaded | None = None, **environment: str
    ) -> Done:
        """Run `reproduce` in one process. ``settings``: the text of its settings file.

        ``loaded``: the process that forks the command. A command that asks the hub needs a ``loaded`` with this world's
        ``environment``.
        """
        start = loaded.run if loaded else partial(process, timeout=600)
        return start(*self.words(*words, settings=settings), code=code, **self.environment() | environment)

    def words(self, *words: object, settings: str = SETTINGS) -> list[str]:
        path = self.folder / "settings.toml"
        path.write_text(settings, encoding="utf-8")
        where = ["--release", self.release, "--settings", path, "--one-process"]
        if "--out" not in words:
            where += ["--out", self.out]
        return [str(word) for word in ["baselines", "reproduce", *where, *words]]

    def environment(self) -> dict[str, str]:
        own = self.hub.environment(self.folder / "home", token=None)
        wanted = {key: value for key, value in own.items() if key.startswith("HF_")}
        return wanted | {"XDG_CACHE_HOME": str(self.folder / "cache"), "HF_HUB_OFFLINE": "", "HF_TOKEN": ""}

    def commit(self, name: str) -> str:
        return self.hub.repos["model", name].commits[-1].oid

    def training(self, recipe: str) -> dict[str, Any]:
        return json.loads((self.out / "models" / recipe / "training.json").read_text("utf-8"))


def ran(done: Done) -> list[str]:
    lines = [line for line in done.stderr.splitlines() if "running: python -m baselines " in line]
    return [line.split("python -m baselines ")[1].split()[0] for line in lines]
