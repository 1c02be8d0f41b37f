"""Embeddings of the paper's experiments: where they are, and their roles as queries and banks.

    DIR/coco.json  flickr30k.json  visogender.tsv     pairs and splits
    DIR/clip/coco/images.npy  texts.npy               rows in the order of those files
    DIR/clip/coco/images.rows.npy                     which rows are encoded; without it, all are
    DIR/blip-itm/coco/test-scores.npy                 scores of a model that has no embeddings

Missing files raise `NotThere`, so a missing model leaves out its own cells only. Messages name
places inside the folder, never the folder itself: they go into captions.
"""

import os
from collections.abc import Callable, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from nnnorm import NNNormError, open_embeddings
from nnnorm.datasets import Pairs, load_pairs
from nnnorm.embeddings import Embeddings
from nnnorm.encoders import open_image
from nnnorm.evaluation import Task
from reproduction.paper import Direction, load_paper
from reproduction.protocol import SHARE, Part, split_pairs
from reproduction.visogender import GENDERS, VisoGender, read_visogender

_NAMES = {
    "images": ("images.npy", "images", "images.npz", "images.parquet", "img_emb.npy", "img_emb"),
    "texts": ("texts.npy", "texts", "texts.npz", "texts.parquet", "text_emb.npy", "text_emb"),
}
_SCORES = ("test-scores.npy", "reference-scores.npy")


class NotThere(NNNormError):
    """Material of an experiment that was not found."""


class Shown(NamedTuple):
    """Queries and items as people see them; `picture` returns that of an item, if there are any."""

    queries: Sequence[str]
    items: Sequence[str]
    picture: Callable[[int], npt.NDArray[np.uint8]] | None = None


class Groups(NamedTuple):
    """A gallery in groups, with labels, and a query for each label (`asked`)."""

    queries: Any
    gallery: Any
    groups: Sequence[str]
    labels: Sequence[str]
    asked: Sequence[str]
    difference: tuple[str, str]
    shown: Shown


class Scores(NamedTuple):
    """Scores of a model without embeddings, items in rows; the right item of query i is item i."""

    test: npt.NDArray[Any]
    references: npt.NDArray[Any]


class Material(Protocol):
    """Embeddings of one data set by one model, in the roles of the paper's protocol."""

    def task(self, direction: Direction, part: str) -> Task:
        """Return queries, gallery and truth of "test" or "validation"."""

    def bank(self, direction: Direction, bank: str, share: float) -> Any:
        """Return references: queries of a training part."""

    def gallery_bank(self, direction: Direction, share: float) -> Any:
        """Return gallery-side items of the data set's own training part."""

    def show(self, direction: Direction) -> Shown:
        """Return queries and items of the test part as people see them."""

    def groups(self) -> Groups:
        """Return a gallery in groups, for the audit."""

    def scores(self) -> Scores:
        """Return ready scores, for models with cross-attention."""


class EmbeddingFolder:
    """The folder given by `--embeddings`; `seed` is that of the protocol."""

    def __init__(self, root: Path, *, normalize: bool | None = None, seed: int = 0) -> None:
        if not root.is_dir():
            raise NNNormError(f"{root} is not a folder; expected one with embeddings of the models")
        self.root, self._normalize, self._seed = root, normalize, seed
        self.pairs = lru_cache(maxsize=None)(self._pairs)
        self.part = lru_cache(maxsize=None)(self._part)
        self._opened = lru_cache(maxsize=4)(self._open_whole)

    def open(self, model: str, dataset: str) -> "Encoded":
        """Return the material of a model and a data set, which may be missing."""
        return Encoded(self, model, dataset)

    def path(self, model: str, dataset: str) -> Path:
        """Return the folder of the embeddings of a data set by a model."""
        return self.root / load_paper().models.get(model, model) / dataset

    def has(self, model: str, dataset: str) -> bool:
        """Return whether there are embeddings or scores of a model and data set."""
        if (self.path(model, dataset) / _SCORES[0]).exists():
            return True
        listed = any((self.root / f"{dataset}{suffix}").exists() for suffix in (".json", ".tsv"))
        return listed and all(self.has_side(model, dataset, side) for side in _NAMES)

    def has_side(self, model: str, dataset: str, side: str) -> bool:
        """Return whether there are images (or texts) of a model and data set."""
        return any((self.path(model, dataset) / name).exists() for name in _NAMES[side])

    def file(self, name: str) -> Path:
        """Return the path of a file, or raise an error that says how to create it."""
        path = self.root / name
        if not path.exists():
            how = "python -m reproduction --visogender" if "viso" in name else "nnnorm dataset"
            raise NotThere(f"there is no {name}; `{how}` writes it")
        return path

    def visogender(self) -> VisoGender:
        """Return VisoGender's table, with the pictures of its list."""
        found = read_visogender(self.file("visogender.tsv"))
        listed = self.root / "visogender-images.txt"
        if listed.is_file():
            found = found._replace(images=tuple(listed.read_text(encoding="utf-8").splitlines()))
        return found

    def rows(self, model: str, dataset: str, side: str, rows: Any = None) -> Embeddings:
        """Return some rows of the images or texts of a model; None for all."""
        folder = self.path(model, dataset)
        name = next((name for name in _NAMES[side] if (folder / name).exists()), None)
        if name is None:
            there = folder.relative_to(self.root)
            raise NotThere(f"there are no {side} in {there}; --models or --encoder makes them")
        encoded = (folder / name).with_suffix(".rows.npy")
        if not encoded.exists():
            whole = self._opened(model, dataset, side, folder / name)
            return whole if rows is None else whole.subset(rows)
        is_there = np.load(encoded)
        rows = np.arange(len(is_there)) if rows is None else rows
        if not is_there[rows].all():
            raise NotThere(
                f"{np.count_nonzero(~is_there[rows]):,} {side} of {model}, {dataset} are not "
                "encoded yet; --models or --encoder does it"
            )
        stored = np.load(folder / name, mmap_mode="r")[rows]
        return self._check(stored, model, dataset, side)

    def _open_whole(self, model: str, dataset: str, side: str, path: Path) -> Embeddings:
        opened = self._check(path, model, dataset, side)
        wanted = len(self.items(dataset, side))
        if len(opened) != wanted:
            raise NNNormError(
                f"{opened.name} has {len(opened):,} rows, but {dataset} has {wanted:,} {side}; "
                "encode the lists that `nnnorm dataset` wrote, in their order"
            )
        return opened

    def _check(self, source: Any, model: str, dataset: str, side: str) -> Embeddings:
        name = f"{model}, {side} of {dataset}"
        opened = open_embeddings(source, name=name, normalize=self._normalize)
        low, high = opened.norm_range
        if max(1 - low, high - 1) > 0.005:
            raise NNNormError(
                f"the rows of {opened.name} do not have unit norm (norms {low:.4g} to {high:.4g}), "
                "and the paper's scores are cosines; pass --normalize"
            )
        return opened

    def items(self, dataset: str, side: str) -> Sequence[str]:
        """Return the paths of the images, from where the lists are, or the captions."""
        if dataset == "visogender":
            table = self.visogender()
            images, texts = table.images, tuple(table.questions.values())
        else:
            pairs = self.pairs(dataset)
            images, texts = pairs.images, pairs.captions
        return texts if side == "texts" else [str(self.root / image) for image in images]

    def _pairs(self, dataset: str) -> Pairs:
        return load_pairs(self.file(f"{dataset}.json"))

    def _part(self, dataset: str, part: str, share: float) -> Part:
        found: Part = getattr(split_pairs(self.pairs(dataset), share=share, seed=self._seed), part)
        return found


class Encoded:
    """`Material` from an `EmbeddingFolder`."""

    def __init__(self, folder: EmbeddingFolder, model: str, dataset: str) -> None:
        self._folder, self._model, self._dataset = folder, model, dataset

    def task(self, direction: Direction, part: str) -> Task:
        """Return queries, gallery and truth of a part."""
        some = self._folder.part(self._dataset, part, SHARE)
        images, texts = (self._rows(self._dataset, side, some) for side in ("images", "texts"))
        sides = (texts, images) if direction == "image" else (images, texts)
        return Task(*sides, some.truth(direction))

    def bank(self, direction: Direction, bank: str, share: float) -> Embeddings:
        """Return captions (or images) of the reference part of a data set."""
        side = "texts" if direction == "image" else "images"
        return self._rows(bank, side, self._folder.part(bank, "references", share))

    def gallery_bank(self, direction: Direction, share: float) -> Embeddings:
        """Return images (or captions) of the reference part of its own data set."""
        side = "images" if direction == "image" else "texts"
        part = self._folder.part(self._dataset, "references", share)
        return self._rows(self._dataset, side, part)

    def show(self, direction: Direction) -> Shown:
        """Return captions, and pictures if their files are still there."""
        part = self._folder.part(self._dataset, "test", SHARE)
        every = self._folder.items(self._dataset, "images")
        images = [every[row] for row in part.images]
        captions = [self._folder.pairs(self._dataset).captions[row] for row in part.captions]
        if direction == "text":
            return Shown([Path(image).name for image in images], captions)
        return _show_pictures(captions, images)

    def groups(self) -> Groups:
        """Return VisoGender's pictures and queries."""
        about = self._folder.visogender()
        return Groups(
            self._folder.rows(self._model, "visogender", "texts"),
            self._folder.rows(self._model, "visogender", "images"),
            about.genders,
            about.occupations,
            list(about.questions),
            GENDERS,
            _show_pictures(
                list(about.questions.values()), self._folder.items("visogender", "images")
            ),
        )

    def scores(self) -> Scores:
        """Return the score matrices of a model with cross-attention, images in rows."""
        folder = self._folder.path(self._model, self._dataset)
        for name in _SCORES:
            if not (folder / name).exists():
                raise NotThere(f"there is no {name} in {folder.parent.name}/{folder.name}")
        test, references = (np.load(folder / name, mmap_mode="r") for name in _SCORES)
        if test.ndim != 2 or test.shape[0] != test.shape[1] or len(references) != len(test):
            raise NNNormError(
                f"{_SCORES[0]} must have a query per item and {_SCORES[1]} the same items in rows; "
                f"got {test.shape} and {references.shape}"
            )
        return Scores(test, references)

    def _rows(self, dataset: str, side: str, part: Part) -> Embeddings:
        rows = part.images if side == "images" else part.captions
        return self._folder.rows(self._model, dataset, side, rows)


def _show_pictures(queries: Sequence[str], images: Sequence[str]) -> Shown:
    """Return pictures from their files, or the names of the files if the first is missing."""
    names = [Path(image).name for image in images]
    if not os.path.isfile(images[0]):
        return Shown(queries, names)

    def picture(item: int) -> npt.NDArray[np.uint8]:
        tile = open_image(images[item])
        tile.thumbnail((96, 96))
        return np.asarray(tile)

    return Shown(queries, names, picture)
