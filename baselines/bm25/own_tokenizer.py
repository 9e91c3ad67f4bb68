"""A user's tokenizer: a function from a text to its tokens, which this module calls and checks."""

import functools
import inspect
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import cloudpickle

from baselines.core.function_sources import UnknownSource, fingerprint_function
from baselines.core.own_functions import function_name, load_function
from builders.core.errors import InputError, log, shown_value
from builders.core.jobs import in_order, process_pool

EXPECTED = "a list of texts"
OPTION = "--tokenizer"
# White space inside a token becomes this character, because spaces separate the tokens of a passage.
SPACE = "\u2423"
_SHOWN_TEXT = 60  # characters of a text in an error
_SHOWN_TOKENS = 5
# Many tokenizers of libraries fail if several threads call them at once.
_one_call = threading.RLock()


class OwnTokenizer:
    """A user's function, whose result is checked at every call. Copies in worker processes call the same function.

    Attributes:
        name: the function as MODULE:FUNCTION.
        source: the fingerprint of the function, or None if it is unknown.
        why_unknown: the reason for an unknown fingerprint, or "".
    """

    def __init__(self, function: Callable[[str], Any], name: str) -> None:
        self.name = name
        self.why_unknown = ""
        self.source: str | None = None
        try:
            self.source = fingerprint_function(function)
        except UnknownSource as error:
            self.why_unknown = str(error)
        self._function: Callable[[str], Any] | None = function
        self._pickled_function = b""

    def __getstate__(self) -> dict[str, Any]:
        if self._function is not None:
            self._pickled_function = self._pickle_function(self._function)
        return {**vars(self), "_function": None}

    def _pickle_function(self, function: Callable[[str], Any]) -> bytes:
        """Return the function as bytes, or b"" if a worker process has to import the function by its name.

        A worker process also imports the module of a pickled function. The function of a script or notebook is pickled
        as code. Raises the error of pickle if neither is possible.
        """
        try:
            pickled_function: bytes = cloudpickle.dumps(function)
            return pickled_function
        except Exception:
            # For example jieba.lcut, a method of an object that has a lock.
            if self._is_importable(function):
                return b""
            raise

    def _is_importable(self, function: Callable[[str], Any]) -> bool:
        """True if an import of the tokenizer's name, MODULE:FUNCTION, gives this function."""
        try:
            return bool(load_function(self.name, OPTION) == function)
        except InputError:
            return False

    @property
    def version(self) -> str:
        """The name and the fingerprint, for the manifest of a run and the key of an index."""
        source = self.source[:16] if self.source else "unknown source"
        return f"tokenizer {self.name} {source}"

    def describe(self) -> dict[str, str | None]:
        """Return the name and the whole fingerprint, for the manifest of a run."""
        return {"function": self.name, "source": self.source}

    def __call__(self, text: str) -> list[str]:
        """Return the tokens of a text. Raises :class:`InputError` for another output than a list of texts.

        Tokens of only white space are dropped. Other white space in a token becomes :data:`SPACE`.
        """
        output = self._call(text)
        if not isinstance(output, list | tuple):
            raise self._error(f"expected {EXPECTED}, found {_describe_output(output)}", text)
        tokens: list[str] = []
        for token in output:
            if not isinstance(token, str):
                raise self._error(f"expected {EXPECTED}, found the token {shown_value(token)}", text)
            parts = token.split()
            if parts:
                tokens.append(SPACE.join(parts))
        try:
            "".join(tokens).encode()
        except UnicodeEncodeError:
            raise self._error("a token has surrogates, which UTF-8 cannot encode", text) from None
        return tokens

    def _call(self, text: str) -> Any:
        """Return the function's output. An iterator, for example of a generator, becomes a list."""
        try:
            with _one_call:
                output = self._open()(text)
                return list(output) if isinstance(output, Iterator) else output
        except MemoryError:
            raise
        except (Exception, SystemExit) as error:
            raise self._error(f"raised {type(error).__name__}: {error}", text) from error

    def _open(self) -> Callable[[str], Any]:
        """Return the function, which a copy in another process imports or unpickles first."""
        if self._function is None:
            self._function = _restore_function(self._pickled_function, self.name)
        return self._function

    def fingerprint_values(self) -> str:
        """Return the fingerprint of the function in this process, or "" if it is unknown.

        It covers the code and the values that the code uses. It leaves out the files of modules, because a worker
        process may lack the modules of a script or notebook.
        """
        try:
            return fingerprint_function(self._open(), with_files=False)
        except UnknownSource:
            return ""

    def _error(self, problem: str, text: str) -> InputError:
        return InputError(f"{OPTION} {self.name}: {problem}; the text: {_shorten(text)}")

    def can_be_sent(self) -> bool:
        """True if worker processes can get the function. Otherwise a warning is logged."""
        try:
            cloudpickle.dumps(self)
        except Exception as error:  # the function may refer to any object
            problem = f"{type(error).__name__}: {error}".splitlines()[0]
            log.warning(
                "%s %s cannot be sent to worker processes (%s); this process alone splits the texts",
                OPTION,
                self.name,
                problem,
            )
            return False
        return True

    def can_use_workers(self, texts: Sequence[str]) -> bool:
        """Return True if worker processes can split texts. ``texts`` are split to try this.

        The result is False, with a warning, if the function cannot be sent, if this program has changed values that the
        function uses, or if this system cannot start processes. A daemonic process cannot start any either, but logs no
        warning. Raises :class:`InputError` if the tokens of a text differ between two calls, or in another process:
        another process also splits queries when a cached index is used again.
        """
        token_lists = [self(text) for text in texts]
        self._expect_equal(texts, token_lists, [self(text) for text in texts], "between two calls")
        if not self.can_be_sent():
            return False
        # process_pool(1) would yield None. A pool starts a process only for a task, so this one starts one process.
        with process_pool(2) as pool:
            if pool is None:
                return False
            split_elsewhere = functools.partial(_split_and_fingerprint, self)
            other_lists, fingerprint = next(in_order(pool, split_elsewhere, [list(texts)], 1))
        if fingerprint != self.fingerprint_values():
            # For example, this program has added words to jieba, which a new process lacks.
            log.warning(
                "%s %s depends on values that this program has changed; this process alone splits the texts",
                OPTION,
                self.name,
            )
            return False
        self._expect_equal(texts, token_lists, other_lists, "between two processes")
        return True

    def _expect_equal(
        self, texts: Sequence[str], token_lists: list[list[str]], other_lists: list[list[str]], compared_calls: str
    ) -> None:
        """Raise :class:`InputError` if the tokens of a text differ. ``compared_calls`` completes the problem's text."""
        for text, tokens, other_tokens in zip(texts, token_lists, other_lists, strict=True):
            # BM25 does not depend on the order of tokens.
            if Counter(tokens) != Counter(other_tokens):
                problem = f"tokens differ {compared_calls}: {_shorten_list(tokens)} and {_shorten_list(other_tokens)}"
                raise self._error(problem, text)

    def no_tokens(self, text: str) -> InputError:
        """Return the error of a function that finds no token in any passage. ``text`` is the first passage."""
        return self._error("returned no token for any passage", text)


def open_tokenizer(tokenizer: Callable[[str], Any] | str) -> OwnTokenizer:
    """Return the tokenizer of a function, or of MODULE:FUNCTION. Log a warning if its source is unknown.

    Raises :class:`InputError` if the function cannot be imported.
    """
    if isinstance(tokenizer, str):
        own_tokenizer = OwnTokenizer(load_function(tokenizer, OPTION), tokenizer)
    else:
        own_tokenizer = OwnTokenizer(tokenizer, function_name(tokenizer))
    if own_tokenizer.source is None:
        log.warning(
            "%s %s: its index is not cached, because %s; a text FUNCTION.version would identify the function",
            OPTION,
            own_tokenizer.name,
            own_tokenizer.why_unknown,
        )
    return own_tokenizer


@functools.lru_cache(maxsize=4)
def _restore_function(pickled_function: bytes, name: str) -> Callable[[str], Any]:
    """Unpickle the function, or import it by its name if ``pickled_function`` is b""."""
    if not pickled_function:
        return load_function(name, OPTION)
    function: Callable[[str], Any] = cloudpickle.loads(pickled_function)
    return function


def _split_and_fingerprint(tokenizer: OwnTokenizer, texts: list[str]) -> tuple[list[list[str]], str]:
    """Return the tokens of texts, and the fingerprint of the function in this process."""
    return [tokenizer(text) for text in texts], tokenizer.fingerprint_values()


def _describe_output(output: Any) -> str:
    if inspect.iscoroutine(output):
        output.close()  # otherwise Python warns that the coroutine was never awaited
        return "a coroutine; the function must not be async"
    if isinstance(output, str):
        return "one text"  # which may be as long as a passage
    return shown_value(output)


def _shorten(text: str) -> str:
    shown_text = text[:_SHOWN_TEXT]
    return repr(shown_text) + "..." * (len(text) > _SHOWN_TEXT)


def _shorten_list(tokens: list[str]) -> str:
    shown_tokens = tokens[:_SHOWN_TOKENS]
    return repr(shown_tokens) + "..." * (len(tokens) > _SHOWN_TOKENS)
