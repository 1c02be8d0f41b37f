"""nnnorm: make embedding search return the right item instead of the popular one.

>>> import numpy as np, nnnorm
>>> rng = np.random.default_rng(0)
>>> gallery, references, queries = (rng.normal(size=(n, 16)) for n in (50, 200, 5))
>>> bias = nnnorm.NNN().fit(gallery, references)
>>> nnnorm.search(queries, gallery, bias, k=3).indices.shape
(5, 3)
"""

from nnnorm.augmentation import augment_gallery, augment_queries
from nnnorm.bias import Bias
from nnnorm.errors import MissingExtraError, NNNormError
from nnnorm.io import Embeddings, open_embeddings
from nnnorm.methods import CSLS, DN, NNN, DualSoftmax, InvertedSoftmax, Sinkhorn, Uncorrected
from nnnorm.ranking import Ranking, score_matrix, search
from nnnorm.version import __version__

__all__ = [
    "CSLS",
    "DN",
    "NNN",
    "Bias",
    "DualSoftmax",
    "Embeddings",
    "InvertedSoftmax",
    "MissingExtraError",
    "NNNormError",
    "Ranking",
    "Sinkhorn",
    "Uncorrected",
    "__version__",
    "augment_gallery",
    "augment_queries",
    "open_embeddings",
    "score_matrix",
    "search",
]
