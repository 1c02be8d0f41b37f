"""The paper's data: splits, VisoGender, and embeddings in their roles as queries and banks.

    DIR/coco.json  flickr30k.json  visogender.tsv     pairs and splits
    DIR/clip/coco/images.npy  texts.npy               rows in the order of those files
    DIR/clip/coco/images.rows.npy                     which rows are encoded; without it, all are
    DIR/blip-itm/coco/test-scores.npy                 scores of a model that has no embeddings

Test is the test split with five captions per image. As many images of train are held out for
tuning. References are a share of train, drawn from the rest: their captions are the bank for image
retrieval, the images that for text retrieval. Smaller shares are subsets of larger ones.

VisoGender's single-person table (OO) has a row per picture: 23 occupations, each with five people
perceived as masculine by annotators and five as feminine, and an object. Pictures are given by URL;
downloaded ones are found by number, such as ``OO_1.jpg``. The query for an occupation is "The
{occupation} and their {object}"; all pictures together are the gallery.

Missing files raise `NotThere`, so a missing model leaves out its own cells only. Messages name
places inside the folder, never the folder itself: they go into captions.
"""

import json
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm import NNNormError, open_embeddings
from nnnorm.datasets import Pairs, load_pairs
from nnnorm.embeddings import Embeddings
from nnnorm.encoders import open_image
from nnnorm.evaluation import Task
from nnnorm.files import write_whole
from nnnorm.tables import read_columns
from reproduction.paper import Direction, load_paper

IntArray: TypeAlias = npt.NDArray[np.int64]
SHARE = 0.2  # of train, where the paper says nothing else
GENDERS = ("masculine", "feminine")
_CAPTIONS = 5  # of a test or tuning image; references keep all of theirs
_NAMES = {
    "images": ("images.npy", "images", "images.npz", "images.parquet", "img_emb.npy", "img_emb"),
    "texts": ("texts.npy", "texts", "texts.npz", "texts.parquet", "text_emb.npy", "text_emb"),
}
_SCORES = ("test-scores.npy", "reference-scores.npy")
_COLUMNS = ("IDX", "Occupation", "Object", "Occupation_perceived_gender")


class NotThere(NNNormError):
    """Material of an experiment that was not found."""


# --- splits ---------------------------------------------------------------------------------------


class Part(NamedTuple):
    """Numbers of some images and captions, and the position of each caption's image among them."""

    images: IntArray
    captions: IntArray
    image_of: IntArray

    def truth(self, direction: Direction) -> IntArray:
        """Return the image of each caption, or (query, item) pairs."""
        if direction == "image":
            return self.image_of
        return np.stack([self.image_of, np.arange(len(self.image_of))], axis=1)


class Splits(NamedTuple):
    """Three parts that share no image."""

    test: Part
    validation: Part
    references: Part


def split_pairs(pairs: Pairs, *, share: float = SHARE, seed: int = 0) -> Splits:
    """Split a data set with the splits train and test as the paper does."""
    tested, trained = pairs.split("test"), pairs.split("train")
    order = np.random.default_rng(seed).permutation(trained)
    held, rest = order[: len(tested)], order[len(tested) :]
    n_references = min(max(1, round(share * len(trained))), len(rest))
    if len(held) < len(tested) or n_references == 0:
        raise NNNormError(
            f"{pairs.name} has {len(trained):,} train images, too few to hold out as many for "
            f"tuning as the {len(tested):,} of test and have references left"
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
            f"{pairs.name}: {len(silent)} test or tuning images have no caption, the first is "
            f"{pairs.images[images[silent[0]]]}; leave them out first"
        )
    return Part(images, captions, image_of)


# --- VisoGender -----------------------------------------------------------------------------------


class VisoGender(NamedTuple):
    """Pictures in the order of the table, with their occupations, objects and genders."""

    numbers: tuple[str, ...]
    images: tuple[str, ...]
    occupations: tuple[str, ...]
    objects: tuple[str, ...]
    genders: tuple[str, ...]

    @property
    def questions(self) -> dict[str, str]:
        """Occupation to its query; the most frequent object is used if there are several."""
        found: dict[str, Counter[str]] = {}
        for occupation, thing in zip(self.occupations, self.objects, strict=True):
            found.setdefault(occupation, Counter())[thing] += 1
        return {
            occupation: f"The {occupation} and their {things.most_common(1)[0][0]}"
            for occupation, things in found.items()
        }


def read_visogender(path: Path, images: Path = Path()) -> VisoGender:
    """Read the table; pictures are looked for in `images` by their number."""
    columns = read_columns(path, _COLUMNS)
    numbers = columns["IDX"]
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        raise NNNormError(f"{path}: IDX must be unique, but {twice[0]} is there twice")
    genders = [gender.lower() for gender in columns["Occupation_perceived_gender"]]
    for number, gender in zip(numbers, genders, strict=True):
        if gender not in GENDERS:
            raise NNNormError(
                f"{path}: {number} has the perceived gender {gender!r}; expected "
                f"{' or '.join(GENDERS)}"
            )
    there = {file.stem: str(file) for file in sorted(images.iterdir())} if images.is_dir() else {}
    occupations, objects = (
        tuple(" ".join(cell.replace("_", " ").split()) for cell in columns[name])
        for name in ("Occupation", "Object")
    )
    found = tuple(there.get(number, str(images / f"{number}.jpg")) for number in numbers)
    return VisoGender(tuple(numbers), found, occupations, objects, tuple(genders))


def save_visogender(found: VisoGender, folder: Path) -> tuple[Path, ...]:
    """Write ``visogender.tsv`` and the lists of its pictures and queries into a folder."""
    rows = zip(found.numbers, found.occupations, found.objects, found.genders, strict=True)
    contents = {
        "visogender-captions.txt": list(found.questions.values()),
        "visogender-images.txt": list(found.images),
        # The table last: if it exists, the lists do too.
        "visogender.tsv": ["\t".join(cells) for cells in (_COLUMNS, *rows)],
    }
    for name, lines in contents.items():
        text = "".join(f"{line}\n" for line in lines).encode()
        write_whole(folder / name, lambda file, text=text: file.write(text))  # type: ignore[misc]
    return tuple(folder / name for name in contents)


# --- embeddings in their roles --------------------------------------------------------------------


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

    def bank(self, direction: Direction, bank: str, share: float) -> Embeddings:
        """Return references: queries of a training part."""

    def gallery_bank(self, direction: Direction, share: float) -> Embeddings:
        """Return gallery-side items of the data set's own training part."""

    def show(self, direction: Direction) -> Shown:
        """Return queries and items of the test part as people see them."""

    def groups(self) -> Groups:
        """Return a gallery in groups, for the audit."""

    def scores(self) -> Scores:
        """Return ready scores, for models with cross-attention."""


class RowFile:
    """A matrix on disk that is filled by rows; a file next to it says which rows are there."""

    def __init__(self, path: Path, shape: tuple[int, int], fill: float = 0.0) -> None:
        self._done = path.with_suffix(".rows.npy")
        if not path.exists() or not self._done.exists():
            # First, which rows are there: without it, the matrix would count as complete.
            self._save(np.zeros(shape[0], dtype=bool))
            new = path.with_suffix(".new")
            matrix = np.lib.format.open_memmap(new, mode="w+", dtype=np.float32, shape=shape)
            if fill:
                matrix[:] = fill
            matrix.flush()
            new.replace(path)
        self._matrix = np.load(path, mmap_mode="r+")
        self.is_there: npt.NDArray[np.bool_] = np.load(self._done)

    def write(self, rows: IntArray, values: npt.NDArray[np.float32]) -> None:
        """Write rows; an interruption loses these at most."""
        self._matrix[rows] = values
        self._matrix.flush()  # before the rows are called finished
        self.is_there[rows] = True
        self._save(self.is_there)

    def _save(self, is_there: npt.NDArray[np.bool_]) -> None:
        write_whole(self._done, partial(np.save, arr=is_there))


def keep_about(path: Path, about: Mapping[str, Any]) -> None:
    """Write what files are made with; raise if they were made with something else."""
    text = json.dumps(about, indent=1, ensure_ascii=False)
    if not path.exists():
        write_whole(path, lambda file: file.write(text.encode()))
    found, about = json.loads(path.read_text(encoding="utf-8")), json.loads(text)
    moves = {"model"} if about.get("weights_sha256") else set()  # with a hash, it may have moved
    if changed := [name for name in about if name not in moves and found.get(name) != about[name]]:
        was, now = (str(one.get(changed[0]))[:60] for one in (found, about))
        raise NNNormError(
            f"the files of {path} were made with another {changed[0]} ({was}; now {now}); choose "
            "another folder, or remove it"
        )


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
