"""Scenes of coloured shapes on a 3×3 grid: generated, described and drawn with numpy alone.

A scene is ten bytes: its background, then its nine cells from the top left, each empty (0) or one
of 240 objects (12 shapes, 10 colours, 2 sizes). Pictures are drawn from these bytes at any
resolution, so that thousands of scenes take little space.
"""

import os
import struct
import zlib
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io import write_whole

Bytes: TypeAlias = npt.NDArray[np.uint8]
Floats: TypeAlias = npt.NDArray[np.float64]
_Inside: TypeAlias = Callable[[Floats, Floats], npt.NDArray[np.bool_]]

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
_RESOLUTIONS = range(12, 2049)
_REPEATS = 1000  # repeated scenes in a row, after which generation gives up


class Thing(NamedTuple):
    """One coloured shape of a scene.

    Attributes
    ----------
    shape, colour, size : str
        From `SHAPES`, `COLOURS` and `SIZES`.
    cell : int
        0 to 8, row by row from the top left; `PLACES` names them.
    """

    shape: str
    colour: str
    size: str
    cell: int


def make_scenes(
    n_scenes: int,
    *,
    seed: int = 0,
    shapes: Sequence[str] | None = None,
    colours: Sequence[str] | None = None,
    counts: Sequence[int] = (2, 3, 4),
) -> Bytes:
    """Generate random scenes, all different.

    Parameters
    ----------
    n_scenes : int
    seed : int
        Random seed.
    shapes, colours : sequence of str, optional
        Use only these, for another distribution of scenes.
    counts : sequence of int
        Numbers of objects that a scene may have.

    Returns
    -------
    ndarray, shape (n_scenes, 10), uint8

    Examples
    --------
    >>> make_scenes(3).shape
    (3, 10)
    """
    rng = np.random.default_rng(seed)
    kinds = _numbers(shapes, SHAPES, "shape"), _numbers(colours, COLOURS, "colour")
    made: dict[bytes, Bytes] = {}
    repeats = 0
    while len(made) < n_scenes:
        scene = np.zeros(10, dtype=np.uint8)
        scene[0] = rng.integers(len(BACKGROUNDS))
        cells = rng.choice(9, size=rng.choice(counts), replace=False)
        shape, colour = (rng.choice(allowed, size=len(cells)) for allowed in kinds)
        size = rng.integers(len(SIZES), size=len(cells))
        scene[1 + cells] = 1 + (shape * len(COLOURS) + colour) * len(SIZES) + size
        is_new = made.setdefault(scene.tobytes(), scene) is scene
        repeats = 0 if is_new else repeats + 1
        if repeats == _REPEATS:
            raise NNNormError(f"there are not {n_scenes:,} different scenes of this kind")
    return np.stack(list(made.values())) if made else np.zeros((0, 10), dtype=np.uint8)


def read_scene(scene: npt.ArrayLike) -> tuple[str, tuple[Thing, ...]]:
    """Return the background of a scene, and its objects from top left to bottom right.

    Examples
    --------
    >>> read_scene([1, 0, 0, 0, 0, 84, 0, 0, 0, 0])
    ('sand', (Thing(shape='star', colour='orange', size='big', cell=4),))
    """
    codes = _check_scene(scene)
    things = []
    for cell, code in enumerate(codes[1:]):
        if code:
            kind, size = divmod(int(code) - 1, len(SIZES))
            shape, colour = divmod(kind, len(COLOURS))
            things.append(Thing(tuple(SHAPES)[shape], tuple(COLOURS)[colour], SIZES[size], cell))
    return tuple(BACKGROUNDS)[codes[0]], tuple(things)


def describe_scene(scene: npt.ArrayLike) -> str:
    """Describe everything in a scene in words.

    Examples
    --------
    >>> describe_scene([1, 0, 0, 0, 0, 84, 0, 0, 0, 0])
    'big orange star (middle), on sand'
    """
    background, things = read_scene(scene)
    listed = [f"{t.size} {t.colour} {t.shape} ({PLACES[t.cell]})" for t in things]
    return f"{', '.join(listed)}, on {background}"


def draw_scene(scene: npt.ArrayLike, resolution: int = 96) -> Bytes:
    """Draw a scene with smooth edges at any resolution.

    Parameters
    ----------
    scene : array, shape (10,), uint8
    resolution : int
        Pixels per side, 12 to 2,048.

    Returns
    -------
    ndarray, shape (resolution, resolution, 3), uint8

    Examples
    --------
    >>> draw_scene([0, 1, 0, 0, 0, 0, 0, 0, 0, 0], 24).shape
    (24, 24, 3)
    """
    if isinstance(resolution, bool) or resolution not in _RESOLUTIONS:
        raise NNNormError(f"resolution must be a whole number from 12 to 2048; got {resolution!r}")
    background, things = read_scene(scene)
    picture = np.empty((resolution, resolution, 3))
    picture[:] = BACKGROUNDS[background]
    for thing in things:
        window, (shadow, rim, body) = _stencil(thing, int(resolution))
        part = picture[window]
        part *= 1 - _SHADOW * shadow
        part += rim * (255 - part)
        part += body * (np.array(COLOURS[thing.colour], dtype=np.float64) - part)
    return np.rint(picture).astype(np.uint8)


def encode_png(pixels: npt.ArrayLike) -> bytes:
    """Encode a picture as PNG.

    Parameters
    ----------
    pixels : array, shape (height, width, 3), uint8

    Returns
    -------
    bytes

    Examples
    --------
    >>> encode_png(draw_scene([0, 1, 0, 0, 0, 0, 0, 0, 0, 0]))[1:4]
    b'PNG'
    """
    array = np.asarray(pixels)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3 or array.size == 0:
        raise NNNormError(
            f"a picture must be uint8 (height, width, 3); got {array.dtype} {array.shape}"
        )
    height, width = array.shape[:2]
    # Each row is stored as its difference to the row above (filter 2): flat areas become zeros.
    rows = np.full((height, 1 + 3 * width), 2, dtype=np.uint8)
    flat = array.reshape(height, -1)
    rows[:, 1:] = np.diff(flat, axis=0, prepend=np.zeros((1, 3 * width), dtype=np.uint8))

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(rows.tobytes(), 9))
        + chunk(b"IEND", b"")
    )


def write_png(path: str | os.PathLike[str], pixels: npt.ArrayLike) -> None:
    """Write a picture as PNG, whole or not at all.

    Parameters
    ----------
    path : str or PathLike
    pixels : array, shape (height, width, 3), uint8

    Examples
    --------
    >>> import tempfile, pathlib
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "scene.png"
    >>> write_png(path, draw_scene([0, 1, 0, 0, 0, 0, 0, 0, 0, 0]))
    >>> path.read_bytes()[1:4]
    b'PNG'
    """
    content = encode_png(pixels)
    write_whole(path, lambda file: file.write(content))


def _numbers(names: Sequence[str] | None, known: Any, what: str) -> npt.NDArray[np.int64]:
    known = list(known)
    if unknown := [name for name in names or [] if name not in known]:
        raise NNNormError(f"{unknown[0]!r} is no {what}; there are {', '.join(known)}")
    return np.array([known.index(name) for name in names or known])


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


# --- stencils ------------------------------------------------------------------------------------


def _stencil(
    thing: Thing, resolution: int
) -> tuple[tuple[slice, slice], tuple[Floats, Floats, Floats]]:
    """Return the window of an object's cell, and the object's layers in it."""
    spans = []
    for place in divmod(thing.cell, 3):
        start, stop = round(place * resolution / 3), round((place + 1) * resolution / 3)
        spans.append((start, stop - start, (place + 0.5) * resolution / 3 - start))
    (top, height, middle_y), (left, width, middle_x) = spans
    window = slice(top, top + height), slice(left, left + width)
    # Where three divides the resolution, all nine cells share their layers.
    middle = round(middle_y, 6), round(middle_x, 6)
    return window, _layers(thing.shape, thing.size, height, width, *middle, resolution / 3)


@lru_cache(maxsize=1024)
def _layers(
    shape: str, size: str, height: int, width: int, middle_y: float, middle_x: float, cell: float
) -> tuple[Floats, Floats, Floats]:
    """Return the shares of shadow, rim and body in each pixel, from many samples per pixel."""
    step = 1 / _FINER
    unit = cell * _RADIUS[size]
    x = (np.arange(0, width, step) + step / 2 - middle_x) / unit
    y = (middle_y - np.arange(0, height, step) - step / 2) / unit
    across, up = np.meshgrid(x, y)
    inside = SHAPES[shape]
    rim = _RIM / _RADIUS[size]
    masks = (
        _widen(inside, across - 0.4 * rim, up + 0.9 * rim, rim),
        _widen(inside, across, up, rim),
        inside(across, up),
    )
    shares = (m.reshape(height, _FINER, width, _FINER).mean(axis=(1, 3)) for m in masks)
    shadow, border, body = (share[:, :, None] for share in shares)
    return shadow, border, body


def _widen(inside: _Inside, x: Floats, y: Floats, width: float) -> npt.NDArray[np.bool_]:
    """Return the shape widened by `width`, approximated with 24 directions."""
    mask = inside(x, y)
    for turn in np.linspace(0, 2 * np.pi, 24, endpoint=False):
        mask |= inside(x + width * np.cos(turn), y + width * np.sin(turn))
    return mask


# --- shapes: whether a point is inside; x to the right, y up, at most about 1 from the centre ----


def _star(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    y = y + 0.06
    point = 2 * np.pi / 5
    turn = np.abs((np.arctan2(x, y) + point / 2) % point - point / 2)  # from the nearest point
    inner = 0.46
    edge = inner * np.sin(point / 2) / (inner * np.sin(point / 2 - turn) + np.sin(turn))
    return np.hypot(x, y) < 1.05 * edge


def _heart(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    x, y = 1.22 * x, 1.22 * y + 0.12
    return (x**2 + y**2 - 1) ** 3 < x**2 * y**3


def _ring(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    away = np.hypot(x, y)
    return (away < 0.95) & (away > 0.52)


def _cross(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    x, y = np.abs(x), np.abs(y)
    return ((x < 0.3) & (y < 0.92)) | ((y < 0.3) & (x < 0.92))


def _hexagon(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    x, y = np.abs(x), np.abs(y)
    return (y < 0.8) & (np.sqrt(3) * x + y < 1.6)


def _arrow(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    head = (y > 0) & (np.abs(x) + 0.86 * y < 0.82)
    return head | ((np.abs(x) < 0.28) & (y <= 0) & (y > -0.9))


def _drop(x: Floats, y: Floats) -> npt.NDArray[np.bool_]:
    # The round part, and the two tangents that meet above it.
    round_part = np.hypot(x, y + 0.34) < 0.6
    slope = np.sqrt(1.36**2 - 0.6**2) / 0.6
    return round_part | ((y > -0.08) & (slope * np.abs(x) + y < 1.02))


SHAPES: dict[str, _Inside] = {
    "circle": lambda x, y: np.hypot(x, y) < 0.92,
    "square": lambda x, y: (x / 0.82) ** 10 + (y / 0.82) ** 10 < 1,
    "triangle": lambda x, y: (y > -0.72) & (1.8 * np.abs(x) + y < 0.98),
    "diamond": lambda x, y: np.abs(x) / 0.72 + np.abs(y) < 1,
    "star": _star,
    "heart": _heart,
    "ring": _ring,
    "cross": _cross,
    "moon": lambda x, y: (np.hypot(x, y) < 0.95) & (np.hypot(x - 0.48, y - 0.22) > 0.76),
    "hexagon": _hexagon,
    "arrow": _arrow,
    "drop": _drop,
}
