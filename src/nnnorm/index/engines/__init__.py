"""The engines and their URLs: ``engine:place?option=value``.

A URL may contain a password, so messages show it only through `show_url`.
"""

import importlib
from urllib.parse import parse_qs

from nnnorm.errors import NNNormError, has_surrogates, show_url
from nnnorm.index.backend import Backend

# Scheme of the URL: module and class.
ENGINES = {
    "faiss": ("nnnorm.index.engines.faiss", "FaissBackend"),
    "hnswlib": ("nnnorm.index.engines.hnswlib", "HnswlibBackend"),
    "usearch": ("nnnorm.index.engines.usearch", "UsearchBackend"),
    "sqlite": ("nnnorm.index.engines.sqlite_vec", "SqliteVecBackend"),
    "duckdb": ("nnnorm.index.engines.duckdb", "DuckdbBackend"),
    "pgvector": ("nnnorm.index.engines.pgvector", "PgvectorBackend"),
    "lancedb": ("nnnorm.index.engines.lancedb", "LancedbBackend"),
    "qdrant": ("nnnorm.index.engines.qdrant", "QdrantBackend"),
    "milvus": ("nnnorm.index.engines.milvus", "MilvusBackend"),
    "chroma": ("nnnorm.index.engines.chroma", "ChromaBackend"),
}
# What comes before the // in the address of a server; other paths may have an @.
_SERVERS = ("", "http:", "https:", "postgresql:", "postgres:")


def load_engine(scheme: str) -> type[Backend]:
    """Import the backend class of a scheme; the engine's own library isn't imported yet."""
    module, name = ENGINES[scheme]
    return getattr(importlib.import_module(module), name)


def open_backend(url: "str | Backend") -> Backend:
    """Create the backend of a URL, without connecting to anything."""
    if isinstance(url, Backend):
        return url
    if not isinstance(url, str):
        raise NNNormError(
            f"expected a URL such as faiss:photos, or a Backend; got {type(url).__name__}. The "
            "order is (url, gallery, corrector)"
        )
    if has_surrogates(url):  # libraries in C++ don't accept such a path
        raise NNNormError(f"a URL must be text in UTF-8; got {show_url(url)!r:.60}")
    scheme, separator, rest = url.partition(":")
    if not separator or scheme not in ENGINES:
        what = f"there is no engine {scheme!r}" if separator else f"{show_url(url)!r} has no engine"
        raise NNNormError(
            f"{what}; expected a URL such as faiss:photos, with one of {', '.join(ENGINES)}"
        )
    place, _, query = rest.partition("?")
    if place.startswith("///"):  # scheme:///absolute/path
        place = place[2:]
    _check_user(scheme, place, query)
    return load_engine(scheme)(place, **_read_query(scheme, query))


def _check_user(engine: str, address: str, query: str) -> None:
    """Raise an error if a password has a raw / or ?, which would end the host part."""
    before, slashes, rest = address.partition("//")
    if not slashes or before not in _SERVERS:
        return
    host, _, path = rest.partition("/")
    has_password = "@" not in host and ":" in host and not host.rpartition(":")[2].isdecimal()
    in_names = any("@" in part.partition("=")[0] for part in query.split("&"))
    if "@" in path or in_names or (has_password and "@" in query):
        raise NNNormError(
            f"the address of {engine} has an @ after its host; percent-encode / and ? in a "
            "password (%2F, %3F), and pass the name of the collection as an option"
        )


def _read_query(scheme: str, query: str) -> dict[str, str]:
    given = parse_qs(query, keep_blank_values=True)
    for name, values in given.items():
        if len(values) > 1 or not values[0] or "\0" in values[0]:
            problem = "is given twice" if len(values) > 1 else "has no value"
            raise NNNormError(f"option {name!r} of the {scheme} URL {problem}; pass {name}=VALUE")
    return {name: value for name, (value,) in given.items()}
