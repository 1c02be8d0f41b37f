"""The paper's data: splits, VisoGender, and embeddings in their roles as queries and banks.

    DIR/coco.json  flickr30k.json  visogender.json    pairs and splits
    DIR/clip/coco/images.npy  texts.npy               rows in the order of those files
    DIR/clip/coco/images.json                         what was encoded here; rows of NaN are missing
    DIR/blip-itm/coco/test-scores.npy                 scores of a model that has no embeddings

The test part is the test split with five captions per image. The same number of train images is
held out for tuning. References are a share of the other train images: their captions are the bank
for image retrieval, the images themselves that for text retrieval. Smaller shares are subsets of
larger ones.

VisoGender's single-person table (OO) has a row per picture: 23 occupations, each with five people
perceived as masculine by annotators and five as feminine, and an object. The table has URLs;
downloaded pictures are named by number, such as ``OO_1.jpg``. The query for an occupation is "The
{occupation} and their {object}", which is also the caption of each of its pictures. Genders are the
splits. The gallery is all pictures.

If files are missing, functions raise `MissingData`, so that only the cells of that model are left
out. Messages contain paths relative to the folder, because they are printed in the tables' notes.
"""

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm import NNNormError, open_embeddings
from nnnorm.datasets import Pairs, load_pairs
from nnnorm.embeddings import Embeddings, IntArray
from nnnorm.encoders import open_image, read_about
from nnnorm.evaluation import Task
from nnnorm.files import make_mapped, write_whole
from nnnorm.tables import read_columns
from reproduction.paper import Direction, load_paper

SHARE = 0.2  # of train, unless the paper uses another share
GENDERS = ("masculine", "feminine")
_CAPTIONS = 5  # per test or tuning image; references have all their captions
_FOLDERS = {"images": "img_emb", "texts": "text_emb"}  # names that `nnnorm encode` uses
_SCORES = ("test-scores.npy", "reference-scores.npy")
_OCCUPATION = re.compile("The (.*) and their .*")
_COLUMNS = ("IDX", "Occupation", "Object", "Occupation_perceived_gender")


class MissingData(NNNormError):
    """Raised if data of an experiment is missing."""


# --- splits ---------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Numbers of images and captions, and for each caption the position of its image."""

    images: IntArray
    captions: IntArray
    image_of: IntArray


class Splits(NamedTuple):
    """Three parts that share no image."""

    test: Part
    validation: Part
    references: Part


def split_pairs(pairs: Pairs, *, share: float = SHARE, seed: int = 0) -> Splits:
    """Split a data set that has the splits train and test, as in the paper."""
    tested, trained = pairs.split("test"), pairs.split("train")
    order = np.random.default_rng(seed).permutation(trained)
    held, rest = order[: len(tested)], order[len(tested) :]
    n_references = min(max(1, round(share * len(trained))), len(rest))
    if len(held) < len(tested) or n_references == 0:
        raise NNNormError(
            f"{pairs.name} must have more train than test images, for tuning and references; got "
            f"{len(trained):,} and {len(tested):,}"
        )
    return Splits(
        _make_part(pairs, tested, _CAPTIONS),
        _make_part(pairs, np.sort(held), _CAPTIONS),
        _make_part(pairs, np.sort(rest[:n_references]), None),
    )


def _make_part(pairs: Pairs, images: IntArray, at_most: int | None) -> Part:
    captions = pairs.captions_of(images, at_most)
    place = np.zeros(len(pairs.images), dtype=np.int64)
    place[images] = np.arange(len(images))
    image_of = place[pairs.image_of[captions]]
    if at_most is not None and len(silent := np.setdiff1d(np.arange(len(images)), image_of)):
        raise NNNormError(
            f"{pairs.name}: {len(silent)} test or tuning images have no caption, such as "
            f"{pairs.images[images[silent[0]]]}; remove them from the list"
        )
    return Part(images, captions, image_of)


# --- VisoGender -----------------------------------------------------------------------------------


def read_visogender(path: Path, images: Path) -> Pairs:
    """Read the table; the pictures are files in `images`, named by number."""
    columns = read_columns(path, _COLUMNS)
    tidy = {n: [" ".join(c.replace("_", " ").split()) for c in columns[n]] for n in _COLUMNS[1:]}
    numbers, (occupations, objects, genders) = columns["IDX"], tidy.values()
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        raise NNNormError(f"{path}: IDX must be unique, but {twice[0]} occurs twice")
    splits: dict[str, Any] = {gender: [] for gender in GENDERS}
    things: dict[str, Counter[str]] = {one: Counter() for one in occupations}
    for row, gender in enumerate(genders):
        if gender.lower() not in splits:
            raise NNNormError(
                f"{path}: {numbers[row]} has the perceived gender {gender!r}; expected "
                f"{' or '.join(GENDERS)}"
            )
        splits[gender.lower()].append(row)
        things[occupations[row]][objects[row]] += 1
    # If an occupation has several objects, its query has the most frequent one.
    captions = [f"The {one} and their {things[one].most_common(1)[0][0]}" for one in occupations]
    there = {file.stem: str(file) for file in sorted(images.iterdir())} if images.is_dir() else {}
    found = [there.get(number, str(images / f"{number}.jpg")) for number in numbers]
    return Pairs("visogender", tuple(found), tuple(captions), np.arange(len(found)), splits)


# --- inputs of experiments ------------------------------------------------------------------------


class Shown(NamedTuple):
    """Queries and items in readable form; `picture` returns the picture of an item, if any."""

    queries: Sequence[str]
    items: Sequence[str]
    picture: Callable[[int], npt.NDArray[np.uint8]] | None = None


class Groups(NamedTuple):
    """A gallery in groups, with a label per item, and one query for each label (`asked`)."""

    queries: Any
    gallery: Any
    groups: Sequence[str]
    labels: Sequence[str]
    asked: Sequence[str]
    difference: tuple[str, str]
    shown: Shown


class Scores(NamedTuple):
    """Scores of a model without embeddings, with items in rows; query i asks for item i."""

    test: npt.NDArray[Any]
    references: npt.NDArray[Any]


class Material:
    """The inputs of experiments with one model and one data set, by the paper's protocol.

    A subclass defines `part`, and the methods that its experiments use: ``references(bank, side,
    share)``, ``show(direction)`` for figures, ``groups()`` for the audit, and ``scores()`` for
    models with cross-attention.
    """

    def part(self, part: str) -> tuple[Any, Any, IntArray]:
        """Return images and captions of "test" or "validation", and the image of each caption."""
        raise NotImplementedError

    def task(self, direction: Direction, part: str) -> Task:
        """Return queries, gallery and truth of "test" or "validation"."""
        images, captions, image_of = self.part(part)
        if direction == "image":
            return Task(captions, images, image_of)
        return Task(images, captions, np.stack([image_of, np.arange(len(image_of))], axis=1))


def open_rows(path: Path, shape: tuple[int, int]) -> npt.NDArray[np.float32]:
    """Open a matrix on disk to fill row by row; new ones contain NaN."""
    if not path.exists():
        new = path.with_suffix(".new")
        matrix = make_mapped(new, np.float32, shape)
        matrix[:] = np.nan
        matrix.flush()  # type: ignore[attr-defined]
        new.replace(path)
    return np.load(path, mmap_mode="r+")


def find_missing(matrix: npt.NDArray[np.float32], rows: IntArray) -> IntArray:
    """Find the rows that weren't written completely."""
    return rows[np.isnan(matrix.sum(axis=1))[rows]]


def keep_about(path: Path, about: Mapping[str, Any]) -> None:
    """Write the settings of files; if other settings are stored, raise an error."""
    text = json.dumps(about, indent=1, ensure_ascii=False)
    if not path.exists():
        write_whole(path, lambda file: file.write(text.encode()))
    read_about(path, json.loads(text))


def digest_items(side: str, items: Sequence[str]) -> str:
    """Return a digest of texts, or of the names of images."""
    listed = [Path(item).name for item in items] if side == "images" else list(items)
    return hashlib.sha256(json.dumps(listed).encode()).hexdigest()


class EmbeddingFolder:
    """The folder of `--embeddings`; `seed` is the seed of the splits."""

    def __init__(self, root: Path, *, normalize: bool | None = None, seed: int = 0) -> None:
        if not root.is_dir():
            raise NNNormError(f"{root} is not a folder; pass the folder of the models' embeddings")
        self.root, self._normalize, self._seed = root, normalize, seed
        self.pairs, self.part = cache(self._pairs), cache(self._part)
        self._whole = lru_cache(maxsize=4)(self._open_whole)

    def open(self, model: str, dataset: str) -> "Encoded":
        """Return the inputs for a model and a data set; some may be missing."""
        return Encoded(self, model, dataset)

    def path(self, model: str, dataset: str) -> Path:
        """Return the folder of the embeddings of a data set by a model."""
        return self.root / load_paper().models.get(model, model) / dataset

    def find(self, model: str, dataset: str, side: str) -> Path | None:
        """Return the path of images, texts or scores of a model and data set; None if missing."""
        suffixes, folder = (".npy", "", ".npz", ".parquet"), self.path(model, dataset)
        paths = [folder / f"{n}{end}" for n in (side, _FOLDERS.get(side)) for end in suffixes]
        if side == "scores":
            paths = [folder / _SCORES[1]]
        return next((path for path in paths if path.exists()), None)

    def has(self, model: str, dataset: str) -> bool:
        """Return whether there are embeddings or scores of a model and data set."""
        if (self.path(model, dataset) / _SCORES[0]).exists():
            return True
        listed = (self.root / f"{dataset}.json").exists()
        return listed and all(self.find(model, dataset, side) for side in _FOLDERS)

    def rows(self, model: str, dataset: str, side: str, rows: IntArray) -> Embeddings:
        """Return some rows of the images or texts of a model."""
        path = self.find(model, dataset, side)
        if path is None:
            there = self.path(model, dataset).relative_to(self.root)
            raise MissingData(f"there are no {side} in {there}; pass --models or --encoder")
        if not path.with_suffix(".json").exists():
            return self._whole(model, dataset, side, path).subset(rows)
        matrix = np.load(path, mmap_mode="r")  # encoded here, perhaps not all of it
        if len(missing := find_missing(matrix, rows)):
            raise MissingData(
                f"{len(missing):,} {side} of {model}, {dataset} are not encoded yet; pass --models "
                "or --encoder"
            )
        return self._check(matrix[rows], model, dataset, side)

    def _open_whole(self, model: str, dataset: str, side: str, path: Path) -> Embeddings:
        opened = self._check(path, model, dataset, side)
        wanted = len(self.items(dataset, side))
        if len(opened) != wanted:
            raise NNNormError(
                f"{opened.name} has {len(opened):,} rows, but {dataset} has {wanted:,} {side}; "
                "encode the lists that `nnnorm dataset` wrote, in the same order"
            )
        return opened

    def _check(self, source: Any, model: str, dataset: str, side: str) -> Embeddings:
        name = f"{model}, {side} of {dataset}"
        opened = open_embeddings(source, name=name, normalize=self._normalize)
        low, high = opened.norm_range
        if max(1 - low, high - 1) > 0.005:
            raise NNNormError(
                f"rows of {opened.name} must have norm 1, because the paper's scores are cosines; "
                f"got norms {low:.4g} to {high:.4g}: pass --normalize"
            )
        return opened

    def items(self, dataset: str, side: str) -> Sequence[str]:
        """Return the paths of the images, or the captions."""
        pairs = self.pairs(dataset)
        return pairs.captions if side == "texts" else [str(self.root / p) for p in pairs.images]

    def whole(self, dataset: str) -> Part:
        """Return all images and captions of a data set."""
        pairs = self.pairs(dataset)
        return Part(np.arange(len(pairs.images)), np.arange(len(pairs.captions)), pairs.image_of)

    def _pairs(self, dataset: str) -> Pairs:
        path = self.root / f"{dataset}.json"
        if not path.exists():
            viso = dataset == "visogender"
            how = "python -m reproduction --visogender" if viso else "nnnorm dataset"
            raise MissingData(f"there is no {path.name}; create it with `{how}`")
        return load_pairs(path)

    def _part(self, dataset: str, part: str, share: float = SHARE) -> Part:
        return getattr(split_pairs(self.pairs(dataset), share=share, seed=self._seed), part)


class Encoded(Material):
    """Inputs from an `EmbeddingFolder`."""

    def __init__(self, folder: EmbeddingFolder, model: str, dataset: str) -> None:
        self._folder, self._model, self._dataset = folder, model, dataset

    def part(self, part: str) -> tuple[Any, Any, IntArray]:
        some = self._folder.part(self._dataset, part)
        images = self._folder.rows(self._model, self._dataset, "images", some.images)
        captions = self._folder.rows(self._model, self._dataset, "texts", some.captions)
        return images, captions, some.image_of

    def references(self, bank: str, side: str, share: float) -> Embeddings:
        part = self._folder.part(bank, "references", share)
        rows = part.images if side == "images" else part.captions
        return self._folder.rows(self._model, bank, side, rows)

    def show(self, direction: Direction) -> Shown:
        """Return captions, and pictures if their files still exist."""
        part = self._folder.part(self._dataset, "test")
        images, texts = (self._folder.items(self._dataset, side) for side in _FOLDERS)
        captions = [texts[row] for row in part.captions]
        shown = _show_pictures(captions, [images[row] for row in part.images])
        return shown if direction == "image" else Shown(shown.items, captions)

    def groups(self) -> Groups:
        """Return VisoGender's pictures, and the query of each occupation."""
        pairs = self._folder.pairs("visogender")
        genders = np.full(len(pairs.images), "", dtype=object)
        for gender in GENDERS:
            genders[pairs.split(gender)] = gender
        chosen = np.sort(np.unique(pairs.captions, return_index=True)[1])
        occupations = [_OCCUPATION.sub(r"\1", caption) for caption in pairs.captions]
        return Groups(
            self._folder.rows(self._model, "visogender", "texts", chosen),
            self._folder.rows(self._model, "visogender", "images", np.arange(len(genders))),
            genders.tolist(),
            occupations,
            [occupations[row] for row in chosen],
            GENDERS,
            _show_pictures(
                [pairs.captions[row] for row in chosen], self._folder.items("visogender", "images")
            ),
        )

    def scores(self) -> Scores:
        """Return the score matrices of a model with cross-attention, images in rows."""
        folder = self._folder.path(self._model, self._dataset)
        for name in _SCORES:
            if not (folder / name).exists():
                raise MissingData(f"there is no {name} in {folder.parent.name}/{folder.name}")
        test, references = (np.load(folder / name, mmap_mode="r") for name in _SCORES)
        if test.ndim != 2 or test.shape[0] != test.shape[1] or len(references) != len(test):
            raise NNNormError(
                f"{_SCORES[0]} must have one query per item, and {_SCORES[1]} the same number of "
                f"rows; got {test.shape} and {references.shape}"
            )
        return Scores(test, references)


def _show_pictures(queries: Sequence[str], images: Sequence[str]) -> Shown:
    """Return pictures from their files; if the first one is missing, only the names of files."""
    names = [Path(image).name for image in images]
    if not Path(images[0]).is_file():
        return Shown(queries, names)

    def picture(item: int) -> npt.NDArray[np.uint8]:
        tile = open_image(images[item])
        tile.thumbnail((96, 96))
        return np.asarray(tile)

    return Shown(queries, names, picture)
