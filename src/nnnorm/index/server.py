"""Base of the engines that are a server, or a folder that their client opens.

Every version is a collection of its own, ``photos_v2_1f0c9a``. The name ``photos`` is an alias of
the served one, or a record that names it.
"""

import os
import re
import threading
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from nnnorm.errors import NNNormError
from nnnorm.index.backend import Backend
from nnnorm.index.options import Options
from nnnorm.index.urls import is_server, split_server


@dataclass(frozen=True, kw_only=True)
class ServerOptions(Options):
    """`collection` is the index; `https` is for a server that is given as ``//host:port``."""

    collection: str = "items"
    https: bool = False


class ServerBackend(Backend):
    """An index in a server or a folder, through a client that threads share."""

    key_variable: ClassVar[str] = ""  # the environment variable with the key of a server
    atomic_writes = False
    shares_files = False

    def __init__(self, place: Any = "", /, **options: Any) -> None:
        if isinstance(place, str):
            place, name = split_server(place, bool(options.get("https")))
            if name and "collection" in self.options_type.__dataclass_fields__:
                options.setdefault("collection", name)
        super().__init__(place, **options)
        if place == "":
            raise NNNormError(
                f"the place of {self.engine} must be a folder, the address of a server or a "
                f"client; got none: expected {self.engine}:folder?collection=photos"
            )
        self._client: Any = None if isinstance(self.place, str) else self.place
        self._turn = threading.RLock()

    @abstractmethod
    def _connect(self) -> Any:
        """Open the client."""

    @property
    def is_server(self) -> bool:
        """Whether an address of a server was given."""
        return is_server(self.address)

    @property
    def client(self) -> Any:
        """The engine's own client."""
        with self._turn:
            if self._client is None:
                self._client = self._connect()
            return self._client

    def close(self) -> None:
        if self._client is not None and isinstance(self.place, str):
            client, self._client = self._client, None
            client.close()

    def secrets(self) -> list[str]:
        key = os.environ.get(self.key_variable) if self.key_variable else None
        return [key] if key else []

    def _is_absent(self) -> bool:
        """Whether there is no folder yet, which a client would create."""
        if self._client is not None or self.is_server or "://" in self.address:
            return False
        return not Path(self.address).exists()

    @property
    def collection(self) -> str:
        """Name of the index."""
        return str(self.options.collection)

    def _name(self, version: str | None) -> str:
        """Name of the engine's own collection."""
        return self.collection if version is None else f"{self.collection}_{version}"

    def choose_vector(self, names: list[str]) -> str:
        """Return the vector that the option names, or the only one, of a copied collection."""
        asked: str = self.options.vector
        if asked not in names and (asked or len(names) != 1):
            raise NNNormError(f"choose one of the vectors of {self.name} with vector=: {names}")
        return asked or names[0]

    def _list_versions(self, names: list[str]) -> list[str]:
        pattern = re.compile(re.escape(self.collection) + r"_(v\d+_[0-9a-f]{6})")
        found = (pattern.fullmatch(name) for name in names)
        return sorted(one[1] for one in found if one is not None)
