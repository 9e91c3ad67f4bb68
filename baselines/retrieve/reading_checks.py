"""Check that an opened model reads texts: finite numbers, room beside the prompt, and no influence of the padding."""

from typing import Any

import torch
from sentence_transformers import CrossEncoder, MultiVectorEncoder
from sentence_transformers.util import batch_to_device

from baselines.core.settings import ModelSettings
from baselines.retrieve.library_errors import convert_library_errors
from baselines.retrieve.model_prompts import prompt_of
from builders.core.errors import InputError

SENTENCE = "在北京的冬天我们可以怎么找到一个问题的答案"
_OTHER_SENTENCE = SENTENCE[::-1]  # begins with another character
_STRANGE_TEXT = "\U0002ebe0 \u0e01"  # characters that few vocabularies have
_SHORT_TEXT = "的"
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
    if settings.trust_remote_code or _is_quantised(model):
        return
    texts: list[Any] = [SENTENCE, _STRANGE_TEXT, _SHORT_TEXT]
    tasks = ["query", "document"]
    is_cross_encoder = isinstance(model, CrossEncoder)
    if is_cross_encoder:
        texts = [(text, text) for text in texts]
        tasks = [""]
    with convert_library_errors(f"{settings.name}: cannot read a text"), torch.no_grad():
        model.eval()
        if not is_cross_encoder:
            model.get_embedding_dimension()  # fails if the model's files have a damaged number
        for task in tasks:
            # The shortest text is padded in a batch with longer texts, but not alone.
            outputs_in_batch = _compute_outputs(model, texts, task, settings.name)
            outputs_alone = _compute_outputs(model, texts[-1:], task, settings.name)
            _expect_equal(outputs_alone[0], outputs_in_batch, model, settings.name)


def _is_quantised(model: Any) -> bool:
    """True if a transformer in a model has weights of fewer bits, by which a library computes."""
    transformers = [getattr(module, "auto_model", None) for module in model.modules()]
    return any(getattr(transformer, "is_quantized", False) for transformer in transformers)


def _task_option(task: str) -> dict[str, str]:
    """Return the option of sentence-transformers for a task. Cross-encoders have no tasks."""
    return {"task": task} if task else {}


def _compute_outputs(model: Any, texts: list[Any], task: str, model_name: str) -> list[torch.Tensor]:
    """Return the output for every text: its score, its vector, or the vectors of its tokens.

    A sparse encoder returns a sparse tensor, which is converted. Raises :class:`InputError` for numbers that are not
    finite.
    """
    output_name = "sentence_embedding"
    if isinstance(model, CrossEncoder):
        output_name = "scores"
    elif isinstance(model, MultiVectorEncoder):
        output_name = "token_embeddings"
    task_option = _task_option(task)
    features = model.preprocess(texts, prompt=prompt_of(model, task), **task_option)
    results = model(batch_to_device(features, model.device), **task_option)
    output = results.get(output_name)
    if not torch.is_tensor(output):
        raise InputError(f"returns no {output_name.replace('_', ' ')} of a text", path=model_name)
    if output.is_sparse:
        output = output.to_dense()
    if not torch.isfinite(output).all():
        raise InputError("returns numbers that are not finite: its weights are damaged", path=model_name)
    if output_name == "token_embeddings":
        masks = results["attention_mask"].bool()
        return [vectors[mask] for vectors, mask in zip(output, masks, strict=True)]
    return list(output.reshape(len(texts), -1))


def _expect_equal(
    output_alone: torch.Tensor, outputs_in_batch: list[torch.Tensor], model: Any, model_name: str
) -> None:
    """Raise :class:`InputError` if the output of a text alone differs from its output as the last text of a batch."""
    padded_output = outputs_in_batch[-1]
    is_equal = output_alone.shape == padded_output.shape
    if is_equal and output_alone.numel():
        largest_output = max(float(output.abs().max()) for output in outputs_in_batch if output.numel())
        change = float((output_alone - padded_output).abs().max())
        is_equal = change <= largest_output * _LARGEST_CHANGE.get(output_alone.dtype, _LARGEST_CHANGE_IN_16_BITS)
    if is_equal:
        return
    problem = "its output for a text changes with the padding of the batch"
    if getattr(model.tokenizer, "padding_side", "right") == "left":
        problem += ', which is on the left; set "padding_side": "right" in its tokenizer_config.json'
    raise InputError(f"{problem}; expected the same output in every batch", path=model_name)


def check_room_for_texts(model: Any, model_name: str) -> None:
    """Raise :class:`InputError` if a prompt is so long that all queries, or all passages, become the same tokens."""
    is_cross_encoder = isinstance(model, CrossEncoder)
    for side, side_task in (("query", "query"), ("passage", "document")):
        task = "" if is_cross_encoder else side_task
        prompt = prompt_of(model, task)
        # A vocabulary may have no word of both sentences, which then become equally many unknown tokens. So an empty
        # text must become the same tokens, too.
        inputs: list[Any] = [SENTENCE, _OTHER_SENTENCE, ""]
        if is_cross_encoder and side == "query":
            inputs = [(text, SENTENCE) for text in inputs]
        elif is_cross_encoder:
            inputs = [(SENTENCE, text) for text in inputs]
        token_ids = []
        with convert_library_errors(f"{model_name}: cannot read a text"):
            for one_input in inputs:
                features = model.preprocess([one_input], prompt=prompt, **_task_option(task))
                token_ids.append(torch.as_tensor(features["input_ids"]).flatten().tolist())
        if any(other_ids != token_ids[0] for other_ids in token_ids):
            continue
        problem = f"an input has at most {len(token_ids[0])} tokens, which leave no token of a {side}"
        if prompt:
            shown_prompt = prompt if len(prompt) <= _SHOWN_PROMPT else f"{prompt[:_SHOWN_PROMPT]}..."
            problem += f" after the prompt {shown_prompt!r}"
        raise InputError(f"{problem}; expected a shorter prompt or a larger length", path=model_name)
