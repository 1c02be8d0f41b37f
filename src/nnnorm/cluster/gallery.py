"""What is noted of a gallery when a job is settled, and whether a gallery is still that one.

Noted are its shape, its files with their sizes and times, and a number of each of some rows. No
worker reads the whole gallery for it: it compares the noted rows among those it reads anyway.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.cluster.files import Arrays
from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings, Place, RemotePath, Source, find_place, list_files, peek, stamp_of

# Rows of the gallery that are compared: a worker compares those of its share.
_N_SPOTS = 4096
# Of a row's norm: rows that another machine normalised differ in the last bits of float32.
_SPOT_ERROR = 1e-5


def describe_gallery(gallery: Source, rows: Embeddings) -> dict[str, Any]:
    """Shape and files of a gallery, ready for JSON.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    rows : Embeddings
        The same, opened.

    Returns
    -------
    dict

    Examples
    --------
    >>> gallery = np.eye(3)
    >>> describe_gallery(gallery, peek(gallery))["n_rows"]
    3
    """
    source, files = None, []
    if isinstance(gallery, (str, os.PathLike)):
        place = find_place(gallery)
        files = list_files(place, rows.name)
        source = os.path.abspath(place) if isinstance(place, Path) else os.fspath(place)
        if isinstance(place, RemotePath) and str(place) != source:
            source = None  # passwords are not written down
    return {
        "source": source,
        "n_rows": len(rows),
        "dim": rows.dim,
        "parts": rows.part_sizes,
        "files": [list(stamp_of(file)) for file in files],
        "packed": any(file.suffix == ".parquet" for file in files),
    }


def note_rows(items: Embeddings, normalize: bool) -> Arrays:
    """Numbers of some rows of a gallery, by which another one is told from it.

    Examples
    --------
    >>> note_rows(peek(np.eye(3)), normalize=True)["spots.rows"].tolist()
    [0, 1, 2]
    """
    spots = np.unique(np.linspace(0, len(items) - 1, _N_SPOTS).astype(np.int64))
    return {"spots.rows": spots, "spots.sums": _take_spots(items, spots, normalize)[0]}


def check_gallery(gallery: Source, about: Mapping[str, Any], arrays: Arrays, folder: Place) -> None:
    """Raise where a gallery is not the one that a job was settled with.

    Compared are its shape, the sizes of its files, and the rows that were noted. The row groups
    of parquet files would have to be read whole for these, which is left out where no file was
    written since.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    about, arrays : dict
        Of the job.
    folder : Path or RemotePath
        Of the job, for messages.

    Examples
    --------
    >>> rows = peek(np.eye(3))
    >>> about = {"asked": {"normalize": False}, "gallery": describe_gallery(np.eye(3), rows)}
    >>> check_gallery(2 * np.eye(3), about, note_rows(rows, normalize=False), Path("job"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: gallery has changed since the job in job was settled; ...
    """
    rows = peek(gallery, name="gallery")
    before, now = about["gallery"], describe_gallery(gallery, rows)
    if any(now[name] != before[name] for name in ("n_rows", "dim", "parts")):
        raise NNNormError(
            f"{folder} holds a job for a gallery of {before['n_rows']:,} rows of "
            f"{before['dim']} dimensions in {len(before['parts'])} files; got {rows.name}, "
            f"{len(rows):,} rows of {rows.dim} in {len(now['parts'])}. Use the same gallery "
            "for all shards, or another folder"
        )
    stamps = list(zip(before.get("files", []), now["files"], strict=False))
    if any(old[0] != new[0] for old, new in stamps):
        raise _changed(rows, folder)
    is_same = bool(stamps) and all(old == new and None not in new for old, new in stamps)
    if not (is_same and now["packed"]):
        compare_rows(rows, 0, about, arrays, folder)


def compare_rows(
    rows: Embeddings, start: int, about: Mapping[str, Any], arrays: Arrays, folder: Place
) -> None:
    """Raise where consecutive rows of a gallery are not those that were noted.

    Parameters
    ----------
    rows : Embeddings, shape (n_rows, dim)
    start : int
        Number of the first of them in the gallery.
    about, arrays, folder
        As in `check_gallery`.

    Examples
    --------
    >>> rows, about = peek(np.eye(3)), {"asked": {"normalize": False}}
    >>> compare_rows(rows, 0, about, note_rows(rows, normalize=False), Path("job"))
    """
    places = arrays["spots.rows"]
    is_here = (places >= start) & (places < start + len(rows))
    found, norms = _take_spots(rows, places[is_here] - start, about["asked"]["normalize"])
    # Written so that a NaN, or an infinity, is a change too.
    if not (np.abs(found - arrays["spots.sums"][is_here]) <= _SPOT_ERROR * norms).all():
        raise _changed(rows, folder)


def _take_spots(
    rows: Embeddings, places: npt.NDArray[np.int64], normalize: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A number per row that changes with any of its values, and the norm of the row."""
    some = rows.take(places).astype(np.float64)
    norms = np.linalg.norm(some, axis=1)
    if normalize:
        with np.errstate(divide="ignore", invalid="ignore"):  # a row of zeros is a change
            some, norms = some / norms[:, None], np.ones(len(some))
    return some @ np.random.default_rng(0).normal(size=rows.dim), norms


def _changed(rows: Embeddings, folder: Place) -> NNNormError:
    return NNNormError(
        f"{rows.name} has changed since the job in {folder} was settled; remove that "
        "folder, or start again in another one"
    )
