"""A small image–text search task that ships with the package: real hubs, no download.

A dual encoder was trained on drawn scenes and their captions (`examples/shapes/build.py` rebuilds
it). Its embeddings are stored as float16, scenes as ten bytes, captions as text. The text tower
runs on numpy alone, so that new queries can be encoded.
"""

import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib.resources import as_file, files
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.datasets.scenes import describe_scene, draw_scene
from nnnorm.errors import NNNormError

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
Scenes: TypeAlias = npt.NDArray[np.uint8]
_FILE = "shapes.npz"
_TEXTS_AT_ONCE = 2000
# Words with little meaning of their own; word pairs skip them.
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
    """A text encoder: vectors of words and word pairs are summed and passed through two layers."""

    words: tuple[str, ...]
    pairs: tuple[str, ...]
    features: FloatArray = field(repr=False)
    bias: FloatArray = field(repr=False)
    middle: FloatArray = field(repr=False)
    middle_bias: FloatArray = field(repr=False)
    last: FloatArray = field(repr=False)
    last_bias: FloatArray = field(repr=False)

    def encode(self, texts: Sequence[str]) -> FloatArray:
        """Return the unit vectors of texts; see `Shapes.encode_texts`."""
        if (
            isinstance(texts, str)
            or not isinstance(texts, Sequence)
            or not all(isinstance(text, str) for text in texts)
        ):
            raise NNNormError(
                f"texts must be a list of strings, such as ['a red star']; got {texts!r}"
            )
        if len(texts) == 0:
            raise NNNormError("texts is empty; give at least one, such as ['a red star']")
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
            hidden = summed / np.sqrt(counts, dtype=np.float32)[:, None] + self.bias
            hidden = np.maximum(hidden, 0) @ self.middle.T + self.middle_bias
            parts.append(np.maximum(hidden, 0) @ self.last.T + self.last_bias)
        vectors = np.concatenate(parts)
        return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True))

    def _check_words(self, texts: Sequence[str], words: Sequence[Sequence[str]]) -> None:
        if empty := [place for place, some in enumerate(words) if not some]:
            raise NNNormError(
                f"text {empty[0]} has no words: {texts[empty[0]]!r}; "
                "describe a scene, such as 'a red star above a blue ring'"
            )
        known = set(self.words)
        unknown = list(dict.fromkeys(word for some in words for word in some if word not in known))
        if unknown:
            close = {word: difflib.get_close_matches(word, self.words, n=1) for word in unknown}
            listed = ", ".join(
                f"{word!r} (did you mean {close[word][0]!r}?)" if close[word] else f"{word!r}"
                for word in unknown[:10]
            )
            more = f" and {len(unknown) - 10} more" if len(unknown) > 10 else ""
            raise NNNormError(
                f"the text tower of shapes knows {len(self.words)} words and not {listed}{more}; "
                "`load_shapes().words` lists them"
            )


@dataclass(frozen=True, eq=False)
class Shapes:
    """Embeddings of pictures of shapes and of captions, in the roles of a search."""

    gallery: FloatArray = field(repr=False)
    queries: FloatArray = field(repr=False)
    truth: IntArray = field(repr=False)
    references: FloatArray = field(repr=False)
    gallery_references: FloatArray = field(repr=False)
    other_references: FloatArray = field(repr=False)
    validation_gallery: FloatArray = field(repr=False)
    validation_queries: FloatArray = field(repr=False)
    validation_truth: IntArray = field(repr=False)
    captions: tuple[str, ...] = field(repr=False)
    validation_captions: tuple[str, ...] = field(repr=False)
    reference_captions: tuple[str, ...] = field(repr=False)
    other_captions: tuple[str, ...] = field(repr=False)
    scenes: Scenes = field(repr=False)
    validation_scenes: Scenes = field(repr=False)
    reference_scenes: Scenes = field(repr=False)
    other_scenes: Scenes = field(repr=False)
    text_tower: TextTower = field(repr=False)
    check_texts: tuple[str, ...] = field(repr=False)
    check_vectors: FloatArray = field(repr=False)

    @property
    def words(self) -> tuple[str, ...]:
        """The vocabulary of `encode_texts`."""
        return self.text_tower.words

    def draw(self, item: int, resolution: int = 96) -> npt.NDArray[np.uint8]:
        """Draw a picture of the gallery, ``(resolution, resolution, 3)``."""
        return draw_scene(self.scenes[self._check_item(item)], resolution)

    def describe(self, item: int) -> str:
        """Describe a picture of the gallery in words."""
        return describe_scene(self.scenes[self._check_item(item)])

    def encode_texts(self, texts: Sequence[str]) -> FloatArray:
        """Encode new queries, with numpy alone."""
        return self.text_tower.encode(texts)

    def _check_item(self, item: int) -> int:
        if isinstance(item, bool) or not isinstance(item, (int, np.integer)):
            raise NNNormError(f"item must be a whole number; got {item!r}")
        if not 0 <= item < len(self.scenes):
            raise NNNormError(f"item must be from 0 to {len(self.scenes) - 1}; got {item}")
        return int(item)


@lru_cache(maxsize=1)
def load_shapes() -> Shapes:
    """Load the data set of shapes: embeddings of pictures and captions, with hubs."""
    with (
        as_file(files("nnnorm.datasets") / _FILE) as path,
        np.load(path, allow_pickle=False) as stored,
    ):
        arrays = {name: stored[name] for name in stored.files}
    embedded = ("gallery", "queries", "references", "gallery_references", "other_references")
    found: dict[str, Any] = {}
    for name in (*embedded, "validation_gallery", "validation_queries"):
        found[name] = _freeze(_unit(arrays[name]))
    for name in ("captions", "validation_captions", "reference_captions", "other_captions"):
        found[name] = _lines(arrays[name])
    for name in ("scenes", "validation_scenes", "reference_scenes", "other_scenes"):
        found[name] = _freeze(arrays[name])
    for name in ("", "validation_"):
        found[f"{name}truth"] = _freeze(np.arange(len(found[f"{name}queries"])) // 5)
    layers = ("features", "bias", "middle", "middle_bias", "last", "last_bias")
    tower = TextTower(
        words=_lines(arrays["tower_words"]),
        pairs=_lines(arrays["tower_pairs"]),
        **{name: _freeze(arrays[f"tower_{name}"].astype(np.float32)) for name in layers},
    )
    return Shapes(
        **found,
        text_tower=tower,
        check_texts=_lines(arrays["check_texts"]),
        check_vectors=_freeze(arrays["check_vectors"]),
    )


def _lines(stored: npt.NDArray[np.uint8]) -> tuple[str, ...]:
    return tuple(stored.tobytes().decode("ascii").split("\n"))


def _unit(rows: npt.NDArray[np.float16]) -> FloatArray:
    wide = rows.astype(np.float32)
    wide /= np.linalg.norm(wide, axis=1, keepdims=True)
    return wide


def _freeze(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    array.flags.writeable = False
    return array
