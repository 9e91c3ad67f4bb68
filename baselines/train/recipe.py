"""Recipes: TOML files with the settings of one training. ``--set`` overrides settings.

``baselines/recipes/NAME.toml`` has the paper's values (Appendix A.2). ``NAME-scratch.toml`` has values for training
without pretrained weights. ``like = "NAME"`` takes over the values of another recipe. A recipe is given by its name, or
by a path, which contains a dot or a slash.
"""

from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from baselines.train.recipe_files import RECIPES, recipe_names
from builders.core.errors import InputError
from builders.core.read_files import read_toml
from builders.core.typed import convert_to
from builders.store.layout import SETS, base_set, set_of

SCRATCH = "scratch"
WORDS = "words"  # start = "words": one vector per word of the collection
# Starting checkpoints that the training creates from the collection.
CREATED_STARTS = (SCRATCH, WORDS)
FROM_RELEASE = "release"  # data.negatives = "release": hard negatives of the official data
PAIRS = "pairs"  # data.source = "pairs": files of labelled pairs of questions
FROM_RECIPE = "recipe:"  # start = "recipe:NAME": the checkpoint of the recipe NAME

# Limits far above useful values, but low enough to exclude overflows in a training.
_MAX_COUNT = 1_000_000_000
_MAX_AMOUNT = 1_000_000
Count = Annotated[int, Meta(ge=0, le=_MAX_COUNT)]
Positive = Annotated[int, Meta(ge=1, le=_MAX_COUNT)]
Size = Annotated[int, Meta(ge=1, le=10_000)]
Length = Annotated[int, Meta(ge=3, le=_MAX_COUNT)]  # two special tokens and one token of text
Seed = Annotated[int, Meta(ge=0, lt=1 << 32)]  # NumPy's range of seeds
Rate = Annotated[float, Meta(gt=0, le=1)]
Amount = Annotated[float, Meta(ge=0, le=_MAX_AMOUNT)]
PositiveAmount = Annotated[float, Meta(gt=0, le=_MAX_AMOUNT)]
Share = Annotated[float, Meta(ge=0, lt=1)]
PositiveShare = Annotated[float, Meta(gt=0, lt=1)]
Name = Annotated[str, Meta(min_length=1)]
Prompt = Annotated[str, Meta(max_length=1_000)]

# Libraries of transformers' option ``report_to`` that this project supports.
_LOGGERS = {"tensorboard", "trackio", "wandb"}

# Keys that only apply to some kinds of model, and these kinds.
_KINDS_BY_KEY = {
    "model.pooling": ("dual",),
    "model.similarity": ("dual",),
    "model.towers": ("dual",),
    "data.rows": ("dual",),
    "train.shortest": ("dual",),
    "model.outputs": ("cross",),
    "data.source": ("cross",),
    "train.adversarial": ("cross",),
    "model.inputs": ("dual", "cross"),
    "model.query_prompt": ("dual",),
    "model.passage_prompt": ("dual",),
}
# Keys that recipe.json names only if the recipe sets them: recipes without them stay the same training as before.
_OPTIONAL_KEYS = ("query_prompt", "passage_prompt")


class ModelSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The model to train and its starting checkpoint.

    - ``start``: a name on the hub, a directory, ``scratch`` (random weights, own vocabulary), ``words`` (one vector per
      word, only for a dual-encoder: :mod:`.trained_models`), or ``recipe:NAME`` (that recipe's checkpoint).
    - ``revision``: a commit, tag or branch of a ``start`` on the hub. Default: the main branch.
    - ``pooling``, ``similarity`` (dual-encoder): if empty, the settings of ``start`` for a SentenceTransformer, and
      ``mean`` and ``dot`` for other models.
    - ``towers`` (dual-encoder): 1 encoder for queries and passages together, or 2 encoders with equal initial weights.
    - ``outputs`` (cross-encoder): 1 logit (binary cross entropy), or 2 logits (softmax; score: second minus first).
    - ``inputs``: ``plain`` uses the tokenizer of ``start``. ``official`` removes spaces, and puts an empty title before
      a dual-encoder's passages, as the official code does (:mod:`baselines.retrieve.official_input`).
    - ``query_prompt``, ``passage_prompt`` (dual-encoder): texts before each query and each passage, in the training and
      in every later use of the checkpoint. Default: the prompts of ``start``. An empty text removes a prompt of
      ``start``.
    """

    kind: Literal["dual", "cross", "mlm"]
    start: Name
    revision: str = ""
    pooling: Literal["", "cls", "mean"] = ""
    similarity: Literal["", "dot", "cos"] = ""
    towers: Literal[1, 2] = 1
    inputs: Literal["plain", "official"] = "plain"
    outputs: Literal[1, 2] = 1
    query_prompt: Prompt | None = None
    passage_prompt: Prompt | None = None

    @property
    def is_pretrained(self) -> bool:
        """True if ``start`` is a model on the hub or a directory."""
        return self.start not in CREATED_STARTS and not self.start.startswith(FROM_RECIPE)

    def __post_init__(self) -> None:
        if self.revision and not self.is_pretrained:
            raise ValueError(f"revision: needs a start on the hub, found {self.start}")
        if self.kind == "dual" and self.inputs == "official" and self.towers == 1:
            raise ValueError("inputs: official inputs differ for queries and passages; expected towers = 2")


class ScratchSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Sizes of the random BERT and of its WordPiece vocabulary, for ``model.start = "scratch"``.

    ``vocabulary_passages``: number of passages, evenly spaced over the collection, to build the vocabulary from.
    """

    vocabulary: Annotated[int, Meta(ge=10, le=_MAX_COUNT)] = 12_000  # five are special tokens
    vocabulary_passages: Positive = 200_000
    layers: Size = 6
    hidden: Size = 384
    heads: Size = 6
    feed_forward: Size = 1536
    dropout: Share = 0.1

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise ValueError(f"hidden: expected a multiple of heads ({self.heads}), found {self.hidden}")


class VocabularySection(Struct, frozen=True, forbid_unknown_fields=True):
    """Initial word vectors of a static model, for ``model.start = "words"``.

    ``vocabulary``: number of words, by frequency. ``vocabulary_passages``: number of passages, evenly spaced over the
    collection, that the words come from. All characters in these passages are added. ``dimensions``: size of a vector.
    ``characters``: weight of the characters' vectors in a word's initial vector; the word's own vector has weight 1.
    """

    vocabulary: Positive = 60_000
    vocabulary_passages: Positive = 200_000
    dimensions: Size = 1024
    characters: Amount = 0.5


class DataSection(Struct, frozen=True, forbid_unknown_fields=True):
    """The training data. Lengths are in tokens, including special tokens. A static model reads whole texts.

    - ``source``: ``release``, or ``pairs`` (cross-encoder) for files of labelled pairs of questions (``--pairs``).
      With ``pairs``, ``passage_length`` limits the two questions together.
    - ``held_out``: share of the pairs to evaluate on if there are no ``--dev-pairs``.
    - ``set``: a set of the release, or a config of training questions that `add` sampled from main. The training then
      reads only these questions, and is evaluated on ``dev_split`` of main.
    - ``negatives``: a file of `mine`, or ``release`` for the hard negatives of the official data.
    - ``rows`` (dual-encoder): a positive with k negatives gives k rows of one negative each (``one-negative``, as in
      the official code), or one row with all negatives (``all-negatives``).
    - ``leave_out``: ``tuning`` skips the tuning questions (:func:`builders.store.layout.is_for_tuning`), so that
      fusion weights tuned on these questions do not favour the model.
    - ``similar``: also train on questions that were removed as similar to a dev or test question (config
      ``train-similar``, Section 2.3). This setting only serves to measure the effect of these questions (Table 6).
    - ``dev_queries``: number of queries of ``dev_split`` in the evaluation during training (default: 200, and 50 on a
      CPU). A dual-encoder ranks all positives of these queries and ``dev_passages`` random passages (default: 2,000,
      and 200 on a CPU). A cross-encoder re-ranks the top 20 of ``--dev-run``.
    """

    source: Literal["release", "pairs"] = "release"
    held_out: PositiveShare = 0.1
    set: str = "main"
    split: Name = "train"
    dev_split: Name = "dev"
    negatives: str = ""
    negatives_per_positive: Count = 4
    leave_out: Literal["", "tuning"] = ""
    similar: bool = False
    rows: Literal["one-negative", "all-negatives"] = "one-negative"
    query_length: Length = 32
    passage_length: Length = 384
    dev_queries: Count | None = None
    dev_passages: Count | None = None

    def __post_init__(self) -> None:
        try:
            set_of(self.set)
        except ValueError:
            sampled_sets = "restrain-SIZE-interpolation, restrain-SIZE-extrapolation, resttest-bucketNUMBER"
            raise ValueError(f"set: expected one of {', '.join(SETS)}, {sampled_sets}; found {self.set!r}") from None
        if self.similar and (self.set, self.split) != ("main", "train"):
            raise ValueError(f"similar: expected set main and split train, found {self.set} and {self.split}")
        if self.leave_out and self.source == PAIRS:
            raise ValueError("leave_out: needs source = release")
        for key in ("split", "dev_split"):
            if getattr(self, key) == "test":
                raise ValueError(f"{key}: the test split is only for the final evaluation")


class TrainSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Hyperparameters of the training.

    A row is a row of ``data.rows`` for a dual-encoder, a (query, passage) pair for a cross-encoder, and a passage for a
    masked language model.

    - ``batch``: rows per step, over all processes. ``epochs``: passes over all rows. ``max_steps``: 0: no limit.
    - ``warmup``: share of the steps in which the learning rate rises to ``learning_rate``.
    - ``mini_batch``: rows in one pass of a dual-encoder's training, and of an evaluation. No effect on results.
    - ``mini_batch_tokens``: tokens in one pass of the training of a dual-encoder or cross-encoder. 0 means 32,768 on a
      GPU. On a CPU, 0 means ``mini_batch`` rows for a dual-encoder, and the whole batch for a cross-encoder.
    - ``schedule``: after the warm-up, the learning rate falls to 0 (``linear``) or stays (``constant``).
    - ``clip``: largest norm of the gradients (0: no limit).
    - ``scale`` (dual-encoder): factor of the similarities in the loss. Cosines need a factor above 1.
    - ``mask`` (masked language model): share of the tokens that the model predicts.
    - ``adversarial`` (cross-encoder): distance by which the word embeddings move along their gradient before each step
      (0: off; official code: 0.01). ``embeddings_gradient``: factor of the embeddings' gradient in an adversarial step
      (official code: 2, see docs/train.md).
    - ``shortest`` (dual-encoder): smallest dimension to which vectors can be truncated. The first half of each vector,
      the first quarter, and so on are also trained (Matryoshka; 0: only whole vectors).
    - ``precision``: ``auto`` is bf16 on a GPU with bf16, else fp32. ``compile``: use torch.compile.
    - ``workers``: processes that prepare batches for a GPU. On a CPU, no processes are started.
    - ``logs``, ``evaluations``, ``saves``: number of log entries, evaluations and saved states of the whole training.
    """

    batch: Positive
    epochs: PositiveAmount
    learning_rate: Rate
    warmup: Share = 0.0
    schedule: Literal["linear", "constant"] = "linear"
    weight_decay: Amount = 0.0
    clip: Amount = 1.0
    adversarial: Amount = 0.0
    embeddings_gradient: PositiveAmount = 1.0
    shortest: Count = 0
    mini_batch: Positive = 32
    mini_batch_tokens: Count = 0
    max_steps: Count = 0
    scale: PositiveAmount = 1.0
    mask: PositiveShare = 0.15
    seed: Seed = 0
    precision: Literal["auto", "bf16", "fp32"] = "auto"
    compile: bool = False
    workers: Annotated[int, Meta(ge=0, le=1_000)] = 2
    logs: Positive = 200
    evaluations: Count = 10
    saves: Count = 10
    # Loggers, separated by commas; auto: TensorBoard if it is installed.
    report_to: str = "auto"

    def __post_init__(self) -> None:
        if self.report_to in ("auto", "none"):
            return
        if not set(self.report_to.split(",")) <= _LOGGERS:
            raise ValueError(
                f"report_to: expected auto, none, or some of {', '.join(sorted(_LOGGERS))}; found {self.report_to!r}"
            )

    def loggers(self) -> list[str]:
        """Return the libraries of ``report_to``. Raises :class:`InputError` if a library is not installed."""
        if self.report_to == "none":
            return []
        if self.report_to == "auto":
            return ["tensorboard"] if _is_installed("tensorboard") else []
        loggers = self.report_to.split(",")
        for logger in loggers:
            if not _is_installed(logger):
                raise InputError(f"train.report_to: {logger} is not installed; run `pip install {logger}`")
        return loggers


def _is_installed(logger: str) -> bool:
    # transformers also logs to TensorBoard by the library tensorboardX.
    if logger == "tensorboard" and find_spec("tensorboardX"):
        return True
    return bool(find_spec(logger))


class DistilSection(Struct, frozen=True, forbid_unknown_fields=True):
    """Distillation: a dual-encoder learns the scores of a run (``--teacher RUN``) instead of the contrastive loss.

    A training row is a query, a positive and ``data.negatives_per_positive`` negatives (``data.rows``). The run has
    scored all of them. The negatives come from ``--negatives``. Otherwise they come from ``--machine-labels``, and then
    from the first ``top_k`` passages of the run.

    - ``loss``: ``kl`` is the Kullback-Leibler divergence of the student's distribution over the row's passages from the
      teacher's distribution. Both are a softmax of scores. ``margin-mse`` is the mean squared difference of the
      student's and the teacher's margins. A margin is the positive's score minus a negative's score.
    - ``teacher_scale``: factor of the teacher's scores in the loss. The factor of the student's is ``train.scale``.
    - ``top_k``: sample negatives from the run's ``top_k`` best passages.
    """

    loss: Literal["kl", "margin-mse"]
    teacher_scale: PositiveAmount = 1.0
    top_k: Positive = 50


class RecipeSections(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The sections of a recipe file."""

    model: ModelSection
    data: DataSection = DataSection()
    train: TrainSection
    scratch: ScratchSection = ScratchSection()
    words: VocabularySection = VocabularySection()
    distil: DistilSection | None = None

    def __post_init__(self) -> None:
        if self.distil:
            self._check_distillation()
        for full_key, kinds in _KINDS_BY_KEY.items():
            section, key = full_key.split(".")
            settings = getattr(self, section)
            defaults = {field.name: field.default for field in msgspec.structs.fields(settings)}
            if getattr(settings, key) != defaults[key] and self.model.kind not in kinds:
                raise ValueError(f"{full_key}: needs model.kind = {' or '.join(kinds)}, found {self.model.kind}")
        if self.train.embeddings_gradient != 1 and not self.train.adversarial:
            raise ValueError("train.embeddings_gradient: needs train.adversarial above 0")
        if self.data.negatives == FROM_RELEASE and base_set(self.data.set) != "main":
            raise ValueError(f"data.negatives: official negatives exist only for the set main, not for {self.data.set}")

    def _check_distillation(self) -> None:
        """Raise :class:`ValueError` if another value does not fit the section ``distil``."""
        if self.model.kind != "dual":
            raise ValueError(f"distil: needs model.kind = dual, found {self.model.kind}")
        if not self.data.negatives_per_positive:
            raise ValueError("distil: needs data.negatives_per_positive above 0, because the loss compares passages")
        # The official negatives are no sample of a retriever's best passages, so few of them have a teacher's score.
        if self.data.negatives == FROM_RELEASE:
            raise ValueError("data.negatives: with distil, expected a file of `mine` or nothing, found release")
        # A teacher's scores were never tried as the target of shortened vectors.
        if self.train.shortest:
            raise ValueError("train.shortest: needs a recipe without distil")


class Recipe(RecipeSections, frozen=True, kw_only=True):
    """A validated recipe. ``name`` is the file name without ``.toml``."""

    name: str

    @property
    def negatives(self) -> int:
        """Number of hard negatives that the training reads for each positive."""
        if self.model.kind == "mlm" or self.data.source == PAIRS:
            return 0
        return self.data.negatives_per_positive

    def resolved(self) -> dict[str, Any]:
        """Return the settings for ``recipe.json``, including defaults and overrides.

        Sections and keys that this training does not use are left out, for example ``scratch`` with another start.
        """
        content: dict[str, Any] = msgspec.to_builtins(self)
        for start in CREATED_STARTS:
            if self.model.start != start:
                del content[start]
        for key in _OPTIONAL_KEYS:
            if content["model"][key] is None:
                del content["model"][key]
        if self.distil is None:
            del content["distil"]
        del content["train"]["report_to"]  # a training logged elsewhere is the same training
        settings = {"name": content.pop("name")}  # the name is the first key of recipe.json
        settings.update(content)
        return settings

    def values(self) -> dict[str, Any]:
        """Return every setting of :meth:`resolved` by its ``--set`` key, such as ``train.batch``."""
        values: dict[str, Any] = {}
        for section, settings in self.resolved().items():
            if isinstance(settings, dict):
                for key, value in settings.items():
                    values[f"{section}.{key}"] = value
        return values


# The types of sections that a recipe may lack. The declared type of such a field also allows None.
_SECTION_TYPES: dict[str, Any] = {"distil": DistilSection}


def read_recipe(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """Read the recipe with this name or path, and apply the ``section.key=value`` overrides.

    Raises :class:`InputError` for an unknown recipe, section or key, for a missing or wrong value, and for the test
    split as training or dev data. The error names the file or override, and the key.
    """
    recipe_path = RECIPES / f"{name}.toml"
    if "/" in name or "." in name:
        recipe_path = Path(name)
    elif name not in recipe_names():
        raise InputError(f"no recipe {name!r}; expected a path to a .toml file, or one of {', '.join(recipe_names())}")
    # Overrides are applied before validation, so that the recipe is validated as a whole.
    content = _read_content(recipe_path)
    for override in overrides:
        _apply_override(content, override)
    sections = convert_to(content, RecipeSections, recipe_path)
    return Recipe(
        name=recipe_path.stem,
        model=sections.model,
        data=sections.data,
        train=sections.train,
        scratch=sections.scratch,
        words=sections.words,
        distil=sections.distil,
    )


def _read_content(recipe_path: Path) -> dict[str, Any]:
    """Return the content of a recipe file. Its values replace those of the recipe that ``like`` names."""
    own_content = read_toml(recipe_path)
    base_name = own_content.pop("like", None)
    if base_name is None:
        return own_content
    if base_name not in recipe_names():
        raise InputError(f"like: expected one of {', '.join(recipe_names())}; found {base_name!r}", path=recipe_path)
    content = _read_content(RECIPES / f"{base_name}.toml")
    for section, values in own_content.items():
        base_values = content.get(section)
        if isinstance(base_values, dict) and isinstance(values, dict):
            content[section] = base_values | values
        else:
            content[section] = values
    return content


def _apply_override(content: dict[str, Any], override: str) -> None:
    """Apply one ``section.key=value`` to the content of a recipe file, which is changed in place."""
    full_key, equals, text = override.partition("=")
    section, dot, key = full_key.partition(".")
    if not (equals and dot and section and key):
        raise InputError(f"--set {override}: expected SECTION.KEY=VALUE, for example train.batch=64")
    section_type = _SECTION_TYPES.get(section) or _find_type(section, RecipeSections, override)
    value_type = _find_type(key, section_type, override)
    value = convert_to(text, value_type, f"--set {override}", from_text=True)
    values = content.setdefault(section, {})
    # A section that is no table is an error of the file, which validation reports later.
    if isinstance(values, dict):
        values[key] = value


def _find_type(key: str, struct: Any, override: str) -> Any:
    """Return the declared type of a field of a struct. Raises :class:`InputError` with ``override`` for another key."""
    types = {field.name: field.type for field in msgspec.structs.fields(struct)}
    if key not in types:
        raise InputError(f"unknown key {key!r}; expected {', '.join(types)}", path=f"--set {override}")
    return types[key]
