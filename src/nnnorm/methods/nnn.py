"""Nearest Neighbor Normalization, ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024)."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, TypeAlias

import numpy as np

from nnnorm.bias import check_weight
from nnnorm.errors import NNNormError
from nnnorm.methods.automatic import choose_alpha, choose_reference_k
from nnnorm.methods.base import POWERS_OF_TWO, FloatArray, Method, Variant, check_count
from nnnorm.methods.statistics import Statistics

Auto: TypeAlias = Literal["auto"]
_PAPER_ALPHAS = tuple(float(alpha) for alpha in np.arange(0.25, 1.501, 0.125))
PAPER_GRID = {"reference_k": POWERS_OF_TWO, "alpha": _PAPER_ALPHAS}
# Small or mismatched banks do best with less than the paper tried.
_GRID = {**PAPER_GRID, "alpha": (0.0625, 0.125, 0.1875, *_PAPER_ALPHAS), "center": (True,)}


@dataclass(frozen=True)
class NNN(Method):
    """Nearest Neighbor Normalization: ``b(r) = α·m_k(r)`` (Chowdhury et al., EMNLP 2024).

    ``NNN()`` sets itself, without labels. If you give both numbers, the method is that of the
    paper: every reference counts as it is given, and nothing is centered.

    Parameters
    ----------
    reference_k : int or "auto"
        Number of an item's best references to average.
    alpha : float or "auto"
        The weight of the bias, at least 0.
    center : bool or "auto"
        Whether the mean of the gallery is subtracted from its rows before they are scored with the
        references. "auto" is True for automatic settings and False if both numbers are given.

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

    variants = (Variant("nnn", "NNN", _GRID),)
    symbols: ClassVar = {"reference_k": "k", "alpha": "α", "center": "centered"}

    def __post_init__(self) -> None:
        if self.reference_k != "auto":
            check_count("reference_k", self.reference_k)
        if self.alpha != "auto" and check_weight(self.alpha, "alpha") < 0:
            raise NNNormError(
                f"alpha must be at least 0 (0 is no correction); got {self.alpha:g}, which would "
                "favor hubs"
            )
        if self.center not in (True, False, "auto"):
            raise NNNormError(f'center must be True, False or "auto"; got {self.center!r}')
        if not self.is_automatic and self.center == "auto":
            object.__setattr__(self, "center", False)

    @classmethod
    def paper(cls) -> "NNN":
        """Return the setting that the paper found best most often: k = 128, α = 0.75.

        Examples
        --------
        >>> NNN.paper()
        NNN(reference_k=128, alpha=0.75)
        """
        return cls(reference_k=128, alpha=0.75)

    def __repr__(self) -> str:
        default = {"reference_k": "auto", "alpha": "auto", "center": "auto"}
        if not self.is_automatic:
            default["center"] = False  # type: ignore[assignment]
        given = {name: getattr(self, name) for name in default}
        shown = (f"{n}={value!r}" for n, value in given.items() if value != default[n])
        return f"NNN({', '.join(shown)})"

    @property
    def params(self) -> dict[str, Any]:
        """The parameters; `center` only if it is on."""
        params = super().params
        if self.center is not True:
            del params["center"]
        return params

    def to_dict(self) -> dict[str, Any]:
        """Name and parameters, from which `make_method` makes the same method."""
        return {"name": self.name, "params": {**self.params, "center": self.center}}

    @property
    def is_automatic(self) -> bool:
        """Whether k or α is set automatically."""
        return "auto" in (self.reference_k, self.alpha)

    @property
    def weight(self) -> float:
        """The weight of the bias values is α."""
        if self.alpha == "auto":
            raise NNNormError(
                'alpha is "auto", so fit chooses the weight; read it from the bias '
                "(bias.weight), or give a number for alpha"
            )
        return float(self.alpha)

    def resolve(self, statistics: Statistics) -> tuple["NNN", dict[str, Any]]:
        """Replace "auto" by numbers; also return what they were chosen by."""
        if not self.is_automatic:
            return self, {}
        center = self.center != False  # noqa: E712 - "auto" is on
        reference_k = self.reference_k
        if reference_k == "auto":
            reference_k = choose_reference_k(statistics.n_references, statistics.n_gallery)
        if self.alpha != "auto":
            return replace(self, reference_k=reference_k, center=center), {}
        evidence = statistics.evidence(reference_k, is_centered=center)
        alpha = choose_alpha(evidence, statistics.n_references)
        return NNN(reference_k, alpha, center), evidence.to_params()

    def values(self, statistics: Statistics) -> FloatArray:
        """``m_k``; the weight is α."""
        return statistics.mean_of_best(int(self.reference_k), is_centered=self.center is True)
