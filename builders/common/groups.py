"""Dependency groups: which group of pyproject.toml brings a library."""

from __future__ import annotations

# The smallest group that has a library, with the modules that are imported of it.
_GROUPS = {
    "builders": "duckdb faiss filelock huggingface_hub jieba matplotlib msgspec numba numpy pyarrow rensa rjieba scipy "
    "statsmodels tomli tqdm",
    "baselines": "ir_measures tantivy",
    "models": "accelerate sentence_transformers sklearn torch transformers",
    "ray": "ray s3fs upath",
    "elasticsearch": "elasticsearch",
    "judge": "openai",
    "space": "gradio",
}


def install(group: str) -> str:
    """Return the command that installs a group in a checkout."""
    return f"pip install -c constraints.txt -e . --group {group}"


def group_of(module: str) -> str:
    """The group that brings a module; empty where none does."""
    package = module.partition(".")[0]
    return next((group for group, modules in _GROUPS.items() if package in modules.split()), "")
