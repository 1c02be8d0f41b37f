"""A connection of psycopg: statements, transactions, and what its snapshot shows.

A connection of the caller stays as it was found: what only reads leaves an idle one idle, and what
is written belongs to the caller's transaction.
"""

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from nnnorm.errors import NNNormError, require
from nnnorm.index.urls import show_url


class Session:
    """The statements of a store on its connection, which threads share and take turns with.

    Parameters
    ----------
    connect : callable
        Returns the open connection.
    lock : RLock
        Held by the thread whose turn it is.
    translating : callable
        Returns a context that turns errors of the engine into one sentence each.
    settings : dict
        What is known of the connection: the breadth of the search that was set ("beam"), and the
        version of pgvector ("version"). Stores of one connection share it.
    """

    def __init__(
        self,
        connect: Callable[[], Any],
        lock: threading.RLock,
        translating: Callable[[], AbstractContextManager[None]],
        settings: dict[str, int],
    ) -> None:
        self._connect, self._lock, self._translating = connect, lock, translating
        self.settings = settings

    def run(self, statement: str, values: Any = None) -> list[tuple[Any, ...]]:
        """Run a statement and return its rows."""
        if statement.startswith("SELECT"):
            with self.reading():
                return self._execute(statement, values)
        return self._execute(statement, values)

    def copy(self, statement: str, rows: Iterable[Any]) -> None:
        """Send rows by a ``COPY … FROM STDIN``."""
        cursor = self._connect().cursor()
        with self._translating(), cursor, cursor.copy(statement) as copy:
            for row in rows:
                copy.write_row(row)

    @contextmanager
    def reading(self) -> Iterator[None]:
        """Leave an idle connection of the caller idle, without locks that make writers wait."""
        if self._connect().autocommit:
            yield
            return
        with self._lock:  # before the look: transactions of other threads are not the caller's
            if not is_idle(self._connect()):
                yield
                return
            with self._translating(), self._connect().transaction():
                yield

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All or nothing, also for threads that share the connection."""
        with self._lock, self._translating():
            if is_idle(self._connect()):  # a transaction of the caller begins, and ends it
                self._execute("SELECT 1", None)
            with self._connect().transaction():
                yield

    def has_snapshot(self) -> bool:
        """Whether a transaction is open that does not see what others have changed since."""
        in_transaction = require("psycopg.pq", "pgvector").TransactionStatus.INTRANS
        if self._connect().info.transaction_status != in_transaction:
            return False
        ((level,),) = self.run("SELECT current_setting('transaction_isolation')")
        return not str(level).startswith("read")

    def version(self) -> int:
        """Version of pgvector: 1000 times the first number, and the second one."""
        known = self.settings.get("version")
        if known is None:
            ((version,),) = self.run("SELECT extversion FROM pg_extension WHERE extname = 'vector'")
            major, minor = (int(part) for part in version.split(".")[:2])
            known = self.settings["version"] = 1000 * major + minor
        return known

    def _execute(self, statement: str, values: Any) -> list[tuple[Any, ...]]:
        with self._lock:
            client = self._connect()
            with self._translating(), client.cursor(row_factory=tuple_rows()) as cursor:
                cursor.execute(statement, values)
                return cursor.fetchall() if cursor.description else []


def tuple_rows() -> Any:
    """Return psycopg's factory of rows as tuples, for connections that make others.

    Examples
    --------
    >>> tuple_rows().__name__
    'tuple_row'
    """
    return require("psycopg.rows", "pgvector").tuple_row


def is_idle(client: Any) -> bool:
    """Whether the next statement would begin a transaction that only the caller ends.

    Examples
    --------
    >>> from types import SimpleNamespace
    >>> is_idle(SimpleNamespace(autocommit=True))
    False
    """
    if client.autocommit:
        return False
    idle = require("psycopg.pq", "pgvector").TransactionStatus.IDLE
    return bool(client.info.transaction_status == idle)


def read_address(address: str) -> dict[str, Any]:
    """Return the parts of what libpq takes as an address.

    Examples
    --------
    >>> read_address("postgresql://me@host/shop")["dbname"]
    'shop'
    """
    psycopg = require("psycopg", "pgvector")
    try:
        known: dict[str, Any] = psycopg.conninfo.conninfo_to_dict(address)
    except (psycopg.Error, ValueError):  # it quotes the address, with its password
        raise NNNormError(
            f"{show_url(address)!r} can't be read as the address of a PostgreSQL server; "
            "expected //user@host:port/database, with special characters of a password "
            "percent-encoded (%2F for /)"
        ) from None
    return known
