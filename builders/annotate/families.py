"""Which models are of one family, as far as their names say it: a judge favours what its own kind ranks high."""

from __future__ import annotations

import re
from collections.abc import Iterable

from builders.core.errors import log

# By family: how words of a model's name begin; words of two letters are meant whole.
_FAMILIES = {
    "Baichuan": ("baichuan",),
    "BERT": ("bert", "roberta", "macbert", "xlm", "electra"),
    "BGE": ("bge", "baai"),
    "Claude": ("claude",),
    "DeepSeek": ("deepseek",),
    "Doubao": ("doubao", "seed"),
    "E5": ("e5",),
    "ERNIE": ("ernie", "wenxin"),
    "Gemini and Gemma": ("gemini", "gemma"),
    "GLM": ("glm", "chatglm"),
    "GPT": ("gpt", "chatgpt", "o1", "o3", "o4"),
    "GTE": ("gte",),
    "Hunyuan": ("hunyuan",),
    "InternLM": ("internlm",),
    "Jina": ("jina",),
    "Kimi": ("kimi", "moonshot"),
    "Llama": ("llama", "vicuna"),
    "MiniCPM": ("minicpm",),
    "Mistral": ("mistral", "mixtral"),
    "Qwen": ("qwen", "qwq", "tongyi"),
    "Yi": ("yi",),
}


def families_of(name: str) -> set[str]:
    """The families that a model's name tells; none where it tells none."""
    words = re.findall("[a-z0-9]+", name.lower())
    return {
        family
        for family, starts in _FAMILIES.items()
        if any(word == start or (len(start) > 2 and word.startswith(start)) for start in starts for word in words)
    }


def warn_of_kin(judge: str, others: Iterable[str]) -> bool:
    """Warn where a judge shares a family, or its name, with models whose rankings it judges."""
    kin = [name for name in others if name.lower() == judge.lower() or families_of(name) & families_of(judge)]
    if kin:
        log.warning("%s judges what %s ranked, of its own family: it may favour it", judge, ", ".join(kin))
    return bool(kin)
