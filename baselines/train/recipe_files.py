"""The project's recipe files and their names. This module imports no library, so that ``--help`` is quick."""

import re
from pathlib import Path

RECIPES = Path(__file__).parents[1] / "recipes"


def recipe_names() -> list[str]:
    """Return the names of the project's recipes."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_summary(name: str) -> str:
    """Return the first sentence of the comment at the head of a recipe's file."""
    comment_lines = []
    content = (RECIPES / f"{name}.toml").read_text(encoding="utf-8")
    for line in content.splitlines():
        if not line.startswith("# ") or line.startswith("#   "):
            break  # the values of the recipe, or a command
        comment_lines.append(line.removeprefix("# "))
    comment = " ".join(comment_lines)
    # A sentence ends with a full stop, followed by a space and a capital letter.
    first_sentence, *_ = re.split(r"(?<=\.) (?=[A-Z])", comment)
    return first_sentence.rstrip(":")
