"""References in any form, opened for a method: a bank, the file of one, or plain rows."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.bank.bank import Bank
from nnnorm.copies import (
    Duplicates,
    Intents,
    References,
    check_duplicates,
    warn_of_few_intents,
    without_copies,
)
from nnnorm.errors import NNNormError
from nnnorm.io import Embeddings, Metric, Progress, Source, open_embeddings


def open_references(
    references: Source | Bank, *, name: str = "references", normalize: bool | None = None
) -> Embeddings:
    """Open a bank, or the file of one, or what `open_embeddings` opens.

    Examples
    --------
    >>> open_references(Bank.of(np.eye(3))).shape, open_references(np.eye(2)).shape
    ((3, 3), (2, 2))
    """
    if isinstance(bank := _read_bank(references), Bank):
        return open_embeddings(bank.embeddings(), name=name, normalize=normalize)
    return open_embeddings(references, name=name, normalize=normalize)


def open_gallery_references(
    source: Source | None, *, normalize: bool | None = None, metric: Metric = "ip"
) -> Embeddings | None:
    """Open a bank of gallery-side items, where one is given.

    Examples
    --------
    >>> open_gallery_references(np.eye(3)).shape, open_gallery_references(None)
    ((3, 3), None)
    """
    if source is None:
        return None
    return open_embeddings(source, name="gallery_references", normalize=normalize, metric=metric)


def use_references(
    references: Source | Bank,
    opened: Embeddings,
    duplicates: Duplicates = "drop",
    progress: Progress | None = None,
) -> References:
    """What a method is fitted on: the rows of a bank, or what `without_copies` leaves.

    Parameters
    ----------
    references : Bank, array or path
    opened : Embeddings
        The same, as `open_references` gives it.
    duplicates : {"drop", "keep"}
    progress : callable, optional

    Returns
    -------
    Embeddings or Intents

    Examples
    --------
    >>> bank = Bank.of(np.eye(3), counts=[5, 1, 1])
    >>> use_references(bank, open_references(bank)).n_rows
    7
    """
    if isinstance(bank := _read_bank(references), Bank):
        check_duplicates(duplicates)
        if duplicates == "keep":
            raise NNNormError(
                "a bank counts every intent once, so there are no duplicates to keep; leave out "
                'duplicates, or give the queries themselves with duplicates="keep"'
            )
        everything = np.arange(len(bank))
        n_queries = bank.n_seen - bank.n_forgotten
        intents = Intents(opened, everything, bank.counts, n_queries, opened.fingerprint)
        warn_of_few_intents(intents)
        return intents
    return without_copies(opened, duplicates, progress)


def is_bank(references: Any) -> bool:
    """Whether references are a bank or the file of one."""
    if isinstance(references, (str, os.PathLike)):
        return Path(references).suffix == ".safetensors"
    return isinstance(references, Bank)


def _read_bank(references: Any) -> Any:
    """The bank in a file of one; anything else as it is."""
    if is_bank(references) and not isinstance(references, Bank):
        return Bank.load(references)
    return references
