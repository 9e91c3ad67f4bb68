"""Names of systems in the pictures of `compare` and `evaluate`, and the look that both pictures share."""

import os.path
from collections.abc import Iterable, Sequence
from typing import Any

from builders.core.errors import make_visible

FONT_SIZE = 8  # points
BLACK = "#000000"
GREY = "#8c8c8c"
PALE = "#e0e0e0"
_LONGEST_NAME = 44  # characters of a label
_NAME_START = 16  # characters of a long name before the ellipsis
_INCHES_PER_CHARACTER = 0.075  # of a Latin letter of this size
_WIDE = 0x2E80  # from here on, characters are about twice as wide as Latin letters


def shorten_name(name: str) -> str:
    """Return a name as one line of at most 44 characters. A long name keeps its start and its end."""
    visible_name = make_visible(name)
    if len(visible_name) <= _LONGEST_NAME:
        return visible_name
    end_length = _LONGEST_NAME - _NAME_START - 1
    return f"{visible_name[:_NAME_START]}…{visible_name[-end_length:]}"


def shorten_names(names: Sequence[str]) -> list[str]:
    """Return a label for each name (:func:`shorten_name`). Different names have different labels.

    If two names would have the same label, the folders that all names share are cut off. If labels are still the same,
    the numbers of the names are put before them, from 1.
    """
    if _have_equal_labels(names):
        shared_characters = os.path.commonprefix(list(names))  # noqa: RUF071  # names of systems need not be paths
        folder_end = shared_characters.rfind("/") + 1
        names = [f"…/{name[folder_end:]}" for name in names]
    labels = [shorten_name(name) for name in names]
    if _have_equal_labels(names):
        labels = [f"{number}  {label}" for number, label in enumerate(labels, start=1)]
    return labels


def _have_equal_labels(names: Sequence[str]) -> bool:
    """True if two different names have the same label."""
    return len({shorten_name(name) for name in names}) < len(set(names))


def label_width(labels: Iterable[str]) -> float:
    """Return the width of the widest label in inches, about."""
    widths = [0]
    for label in labels:
        widths.append(sum(2 if ord(character) >= _WIDE else 1 for character in label))
    return _INCHES_PER_CHARACTER * max(widths)


def set_row_labels(panel: Any, labels: Sequence[str]) -> None:
    """Name the rows of a panel from top to bottom, and hide its frame except the lower axis.

    ``panel`` is an ``Axes`` of matplotlib. Row i is at the height i, and row 0 is the upper one.
    """
    panel.set_yticks(range(len(labels)), labels, fontsize=FONT_SIZE)
    panel.set_ylim(len(labels) - 0.4, -0.6)
    panel.tick_params(axis="y", length=0)
    panel.tick_params(axis="x", labelsize=FONT_SIZE)
    panel.spines[["top", "right", "left"]].set_visible(False)
