"""The card of a checkpoint on the hub: what it is, how to use it, how it was made, how it does.

The head holds the measures as the hub's model-index, so that its pages and searches show them. The code block runs as
it stands: a test takes it from the card and runs it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from baselines.hub.checkpoint import Checkpoint
from baselines.runs.measures import PAPER
from baselines.runs.tables import percent
from builders.store.card import CITATION

_TITLES = {"dual": "dual-encoder", "cross": "cross-encoder", "mlm": "masked language model", "encoder": "encoder"}
_PIPELINES = {
    "dual": "sentence-similarity",
    "cross": "text-ranking",
    "mlm": "fill-mask",
    "encoder": "feature-extraction",
}
_TAGS = {"dual": ["sentence-transformers", "dense"], "cross": ["sentence-transformers", "cross-encoder", "reranker"]}
_LIBRARIES = {"dual": "sentence-transformers", "cross": "sentence-transformers"}
_QUERY = {"zh": "高铁票提前几天可以买", "en": "How many days in advance can I buy a train ticket?"}
_PASSAGES = ["高铁票可以在开车前十五天购买。", "煮饺子时水要开，饺子下锅以后加三次凉水。"]
_USAGE = {
    "dual": """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{repo}")
query = model.encode_query("{query}")
passages = model.encode_document({passages})
print(model.similarity(query, passages))""",
    "cross": """from sentence_transformers import CrossEncoder

model = CrossEncoder("{repo}")
print(model.rank("{query}", {passages}))""",
    "mlm": """from transformers import pipeline

guess = pipeline("fill-mask", model="{repo}")
print(guess("高铁票可以在开车前十五天[MASK]买。")[:3])""",
    "encoder": """from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("{repo}"), AutoModel.from_pretrained("{repo}")
read = tokenizer({passages}, padding=True, truncation=True, return_tensors="pt")
print(model(**read).last_hidden_state.shape)""",
}


@dataclass(frozen=True)
class Measured:
    """One run's measures and what they were measured on; ``values``: the official keys, as fractions."""

    run: str
    set: str
    split: str
    queries: int
    passages: int
    fingerprint: str
    values: dict[str, Any]

    @property
    def name(self) -> str:
        """How the card calls the data: never more than it is."""
        shown = "" if self.set == "main" else f"{self.set}, "
        return f"{shown}{self.split}, {self.queries:,} queries, {self.passages:,} passages"


def model_card(checkpoint: Checkpoint, repo: str, measured: Sequence[Measured] = (), licence: str | None = None) -> str:
    """The card as Markdown with a YAML head.

    Args:
        checkpoint: what the card is for.
        repo: ORG/NAME on the hub, for the code block.
        measured: runs of this model.
        licence: of the weights, in the hub's words; None: ``apache-2.0``, or ``other`` where the data's terms are not
            DuReader's.
    """
    from huggingface_hub import EvalResult, ModelCard, ModelCardData

    kind, name = checkpoint.kind, repo.rsplit("/", 1)[1]
    results = [
        EvalResult(
            task_type="text-retrieval",
            task_name="Passage retrieval" if kind == "dual" else "Passage re-ranking",
            dataset_type="dureader_retrieval",
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
    start = _start(checkpoint)
    data = ModelCardData(
        language=_languages(checkpoint),
        license=licence or _licence(checkpoint),
        library_name=_LIBRARIES.get(kind, "transformers"),
        pipeline_tag=_PIPELINES.get(kind, "feature-extraction"),
        tags=[*_TAGS.get(kind, []), "information-retrieval", "dureader_retrieval"],
        base_model=start if start and start.count("/") <= 1 and not start.startswith((".", "/")) else None,
        model_name=name if results else None,
        eval_results=results or None,
    )
    body = "\n".join(
        section.strip("\n") + "\n"
        for section in (
            _about(checkpoint, name),
            _usage(checkpoint, repo),
            _measures(measured),
            _origin(checkpoint) if checkpoint.converted else _training(checkpoint),
            _terms(licence or _licence(checkpoint)),
        )
        if section
    )
    return str(ModelCard(f"---\n{data.to_yaml()}\n---\n\n{body}"))


def _start(checkpoint: Checkpoint) -> str:
    """What the weights were before: a hub name, the name of another recipe's checkpoint, or ``scratch``."""
    return str(checkpoint.training.get("about", {}).get("start") or checkpoint.recipe["model"].get("start", ""))


def _set(checkpoint: Checkpoint) -> str:
    return str(checkpoint.recipe.get("data", {}).get("set", "main"))


def _languages(checkpoint: Checkpoint) -> list[str]:
    return ["zh", "en"] if _set(checkpoint) == "crosslingual" else ["zh"]


def _licence(checkpoint: Checkpoint) -> str:
    verbs = checkpoint.training.get("builds")
    of_dureader = verbs is not None and not {*verbs} - {"release", "official", "similar", "pool", "crosslingual"}
    return "apache-2.0" if of_dureader and _set(checkpoint) in ("main", "crosslingual") else "other"


def _about(checkpoint: Checkpoint, name: str) -> str:
    if checkpoint.converted:
        reads = "" if checkpoint.kind == "encoder" else " Texts are read as the official code reads them."
        return f"""# {name}

A Chinese {_TITLES[checkpoint.kind]}: the numbers of a folder `{checkpoint.converted["from"]}` of Paddle parameters, in
the form in which the official baseline of DuReader-retrieval (Qiu et al., EMNLP 2022) is published, converted by
`dureader_retrieval`. Nothing was trained on the way.{reads}
"""
    recipe, start = checkpoint.recipe, _start(checkpoint)
    begun = "random weights and a vocabulary of its own" if start == "scratch" else f"`{start}`"
    return f"""# {name}

A Chinese {_TITLES[checkpoint.kind]} for passage retrieval, trained with the recipe `{recipe.get("name", "-")}` of
`dureader_retrieval`, after Qiu et al., EMNLP 2022. It starts from {begun}. The paper's own models are others: the
figures below, and no published ones, are this model's.
"""


def _usage(checkpoint: Checkpoint, repo: str) -> str:
    query = _QUERY["en" if _set(checkpoint) == "crosslingual" else "zh"]
    passages = json.dumps(_PASSAGES, ensure_ascii=False)
    code = _USAGE[checkpoint.kind].replace("{repo}", repo).replace("{query}", query).replace("{passages}", passages)
    return f"""
## Use

```python
{code}
```
"""


def _measures(measured: Sequence[Measured]) -> str:
    if not measured:
        return ""
    lines = [f"| run | measured on | {' | '.join(PAPER)} |", f"|---|---|{'---:|' * len(PAPER)}"]
    for run in measured:
        values = " | ".join(percent(run.values[official]) for official in PAPER.values())
        lines.append(f"| {run.run} | {run.name} | {values} |")
    prints = {run.fingerprint: run.set for run in measured}
    held = ", ".join(f"`{print_[:16]}`" for print_ in prints)
    table = "\n".join(lines)
    return f"""
## Measures

{table}

Percent; Recall@k as the paper and the official script count it, a hit rate. Fingerprint of the passages: {held}.
"""


def _training(checkpoint: Checkpoint) -> str:
    record = checkpoint.training
    about = record.get("about", {})
    data = "\n".join(f"- `{name}`: fingerprint `{value}`" for name, value in about.get("data", {}).items())
    facts = {
        "rows": record.get("rows"),
        "steps": record.get("steps"),
        "batch": record.get("batch"),
        "seconds": record.get("seconds"),
        "device": record.get("device"),
        "processes": record.get("processes"),
        "precision": record.get("precision"),
        **{f"counts: {name}": value for name, value in record.get("counts", {}).items()},
        **record.get("versions", {}),
    }
    shown = "\n".join(f"| {name} | {value} |" for name, value in facts.items() if value is not None)
    dev = record.get("dev") or []
    last = (
        "\nAt the end, on a small sample of dev queries and passages (no figure of the collection): "
        + ", ".join(f"{name} {percent(value)}" for name, value in dev[-1].items() if name != "step")
        + ".\n"
        if dev
        else ""
    )
    image = "\n![training loss](loss.png)\n" if (checkpoint.path / "loss.png").is_file() else ""
    recipe = json.dumps(checkpoint.recipe, ensure_ascii=False, indent=1)
    return f"""
## Training

| | |
|---|---|
{shown}

Data, by the release's splits:

{data}
{image}{last}
The recipe, resolved:

```json
{recipe}
```
"""


def _origin(checkpoint: Checkpoint) -> str:
    """What a converted model was read from."""
    lines = "\n".join(f"- {what}: SHA-256 `{digest}`" for what, digest in checkpoint.converted["sha256"].items())
    return f"""
## Origin

{lines}

The first is what `sha256sum * | LC_ALL=C sort -k 2 | sha256sum` prints in a folder of these parameters alone.
"""


def _terms(licence: str) -> str:
    words = f"The weights are under the licence `{licence}`"
    if licence == "other":
        words = "The weights are under the terms of the texts that they were trained on, and of the model they began as"
    return f"""
## Licence and citation

{words}.

```bibtex
{CITATION}```
"""
