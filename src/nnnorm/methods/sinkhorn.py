"""Sinkhorn normalization, ``b(r) = −τ·log u_r`` (DBSN: Pan et al., ACM MM 2025)."""

from dataclasses import dataclass

from nnnorm.errors import check_count, check_number
from nnnorm.methods.base import FloatArray, Method, Statistics, Variant

# The marginals agree to float32 after some hundred iterations.
_MOST_ITERATIONS = 10_000


@dataclass(frozen=True)
class Sinkhorn(Method):
    """Entropic transport between gallery and references (DBSN: Pan et al., ACM MM 2025).

    ``b(r) = −τ·log u_r``, and u scales the gallery side of the transport plan that spreads the
    references evenly over the items. Equivalently, it is an inverted softmax at β = 1/τ with
    weighted references: none counts for more than its share. A gallery bank adds more items to the
    plan.

    Parameters
    ----------
    tau : float
        Temperature, on the scale of the scores.
    iterations : int
        Number of times both marginals are balanced. Each iteration is a pass over all scores.

    Examples
    --------
    >>> Sinkhorn(tau=0.1).fit_scores([[0.5, 0.5], [0.1, 0.1]]).values.round(2).tolist()
    [0.5, 0.1]
    """

    tau: float = 0.01
    iterations: int = 10

    variants = (Variant("sinkhorn", "Sinkhorn", {"tau": (0.005, 0.01, 0.02, 0.05, 0.1)}),)
    shown = ("tau",)
    gallery_bank = "optional"
    values_each_item = False  # the references are spread over all items at once

    def __post_init__(self) -> None:
        check_number("tau", self.tau, 1e-6, 100)  # beyond that float32 loses the bias
        check_count("iterations", self.iterations, _MOST_ITERATIONS)

    def values(self, statistics: Statistics) -> FloatArray:
        """``−τ·log u`` of the gallery's rows."""
        return statistics.transport(self.tau, self.iterations)
