"""Thumbnails of items, created on first request and cached.

The page asks for a picture by the number of its item, never by a path. After all links are
followed, a file must be inside the folder, so a name in a table can't point elsewhere.
"""

import io
import logging
import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias

from nnnorm.datasets import load_shapes
from nnnorm.encoders import open_image
from nnnorm.errors import NNNormError, require

_LOG = logging.getLogger("nnnorm.explore")
# Side of a thumbnail in pixels: a card of the page on a screen of twice the density.
SIZE = 224
# Thumbnails to keep, of some ten kilobytes each.
_MOST_KEPT = 4096
PLACEHOLDER = b"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 96 96" role="img">
<title>This picture can't be shown</title>
<rect width="96" height="96" fill="#8a8f98" opacity=".25"/>
<path d="M30 62 42 46l9 11 7-8 10 13zM38 38a4 4 0 1 1-8 0 4 4 0 0 1 8 0" fill="#8a8f98"/>
<path d="M22 22 74 74" stroke="#8a8f98" stroke-width="4"/></svg>"""


# Returns the thumbnail of an item as PNG or JPEG.
Draw: TypeAlias = Callable[[int], bytes]


def draw_scene(item: int) -> bytes:
    """Draw a scene of the shapes that ship with the package."""
    out = io.BytesIO()
    image = require("PIL.Image", "explore").fromarray(load_shapes().draw(item, 144))
    image.save(out, format="PNG")
    return out.getvalue()


class FolderPictures:
    """Pictures from a folder, one path per item, relative to the folder."""

    def __init__(self, folder: str | os.PathLike[str], paths: Sequence[str | Path]) -> None:
        self._folder, self._paths = os.path.realpath(folder), paths

    def find(self, item: int) -> Path:
        """Return the file of an item, once it is known to be inside the folder."""
        path = os.path.realpath(os.path.join(self._folder, self._paths[item]))
        if os.path.commonpath([path, self._folder]) != self._folder:
            raise NNNormError(
                f"the picture {str(self._paths[item])!r} is outside of {self._folder}; pictures "
                "are shown from that folder only"
            )
        return Path(path)

    def __call__(self, item: int) -> bytes:
        """Open the picture of an item, turn it upright and scale it down."""
        image = require("PIL.ImageOps", "explore").exif_transpose(open_image(self.find(item)))
        image.thumbnail((SIZE, SIZE))
        out = io.BytesIO()
        image.save(out, "JPEG", quality=85)
        return out.getvalue()


class Thumbnails:
    """Thumbnails of a gallery; a broken picture is opened again until it is repaired."""

    def __init__(self, draw: Draw) -> None:
        self._draw = lru_cache(_MOST_KEPT)(draw)  # errors are not kept

    def get(self, item: int) -> bytes | None:
        """Return the thumbnail of an item, or None if its picture is broken."""
        try:
            return self._draw(item)
        except Exception as error:  # Pillow raises many kinds for damaged files
            _LOG.warning("no picture of item %d: %s", item, error or type(error).__name__)
            return None
