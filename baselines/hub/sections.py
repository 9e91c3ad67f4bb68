"""The sections of a checkpoint's card, as Markdown. They say what its files say, and no more."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from baselines.hub.checkpoint import Checkpoint
from baselines.hub.needs import need_of
from baselines.runs.measures import PAPER
from baselines.runs.tables import percent
from baselines.train.recipe import PAIRS
from builders.core.markdown import as_code, as_text
from builders.store.card import CITATION

_TITLES = {"dual": "dual-encoder", "cross": "cross-encoder", "mlm": "masked language model", "encoder": "encoder"}
_QUERY = {"zh": "高铁票提前几天可以买", "en": "How many days in advance can I buy a train ticket?"}
_PASSAGES = ["高铁票可以在开车前十五天购买。", "煮饺子时水要开，饺子下锅以后加三次凉水。"]
_QUESTIONS = ["火车票可以提前多少天买", "饺子怎么煮"]
_DUAL = """from sentence_transformers import SentenceTransformer

model = SentenceTransformer("{name}")
query = model.encode_query("{query}")
passages = model.encode_document({passages})
print(model.similarity(query, passages))"""
_CROSS = """from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
print(model.rank("{query}", {passages}))"""
_CROSS_OF_TWO = """from sentence_transformers import CrossEncoder

model = CrossEncoder("{name}")
pairs = [("{query}", passage) for passage in {passages}]
print(model.predict(pairs, apply_softmax=True)[:, 1])"""
_MLM = """from transformers import pipeline

guess = pipeline("fill-mask", model="{name}")
print(guess("高铁票可以在开车前十五天[MASK]买。")[:3])"""
_ENCODER = """from transformers import AutoModel, AutoTokenizer

tokenizer, model = AutoTokenizer.from_pretrained("{name}"), AutoModel.from_pretrained("{name}")
read = tokenizer({passages}, padding=True, truncation=True, return_tensors="pt")
print(model(**read).last_hidden_state.shape)"""


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


def set_of(checkpoint: Checkpoint) -> str:
    """The set that it was trained on."""
    return str(checkpoint.recipe.get("data", {}).get("set", "main"))


def learns_from_pairs(checkpoint: Checkpoint) -> bool:
    """Whether it was trained on labelled pairs of questions."""
    return bool(checkpoint.recipe.get("data", {}).get("source") == PAIRS)


def languages(checkpoint: Checkpoint) -> tuple[str, ...]:
    """Of its passages and queries, in the hub's words."""
    return ("zh", "en") if set_of(checkpoint) == "crosslingual" else ("zh",)


def about(checkpoint: Checkpoint, title: str) -> str:
    """What it is, and what it began as."""
    if checkpoint.converted:
        origin = as_code(checkpoint.converted["from"])
        return f"""# {as_text(title)}

A Chinese {_kind(checkpoint)}: the numbers of a folder {origin} of Paddle parameters, in the
form in which the official baseline of DuReader-retrieval (Qiu et al., EMNLP 2022) is published, converted by
`dureader_retrieval`. Nothing was trained on the way.
"""
    recipe, hub = checkpoint.recipe, checkpoint.hub_start
    begun = f"the model in a folder {as_code(checkpoint.start)}"
    if checkpoint.start == "scratch":
        begun = "random weights and a vocabulary of its own"
    elif checkpoint.start == "words":
        begun = "random vectors of the collection's words, times their inverse document frequency"
    elif hub:
        begun = as_code(hub[0]) + (f" at its commit {as_code(hub[1])}" if hub[1] else "")
    purpose = "telling whether two questions ask the same" if learns_from_pairs(checkpoint) else "passage retrieval"
    return f"""# {as_text(title)}

A Chinese {_kind(checkpoint)} for {purpose}, trained with the recipe {as_code(recipe.get("name", "-"))} of
`dureader_retrieval`, after Qiu et al., EMNLP 2022. It starts from {begun}. The paper's own models are others: the
figures below, and no published ones, are this model's.
"""


def _kind(checkpoint: Checkpoint) -> str:
    title = _TITLES[checkpoint.kind]
    if checkpoint.kind == "dual" and checkpoint.towers == 2:
        return f"{title} of two encoders, one for queries and one for passages,"
    return f"{title} of two outputs" if checkpoint.kind == "cross" and checkpoint.outputs == 2 else title


def usage(checkpoint: Checkpoint, name: str) -> str:
    """Code that runs, the libraries' versions that it needs, and what a user has to know of the texts."""
    transformers = f"transformers {checkpoint.transformers} or later"
    code, needs = {
        "dual": (_DUAL, str(need_of(checkpoint))),
        "cross": (
            _CROSS_OF_TWO if checkpoint.outputs == 2 else _CROSS,
            f"sentence-transformers 3.0.0 or later, {transformers}",
        ),
        "mlm": (_MLM, transformers),
        "encoder": (_ENCODER, transformers),
    }[checkpoint.kind]
    query = _QUERY[languages(checkpoint)[-1]]
    passages = json.dumps(_QUESTIONS if learns_from_pairs(checkpoint) else _PASSAGES, ensure_ascii=False)
    code = code.replace("{name}", name).replace("{query}", query).replace("{passages}", passages)
    text = "\n".join(f"- {note}" for note in (f"Needs {needs}.", *_notes(checkpoint)))
    return f"""
## Use

```python
{code}
```

{text}
"""


def _notes(checkpoint: Checkpoint) -> Iterator[str]:
    """What a user has to know of the texts, a line each."""
    if checkpoint.kind == "dual":
        if checkpoint.prompts:
            shown = ", ".join(
                f"{as_text(name)} {as_code(prompt)}" for name, prompt in sorted(checkpoint.prompts.items())
            )
            yield f"`encode_query` and `encode_document` put its prompts before texts ({shown}), a plain `encode` none."
        if checkpoint.towers == 2:
            yield "A plain `encode` takes the passages' encoder: queries want `encode_query`."
        elif checkpoint.is_static:
            yield "A text's vector is the mean of its words' vectors: texts are read whole, no card is needed."
        elif checkpoint.plain_length:
            yield f"A plain `encode` cuts texts at {checkpoint.plain_length} tokens: it was not trained on them."
        elif not checkpoint.prompts:
            yield "A plain `encode` is `encode_document`; `encode_query` cuts queries at their own length."
    if checkpoint.kind == "cross" and checkpoint.outputs == 2:
        yield "The score is the probability of the second output."
    if checkpoint.reads_officially:
        title = ", a passage stands after an empty title" * (checkpoint.kind == "dual")
        yield f"Its tokenizers read texts as the official code does: spaces are removed{title}."


def measures(measured: Sequence[Measured]) -> str:
    """The runs' figures as a table; empty without any."""
    if not measured:
        return ""
    lines = [f"| run | measured on | {' | '.join(PAPER)} |", f"|---|---|{'---:|' * len(PAPER)}"]
    for run in measured:
        values = " | ".join(percent(run.values[official]) for official in PAPER.values())
        lines.append(f"| {as_text(run.run)} | {as_text(run.name)} | {values} |")
    prints = {run.fingerprint: run.set for run in measured}
    held = ", ".join(f"`{print_[:16]}`" for print_ in prints)
    table = "\n".join(lines)
    return f"""
## Measures

{table}

Percent; Recall@k as the paper and the official script count it, a hit rate. Fingerprint of the passages: {held}.
"""


def training(checkpoint: Checkpoint) -> str:
    """What ``training.json`` and ``recipe.json`` say."""
    record = checkpoint.training
    read = record.get("about", {}).get("data", {})
    pairs = learns_from_pairs(checkpoint)
    where = "files of labelled pairs of questions (SHA-256)" if pairs else "by the release's splits"
    data = "\n".join(f"- {as_code(name)}: fingerprint {as_code(value)}" for name, value in read.items())
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
    shown = "\n".join(f"| {as_text(name)} | {as_text(value)} |" for name, value in facts.items() if value is not None)
    dev = record.get("dev") or []
    ranked = "on the dev pairs" if pairs else "on a small sample of dev queries and passages"
    if record.get("dev_run"):
        ranked = f"re-ranking the top of the run {as_code(record['dev_run']['name'])} for a sample of its queries"
    last = (
        f"\nAt the end, {ranked}{'' if pairs else ' (no figure of the collection)'}: "
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

Data, {where}:

{data}
{image}{last}
The recipe, resolved:

```json
{recipe}
```
"""


def origin(checkpoint: Checkpoint) -> str:
    """What a converted model was read from."""
    lines = "\n".join(
        f"- {as_text(what)}: SHA-256 {as_code(digest)}" for what, digest in checkpoint.converted["sha256"].items()
    )
    return f"""
## Origin

{lines}

The first is what `sha256sum * | LC_ALL=C sort -k 2 | sha256sum` prints in a folder of these parameters alone.
"""


def terms(licence: str) -> str:
    """Licence and citation."""
    words = f"The weights are under the licence {as_code(licence)}"
    if licence == "other":
        words = "The weights are under the terms of the texts that they were trained on, and of the model they began as"
    return f"""
## Licence and citation

{words}.

```bibtex
{CITATION}```
"""
