"""The layers of CONTRIBUTING.md: which package may import which."""

import ast
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
        **dict.fromkeys(("store", "sources"), 2),
        "text": 3,
        **dict.fromkeys(("release", "check"), 4),
        **dict.fromkeys(("add", "official", "export", "similar"), 5),
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


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def room_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[1].removesuffix(".py")


def test_neither_files_nor_folders_import_each_other_in_a_circle() -> None:
    """Imports inside functions count, too. A folder is the second part of a module's name."""
    files = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for program in ("builders", "baselines")
        for path in (ROOT / program).rglob("*.py")
    }
    of_files: dict[str, set[str]] = {name: set() for name in files}
    of_folders: dict[str, set[str]] = {".".join(name.split(".")[:2]): set() for name in files}
    for name, path in files.items():
        folder = ".".join(name.split(".")[:2])
        for given in imports(path):
            other = given if given in files else given.rpartition(".")[0]
            if other in files and other != name:
                of_files[name].add(other)
                of_folders[folder] |= {".".join(other.split(".")[:2])} - {folder}
    for graph in (of_files, of_folders):
        TopologicalSorter(graph).prepare()  # CycleError names the circle


def is_allowed(program: str, room: str, other_program: str, other_room: str) -> bool:
    if program != other_program:
        return program == "baselines" and other_room in SHARED
    floors = FLOORS[program]
    return room in ABOVE_ALL[program] or room == other_room or floors.get(other_room, 99) < floors[room]


def test_every_room_stands_on_a_floor() -> None:
    for program, floors in FLOORS.items():
        rooms = {room_of(path) for path in (ROOT / program).rglob("*.py")}
        assert rooms == set(floors) | ABOVE_ALL[program]


def test_imports_go_down() -> None:
    used = set()
    for program in FLOORS:
        for path in (ROOT / program).rglob("*.py"):
            for name in imports(path):
                other_program, _, inside = name.partition(".")
                other_room = inside.partition(".")[0]
                if other_program not in FLOORS or is_allowed(program, room_of(path), other_program, other_room):
                    continue
                exception = path.relative_to(ROOT).as_posix(), f"{other_program}.{other_room}"
                assert exception in EXCEPTIONS, f"{exception[0]} imports {name}"
                used.add(exception)
    assert used == set(EXCEPTIONS)


def test_a_module_has_a_name_of_its_own() -> None:
    modules = [path for program in FLOORS for path in (ROOT / program).rglob("*.py")]
    names = Counter(path.name for path in modules if path.name not in ("__init__.py", "__main__.py"))
    assert [name for name, count in names.items() if count > 1] == []


def test_the_modules_that_are_shipped_stand_alone() -> None:
    for name in ("dureader_retrieval.py", "dureader_retrieval_ir.py"):
        assert not {each.split(".")[0] for each in imports(ROOT / name)} & {"builders", "baselines"}, name


def test_a_library_that_is_missing_has_an_extra() -> None:
    """Every library that the programs import is in the table from which an error takes its advice."""
    libraries = {library for names in EXTRAS.values() for library in names.split()}
    known = {*libraries, *sys.stdlib_module_names, *FLOORS}
    for program in FLOORS:
        for path in (ROOT / program).rglob("*.py"):
            assert {name.partition(".")[0] for name in imports(path)} <= known, path


# Modules that decode JSON besides core/typed.py, and the origin of this JSON.
DECODERS = {
    "builders/official/official_formats.py": "rows",
    "builders/release/rows.py": "rows",
    "builders/release/write.py": "written by the same build",
    "baselines/retrieve/models.py": "a tokenizer's own words",
    "baselines/retrieve/official_input.py": "a tokenizer's own words",
}


def test_json_of_others_is_decoded_in_one_place() -> None:
    files = [path for folder in ("builders", "baselines") for path in (ROOT / folder).rglob("*.py")]
    called = re.compile(r"json\.loads?\(|msgspec\.json\.(decode|Decoder)\(")
    found = {path.relative_to(ROOT).as_posix() for path in files if called.search(path.read_text(encoding="utf-8"))}
    assert found == {*DECODERS, "builders/core/typed.py"}


def test_every_rule_stands_where_contributing_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("## The rules", 1)[1].split("##", 1)[0]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert rows
    for row in rows:
        found = re.findall(r"`((?:builders|baselines)/[a-z0-9_/]+\.py)`: ((?:`[\w.]+`(?:, )?)+)", row)
        assert found, row
        for path, names in found:
            module = importlib.import_module(path.removesuffix(".py").replace("/", "."))
            for name in re.findall(r"`([\w.]+)`", names):
                operator.attrgetter(name)(module)


def test_the_page_of_the_tests_lists_every_file() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), "run python tests/file_list.py"
    assert all(first_sentence(path) for path in PAGE.parent.rglob("*.py"))
