"""What a corrector is fitted on, and the rows that it keeps of it.

Rows are kept in float16, and everything is computed from the rows that are kept, so that a
corrector that was saved and loaded gives the same numbers as before.
"""

import math
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank, open_references, use_references
from nnnorm.corrector.norms import check_norms
from nnnorm.dedup import (
    Duplicates,
    References,
    count_params,
    count_references,
    drop_copies,
    is_sample,
    used_rows,
)
from nnnorm.embeddings import Embeddings, Source, check_same_norms, open_embeddings
from nnnorm.files import Progress
from nnnorm.input_checks import MISMATCH_Z, check_inputs, mismatch_z, warn_of_items

FloatArray: TypeAlias = npt.NDArray[np.float32]
Rows: TypeAlias = npt.NDArray[np.floating[Any]]

# A row that float16 changes by more than this share of its norm is beyond its range.
_HALF_ERROR = 2e-3


class Chosen(NamedTuple):
    """The references that a corrector is fitted on."""

    references: Embeddings
    n_given: int
    params: dict[str, Any]


def choose_references(
    gallery: Embeddings,
    references: Source | Bank,
    *,
    recent: Source | None = None,
    duplicates: Duplicates = "drop",
    normalize: bool | None = None,
    allow_gallery_rows: bool = False,
    progress: Progress | None = None,
) -> Chosen:
    """Choose what a corrector is fitted on: the bank, with recent queries where there are some."""
    past = open_references(references, normalize=normalize)
    used = use_references(references, past, duplicates, progress)
    if recent is None:
        return Chosen(used_rows(used), count_references(used), count_params(used))
    own = open_embeddings(recent, name="recent", normalize=normalize)
    check_norms(own, past.norm_range, "references")
    if not allow_gallery_rows:
        check_inputs(gallery, past, compare=False, repeats=False)
        warn_of_items(past, gallery, own)
    return _join_recent(used, own, duplicates)


def _join_recent(used: References, recent: Embeddings, duplicates: Duplicates) -> Chosen:
    """The recent queries alone if the bank doesn't match them, otherwise with the bank."""
    bank = used_rows(used)
    z = mismatch_z(bank, recent)
    if z > MISMATCH_Z:
        alone = drop_copies(recent, duplicates)
        params = {**count_params(alone), "past_queries": "recent", "mismatch_z": z}
        return Chosen(used_rows(alone), len(recent), params)
    both = drop_copies(recent.joined(bank), duplicates)
    sampled = {"references_sampled": True} if is_sample(used) else {}
    chosen = {"past_queries": "both", "mismatch_z": None if math.isnan(z) else z}
    params = {**count_params(both), **sampled, **chosen}
    return Chosen(used_rows(both), count_references(used) + len(recent), params)


class Kept(NamedTuple):
    """A bank as it is saved, and the same rows as they are multiplied."""

    rows: Rows
    opened: Embeddings


def keep_bank(bank: Embeddings, gallery: Embeddings, name: str) -> Kept:
    """Round the rows of a bank as they are saved; raise if only one side is normalized."""
    if gallery.normalized or bank.normalized:
        check_same_norms(gallery, bank)
    rows = round_to_half(bank.rows(0, len(bank)))
    return Kept(rows, open_kept(rows, name, gallery.normalized))


def round_to_half(rows: FloatArray) -> Rows:
    """Rows in float16, or unchanged where that has too small a range for them."""
    with np.errstate(over="ignore"):
        half = rows.astype(np.float16)
    lost = np.linalg.norm(rows - half.astype(np.float32), axis=1)
    is_close = lost <= _HALF_ERROR * np.linalg.norm(rows, axis=1)
    return half if is_close.all() else rows.copy()


def open_kept(rows: Rows, name: str, normalize: bool) -> Embeddings:
    """Open rows that were kept."""
    return open_embeddings(rows.astype(np.float32), name=name, normalize=normalize)
