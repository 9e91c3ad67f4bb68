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
_INPUT_NAMES = ("input_ids", "attention_mask", "token_type_ids")
_QUOTED_CHARACTERS = 300  # of an error of OpenVINO
_NNCF_ERRORS_ONLY = 40  # logging.ERROR
# Smallest cosine of the outputs of OpenVINO and PyTorch, which differ by rounding, above all in int8.
_SMALLEST_COSINE = 0.95


def expect_openvino(dtype: str, device: str) -> None:
    """Raise :class:`InputError` for an unsupported device or precision. Raise ImportError if OpenVINO is missing."""
    if device != "cpu":
        raise InputError(f"--backend openvino runs on a CPU, not on {device}; expected --device cpu")
    if dtype == "fp16":
        raise InputError("--backend openvino: expected --dtype fp32, bf16 or int8")
    # OpenVINO and NNCF (tested with openvino 2026.4) send usage statistics through this module. Both libraries work
    # without the module, whose import fails from here on.
    sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]
    __import__("openvino")
    if dtype == "int8":
        __import__("nncf")


def use_openvino(model: nn.Module, dtype: str) -> None:
    """Let OpenVINO run the transformers of an fp32 model on the CPU. ``dtype`` is fp32, bf16 or int8.

    In int8, weights are rounded per output channel, and the inputs of each matrix product are rounded at run time.
    Raises :class:`InputError` if the model has no transformer, or if OpenVINO's output differs from PyTorch's.
    """
    transformers = [module.model.base_model for module in model.modules() if isinstance(module, Transformer)]
    if not transformers:
        raise InputError("--backend openvino needs a model with a transformer; use --backend torch")
    # The towers of a router may share a transformer, which is converted once. An attribute of the object replaces the
    # method of its class.
    for transformer in dict.fromkeys(transformers):
        vars(transformer)["forward"] = _Forward(transformer, dtype)


class _Forward:
    """The ``forward`` of a transformer, run by OpenVINO. Copies of a model only tokenise, so a copy of this is None."""

    def __init__(self, transformer: PreTrainedModel, dtype: str) -> None:
        parameters = inspect.signature(transformer.forward).parameters
        self._input_names = [name for name in _INPUT_NAMES if name in parameters]
        self._pooler = getattr(transformer, "pooler", None)
        example_inputs, is_token = self._make_example(int(transformer.config.vocab_size))
        # The graph is made from a smaller batch. It must compute other shapes equally.
        smaller_inputs = {name: tensor[:2, :12] for name, tensor in example_inputs.items()}
        with torch.inference_mode():
            expected = transformer(**example_inputs)[0][is_token].flatten()
            try:
                self._request = _convert(transformer, smaller_inputs, dtype)
                computed: torch.Tensor = self(**example_inputs)[0][is_token].flatten()
            except (Exception, SystemExit) as error:  # OpenVINO raises many types of errors
                message = quote_reply(str(error), _QUOTED_CHARACTERS)
                raise InputError(f"OpenVINO cannot run the model ({message}); use --backend torch") from error
        # The cosine of a damaged output is NaN, and comparisons with NaN are false.
        if not torch.cosine_similarity(expected, computed, dim=0) > _SMALLEST_COSINE:
            raise InputError("OpenVINO's output of this model differs from PyTorch's; use --backend torch")

    def _make_example(self, vocabulary_size: int) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        """Return the inputs of three texts with 16 tokens, and a mask that is False for the padding."""
        input_ids = torch.arange(5, 53).reshape(3, 16) % vocabulary_size
        attention_mask = torch.ones_like(input_ids)
        attention_mask[1, 9:] = 0  # padding on the right
        attention_mask[2, :7] = 0  # padding on the left, as in language models
        tensors = {
            "input_ids": input_ids,
            "attention_mask": attention_mask,
            "token_type_ids": torch.zeros_like(input_ids),
        }
        return {name: tensors[name] for name in self._input_names}, attention_mask.bool()

    def __call__(
        self, input_ids: Any = None, attention_mask: Any = None, token_type_ids: Any = None, **_: Any
    ) -> Output:
        """Return the states of the last layer, and the pooler's output if the transformer has a pooler.

        Further arguments of the transformer's ``forward`` are ignored.
        """
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(input_ids)
        tensors = {"input_ids": input_ids, "attention_mask": attention_mask, "token_type_ids": token_type_ids}
        arrays = [tensors[name].numpy() for name in self._input_names]
        outputs = self._request.infer(arrays, share_outputs=True)
        states = torch.from_numpy(outputs[0].copy())  # the next call overwrites the array
        pooled = None
        if self._pooler is not None:
            pooled = self._pooler(states)
        return Output(last_hidden_state=states, pooler_output=pooled)

    def __reduce__(self) -> tuple[type[None], tuple[()]]:
        return type(None), ()


def _convert(transformer: PreTrainedModel, example_inputs: dict[str, torch.Tensor], dtype: str) -> Any:
    """Convert a transformer for batches of any shape, and return OpenVINO's infer request."""
    import openvino

    # The warning filters and stdout belong to the whole process. Two threads could restore them in the wrong order.
    with _CONVERTING, warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore")  # warnings of the tracer; the caller checks the output
        graph = openvino.convert_model(transformer, example_input=example_inputs)
        if dtype == "int8":
            import nncf

            nncf.set_log_level(_NNCF_ERRORS_ONLY)
            graph = nncf.compress_weights(graph, mode=nncf.CompressWeightsMode.INT8_SYM)
    compute_precision = "bf16" if dtype == "bf16" else "f32"
    hints = {
        "PERFORMANCE_HINT": "LATENCY",
        "INFERENCE_NUM_THREADS": torch.get_num_threads(),
        "INFERENCE_PRECISION_HINT": compute_precision,
    }
    return openvino.Core().compile_model(graph, "CPU", hints).create_infer_request()
