"""What an engine must do so that the correction can run inside it: one small class, `Store`.

A store holds vectors under the caller's ids and finds the nearest. It knows nothing of biases:
`corrected.py` extends the vectors, reads the scores and re-ranks, the same for all engines. A new
engine is one file with one subclass, one row in `urls.py`, and one row in the contract tests.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeAlias, get_args
from uuid import NAMESPACE_URL, UUID, uuid5

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError

__all__ = [
    "BATCH",
    "Engine",
    "Facts",
    "Found",
    "Ids",
    "Items",
    "Metadata",
    "Sample",
    "Store",
    "StoreMetric",
    "Way",
    "check_ids",
    "check_kind",
    "check_positive",
    "check_way",
    "pad_rows",
    "quote_name",
    "read_json_note",
    "uuid_of",
]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[Any]  # int64, or str
StoreMetric = Literal["ip", "cosine", "l2"]
Way = Literal["ip", "cosine", "l2", "rerank", "column"]
Metadata: TypeAlias = Mapping[str, Any]

# How many items go to or come from an engine at once, unless the engine wants fewer.
BATCH = 1000


@dataclass(frozen=True)
class Sample:
    """What is coming: how many items, and on demand some of their vectors as they are stored."""

    n_items: int
    vectors: Callable[[], FloatArray]  # shape (at most 65536, width)


@dataclass(frozen=True, eq=False)
class Items:
    """Some items as a store takes them and gives them back.

    Attributes
    ----------
    ids : ndarray, shape (n_items,), int64 or str
    vectors : ndarray, shape (n_items, width), float32
        With the extra coordinates, where the way of serving adds some.
    values : ndarray, shape (n_items,), float32, optional
        The bias as a number beside the vector (ways "rerank" and "column").
    metadata : sequence of mappings, optional
        What else the collection knows of each item.
    """

    ids: Ids
    vectors: FloatArray
    values: FloatArray | None = None
    metadata: Sequence[Metadata] | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def take(self, rows: npt.NDArray[Any]) -> "Items":
        """Only the items at `rows` (positions or a mask)."""
        where = np.arange(len(self))[rows]
        return Items(
            self.ids[where],
            self.vectors[where],
            None if self.values is None else self.values[where],
            None if self.metadata is None else [self.metadata[row] for row in where],
        )


@dataclass(frozen=True, eq=False)
class Found:
    """What an engine found, before any correction is worked out.

    Attributes
    ----------
    ids : ndarray, shape (n_queries, at most k), int64 or str
    scores : ndarray, same shape, float32
        In the store's own metric with the sign turned so that higher is better: the inner product,
        the cosine, or minus the squared distance. ``-inf`` where nothing was found.
    values : ndarray, same shape, float32, optional
        The items' bias, where it is stored beside the vectors.
    """

    ids: Ids
    scores: FloatArray
    values: FloatArray | None = None


@dataclass(frozen=True)
class Facts:
    """What a collection says of itself: width of its vectors, metric, and how many items."""

    width: int
    metric: StoreMetric
    n_items: int


class Engine(ABC):
    """What an engine can do, as far as a recipe must know.

    Class attributes
    ----------------
    engine : str
        Name, as in messages and URLs.
    ways : tuple of Way
        What this engine can serve, the preferred first. "ip", "cosine" and "l2" say that it can
        compare by that metric; "rerank" that `add` keeps `Items.values` and `search` gives them
        back; "column" that `search_column` computes ``s − weight·value`` by itself.
    can_delete, is_graph, is_quantized, keeps_vectors : bool
        Whether `delete` works; whether the search walks a graph (norms must be about equal);
        whether numbers are stored in few bits (the bias is then scaled); and whether a cosine
        collection gives vectors back bit for bit, not their direction. An instance may set its
        own.
    largest_k : int or None
        The most hits that the engine gives at once.
    """

    engine: ClassVar[str]
    ways: tuple[Way, ...]
    can_delete: bool = True
    is_graph: bool = False
    is_quantized: bool = False
    keeps_vectors: bool = True
    largest_k: int | None = None


class Store(Engine):
    """A collection of vectors in one engine. Nothing is touched before it is asked for."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What messages call it: the engine and the collection."""

    @abstractmethod
    def facts(self) -> Facts | None:
        """Describe the collection, or None if there is none of this name."""

    @abstractmethod
    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        """Make an empty collection for whole-number ids, or for strings.

        `sample.n_items` are coming; `sample.vectors()` gives some of them to train on. Never called
        where `facts` is not None.
        """

    def check_new(self, ids: Ids) -> None:
        """Raise for ids that can't go in; asked before anything is made or written."""
        return None

    @abstractmethod
    def add(self, items: Items) -> None:
        """Add items whose ids are not there yet (`present` and `check_new` have been asked)."""

    @abstractmethod
    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Say which of these ids are in the collection, shape ``(n_ids,)``."""

    @abstractmethod
    def delete(self, ids: Ids) -> None:
        """Delete items by id; all of them are there (`present` has been asked)."""

    @abstractmethod
    def search(self, queries: FloatArray, k: int) -> Found:
        """Find the k nearest of each query ``(n_queries, width)``; fewer where there are fewer."""

    def search_column(self, queries: FloatArray, k: int, weight: float) -> Found:
        """Find the k best by ``s(q, r) − weight·value``, computed by the engine (way "column")."""
        raise NotImplementedError

    @abstractmethod
    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        """All items, in an order that is the same each time while nothing changes."""

    @abstractmethod
    def read_note(self) -> dict[str, Any] | None:
        """The note that `write_note` left with the collection, or None."""

    @abstractmethod
    def write_note(self, note: Mapping[str, Any]) -> None:
        """Keep a small JSON note with the collection: how the correction was built in."""

    def traps(self) -> list[str]:
        """What may be wrong with an existing collection, one sentence each, for `verify`."""
        return []

    def save(self) -> None:
        """Make everything durable, for engines that live in this process' memory."""

    def close(self) -> None:
        """Let go of files and connections; nothing is saved by this."""


def check_ids(ids: Any, n_items: int, *, name: str = "gallery") -> Ids:
    """Ids as an int64 or str array with no duplicates; 0…n−1 where there are none.

    Examples
    --------
    >>> check_ids(None, 2).tolist(), check_ids(["a", "b"], 2).tolist()
    ([0, 1], ['a', 'b'])
    >>> check_ids([7, 7], 2)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: ids must be unique, but 7 stands at 0 and at 1; ...
    """
    if ids is None:
        return np.arange(n_items, dtype=np.int64)
    array = np.asarray(ids)
    if array.dtype == object and all(isinstance(value, str) for value in array.flat):
        array = array.astype(str)
    if array.ndim != 1 or len(array) != n_items:
        raise NNNormError(
            f"ids must be one per item, shape ({n_items},) for {name}; got shape {array.shape}"
        )
    if array.dtype.kind not in "iuU":
        raise NNNormError(f"ids must be whole numbers or strings; got {array.dtype}")
    if array.dtype.kind == "u" and n_items and array.max() > np.iinfo(np.int64).max:
        raise NNNormError(f"ids must fit in 64 bits with a sign; got {array.max()}")
    if array.dtype.kind in "iu":
        array = array.astype(np.int64)
    kinds, first, count = np.unique(array, return_index=True, return_counts=True)
    if len(kinds) != n_items:
        twice = int(np.argmax(count > 1))
        places = np.flatnonzero(array == kinds[twice])
        whose = "" if name == "gallery" else f" of {name}"
        raise NNNormError(
            f"ids{whose} must be unique, but {kinds[twice]} stands at {first[twice]} and at "
            f"{places[1]}; give each item its own"
        )
    return array


def check_kind(ids: Ids, *, strings: bool, name: str) -> None:
    """Raise unless ids are of the collection's kind: strings, or whole numbers.

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


def check_positive(ids: Ids, engine: str) -> None:
    """Raise for negative ids, where an engine's own have no sign.

    Examples
    --------
    >>> check_positive(np.array([7, -4]), "qdrant")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: qdrant takes no negative ids; got -4; use others
    """
    if ids.dtype.kind != "U" and len(ids) and ids.min() < 0:
        raise NNNormError(f"{engine} takes no negative ids; got {ids.min()}; use others")


def read_json_note(text: Any) -> dict[str, Any] | None:
    """A note of ours from its JSON (or a ready mapping); None for anything that someone else left.

    Examples
    --------
    >>> read_json_note('{"format": "nnnorm.index/1"}'), read_json_note("photos of 2024")
    ({'format': 'nnnorm.index/1'}, None)
    """
    if isinstance(text, (str, bytes)):
        try:
            text = json.loads(text)
        except ValueError:
            return None
    is_ours = isinstance(text, dict) and str(text.get("format")).startswith("nnnorm.")
    return text if is_ours else None


def pad_rows(
    ids: Sequence[Sequence[Any]],
    scores: Sequence[Sequence[float]],
    values: Sequence[Sequence[float]] | None = None,
) -> Found:
    """Lists of hits, as clients return them, to arrays; shorter ones end in ``-inf``.

    A missing id is −1, or an empty string.

    Examples
    --------
    >>> found = pad_rows([[5, 6], [7]], [[0.5, 0.25], [0.75]])
    >>> found.ids.tolist(), found.scores.tolist()
    ([[5, 6], [7, -1]], [[0.5, 0.25], [0.75, -inf]])
    """
    width = max((len(row) for row in ids), default=0)
    strings = any(isinstance(value, str) for row in ids for value in row)
    nothing: Any = "" if strings else -1
    kind = str if strings else np.int64
    table = [[*row, *[nothing] * (width - len(row))] for row in ids]
    shape = len(ids), width

    def fill(rows: Sequence[Sequence[float]], rest: float) -> FloatArray:
        padded = [[*row, *[rest] * (width - len(row))] for row in rows]
        return np.array(padded, dtype=np.float32).reshape(shape)

    return Found(
        np.array(table, dtype=kind).reshape(shape),
        fill(scores, -np.inf),
        None if values is None else fill(values, 0.0),
    )


def quote_name(name: str) -> str:
    """A table's or column's name as SQL wants it.

    Examples
    --------
    >>> print(quote_name('my "own" photos'))
    "my ""own"" photos"
    """
    return '"' + name.replace('"', '""') + '"'


def uuid_of(name: str) -> str:
    """The id for an engine that only has UUIDs: always the same for a name; a UUID stays itself.

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


def check_way(way: str, store: Engine | type[Engine]) -> Way:
    """Return `way`, or say which ones this engine has.

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
            f"{store.engine} can't serve the way {way!r}; it has {', '.join(store.ways)}"
        )
    return way
