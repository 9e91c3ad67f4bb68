"""Options of verbs for a model behind an endpoint, and the record of their values."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from builders.core.options import AtLeastOne, Help, Needs, Placeholder

EndpointUrl = Annotated[
    str, Placeholder("URL"), Help("use MODEL behind this address (docs/endpoints.md); sends texts to it")
]
Parallel = Annotated[AtLeastOne, Placeholder("N"), Needs("endpoint"), Help("simultaneous requests")]
RequestTexts = Annotated[AtLeastOne, Placeholder("N"), Needs("endpoint"), Help("most texts of a request")]
RequestCharacters = Annotated[AtLeastOne, Placeholder("N"), Needs("endpoint"), Help("most characters of a request")]
QueryModel = Annotated[
    str, Placeholder("NAME"), Needs("endpoint"), Help("name of the model for queries (default: that for passages)")
]
Dimensions = Annotated[
    AtLeastOne, Placeholder("N"), Needs("endpoint"), Help("ask for vectors of N numbers (default: the model's)")
]
EncodingFormat = Annotated[
    Literal["base64", "float"], Needs("endpoint"), Help("form of vectors in answers; float is three times as long")
]
QueryInputType = Annotated[
    str, Placeholder("TYPE"), Needs("endpoint"), Help("input_type of queries, or FIELD=VALUE (default: none)")
]
PassageInputType = Annotated[
    str, Placeholder("TYPE"), Needs("endpoint"), Help("input_type of passages, or FIELD=VALUE (default: none)")
]
# Options that only share the work. Kept vectors are used whatever these options are.
SHARING_OPTIONS = ("request_texts", "request_characters", "encoding_format")
# Options of models on this machine, and the values of options that are not given.
_LOCAL_OPTIONS = (
    "family",
    "prompt_name",
    "pooling",
    "truncate_dim",
    "normalize",
    "max_length",
    "trust_remote_code",
    "revision",
    "batch_tokens",
    "tokenizers",
    "backend",
    "device",
    "dtype",
    "engine",
)
_UNSET = (None, "", "auto", "torch", "local")
# Values of --kind for models behind an endpoint: by vectors, or by scores of pairs.
ENDPOINT_KINDS = ("dense", "cross")
_INPUT_TYPE = "input_type"


@dataclass(frozen=True)
class EndpointOptions:
    """How a model behind an endpoint is asked.

    Attributes:
        address: address of the service, with a user and a password if it has any.
        kind: dense (the service returns vectors), or cross (it scores passages).
        parallel: simultaneous requests.
        request_texts, request_characters: largest request.
        query_model: name of the model for queries, or None for the passages' model.
        dimensions: the requested number of dimensions, or None for the model's.
        encoding_format: base64 or float.
        query_input_type, passage_input_type: a value of ``input_type``, or FIELD=VALUE, or None.
    """

    address: str
    kind: str = "dense"
    parallel: int = 4
    request_texts: int = 32
    request_characters: int = 32_000
    query_model: str | None = None
    dimensions: int | None = None
    encoding_format: str = "base64"
    query_input_type: str | None = None
    passage_input_type: str | None = None


def read_endpoint_options(arguments: Mapping[str, Any], default_kind: str = "dense") -> EndpointOptions | None:
    """Return the options of an endpoint in a verb's arguments, or None without ``endpoint``.

    ``arguments`` has the values of the verb's options by their names. An address that ends in /rerank scores passages,
    and one that ends in /embeddings returns vectors. For other addresses, ``kind`` decides, and then ``default_kind``.

    Raises:
        UsageError: the address is wrong, ``kind`` does not fit the address, or an option would be ignored.
    """
    from builders.core.api_service import check_address
    from builders.core.errors import UsageError

    address = arguments["endpoint"]
    if address is None:
        return None
    check_address(address)
    for name in _LOCAL_OPTIONS:
        value = arguments.get(name)
        # False disables trust_remote_code, which is the default. For normalize, False is the option --no-normalize.
        is_unset = value in _UNSET or (name == "trust_remote_code" and value is False)
        if not is_unset:
            raise UsageError(
                f"{name}: a model behind an endpoint has no such option; remove --{name.replace('_', '-')}"
            )

    # The kind.
    path = address.partition("?")[0].rstrip("/")
    last_part = path.rpartition("/")[2]
    path_kind = {"rerank": "cross", "embeddings": "dense"}.get(last_part, "")
    kind = arguments.get("kind") or path_kind or default_kind
    if kind not in ENDPOINT_KINDS:
        raise UsageError(f"kind: expected {' or '.join(ENDPOINT_KINDS)} with endpoint, found {kind!r}")
    if path_kind and kind != path_kind:
        raise UsageError(f"kind: {kind} does not fit an address that ends in /{last_part}")

    # Options of vectors.
    only_vectors = (
        "query_model",
        "dimensions",
        "query_input_type",
        "passage_input_type",
        "passage_prompt",
        "similarity",
    )
    if kind == "cross":
        for name in only_vectors:
            if arguments.get(name) is not None:
                raise UsageError(f"{name}: a re-ranker behind an endpoint has no such option")
    # A verb may lack some of the options. The record has the same defaults.
    names = (
        "parallel",
        "request_texts",
        "request_characters",
        "query_model",
        "dimensions",
        "encoding_format",
        "query_input_type",
        "passage_input_type",
    )
    values = {name: arguments[name] for name in names if name in arguments}
    return EndpointOptions(address, kind, **values)


def endpoint_name(options: EndpointOptions | None) -> str | None:
    """Return the address for the record of a finished output, without user, password and parameters."""
    from builders.core.redaction import without_credentials

    return None if options is None else without_credentials(options.address)


def input_type_field(input_type: str | None) -> dict[str, str]:
    """Return the field of a request for an input type: "query" is input_type, "task=retrieval.query" is task."""
    if not input_type:
        return {}
    field, has_field, value = input_type.partition("=")
    return {field: value} if has_field else {_INPUT_TYPE: input_type}
