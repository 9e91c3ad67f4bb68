"""What one step of ``matrix.toml`` costs: the bytes that it leaves, a card's memory, operations, hours.

Operations and memory are counted on fake tensors; bytes on the disk follow from counts. What is measured, and what a
rule of thumb, stands beside each number below; docs/estimate.md holds them against what trainings took and wrote.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PretrainedConfig

from baselines.cost.cards import SHARE, Card, hours, needed
from baselines.cost.fake import config_of
from baselines.cost.passes import DTYPES
from baselines.cost.ranking import DTYPE, encoding_cost, reranking_cost
from baselines.cost.sizes import Sizes
from baselines.cost.training import training_cost
from baselines.retrieve.model_checks import new_head, opening
from baselines.train.recipe import FROM_RECIPE, WORDS, Recipe, read_recipe
from builders.store.layout import REMOVED, set_of

# Bytes on the disk: measured on runs of 300 to 10,111 queries, ids of 32 hexadecimal digits, which no gzip can shorten
# to less than 16 bytes.
_RUN_LINE = 28  # a hit in a gzipped run: 23 to 26, more where no passage comes twice
_NEGATIVE, _OF_QUERY = 18, 18  # a passage's id, and a query's line, in a gzipped file of negatives
_WORD = 64  # a word of the vocabulary in tokenizer.json
_BESIDE = 60_000  # a checkpoint's card, settings and curve; a state's random numbers and log
_KEPT_STATES, _STATES = 2, 3  # of a training: two are kept, while the next is written
# What lies in the user's cache. BM25: a passage's id, and the rest by its characters, from docs/bm25.md's measured
# 4.7 GB (numba) and 2.1 GB (tantivy) for 8.1 million passages of 272 characters.
_PASSAGE_ID = 40
_INDEXED = {"numba": (4.7e9 / 8_096_668 - _PASSAGE_ID) / 272, "tantivy": (2.1e9 / 8_096_668 - _PASSAGE_ID) / 272}
_UNPACKED = 60  # beside its text: id, hash, row, where both end
_SPECIAL = 2  # tokens around a text
_TOP_K = 50  # the commands' own default
_Options = Mapping[str, str]


@dataclass(frozen=True)
class StepCost:
    """One step's cost.

    Attributes:
        output: what it writes.
        kept: bytes of it that stay; of a training, its states included.
        most: bytes that it needs at most while it runs.
        memory: bytes of each card; None: no card is used.
        operations: of one card.
        precision: in which most of them are done.
        cards: that share the work.
        cache: bytes in the user's cache by what is kept there; steps share it.
    """

    output: Path
    kept: float
    most: float
    memory: float | None = None
    operations: float = 0
    precision: str = "fp32"
    cards: int = 1
    cache: tuple[tuple[str, float], ...] = ()

    def hours(self, card: str | Card, share: float = SHARE) -> float | None:
        """At a share of the card's peak; None where no card is used."""
        return hours(self.operations, card, self.precision, share) if self.operations else None


def trained(commands: Iterable[Sequence[str]]) -> dict[str, Recipe]:
    """The recipe behind each output of ``train`` among the commands of a plan."""
    found: dict[str, Recipe] = {}
    for words in commands:
        if words[1] == "train":
            recipe = read_recipe(words[2], [value for option, value in _pairs(words) if option == "--set"])
            found[dict(_pairs(words))["--out"]] = recipe
    return found


def architecture(recipe: Recipe, recipes: Mapping[str, Recipe]) -> PretrainedConfig:
    """What a recipe trains: the architecture of the first start, through the recipes that are started from.

    ``recipes``: those that are trained before, with their own values; others are read as they stand. Raises
    :class:`InputError` where the first start cannot be had.
    """
    recipe = _first(recipe, recipes)
    start = recipe.model.start
    with opening(
        f"{start}: its config.json cannot be read; --settings FILE with model.start = DIR names another", new_head
    ):
        return config_of(recipe)


def _first(recipe: Recipe, recipes: Mapping[str, Recipe]) -> Recipe:
    """The recipe that a recipe's starts go back to: itself, where it starts from none."""
    by_name = {each.name: each for each in recipes.values()}
    while recipe.model.start.startswith(FROM_RECIPE):
        name = recipe.model.start.removeprefix(FROM_RECIPE)
        recipe = by_name.get(name) or read_recipe(name)
    return recipe


def step_cost(words: Sequence[str], sizes: Sizes, recipes: Mapping[str, Recipe], cards: int = 1) -> StepCost | None:
    """What a command costs; None for one that writes no file, and for what is not counted here.

    Not counted are other verbs, and static models, which are looked up and not computed: minutes of a processor.

    Args:
        words: the command, as of :class:`baselines.reproduce.matrix.Step`.
        sizes: how much there is to read.
        recipes: :func:`trained` of the commands before.
        cards: of a training.
    """
    options = dict(_pairs(words))
    if "--out" not in options or words[1] not in _VERBS:
        return None
    model = (
        recipes[options["--out"]] if words[1] == "train" else _model(options, recipes) if "--model" in options else None
    )
    if model and _first(model, recipes).model.start == WORDS:
        return None
    return _VERBS[words[1]](words, options, sizes, recipes, cards)


def _pairs(words: Sequence[str]) -> list[tuple[str, str]]:
    return [(word, value) for word, value in itertools.pairwise(words) if word.startswith("--")]


def _bm25(words: Sequence[str], options: _Options, sizes: Sizes, *_: object) -> StepCost:
    of, cut = options.get("--set", "main"), options.get("--max-chars")
    texts, engine = sizes.passages(of), options.get("--engine", "numba")
    index = texts.count * (_PASSAGE_ID + _INDEXED.get(engine, 0) * texts.mean(int(cut) if cut else None))
    kept = f"BM25's index of {set_of(of).corpus}" + f", {cut} characters a passage" * bool(cut)
    run = _run(options, sizes)
    return StepCost(Path(options["--out"]), run, run, cache=((kept, index),) if engine in _INDEXED else ())


def _mine(words: Sequence[str], options: _Options, sizes: Sizes, *_: object) -> StepCost:
    asked = (options.get("--set", "main"), options.get("--split", "train"), options.get("--queries", ""))
    found = sizes.pairs(*asked) * int(options.get("--negatives", 4)) * _NEGATIVE
    file = found + (sizes.pairs(*asked) if asked[2] else sizes.queries(*asked)) * _OF_QUERY
    return StepCost(Path(options["--out"]), file, file, cache=_unpacked(options, sizes))


def _train(
    words: Sequence[str], options: _Options, sizes: Sizes, recipes: Mapping[str, Recipe], cards: int
) -> StepCost:
    recipe = recipes[options["--out"]]
    data = recipe.data
    if recipe.model.kind == "mlm":
        examples = sizes.passages(data.set).count
    else:
        examples = sizes.pairs(data.set, data.split)
        examples += sizes.pairs(data.set, data.split, REMOVED) if data.similar else 0
    config = architecture(recipe, recipes)
    cost = training_cost(recipe, examples, cards, config=config)
    beside = config.vocab_size * _WORD + _BESIDE
    kept, most = (min(recipe.train.saves, cost.steps, states) for states in (_KEPT_STATES, _STATES))
    checkpoint, state = cost.checkpoint + beside, cost.state + beside
    return StepCost(
        Path(options["--out"]),
        checkpoint + kept * state,
        checkpoint + most * state,
        needed(cost.memory.total),
        cost.steps * cost.operations,
        cost.precision,
        cards,
        _unpacked({**options, "--set": data.set}, sizes),
    )


def _encode(words: Sequence[str], options: _Options, sizes: Sizes, recipes: Mapping[str, Recipe], _: int) -> StepCost:
    recipe = _model(options, recipes)
    texts, most = (
        sizes.passages(options.get("--set", "main")),
        int(options.get("--max-length", recipe.data.passage_length)),
    )
    tokens = min(most, round(texts.mean(most - _SPECIAL)) + _SPECIAL)  # a token a character
    cost = encoding_cost(recipe, texts.count, tokens, architecture(recipe, recipes))
    memory = needed(cost.weights + cost.activations)
    return StepCost(
        *(Path(options["--out"]), cost.embeddings, cost.embeddings, memory, cost.operations, DTYPE),
        cache=_unpacked(options, sizes),
    )


def _search(words: Sequence[str], options: _Options, sizes: Sizes, recipes: Mapping[str, Recipe], _: int) -> StepCost:
    recipe = _model(options, recipes)
    queries, passages = _queries(options, sizes), sizes.passages(options.get("--set", "main")).count
    cost = encoding_cost(recipe, queries, recipe.data.query_length, architecture(recipe, recipes))
    width = cost.embeddings // max(1, queries) // DTYPES[DTYPE].itemsize
    run = _run(options, sizes)
    # Of the queries, and of every query with every passage, in 32 bits: the slower half decides the precision.
    operations = cost.operations + 2 * queries * passages * width
    return StepCost(Path(options["--out"]), run, run, None, operations, "fp32", cache=_unpacked(options, sizes))


def _rerank(words: Sequence[str], options: _Options, sizes: Sizes, recipes: Mapping[str, Recipe], _: int) -> StepCost:
    recipe = _model(options, recipes)
    tokens = int(options.get("--max-length", recipe.data.passage_length))
    pairs = _queries(options, sizes) * _hits(options, sizes)
    cost = reranking_cost(recipe, pairs, tokens, architecture(recipe, recipes))
    run = _run(options, sizes)
    memory = needed(cost.weights + cost.activations)
    return StepCost(Path(options["--out"]), run, run, memory, cost.operations, DTYPE, cache=_unpacked(options, sizes))


_VERBS: dict[str, Callable[..., StepCost]] = {
    "bm25": _bm25,
    "mine": _mine,
    "train": _train,
    "encode": _encode,
    "search": _search,
    "rerank": _rerank,
}


def _model(options: _Options, recipes: Mapping[str, Recipe]) -> Recipe:
    """The recipe of the model that a command names, trained by the same plan, or by an earlier one."""
    return recipes.get(options["--model"]) or read_recipe(Path(options["--model"]).name)


def _queries(options: _Options, sizes: Sizes) -> int:
    return sizes.queries(options.get("--set", "main"), options.get("--split", "dev"), options.get("--queries", ""))


def _run(options: _Options, sizes: Sizes) -> float:
    """Bytes of a gzipped run."""
    return _queries(options, sizes) * _hits(options, sizes) * _RUN_LINE


def _hits(options: _Options, sizes: Sizes) -> int:
    """Passages of a query in a run, at most."""
    return min(int(options.get("--top-k", _TOP_K)), sizes.passages(options.get("--set", "main")).count)


def _unpacked(options: _Options, sizes: Sizes) -> tuple[tuple[str, float], ...]:
    """The texts of the collection as :mod:`baselines.retrieve.passages` keeps them."""
    of = options.get("--set", "main")
    texts = sizes.passages(of)
    return ((f"unpacked texts of {set_of(of).corpus}", texts.count * (texts.mean() * texts.bytes_each + _UNPACKED)),)
