"""A checkpoint directory: a model that sentence-transformers loads, its recipe and the record of its training.

``recipe.json`` has every setting of the training. ``training.json`` is the record of the training, with the SHA-256 of
every other file except the card. :func:`belongs_to_model` selects the files that are pushed to the hub and pulled from
it.
"""

import json
import platform
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType, field

from builders.core.cache import wrong_sha256
from builders.core.errors import InputError
from builders.core.read_files import sha256_of
from builders.core.results import Report
from builders.core.typed import Sha256, problem_of, read_json, read_object
from builders.core.write_files import write_text

RECIPE = "recipe.json"
TRAINING = "training.json"
CARD = "README.md"
LOSSES = "loss.png"
SETTINGS = "config_sentence_transformers.json"
_MODULES = "modules.json"  # the parts of a model of sentence-transformers
_ROUTER = "router_config.json"  # present if queries have a separate encoder
_LENGTHS = "sentence_bert_config.json"
# Weights must be safetensors. Pickles and scripts are neither pushed nor pulled, because loading them may run code.
_SUFFIXES = {".json", ".safetensors", ".txt", ".model", ".png", ".jinja"}
_STATES = ("checkpoint-", "runs")  # folders of the trainer's checkpoints and of TensorBoard
_AGAIN = "pull or convert the checkpoint again, or train it again (--again)"
_HUB_NAME = re.compile(r"[\w.-]{1,96}(/[\w.-]{1,96})?")
# Of training.json; increase the number when earlier versions cannot read the file.
TRAINING_FORMAT: Literal[1] = 1
_LIBRARIES = ("torch", "transformers", "sentence-transformers", "accelerate", "tokenizers", "numpy", "pyarrow")


class _RecipeModel(Struct):
    kind: Literal["dual", "cross", "mlm", "encoder"]
    start: str = ""
    inputs: str = ""


class _Recipe(Struct):
    """The fields that are read from ``recipe.json``. :mod:`baselines.train.recipe` describes the fields."""

    model: _RecipeModel
    data: dict[str, Any] = {}
    name: str = ""


class _TrainingInputs(Struct):
    """The starting checkpoint, its commit on a hub, and the release's fingerprint by ``CONFIG/SPLIT``."""

    start: str | None = None
    start_commit: str | None = None
    data: dict[str, str] = {}


class _ConvertedFiles(Struct):
    """The inputs of `convert`: the name of the folder of parameters, and the SHA-256 of each input.

    The keys of ``sha256`` are parameters, configuration and vocabulary.
    """

    folder: str = field(name="from")
    sha256: dict[str, Sha256]


class _Training(Struct):
    """The fields that are read from ``training.json``.

    Attributes:
        about: the inputs of the training; unset for a converted checkpoint.
        converted: the inputs of `convert`; unset for a trained checkpoint.
        builds: the verbs that made the release of the training data; None without a release.
        counts: counts of the training data by name, for example ``queries``, ``negatives`` and ``left_out``.
        versions: the versions of Python and of the libraries.
        dev: for each evaluation, its ``step`` and the scores by name; None if there was no training.
        dev_run: ``name`` and ``sha256`` of the run whose passages were re-ranked in evaluations, if any.
        files: the SHA-256 of each file by name.
    """

    format: Literal[1] = TRAINING_FORMAT  # development versions wrote no format
    about: _TrainingInputs | UnsetType = UNSET
    converted: _ConvertedFiles | UnsetType = UNSET
    builds: list[str] | None = None
    counts: dict[str, int] = {}
    versions: dict[str, str] = {}
    dev: list[dict[str, float]] | None = None
    dev_run: dict[str, str] | None = None
    # All files except the card; added when the checkpoint is complete.
    files: dict[str, Sha256] = {}


class _Settings(Struct):
    """The fields that are read from configuration files of the libraries."""

    prompts: dict[str, str | None] = {}
    # Transformers' default.
    id2label: dict[str, str] = field(default_factory=lambda: {"0": "", "1": ""})
    model_max_length: int | float | None = None
    document_length: int | None = None
    tokenizer_class: str | None = None


def belongs_to_model(name: str) -> bool:
    """True for files that load or describe the model. False for training states, scripts, pickles and hidden files.

    ``name`` is the file's path relative to the checkpoint. The card and files with unsafe names are excluded, too.
    """
    path = PurePosixPath(name)
    return (
        path.suffix in _SUFFIXES
        and path.name != "trainer_state.json"
        and not any(folder.startswith((".", *_STATES)) for folder in path.parts[:-1])
        and not path.name.startswith(".")
        and not problem_of(name)
    )


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint directory with the contents of its ``recipe.json`` and ``training.json``, and facts for its card.

    Attributes:
        kind: dual, cross, mlm or encoder. `convert` writes an encoder as a starting checkpoint.
        start: the starting checkpoint: a hub name, the name of a folder, ``scratch`` or ``words``.
        hub_start: name and recorded commit of a starting checkpoint on the hub. None for other starting checkpoints.
        converted: the inputs from which `convert` wrote this checkpoint: ``from``, the name of the folder of
            parameters, and ``sha256``, the hash of each input by its role. Empty for a trained checkpoint.
        towers: number of encoders of a dual-encoder: 1, or 2 if queries have a separate encoder.
        is_static: True for a static model, which has one vector per token and never truncates texts.
        needs: the lowest version of sentence-transformers that reproduces a dual-encoder's results, and the reason.
        prompts: the non-empty prompts, by their names in the library.
        plain_length: tokens at which a plain ``encode()`` truncates queries and passages. None if this is the length of
            passages.
        outputs: number of outputs of a cross-encoder. ``config.json`` omits transformers' default of two.
        transformers: the lowest tested version of transformers that reads the tokenizer.
        reads_officially: True if the tokenizers produce the official code's inputs.
    """

    path: Path
    recipe: dict[str, Any]
    training: dict[str, Any]
    kind: str
    start: str
    hub_start: tuple[str, str | None] | None
    converted: dict[str, Any]
    towers: int
    is_static: bool
    needs: tuple[str, str]
    prompts: dict[str, str]
    plain_length: float | None
    outputs: int
    transformers: str
    reads_officially: bool

    def files(self) -> tuple[list[str], list[str]]:
        """Return (files to push, other files) as sorted relative paths. The card is omitted, because push replaces it.

        Raises :class:`InputError` for a link, because its target may be outside the checkpoint.
        """
        names = _file_names(self.path)
        pushed_names = [name for name in names if belongs_to_model(name)]
        for name in pushed_names:
            file_path = self.path / name
            if file_path.resolve() != self.path.resolve() / name:
                raise InputError(
                    f"is a link to {file_path.resolve()}; copy the checkpoint with `cp -rL`", path=file_path
                )
        return pushed_names, [name for name in names if not belongs_to_model(name) and name != CARD]


@dataclass(frozen=True)
class WrittenCheckpoint:
    """A checkpoint directory that a verb has written. Functions that take a path accept this object, too.

    Attributes:
        path: the directory.
        report: the summary that the command line prints. None if nothing is printed.
    """

    path: Path
    report: Report | None = None

    def __fspath__(self) -> str:
        return str(self.path)

    def open(self) -> Checkpoint:
        """Return the contents of the checkpoint's recipe and training record. Raises :class:`InputError`."""
        return open_checkpoint(self.path)


def _file_names(folder: Path) -> list[str]:
    """Return the relative paths of all files in a folder, sorted as texts."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def files_sha256(folder: Path, is_selected: Callable[[str], bool]) -> dict[str, str]:
    """Return the SHA-256 of each file in ``folder`` whose relative path is selected, by sorted path."""
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    hashes: dict[str, str] = {}
    for path in paths:
        name = path.relative_to(folder).as_posix()
        if is_selected(name):
            hashes[name] = sha256_of(path)
    return hashes


def left_out(folder: Path, need: bool = False) -> str:
    """Return the value of ``data.leave_out`` in a checkpoint's recipe, or "" for a model without such a recipe.

    With ``need``, raise :class:`InputError` for a checkpoint that was trained on all questions of a release.
    """
    if not (folder / RECIPE).is_file():
        return ""
    recipe = read_json(folder / RECIPE, _Recipe)
    left_out_questions = str(recipe.data.get("leave_out", ""))
    # Other kinds of models, and other sources, have no training questions of the release.
    learns_questions = recipe.model.kind in ("dual", "cross") and recipe.data.get("source") == "release"
    if need and learns_questions and not left_out_questions:
        raise InputError("was trained on the tuning questions; train it with data.leave_out=tuning", path=folder)
    return left_out_questions


def read_library_versions() -> dict[str, str]:
    """Return the versions of Python and of the libraries that affect a training."""
    from importlib import metadata

    library_versions = {"python": platform.python_version()}
    for library in _LIBRARIES:
        library_versions[library] = metadata.version(library)
    return library_versions


def write_json(path: Path, content: dict[str, Any]) -> None:
    """Write a JSON file of a checkpoint."""
    write_text(path, json.dumps(content, ensure_ascii=False, indent=1) + "\n")


def write_needs(folder: Path) -> None:
    """Write the required version of sentence-transformers into a dual-encoder's configuration.

    From 6.0.0 on, the library checks this entry before it opens a model. A version that is too low raises an error
    instead of computing other vectors. A static model has no transformer and no lengths, and needs no entry.
    """
    checkpoint = open_checkpoint(folder)
    # With two towers, each tower has its file of lengths in a subfolder.
    has_lengths = checkpoint.towers == 2 or (folder / _LENGTHS).is_file()
    if checkpoint.kind != "dual" or not has_lengths:
        return
    version, reason = checkpoint.needs
    settings = read_object(folder / SETTINGS, _Settings)
    settings["requirements"] = {"sentence-transformers": {"specifier": f">={version}", "reason": f"({reason})"}}
    # The library's own format: two spaces, no line end.
    write_text(folder / SETTINGS, json.dumps(settings, ensure_ascii=False, indent=2))


def write_hashes(folder: Path) -> None:
    """Add the SHA-256 of every other file of the model to the ``training.json`` of a new checkpoint.

    All files also get the mode of a new file. Some libraries write weights that only their owner may read.
    """
    hashes = files_sha256(folder, lambda name: belongs_to_model(name) and name != TRAINING)
    training = read_object(folder / TRAINING, _Training)
    write_json(folder / TRAINING, training | {"files": hashes})
    # The record was just written with the mode that the user's umask gives.
    mode_of_new_files = stat.S_IMODE((folder / TRAINING).stat().st_mode)
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode_of_new_files)


def checkpoint_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of the model by its name, as the checkpoint's ``training.json`` lists them."""
    return dict(read_json(folder / TRAINING, _Training).files)


def check_hashes(folder: Path) -> None:
    """Raise :class:`InputError` for the first file that is missing or differs from its SHA-256 in ``training.json``.

    Models of other projects, and checkpoints that are being written, have no hashes and are not checked.
    """
    if not ((folder / RECIPE).is_file() and (folder / TRAINING).is_file()):
        return
    # Files without a hash are not checked, for example the card, which push replaces.
    for name, sha256 in read_json(folder / TRAINING, _Training).files.items():
        # The record may come from a hub, so an unsafe name is not opened.
        if not belongs_to_model(name):
            raise InputError(f"files: lists {name}, which is no file of a checkpoint; {_AGAIN}", path=folder / TRAINING)
        if not (folder / name).is_file():
            raise InputError(f"is missing, but {TRAINING} names it; {_AGAIN}", path=folder / name)
        if wrong_sha256(folder / name, sha256):
            raise InputError(f"SHA-256 differs from {TRAINING}; {_AGAIN}", path=folder / name)


def open_checkpoint(path: Path) -> Checkpoint:
    """Open a checkpoint directory. Raises :class:`InputError` for another directory, or missing or damaged files."""
    recipe = _read_record(path, RECIPE, _Recipe)
    training = _read_record(path, TRAINING, _Training)
    check_hashes(path)
    _expect_weights(path)
    kind = str(recipe["model"]["kind"])
    converted = training.get("converted", {})
    training_inputs = training.get("about", {})
    start = str(training_inputs.get("start") or "")
    tokenizer = _read_settings(path, "tokenizer_config.json")
    # A plain encode() truncates all texts at the tokenizer's length.
    plain_length = None
    if _read_settings(path, _LENGTHS).document_length not in (None, tokenizer.model_max_length):
        plain_length = tokenizer.model_max_length
    has_two_towers = (path / _ROUTER).is_file()
    # `convert` writes dual- and cross-encoders of the official code with tokenizers that produce its inputs.
    is_converted_model = bool(converted) and kind != "encoder"
    is_static = _is_static(path)
    prompts = _read_settings(path, SETTINGS).prompts
    return Checkpoint(
        path,
        recipe,
        training,
        kind=kind,
        start=start or str(recipe["model"].get("start", "")),
        hub_start=_hub_start(start, training_inputs.get("start_commit")),
        converted=converted,
        towers=2 if has_two_towers else 1,
        is_static=is_static,
        needs=_required_version(is_static, has_two_towers),
        prompts={name: prompt for name, prompt in prompts.items() if prompt},
        plain_length=plain_length,
        outputs=len(_read_settings(path, "config.json").id2label),
        # TokenizersBackend is a class of transformers 5.
        transformers="5.0" if tokenizer.tokenizer_class == "TokenizersBackend" else "4.57",
        reads_officially=is_converted_model or recipe["model"].get("inputs") == "official",
    )


def _expect_weights(path: Path) -> None:
    """Raise :class:`InputError` for a directory without weights or without a configuration of the model."""
    weight_names = [file.relative_to(path).as_posix() for file in path.rglob("*.safetensors")]
    has_weights = any(belongs_to_model(name) for name in weight_names)
    has_config = (path / _MODULES).is_file() or (path / "config.json").is_file()
    if not has_weights or not has_config:
        raise InputError(
            "not a checkpoint (no model.safetensors with its config); is the training unfinished?", path=path
        )


def _hub_start(start: str, commit: str | None) -> tuple[str, str | None] | None:
    """Return name and commit of a starting checkpoint on the hub, or None for another starting checkpoint.

    `train` records only the last part of a folder's path, so a name with a slash is a name on the hub. A name without a
    slash, for example bert-base-chinese, is a name on the hub if a commit was recorded.
    """
    if _HUB_NAME.fullmatch(start) and (commit or "/" in start):
        return start, commit
    return None


def _is_static(path: Path) -> bool:
    """True for a model with one vector per token."""
    if not (path / _MODULES).is_file():
        return False
    modules = read_json(path / _MODULES, list[dict[str, Any]])
    return any(".StaticEmbedding" in str(module.get("type")) for module in modules)


def _required_version(is_static: bool, has_two_towers: bool) -> tuple[str, str]:
    """Return the lowest version of sentence-transformers that reproduces the results, and the reason."""
    if is_static:
        return "6.0.0", "earlier versions were not tested"
    if has_two_towers:
        return "6.0.1", "6.0.0 truncates queries at the length of passages"
    return "6.0.0", "earlier versions have no separate lengths of queries and passages"


def _read_settings(path: Path, name: str) -> _Settings:
    """Return the settings of a configuration file. A missing file has the defaults."""
    if (path / name).is_file():
        return read_json(path / name, _Settings)
    return _Settings()


def _read_record(path: Path, name: str, fields: type[Struct]) -> dict[str, Any]:
    """Return the whole content of a checkpoint's JSON file. Only the fields that ``fields`` declares are checked."""
    try:
        return read_object(path / name, fields)
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"not a checkpoint (no {name}); make one by `python -m baselines train`", path=path) from None
