"""Rows in a role that is not theirs: the gallery as its own bank, and items that are repeated.

A gallery that is its own bank passes every other check and does harm: each item's best reference is
the item itself. Repeated items share the first place of their queries, so that R@K says nothing.
Both are found in one read of the gallery, or of a sample of a large one.
"""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from nnnorm.dedup import as_units
from nnnorm.errors import NNNormError, warn
from nnnorm.io import Embeddings

# A bank with this share of items in it is taken for the gallery. Some past queries may well equal
# an item, where titles are searched by titles.
_MOST_OWN = 0.5
_N_SAMPLE = 64
# Of larger galleries so many rows are read, in runs that are spread evenly. Items that are repeated
# far away from each other may then be missed.
_MOST_ROWS = 20_000_000
_RUN = 4096
# As many of the references that are looked for are then among the rows that are read, if all of
# them are items: more references are looked for, or more rows are read.
_N_FOUND = 16
_MOST_SAMPLE = 4096
# Rows that are hashed together stay in the cache of a core.
_HASH_BYTES = 2**18
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
    # Where no references are looked for, no further rows are needed to find them in.
    n_rows, n_sample = count_checked(len(gallery), len(references) if is_checked else _MOST_SAMPLE)
    places = np.linspace(0, len(references) - 1, n_sample).astype(np.int64)
    sample = as_units(references.take(places if is_checked else places[:0]))
    if sample.shape[1] != gallery.dim:
        return  # refused elsewhere, with both shapes
    nearest = np.zeros_like(sample)
    best = np.full(len(sample), -np.inf, dtype=np.float32)
    hashes, n_read, every = [], 0, -(-n_rows // _MOST_ROWS)
    for number, block in enumerate(_read(gallery, n_rows)):
        if number % every == 0:  # a few references need more rows; their hashes would take memory
            hashes.append(_hash_rows(block))
        n_read += len(block)
        if len(sample):
            scores = sample @ block.T
            if not gallery.normalized:
                scores /= np.sqrt(np.einsum("ij,ij->i", block, block))
            highest = scores.argmax(axis=1)
            values = np.take_along_axis(scores, highest[:, None], axis=1)[:, 0]
            is_better = values > best
            nearest[is_better], best[is_better] = block[highest[is_better]], values[is_better]
    _warn_of_repeats(gallery, np.concatenate(hashes))
    if len(sample):
        distances = np.linalg.norm(sample - as_units(nearest), axis=1)
        n_own = int((distances < _SAME_ROW).sum())
        _judge(gallery, references, n_own, len(sample), n_read / len(gallery), own_rows)


def count_checked(n_gallery: int, n_references: int) -> tuple[int, int]:
    """Numbers of rows of the gallery that are read, and of references that are looked for in them.

    Examples
    --------
    >>> count_checked(5000, 200), count_checked(10**9, 10**7), count_checked(10**9, 100)
    ((5000, 64), (20000000, 800), (160000000, 100))
    """
    wanted = -(-_N_FOUND * n_gallery // _MOST_ROWS)
    n_sample = min(n_references, _MOST_SAMPLE, max(_N_SAMPLE, wanted))
    return min(n_gallery, max(_MOST_ROWS, -(-_N_FOUND * n_gallery // n_sample))), n_sample


def _read(gallery: Embeddings, n_rows: int) -> Iterator[npt.NDArray[np.float32]]:
    """All rows in blocks, or about so many of them in runs that do not overlap."""
    if n_rows == len(gallery):
        yield from (block for _, block in gallery.blocks())
        return
    run = min(_RUN, n_rows)
    for start in np.linspace(0, len(gallery) - run, n_rows // run).astype(np.int64).tolist():
        yield gallery.rows(start, start + run)


def _hash_rows(block: npt.NDArray[np.float32]) -> npt.NDArray[np.uint64]:
    """A number per row that is the same for equal rows, by weights that are drawn at random."""
    n_rows, dim = block.shape
    width = dim + dim % 2
    step = max(1, _HASH_BYTES // (4 * width))
    weights = np.random.default_rng(0).integers(2**63, size=width // 2, dtype=np.uint64) * 2 + 1
    buffer = np.zeros((step, width), dtype=np.float32)
    hashes = np.empty(n_rows, dtype=np.uint64)
    for start in range(0, n_rows, step):
        some = block[start : start + step]
        rows = buffer[: len(some)]
        np.add(some, np.float32(0), out=rows[:, :dim])  # -0 becomes the 0 that it equals
        words = rows.view(np.uint64)
        # The upper half of a word alone would change the upper half of the sum only.
        hashes[start : start + step] = (words ^ (words >> np.uint64(32))) @ weights
    return hashes


def _judge(
    gallery: Embeddings,
    references: Embeddings,
    n_own: int,
    n_sample: int,
    share: float,
    own_rows: bool | None,
) -> None:
    """Raise or warn where too many references are in the share of the gallery that was read."""
    if n_own <= _MOST_OWN * n_sample * share:
        return
    part = "" if share == 1 else f" in {share:.1%} of the rows"
    found = (
        f"{references.name} seem to be rows of {gallery.name}: {n_own} of {n_sample} that were "
        f"looked for{part} are items; an item's best reference would be the item itself"
    )
    if own_rows is None:
        warn(f"{found}, which makes the search worse; give past queries instead")
    else:
        raise NNNormError(
            f"{found}. Give past queries instead, or own_rows=True (--own-rows) if past queries "
            "do equal items"
        )


def _warn_of_repeats(gallery: Embeddings, hashes: npt.NDArray[np.uint64]) -> None:
    hashes.sort()  # in place: a copy would double the memory
    n_rows, n_different = len(hashes), 1 + int(np.count_nonzero(hashes[1:] != hashes[:-1]))
    if n_rows - n_different > _MOST_REPEATED * n_rows:
        part = "" if n_rows == len(gallery) else " that were looked at"
        warn(
            f"{gallery.name} has {n_different:,} different rows among {n_rows:,}{part}: repeated "
            "items share their places, so R@K means little; remove the repeated rows"
        )
