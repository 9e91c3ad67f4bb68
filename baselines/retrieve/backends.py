"""Run the transformers of a model with OpenVINO, which is faster than PyTorch on a CPU.

OpenVINO runs only the transformers. PyTorch computes the pooling and the heads in fp32.
"""

import contextlib
import inspect
import sys
import threading
import warnings
from typing import Any

import torch
from sentence_transformers.base.modules import Transformer
from torch import nn
from transformers import PreTrainedModel
from transformers.modeling_outputs import BaseModelOutputWithPoolingAndCrossAttentions as Output

from builders.core.errors import InputError
from builders.core.redaction import quote_reply

_CONVERTING = threading.Lock()
OPENVINO = "openvino-"  # prefix of a precision's name, for example openvino-fp32
_INPUTS = ("input_ids", "attention_mask", "token_type_ids")


def expect_openvino(dtype: str, device: str) -> None:
    """Raise :class:`InputError` for an unsupported device or precision. Raise ImportError if OpenVINO is missing."""
    if device != "cpu":
        raise InputError(f"--backend openvino runs on a CPU, not on {device}; expected --device cpu")
    if dtype == "fp16":
        raise InputError("--backend openvino: expected --dtype fp32, bf16 or int8")
    # OpenVINO and NNCF send usage statistics through this module, and work without it.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    __import__("openvino")
    if dtype == "int8":
        __import__("nncf")


def use_openvino(model: nn.Module, dtype: str) -> None:
    """Let OpenVINO run the transformers of an fp32 model on the CPU. ``dtype`` is fp32, bf16 or int8.

    In int8, weights are rounded per output channel, and the inputs of each matrix product are rounded at run time.
    Raises :class:`InputError` if the model has no transformer, or if OpenVINO's output differs from PyTorch's.
    """
    parts = [each.model.base_model for each in model.modules() if isinstance(each, Transformer)]
    if not parts:
        raise InputError("--backend openvino needs a model with a transformer; use --backend torch")
    for part in dict.fromkeys(parts):
        vars(part)["forward"] = _Forward(part, dtype)


class _Forward:
    """The ``forward`` of a transformer, run by OpenVINO. Copies of a model only tokenise, so a copy of this is None."""

    def __init__(self, model: PreTrainedModel, dtype: str) -> None:
        self._names = [name for name in _INPUTS if name in inspect.signature(model.forward).parameters]
        self._pooler = getattr(model, "pooler", None)
        rows = torch.arange(5, 53).reshape(3, 16) % int(model.config.vocab_size)
        mask = torch.ones_like(rows)
        mask[1, 9:] = mask[2, :7] = 0  # padding on the right, and on the left (language models)
        texts = dict(zip(_INPUTS, (rows, mask, torch.zeros_like(rows)), strict=True))
        given = {name: texts[name] for name in self._names}
        with torch.inference_mode():
            expected = model(**given)[0][mask.bool()].flatten()
            try:
                self._request = _compiled(model, {name: each[:2, :12] for name, each in given.items()}, dtype)
                found: torch.Tensor = self(**given)[0][mask.bool()].flatten()
            except (Exception, SystemExit) as error:  # OpenVINO raises many types of errors
                said = quote_reply(str(error), 300)
                raise InputError(f"OpenVINO cannot run the model ({said}); use --backend torch") from error
        if not torch.cosine_similarity(expected, found, dim=0) > 0.95:
            raise InputError("OpenVINO's output of this model differs from PyTorch's; use --backend torch")

    def __call__(
        self, input_ids: Any = None, attention_mask: Any = None, token_type_ids: Any = None, **_: Any
    ) -> Output:
        token_type_ids = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
        given = dict(zip(_INPUTS, (input_ids, attention_mask, token_type_ids), strict=True))
        found = self._request.infer([given[name].numpy() for name in self._names], share_outputs=True)
        states = torch.from_numpy(found[0].copy())  # the next call overwrites the array
        return Output(last_hidden_state=states, pooler_output=None if self._pooler is None else self._pooler(states))

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def _compiled(model: PreTrainedModel, example: dict[str, torch.Tensor], dtype: str) -> Any:
    """Convert a transformer for batches of any shape, and return OpenVINO's infer request."""
    import openvino

    # Both replacements belong to the whole process. One thread at a time makes sure that they do not stay.
    with _CONVERTING, warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # warnings of the tracer; the caller checks the output
        graph = openvino.convert_model(model, example_input=example)
        if dtype == "int8":
            import nncf

            nncf.set_log_level(40)
            graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": "bf16" if dtype == "bf16" else "f32",
    }
    return openvino.Core().compile_model(graph, "CPU", hints).create_infer_request()
