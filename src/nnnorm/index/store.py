"""What an engine must do so that the correction can run inside it: one small class, `Store`.

A store holds vectors under the caller's ids and finds the nearest ones. It does not handle
biases: `corrected.py` extends the vectors, reads the scores and re-ranks, the same for all engines.
A new engine is one file with an options dataclass and a subclass, and one line in `urls.py`.
"""

import inspect
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import Embeddings
from nnnorm.errors import NNNormError
from nnnorm.index.options import Options, describe_parameters, make_options
from nnnorm.tables import check_ids as check_given_ids

FloatArray: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[Any]  # int64, or str
StoreMetric = Literal["ip", "cosine", "l2"]
Way = Literal["ip", "cosine", "l2", "rerank", "column"]
Metadata: TypeAlias = Mapping[str, Any]
Place: TypeAlias = "str | os.PathLike[str]"
# An id, the engine's own score or distance, and the bias where it is stored beside the vector.
Hit: TypeAlias = tuple[Any, float, "float | None"]

# Items written to or read from an engine at once, unless the engine takes fewer.
BATCH = 1000


@dataclass(frozen=True)
class Sample:
    """What will be stored: the number of items, and on demand some of their stored vectors.

    `metadata` are those of some items, at most 1,000 and evenly spaced, from which a store can
    derive native columns; it is empty where no item has any.
    """

    n_items: int
    vectors: Callable[[], FloatArray]  # shape (at most 65536, width)
    metadata: Sequence[Metadata] = ()


@dataclass(frozen=True, eq=False)
class Items:
    """Some items as a store takes them and returns them.

    Attributes
    ----------
    ids : ndarray, shape (n_items,), int64 or str
    vectors : ndarray, shape (n_items, width), float32
        Including the extra coordinates, where the way of serving adds some.
    values : ndarray, shape (n_items,), float32, optional
        The bias as a number beside the vector (ways "rerank" and "column").
    metadata : sequence of mappings, optional
        Further fields of each item.
    """

    ids: Ids
    vectors: FloatArray
    values: FloatArray | None = None
    metadata: Sequence[Metadata] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def value_list(self) -> list[float] | list[None]:
        """The bias of each item, or None for each, as Python numbers."""
        return [None] * len(self) if self.values is None else self.values.tolist()

    def metadata_list(self) -> list[dict[str, Any]]:
        """The metadata of each item, empty where there is none."""
        return [dict(entry) for entry in self.metadata or [{}] * len(self)]

    def take(self, rows: npt.NDArray[Any]) -> "Items":
        """Return the items at `rows` (positions or a mask)."""
        where = np.arange(len(self))[rows]
        return Items(
            self.ids[where],
            self.vectors[where],
            None if self.values is None else self.values[where],
            None if self.metadata is None else [self.metadata[row] for row in where],
        )


@dataclass(frozen=True, eq=False)
class Found:
    """What an engine found, before the corrected scores are computed.

    Attributes
    ----------
    ids : ndarray, shape (n_queries, at most k), int64 or str
    scores : ndarray, same shape, float32
        In the store's own metric, higher is better: the inner product, the cosine, or minus the
        squared distance. ``-inf`` where nothing was found.
    values : ndarray, same shape, float32, optional
        Bias of the items, where it is stored beside the vectors.
    metadata : list of lists of dict, optional
        Metadata of the items, per query, where the engine returns them with the hits anyway; else
        `Store.metadata_of` is asked for them when a caller wants them.
    mark : object
        What `Store.mark` would have returned through the client that found the hits; None where
        nothing but the client of the store finds them.
    """

    ids: Ids
    scores: FloatArray
    values: FloatArray | None = None
    metadata: list[list[dict[str, Any]]] | None = None
    mark: object = None


@dataclass(frozen=True)
class Facts:
    """Width of the vectors of a collection, its metric, and its number of items."""

    width: int
    metric: StoreMetric
    n_items: int


class Engine(ABC):
    """The abilities of an engine, as far as a recipe depends on them.

    Class attributes
    ----------------
    engine : str
        Name, as in messages.
    ways : tuple of Way
        Ways of serving that this engine supports, the preferred one first. "ip", "cosine" and "l2"
        mean that it compares by that metric; "rerank" that `add` keeps `Items.values` and `search`
        returns them; "column" that `search_column` computes ``s − weight·value`` in the engine.
    can_delete : bool
        Whether `delete` works.
    is_graph : bool
        Whether the search walks a graph, which needs about equal norms.
    is_quantized : bool
        Whether numbers are stored in few bits; the bias is then scaled.
    keeps_vectors : bool
        Whether a cosine collection returns vectors bit for bit rather than their direction.
    filters : str
        What the filter of a search is in this engine, such as "a condition in SQL"; empty where
        there is none.
    rewrites_values : bool
        Whether `set_values` replaces the bias of all items at once, for other readers too.
    is_exact : bool
        Whether the search compares every item in float32, so that `verify` demands every hit.
    is_lossy : bool
        Whether `scan` yields vectors that were rounded to few bits; a refresh then needs a gallery.
    has_one_range : bool
        Whether numbers are quantised by one range for all coordinates; extended vectors are then
        rotated, so that the coordinate of the bias is no outlier.
    largest_k : int or None
        Largest number of hits per query. An instance may set its own value of any of these.
    """

    engine: ClassVar[str]
    ways: tuple[Way, ...]
    can_delete: bool = True
    is_graph: bool = False
    is_quantized: bool = False
    keeps_vectors: bool = True
    filters: str = ""
    rewrites_values: bool = False
    is_exact: bool = False
    is_lossy: bool = False
    has_one_range: bool = False
    largest_k: int | None = None


class Store(Engine):
    """A collection of vectors in one engine. Nothing is opened before it is needed.

    A subclass names its options dataclass in `options_type`; its keyword arguments, its signature
    and the list of parameters in its docstring come from there.
    """

    options_type: ClassVar[type[Options]] = Options
    # Name of the class of the engine's asynchronous clients; empty where there are none.
    async_client_type: ClassVar[str] = ""
    options: Options
    # Whether a search has to return the bias of the hits; an index knows when it need not.
    returns_values: bool = True

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "options_type" in cls.__dict__:
            place = inspect.Parameter("place", inspect.Parameter.POSITIONAL_ONLY, default="")
            others = inspect.signature(cls.options_type).parameters.values()
            cls.__signature__ = inspect.Signature([place, *others])  # type: ignore[attr-defined]
            listed = describe_parameters(cls.options_type)
            cls.__doc__ = f"{inspect.cleandoc(cls.__doc__ or '')}\n{listed}\n"

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        self.place = place
        self.options = make_options(self.options_type, self.engine, args, options)

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @property
    @abstractmethod
    def name(self) -> str:
        """Name in messages: the engine and the collection."""

    @abstractmethod
    def facts(self) -> Facts | None:
        """Describe the collection, or return None if there is none of this name."""

    @abstractmethod
    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        """Create an empty collection for integer ids, or for strings.

        `sample.n_items` items will follow; `sample.vectors()` gives some of them to train on. Only
        called where `facts` is None.
        """

    def imitate(self, source: "Store") -> None:
        """Expect to be created like `source`, before a recipe is made for this store.

        A store whose abilities depend on the collection, such as `is_quantized`, then has those of
        `source`. Nothing is written.
        """
        return None

    def create_like(
        self, source: "Store", width: int, metric: StoreMetric, *, strings: bool, sample: Sample
    ) -> None:
        """Create an empty collection that will hold a corrected copy of `source`.

        An engine that knows more than ids, vectors and metadata keeps what it can where `source` is
        of the same engine: the types of native columns, payload indexes, further named vectors. By
        default this is `create`. A refresh calls it too, with the generation that is served.
        """
        self.create(width, metric, strings=strings, sample=sample)

    def copy_rest(self, source: "Store") -> None:
        """Copy what `scan` does not yield of items that are in both, such as other named vectors.

        Called once all items of `source` have been added; for stores of the same engine.
        """
        return None

    def check_new(self, ids: Ids) -> None:
        """Raise for ids that can't be stored; called before anything is created or written."""
        return None

    @abstractmethod
    def add(self, items: Items) -> None:
        """Add items; `check_new` and `present` have shown that their ids are new and fit."""

    @abstractmethod
    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Say which of these ids are in the collection, shape ``(n_ids,)``."""

    @abstractmethod
    def delete(self, ids: Ids) -> None:
        """Delete items by id; `present` has shown that all of them exist."""

    def upsert(self, items: Items) -> None:
        """Add items, and replace those whose ids are there already, for readers at once."""
        there = self.present(items.ids)
        if there.any():
            self.delete(items.ids[there])
        self.add(items)

    def set_values(
        self, batches: Iterable[tuple[Ids, FloatArray]], note: Mapping[str, Any]
    ) -> None:
        """Replace the bias values of all items and the note, all at once or not at all.

        For stores with `rewrites_values`, and collections whose bias stands beside the vectors. The
        former values and note are kept, so that `exchange` brings them back as it would bring back
        the other generation.
        """
        raise NotImplementedError

    def value_range(self) -> tuple[float, float] | None:
        """Return the smallest and the largest bias that are stored beside vectors now.

        None where that takes longer than a search, or where nothing but nnnorm can change them. It
        is asked once when an index of the way "rerank" is opened: programs may have written to the
        column since.
        """
        return None

    def metadata_of(self, ids: Ids) -> list[dict[str, Any]]:
        """Return the metadata of items by id, empty for one without any; all of them exist."""
        wanted, found = set(ids.tolist()), dict[Any, dict[str, Any]]()
        for items in self.scan():
            listed = zip(items.ids.tolist(), items.metadata_list(), strict=True)
            found.update((own, entry) for own, entry in listed if own in wanted)
        return [found.get(own, {}) for own in ids.tolist()]

    @abstractmethod
    def search(self, queries: FloatArray, k: int, filter: Any = None) -> Found:
        """Find the k nearest of each query ``(n_queries, width)``; fewer where there are fewer.

        `filter` is in the engine's own language, and is None for an engine without `filters`.
        """

    def search_column(
        self, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        """Find the k best by ``s(q, r) − weight·value``, computed by the engine (way "column")."""
        raise NotImplementedError

    async def search_async(
        self, client: Any, queries: FloatArray, k: int, filter: Any = None
    ) -> Found:
        """Search as `search` does, through an asynchronous client of the caller.

        For engines with `async_client_type`.
        """
        raise NotImplementedError

    async def search_column_async(
        self, client: Any, queries: FloatArray, k: int, weight: float, filter: Any = None
    ) -> Found:
        """Search as `search_column` does, through an asynchronous client of the caller."""
        raise NotImplementedError

    @abstractmethod
    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        """Yield all items, in an order that stays the same while nothing changes."""

    @abstractmethod
    def read_note(self) -> dict[str, Any] | None:
        """Return the note that `write_note` stored with the collection, or None."""

    @abstractmethod
    def write_note(self, note: Mapping[str, Any]) -> None:
        """Store a small JSON note with the collection: how the correction was built in."""

    def version(self) -> object:
        """Return a value that differs once another connection has changed any item.

        A refresh compares it before the two generations are exchanged. None, the default, is for
        engines where that would take longer than counting the items.
        """
        return None

    def mark(self) -> object:
        """Return a value that differs once the note or the generation of this store has changed.

        By another connection, or by another thread through this store. An index compares it after
        each search with that of before, and reads the note and searches again where it differs, so
        that an answer never mixes an old recipe with new items. It has to be cheap (SQLite's
        ``data_version``), and to differ as soon as a search finds the new items. Where readers stay
        with the generation that they opened, only an exchange by this store changes it. None, the
        default, is for stores without generations.
        """
        return None

    def check_served(self) -> None:
        """Raise where this store has stayed with a generation that is not served any more.

        The default is for stores that always see the one that is served.
        """

    def transaction(self) -> AbstractContextManager[None]:
        """Write all or nothing, while no other connection changes the note or the generation.

        The default, for engines that have no transactions, does neither.
        """
        return nullcontext()

    def other(self) -> "Store":
        """Return the store of the other generation of this collection.

        A refresh fills it, `exchange` makes it the one that is served, and it then holds the
        former one. It need not exist yet. It uses the connection of this store, where there is one,
        and is not closed by itself.
        """
        raise NotImplementedError

    def exchange(self) -> None:
        """Serve the other generation under this name, and keep this one as the other, at once.

        A reader finds the one or the other, whole, at any time, also after a kill.
        """
        raise NotImplementedError

    def drop(self) -> None:
        """Remove the collection with all that belongs to it; nothing where there is none."""
        raise NotImplementedError

    def parse_filter(self, text: str) -> Any:
        """Turn the text of a filter, from the command line, into what `search` takes.

        By default a JSON object or list is read, and anything else stays text.
        """
        try:
            parsed = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return parsed if isinstance(parsed, (dict, list)) else text

    def traps(self) -> list[str]:
        """List likely problems of an existing collection, one sentence each, for `verify`."""
        return []

    def save(self) -> None:
        """Make everything durable, for engines that live in the memory of this process."""

    def close(self) -> None:
        """Close files and connections; nothing is saved by this."""


def scan_generation(
    store: Store, mark: object, note: Metadata | None, batch: int = BATCH
) -> Iterator[Items]:
    """Yield all items, or raise where another generation is served meanwhile.

    `mark` is that of the store, taken before its note was read.

    Examples
    --------
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> store = FaissStore()
    >>> store.create(2, "ip", strings=False, sample=Sample(1, lambda: np.eye(2)))
    >>> store.add(Items(np.array([7]), np.float32([[1, 0]])))
    >>> [items.ids.tolist() for items in scan_generation(store, store.mark(), store.read_note())]
    [[7]]
    """
    expected = _generation_of(note)
    for items in store.scan(batch):
        now = store.mark()
        if now != mark:
            # Items that are added change the mark of some engines too.
            if _generation_of(store.read_note()) != expected:
                raise changed_while_read(store.name)
            mark = now
        yield items


def _generation_of(note: Metadata | None) -> tuple[Any, ...]:
    return tuple((note or {}).get(name) for name in ("generation", "corrector", "way"))


def changed_while_read(name: str) -> NNNormError:
    """Return the error of a read of a collection that changed meanwhile.

    Examples
    --------
    >>> raise changed_while_read("faiss photos.faiss")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: faiss photos.faiss changed while it was read, such as by a ...
    """
    return NNNormError(
        f"{name} changed while it was read, such as by a refresh, so what was read does not belong "
        "together; start again when nothing writes to it"
    )


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Return ids as an int64 or str array without duplicates; 0…n−1 where none are given.

    Examples
    --------
    >>> check_ids(None, 2).tolist(), check_ids(["a", "b"], 2).tolist()
    ([0, 1], ['a', 'b'])
    >>> check_ids([7, 7], 2)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: ids of gallery must be unique, but 7 occurs at positions 0 and 1; ...
    """
    if ids is None:
        return np.arange(n_items, dtype=np.int64)
    return check_given_ids(ids, n_items, name=name)


def name_items(gallery: Embeddings, ids: Any = None, *, name: str = "gallery") -> Ids:
    """Return the ids of items: the given ones, else those of the gallery's file, else 0…n−1.

    Examples
    --------
    >>> from nnnorm import open_embeddings
    >>> name_items(open_embeddings(np.eye(2))).tolist()
    [0, 1]
    """
    return check_ids(gallery.ids if ids is None else ids, len(gallery), name=name)


def check_kind(ids: Ids, *, strings: bool, name: str) -> None:
    """Raise unless ids are of the kind that the collection has: strings, or whole numbers.

    Examples
    --------
    >>> check_kind(np.array(["a"]), strings=False, name="sqlite-vec photos.db")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the ids of sqlite-vec photos.db are whole numbers; got strings
    """
    if (ids.dtype.kind == "U") != strings:
        kinds = ("strings", "whole numbers")
        has, got = kinds if strings else kinds[::-1]
        raise NNNormError(f"the ids of {name} are {has}; got {got}")


def check_metadata(metadata: Sequence[Metadata] | None, n_items: int) -> Sequence[Metadata] | None:
    """Return metadata, or raise unless there is one mapping per item.

    Examples
    --------
    >>> check_metadata([{"year": 1999}], 2)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: metadata must be one mapping per item, 2; got 1
    """
    if metadata is not None and len(metadata) != n_items:
        raise NNNormError(f"metadata must be one mapping per item, {n_items}; got {len(metadata)}")
    return metadata


def check_positive(ids: Ids, engine: str) -> None:
    """Raise for negative ids, for an engine whose ids are unsigned.

    Examples
    --------
    >>> check_positive(np.array([7, -4]), "qdrant")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: qdrant takes no negative ids; got -4; use ids from 0
    """
    if ids.dtype.kind != "U" and len(ids) and ids.min() < 0:
        raise NNNormError(f"{engine} takes no negative ids; got {ids.min()}; use ids from 0")


def read_json_note(text: Any) -> dict[str, Any] | None:
    """Read a note that nnnorm wrote, from JSON or a mapping; None for anything else.

    Examples
    --------
    >>> read_json_note('{"format": "nnnorm.index/1"}'), read_json_note("photos of 2024")
    ({'format': 'nnnorm.index/1'}, None)
    """
    if isinstance(text, (str, bytes)):
        try:
            text = json.loads(text)
        except (ValueError, RecursionError):
            return None
    is_ours = isinstance(text, dict) and str(text.get("format")).startswith("nnnorm.")
    return text if is_ours else None


def gather_hits(rows: Sequence[Sequence[Hit]], score: Callable[[float], float] = float) -> Found:
    """Turn the hits of each query, as clients return them, into arrays.

    `score` turns the engine's own number into a score. Missing hits have the score ``-inf`` and
    the id −1, or an empty string.

    Examples
    --------
    >>> found = gather_hits([[(5, 0.25, None), (6, 0.5, None)], [(7, 0.0, None)]], lambda d: 1 - d)
    >>> found.ids.tolist(), found.scores.tolist()
    ([[5, 6], [7, -1]], [[0.75, 0.5], [1.0, -inf]])
    """
    strings = any(isinstance(hit[0], str) for row in rows for hit in row)
    has_values = all(hit[2] is not None for row in rows for hit in row)
    shape = len(rows), max((len(row) for row in rows), default=0)

    def fill(column: int, empty: Any, kind: Any) -> Any:  # a longer type is built at each call
        padded = [[hit[column] for hit in row] + [empty] * (shape[1] - len(row)) for row in rows]
        return np.array(padded, dtype=kind).reshape(shape)

    rows = [[(own, score(number), value) for own, number, value in row] for row in rows]
    return Found(
        fill(0, "" if strings else -1, str if strings else np.int64),
        fill(1, -np.inf, np.float32),
        fill(2, 0.0, np.float32) if has_values else None,
    )


def make_items(
    ids: Sequence[Any],
    vectors: Any,
    values: Sequence[float | None],
    metadata: Sequence[Metadata],
) -> Items:
    """Make `Items` of what a client returns; values and metadata may be missing.

    Examples
    --------
    >>> items = make_items([7, 8], [[0.0], [1.0]], [0.5, None], [{}, {}])
    >>> items.ids.tolist(), items.values, items.metadata
    ([7, 8], None, None)
    """
    return Items(
        np.array(ids),
        np.array(vectors, dtype=np.float32),
        None if any(value is None for value in values) else np.array(values, dtype=np.float32),
        list(metadata) if any(metadata) else None,
    )


def join_items(batches: Sequence[Items]) -> Items:
    """Join batches of items, at least one, all with or all without values and metadata.

    Examples
    --------
    >>> one, two = (Items(np.array([own]), np.float32([[own]])) for own in (7, 8))
    >>> join_items([one, two]).ids.tolist()
    [7, 8]
    """
    values = [batch.values for batch in batches if batch.values is not None]
    metadata = [entry for batch in batches for entry in batch.metadata or ()]
    return Items(
        np.concatenate([batch.ids for batch in batches]),
        np.concatenate([batch.vectors for batch in batches]),
        np.concatenate(values) if values else None,
        metadata or None,
    )


def quote_name(name: str) -> str:
    """Quote the name of a table or column for SQL.

    Examples
    --------
    >>> print(quote_name('my "own" photos'))
    "my ""own"" photos"
    """
    return '"' + name.replace('"', '""') + '"'


def uuid_of(name: str) -> str:
    """Return the UUID of an id, for engines that only have those; a UUID stays itself.

    Examples
    --------
    >>> uuid_of("photo/7.jpg")
    'f7154c7c-5584-55d0-9296-ffe7a38ad3a7'
    >>> uuid_of("f7154c7c-5584-55d0-9296-ffe7a38ad3a7")
    'f7154c7c-5584-55d0-9296-ffe7a38ad3a7'
    """
    try:
        is_uuid = str(UUID(name)) == name
    except ValueError:
        is_uuid = False
    return name if is_uuid else str(uuid5(NAMESPACE_URL, f"nnnorm:{name}"))


def check_async_client(store: Store, client: Any) -> None:
    """Raise unless a client is an asynchronous one of the engine of a store.

    Examples
    --------
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> check_async_client(FaissStore(), "client")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: faiss has no asynchronous clients; leave out client=, ...
    """
    wanted = store.async_client_type
    if not wanted:
        raise NNNormError(
            f"{store.engine} has no asynchronous clients; leave out client=, so that the search "
            "runs in a thread"
        )
    if wanted not in [kind.__name__ for kind in type(client).__mro__]:
        raise NNNormError(
            f"the client of an asynchronous search of {store.engine} must be an {wanted}; got "
            f"{type(client).__name__}"
        )


def check_way(way: str, store: Engine | type[Engine]) -> Way:
    """Return `way`, or raise with the ways that this engine supports.

    Examples
    --------
    >>> from nnnorm.index.stores.faiss import FaissStore
    >>> check_way("ip", FaissStore())
    'ip'
    """
    if way not in get_args(Way):
        raise NNNormError(f"way must be one of {', '.join(get_args(Way))}; got {way!r}")
    if way not in store.ways:
        raise NNNormError(
            f"{store.engine} does not support the way {way!r}; it supports {', '.join(store.ways)}"
        )
    return way
