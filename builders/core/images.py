"""Images of matplotlib. The same version of matplotlib writes the same bytes for the same drawing."""

import io
from collections.abc import Callable
from typing import Any

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
    # pyplot is not used, because pyplot has global state and may need a display.
    import matplotlib
    from matplotlib.figure import Figure

    image_file = io.BytesIO()
    omitted_metadata = dict.fromkeys(_OMITTED_METADATA[image_format])
    # Without a salt, the ids in an SVG are random. The font type "none" keeps text as text.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), dpi=_DOTS_PER_INCH, layout="constrained")
        draw_figure(figure)
        figure.savefig(image_file, format=image_format, metadata=omitted_metadata)
    return image_file.getvalue()
