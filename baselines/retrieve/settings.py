"""Model settings, and the options of every command that runs a model. Loads no model library."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from builders.core.command import whole_number

PRECISIONS = ("fp32", "fp16", "bf16")


class Overrides(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings in the place of those in the model's own files, as a manifest records them. None or empty: the model's.

    Attributes:
        query_prompt, passage_prompt: put before every text; an empty string puts nothing there.
        prompt_name: the prompt of the model's own that is put before queries, where ``query_prompt`` is None.
        pooling: how a dual-encoder makes one vector of a text's: mean, cls, lasttoken ..., as sentence-transformers
            calls it.
        last_token: ends every text, as its text, or "eos_token" for the tokenizer's own: put there where the tokenizer
            does not.
        truncate_dim: the first dimensions of an embedding that are kept.
        normalize: True if embeddings have unit length.
        similarity: cosine or dot.
    """

    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str = ""
    pooling: str | None = None
    last_token: str | None = None
    truncate_dim: Annotated[int, Meta(ge=1)] | None = None
    normalize: bool | None = None
    similarity: str | None = None


class ModelSettings(Overrides, frozen=True):
    """A model, and all that decides what it computes.

    Attributes:
        name: a hub name or a directory.
        revision: of a model on the hub (:func:`.hub_models.commit_of`).
        max_length: tokens that a text is cut to, prompt included, where the model would keep more.
        trust_remote_code: True if Python code of the model's own repository may run.
    """

    name: str
    revision: str = ""
    max_length: int | None = None
    trust_remote_code: bool = False

    def overrides(self) -> dict[str, Any]:
        """The :class:`Overrides` that were given, for a manifest."""
        values = [(name, getattr(self, name)) for name in Overrides.__struct_fields__]
        return {key: value for key, value in values if value is not None and (value != "" or "_prompt" in key)}


DEVICE = ("--device", "--dtype")  # of every command that runs a model
PAIRS = ("--max-length", "--batch-tokens", "--tokenizers", "--revision")  # and that sends many texts through it
# The options that several commands share; a command that gives an option of its own another default has it itself.
_OPTIONS: dict[str, dict[str, Any]] = {
    "--release": {"type": Path, "required": True, "metavar": "DIR", "help": "the release directory"},
    "--split": {"default": "dev", "help": "whose queries (default: dev)"},
    "--out": {"type": Path, "required": True, "metavar": "RUN", "help": "the run; gzipped where it ends in .gz"},
    "--top-k": {"type": whole_number(1), "default": 50, "metavar": "K", "help": "passages a query (default: 50)"},
    "--max-length": {
        "type": whole_number(4),
        "metavar": "N",
        "help": "tokens of a text or pair (default: the model's)",
    },
    "--revision": {
        "default": "",
        "metavar": "R",
        "help": "of a model on the hub: a commit, tag or branch (default: main)",
    },
    "--trust-remote-code": {
        "action": "store_true",
        "help": "run Python code of the model's own repository (default: never)",
    },
    "--batch-tokens": {
        "type": whole_number(1),
        "metavar": "N",
        "help": "tokens of a batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)",
    },
    "--tokenizers": {
        "type": whole_number(0),
        "metavar": "N",
        "help": "processes a device that tokenise (default: on GPUs their share of the cores, at most 8; else 0)",
    },
    "--device": {
        "metavar": "D[,D...]",
        "help": "cpu, cuda, cuda:1, or several with commas: a process each (default: every GPU there is, else cpu)",
    },
    "--dtype": {
        "choices": ["auto", *PRECISIONS],
        "default": "auto",
        "help": "precision of the model; its head is always in fp32 (default: fp16 on a GPU, fp32 on a CPU)",
    },
}


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Options that several commands share, by their names."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])
