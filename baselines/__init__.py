"""Search a release and evaluate models from Python. :mod:`baselines.api` is imported on first use."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from baselines.api import Release, evaluate, open_release, search
    from builders.core.errors import InputError

__all__ = ["InputError", "Release", "evaluate", "open_release", "search"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from baselines import api

    return getattr(api, name)
