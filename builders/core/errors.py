"""Errors of a command: one line that names the file, the line and what was expected; missing libraries; the log."""

from __future__ import annotations

import logging
import re
from pathlib import Path

log = logging.getLogger("dureader_retrieval")
_LONGEST = 4_000  # characters of an error, which may quote what it found
# What would break a line, what a terminal takes for orders, and halves of characters.
_BREAKS = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


def visible(text: str) -> str:
    """A text of others as one line that a terminal shows and does not obey: control characters by their escapes."""
    return _BREAKS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


class InputError(Exception):
    """The input or the data is wrong. Printed as one line; the command exits with 1.

    The message names the file, the line where there is one, and what was expected. Of what it quotes, line ends and
    control characters are shown as escapes, so that it is one line.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        shown = visible(where + message)
        super().__init__(shown if len(shown) <= _LONGEST else f"{shown[:_LONGEST]}...")


class Unfinished(InputError):
    """Stopped by something else than the input (a killed worker, the network): the same command goes on from there."""


# The smallest group that has a library, with the modules that are imported of it.
_GROUPS = {
    "builders": "duckdb filelock huggingface_hub jieba jinja2 matplotlib msgspec numba numpy pyarrow rensa "
    "rjieba scipy statsmodels tomli tqdm yaml",
    "baselines": "faiss ir_measures",
    "models": "accelerate sentence_transformers sklearn torch transformers",
    "ray": "ray",
    "elasticsearch": "elasticsearch",
    "judge": "openai",
    "space": "gradio",
}


def install(group: str) -> str:
    """Return the command that installs a group in a checkout."""
    return f"pip install -c constraints.txt -e . --group {group}"


def group_of(module: str) -> str:
    """The group that brings a module; empty where none does."""
    package = module.partition(".")[0]
    return next((group for group, modules in _GROUPS.items() if package in modules.split()), "")
