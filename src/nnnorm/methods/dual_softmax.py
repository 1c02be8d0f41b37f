"""DBNorm, a softmax over two banks (Wang et al., EMNLP 2023): DualIS, and gated as DualDIS."""

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
# The NNN paper's grid: coarse over both β, then fine around the published settings.
_GRID: Grid = (
    {"beta_query": (0.0, *BETAS), "beta_gallery": (0.0, *BETAS)},
    {
        "beta_query": tuple(float(f"{beta:.4g}") for beta in np.geomspace(25, 200, 20)),
        "beta_gallery": tuple(float(f"{beta:.4g}") for beta in np.geomspace(0.001, 15, 20)),
    },
)


@dataclass(frozen=True)
class DualSoftmax(Method):
    """DBNorm: a softmax over two banks (Wang et al., EMNLP 2023), as one bias.

    ``b(r) = [L_βg(gallery bank, r) + L_βq(references, r)] / (βg + βq)``.

    Parameters
    ----------
    beta_query : float
        Inverse temperature of the references (β2 in the papers).
    beta_gallery : float
        Inverse temperature of the gallery bank (β1 in the papers); 0 leaves `InvertedSoftmax`.
    gate : None, "paper" or "safe"
        None is DualIS. DualDIS applies the term of each bank only to queries whose raw best item is
        in the activation set of that bank. "paper" multiplies the published factors: a closed gate
        multiplies by the raw score, which reverses the order of negative scores. "safe"
        leaves out the term of a closed gate.

    Examples
    --------
    >>> import numpy as np
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
        """The sum of both terms."""
        return np.asarray(np.sum(self.parts(statistics), axis=0))

    def parts(self, statistics: Statistics) -> list[FloatArray]:
        """``L_β/(βg + βq)`` over the references and over the gallery bank."""
        total = (self.beta_query + self.beta_gallery) or 1.0
        betas = (self.beta_query, self.beta_gallery)
        pairs = zip(betas, _BANKS, strict=True)
        return [statistics.log_mean_exp(beta, bank) / total for beta, bank in pairs]

    @property
    def gated_by(self) -> tuple[BankName, ...]:
        """Both banks if there is a gate, unless the gallery bank makes no difference."""
        if self.gate is None:
            return ()
        return _BANKS if self.beta_gallery or self.gate == "paper" else _BANKS[:1]


def published_product(
    raw: npt.NDArray[np.float32], bias: Bias, is_open: npt.NDArray[np.bool_]
) -> npt.NDArray[np.float32]:
    """Rank by DualDIS as published: ``exp(β·s − L)`` per open gate, the raw score per closed one.

    If both gates are open it is DualIS, given as ``s − b``.
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
    # From the top: positive products, zeros, then negative ones with the smallest first.
    least = np.where(is_positive, exponents, 0.0).min(axis=1, keepdims=True, initial=0.0)
    smallest = np.where(is_negative, exponents, 0.0).min(axis=1, keepdims=True, initial=0.0)
    negative = least - 2 - (exponents - smallest)
    ranked = np.where(is_positive, exponents, np.where(is_negative, negative, least - 1))
    both_open = np.asarray(is_open.all(axis=0))
    return np.where(both_open[:, None], raw - bias.values, ranked).astype(np.float32)
