"""Images and captions out of a plain table: a CSV, TSV or parquet file with a row per pair.

Columns are `image` and `caption`, and `split` where there is one. Rows of the same image are its
captions. `read_columns` also serves whoever needs other columns of such a file.
"""

import csv
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.datasets.pairs import Pairs, tidy
from nnnorm.errors import NNNormError, first_line
from nnnorm.io import read_text_columns

__all__ = ["make_pairs", "read_columns", "read_table"]

# A TSV has no quotes: a caption that begins with one keeps it.
_DIALECTS: dict[str, dict[str, Any]] = {
    ".csv": {},
    ".tsv": {"delimiter": "\t", "quoting": csv.QUOTE_NONE},
}


def read_table(path: str | os.PathLike[str], images: str | os.PathLike[str] = ".") -> Pairs:
    r"""Read a table with the columns `image`, `caption` and perhaps `split`.

    Parameters
    ----------
    path : str or PathLike
        ``.csv``, ``.tsv`` or ``.parquet``.
    images : str or PathLike
        Folder that paths in the table start from.

    Returns
    -------
    Pairs
        Called after the file.

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "mine.csv"
    >>> _ = file.write_text("image,caption\na.jpg,a cat\na.jpg,a grey cat\n")
    >>> read_table(file).image_of.tolist()
    [0, 0]
    """
    columns = read_columns(path, ("image", "caption"), ("split",))
    files = [str(Path(images) / file) for file in columns["image"]]
    return make_pairs(Path(path).stem, files, columns["caption"], columns.get("split"))


def make_pairs(
    name: str, images: Sequence[str], captions: Sequence[str], splits: Sequence[str] | None = None
) -> Pairs:
    """Make `Pairs` of rows; rows with the same image are its captions.

    Examples
    --------
    >>> make_pairs("mine", ["a.jpg", "b.jpg", "a.jpg"], ["a cat", "a dog", "cats"]).images
    ('a.jpg', 'b.jpg')
    """
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


def read_columns(
    path: str | os.PathLike[str], needed: Sequence[str], optional: Sequence[str] = ()
) -> dict[str, list[str]]:
    """Read columns of a CSV, TSV or parquet file as text.

    Parameters
    ----------
    path : str or PathLike
    needed : sequence of str
        An error names those that are not there, and those that are.
    optional : sequence of str
        Left out where they are not there.

    Returns
    -------
    dict
        Column name to its cells.

    Examples
    --------
    >>> read_columns("nowhere.csv", ["image"])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no table nowhere.csv; check the path
    """
    file = Path(path)
    if not file.is_file():
        raise NNNormError(f"there is no table {path}; check the path")
    if file.suffix == ".parquet":
        return read_text_columns(file, needed, optional)
    if file.suffix not in _DIALECTS:
        raise NNNormError(
            f"{path}: a table must end in .csv, .tsv or .parquet; got the suffix {file.suffix!r}"
        )
    try:
        with open(file, encoding="utf-8-sig", newline="") as text:
            rows = list(csv.reader(text, **_DIALECTS[file.suffix]))
    except (OSError, csv.Error, UnicodeDecodeError) as error:
        raise NNNormError(
            f"{path} can't be read as a table ({first_line(error)}); is it UTF-8 text?"
        ) from error
    rows = [row for row in rows if any(cell.strip() for cell in row)]
    header = [cell.strip() for cell in rows[0]] if rows else []
    if missing := [name for name in needed if name not in header]:
        raise NNNormError(
            f"{path} needs the column{'s' if len(needed) > 1 else ''} {', '.join(needed)}; "
            f"{missing[0]} is not there, it has: {', '.join(header) or 'none'}"
        )
    wanted = [name for name in (*needed, *optional) if name in header]
    places = {name: header.index(name) for name in wanted}
    columns: dict[str, list[str]] = {name: [] for name in wanted}
    for number, row in enumerate(rows[1:], start=1):
        if any(cell.strip() for cell in row[len(header) :]):  # a caption with a comma would be cut
            raise NNNormError(
                f"{path}: row {number} has {len(row)} cells, the header {len(header)}; put a text "
                'with a comma in quotes, "like, this"'
            )
        for name, place in places.items():
            cell = row[place].strip() if place < len(row) else ""
            if not cell and name in needed:
                raise NNNormError(f"{path}: row {number} has nothing in the column {name}")
            columns[name].append(cell)
    if not rows[1:]:
        raise NNNormError(f"{path} has a header and no rows; is it cut short?")
    return columns
