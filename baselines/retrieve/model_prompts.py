"""The prompts that a model puts before queries and passages."""

from typing import Any

from sentence_transformers import SentenceTransformer

from baselines.core.settings import ModelSettings
from builders.core.errors import InputError

# Names of prompts by task, in the order of encode_query and encode_document.
_PROMPT_NAMES = {"query": ["query"], "document": ["document", "passage", "corpus"]}


def prompt_of(model: Any, task: str = "") -> str | None:
    """Return the prompt of a ``task`` (query, document or ""). Training and search use the same prompts."""
    names = [name for name in _PROMPT_NAMES.get(task, ()) if name in model.prompts]
    # sentence-transformers adds an empty prompt "document" to a model whose own prompt has another name. An empty
    # prompt therefore counts only if the model has no other prompt of the task.
    names.sort(key=lambda name: not model.prompts[name])
    name = names[0] if names else model.default_prompt_name
    return None if name is None else model.prompts.get(name)


def set_prompts(model: SentenceTransformer, settings: ModelSettings) -> None:
    """Set a model's prompts for queries and passages. Raises :class:`InputError` for an unknown prompt name.

    The passages' prompt is stored under the name "document", so that ``encode_document`` uses the same prompt.
    """
    query, passage = settings.query_prompt, settings.passage_prompt
    if query is None and settings.prompt_name:
        if settings.prompt_name not in model.prompts:
            have = ", ".join(map(repr, sorted(model.prompts))) or "none"
            raise InputError(f"has no prompt {settings.prompt_name!r}; its prompts: {have}", path=settings.name)
        query = model.prompts[settings.prompt_name]
    has_other_name = not model.prompts.get("document") and prompt_of(model, "document")
    if query is None and passage is None and not has_other_name:
        return
    query = prompt_of(model, "query") if query is None else query
    passage = prompt_of(model, "document") if passage is None else passage
    prompts = {name: prompt for name, prompt in model.prompts.items() if name not in _PROMPT_NAMES["document"]}
    model.prompts = {**prompts, "query": query or "", "document": passage or ""}
