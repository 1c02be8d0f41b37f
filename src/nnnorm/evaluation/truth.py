"""Which items are right for which query, and whether the references are fit to be measured with.

One item per query, pairs, or lists of items all become a `Truth`. A query without a right item is
an error here, so that no metric can shrink its denominator by leaving such queries out.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.arrays import read_npy
from nnnorm.embeddings import Embeddings, check_same_dim
from nnnorm.errors import NNNormError, first_line, warn
from nnnorm.input_checks import check_inputs, warn_of_mismatch
from nnnorm.tables import read_json

IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Truth:
    """Which items are right: those of query q are ``items[starts[q]:starts[q + 1]]``, sorted."""

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

    def holds(self, items: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
        """Whether items of each query are right, shape ``(n_queries,)`` or ``(n_queries, k)``."""
        step = 1 + max(int(items.max(initial=0)), int(self.items.max(initial=0)))
        query = np.arange(len(self)).reshape(-1, *[1] * (items.ndim - 1))
        return np.isin(query * step + items, self.queries * step + self.items)

    def some_queries(self, queries: IntArray) -> "Truth":
        """Return the truth of some queries only, renumbered in that order."""
        counts = self.counts[queries]
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        places = np.repeat(self.starts[queries] - starts[:-1], counts) + np.arange(starts[-1])
        return Truth(starts, self.items[places])


def open_truth(truth: Any, *, n_queries: int, n_gallery: int) -> Truth:
    """Check a truth: one item per query, (query, item) pairs, or a list of items per query."""
    if isinstance(truth, Truth):
        queries, items = truth.queries, truth.items
    elif isinstance(truth, (list, tuple)) and any(np.ndim(right) for right in map(_row, truth)):
        rows = [np.atleast_1d(_row(right)) for right in truth]
        if len(rows) != n_queries:
            raise NNNormError(
                f"truth must have one list per query; got {len(rows)} for {n_queries} queries"
            )
        if deep := [query for query, row in enumerate(rows) if row.ndim > 1]:
            raise NNNormError(
                "truth must have one flat list of items per query; that of query "
                f"{deep[0]} holds lists"
            )
        rows = [row if len(row) else row.astype(np.int64) for row in rows]
        queries = np.repeat(np.arange(len(rows)), [len(row) for row in rows])
        items = np.concatenate(rows)
    else:
        queries, items = _open_array(np.asarray(truth), n_queries)
    return _make_truth(queries, items, n_queries, n_gallery)


def _row(right: Any) -> npt.NDArray[Any]:
    try:
        return np.asarray(right)
    except ValueError:  # lists of several lengths
        return np.empty((0, 0))


def _open_array(array: npt.NDArray[Any], n_queries: int) -> tuple[Any, Any]:
    if array.ndim == 2 and array.dtype.kind == "f" and array.shape[1] > 2:
        raise NNNormError(
            f"truth must hold item numbers; got {array.dtype} of shape {array.shape}, which "
            "look like embeddings. Were the arguments swapped?"
        )
    if array.ndim == 2 and array.shape[1] == 2:
        return array[:, 0], array[:, 1]
    if array.ndim != 1:
        raise NNNormError(
            "truth must have shape (n_queries,) or (n_pairs, 2), or be a list of lists; "
            f"got shape {array.shape}"
        )
    if len(array) != n_queries:
        raise NNNormError(
            f"truth must name one item per query; got {len(array)} numbers for {n_queries} queries"
        )
    return np.arange(len(array)), array


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
        raise NNNormError(
            f"query {counts.argmin()} has no right item ({(counts == 0).sum()} such queries); name "
            "them, or leave out these queries"
        )
    return Truth(np.concatenate([[0], np.cumsum(counts)]).astype(np.int64), items)


def clusters_of(truth: Truth) -> IntArray:
    """Return a number per query, shared by queries with the same first right item."""
    return truth.items[truth.starts[:-1]]


def read_truth(path: str | os.PathLike[str]) -> Any:
    """Read a truth file: `.npy` of shape (n_queries,) or (n_pairs, 2), or `.json` with lists."""
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


# --- references that figures are measured with ---------------------------------------------------


def one_per_cluster(queries: Embeddings, truth: Truth) -> Embeddings:
    """Return the first query of each cluster of queries that share their right item."""
    return queries.subset(np.unique(clusters_of(truth), return_index=True)[1])


def count_overlap(references: Embeddings, *queries: Embeddings) -> int:
    """Count the references that are, number for number, among the queries."""
    asked = {row for some in queries for row in _bytes_of_rows(some)}
    return sum(row in asked for row in _bytes_of_rows(references))


def warn_of_overlap(references: Embeddings, *queries: Embeddings, role: str = "queries") -> None:
    """Warn if references are among the queries that figures are measured on."""
    if n_common := count_overlap(references, *queries):
        warn(
            f"{n_common:,} of the {len(references):,} rows of {references.name} are among the "
            f"{role}; a bank that includes the queries makes the result look too good"
        )


def warn_of_mismatched_bank(
    references: Embeddings, queries: Embeddings, gallery: Embeddings, truth: Any = None
) -> None:
    """Warn if references and queries don't seem to come from one source, one query per item."""
    if truth is not None:
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        queries = one_per_cluster(queries, right)
    warn_of_mismatch(references, queries, gallery)


def check_bank(
    references: Embeddings, queries: Embeddings, gallery: Embeddings, truth: Any
) -> None:
    """Warn of references that are queries, items, or unlike the queries."""
    for rows in (queries, references):
        check_same_dim(rows, gallery)
    warn_of_overlap(references, queries)
    check_inputs(gallery, references, allow_gallery_rows=None, compare=False)
    warn_of_mismatched_bank(references, queries, gallery, truth)


def _bytes_of_rows(embeddings: Embeddings) -> Iterator[bytes]:
    for _, block in embeddings.blocks():
        for row in block + np.float32(0):  # makes -0 the 0 that it equals
            yield row.tobytes()
