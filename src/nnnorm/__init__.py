"""nnnorm: make embedding search return the right item instead of the popular one.

Functions are verbs and stand here; modules are nouns. Importing this loads numpy and nothing
heavier: a name is imported from its room when it is first used.

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
    from nnnorm.augmentation import augment_gallery, augment_queries
    from nnnorm.bank import Bank
    from nnnorm.bias import Bias
    from nnnorm.corrector import Corrector
    from nnnorm.datasets import load_shapes
    from nnnorm.embeddings import Embeddings, open_embeddings
    from nnnorm.errors import MissingExtraError, NNNormError, NNNormWarning
    from nnnorm.evaluation import (
        Task,
        ablate,
        audit,
        check,
        compare,
        diagnose,
        evaluate,
        scan,
        tune,
    )
    from nnnorm.index import build_index, copy_index, open_index, rerank, verify_index
    from nnnorm.methods import CSLS, DN, NNN, DualSoftmax, InvertedSoftmax, Sinkhorn, Uncorrected
    from nnnorm.popularity import Popularity
    from nnnorm.ranking import Ranking, score_matrix, search
    from nnnorm.version import __version__

_ROOMS = {
    "nnnorm.augmentation": ("augment_gallery", "augment_queries"),
    "nnnorm.bank": ("Bank",),
    "nnnorm.bias": ("Bias",),
    "nnnorm.corrector": ("Corrector",),
    "nnnorm.datasets": ("load_shapes",),
    "nnnorm.errors": ("MissingExtraError", "NNNormError", "NNNormWarning"),
    "nnnorm.index": ("build_index", "copy_index", "open_index", "rerank", "verify_index"),
    "nnnorm.embeddings": ("Embeddings", "open_embeddings"),
    "nnnorm.methods": (
        *("CSLS", "DN", "NNN"),
        *("DualSoftmax", "InvertedSoftmax", "Sinkhorn", "Uncorrected"),
    ),
    "nnnorm.popularity": ("Popularity",),
    "nnnorm.ranking": ("Ranking", "score_matrix", "search"),
    "nnnorm.evaluation": (
        *("Task", "ablate", "audit", "check", "compare", "diagnose"),
        *("evaluate", "scan", "tune"),
    ),
    "nnnorm.version": ("__version__",),
}
_ROOM_OF = {name: room for room, names in _ROOMS.items() for name in names}
__all__ = sorted(_ROOM_OF)


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"module 'nnnorm' has no attribute {name!r}")
    found = globals()[name] = getattr(import_module(_ROOM_OF[name]), name)
    return found


def __dir__() -> list[str]:
    return list(__all__)
