"""What servers and databases share: address, collection name, client, errors, ids, and the note.

The client is opened when it is first needed, or is one that the caller has open already. Errors of
the engine become one sentence each. The note about the correction is JSON wherever the engine keeps
remarks about a collection. `AliasedStore` is for engines with aliases: each generation is a
collection of its own, and the alias names the one that is served.
"""

import copy
import json
import os
import re
import secrets
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line
from nnnorm.files import hide_secrets
from nnnorm.index.options import ServerOptions
from nnnorm.index.store import Ids, Items, Store, check_kind, read_json_note
from nnnorm.index.urls import check_server, check_user, show_url

_T = TypeVar("_T")
_S = TypeVar("_S", bound="DatabaseStore")
# Columns of a collection that nnnorm creates: the bias, and the metadata as JSON.
BIAS, METADATA = "nnnorm_bias", "metadata"


class DatabaseStore(Store):
    """A collection in a server, or in a file or folder that a database library opens.

    Class attributes
    ----------------
    product : str
        Name of the engine in its own documentation, for messages.
    noun : {"collection", "table"}
        What the engine calls a collection; the option that names it.
    key_variable : str
        The environment variable with the key of a server, or nothing.
    client_type : str
        Name of the class of the engine's clients, one of which may be given as the place.
    """

    product: ClassVar[str]
    noun: ClassVar[str] = "collection"
    key_variable: ClassVar[str] = ""
    client_type: ClassVar[str] = ""
    _is_other = False  # whether this is the generation that is not served

    def __init__(self, place: Any = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self._client: Any = None
        self._is_given = not isinstance(place, (str, os.PathLike))
        self._owns_client = not self._is_given
        self.address, name = "", ""
        if not self._is_given:
            self.address = str(place)
        elif self.client_type in [kind.__name__ for kind in type(place).__mro__]:
            self._client = place
        else:
            raise NNNormError(
                f"the place of {self.engine} must be an address, a path or a "
                f"{self.client_type or 'str'}; got {type(place).__name__}"
            )
        check_user(self.engine, self.address)
        if isinstance(self.options, ServerOptions) and self.address.startswith("//"):
            host, _, name = self.address[2:].partition("/")
            self.address = f"http{'s' if self.options.https else ''}://{host}"
        self.collection: str = getattr(self.options, self.noun, "") or name or "items"
        self.is_server = self.address.startswith(("http://", "https://"))
        if self.is_server:
            check_server(self.address)

    # --- what an engine adds ---

    @abstractmethod
    def _connect(self) -> Any:
        """Open the client."""

    @abstractmethod
    def _errors(self) -> tuple[type[Exception], ...]:
        """Return the errors that the engine's library raises."""

    @abstractmethod
    def _has_string_ids(self) -> bool:
        """Whether the ids of the collection are strings."""

    @abstractmethod
    def _find_ids(self, ids: Ids) -> set[Any]:
        """Return those of the ids that the collection has; they are of its kind."""

    @abstractmethod
    def _read_note(self) -> Any:
        """Return the stored note, as JSON or as a mapping, or anything else that is there."""

    @abstractmethod
    def _write_note(self, note: dict[str, Any]) -> None:
        """Store the note."""

    # --- what all of them do ---

    @property
    def where(self) -> str:
        """Address, file or folder in messages."""
        if self._is_given:
            return f"the given {self.client_type}"
        return show_url(self.address) or "in memory"

    @property
    def name(self) -> str:
        which = " (the generation that is not served)" if self._is_other else ""
        return f"{self.engine} {self.noun} {self.collection}{which} of {self.where}"

    @property
    def client(self) -> Any:
        """The engine's own client or connection."""
        if self._client is None:
            try:
                self._client = self._connect()
            except self._errors() as error:
                raise self._unreachable(error) from self._cause(error)
        return self._client

    def close(self) -> None:
        """Close the client, unless it was given; nothing is saved by this."""
        if self._owns_client and self._client is not None:
            client, self._client = self._client, None
            self._disconnect(client)

    def check_new(self, ids: Ids) -> None:
        if self.facts() is not None:
            check_kind(ids, strings=self._has_string_ids(), name=self.name)

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if (ids.dtype.kind == "U") != self._has_string_ids():
            return np.zeros(len(ids), dtype=bool)
        found = self._find_ids(ids)
        return np.array([own in found for own in ids.tolist()], dtype=bool)

    def read_note(self) -> dict[str, Any] | None:
        return read_json_note(self._read_note())

    def write_note(self, note: Mapping[str, Any]) -> None:
        with self._translating():
            self._write_note(dict(note))
        if self.read_note() != dict(note):
            raise NNNormError(
                f"this version of {self.product} does not keep the note about the correction of a "
                f"{self.noun}; use a later one"
            )

    def _disconnect(self, client: Any) -> None:
        client.close()

    def _twin(self: _S) -> _S:
        """Return a store of the other generation, through the same client."""
        twin = copy.copy(self)
        twin._client, twin._owns_client = self.client, False
        twin._is_other = not self._is_other
        return twin

    def _is_absent(self, path: Path) -> bool:
        """Whether a local file is missing, which a client would create."""
        return not self.is_server and self._client is None and not path.exists()

    def _found(self, found: _T | None) -> _T:
        if found is None:
            raise NNNormError(f"there is no {self.name}; check the name, or build it first")
        return found

    def _quote(self, error: Exception) -> str:
        """What the engine's error says, in one line."""
        return first_line(error)

    def _hide(self, text: str) -> str:
        return hide_secrets(text, self.address, os.environ.get(self.key_variable))

    def _cause(self, error: Exception) -> Exception | None:
        """The error as a cause; None where it holds a secret, which a traceback would show."""
        return error if self._hide(str(error)) == str(error) else None

    def _translate(self, error: Exception) -> NNNormError:
        said = self._hide(self._quote(error))
        return NNNormError(f"{self.name}: {self.product} says: {said}")

    def _unreachable(self, error: Exception) -> NNNormError:
        said = self._hide(self._quote(error))
        if self.is_server:
            return NNNormError(
                f"{self.product} can't be reached at {self.where} ({said}); check the address, and "
                "that the server runs"
            )
        return NNNormError(
            f"{self.where} can't be opened by {self.product} ({said}); is another process writing "
            "to it, or is it another kind of file?"
        )

    @contextmanager
    def _translating(self) -> Iterator[None]:
        """Turn the engine's errors into one sentence each."""
        try:
            yield
        except NNNormError:
            raise
        except self._errors() as error:
            raise self._translate(error) from self._cause(error)


class AliasedStore(DatabaseStore):
    """A collection behind an alias of that name, in an engine that moves an alias in one step.

    A generation is a collection with a name of its own that is never used again. An open store
    stays with the generation that it found first: its vectors always belong to the note that was
    read with them. A collection that has the name itself works too, but has no generations.
    """

    _pinned: str = ""  # the generation of this store, once it was looked up

    # --- what an engine adds ---

    @abstractmethod
    def _find_alias(self) -> str | None:
        """Return the collection that the alias of this name stands for."""

    @abstractmethod
    def _point_alias(self, target: str) -> None:
        """Create the alias, or move it, in one step."""

    @abstractmethod
    def _drop_alias(self) -> None:
        """Remove the alias; the collection that it names stays."""

    @abstractmethod
    def _list_collections(self) -> list[str]:
        """Return the names of all collections, without aliases."""

    @abstractmethod
    def _drop_collection(self, name: str) -> None:
        """Remove a collection."""

    def _mark_dropped(self, name: str) -> None:
        """Make a collection unusable before it is removed, where a kill may leave a part of it."""
        return None

    @abstractmethod
    def _is_missing(self) -> bool:
        """Whether there is nothing to connect to yet, such as a file that a client would create."""

    # --- what all of them do ---

    @property
    def actual(self) -> str:
        """Name of the engine's own collection, which differs from the alias."""
        return self._found(self._find())

    def other(self) -> "AliasedStore":
        if self._find() == self.collection:
            raise NNNormError(
                f"{self.name} is a collection of that name, not an alias, so another one can't "
                "take its place in one step; copy it once with nnnorm index export, and refresh "
                "the copy"
            )
        twin = self._twin()
        twin._forget()
        return twin

    def mark(self) -> object:
        """The generation that this store stays with, until it exchanges both itself."""
        return self._pinned

    def exchange(self) -> None:
        self.check_served()
        following = self._found(self.other()._find())
        with self._translating():
            self._point_alias(following)
        self._forget()

    def drop(self) -> None:
        if self._is_missing():
            return
        with self._translating():
            names = [self.collection] if self._is_plain() else self._generations()
            if self._is_other:
                names = [name for name in names if name != self._find_alias()]
            elif self._find_alias() is not None:
                self._drop_alias()
            for name in names:
                self._mark_dropped(name)
                self._drop_collection(name)
        self._forget()

    def close(self) -> None:
        super().close()
        self._forget()

    def _forget(self) -> None:
        """Look everything up again when it is next needed."""
        self._pinned = ""

    def _find(self) -> str | None:
        found = self._pinned  # once: another thread may forget it
        if found:
            return found
        if self._is_missing():
            return None
        with self._translating():
            served = self._find_alias()
            if self._is_other:
                others = [name for name in self._generations() if name != served]
                found = others[-1] if others else ""
            elif served is not None:
                found = served
            elif self._is_plain():
                found = self.collection
        self._pinned = found
        return found or None

    def _new_generation(self) -> str:
        """Return the name of a generation to create; call `_serve` when it is there."""
        with self._translating():
            if not self._is_other and self._find_alias() is None:
                for name in self._generations():  # of a build that was killed before it was named
                    self._drop_collection(name)
        return f"{self.collection}_nnnorm_{secrets.token_hex(4)}"

    def _serve(self, name: str) -> None:
        if not self._is_other:
            self._point_alias(name)
        self._pinned = name

    def _generations(self) -> list[str]:
        pattern = re.compile(re.escape(self.collection) + "_nnnorm_[0-9a-f]{8}")
        return sorted(name for name in self._list_collections() if pattern.fullmatch(name))

    def _is_plain(self) -> bool:
        return self.collection in self._list_collections()

    def _translate(self, error: Exception) -> NNNormError:
        if self._pinned and self._is_gone():
            return NNNormError(
                f"{self.name} was refreshed again since it was opened, and the generation that it "
                "had then is removed; open it again"
            )
        return super()._translate(error)

    def _is_gone(self) -> bool:
        try:
            return self._pinned not in self._list_collections()
        except self._errors():
            return False

    def check_served(self) -> None:
        """Raise before a write to a generation that is not served any more."""
        if self._is_other or not self._pinned or self._pinned == self.collection:
            return
        with self._translating():
            served = self._find_alias()
        if served != self._pinned:
            raise NNNormError(
                f"{self.name} was refreshed or rolled back since it was opened; open it again, so "
                "that nothing is written to the generation that is not served"
            )


class Entry(dict[str, Any]):
    """The metadata of an item, with its other vectors, which only the same engine keeps.

    Examples
    --------
    >>> entry = Entry({"year": 1999}, {"sound": [0.5, 1.0]})
    >>> entry, entry.vectors
    ({'year': 1999}, {'sound': [0.5, 1.0]})
    """

    def __init__(self, metadata: Mapping[str, Any], vectors: Mapping[str, Any]) -> None:
        super().__init__(metadata)
        self.vectors = dict(vectors)

    def __bool__(self) -> bool:
        return bool(len(self) or self.vectors)


def other_vectors(items: Items) -> list[dict[str, Any]]:
    """Return the other vectors of each item, as its engine has them.

    Examples
    --------
    >>> items = Items(np.array([7]), np.float32([[1.0]]), None, [Entry({}, {"sound": [0.5]})])
    >>> other_vectors(items)
    [{'sound': [0.5]}]
    """
    return [getattr(entry, "vectors", {}) for entry in items.metadata or [{}] * len(items)]


def read_filter(filter: Any, what: str) -> Any:
    """Read a filter that is written as JSON, as on the command line; others stay as they are.

    Examples
    --------
    >>> read_filter('{"year": 1999}', "a where of Chroma")
    {'year': 1999}
    >>> read_filter("7", "a where of Chroma")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the filter must be a where of Chroma; got '7'
    """
    if not isinstance(filter, str):
        return filter
    try:
        found = json.loads(filter)
    except (ValueError, RecursionError) as error:
        raise NNNormError(
            f"the filter must be {what}; got {filter!r} ({first_line(error)})"
        ) from error
    if not isinstance(found, dict):
        raise NNNormError(f"the filter must be {what}; got {filter!r}")
    return found


def make_plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dates and the like into strings, so that any other engine can keep them.

    Examples
    --------
    >>> from datetime import date
    >>> make_plain({"taken": date(2024, 5, 6), "year": 2024})
    {'taken': '2024-05-06', 'year': 2024}
    """
    return json.loads(json.dumps(dict(metadata), default=str))
