"""Checks for inputs that would silently lead to a wrong correction.

- `check_inputs`: past queries that equal or nearly equal rows of the gallery, and repeated items.
- `warn_of_items`: past queries that are items, such as photos instead of texts. Two scores of each
  row are compared with those of the items: how much of the row is in the span of the items, and
  whether the row is closer to their mean or to that of the past queries. If neither score separates
  past queries from items, they are items, or of a kind that can't be distinguished from items. If
  there are queries, comparing them with the items in the same way shows which of the two it is.
- `mismatch_z`: past queries from another source than the queries.

`benchmarks/mismatch.py` measures all of them.
"""

import itertools
import math

import numpy as np

from nnnorm.dedup import NEAR_COPY, as_units, hash_rows
from nnnorm.embeddings import DoubleArray, Embeddings, FloatArray, IntArray, check_same_dim
from nnnorm.errors import NNNormError, warn
from nnnorm.scoring import draw_rows, one_blas_thread

# Above this z, past queries are mismatched. With 64 recent queries, all mismatched banks of
# `benchmarks/mismatch.py` have a higher z, and all others a lower one.
MISMATCH_Z = 3.0
# The limit for a warning is higher, because several queries about the same thing can reach 3.
MISMATCH_WARNING_Z = 4.0
# Above this z, references that look like items differ from the queries.
QUERIES_Z = 4.0
# With fewer past queries, neither hubs nor mismatches can be measured.
FEW_QUERIES = 16
# If halves of the past queries agree less than this, their biases are mostly noise.
LEAST_RELIABLE = 0.5

# The start of the warning of `warn_of_items` if there are no queries to compare with.
LIKE_ITEMS = ".* look like items of"

# `fit` compares at least `_FEWEST` rows. If the separation is below a limit, past queries are
# assumed to be items. With 64 rows, CLIP's texts and images, whose items have a mean far from 0,
# have a separation of 11. In other models, it may be only 1.5 with fewer than 250 queries of the
# same kind as the items.
_CONE, _FEWEST, _MANY = 0.4, 64, 250
_IN_CONE, _ELSEWHERE, _FEW_ELSEWHERE = 6.0, 4.0, 1.25
_PART, _N_PARTS, _BLOCK = 512, 2, 16
_RIDGE = 0.1
_CLEAR = 12.0  # above this separation, more samples would not change the result
_N_NEIGHBORS, _N_DRAWS = 3, 8
# Larger samples contain several captions of one image, which are each other's nearest neighbors.
_LARGEST_DRAW, _SMALLEST_DRAW = 64, 4
# If the distance of two unit rows is smaller, they are the same row in another precision.
_SAME_ROW = 2e-3
# In ten real sets, no real query has a cosine of 0.95 with an item. After noise of 0.01 per
# coordinate, a row of 512 dimensions still has a cosine of 0.975 with itself. With few dimensions,
# such cosines occur by chance.
_NEAR_ROW, _FEWEST_DIMS = 0.95, 32
_MOST_SAME, _MOST_NEAR, _MOST_REPEATED = 0.5, 0.2, 0.01
# Number of rows sampled from a large gallery, and of references to find among them. If fewer of
# them can be found in a sample, more references are used.
_MOST_READ = 2**14
_FEWEST_SOUGHT, _MOST_SOUGHT, _SOUGHT_AT_ONCE = 128, 2**15, 128


def check_inputs(
    gallery: Embeddings,
    references: Embeddings,
    queries: Embeddings | None = None,
    *,
    allow_gallery_rows: bool | None = False,
    compare: bool = True,
) -> None:
    """Reject references that are gallery rows; warn about other items and repeated items."""
    n_read = min(len(gallery), _MOST_READ)
    rows = gallery.take(draw_rows(len(gallery), _MOST_READ))
    n_different = len(np.unique(hash_rows(rows)))
    # Of all pairs of a sampled row and its copy, the share n_read/len(gallery) is in the sample.
    if (n_read - n_different) * len(gallery) > _MOST_REPEATED * n_read**2:
        sampled = "" if n_read == len(gallery) else " sampled"
        warn(
            f"{gallery.name} has only {n_different:,} different rows among {n_read:,}{sampled}. "
            "Repeated items get equal scores, so R@K isn't meaningful; remove the repeated rows"
        )
    # If dimensions differ, `Products` raises an error.
    if allow_gallery_rows or len(references) < FEW_QUERIES or references.dim != gallery.dim:
        return
    n_sought = min(len(references), _MOST_SOUGHT, _FEWEST_SOUGHT * -(-len(gallery) // n_read))
    sought = references.take(np.linspace(0, len(references) - 1, n_sought).astype(np.int64))
    expected = n_sought * n_read / len(gallery)  # number of hits if all references are rows
    rows, n_same, n_near = as_units(rows), 0, 0
    for start in range(0, n_sought, _SOUGHT_AT_ONCE):
        some = as_units(sought[start : start + _SOUGHT_AT_ONCE])
        scores = some @ rows.T
        nearest = scores.argmax(axis=1)
        n_same += int((np.linalg.norm(some - rows[nearest], axis=1) < _SAME_ROW).sum())
        n_near += int((scores.max(axis=1) > _NEAR_ROW).sum())
    share = 100 * n_read / len(gallery)
    part = "" if n_read == len(gallery) else f" in {share:.1f} % of the gallery"
    sampled = f"of {n_sought} sampled {references.name}"
    harm = f"rows of {gallery.name}{part}, so an item's best past query would be the item itself"
    if n_same > _MOST_SAME * expected and allow_gallery_rows is None:
        warn(f"{n_same} {sampled} are {harm}; pass past queries instead")
    elif n_same > _MOST_SAME * expected:
        raise NNNormError(
            f"{n_same} {sampled} are {harm}. Pass past queries instead, or allow_gallery_rows=True "
            "(--set allow_gallery_rows=true) if your queries are items"
        )
    elif n_near > _MOST_NEAR * expected and gallery.dim >= _FEWEST_DIMS:
        warn(
            f"{n_near} {sampled} are nearly {harm}; remove items from the past queries, or pass "
            "allow_gallery_rows=True (--set allow_gallery_rows=true) if your queries are items"
        )
    elif compare:
        warn_of_items(references, gallery, queries)


# --- items passed as past queries ----------------------------------------------------------------


@one_blas_thread()  # for products this small, several threads are slower
def _compare(rows: Embeddings, items: Embeddings) -> tuple[DoubleArray, DoubleArray] | None:
    """Measure how well each of the two scores separates rows from items, and the variances."""
    rng = np.random.default_rng(0)
    some, blocks = _sample(rows, _PART, rng)
    known, known_blocks = _sample(items, _N_PARTS * _PART, rng)
    if min(len(some), len(known)) < FEW_QUERIES:
        return None
    n_parts = max(1, len(known) // _PART)
    least = (len(some) + len(known) + 1) / (12 * len(some) * len(known))
    found = []
    # Rows that are close in a file may be related, so blocks of them stay together.
    for part, side in itertools.product(range(n_parts), (0, 1)):
        here, here_blocks = known[part::n_parts], known_blocks[part::n_parts]
        is_base, is_first = here_blocks % 2 == side, blocks % 2 == side
        base, held, held_blocks = here[is_base], here[~is_base], here_blocks[~is_base]
        # First score: how much of each row is in the span of the items (a ridge regression).
        # Second score: whether it is closer to the mean of the rows or to that of the items.
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
        # The second score uses only half of the rows at a time, but every item once.
        of_rows[1] /= 2
        effect = np.array([abs(share[0] - 0.5), share[1] - 0.5])
        variance = np.maximum(of_rows + of_items / len(found), least)
        if (effect / np.sqrt(variance)).max() > _CLEAR:
            break
    return effect, variance


def warn_of_items(references: Embeddings, gallery: Embeddings, queries: Embeddings | None) -> bool:
    """Warn if references seem to be items, and return whether they do.

    They do if they can't be distinguished from items, but the queries, if there are any, can.
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
            f"{references.name} look like items of {gallery.name}, not like queries; pass past "
            "queries, or allow_gallery_rows=True (--set allow_gallery_rows=true) if both are alike"
        )
        return True
    real = _compare(queries, gallery)
    if real is None:
        return False
    # Compare references with queries by the score that separates queries from items best.
    best = (real[0] / np.sqrt(real[1])).argmax()
    if (real[0] - compared[0])[best] <= QUERIES_Z * np.sqrt(real[1] + compared[1])[best]:
        return False
    warn(
        f"{references.name} are items, not queries: they can't be distinguished from rows of "
        f"{gallery.name}, and they differ from {queries.name}; pass past queries instead. Or did "
        "you swap gallery and queries?"
    )
    return True


def _sample(source: Embeddings, size: int, rng: np.random.Generator) -> tuple[FloatArray, IntArray]:
    """Return random unit rows, in order and without equal ones, and the number of their blocks."""
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
    """Return how often `first` exceeds `second`, and the variance due to each of them (DeLong)."""
    found = []
    for one, blocks, other in ((first, first_blocks, second), (second, second_blocks, first)):
        shares = np.searchsorted(np.sort(other), one) / len(other)
        numbers = np.unique(blocks, return_inverse=True)[1]
        sums = np.bincount(numbers, shares - shares.mean())
        found.append((float(shares.mean()), float((sums**2).sum()) / len(one) ** 2))
    return found[0][0], found[0][1], found[1][1]


# --- past queries from another source ------------------------------------------------------------


def mismatch_z(references: Embeddings, recent: Embeddings) -> float:
    """Return how many standard errors separate past and recent queries; about 0 for one source."""
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
    """Warn if references seem to be items, or come from another source than the queries."""
    is_gallery = references.fingerprint == gallery.fingerprint
    if is_gallery or warn_of_items(references, gallery, queries):
        return
    z = mismatch_z(references, queries)
    if z > MISMATCH_WARNING_Z:
        warn(
            f"{references.name} do not look like the queries (z = {z:.1f}; from one source, it is "
            f"below {MISMATCH_Z:g}), so a correction may make results worse; pass past queries "
            f"from the same source and model{hint_of_swap(queries, gallery)}"
        )


def hint_of_swap(queries: Embeddings, gallery: Embeddings) -> str:
    """Return a question if the gallery looks like the queries, as after a swap; otherwise ""."""
    if mismatch_z(gallery, queries) >= MISMATCH_Z:
        return ""
    return f". The queries look like rows of {gallery.name}: did you swap gallery and past queries?"


def _draw(rows: Embeddings, rng: np.random.Generator) -> FloatArray:
    """Return some unit rows in random order, without near-duplicates."""
    drawn = as_units(rows.take(rng.permutation(len(rows))[: 4 * _LARGEST_DRAW]))
    is_copy = np.tril(drawn @ drawn.T > NEAR_COPY, -1).any(axis=1)
    return np.asarray(drawn[~is_copy][:_LARGEST_DRAW])


# --- reliability ---------------------------------------------------------------------------------


def describe_reliability(reliability: float, n_queries: int) -> str:
    """The reliability, and what it means if it is low."""
    if n_queries < FEW_QUERIES:
        return f"unknown; {FEW_QUERIES} past queries are needed"
    is_noise = reliability < LEAST_RELIABLE
    return f"{reliability:.2f}{': the bias is mostly noise' if is_noise else ''}"
