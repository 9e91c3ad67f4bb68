"""Settings of models, and options that several verbs share. This module imports no model library."""

import argparse
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from builders.core.command import whole_number


class Overrides(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that override the model's files. The model's own setting applies if a value is None.

    Attributes:
        query_prompt, passage_prompt: text put before every query or passage. "" removes the model's prompt.
        prompt_name: name of the model's prompt for queries. Used if ``query_prompt`` is None. "" means unset.
        pooling: pooling mode of a dual-encoder, by its name in sentence-transformers: mean, cls, lasttoken ...
        last_token: token to end every text with, or "eos_token" for the tokenizer's end token.
        truncate_dim: number of dimensions to use. The last dimensions are dropped.
        normalize: True to scale embeddings to unit length.
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
    """A model and every setting that affects its output.

    Attributes:
        name: a hub name or a directory.
        revision: commit, tag or branch of a model on the hub ("": main).
        max_length: largest number of tokens of a text or pair, prompt included, if the model allows that many.
        trust_remote_code: True to allow Python code of the model's repository to run.
    """

    name: str
    revision: str = ""
    max_length: int | None = None
    trust_remote_code: bool = False

    def overrides(self) -> dict[str, Any]:
        """Return all overrides with a value, for a manifest."""
        values = [(name, getattr(self, name)) for name in Overrides.__struct_fields__]
        return {key: value for key, value in values if value is not None and (value != "" or "_prompt" in key)}


@dataclass(frozen=True)
class ModelOptions:
    """The options of a verb that say how a model is used. None, or an empty text, is an option that was not given.

    :func:`baselines.retrieve.families.resolve` chooses between the options, the model's family and the model's files.

    Attributes:
        family: name of a family in models.toml, or "none".
        query_prompt, passage_prompt, prompt_name, pooling, truncate_dim, normalize, similarity: see
            :class:`Overrides`.
        max_length, revision, trust_remote_code: see :class:`ModelSettings`.
        kind: kind of model, if the model's files shall not determine the kind.
    """

    family: str | None = None
    query_prompt: str | None = None
    passage_prompt: str | None = None
    prompt_name: str | None = None
    pooling: str | None = None
    truncate_dim: int | None = None
    normalize: bool | None = None
    similarity: str | None = None
    max_length: int | None = None
    revision: str = ""
    trust_remote_code: bool = False
    kind: str | None = None

    def overrides(self) -> dict[str, Any]:
        """Return the given options that override the model's files, by their names."""
        values = [(name, getattr(self, name, None)) for name in Overrides.__struct_fields__]
        return {name: value for name, value in values if value is not None}


NO_OPTIONS = ModelOptions()
DEVICE = ("--device", "--dtype")  # options of every verb that runs a model
# Further options of verbs that encode texts or score pairs of texts.
PAIRS = ("--max-length", "--batch-tokens", "--tokenizers", "--backend", "--revision")
_OPTIONS: dict[str, dict[str, Any]] = {
    "--release": {"type": Path, "required": True, "metavar": "DIR", "help": "release directory"},
    "--split": {"default": "dev", "help": "split of the queries (default: dev)"},
    "--out": {"type": Path, "required": True, "metavar": "RUN", "help": "run to write, gzipped if it ends in .gz"},
    "--top-k": {"type": whole_number(1), "default": 50, "metavar": "K", "help": "passages per query (default: 50)"},
    "--max-length": {"type": whole_number(4), "metavar": "N", "help": "longest input in tokens (default: the model's)"},
    "--revision": {"default": "", "metavar": "R", "help": "commit, tag or branch of a hub model (default: main)"},
    "--trust-remote-code": {"action": "store_true", "help": "run Python code of the model's repository (default: no)"},
    "--batch-tokens": {
        "type": whole_number(1),
        "metavar": "N",
        "help": "tokens per batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)",
    },
    "--tokenizers": {
        "type": whole_number(0),
        "metavar": "N",
        "help": "tokenising processes per device (default: cores divided by GPUs, at most 8; 0 on a CPU)",
    },
    "--device": {
        "metavar": "D[,D...]",
        "help": "cpu, cuda (all GPUs), cuda:1, or a list like cuda:0,cuda:1 (default: all GPUs, else cpu)",
    },
    "--dtype": {
        "choices": ["auto", "fp32", "fp16", "bf16", "int8"],
        "default": "auto",
        "help": "precision of the model; heads stay in fp32 (default: fp16 on a GPU, fp32 on a CPU)",
    },
    "--backend": {
        "choices": ["torch", "openvino"],
        "default": "torch",
        "help": "library that runs the model; openvino is faster on a CPU, needs the extra openvino (default: torch)",
    },
}


def add_model_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of :func:`baselines.retrieve.families.resolve`. ``names`` are aliases of --query-prompt."""
    group = parser.add_argument_group("settings of the model (default: the family's, else the files')")
    group.add_argument("--family", metavar="F", help="family in models.toml, or none (default: by the model's name)")
    group.add_argument("--query-prompt", *names, metavar="TEXT", help="prompt before every query; '' for no prompt")
    group.add_argument("--passage-prompt", metavar="TEXT", help="prompt before every passage; '' for no prompt")
    group.add_argument("--prompt-name", metavar="NAME", help="name of a query prompt of the family or the model")
    group.add_argument("--pooling", choices=["cls", "mean", "lasttoken"], help="pooling of the tokens' vectors")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="use only the first N dimensions")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale embeddings to unit length (default: only if the similarity is cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="similarity of embeddings")
    add_options(group, "--max-length", "--trust-remote-code", "--revision")


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add shared options by their names."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])
