"""Injected bugs, each of which the fuzzer must find."""

import ctypes
import os
import re
import time

import numpy as np

import nnnorm.cli.core
import nnnorm.embeddings
import nnnorm.index
from nnnorm.errors import NNNormError


def _raise(error):
    raise error


def _refuse_odd_names():
    if any(re.search(r"[^\w.-]", name, re.ASCII) for name in os.listdir()):
        raise NNNormError("this name can't be read")


# What happens before embeddings are opened, by the class of the fault.
_BEFORE = {
    "traceback": lambda: _raise(AttributeError("no such thing")),
    "crash": lambda: ctypes.string_at(0),
    "hang": lambda: time.sleep(10**6),
    "memory": lambda: np.ones(2**28).sum(),
    "leftovers": lambda: open(".nnnorm-0f.tmp", "w").close(),
    "refused": _refuse_odd_names,
    "unclear": lambda: _raise(SystemExit(5)),
}


def plant(fault):
    """Put a fault into this process."""
    if fault == "silent":  # NaN that passes
        measured = nnnorm.embeddings.measure_rows
        nnnorm.embeddings.measure_rows = lambda block: measured(
            np.where(np.isfinite(block), block, np.float32(1))
        )
    elif fault == "half_done":  # a deletion that is refused after it was done
        delete = nnnorm.index.CorrectedIndex.delete

        def refuse(index, ids):
            if len(ids) > 1:
                delete(index, ids[:1])
            raise NNNormError("these items can't be deleted")

        nnnorm.index.CorrectedIndex.delete = refuse
    else:
        opened = nnnorm.cli.core.open_embeddings

        def open_embeddings(*arguments, **options):
            _BEFORE[fault]()
            return opened(*arguments, **options)

        nnnorm.cli.core.open_embeddings = open_embeddings
