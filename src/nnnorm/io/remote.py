"""Files and folders behind a URL, through fsspec: ``s3://``, ``gs://``, ``hdfs://``, ``memory://``.

Needs fsspec (`pip install 'nnnorm[remote]'`) and, per kind of URL, what fsspec asks for: s3fs,
gcsfs, pyarrow. `RemotePath` has the few properties of `pathlib.Path` that reading shards needs, so
that a folder of shards is listed in one way wherever it is. Rows of `.npy` files are read by byte
ranges, and those of parquet files by row groups, when they are asked for.
"""

import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.io.urls import hide_secrets, show_url

# A path on this machine, or behind a URL.
Place: TypeAlias = "Path | RemotePath"
# A Path has lost the second slash of a URL. One letter is a drive of Windows.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)
_HEADER_BYTES = 4096
# Names by which stores of fsspec tell the version or the time of a file, the surest first.
_STAMPS = (
    *("ETag", "etag", "md5Hash", "mtime", "modified", "LastModified", "last_modified"),
    *("modify", "created"),
)


class RemotePath:
    """A file or folder behind a URL; as text it is written without a password.

    Parameters
    ----------
    url : str
        Such as ``"s3://bucket/img_emb"``.
    """

    def __init__(self, url: str) -> None:
        self.url = url

    def __fspath__(self) -> str:
        return self.url

    def __str__(self) -> str:
        return show_url(self.url)

    def __repr__(self) -> str:
        return f"RemotePath({str(self)!r})"

    def __truediv__(self, name: str) -> "RemotePath":
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The last component."""
        return PurePosixPath(self.url).name

    @property
    def stem(self) -> str:
        """The last component without its suffix."""
        return PurePosixPath(self.url).stem

    @property
    def suffix(self) -> str:
        """The suffix, such as ``".npy"``."""
        return PurePosixPath(self.url).suffix

    def is_dir(self) -> bool:
        """Whether it is a folder."""
        return bool(self._ask(lambda fs, path: fs.isdir(path)))

    def is_file(self) -> bool:
        """Whether it is a file."""
        return bool(self._ask(lambda fs, path: fs.isfile(path)))

    def exists(self) -> bool:
        """Whether anything is there."""
        return bool(self._ask(lambda fs, path: fs.exists(path)))

    def iterdir(self) -> "Iterator[RemotePath]":
        """The files of a folder; none where there is no folder."""
        try:
            found = self._ask(lambda fs, path: fs.ls(path, detail=False))
        except FileNotFoundError:
            return
        for path in found:
            yield self / PurePosixPath(path.rstrip("/")).name

    def glob(self) -> "list[RemotePath]":
        """The files that match the pattern in the last component."""
        scheme = self.url.partition("://")[0]
        found = self._ask(lambda fs, path: [fs.unstrip_protocol(one) for one in fs.glob(path)])
        return [RemotePath(one if "://" in one else f"{scheme}://{one}") for one in sorted(found)]

    def size(self) -> int:
        """Number of bytes."""
        return int(self._ask(lambda fs, path: fs.size(path)))

    def stamp(self) -> tuple[int, str | None]:
        """Number of bytes, and what the store has that changes when the file is written."""
        about = self._ask(lambda fs, path: fs.info(path))
        found = [str(about[key]) for key in _STAMPS if about.get(key) is not None]
        return int(about["size"]), found[0] if found else None

    def read(self, start: int, stop: int) -> bytes:
        """Read a range of bytes."""
        return bytes(self._ask(lambda fs, path: fs.cat_file(path, start=start, end=stop)))

    def read_ranges(self, starts: list[int], stops: list[int]) -> list[bytes]:
        """Read several ranges of bytes, side by side where the file system can do that."""
        paths = len(starts)
        found = self._ask(lambda fs, path: fs.cat_ranges([path] * paths, starts, stops))
        for one in found:
            if isinstance(one, Exception):
                raise one
        return [bytes(one) for one in found]

    def open(self) -> BinaryIO:
        """Open the file to read from any place in it."""
        return self._ask(lambda fs, path: fs.open(path, "rb"))

    def fetch(self, target: Path) -> None:
        """Copy the file to this machine."""
        self._ask(lambda fs, path: fs.get_file(path, str(target)))

    def send(self, source: Path) -> None:
        """Copy a file of this machine to here; object stores show it whole or not at all."""

        def put(fs: Any, path: str) -> None:
            with suppress(OSError, NotImplementedError):  # stores without folders need none
                fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            fs.put_file(str(source), path)

        self._ask(put)

    def _ask(self, question: Callable[[Any, str], Any]) -> Any:
        fsspec = require("fsspec", "remote")
        try:
            fs, path = fsspec.core.url_to_fs(self.url)
            # What another process wrote since must be seen.
            fs.invalidate_cache()
            return question(fs, path)
        except FileNotFoundError:
            raise
        except Exception as error:  # every kind of store raises its own
            reason = hide_secrets(first_line(error), self.url)
            raise NNNormError(
                f"{self} can't be reached ({reason}); check the URL, and that its library (such "
                "as s3fs) and its credentials are there"
            ) from error


def find_place(path: str | os.PathLike[str]) -> Place:
    """The place that a path or a URL names.

    Examples
    --------
    >>> find_place("memory://shards/gallery"), find_place(Path("s3://bucket/gallery")).name
    (RemotePath('memory://shards/gallery'), 'gallery')
    """
    text = os.fspath(path)
    match = _URL.match(text) if isinstance(text, str) else None
    if match is None:
        return Path(text)
    scheme, rest = match.groups()
    return Path(f"/{rest}") if scheme == "file" else RemotePath(f"{scheme}://{rest}")


def check_local(path: str | os.PathLike[str], what: str) -> Path:
    """Return the path of what is written here only; raise for a URL.

    Examples
    --------
    >>> check_local("s3://bucket/bias", "a bias")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a bias is written to this machine only; got s3://bucket/bias: ...
    """
    place = find_place(path)
    if isinstance(place, RemotePath):
        raise NNNormError(
            f"{what} is written to this machine only; got {place}: give a path here, and copy it "
            "there afterwards"
        )
    return place


def stamp_of(place: Place) -> tuple[int, str | None]:
    """Size of a file, and its version or the time it was written, where that is known.

    Examples
    --------
    >>> _ = Path("five.txt").write_text("bytes")
    >>> stamp_of(Path("five.txt"))[0]
    5
    """
    if isinstance(place, RemotePath):
        return place.stamp()
    about = place.stat()
    return about.st_size, str(about.st_mtime_ns)


@contextmanager
def fetched(place: Place) -> Iterator[Path]:
    """A file as a file of this machine: itself, or a copy that is removed afterwards.

    Examples
    --------
    >>> with fetched(Path("here.npy")) as path:
    ...     path.name
    'here.npy'
    """
    if isinstance(place, Path):
        yield place
        return
    with tempfile.TemporaryDirectory(prefix="nnnorm-") as folder:
        target = Path(folder) / place.name
        place.fetch(target)
        yield target


def save_at(place: Place, write: Callable[[Path], object]) -> None:
    """Write a file with `write`, which is given a path of this machine, and put it in its place.

    Examples
    --------
    >>> save_at(Path("note.txt"), lambda path: path.write_text("whole"))
    >>> Path("note.txt").read_text()
    'whole'
    """
    if isinstance(place, Path):
        write(place)
        return
    with tempfile.TemporaryDirectory(prefix="nnnorm-") as folder:
        source = Path(folder) / place.name
        write(source)
        place.send(source)


class RemoteRows:
    """Rows of a remote `.npy` file, read when they are asked for.

    Parameters
    ----------
    path : RemotePath
    name : str
        The name in messages.
    first, last : int, optional
        The rows; by default all.
    """

    ndim = 2

    def __init__(
        self, path: RemotePath, name: str, first: int = 0, last: int | None = None
    ) -> None:
        self._path, self._name = path, name
        self._offset, (n_rows, dim), self.dtype = _read_header(path, name)
        self._first = first
        self.shape = (n_rows if last is None else last) - first, dim

    def __len__(self) -> int:
        return self.shape[0]

    def section(self, start: int, stop: int) -> "RemoteRows":
        """Some consecutive rows, not yet read."""
        return RemoteRows(self._path, self._name, self._first + start, self._first + stop)

    def __getitem__(self, rows: Any) -> npt.NDArray[Any]:
        width = self.shape[1] * self.dtype.itemsize
        if isinstance(rows, slice):
            start, stop, _ = rows.indices(len(self))
            start, stop = (self._offset + (self._first + row) * width for row in (start, stop))
            pieces = [self._path.read(start, max(start, stop))] if stop > start else [b""]
        else:
            starts = [self._offset + (self._first + int(row)) * width for row in rows]
            pieces = self._path.read_ranges(starts, [start + width for start in starts])
        blob = b"".join(pieces)
        if len(blob) % width:
            raise NNNormError(f"{self._name} is cut short ({self._path}); copy it there again")
        return np.frombuffer(blob, self.dtype).reshape(-1, self.shape[1])


def _read_header(path: RemotePath, name: str) -> tuple[int, tuple[int, int], np.dtype[Any]]:
    """Where the values of a `.npy` file begin, their shape and their type."""
    import io

    file = io.BytesIO(path.read(0, _HEADER_BYTES))
    try:
        version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call,unused-ignore]
        read = {
            (1, 0): np.lib.format.read_array_header_1_0,
            (2, 0): np.lib.format.read_array_header_2_0,
        }[version]
        shape, is_fortran, dtype = read(file)  # type: ignore[no-untyped-call,unused-ignore]
        if is_fortran or dtype.hasobject or len(shape) != 2:
            raise ValueError(f"expected rows of floats, got shape {shape} of {dtype}")
        if path.size() < file.tell() + shape[0] * shape[1] * dtype.itemsize:
            raise ValueError("it is cut short")
    except Exception as error:  # numpy parses the header with ast and tokenize
        raise NNNormError(
            f"{name} can't be read as .npy ({path}: {first_line(error)}); is it cut short, or "
            "another kind of file?"
        ) from error
    return file.tell(), (int(shape[0]), int(shape[1])), dtype
