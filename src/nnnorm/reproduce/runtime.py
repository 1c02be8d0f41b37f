"""Seconds to compute the biases: every score, or a vector index over the references.

The index is Faiss's inverted file (`pip install 'nnnorm[faiss]'`), as in the paper. Building it is
not counted: it is done once for a bank, the search once for a gallery.
"""

import time
from typing import NamedTuple

import numpy as np

from nnnorm.bias import Bias
from nnnorm.embeddings import Source, open_embeddings
from nnnorm.errors import require
from nnnorm.methods import NNN

__all__ = ["Timed", "time_exact", "time_index"]


class Timed(NamedTuple):
    """A bias and the seconds that it took.

    Attributes
    ----------
    bias : Bias
    seconds : float
    """

    bias: Bias
    seconds: float


def time_exact(gallery: Source, references: Source, *, reference_k: int, alpha: float) -> Timed:
    """Fit NNN from every score.

    Examples
    --------
    >>> time_exact(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.values.tolist()
    [1.0, 1.0, 1.0]
    """
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    method = NNN(reference_k, alpha)
    _ = items.fingerprint, bank.fingerprint  # made once per object, and not what is measured
    started = time.perf_counter()
    bias = method.fit(items, bank)
    return Timed(bias, time.perf_counter() - started)


def time_index(
    gallery: Source, references: Source, *, reference_k: int, alpha: float, n_probe: int = 16
) -> Timed:
    """Fit NNN from the nearest references that an inverted file finds.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
    reference_k : int
    alpha : float
    n_probe : int
        Lists that are searched, of about the square root of n_references.

    Returns
    -------
    Timed

    Examples
    --------
    >>> time_index(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.weight  # doctest: +SKIP
    0.5
    """
    faiss = require("faiss", "faiss")
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    rows, stored = items.rows(0, len(items)), bank.rows(0, len(bank))
    n_lists = max(1, round(np.sqrt(len(bank))))
    index = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(bank.dim), bank.dim, n_lists, faiss.METRIC_INNER_PRODUCT
    )
    index.cp.min_points_per_centroid = 1  # a small bank is no mistake
    index.train(stored)
    index.add(stored)
    index.nprobe = min(n_probe, n_lists)
    started = time.perf_counter()
    scores, found = index.search(rows, reference_k)
    # Where the lists hold fewer than k references, the rest is padded: not part of a mean.
    real = found >= 0
    values = np.where(real, scores, 0).sum(axis=1) / np.maximum(real.sum(axis=1), 1)
    bias = Bias(values, alpha, "nnn", {"reference_k": reference_k, "alpha": alpha})
    return Timed(bias, time.perf_counter() - started)
