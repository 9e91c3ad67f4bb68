"""The layers of CONTRIBUTING.md: which package may import which."""

import ast
import functools
import importlib
import operator
import re
import sys
from collections import Counter
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from commands import ROOT
from file_list import PAGE, first_sentence, page

from builders.core.errors import EXTRAS

# A folder imports only from folders with a lower number.
FLOORS = {
    "builders": {
        "core": 1,
        "store": 2,
        "sources": 2,
        "text": 3,
        "release": 4,
        "check": 4,
        "add": 5,
        "official": 5,
        "export": 5,
        "similar": 5,
        "annotate": 6,
        "publish": 7,
    },
    "baselines": {
        "core": 1,
        "measure": 2,
        "bm25": 3,
        "retrieve": 4,
        "hub": 5,
        "train": 6,
        "reproduce": 7,
        "look": 8,
    },
}
# Modules without a number, which may import from all folders of their program.
ABOVE_ALL = {"builders": {"__init__", "__main__"}, "baselines": {"__init__", "__main__", "api"}}
# The folders of builders that baselines use.
SHARED = {"core", "store", "sources", "text"}
# Other imports between rooms, and their reasons.
EXCEPTIONS = {
    ("baselines/measure/error_rounds.py", "builders.annotate"): "people judge the errors in a round of `annotate`",
    ("baselines/look/serve.py", "builders.release"): "the search page builds the embedded sample",
    ("baselines/__main__.py", "builders.__main__"): "the console script has the verbs of both programs",
}


@functools.cache
def imports(path: Path) -> list[str]:
    """Return the full name of each module, or each name of a module, that a file imports."""
    imported_names = []
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            imported_names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            imported_names += [f"{node.module}.{alias.name}" for alias in node.names]
    return imported_names


def modules_of(program: str) -> Iterator[Path]:
    """Yield the Python files of a program."""
    return (ROOT / program).rglob("*.py")


def room_of(path: Path) -> str:
    """Return the folder of a program that a file is in, or the file's own name above all folders."""
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def module_name(path: Path) -> str:
    """Return the name by which a file is imported."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def folder_name(module: str) -> str:
    """Return the first two parts of a module's name: the program and the folder."""
    return ".".join(module.split(".")[:2])


def test_neither_files_nor_folders_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, too. A folder is the second part of a module's name."""
    files: dict[str, Path] = {}
    for program in ("builders", "baselines"):
        for path in modules_of(program):
            files[module_name(path)] = path
    file_graph: dict[str, set[str]] = {name: set() for name in files}
    folder_graph: dict[str, set[str]] = {folder_name(name): set() for name in files}
    for name, path in files.items():
        folder = folder_name(name)
        for import_name in imports(path):
            # `from a.b import c` imports the module a.b.c, or c of the module a.b.
            imported_module = import_name if import_name in files else import_name.rpartition(".")[0]
            if imported_module in files and imported_module != name:
                file_graph[name].add(imported_module)
                if folder_name(imported_module) != folder:
                    folder_graph[folder].add(folder_name(imported_module))
    TopologicalSorter(file_graph).prepare()  # CycleError names the circle
    TopologicalSorter(folder_graph).prepare()


def is_allowed(program: str, room: str, imported_program: str, imported_room: str) -> bool:
    """True if a module of a room may import from the other room."""
    if program != imported_program:
        return program == "baselines" and imported_room in SHARED
    if room in ABOVE_ALL[program] or room == imported_room:
        return True
    floors = FLOORS[program]
    return floors.get(imported_room, 99) < floors[room]


def test_every_room_stands_on_a_floor() -> None:
    for program, floors in FLOORS.items():
        rooms = {room_of(path) for path in modules_of(program)}
        assert rooms == set(floors) | ABOVE_ALL[program]


def test_imports_go_down() -> None:
    used_exceptions = set()
    for program in FLOORS:
        for path in modules_of(program):
            for name in imports(path):
                imported_program, _, name_inside = name.partition(".")
                if imported_program not in FLOORS:
                    continue
                imported_room = name_inside.partition(".")[0]
                if is_allowed(program, room_of(path), imported_program, imported_room):
                    continue
                exception = path.relative_to(ROOT).as_posix(), f"{imported_program}.{imported_room}"
                assert exception in EXCEPTIONS, f"{exception[0]} imports {name}"
                used_exceptions.add(exception)
    assert used_exceptions == set(EXCEPTIONS)


def test_a_module_has_a_name_of_its_own() -> None:
    name_counts = Counter(path.name for program in FLOORS for path in modules_of(program))
    # Every package has a file of these names.
    del name_counts["__init__.py"], name_counts["__main__.py"]
    assert [name for name, count in name_counts.items() if count > 1] == []


def test_the_modules_that_are_shipped_stand_alone() -> None:
    for name in ("dureader_retrieval.py", "dureader_retrieval_ir.py"):
        packages = {import_name.split(".")[0] for import_name in imports(ROOT / name)}
        assert packages.isdisjoint({"builders", "baselines"}), name


def test_a_library_that_is_missing_has_an_extra() -> None:
    """Every library that the programs import is in the table from which an error takes its advice."""
    allowed_packages = set(" ".join(EXTRAS.values()).split())
    allowed_packages |= sys.stdlib_module_names
    allowed_packages |= FLOORS.keys()
    for program in FLOORS:
        for path in modules_of(program):
            assert {name.partition(".")[0] for name in imports(path)} <= allowed_packages, path


# Modules that decode JSON besides core/typed.py, and the origin of this JSON.
DECODERS = {
    "builders/official/official_formats.py": "rows",
    "builders/release/rows.py": "rows",
    "builders/release/write.py": "written by the same build",
    "baselines/retrieve/models.py": "a tokenizer's own words",
    "baselines/retrieve/service_replies.py": "NaN in answers of services, which is no JSON",
    "baselines/retrieve/official_input.py": "a tokenizer's own words",
}


def test_json_of_others_is_decoded_in_one_place() -> None:
    decoder_call = re.compile(r"json\.loads?\(|msgspec\.json\.(decode|Decoder)\(")
    decoding_files = set()
    for program in ("builders", "baselines"):
        for path in modules_of(program):
            if decoder_call.search(path.read_text(encoding="utf-8")):
                decoding_files.add(path.relative_to(ROOT).as_posix())
    assert decoding_files == {"builders/core/typed.py", *DECODERS}


def test_every_rule_stands_where_contributing_says() -> None:
    """Each row of the table names functions, classes or constants: `builders/core/paths.py`: `kind_of`, `real_path`."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.split("## The rules", 1)[1].split("##", 1)[0]
    rows = [line for line in section.splitlines() if line.startswith("|")][2:]  # without the two lines of the heading
    assert rows
    for row in rows:
        references = re.findall(r"`((?:builders|baselines)/[a-z0-9_/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", row)
        assert references, row
        for path, names in references:
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            for name in re.findall(r"`([\w.]+)`", names):
                operator.attrgetter(name)(module)  # AttributeError if the module lacks the name


def test_the_page_of_the_tests_lists_every_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/file_list.py"
    for path in PAGE.parent.rglob("*.py"):
        assert first_sentence(path), path
