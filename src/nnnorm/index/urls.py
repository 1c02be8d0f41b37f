"""Which engines there are, and how a URL names one: ``engine:place?option=value``.

``faiss:photos.faiss?kind=hnsw``, ``sqlite:///data/photos.db?table=photos``. What stands after the
engine is its own affair (a path, a server and a collection); options become keyword arguments.
"""

import importlib
import inspect
from typing import Any
from urllib.parse import parse_qsl

from nnnorm.errors import NNNormError
from nnnorm.index.store import Store

__all__ = ["ENGINES", "open_store"]

# Scheme: module and class. The class is called with the place (what stands between the scheme and
# the question mark) and the options, or has a `from_url(place, **options)` of its own.
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


def open_store(url: "str | Store") -> Store:
    """Make the store that a URL names; nothing is created or connected yet.

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
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in ENGINES:
        what = f"there is no engine {scheme!r}" if separator else f"{url!r} names no engine"
        raise NNNormError(
            f"{what}; expected a URL such as faiss:photos.faiss, with one of {', '.join(ENGINES)}"
        )
    place, _, query = rest.partition("?")
    if place.startswith("///"):  # scheme:///absolute/path
        place = place[2:]
    module, name = ENGINES[scheme]
    kind = getattr(importlib.import_module(module), name)
    make = getattr(kind, "from_url", kind)
    options = dict(parse_qsl(query))
    parameters = inspect.signature(make).parameters
    allowed = list(parameters)[1:]
    unknown = [key for key in options if key not in allowed]
    if unknown:
        raise NNNormError(
            f"{scheme} has no option {unknown[0]!r}; it has {', '.join(allowed) or 'none'}"
        )
    return make(
        place, **{key: _read(key, text, parameters[key].default) for key, text in options.items()}
    )


def _read(key: str, text: str, default: Any) -> Any:
    """An option as what its default is: a table may be called 2024, but a breadth is a number."""
    if isinstance(default, bool):
        known = {"true": True, "1": True, "false": False, "0": False}
        if text.lower() in known:
            return known[text.lower()]
        raise NNNormError(f"the option {key} must be true or false; got {text!r}")
    if isinstance(default, int):
        try:
            return int(text)
        except ValueError:
            raise NNNormError(f"the option {key} must be a whole number; got {text!r}") from None
    return text
