"""What every command of the project shares: the one error, exit codes, logging, progress bars, verbs."""

from __future__ import annotations

import argparse
import importlib
import logging
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

log = logging.getLogger("dureader_retrieval")


class InputError(Exception):
    """The input or the data is wrong. Printed as one line; the command exits with 1.

    The message names the file, the line where there is one, and what was expected.
    """

    def __init__(self, message: str, *, path: Path | str | None = None, line: int | None = None) -> None:
        where = "" if path is None else f"{path}: " if line is None else f"{path}:{line}: "
        super().__init__(where + message)


def progress(items: Iterable[Any] | None = None, *, total: int | None = None, unit: str = "it", label: str = "") -> Any:
    """A progress bar on stderr, shown only where a person can see it (a terminal)."""
    from tqdm import tqdm

    return tqdm(items, total=total, unit=unit, desc=label, disable=None, unit_scale=True, file=sys.stderr)


def add_format(parser: argparse.ArgumentParser) -> None:
    """``--format text|json``, for every command that prints a table."""
    parser.add_argument("--format", choices=["text", "json"], default="text", help="how the table is printed")


def whole_number(low: int) -> Any:
    """An argparse type: an integer of at least ``low``."""

    def parse(text: str) -> int:
        value = int(text)
        if value < low:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {low}, found {text}")
        return value

    parse.__name__ = "number"
    return parse


def main(program: str, description: str, verbs: Mapping[str, str], argv: Sequence[str] | None = None) -> int:
    """Run one verb of ``program``; returns the exit code (0 done, 1 wrong input or data, 2 usage).

    ``verbs`` maps a verb to the module that holds its ``add_arguments(parser)`` and ``run(args)``. Only the module
    that is asked for is imported, so that ``--help`` is quick and optional packages stay optional. A module's
    docstring is its help: the first line as the summary, the whole, with its example, in the verb's own ``--help``.
    """
    parser = argparse.ArgumentParser(prog=f"python -m {program}", description=description)
    argv = list(sys.argv[1:] if argv is None else argv)
    chosen = next((word for word in argv if not word.startswith("-")), None)
    commands = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    module = None
    for verb, name in verbs.items():
        if verb == chosen:
            module = importlib.import_module(name)
            doc = module.__doc__ or ""
            command = commands.add_parser(
                verb, description=doc, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
            )
            command.add_argument("--quiet", action="store_true", help="log warnings and errors only")
            module.add_arguments(command)
        else:
            commands.add_parser(verb, add_help=False)
    args = parser.parse_args(argv)
    assert module is not None
    logging.basicConfig(
        level=logging.WARNING if args.quiet else logging.INFO,
        format="%(asctime)s %(levelname)s %(message)s",
        datefmt="%H:%M:%S",
        stream=sys.stderr,
        force=True,
    )
    for noisy in ("faiss", "fsspec", "httpx", "httpx2", "jieba", "numba", "sentence_transformers"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        code = int(module.run(args) or 0)
        sys.stdout.flush()
        return code
    except InputError as error:
        print(f"error: {error}", file=sys.stderr)
    except BrokenPipeError:  # the reader of stdout (head, less) has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except OSError as error:
        # Permissions, a full disk, a path that is a directory: the system's own words name the file.
        print(f"error: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return 130
    return 1
