"""The version of the code behind a verb: what changes when, and only when, code that it may run changes.

A verb's code is its own file or folder, and whatever of the project these import, directly or not, at the top of a file
or inside a function. Comments, docstrings and blank lines are no code. Libraries are none of it: ``training.json`` has
their versions.
"""

from __future__ import annotations

import ast
import functools
import hashlib
from collections.abc import Iterator
from pathlib import Path

_CHECKOUT = Path(__file__).resolve().parents[2]
_PROGRAMS = ("builders", "baselines")


@functools.cache
def code_of(module: str) -> str:
    """SHA-256 of the code of a verb's module and of all that it imports of the project."""
    first = _file_of(module)
    assert first is not None, module
    # A verb may choose among the files of its folder by their names, as the engines of `bm25`.
    waiting = sorted(first.parent.glob("*.py")) if first.name == "__init__.py" else [first]
    found: dict[str, str] = {}
    while waiting:
        path = waiting.pop()
        name = path.relative_to(_CHECKOUT).as_posix()
        if name not in found:
            found[name], imported = _read(path)
            waiting += imported
    return hashlib.sha256("\n".join(f"{name} {found[name]}" for name in sorted(found)).encode()).hexdigest()


@functools.cache
def _read(path: Path) -> tuple[str, list[Path]]:
    """(SHA-256 of a file's code, the files of the project that it imports)."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    skipped = {number for first, last in _docstrings(tree) for number in range(first, last + 1)}
    lines = (line.rstrip() for number, line in enumerate(source.splitlines(), 1) if number not in skipped)
    code = "\n".join(line for line in lines if line and not line.lstrip().startswith("#"))
    files = (_file_of(name) for name in _imports(tree))
    return hashlib.sha256(code.encode()).hexdigest(), [file for file in files if file]


def _docstrings(tree: ast.AST) -> Iterator[tuple[int, int]]:
    """The first and last line of every docstring."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                yield first.lineno, first.end_lineno or first.lineno


def _imports(tree: ast.AST) -> Iterator[str]:
    """The names of the project that are imported: of modules, and of what may be modules."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _file_of(module: str) -> Path | None:
    """The file of a module of the project; None for any other name."""
    if module.split(".")[0] not in _PROGRAMS:
        return None
    path = _CHECKOUT.joinpath(*module.split("."))
    files = (path.with_suffix(".py"), path / "__init__.py")
    return next((file for file in files if file.is_file()), None)
