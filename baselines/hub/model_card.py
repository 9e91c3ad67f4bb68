"""The card of a checkpoint: the template ``model_card.md`` with facts from the checkpoint's files.

`train` and `convert` replace the card of sentence-transformers with this card. `push` writes the card again with the
measures of given runs. The card's YAML head lists these measures as a model-index, so the hub displays them. A test
runs the card's code block.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from baselines.core.checkpoint import CARD, LOSSES, Checkpoint, open_checkpoint, write_hashes, write_needs
from baselines.measure.measures import PAPER
from builders.core.files import write_text
from builders.core.tables import as_code, as_text, percent

_TEMPLATE = Path(__file__).with_name("model_card.md")
# For each kind of model: a description, and the pipeline, library and tags on the hub.
_KINDS: dict[str, tuple[str, str, str, list[str]]] = {
    "dual": ("dual-encoder", "sentence-similarity", "sentence-transformers", ["sentence-transformers", "dense"]),
    "cross": (
        "cross-encoder",
        "text-ranking",
        "sentence-transformers",
        ["sentence-transformers", "cross-encoder", "reranker"],
    ),
    "mlm": ("masked language model", "fill-mask", "transformers", []),
    "encoder": ("encoder", "feature-extraction", "transformers", []),
}
# Verbs of `builders` whose output has only DuReader's data, which has the licence apache-2.0.
_OF_DUREADER = {"release", "official", "similar", "pool", "crosslingual"}
_FACTS = ("rows", "steps", "batch", "seconds", "device", "processes", "precision")
_QUERY = {"zh": "高铁票提前几天可以买", "en": "How many days in advance can I buy a train ticket?"}
_PASSAGES = ["高铁票可以在开车前十五天购买。", "煮饺子时水要开，饺子下锅以后加三次凉水。"]
_QUESTIONS = ["火车票可以提前多少天买", "饺子怎么煮"]


@dataclass(frozen=True)
class Measured:
    """The measures of a run, and facts about its data. ``values`` has a fraction for each value of ``PAPER``."""

    run: str
    set: str
    split: str
    queries: int
    passages: int
    fingerprint: str
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """A description of the data: set, split, and numbers of queries and passages."""
        shown = "" if self.set == "main" else f"{self.set}, "
        return f"{shown}{self.split}, {self.queries:,} queries, {self.passages:,} passages"


def finish_checkpoint(folder: Path, name: str) -> None:
    """Add requirements, card and checksums to the checkpoint in ``folder``. ``name`` is its final name."""
    write_needs(folder)
    write_text(folder / CARD, model_card(open_checkpoint(folder), name))
    write_hashes(folder)


def model_card(
    checkpoint: Checkpoint,
    name: str,
    measured: Sequence[Measured] = (),
    licence: str | None = None,
    dataset: str | None = None,
) -> str:
    """Return the card as Markdown with a YAML head.

    Args:
        name: the name that the code block loads: ORG/NAME on the hub, or the folder's name.
        measured: measures of the model's runs.
        licence: licence of the weights by its name on the hub. None: ``apache-2.0`` if all training data have
            DuReader's licence, else ``other``.
        dataset: ORG/NAME of the training data on the hub, if published.
    """
    import jinja2  # noqa: F401 (from_template needs jinja2; importing it here makes a missing library a clear error)
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    data, record = checkpoint.recipe.get("data", {}), checkpoint.training
    kind, set_name, pairs = checkpoint.kind, data.get("set", "main"), data.get("source") == "pairs"
    words, pipeline, library, tags = _KINDS[kind]
    if kind == "dual" and checkpoint.towers == 2:
        words += " of two encoders, one for queries and one for passages,"
    if kind == "cross" and checkpoint.outputs == 2:
        words += " of two outputs"
    title, languages = name.rsplit("/", 1)[-1], ["zh", "en"] if set_name == "crosslingual" else ["zh"]
    if not licence:
        builds = record.get("builds")
        of_dureader = builds is not None and _OF_DUREADER.issuperset(builds) and set_name in ("main", "crosslingual")
        licence = "apache-2.0" if of_dureader else "other"
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
    head = ModelCardData(
        language=languages,
        license=licence,
        library_name=library,
        pipeline_tag=pipeline,
        tags=[*tags, "information-retrieval", "dureader_retrieval"],
        base_model=checkpoint.hub_start[0] if checkpoint.hub_start else None,
        datasets=[dataset] if dataset else None,
        model_name=title if results else None,
        eval_results=results or None,
    )
    facts = {
        **{name: record.get(name) for name in _FACTS},
        **{f"counts: {name}": value for name, value in record.get("counts", {}).items()},
        **record.get("versions", {}),
    }
    card = ModelCard.from_template(
        head,
        template_path=str(_TEMPLATE),
        checkpoint=checkpoint,
        code=as_code,
        converted=checkpoint.converted,
        data=record.get("about", {}).get("data", {}),
        dev=(record.get("dev") or [{}])[-1],
        dev_run=(record.get("dev_run") or {}).get("name"),
        facts=facts,
        has_losses=(checkpoint.path / LOSSES).is_file(),
        kind_words=words,
        licence=licence,
        measured=measured,
        measures=PAPER,
        name=name,
        pairs=pairs,
        passages=json.dumps(_QUESTIONS if pairs else _PASSAGES, ensure_ascii=False),
        percent=percent,
        query=_QUERY[languages[-1]],
        recipe=json.dumps(checkpoint.recipe, ensure_ascii=False, indent=1),
        recipe_name=checkpoint.recipe.get("name", "-"),
        text=as_text,
        title=title,
    )
    return f"{card}\n"
