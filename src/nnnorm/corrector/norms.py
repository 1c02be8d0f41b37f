"""The norms that a corrector expects of rows: unit norms, equal norms, or any."""

from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError

# Norms this close to 1 are unit norms that were rounded, as float16 does.
_UNIT = 5e-3
# Norms that differ by less than this share of the largest count as equal, as in `open_embeddings`.
_EQUAL_NORMS = 0.01
# Later items of raw embeddings may be longer than those of the gallery by this factor.
_HEADROOM = 1.25


def has_unit_norms(rows: Embeddings) -> bool:
    """Whether all norms are 1 but for rounding."""
    low, high = rows.norm_range
    return max(1 - low, high - 1) <= _UNIT


def check_norms(rows: Embeddings, norms: tuple[float, float], what: str) -> None:
    """Raise where the rows of the corrector have equal norms, and these do not share them."""
    (low, high), (least, most) = rows.norm_range, norms
    if most - least > _EQUAL_NORMS * most:
        return  # raw inner products are meant
    if low < (1 - _EQUAL_NORMS) * least or high > (1 + _EQUAL_NORMS) * most:
        raise NNNormError(
            f"{rows.name} has norms {low:.4g} to {high:.4g}, but all {what} of the corrector have "
            f"about {most:.4g}; scale them alike, or fit with normalize=True (--normalize)"
        )


def longest_norm(norms: tuple[float, float], unit: bool) -> float:
    """Largest norm that a later item may have: `norms` are those of the gallery."""
    return 1 + _UNIT if unit else _HEADROOM * norms[1]
