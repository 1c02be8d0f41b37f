"""The page and its numbers over HTTP, for the person at this machine.

All requests read, none writes. A request is refused unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters get a 4xx and one sentence.
"""

import ipaddress
import json
import logging
import socket
import warnings
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, NNNormWarning, require
from nnnorm.explore.session import Session

_LOG = logging.getLogger("nnnorm.explore")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}
_Scope: TypeAlias = dict[str, Any]
_Receive: TypeAlias = Callable[[], Awaitable[dict[str, Any]]]
_Send: TypeAlias = Callable[[dict[str, Any]], Awaitable[None]]


class Guard:
    """Checks every request before it is answered, and adds the headers of `_HEADERS`."""

    def __init__(self, app: Any, host: str) -> None:
        self._app, self._host = app, host.strip("[]")

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        given = {
            name.decode("latin-1").lower(): value.decode("latin-1")
            for name, value in scope["headers"]
        }
        refused = self._refuse(given)

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        if refused is None:
            await self._app(scope, receive, send_with_headers)
            return
        body = json.dumps({"detail": refused}).encode()
        headers = [(b"content-type", b"application/json")]
        await send_with_headers({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refuse(self, headers: dict[str, str]) -> str | None:
        """The reason to refuse a request, if there is one."""
        host = headers.get("host", "")
        if not self._is_ours(_host_name(host)):
            shown = repr(host[:100])
            return f"this explorer does not answer for the host {shown}; open what it printed"
        origin = headers.get("origin")
        if origin is not None and origin not in (f"http://{host}", f"https://{host}"):
            return "this explorer answers its own page only; got a request of another origin"
        if (
            headers.get("sec-fetch-site") == "cross-site"
            and headers.get("sec-fetch-mode") != "navigate"
        ):
            return "this explorer answers its own page only; got a request of another site"
        return None

    def _is_ours(self, name: str) -> bool:
        if name in _LOOPBACK:
            return True
        if self._host in _LOOPBACK:
            return False
        # A name can be made to lead here by its owner; an address can't.
        return name == self._host or _is_address(name) or name == socket.gethostname().lower()


def _host_name(host: str) -> str:
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def make_app(session: Session, host: str = "127.0.0.1") -> Any:
    """Make the ASGI application of a session."""
    from nnnorm.explore.routes import make_api  # needs the extra

    return Guard(make_api(session), host)


# --- serving -------------------------------------------------------------------------------------


def listen(host: str = "127.0.0.1", port: int = 8765) -> socket.socket:
    """Open the socket that the explorer listens on; port 0 takes any that is free."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        opened = socket.socket(family, socket.SOCK_STREAM)
        try:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            opened.bind(address)
            opened.listen(128)
        except OSError:
            opened.close()
            raise
    except OSError as error:
        raise NNNormError(
            f"can't listen on {host}, port {port} ({error.strerror or error}); is another explorer "
            "running there? Give another --port, or 0 for any that is free"
        ) from error
    return opened


def serve(session: Session, opened: socket.socket, host: str = "127.0.0.1") -> None:
    """Answer requests on a socket until the process is interrupted."""
    uvicorn = require("uvicorn", "explore")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)  # the page shows those of the inputs
        config = uvicorn.Config(
            make_app(session, host),
            log_level="warning",
            server_header=False,
            limit_concurrency=512,
            timeout_graceful_shutdown=2,
        )
        session.start()
        uvicorn.Server(config).run(sockets=[opened])
