"""Hits of gated methods from the strips of scores that a sweep computes anyway.

A gate is open or closed per query, whatever the parameters are. Where all gates of a method are
open, its hits are those of its ungated form; where some are closed, the query ranks by raw score
(QBNorm) or by a product of the open gates' factors (DualDIS), which depends on few parameters:
dozens of rankings of the few such queries, not hundreds.
"""

import itertools
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.methods import BankName, Factor, Method, Statistics, multiply_factors
from nnnorm.study.evaluation import Evaluation, count_above
from nnnorm.study.truth import Truth

FloatArray: TypeAlias = npt.NDArray[np.float32]
# The banks that gate a method, which of those gates are open, and the factors of the product.
_Case: TypeAlias = tuple[tuple[BankName, ...], tuple[bool, ...], tuple[Factor, ...]]


class GateWatch:
    """Reads the raw scores of a sweep, and then gives the hits of gated methods.

    Parameters
    ----------
    methods : sequence of Method
    statistics : Statistics
    truth : Truth
    """

    def __init__(self, methods: Sequence[Method], statistics: Statistics, truth: Truth) -> None:
        self._statistics, self._truth = statistics, truth
        gated = [method for method in methods if method.gated_by]
        self._is_open = {
            bank: np.zeros(len(truth), dtype=bool) for method in gated for bank in method.gated_by
        }
        self._active = {bank: statistics.activation_set(bank) for bank in self._is_open}
        self._hits: dict[_Case, FloatArray] = {
            case: np.zeros(len(truth), dtype=np.float32)
            for method in gated
            for case in _closed_cases(method)
        }

    def look(self, start: int, scores: FloatArray) -> None:
        """Decide the gates of a strip's queries, and rank those for which some are closed."""
        some = slice(start, start + len(scores))
        for bank, active in self._active.items():
            self._is_open[bank][some] = active[scores.argmax(axis=1)]
        for (banks, pattern, factors), hits in self._hits.items():
            rows = np.flatnonzero(self._matches(banks, pattern, some))
            if len(rows):
                logs = [(f.beta, self._statistics.log_mean_exp(*f)) for f in factors]
                product = multiply_factors(scores[rows], logs, n_closed=pattern.count(False))
                hits[start + rows] = self._count(product, start + rows)

    def hits(self, method: Method, ungated: FloatArray, raw: FloatArray) -> FloatArray:
        """Hits of a method, from those of its ungated form and of no correction.

        Parameters
        ----------
        method : Method
        ungated, raw : ndarray, shape (n_queries,)

        Returns
        -------
        ndarray, shape (n_queries,)
        """
        if not method.gated_by:
            return ungated
        all_open = (True,) * len(method.gated_by)
        hits = np.where(self._matches(method.gated_by, all_open), ungated, raw)
        for case in _closed_cases(method):
            rows = self._matches(*case[:2])
            hits[rows] = self._hits[case][rows]
        return hits

    def _matches(
        self, banks: Sequence[BankName], pattern: Sequence[bool], some: slice = slice(None)
    ) -> npt.NDArray[np.bool_]:
        """Which of some queries have their gates open and closed in this pattern."""
        pairs = zip(banks, pattern, strict=True)
        gates = [self._is_open[bank][some] == opened for bank, opened in pairs]
        return np.asarray(np.logical_and.reduce(gates))

    def _count(
        self, scores: npt.NDArray[np.float64], queries: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        truth = self._truth.some_queries(queries)
        # In the float32 of a search, so that what is a tie there is a tie here.
        above, tied = count_above(scores.astype(np.float32), truth, 0)
        n_gallery = scores.shape[1]
        return Evaluation(truth, above, tied, queries, n_gallery, n_gallery).hits(1)


def _closed_cases(method: Method) -> list[_Case]:
    """The products that a method ranks by where some of its gates are closed."""
    patterns = itertools.product((True, False), repeat=len(method.gated_by))
    products = ((pattern, method.closed_product(pattern)) for pattern in patterns)
    return [
        (method.gated_by, pattern, factors)
        for pattern, factors in products
        if factors is not None and not all(pattern)
    ]
