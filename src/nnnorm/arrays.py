"""Arrays of any library, files, folders of shards and URLs, read as numpy arrays.

Only readability is checked here; form and values are checked in `embeddings.py`. `.npy` files
are memory-mapped, and nothing is ever unpickled. Files behind a URL (``s3://``, ``gs://``) are
copied by fsspec to a temporary folder, because a fit reads its rows several times.
"""

import os
import re
import stat
import tempfile
import zipfile
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require, warn
from nnnorm.files import available_memory, check_memory, check_regular, hide_secrets, show_url
from nnnorm.parquet import Ids, ParquetRows, read_embedding_column, read_id_column

# A Path has lost the second slash of a URL. One letter is a drive of Windows.
_URL = re.compile(r"^([a-zA-Z][a-zA-Z0-9+.-]+):/+(.*)$", re.DOTALL)
_COPIES: list[tempfile.TemporaryDirectory[str]] = []

_SUFFIXES = (".npy", ".npz", ".parquet")
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
# Folders that hold shards of embeddings: clip-retrieval's names, and one for sounds.
_SHARD_FOLDERS = ("img_emb", "text_emb", "audio_emb")
# Several parquet files of more than one part in this many of the memory are read in pieces. Packed
# embeddings take most of the bytes of unpacked ones.
_LARGE_SHARE = 4
_PATTERN = re.compile(r"[*?\[]")
# Folders of `nnnorm encode` that are not finished.
_UNFINISHED = (".partial", ".starting")


def find_place(path: str | os.PathLike[str]) -> Path | str:
    """A path of this machine, or a URL as text."""
    text = os.fspath(path)
    match = _URL.match(text) if isinstance(text, str) else None
    if match is None:
        return Path(text)
    scheme, rest = match.groups()
    return Path(f"/{rest}") if scheme == "file" else f"{scheme}://{rest}"


def fetch(url: str, choose: Callable[[Path], list[Path]]) -> list[Path]:
    """Copy those files that `choose` finds in a folder of empty files with the same names."""
    fsspec = require("fsspec", "remote")
    _COPIES.append(tempfile.TemporaryDirectory(prefix="nnnorm-", ignore_cleanup_errors=True))
    folder = Path(_COPIES[-1].name)
    try:
        fs, path = fsspec.core.url_to_fs(url)
        fs.invalidate_cache()  # what another process wrote since must be seen
        parent, _, last = path.rstrip("/").rpartition("/")
        for found in fs.find(path) if fs.isdir(path) else fs.glob(path):
            here = folder / found[len(parent) :].lstrip("/")
            here.parent.mkdir(parents=True, exist_ok=True)
            here.touch()
        chosen = choose(folder / last)
        for here in chosen:
            fs.get_file(f"{parent}/{here.relative_to(folder).as_posix()}", str(here))
    except NNNormError:
        raise
    except Exception as error:  # every kind of store raises its own
        reason = hide_secrets(first_line(error), url)
        raise NNNormError(
            f"{show_url(url)} can't be reached ({reason}); check the URL, and that its library "
            "(such as s3fs) and its credentials are there"
        ) from error
    return chosen


class Found(NamedTuple):
    """Arrays as they were found, not yet checked."""

    parts: list[npt.NDArray[Any]]
    name: str
    path: str | None = None
    ids: Ids | None = None
    hint: str = ""


def read_source(source: Any, name: str) -> Found:
    """Read an array of any library, a file, or the shards of a folder by their numbers."""
    if not isinstance(source, (str, os.PathLike)):
        array = _read_array(source, name)
        return Found([array], name, hint=_advise(source, array))
    place = find_place(source)
    path = show_url(place)
    full = f"{name} ({path})"
    files = (
        list_files(place, full)
        if isinstance(place, Path)
        else fetch(place, lambda copy: list_files(copy, full))
    )
    in_memory = _fits(files)
    read = [_read_file(file, full, in_memory) for file in files]
    ids = _join_ids([ids for _, ids in read], full)
    return Found([part for part, _ in read], full, path, ids)


def _fits(files: Sequence[Path]) -> bool:
    """Whether parquet files may be held in memory; those that are too large are read in pieces."""
    there = available_memory()
    sizes = [path.stat().st_size for path in files]
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


def list_files(path: Path, name: str) -> list[Path]:
    """The files that a path stands for: itself, the shards of a folder, or those of a pattern."""
    check_regular(path, name)
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        files = find_shards(path, name) if is_folder else [path]
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


def _match_files(path: Path, name: str) -> list[Path]:
    """The files that match a pattern, by their numbers if all have one, else by their names."""
    try:
        found = path.parent.glob(path.name)
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


def _read_file(path: Path, name: str, in_memory: bool) -> tuple[npt.NDArray[Any], Ids | str | None]:
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
    if in_memory:
        return read_embedding_column(path, name)
    return cast(Any, ParquetRows(path, name)), read_id_column(path, name)


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
    """Read arrays of a `.npz` file; `choose` names them, given all names."""
    check_regular(path, name)
    with zipfile.ZipFile(path) as archive:
        entries = {one.filename.removesuffix(".npy"): one for one in archive.infolist()}
        arrays = {}
        for key in choose(list(entries)):
            check_memory(entries[key].file_size, str(name or path))
            with archive.open(entries[key]) as file:
                arrays[key] = _read_stream(file)
        return arrays


def _read_stream(file: IO[bytes]) -> npt.NDArray[Any]:
    """Read an array without objects; its header may announce anything."""
    try:
        return np.lib.format.read_array(file, allow_pickle=False)  # type: ignore[no-untyped-call,no-any-return,unused-ignore]
    except MemoryError as error:
        raise ValueError(f"it announces more than it holds: {first_line(error)}") from None


def read_npy(path: str | os.PathLike[str]) -> npt.NDArray[Any]:
    """Read a `.npy` file whole; a `ValueError` or `OSError` says why it can't be read."""
    check_regular(path)
    try:
        mapped = np.lib.format.open_memmap(path, mode="r")  # type: ignore[no-untyped-call,unused-ignore]
        return np.array(mapped)
    except (OSError, ValueError):
        raise
    except Exception as error:  # numpy parses the header with ast and tokenize
        raise ValueError(first_line(error)) from error


def find_shards(folder: Path, name: str) -> list[Path]:
    """List the shards of a folder by their numbers: ``img_emb_2`` before ``img_emb_10``."""
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
