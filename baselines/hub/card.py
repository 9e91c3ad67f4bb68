"""The card of a checkpoint: what it is, how to use it, how it was made, how it does.

`train` and `convert` leave it in the checkpoint, in the place of the library's own; `push` writes it anew, with the
measures of the runs that are named, which its head holds as the hub's model-index, so that its pages and searches show
them. The code block runs as it stands: a test takes it from the card and runs it. The sections: :mod:`.sections`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from baselines.hub import sections
from baselines.hub.checkpoint import CARD, Checkpoint, open_checkpoint
from baselines.hub.sections import Measured
from baselines.runs.measures import PAPER
from builders.core.files import write_text

_PIPELINES = {
    "dual": "sentence-similarity",
    "cross": "text-ranking",
    "mlm": "fill-mask",
    "encoder": "feature-extraction",
}
_TAGS = {"dual": ["sentence-transformers", "dense"], "cross": ["sentence-transformers", "cross-encoder", "reranker"]}
_LIBRARIES = {"dual": "sentence-transformers", "cross": "sentence-transformers"}
# What `builders` make of DuReader alone, which is under this licence.
_OF_DUREADER = {"release", "official", "similar", "pool", "crosslingual"}


def write_card(folder: Path, name: str) -> None:
    """Write the card of the checkpoint in ``folder``, which will be called ``name``, over the library's own."""
    write_text(folder / CARD, model_card(open_checkpoint(folder), name))


def model_card(
    checkpoint: Checkpoint,
    name: str,
    measured: Sequence[Measured] = (),
    licence: str | None = None,
    dataset: str | None = None,
) -> str:
    """The card as Markdown with a YAML head.

    Args:
        checkpoint: what the card is for.
        name: what the code block loads: ORG/NAME on the hub, or the folder's name.
        measured: runs of this model.
        licence: of the weights, in the hub's words; None: ``apache-2.0``, or ``other`` where the data's terms are not
            DuReader's.
        dataset: ORG/NAME of the release that it was trained on, where that is on the hub.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    kind, title, licence = checkpoint.kind, name.rsplit("/", 1)[-1], licence or _licence(checkpoint)
    results = [
        EvalResult(
            task_type="text-retrieval",
            task_name="Passage retrieval" if kind == "dual" else "Passage re-ranking",
            dataset_type=dataset or "dureader_retrieval",
            dataset_name=run.name,
            dataset_config=run.set,
            dataset_split=run.split,
            dataset_revision=run.fingerprint,
            metric_type=key.lower().replace("@", "_at_"),
            metric_name=f"{key} ({run.run})",
            metric_value=round(100 * run.values[official], 4),
        )
        for run in measured
        for key, official in PAPER.items()
    ]
    data = ModelCardData(
        language=list(sections.languages(checkpoint)),
        license=licence,
        library_name=_LIBRARIES.get(kind, "transformers"),
        pipeline_tag=_PIPELINES[kind],
        tags=[*_TAGS.get(kind, []), "information-retrieval", "dureader_retrieval"],
        base_model=checkpoint.hub_start[0] if checkpoint.hub_start else None,
        datasets=[dataset] if dataset else None,
        model_name=title if results else None,
        eval_results=results or None,
    )
    body = "\n".join(
        section.strip("\n") + "\n"
        for section in (
            sections.about(checkpoint, title),
            sections.usage(checkpoint, name),
            sections.measures(measured),
            sections.origin(checkpoint) if checkpoint.converted else sections.training(checkpoint),
            sections.terms(licence),
        )
        if section
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _licence(checkpoint: Checkpoint) -> str:
    verbs = checkpoint.training.get("builds")
    of_dureader = verbs is not None and not {*verbs} - _OF_DUREADER
    return "apache-2.0" if of_dureader and sections.set_of(checkpoint) in ("main", "crosslingual") else "other"
