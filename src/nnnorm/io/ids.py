"""Ids of items, as they are given by the caller: checked in one place."""

from typing import Any

import numpy as np

from nnnorm.errors import NNNormError
from nnnorm.io.parquet import Ids


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Return ids as an array of int64 or str, or raise unless there is a different one per item."""
    # An object array keeps the values apart that numpy would turn into strings: ["a", 1].
    array = ids if isinstance(ids, np.ndarray) else np.array(ids, dtype=object)
    if array.shape != (n_items,):
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}, shape ({n_items},); got "
            f"shape {array.shape}"
        )
    if array.dtype.kind == "O":
        array = _narrowed(array, name)
    if array.dtype.kind not in "iuU":
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}; got {array.dtype}"
        )
    if array.dtype.kind == "u" and array.max(initial=0) > np.iinfo(np.int64).max:
        raise NNNormError(f"ids of {name} must fit in 64 bits with a sign; got {array.max()}")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    kinds, first, count = np.unique(array, return_index=True, return_counts=True)
    if len(kinds) != n_items:
        twice = int(np.argmax(count > 1))
        places = np.flatnonzero(array == kinds[twice])
        raise NNNormError(
            f"ids of {name} must be unique, but {kinds[twice]} occurs at positions {first[twice]} "
            f"and {places[1]}; give each item an id of its own"
        )
    return array


def _narrowed(array: Ids, name: str) -> Ids:
    if all(isinstance(value, str) for value in array):
        return array.astype(str)
    wrong = [value for value in array if isinstance(value, bool) or not _is_whole(value)]
    strings = [value for value in wrong if isinstance(value, str)]
    if strings and len(strings) == len(wrong):
        raise NNNormError(
            f"ids of {name} mix whole numbers and strings (such as {strings[0]!r}); give all of "
            "them as strings"
        )
    if wrong:
        raise NNNormError(
            f"ids must be one whole number or string per item of {name}; got {wrong[0]!r}"
        )
    try:
        return array.astype(np.int64)
    except OverflowError:
        raise NNNormError(f"ids of {name} must fit in 64 bits with a sign") from None


def _is_whole(value: Any) -> bool:
    return isinstance(value, (int, np.integer))
