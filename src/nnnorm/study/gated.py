"""Hits of gated methods from the strips that a sweep looks at anyway.

A gate is open or shut per query, whatever β is, so QBNorm's hits are those of the inverted softmax
where it is open and the raw ones where it is shut. DualDIS as published has four kinds of queries:
both gates open (DualIS), none (the squared score), and one open, where the product depends on that
gate's β alone: a few dozen rankings of the few such queries, not hundreds.
"""

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.ranking import multiply_factors
from nnnorm.study.evaluation import Evaluation, count_above
from nnnorm.study.grid import Bank, Setting
from nnnorm.study.truth import Truth

__all__ = ["GateWatch"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
BoolArray: TypeAlias = npt.NDArray[np.bool_]


class GateWatch:
    """Looks at raw rows during a sweep and then tells the hits of gated settings.

    Parameters
    ----------
    settings : sequence of Setting
        The gated ones.
    bank : Bank
        With the log-mean-exps they need.
    truth : Truth
    query_active : ndarray, shape (n_gallery,), bool
        Activation set of the references.
    gallery_active : ndarray, shape (n_gallery,), bool, optional
        Activation set of the gallery bank, for DualDIS.
    """

    def __init__(
        self,
        settings: Sequence[Setting],
        bank: Bank,
        truth: Truth,
        query_active: BoolArray,
        gallery_active: BoolArray | None = None,
    ) -> None:
        self._truth, self._bank = truth, bank
        self._active = (query_active, query_active if gallery_active is None else gallery_active)
        self._open = np.zeros((2, len(truth)), dtype=bool)
        dual = [setting for setting in settings if setting.method == "dualdis"]
        self._betas = [
            sorted({setting.params[name] for setting in dual})
            for name in ("beta_query", "beta_gallery")
        ]
        self._shut_hits = np.zeros(len(truth), dtype=np.float32)
        self._one_open_hits: list[dict[float, FloatArray]] = [
            {beta: np.zeros(len(truth), dtype=np.float32) for beta in betas}
            for betas in self._betas
        ]

    def look(self, start: int, scores: FloatArray) -> None:
        """Decide the gates of a strip's queries and rank those that are not all open."""
        queries = np.arange(start, start + len(scores))
        best = scores.argmax(axis=1)
        opened = self._open[:, queries] = np.stack([active[best] for active in self._active])
        if not self._betas[0]:
            return
        shut = ~opened.any(axis=0)
        self._shut_hits[queries[shut]] = self._hits(
            multiply_factors(scores[shut], [], n_closed=2), queries[shut]
        )
        for gate, logs in enumerate((self._bank.logs, self._bank.gallery_logs)):
            alone = opened[gate] & ~opened[1 - gate]
            for beta in self._betas[gate]:
                factor = (beta, logs[beta] if beta else np.zeros(scores.shape[1]))
                product = multiply_factors(scores[alone], [factor], n_closed=1)
                hits = self._one_open_hits[gate][beta]
                hits[queries[alone]] = self._hits(product, queries[alone])

    def hits(self, setting: Setting, ungated: FloatArray, raw: FloatArray) -> FloatArray:
        """Hits of a gated setting, from those of its ungated form and of no correction.

        Parameters
        ----------
        setting : Setting
        ungated, raw : ndarray, shape (n_queries,)

        Returns
        -------
        ndarray, shape (n_queries,)
        """
        query_open, gallery_open = self._open
        if setting.method == "qbnorm":
            return np.where(query_open, ungated, raw)
        hits = np.where(query_open & gallery_open, ungated, self._shut_hits)
        for gate, name in enumerate(("beta_query", "beta_gallery")):
            alone = self._open[gate] & ~self._open[1 - gate]
            hits[alone] = self._one_open_hits[gate][setting.params[name]][alone]
        return hits

    def _hits(
        self, scores: npt.NDArray[np.float64], queries: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.float64]:
        if len(queries) == 0:
            return np.zeros(0)
        truth = self._truth.some_queries(queries)
        # In the float32 of a search, so that what is a tie there is a tie here.
        above, tied = count_above(scores.astype(np.float32), truth, 0)
        n_gallery = scores.shape[1]
        return Evaluation(truth, above, tied, queries, n_gallery, n_gallery).hits(1)
