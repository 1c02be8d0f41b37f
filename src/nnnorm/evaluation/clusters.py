"""Unlabeled mixed galleries: two clusters of items with very different biases.

k-means finds two clusters, starting on both sides of the first principal axis. In CLIP galleries of
photos and texts, their mean biases differ by 5 to 8 standard deviations. In galleries of one kind,
they differ by at most 1.6 (`benchmarks/mixed.py`).
"""

import numpy as np

from nnnorm.embeddings import BoolArray, Embeddings, FloatArray, IntArray
from nnnorm.scoring import Products, draw_rows, top_means

_N_ITEMS = 2048
_N_REFERENCES = 4096
# Clusters further apart than this should be groups.
FAR_APART = 3.0
_FEWEST = 10
_N_STEPS = 30


def find_clusters(
    items: Embeddings, references: Embeddings, reference_k: int
) -> tuple[IntArray, float]:
    """Assign items to two clusters; also return the distance of their mean biases."""
    some = items.subset(draw_rows(len(items), _N_ITEMS))
    rows = some.rows(0, len(some))
    side = _split(rows)
    nothing = np.zeros(len(items), dtype=np.int64), 0.0
    if min(side.sum(), (~side).sum()) < _FEWEST:
        return nothing
    first, second = rows[side].mean(axis=0), rows[~side].mean(axis=0)
    asked = references.subset(draw_rows(len(references), _N_REFERENCES))
    means = top_means(Products(some, asked), min(reference_k, len(asked)))
    within = np.where(side, means - means[side].mean(), means - means[~side].mean())
    if within.std() == 0:
        return nothing
    apart = abs(float(means[side].mean() - means[~side].mean())) / float(within.std())
    middle = (first @ first - second @ second) / 2
    nearest = [block @ (first - second) > middle for _, block in items.blocks()]
    return np.concatenate(nearest).astype(np.int64), apart


def _split(rows: FloatArray) -> BoolArray:
    """Run k-means with two clusters, initialized on both sides of the first principal axis."""
    centered = rows - rows.mean(axis=0)
    axis = np.asarray(np.random.default_rng(0).normal(size=rows.shape[1]), dtype=np.float32)
    for _ in range(_N_STEPS):
        axis = centered.T @ (centered @ axis)
        axis /= max(float(np.linalg.norm(axis)), 1e-12)
    side = centered @ axis > 0
    for _ in range(_N_STEPS):
        if side.all() or not side.any():
            break
        first, second = centered[side].mean(axis=0), centered[~side].mean(axis=0)
        middle = (first @ first - second @ second) / 2
        side = centered @ (first - second) > middle
    return np.asarray(side)
