"""What servers and databases share: address, collection name, client, errors, ids, and the note.

The client is opened when it is first needed. Errors of the engine become one sentence each. The
note about the correction is JSON wherever the engine keeps remarks about a collection.
"""

import json
import os
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.options import ServerOptions
from nnnorm.index.store import Ids, Items, Place, Store, check_kind, read_json_note
from nnnorm.index.urls import check_server, check_user, hide_secrets, show_url

_T = TypeVar("_T")
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
    """

    product: ClassVar[str]
    noun: ClassVar[str] = "collection"
    key_variable: ClassVar[str] = ""

    def __init__(self, place: Place = "", /, *args: Any, **options: Any) -> None:
        super().__init__(place, *args, **options)
        self.address, name = str(place), ""
        check_user(self.engine, self.address)
        if isinstance(self.options, ServerOptions) and self.address.startswith("//"):
            host, _, name = self.address[2:].partition("/")
            self.address = f"http{'s' if self.options.https else ''}://{host}"
        self.collection: str = getattr(self.options, self.noun, "") or name or "items"
        self.is_server = self.address.startswith(("http://", "https://"))
        if self.is_server:
            check_server(self.address)
        self._client: Any = None

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
        return show_url(self.address) or "in memory"

    @property
    def name(self) -> str:
        return f"{self.engine} {self.noun} {self.collection} of {self.where}"

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
        client, self._client = self._client, None
        if client is not None:
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


def make_plain(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dates and the like into strings, so that any other engine can keep them.

    Examples
    --------
    >>> from datetime import date
    >>> make_plain({"taken": date(2024, 5, 6), "year": 2024})
    {'taken': '2024-05-06', 'year': 2024}
    """
    return json.loads(json.dumps(dict(metadata), default=str))


def to_arrow(items: Items, id_name: str, vector_name: str, extra: str, schema: Any = None) -> Any:
    """Make an Arrow table of items, metadata as JSON; `extra` is the extra that brings pyarrow.

    Examples
    --------
    >>> items = Items(np.array([7]), np.float32([[0.5, 1.0]]), np.float32([0.25]))
    >>> to_arrow(items, "id", "embedding", "duckdb").to_pylist()
    [{'id': 7, 'embedding': [0.5, 1.0], 'nnnorm_bias': 0.25, 'metadata': None}]
    """
    arrow = require("pyarrow", extra)
    flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
    described = [json.dumps(entry) for entry in items.metadata_list()]
    columns = {
        id_name: arrow.array(items.ids.tolist()),
        vector_name: arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1]),
        BIAS: arrow.array(items.value_list(), arrow.float32()),
        METADATA: arrow.array(
            [None] * len(items) if items.metadata is None else described, arrow.string()
        ),
    }
    return arrow.table(columns, schema=schema)
