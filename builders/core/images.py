"""Images of matplotlib. The same version of matplotlib writes the same bytes for the same drawing."""

import io
from collections.abc import Callable
from typing import Any

# Metadata that would change the bytes.
_OMITTED = {"png": ["Software"], "svg": ["Date", "Creator", "Format", "Type"]}


def draw_image(draw: Callable[[Any], None], form: str, *, width: float, height: float, name: str = "image") -> bytes:
    """Draw an image and return its bytes.

    Args:
        draw: draws into a ``matplotlib.figure.Figure``.
        form: png or svg.
        width, height: size in inches.
        name: salt of the ids in an SVG, which should differ between the images of a page.
    """
    # pyplot is not used, because pyplot has global state and may need a display.
    import matplotlib
    from matplotlib.figure import Figure

    content = io.BytesIO()
    # Without a salt, the ids in an SVG are random. The font type "none" keeps text as text.
    with matplotlib.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        figure = Figure(figsize=(width, height), dpi=110, layout="constrained")
        draw(figure)
        figure.savefig(content, format=form, metadata=dict.fromkeys(_OMITTED[form]))
    return content.getvalue()
