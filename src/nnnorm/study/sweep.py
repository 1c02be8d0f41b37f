"""R@1 of very many corrections from one product of queries and gallery.

For a query, item j can only matter if it may win under some correction. With ``lower`` and
``upper`` the least and greatest correction of each item (each correction first centred, since a
constant changes no ranking), item j stays below ``s_j − lower_j``, and some wrong item always
reaches ``U = max_j (s_j − upper_j)``. So an item that stays below U, or below the worst score of
the right item, drops out at once, and a query whose U exceeds the best score of its right item is
lost everywhere. The few remaining pairs are compared under every correction in the same float32
arithmetic that a search uses, so each cell equals its own evaluation.
"""

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings
from nnnorm.files import Progress
from nnnorm.ranking import iterate_scores
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, in_threads
from nnnorm.study.truth import Truth

FloatArray: TypeAlias = npt.NDArray[np.float32]
# Returns what is taken from every score, shape (n_gallery,), float32; called again when needed.
Correction: TypeAlias = Callable[[], FloatArray]


def sweep_hits(
    queries: Embeddings,
    gallery: Embeddings,
    truth: Truth,
    corrections: Sequence[Correction],
    *,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
    look: Callable[[int, FloatArray], None] | None = None,
) -> FloatArray:
    """Find whether the right item of each query comes first, under every correction.

    Parameters
    ----------
    queries : Embeddings, shape (n_queries, dim)
    gallery : Embeddings, shape (n_gallery, dim)
    truth : Truth
    corrections : sequence of callables
        Each returns a correction of shape ``(n_gallery,)``.
    memory_budget : int
        Bytes to use beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.
    look : callable, optional
        Called with ``(start, raw scores of whole rows)`` of every strip, to compute more from the
        same product; it must not change them.

    Returns
    -------
    ndarray, shape (n_corrections, n_queries), float32
        1 or 0, between on a tie.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> from nnnorm.study.truth import open_truth
    >>> items = open_embeddings(np.array([[1.0, 0.0], [0.8, 0.6]]))
    >>> truth = open_truth([0, 0], n_queries=2, n_gallery=2)
    >>> offsets = [np.float32([0, 0]), np.float32([0.5, 0])]
    >>> sweep_hits(items, items, truth, [lambda o=o: o for o in offsets]).tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    hits = np.empty((len(corrections), len(queries)), dtype=np.float32)
    if 4 * len(corrections) * len(gallery) <= memory_budget // 4:
        corrections = [_ready(correction()) for correction in corrections]
    means, lower, upper = _bounds(corrections, len(gallery))
    for start, scores in iterate_scores(
        queries, gallery, memory_budget=memory_budget // 2, progress=progress
    ):
        if look is not None:
            look(start, scores)

        def count(rows: slice, start: int = start, scores: FloatArray = scores) -> None:
            strip = _Strip(scores[rows], truth, start + rows.start, corrections, means)
            strip.find_pairs(lower, upper)
            hits[:, start + rows.start : start + rows.stop] = strip.count(corrections)

        in_threads(count, scores)
    return hits


def _ready(values: FloatArray) -> Correction:
    return lambda: values


def _bounds(
    corrections: Sequence[Correction], n_gallery: int
) -> tuple[npt.NDArray[np.float64], FloatArray, FloatArray]:
    """Mean of each correction, and each item's least and greatest centred correction."""
    means = np.empty(len(corrections))
    lower = np.full(n_gallery, np.inf, dtype=np.float32)
    upper = np.full(n_gallery, -np.inf, dtype=np.float32)
    largest = 1.0
    for number, correction in enumerate(corrections):
        values = correction()
        means[number] = values.mean(dtype=np.float64)
        largest = max(largest, float(np.abs(values).max()))
        centred = values - np.float32(means[number])
        np.minimum(lower, centred, out=lower)
        np.maximum(upper, centred, out=upper)
    # Room for the rounding of centring, so that no pair is lost to it.
    slack = np.float32(4e-6 * largest)
    return means, lower - slack, upper + slack


class _Strip:
    """One strip of raw scores: its right items' scores, and the pairs that may beat them."""

    def __init__(
        self,
        scores: FloatArray,
        truth: Truth,
        start: int,
        corrections: Sequence[Correction],
        means: npt.NDArray[np.float64],
    ) -> None:
        self.scores = scores
        stop = start + len(scores)
        first, last = truth.starts[start], truth.starts[stop]
        self.items, self.rows = truth.items[first:last], truth.queries[first:last] - start
        self.starts = truth.starts[start:stop] - first
        self.raw = scores[self.rows, self.items]
        # The best right item of every query under every correction, shape (n_corrections, n_strip).
        self.best = np.empty((len(corrections), len(scores)), dtype=np.float32)
        for best, correction in zip(self.best, corrections, strict=True):
            best[:] = np.maximum.reduceat(self.raw - correction()[self.items], self.starts)
        centred = self.best + means[:, None].astype(np.float32)
        self.worst_right, self.best_right = centred.min(axis=0), centred.max(axis=0)

    def find_pairs(self, lower: FloatArray, upper: FloatArray) -> None:
        """Keep the wrong items that may be first under some correction."""
        slack = 4e-6 * np.maximum(1, np.abs(self.scores).max(axis=1))
        bound = self.scores - upper
        bound[self.rows, self.items] = -np.inf
        always = bound.max(axis=1) - slack
        self.lost = always > self.best_right + slack
        least = np.maximum(always, self.worst_right - slack)
        least[self.lost] = np.inf
        np.subtract(self.scores, lower, out=bound)
        bound[self.rows, self.items] = -np.inf
        may_win = bound >= least[:, None]
        self.pair_rows, self.pair_items = np.nonzero(may_win)
        self.pair_raw = self.scores[self.pair_rows, self.pair_items]

    def count(self, corrections: Sequence[Correction]) -> FloatArray:
        """Hits of every query under every correction, shape ``(n_corrections, n_strip)``."""
        hits = np.ones(self.best.shape, dtype=np.float32)
        hits[:, self.lost] = 0
        for hit, best, correction in zip(hits, self.best, corrections, strict=True):
            offset = correction()
            pairs = self.pair_raw - offset[self.pair_items]
            right = best[self.pair_rows]
            level = self.pair_rows[pairs == right]
            if len(level):
                # A tie for the first place is won as often as a draw among the tied would be.
                wrong = np.bincount(level, minlength=len(best))
                is_best = self.raw - offset[self.items] == best[self.rows]
                good = np.bincount(self.rows[is_best], minlength=len(best))
                hit *= good / (good + wrong)
            hit[self.pair_rows[pairs > right]] = 0
        return hits
