"""Faults that are put into the package on purpose: the fuzzer has to find each of them."""

import ctypes
import os
import re
import time

import numpy as np

import nnnorm.cli.core
import nnnorm.embeddings
import nnnorm.index
from nnnorm.errors import NNNormError


def _before_every_opening(act):
    opened = nnnorm.cli.core.open_embeddings

    def open_embeddings(*arguments, **options):
        act()
        return opened(*arguments, **options)

    nnnorm.cli.core.open_embeddings = open_embeddings


def traceback():
    """An error that was not foreseen."""

    def act():
        raise AttributeError("no such thing")

    _before_every_opening(act)


def crash():
    """Memory that is not there."""
    _before_every_opening(lambda: ctypes.string_at(0))


def hang():
    """A wait that does not end."""
    _before_every_opening(lambda: time.sleep(10**6))


def memory():
    """More memory than any small file needs."""
    _before_every_opening(lambda: np.ones(2**28).sum())


def silent():
    """NaN that passes."""
    measured = nnnorm.embeddings.measure_rows

    def measure_rows(block, *arguments):
        return measured(np.where(np.isfinite(block), block, np.float32(1)), *arguments)

    nnnorm.embeddings.measure_rows = measure_rows


def leftovers():
    """A file beside the inputs."""
    _before_every_opening(lambda: open(".nnnorm-0f.tmp", "w").close())


def refused():
    """A name that is not understood."""

    def act():
        if any(re.search(r"[^\w.-]", name, re.ASCII) for name in os.listdir()):
            raise NNNormError("this name can't be read")

    _before_every_opening(act)


def unclear():
    """An exit code that means nothing."""

    def act():
        raise SystemExit(5)

    _before_every_opening(act)


def half_done():
    """A deletion that is refused after it was done."""
    delete = nnnorm.index.CorrectedIndex.delete

    def refuse(index, ids):
        if len(ids) > 1:
            delete(index, ids[:1])
        raise NNNormError("these items can't be deleted")

    nnnorm.index.CorrectedIndex.delete = refuse
