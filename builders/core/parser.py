"""The parser of a verb's command line and its help, made by cyclopts from the verb's signature and docstring."""

import importlib
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Parameter

from builders.core.docstrings import VerbHelp, read_help
from builders.core.errors import UsageError
from builders.core.options import Help, Option, Use, from_text
from builders.core.verbs import VerbSpec, load_function, verb_spec

QUIET = Option("quiet", bool, False, False, False, (Help("log only warnings and errors"),))


def format_option(spec: VerbSpec) -> Option:
    """Return the option ``--format`` of a verb that returns a report."""
    return Option("format", str, spec.default_format, False, False, (Help("output format"),), spec.formats)


def shell_options(spec: VerbSpec) -> list[Option]:
    """Return the options of a verb on the command line: its own, and the ones that only the command line has."""
    options = [*spec.options, QUIET]
    if spec.formats:
        options.append(format_option(spec))
    return options


def verb_app(name: str, function: Callable[..., Any], as_typed: Callable[[str], str] = str) -> App:
    """Return the parser of a verb.

    Args:
        name: the words before the options, as the help shows them, for example "python -m baselines bm25".
        function: the verb's function.
        as_typed: rewrites the commands in the help's texts into the program that the user typed.
    """
    verb_help = read_help(function)
    paragraphs = [verb_help.summary, *verb_help.description]
    examples = ["Examples:", *(f"  {line}" for line in verb_help.examples)] if verb_help.examples else []
    app = App(
        name=name,
        help=as_typed("\n\n".join(paragraphs)),
        help_epilogue=as_typed("\n".join(examples)),
        help_format="plaintext",
        help_formatter="plain",
        version_flags=[],
    )
    app.default(_signature_holder(shell_options(verb_spec(function)), verb_help))
    return app


def parse_words(app: App, spec: VerbSpec, words: Sequence[str]) -> dict[str, Any]:
    """Return the arguments that a command line gives, checked and converted, by parameter name.

    ``quiet`` and ``format`` are among them if the words have these options. Raises :class:`UsageError`.
    """
    try:
        _, bound, _ = app.parse_args(list(words), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        raise UsageError(" ".join(str(error).split())) from None
    arguments: dict[str, Any] = {}
    for option in shell_options(spec):
        if option.name not in bound.arguments:
            continue
        texts = bound.arguments[option.name]
        flag = option.flags[0]
        if option.value_type is bool:
            arguments[option.name] = texts
        elif not option.is_list:
            arguments[option.name] = from_text(option, texts[0], flag)
        else:
            if option.positional:  # each word was converted on its own
                texts = [text for word in texts for text in word]
            arguments[option.name] = tuple(from_text(option, text, flag) for text in texts)
    return arguments


def _signature_holder(options: Sequence[Option], verb_help: VerbHelp) -> Callable[..., Any]:
    """Return a function whose signature tells cyclopts the options. The function itself is never called."""
    parameters = [_shell_parameter(option, verb_help) for option in options]
    parameters.sort(key=lambda parameter: parameter.kind)  # Python wants positional parameters first

    def signature_holder(*args: Any, **kwargs: Any) -> None:
        raise NotImplementedError("the parser reads only the signature of this function")

    signature_holder.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return signature_holder


def _shell_parameter(option: Option, verb_help: VerbHelp) -> inspect.Parameter:
    """Return the parameter that tells cyclopts about an option."""
    shared_help = option.marker(Help)
    settings: dict[str, Any] = {
        "name": option.flags,
        "help": verb_help.parameters.get(option.name) or (shared_help.text if shared_help else ""),
        "required": option.required,
        "show_default": option.default not in (None, False, (), inspect.Parameter.empty),
        "negative": f"--no-{option.flags[0].removeprefix('--')}" if Use.WITH_NO in option.markers else "",
    }
    if option.value_type is not bool:
        settings["converter"] = _texts_of_tokens
        settings["metavar"] = option.metavar
    if option.choices:
        settings["choices"] = option.choices
    annotation: Any = option.value_type if option.value_type in (bool, int, float) else option.shell_type
    if option.is_list and not option.positional:
        annotation = list[annotation]
        # A repeated option takes one value at each use. Other lists take all values up to the next option.
        fewest = 0 if Use.MAY_BE_EMPTY in option.markers else 1
        settings["consume_multiple"] = False if Use.REPEATED in option.markers else (fewest, None)
    return inspect.Parameter(
        option.name,
        kind=_kind_of(option),
        default=inspect.Parameter.empty
        if option.required or (option.positional and option.is_list)
        else option.default,
        annotation=Annotated[annotation, Parameter(**settings)],
    )


def _kind_of(option: Option) -> Any:
    if not option.positional:
        return inspect.Parameter.KEYWORD_ONLY
    return inspect.Parameter.VAR_POSITIONAL if option.is_list else inspect.Parameter.POSITIONAL_ONLY


def _texts_of_tokens(_: type, tokens: Sequence[Any]) -> list[str]:
    """Keep the words as they were typed. :func:`parse_words` converts them by the project's own rules."""
    return [token.value for token in tokens]


def program_app(name: str, verbs: Mapping[str, str]) -> App:
    """Return one parser of all verbs, from which a shell's completion is generated. All verbs' modules are imported."""
    program = App(name=name, version_flags=["--version"])
    for verb, target in verbs.items():
        if ":" in target:
            program.command(verb_app(verb, load_function(target)))
            continue
        steps = App(name=verb, version_flags=[])
        for step, step_target in importlib.import_module(target).STEPS.items():
            steps.command(verb_app(step, load_function(step_target)))
        program.command(steps)
    return program
