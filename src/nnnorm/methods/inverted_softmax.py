"""Inverted softmax, ``b(r) = L_β(r)/β``; with a gate, QBNorm (Bogolin et al., CVPR 2022)."""

from dataclasses import dataclass

import numpy as np

from nnnorm.errors import check_number
from nnnorm.methods.base import BankName, FloatArray, Method, Statistics, Variant

# The grid of the NNN paper for DBNorm.
BETAS = tuple(float(f"{beta:.4g}") for beta in np.geomspace(0.001, 400, 20))
# With a larger β, the inverted softmax equals the maximum in float32.
LARGEST_BETA = 1e9


@dataclass(frozen=True)
class InvertedSoftmax(Method):
    """Inverted softmax, and QBNorm, which adds a gate (Bogolin et al., CVPR 2022).

    The correction of an item r is ``b(r) = L_β(r)/β``. ``L_β(r)`` is the log of the mean of
    ``exp(β·s)`` over the item's scores s with past queries.

    Parameters
    ----------
    beta : float
        β in the formula, the inverse temperature. The best value depends on the scale of the
        scores; 0 is no correction.
    gated : bool
        True is QBNorm: it corrects only queries whose raw best item is also the raw best item of a
        past query.

    Examples
    --------
    >>> from nnnorm import InvertedSoftmax
    >>> InvertedSoftmax(beta=1e6).fit_scores([[0.25, 0.5]]).values.round(4).tolist()
    [0.5]
    """

    beta: float = 20.0
    gated: bool = False

    variants = (
        Variant("is", "Inverted softmax", {"beta": BETAS}, fixed={"gated": False}),
        Variant("qbnorm", "QBNorm", {"beta": BETAS}, fixed={"gated": True}),
    )
    shown = ("beta",)

    def __post_init__(self) -> None:
        check_number("beta", self.beta, 0, LARGEST_BETA)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return ``L_β/β``; zeros for β = 0."""
        return statistics.log_mean_exp(self.beta) / (self.beta or 1.0)

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """The references, if the method is gated."""
        return ("references",) if self.gated else ()
