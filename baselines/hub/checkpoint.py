"""A checkpoint directory, opened: a model that sentence-transformers loads, beside what it was trained with and on.

``recipe.json`` is the resolved recipe, ``training.json`` the record of the training, with the SHA-256 of every other
file. What of a checkpoint goes to the hub, and comes back from there, is decided here, too.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from builders.core.cache import wrong_sha256
from builders.core.errors import InputError
from builders.core.files import sha256_of, write_text
from builders.core.typed import Sha256, problem_of, read_json, read_object

RECIPE, TRAINING, CARD = "recipe.json", "training.json", "README.md"
SETTINGS = "config_sentence_transformers.json"
# Weights are safetensors alone: no pickle, which may run code when it is loaded, and no script, leaves or enters.
_SUFFIXES = {".json", ".safetensors", ".txt", ".model", ".png", ".jinja"}
_STATES = ("checkpoint-", "runs")  # folders of the trainer's states and of TensorBoard
_STATE_FILES = {"trainer_state.json"}
_AGAIN = "pull or convert the checkpoint again, or train it again (--no-resume)"
_HUB = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")  # a model's name there


class _Model(Struct):
    kind: Literal["dual", "cross", "mlm", "encoder"]
    start: str = ""
    inputs: str = ""


class _Data(Struct):
    set: str = "main"


class _Recipe(Struct):
    """What is asked of ``recipe.json``: later versions of the project may write more."""

    model: _Model
    data: _Data | UnsetType = UNSET
    name: str = ""


class _About(Struct):
    start: str | None = None
    start_commit: str | None = None
    data: dict[str, str] = {}


class _Converted(Struct):
    folder: str = field(name="from")
    sha256: dict[str, Sha256]


class _DevRun(Struct):
    name: str


class _Training(Struct):
    """What is asked of ``training.json``, where it is there."""

    about: _About | UnsetType = UNSET
    converted: _Converted | UnsetType = UNSET
    builds: list[str] | None = None
    counts: dict[str, int] = {}
    versions: dict[str, str] = {}
    dev: list[dict[str, float]] | None = None
    dev_run: _DevRun | None = None


class _Hashes(Struct):
    """The SHA-256 of every file but the card, in ``training.json``; checkpoints of earlier versions have none."""

    files: dict[str, Sha256] = {}


class _Settings(Struct):
    """What is asked of the libraries' own files, where it is there."""

    prompts: dict[str, str | None] = {}
    id2label: dict[str, str] = field(default_factory=lambda: {"0": "", "1": ""})  # transformers' default
    model_max_length: int | float | None = None
    document_length: int | None = None
    tokenizer_class: str | None = None


class _Module(Struct):
    """A module of a SentenceTransformer, as ``modules.json`` lists it."""

    type: str


@dataclass(frozen=True)
class Checkpoint:
    """``recipe`` and ``training`` are the two files' contents."""

    path: Path
    recipe: dict[str, Any]
    training: dict[str, Any]

    @property
    def converted(self) -> dict[str, Any]:
        """Of a model that `convert` wrote: from which folder, and the SHA-256 of what it was read from. Else empty."""
        return dict(self.training.get("converted", {}))

    @property
    def kind(self) -> str:
        """dual, cross, mlm, or encoder: one that `convert` wrote, for a training to start from."""
        return str(self.recipe["model"]["kind"])

    @property
    def start(self) -> str:
        """What the weights were before: a hub name, the name of a folder, ``scratch`` or ``words``."""
        return str(self.training.get("about", {}).get("start") or self.recipe["model"].get("start", ""))

    @property
    def hub_start(self) -> tuple[str, str | None] | None:
        """The name of a start on the hub, and its commit where that was recorded; None for any other start."""
        about = self.training.get("about", {})
        start, commit = str(about.get("start") or ""), about.get("start_commit")
        # Of a folder, `train` records the name alone: what has a slash was fetched. A recipe may name any path.
        return (start, commit) if _HUB.fullmatch(start) and (commit or "/" in start) else None

    @property
    def towers(self) -> int:
        """A dual-encoder's encoders: 1, or 2 where queries have one of their own."""
        return 2 if (self.path / "router_config.json").is_file() else 1

    @property
    def is_static(self) -> bool:
        """Whether it has one vector a word, and no transformer that would cut texts."""
        modules = self.path / "modules.json"
        return modules.is_file() and any(".StaticEmbedding" in m.type for m in read_json(modules, list[_Module]))

    @property
    def plain_length(self) -> float | None:
        """Where a plain ``encode()`` cuts texts, in tokens, if that is not where passages are cut; None if it is."""
        plain = self._settings("tokenizer_config.json").model_max_length
        return None if self._settings("sentence_bert_config.json").document_length in (None, plain) else plain

    @property
    def outputs(self) -> int:
        """A cross-encoder's outputs, by its ``config.json``, which leaves out transformers' default of two."""
        return len(self._settings("config.json").id2label)

    @property
    def transformers(self) -> str:
        """The lowest version of transformers that was tried and reads its tokenizer."""
        return "5.0" if self._settings("tokenizer_config.json").tokenizer_class == "TokenizersBackend" else "4.57"

    @property
    def prompts(self) -> dict[str, str]:
        """What is put before queries and passages, by the library's names; without empty ones."""
        prompts = self._settings(SETTINGS).prompts
        return {name: prompt for name, prompt in prompts.items() if prompt}

    @property
    def reads_officially(self) -> bool:
        """Whether its tokenizers make the official code's inputs."""
        return self.recipe["model"].get("inputs") == "official" or bool(self.converted and self.kind != "encoder")

    def _settings(self, name: str) -> _Settings:
        """A file of the libraries; the defaults where there is none."""
        return read_json(self.path / name, _Settings) if (self.path / name).is_file() else _Settings()

    def files(self) -> tuple[list[str], list[str]]:
        """(what is pushed, what is not): paths in the directory, sorted. Not the card: push writes one.

        :class:`InputError` where one of them is a link: what it leads to may be no part of the model.
        """
        names = sorted(p.relative_to(self.path).as_posix() for p in self.path.rglob("*") if p.is_file())
        pushed = [name for name in names if belongs(name)]
        for name in pushed:
            if (file := self.path / name).resolve() != self.path.resolve() / name:
                problem = (
                    f"is a link to {file.resolve()}; expected a file of the checkpoint itself (`cp -rL` makes one)"
                )
                raise InputError(problem, path=file)
        return pushed, sorted({*names} - {*pushed} - {CARD})


def belongs(name: str) -> bool:
    """Whether a file is needed to load or understand the model; states, scripts, pickles and hidden files are not."""
    path = PurePosixPath(name)
    return (
        path.suffix in _SUFFIXES
        and path.name not in _STATE_FILES
        and not any(folder.startswith((".", *_STATES)) for folder in path.parts[:-1])
        and not path.name.startswith(".")
        and not problem_of(name)
    )


def write_hashes(folder: Path) -> None:
    """Add the SHA-256 of every file to the ``training.json`` of a checkpoint that is written, but for its card."""
    names = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    hashes = {name: sha256_of(folder / name) for name in names if belongs(name) and name != TRAINING}
    training = read_object(folder / TRAINING, _Training) | {"files": hashes}
    write_text(folder / TRAINING, json.dumps(training, ensure_ascii=False, indent=1) + "\n")


def check_hashes(folder: Path) -> None:
    """Raise :class:`InputError` for the first file that is not as ``training.json`` has it.

    Another's model, and a checkpoint of an earlier version, have no hashes: nothing of them is checked.
    """
    if not ((folder / RECIPE).is_file() and (folder / TRAINING).is_file()):
        return
    for name, sha256 in read_json(folder / TRAINING, _Hashes).files.items():
        if not belongs(name):
            raise InputError(f"files: names {name}, which no checkpoint of ours holds", path=folder / TRAINING)
        if not (folder / name).is_file():
            raise InputError(f"is missing, but {TRAINING} names it; {_AGAIN}", path=folder / name)
        if wrong_sha256(folder / name, sha256):
            raise InputError(f"SHA-256 differs from {TRAINING}; {_AGAIN}", path=folder / name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint directory. Raises :class:`InputError` where it is none, or a file is missing or damaged."""
    recipe, training = _read(path, RECIPE, _Recipe), _read(path, TRAINING, _Training)
    check_hashes(path)
    _check_weights(path)
    return Checkpoint(path, recipe, training)


def _read(path: Path, name: str, kind: type[Struct]) -> dict[str, Any]:
    """Everything in a file of the checkpoint, of which what is asked for is as ``kind`` says."""
    try:
        return read_object(path / name, kind)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"not a checkpoint (no {name}); `python -m baselines train` makes one", path=path) from None


def _check_weights(path: Path) -> None:
    from safetensors import SafetensorError, safe_open

    weights = [found for found in sorted(path.rglob("*.safetensors")) if belongs(found.relative_to(path).as_posix())]
    if not weights or not any((path / name).is_file() for name in ("modules.json", "config.json")):
        raise InputError("not a checkpoint (no model.safetensors with its config); is it still in training?", path=path)
    for file in weights:
        try:
            with safe_open(file, framework="numpy") as opened:
                opened.keys()
        except (SafetensorError, OSError) as error:
            raise InputError(f"is damaged or cut short ({error}); train it again", path=file) from None
