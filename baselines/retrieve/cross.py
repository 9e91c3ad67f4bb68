"""Re-rankers that read a query and a passage together: cross-encoders, and language models.

A language model is asked whether the passage answers the query: the score is the logit of yes less that of no. A model
whose own chat template reads a query and a document (Qwen3-Reranker and others, as sentence-transformers saves them) is
asked by it. Any other instruction-tuned model is asked in the form of Qwen3-Reranker's model card, put into the model's
own chat: an instruction, the query, the passage, to be answered by yes or no, without thinking aloud.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sentence_transformers import CrossEncoder

from baselines.retrieve.devices import Work, moved
from baselines.retrieve.encoder import CrossScorer
from baselines.retrieve.hub_models import commit_of
from baselines.retrieve.model_checks import check_reading
from baselines.retrieve.models import described, open_cross
from baselines.retrieve.settings import ModelSettings
from builders.common.command import InputError

# The words that Qwen3-Reranker was trained on (its model card; the same in vllm-project/vllm-ascend,
# docs/source/tutorials/models/Qwen3_reranker.md).
_SYSTEM = (
    "Judge whether the Document meets the requirements based on the Query and the Instruct provided. "
    'Note that the answer can only be "yes" or "no".'
)
_INSTRUCTION = "Given a web search query, retrieve relevant passages that answer the query"
_FORM = '"<Instruct>: " ~ instruct ~ "\\n<Query>: " ~ query ~ "\\n<Document>: " ~ document'
_ROLE = re.compile(r"""['"](query|document)['"]""")


class Cross:
    """A cross-encoder: logits, the order of ``CrossEncoder.predict``."""

    kind = "cross"

    def __init__(self, settings: ModelSettings, work: Work) -> None:
        self.settings, self._work = settings.but(revision=commit_of(settings.name, settings.revision)), work
        self._scorer: CrossScorer | None = None

    def open_model(self) -> CrossEncoder:
        """The model as it is used, in fp32 on the CPU."""
        return open_cross(self.settings)

    def about(self) -> dict[str, Any]:
        return self.described(self.open_model())

    def described(self, model: CrossEncoder) -> dict[str, Any]:
        """Everything that decides the scores of the open model."""
        return {"kind": self.kind, **described(self.settings, model, self._work.dtype)}

    def score(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        if not pairs:
            return []
        if self._scorer is None:
            model = moved(self.open_model(), self._work.devices[0], self._work.dtype)
            self._scorer = CrossScorer(model, self._work.batch_tokens, self._work.tokenizers or 0)
        scores: list[float] = self._scorer.scores(pairs).tolist()
        return scores


class LanguageModel(Cross):
    """A language model: log-odds of yes."""

    kind = "llm"

    def open_model(self) -> CrossEncoder:
        model = super().open_model()
        reader: Any = model[0]
        template, unknown = reader.processor.chat_template, reader.tokenizer.unk_token_id
        if not isinstance(template, str):
            raise InputError(
                "has no chat template; expected an instruction-tuned language model", path=self.settings.name
            )
        for name in ("true_token_id", "false_token_id"):
            if getattr(model[1], name, None) in (None, unknown):
                raise InputError("has no token for yes or for no", path=self.settings.name)
        if set(_ROLE.findall(template)) < {"query", "document"}:
            for with_system in (True, False):  # some models know no system
                reader.processor.chat_template = asking(template, with_system)
                failure = reader.input_formatter.pair_roles_failure({})
                if failure is None:
                    break
            else:
                raise InputError(f"its chat template cannot be asked ({failure})", path=self.settings.name)
        check_reading(model, self.settings)
        return model

    def described(self, model: CrossEncoder) -> dict[str, Any]:
        return {**super().described(model), "template": model[0].processor.chat_template}


def asking(template: str, with_system: bool = True) -> str:
    """A chat template of a query and a document, made of one of users and assistants.

    ``with_system``: the instruction's frame is the system's message; else it begins the user's.
    """
    of = '(messages | selectattr("role", "equalto", "{}") | map(attribute="content") | list + [{}]) | first'.format
    frame = json.dumps(_SYSTEM, ensure_ascii=False)
    system = f'{{"role": "system", "content": {frame}}}, ' if with_system else ""
    form = _FORM if with_system else f'{frame} ~ "\\n\\n" ~ {_FORM}'
    return (
        f"{{%- set query = {of('query', '')} -%}}"
        f"{{%- set document = {of('document', '')} -%}}"
        f"{{%- set instruct = {of('system', json.dumps(_INSTRUCTION))} -%}}"
        f'{{%- set messages = [{system}{{"role": "user", "content": {form}}}] -%}}'
        "{%- set add_generation_prompt = true -%}{%- set enable_thinking = false %}"
        f"{template}"
    )
