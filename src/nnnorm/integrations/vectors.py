"""Vectors as the libraries pass them, lists of floats, extended by a corrector.

An item gets the two coordinates that carry its bias, a query those that carry the weight. No
vectors give no vectors: libraries ask for embeddings of empty lists, and a corrector refuses them.
"""

from collections.abc import Sequence

import numpy as np

from nnnorm.bias import check_weight
from nnnorm.corrector import Corrector
from nnnorm.errors import NNNormError

Vector = list[float]


def check_corrector(corrector: object) -> Corrector:
    """Return a corrector as it is; raise for anything else.

    Examples
    --------
    >>> check_corrector("corrector.safetensors")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: corrector must be a Corrector, from Corrector.fit or ...; got str
    """
    if not isinstance(corrector, Corrector):
        raise NNNormError(
            "corrector must be a Corrector, from Corrector.fit or Corrector.load(path); got "
            f"{type(corrector).__name__}"
        )
    return corrector


def check_query_weight(weight: float | None) -> float | None:
    """Return a weight that replaces that of a corrector, None for no other; raise for a bad one.

    Examples
    --------
    >>> check_query_weight("strong")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: weight must be a number; got 'strong'
    """
    return None if weight is None else check_weight(weight)


def extend_items(corrector: Corrector, vectors: Sequence[Sequence[float]]) -> list[Vector]:
    """Extend item vectors by their bias, for the store.

    Parameters
    ----------
    corrector : Corrector
    vectors : sequence of n sequences of dim floats

    Returns
    -------
    list of n lists of dim + 2 floats

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> corrector = Corrector.fit(rng.normal(size=(9, 4)), rng.normal(size=(40, 4)), normalize=True)
    >>> stored = extend_items(corrector, [[1.0, 0.0, 0.0, 0.0]])
    >>> len(stored), len(stored[0])
    (1, 6)
    """
    if not len(vectors):
        return []
    rows: list[Vector] = corrector.items(np.asarray(vectors, dtype=np.float32)).tolist()
    return rows


def extend_query(
    corrector: Corrector, vector: Sequence[float], weight: float | None = None
) -> Vector:
    """Extend one query vector by the weight, for a store of extended items.

    Parameters
    ----------
    corrector : Corrector
    vector : sequence of dim floats
    weight : float, optional
        Replaces the weight of the corrector.

    Returns
    -------
    list of dim + 2 floats

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> corrector = Corrector.fit(rng.normal(size=(9, 4)), rng.normal(size=(40, 4)), normalize=True)
    >>> extend_query(corrector, [1.0, 0.0, 0.0, 0.0], weight=0.5)
    [1.0, 0.0, 0.0, 0.0, -0.5, 0.0]
    """
    row: Vector = corrector.queries(np.asarray([vector], dtype=np.float32), weight=weight)[
        0
    ].tolist()
    return row
