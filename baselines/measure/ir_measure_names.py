"""Names of ir-measures' measures, such as ``nDCG@20`` or ``P(rel=2)@5``, in any case.

ir-measures asks other packages for the values. This project uses the packages that it installs: pytrec_eval (the C code
of trec_eval), and ir-measures' own Python code. cwl-eval is used if it is installed.
"""

import difflib
import functools
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from builders.core.errors import InputError, UsageError

# The alternatives to Recall@k, which would be read as the official recall@k.
_RECALL = "Recall"
# The highest cutoff and grade; trec_eval ends the process for a cutoff of 0.
_HIGHEST_COUNT = 1_000_000
_SMALLEST_STEP = 1e-6  # above 0 and below 1, for parameters that exclude both
# The range of each parameter that is a number, ends included.
_RANGES: dict[str, tuple[float, float]] = {
    "cutoff": (1, _HIGHEST_COUNT),
    "rel": (1, _HIGHEST_COUNT),
    "recall": (0, 1),
    "p": (_SMALLEST_STEP, 1 - _SMALLEST_STEP),
    "beta": (_SMALLEST_STEP, _HIGHEST_COUNT),
}
_NAME_FORM = re.compile(r"(\w+)((?:\([^()]{1,200}\))?(?:@[0-9.]{1,9})?)")
_WITHOUT_AT = re.compile(r"([A-Za-z]+)[-_: ]?([0-9]{1,7})")
# gdeval accepts only query ids that are numbers.
_PROVIDERS = ("pytrec_eval", "cwl_eval", "compat", "judged", "msmarco")
EXAMPLES = "nDCG@20, R@100, MRR@100, P@5, AP, Rprec, Bpref, Judged@10"


class UnknownMeasure(UsageError):
    """A name that no measure has. ``near_names`` are similar names of measures, with the parameters of the name."""

    def __init__(self, message: str, near_names: list[str]) -> None:
        super().__init__(message)
        self.near_names = near_names


@functools.cache
def pipeline() -> Any:
    """Return the code of ir-measures that computes measures by the packages of :data:`_PROVIDERS`."""
    import ir_measures

    providers = [ir_measures.providers.registry[name] for name in _PROVIDERS]
    return ir_measures.providers.FallbackProvider(providers)


def parse_measures(names: Iterable[str]) -> dict[str, Any]:
    """Return ir-measures' object of each measure by its name. The names are those of :func:`resolve_ir_measure`."""
    import ir_measures
    import pytrec_eval  # noqa: F401 (ir_measures computes most measures only with it, and hides its absence)

    return {name: ir_measures.parse_measure(name) for name in names}


def compute_measures(
    measures: Sequence[Any], grades: Mapping[str, Mapping[str, int]], scores: Mapping[str, Mapping[str, float]]
) -> Iterator[Any]:
    """Yield ir-measures' values (query_id, measure, value) for the queries of ``scores``.

    ``measures`` are values of :func:`parse_measures`. ``grades`` and ``scores`` are by query and passage. A query whose
    ranking has no value for a measure is skipped.
    """
    # ir-measures computes nDCG with the gains of another measure of the same call, so such measures are alone.
    with_gains = [measure for measure in measures if "gains" in measure.params]
    without_gains = [measure for measure in measures if "gains" not in measure.params]
    for measure in with_gains:
        yield from pipeline().iter_calc([measure], grades, scores)
    if without_gains:
        yield from pipeline().iter_calc(without_gains, grades, scores)


def resolve_ir_measure(name: str) -> str:
    """Return ir-measures' spelling of a measure's name in any case.

    Raises :class:`UnknownMeasure` for an unknown name, and :class:`UsageError` for a measure with wrong parameters or
    that is no mean over queries. Raises :class:`InputError` for a measure that the installed packages cannot compute.
    """
    import ir_measures

    match = _NAME_FORM.fullmatch(name.strip())
    if match is None:
        raise UnknownMeasure(f"unknown measure {name!r}", _near_names(name.strip(), ""))
    word, parameters = match.groups()
    spelling = _spellings().get(word.lower())
    if spelling is None:
        raise UnknownMeasure(f"unknown measure {name!r}", _near_names(word, parameters))
    if spelling == _RECALL:
        raise UsageError(
            f"measure {name!r} has two meanings; expected R{parameters}, the share of the positives in the top k, or "
            f"Success{parameters}, the share of queries with a positive in the top k (as the official recall@50)"
        )
    try:
        measure = ir_measures.parse_measure(f"{spelling}{parameters}")
        _convert_floats(measure)
        measure.validate_params()
    except (ValueError, AssertionError, TypeError, KeyError) as error:
        raise UsageError(f"measure {name!r}: {_expected_parameters(spelling)}") from error
    _check_ranges(name, measure)
    _check_support(name, measure)
    # The spelling may be an alias, such as MRR for RR, so only the parameters are those of ir-measures' own text.
    return spelling + str(measure).removeprefix(measure.__name__)


@functools.cache
def _spellings() -> dict[str, str]:
    """Return the spelling of each measure by its name in lower case. Of nDCG and NDCG, ir-measures writes the first."""
    import ir_measures

    spellings: dict[str, str] = {}
    for registered_name, measure in ir_measures.measures.registry.items():
        lower_case = registered_name.lower()
        if lower_case == measure.__name__.lower():
            spellings[lower_case] = measure.__name__
        else:
            spellings[lower_case] = registered_name
    return spellings


def _near_names(word: str, parameters: str) -> list[str]:
    """Return names of measures similar to ``word``, with ``parameters``, the rest of the name, such as "@20".

    A number at the end of the word is probably a cutoff: ndcg20 is nDCG@20.
    """
    match = _WITHOUT_AT.fullmatch(word)
    if match and match[1].lower() in _spellings():
        return [f"{_spellings()[match[1].lower()]}@{match[2]}"]
    computed_words = [lower_case for lower_case, spelling in _spellings().items() if _is_computed(spelling)]
    near_words = difflib.get_close_matches(word.lower(), computed_words, n=2)
    return [f"{_spellings()[near_word]}{parameters}" for near_word in near_words]


def _is_computed(spelling: str) -> bool:
    """True if an installed package computes a measure, perhaps only with some parameters."""
    import ir_measures

    class_name = ir_measures.measures.registry[spelling].NAME
    for provider in pipeline().providers:
        if provider.is_available() and class_name in [measure.NAME for measure in provider.SUPPORTED_MEASURES]:
            return True
    return False


def _convert_floats(measure: Any) -> None:
    """Convert the measure's whole numbers to floats where a parameter expects a float, for example in IPrec@1."""
    for name, value in measure.params.items():
        parameter = measure.SUPPORTED_PARAMS.get(name)
        if parameter is not None and parameter.dtype is float and type(value) is int:
            measure.params[name] = float(value)


def _expected_parameters(spelling: str) -> str:
    """Describe the parameters of a measure for an error, for example ``expected P(rel=..., judged_only=...)@k``."""
    import ir_measures

    measure = ir_measures.measures.registry[spelling]
    inner_names = [f"{name}=..." for name in measure.SUPPORTED_PARAMS if name != measure.AT_PARAM]
    form = spelling
    if inner_names:
        form += f"({', '.join(inner_names)})"
    required_names = [name for name, parameter in measure.SUPPORTED_PARAMS.items() if parameter.required]
    if measure.AT_PARAM in measure.SUPPORTED_PARAMS:
        form += "@k, where k is a number"
    # ir-measures writes the parameter AT_PARAM as the number behind "@".
    shown_names = ["k" if name == measure.AT_PARAM else name for name in required_names]
    if not shown_names:
        return f"expected {form}; every parameter may be omitted"
    return f"expected {form}; {' and '.join(shown_names)} must be given, and the other parameters may be omitted"


def _check_ranges(name: str, measure: Any) -> None:
    """Raise :class:`UsageError` if a parameter of the measure is out of its range. ``name`` is for the error."""
    values: Mapping[str, Any] = measure.params
    for parameter, value in values.items():
        low, high = _RANGES.get(parameter, (float("-inf"), float("inf")))
        if isinstance(value, int | float) and not low <= value <= high:
            raise UsageError(f"measure {name!r}: expected {parameter} from {low} to {high}, found {value}")
    gains = values.get("gains", {})
    for grade, gain in gains.items():
        if not all(type(number) is int and 0 <= number <= _HIGHEST_COUNT for number in (grade, gain)):
            raise UsageError(
                f"measure {name!r}: expected gains as {{grade: gain}}, whole numbers from 0 to {_HIGHEST_COUNT}, "
                f"found {gains}"
            )


def _check_support(name: str, measure: Any) -> None:
    """Raise an error for a measure that is no mean over queries, or that no installed package computes.

    ``name`` is for the error.
    """
    import ir_measures

    if not isinstance(measure.aggregator(), ir_measures.MeanAgg):
        raise UsageError(f"measure {name!r} is a count; expected a mean over queries, for example {EXAMPLES}")
    if pipeline().supports(measure):
        return
    remedy = f"expected another measure, for example {EXAMPLES}"
    for provider_name in _PROVIDERS:
        provider = ir_measures.providers.registry[provider_name]
        if provider.supports(measure) and not provider.is_available():
            remedy = provider.install_instructions()
    if measure.params.get("dcg") == "exp-log2":
        remedy = "expected the gains 2**grade - 1 in full, for example nDCG(gains={2: 3, 3: 7})@10"
    raise InputError(f"measure {name!r}: ir-measures cannot compute it with the installed packages; {remedy}")
