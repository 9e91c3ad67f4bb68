"""Fonts of an image: an installed font for the characters that matplotlib's own font lacks, such as Chinese."""

import contextlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from builders.core.errors import log

_OWN_FONT = "DejaVu Sans"  # comes with matplotlib
# Sans-serif fonts with simplified Chinese on Linux, Windows and macOS, the preferred fonts first.
_CHINESE_FONTS = (
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "Source Han Sans CN",
    "PingFang SC",
    "Hiragino Sans GB",
    "Heiti SC",
    "STHeiti",
    "Microsoft YaHei",
    "SimHei",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Noto Sans CJK JP",
    "Arial Unicode MS",
)
# Fonts for debugging, on macOS and in matplotlib, which draw a box for every character of Unicode.
_BOX_FONTS = re.compile(r"\.?last ?resort", re.IGNORECASE)
_SHOWN_CHARACTERS = 5  # in the log


@dataclass(frozen=True)
class ImageFonts:
    """The fonts of an image.

    Attributes:
        families: names of fonts. A character is drawn in the first font that has the character.
        missing: characters that no installed font has.
    """

    families: tuple[str, ...] = (_OWN_FONT,)
    missing: frozenset[str] = frozenset()

    def drawable(self, text: str) -> str:
        """Return the text with an ellipsis in place of characters that would be drawn as boxes."""
        if not self.missing:
            return text
        characters = re.escape("".join(sorted(self.missing)))
        return re.sub(f"[{characters}]+", "…", text)


def choose_fonts(texts: Iterable[str]) -> ImageFonts:
    """Return the fonts for texts. If no installed font has all of their characters, the log names some characters."""
    from matplotlib import font_manager

    needed_characters = set().union(*texts)
    own_entry = next(entry for entry in font_manager.fontManager.ttflist if entry.name == _OWN_FONT)
    missing = _missing_characters(own_entry.fname, needed_characters)
    if not missing:
        return ImageFonts()

    # The font that lacks the fewest characters, of equal fonts the first.
    family = ""
    for candidate, font_path in _candidates():
        still_missing = _missing_characters(font_path, missing)
        if len(still_missing) < len(missing):
            family, missing = candidate, still_missing
        if not missing:
            break
    families = (_OWN_FONT, family) if family else (_OWN_FONT,)
    if missing:
        examples = "".join(sorted(missing)[:_SHOWN_CHARACTERS])
        log.warning(
            "the image has … in place of %d characters (%s), because no installed font has them; install a Chinese "
            "font, for example Noto Sans CJK SC",
            len(missing),
            examples,
        )
    return ImageFonts(families, frozenset(missing))


def _candidates() -> Iterator[tuple[str, Any]]:
    """Yield the names and files of installed fonts: the preferred fonts, and then all others by name."""
    font_paths = _installed_fonts()
    other_families = sorted(font_paths.keys() - set(_CHINESE_FONTS))
    for family in (*_CHINESE_FONTS, *other_families):
        if family in font_paths:
            yield family, font_paths[family]


def _installed_fonts() -> dict[str, Any]:
    """Return a file of each font family, except :data:`_BOX_FONTS`.

    Fonts that were installed after matplotlib's first use are added.
    """
    from matplotlib import font_manager

    # matplotlib caches its list of fonts, and does not notice new files.
    listed_paths = {str(entry.fname) for entry in font_manager.fontManager.ttflist}
    for path in sorted(map(str, font_manager.findSystemFonts())):
        if path not in listed_paths:
            # A damaged file is no reason to draw nothing.
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                font_manager.fontManager.addfont(path)
    font_paths: dict[str, Any] = {}
    for entry in font_manager.fontManager.ttflist:
        if not _BOX_FONTS.match(entry.name):
            font_paths.setdefault(entry.name, entry.fname)
    return font_paths


def _missing_characters(font_path: Any, characters: Iterable[str]) -> set[str]:
    """Return the characters that a font lacks. All characters are missing in a font that cannot be read."""
    from matplotlib import font_manager

    try:
        font = font_manager.get_font(font_path)
    except (OSError, RuntimeError):
        return set(characters)
    return {character for character in characters if not font.get_char_index(ord(character))}
