"""Time to compute the biases, from all scores or with a vector index of the references.

The index is that of the solver "faiss-ivf" (`pip install 'nnnorm[faiss]'`), as in the paper. The
time to build it is not counted, because a bank needs it only once.
"""

import time
from typing import NamedTuple

from nnnorm.bias import Bias
from nnnorm.io import Source, open_embeddings
from nnnorm.means import build_ivf, choose_quality, ivf_means
from nnnorm.methods import NNN


class Timed(NamedTuple):
    """A bias and the time to compute it, in seconds.

    Attributes
    ----------
    bias : Bias
    seconds : float
    """

    bias: Bias
    seconds: float


def time_exact(gallery: Source, references: Source, *, reference_k: int, alpha: float) -> Timed:
    """Fit NNN from all scores.

    Examples
    --------
    >>> import numpy as np
    >>> time_exact(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.values.tolist()
    [1.0, 1.0, 1.0]
    """
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    method = NNN(reference_k, alpha)
    started = time.perf_counter()
    bias = method.fit(items, bank, duplicates="keep")
    return Timed(bias, time.perf_counter() - started)


def time_index(
    gallery: Source,
    references: Source,
    *,
    reference_k: int,
    alpha: float,
    quality: int | None = None,
) -> Timed:
    """Fit NNN with the solver "faiss-ivf" and an index built beforehand.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
    references : array or path, shape (n_references, dim)
    reference_k : int
    alpha : float
    quality : int, optional
        Number of inverted lists to probe per item; by default that of the solver.

    Returns
    -------
    Timed

    Examples
    --------
    >>> import numpy as np
    >>> time_index(np.eye(3), np.eye(3), reference_k=1, alpha=0.5).bias.weight
    0.5
    """
    items = open_embeddings(gallery, name="gallery")
    bank = open_embeddings(references, name="references")
    quality = choose_quality(len(items)) if quality is None else quality
    index = build_ivf(bank)
    started = time.perf_counter()
    values = ivf_means(items, bank, reference_k, quality=quality, index=index)
    seconds = time.perf_counter() - started
    about = {"solver": "faiss-ivf", "quality": quality}
    return Timed(
        Bias(values, alpha, "nnn", {"reference_k": reference_k, "alpha": alpha, **about}), seconds
    )
