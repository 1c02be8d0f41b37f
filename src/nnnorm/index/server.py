"""Base class of engines with a client, for a server or a folder.

Every version is a collection of its own, ``photos_v2_f10c9a``. The name ``photos`` is an alias of
the served one, or a record that names it.
"""

import json
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, show_url
from nnnorm.index.backend import ClientBackend, Metadata, Options


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """`collection` is the name of the index."""

    collection: str = "items"


class ServerBackend(ClientBackend):
    """An index in a server or a folder."""

    atomic_writes = False

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        if isinstance(place, str) and place.startswith("//"):
            host, _, name = place[2:].partition("/")
            place = f"http://{host}"
            if name:
                options.setdefault("collection", name)
        super().__init__(place, **options)
        if place == "":
            raise NNNormError(
                f"{self.engine} needs a folder, the address of a server, or a client; got none: "
                f"pass one, such as {self.engine}:folder?collection=photos"
            )
        self.is_server = self.address.startswith(("http://", "https://"))
        if self.is_server:
            _check_server(self.address)

    # --- defined by each engine; `name` is that of a collection in the engine ---

    @abstractmethod
    def _list_names(self) -> list[str]:
        """Return the names of all collections."""

    @abstractmethod
    def _served_name(self) -> str | None:
        """Return the name of the served collection, or None."""

    @abstractmethod
    def _write_config(self, name: str, config: dict[str, Any] | None) -> None:
        """Store the config of a version; None removes it."""

    @abstractmethod
    def _read_config(self, name: str) -> Any:
        """Return what `_write_config` stored."""

    @abstractmethod
    def _delete(self, name: str) -> None:
        """Delete a collection."""

    # --- versions ---

    def _name(self, version: str | None) -> str:
        return self.collection if version is None else f"{self.collection}_{version}"

    def _names(self) -> list[str]:
        return [] if self.is_absent() else self._list_names()

    def is_taken(self) -> bool:
        return self.collection in self._names()

    def served(self) -> str | None:
        name = None if self.is_absent() else self._served_name()
        return None if name is None else name.removeprefix(f"{self.collection}_")

    def versions(self) -> list[str]:
        pattern = re.compile(re.escape(self.collection) + r"_(v\d+_(?=\d*[a-f])[0-9a-f]{6})")
        found = (pattern.fullmatch(name) for name in self._names())
        return sorted(one[1] for one in found if one is not None)

    def finish(self, version: str, config: dict[str, Any]) -> None:
        self._write_config(self._name(version), config)

    def read_config(self, version: str) -> dict[str, Any] | None:
        name = self._name(version)
        return self._read_config(name) if name in self._names() else None

    def drop(self, version: str) -> None:
        name = self._name(version)
        if name in self._names():
            # A kill may leave part of a collection; without a config, it is never served.
            self._write_config(name, None)
            self._delete(name)

    def choose_vector(self, names: list[str]) -> str:
        """Return the vector to copy from a collection: the option's, or the only one."""
        asked: str = self.options.vector
        if asked not in names and (asked or len(names) != 1):
            raise NNNormError(f"choose one of the vectors of {self.name} with vector=: {names}")
        return asked or names[0]


def _check_server(address: str) -> None:
    """Raise an error unless an address has a host and a numeric port."""
    try:
        parts = urlsplit(address)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:  # its text may have a part of a password
        is_good = False
    if not is_good:
        raise NNNormError(
            f"{show_url(address)} isn't the address of a server; expected //host:port or "
            "https://host:port, with a port from 1 to 65535"
        )


def split_fields(
    entry: Metadata, is_field: Callable[[str, Any], bool], rounded: type | tuple[()] = ()
) -> dict[str, Any]:
    """Return the fields that an engine can store, and the others as JSON in one more field.

    Values of a type that the engine rounds are stored in both.
    """
    known = {name: value for name, value in entry.items() if is_field(name, value)}
    rest = {
        name: value
        for name, value in entry.items()
        if name not in known or isinstance(value, rounded)
    }
    return known | ({"nnnorm_json": json.dumps(rest)} if rest else {})


def join_fields(fields: Mapping[str, Any] | None) -> dict[str, Any]:
    """Undo `split_fields`; other fields of nnnorm are left out."""
    known = {name: value for name, value in (fields or {}).items() if name[:7] != "nnnorm_"}
    return known | json.loads((fields or {}).get("nnnorm_json") or "{}")
