"""The engines, and how a URL names one: ``engine:place?option=value``.

``faiss:photos.faiss?kind=hnsw``, ``sqlite:///data/photos.db?table=photos``. The place is a path, or
a server and a collection; the options are those of the engine's options dataclass.
"""

import importlib
from urllib.parse import parse_qsl

from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.index.options import parse_options
from nnnorm.index.store import Store

# Scheme of the URL: module and class.
ENGINES = {
    "faiss": ("nnnorm.index.stores.faiss", "FaissStore"),
    "hnswlib": ("nnnorm.index.stores.hnswlib", "HnswlibStore"),
    "duckdb": ("nnnorm.index.stores.duckdb", "DuckdbStore"),
    "sqlite": ("nnnorm.index.stores.sqlite_vec", "SqliteVecStore"),
    "usearch": ("nnnorm.index.stores.usearch", "UsearchStore"),
    "qdrant": ("nnnorm.index.stores.qdrant", "QdrantStore"),
    "qdrant-edge": ("nnnorm.index.stores.qdrant_edge", "QdrantEdgeStore"),
    "lancedb": ("nnnorm.index.stores.lancedb", "LancedbStore"),
    "chroma": ("nnnorm.index.stores.chroma", "ChromaStore"),
    "milvus": ("nnnorm.index.stores.milvus", "MilvusStore"),
    "pgvector": ("nnnorm.index.stores.pgvector", "PgvectorStore"),
}


def load_engine(scheme: str) -> type[Store]:
    """Import the store class of a scheme; the engine's own library is not imported yet.

    Examples
    --------
    >>> load_engine("faiss").engine
    'faiss'
    """
    module, name = ENGINES[scheme]
    kind: type[Store] = getattr(importlib.import_module(module), name)
    return kind


@explain_arguments
def open_store(url: "str | Store") -> Store:
    """Make the store that a URL names; nothing is created or connected yet.

    Parameters
    ----------
    url : str or Store
        A store is returned as it is.

    Returns
    -------
    Store

    Examples
    --------
    >>> open_store("faiss:photos.faiss?kind=hnsw").name
    'faiss photos.faiss'
    >>> open_store("excel:photos.xls")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no engine 'excel'; ...
    """
    if isinstance(url, Store):
        return url
    if not isinstance(url, str):
        raise NNNormError(
            "expected a URL such as faiss:photos.faiss, or a Store; got "
            f"{type(url).__name__}. Where there is a gallery, the order is (url, gallery, bias)"
        )
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in ENGINES:
        what = f"there is no engine {scheme!r}" if separator else f"{url!r} names no engine"
        raise NNNormError(
            f"{what}; expected a URL such as faiss:photos.faiss, with one of {', '.join(ENGINES)}"
        )
    place, _, query = rest.partition("?")
    if place.startswith("///"):  # scheme:///absolute/path
        place = place[2:]
    kind = load_engine(scheme)
    return kind(place, **parse_options(kind.options_type, dict(parse_qsl(query))))
