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
ENGLISH = {question: f"Question {number} in English" for number, question in enumerate(list(TRAIN) + list(DEV))}
# The vocabulary of the tiny models.
TEXTS = PASSAGES + list(TRAIN) + list(DEV) + list(ENGLISH.values())


def make_paper_release(path: Path) -> None:
    """Import the tiny official archives by `builders official`, and add the other sets."""
    archives = write_files(path.with_name(f"{path.name}-archives"), BOTH)
    build_from_archives([archives], path)
    with draft_release(path, BUILD, open_release(path)) as draft:
        for (config, split), rows in _other_sets().items():
            draft.write(config, split, [pa.Table.from_pylist(rows, schema_of(config))])


Tables = dict[tuple[str, str], list[dict[str, Any]]]


def _query_rows(questions: list[str]) -> list[dict[str, Any]]:
    return [{"_id": md5(question), "text": question} for question in questions]


def _other_sets() -> Tables:
    """Return the rows of the other sets by config and split."""
    rows: Tables = {}
    for name in ("cmedqa", "ccovid"):
        texts = [f"{name} {text}" for text in PASSAGES[:8]]
        rows[f"{name}-corpus", "corpus"] = [{"_id": md5(text), "title": "", "text": text} for text in texts]
        for split, split_texts in (("train", texts[:4]), ("test", texts[4:])):
            # A question is the six characters of its passage after the set's name.
            questions = [f"{text[7:13]} {name}" for text in split_texts]
            rows[f"{name}-queries", split] = _query_rows(questions)
            rows[f"{name}-qrels", split] = [
                {"query-id": md5(question), "corpus-id": md5(text), "score": 1}
                for question, text in zip(questions, split_texts, strict=True)
            ]
    for split, chinese_questions in (("train", TRAIN), ("dev", DEV)):
        rows["crosslingual-queries", split] = [
            {"_id": md5(ENGLISH[chinese]), "text": ENGLISH[chinese], "zh_id": md5(chinese)}
            for chinese in chinese_questions
        ]
    return rows | _quality_sets()


def _quality_sets() -> Tables:
    """Return the rows of the configs about similar questions and about the judgments before their correction."""
    first_question = next(iter(DEV))
    similar_question = f"{first_question}？"
    positive_text = PASSAGES[DEV[first_question][0]]
    similar_row = {
        "query_id": md5(similar_question),
        "query": similar_question,
        "negative_passages": [],
        "positive_passages": [{"docid": md5(positive_text), "title": "", "text": positive_text}],
    }
    judgments_before = []
    for question, positions in DEV.items():
        passage_id = md5(PASSAGES[positions[-1]])
        judgments_before.append({"query-id": md5(question), "corpus-id": passage_id, "score": 1})
    return {
        ("train-similar", "train"): [similar_row],
        ("duplicated", "dev"): _query_rows([first_question]),
        ("others", "dev"): _query_rows(list(DEV)[1:]),
        ("qrels-before", "dev"): judgments_before,
    }


def reproduce(folder: Path, *words: object, code: int = 0) -> Done:
    """Run `reproduce` in this process, by default on the release in a folder, with its output in the same folder."""
    path_options = ["--out", folder / "out", "--one-process"]
    if "--release" not in words:
        path_options += ["--release", folder / "release"]
    return run_verb("baselines", "reproduce", path_options, words, code=code)


def reported(folder: Path, *words: object) -> dict[str, Any]:
    """Run `reproduce` as :func:`reproduce` does, and return its report."""
    return json.loads(reproduce(folder, *words, "--format", "json").stdout)


def planned(folder: Path, *words: object) -> list[list[str]]:
    """Return the commands that `reproduce` would run."""
    return json.loads(reproduce(folder, "--dry-run", "--format", "json", *words).stdout)  # type: ignore[no-any-return]


class World:
    """A client of a hub: runs ``reproduce`` in a new process with only this hub and separate caches."""

    def __init__(self, hub: Hub, folder: Path, release: Path) -> None:
        self.hub = hub
        self.folder = folder
        self.release = release
        self.out = folder / "out"

    def reproduce(
        self, *words: object, settings: str = SETTINGS, code: int = 0, loaded: Loaded | None = None, **environment: str
    ) -> Done:
        """Run `reproduce` in one process. ``settings``: the text of its settings file.

        ``loaded``: the process that forks the command. A command that asks the hub needs a ``loaded`` with this world's
        ``environment``.
        """
        run_command = loaded.run if loaded else partial(process, timeout=600)
        command_words = self.words(*words, settings=settings)
        variables = self.environment() | environment
        return run_command(*command_words, code=code, **variables)

    def words(self, *words: object, settings: str = SETTINGS) -> list[str]:
        """Return the words of a call of `reproduce`, and write its settings file."""
        settings_path = self.folder / "settings.toml"
        settings_path.write_text(settings, encoding="utf-8")
        path_options = ["--release", self.release, "--settings", settings_path, "--one-process"]
        if "--out" not in words:
            path_options += ["--out", self.out]
        return [str(word) for word in ["baselines", "reproduce", *path_options, *words]]

    def environment(self) -> dict[str, str]:
        """Return the variables of a process that knows only this hub."""
        hub_variables = self.hub.environment(self.folder / "home", token=None)
        variables = {name: value for name, value in hub_variables.items() if name.startswith("HF_")}
        return variables | {"XDG_CACHE_HOME": str(self.folder / "cache"), "HF_HUB_OFFLINE": "", "HF_TOKEN": ""}

    def commit(self, name: str) -> str:
        """Return the id of the last commit of a model's repository."""
        return self.hub.repos["model", name].commits[-1].oid

    def training(self, recipe: str) -> dict[str, Any]:
        """Return the record of the training with a recipe."""
        return json.loads((self.out / "models" / recipe / "training.json").read_text("utf-8"))


def ran(done: Done) -> list[str]:
    """Return the verbs that `reproduce` has run, from its log."""
    verbs = []
    for line in done.stderr.splitlines():
        _, separator, command_words = line.partition("running: python -m baselines ")
        if separator:
            verbs.append(command_words.split()[0])
    return verbs
