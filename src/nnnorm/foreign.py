"""Whether a bank and queries come from the same source, and which of them to use.

m rows of each are drawn; p is the share of each row's 3 nearest neighbours among both samples that
come from the row's own sample. Samples of one source mix, so that p is about one half;
``z = (p − ½)/(½/√(3m))`` says how far it is above that. A bank of another source, a bank encoded by
another model, and a bank that is the gallery itself all stand out. Bank and gallery alone do not
tell: the halves of a foreign bank agree with each other.
"""

import math
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import NEAR_COPY
from nnnorm.errors import warn
from nnnorm.io import Embeddings, check_same_dim

FloatArray: TypeAlias = npt.NDArray[np.float32]

# Above this z a bank counts as foreign: with 64 recent queries, all foreign banks of
# `benchmarks/foreign.py` are above it and none of the own ones (docs/automatic-rule.md).
FOREIGN_Z = 3.0
# A warning also meets queries of which several are about the same thing; those alone reach 3.
FOREIGN_WARNING_Z = 4.0
_N_NEIGHBOURS = 3
_N_DRAWS = 8
# Larger samples hold several captions of one picture, or several queries of one session, which are
# each other's nearest neighbours in banks of one source too.
_LARGEST_SAMPLE = 64
# Fewer rows tell nothing: z can't reach 3 before.
_LEAST_SAMPLE = 4


def foreign_z(references: Embeddings, recent: Embeddings, *, seed: int = 0) -> float:
    """How many standard errors bank and recent queries are from mixing as one source does.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    recent : Embeddings, shape (n_recent, dim)
        A few dozen queries, without labels.
    seed : int
        Random seed of the draws.

    Returns
    -------
    float
        About 0 for one source, above 3 for two; NaN where there are too few different rows to
        tell, which is above nothing.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(200, 32)) + 2
    >>> bank, own, other = (open_embeddings(r) for r in (rows[:100], rows[100:], -rows[100:]))
    >>> foreign_z(bank, own) < 3 < foreign_z(bank, other)
    True
    """
    check_same_dim(references, recent)
    rng = np.random.default_rng(seed)
    found = []
    for _ in range(_N_DRAWS):
        drawn, asked = (_draw(rows, rng) for rows in (references, recent))
        size = min(len(drawn), len(asked))
        if size < _LEAST_SAMPLE:
            return math.nan
        both = np.concatenate([drawn[:size], asked[:size]])
        scores = both @ both.T
        np.fill_diagonal(scores, -np.inf)
        nearest = np.argpartition(-scores, _N_NEIGHBOURS - 1, axis=1)[:, :_N_NEIGHBOURS]
        is_asked = np.arange(2 * size) >= size
        share = (is_asked[nearest] == is_asked[:, None]).mean()
        found.append((share - 0.5) / (0.5 / np.sqrt(_N_NEIGHBOURS * size)))
    return float(np.mean(found))


def choose_references(references: Embeddings, recent: Embeddings) -> Embeddings:
    """The recent queries alone where the bank is foreign to them, else both.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    recent : Embeddings, shape (n_recent, dim)

    Returns
    -------
    Embeddings
        The recent queries come first.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = np.random.default_rng(0).normal(size=(200, 32))
    >>> len(choose_references(open_embeddings(rows[:100]), open_embeddings(rows[100:])))
    200
    """
    if foreign_z(references, recent) > FOREIGN_Z:
        return recent
    return recent.joined(references)


def warn_of_foreign(references: Embeddings, queries: Embeddings, gallery: Embeddings) -> None:
    """Warn where the references do not mix with the queries.

    References that are the gallery itself are left to `nnnorm.roles`.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    queries : Embeddings, shape (n_queries, dim)
        Of those that belong together one is enough: the captions of one picture are each other's
        nearest neighbours.
    gallery : Embeddings, shape (n_gallery, dim)

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = np.random.default_rng(0).normal(size=(200, 32))
    >>> bank, queries = open_embeddings(rows[:100]), open_embeddings(rows[100:])
    >>> warn_of_foreign(bank, queries, open_embeddings(-rows))
    """
    if references.fingerprint == gallery.fingerprint:
        return
    z = foreign_z(references, queries)
    if z > FOREIGN_WARNING_Z:
        warn(
            f"{references.name} do not look like the queries (z = {z:.1f}, where one source stays "
            f"below {FOREIGN_Z:g}): are they from another source, or encoded by another model? A "
            "correction from them may do harm; give past queries of the kind that is measured here"
        )


def _draw(rows: Embeddings, rng: np.random.Generator) -> FloatArray:
    """Some rows with unit norms, in random order, none of them nearly a copy of another."""
    some = rng.permutation(len(rows))[: 4 * _LARGEST_SAMPLE]
    drawn = rows.take(some)
    drawn /= np.linalg.norm(drawn, axis=1, keepdims=True)
    is_copy = np.tril(drawn @ drawn.T > NEAR_COPY, -1).any(axis=1)
    return np.asarray(drawn[~is_copy][:_LARGEST_SAMPLE])
