"""Save plots for the docs as small PNG files, light and dark.

`docs/hooks/pages.py` shows `name-dark.png` instead of `name.png` in the dark scheme.
"""

import colorsys
import io
from pathlib import Path
from typing import Any

from nnnorm.files import write_whole

DARK = "-dark"
# The lightness of a dark page, of its brightest text, and of its colors.
_PAGE, _INK = 0.14, 0.93
_N_COLOURS = 128


def save_both(figure: Any, path: Path, dpi: int = 100) -> None:
    """Save a figure for light pages at `path`, and one for dark pages next to it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    _save(figure, path, dpi)
    darken(figure)
    _save(figure, path.with_stem(path.stem + DARK), dpi)


def darken(figure: Any) -> None:
    """Change the colors of all parts of a figure for a dark page."""
    from matplotlib.collections import Collection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch
    from matplotlib.text import Text

    figure.canvas.draw()  # matplotlib creates ticks at the first drawing
    parts = {
        Line2D: ("color", "markerfacecolor", "markeredgecolor"),
        Patch: ("facecolor", "edgecolor"),
        Collection: ("facecolor", "edgecolor"),
        Text: ("color",),
    }
    for kind, names in parts.items():
        for artist in figure.findobj(kind):
            found = {name: getattr(artist, f"get_{name}")() for name in names}
            for name, colour in found.items():
                getattr(artist, f"set_{name}")(_dark(colour))


def _dark(colour: Any) -> Any:
    """Return a color of the same hue for a dark page, with inverted lightness."""
    from matplotlib.colors import to_rgba_array

    if isinstance(colour, str) and colour in ("none", "auto"):
        return colour
    rows = to_rgba_array(colour)
    for row in rows:
        hue, light, strength = colorsys.rgb_to_hls(*row[:3])
        if strength < 0.15 or light > 0.85:  # grays, and pale backgrounds of any hue
            light, strength = _INK - (_INK - _PAGE) * light, 0.5 * strength
        else:
            light = 0.42 + 0.45 * light
        row[:3] = colorsys.hls_to_rgb(hue if strength else 0.625, light, strength or 0.08)
    return rows if len(rows) != 1 else tuple(rows[0])


def _save(figure: Any, path: Path, dpi: int) -> None:
    """Save a PNG with few colors, which is a third of the size."""
    from PIL import Image

    drawn, small = io.BytesIO(), io.BytesIO()
    figure.savefig(drawn, format="png", dpi=dpi, facecolor=figure.get_facecolor())
    picture = Image.open(drawn).convert("RGB").quantize(_N_COLOURS, dither=Image.Dither.NONE)
    picture.save(small, format="png", optimize=True)
    write_whole(path, lambda file: file.write(small.getvalue()))
