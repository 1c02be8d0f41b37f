"""Which items are right for which query: one form for the three that are common.

One item per query, pairs, or lists of items all become a `Truth`. A query without a right item is
an error here, so that no metric can shrink its denominator by leaving such queries out.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import read_npy
from nnnorm.errors import NNNormError, first_line
from nnnorm.tables import read_json

IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Truth:
    """Which items are right for each query.

    Attributes
    ----------
    starts : ndarray, shape (n_queries + 1,), int64
        Query q's right items are ``items[starts[q]:starts[q + 1]]``.
    items : ndarray, shape (n_pairs,), int64
    """

    starts: IntArray
    items: IntArray

    def __len__(self) -> int:
        return len(self.starts) - 1

    @property
    def counts(self) -> IntArray:
        """Number of right items of each query, shape ``(n_queries,)``."""
        return np.diff(self.starts)

    @property
    def queries(self) -> IntArray:
        """The query of each pair, shape ``(n_pairs,)``."""
        return np.repeat(np.arange(len(self)), self.counts)

    def holds(self, items: IntArray) -> npt.NDArray[np.bool_]:
        """Whether an item of each query is right, shape ``(n_queries,)``."""
        step = 1 + max(int(items.max(initial=0)), int(self.items.max(initial=0)))
        right = self.queries * step + self.items
        return np.isin(np.arange(len(self)) * step + items, right)

    def some_queries(self, queries: IntArray) -> "Truth":
        """Return the truth of some queries only, renumbered in that order."""
        counts = self.counts[queries]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.repeat(self.starts[queries] - starts[:-1], counts) + np.arange(starts[-1])
        return Truth(starts, self.items[places])


def open_truth(truth: Any, *, n_queries: int, n_gallery: int) -> Truth:
    """Read and check the right items of every query.

    Parameters
    ----------
    truth : array or list
        Int array ``(n_queries,)``: one right item per query. Int array ``(n_pairs, 2)``: pairs of
        (query, item). A list of lists: the right items of each query.
    n_queries, n_gallery : int
        The sizes that the numbers must stay below.

    Returns
    -------
    Truth

    Examples
    --------
    >>> open_truth([[0, 1], [2]], n_queries=2, n_gallery=3).counts.tolist()
    [2, 1]
    """
    if isinstance(truth, Truth):
        queries, items = truth.queries, truth.items
    elif isinstance(truth, (list, tuple)) and any(map(_is_list, truth)):
        if len(truth) != n_queries:
            raise NNNormError(
                f"truth must have one list per query; got {len(truth)} for {n_queries} queries"
            )
        rows = [_open_row(right, q) for q, right in enumerate(truth)]
        if empty := [q for q, right in enumerate(rows) if len(right) == 0]:
            _raise_without_truth(empty[0], len(empty))
        queries, items = (
            np.repeat(np.arange(len(rows)), [len(r) for r in rows]),
            np.concatenate(rows),
        )
    else:
        array = np.asarray(truth)
        if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] > 2:
            raise NNNormError(
                f"truth must hold item numbers; got {array.dtype} of shape {array.shape}, which "
                "look like embeddings. Were the arguments swapped?"
            )
        if array.ndim == 1:
            if len(array) != n_queries:
                raise NNNormError(
                    "truth must name one item per query; got "
                    f"{len(array)} numbers for {n_queries} queries"
                )
            queries, items = np.arange(len(array)), array
        elif array.ndim == 2 and array.shape[1] == 2:
            queries, items = array[:, 0], array[:, 1]
        else:
            raise NNNormError(
                "truth must have shape (n_queries,) or (n_pairs, 2), or be a list of lists; "
                f"got shape {array.shape}"
            )
    return _make_truth(queries, items, n_queries, n_gallery)


def _is_list(right: Any) -> bool:
    return isinstance(right, (list, tuple)) or np.ndim(right) > 0


def _open_row(right: Any, query: int) -> npt.NDArray[Any]:
    try:
        row = np.atleast_1d(np.asarray(right))
    except ValueError:  # lists of several lengths
        row = np.empty((0, 0))
    if row.ndim > 1:
        raise NNNormError(
            f"truth must have one flat list of items per query; that of query {query} holds lists"
        )
    return row


def _make_truth(queries: Any, items: Any, n_queries: int, n_gallery: int) -> Truth:
    for what, numbers, limit, plural in (
        ("query", queries, n_queries, "queries"),
        ("item", items, n_gallery, "items"),
    ):
        if numbers.dtype.kind not in "iu":
            raise NNNormError(f"truth must hold whole numbers; got {numbers.dtype}")
        if len(bad := np.flatnonzero((numbers < 0) | (numbers >= limit))):
            raise NNNormError(
                f"truth names {what} {numbers[bad[0]]}, but there are {limit} {plural} "
                f"(0 to {limit - 1})"
            )
    queries, items = queries.astype(np.int64), items.astype(np.int64)
    order = np.lexsort((items, queries))
    queries, items = queries[order], items[order]
    twice = np.flatnonzero((np.diff(queries) == 0) & (np.diff(items) == 0))
    if len(twice):
        raise NNNormError(
            f"truth names the pair (query {queries[twice[0]]}, item {items[twice[0]]}) twice "
            f"({len(twice)} duplicated pairs); remove the copies"
        )
    counts = np.bincount(queries, minlength=n_queries)
    if (counts == 0).any():
        _raise_without_truth(int(counts.argmin()), int((counts == 0).sum()))
    return Truth(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), items)


def _raise_without_truth(query: int, n_queries: int) -> None:
    raise NNNormError(
        f"query {query} has no right item ({n_queries} such queries); name them, or leave out "
        "these queries"
    )


def clusters_of(truth: Truth) -> IntArray:
    """Assign queries that share a right item (captions of one image) to one cluster.

    Queries are joined by their first right item, which is exact where every query has one.

    Examples
    --------
    >>> clusters_of(open_truth([0, 0, 1], n_queries=3, n_gallery=2)).tolist()
    [0, 0, 1]
    """
    return truth.items[truth.starts[:-1]]


def read_truth(path: str | os.PathLike[str]) -> Any:
    """Read a truth file: `.npy` of shape (n_queries,) or (n_pairs, 2), or `.json` with lists.

    Parameters
    ----------
    path : str or PathLike

    Returns
    -------
    array or list
        For `open_truth`.

    Examples
    --------
    >>> read_truth("nowhere.json")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no truth file nowhere.json; ...
    """
    file = Path(path)
    if not file.is_file():
        raise NNNormError(f"there is no truth file {path}; check the path")
    if file.suffix not in (".npy", ".json"):
        raise NNNormError(
            f"a truth file must end in .npy or .json; got {path}. Read a table yourself, for "
            "instance with pandas.read_csv, and save its column of item numbers with numpy.save"
        )
    try:
        if file.suffix == ".npy":
            return read_npy(file)
        lists = read_json(file, "a truth with a list per query")
        if not isinstance(lists, list):
            raise ValueError(f"it holds {type(lists).__name__}, not a list")
        return lists
    except NNNormError:
        raise
    except (ValueError, OSError) as error:
        raise NNNormError(
            f"{path} can't be read as a truth ({first_line(error)}); expected .npy with whole "
            "numbers, or .json with a list per query"
        ) from error
