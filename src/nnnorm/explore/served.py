"""What an index serves, as a method of the picker: its stored values under any weight.

The views then show the exact ranking by the values that the index holds. Whether its engine returns
that ranking is the question of `nnnorm index verify`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias, check_weight
from nnnorm.methods import Method, Statistics, Variant, label_method

FloatArray: TypeAlias = npt.NDArray[np.float32]

SERVED = "index"


@dataclass(frozen=True)
class Served(Method):
    """The bias of an index."""

    url: str
    fitted_by: str
    reference_k: int | None
    stored: FloatArray = field(compare=False, repr=False)
    weight: float = 1.0

    variants = (Variant(SERVED, "as served"),)
    symbols: ClassVar = {"weight": "weight"}

    def __post_init__(self) -> None:
        check_weight(self.weight)

    @property
    def params(self) -> dict[str, Any]:
        """The weight, which a search may change."""
        return {"weight": float(self.weight)}

    def values(self, statistics: Statistics) -> FloatArray:
        """Return the values that the index holds."""
        return self.stored

    def make_bias(self, statistics: Statistics, chosen: Mapping[str, Any] | None = None) -> Bias:
        """Return the bias of the index, which owes nothing to the past queries that are shown."""
        return Bias(
            self.stored,
            self.weight,
            self.fitted_by,
            self.params,
            dim=statistics.provenance["dim"],
        )

    def describe(self) -> str:
        """Describe what is served in a few words."""
        k = "" if self.reference_k is None else f", k = {self.reference_k}"
        return f"{self.url} serves {label_method(self.fitted_by)}{k}, weight {self.weight:.3g}"
