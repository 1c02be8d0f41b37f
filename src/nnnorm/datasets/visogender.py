"""VisoGender's single-person table: people at work, by occupation and perceived gender.

Its TSV has a row per picture: 23 occupations, each with five pictures of people perceived as
masculine by annotators and five as feminine, and an object that belongs to them. The table gives
the URLs of pictures; downloaded ones are found by number, such as ``OO_1.jpg``. The query for an
occupation is "The {occupation} and their {object}".
"""

import os
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from nnnorm.datasets.pairs import tidy, to_utf8
from nnnorm.errors import NNNormError
from nnnorm.io import read_columns, write_whole

_COLUMNS = ("IDX", "Occupation", "Object", "Occupation_perceived_gender")
GENDERS = ("masculine", "feminine")


@dataclass(frozen=True)
class VisoGender:
    """Pictures in the order of the table, and one query per occupation.

    Attributes
    ----------
    numbers : tuple of str
        Such as ``"OO_1"``.
    images : tuple of str
        Paths; if there is no picture of that number, the expected path.
    occupations, objects, genders : tuple of str
        One per picture; genders are "masculine" or "feminine", as perceived by annotators.
    """

    numbers: tuple[str, ...] = field(repr=False)
    images: tuple[str, ...] = field(repr=False)
    occupations: tuple[str, ...] = field(repr=False)
    objects: tuple[str, ...] = field(repr=False)
    genders: tuple[str, ...] = field(repr=False)

    @cached_property
    def questions(self) -> dict[str, str]:
        """Occupation to its query, in the order of the table.

        If pictures of one occupation name several objects, the most frequent one is used.
        """
        found: dict[str, Counter[str]] = {}
        for occupation, thing in zip(self.occupations, self.objects, strict=True):
            found.setdefault(occupation, Counter())[thing] += 1
        return {
            occupation: f"The {occupation} and their {things.most_common(1)[0][0]}"
            for occupation, things in found.items()
        }

    def without_images(self, rows: list[int]) -> "VisoGender":
        """Return the table without some pictures."""
        gone = set(rows)
        keep = [row for row in range(len(self.images)) if row not in gone]
        names = ("numbers", "images", "occupations", "objects", "genders")
        return VisoGender(*(tuple(getattr(self, name)[row] for row in keep) for name in names))


def read_visogender(
    path: str | os.PathLike[str], images: str | os.PathLike[str] = "."
) -> VisoGender:
    r"""Read VisoGender's table of single-person pictures (OO, "occupation and object").

    Parameters
    ----------
    path : str or PathLike
        A TSV with the columns IDX, Occupation, Object and Occupation_perceived_gender.
    images : str or PathLike
        Folder of the pictures, named after IDX.

    Returns
    -------
    VisoGender

    Examples
    --------
    >>> import pathlib, tempfile
    >>> file = pathlib.Path(tempfile.mkdtemp()) / "OO.tsv"
    >>> rows = ["IDX\tOccupation\tObject\tOccupation_perceived_gender"]
    >>> rows += ["OO_1\tbaker\tmixing_spoon\tmasculine", "OO_2\tbaker\tmixing spoon\tfeminine"]
    >>> _ = file.write_text("\n".join(rows))
    >>> read_visogender(file).questions
    {'baker': 'The baker and their mixing spoon'}
    """
    columns = read_columns(path, _COLUMNS)
    numbers = columns["IDX"]
    if twice := [number for number, times in Counter(numbers).items() if times > 1]:
        raise NNNormError(f"{path}: IDX must be unique, but {twice[0]} stands there twice")
    genders = [gender.lower() for gender in columns["Occupation_perceived_gender"]]
    for number, gender in zip(numbers, genders, strict=True):
        if gender not in GENDERS:
            raise NNNormError(
                f"{path}: {number} has the perceived gender {gender!r}; expected "
                f"{' or '.join(GENDERS)}"
            )
    there = _by_stem(Path(images))
    return VisoGender(
        tuple(numbers),
        tuple(there.get(number, str(Path(images) / f"{number}.jpg")) for number in numbers),
        tuple(_words(occupation) for occupation in columns["Occupation"]),
        tuple(_words(thing) for thing in columns["Object"]),
        tuple(genders),
    )


def save_visogender(visogender: VisoGender, folder: str | os.PathLike[str]) -> tuple[Path, ...]:
    r"""Write ``visogender.tsv``, and lists of its pictures and queries, into a folder.

    Examples
    --------
    >>> import tempfile
    >>> one = VisoGender(("OO_1",), ("OO_1.jpg",), ("baker",), ("spoon",), ("feminine",))
    >>> paths = save_visogender(one, tempfile.mkdtemp())
    >>> paths[2].read_text()
    'The baker and their spoon\n'
    >>> read_visogender(paths[0]).genders
    ('feminine',)
    """
    rows = zip(
        visogender.numbers,
        visogender.occupations,
        visogender.objects,
        visogender.genders,
        strict=True,
    )
    lines = ["\t".join(cells) for cells in (_COLUMNS, *rows)]
    contents = {
        Path(folder) / "visogender.tsv": lines,
        Path(folder) / "visogender-images.txt": visogender.images,
        Path(folder) / "visogender-captions.txt": visogender.questions.values(),
    }
    texts = {path: to_utf8("\n".join(some) + "\n", path.stem) for path, some in contents.items()}
    for path, text in reversed(texts.items()):  # the table last: if it exists, the others do too
        write_whole(path, lambda file, text=text: file.write(text))  # type: ignore[misc]
    return tuple(contents)


def _words(cell: str) -> str:
    return tidy(cell.replace("_", " "))


def _by_stem(folder: Path) -> dict[str, str]:
    if not folder.is_dir():
        return {}
    return {path.stem: str(path) for path in sorted(folder.iterdir()) if path.is_file()}
