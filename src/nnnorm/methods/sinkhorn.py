"""Sinkhorn normalization, ``b(r) = −τ·log u_r`` (DBSN: Pan et al., ACM MM 2025)."""

from dataclasses import dataclass

from nnnorm.errors import check_count, check_number, warn
from nnnorm.methods.base import FloatArray, Method, Statistics, Variant

# After a few hundred iterations, the marginals are exact in float32.
_MOST_ITERATIONS = 10_000
# Share of tau; with less, float32 rounds the bias by more than a percent.
_LEAST_SPREAD = 1e-4


@dataclass(frozen=True)
class Sinkhorn(Method):
    """Sinkhorn normalization: entropic transport of past queries to items (DBSN: Pan et al., 2025).

    A transport plan assigns past queries to items that they score high with, so that every item
    gets the same share. The correction of an item r is ``b(r) = −τ·log u_r``, and u_r is the factor
    by which the plan scales the item's row. This equals an inverted softmax with β = 1/τ and a
    weight per past query, so that none has more influence than another. A gallery bank, passed as
    `gallery_references`, adds more items to the plan.

    Parameters
    ----------
    tau : float
        τ in the formula: the temperature, on the scale of the scores.
    iterations : int
        Number of times to balance items and past queries. Each iteration is a pass over all scores.

    Examples
    --------
    >>> from nnnorm import Sinkhorn
    >>> Sinkhorn(tau=0.1).fit_scores([[0.5, 0.5], [0.1, 0.1]]).values.round(2).tolist()
    [0.5, 0.1]
    """

    tau: float = 0.01
    iterations: int = 10

    variants = (Variant("sinkhorn", "Sinkhorn", {"tau": (0.005, 0.01, 0.02, 0.05, 0.1)}),)
    shown = ("tau",)
    gallery_bank = "optional"
    values_each_item = False  # the plan depends on all items

    def __post_init__(self) -> None:
        check_number("tau", self.tau, 1e-6, 100)
        check_count("iterations", self.iterations, _MOST_ITERATIONS)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return ``−τ·log u`` of the gallery's rows."""
        found = statistics.transport(self.tau, self.iterations)
        if len(found) > 1 and found.std() < _LEAST_SPREAD * self.tau:
            warn(
                f"sinkhorn's tau={self.tau:g} is too large for these scores: the bias of all items "
                "is equal but for rounding; pass a smaller tau, or normalize=True (--normalize)"
            )
        return found
