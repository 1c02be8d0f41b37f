"""Arrays of any library, files, and folders of shards, read as numpy arrays.

Only readability is checked here; form and values are checked in `embeddings.py` and
`ready_scores.py`. `.npy` files are memory-mapped; nothing is ever unpickled.
"""

import math
import os
import re
import stat
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, warn
from nnnorm.io.files import check_regular
from nnnorm.io.remote import Place, RemotePath, RemoteRows, fetched, find_place

Ids: TypeAlias = npt.NDArray[Any]

_SUFFIXES = (".npy", ".npz", ".parquet")
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
# Folders that hold shards of embeddings: clip-retrieval's names, and one for sounds.
_SHARD_FOLDERS = ("img_emb", "text_emb", "audio_emb")
_READ_BYTES = 2**24
# Several parquet files of more than one part in this many of the memory are read in pieces. Packed
# embeddings take most of the bytes of unpacked ones.
_LARGE_SHARE = 4
_PATTERN = re.compile(r"[*?\[]")
# Limit, usage and statistics of the memory of a container, and what of it is cache: cgroup v2, v1.
_GROUPS = "/sys/fs/cgroup"
_MEMORY_GROUPS = (
    (
        f"{_GROUPS}/memory.max",
        f"{_GROUPS}/memory.current",
        f"{_GROUPS}/memory.stat",
        "inactive_file",
    ),
    (
        f"{_GROUPS}/memory/memory.limit_in_bytes",
        f"{_GROUPS}/memory/memory.usage_in_bytes",
        f"{_GROUPS}/memory/memory.stat",
        "total_inactive_file",
    ),
)
# Folders of `nnnorm encode` that are not finished.
_UNFINISHED = (".partial", ".starting")


class Found(NamedTuple):
    """Arrays as they were found, not yet checked.

    Attributes
    ----------
    parts : list of ndarray
        One array, or one per shard.
    name : str
        The name in messages: the name of the argument, and the path if there is one.
    path : str or None
    ids : ndarray or None
        The id of every row, if the files have them.
    hint : str
        Advice for a source whose values are not floats.
    """

    parts: list[npt.NDArray[Any]]
    name: str
    path: str | None = None
    ids: Ids | None = None
    hint: str = ""


def read_source(source: Any, name: str, *, in_pieces: bool = False) -> Found:
    """Read an array of any library, a file, or the shards of a folder by their numbers.

    Parameters
    ----------
    source : array, tensor, str or PathLike
    name : str
        The name of the argument, for messages.
    in_pieces : bool
        Whether some of the rows are enough: parquet files are then read when rows are asked for,
        and there are no ids.

    Returns
    -------
    Found

    Examples
    --------
    >>> read_source([[1.0, 2.0]], "gallery").parts[0].shape
    (1, 2)
    >>> read_source("nowhere.npy", "gallery")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: gallery (nowhere.npy): there is no such file; ...
    """
    if not isinstance(source, (str, os.PathLike)):
        array = _read_array(source, name)
        return Found([array], name, hint=_advise(source, array))
    path = find_place(source)
    full = f"{name} ({path})"
    files = list_files(path, full)
    in_memory = not in_pieces and _fits(files)
    read = [_read_file(file, full, in_memory, not in_pieces) for file in files]
    ids = _join_ids([ids for _, ids in read], full)
    return Found([part for part, _ in read], full, str(path), ids)


def _fits(files: Sequence[Place]) -> bool:
    """Whether parquet files may be held in memory; those that are too large are read in pieces."""
    there = _available_memory()
    sizes = [path.stat().st_size for path in files if isinstance(path, Path)]
    return len(files) < 2 or there is None or sum(sizes) < there // _LARGE_SHARE


def _read_array(source: Any, name: str) -> npt.NDArray[Any]:
    if isinstance(source, np.ma.MaskedArray):
        raise NNNormError(f"{name} is a masked array; fill it or drop the masked rows first")
    try:
        if not hasattr(source, "__array__") and hasattr(source, "__dlpack__"):
            return np.from_dlpack(source)
        array = np.asarray(source)
    except Exception as error:  # each array library raises its own kind here
        raise NNNormError(
            f"{name} can't be read as a numpy array ({type(source).__name__}: "
            f"{first_line(error)}); pass a float array on the CPU "
            "(torch: tensor.detach().cpu().float())"
        ) from error
    if array.ndim == 0 and array.dtype.kind == "O":
        kind = type(source).__name__
        order = "; the order is (queries, gallery, bias)" if kind == "Bias" else ""
        raise NNNormError(f"{name}: got a {kind} where an array or a path was expected{order}")
    return array


def _advise(source: Any, array: npt.NDArray[Any]) -> str:
    if array.dtype.kind != "O":
        return ""
    if hasattr(source, "columns"):
        return (
            "the table has columns that are not numbers; pass those of the embedding alone, such "
            "as frame[columns].to_numpy(), or numpy.stack(frame['embedding']) for lists"
        )
    if array.ndim == 1 and len(array) and np.ndim(array[0]) == 1:
        return "a column of lists or arrays; pass numpy.stack(column)"
    return f"a {type(source).__name__} of Python objects; pass an array of floats"


def _join_ids(found: list[Ids | str | None], name: str) -> Ids | None:
    """Join the ids of all shards; where that can't be done, warn with the reason."""
    ids = [one for one in found if isinstance(one, np.ndarray)]
    reasons = [one for one in found if isinstance(one, str)]
    if not reasons and ids and len(ids) < len(found):
        reasons = ["it is missing from some of the shards"]
    elif not reasons and len({one.dtype.kind for one in ids}) > 1:
        reasons = ["it has whole numbers in some of the shards and strings in others"]
    if reasons:
        warn(
            f"the column 'id' of {name} is left out: {reasons[0]}; rows go by their numbers unless "
            "you pass ids"
        )
        return None
    return np.concatenate(ids) if ids else None


def list_files(path: Place, name: str) -> list[Place]:
    """The files that a path stands for: itself, the shards of a folder, or those of a pattern.

    Examples
    --------
    >>> list_files(Path("nowhere-*.npy"), "gallery")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: gallery: no file matches the pattern; check the path
    """
    if isinstance(path, Path):
        check_regular(path, name)
    try:
        is_folder = _is_folder(path)
        # A remote folder has what is needed of a path here.
        files: list[Place] = [*find_shards(cast(Path, path), name)] if is_folder else [path]
    except FileNotFoundError:
        if _PATTERN.search(path.name):
            return _match_files(path, name)
        raise NNNormError(f"{name}: there is no such file; check the path") from None
    except NNNormError:
        raise
    except (OSError, ValueError) as error:  # no permission, too long, not a path at all
        reason = getattr(error, "strerror", None) or first_line(error)
        raise NNNormError(f"{name}: can't be opened ({reason}); check the path") from error
    if not is_folder and path.suffix not in _SUFFIXES:
        hint = (
            ". Read a text file yourself, for instance with numpy.loadtxt or pandas.read_csv, and "
            "pass its float columns as an array"
            if path.suffix.lower() in _TEXT_SUFFIXES
            else ""
        )
        raise NNNormError(
            f"{name}: expected one of {', '.join(_SUFFIXES)} or a folder of them; "
            f"got the suffix {path.suffix!r}{hint}"
        )
    return files


def _is_folder(path: Place) -> bool:
    if isinstance(path, Path):
        return stat.S_ISDIR(path.stat().st_mode)
    if not path.exists():
        raise FileNotFoundError
    return path.is_dir()


def _match_files(path: Place, name: str) -> list[Place]:
    """The files that match a pattern, by their numbers if all have one, else by their names."""
    try:
        found = path.parent.glob(path.name) if isinstance(path, Path) else path.glob()
        files = sorted((one for one in found if one.suffix in _SUFFIXES), key=lambda one: one.name)
    except (OSError, ValueError) as error:
        raise NNNormError(f"{name}: can't be opened ({first_line(error)}); check the path") from (
            error
        )
    if not files:
        raise NNNormError(f"{name}: no file matches the pattern; check the path")
    numbers = [re.search(r"(\d+)$", one.stem) for one in files]
    if all(numbers):
        files.sort(key=lambda one: int(re.search(r"(\d+)$", one.stem)[1]))  # type: ignore[index]
    return files


def _read_file(
    path: Place, name: str, in_memory: bool, with_ids: bool
) -> tuple[npt.NDArray[Any], Ids | str | None]:
    if isinstance(path, RemotePath):
        return _read_remote(path, name, with_ids)
    check_regular(path, f"{name}: {path}")
    if path.is_dir():
        raise NNNormError(f"{name}: {path} is a folder; expected a file")
    try:
        if path.suffix == ".npy":
            return np.lib.format.open_memmap(path, mode="r"), None  # type: ignore[no-untyped-call,no-any-return,unused-ignore]
        if path.suffix == ".npz":
            return _read_npz(path, name), None
    except (NNNormError, MemoryError):
        raise
    except Exception as error:  # numpy, zipfile, zlib and tokenize each raise their own kind here
        if isinstance(error, ValueError) and "object" in str(error).lower():
            raise NNNormError(
                f"{name} holds Python objects, which are never unpickled; "
                "save a float array with numpy.save"
            ) from error
        raise NNNormError(
            f"{name} can't be read as {path.suffix} ({first_line(error)}); "
            "is it cut short, or another kind of file?"
        ) from error
    from nnnorm.io.parquet import read_embedding_column

    return read_embedding_column(path, name) if in_memory else _read_parquet(path, name, with_ids)


def _read_parquet(
    path: Place, name: str, with_ids: bool
) -> tuple[npt.NDArray[Any], Ids | str | None]:
    from nnnorm.io.parquet import ParquetRows, read_id_column

    return cast(Any, ParquetRows(path, name)), read_id_column(path, name) if with_ids else None


def _read_remote(
    path: RemotePath, name: str, with_ids: bool
) -> tuple[npt.NDArray[Any], Ids | str | None]:
    if path.suffix == ".npy":
        return cast(Any, RemoteRows(path, name)), None
    if path.suffix == ".parquet":
        return _read_parquet(path, name, with_ids)
    with fetched(path) as copy:
        return _read_npz(copy, name), None


def _read_npz(path: Path, name: str) -> npt.NDArray[Any]:
    def choose(names: list[str]) -> list[str]:
        wanted = [one for one in names if one in ("embedding", "embeddings")] or names
        if len(wanted) != 1:
            raise NNNormError(
                f"{name} must hold one array, or one named 'embedding'; "
                f"got {len(names)}: {', '.join(names) or 'none'}"
            )
        return wanted

    (array,) = read_npz(path, choose, name).values()
    return array


def read_npz(
    path: str | os.PathLike[str],
    choose: Callable[[list[str]], Sequence[str]],
    name: str | None = None,
) -> dict[str, npt.NDArray[Any]]:
    """Read arrays of a `.npz` file; `choose` names them, given all names.

    Every array is bounded by what its entry in the archive announces and by the memory there is,
    before it is read.

    Examples
    --------
    >>> np.savez("two.npz", a=np.zeros(3), b=np.ones(2))
    >>> read_npz("two.npz", lambda names: ["b"])["b"].tolist()
    [1.0, 1.0]
    """
    check_regular(path, name)
    with zipfile.ZipFile(path) as archive:
        entries = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        arrays = {}
        for key in choose(list(entries)):
            check_memory(entries[key].file_size, str(name or path))
            with archive.open(entries[key]) as file:
                arrays[key] = _read_stream(file, entries[key].file_size)
        return arrays


def _read_stream(file: IO[bytes], n_bytes: int) -> npt.NDArray[Any]:
    """Read an array whose header must agree with the size of its file."""
    version = np.lib.format.read_magic(file)  # type: ignore[no-untyped-call,unused-ignore]
    read_header = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }.get(version)
    if read_header is None:
        raise ValueError(f"version {version} of the .npy format is not known")
    shape, is_fortran, dtype = read_header(file)  # type: ignore[no-untyped-call,unused-ignore]
    if dtype.hasobject:
        raise ValueError("object arrays")
    announced = math.prod(shape) * dtype.itemsize
    if min(shape, default=0) < 0 or announced > n_bytes:
        raise ValueError(f"{announced} bytes announced, {n_bytes} there")
    content = np.empty(announced, dtype=np.uint8)
    view, n_read = content.data, 0
    while more := file.readinto(view[n_read : n_read + _READ_BYTES]):  # type: ignore[attr-defined]
        n_read += more
    if n_read != announced:
        raise ValueError(f"{announced} bytes announced, {n_read} there")
    array: npt.NDArray[Any] = content.view(dtype) if announced else np.empty(0, dtype=dtype)
    return array.reshape(shape, order="F" if is_fortran else "C")


def read_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Read a `.npy` file whole; a `ValueError` or `OSError` says why it can't be read.

    Examples
    --------
    >>> np.save("one.npy", np.arange(3))
    >>> read_npy("one.npy").tolist()
    [0, 1, 2]
    """
    check_regular(path)
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call,unused-ignore]
        return np.array(mapped)
    except (OSError, ValueError):
        raise
    except Exception as error:  # numpy parses the header with ast and tokenize
        raise ValueError(first_line(error)) from error


def check_memory(n_bytes: int, name: str) -> None:
    """Raise unless an array of this size fits in the memory that is available.

    Examples
    --------
    >>> check_memory(2**60, "gallery.npz")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: gallery.npz announces 1,152,921,504.6 GB, more than the ... ...
    """
    there = _available_memory()
    if there is not None and n_bytes > there:
        raise NNNormError(
            f"{name} announces {n_bytes / 1e9:,.1f} GB, more than the {there / 1e9:,.1f} GB of "
            "memory that are available; is it damaged? Embeddings of that size are read from .npy "
            "files, which are not loaded"
        )


def _available_memory() -> int | None:
    """Bytes that can be allocated without swapping; None where the system does not tell."""
    found = [_free_memory(), *(_room_in_group(*files) for files in _MEMORY_GROUPS)]
    return min((n_bytes for n_bytes in found if n_bytes is not None), default=None)


def _free_memory() -> int | None:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
        return 1024 * int(re.search(r"MemAvailable:\s+(\d+)", text)[1])  # type: ignore[index]
    except (OSError, TypeError):
        if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
            return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        return None


def _room_in_group(limit: str, usage: str, statistics: str, cache: str) -> int | None:
    """Bytes left below the limit of a container; None where there is no limit."""
    try:
        most = int(Path(limit).read_text(encoding="ascii"))
        used = int(Path(usage).read_text(encoding="ascii"))
        # Files that were read count as used, but are dropped when memory is needed.
        kept = re.search(rf"^{cache} (\d+)$", Path(statistics).read_text(encoding="ascii"), re.M)
    except (OSError, ValueError):  # no such group, or "max"
        return None
    return max(0, most - used + (int(kept[1]) if kept else 0))


def find_shards(folder: Path, name: str) -> list[Path]:
    """List the shards of a folder by their numbers: ``img_emb_2`` before ``img_emb_10``.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> for number in (10, 8, 9):
    ...     (folder / f"part_{number}.npy").touch()
    >>> [path.stem for path in find_shards(folder, "gallery")]
    ['part_8', 'part_9', 'part_10']
    """
    if folder.suffix in _UNFINISHED:
        raise NNNormError(
            f"{name} is a folder of unfinished embeddings; run the same nnnorm encode command "
            f"again, which finishes it and names it {folder.stem}"
        )
    shards = _numbered_files(folder, (".npy",)) or _numbered_files(folder, (".parquet",))
    if not shards:
        found = [sub for sub in _SHARD_FOLDERS if (folder / sub).is_dir()]
        if len(found) == 1:
            return find_shards(folder / found[0], name)
        if found:
            choices = " or ".join(str(folder / sub) for sub in found)
            raise NNNormError(f"{name} holds both kinds of embeddings; pass {choices}")
        unnumbered = sorted(path.name for path in folder.iterdir() if path.suffix in _SUFFIXES)
        what = (
            f"whose files have no numbers (such as {unnumbered[0]})"
            if unnumbered
            else "without .npy or .parquet shards"
        )
        raise NNNormError(
            f"{name} is a folder {what}; "
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


def _numbered_files(folder: Path, suffixes: tuple[str, ...]) -> list[tuple[int, Path]]:
    files = []
    for path in folder.iterdir():
        match = re.search(r"(\d+)$", path.stem)
        if path.suffix in suffixes and match:
            files.append((int(match.group(1)), path))
    return sorted(files, key=lambda found: (found[0], found[1].name))
