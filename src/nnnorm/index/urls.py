"""The engines, and how a URL names one: ``engine:place?option=value``.

``faiss:photos.faiss?kind=hnsw``, ``sqlite:///data/photos.db?table=photos``. The place is a path, or
a server and a collection; the options are those of the engine's options dataclass. A URL may hold
a password: messages show it through `show_url` only.
"""

import importlib
from urllib.parse import parse_qsl, urlsplit

from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.files import show_url
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
# Other names of an engine: that of its library.
_ALIASES = {"sqlite-vec": "sqlite"}

# What stands before the // of the address of a server; elsewhere a path may hold an @.
_SERVERS = ("", "http:", "https:", "postgresql:", "postgres:")


def check_server(address: str) -> None:
    """Raise unless the address of a server has a host, and a port that is a number.

    Examples
    --------
    >>> check_server("http://box:http")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: http://box:http is not the address of a server ...
    """
    try:
        parts = urlsplit(address)
        if parts.hostname and (parts.port is None or parts.port > 0):
            return
        reason = "it names no host" if not parts.hostname else "its port is 0"
    except ValueError:  # it quotes the port, which may be a part of a password
        reason = "its host or port can't be read"
    raise NNNormError(
        f"{show_url(address)} is not the address of a server ({reason}); expected //host:port, "
        "with a port from 1 to 65535"
    )


def check_user(engine: str, address: str, query: str = "") -> None:
    """Refuse a password with a raw / or ?, which would be taken for the rest of the URL.

    Examples
    --------
    >>> check_user("pgvector", "//me:se/cret@box/shop")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the address of pgvector has an @ after its host; ...
    """
    before, slashes, rest = address.partition("//")
    if not slashes or before not in _SERVERS:
        return
    host, _, path = rest.partition("/")
    has_password = "@" not in host and ":" in host and not host.rpartition(":")[2].isdecimal()
    in_names = any("@" in part.partition("=")[0] for part in query.split("&"))
    if "@" in path or in_names or (has_password and "@" in query):
        raise NNNormError(
            f"the address of {engine} has an @ after its host; percent-encode a / or ? of a "
            "password (%2F, %3F), and give the name of a collection as an option"
        )


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
    scheme = _ALIASES.get(scheme, scheme)
    if not separator or scheme not in ENGINES:
        shown = show_url(url)
        what = f"there is no engine {scheme!r}" if separator else f"{shown!r} names no engine"
        raise NNNormError(
            f"{what}; expected a URL such as faiss:photos.faiss, with one of {', '.join(ENGINES)}"
        )
    place, _, query = rest.partition("?")
    if place.startswith("///"):  # scheme:///absolute/path
        place = place[2:]
    check_user(scheme, place, query)
    kind = load_engine(scheme)
    return kind(place, **parse_options(kind.options_type, _read_query(scheme, query)))


def _read_query(scheme: str, query: str) -> dict[str, str]:
    options: dict[str, str] = {}
    for name, value in parse_qsl(query, keep_blank_values=True):
        if not value:
            raise NNNormError(
                f"the option {name!r} of the {scheme} URL has no value; expected {name}=…, or "
                "leave it out"
            )
        if "\0" in value:
            raise NNNormError(f"the option {name!r} of the {scheme} URL holds a null character")
        if name in options:
            raise NNNormError(f"the {scheme} URL has the option {name!r} twice; give it once")
        options[name] = value
    return options
