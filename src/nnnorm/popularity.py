"""`Popularity`: how often each item was the right one, as a second part of a bias.

A correction takes hubs off; what people do want often should stay. ``bias + Popularity(clicks)``
adds ``weight·log(1 + clicks)`` to the corrected score, still as one number per item.
"""

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line

FloatArray: TypeAlias = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Popularity:
    """Clicks of every item, to be added to a bias: ``bias + Popularity(clicks)``.

    The corrected score becomes ``s(q, r) − weight_b·m(r) + weight·log(1 + clicks[r])``, where
    ``weight_b`` is the weight of the bias. A search that overrides the weight scales both parts
    alike: half of it halves both, and 0 is the uncorrected search.

    Parameters
    ----------
    clicks : array, shape (n_gallery,)
        How often each item was clicked, bought or otherwise right; 0 for a new item.
    weight : float
        What a unit of log(1 + clicks) adds, on the scale of the scores. The default is for
        cosines; `tune` chooses it where there are clicks and right answers.

    Attributes
    ----------
    values : ndarray, shape (n_gallery,)
        ``log(1 + clicks)``.

    Examples
    --------
    >>> from nnnorm import Bias
    >>> hubs = Bias(np.array([0.5, 0.25]), weight=0.5, method="nnn")
    >>> both = hubs + Popularity([0, 99], weight=0.02)
    >>> (-both.correction).round(3).tolist(), both.params["popularity_weight"]
    ([-0.25, -0.033], 0.02)
    """

    clicks: npt.ArrayLike
    weight: float = 0.02

    def __post_init__(self) -> None:
        try:
            clicks = np.array(self.clicks, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise NNNormError(
                f"clicks must be numbers, one per item ({first_line(error)})"
            ) from error
        if clicks.ndim != 1 or len(clicks) == 0:
            raise NNNormError(f"clicks must have one number per item; got shape {clicks.shape}")
        if len(bad := np.flatnonzero(~(np.isfinite(clicks) & (clicks >= 0)))):
            raise NNNormError(
                f"clicks must be counts of at least 0; item {bad[0]} has {clicks[bad[0]]:g}"
            )
        weight = self.weight
        if isinstance(weight, bool) or not isinstance(weight, (int, float, np.number)):
            raise NNNormError(f"the weight of a Popularity must be a number; got {weight!r}")
        if not 0 <= weight <= 1e6:
            raise NNNormError(f"the weight of a Popularity must be between 0 and 1e6; got {weight}")
        clicks.flags.writeable = False
        object.__setattr__(self, "clicks", clicks)
        object.__setattr__(self, "weight", float(weight))

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        return f"Popularity({len(self):,} items, weight={self.weight:g})"

    @property
    def values(self) -> FloatArray:
        """``log(1 + clicks)``, shape ``(n_gallery,)``."""
        return np.log1p(np.asarray(self.clicks, dtype=np.float64))

    @property
    def n_clicks(self) -> int:
        """Sum of all clicks."""
        return round(float(np.sum(self.clicks)))
