"""Arrays of any library, files, and folders of shards, read as numpy arrays.

Only readability is checked here; form and values are checked in `embeddings.py` and
`ready_scores.py`. `.npy` files are memory-mapped; nothing is ever unpickled.
"""

import os
import re
import stat
import zipfile
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, warn

Ids: TypeAlias = npt.NDArray[Any]

_SUFFIXES = (".npy", ".npz", ".parquet")
_TEXT_SUFFIXES = (".csv", ".tsv", ".txt", ".json", ".jsonl")
# Folders that hold shards of embeddings: clip-retrieval's names, and one for sounds.
_SHARD_FOLDERS = ("img_emb", "text_emb", "audio_emb")


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


def read_source(source: Any, name: str) -> Found:
    """Read an array of any library, a file, or the shards of a folder by their numbers.

    Parameters
    ----------
    source : array, tensor, str or PathLike
    name : str
        The name of the argument, for messages.

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
    path = Path(source)
    full = f"{name} ({path})"
    read = [_read_file(file, full) for file in _list_files(path, full)]
    ids = _join_ids([ids for _, ids in read], full)
    return Found([part for part, _ in read], full, str(path), ids)


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


def _list_files(path: Path, name: str) -> list[Path]:
    try:
        is_folder = stat.S_ISDIR(path.stat().st_mode)
        files = find_shards(path, name) if is_folder else [path]
    except FileNotFoundError:
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


def _read_file(path: Path, name: str) -> tuple[npt.NDArray[Any], Ids | str | None]:
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

    return read_embedding_column(path, name)


def _read_npz(path: Path, name: str) -> npt.NDArray[Any]:
    with zipfile.ZipFile(path):  # np.load would take other files for a .npy or for a pickle
        pass
    with np.load(path, allow_pickle=False) as archive:
        names = list(archive)
        wanted = [n for n in ("embedding", "embeddings") if n in names] or names
        if len(wanted) != 1:
            raise NNNormError(
                f"{name} must hold one array, or one named 'embedding'; "
                f"got {len(names)}: {', '.join(names) or 'none'}"
            )
        return np.asarray(archive[wanted[0]])


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
    missing = sorted(set(range(numbers[0], numbers[-1] + 1)) - set(numbers))
    if missing or len(set(numbers)) != len(numbers):
        what = f"number {missing[0]} is missing" if missing else "a number occurs twice"
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
    return sorted(files)
