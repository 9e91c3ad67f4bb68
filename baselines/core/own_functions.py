"""Load a user's function by MODULE:FUNCTION, and name functions for messages."""

import importlib
import os
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

from builders.core.errors import InputError, shown_value
from builders.core.options import did_you_mean

EXPECTED = "a function, or its name as MODULE:FUNCTION"


def parse_function(value: Any) -> Any:
    """Return a function, or the name of a function as MODULE:FUNCTION. The module is not imported.

    Raises ValueError with the expected form for another value.
    """
    if isinstance(value, str):
        module_name, _, function_name = value.partition(":")
        module_parts = module_name.split(".")
        function_parts = function_name.split(".")
        if module_name.endswith(".py") or os.sep in module_name:
            raise ValueError(f"{EXPECTED}, where MODULE has no folder and no .py")
        if all(part.isidentifier() for part in module_parts + function_parts):
            return value
    elif callable(value):
        return value
    raise ValueError(EXPECTED)


def load_function(target: str, option: str) -> Callable[..., Any]:
    """Import the function that MODULE:FUNCTION names. The current folder is searched last.

    ``option`` names the option in errors. Raises :class:`InputError` if the module cannot be imported, or has no such
    function.
    """
    module_name, _, function_name = target.partition(":")
    value: Any = _import_module(module_name, f"{option} {target}")
    for part in function_name.split("."):
        if not hasattr(value, part):
            hint = did_you_mean(part, dir(value))
            raise InputError(f"{option} {target}: {shown_value(value)} has no {part!r}{hint}")
        value = getattr(value, part)
    if not callable(value):
        raise InputError(f"{option} {target}: expected a function, found {shown_value(value)}")
    function: Callable[..., Any] = value
    return function


def _import_module(module_name: str, label: str) -> ModuleType:
    """Import a user's module, also from the current folder. ``label`` begins the errors: the option and its value."""
    # The console script dureader-retrieval does not search the current folder, but python -m does.
    current_folder = os.getcwd()
    if not {"", current_folder}.intersection(sys.path):
        sys.path.append(current_folder)
    importlib.invalidate_caches()  # a notebook may have just written the module
    try:
        return importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        # error.name is the module or a package above it, or else a library that the module imports.
        is_module_missing = error.name is not None and f"{module_name}.".startswith(f"{error.name}.")
        if is_module_missing:
            raise InputError(f"{label}: no module {error.name!r} in the current folder or on PYTHONPATH") from error
        raise InputError(f"{label}: the import failed: {error}") from error
    except (Exception, SystemExit) as error:
        raise InputError(f"{label}: the import failed: {type(error).__name__}: {error}") from error


def function_name(function: Callable[..., Any]) -> str:
    """Return a function's name as MODULE:FUNCTION, or that of the class of a callable object."""
    # A function of a module, or a method that a module offers as a function, for example jieba.lcut.
    module_name = getattr(function, "__module__", None) or ""
    short_name = getattr(function, "__name__", "")
    if getattr(sys.modules.get(module_name), short_name, None) == function:
        return f"{module_name}:{short_name}"
    inner_function = getattr(function, "func", function)  # the function of a functools.partial
    if not hasattr(inner_function, "__qualname__"):
        inner_function = type(inner_function)
    module_name = getattr(inner_function, "__module__", None) or type(inner_function).__module__
    return f"{module_name}:{inner_function.__qualname__}"
