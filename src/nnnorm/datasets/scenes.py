"""Scenes of colored shapes on a 3×3 grid: read, described, and drawn with Pillow.

A scene is ten bytes: its background, then its nine cells from the top left, each empty (0) or one
of 240 objects (12 shapes, 10 colours, 2 sizes). Pictures are drawn from these bytes at any
resolution, so that thousands of scenes take little space.
"""

from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require

Bytes: TypeAlias = npt.NDArray[np.uint8]
_Points: TypeAlias = list[tuple[float, float]]

COLOURS = {
    "red": (219, 50, 54),
    "orange": (242, 133, 34),
    "yellow": (247, 201, 38),
    "green": (56, 158, 76),
    "turquoise": (40, 186, 184),
    "blue": (45, 106, 210),
    "purple": (128, 72, 180),
    "pink": (240, 128, 176),
    "brown": (130, 84, 52),
    "grey": (128, 134, 142),
}
BACKGROUNDS = {
    "white": (250, 250, 248),
    "sand": (238, 222, 190),
    "mint": (198, 229, 212),
    "navy": (38, 50, 84),
}
SIZES = ("small", "big")
PLACES = (
    *("top left", "top", "top right"),
    *("left", "middle", "right"),
    *("bottom left", "bottom", "bottom right"),
)

_RADIUS = {"small": 0.27, "big": 0.405}  # of a cell
_RIM = 0.05  # white rim around every object, visible on any background
_SHADOW = 0.22
_FINER = 4  # samples per pixel and side


class Thing(NamedTuple):
    """One coloured shape of a scene."""

    shape: str
    colour: str
    size: str
    cell: int


def read_scene(scene: npt.ArrayLike) -> tuple[str, tuple[Thing, ...]]:
    """Return the background of a scene, and its objects from top left to bottom right."""
    codes = _check_scene(scene)
    things = []
    for cell, code in enumerate(codes[1:]):
        if code:
            kind, size = divmod(int(code) - 1, len(SIZES))
            shape, colour = divmod(kind, len(COLOURS))
            things.append(Thing(tuple(SHAPES)[shape], tuple(COLOURS)[colour], SIZES[size], cell))
    return tuple(BACKGROUNDS)[codes[0]], tuple(things)


def describe_scene(scene: npt.ArrayLike) -> str:
    """Describe everything in a scene in words."""
    background, things = read_scene(scene)
    listed = [f"{t.size} {t.colour} {t.shape} ({PLACES[t.cell]})" for t in things]
    return f"{', '.join(listed)}, on {background}"


def draw_scene(scene: npt.ArrayLike, resolution: int = 96) -> Bytes:
    """Draw a scene with smooth edges at any resolution, with Pillow."""
    if isinstance(resolution, bool) or resolution not in range(12, 2049):
        raise NNNormError(f"resolution must be a whole number from 12 to 2048; got {resolution!r}")
    background, things = read_scene(scene)
    image = require("PIL.Image", "images")
    picture = image.new("RGB", (resolution, resolution), BACKGROUNDS[background])
    edges = [round(place * resolution / 3) for place in range(4)]
    for thing in things:
        row, column = divmod(thing.cell, 3)
        corner = edges[column], edges[row]
        size = edges[column + 1] - edges[column], edges[row + 1] - edges[row]
        shadow, rim, body = _draw_masks(thing.shape, thing.size, size)
        picture.paste((0, 0, 0), corner, shadow)
        picture.paste((255, 255, 255), corner, rim)
        picture.paste(COLOURS[thing.colour], corner, body)
    return np.asarray(picture)


@lru_cache(maxsize=1024)
def _draw_masks(shape: str, size: str, pixels: tuple[int, int]) -> tuple[Any, Any, Any]:
    """Return the shares of shadow, rim and body in each pixel of a cell."""
    image, draw, chops, filters = (
        require(f"PIL.{name}", "images")
        for name in ("Image", "ImageDraw", "ImageChops", "ImageFilter")
    )
    side = _FINER * max(pixels)
    unit, rim = side * _RADIUS[size], max(1, round(side * _RIM))
    body = image.new("L", (side, side))
    for sign, points in SHAPES[shape]:
        placed = [(side / 2 + unit * x, side / 2 - unit * y) for x, y in points]
        draw.Draw(body).polygon(placed, fill=255 if sign > 0 else 0)
    around = body.filter(filters.MaxFilter(2 * rim + 1))
    shadow = chops.offset(around, round(0.4 * rim), round(0.9 * rim))
    shadow = shadow.point(lambda share: round(_SHADOW * share))
    return tuple(mask.resize(pixels, image.Resampling.BOX) for mask in (shadow, around, body))


def _check_scene(scene: npt.ArrayLike) -> npt.NDArray[np.int64]:
    codes = np.asarray(scene)
    if codes.shape != (10,) or codes.dtype.kind not in "iu":
        raise NNNormError(
            "a scene must be ten whole numbers, its background and nine cells; got "
            f"{codes.dtype} {codes.shape}"
        )
    most = len(SHAPES) * len(COLOURS) * len(SIZES)
    if codes.min() < 0 or codes[0] >= len(BACKGROUNDS) or codes.max() > most:
        raise NNNormError(
            f"a scene's background must be below {len(BACKGROUNDS)} and its cells at most {most}; "
            f"got {codes.tolist()}"
        )
    return codes.astype(np.int64)


def _circle(radius: float, x: float = 0.0, y: float = 0.0) -> _Points:
    turns = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    return [(x + radius * np.cos(turn), y + radius * np.sin(turn)) for turn in turns]


def _star() -> _Points:
    turns = np.linspace(0, 2 * np.pi, 10, endpoint=False)
    far = [1.05 if place % 2 == 0 else 0.483 for place in range(10)]
    return [(r * np.sin(t), r * np.cos(t) - 0.06) for r, t in zip(far, turns, strict=True)]


def _heart() -> _Points:
    turns = np.linspace(0, 2 * np.pi, 96, endpoint=False)
    ys = 13 * np.cos(turns) - 5 * np.cos(2 * turns) - 2 * np.cos(3 * turns) - np.cos(4 * turns)
    return [(0.92 * np.sin(t) ** 3, y / 17.5 + 0.08) for t, y in zip(turns, ys, strict=True)]


# Polygons that are filled (1) or cut out (−1), x to the right, y up, at most about 1 from the
# center.
SHAPES: dict[str, list[tuple[int, _Points]]] = {
    "circle": [(1, _circle(0.92))],
    "square": [(1, [(-0.8, -0.8), (0.8, -0.8), (0.8, 0.8), (-0.8, 0.8)])],
    "triangle": [(1, [(-0.944, -0.72), (0.944, -0.72), (0, 0.98)])],
    "diamond": [(1, [(-0.72, 0), (0, -1), (0.72, 0), (0, 1)])],
    "star": [(1, _star())],
    "heart": [(1, _heart())],
    "ring": [(1, _circle(0.95)), (-1, _circle(0.52))],
    "cross": [
        (1, [(-0.3, -0.92), (0.3, -0.92), (0.3, 0.92), (-0.3, 0.92)]),
        (1, [(-0.92, -0.3), (0.92, -0.3), (0.92, 0.3), (-0.92, 0.3)]),
    ],
    "moon": [(1, _circle(0.95)), (-1, _circle(0.76, 0.48, 0.22))],
    "hexagon": [
        (1, [(-0.92, 0), (-0.46, -0.8), (0.46, -0.8), (0.92, 0), (0.46, 0.8), (-0.46, 0.8)])
    ],
    "arrow": [
        (1, [(-0.82, 0), (0.82, 0), (0, 0.953)]),
        (1, [(-0.28, -0.9), (0.28, -0.9), (0.28, 0.05), (-0.28, 0.05)]),
    ],
    "drop": [(1, _circle(0.6, 0, -0.34)), (1, [(-0.54, -0.08), (0.54, -0.08), (0, 1.02)])],
}
