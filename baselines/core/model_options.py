"""Options that several verbs of the baselines share: runs, models, devices and precision."""

import os
from pathlib import Path
from typing import Annotated, Literal

from builders.core.options import AtLeastOne, Between, Help, Needs, Parsed, Placeholder, Use


def model_name(value: str | os.PathLike[str]) -> str:
    """Return a name on the hub, or the path of a model's folder, as text. Raises ValueError for an empty value."""
    name = os.fspath(value)
    if not name:
        raise ValueError("a name on the hub (ORG/NAME) or a folder")
    return name


ModelName = Annotated[str, Parsed(model_name, accepts=(str, os.PathLike)), Placeholder("M")]
NewRun = Annotated[Path, Placeholder("RUN"), Use.REQUIRED, Help("run to write, gzipped if it ends in .gz")]
TopK = Annotated[AtLeastOne, Placeholder("K"), Help("passages per query")]

MaxLength = Annotated[int, Between(low=4), Placeholder("N"), Help("longest input in tokens (default: the model's)")]
Revision = Annotated[str, Placeholder("R"), Help("commit, tag or branch of a hub model (default: main)")]
TrustRemoteCode = Annotated[bool, Help("run Python code of the model's repository (default: no)")]
BatchTokens = Annotated[
    AtLeastOne,
    Placeholder("N"),
    Help("tokens per batch, padding included (default: 98,304 on a GPU, 12,288 on a CPU)"),
]
Tokenizers = Annotated[
    int,
    Between(low=0),
    Placeholder("N"),
    Help("tokenising processes per device (default: cores divided by GPUs, at most 8; 0 on a CPU)"),
]
Device = Annotated[
    str,
    Placeholder("D[,D...]"),
    Help("cpu, cuda (all GPUs), cuda:1, or a list like cuda:0,cuda:1 (default: all GPUs, else cpu)"),
]
Dtype = Annotated[
    Literal["auto", "fp32", "fp16", "bf16", "int8"],
    Help("precision of the model; heads stay in fp32 (auto: fp16 on a GPU, fp32 on a CPU)"),
]
Backend = Annotated[
    Literal["torch", "openvino"],
    Help("library that runs the model; openvino is faster on a CPU and needs the extra openvino"),
]

# The machines that run a model (docs/ray.md).
Engine = Annotated[Literal["local", "ray"], Help("this machine or a Ray cluster (docs/ray.md)")]
RayAddress = Annotated[
    str,
    Placeholder("HOST:PORT"),
    Needs("engine=ray"),
    Help("head of the cluster (default: RAY_ADDRESS, then a cluster on this machine, then a new cluster)"),
]
TaskCpus = Annotated[
    AtLeastOne,
    Placeholder("N"),
    Needs("engine=ray"),
    Help("CPUs of a task on the cluster (default: 1 beside a GPU, else all of the smallest machine)"),
]

# Settings of a model. Without the option, the setting comes from the model's family or files (docs/run.md).
Family = Annotated[str, Placeholder("F"), Help("family in models.toml, or none (default: by the model's name)")]
QueryPrompt = Annotated[str, Placeholder("TEXT"), Help("prompt before every query; '' for no prompt")]
PassagePrompt = Annotated[str, Placeholder("TEXT"), Help("prompt before every passage; '' for no prompt")]
PromptName = Annotated[str, Placeholder("NAME"), Help("name of a query prompt of the family or the model")]
Pooling = Annotated[Literal["cls", "mean", "lasttoken"], Help("pooling of the tokens' vectors")]
TruncateDim = Annotated[AtLeastOne, Placeholder("N"), Help("use only the first N dimensions")]
Normalize = Annotated[
    bool, Use.WITH_NO, Help("scale embeddings to unit length (default: only if the similarity is cosine)")
]
Similarity = Annotated[Literal["cosine", "dot"], Help("similarity of embeddings")]
