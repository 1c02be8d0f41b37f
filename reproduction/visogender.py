"""VisoGender: people at work, by occupation and perceived gender, and the paper's audit of them.

The single-person table (OO) has a row per picture: 23 occupations, each with five people perceived
as masculine by annotators and five as feminine, and an object. Pictures are given by URL;
downloaded ones are found by number, such as ``OO_1.jpg``. The query for an occupation is "The
{occupation} and their {object}"; all pictures together are the gallery.
"""

from collections import Counter
from pathlib import Path
from typing import NamedTuple

from nnnorm import NNNormError
from nnnorm.files import write_whole
from nnnorm.tables import read_columns

GENDERS = ("masculine", "feminine")
_COLUMNS = ("IDX", "Occupation", "Object", "Occupation_perceived_gender")


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
    return VisoGender(
        tuple(numbers),
        tuple(there.get(number, str(images / f"{number}.jpg")) for number in numbers),
        tuple(_words(occupation) for occupation in columns["Occupation"]),
        tuple(_words(thing) for thing in columns["Object"]),
        tuple(genders),
    )


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


def _words(cell: str) -> str:
    return " ".join(cell.replace("_", " ").split())
