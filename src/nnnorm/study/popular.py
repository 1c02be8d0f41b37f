"""Choosing the weight of a popularity where clicks and right answers are known."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError, warn
from nnnorm.methods import MethodName, make_method
from nnnorm.popularity import Popularity
from nnnorm.study.intervals import is_near
from nnnorm.study.sweep import sweep_hits
from nnnorm.study.truth import Truth

FloatArray: TypeAlias = npt.NDArray[np.float32]
# For cosines: on Flickr8k 0.05 was the best of these under Zipf's traffic, and 0.12 too much. They
# are multiplied by the product of the norms of queries and items.
_WEIGHTS = (0.0, 0.005, 0.01, 0.02, 0.03, 0.05, 0.08, 0.12)


@dataclass(frozen=True, eq=False)
class PopularityChoice:
    """The weights that were tried, and the bias with the chosen one.

    Attributes
    ----------
    bias : Bias
        With the popularity, or as it was where none helps.
    hits : ndarray, shape (n_queries,)
        Whether each query's right item comes first with that bias.
    weight : float
        0 where none helps.
    recalls : dict
        R@1 by weight.
    """

    bias: Bias
    hits: FloatArray
    weight: float
    recalls: dict[float, float]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON."""
        grid = [{"weight": w, "recall_at_1": recall} for w, recall in self.recalls.items()]
        return {"weight": self.weight, "recall_at_1": self.recalls[self.weight], "grid": grid}


def check_clicks(
    clicks: npt.ArrayLike, n_gallery: int, methods: Sequence[MethodName], *, is_all: bool
) -> list[MethodName]:
    """Check clicks before any work, and return the methods that a popularity can be added to.

    Examples
    --------
    >>> check_clicks([3, 0], 2, ("nnn", "qbnorm"), is_all=True)
    ['nnn']
    """
    if len(Popularity(clicks)) != n_gallery:
        raise NNNormError(
            f"clicks must have one number per item of the gallery, {n_gallery}; got "
            f"{len(Popularity(clicks))}"
        )
    gated = [name for name in methods if make_method(name).gated_by]
    if gated and not is_all:
        raise NNNormError(
            f"method {gated[0]} decides per query, so that no popularity can be added to it; leave "
            "out clicks, or choose other methods"
        )
    return [name for name in methods if name not in gated]


def choose_popularity(
    queries: Embeddings,
    gallery: Embeddings,
    bias: Bias,
    *,
    clicks: npt.ArrayLike,
    truth: Truth,
    clusters: npt.NDArray[Any],
    **options: Any,
) -> PopularityChoice:
    """Choose the smallest weight within one paired standard error of the best, by R@1.

    Parameters
    ----------
    queries, gallery : Embeddings
    bias : Bias
        To which the popularity is added; without gates.
    clicks : array, shape (n_gallery,)
        They should not come from these queries.
    truth : Truth
    clusters : ndarray, shape (n_queries,)
    **options
        ``memory_budget`` and ``progress``.

    Returns
    -------
    PopularityChoice

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> from nnnorm.study.truth import open_truth
    >>> rows = open_embeddings(np.eye(3))
    >>> right = open_truth([0, 1, 2], n_queries=3, n_gallery=3)
    >>> bias = Bias(np.zeros(3), 1.0, "nnn")
    >>> facts = {"truth": right, "clusters": np.arange(3)}
    >>> choose_popularity(rows, rows, bias, clicks=[5, 0, 0], **facts).weight
    0.0
    """
    scale = float(np.mean(gallery.norm_range) * np.mean(queries.norm_range))
    weights = [float(f"{weight * scale:.3g}") for weight in _WEIGHTS]
    biases = [bias, *(bias + Popularity(clicks, weight=weight) for weight in weights[1:])]
    corrections = [partial(np.asarray, one.correction) for one in biases]
    hits = sweep_hits(queries, gallery, truth, corrections, **options)
    means = hits.mean(axis=1, dtype=np.float64)
    best = int(means.argmax())
    chosen = next(row for row in range(len(hits)) if is_near(hits[best], hits[row], clusters))
    recalls = {weight: float(mean) for weight, mean in zip(weights, means, strict=True)}
    if chosen == len(weights) - 1:
        warn(
            f"the largest weight of a popularity that was tried is the best one, {weights[-1]:g}; "
            "larger ones may be better still: bias + Popularity(clicks, weight=…)"
        )
    return PopularityChoice(biases[chosen], hits[chosen], weights[chosen], recalls)
