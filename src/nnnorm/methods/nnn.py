"""Nearest Neighbor Normalization, ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from nnnorm.bias import check_weight
from nnnorm.errors import NNNormError
from nnnorm.methods.automatic import choose_alpha, choose_reference_k, split_half_reliability
from nnnorm.methods.base import POWERS_OF_TWO, FloatArray, Method, Variant, check_count, record
from nnnorm.methods.statistics import Needs, Statistics

Auto: TypeAlias = Literal["auto"]
# The paper's grid of α.
_ALPHAS = tuple(float(alpha) for alpha in np.arange(0.25, 1.501, 0.125))


@record
@dataclass(frozen=True)
class NNN(Method):
    """Nearest Neighbor Normalization: ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024).

    Parameters
    ----------
    reference_k : int or "auto"
        Number of an item's best references to average; "auto" depends on the size of the bank.
    alpha : float or "auto"
        The weight; "auto" depends on the split-half reliability of the bank, see `automatic.py`.

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bias = NNN().fit(rng.normal(size=(40, 8)), rng.normal(size=(100, 8)))
    >>> bias.params["reference_k"], 0 <= bias.weight <= 0.75
    (6, True)
    """

    reference_k: int | Auto = "auto"
    alpha: float | Auto = "auto"

    variants = (Variant("nnn", "NNN", {"reference_k": POWERS_OF_TWO, "alpha": _ALPHAS}),)
    symbols: ClassVar = {"reference_k": "k", "alpha": "α"}
    uses_means = True

    def __post_init__(self) -> None:
        if self.reference_k != "auto":
            check_count("reference_k", self.reference_k)
        if self.alpha != "auto":
            check_weight(self.alpha, "alpha")

    @classmethod
    def paper(cls) -> "NNN":
        """Return the setting that the paper found best most often: k = 128, α = 0.75.

        Examples
        --------
        >>> NNN.paper()
        NNN(reference_k=128, alpha=0.75)
        """
        return cls(reference_k=128, alpha=0.75)

    @property
    def weight(self) -> float:
        """The weight of the bias values is α."""
        if self.alpha == "auto":
            raise NNNormError(
                'alpha is "auto", so the weight is chosen by fit; read it from the bias '
                "(bias.weight), or give a number for alpha"
            )
        return float(self.alpha)

    @property
    def needs(self) -> Needs:
        """m_k, where k is a number."""
        return Needs(None if self.reference_k == "auto" else self.reference_k)

    def settle(self, statistics: Statistics) -> tuple[Method, dict[str, Any]]:
        """Choose k by the size of the bank and α by its reliability, where they are "auto"."""
        n_references = statistics.n_references
        reference_k = self.reference_k
        if reference_k == "auto":
            reference_k = choose_reference_k(n_references)
        if self.alpha != "auto":
            return replace(self, reference_k=reference_k, alpha=float(self.alpha)), {}
        budget = statistics.options["memory_budget"]
        reliability = statistics.keep(
            ("reliability", reference_k),
            lambda: split_half_reliability(statistics.scores, reference_k, memory_budget=budget),
        )
        alpha = choose_alpha(reliability, n_references)
        return replace(self, reference_k=reference_k, alpha=alpha), {"reliability": reliability}

    def values(self, statistics: Statistics) -> FloatArray:
        """``m_k``; the weight is α."""
        return statistics.mean_of_best(int(self.reference_k))

    def distance_from_usual(self, n_references: int) -> float:
        """Steps of the grid to α = 0.6 and k = a sixteenth of the bank."""
        steps = abs(np.log2(int(self.reference_k) / choose_reference_k(n_references)))
        return float(steps + abs(self.weight - 0.6) / 0.125)

    def check_tunable(self) -> None:
        """Raise where a parameter is "auto"."""
        if "auto" in (self.reference_k, self.alpha):
            raise NNNormError(
                "the grid of nnn needs numbers for both reference_k and alpha, not auto"
            )
