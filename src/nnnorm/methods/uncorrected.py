"""No correction: ``b(r) = 0``."""

from dataclasses import dataclass

import numpy as np

from nnnorm.methods.base import FloatArray, Method, Statistics, Variant

NO_CORRECTION = "none"


@dataclass(frozen=True)
class Uncorrected(Method):
    """No correction: the bias of every item is 0.

    Examples
    --------
    >>> import numpy as np
    >>> Uncorrected().fit(np.eye(2), np.eye(2)).values.tolist()
    [0.0, 0.0]
    """

    variants = (Variant(NO_CORRECTION, "no correction"),)

    def values(self, statistics: Statistics) -> FloatArray:
        """Return zeros."""
        return np.zeros(statistics.n_gallery, dtype=np.float32)
