"""Functions of the Python API that pass ``**options`` to verbs: checked calls, and a signature with every option."""

import functools
import inspect
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from builders.core.options import read_option
from builders.core.quiet import quiet_call
from builders.core.verbs import QUIET, QUIET_PARAMETER, check_arguments

Params = ParamSpec("Params")
Result = TypeVar("Result")


def with_options_of(
    *verbs: Callable[..., Any], without: tuple[str, ...] = ()
) -> Callable[[Callable[Params, Result]], Callable[Params, Result]]:
    """Return a decorator for a function that passes its ``**options``, if it has them, to one of ``verbs``.

    The decorated function checks its own arguments by their annotations, as :func:`.verbs.verb` does. The names in
    ``**options`` are checked here, their values by the verb that gets them. Options in ``without`` are refused. A call
    may also have ``quiet=True``. The signature, which notebooks show, lists all options that are accepted.
    """

    def decorate(function: Callable[Params, Result]) -> Callable[Params, Result]:
        signature = inspect.signature(function)
        named_parameters = []
        for parameter in signature.parameters.values():
            if parameter.kind is not parameter.VAR_KEYWORD:
                named_parameters.append(parameter)
        own_options = {parameter.name: read_option(parameter) for parameter in named_parameters}
        hidden_names = {*own_options, *without, QUIET.name}
        # The options that ``**options`` may have.
        verb_parameters: dict[str, inspect.Parameter] = {}
        for verb_function in verbs:
            for name, parameter in inspect.signature(verb_function).parameters.items():
                if name not in hidden_names:
                    verb_parameters[name] = parameter.replace(kind=parameter.KEYWORD_ONLY)
        verb_parameters[QUIET.name] = QUIET_PARAMETER

        @functools.wraps(function)
        def checked_function(*args: Params.args, **kwargs: Params.kwargs) -> Result:
            is_quiet, bound = check_arguments(function.__name__, signature, own_options, args, kwargs, verb_parameters)
            with quiet_call(is_quiet):
                return function(*bound.args, **bound.kwargs)

        # Notebooks show this signature.
        shown_parameters = []
        for parameter in named_parameters:
            annotation = own_options[parameter.name].plain_annotation()
            shown_parameters.append(parameter.replace(annotation=annotation))
        shown_parameters += verb_parameters.values()
        shown_signature = signature.replace(parameters=shown_parameters)
        checked_function.__signature__ = shown_signature  # type: ignore[attr-defined]
        return checked_function

    return decorate
