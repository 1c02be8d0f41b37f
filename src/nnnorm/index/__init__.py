"""The corrected search inside someone else's engine, one file per library.

`build_index` puts a gallery and its bias into a collection, `open_index` finds it again; both take
an engine's store or its URL and return a `CorrectedIndex`. Importing this loads no engine.
"""

from nnnorm.index.corrected import CorrectedIndex, IndexRanking, build_index, open_index
from nnnorm.index.protocol import Facts, Found, Items, Store
from nnnorm.index.recipe import Recipe
from nnnorm.index.urls import ENGINES, open_store

__all__ = [
    "ENGINES",
    "CorrectedIndex",
    "Facts",
    "Found",
    "IndexRanking",
    "Items",
    "Recipe",
    "Store",
    "build_index",
    "open_index",
    "open_store",
]
