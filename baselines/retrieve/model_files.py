"""Describe a model as an input of a verb by its files or its commit. This module imports no model library."""

from pathlib import Path, PurePosixPath

from baselines.core.checkpoint import TRAINING
from baselines.core.endpoint_options import SHARING_OPTIONS
from baselines.retrieve.hub_models import model_commit, name_of_folder
from builders.core.cache import cached_sha256
from builders.core.errors import InputError
from builders.core.finished_outputs import UNKNOWN, VerbInput
from builders.core.read_files import convert_read_errors

# Files that the libraries read: weights, configs, tokenizers, chat templates, and a model's own Python code.
_SUFFIXES = {".safetensors", ".bin", ".json", ".txt", ".model", ".tiktoken", ".jinja", ".py"}
# Records of a training, which change when an equal model is trained again.
_LOGS = {TRAINING, "trainer_state.json", "training_args.bin", "optimizer.bin", "all_results.json"}
_LOG_FOLDERS = ("checkpoint-", "runs")
# Options that change no result. Tokenising processes, machines of a cluster and requests only share the work. An index
# is a directory for encodings, which depend on the model alone. The other options of a computation are recorded,
# because the device, the precision, the backend and the sizes of batches change at least the last digits of scores.
UNCHANGING = ("tokenizers", "parallel", "index", "engine", "ray_address", "task_cpus", *SHARING_OPTIONS)


def shown_name(model_name: str) -> str:
    """Return a model's name without local paths: a hub name, or the last part of a directory's path.

    A folder of the hub's cache has the name of its model on the hub.
    """
    path = Path(model_name)
    return name_of_folder(path.resolve()) if path.exists() else model_name


def model_input(model_name: str, revision: str = "", other_advice: str = "a directory needs no hub") -> VerbInput:
    """Describe a model: the files of a folder that affect the model's outputs, or the commit of a model on the hub.

    If the commit cannot be determined, the hash is :data:`.finished_outputs.UNKNOWN`, and the result has the error.
    ``other_advice`` is the advice at the end of the error.
    """
    label = f"the model {model_name}"
    if Path(model_name).is_dir():
        return VerbInput(label, model_hashes(Path(model_name)))
    try:
        return VerbInput(label, {"commit": model_commit(model_name, revision, other_advice) or UNKNOWN})
    except InputError as error:
        return VerbInput(label, {"commit": UNKNOWN}, error)


def model_hashes(model_folder: Path) -> dict[str, str]:
    """Return the SHA-256 of each file of a model that the libraries read, by relative path."""
    hashes = {}
    for path in sorted(model_folder.rglob("*")):
        relative_name = path.relative_to(model_folder).as_posix()
        if path.is_file() and _is_read(PurePosixPath(relative_name)):
            with convert_read_errors(path):
                hashes[relative_name] = cached_sha256(path)
    return hashes


def device_kind(device_option: str | None) -> str:
    """Return the kinds of the devices that ``--device`` selects, joined by commas, or "default" without the option.

    The kind of cuda:1 is cuda. The numbers and the order of devices change no result, so a record has only the kinds.
    """
    if device_option is None:
        return "default"
    device_kinds = {device_name.partition(":")[0] for device_name in device_option.split(",")}
    return ",".join(sorted(device_kinds))


def _is_read(path: PurePosixPath) -> bool:
    """True for a file that the libraries read, by its path in the model's folder."""
    if path.suffix not in _SUFFIXES or path.name in _LOGS or path.name.startswith("."):
        return False
    return not any(folder.startswith((".", *_LOG_FOLDERS)) for folder in path.parts[:-1])
