"""`Backend`: the interface of an engine for `CorrectedIndex`.

A backend stores vectors and finds the nearest ones. Every collection has versions. A new version
is filled next to the served one, and `swap` serves it in a single atomic step. Names of versions
are never reused. A new engine is one file in `engines/` and one line in `engines/__init__.py`. Its
base class is in `folder.py`, `sql.py` or `server.py`.
"""

import contextlib
import errno
import os
import re
import secrets
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Self, TypeAlias, get_args, get_type_hints

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import FloatArray
from nnnorm.errors import NNNormError, first_line, hide_secrets, keep_interrupts, show_url
from nnnorm.files import check_regular, check_space, is_disk_full

Ids: TypeAlias = npt.NDArray[Any]  # int64, or str
Pairs: TypeAlias = Sequence[tuple[Any, float]]  # ids and scores of the hits of one query
Metadata: TypeAlias = Mapping[str, Any]
Mode = Literal["augmented", "column"]
Metric = Literal["ip", "cosine"]
Kind = Literal["integer", "float", "boolean", "text"]
BATCH = 1000  # items read from an engine at once
KINDS: dict[type, Kind] = {bool: "boolean", int: "integer", float: "float", str: "text"}
_MOST = 2**31 - 1
_LEAST_SPACE = 2**24  # bytes; with less free space, an engine's errors are due to a full disk


@dataclass(frozen=True, eq=False)
class Items:
    """A batch of items, as an engine stores them."""

    ids: Ids
    vectors: FloatArray
    bias: FloatArray | None
    metadata: list[dict[str, Any]]

    @classmethod
    def read(
        cls, ids: Sequence[Any], vectors: Any, metadata: list[dict[str, Any]], bias: Any = None
    ) -> "Items":
        """Create items from the result of an engine."""
        if all(isinstance(own, int) and not isinstance(own, bool) for own in ids):
            named: Ids = np.array(ids, dtype=np.int64)
        else:
            named = np.array([str(own) for own in ids])
        return cls(named, np.asarray(vectors, dtype=np.float32), bias, metadata)

    @classmethod
    def join(cls, parts: Sequence["Items"]) -> "Items":
        """Join batches; all ids become text if some are."""
        is_text = any(part.ids.dtype.kind == "U" for part in parts)
        return cls(
            np.concatenate([part.ids.astype(str) if is_text else part.ids for part in parts]),
            np.concatenate([part.vectors for part in parts]),
            None if parts[0].bias is None else np.concatenate([part.bias for part in parts]),
            [entry for part in parts for entry in part.metadata],
        )

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[tuple[Any, FloatArray, dict[str, Any]]]:
        return zip(self.ids.tolist(), self.vectors, self.metadata, strict=True)

    def __getitem__(self, part: slice) -> "Items":
        bias = None if self.bias is None else self.bias[part]
        return Items(self.ids[part], self.vectors[part], bias, self.metadata[part])


@dataclass(frozen=True, eq=False)
class Hits:
    """The hits of some queries, best first."""

    ids: Ids
    scores: FloatArray
    metadata: list[list[dict[str, Any]]] | None = None
    confidence: FloatArray | None = None
    parents: Ids | None = None  # the documents of hits that are chunks

    @classmethod
    def read(cls, rows: Sequence[Pairs]) -> "Hits":
        """Create hits from ``(id, score)`` pairs per query."""
        widest = max(map(len, rows), default=0)
        is_text = any(isinstance(own, str) for row in rows for own, _ in row[:1])
        missing = ("" if is_text else -1, -np.inf)
        full = [[*row, *[missing] * (widest - len(row))] for row in rows]
        ids = np.array([own for row in full for own, _ in row], dtype=str if is_text else np.int64)
        scores = np.array([score for row in full for _, score in row], dtype=np.float32)
        return cls(ids.reshape(len(rows), widest), scores.reshape(len(rows), widest))

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[list[tuple[Any, float]]]:
        """Yield a list of (id, score) per query."""
        for row, scores in zip(self.ids.tolist(), self.scores.tolist(), strict=True):
            yield [hit for hit in zip(row, scores, strict=True) if hit[1] > -np.inf]

    def __repr__(self) -> str:
        return f"Hits({len(self):,} queries, k={self.ids.shape[1]})"


@dataclass(frozen=True)
class Layout:
    """The layout of a new version."""

    width: int
    string_ids: bool
    columns: Mapping[str, Kind]
    n_items: int
    sample: FloatArray


def whole(default: int, at_least: int = 1, at_most: int = _MOST) -> Any:
    """Declare an option that is a whole number within bounds."""
    return field(default=default, metadata={"bounds": (at_least, at_most)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Options of an engine, from keywords or a URL; fields are `int`, `str` or `Literal`."""

    @classmethod
    def read(cls, engine: str, given: Mapping[str, Any]) -> Self:
        """Create options, or raise an error about the first invalid one."""
        types, known = get_type_hints(cls), {one.name: one.metadata for one in fields(cls)}
        read = {}
        for name, value in given.items():
            if name not in known:
                has = ", ".join(known) or "no options"
                raise NNNormError(f"{engine} has no option {name!r}; it has {has}")
            read[name] = _read_option(engine, name, value, types[name], known[name].get("bounds"))
        return cls(**read)


@dataclass(frozen=True, kw_only=True)
class GraphOptions(Options):
    """Options of an HNSW graph: `ef` applies to searches, the others to a new index."""

    links: int = whole(32, at_least=2, at_most=512)
    ef_construction: int = whole(200)
    ef: int = whole(128)


def _read_option(engine: str, name: str, value: Any, kind: Any, bounds: Any) -> Any:
    if kind is int:
        expected = "a whole number from {} to {}".format(*bounds)
        if isinstance(value, str) and re.fullmatch("[0-9]{1,12}", value):
            value = int(value)
        is_number = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        is_right = is_number and bounds[0] <= value <= bounds[1]
    else:
        choices = get_args(kind)  # of a Literal
        expected = f"one of {', '.join(choices)}" if choices else "text"
        is_right = value in choices if choices else isinstance(value, str)
    if not is_right:
        raise NNNormError(f"the option {name} of {engine} must be {expected}; got {value!r:.60}")
    return value


class Backend(ABC):
    """One collection in one engine. Nothing is opened before it is needed."""

    engine: ClassVar[str]  # the name in messages
    options_type: ClassVar[type[Options]] = Options
    created_by: ClassVar[tuple[str, ...]] = ()  # the options that apply only to a new index
    mode: Mode = "augmented"
    metric: Metric = "ip"  # of the scores that `search` returns
    filters: ClassVar[str]  # the description of a valid filter, for messages
    is_exact: bool = False  # whether a search compares every item
    has_one_range: bool = False  # whether all coordinates are rounded on one scale
    atomic_writes: ClassVar[bool] = True  # whether `write` is all or nothing
    largest_k: ClassVar[int | None] = None
    key_variable: ClassVar[str] = ""  # the environment variable with the key of a server
    # The built-in errors that the engine's library raises, in addition to its own.
    builtin_errors: ClassVar[tuple[type[Exception], ...]] = (OSError, RuntimeError, ValueError)
    options: Any

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        self.place = os.fspath(place) if isinstance(place, os.PathLike) else place
        # Empty if the caller passed a client, and for a collection in memory.
        self.address = self.place if isinstance(self.place, str) else ""
        self.lock = threading.RLock()
        self.options = self.options_type.read(self.engine, options)
        self.restore_options({})

    def restore_options(self, stored: Mapping[str, Any]) -> None:
        """Use the options that an index was created with."""
        self.options = replace(self.options, **stored)
        self.created = {name: getattr(self.options, name) for name in self.created_by}
        self.configure()

    def configure(self) -> None:
        """Set the class attributes that depend on the options."""
        return None

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.name}>"

    @cached_property
    def name(self) -> str:
        """The engine and its collection, for messages; without passwords."""
        where = show_url(self.address) or ("in memory" if not self.place else "the given client")
        return f"{self.engine} {self.collection + ' of ' if self.collection else ''}{where}"

    @property
    def collection(self) -> str:
        """Name of the index in its database; a folder has none."""
        return getattr(self.options, "table", "") or getattr(self.options, "collection", "")

    # --- versions ---

    @staticmethod
    def name_version(number: int | str) -> str:
        """Name a new version; with the letter, no date of the application looks like it."""
        return f"v{number}_{secrets.choice('abcdef')}{secrets.token_hex(3)[1:]}"

    @abstractmethod
    def served(self) -> str | None:
        """Return the version that is served, or None if there is no index."""

    @abstractmethod
    def versions(self) -> list[str]:
        """Return all versions, including unfinished ones."""

    def is_taken(self) -> bool:
        """Whether something else in the database has this name."""
        return False

    def is_absent(self) -> bool:
        """Whether the file or folder doesn't exist yet, so opening would create it."""
        return False

    @abstractmethod
    def create(self, version: str, layout: Layout) -> None:
        """Create an empty version that isn't served."""

    @abstractmethod
    def finish(self, version: str, config: dict[str, Any]) -> None:
        """Make a filled version durable, and then store its config."""

    @abstractmethod
    def read_config(self, version: str) -> dict[str, Any] | None:
        """Return the config that `finish` stored, or None for an unfinished version."""

    @abstractmethod
    def swap(self, version: str) -> None:
        """Serve this version from now on, in one atomic step."""

    @abstractmethod
    def drop(self, version: str) -> None:
        """Remove a version that isn't served, or what is left of it."""

    # --- items ---

    @contextmanager
    def write(self, version: str) -> Iterator[str]:
        """Yield the version to write to; if `atomic_writes`, all changes are made or none."""
        yield version

    @abstractmethod
    def add(self, version: str, items: Items) -> None:
        """Add items with new ids."""

    @abstractmethod
    def delete(self, version: str, ids: Ids) -> None:
        """Delete items that exist."""

    def upsert(self, version: str, items: Items) -> None:
        """Add items, and replace those that exist."""
        if (there := self.present(version, items.ids)).any():
            self.delete(version, items.ids[there])
        self.add(version, items)

    @abstractmethod
    def lookup(self, version: str, ids: Ids) -> dict[Any, dict[str, Any]]:
        """Return the metadata of existing items, by id."""

    def present(self, version: str, ids: Ids) -> npt.NDArray[np.bool_]:
        """Return which ids exist, shape ``(n_ids,)``."""
        found = self.lookup(version, ids)
        return np.array([own in found for own in ids.tolist()], dtype=bool)

    @abstractmethod
    def count(self, version: str) -> int:
        """Return the number of items."""

    @abstractmethod
    def search(self, version: str, vectors: FloatArray, k: int, filter: Any, weight: float) -> Hits:
        """Find the k best items of each query; `vectors` have shape ``(n_queries, width)``."""

    @abstractmethod
    def scan(self, version: str | None) -> Iterator[Items]:
        """Yield all items of a version; for None, those of the application's own collection."""

    def close(self) -> None:
        """Close the engine, unless you passed its client."""
        return None

    # --- errors and locks ---

    @contextmanager
    def translating(self) -> Iterator[None]:
        """Convert errors of the engine's library to one sentence without passwords."""
        try:
            with keep_interrupts():
                yield
        except (NNNormError, ImportError):
            raise
        except Exception as error:
            is_builtin = type(error).__module__ == "builtins"
            is_own = is_builtin and not isinstance(error, self.builtin_errors)
            if is_own or hasattr(error, "is_of_the_caller"):
                raise
            key = os.environ.get(self.key_variable) if self.key_variable else None
            text = hide_secrets(_quote(error), self.address, key)
            shown = text == _quote(error) and not key and "@" not in self.address
            full = "the disk is full, free some space; " if self._is_full(error) else ""
            raise NNNormError(f"{self.name}: {full}the engine reports: {text:.600}") from (
                error if shown else None
            )

    def _is_full(self, error: Exception) -> bool:
        """Whether an error is due to a full disk; some libraries don't report that."""
        if self.address and "//" not in self.address:
            try:
                check_space(self.address, _LEAST_SPACE)
            except OSError:
                return True
        return is_disk_full(error)

    def missing(self) -> NNNormError:
        """Return the error for a missing version or collection."""
        return NNNormError(f"{self.name}, or this version of it, doesn't exist; open it again")

    def error(self, message: str) -> NNNormError:
        """Return an error that begins with the name of the collection."""
        return NNNormError(f"{self.name} {message}")

    def wrong_filter(self, given: object) -> NNNormError:
        """Return the error for an invalid filter."""
        return NNNormError(f"a filter of {self.engine} must be {self.filters}; got {given!r:.60}")

    def lock_file(self) -> Path | None:
        """Return the file that writers of several processes lock; None for a server."""
        return None

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Let one thread (and one process, if there is a lock file) change the collection."""
        with self.translating(), self.lock, contextlib.ExitStack() as stack:
            path = self.lock_file()
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                check_regular(path)
                if path.is_symlink() and not path.exists():
                    raise NNNormError(f"{path} is a link to a missing file; remove the link")
                _lock(stack.enter_context(open(path, "ab")))
            yield


def _lock(file: Any) -> None:
    """Wait until no other process has locked a file; closing it unlocks it."""
    if sys.platform == "win32":
        import msvcrt

        while True:
            try:
                return msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            except OSError as error:
                if error.errno != errno.EDEADLK:  # EDEADLK: still locked after ten seconds
                    raise
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX)


class ClientBackend(Backend):
    """An engine with a client that is opened on first use and shared by threads."""

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        super().__init__(place, **options)
        self._client: Any = None if isinstance(self.place, str) else self.place
        self._turn = threading.RLock()

    @abstractmethod
    def _connect(self) -> Any:
        """Open the client."""

    @property
    def client(self) -> Any:
        """The engine's own client or connection."""
        with self._turn:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def is_absent(self) -> bool:
        if self._client is not None or not self.address or "://" in self.address:
            return False
        return not Path(self.address).exists()

    def close(self) -> None:
        with self._turn:
            if self._client is not None and isinstance(self.place, str):
                client, self._client = self._client, None
                if hasattr(client, "close"):
                    client.close()


def _quote(error: Exception) -> str:
    message = getattr(error, "message", None)  # in Chroma's errors, a method
    text = message if isinstance(message, str) and message else first_line(error)
    return re.sub(r"\s+", " ", text).strip()


def keep_errors(call: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function of the caller, so `translating` doesn't convert its errors."""

    def called(*args: Any) -> Any:
        try:
            return call(*args)
        except Exception as error:
            error.is_of_the_caller = True  # type: ignore[attr-defined]
            raise

    return called


def chunks(values: Any, size: int) -> Iterator[Any]:
    """Split a sequence into parts of at most `size`."""
    for start in range(0, len(values), size):
        yield values[start : start + size]
