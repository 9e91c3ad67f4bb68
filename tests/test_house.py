"""The layers of CONTRIBUTING.md: which package may import which."""

import ast
import importlib
import operator
import re
from collections.abc import Iterator
from graphlib import TopologicalSorter
from pathlib import Path

from commands import ROOT

FLOORS = {
    "core": 1,
    **dict.fromkeys(("store", "sources"), 2),
    "text": 3,
    **dict.fromkeys(("release", "check"), 4),
    **dict.fromkeys(("add", "official", "export", "similar"), 5),
    "annotate": 6,
    "publish": 7,
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


def test_every_room_of_builders_stands_on_a_floor_and_imports_go_down() -> None:
    paths = [*(ROOT / "builders").rglob("*.py")]
    assert {room_of(path) for path in paths} - {"__init__", "__main__"} == set(FLOORS)
    for path in paths:
        above = [name.split(".")[1] for name in imports(path) if name.startswith("builders.")]
        room = room_of(path)
        for other in above if room in FLOORS else []:
            assert other == room or FLOORS[other] < FLOORS[room], f"{path.relative_to(ROOT)} imports {other}"


def test_builders_know_nothing_of_baselines() -> None:
    for path in (ROOT / "builders").rglob("*.py"):
        assert not [name for name in imports(path) if name.split(".")[0] == "baselines"], path


def test_the_modules_that_are_shipped_stand_alone() -> None:
    for name in ("dureader_retrieval.py", "dureader_retrieval_ir.py"):
        assert not {each.split(".")[0] for each in imports(ROOT / name)} & {"builders", "baselines"}, name


# Modules that decode JSON besides core/typed.py, and the origin of this JSON.
DECODERS = {
    "builders/official/formats.py": "rows",
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
