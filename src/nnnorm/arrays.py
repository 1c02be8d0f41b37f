"""Files of arrays: `.npy` (memory-mapped), `.npz`, parquet, folders of shards, and URLs.

This module only checks that files can be read; `embeddings.py` checks shapes and values. Nothing is
unpickled. Parquet needs pyarrow (`pip install 'nnnorm[parquet]'`): embeddings are a list of floats
per row, and keep the float type of the file. A fit reads its rows more than once. So fsspec copies
files at a URL (``s3://``, ``gs://``) to a temporary folder (``TMPDIR``), and parquet files that are
too large for memory are unpacked there to a memory-mapped file.
"""

import contextlib
import glob
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, hide_secrets, require, show_url, warn
from nnnorm.files import available_memory, check_memory, check_regular, make_mapped, unreadable

Array: TypeAlias = npt.NDArray[Any]
Ids: TypeAlias = npt.NDArray[Any]

# A Path drops the second slash of a URL. A single letter is a Windows drive.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)
# Removed when the process ends.
_TEMPORARY: list[tempfile.TemporaryDirectory[str]] = []

_SUFFIXES = (".npy", ".npz", ".parquet")
# Folders that hold shards of embeddings: clip-retrieval's names, and one for sounds.
_SHARD_FOLDERS = ("img_emb", "text_emb", "audio_emb")
# Parquet files of more than one part in this many of the memory are unpacked to disk. Packed
# embeddings take most of the bytes of unpacked ones.
_LARGE_SHARE = 4
_COLUMN, _IDS = "embedding", "id"
IDS_FILE = "ids.txt"
_BATCH_ROWS = 8192
_LEAST_BYTES = 2  # of a value: float16


def read_files(source: str | os.PathLike[str], name: str) -> tuple[list[Array], str, Ids | None]:
    """Read a file, the shards of a folder, or the files of a pattern or URL, without checks.

    Returns the arrays, the path to show in messages, and the ids of the rows, if any.
    """
    path = os.fspath(source)
    url = _URL.match(path)
    if url is None or url[1] == "file":
        if url is not None:
            path = url[2] if Path(url[2]).drive else f"/{url[2]}"  # file:///C:/photos.npy
        full = f"{name} ({path})"
        files = _list_files(Path(path), full)
    else:
        address = f"{url[1]}://{url[2]}"
        path = show_url(address)
        full = f"{name} ({path})"
        files = _fetch(address, full)
    there, size = available_memory(), sum(file.stat().st_size for file in files)
    to_disk = there is not None and size > there // _LARGE_SHARE
    read = [_read_file(file, full, to_disk) for file in files if file.name != IDS_FILE]
    parts = [part for part, _ in read]
    if files[-1].name == IDS_FILE:
        return parts, path, _read_names(files[-1], sum(map(len, parts)), full)
    return parts, path, _join_ids([ids for _, ids in read], full)


def _fetch(url: str, name: str) -> list[Path]:
    """Copy the files of a URL that would be read from a local folder."""
    fsspec = require("fsspec", "remote")
    folder = _make_temporary()
    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()  # see what other processes have written
        # The ? of an https URL starts its query, which may be a signature; it isn't a pattern.
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
            f"{show_url(url)} can't be reached ({reason}); check the URL, and that its library "
            "(such as s3fs) and its credentials are there"
        ) from (error if reason == first_line(error) and show_url(url) == url else None)
    return chosen


def _make_temporary() -> Path:
    _TEMPORARY.append(tempfile.TemporaryDirectory(prefix="nnnorm-", ignore_cleanup_errors=True))
    return Path(_TEMPORARY[-1].name)


def _list_files(path: Path, name: str) -> list[Path]:
    """Return the file itself, the shards of a folder, or the files of a pattern."""
    check_regular(path, name)
    if path.is_dir():
        shards = find_shards(path, name)
        names = shards[0].with_name(IDS_FILE)  # of `nnnorm encode`
        return [*shards, names] if shards[0].suffix == ".npy" and names.is_file() else shards
    if path.exists():
        if path.suffix not in _SUFFIXES:
            raise NNNormError(
                f"{name}: expected one of {', '.join(_SUFFIXES)} or a folder of them; "
                f"got the suffix {path.suffix!r}"
            )
        return [path]
    matches = sorted(path.parent / file for file in glob.glob(path.name, root_dir=path.parent))
    files = [file for file in matches if file.suffix in _SUFFIXES]
    if not files:
        raise NNNormError(f"{name}: there is no such file; check the path")
    numbered = _numbered(files)
    return [file for _, file in numbered] if len(numbered) == len(files) else files


def find_shards(folder: Path, name: str) -> list[Path]:
    """List the shards of a folder by their numbers: ``img_emb_2`` before ``img_emb_10``."""
    if folder.suffix == ".partial":
        raise NNNormError(
            f"{name} is a folder of unfinished embeddings; run the same nnnorm encode command "
            f"again, which finishes it and names it {folder.stem}"
        )
    shards = _numbered(folder.glob("*.npy")) or _numbered(folder.glob("*.parquet"))
    if not shards:
        found = [sub for sub in _SHARD_FOLDERS if (folder / sub).is_dir()]
        if len(found) == 1:
            return find_shards(folder / found[0], name)
        if found:
            choices = " or ".join(str(folder / sub) for sub in found)
            raise NNNormError(f"{name} holds both kinds of embeddings; pass {choices}")
        raise NNNormError(
            f"{name} is a folder without numbered .npy or .parquet shards; "
            "expected a file, or a folder such as img_emb/ with img_emb_0.npy, img_emb_1.npy, …"
        )
    numbers = [number for number, _ in shards]
    # Only the first gap: numbers such as dates may be far apart.
    missing = next((a + 1 for a, b in pairwise(numbers) if b > a + 1), None)
    if missing is not None or len(set(numbers)) != len(numbers):
        what = "a number occurs twice" if missing is None else f"number {missing} is missing"
        raise NNNormError(
            f"{name}: the {len(shards)} shards must be numbered without gaps, but {what}; "
            "rows would be shifted against their metadata"
        )
    return [path for _, path in shards]


def _numbered(files: Iterable[Path]) -> list[tuple[int, Path]]:
    """The files whose names end in a number, by their numbers."""
    found = ((re.search(r"(\d+)$", file.stem), file) for file in files)
    return sorted((int(match[1]), file) for match, file in found if match)


def _read_file(path: Path, name: str, to_disk: bool) -> tuple[Array, list[Any] | None]:
    check_regular(path, f"{name}: {path}")
    try:
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r"), None  # type: ignore[no-untyped-call,no-any-return,unused-ignore]
        if path.suffix == ".npz":
            (array,) = read_npz(path, only=("embedding", "embeddings"), name=name).values()
            return array, None
    except NNNormError:
        raise
    except Exception as error:  # numpy, zipfile, zlib and tokenize raise their own errors
        if isinstance(error, ValueError) and "object" in str(error).lower():
            raise NNNormError(
                f"{name} holds Python objects, which are never unpickled; "
                "save a float array with numpy.save"
            ) from error
        raise unreadable(name, path.suffix, error) from error
    return _read_parquet(path, name, to_disk)


def read_npz(
    path: str | os.PathLike[str], *, only: Sequence[str] = (), name: str | None = None
) -> dict[str, Array]:
    """Read the arrays of a `.npz` file: all, or the only one, or the one with one of the names."""
    check_regular(path, name)
    with zipfile.ZipFile(path) as archive:
        entries = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        keys = [key for key in entries if key in only] or list(entries)
        if only and len(keys) != 1:
            raise NNNormError(
                f"{name} must hold one array, or one named {only[0]!r}; "
                f"got {len(entries)}: {', '.join(entries) or 'none'}"
            )
        arrays = {}
        for key in keys:
            check_memory(entries[key].file_size, str(name or path))
            with archive.open(entries[key]) as file:
                arrays[key] = np.lib.format.read_array(file, allow_pickle=False)  # type: ignore[no-untyped-call,unused-ignore]
        return arrays


def read_npy(path: str | os.PathLike[str]) -> Array:
    """Read a whole `.npy` file; raise a `ValueError` or `OSError` if it can't be read."""
    check_regular(path)
    try:
        return np.array(np.lib.format.open_memmap(path, mode="r"))  # type: ignore[no-untyped-call,unused-ignore]
    except (OSError, ValueError):
        raise
    except Exception as error:  # numpy parses the header with ast and tokenize
        raise ValueError(first_line(error)) from error


# --- parquet -----------------------------------------------------------------------------------


@contextlib.contextmanager
def _open_parquet(path: Path, name: str) -> Iterator[Any]:
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    try:
        with parquet.ParquetFile(path, pre_buffer=False) as file:  # not all of it at once
            yield file
    except NNNormError:
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        raise unreadable(name, "parquet", error) from error


def check_columns(name: object, needed: Sequence[str], header: list[str]) -> None:
    """Raise unless a table has each of some columns once."""
    for column in needed:
        if column not in header:
            raise NNNormError(
                f"{name} needs the column {column}; {column} is not there, it has: "
                f"{', '.join(header) or 'none'}"
            )
        if header.count(column) > 1:
            raise NNNormError(f"{name} has the column {column} twice; rename one of them")


def read_cells(path: Path, choose: Callable[[list[str]], Sequence[str]]) -> dict[str, list[Any]]:
    """Read columns of a parquet file as Python values; `choose` names them, given the header."""
    with _open_parquet(path, str(path)) as file:
        chosen = list(choose(file.schema_arrow.names))
        check_columns(path, chosen, file.schema_arrow.names)
        check_memory(sum(_announced(file, chosen)), str(path))
        table = file.read(columns=chosen)
        return {column: table.column(column).to_pylist() for column in chosen}


def read_batches(
    path: Path, column: str, others: Sequence[str]
) -> Iterator[tuple[Array, dict[str, Any]]]:
    """Read embeddings and other columns of a parquet file in batches."""
    with _open_parquet(path, str(path)) as file:
        sizes = _announced(file, (column, *others))
        check_memory(max(sizes, default=0), f"a row group of {path}")
        for rows, batch in _embedding_batches(file, str(path), column, others):
            yield rows, {name: np.asarray(batch.column(name)) for name in others}


def _read_parquet(path: Path, name: str, to_disk: bool) -> tuple[Array, list[Any] | None]:
    """Read the column `embedding` into memory or a temporary file, and a column `id`."""
    with _open_parquet(path, name) as file:
        if not to_disk:
            check_memory(sum(_announced(file, (_COLUMN, _IDS))), name)
        others = [_IDS] if _IDS in file.schema_arrow.names else []
        n_rows, start = file.metadata.num_rows, 0
        ids: list[Any] = []
        whole = np.empty((0, 0), dtype=np.float32)
        for rows, batch in _embedding_batches(file, name, _COLUMN, others):
            if start == 0:
                shape = n_rows, rows.shape[1]
                if to_disk:
                    place = _make_temporary() / "embedding.npy"
                    whole = make_mapped(place, rows.dtype, shape)
                else:
                    check_memory(n_rows * rows.nbytes // len(rows), name)
                    whole = np.empty(shape, dtype=rows.dtype)
            whole[start : start + len(rows)] = rows
            start += len(rows)
            ids += batch.column(_IDS).to_pylist() if others else []
        if start != n_rows:  # rows that weren't read must not be used as embeddings
            raise ValueError(f"{n_rows} rows announced, {start} found")
        whole.flags.writeable = False
        return whole, ids if others else None


def _embedding_batches(
    file: Any, name: str, column: str, others: Sequence[str]
) -> Iterator[tuple[Array, Any]]:
    """Embeddings, and the batch that they are a column of, with some other columns."""
    from pyarrow import types

    schema = file.schema_arrow
    check_columns(name, (column, *others), schema.names)
    kind = schema.field(column).type
    is_list = types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind)
    if not is_list or not types.is_floating(kind.value_type):
        raise NNNormError(f"{name}: column {column!r} must be a list of floats; it is {kind}")
    start, dim = 0, None
    for batch in file.iter_batches(_BATCH_ROWS, columns=[column, *others]):
        found = batch.column(column)
        if not len(found):
            continue
        if found.null_count:
            row = start + found.is_valid().to_pylist().index(False)
            raise NNNormError(f"{name}: column {column!r} is empty in row {row}; remove that row")
        lengths = np.asarray(found.value_lengths())
        dim = int(lengths[0]) if dim is None else dim
        if len(wrong := np.flatnonzero(lengths != dim)):
            raise NNNormError(
                f"{name}: all rows of {column!r} must share dim; row {start + wrong[0]} has "
                f"{lengths[wrong[0]]} numbers, row 0 has {dim}"
            )
        yield found.flatten().to_numpy(zero_copy_only=False).reshape(len(found), -1), batch
        start += len(found)


def _announced(file: Any, columns: Sequence[str]) -> list[int]:
    """Return the packed or unpacked bytes of columns per row group, whichever is more."""
    sizes = []
    for group in map(file.metadata.row_group, range(file.metadata.num_row_groups)):
        parts = map(group.column, range(group.num_columns))
        found = [part for part in parts if part.path_in_schema.partition(".")[0] in columns]
        unpacked = _LEAST_BYTES * sum(part.num_values for part in found)
        sizes.append(max(unpacked, sum(part.total_uncompressed_size for part in found)))
    return sizes


def _read_names(path: Path, n_rows: int, name: str) -> Ids:
    """Read the ids of a folder of embeddings, one per line."""
    ids = path.read_bytes().decode("utf-8", "replace").split("\n")[:-1]
    if len(ids) != n_rows:
        raise NNNormError(
            f"{name} has {n_rows} rows, and {len(ids)} ids in {IDS_FILE}; encode them again, or "
            "remove that file"
        )
    return np.array(ids)


def _join_ids(found: list[list[Any] | None], name: str) -> Ids | None:
    """Join the ids of all files; warn unless there is one per row."""
    if not any(found):
        return None
    values = [value for ids in found for value in ids or [None]]
    kinds = {type(value) for value in values}
    if kinds == {str} and any(value.endswith("\0") for value in values):
        raise NNNormError(
            f"the column 'id' of {name} has an id that ends with a NUL character, which numpy "
            "drops; remove it"
        )
    with contextlib.suppress(OverflowError):
        if kinds in ({int}, {str}):
            return np.array(values, str if kinds == {str} else np.int64)
    warn(
        f"the column 'id' of {name} is left out: ids are strings, or whole numbers of 64 bits with "
        "a sign, one in every row of all files; rows go by their numbers unless you pass ids"
    )
    return None
