"""Embeddings of which some rows are broken: the sound rows are opened, the others are named.

`open_embeddings` refuses a matrix with a row of zeros or NaN, because every number that is computed
from it would be wrong. What looks for such rows needs the others.
"""

from typing import NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError
from nnnorm.io.arrays import read_source
from nnnorm.io.embeddings import Embeddings, Source, open_embeddings
from nnnorm.io.parquet import Ids
from nnnorm.io.stored import StoredMatrix

IntArray: TypeAlias = npt.NDArray[np.int64]


class Sound(NamedTuple):
    """The rows of a source that can be used.

    Attributes
    ----------
    embeddings : Embeddings, shape (n_sound, dim)
    rows : ndarray, shape (n_sound,), int64
        Their numbers in the source.
    n_rows : int
        Number of rows of the source.
    faults : dict of int to str
        What is wrong with each of the other rows.
    ids : ndarray, shape (n_rows,), or None
        The ids of all rows, where a file has them.
    """

    embeddings: Embeddings
    rows: IntArray
    n_rows: int
    faults: dict[int, str]
    ids: Ids | None


def open_sound(source: Source, *, name: str, normalize: bool | None = None) -> Sound:
    """Open embeddings without their broken rows."""
    try:
        opened = open_embeddings(source, name=name, normalize=normalize)
        return Sound(opened, np.arange(len(opened)), len(opened), {}, opened.ids)
    except NNNormError:
        if isinstance(source, StoredMatrix):
            raise
        parts, _, path, ids, _ = read_source(source, name)
        if any(part.dtype.kind != "f" or part.ndim != 2 or not part.size for part in parts):
            raise
        faults = _find_faults(StoredMatrix(parts, role=name))
        n_rows = sum(len(part) for part in parts)
        if not 0 < len(faults) < n_rows:
            raise
    rows = np.setdiff1d(np.arange(n_rows), list(faults))
    # The rows between two broken ones are a view, so that nothing is copied.
    starts = np.cumsum([0, *(len(part) for part in parts)])
    sound = [
        piece
        for part, start in zip(parts, starts, strict=False)
        for piece in _without(part, [row - start for row in faults if 0 <= row - start < len(part)])
    ]
    return Sound(
        open_embeddings(Embeddings(sound, name=name, path=path), name=name, normalize=normalize),
        rows,
        n_rows,
        faults,
        ids,
    )


def _find_faults(matrix: StoredMatrix) -> dict[int, str]:
    faults = {}
    for start, block in matrix.blocks():
        squares = (block.astype(np.float64) ** 2).sum(axis=1)
        for row in np.flatnonzero(~np.isfinite(squares) | (squares == 0)):
            is_zero = squares[row] == 0
            faults[start + int(row)] = (
                "it is all zeros" if is_zero else "it has entries that are not finite"
            )
    return faults


def _without(part: npt.NDArray[np.floating], places: list[int]) -> list[npt.NDArray[np.floating]]:
    pieces, first = [], 0
    for place in [*sorted(places), len(part)]:
        if place > first:
            pieces.append(part[first:place])
        first = place + 1
    return pieces
