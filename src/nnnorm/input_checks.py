"""Checks of galleries and past queries that would silently give a wrong correction.

- Past queries that are rows of the gallery, exactly or nearly, and repeated items (`check_inputs`).
- Past queries that are other items, such as photos where texts were meant (`warn_of_items`). Two
  scores of each row are compared with those of the items: how much of the row the items span, and
  on which side of the two means it lies. If neither separates the rows from items, they are items,
  or of a kind that can't be distinguished from items. Queries, if there are any, settle which.
- Past queries from another source than the queries (`mismatch_z`).

Figures: `benchmarks/mismatch.py`.
"""

import itertools
import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import NEAR_COPY, as_units, hash_rows
from nnnorm.embeddings import Embeddings, FloatArray, IntArray, check_same_dim
from nnnorm.errors import NNNormError, warn
from nnnorm.scoring import draw_rows, one_blas_thread

Doubles: TypeAlias = npt.NDArray[np.float64]

# Above this z, past queries are mismatched: with 64 recent queries, all mismatched banks of
# `benchmarks/mismatch.py` are above it and no others.
MISMATCH_Z = 3.0
# A warning has to allow for several queries about the same thing; those alone reach 3.
MISMATCH_WARNING_Z = 4.0
# Above this, references that look like items differ from the queries.
QUERIES_Z = 4.0
# With fewer past queries, neither hubs nor matches can be measured.
FEW_QUERIES = 16
# If halves of the past queries agree less than this, their biases are mostly noise.
LEAST_RELIABLE = 0.5

# How the warning of `warn_of_items` starts if there are no queries to settle it.
LIKE_ITEMS = ".* look like items of"

# The fewest rows that `fit` judges, and the separation below which they are taken for items. Texts
# and images of CLIP, whose items have a mean far from 0, are 11 apart with 64 rows. In other
# models, fewer than 250 queries of the same kind as the items may be as close as 1.5.
_CONE, _FEWEST, _MANY = 0.4, 64, 250
_IN_CONE, _ELSEWHERE, _FEW_ELSEWHERE = 6.0, 4.0, 1.25
_PART, _N_PARTS, _BLOCK = 512, 2, 16
_RIDGE = 0.1
_CLEAR = 12.0  # more samples would not change the answer
_N_NEIGHBORS, _N_DRAWS = 3, 8
# Larger samples hold several captions of one image, which are each other's nearest neighbors.
_LARGEST_DRAW, _SMALLEST_DRAW = 64, 4
# Unit rows closer than this are one row in another precision.
_SAME_ROW = 2e-3
# No honest query of ten real sets has a cosine of 0.95 with an item. Noise of 0.01 per coordinate
# leaves 0.975 of 512 dimensions; in few dimensions such cosines occur by chance.
_NEAR_ROW, _FEWEST_DIMS = 0.95, 32
_MOST_SAME, _MOST_NEAR, _MOST_REPEATED = 0.5, 0.2, 0.01
# Rows sampled of a large gallery; references looked for in them, more if fewer can be found.
_MOST_READ = 2**14
_FEWEST_SOUGHT, _MOST_SOUGHT, _SOUGHT_AT_ONCE = 128, 2**15, 512


def check_inputs(
    gallery: Embeddings,
    references: Embeddings,
    queries: Embeddings | None = None,
    *,
    allow_gallery_rows: bool | None = False,
    compare: bool = True,
) -> None:
    """Reject references that are gallery rows; warn of other items and of repeated items."""
    n_read = min(len(gallery), _MOST_READ)
    rows = gallery.take(draw_rows(len(gallery), _MOST_READ))
    n_different = len(np.unique(hash_rows(rows)))
    # Of a row and its copy, the share n_read/len(gallery) has both in the sample.
    if (n_read - n_different) * len(gallery) > _MOST_REPEATED * n_read**2:
        sampled = "" if n_read == len(gallery) else " sampled"
        warn(
            f"{gallery.name} has {n_different:,} different rows among {n_read:,}{sampled}: "
            "repeated items tie with each other, so R@K means little; remove the repeated rows"
        )
    # Another dim is rejected elsewhere, with both shapes.
    if allow_gallery_rows or len(references) < FEW_QUERIES or references.dim != gallery.dim:
        return
    n_sought = min(len(references), _MOST_SOUGHT, _FEWEST_SOUGHT * -(-len(gallery) // n_read))
    sought = references.take(np.linspace(0, len(references) - 1, n_sought).astype(np.int64))
    expected = n_sought * n_read / len(gallery)  # to be found if all references are gallery rows
    units, n_same, n_near = as_units(rows), 0, 0
    for start in range(0, n_sought, _SOUGHT_AT_ONCE):
        some = as_units(sought[start : start + _SOUGHT_AT_ONCE])
        scores = some @ units.T
        nearest = scores.argmax(axis=1)
        n_same += int((np.linalg.norm(some - units[nearest], axis=1) < _SAME_ROW).sum())
        n_near += int((scores.max(axis=1) > _NEAR_ROW).sum())
    part = "" if n_read == len(gallery) else f" in {n_read / len(gallery):.1%} of the gallery"
    sampled = f"of {n_sought} sampled {references.name}"
    harm = f"rows of {gallery.name}{part}, so an item's best past query would be the item itself"
    if n_same > _MOST_SAME * expected and allow_gallery_rows is None:
        warn(f"{n_same} {sampled} are {harm}; pass past queries instead")
    elif n_same > _MOST_SAME * expected:
        raise NNNormError(
            f"{n_same} {sampled} are {harm}. Pass past queries instead, or allow_gallery_rows=True "
            "(--set allow_gallery_rows=true) if past queries do equal items"
        )
    elif n_near > _MOST_NEAR * expected and gallery.dim >= _FEWEST_DIMS:
        warn(
            f"{n_near} {sampled} are nearly {harm}; remove items from the past queries, or pass "
            "allow_gallery_rows=True if people do search for the items themselves"
        )
    elif compare:
        warn_of_items(references, gallery, queries)


# --- items passed as past queries ----------------------------------------------------------------


@one_blas_thread()  # threads would wait for each other longer than they multiply
def _compare(rows: Embeddings, items: Embeddings) -> tuple[Doubles, Doubles] | None:
    """How far both scores are from telling nothing, and the variances of that."""
    rng = np.random.default_rng(0)
    some, blocks = _sample(rows, _PART, rng)
    known, known_blocks = _sample(items, _N_PARTS * _PART, rng)
    if min(len(some), len(known)) < FEW_QUERIES:
        return None
    n_parts = max(1, len(known) // _PART)
    least = (len(some) + len(known) + 1) / (12 * len(some) * len(known))
    found = []
    # Neighbors in a file may belong together and stay on one side.
    for part, side in itertools.product(range(n_parts), (0, 1)):
        here, here_blocks = known[part::n_parts], known_blocks[part::n_parts]
        is_base, is_first = here_blocks % 2 == side, blocks % 2 == side
        base, held, held_blocks = here[is_base], here[~is_base], here_blocks[~is_base]
        # How much of each row the items span (a ridge regression), and on which side of the two
        # means it lies.
        ridge = np.float32(_RIDGE * len(base) / min(base.shape))
        inverse = np.linalg.inv(base @ base.T + ridge * np.eye(len(base), dtype=np.float32))
        scores, held_scores = some @ base.T, held @ base.T
        spanned = ((scores @ inverse) * scores).sum(axis=1)
        held_spanned = ((held_scores @ inverse) * held_scores).sum(axis=1)
        toward = some[is_first].mean(axis=0) - base.mean(axis=0)
        span = _above(spanned, blocks, held_spanned, held_blocks)
        lies = _above(some[~is_first] @ toward, blocks[~is_first], held @ toward, held_blocks)
        found.append((span, lies))
        share, of_rows, of_items = np.mean(found, axis=0).T
        # The second score uses half of the rows at a time; items are never used twice.
        of_rows[1] /= 2
        effect = np.array([abs(share[0] - 0.5), share[1] - 0.5])
        variance = np.maximum(of_rows + of_items / len(found), least)
        if (effect / np.sqrt(variance)).max() > _CLEAR:
            break
    return effect, variance


def warn_of_items(
    references: Embeddings, gallery: Embeddings, queries: Embeddings | None = None
) -> bool:
    """Warn if references are items, and return whether they are.

    They are items if they can't be distinguished from items and the queries, if any, can be.
    """
    n_rows = min(len(references), len(gallery))
    if n_rows < (_FEWEST if queries is None else FEW_QUERIES):
        return False
    places = np.linspace(0, len(gallery) - 1, 256).astype(np.int64)
    mean = as_units(gallery.take(places)).mean(axis=0)
    limit = _IN_CONE if mean @ mean > _CONE else _ELSEWHERE
    if limit == _ELSEWHERE and queries is None and n_rows < _MANY:
        limit = _FEW_ELSEWHERE
    compared = _compare(references, gallery)
    if compared is None or (compared[0] / np.sqrt(compared[1])).max() >= limit:
        return False
    if queries is None:
        warn(
            f"{references.name} look like items of {gallery.name}, not like queries: pass past "
            "queries, or allow_gallery_rows=True if your queries and items are of one kind"
        )
        return True
    real = _compare(queries, gallery)
    if real is None:
        return False
    # On the score that separates queries and items best, do references differ from queries?
    best = (real[0] / np.sqrt(real[1])).argmax()
    if (real[0] - compared[0])[best] <= QUERIES_Z * np.sqrt(real[1] + compared[1])[best]:
        return False
    warn(
        f"{references.name} are items, not queries: they can't be distinguished from rows of "
        f"{gallery.name}, and they differ from {queries.name}; pass past queries instead"
    )
    return True


def _sample(source: Embeddings, size: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Unit rows in their order, none of them twice, and the numbers of their blocks."""
    drawn = np.sort(rng.choice(len(source), min(len(source), size), replace=False, shuffle=False))
    rows = source.take(drawn)
    first = np.sort(np.unique(hash_rows(rows), return_index=True)[1])
    block = min(_BLOCK, max(1, len(source) // 8))
    numbers = np.unique(drawn[first] // block, return_inverse=True)[1]
    if numbers.max(initial=0) < 3:
        numbers = np.arange(len(first))
    return as_units(rows[first]), numbers


def _above(
    first: FloatArray, first_blocks: IntArray, second: FloatArray, second_blocks: IntArray
) -> tuple[float, float, float]:
    """How often the first is above the second, and the variances of that by either (DeLong)."""
    found = []
    for one, blocks, other in ((first, first_blocks, second), (second, second_blocks, first)):
        shares = np.searchsorted(np.sort(other), one) / len(other)
        numbers = np.unique(blocks, return_inverse=True)[1]
        sums = np.bincount(numbers, shares - shares.mean())
        found.append((float(shares.mean()), float((sums**2).sum()) / len(one) ** 2))
    return found[0][0], found[0][1], found[1][1]


# --- past queries from another source ------------------------------------------------------------


def mismatch_z(references: Embeddings, recent: Embeddings) -> float:
    """Return how many standard errors past and recent queries are from one source."""
    check_same_dim(references, recent)
    rng, found = np.random.default_rng(0), []
    for _ in range(_N_DRAWS):
        drawn, asked = (_draw(rows, rng) for rows in (references, recent))
        size = min(len(drawn), len(asked))
        if size < _SMALLEST_DRAW:
            return math.nan
        both = np.concatenate([drawn[:size], asked[:size]])
        scores = both @ both.T
        np.fill_diagonal(scores, -np.inf)
        nearest = np.argpartition(-scores, _N_NEIGHBORS - 1, axis=1)[:, :_N_NEIGHBORS]
        is_asked = np.arange(2 * size) >= size
        share = (is_asked[nearest] == is_asked[:, None]).mean()
        found.append((share - 0.5) / (0.5 / np.sqrt(_N_NEIGHBORS * size)))
    return float(np.mean(found))


def warn_of_mismatch(references: Embeddings, queries: Embeddings, gallery: Embeddings) -> None:
    """Warn if references are items, or come from another source than the queries."""
    is_gallery = references.fingerprint == gallery.fingerprint
    if is_gallery or warn_of_items(references, gallery, queries):
        return
    z = mismatch_z(references, queries)
    if z > MISMATCH_WARNING_Z:
        warn(
            f"{references.name} do not look like the queries (z = {z:.1f}; one source stays below "
            f"{MISMATCH_Z:g}), so a correction from them may make results worse: pass past queries "
            f"of the same source, encoded by the same model{hint_of_swap(gallery, queries)}"
        )


def hint_of_swap(gallery: Embeddings, queries: Embeddings) -> str:
    """A question for references unlike the queries: the gallery should not be like them either."""
    is_like = mismatch_z(gallery, queries) < MISMATCH_Z
    return f"; {gallery.name} does look like them: were the two swapped?" if is_like else ""


def _draw(rows: Embeddings, rng: np.random.Generator) -> FloatArray:
    """Some unit rows in random order, none of them nearly a copy of another."""
    drawn = as_units(rows.take(rng.permutation(len(rows))[: 4 * _LARGEST_DRAW]))
    is_copy = np.tril(drawn @ drawn.T > NEAR_COPY, -1).any(axis=1)
    return np.asarray(drawn[~is_copy][:_LARGEST_DRAW])


# --- what the automatic rule measured ------------------------------------------------------------


def describe_reliability(reliability: float, n_queries: int) -> str:
    """The reliability, and what it means if it is low."""
    if n_queries < FEW_QUERIES:
        return f"{n_queries} past queries are too few; {FEW_QUERIES} are needed"
    is_noise = reliability < LEAST_RELIABLE
    return f"{reliability:.2f}{': the bias is mostly noise' if is_noise else ''}"
