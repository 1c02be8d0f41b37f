"""`rerank`: the correction for a collection whose vectors and dimension can't change."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.bias import check_weight
from nnnorm.errors import NNNormError
from nnnorm.index.backend import FloatArray


class Reranked(NamedTuple):
    """What `rerank` returns."""

    ids: npt.NDArray[Any]
    scores: FloatArray
    certain: npt.NDArray[np.bool_]


def rerank(
    ids: npt.ArrayLike,
    scores: npt.ArrayLike,
    bias: npt.ArrayLike,
    *,
    weight: float,
    bias_range: tuple[float, float],
    k: int = 10,
) -> Reranked:
    """Re-rank hits that an engine found by raw score.

    Fetch several times k hits, and look up their bias by id.

    Parameters
    ----------
    ids : array, shape (n_queries, n_fetched)
        Hits by raw score, best first.
    scores : array, same shape
        Inner products.
    bias : array, same shape
        Bias of the hits.
    weight : float
        Weight of the bias.
    bias_range : (float, float)
        Smallest and largest bias of any item in the collection.
    k : int

    Returns
    -------
    Reranked

    Examples
    --------
    >>> found = rerank([[7, 3]], [[0.75, 0.5]], [[1.0, 0.0]], weight=0.5, bias_range=(0, 1), k=1)
    >>> found.ids.tolist(), found.certain.tolist()
    ([[3]], [True])
    """
    named, raw, values = np.asarray(ids), np.asarray(scores, float), np.asarray(bias, float)
    if not (named.ndim == 2 and named.shape == raw.shape == values.shape and raw.shape[1] >= k > 0):
        raise NNNormError(
            f"ids, scores and bias must share a shape (n_queries, at least k = {k}); got "
            f"{named.shape}, {raw.shape} and {values.shape}"
        )
    used = check_weight(weight)
    corrected = raw - used * values
    order = np.argsort(-corrected, axis=1, kind="stable")[:, :k]
    best = np.take_along_axis(corrected, order, axis=1)
    # An item that wasn't fetched has at most the last raw score, and at least this correction.
    outside = raw.min(axis=1) - min(used * bound for bound in bias_range)
    found = np.take_along_axis(named, order, axis=1)
    return Reranked(found, best.astype(np.float32), best[:, -1] >= outside)
