"""Distribution Normalization, not renormalized: ``b(r) = λ·m_all(r)`` (Zhou et al., 2023)."""

from dataclasses import dataclass

from nnnorm.errors import check_number
from nnnorm.methods.base import FloatArray, Method, Statistics, Variant


@dataclass(frozen=True)
class DN(Method):
    """Distribution Normalization (Zhou et al., 2023), without renormalizing embeddings.

    The correction of an item r is ``b(r) = λ·m_all(r)``. ``m_all(r)`` is the mean of the item's
    scores with all past queries.

    Parameters
    ----------
    weight : float
        λ in the formula. The published value is ½; ¼ and 1 are also used, so tune it.

    Examples
    --------
    >>> from nnnorm import DN
    >>> DN(weight=0.5).fit_scores([[0.25, 0.75]]).correction.tolist()
    [0.25]
    """

    weight: float = 0.5

    variants = (Variant("dn", "DN", {"weight": (0.25, 0.5, 1.0)}),)
    shown = ("weight",)
    is_weighted = True

    def __post_init__(self) -> None:
        check_number("weight", self.weight)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return ``m_all``; its weight is λ."""
        return statistics.mean_of_all()
