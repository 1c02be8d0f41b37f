"""A map of the items: similar items are close together. Seeded, numpy only.

The first two principal components are a start in which far things are far. Then items pull their
nearest neighbors and push random others away, with the forces of UMAP (McInnes et al., 2018) for
a = b = 1: attraction ``2/(1 + d²)``, repulsion ``2/((0.001 + d²)(1 + d²))``. Thousands of items
take seconds, which is what a map of a sample needs.
"""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings, IntArray
from nnnorm.ranking import search

Places: TypeAlias = npt.NDArray[np.float64]
_N_NEIGHBORS = 12
_N_ROUNDS = 160
_N_PUSHED = 4
# The longest step of one force, in units of the plane.
_LONGEST = 4.0


def project(items: Embeddings) -> npt.NDArray[np.float32]:
    """Place items on a plane."""
    rng = np.random.default_rng(0)
    places = _principal(items, rng)
    if len(items) > 2:
        # Pairs of near items; the first neighbor pulls most, the last least: 1 to 1/e³.
        k = min(_N_NEIGHBORS + 1, len(items))
        heads = np.repeat(np.arange(len(items)), k)
        tails = search(items, items, k=k).indices.ravel()
        strengths = np.tile(np.exp(-3 * np.arange(k) / k), len(items))
        is_other = heads != tails
        pairs = heads[is_other], tails[is_other], strengths[is_other]
        for number in range(_N_ROUNDS):
            places += _step(places, *pairs, rng) * (1 - number / _N_ROUNDS)
    places -= np.median(places, axis=0)
    widest = float(np.quantile(np.abs(places), 0.995))
    # Few stray far away; they stand at the edge so that the others use the plane.
    return np.clip(places / max(widest, 1e-12), -1, 1).astype(np.float32)


def _principal(items: Embeddings, rng: np.random.Generator) -> Places:
    """Two principal components, scaled to some units of the plane."""
    rows = items.rows(0, len(items)).astype(np.float64)
    centered = rows - rows.mean(axis=0)
    _, vectors = np.linalg.eigh(centered.T @ centered)
    places = centered @ vectors[:, -1:-3:-1] if items.dim > 1 else np.hstack([centered, centered])
    places *= 10 / max(float(np.abs(places).max()), 1e-12)
    return np.asarray(places + rng.normal(scale=1e-3, size=places.shape))


def _step(
    places: Places, heads: IntArray, tails: IntArray, strengths: Places, rng: np.random.Generator
) -> Places:
    """One round of forces on all items at once."""
    n_items = len(places)
    gap = places[tails] - places[heads]
    pull = 2 * strengths / (1 + (gap**2).sum(axis=1))
    force = np.clip(gap * pull[:, None], -_LONGEST, _LONGEST)
    moved = np.empty_like(places)
    for axis in (0, 1):
        moved[:, axis] = np.bincount(heads, weights=force[:, axis], minlength=n_items)
        moved[:, axis] -= np.bincount(tails, weights=force[:, axis], minlength=n_items)
    for _ in range(_N_PUSHED):
        gap = places - places[rng.integers(0, n_items, size=n_items)]
        square = (gap**2).sum(axis=1)
        push = np.where(square > 0, 2 * _N_NEIGHBORS / ((0.001 + square) * (1 + square)), 0)
        moved += np.clip(gap * push[:, None], -_LONGEST, _LONGEST)
    return 0.05 * moved
