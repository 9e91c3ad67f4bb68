"""Open or create the models to train: from the hub, from a checkpoint, or from the collection itself.

A dual-encoder is a SentenceTransformer that truncates queries and passages at different lengths. It has one shared
encoder, or one encoder for queries and one for passages (the library's Router). A cross-encoder is a CrossEncoder with
one or two outputs. Plain ``SentenceTransformer(DIR)`` and ``CrossEncoder(DIR)`` also load lengths and prompts.

Without pretrained weights, a training starts from a BERT with random weights (``start = "scratch"``) or from one
vector per word (``start = "words"``, the library's StaticEmbedding). In a StaticEmbedding, a text's vector is the mean
of its words' vectors, so that no GPU is needed. jieba finds the words in the collection. A Unigram tokenizer splits a
text into its likeliest words, as jieba does, and an unknown word into characters. A word's initial vector is random,
scaled by the word's inverse document frequency, plus its characters' vectors (:func:`start_vectors`). The similarity of
two texts is then the weight of their shared words, plus noise. The training learns which words matter or are synonyms.
"""

from __future__ import annotations

import collections
import copy
import math
import string
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, StaticEmbedding, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertTokenizer, PreTrainedModel
from transformers import BertForMaskedLM as _BertForMaskedLM

from baselines.core.passages import CachedPassages
from baselines.core.settings import ModelSettings
from baselines.retrieve.library_errors import convert_library_errors
from baselines.retrieve.model_kinds import expect_complete_copy, is_plain
from baselines.retrieve.model_prompts import set_prompts
from baselines.retrieve.models import (
    check_length,
    check_tokenizer,
    check_tokenizers,
    class_names,
    exclusive_loading,
    expect_weights,
    new_head,
)
from baselines.retrieve.official_input import Kind as InputKind
from baselines.retrieve.official_input import official_tokenizer
from baselines.retrieve.reading_checks import SENTENCE, check_reading, check_room_for_texts
from baselines.train.recipe import WORDS, Recipe, VocabularySection
from builders.core.errors import InputError, log
from builders.core.folders import build_once
from builders.core.typed import problem_of
from builders.core.write_files import write_text

if TYPE_CHECKING:
    from tokenizers import Tokenizer

POSITIONS = 512  # BERT's longest input
_BERT_WIDTH = 768
_BERT_WEIGHT_RANGE = 0.02  # standard deviation of BERT's initial weights
_SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS_PER_READ = 1_000
# The first and the last code point of each Unicode block of Chinese characters, as in BERT's tokenizer.
_CHINESE_BLOCKS = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
_UNKNOWN = "[UNK]"
_CHARACTER_SHARE = 0.75  # of a WordPiece vocabulary that single characters may fill
# Largest number of characters of a word; longer runs of letters and digits are mostly file names.
_LONGEST_WORD = 16
_UNSEEN_COUNT = 0.5  # assumed count of a character that never occurs as a word
_IGNORED_LABEL = -100  # label of a token that is not masked
# Replaces the saved precision; an optimizer's small steps need fp32.
_FP32 = {"dtype": torch.float32}


class BertForMaskedLM(_BertForMaskedLM):  # type: ignore[no-untyped-call]
    """BERT that predicts only masked tokens, because most of a small model's time is spent on predictions.

    The loss equals that of transformers' own class. This class has the same name, so that AutoModel loads saved models.
    """

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, torch.Tensor]:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        is_masked = labels != _IGNORED_LABEL
        logits = self.cls(states[is_masked])
        loss_sum = torch.nn.functional.cross_entropy(logits.float(), labels[is_masked], reduction="sum")
        # clamp: a batch without masked tokens has the loss 0, not 0 / 0.
        return {"loss": loss_sum / is_masked.sum().clamp(min=1)}


def dual_encoder(recipe: Recipe, start_model: str, device: str, commit: str | None = None) -> SentenceTransformer:
    """Open the dual-encoder to train, from ``start_model`` (a directory, or a hub name at a ``commit``).

    A SentenceTransformer keeps its own pooling and similarity, and the prompts that the recipe does not set. Raises
    :class:`InputError` if a setting of the recipe does not fit the model: another pooling, similarity or number of
    encoders, a length above the model's longest input, or cosine similarity with ``train.scale`` <= 1.
    """
    commit_settings = ModelSettings(start_model, revision=commit or "")
    expect_complete_copy(commit_settings)
    model, similarity = _open_dual_encoder(recipe, start_model, commit_settings, device, commit)
    prompt_settings = msgspec.structs.replace(
        commit_settings, query_prompt=recipe.model.query_prompt, passage_prompt=recipe.model.passage_prompt
    )
    set_prompts(model, prompt_settings)
    check_reading(model, ModelSettings(start_model))
    # Check the recipe's settings of the loss.
    if similarity == "cos":
        if recipe.train.scale <= 1:
            raise InputError(
                f"{start_model}: cosines with train.scale = {recipe.train.scale:g} differ too little to learn from; "
                "expected a scale above 1, for example --set train.scale=20"
            )
        if not any(isinstance(module, Normalize) for module in model.modules()):
            # Dot products are then cosines, and every index supports dot products.
            model.append(Normalize())
    _check_shortest(recipe, model, similarity, start_model)
    # A static model has no transformer, hence no lengths and no official inputs.
    if is_static(model):
        if recipe.model.towers == 2 or recipe.model.inputs == "official":
            raise InputError(f"{start_model} is a static model; expected model.towers = 1 and model.inputs = plain")
        return model
    if recipe.model.towers == 2:
        model = _copy_tower(model, device)
    _set_lengths(recipe, _find_towers(model, recipe.model.towers, start_model))
    check_room_for_texts(model, start_model)
    return model


def _open_dual_encoder(
    recipe: Recipe, start_model: str, settings: ModelSettings, device: str, commit: str | None
) -> tuple[SentenceTransformer, str]:
    """Open a SentenceTransformer, or a plain transformer with a pooling layer.

    ``settings`` has the name and the commit, too. Return the model, and its similarity (``dot`` or ``cos``).
    """
    failure = f"cannot start from the model {start_model!r}"
    similarity: str
    with convert_library_errors(failure, start_model), exclusive_loading():
        if is_plain(settings):
            encoder: Any = Transformer(
                start_model,
                model_kwargs=_load_options(commit) | _FP32,
                processor_kwargs=_load_options(commit),
                config_kwargs=_load_options(commit),
            )
            pooling = Pooling(encoder.get_embedding_dimension(), recipe.model.pooling or "mean")
            model = SentenceTransformer(modules=[encoder, pooling], device="cpu", similarity_fn_name="dot")
            similarity = recipe.model.similarity or "dot"
        else:
            model = SentenceTransformer(start_model, device="cpu", revision=commit, model_kwargs=dict(_FP32))
            similarity = _own_similarity(model, start_model)
            _expect_setting(start_model, "pooling", recipe.model.pooling, _pooling_modes(model))
            _expect_setting(start_model, "similarity", recipe.model.similarity, similarity)
        expect_weights(failure, model, new_head)
        _check_names(start_model, list(model.modules()))
        check_tokenizers(model, start_model)
        model.to(device)
    return model, similarity


def _expect_setting(start_model: str, key: str, recipe_value: str, model_value: str) -> None:
    """Raise :class:`InputError` if a recipe names another value than a SentenceTransformer has."""
    if recipe_value not in ("", model_value):
        raise InputError(
            f"model.{key} = {recipe_value}, but {start_model} is a SentenceTransformer with {model_value or 'none'}; "
            f"--set model.{key}= uses the model's value"
        )


def _check_shortest(recipe: Recipe, model: SentenceTransformer, similarity: str, start_model: str) -> None:
    """Raise :class:`InputError` if ``train.shortest`` does not fit the model."""
    shortest = recipe.train.shortest
    dimensions = model.get_embedding_dimension() or 0
    if shortest > dimensions:
        raise InputError(f"train.shortest = {shortest} is more than the {dimensions} dimensions of {start_model}")
    if shortest and similarity != "cos":
        raise InputError(f"train.shortest: {start_model} compares by dot product; expected model.similarity = cos")


def _set_lengths(recipe: Recipe, towers: dict[str, Any]) -> None:
    """Set the lengths of queries and passages, and the official tokenizers, and freeze the unused poolers.

    ``towers`` has the transformers by route: ``query`` and ``document``, or only a shared ``document``. Raises
    :class:`InputError` if a transformer cannot read texts of the recipe's lengths.
    """
    data = recipe.data
    for route, tower in towers.items():
        is_query = route == "query"
        if recipe.model.inputs == "official":
            input_kind: InputKind = "query" if is_query else "passage"
            length = data.query_length if is_query else data.passage_length
            tower.processor = official_tokenizer(tower.tokenizer, input_kind, length)
        pooler = getattr(tower.auto_model, "pooler", None)
        if pooler is not None:
            # No output uses the pooler; several processes would wait for its gradients.
            pooler.requires_grad_(False)
        tower.query_length = data.query_length
        tower.document_length = data.passage_length
        # encode() without a task truncates to max_seq_length. A model from scratch has not trained later positions.
        tower.max_seq_length = data.passage_length
    # A shared encoder has only one route, usually that of passages.
    first_tower = next(iter(towers.values()))
    query_tower = towers.get("query", first_tower)
    passage_tower = towers.get("document", first_tower)
    query_option = f"data.query_length = {data.query_length}"
    check_length(query_option, data.query_length, query_tower, query_tower.tokenizer)
    passage_option = f"data.passage_length = {data.passage_length}"
    check_length(passage_option, data.passage_length, passage_tower, passage_tower.tokenizer)


def is_static(model: SentenceTransformer) -> bool:
    """True if the model has one vector per word, and no transformer."""
    return any(isinstance(module, StaticEmbedding) for module in model)


def halved_dimensions(model: SentenceTransformer, shortest: int) -> list[int]:
    """Return the dimension of the model's vectors, a half, a quarter, and so on, while it is at least ``shortest``."""
    dimensions = []
    dimension = model.get_embedding_dimension() or 0
    while dimension and dimension >= shortest:
        dimensions.append(dimension)
        dimension //= 2
    return dimensions


def _copy_tower(model: SentenceTransformer, device: str) -> SentenceTransformer:
    """Copy the encoder, so that queries and passages have separate encoders. Two encoders are returned unchanged."""
    if any(isinstance(module, Router) for module in model):
        return model
    passage_modules = list(model.children())
    query_modules = copy.deepcopy(passage_modules)
    return SentenceTransformer(
        modules=[Router.for_query_document(query_modules, passage_modules)],
        device=device,
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )


def _find_towers(model: SentenceTransformer, expected_count: int, start_model: str) -> dict[str, Any]:
    """Return the transformers of a model by route: ``query`` and ``document``, or only a shared ``document``.

    Raises :class:`InputError` for another number of encoders than ``expected_count``.
    """
    routes: dict[str, Any] = {"document": model}
    for module in model:
        if isinstance(module, Router):
            routes = dict(module.sub_modules.items())
            break
    if len(routes) != expected_count:
        raise InputError(f"{start_model} has {len(routes)} encoders (towers); expected model.towers = {len(routes)}")
    towers = {}
    for route, route_model in routes.items():
        transformers = [module for module in route_model.modules() if isinstance(module, Transformer)]
        if not transformers or route not in ("query", "document"):
            raise InputError(f"{start_model} lacks a transformer for queries or for passages")
        towers[route] = transformers[0]
    return towers


def _pooling_modes(model: SentenceTransformer) -> str:
    """Return the pooling modes of all pooling layers of a model, as text: ``cls``, ``cls+mean``, or "" without any."""
    modes = set()
    for module in model.modules():
        if isinstance(module, Pooling):
            mode = module.pooling_mode
            modes.add(mode if isinstance(mode, str) else "+".join(mode))
    return ", ".join(sorted(modes))


def _own_similarity(model: SentenceTransformer, start_model: str) -> str:
    """Return the similarity of a SentenceTransformer. Dot products of normalised vectors count as ``cos``."""
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"{start_model} compares by {model.similarity_fn_name!r}; expected cosine or dot")
    is_normalised = any(isinstance(module, Normalize) for module in model.modules())
    return "cos" if is_normalised or model.similarity_fn_name == "cosine" else "dot"


def cross_encoder(recipe: Recipe, start_model: str, device: str, commit: str | None = None) -> CrossEncoder:
    """Open the cross-encoder to train, from ``start_model`` (a directory, or a hub name at a ``commit``).

    Raises :class:`InputError` if ``start_model`` is a cross-encoder whose number of outputs differs from the recipe.
    """
    output_count = recipe.model.outputs
    pair_length = recipe.data.passage_length
    failure = f"cannot start from the model {start_model!r}"
    expect_complete_copy(ModelSettings(start_model, revision=commit or ""))
    with convert_library_errors(failure, start_model), exclusive_loading():
        config = AutoConfig.from_pretrained(start_model, **_load_options(commit))
        first_class = next(iter(class_names(config)), "")
        if first_class.endswith("ForSequenceClassification") and config.num_labels != output_count:
            # The library's own message has thirty lines.
            raise InputError(
                f"{start_model} is a cross-encoder with {config.num_labels} outputs; "
                f"expected model.outputs = {config.num_labels}"
            )
        model = CrossEncoder(
            start_model,
            num_labels=output_count,
            max_length=pair_length,
            device="cpu",
            revision=commit,
            model_kwargs=dict(_FP32),
        )
        expect_weights(failure, model, new_head)
        _check_names(start_model, list(model.modules()))
        check_tokenizers(model, start_model)
        model.to(device)
    check_reading(model, ModelSettings(start_model))
    if recipe.model.inputs == "official":
        model[0].processor = official_tokenizer(model.tokenizer, "pair", pair_length)
    check_length(f"data.passage_length = {pair_length}", pair_length, model, model.tokenizer, texts=2)
    check_room_for_texts(model, start_model)
    return model


def masked_language_model(recipe: Recipe, start_model: str, commit: str | None = None) -> tuple[PreTrainedModel, Any]:
    """Open the masked language model to train and its tokenizer, from a directory or a hub name at a ``commit``."""
    load_options = _load_options(commit)
    length = recipe.data.passage_length
    failure = f"cannot start from the model {start_model!r}"
    expect_complete_copy(ModelSettings(start_model, revision=commit or ""))
    with convert_library_errors(failure, start_model), exclusive_loading():
        config = AutoConfig.from_pretrained(start_model, **load_options)
        model_class = BertForMaskedLM if config.model_type == "bert" else AutoModelForMaskedLM
        model = model_class.from_pretrained(start_model, dtype=torch.float32, **load_options)
        expect_weights(failure, model, new_head)
        tokenizer = AutoTokenizer.from_pretrained(start_model, **load_options)
        _check_names(start_model, [], tokenizer)
        check_tokenizer(tokenizer, model.get_input_embeddings().weight, start_model)
        if tokenizer.mask_token_id is None:
            raise InputError(f"cannot start from the model {start_model!r}: its tokenizer has no mask token")
        # A first pass, with padding, shows errors of the model's settings before the training starts.
        batch = tokenizer([SENTENCE, SENTENCE[:1]], padding=True, return_tensors="pt")
        with torch.no_grad():
            model(batch["input_ids"], attention_mask=batch["attention_mask"], labels=batch["input_ids"])
    check_length(f"data.passage_length = {length}", length, model, tokenizer)
    return model, tokenizer


def _load_options(commit: str | None) -> dict[str, Any]:
    """Return transformers' arguments for the commit. Without ``trust_remote_code``, transformers could ask on stdin."""
    options: dict[str, Any] = {"trust_remote_code": False}
    if commit:
        options["revision"] = commit
    return options


def _check_names(start_model: str, modules: list[Any], *tokenizers: Any) -> None:
    """Raise :class:`InputError` if the name of a route or chat template would put its file outside the checkpoint."""
    all_tokenizers = list(tokenizers)
    names: list[str] = []
    for module in modules:
        if isinstance(module, Transformer):
            all_tokenizers.append(module.tokenizer)
        if isinstance(module, Router):
            names += module.sub_modules
    for tokenizer in all_tokenizers:
        templates = getattr(tokenizer, "chat_template", None)
        if isinstance(templates, dict):  # a single template is a string without a name
            names += templates
    for name in names:
        problem = problem_of(name)
        if not problem and "/" in name:
            problem = f"the name {name!r} contains a slash; expected a plain name"
        if problem:
            raise InputError(f"cannot start from the model {start_model!r}: {problem}")


def make_start(recipe: Recipe, start_model: str, passages: CachedPassages, folder: Path) -> Path:
    """Create a starting checkpoint in ``folder`` if the folder is missing or unfinished, and return ``folder``.

    ``start_model`` is ``scratch`` or ``words``. The first process writes the files while other processes wait. The same
    recipe and collection give the same bytes.
    """
    # The last file that each function writes. A folder with this file is complete.
    if start_model == WORDS:
        last_file = folder / "modules.json"
        write_start = _write_words
    else:
        last_file = folder / "model.safetensors"
        write_start = _write_scratch
    build_once(folder, last_file.is_file, lambda new_folder: write_start(recipe, passages, new_folder))
    return folder


def _spaced_texts(passages: CachedPassages, max_passages: int) -> Iterator[str]:
    """Yield the texts of at most ``max_passages`` passages, evenly spaced over the collection."""
    passage_count = min(max_passages, len(passages))
    rows = [number * len(passages) // passage_count for number in range(passage_count)]
    for start in range(0, passage_count, _TEXTS_PER_READ):
        yield from passages.texts(rows[start : start + _TEXTS_PER_READ])


def _write_scratch(recipe: Recipe, passages: CachedPassages, folder: Path) -> None:
    """Write a BERT with random weights, and its tokenizer with a vocabulary from the collection."""
    sizes = recipe.scratch
    vocabulary = build_wordpieces(passages, sizes.vocabulary, sizes.vocabulary_passages)
    vocabulary_path = folder / "vocab.txt"
    write_text(vocabulary_path, "".join(f"{piece}\n" for piece in vocabulary))
    # Pass the path by position: transformers 5 ignores the keyword vocab_file, and every token becomes [UNK].
    tokenizer = BertTokenizer(str(vocabulary_path), model_max_length=POSITIONS)
    torch.manual_seed(recipe.train.seed)
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=sizes.hidden,
        num_hidden_layers=sizes.layers,
        num_attention_heads=sizes.heads,
        intermediate_size=sizes.feed_forward,
        hidden_dropout_prob=sizes.dropout,
        attention_probs_dropout_prob=sizes.dropout,
        max_position_embeddings=POSITIONS,
        # BERT's value, which is scaled up for narrower models.
        initializer_range=_BERT_WEIGHT_RANGE * (_BERT_WIDTH / sizes.hidden) ** 0.5,
    )
    BertForMaskedLM(config).save_pretrained(folder)
    log.info("a vocabulary of %d word pieces and random weights", len(vocabulary))


def build_wordpieces(passages: CachedPassages, size: int, max_passages: int) -> list[str]:
    """Build a WordPiece vocabulary of at most ``size`` pieces from ``max_passages`` passages, evenly spaced.

    BERT's special tokens come first. The same passages give the same list. This function selects the characters,
    because the library breaks ties between rare characters at random.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: collections.Counter[str] = collections.Counter()
    for text in _spaced_texts(passages, max_passages):
        counts.update(tokenizer.normalizer.normalize_str(text))

    # Select the most frequent characters, in the order of their code points among equal counts. A character inside
    # words needs a second piece with "##". The library would number these pieces in a random order, and the numbers
    # break ties. Special tokens get fixed numbers, so the pieces are passed as special tokens.
    characters = [character for character in counts if not character.isspace()]
    characters.sort(key=lambda character: (-counts[character], character))
    max_pieces = _CHARACTER_SHARE * (size - len(_SPECIAL_TOKENS))
    alphabet: list[str] = []
    inside_pieces: list[str] = []
    for character in characters:
        if len(alphabet) + len(inside_pieces) >= max_pieces:
            break
        alphabet.append(character)
        if not _stands_alone(character):
            inside_pieces.append(f"##{character}")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=_SPECIAL_TOKENS + inside_pieces,
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_spaced_texts(passages, max_passages), trainer)
    id_by_piece = tokenizer.get_vocab()
    # A line number of vocab.txt is the id of the line's piece.
    return sorted(id_by_piece, key=id_by_piece.__getitem__)


def _stands_alone(character: str) -> bool:
    """True for Chinese characters and punctuation, which BERT's tokenizers separate from their neighbours."""
    is_chinese = any(first <= ord(character) <= last for first, last in _CHINESE_BLOCKS)
    is_punctuation = character in string.punctuation or unicodedata.category(character).startswith("P")
    return is_chinese or is_punctuation


def _write_words(recipe: Recipe, passages: CachedPassages, folder: Path) -> None:
    """Write a static model with one vector for each frequent word and each character of the collection."""
    counts = CollectionCounts(passages, recipe.words.vocabulary_passages)
    tokenizer, words = words_tokenizer(counts, recipe.words.vocabulary)
    vectors = start_vectors(words, counts, recipe.words, recipe.train.seed)
    modules = [StaticEmbedding(tokenizer, embedding_weights=vectors), Normalize()]
    model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine")
    model.save(str(folder), create_model_card=False)
    log.info("vectors of %d words and characters, %d dimensions", len(words), vectors.shape[1])


class CollectionCounts:
    """Counts of words in at most ``max_passages`` passages, evenly spaced over a collection.

    Attributes:
        passages: the number of passages read.
        words: the number of occurrences of each word.
        passages_with: the number of passages that contain each word or single character.
    """

    def __init__(self, passages: CachedPassages, max_passages: int) -> None:
        from builders.core.words import split_words

        self.passages = min(max_passages, len(passages))
        self.words: collections.Counter[str] = collections.Counter()
        self.passages_with: collections.Counter[str] = collections.Counter()
        normalise = _normalizer().normalize_str
        for text in _spaced_texts(passages, max_passages):
            # jieba's words, and not the tokens of BM25, because the tokenizer below splits é from Latin letters, too.
            words = [word.lower() for word in split_words(normalise(text)) if word.isalnum()]
            self.words.update(words)
            passage_terms = set(words)
            passage_terms.update(*words)  # the characters of the words
            self.passages_with.update(passage_terms)

    def idf(self, word: str) -> float:
        """The inverse document frequency of a word or character."""
        return math.log((self.passages + 1) / (self.passages_with[word] + 1))


def _normalizer() -> Any:
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def words_tokenizer(counts: CollectionCounts, size: int) -> tuple[Tokenizer, list[str]]:
    """Return a tokenizer of the ``size`` most frequent words and all characters, and its tokens in id order.

    Words of more than 16 characters are skipped. The tokenizer splits between Latin letters, digits and other letters.
    It keeps only letters and digits.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    short_words = [word for word in counts.words if len(word) <= _LONGEST_WORD]
    short_words.sort(key=lambda word: (-counts.words[word], word))
    frequent_words = short_words[:size]
    characters = {term for term in counts.passages_with if len(term) == 1}
    # The unknown token has the id 0. Single characters that are no frequent words come last.
    tokens = [_UNKNOWN, *frequent_words]
    tokens += sorted(characters.difference(frequent_words))

    # A Unigram tokenizer splits a text into the tokens with the largest sum of scores: logarithms of probabilities.
    log_total = math.log(sum(counts.words.values()))
    scored_tokens = [(_UNKNOWN, 0.0)]
    for token in tokens[1:]:
        scored_tokens.append((token, math.log(counts.words[token] or _UNSEEN_COUNT) - log_total))
    tokenizer = Tokenizer(models.Unigram(scored_tokens, unk_id=0, byte_fallback=False))
    tokenizer.normalizer = _normalizer()
    remove_symbols = pre_tokenizers.Split(Regex(r"[^\p{L}\p{N}]+"), "removed")
    isolate_latin_and_digits = pre_tokenizers.Split(Regex("[a-z]+|[0-9]+"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([remove_symbols, isolate_latin_and_digits])
    return tokenizer, tokens


def start_vectors(
    words: list[str], counts: CollectionCounts, sizes: VocabularySection, seed: int
) -> npt.NDArray[np.float32]:
    """Return the initial vectors of the words, shape (words, dimensions).

    ``words`` are the tokens of :func:`words_tokenizer`, of which the first is the unknown token. Words and characters
    get random unit vectors, scaled by inverse document frequency. A word's initial vector is the word's random vector
    plus ``sizes.characters`` times its characters' vectors. So words with shared characters are similar.
    """
    generator = np.random.default_rng(seed)

    def random_vectors(terms: list[str]) -> npt.NDArray[np.float32]:
        """Return a vector of random signs for each term, with the term's inverse document frequency as length."""
        signs = generator.integers(0, 2, (len(terms), sizes.dimensions), dtype=np.int8) * 2 - 1
        lengths = np.array([0.0 if term == _UNKNOWN else counts.idf(term) for term in terms], np.float32)
        # A vector of n signs has the length sqrt(n).
        return signs.astype(np.float32) * (lengths / math.sqrt(sizes.dimensions))[:, None]

    vectors = random_vectors(words)
    characters = sorted(set[str]().union(*words[1:]))  # the characters of all words
    character_vectors = random_vectors(characters) * sizes.characters
    character_rows = {character: row for row, character in enumerate(characters)}
    # The unknown token keeps its vector of zeros.
    for word_row, word in enumerate(words[1:], start=1):
        rows = [character_rows[character] for character in word]
        vectors[word_row] += character_vectors[rows].sum(axis=0)
    return vectors
