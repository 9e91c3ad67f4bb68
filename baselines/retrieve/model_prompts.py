"""The prompts that a model puts before queries and passages."""

from typing import Any

from sentence_transformers import SentenceTransformer

from baselines.core.settings import ModelSettings
from builders.core.errors import InputError

# Names of prompts by task, in the order of encode_query and encode_document.
_PROMPT_NAMES = {"query": ["query"], "document": ["document", "passage", "corpus"]}


def prompt_of(model: Any, task: str = "") -> str | None:
    """Return the prompt of a ``task``: query, document, or "" for a model without tasks.

    A model without a prompt of the task has its default prompt, and None without a default. Training and search use the
    same prompts.
    """
    prompt_names = [name for name in _PROMPT_NAMES.get(task, ()) if name in model.prompts]
    # sentence-transformers adds an empty prompt "document" to a model whose own prompt has another name. An empty
    # prompt therefore counts only if the model has no other prompt of the task: False is sorted before True.
    prompt_names.sort(key=lambda name: not model.prompts[name])
    prompt_name = prompt_names[0] if prompt_names else model.default_prompt_name
    if prompt_name is None:
        return None
    prompt: str | None = model.prompts.get(prompt_name)
    return prompt


def set_prompts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Set a model's prompts for queries and passages. Raises :class:`InputError` for an unknown prompt name.

    The passages' prompt is stored under the name "document", so that ``encode_document`` uses the same prompt.
    """
    query_prompt = settings.query_prompt
    passage_prompt = settings.passage_prompt
    if query_prompt is None and settings.prompt_name:
        if settings.prompt_name not in model.prompts:
            prompt_names = ", ".join(repr(name) for name in sorted(model.prompts)) or "none"
            raise InputError(f"has no prompt {settings.prompt_name!r}; its prompts: {prompt_names}", path=settings.name)
        query_prompt = model.prompts[settings.prompt_name]
    # The model's prompts stay unchanged if no setting and no name of the passages' prompt requires a change. A change
    # would change the model's fingerprint.
    has_other_name = not model.prompts.get("document") and prompt_of(model, "document")
    if query_prompt is None and passage_prompt is None and not has_other_name:
        return
    if query_prompt is None:
        query_prompt = prompt_of(model, "query")
    if passage_prompt is None:
        passage_prompt = prompt_of(model, "document")
    prompts = {name: prompt for name, prompt in model.prompts.items() if name not in _PROMPT_NAMES["document"]}
    prompts["query"] = query_prompt or ""
    prompts["document"] = passage_prompt or ""
    model.prompts = prompts
