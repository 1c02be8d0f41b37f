"""DBNorm, a softmax over two banks (Wang et al., EMNLP 2023): DualIS, and DualDIS with gates."""

from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, check_number
from nnnorm.methods.base import BankName, FloatArray, Grid, Method, Statistics, Variant
from nnnorm.methods.inverted_softmax import BETAS, LARGEST_BETA

GateForm: TypeAlias = Literal["paper", "safe"]
_BANKS: tuple[BankName, BankName] = ("references", "gallery_references")
# The grid of the NNN paper: a coarse one over both β, then a fine one near the published settings.
_GRID: Grid = (
    {"beta_query": (0.0, *BETAS), "beta_gallery": (0.0, *BETAS)},
    {
        "beta_query": tuple(float(f"{beta:.4g}") for beta in np.geomspace(25, 200, 20)),
        "beta_gallery": tuple(float(f"{beta:.4g}") for beta in np.geomspace(0.001, 15, 20)),
    },
)


@dataclass(frozen=True)
class DualSoftmax(Method):
    """DBNorm: a softmax over two banks, past queries and items (Wang et al., EMNLP 2023).

    The correction of an item r is ``b(r) = [L_βg(gallery bank) + L_βq(past queries)] / (βg + βq)``.
    ``L_β`` is the log of the mean of ``exp(β·s)`` over the item's scores s with a bank. The gallery
    bank consists of items; pass it to `fit` as `gallery_references`.

    Parameters
    ----------
    beta_query : float
        βq: inverse temperature of the past queries (β2 in the papers).
    beta_gallery : float
        βg: inverse temperature of the gallery bank (β1 in the papers). With 0, this is
        `InvertedSoftmax`.
    gate : None, "paper" or "safe"
        None is DualIS, which corrects all queries. The others are DualDIS, which has a gate per
        bank: a bank's term applies only if the query's raw best item is also the best item of a row
        of that bank. "safe" leaves out the other terms. "paper" multiplies factors, as published:
        if a gate is closed, the factor is the raw score, which reverses the order of negative
        scores.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import DualSoftmax
    >>> method = DualSoftmax(beta_query=50.0, beta_gallery=10.0)
    >>> method.fit(np.eye(3), np.eye(3), gallery_references=np.eye(3)).method
    'dualis'
    """

    beta_query: float
    beta_gallery: float
    gate: GateForm | None = None

    variants = (
        Variant("dualis", "DualIS", _GRID, fixed={"gate": None}),
        Variant("dualdis", "DualDIS", _GRID, preset={"gate": "paper"}),
    )
    shown = ("beta_query", "beta_gallery")
    gallery_bank = "needed"

    def __post_init__(self) -> None:
        check_number("beta_query", self.beta_query, 0, LARGEST_BETA)
        check_number("beta_gallery", self.beta_gallery, 0, LARGEST_BETA)
        if self.gate not in (None, "paper", "safe"):
            raise NNNormError(f"gate must be None, 'paper' or 'safe'; got {self.gate!r}")

    def values(self, statistics: Statistics) -> FloatArray:
        """Return the sum of both terms."""
        return np.asarray(np.sum(self.parts(statistics), axis=0))

    def parts(self, statistics: Statistics) -> list[FloatArray]:
        """Return ``L_β/(βg + βq)`` over the references, and over the gallery bank."""
        total = (self.beta_query + self.beta_gallery) or 1.0
        betas = (self.beta_query, self.beta_gallery)
        pairs = zip(betas, _BANKS, strict=True)
        return [statistics.log_mean_exp(beta, bank) / total for beta, bank in pairs]

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """The banks that have a gate."""
        if self.gate is None:
            return ()
        return _BANKS if self.beta_gallery or self.gate == "paper" else _BANKS[:1]


def published_product(
    raw: npt.NDArray[np.float32], bias: Bias, is_open: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Return scores that rank by the published DualDIS, a product of two factors.

    The factor of an open gate is ``exp(β·s − L)``; that of a closed one is the raw score. If both
    gates are open, this is DualIS, and the scores are ``s − b``.
    """
    scores = raw.astype(np.float64)
    betas = [bias.params["beta_query"], bias.params["beta_gallery"]]
    with np.errstate(divide="ignore"):
        closed = np.log(np.abs(scores))
    exponents = np.zeros_like(scores)
    for beta, gate, rows in zip(betas, bias.gates, is_open[:, :, None], strict=True):
        logs = (gate.values * sum(betas)).astype(np.float64)
        exponents += np.where(rows, beta * scores - logs, closed)
    sign = np.sign(scores) ** (~is_open).sum(axis=0)[:, None]
    is_positive, is_negative = sign > 0, sign < 0
    exponents = np.where(sign == 0, 0.0, exponents)
    exponents -= exponents.max(axis=1, keepdims=True, initial=-np.inf, where=sign != 0).clip(-1e300)
    # Order: positive products, zeros, then negative products, those nearest to 0 first.
    least = np.where(is_positive, exponents, 0.0).min(axis=1, keepdims=True, initial=0.0)
    smallest = np.where(is_negative, exponents, 0.0).min(axis=1, keepdims=True, initial=0.0)
    negative = least - 2 - (exponents - smallest)
    ranked = np.where(is_positive, exponents, np.where(is_negative, negative, least - 1))
    both_open = np.asarray(is_open.all(axis=0))
    return np.where(both_open[:, None], raw - bias.values, ranked).astype(np.float32)
