"""Rows in a role that is not theirs: the gallery as its own bank, and items that are repeated.

A gallery that is its own bank passes every other check and does harm: each item's best reference is
the item itself. Repeated items share the first place of their queries, so that R@K says nothing.
Both are found in one read of the gallery.
"""

import numpy as np

from nnnorm.copies import as_units
from nnnorm.errors import NNNormError, warn
from nnnorm.io import Embeddings

# A bank with this share of items in it is taken for the gallery. Some past queries may well equal
# an item, where titles are searched by titles.
_MOST_OWN = 0.5
_N_SAMPLE = 64
# A handful of rows is a toy, or too little to tell.
_LEAST_REFERENCES = 16
# Unit rows that are closer than this are one row, stored in another precision.
_SAME_ROW = 2e-3
# A few photos are twice in any gallery; that does no harm.
_MOST_REPEATED = 0.01


def check_roles(
    gallery: Embeddings, references: Embeddings, *, own_rows: bool | None = False
) -> None:
    """Refuse references that are the gallery's own rows, and warn of items that are repeated.

    Parameters
    ----------
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    own_rows : bool, optional
        True allows the gallery's rows as references; None warns of them instead of refusing.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> items = open_embeddings(np.eye(20), name="gallery")
    >>> check_roles(items, open_embeddings(np.eye(20)[::-1], name="references"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: references seem to be rows of gallery: 20 of 20 that were looked ...
    """
    is_checked = not own_rows and len(references) >= _LEAST_REFERENCES
    places = np.linspace(0, len(references) - 1, _N_SAMPLE).astype(np.int64)
    sample = as_units(references.take(np.unique(places) if is_checked else places[:0]))
    nearest = np.zeros(len(sample), dtype=np.int64)
    best = np.full(len(sample), -np.inf, dtype=np.float32)
    hashes = np.empty(len(gallery), dtype=np.int64)
    if sample.shape[1] != gallery.dim:
        return  # refused elsewhere, with both shapes
    for start, block in gallery.blocks():
        part = slice(start, start + len(block))
        # The 0 makes -0 the 0 that it equals.
        hashes[part] = [hash(row.tobytes()) for row in block + np.float32(0)]
        if len(sample):
            scores = sample @ as_units(block).T
            highest = scores.argmax(axis=1)
            values = np.take_along_axis(scores, highest[:, None], axis=1)[:, 0]
            is_better = values > best
            nearest[is_better], best[is_better] = start + highest[is_better], values[is_better]
    _warn_of_repeats(gallery, len(np.unique(hashes)))
    if len(sample):
        distances = np.linalg.norm(sample - as_units(gallery.take(nearest)), axis=1)
        _judge(gallery, references, int((distances < _SAME_ROW).sum()), len(sample), own_rows)


def _judge(
    gallery: Embeddings, references: Embeddings, n_own: int, n_sample: int, own_rows: bool | None
) -> None:
    if n_own <= _MOST_OWN * n_sample:
        return
    found = (
        f"{references.name} seem to be rows of {gallery.name}: {n_own} of {n_sample} that were "
        "looked for are items; an item's best reference would be the item itself"
    )
    if own_rows is None:
        warn(f"{found}, which makes the search worse; give past queries instead")
    else:
        raise NNNormError(
            f"{found}. Give past queries instead, or own_rows=True (--own-rows) if past queries "
            "do equal items"
        )


def _warn_of_repeats(gallery: Embeddings, n_different: int) -> None:
    if len(gallery) - n_different > _MOST_REPEATED * len(gallery):
        warn(
            f"{gallery.name} has {n_different:,} different rows among {len(gallery):,}: repeated "
            "items share their places, so R@K means little; remove the repeated rows"
        )
