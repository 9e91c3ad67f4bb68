"""Model settings and the options of every verb that runs a model. This module imports no model library."""

import argparse
from pathlib import Path
from typing import Annotated, Any

from msgspec import Meta, Struct

from builders.core.command import whole_number


class Overrides(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Settings that override the model's files. A manifest records them. None or empty: the model's setting is used.

    Attributes:
        query_prompt, passage_prompt: put before every text. An empty string removes the model's prompt.
        prompt_name: the model's prompt for queries, used if ``query_prompt`` is None.
        pooling: pooling mode of a dual-encoder, by its name in sentence-transformers: mean, cls, lasttoken ...
        last_token: the token that ends every text, or "eos_token" for the tokenizer's. The token is added if the
            tokenizer does not add it.
        truncate_dim: number of leading dimensions of an embedding to use.
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
    """A model and every setting that affects its output.

    Attributes:
        name: a hub name or a directory.
        revision: the revision of a model on the hub (:func:`.hub_models.commit_of`).
        max_length: largest number of tokens of a text or pair, prompt included. The model's limit applies if lower.
        trust_remote_code: True if Python code of the model's repository may run.
    """

    name: str
    revision: str = ""
    max_length: int | None = None
    trust_remote_code: bool = False

    def overrides(self) -> dict[str, Any]:
        """Return the :class:`Overrides` that are set, for a manifest."""
        values = [(name, getattr(self, name)) for name in Overrides.__struct_fields__]
        return {key: value for key, value in values if value is not None and (value != "" or "_prompt" in key)}


DEVICE = ("--device", "--dtype")  # options of every verb that runs a model
# Further options of verbs that encode texts.
PAIRS = ("--max-length", "--batch-tokens", "--tokenizers", "--backend", "--revision")
# Options that several verbs share. A verb with another default defines the option itself.
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
        "help": "processes per device that tokenise (default: cores divided by GPUs, at most 8; 0 on a CPU)",
    },
    "--device": {
        "metavar": "D[,D...]",
        "help": "cpu, cuda, cuda:1, or a list with commas; each device has a process (default: all GPUs, else cpu)",
    },
    "--dtype": {
        "choices": ["auto", "fp32", "fp16", "bf16", "int8"],
        "default": "auto",
        "help": "precision of the model without its fp32 head (default: fp16 on a GPU, fp32 on a CPU)",
    },
    "--backend": {
        "choices": ["torch", "openvino"],
        "default": "torch",
        "help": "library of the model; openvino is faster on a CPU and needs its extra (default: torch)",
    },
}


def add_model_settings(parser: argparse.ArgumentParser, *names: str) -> None:
    """Add the options of :func:`.families.resolve`. ``names`` are further names of --query-prompt."""
    group = parser.add_argument_group("settings of the model (default: its family's, else its files')")
    group.add_argument("--family", metavar="F", help="family in models.toml, or none (default: by the model's name)")
    group.add_argument("--query-prompt", *names, metavar="TEXT", help="prompt before every query; '' for no prompt")
    group.add_argument("--passage-prompt", metavar="TEXT", help="prompt before every passage; '' for no prompt")
    group.add_argument("--prompt-name", metavar="NAME", help="query prompt of the family or the model, by its name")
    poolings = ("cls", "mean", "lasttoken")
    group.add_argument("--pooling", choices=poolings, help="pooling of token vectors into a text's vector")
    group.add_argument("--truncate-dim", type=whole_number(1), metavar="N", help="use only the first N dimensions")
    group.add_argument(
        "--normalize",
        action=argparse.BooleanOptionalAction,
        help="scale embeddings to unit length (default: if the similarity is cosine)",
    )
    group.add_argument("--similarity", choices=["cosine", "dot"], help="similarity of embeddings")
    add_options(group, "--max-length", "--trust-remote-code", "--revision")


def add_options(parser: argparse._ActionsContainer, *names: str) -> None:
    """Add shared options by their names."""
    for name in names:
        parser.add_argument(name, **_OPTIONS[name])
