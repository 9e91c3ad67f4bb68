"""Convert traditional Chinese to simplified Chinese by OpenCC."""

import functools
from collections.abc import Callable
from importlib.metadata import version

from builders.core.errors import InputError, install_command

# Converts characters and words, for example 後來 and 頭髮, but keeps the vocabulary of Taiwan and Hong Kong.
_CONFIGURATION = "t2s"


def simplify(text: str) -> str:
    """Return a text in simplified characters. Raises :class:`InputError` if OpenCC is not installed."""
    return _converter()(text)


def simplifier_version() -> str:
    """Return OpenCC's version and configuration, for manifests and keys. Raises :class:`InputError` without OpenCC."""
    _converter()
    return f"opencc {version('opencc')} {_CONFIGURATION}"


@functools.cache
def _converter() -> Callable[[str], str]:
    try:
        import opencc
    except ImportError as error:
        raise InputError(f"--simplify needs opencc: {install_command('opencc')}") from error
    convert: Callable[[str], str] = opencc.OpenCC(_CONFIGURATION).convert
    return convert
