"""Images, their captions, and the split of each image.

Every reader in this folder returns `Pairs`. They have paths and texts, but no pixels and no
embeddings. Encoders keep the order, so row i of the embeddings is image (or caption) i. On disk,
they are a JSON file and two text files with one entry per line.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import IntArray
from nnnorm.errors import NNNormError
from nnnorm.files import PathLike, check_writable, write_whole
from nnnorm.tables import read_json

_FORMAT = "nnnorm.pairs/1"
_LONGEST_NAME = 50  # characters of up to four bytes; file systems allow 255


@dataclass(frozen=True, eq=False)
class Pairs:
    """Images, their captions, and the splits."""

    name: str
    images: tuple[str, ...] = field(repr=False)
    captions: tuple[str, ...] = field(repr=False)
    image_of: IntArray = field(repr=False)
    splits: Mapping[str, IntArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # A name that comes from data becomes part of file names.
        safe = re.sub(r"[^\w .-]", "_", self.name)[:_LONGEST_NAME].strip(". ")
        object.__setattr__(self, "name", safe or "pairs")
        if not self.images or not self.captions:
            raise NNNormError(
                f"{self.name} must have images and captions; got {len(self.images)} and "
                f"{len(self.captions)}"
            )
        image_of = np.asarray(self.image_of, dtype=np.int64)
        rows = {name: np.sort(np.asarray(s, dtype=np.int64)) for name, s in self.splits.items()}
        in_splits = np.concatenate([np.empty(0, dtype=np.int64), *rows.values()])
        named = np.concatenate([image_of, in_splits])
        if len(image_of) != len(self.captions):
            raise NNNormError(
                f"{self.name} must name one image per caption; got {len(image_of)} for "
                f"{len(self.captions)} captions"
            )
        if len(wrong := named[(named < 0) | (named >= len(self.images))]):
            raise NNNormError(
                f"{self.name} names image {wrong[0]}, but there are {len(self.images)} images"
            )
        counts = np.bincount(in_splits, minlength=1)
        if counts.max() > 1:
            image = self.images[int(counts.argmax())]
            raise NNNormError(f"{self.name}: {image} is in two splits, or twice in one; keep one")
        object.__setattr__(self, "image_of", image_of)
        object.__setattr__(self, "splits", rows)

    def split(self, name: str) -> IntArray:
        """Return the image numbers of a split."""
        if name not in self.splits:
            there = ", ".join(self.splits) or "none"
            raise NNNormError(f"{self.name} has no split {name!r}; it has: {there}")
        return self.splits[name]

    def captions_of(self, images: npt.ArrayLike, at_most: int | None = None) -> IntArray:
        """Return the caption numbers of some images, in the order of those images."""
        order = np.argsort(self.image_of, kind="stable")
        counts = np.bincount(self.image_of, minlength=len(self.images))
        of_image = np.split(order, np.cumsum(counts)[:-1])
        some = [of_image[image][:at_most] for image in np.asarray(images, dtype=np.int64)]
        return np.concatenate([np.empty(0, dtype=np.int64), *some])

    def without_images(self, images: npt.ArrayLike) -> "Pairs":
        """Return the pairs without some images and their captions, renumbered."""
        keep = np.ones(len(self.images), dtype=bool)
        keep[np.asarray(images, dtype=np.int64)] = False
        new = np.cumsum(keep) - 1
        captions = np.flatnonzero(keep[self.image_of])
        return Pairs(
            self.name,
            tuple(self.images[row] for row in np.flatnonzero(keep)),
            tuple(self.captions[row] for row in captions),
            new[self.image_of[captions]],
            {split: new[rows[keep[rows]]] for split, rows in self.splits.items()},
        )


def save_pairs(pairs: Pairs, folder: PathLike) -> tuple[Path, ...]:
    """Write ``NAME.json``, ``NAME-images.txt``, ``NAME-captions.txt`` and ``NAME-truth.npy``."""
    if broken := [path for path in pairs.images if "\n" in path]:
        raise NNNormError(
            f"a path can't have a line break in a list of images; got {broken[0]!r}: rename it"
        )
    about = {
        "format": _FORMAT,
        "name": pairs.name,
        "splits": {split: rows.tolist() for split, rows in pairs.splits.items()},
        "image_of": pairs.image_of.tolist(),
        "images": list(pairs.images),
        "captions": list(pairs.captions),
    }
    texts = {
        f"{pairs.name}.json": json.dumps(about, ensure_ascii=False),
        f"{pairs.name}-images.txt": "\n".join(pairs.images) + "\n",
        f"{pairs.name}-captions.txt": "\n".join(pairs.captions) + "\n",
    }
    try:
        contents = {Path(folder) / name: text.encode() for name, text in texts.items()}
    except UnicodeEncodeError as error:  # a lone surrogate
        quoted = error.object[max(0, error.start - 20) : error.end + 20]
        raise NNNormError(
            f"{pairs.name} has a name or caption that is not text ({quoted!r}); rename or remove it"
        ) from error
    truth = Path(folder) / f"{pairs.name}-truth.npy"
    for path in (*contents, truth):
        check_writable(path)  # all of them before writing the first
    write_whole(truth, lambda file: np.save(file, pairs.image_of, allow_pickle=False))
    for path, content in reversed(contents.items()):  # the JSON last, when all others exist
        write_whole(path, lambda file, content=content: file.write(content))  # type: ignore[misc]
    return (*contents, truth)


def load_pairs(path: PathLike) -> Pairs:
    """Read a file that `save_pairs` wrote."""
    about = read_json(path, "pairs written by `nnnorm dataset`")
    if not isinstance(about, dict) or about.get("format") != _FORMAT:
        raise NNNormError(f"{path} isn't a file of pairs ({_FORMAT}); make it with: nnnorm dataset")
    try:
        return Pairs(
            about["name"],
            _texts(about["images"]),
            _texts(about["captions"]),
            np.asarray(about["image_of"]),
            {split: np.asarray(rows) for split, rows in about["splits"].items()},
        )
    except NNNormError:
        raise
    except (KeyError, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise NNNormError(
            f"{path} is damaged ({error!r}); make it again: nnnorm dataset"
        ) from error


def _texts(entries: object) -> tuple[str, ...]:
    if not isinstance(entries, list) or not all(isinstance(entry, str) for entry in entries):
        raise TypeError("expected a list of texts")
    return tuple(entries)
