"""Check that an opened model reads texts: finite numbers, room beside the prompt, and no influence of the padding."""

from typing import Any

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder
from sentence_transformers.util import batch_to_device

from baselines.core.settings import ModelSettings
from baselines.retrieve.library_errors import opening
from baselines.retrieve.model_prompts import prompt_of
from builders.core.errors import InputError

SENTENCE = "在北京的冬天我们可以怎么找到一个问题的答案"
_OTHER_SENTENCE = SENTENCE[::-1]  # begins with another character
_STRANGE = "\U0002ebe0 \u0e01"  # characters that few vocabularies have
_SHORT = "的"
# Largest change of an output by padding, relative to the largest output. Sums in another order change the last digits,
# about 1e-6 in 32 bits. Wrong positions change the first or second digit.
_LARGEST_CHANGE = {torch.float32: 1e-3, torch.float64: 1e-3}
_LARGEST_CHANGE_IN_16_BITS = 0.05
_SHOWN_PROMPT = 20  # characters of a prompt in an error


def check_reading(model: Any, settings: ModelSettings) -> None:
    """Raise :class:`InputError` if a model does not return finite numbers that are independent of the batch.

    The libraries apply many settings of a model's files only when a text is read. Quantised models and models with
    remote code are not checked, because they may need a GPU.
    """
    quantised = any(getattr(getattr(each, "auto_model", None), "is_quantized", False) for each in model.modules())
    if settings.trust_remote_code or quantised:
        return
    is_cross = isinstance(model, CrossEncoder)
    texts = [(text, text) if is_cross else text for text in (SENTENCE, _STRANGE, _SHORT)]
    with opening(f"{settings.name}: cannot read a text"), torch.no_grad():
        model.eval()
        if not is_cross:
            model.get_embedding_dimension()
        for task in ("",) if is_cross else ("query", "document"):
            # The shortest text is padded in a batch with longer texts, but not alone.
            in_batch = _outputs(model, texts, task, settings.name)
            alone = _outputs(model, texts[-1:], task, settings.name)
            _expect_equal(alone[0], in_batch, model, settings.name)


def _outputs(model: Any, texts: list[Any], task: str, name: str) -> list[torch.Tensor]:
    """Return the output for every text: its score, its vector, or the vectors of its tokens."""
    key = "sentence_embedding"
    if isinstance(model, CrossEncoder):
        key = "scores"
    elif isinstance(model, MultiVectorEncoder):
        key = "token_embeddings"
    given = {"task": task} if task else {}
    features = model.preprocess(texts, prompt=prompt_of(model, task), **given)
    computed = model(batch_to_device(features, model.device), **given)
    output = computed.get(key)
    if not torch.is_tensor(output):
        raise InputError(f"returns no {key.replace('_', ' ')} of a text", path=name)
    output = output.to_dense() if output.is_sparse else output
    if not torch.isfinite(output).all():
        raise InputError("returns numbers that are not finite: its weights are damaged", path=name)
    if key == "token_embeddings":
        return [vectors[mask] for vectors, mask in zip(output, computed["attention_mask"].bool(), strict=True)]
    return list(output.reshape(len(texts), -1))


def _expect_equal(alone: torch.Tensor, in_batch: list[torch.Tensor], model: Any, name: str) -> None:
    """Raise :class:`InputError` if the output of a text alone differs from its output as the last text of a batch."""
    padded = in_batch[-1]
    is_equal = alone.shape == padded.shape
    if is_equal and alone.numel():
        largest = max(float(output.abs().max()) for output in in_batch if output.numel())
        change = float((alone - padded).abs().max())
        is_equal = change <= largest * _LARGEST_CHANGE.get(alone.dtype, _LARGEST_CHANGE_IN_16_BITS)
    if is_equal:
        return
    problem = "its output for a text changes with the padding of the batch"
    if getattr(model.tokenizer, "padding_side", "right") == "left":
        problem += ', which is on the left; set "padding_side": "right" in its tokenizer_config.json'
    raise InputError(f"{problem}; expected the same output in every batch", path=name)


def check_room_for_texts(model: Any, name: str) -> None:
    """Raise :class:`InputError` if a prompt is so long that all queries, or all passages, become the same tokens."""
    is_cross = isinstance(model, CrossEncoder)
    # A vocabulary may have no word of both sentences, which then become equally many unknown tokens. So an empty text
    # must become the same tokens, too.
    texts = (SENTENCE, _OTHER_SENTENCE, "")
    for side, task in (("query", "query"), ("passage", "document")):
        task = "" if is_cross else task
        given = {"task": task} if task else {}
        prompt = prompt_of(model, task)
        tokens = []
        with opening(f"{name}: cannot read a text"):
            for text in texts:
                pair = (text, SENTENCE) if side == "query" else (SENTENCE, text)
                features = model.preprocess([pair if is_cross else text], prompt=prompt, **given)
                tokens.append(torch.as_tensor(features["input_ids"]).flatten().tolist())
        if any(other_tokens != tokens[0] for other_tokens in tokens):
            continue
        problem = f"an input has at most {len(tokens[0])} tokens, which leave no token of a {side}"
        if prompt:
            shown = prompt if len(prompt) <= _SHOWN_PROMPT else f"{prompt[:_SHOWN_PROMPT]}..."
            problem += f" after the prompt {shown!r}"
        raise InputError(f"{problem}; expected a shorter prompt or a larger length", path=name)
