"""nnnorm: make embedding search return the right item instead of the popular one.

Start with `Corrector.fit` or ``NNN().fit`` to compute a correction, `search` to use it, and `check`
to see whether it helps. Importing the package loads no other library: each name is imported from
its module when you first use it.

>>> import numpy as np, nnnorm
>>> rng = np.random.default_rng(0)
>>> gallery, references, queries = (rng.normal(size=(n, 16)) for n in (50, 200, 5))
>>> bias = nnnorm.NNN().fit(gallery, references, normalize=True)
>>> nnnorm.search(queries, gallery, bias, k=3, normalize=True).indices.shape
(5, 3)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from nnnorm.bank import Bank
    from nnnorm.bias import Bias, Popularity
    from nnnorm.calibration import calibrate
    from nnnorm.corrector import Corrector
    from nnnorm.datasets import load_shapes
    from nnnorm.embeddings import open_embeddings
    from nnnorm.errors import NNNormError, NNNormWarning
    from nnnorm.evaluation import audit, check, compare, evaluate, scan, tune
    from nnnorm.index import build_index, open_index
    from nnnorm.methods import CSLS, DN, NNN, DualSoftmax, InvertedSoftmax, Sinkhorn
    from nnnorm.ranking import Ranking, rerank, search
    from nnnorm.version import __version__

_NAMES = {
    "bank": "Bank",
    "bias": "Bias Popularity",
    "calibration": "calibrate",
    "corrector": "Corrector",
    "datasets": "load_shapes",
    "embeddings": "open_embeddings",
    "errors": "NNNormError NNNormWarning",
    "evaluation": "audit check compare evaluate scan tune",
    "index": "build_index open_index",
    "methods": "CSLS DN NNN DualSoftmax InvertedSoftmax Sinkhorn",
    "ranking": "Ranking rerank search",
    "version": "__version__",
}
_MODULE_OF = {name: module for module, names in _NAMES.items() for name in names.split()}
__all__ = sorted(set(_MODULE_OF) - {"__version__"})


def __getattr__(name: str) -> Any:
    if name in _NAMES or name in ("augmentation", "documents"):
        return import_module(f"nnnorm.{name}")
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'nnnorm' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(f"nnnorm.{_MODULE_OF[name]}"), name)
    return found


def __dir__() -> list[str]:
    return list(__all__)
