"""Images, sounds and captions inside other files, read in place and never extracted.

A tar file of webdataset or img2dataset holds samples: members that share the part of their name
before the first dot, the *key* (`000017.jpg`, `000017.txt`, `000017.json`). A folder written by
`save_to_disk` of Hugging Face's datasets holds Arrow files, which are mapped and read by pyarrow.
Of either, only the positions of images and sounds are kept: `Stored.read` reads one when its turn
comes.
"""

import json
import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io import read_json

_BLOCK = 512  # bytes of a block of a tar file
_RANGE = re.compile(r"\{(\d+)\.\.(\d+)\}")


@dataclass(frozen=True)
class Stored:
    """A file inside another file.

    Attributes
    ----------
    container : Path
        The file on disk.
    name : str
        The name inside of it.
    start, size : int
        Position and number of bytes.

    Examples
    --------
    >>> print(Stored(Path("00000.tar"), "000017.jpg", 512, 9))
    00000.tar/000017.jpg
    """

    container: Path
    name: str
    start: int
    size: int

    def __str__(self) -> str:
        return f"{self.container}/{self.name}"

    def read(self) -> bytes:
        """Return the bytes."""
        try:
            with open(self.container, "rb") as file:
                file.seek(self.start)
                found = file.read(self.size)
        except OSError as error:
            raise NNNormError(f"{self} can't be read ({error.strerror}); check it") from error
        if len(found) < self.size:
            raise NNNormError(f"{self}: {self.container} ends early; copy or download it again")
        return found


class Sample(NamedTuple):
    """The members of a tar file that share a key, by their suffix (``".jpg"``)."""

    key: str
    members: dict[str, Stored]


def expand_ranges(pattern: str) -> list[Path]:
    """Expand ranges of numbers in a path, as in the names of webdataset's files.

    Examples
    --------
    >>> [str(path) for path in expand_ranges("part-{08..10}.tar")]
    ['part-08.tar', 'part-09.tar', 'part-10.tar']
    """
    found = _RANGE.search(pattern)
    if found is None:
        return [Path(pattern)]
    first, last = found.groups()
    if int(first) > int(last):
        raise NNNormError(
            f"{pattern}: the range {found[0]} runs backwards; write the smaller first"
        )
    head, tail = pattern[: found.start()], pattern[found.end() :]
    numbers = (f"{number:0{len(first)}d}" for number in range(int(first), int(last) + 1))
    return [path for number in numbers for path in expand_ranges(f"{head}{number}{tail}")]


def read_samples(path: Path) -> list[Sample]:
    """List the samples of a tar file in their order; the data of the members are not read.

    Examples
    --------
    >>> read_samples(Path("nowhere.tar"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no file nowhere.tar; check the path
    """
    if not path.is_file():
        raise NNNormError(f"there is no file {path}; check the path")
    samples: dict[str, Sample] = {}
    try:
        with tarfile.open(path, "r:") as tar:
            for member in tar:
                _add_member(samples, path, member)
            _check_end(path, tar.offset)
    except (tarfile.TarError, OSError, ValueError) as error:
        is_cut = re.search("unexpected end|truncated", str(error)) is not None
        if is_cut and path.stat().st_size >= _BLOCK:
            raise NNNormError(_ends_early(path)) from error
        raise NNNormError(
            f"{path} can't be read as a tar file ({first_line(error)}); is it compressed, cut "
            "short, or another kind of file?"
        ) from error
    if not samples:
        raise NNNormError(f"{path} has no samples; expected members such as 000017.jpg, 000017.txt")
    return list(samples.values())


def read_caption(sample: Sample, column: str | None) -> str:
    """Return the caption of a sample: its ``.txt``, or a key of its ``.json``.

    Examples
    --------
    >>> read_caption(Sample("17", {}), None)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: sample 17 has no .txt; name a key of its .json with --text-column
    """
    suffix = ".txt" if column is None else ".json"
    member = sample.members.get(suffix)
    if member is None:
        other = "; name a key of its .json with --text-column" if column is None else ""
        raise NNNormError(f"sample {sample.key} has no {suffix}{other}")
    try:
        text = member.read().decode("utf-8-sig")
        found = text if column is None else json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NNNormError(f"{member} can't be read ({first_line(error)}); is it UTF-8?") from error
    if column is not None:
        if not isinstance(found, dict) or not isinstance(found.get(column), str):
            there = ", ".join(found) if isinstance(found, dict) else type(found).__name__
            raise NNNormError(
                f"{member} has no text under {column!r}; it has: {there or 'nothing'}"
            )
        found = found[column]
    caption = " ".join(str(found).split())
    if not caption:
        raise NNNormError(f"{member} is empty; remove its sample, or give it a caption")
    return caption


def is_saved_dataset(folder: Path) -> bool:
    """Whether a folder was written by `save_to_disk` of Hugging Face's datasets.

    Examples
    --------
    >>> is_saved_dataset(Path("nowhere"))
    False
    """
    return any((folder / name).is_file() for name in ("state.json", "dataset_dict.json"))


def read_saved_texts(folder: Path, column: str | None) -> list[str]:
    """Read a column of texts of a folder written by `save_to_disk`.

    Examples
    --------
    >>> read_saved_texts(Path("coco/train"), "caption")  # doctest: +SKIP
    ['a cat', ...]
    """
    texts: list[str] = []
    for _, _, batch in _batches(folder):
        name = _choose(folder, batch, column, _is_text)
        for text in batch.column(name).to_pylist():
            if not isinstance(text, str) or not text.strip():
                raise NNNormError(f"{folder}: row {len(texts)} has no text in the column {name}")
            texts.append(text)
    return _not_empty(texts, folder)


def list_saved_files(folder: Path, column: str | None) -> list[Any]:
    """List the images or sounds of a column of a folder written by `save_to_disk`.

    Examples
    --------
    >>> list_saved_files(Path("coco/train"), "image")  # doctest: +SKIP
    [Stored(container=..., name='000017.jpg', start=4096, size=71223), ...]
    """
    items: list[Any] = []
    for path, whole, batch in _batches(folder):
        name = _choose(folder, batch, column, _holds_files)
        values, names = batch.column(name), None
        if _is_struct(values.type):
            values, names = values.field("bytes"), values.field("path").to_pylist()
        if _is_text(values.type):
            items += [folder / text for text in values.to_pylist()]
            continue
        try:
            places = _places(values, whole)
        except ValueError as error:
            raise NNNormError(f"{path} can't be read in place: {error}") from error
        for row, place in enumerate(places):
            label = (names[row] if names else None) or f"row {len(items)}"
            if place is None and names and names[row]:
                items.append(folder / names[row])
            elif place is None:
                raise NNNormError(f"{folder}: row {len(items)} has nothing in the column {name}")
            else:
                items.append(Stored(path, label, *place))
    return _not_empty(items, folder)


def _not_empty(items: list[Any], folder: Path) -> list[Any]:
    if not items:
        raise NNNormError(f"{folder} has no rows; is it cut short?")
    return items


def _add_member(samples: dict[str, Sample], path: Path, member: tarfile.TarInfo) -> None:
    name = member.name.removeprefix("./")
    if name.startswith(("/", "\\")) or ".." in re.split(r"[/\\]", name):
        raise NNNormError(
            f"{path} has a member whose name leaves the folder ({member.name!r}); such a tar file "
            "is not to be trusted: make it again"
        )
    if member.isdir():
        return
    if not member.isreg() or member.issparse():
        raise NNNormError(f"{path}: {name} is a link, a device or a sparse file; store plain files")
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    if not (stem and dot and suffix):  # as in webdataset: no key, or no suffix
        return
    sample = samples.setdefault(f"{folder}{slash}{stem}", Sample(f"{folder}{slash}{stem}", {}))
    suffix = f".{suffix.lower()}"
    if suffix in sample.members:
        raise NNNormError(f"{path} has {name} twice; keep one of them")
    sample.members[suffix] = Stored(path, name, member.offset_data, member.size)


def _check_end(path: Path, place: int) -> None:
    """Raise unless a block of zeros marks the end, which a file cut between members lacks."""
    with open(path, "rb") as file:
        file.seek(place)
        if file.read(_BLOCK) != bytes(_BLOCK):
            raise NNNormError(_ends_early(path))


def _ends_early(path: Path) -> str:
    return f"{path} ends early, or is damaged; copy or download it again"


def _batches(folder: Path) -> Iterator[tuple[Path, Any, Any]]:
    """Map the Arrow files of a folder; yield the path, the whole file and a batch of rows."""
    pyarrow = require("pyarrow", "parquet")
    ipc = require("pyarrow.ipc", "parquet")
    for path in _arrow_files(folder):
        try:
            with pyarrow.memory_map(str(path)) as mapped:
                whole = mapped.read_buffer()
                try:
                    reader = ipc.open_stream(pyarrow.BufferReader(whole))
                except pyarrow.ArrowInvalid:
                    reader = ipc.open_file(pyarrow.BufferReader(whole))
                    reader = (reader.get_batch(n) for n in range(reader.num_record_batches))
                for batch in reader:
                    yield path, whole, batch
        except (pyarrow.ArrowException, OSError, ValueError) as error:
            raise NNNormError(
                f"{path} can't be read as an Arrow file ({first_line(error)}); is it cut short?"
            ) from error


def _arrow_files(folder: Path) -> list[Path]:
    if (folder / "dataset_dict.json").is_file():
        splits = read_json(folder / "dataset_dict.json", "the splits of a saved data set")
        there = splits.get("splits", []) if isinstance(splits, dict) else []
        first = there[0] if there else "train"
        raise NNNormError(
            f"{folder} has the splits {', '.join(map(str, there)) or 'none'}; name the folder of "
            f"one of them, such as {folder / str(first)}"
        )
    state = read_json(folder / "state.json", "the state of a saved data set")
    listed = state.get("_data_files") if isinstance(state, dict) else None
    found = [one.get("filename") for one in listed or [] if isinstance(one, dict)]
    names = [name for name in found if isinstance(name, str) and Path(name).name == name]
    if not names or names != found:
        raise NNNormError(f"{folder}: its state.json names no Arrow files beside it; save it again")
    if state.get("_indices_data_files"):
        raise NNNormError(
            f"{folder} is a selection of other rows; call flatten_indices() before save_to_disk()"
        )
    for name in names:
        if not (folder / name).is_file():
            raise NNNormError(f"{folder}: there is no {name}, which its state.json names")
    return [folder / name for name in names]


def _choose(folder: Path, batch: Any, column: str | None, fits: Any) -> str:
    """Return the column to read: the named one, or the only one of the kind."""
    header = list(batch.schema.names)
    fitting = [name for name in header if fits(batch.schema.field(name).type)]
    if column is None and len(fitting) == 1:
        return str(fitting[0])
    if column is None or column not in header:
        wanted = "name a column" if column is None else f"there is no column {column!r}"
        raise NNNormError(f"{folder}: {wanted}; it has: {', '.join(header) or 'none'}")
    if column not in fitting:
        kind = batch.schema.field(column).type
        raise NNNormError(f"{folder}: the column {column} is of type {kind}, which can't be used")
    return column


def _is_text(kind: Any) -> bool:
    types = require("pyarrow.types", "parquet")
    return bool(types.is_string(kind) or types.is_large_string(kind))


def _is_bytes(kind: Any) -> bool:
    types = require("pyarrow.types", "parquet")
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


def _is_struct(kind: Any) -> bool:
    """Whether a column holds images or sounds as datasets stores them: bytes, or a path."""
    if not require("pyarrow.types", "parquet").is_struct(kind):
        return False
    names = [kind.field(number).name for number in range(kind.num_fields)]
    return {"bytes", "path"} <= set(names) and _is_bytes(kind.field(names.index("bytes")).type)


def _holds_files(kind: Any) -> bool:
    return _is_struct(kind) or _is_bytes(kind) or _is_text(kind)


def _places(values: Any, whole: Any) -> Sequence[tuple[int, int] | None]:
    """Positions in the mapped file of the values of a column of bytes."""
    wide = require("pyarrow.types", "parquet").is_large_binary(values.type)
    _, offsets, data = values.buffers()
    if data is None or values.null_count == len(values):
        return [None] * len(values)
    ends = np.frombuffer(offsets, dtype=np.int64 if wide else np.int32)
    ends = ends[values.offset : values.offset + len(values) + 1].astype(np.int64)
    first = data.address - whole.address
    if first < 0 or first + int(ends[-1]) > whole.size:
        raise ValueError("it is compressed; save the data set without compression")
    is_there = values.is_valid().to_pylist()
    return [
        (first + int(ends[row]), int(ends[row + 1] - ends[row])) if is_there[row] else None
        for row in range(len(values))
    ]
