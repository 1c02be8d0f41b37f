"""Data other than the paper's: the synthetic shapes of the package, and Flickr8k.

With these, every experiment runs without the paper's models and pictures. The results can't be
compared with the paper's.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import NNNormError, load_shapes, open_embeddings
from nnnorm.datasets import SHAPES, read_scene
from nnnorm.embeddings import Embeddings
from reproduction.material import SHARE, Groups, Material, MissingData, Scores, Shown
from reproduction.paper import Direction

Floats: TypeAlias = npt.NDArray[np.floating[Any]]
_PER_IMAGE = 5
_TILE = 96  # pixels
_SPLITS = {"test": "test", "validation": "val", "references": "train"}
NOTES = {
    "gender": "shapes: 12 shapes instead of occupations, two sizes instead of genders (five big "
    'and five small pictures per shape; bias is big − small), and queries such as "a star".',
    "cross-attention": "The scores come from dual encoders, so this tests the arithmetic, but "
    "shows nothing about cross-attention.",
}


class _FivePerImage(Material):
    """Images with five captions each, in order, for every part; and captions of another bank."""

    def __init__(self, name: str, parts: Mapping[str, tuple[Floats, Floats]], other: Floats):
        self.name, self._parts, self._other = name, parts, other

    def part(self, part: str) -> tuple[Any, Any, npt.NDArray[np.int64]]:
        name = f"{part} of {self.name}"
        images, captions = (open_embeddings(side, name=name) for side in self._parts[part])
        return images, captions, np.arange(len(captions)) // _PER_IMAGE

    def references(self, bank: str, side: str, share: float) -> Embeddings:
        if bank != "other":
            rows = self._share(share)[0 if side == "images" else 1]
        elif side == "images":
            raise MissingData(f"the other bank of `{self.name}` contains no pictures")
        else:
            rows = self._other[_draw(len(self._other), share)]
        return open_embeddings(rows, name="references")

    def show(self, direction: Direction) -> Shown:
        images, captions = self._parts["test"]
        pictures = [f"picture {n}" for n in range(len(images))]
        texts = [f"caption {n}, of picture {n // _PER_IMAGE}" for n in range(len(captions))]
        return Shown(texts, pictures) if direction == "image" else Shown(pictures, texts)

    def groups(self) -> Groups:
        raise MissingData(f"{self.name} has no groups and no text encoder for new questions")

    def scores(self) -> Scores:
        images, captions = self._parts["test"]
        return Scores(images @ captions[::_PER_IMAGE].T, images @ self._share(SHARE)[1].T)

    def _share(self, share: float) -> tuple[Floats, Floats]:
        images, captions = self._parts["references"]
        rows = _draw(len(images), share)
        return images[rows], captions[_captions_of(rows)]


def _draw(n_rows: int, share: float) -> npt.NDArray[np.int64]:
    order = np.random.default_rng(0).permutation(n_rows)
    return np.sort(order[: max(1, round(share * n_rows))])


def _captions_of(images: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    return (_PER_IMAGE * images[:, None] + np.arange(_PER_IMAGE)).ravel()


class _Shapes(_FivePerImage):
    """The pictures and captions of `load_shapes`."""

    def __init__(self) -> None:
        shapes = load_shapes()
        parts = {
            "test": (shapes.gallery, shapes.queries),
            "validation": (shapes.validation_gallery, shapes.validation_queries),
            "references": (shapes.gallery_references, shapes.references),
        }
        super().__init__("shapes", parts, shapes.other_references)

    def show(self, direction: Direction) -> Shown:
        shapes = load_shapes()
        if direction == "text":
            pictures = [shapes.describe(item) for item in range(len(shapes.gallery))]
            return Shown(pictures, shapes.captions)
        items = shapes.captions[::_PER_IMAGE]
        return Shown(shapes.captions, items, lambda item: shapes.draw(item, _TILE))

    def groups(self) -> Groups:
        """Return pictures with shapes as occupations and sizes as genders, five per size."""
        shapes = load_shapes()
        scenes = [read_scene(scene)[1] for scene in shapes.scenes]
        chosen: list[int] = []
        for shape in SHAPES:
            sizes = [[thing.size for thing in some if thing.shape == shape] for some in scenes]
            for size in ("big", "small"):
                rows = [row for row, found in enumerate(sizes) if found == [size]]
                chosen += [row for row in rows if row not in chosen][:_PER_IMAGE]
        questions = [f"a {shape}" for shape in SHAPES]
        names = [shapes.describe(item) for item in chosen]
        return Groups(
            shapes.encode_texts(questions),
            shapes.gallery[chosen],
            (["big"] * _PER_IMAGE + ["small"] * _PER_IMAGE) * len(SHAPES),
            [shape for shape in SHAPES for _ in range(2 * _PER_IMAGE)],
            list(SHAPES),
            ("big", "small"),
            Shown(questions, names, lambda item: shapes.draw(chosen[item], _TILE)),
        )


def _open_flickr8k(folder: Path) -> Material:
    """Open image.npy, caption.npy, the row numbers of the splits, and COCO captions."""
    names = ("image", "caption", "coco_caption", *(f"{split}_images" for split in _SPLITS.values()))
    if missing := [name for name in names if not (folder / f"{name}.npy").is_file()]:
        raise NNNormError(f"{folder} has no {missing[0]}.npy; expected embeddings of Flickr8k")
    stored = [np.load(folder / f"{name}.npy", allow_pickle=False) for name in names]
    images, captions, other = (rows.astype(np.float32) for rows in stored[:3])
    parts = {
        part: (images[rows], captions[_captions_of(rows)])
        for part, rows in zip(_SPLITS, stored[3:], strict=True)
    }
    return _FivePerImage("flickr8k", parts, other)


def open_data(text: str) -> tuple[str, Material]:
    """Open other data by name: ``shapes`` or ``flickr8k=FOLDER``."""
    name, _, folder = text.partition("=")
    if text == "shapes":
        return name, _Shapes()
    if name == "flickr8k" and folder:
        return name, _open_flickr8k(Path(folder))
    raise NNNormError(f"--data must be shapes or flickr8k=FOLDER; got {text!r}")
