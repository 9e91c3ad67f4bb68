"""The project's recipe files and their names. This module imports no library, so that ``--help`` is quick."""

from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"


def names() -> list[str]:
    """Return the names of the project's recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))
