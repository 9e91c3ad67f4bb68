"""The options of every command that runs a model."""

from __future__ import annotations

import argparse

from builders.core.command import whole_number

PRECISIONS = ("fp32", "fp16", "bf16")


def add_device(parser: argparse.ArgumentParser) -> None:
    """``--device`` and ``--dtype``, for every command that runs a model."""
    parser.add_argument(
        "--device",
        metavar="D[,D...]",
        help="cpu, cuda, cuda:1, or several with commas: a process each (default: every GPU there is, else cpu)",
    )
    parser.add_argument(
        "--dtype",
        choices=["auto", *PRECISIONS],
        default="auto",
        help="precision of the model; its head is always in fp32 (default: fp16 on a GPU, fp32 on a CPU)",
    )


def add_revision(parser: argparse._ActionsContainer) -> None:
    """``--revision``, for every command that opens a model."""
    parser.add_argument(
        "--revision", default="", metavar="R", help="of a model on the hub: a commit, tag or branch (default: main)"
    )


def add_batch_tokens(parser: argparse.ArgumentParser) -> None:
    """``--batch-tokens`` and ``--tokenizers``, for every command that sends many texts through a model."""
    parser.add_argument(
        "--batch-tokens",
        type=whole_number(1),
        metavar="N",
        help="tokens of a batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)",
    )
    parser.add_argument(
        "--tokenizers",
        type=whole_number(0),
        metavar="N",
        help="processes a device that tokenise (default: on GPUs their share of the cores, at most 8; else 0)",
    )


def add_pairs(parser: argparse.ArgumentParser) -> None:
    """``--max-length``, ``--revision`` and :func:`add_batch_tokens`, for every command that runs a cross-encoder."""
    parser.add_argument(
        "--max-length", type=whole_number(4), metavar="N", help="tokens of a pair (default: as the model was trained)"
    )
    add_batch_tokens(parser)
    add_revision(parser)
