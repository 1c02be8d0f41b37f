"""Folds of queries, so that nothing is tuned on what it is tested on, and references among them.

The queries of an item stay together. `count_overlap` finds references that are among the test
queries: a bank that includes them is transductive, and its gains do not carry over to new queries.
"""

import warnings
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, NNNormWarning
from nnnorm.input_checks import warn_of_mismatch
from nnnorm.study.truth import Truth, clusters_of, open_truth

IntArray: TypeAlias = npt.NDArray[np.int64]
_N_FOLDS = 5


def split_folds(clusters: npt.NDArray[Any], *, seed: int = 0) -> IntArray:
    """Assign every query to one of five folds, at random; those of one cluster stay together.

    Parameters
    ----------
    clusters : array, shape (n_queries,)
        Queries with the same label belong together.
    seed : int
        Random seed.

    Returns
    -------
    ndarray, shape (n_queries,), int64
        Numbers from 0 to 4, or to the number of clusters where there are fewer than five.

    Examples
    --------
    >>> folds = split_folds(np.repeat(np.arange(10), 3))
    >>> np.bincount(folds).tolist(), folds[0] == folds[1] == folds[2]
    ([6, 6, 6, 6, 6], np.True_)
    """
    labels, members = np.unique(clusters, return_inverse=True)
    if len(labels) < 2:
        raise NNNormError(
            "queries that all belong together can't be split; got one group of "
            f"{len(members)} queries"
        )
    order = np.random.default_rng(seed).permutation(len(labels))
    fold_of_label = np.empty(len(labels), dtype=np.int64)
    fold_of_label[order] = np.arange(len(labels)) % min(_N_FOLDS, len(labels))
    return fold_of_label[members]


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


def warn_of_mismatched_bank(
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
    >>> warn_of_mismatched_bank(rows, rows, open_embeddings(-np.eye(3)), [0, 0, 1])
    """
    if truth is not None:
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        queries = one_per_cluster(queries, right)
    warn_of_mismatch(references, queries, gallery)


def one_per_cluster(queries: Embeddings, truth: Truth) -> Embeddings:
    """Return the first of the queries that share their right item, of each such cluster.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> truth = open_truth([0, 0, 1], n_queries=3, n_gallery=2)
    >>> len(one_per_cluster(open_embeddings(np.eye(3)), truth))
    2
    """
    return queries.subset(np.unique(clusters_of(truth), return_index=True)[1])


def _bytes_of_rows(embeddings: Embeddings) -> Iterator[bytes]:
    for _, block in embeddings.blocks():
        for row in block + np.float32(0):  # makes -0 the 0 that it equals
            yield row.tobytes()
