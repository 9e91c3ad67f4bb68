"""Write the lists of files in tests/README.md from the first sentences of the files: ``python tests/file_list.py``."""

import ast
from collections.abc import Iterable
from pathlib import Path

TESTS = Path(__file__).parent
PAGE = TESTS / "README.md"
INTRODUCTION = """\
# Tests

`make test` runs the quick tests, `make test-slow` the slow tests and the fuzzers. One file:
`.venv/bin/python -m pytest -n 0 tests/test_evaluate.py`. One test: add `-k part_of_its_name`.

- A test shows one behaviour that a user relies on. Its data stands in the test, or comes from a helper below.
- `conftest.py` has the fixtures that several files use. `sample_release` is a release of the embedded sample.
  `shared_data` is the folder of real data, `../shared/data`, for example DuReader's demo rows. Without the folder, the
  tests that use it are skipped.
- A test that needs more than about two seconds of a processor belongs to `make test-slow`: by the mark `slow`, or by
  its name in `conftest.py`.
- No test depends on the number of cores, the machine's load or the network. Servers run on loopback.
- `PYTHONPATH=tests python -m pytest -p cpu_seconds` prints the processor time of files and tests.
- `golden.json` and `golden_models.json` hold outputs that must stay, and `command_lines.json` every option. After a
  change on purpose, `python tests/test_golden.py --write`, `python tests/test_golden_models.py --write` or
  `python tests/command_lines.py` writes the file anew.
- `cpu_units/` simulates processors with and without bf16 units (`make test CPU_UNITS=bf16`).
- The files `*-requirements.txt` pin the tools that `make test-tools` installs.

The lists below are written by `python tests/file_list.py` from the first sentence of each file.
"""


def first_sentence(path: Path) -> str:
    """Return the first paragraph of a module's docstring as one line."""
    docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return " ".join(docstring.split("\n\n")[0].split())


def list_of(paths: Iterable[Path]) -> str:
    """Return a Markdown table with a line for each file."""
    table_lines = ["| file | content |", "|---|---|"]
    for path in sorted(paths):
        name = path.relative_to(TESTS).as_posix()
        description = first_sentence(path).replace("|", "\\|")  # a bar would end the cell
        table_lines.append(f"| `{name}` | {description} |")
    return "\n".join(table_lines)


def page() -> str:
    """Return the text of tests/README.md."""
    files = {path for path in TESTS.glob("*.py") if path.name != "conftest.py"}
    test_files = {path for path in files if path.name.startswith("test_")}
    sections = [
        INTRODUCTION,
        f"## Helpers\n\n{list_of(files - test_files)}\n",
        f"## Tests\n\n{list_of(test_files)}\n",
        f"## Fuzzers\n\n{list_of((TESTS / 'fuzz').glob('*.py'))}\n",
    ]
    return "\n".join(sections)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
