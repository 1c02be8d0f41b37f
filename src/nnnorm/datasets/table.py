"""Images and captions from a plain table: a CSV, TSV, JSONL or parquet file with a row per pair.

Columns are `image`, `caption` and optionally `split`. Rows with the same image are its captions.
"""

import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from nnnorm.datasets.pairs import Pairs, tidy
from nnnorm.errors import NNNormError
from nnnorm.tables import read_columns


def read_table(path: str | os.PathLike[str], images: str | os.PathLike[str] = ".") -> Pairs:
    r"""Read a table with the columns `image`, `caption` and optionally `split`."""
    columns = read_columns(path, ("image", "caption"), ("split",))
    files = [str(Path(images) / file) for file in columns["image"]]
    return make_pairs(Path(path).stem, files, columns["caption"], columns.get("split"))


def make_pairs(
    name: str, images: Sequence[str], captions: Sequence[str], splits: Sequence[str] | None = None
) -> Pairs:
    """Make `Pairs` from rows; rows with the same image are its captions."""
    number_of = {image: number for number, image in enumerate(dict.fromkeys(images))}
    image_of = np.array([number_of[image] for image in images], dtype=np.int64)
    split_of: dict[int, str] = {}
    for row, split in enumerate(splits or ()):
        image = int(image_of[row])
        if split_of.setdefault(image, split) != split:
            raise NNNormError(
                f"{name}: {images[row]} is in the splits {split_of[image]!r} and {split!r}; an "
                "image and all its captions belong to one"
            )
    named = {
        split: np.array([image for image, its in split_of.items() if its == split])
        for split in dict.fromkeys(split_of.values())
        if split
    }
    return Pairs(name, tuple(number_of), tuple(map(tidy, captions)), image_of, named)
