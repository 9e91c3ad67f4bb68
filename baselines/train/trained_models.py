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

import numpy as np
import numpy.typing as npt
import torch
from sentence_transformers import CrossEncoder, SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Normalize, Pooling, Router, StaticEmbedding, Transformer
from transformers import AutoConfig, AutoModelForMaskedLM, AutoTokenizer, BertConfig, BertTokenizer, PreTrainedModel
from transformers import BertForMaskedLM as _BertForMaskedLM

from baselines.core.passages import Passages
from baselines.core.settings import ModelSettings
from baselines.retrieve.library_errors import opening
from baselines.retrieve.model_kinds import expect_complete_copy, is_plain
from baselines.retrieve.model_prompts import set_prompts
from baselines.retrieve.models import (
    check_length,
    check_tokenizer,
    check_tokenizers,
    classes,
    exclusive_loading,
    expect_weights,
    new_head,
)
from baselines.retrieve.official_input import official_tokenizer
from baselines.retrieve.reading_checks import SENTENCE, check_reading, check_room_for_texts
from baselines.train.recipe import WORDS, Recipe, Words
from builders.core.errors import InputError, log
from builders.core.files import write_text
from builders.core.folders import build_once
from builders.core.typed import problem_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

POSITIONS = 512  # BERT's longest input
_SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_TEXTS_AT_ONCE = 1_000
_CHINESE = ((0x4E00, 0x9FFF), (0x3400, 0x4DBF), (0x20000, 0x2CEAF), (0xF900, 0xFAFF), (0x2F800, 0x2FA1F))
_UNKNOWN = "[UNK]"
_LONGEST = 16  # characters of a word; longer runs of letters and digits are mostly file names
_UNSEEN = 0.5  # assumed count of a character that never occurs as a word
_FP32 = {"dtype": torch.float32}  # replaces the saved precision; an optimizer's small steps need fp32


class BertForMaskedLM(_BertForMaskedLM):  # type: ignore[no-untyped-call]
    """BERT that predicts only masked tokens, because most of a small model's time is spent on predictions.

    The loss equals that of transformers' own class. This class has the same name, so that AutoModel loads saved models.
    """

    def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, torch.Tensor]:
        states = self.bert(input_ids, attention_mask=attention_mask).last_hidden_state
        masked = labels != -100
        guesses = self.cls(states[masked])
        # clamp: a batch without masked tokens has the loss 0, not 0 / 0.
        total = torch.nn.functional.cross_entropy(guesses.float(), labels[masked], reduction="sum")
        return {"loss": total / masked.sum().clamp(min=1)}


def dual_encoder(recipe: Recipe, start: str, device: str, commit: str | None = None) -> SentenceTransformer:
    """Open the dual-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``).

    A SentenceTransformer keeps its own pooling, similarity and prompts. Raises :class:`InputError` if the recipe asks
    for a different pooling or similarity, or for cosine similarity with ``train.scale`` <= 1.
    """
    wanted, data = recipe.model, recipe.data
    failed = f"cannot start from the model {start!r}"
    source = ModelSettings(start, revision=commit or "")
    expect_complete_copy(source)
    with opening(failed, start), exclusive_loading():
        if not is_plain(source):
            model = SentenceTransformer(start, device="cpu", revision=commit, model_kwargs=dict(_FP32))
            similarity = _own_similarity(model, start)
            for key, own in (("pooling", _pooling(model)), ("similarity", similarity)):
                if (asked := getattr(wanted, key)) not in ("", own):
                    raise InputError(
                        f"model.{key} = {asked}, but {start} is a SentenceTransformer with {own or 'none'}; "
                        f"--set model.{key}= uses the model's value"
                    )
        else:
            encoder: Any = Transformer(
                start, model_kwargs=_at(commit) | _FP32, processor_kwargs=_at(commit), config_kwargs=_at(commit)
            )
            modules: list[Any] = [encoder, Pooling(encoder.get_embedding_dimension(), wanted.pooling or "mean")]
            model = SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="dot")
            similarity = wanted.similarity or "dot"
        expect_weights(failed, model, new_head)
        _check_names(start, list(model.modules()))
        check_tokenizers(model, start)
        model.to(device)
    set_prompts(model, source)
    check_reading(model, ModelSettings(start))
    if similarity == "cos":
        if recipe.train.scale <= 1:
            raise InputError(
                f"{start}: cosines with train.scale = {recipe.train.scale:g} differ too little to learn from; expected "
                "a scale above 1, for example --set train.scale=20"
            )
        if not any(isinstance(module, Normalize) for module in model.modules()):
            model.append(Normalize())  # dot products are then cosines, and every index supports dot products
    if (shortest := recipe.train.shortest) > (full := model.get_embedding_dimension() or 0):
        raise InputError(f"train.shortest = {shortest} is more than the {full} dimensions of {start}")
    if shortest and similarity != "cos":
        raise InputError(f"train.shortest: {start} compares by dot product; expected model.similarity = cos")
    if is_static(model):
        if wanted.towers == 2 or wanted.inputs == "official":
            raise InputError(f"{start} is a static model; expected model.towers = 1 and model.inputs = plain")
        return model
    if wanted.towers == 2:
        model = _two_towers(model, device)
    towers = _towers(model, wanted.towers, start)
    for route, tower in towers.items():
        length = data.query_length if route == "query" else data.passage_length
        if wanted.inputs == "official":
            kind: Any = "query" if route == "query" else "passage"
            tower.processor = official_tokenizer(tower.tokenizer, kind, length)
        if pooler := getattr(tower.auto_model, "pooler", None):
            pooler.requires_grad_(False)  # no output uses the pooler; several processes would wait for its gradients
        tower.query_length, tower.document_length = data.query_length, data.passage_length
        # encode() without a task truncates to max_seq_length. A model from scratch has not trained later positions.
        tower.max_seq_length = data.passage_length
    for route, key, length in (
        ("query", "query_length", data.query_length),
        ("document", "passage_length", data.passage_length),
    ):
        tower = towers.get(route) or next(iter(towers.values()))
        check_length(f"data.{key} = {length}", length, tower, tower.tokenizer)
    check_room_for_texts(model, start)
    return model


def is_static(model: SentenceTransformer) -> bool:
    """True if the model has one vector per word, and no transformer."""
    return any(isinstance(module, StaticEmbedding) for module in model)


def halves(model: SentenceTransformer, shortest: int) -> list[int]:
    """Return the dimension of the model's vectors, a half, a quarter, and so on, down to ``shortest``."""
    full = model.get_embedding_dimension() or 0
    return [full >> n for n in range(full.bit_length()) if full >> n >= shortest]


def _two_towers(model: SentenceTransformer, device: str) -> SentenceTransformer:
    """Copy the encoder, so that queries and passages have separate encoders. Two encoders are returned unchanged."""
    if any(isinstance(module, Router) for module in model):
        return model
    passages = list(model.children())
    return SentenceTransformer(
        modules=[Router.for_query_document(copy.deepcopy(passages), passages)],
        device=device,
        prompts=model.prompts,
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )


def _towers(model: SentenceTransformer, wanted: int, start: str) -> dict[str, Any]:
    """Return the transformers of a model by route: ``query`` and ``document``, or only a shared ``document``."""
    router = next((module for module in model if isinstance(module, Router)), None)
    routes: dict[str, Any] = {"document": model} if router is None else dict(router.sub_modules.items())
    if len(routes) != wanted:
        raise InputError(f"{start} has {len(routes)} encoders (towers); expected model.towers = {len(routes)}")
    found = {
        name: next((m for m in route.modules() if isinstance(m, Transformer)), None) for name, route in routes.items()
    }
    if None in found.values() or set(found) - {"query", "document"}:
        raise InputError(f"{start} lacks a transformer for queries or for passages")
    return found


def _pooling(model: SentenceTransformer) -> str:
    modes = {module.pooling_mode for module in model.modules() if isinstance(module, Pooling)}
    return ", ".join(sorted(mode if isinstance(mode, str) else "+".join(mode) for mode in modes))


def _own_similarity(model: SentenceTransformer, start: str) -> str:
    """Return the similarity of a SentenceTransformer. Dot products of normalised vectors count as ``cos``."""
    if model.similarity_fn_name not in ("cosine", "dot"):
        raise InputError(f"{start} compares by {model.similarity_fn_name!r}; expected cosine or dot")
    normalised = any(isinstance(module, Normalize) for module in model.modules())
    return "cos" if normalised or model.similarity_fn_name == "cosine" else "dot"


def cross_encoder(recipe: Recipe, start: str, device: str, commit: str | None = None) -> CrossEncoder:
    """Open the cross-encoder to train, from ``start`` (a directory, or a hub name at a ``commit``).

    Raises :class:`InputError` if ``start`` is a cross-encoder whose number of outputs differs from the recipe.
    """
    outputs, length = recipe.model.outputs, recipe.data.passage_length
    failed = f"cannot start from the model {start!r}"
    expect_complete_copy(ModelSettings(start, revision=commit or ""))
    with opening(failed, start), exclusive_loading():
        config = AutoConfig.from_pretrained(start, **_at(commit))
        is_cross = next(iter(classes(config)), "").endswith("ForSequenceClassification")
        if is_cross and (have := config.num_labels) != outputs:  # the library's own message has thirty lines
            raise InputError(f"{start} is a cross-encoder with {have} outputs; expected model.outputs = {have}")
        model = CrossEncoder(
            start, num_labels=outputs, max_length=length, device="cpu", revision=commit, model_kwargs=dict(_FP32)
        )
        expect_weights(failed, model, new_head)
        _check_names(start, list(model.modules()))
        check_tokenizers(model, start)
        model.to(device)
    check_reading(model, ModelSettings(start))
    if recipe.model.inputs == "official":
        model[0].processor = official_tokenizer(model.tokenizer, "pair", length)
    check_length(f"data.passage_length = {length}", length, model, model.tokenizer, texts=2)
    check_room_for_texts(model, start)
    return model


def masked_language_model(recipe: Recipe, start: str, commit: str | None = None) -> tuple[PreTrainedModel, Any]:
    """Open the masked language model to train and its tokenizer, from a directory or a hub name at a ``commit``."""
    at, length = _at(commit), recipe.data.passage_length
    failed = f"cannot start from the model {start!r}"
    expect_complete_copy(ModelSettings(start, revision=commit or ""))
    with opening(failed, start), exclusive_loading():
        config = AutoConfig.from_pretrained(start, **at)
        kind = BertForMaskedLM if config.model_type == "bert" else AutoModelForMaskedLM
        model = kind.from_pretrained(start, dtype=torch.float32, **at)
        expect_weights(failed, model, new_head)
        tokenizer = AutoTokenizer.from_pretrained(start, **at)
        _check_names(start, [], tokenizer)
        check_tokenizer(tokenizer, model.get_input_embeddings().weight, start)
        if tokenizer.mask_token_id is None:
            raise InputError(f"cannot start from the model {start!r}: its tokenizer has no mask token")
        texts = tokenizer([SENTENCE, SENTENCE[:1]], padding=True, return_tensors="pt")
        with torch.no_grad():
            model(texts["input_ids"], attention_mask=texts["attention_mask"], labels=texts["input_ids"])
    check_length(f"data.passage_length = {length}", length, model, tokenizer)
    return model, tokenizer


def _at(commit: str | None) -> dict[str, Any]:
    """Return transformers' arguments for the commit. Without ``trust_remote_code``, transformers could ask on stdin."""
    return {"trust_remote_code": False} | ({"revision": commit} if commit else {})


def _check_names(start: str, modules: list[Any], *tokenizers: Any) -> None:
    """Raise :class:`InputError` if the name of a route or chat template would put its file outside the checkpoint."""
    tokenizers += tuple(module.tokenizer for module in modules if isinstance(module, Transformer))
    templates = [getattr(tokenizer, "chat_template", None) for tokenizer in tokenizers]
    for named in [*(module.sub_modules for module in modules if isinstance(module, Router)), *templates]:
        if isinstance(named, (dict, torch.nn.ModuleDict)):  # a single template is a string without a name
            for name in named:
                several = f"the name {name!r} contains a slash; expected a plain name" if "/" in name else ""
                if problem := problem_of(name) or several:
                    raise InputError(f"cannot start from the model {start!r}: {problem}")


def make_start(recipe: Recipe, start: str, passages: Passages, folder: Path) -> Path:
    """Return ``folder`` with the starting checkpoint ``scratch`` or ``words``, which is created if it is missing.

    The first process writes the files while other processes wait. The same recipe and collection give the same bytes.
    """
    last, write = ("modules.json", _write_words) if start == WORDS else ("model.safetensors", _write_scratch)
    build_once(folder, (folder / last).is_file, lambda new: write(recipe, passages, new))
    return folder


def _texts(passages: Passages, most: int) -> Iterator[str]:
    """Yield the texts of at most ``most`` passages, evenly spaced over the collection."""
    count = min(most, len(passages))
    rows = [n * len(passages) // count for n in range(count)]
    for start in range(0, count, _TEXTS_AT_ONCE):
        yield from passages.texts(rows[start : start + _TEXTS_AT_ONCE])


def _write_scratch(recipe: Recipe, passages: Passages, folder: Path) -> None:
    sizes = recipe.scratch
    vocabulary = wordpieces(passages, sizes.vocabulary, sizes.vocabulary_passages)
    write_text(folder / "vocab.txt", "".join(f"{piece}\n" for piece in vocabulary))
    # Pass the path by position: transformers 5 ignores the keyword vocab_file, and every token becomes [UNK].
    tokenizer = BertTokenizer(str(folder / "vocab.txt"), model_max_length=POSITIONS)
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
        initializer_range=0.02 * (768 / sizes.hidden) ** 0.5,  # BERT's value, scaled up for narrower models
    )
    BertForMaskedLM(config).save_pretrained(folder)
    log.info("a vocabulary of %d word pieces and random weights", len(vocabulary))


def wordpieces(passages: Passages, size: int, most: int) -> list[str]:
    """Build a WordPiece vocabulary of at most ``size`` pieces from ``most`` passages, evenly spaced.

    BERT's special tokens come first. The same passages give the same list. This function selects the characters,
    because the library breaks ties between rare characters at random.
    """
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    characters: collections.Counter[str] = collections.Counter()
    for text in _texts(passages, most):
        characters.update(tokenizer.normalizer.normalize_str(text))
    common = sorted((c for c in characters if not c.isspace()), key=lambda c: (-characters[c], c))
    # A character inside words needs a second piece with "##". The library would number these pieces in a random order,
    # and the numbers break ties. Special tokens get fixed numbers, so the pieces are passed as special tokens.
    alphabet, inside = list[str](), list[str]()
    for character in common:
        if len(alphabet) + len(inside) >= 0.75 * (size - len(_SPECIAL)):
            break
        alphabet.append(character)
        if not _stands_alone(character):
            inside.append(f"##{character}")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size,
        special_tokens=[*_SPECIAL, *inside],
        initial_alphabet=alphabet,
        limit_alphabet=len(alphabet),
        min_frequency=2,
        show_progress=False,
    )
    tokenizer.train_from_iterator(_texts(passages, most), trainer)
    found = tokenizer.get_vocab()
    return sorted(found, key=found.__getitem__)


def _stands_alone(character: str) -> bool:
    """True for Chinese characters and punctuation, which BERT's tokenizers separate from their neighbours."""
    chinese = any(low <= ord(character) <= high for low, high in _CHINESE)
    return chinese or character in string.punctuation or unicodedata.category(character).startswith("P")


def _write_words(recipe: Recipe, passages: Passages, folder: Path) -> None:
    counts = Counts(passages, recipe.words.vocabulary_passages)
    tokenizer, words = words_tokenizer(counts, recipe.words.vocabulary)
    vectors = start_vectors(words, counts, recipe.words, recipe.train.seed)
    modules = [StaticEmbedding(tokenizer, embedding_weights=vectors), Normalize()]
    SentenceTransformer(modules=modules, device="cpu", similarity_fn_name="cosine").save(
        str(folder), create_model_card=False
    )
    log.info("vectors of %d words and characters, %d dimensions", len(words), vectors.shape[1])


class Counts:
    """Counts of words in at most ``most`` passages, evenly spaced over a collection.

    Attributes:
        passages: the number of passages read.
        words: the number of occurrences of each word.
        found: the number of passages that contain each word or single character.
    """

    def __init__(self, passages: Passages, most: int) -> None:
        from builders.core.words import words as segment

        self.passages = min(most, len(passages))
        self.words: collections.Counter[str] = collections.Counter()
        self.found: collections.Counter[str] = collections.Counter()
        normalise = _normalizer().normalize_str
        for text in _texts(passages, most):
            # jieba's words, and not the tokens of BM25, because the tokenizer below splits é from Latin letters, too.
            words = [word.lower() for word in segment(normalise(text)) if word.isalnum()]
            self.words.update(words)
            self.found.update({*words, *(character for word in words for character in word)})

    def idf(self, word: str) -> float:
        """The inverse document frequency of a word or character."""
        return math.log((self.passages + 1) / (self.found[word] + 1))


def _normalizer() -> Any:
    from tokenizers import normalizers

    return normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])


def words_tokenizer(counts: Counts, size: int) -> tuple[Tokenizer, list[str]]:
    """Return a tokenizer of the ``size`` most frequent words and all characters, and its tokens in id order.

    The tokenizer splits between Latin letters, digits and other letters. It keeps only letters and digits.
    """
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers

    order = sorted((word for word in counts.words if len(word) <= _LONGEST), key=lambda w: (-counts.words[w], w))
    characters = {character for character in counts.found if len(character) == 1}
    words = [_UNKNOWN, *order[:size], *sorted(characters.difference(order[:size]))]
    every = math.log(sum(counts.words.values()))
    scores = [(word, math.log(counts.words[word] or _UNSEEN) - every) for word in words[1:]]
    tokenizer = Tokenizer(models.Unigram([(_UNKNOWN, 0.0), *scores], unk_id=0, byte_fallback=False))
    tokenizer.normalizer = _normalizer()
    split = pre_tokenizers.Split
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split(Regex(r"[^\p{L}\p{N}]+"), "removed"), split(Regex("[a-z]+|[0-9]+"), "isolated")]
    )
    return tokenizer, words


def start_vectors(words: list[str], counts: Counts, sizes: Words, seed: int) -> npt.NDArray[np.float32]:
    """Return the initial vectors of the words, shape (words, dimensions).

    Words and characters get random unit vectors, scaled by inverse document frequency. A word's initial vector is the
    word's random vector plus ``sizes.characters`` times its characters' vectors. So words with shared characters are
    similar.
    """
    generator = np.random.default_rng(seed)

    def weighted(every: list[str]) -> npt.NDArray[np.float32]:
        signs = generator.integers(0, 2, (len(every), sizes.dimensions), dtype=np.int8) * 2 - 1
        weights = np.array([0.0 if each == _UNKNOWN else counts.idf(each) for each in every], np.float32)
        return signs.astype(np.float32) * (weights / math.sqrt(sizes.dimensions))[:, None]

    vectors = weighted(words)
    characters = sorted({character for word in words[1:] for character in word})
    own, number = weighted(characters) * sizes.characters, {each: n for n, each in enumerate(characters)}
    for place, word in enumerate(words[1:], 1):
        vectors[place] += own[[number[character] for character in word]].sum(axis=0)
    return vectors
