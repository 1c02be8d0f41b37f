"""How large the value of any item can be, and so the norm of all rows that a corrector stores.

All stored rows have one norm, the radius of the augmentation, so that an index of any metric gives
the same order. It is chosen at the fit, with room for every item that may come later.
"""

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.augmentation import Augmentation
from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError
from nnnorm.popularity import Popularity

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Bounds of the values hold exactly; this is for the rounding of float32.
_ROUNDING = 1e-4


def bound_augmentation(
    banks: Iterable[Embeddings], longest: float, center: FloatArray | None, bias: Bias
) -> Augmentation:
    """Shift, scale and radius with room for every item that is no longer than `longest`."""
    shift = float(bias.values.mean(dtype=np.float64))
    highest, lowest, largest = shift, shift, 0.0
    for bank in banks:
        mean, (_, norm) = bank.mean(), bank.norm_range
        along = np.zeros(1)
        if center is not None:
            along = np.concatenate([block @ center for _, block in bank.blocks()])
        highest = max(highest, longest * norm - float(along.min()))
        lowest = min(lowest, -longest * float(np.linalg.norm(mean)) - float(along.mean()))
        largest = max(largest, norm)
    # The stored value is about as large as the other coordinates; a power of two is exact.
    scale = 2.0 ** -min(16, max(-16, round(math.log2(largest))))
    far = scale * max(highest - shift, shift - lowest)
    return Augmentation("l2", shift, scale, radius=(1 + _ROUNDING) * math.hypot(longest, far))


def widen_augmentation(
    old: Augmentation, popularity: Popularity, growth: float, *, weight: float, longest: float
) -> Augmentation:
    """The same with a radius that has room for clicks as well."""
    if not isinstance(popularity, Popularity):
        raise NNNormError(
            "popularity must be a Popularity, such as Popularity(clicks, weight=0.02); got "
            f"{type(popularity).__name__}"
        )
    if not isinstance(growth, (int, float)) or not 1 <= growth < math.inf:
        raise NNNormError(
            f"growth must be a finite number of at least 1, such as 1000; got {growth!r}"
        )
    most = math.log1p(growth * float(np.max(popularity.clicks)))
    far = math.sqrt(max(0.0, (old.radius / (1 + _ROUNDING)) ** 2 - longest**2))
    far += old.scale * popularity.weight / weight * most
    return replace(old, radius=(1 + _ROUNDING) * math.hypot(longest, far))


def check_weighted(weight: float) -> None:
    """Raise where queries carry no weight, so that no popularity would count."""
    if weight == 0:
        raise NNNormError(
            "this corrector has the weight 0, so that its queries ignore all values and a "
            "popularity would not count; store augment_gallery(items, corrector.bias_for(items) "
            "+ popularity) and ask with augment_queries"
        )


def check_room(items: Embeddings, bias: Bias, popularity: Popularity, kept: Augmentation) -> None:
    """Raise where clicks make a value larger than the norm of the stored rows allows."""
    beyond = kept.scale * np.abs(bias.values.astype(np.float64) - kept.shift)
    row = int(beyond.argmax())
    if beyond[row] ** 2 + items.norm_range[1] ** 2 > kept.radius**2:
        clicks = np.asarray(popularity.clicks)[row]
        raise NNNormError(
            f"{items.name}: the rows of this corrector have no room for the {clicks:,.0f} "
            f"clicks of item {row} with a weight of {popularity.weight:g}; store all items "
            "again with corrector.with_room(popularity), or use a smaller weight"
        )
