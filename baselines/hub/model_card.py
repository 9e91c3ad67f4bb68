"""The card of a checkpoint: the template ``model_card.md`` with facts from the checkpoint's files.

`train` and `convert` replace the card of sentence-transformers with this card. `push` writes the card again with the
measures of given runs. The card's YAML head lists these measures as a model-index, so the hub displays them. A test
runs the card's code block.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from baselines.core.checkpoint import CARD, LOSSES, Checkpoint, open_checkpoint, write_hashes, write_needs
from baselines.measure.measures import PAPER
from builders.core.tables import as_code, as_text, format_percent
from builders.core.write_files import write_text

_TEMPLATE = Path(__file__).with_name("model_card.md")


class _Kind(NamedTuple):
    """A kind of model: a description, and the pipeline, library and tags on the hub."""

    description: str
    pipeline: str
    library: str
    tags: list[str]


# The kinds by the value of ``model.kind`` in recipe.json.
_KINDS = {
    "dual": _Kind(
        description="dual-encoder",
        pipeline="sentence-similarity",
        library="sentence-transformers",
        tags=["sentence-transformers", "dense"],
    ),
    "cross": _Kind(
        description="cross-encoder",
        pipeline="text-ranking",
        library="sentence-transformers",
        tags=["sentence-transformers", "cross-encoder", "reranker"],
    ),
    "mlm": _Kind(description="masked language model", pipeline="fill-mask", library="transformers", tags=[]),
    "encoder": _Kind(description="encoder", pipeline="feature-extraction", library="transformers", tags=[]),
}
# Verbs of `builders` whose output has only DuReader's data, which has the licence apache-2.0.
_VERBS_WITHOUT_OTHER_DATA = {"release", "official", "similar", "pool", "crosslingual", "stress"}
_RECORDED_FACTS = ("rows", "steps", "batch", "seconds", "device", "processes", "precision")
# Texts of the card's code block.
_EXAMPLE_QUERIES = {"zh": "高铁票提前几天可以买", "en": "How many days in advance can I buy a train ticket?"}
_EXAMPLE_PASSAGES = ["高铁票可以在开车前十五天购买。", "煮饺子时水要开，饺子下锅以后加三次凉水。"]
_EXAMPLE_QUESTIONS = ["火车票可以提前多少天买", "饺子怎么煮"]


@dataclass(frozen=True)
class MeasuredSet:
    """The measures of a run, and facts about its data.

    Attributes:
        run: name of the run's file.
        set, split: the set and the split of the queries.
        queries: number of queries that were measured.
        passages: number of passages in the corpus.
        fingerprint: fingerprint of the corpus.
        values: the measures as fractions, by the official names, which are the values of ``PAPER``.
    """

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
        set_name = "" if self.set == "main" else f"{self.set}, "
        return f"{set_name}{self.split}, {self.queries:,} queries, {self.passages:,} passages"


def finish_checkpoint(folder: Path, name: str) -> None:
    """Add the required version of its library, card and checksums to the checkpoint in ``folder``.

    ``name`` is the name that the folder gets when the checkpoint is complete.
    """
    write_needs(folder)
    write_text(folder / CARD, model_card(open_checkpoint(folder), name))
    write_hashes(folder)


def model_card(
    checkpoint: Checkpoint,
    name: str,
    measured: Sequence[MeasuredSet] = (),
    licence: str | None = None,
    dataset: str | None = None,
) -> str:
    """Return the card as Markdown with a YAML head.

    Args:
        checkpoint: the model that the card describes.
        name: the name that the code block loads: ORG/NAME on the hub, or the folder's name.
        measured: measures of the model's runs.
        licence: licence of the weights by its name on the hub. None: ``apache-2.0`` if all training data have
            DuReader's licence, else ``other``.
        dataset: ORG/NAME of the training data on the hub, if published.
    """
    import jinja2  # noqa: F401 (from_template needs jinja2; importing it here makes a missing library a clear error)
    from huggingface_hub import ModelCard

    recipe_data = checkpoint.recipe.get("data", {})
    record = checkpoint.training
    set_name = recipe_data.get("set", "main")
    learns_from_pairs = recipe_data.get("source") == "pairs"
    # The queries of the set crosslingual are English, so its card shows an English query.
    languages = ["zh", "en"] if set_name == "crosslingual" else ["zh"]
    title = name.rsplit("/", 1)[-1]
    if not licence:
        licence = "apache-2.0" if _has_only_dureader_data(record, set_name) else "other"
    head = _make_head(checkpoint, title, languages, licence, dataset, measured)

    # The Markdown text. A converted checkpoint has no evaluation during training.
    evaluations = record.get("dev") or [{}]
    dev_run = record.get("dev_run") or {}
    card = ModelCard.from_template(
        head,
        template_path=str(_TEMPLATE),
        checkpoint=checkpoint,
        code=as_code,
        converted=checkpoint.converted,
        data=record.get("about", {}).get("data", {}),
        dev=evaluations[-1],
        dev_run=dev_run.get("name"),
        facts=_facts(record),
        has_losses=(checkpoint.path / LOSSES).is_file(),
        kind_words=_describe_kind(checkpoint),
        licence=licence,
        measured=measured,
        measures=PAPER,
        name=name,
        pairs=learns_from_pairs,
        passages=json.dumps(_EXAMPLE_QUESTIONS if learns_from_pairs else _EXAMPLE_PASSAGES, ensure_ascii=False),
        percent=format_percent,
        query=_EXAMPLE_QUERIES[languages[-1]],
        recipe=json.dumps(checkpoint.recipe, ensure_ascii=False, indent=1),
        recipe_name=checkpoint.recipe.get("name", "-"),
        text=as_text,
        title=title,
    )
    return f"{card}\n"


def _make_head(
    checkpoint: Checkpoint,
    title: str,
    languages: list[str],
    licence: str,
    dataset: str | None,
    measured: Sequence[MeasuredSet],
) -> Any:
    """Return the card's YAML head, which the hub reads. ``title`` is the model's name without its organisation."""
    from huggingface_hub import ModelCardData

    model_kind = _KINDS[checkpoint.kind]
    results = _eval_results(checkpoint.kind, measured, dataset)
    return ModelCardData(
        language=languages,
        license=licence,
        library_name=model_kind.library,
        pipeline_tag=model_kind.pipeline,
        tags=[*model_kind.tags, "information-retrieval", "dureader_retrieval"],
        base_model=checkpoint.hub_start[0] if checkpoint.hub_start else None,
        datasets=[dataset] if dataset else None,
        # The library needs a name for results only.
        model_name=title if results else None,
        eval_results=results or None,
    )


def _describe_kind(checkpoint: Checkpoint) -> str:
    """Return the kind of model in words."""
    description = _KINDS[checkpoint.kind].description
    if checkpoint.kind == "dual" and checkpoint.towers == 2:
        description += " of two encoders, one for queries and one for passages,"
    if checkpoint.kind == "cross" and checkpoint.outputs == 2:
        description += " of two outputs"
    return description


def _has_only_dureader_data(record: dict[str, Any], set_name: str) -> bool:
    """True if all training data have DuReader's licence. ``record`` is the content of ``training.json``."""
    builds = record.get("builds")  # verbs of `builders` that made the training data; None: unknown
    if builds is None or set_name not in ("main", "crosslingual"):
        return False
    return _VERBS_WITHOUT_OTHER_DATA.issuperset(builds)


def _facts(record: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of the card's table: sizes, time, device, counts of the data, and versions.

    ``record`` is the content of ``training.json``. A fact that the record lacks is None, and has no row in the table.
    """
    facts = {name: record.get(name) for name in _RECORDED_FACTS}
    for name, count in record.get("counts", {}).items():
        facts[f"counts: {name}"] = count
    facts.update(record.get("versions", {}))
    return facts


def _eval_results(kind: str, measured: Sequence[MeasuredSet], dataset: str | None) -> list[Any]:
    """Return the measures as entries of the card's model-index, which the hub displays.

    ``kind`` is the kind of the model: dual, or another kind, which re-ranks.
    """
    from huggingface_hub import EvalResult

    results = []
    for run in measured:
        # The hub shows percentages.
        for measure, official_name in PAPER.items():
            result = EvalResult(
                task_type="text-retrieval",
                task_name="Passage retrieval" if kind == "dual" else "Passage re-ranking",
                dataset_type=dataset or "dureader_retrieval",
                dataset_name=run.name,
                dataset_config=run.set,
                dataset_split=run.split,
                dataset_revision=run.fingerprint,
                metric_type=measure.lower().replace("@", "_at_"),
                metric_name=f"{measure} ({run.run})",
                metric_value=round(100 * run.values[official_name], 4),
            )
            results.append(result)
    return results
