"""Embeddings of the paper's experiments: their location, and their roles as queries and banks.

A folder holds the files written by `nnnorm dataset` and `nnnorm encode`:

    coco.json  flickr30k.json  visogender.tsv     pairs and splits
    clip/coco/img_emb  clip/coco/text_emb         embeddings, in the order of those files
    blip-itm/coco/test-scores.npy                 ready scores of a model that has no embeddings

`run.py` works with `Material`; missing files raise `NotThere`, so that a missing model leaves out
its own cells only. Its messages name places inside of the folder, never the folder itself: they go
into captions.
"""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nnnorm.datasets import (
    GENDERS,
    Direction,
    Pairs,
    Part,
    load_pairs,
    paper_protocol,
    read_visogender,
)
from nnnorm.errors import NNNormError
from nnnorm.evaluation import Task
from nnnorm.io import Embeddings, Source, open_embeddings, open_matrix
from nnnorm.report import read_tile
from nnnorm.reproduce.paper import load_paper

_IMAGES = ("images", "images.npy", "images.npz", "images.parquet", "img_emb")
_TEXTS = ("texts", "texts.npy", "texts.npz", "texts.parquet", "text_emb")


class NotThere(NNNormError):
    """Material of an experiment that was not found."""


class Shown(NamedTuple):
    """Queries and items as people see them.

    Attributes
    ----------
    queries, items : sequence of str
    picture : callable or None
        Returns the picture of an item, for a contact sheet; None where there are only words.
    """

    queries: Sequence[str]
    items: Sequence[str]
    picture: Callable[[int], npt.NDArray[np.uint8]] | None = None


class Groups(NamedTuple):
    """A gallery in groups, and a query for each label.

    Attributes
    ----------
    queries, gallery : array or Embeddings
    groups, labels : sequence of str
        One per item.
    asked : sequence of str
        The label that each query asks for.
    difference : pair of str
    shown : Shown
    """

    queries: Source
    gallery: Source
    groups: Sequence[str]
    labels: Sequence[str]
    asked: Sequence[str]
    difference: tuple[str, str]
    shown: Shown


class ReadyScores(NamedTuple):
    """Scores of a model without embeddings, one item per row.

    Attributes
    ----------
    test : array or ScoreMatrix, shape (n_gallery, n_queries)
        The right item of query i is item i.
    references : array or ScoreMatrix, shape (n_gallery, n_references)
    """

    test: Source
    references: Source


class Material(Protocol):
    """Embeddings of one data set by one model, in the roles of the paper's protocol."""

    def task(self, direction: Direction, part: str) -> Task:
        """Return queries, gallery and truth of "test" or "validation"."""

    def bank(self, direction: Direction, bank: str, share: float) -> Source:
        """Return references: queries of a training part."""

    def gallery_bank(self, direction: Direction, share: float) -> Source:
        """Return gallery-side items of its own training part."""

    def show(self, direction: Direction) -> Shown:
        """Return queries and items of the test part as people see them."""

    def groups(self) -> Groups:
        """Return a gallery in groups, for the audit."""

    def scores(self) -> ReadyScores:
        """Return ready scores, for models with cross-attention."""


class EmbeddingFolder:
    """The folder given by `--embeddings`.

    Parameters
    ----------
    root : Path
    normalize : bool, optional
        Divide rows by their norms; otherwise they must have unit norm.
    seed : int
        Random seed of the protocol.

    Examples
    --------
    >>> import tempfile
    >>> EmbeddingFolder(Path(tempfile.mkdtemp())).open("CLIP", "coco").task("image", "test")
    Traceback (most recent call last):
    nnnorm.reproduce.material.NotThere: there is no coco.json; `nnnorm dataset` writes it
    """

    def __init__(self, root: Path, *, normalize: bool | None = None, seed: int = 0) -> None:
        if not root.is_dir():
            raise NNNormError(f"{root} is no folder; expected one with embeddings of the models")
        self._root, self._normalize, self._seed = root, normalize, seed
        self.pairs = lru_cache(maxsize=None)(self._pairs)
        self.part = lru_cache(maxsize=None)(self._part)
        self.embeddings = lru_cache(maxsize=None)(self._embeddings)

    def open(self, model: str, dataset: str) -> "Encoded":
        """Return the material of a model and a data set, which may be missing."""
        return Encoded(self, model, dataset)

    def path(self, model: str, dataset: str) -> Path:
        """Return the folder of the embeddings of a data set by a model."""
        return self._root / load_paper().models.get(model, model) / dataset

    def has(self, model: str, dataset: str) -> bool:
        """Whether the embeddings (or scores) of a model and data set exist."""
        folder = self.path(model, dataset)
        if (folder / "test-scores.npy").exists():
            return True
        return all(
            any((folder / name).exists() for name in names) for names in (_IMAGES, _TEXTS)
        ) and any((self._root / f"{dataset}{suffix}").exists() for suffix in (".json", ".tsv"))

    def rows(self, model: str, dataset: str, side: str, rows: np.ndarray) -> Embeddings:
        """Return some rows of the images or texts of a model."""
        return self.embeddings(model, dataset, side).subset(rows)

    def file(self, name: str) -> Path:
        """Return the path of a file, or raise an error that says how to create it."""
        path = self._root / name
        if not path.exists():
            raise NotThere(f"there is no {name}; `nnnorm dataset` writes it")
        return path

    def _pairs(self, dataset: str) -> Pairs:
        return load_pairs(self.file(f"{dataset}.json"))

    def _part(self, dataset: str, part: str, share: float) -> Part:
        parts = paper_protocol(self.pairs(dataset), reference_share=share, seed=self._seed)
        found: Part = getattr(parts, part)
        return found

    def _embeddings(self, model: str, dataset: str, side: str) -> Embeddings:
        folder = self.path(model, dataset)
        for name in _IMAGES if side == "images" else _TEXTS:
            if (folder / name).exists():
                opened = open_embeddings(
                    folder / name,
                    name=f"{model}, {side} of {dataset}",
                    normalize=self._normalize,
                    metric="cosine",
                )
                self._check_rows(opened, dataset, side)
                return opened
        there = folder.relative_to(self._root)
        raise NotThere(f"there are no {side} in {there}; `nnnorm encode` makes them")

    def _check_rows(self, opened: Embeddings, dataset: str, side: str) -> None:
        if dataset == "visogender":
            about = read_visogender(self.file("visogender.tsv"))
            wanted = len(about.images) if side == "images" else len(about.questions)
        else:
            pairs = self.pairs(dataset)
            wanted = len(pairs.images) if side == "images" else len(pairs.captions)
        if len(opened) != wanted:
            raise NNNormError(
                f"{opened.name} has {len(opened):,} rows, but {dataset} has {wanted:,} {side}; "
                "encode the lists that `nnnorm dataset` wrote, in their order"
            )


def show_pictures(queries: Sequence[str], images: Sequence[str]) -> Shown:
    """Return pictures from their files, or the names of the files where the first is missing.

    Examples
    --------
    >>> show_pictures(["a star"], ["pictures/star.png"]).items
    ['star.png']
    """
    names = [Path(image).name for image in images]
    if not os.path.isfile(images[0]):
        return Shown(queries, names)
    return Shown(queries, names, lambda item: read_tile(images[item]))


class Encoded:
    """`Material` from an `EmbeddingFolder`."""

    def __init__(self, folder: EmbeddingFolder, model: str, dataset: str) -> None:
        self._folder, self._model, self._dataset = folder, model, dataset

    def task(self, direction: Direction, part: str) -> Task:
        """Return queries, gallery and truth of a part."""
        some = self._folder.part(self._dataset, part, 0.2)
        images = self._rows(self._dataset, "images", some)
        texts = self._rows(self._dataset, "texts", some)
        sides = (texts, images) if direction == "image" else (images, texts)
        return Task(*sides, some.truth(direction))

    def bank(self, direction: Direction, bank: str, share: float) -> Embeddings:
        """Return captions (or images) of the reference part of a data set."""
        side = "texts" if direction == "image" else "images"
        return self._rows(bank, side, self._folder.part(bank, "references", share))

    def gallery_bank(self, direction: Direction, share: float) -> Embeddings:
        """Return images (or captions) of the reference part of its own data set."""
        side = "images" if direction == "image" else "texts"
        return self._rows(
            self._dataset, side, self._folder.part(self._dataset, "references", share)
        )

    def show(self, direction: Direction) -> Shown:
        """Return captions, and pictures where their files are still there."""
        pairs, part = (
            self._folder.pairs(self._dataset),
            self._folder.part(self._dataset, "test", 0.2),
        )
        images = [pairs.images[row] for row in part.images]
        captions = [pairs.captions[row] for row in part.captions]
        if direction == "text":
            return Shown([Path(image).name for image in images], captions)
        return show_pictures(captions, images)

    def groups(self) -> Groups:
        """Return VisoGender's pictures and queries."""
        about = read_visogender(self._folder.file("visogender.tsv"))
        open_side = self._folder.embeddings
        return Groups(
            open_side(self._model, "visogender", "texts"),
            open_side(self._model, "visogender", "images"),
            about.genders,
            about.occupations,
            list(about.questions),
            GENDERS,
            show_pictures(list(about.questions.values()), about.images),
        )

    def scores(self) -> ReadyScores:
        """Return the score matrices of a model with cross-attention, images in rows."""
        folder = self._folder.path(self._model, self._dataset)
        found = []
        for name in ("test-scores.npy", "reference-scores.npy"):
            if not (folder / name).exists():
                raise NotThere(f"there is no {name} in {folder.parent.name}/{folder.name}")
            found.append(open_matrix(folder / name, name=name))
        return ReadyScores(*found)

    def _rows(self, dataset: str, side: str, part: Part) -> Embeddings:
        rows = part.images if side == "images" else part.captions
        return self._folder.rows(self._model, dataset, side, rows)
