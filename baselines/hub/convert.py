"""The verb `convert`: convert the official Paddle parameters to PyTorch."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from builders.core.options import Placeholder
from builders.core.verbs import verb

if TYPE_CHECKING:
    from baselines.core.checkpoint import WrittenCheckpoint


@verb()
def convert_checkpoint(
    *,
    params: Annotated[Path, Placeholder("DIR")],
    config: Annotated[Path, Placeholder("FILE")],
    vocab: Annotated[Path, Placeholder("FILE")],
    out: Annotated[Path, Placeholder("CKPT")],
) -> "WrittenCheckpoint":
    """Convert the official Paddle parameters to PyTorch.

    The official parameters are folders with one file for each parameter. The converted checkpoint loads without Paddle
    and without this project. dual_params becomes a SentenceTransformer with two encoders. So does
    ernie_base_1.0_twin_CN, which has ERNIE 1.0 twice. cross_params becomes a CrossEncoder whose score is the
    probability of class 1. ERNIE 1.0 alone becomes a starting checkpoint. `encode`, `search`, `rerank`, `push` and
    `train --start` read the output.

    The tokenizers of the dual-encoder and the cross-encoder produce the tokens of the official code: spaces are
    removed, and the dual-encoder's passages begin with an empty title. A query has at most 32 tokens. A passage or a
    pair has at most 384. A file that is missing, damaged or unknown, or has a wrong shape, is an error. Pre-training
    heads and optimizer states are skipped.

    Args:
        params: unpacked folder of parameters
        config: ERNIE's ernie_config.json
        vocab: ERNIE's vocab.txt
        out: checkpoint directory to write

    Returns:
        The checkpoint.

    Raises:
        InputError: a file is missing, damaged or unknown, or its shape differs from the configuration.

    Examples:
        python -m baselines convert --params dual_params --config ernie_config.json --vocab vocab.txt \\
          --out build/official-de
        python -m baselines search --release DIR --split dev --model build/official-de --passages EMBEDDINGS --out RUN
    """
    from baselines.core.checkpoint import (
        RECIPE,
        TRAINING,
        TRAINING_FORMAT,
        WrittenCheckpoint,
        read_library_versions,
        write_json,
    )
    from baselines.hub.model_card import finish_checkpoint
    from baselines.hub.paddle import read_official, write_model
    from builders.core.folders import check_output, replace_directory, work_beside
    from builders.core.results import Report

    # All inputs are read and checked before anything is written.
    directory = check_output(out, "a checkpoint", RECIPE)
    official = read_official(params, config, vocab)
    name = params.resolve().name
    with work_beside(directory) as work:
        write_model(work, official)
        # The records of a trained checkpoint, as far as a converted checkpoint has them.
        write_json(work / RECIPE, {"name": name, "model": {"kind": official.kind}})
        converted = {"from": name, "sha256": official.sources}
        training = {"format": TRAINING_FORMAT, "converted": converted, "versions": read_library_versions()}
        write_json(work / TRAINING, training)
        finish_checkpoint(work, directory.name)
        replace_directory(work, directory)
    return WrittenCheckpoint(out, Report(value={"checkpoint": str(out)}, text=str(out)))
