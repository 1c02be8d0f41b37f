"""Nearest Neighbor Normalization, ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias, get_args

import numpy as np

from nnnorm.bias import check_weight
from nnnorm.errors import NNNormError
from nnnorm.methods.automatic import (
    RULES,
    RuleName,
    density_correlation,
    split_half_reliability,
)
from nnnorm.methods.base import POWERS_OF_TWO, FloatArray, Method, Variant, check_count, record
from nnnorm.methods.statistics import Needs, Statistics
from nnnorm.scoring import Products

Auto: TypeAlias = Literal["auto"]
_PAPER_ALPHAS = tuple(float(alpha) for alpha in np.arange(0.25, 1.501, 0.125))
PAPER_GRID = {"reference_k": POWERS_OF_TWO, "alpha": _PAPER_ALPHAS}
# A bank that is small or of another source does best with less than the paper tried.
_GRID = {**PAPER_GRID, "alpha": (0.0625, 0.125, 0.1875, *_PAPER_ALPHAS), "center": (True,)}


@record
@dataclass(frozen=True)
class NNN(Method):
    """Nearest Neighbor Normalization: ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024).

    Parameters
    ----------
    reference_k : int or "auto"
        Number of an item's best references to average; "auto" depends on the size of the bank.
    alpha : float or "auto"
        The weight; "auto" depends on the bank and the gallery, see `automatic.py`.
    center : bool or "auto"
        Whether the mean of the gallery is taken from its rows before they are scored with the
        bank. "auto" leaves that to the rule, and is False where both numbers are given.
    rule : {"second", "first", "paper"}
        Chooses what is "auto": the rule of this version, the rule of version 0.1, or the setting
        that the paper found best most often (k = 128, α = 0.75, not centred).

    Examples
    --------
    >>> import numpy as np
    >>> rng = np.random.default_rng(0)
    >>> bias = NNN().fit(rng.normal(size=(40, 8)), rng.normal(size=(100, 8)))
    >>> bias.params["reference_k"], 0 <= bias.weight <= 0.5
    (8, True)
    """

    reference_k: int | Auto = "auto"
    alpha: float | Auto = "auto"
    center: bool | Auto = "auto"
    rule: RuleName = "second"

    variants = (Variant("nnn", "NNN", _GRID),)
    symbols: ClassVar = {"reference_k": "k", "alpha": "α", "center": "centred"}
    uses_means = True

    def __post_init__(self) -> None:
        if self.reference_k != "auto":
            check_count("reference_k", self.reference_k)
        if self.alpha != "auto":
            check_weight(self.alpha, "alpha")
        if self.center not in (True, False, "auto"):
            raise NNNormError(f'center must be True, False or "auto"; got {self.center!r}')
        if self.rule not in RULES:
            raise NNNormError(
                f"rule must be one of {', '.join(get_args(RuleName))}; got {self.rule!r}"
            )
        if not self.is_automatic and self.center == "auto":
            object.__setattr__(self, "center", False)

    @classmethod
    def paper(cls) -> "NNN":
        """Return the setting that the paper found best most often: k = 128, α = 0.75.

        Examples
        --------
        >>> NNN.paper().reference_k, NNN.paper().alpha
        (128, 0.75)
        """
        return cls(reference_k=128, alpha=0.75)

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; centring where it is done, the rule where something is left to it."""
        params = super().params
        if self.center is not True:
            del params["center"]
        if not self.is_automatic:
            del params["rule"]
        return params

    @property
    def is_automatic(self) -> bool:
        """Whether k or α is left to the rule."""
        return "auto" in (self.reference_k, self.alpha)

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
        if self.reference_k == "auto":
            return Needs()
        return Needs(self.reference_k, is_centred=self.center is True)

    def settle(self, statistics: Statistics) -> tuple["NNN", dict[str, Any]]:
        """Choose k by the size of the bank and α by its reliability, where they are "auto"."""
        if not self.is_automatic:
            return self, {}
        rule, n_references = RULES[self.rule], statistics.n_references
        center = rule.is_centred if self.center == "auto" else self.center
        reference_k = self.reference_k
        if reference_k == "auto":
            reference_k = rule.choose_reference_k(n_references)
        statistics.check_reference_k(reference_k)
        settled = replace(self, reference_k=reference_k, center=center)
        if self.alpha != "auto":
            return settled, {"rule": self.rule}
        reliability = _reliability(statistics, reference_k, center) if rule.power else 1.0
        density = _density(statistics, reference_k, center) if rule.gate else None
        measured = {"reliability": reliability if rule.power else None, "density": density}
        found = {name: value for name, value in measured.items() if value is not None}
        alpha = rule.choose_alpha(reliability, n_references, density)
        return replace(settled, alpha=alpha), {"rule": self.rule, **found}

    def values(self, statistics: Statistics) -> FloatArray:
        """``m_k``; the weight is α."""
        return statistics.mean_of_best(int(self.reference_k), is_centred=self.center is True)

    @classmethod
    def further_cells(cls, statistics: Statistics) -> Sequence["NNN"]:
        """The setting that the rule chooses for this very bank, unless it is no correction."""
        automatic = _automatic(statistics)
        return [automatic] if automatic.weight else []

    def distance_from_usual(self, statistics: Statistics) -> float:
        """Steps of the paper's grid to what the rule chooses for this very bank."""
        usual = _automatic(statistics)
        steps = abs(np.log2(int(self.reference_k) / int(usual.reference_k)))
        return float(steps + abs(self.weight - usual.weight) / 0.125)

    def check_tunable(self) -> None:
        """Raise where a parameter is "auto"."""
        if self.is_automatic:
            raise NNNormError(
                "the grid of nnn needs numbers for both reference_k and alpha, not auto"
            )


def _automatic(statistics: Statistics) -> NNN:
    return statistics.keep("automatic nnn", lambda: NNN().settle(statistics)[0])


def _reliability(statistics: Statistics, reference_k: int, is_centred: bool) -> float:
    return statistics.keep(
        ("reliability", reference_k, is_centred),
        lambda: split_half_reliability(
            statistics.scores_for_means(is_centred),
            reference_k,
            memory_budget=statistics.options["memory_budget"],
        ),
    )


def _density(statistics: Statistics, reference_k: int, is_centred: bool) -> float | None:
    """Of embeddings; ready scores do not tell how near items are to each other."""
    gallery, scores = statistics.gallery, statistics.scores_for_means(is_centred)
    if gallery is None or not isinstance(scores, Products):
        return None
    return statistics.keep(
        ("density", reference_k, is_centred),
        lambda: density_correlation(
            scores, gallery, reference_k, memory_budget=statistics.options["memory_budget"]
        ),
    )
