"""Generate tables of modules that cannot import :mod:`.layout`, from the declarations in :mod:`.layout`.

Run this module after a change of the sets or configs. A test fails if a table is out of date::

    python -m builders.store.loader_tables

``dureader_retrieval.py`` must work as a single file, because datasets 3.x copies the file away. ``names.py`` must not
import pyarrow, so that ``--help`` is quick. The generated lines stand between two markers in each file.
"""

import json
import re
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from builders.core.version import VERSION
from builders.store.layout import (
    ANSWERS,
    CONFIGS,
    CORPUS,
    CROSSLINGUAL,
    CROSSLINGUAL_QUERIES,
    IDS,
    JOINED,
    ORIGINAL_IDS,
    QRELS,
    QUERIES,
    SETS,
    STRESS_KINDS,
    STRESS_QUERIES,
    Config,
)

ROOT = Path(__file__).parents[2]
BEGIN = "# Generated from builders/store/layout.py by `python -m builders.store.loader_tables`.\n"
END = "# End of the generated lines.\n"
# Files that cannot import the version, and the pattern of the line with it: the text before and after the version.
VERSION_LINES = {
    ROOT / "dureader_retrieval.py": r'^(__version__ = ")[^"]*(")',
    ROOT / "CITATION.cff": r"^(version: )\S+()$",
}
# Parts of a config's name that stand for any number, with their patterns (:data:`.layout.CONFIGS`).
_PATTERNS = {"SIZE": r"([1-9]\d*[KM]?)", "NUMBER": r"([1-9]\d*)"}
_LONGEST_LINE = 120
_LONGEST_TEXT = 104  # characters of a string in a line of its own
# The loader's names of the columns.
_SCHEMAS = {
    "corpus": CORPUS,
    "ids": IDS,
    "original-ids": ORIGINAL_IDS,
    "queries": QUERIES,
    "qrels": QRELS,
    "joined": JOINED,
    "crosslingual-queries": CROSSLINGUAL_QUERIES,
    "crosslingual": CROSSLINGUAL,
    "stress-queries": STRESS_QUERIES,
    "answers": ANSWERS,
}


def main() -> None:
    """Rewrite the generated lines of every file."""
    for file_path, lines in generate_tables().items():
        text = file_path.read_text(encoding="utf-8")
        file_path.write_text(replace_generated(text, lines), encoding="utf-8")
    for file_path in VERSION_LINES:
        text = file_path.read_text(encoding="utf-8")
        file_path.write_text(replace_version(file_path, text), encoding="utf-8")


def replace_version(file_path: Path, text: str) -> str:
    """Return the text of a file of ``VERSION_LINES`` with the project's version.

    Raise ValueError unless exactly one line matches the file's pattern.
    """
    pattern = VERSION_LINES[file_path]
    changed_text, match_count = re.subn(pattern, lambda match: match[1] + VERSION + match[2], text, flags=re.MULTILINE)
    if match_count != 1:
        raise ValueError(f"{file_path}: expected one line {pattern}, found {match_count}")
    return changed_text


def generate_tables() -> dict[Path, str]:
    """Return the generated lines by the path of their file."""
    lines_by_file = {
        "dureader_retrieval.py": _loader_lines(),
        "dureader_retrieval_ir.py": _ir_lines(),
        "builders/store/names.py": _name_lines(),
    }
    return {ROOT / name: "\n".join(lines) + "\n" for name, lines in lines_by_file.items()}


def replace_generated(text: str, lines: str) -> str:
    """Return the text of a file with ``lines`` between the markers. Raise ValueError if the text lacks the markers."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"expected a line {BEGIN!r} and a line {END!r}")
    return f"{before}{BEGIN}{lines}{END}{after}"


def _loader_lines() -> Iterator[str]:
    """Yield the source lines of ``dureader_retrieval.py``.

    They declare the columns, the configs, the configs of any size, and the origins of the sets.
    """
    yield "COLUMNS: dict[str, dict[str, Any]] = {"
    for schema_name, schema in _SCHEMAS.items():
        yield f"    {_quote(schema_name)}: {{"
        for field in schema:
            yield f"        {_quote(field.name)}: {_feature_source(field.type)},"
        yield "    },"
    yield "}"
    yield "CONFIGS: dict[str, Declaration] = {"
    for config in CONFIGS:
        if not _is_sized(config):
            yield from _declaration_lines(_quote(config.name), config)
    yield "}"
    yield "# Pattern of a name -> declaration. The parts of the name in parentheses replace {} in the description."
    yield "_SIZED_CONFIGS: dict[str, Declaration] = {"
    for config in CONFIGS:
        if _is_sized(config):
            pattern = re.sub("|".join(_PATTERNS), lambda match: _PATTERNS[match[0]], config.name)
            yield from _declaration_lines(f'r"{pattern}"', config)
    yield "}"
    yield "_SET_ORIGINS = {"
    for set_name, evaluation_set in SETS.items():
        if evaluation_set.origin:
            yield from _text_lines(f"    {_quote(set_name)}: ", evaluation_set.origin)
    yield "}"


def _declaration_lines(key: str, config: Config) -> Iterator[str]:
    """Yield the source of a config's entry in the tables of the loader. ``key`` is the source of the entry's key."""
    schema_names = [name for name, schema in _SCHEMAS.items() if schema is config.columns]
    yield f"    {key}: Declaration("
    yield f"        columns={_quote(schema_names[0])},"
    yield f"        splits={_tuple_source(config.splits)},"
    yield from _text_lines("        description=", config.description)
    yield "    ),"


def _ir_lines() -> Iterator[str]:
    """Yield the source of ``SETS`` in ``dureader_retrieval_ir.py``, by the set's part of an ir_datasets id."""
    yield "SETS = {"
    for set_name, evaluation_set in SETS.items():
        # The ids of the main set do not name the set.
        id_part = "" if set_name == "main" else set_name
        yield f"    {_quote(id_part)}: SetConfigs("
        yield f"        corpus={_quote(evaluation_set.corpus)},"
        yield f"        queries={_quote(evaluation_set.queries)},"
        yield f"        qrels={_quote(evaluation_set.qrels)},"
        yield f"        translated={evaluation_set.translated},"
        yield f"        original_column={_quote(evaluation_set.original_column)},"
        yield "    ),"
    yield "}"


def _name_lines() -> Iterator[str]:
    """Yield the names of the sets and of the kinds of perturbation, as `ruff format` writes them."""
    for variable, names in (("SET_NAMES", tuple(SETS)), ("STRESS_KINDS", STRESS_KINDS)):
        single_line = f"{variable} = {_tuple_source(names)}"
        if len(single_line) <= _LONGEST_LINE:
            yield single_line
            continue
        yield f"{variable} = ("
        for name in names:
            yield f"    {_quote(name)},"
        yield ")"


def _is_sized(config: Config) -> bool:
    """True if a config's name stands for configs of any size or number."""
    return any(placeholder in config.name for placeholder in _PATTERNS)


def _feature_source(column_type: pa.DataType) -> str:
    """Return the source of the ``datasets`` feature for a column's type.

    A list is written as ``[ITEM]``, because ``datasets.Sequence`` makes a struct of lists from a list of structs.
    """
    if pa.types.is_list(column_type):
        return f"[{_feature_source(column_type.value_type)}]"
    if pa.types.is_struct(column_type):
        fields = [f"{_quote(field.name)}: {_feature_source(field.type)}" for field in column_type]
        return "{" + ", ".join(fields) + "}"
    if pa.types.is_string(column_type):
        return "_TEXT"
    return f"datasets.Value({_quote(str(column_type))})"


def _text_lines(beginning: str, text: str) -> Iterator[str]:
    """Yield a text after ``beginning``: in the same line, or below as strings that Python joins.

    The lines are as `ruff format` writes them.
    """
    single_line = f"{beginning}{_quote(text)},"
    if len(single_line) <= _LONGEST_LINE:
        yield single_line
        return
    # Blanks are kept, so that the joined strings are the text.
    parts = textwrap.wrap(text, _LONGEST_TEXT, drop_whitespace=False, break_long_words=False, break_on_hyphens=False)
    indentation = " " * (len(beginning) - len(beginning.lstrip()))
    yield f"{beginning}("
    for part in parts:
        yield f"{indentation}    {_quote(part)}"
    yield f"{indentation}),"


def _tuple_source(names: Sequence[str]) -> str:
    quoted_names = ", ".join(_quote(name) for name in names)
    return f"({quoted_names},)" if len(names) == 1 else f"({quoted_names})"


def _quote(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


if __name__ == "__main__":
    main()
