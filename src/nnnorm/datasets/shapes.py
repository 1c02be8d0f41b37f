"""A small image–text search task with hubs that ships with the package.

A dual encoder was trained on drawn scenes and their captions (`examples/shapes/build.py` rebuilds
it). Pictures are stored as embeddings in float16, scenes as ten bytes, captions as text. The text
tower needs only numpy. It encodes the captions during loading, and new queries.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import FloatArray, IntArray
from nnnorm.errors import NNNormError, require
from nnnorm.scoring import one_blas_thread

Doubles: TypeAlias = npt.NDArray[np.float64]
Scenes: TypeAlias = npt.NDArray[np.uint8]
_Points: TypeAlias = list[tuple[float, float]]
_FILE = Path(__file__).with_name("shapes.npz")
_TEXTS_AT_ONCE = 256  # so that sums stay in the cache
_CAPTIONS_OF = {
    "captions": "queries",
    "validation_captions": "validation_queries",
    "reference_captions": "references",
    "other_captions": "other_references",
}
# Words that word pairs skip.
_LIGHT = frozenset(["a", "an", "the", "is", "of", "to", "at", "in", "on", "there", "with", "it"])


def split_words(text: str) -> list[str]:
    """Split a text into its words, in lower case."""
    return re.findall(r"[^\W_]+", text.lower())


def word_pairs(words: Sequence[str]) -> list[str]:
    """Pair neighboring words, skipping articles and other light words."""
    heavy = [word for word in words if word not in _LIGHT]
    return [f"{first} {second}" for first, second in pairwise(heavy)]


@dataclass(frozen=True, eq=False)
class TextTower:
    """A text encoder: vectors of words and word pairs are summed and passed through two layers.

    The layers compute in float64, so every processor gives the same embeddings in float16.
    """

    words: tuple[str, ...]
    pairs: tuple[str, ...]
    features: FloatArray = field(repr=False)
    bias: Doubles = field(repr=False)
    middle: Doubles = field(repr=False)
    middle_bias: Doubles = field(repr=False)
    last: Doubles = field(repr=False)
    last_bias: Doubles = field(repr=False)

    @one_blas_thread()
    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Return the unit vectors of texts; see `Shapes.encode_texts`."""
        is_list = not isinstance(texts, str) and all(isinstance(text, str) for text in texts)
        if not is_list or len(texts) == 0:
            expected = "texts must be a list of strings, such as ['a red star']"
            raise NNNormError(f"{expected}; got {texts!r}")
        numbers = {name: place for place, name in enumerate((*self.words, *self.pairs))}
        words = [split_words(text) for text in texts]
        self._check_words(texts, words)
        parts = []
        for start in range(0, len(texts), _TEXTS_AT_ONCE):
            rows = [
                [numbers[name] for name in (*some, *word_pairs(some)) if name in numbers]
                for some in words[start : start + _TEXTS_AT_ONCE]
            ]
            counts = np.array([len(row) for row in rows])
            flat = np.concatenate([np.array(row) for row in rows])
            summed = np.add.reduceat(self.features[flat], np.cumsum(counts) - counts, axis=0)
            hidden = summed / np.sqrt(counts)[:, None] + self.bias
            hidden = np.maximum(hidden, 0) @ self.middle.T + self.middle_bias
            parts.append(np.maximum(hidden, 0) @ self.last.T + self.last_bias)
        vectors = np.concatenate(parts)
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        return vectors.astype(np.float32)

    def _check_words(self, texts: Sequence[str], words: Sequence[Sequence[str]]) -> None:
        if empty := [place for place, some in enumerate(words) if not some]:
            raise NNNormError(
                f"text {empty[0]} has no words: {texts[empty[0]]!r}; "
                "describe a scene, such as 'a red star above a blue ring'"
            )
        known = set(self.words)
        unknown = list(dict.fromkeys(word for some in words for word in some if word not in known))
        if unknown:
            close = [(word, difflib.get_close_matches(word, self.words, n=1)) for word in unknown]
            hints = [f"{w!r} (did you mean {c[0]!r}?)" if c else repr(w) for w, c in close[:10]]
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise NNNormError(
                f"the shapes encoder has a vocabulary of {len(self.words)} words, without "
                f"{', '.join(hints)}{more}; describe shapes, such as 'a red star above a blue ring'"
            )


@dataclass(frozen=True, eq=False, repr=False)
class Shapes:
    """Embeddings of pictures and captions: gallery, queries and past queries."""

    gallery: FloatArray
    queries: FloatArray
    truth: IntArray
    references: FloatArray
    gallery_references: FloatArray
    other_references: FloatArray
    validation_gallery: FloatArray
    validation_queries: FloatArray
    validation_truth: IntArray
    captions: tuple[str, ...]
    validation_captions: tuple[str, ...]
    reference_captions: tuple[str, ...]
    other_captions: tuple[str, ...]
    scenes: Scenes
    validation_scenes: Scenes
    reference_scenes: Scenes
    other_scenes: Scenes
    text_tower: TextTower

    def __repr__(self) -> str:
        return (
            f"Shapes({len(self.gallery):,} items, {len(self.queries):,} queries, "
            f"{len(self.references):,} past queries, dim {self.gallery.shape[1]})"
        )

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary of `encode_texts`."""
        return self.text_tower.words

    def draw(self, item: int, resolution: int = 96) -> npt.NDArray[np.uint8]:
        """Draw a picture of the gallery, ``(resolution, resolution, 3)``, with Pillow."""
        return draw_scene(self.scenes[item], resolution)

    def describe(self, item: int) -> str:
        """Describe a picture of the gallery in words."""
        return describe_scene(self.scenes[item])

    def encode_texts(self, texts: Sequence[str]) -> FloatArray:
        """Encode new queries; needs only numpy."""
        return self.text_tower.encode(texts)


@lru_cache(maxsize=1)
def load_shapes() -> Shapes:
    """Load the shapes: embeddings of pictures and captions, with hubs."""
    with np.load(_FILE, allow_pickle=False) as stored:
        arrays = dict(stored)
    layers = ("bias", "middle", "middle_bias", "last", "last_bias")
    tower = TextTower(
        words=_lines(arrays["tower_words"]),
        pairs=_lines(arrays["tower_pairs"]),
        features=_freeze(arrays["tower_features"].astype(np.float32)),
        **{name: _freeze(arrays[f"tower_{name}"].astype(np.float64)) for name in layers},
    )
    found: dict[str, Any] = {}
    for name in ("gallery", "gallery_references", "validation_gallery"):
        found[name] = _freeze(_unit(arrays[name]))
    for name, of in _CAPTIONS_OF.items():
        captions = found[name] = _lines(arrays[name])
        found[of] = _freeze(_unit(tower.encode(captions).astype(np.float16)))
    for name in ("scenes", "validation_scenes", "reference_scenes", "other_scenes"):
        found[name] = _freeze(arrays[name])
    for name in ("", "validation_"):
        found[f"{name}truth"] = _freeze(np.arange(len(found[f"{name}queries"])) // 5)
    return Shapes(**found, text_tower=tower)


def _lines(stored: npt.NDArray[np.uint8]) -> tuple[str, ...]:
    return tuple(stored.tobytes().decode("ascii").split("\n"))


def _unit(rows: npt.NDArray[np.float16]) -> FloatArray:
    wide = rows.astype(np.float32)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return wide


def _freeze(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array


# --- scenes: ten bytes, the background and nine cells from the top left -------------------------
# A cell is empty (0) or one of 240 objects: 12 shapes, 10 colors, 2 sizes.

COLORS = {
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
    """One colored shape of a scene."""

    shape: str
    color: str
    size: str
    cell: int


def read_scene(scene: npt.ArrayLike) -> tuple[str, tuple[Thing, ...]]:
    """Return the background of a scene, and its objects from top left to bottom right."""
    codes = np.asarray(scene)
    things = []
    for cell, code in enumerate(codes[1:]):
        if code:
            kind, size = divmod(int(code) - 1, len(SIZES))
            shape, color = divmod(kind, len(COLORS))
            things.append(Thing(tuple(SHAPES)[shape], tuple(COLORS)[color], SIZES[size], cell))
    return tuple(BACKGROUNDS)[codes[0]], tuple(things)


def describe_scene(scene: npt.ArrayLike) -> str:
    """Describe everything in a scene in words."""
    background, things = read_scene(scene)
    listed = [f"{t.size} {t.color} {t.shape} ({PLACES[t.cell]})" for t in things]
    return f"{', '.join(listed)}, on {background}"


def draw_scene(scene: npt.ArrayLike, resolution: int = 96) -> Scenes:
    """Draw a scene with smooth edges at any resolution, with Pillow."""
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
        picture.paste(COLORS[thing.color], corner, body)
    return np.asarray(picture)


@lru_cache(maxsize=1024)
def _draw_masks(shape: str, size: str, pixels: tuple[int, int]) -> tuple[Any, ...]:
    """Return the shares of shadow, rim and body in each pixel of a cell."""
    from PIL import Image, ImageChops, ImageDraw, ImageFilter

    side = _FINER * max(pixels)
    unit, rim = side * _RADIUS[size], max(1, round(side * _RIM))
    body = Image.new("L", (side, side))
    for sign, points in SHAPES[shape]:
        placed = [(side / 2 + unit * x, side / 2 - unit * y) for x, y in points]
        ImageDraw.Draw(body).polygon(placed, fill=255 if sign > 0 else 0)
    around = body.filter(ImageFilter.MaxFilter(2 * rim + 1))
    shadow = ImageChops.offset(around, round(0.4 * rim), round(0.9 * rim))
    shadow = shadow.point(lambda share: round(_SHADOW * share))
    return tuple(mask.resize(pixels, Image.Resampling.BOX) for mask in (shadow, around, body))


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
