"""Quarantine: which items of a gallery look planted or broken, without labels.

`scan` judges all items of a gallery by each other and by a bank of past queries; new items are
judged by `Corrector.admit`. What is measured is in `nnnorm.signals`, the verdicts in
`nnnorm.suspects`.
"""

import os
from collections.abc import Sequence
from typing import Any

import numpy as np

from nnnorm.bank import Bank, open_references, use_references
from nnnorm.corrector import Corrector
from nnnorm.dedup import used_rows
from nnnorm.embeddings import Embeddings, Sound, Source, check_same_norms, open_sound
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.files import Progress
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.signals import Expected
from nnnorm.suspects import DEFAULT_BUDGET, Budget, Scan, count_alerts, find_stray_norms
from nnnorm.suspects import judge as judge_items


@explain_arguments
def scan(
    gallery: Source,
    references: Source | Bank | None = None,
    *,
    corrector: Corrector | str | os.PathLike[str] | None = None,
    ids: Sequence[Any] | None = None,
    budget: Budget = DEFAULT_BUDGET,
    normalize: bool | None = None,
    seed: int = 0,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Scan:
    """Judge the items of a gallery: fine, to be watched, or to be taken out.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
        The items that are searched. Rows of zeros or NaN are reported, not refused.
    references : Bank, array or path, shape (n_references, dim)
        Past queries.
    corrector : Corrector or path, optional
        In place of the references: its bank is used, and rows are opened as it needs them.
    ids : sequence of int or of str, optional
        One per item.
    budget : str, float or int
        The largest number of alerts: ``"0.2%"`` or 0.002 of the items (five at least), or a whole
        number. Broken rows are reported besides.
    normalize : bool, optional
        As in `open_embeddings`.
    seed : int
        Random seed of samples, topics and blends.
    memory_budget : int
        Bytes to use beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Scan

    Examples
    --------
    >>> from nnnorm import load_shapes
    >>> shapes = load_shapes()
    >>> planted = shapes.references[1000:1400].mean(axis=0, keepdims=True)
    >>> gallery = np.concatenate([shapes.gallery, planted / np.linalg.norm(planted)])
    >>> found = scan(gallery, shapes.references[:1000])
    >>> found.suspects[0].item, found.suspects[0].verdict
    (1000, 'quarantine')
    """
    items, bank = _open(gallery, references, corrector, normalize, progress)
    alerts = count_alerts(budget, items.n_rows)
    faults = find_stray_norms(items.embeddings)
    # Rows with norms of their own would move what is usual.
    honest = np.setdiff1d(np.arange(len(items.embeddings)), list(faults))
    landmarks = items.embeddings if not faults else items.embeddings.subset(honest)
    options: dict[str, Any] = {"seed": seed, "memory_budget": memory_budget}
    expected = Expected(landmarks, bank, progress=progress, **options)
    own = np.full(len(items.embeddings), -1)
    own[honest[expected.chosen]] = np.arange(len(expected.chosen))
    return judge_items(
        expected, items, own=own, faults=faults, budget=alerts, ids=ids, progress=progress
    )


def _open(
    gallery: Source,
    references: Source | Bank | None,
    corrector: Corrector | str | os.PathLike[str] | None,
    normalize: bool | None,
    progress: Progress | None,
) -> tuple[Sound, Embeddings]:
    if (references is None) == (corrector is None):
        raise NNNormError(
            "scan needs references (past queries), or a corrector in their place; got "
            + ("neither" if corrector is None else "both")
        )
    if corrector is None:
        items = open_sound(gallery, name="gallery", normalize=normalize)
        past = open_references(references, normalize=normalize)
        check_same_norms(items.embeddings, past, normalize=normalize)
        return items, used_rows(use_references(references, past, "drop", progress))
    if isinstance(corrector, (str, os.PathLike)):
        corrector = Corrector.load(corrector)
    if not isinstance(corrector, Corrector):
        raise NNNormError(
            "corrector must be a Corrector, or the path of a saved one; got "
            f"{type(corrector).__name__}"
        )
    return corrector.open_sound(gallery, "gallery"), corrector.bank
