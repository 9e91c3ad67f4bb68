"""Images of matplotlib. The same version of matplotlib writes the same bytes for the same drawing."""

import io
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from builders.core.errors import UsageError
from builders.core.paths import check_file
from builders.core.write_files import write_bytes

_DOTS_PER_INCH = 110
# Metadata that would change the bytes.
_OMITTED_METADATA = {"png": ["Software"], "svg": ["Date", "Creator", "Format", "Type"]}


def draw_image(
    draw_figure: Callable[[Any], None], image_format: str, *, width: float, height: float, name: str = "image"
) -> bytes:
    """Draw an image and return its bytes.

    Args:
        draw_figure: draws into a ``matplotlib.figure.Figure``.
        image_format: png or svg.
        width, height: size in inches.
        name: salt of the ids in an SVG, which should differ between the images of a page.
    """
    return render_figure(make_figure(draw_figure, width=width, height=height), image_format, name=name)


def make_figure(
    draw_figure: Callable[[Any], None], *, width: float, height: float, families: Sequence[str] = ()
) -> Any:
    """Return a ``matplotlib.figure.Figure`` into which ``draw_figure`` has drawn. ``width`` and ``height`` are inches.

    ``families`` are the names of the texts' fonts (:mod:`.image_fonts`), by default matplotlib's own font.
    """
    # pyplot is not used, because pyplot has global state and may need a display.
    import matplotlib
    from matplotlib.figure import Figure

    settings: dict[str, Any] = {"text.parse_math": False}  # a $ in a name is no formula
    if families:
        settings["font.family"] = list(families)
    with matplotlib.rc_context(settings):
        figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")
        draw_figure(figure)
    return figure


def render_figure(figure: Any, image_format: str, *, name: str = "image") -> bytes:
    """Return a figure as the bytes of an image. ``image_format`` is png or svg.

    ``name`` is the salt of the ids in an SVG, which should differ between the images of a page.
    """
    import matplotlib

    image_file = io.BytesIO()
    omitted_metadata = dict.fromkeys(_OMITTED_METADATA[image_format])
    # Without a salt, the ids in an SVG are random. The font type "none" keeps text as text.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure.savefig(image_file, format=image_format, metadata=omitted_metadata)
    return image_file.getvalue()


def image_format_of(path: Path) -> str:
    """Return the format of an image file, png or svg, by the suffix of its name.

    Raises :class:`UsageError` for another suffix, and :class:`InputError` if the file cannot be written.
    """
    image_format = path.suffix.lower().removeprefix(".")
    if image_format not in _OMITTED_METADATA:
        raise UsageError(f"{path}: expected a name that ends in .png or .svg")
    check_file(path)
    return image_format


def write_figure(figure: Any, path: Path) -> None:
    """Write a figure as PNG or SVG, by the suffix of the file's name."""
    write_bytes(path, render_figure(figure, image_format_of(path)))
