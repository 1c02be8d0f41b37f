"""Splitting by item, so that nothing is tuned on what it is tested on.

The queries of an item stay together. `count_overlap` finds references that are among the test
queries: a bank that includes them is transductive, and its gains do not carry over to new queries.
"""

import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, NNNormWarning
from nnnorm.foreign import warn_of_foreign
from nnnorm.io import Embeddings, Source, open_embeddings
from nnnorm.study.truth import Truth, clusters_of, open_truth

IntArray: TypeAlias = npt.NDArray[np.int64]


def split_items(
    n_items: int, shares: Sequence[float] = (0.5, 0.2, 0.3), *, seed: int = 0
) -> tuple[IntArray, ...]:
    """Split items at random, by default into references, validation and test.

    Parameters
    ----------
    n_items : int
    shares : sequence of float
        They add up to at most 1; the remainder is in no part.
    seed : int
        Random seed.

    Returns
    -------
    tuple of ndarray
        Sorted item numbers, one array per share, none in two.

    Examples
    --------
    >>> [len(part) for part in split_items(500)]
    [250, 100, 150]
    """
    if not all(share > 0 for share in shares) or sum(shares) > 1 + 1e-9:
        raise NNNormError(f"shares must be positive and add up to at most 1; got {tuple(shares)}")
    edges = np.round(np.cumsum([0.0, *shares]) * n_items).astype(int)
    if (np.diff(edges) == 0).any():
        raise NNNormError(f"{n_items} items are too few for shares of {tuple(shares)}")
    order = np.random.default_rng(seed).permutation(n_items)
    return tuple(np.sort(order[a:b]) for a, b in itertools.pairwise(edges))


def split_queries(truth: Truth, share: float = 0.5, *, seed: int = 0) -> tuple[IntArray, IntArray]:
    """Split queries into validation and test, keeping those of one item together.

    Parameters
    ----------
    truth : Truth
    share : float
        Share of the items whose queries are for validation.
    seed : int
        Random seed.

    Returns
    -------
    validation, test : ndarray
        Query numbers.

    Examples
    --------
    >>> from nnnorm.study.truth import open_truth
    >>> truth = open_truth([0, 0, 1, 1], n_queries=4, n_gallery=2)
    >>> [part.tolist() for part in split_queries(truth)]
    [[0, 1], [2, 3]]
    """
    groups = clusters_of(truth)
    items = np.unique(groups)
    (chosen,) = split_items(len(items), (share,), seed=seed)
    if len(chosen) == len(items):
        raise NNNormError(
            f"a share of {share} of {len(items)} items leaves no query for test; "
            "give a smaller share or more items"
        )
    is_validation = np.isin(groups, items[chosen])
    return np.flatnonzero(is_validation), np.flatnonzero(~is_validation)


def count_overlap(references: Source, queries: Source) -> int:
    """Count the references that are, number for number, among the queries.

    Examples
    --------
    >>> import numpy as np
    >>> count_overlap(np.eye(3), np.eye(3)[:2])
    2
    """
    asked = set(_bytes_of_rows(open_embeddings(queries, name="queries")))
    bank = open_embeddings(references, name="references")
    return sum(row in asked for row in _bytes_of_rows(bank))


def warn_of_overlap(
    references: Embeddings, *queries: Embeddings, role: str = "queries", stacklevel: int = 4
) -> None:
    """Warn where references are among the queries.

    Parameters
    ----------
    references : Embeddings
    *queries : Embeddings
        All queries that figures are measured on.
    role : str
        What the message calls them.
    stacklevel : int
        By default the warning names the caller of a public function that calls this one.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> warn_of_overlap(open_embeddings(np.eye(3)), open_embeddings(-np.eye(3)))
    """
    asked = {row for some in queries for row in _bytes_of_rows(some)}
    if n_common := sum(row in asked for row in _bytes_of_rows(references)):
        warnings.warn(
            f"{n_common:,} of the {len(references):,} rows of {references.name} are among the "
            f"{role}; a bank that includes the queries makes the result look too good",
            NNNormWarning,
            stacklevel=stacklevel,
        )


def warn_of_foreign_bank(
    references: Embeddings, queries: Embeddings, gallery: Embeddings, truth: Any = None
) -> None:
    """Warn where references and queries do not seem to come from the same source.

    Of the queries that share their right item one is looked at, since the captions of one picture
    are closer to each other than to any reference.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(3))
    >>> warn_of_foreign_bank(rows, rows, open_embeddings(-np.eye(3)), [0, 0, 1])
    """
    if truth is not None:
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        queries = queries.subset(np.unique(clusters_of(right), return_index=True)[1])
    warn_of_foreign(references, queries, gallery)


def _bytes_of_rows(embeddings: Embeddings) -> Iterator[bytes]:
    for _, block in embeddings.blocks():
        for row in block + np.float32(0):  # makes -0 the 0 that it equals
            yield row.tobytes()
