"""Cross-domain Similarity Local Scaling, ``b(r) = ½·m_k(r)`` (Conneau et al., ICLR 2018)."""

from dataclasses import dataclass

from nnnorm.errors import check_count
from nnnorm.methods.base import POWERS_OF_TWO, FloatArray, Method, Statistics, Variant


@dataclass(frozen=True)
class CSLS(Method):
    """Cross-domain Similarity Local Scaling, CSLS (Conneau et al., ICLR 2018).

    The correction of an item r is ``b(r) = ½·m_k(r)``. ``m_k(r)`` is the mean of the item's k best
    scores with past queries. The published score ``2s − r(q) − r(item)`` also has a term for the
    query, which doesn't change the order of its hits.

    Parameters
    ----------
    reference_k : int
        k in the formula: number of past queries per item to average.

    Examples
    --------
    >>> from nnnorm import CSLS
    >>> CSLS(reference_k=2).fit_scores([[0.25, 0.75, 0.0]]).correction.tolist()
    [0.25]
    """

    reference_k: int = 10

    variants = (Variant("csls", "CSLS", {"reference_k": POWERS_OF_TWO}),)
    shown = ("reference_k",)
    weight = 0.5
    is_weighted = True

    def __post_init__(self) -> None:
        check_count("reference_k", self.reference_k)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return ``m_k``; its weight is ½."""
        return statistics.mean_of_best(self.reference_k)
