"""Files of arrays: `.npy` (memory-mapped), `.npz`, parquet, folders of shards, and URLs.

This module only checks that files can be read; `embeddings.py` checks shapes and values. Nothing is
unpickled. Parquet files need pyarrow (`pip install 'nnnorm[parquet]'`) and a list of floats per
row, whose float type is kept. A fit reads its rows more than once. So fsspec downloads files at a
URL (``s3://``, ``gs://``) to a temporary folder (``TMPDIR``), and parquet files that are too large
for memory are unpacked to a memory-mapped file in that folder.
"""

import contextlib
import glob
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path, PurePath
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, hide_secrets, require, show_url, warn
from nnnorm.files import available_memory, check_memory, check_regular, make_mapped, reading

Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[Any]
# A function that returns the columns to read, given the header.
Choose: TypeAlias = Callable[[list[str]], Sequence[str]]

# One slash is enough, because a Path drops the second one. A single letter is a Windows drive.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)
# Removed when the process ends.
_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []

_SUFFIXES = (".npy", ".npz", ".parquet")
# Names of folders of shards: those of clip-retrieval, and one for audio.
_SHARD_FOLDERS = ("img_emb", "text_emb", "audio_emb")
# Parquet files are unpacked to disk if their size is more than 1/4 of the available memory.
# Compressed embeddings are nearly as large as uncompressed ones.
_LARGE_SHARE = 4
_COLUMN, _IDS = "embedding", "id"
IDS_FILE = "ids.txt"
_BATCH_ROWS = 8192
_LEAST_BYTES = 2  # of the smallest float type, float16


def read_files(source: str | os.PathLike[str], name: str) -> tuple[list[Array], str, Ids | None]:
    """Read a file, the shards of a folder, or the files that match a pattern or URL.

    Return the arrays, the name with the path for messages, and the ids of the rows if any. Shapes
    and values aren't checked.
    """
    path = source.as_posix() if isinstance(source, PurePath) else os.fspath(source)
    url = _URL.match(path)
    if url is None or url[1] == "file":
        if url is not None:
            path = url[2] if Path(url[2]).drive else f"/{url[2]}"  # file:///C:/photos.npy
        name = f"{name} ({path})"
        files = _list_files(Path(path), name)
    else:
        address = f"{url[1]}://{url[2]}"
        name = f"{name} ({show_url(address)})"
        files = _fetch(address, name)
    memory, size = available_memory(), sum(file.stat().st_size for file in files)
    to_disk = memory is not None and size > memory // _LARGE_SHARE
    parts: list[Array] = []
    ids: list[Any] = []
    for file in files:
        if file.name == IDS_FILE:  # written by `nnnorm encode`, one id per line
            ids = file.read_bytes().decode("utf-8", "surrogateescape").split("\n")[:-1]
        elif file.suffix == ".parquet":
            check_regular(file, f"{name}: {file}")
            part, own = _read_parquet(file, name, to_disk)
            parts, ids = [*parts, part], ids + own
        else:
            parts.append(_read_array(file, name))
    has_list = files[-1].name == IDS_FILE
    if not ids and not has_list:
        return parts, name, None
    try:
        return parts, name, check_names(ids, sum(map(len, parts)), "ids", name)
    except NNNormError as error:
        # Otherwise, a column "id" may have been meant for something else.
        if has_list or any(str(one).endswith("\0") for one in ids):
            raise NNNormError(f"{error}; correct {files[-1].name}, or remove its ids") from None
        warn(f"{error}; row numbers are used instead, unless you pass ids")
        return parts, name, None


def _fetch(url: str, name: str) -> list[Path]:
    """Download the files of a URL that would be read from a local folder."""
    fsspec = require("fsspec", "remote")
    folder = _make_temporary()
    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()  # other processes may have written files since it was filled
        # In an https URL, ? starts the query, which may be a signature. It isn't a pattern.
        is_web = re.match("https?:", url) is not None
        parent, _, last = path.partition("?" if is_web else "\0")[0].rstrip("/").rpartition("/")
        if (is_web and Path(last).suffix in _SUFFIXES) or fs.isfile(path):
            files = {folder / last: path}
        else:
            found = fs.find(path) if fs.isdir(path) else [] if is_web else fs.glob(path)
            files = {folder / one[len(parent) :].lstrip("/"): one for one in found}
        for here in files:
            here.parent.mkdir(parents=True, exist_ok=True)
            here.touch()
        chosen = _list_files(folder / last, name)
        for here in chosen:
            fs.get_file(files[here], str(here))
    except NNNormError:
        raise
    except Exception as error:  # each kind of store raises its own errors
        reason = hide_secrets(first_line(error), url)
        raise NNNormError(
            f"{show_url(url)} can't be reached ({reason}); check the URL, that its library "
            "(such as s3fs) is installed, and that its credentials are set"
        ) from (error if reason == first_line(error) and show_url(url) == url else None)
    return chosen


def _make_temporary() -> Path:
    _TEMPORARY.append(tempfile.TemporaryDirectory(prefix="nnnorm-", ignore_cleanup_errors=True))
    return Path(_TEMPORARY[-1].name)


def _list_files(path: Path, name: str) -> list[Path]:
    """Return the file itself, the shards of a folder, or the files of a pattern."""
    check_regular(path, name)
    if path.is_dir():
        shards = _find_shards(path, name)
        names = shards[0].with_name(IDS_FILE)
        return [*shards, names] if shards[0].suffix == ".npy" and names.is_file() else shards
    if path.exists():
        if path.suffix not in _SUFFIXES:
            raise NNNormError(
                f"{name} must be a file with the suffix {', '.join(_SUFFIXES[:-1])} or "
                f"{_SUFFIXES[-1]}, or a folder of such files; got the suffix {path.suffix!r}"
            )
        return [path]
    matches = sorted(path.parent / file for file in glob.glob(path.name, root_dir=path.parent))
    files = [file for file in matches if file.suffix in _SUFFIXES]
    if not files:
        raise NNNormError(f"{name}: there is no such file; check the path")
    numbered = _numbered(files)
    return [file for _, file in numbered] if len(numbered) == len(files) else files


def _find_shards(folder: Path, name: str) -> list[Path]:
    """List the shards of a folder by number: ``img_emb_2`` before ``img_emb_10``."""
    if folder.suffix == ".partial":
        raise NNNormError(
            f"{name} is a folder of unfinished embeddings; run the same nnnorm encode command "
            f"again, which encodes the rest and renames the folder to {folder.stem}"
        )
    shards = _numbered(folder.glob("*.npy")) or _numbered(folder.glob("*.parquet"))
    if not shards:
        found = [folder / sub for sub in _SHARD_FOLDERS if (folder / sub).is_dir()]
        if len(found) == 1:
            return _find_shards(found[0], name)
        choices = " or ".join(map(str, found)) or "a folder such as img_emb/ with img_emb_0.npy, …"
        raise NNNormError(
            f"{name} is a folder without numbered .npy or .parquet shards; expected a file, or "
            f"{choices}"
        )
    numbers = [number for number, _ in shards]
    # Only the first gap: numbers such as dates may be far apart.
    missing = next((a + 1 for a, b in pairwise(numbers) if b > a + 1), None)
    if missing is not None or len(set(numbers)) != len(numbers):
        what = "a number occurs twice" if missing is None else f"number {missing} is missing"
        raise NNNormError(
            f"{name}: the {len(shards)} shards must be numbered without gaps, but {what}; add or "
            "rename files, because rows would no longer match their metadata"
        )
    return [path for _, path in shards]


def _numbered(files: Iterable[Path]) -> list[tuple[int, Path]]:
    """Return the files whose names end in a number, sorted by number."""
    found = ((re.search(r"(\d+)$", file.stem), file) for file in files)
    return sorted((int(match[1]), file) for match, file in found if match)


def _read_array(path: Path, name: str) -> Array:
    if path.suffix == ".npy":
        return map_npy(path, name)
    arrays = read_npz(path, name, only=("embedding", "embeddings"))
    if len(arrays) != 1:
        raise NNNormError(
            f"{name} must contain one array, or one named 'embedding'; got {len(arrays)}: "
            f"{', '.join(arrays) or 'none'}"
        )
    return next(iter(arrays.values()))


def map_npy(path: str | os.PathLike[str], name: str | None = None) -> Array:
    """Map a `.npy` file into memory; if it can't be read, raise an error with the reason."""
    check_regular(path, name and f"{name}: {path}")
    with reading(name or path, ".npy"):
        return np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call,no-any-return,unused-ignore]


def read_npz(
    path: str | os.PathLike[str], name: str | None = None, *, only: Sequence[str] = ()
) -> dict[str, Array]:
    """Read the arrays of a `.npz` file; if some are named in `only`, read only those."""
    check_regular(path, name)
    with reading(name or path, ".npz"), zipfile.ZipFile(path) as archive:
        entries = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        arrays = {}
        for key in [key for key in entries if key in only] or list(entries):
            check_memory(entries[key].file_size, str(name or path))
            with archive.open(entries[key]) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]
        return arrays


# --- parquet -----------------------------------------------------------------------------------


def check_columns(name: object, needed: Sequence[str], header: list[str]) -> None:
    """Raise an error unless a table has each of the needed columns exactly once."""
    for column in needed:
        if column not in header:
            listed = ", ".join(header) or "none"
            hint = "; rename yours, or for a bank, pass column= (--column)"
            raise NNNormError(
                f"{name} must have the column {column}; it has: {listed}"
                f"{hint if column == 'embedding' else ''}"
            )
        if header.count(column) > 1:
            raise NNNormError(f"{name} has the column {column} twice; rename one of them")


@contextlib.contextmanager
def _open_parquet(
    path: Path, name: str, choose: Choose, *, in_parts: bool = False
) -> Iterator[tuple[Any, list[str]]]:
    """Open a parquet file; raise unless its columns, or with `in_parts` a row group, fit in memory.

    Yield the file and the names of the chosen columns.
    """
    require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    # Without pre_buffer, row groups are read one after the other.
    with reading(name, "parquet"), parquet.ParquetFile(path, pre_buffer=False) as file:
        columns = list(choose(file.schema_arrow.names))
        check_columns(name, columns, file.schema_arrow.names)
        sizes = [0]
        for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
            parts = map(group.column, range(group.num_columns))
            found = [part for part in parts if part.path_in_schema.partition(".")[0] in columns]
            unpacked = _LEAST_BYTES * sum(part.num_values for part in found)
            sizes.append(max(unpacked, sum(part.total_uncompressed_size for part in found)))
        check_memory(max(sizes) if in_parts else sum(sizes), name)
        yield file, columns


def read_cells(path: Path, choose: Choose) -> dict[str, list[Any]]:
    """Read columns of a parquet file as Python values."""
    with _open_parquet(path, str(path), choose) as (file, columns):
        table = file.read(columns=columns)
        return {column: table.column(column).to_pylist() for column in columns}


def read_batches(
    path: Path, name: str, choose: Choose, *, in_parts: bool = True
) -> Iterator[tuple[int, Array, dict[str, Any]]]:
    """Yield batches of a parquet file: its number of rows, embeddings, and the other columns.

    The embeddings are in the first of the chosen columns.
    """
    with _open_parquet(path, name, choose, in_parts=in_parts) as (file, columns):
        from pyarrow import types

        column, *others = columns
        kind = file.schema_arrow.field(column).type
        is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
        if not is_list or not types.is_floating(kind.value_type):
            raise NNNormError(f"{name}: column {column!r} must be a list of floats; got {kind}")
        n_rows, start, dim = file.metadata.num_rows, 0, None
        for batch in file.iter_batches(_BATCH_ROWS, columns=columns):
            found = batch.column(column)
            if not len(found):
                continue
            if found.null_count:
                row = start + found.is_valid().to_pylist().index(False)
                raise NNNormError(f"{name}: column {column!r} is empty in row {row}; fill it")
            lengths = np.asarray(found.value_lengths())
            dim = int(lengths[0]) if dim is None else dim
            if len(wrong := np.flatnonzero(lengths != dim)):
                raise NNNormError(
                    f"{name}: all rows of {column!r} must have the same dimension; row "
                    f"{start + wrong[0]} has {lengths[wrong[0]]} numbers, row 0 has {dim}"
                )
            rows = found.flatten().to_numpy(zero_copy_only=False).reshape(len(found), -1)
            yield n_rows, rows, {other: np.asarray(batch.column(other)) for other in others}
            start += len(found)
        if start != n_rows:  # otherwise, the last rows would be uninitialized
            raise ValueError(f"expected {n_rows} rows; got {start}")


def _read_parquet(path: Path, name: str, to_disk: bool) -> tuple[Array, list[Any]]:
    """Read the column `embedding` into memory or a temporary file, and the column `id` if any."""

    def choose(header: list[str]) -> list[str]:
        return [_COLUMN, _IDS] if _IDS in header else [_COLUMN]

    start, ids = 0, list[Any]()
    whole = np.empty((0, 0), dtype=np.float32)
    for n_rows, rows, others in read_batches(path, name, choose, in_parts=to_disk):
        if start == 0 and to_disk:
            place = _make_temporary() / "embedding.npy"
            whole = make_mapped(place, rows.dtype, (n_rows, rows.shape[1]))
        elif start == 0:
            check_memory(n_rows * rows.nbytes // len(rows), name)
            whole = np.empty((n_rows, rows.shape[1]), dtype=rows.dtype)
        whole[start : start + len(rows)] = rows
        start += len(rows)
        for found in others.values():  # `tolist` would convert dates to whole numbers
            ids += list(found) if found.dtype.kind == "M" else found.tolist()
    whole.flags.writeable = False
    return whole, ids


# --- ids ---------------------------------------------------------------------------------------


def check_names(ids: Any, n_items: int, what: str, name: str) -> Ids:
    """Return ids or parents as an array of int64 or str; raise unless there is one per item."""
    # In an object array, the 1 of ["a", 1] stays a number; numpy would convert it to a string.
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    values = array.tolist()
    problem = f"expected {n_items:,}, got {array.size:,}"
    if array.ndim != 1:
        problem = f"pass a list; got shape {array.shape}"
    elif len(array) == n_items:
        texts = [value for value in values if isinstance(value, str)]
        kinds = (str, int, np.integer)
        wrong = [one for one in values if isinstance(one, bool) or not isinstance(one, kinds)]
        cut = [text for text in texts if text.endswith("\0")]
        halves = [text for text in texts if text.encode(errors="ignore").decode() != text]
        if wrong:
            problem = f"got {wrong[0]!r}"
        elif cut:
            problem = f"{cut[0]!r} ends with a NUL character, which numpy drops"
        elif halves:
            problem = f"{halves[0]!r:.60} isn't valid UTF-8"
        elif 0 < len(texts) < n_items:
            problem = f"{texts[0]!r} is a string, so pass all of them as strings"
        else:
            with contextlib.suppress(OverflowError):
                return np.array(values, dtype=str if texts else np.int64)
            problem = "a number doesn't fit in a signed 64-bit integer, so pass strings"
    raise NNNormError(f"{what} must be one whole number or string per item of {name}; {problem}")
