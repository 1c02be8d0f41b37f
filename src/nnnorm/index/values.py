"""The bias of items, from a `Bias` that was fitted on them or from the `Corrector` of an index."""

import os
from typing import TypeAlias

from nnnorm.augmentation import check_storable
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError

# What gives items their bias: the path is that of a corrector file.
Correction: TypeAlias = Bias | Corrector | str | os.PathLike[str]


def open_correction(given: Correction) -> Bias | Corrector:
    """Return a bias that an index can hold, or a corrector; the file of one is loaded.

    Examples
    --------
    >>> open_correction("nowhere.safetensors")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no corrector file nowhere.safetensors; ...
    """
    if isinstance(given, (str, os.PathLike)):
        return Corrector.load(given)
    if not isinstance(given, Corrector):
        check_storable(given)
    return given


def open_corrector(given: "Corrector | str | os.PathLike[str]") -> Corrector:
    """Return a corrector, loaded where its path is given, or raise for anything else.

    Examples
    --------
    >>> import numpy as np
    >>> open_corrector(Bias(np.zeros(2), 0.75, "nnn"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: corrector must be a Corrector, or the path of its file; got Bias
    """
    if isinstance(given, Corrector):
        return given
    if isinstance(given, (str, os.PathLike)):
        return Corrector.load(given)
    raise NNNormError(
        f"corrector must be a Corrector, or the path of its file; got {type(given).__name__}"
    )


def open_items(
    source: Source, given: Bias | Corrector, *, name: str, normalize: bool | None
) -> tuple[Embeddings, Bias]:
    """Open items as their correction needs them, and return them with their bias.

    Parameters
    ----------
    source : array or path, shape (n_items, dim)
    given : Bias or Corrector
        A bias that was fitted on these items, or a corrector that computes it.
    name : str
        Of the items, in messages.
    normalize : bool, optional
        Divide every row by its norm; a corrector knows that by itself.

    Returns
    -------
    (Embeddings, Bias)

    Examples
    --------
    >>> import numpy as np
    >>> bias = Bias(np.zeros(2), 0.75, "nnn")
    >>> items, same = open_items(np.eye(2), bias, name="gallery", normalize=None)
    >>> items.shape, same is bias
    ((2, 2), True)
    """
    if isinstance(given, Bias):
        items = open_embeddings(source, name=name, normalize=normalize)
        given.check_gallery(items)
        return items, given
    named = source
    if not isinstance(source, Embeddings):
        wanted = given.normalize if normalize is None else normalize
        named = open_embeddings(source, name=name, normalize=wanted or given.normalize)
    items = given.open(named, "items")
    is_its_own = given.bias.fits(items) and given.bias.fingerprints.get("gallery") is not None
    return items, given.bias if is_its_own else given.bias_of(items)
