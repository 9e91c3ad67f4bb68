"""Errors that a command prints as one line, advice about missing libraries, and the log."""

import logging
import re
from pathlib import Path

from builders.core.redaction import redact

log = logging.getLogger("dureader_retrieval")
_LONGEST_MESSAGE = 4_000  # characters; a message may quote a long line of a file
_LONGEST_VALUE = 200  # characters of a wrong argument
# Matches line ends, control characters that a terminal obeys, and surrogates.
UNSAFE = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")


class RedactedRecord(logging.LogRecord):
    """A log record of any library, whose message has no secrets."""

    def getMessage(self) -> str:
        return redact(super().getMessage())


class RedactedFormatter(logging.Formatter):
    """A formatter that also hides secrets in tracebacks."""

    def format(self, record: logging.LogRecord) -> str:
        return redact(super().format(record))


def _redact_record(record: logging.LogRecord) -> bool:
    """Hide secrets in a log record. This filter never drops a record."""
    record.msg = redact(record.getMessage())
    record.args = None  # the arguments are in the message now
    return True


log.addFilter(_redact_record)


def make_visible(text: str) -> str:
    """Return an untrusted text as one line that is safe to print. Control characters become escapes."""
    return UNSAFE.sub(lambda match: match[0].encode("unicode_escape").decode(), text)


def shown_value(value: object) -> str:
    """Return the repr of a wrong argument for an error.

    A long repr is cut. A repr that fails or has several lines, for example of a data frame, is replaced by the type's
    name.
    """
    type_name = f"a {type(value).__name__}"
    try:
        text = repr(value)
    except Exception:  # the value may be of any class
        return type_name
    if "\n" in text:
        return type_name
    return _cut_text(text, _LONGEST_VALUE)


def _cut_text(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    return f"{text[:longest]}..."


class InputError(Exception):
    """Wrong input or data. The command prints the message as one line and exits with 1.

    The message names the file, the line if known, and the expected value. Line ends and control characters in
    quoted text become escapes. Keys, tokens and passwords are hidden (:mod:`.redaction`).
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        if path is not None and line is not None:
            message = f"{path}:{line}: {message}"
        elif path is not None:
            message = f"{path}: {message}"
        # A text is cut only after redaction, because half a key is not recognised. The first cut, at twice the length,
        # saves time, because the redaction of very long texts would take long.
        safe_message = make_visible(redact(message[: 2 * _LONGEST_MESSAGE]))
        super().__init__(_cut_text(safe_message, _LONGEST_MESSAGE))


class UsageError(InputError):
    """A wrong option or argument. From the command line, the exit code is 2."""


class Unfinished(InputError):
    """A failure that the input did not cause, for example a network error. Running the command again may succeed."""


# Extra -> the import names of its libraries. A library is listed only under the smallest extra that installs it.
# The extra "" stands for the project without extras. pandas comes with datasets, and tokenizers with transformers.
EXTRAS = {
    "": "cyclopts datasets pandas",
    "builders": "cloudpickle duckdb filelock huggingface_hub jieba jinja2 loky matplotlib msgspec numba numpy "
    "platformdirs pyarrow rensa rjieba scipy statsmodels tqdm yaml",
    "baselines": "faiss ir_measures pytrec_eval",
    "models": "accelerate sentence_transformers sklearn tokenizers torch transformers",
    "ray": "ray",
    "elasticsearch": "elastic_transport elasticsearch",
    "opencc": "opencc",
    "stress": "opencc pypinyin",
    "judge": "openai",
    "openvino": "nncf openvino",
    "space": "gradio",
}


def install_command(extra: str) -> str:
    """Return the pip command that installs this checkout, or the package, with an extra. "" stands for no extra."""
    is_checkout = (Path(__file__).parents[2] / "pyproject.toml").is_file()
    extra_suffix = f"[{extra}]" if extra else ""
    if is_checkout:
        return f'pip install -c constraints.txt -e ".{extra_suffix}"'
    return f'pip install "dureader-retrieval{extra_suffix}"'


def missing_library(error: ImportError) -> str:
    """Return a line with the library that an import lacks and the command that installs it; "" if no extra has it."""
    import_name = (error.name or "").partition(".")[0]
    for extra, libraries in EXTRAS.items():
        if import_name in libraries.split():
            return f"{error.name} is not installed: {install_command(extra)}"
    return ""
