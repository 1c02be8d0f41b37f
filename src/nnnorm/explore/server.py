"""The explorer's page and data over HTTP, on this machine.

All requests read, none writes. A request is rejected unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters return a 4xx status with one sentence.
Starlette (`pip install 'nnnorm[explore]'`) is imported when an application is made.
"""

import inspect
import ipaddress
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Any, get_args
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, require
from nnnorm.explore.pictures import PLACEHOLDER
from nnnorm.explore.recording import STATIC
from nnnorm.explore.session import CONTROLS, Session, Setting
from nnnorm.explore.views import Views, Which, to_json

_LONGEST_HEADERS = 16_384  # bytes
_MOST_SECONDS = 10  # that a connection is kept without a whole request
# Beyond these, those without a whole request are closed at once; macOS lets a process open 256.
_MOST_CONNECTIONS = 100
LOOPBACK = ("localhost", "127.0.0.1", "::1")
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


def _reject(headers: Mapping[str, str], own: str) -> str | None:
    """Return the reason to reject a request, if any."""
    host = headers.get("host", "")
    if not _is_ours(host, own.strip("[]")):
        shown = repr(host[:100])
        return f"this explorer doesn't serve the host {shown}; open the URL that it printed"
    is_own = headers.get("origin") in (None, f"http://{host}", f"https://{host}")
    is_shown = headers.get("sec-fetch-mode") == "navigate"
    if not is_own or (headers.get("sec-fetch-site") == "cross-site" and not is_shown):
        return "this explorer only accepts requests from its own page; got another site's"
    if "websocket" in headers.get("upgrade", "").lower():
        return "this explorer only accepts plain requests; got a WebSocket"
    if sum(map(len, (*headers, *headers.values()))) > _LONGEST_HEADERS:
        return f"this explorer accepts headers of up to {_LONGEST_HEADERS:,} characters; got more"
    return None


def _is_ours(host: str, own: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in LOOPBACK or own in LOOPBACK:
        return name in LOOPBACK
    # Anyone can point a host name here, but not an address.
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in (own, socket.gethostname().lower())


def make_app(session: Session, host: str = "127.0.0.1") -> Any:
    """Create the ASGI application of a session: the page, its views, pictures and exports."""
    require("starlette", "explore")
    from starlette import applications, middleware, responses, routing, staticfiles
    from starlette.middleware.base import BaseHTTPMiddleware

    views = Views(session)

    async def guard(request: Any, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        reason = _reject(request.headers, host)
        found = await answer(request) if reason is None else fail(403, reason)
        found.headers.update(_HEADERS)
        return found

    def fail(status: int, reason: str) -> Any:
        return responses.JSONResponse({"detail": reason}, status_code=status)

    def route(path: str, view: Callable[..., Any]) -> Any:
        def answer(request: Any) -> Any:
            found = view(**read_parameters(view, request.query_params, session))
            if not isinstance(found, dict):
                return found
            return responses.Response(to_json(found), media_type="application/json")

        return routing.Route(f"/api/{path}", answer)

    def picture(item: int) -> Any:
        """Send the thumbnail of an item; a placeholder if its picture is broken."""
        if session.thumbnails is None:
            raise NNNormError("the items have no pictures; pass --images")
        views.items([item])  # raises if there is no such item
        data = session.thumbnails.get(item)
        if data is None:  # the picture may be repaired
            uncached = {"cache-control": "no-store"}
            return responses.Response(PLACEHOLDER, media_type="image/svg+xml", headers=uncached)
        kind = "image/png" if data.startswith(b"\x89PNG") else "image/jpeg"
        cache = {"cache-control": "private, max-age=3600"}  # it doesn't change while this runs
        return responses.Response(data, media_type=kind, headers=cache)

    def bias(method: Setting) -> Any:
        """Send the bias of a setting, for `nnnorm search --bias`."""
        return attach(session.save_bias(method), "bias.safetensors", "application/octet-stream")

    def outliers() -> Any:
        """Send the ids that `nnnorm scan` would remove, one per line, for `nnnorm index delete`."""
        text = "".join(f"{one}\n" for one in session.scan.result().to_remove)
        return attach(text, "outliers.txt", "text/plain")

    def attach(data: bytes | str, name: str, kind: str) -> Any:
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        headers["cache-control"] = "no-store"
        return responses.Response(data, media_type=kind, headers=headers)

    files: dict[str, Callable[..., Any]]
    files = {"picture": picture, "export/bias": bias, "export/outliers": outliers}
    return applications.Starlette(
        routes=[
            *(route(path, view) for path, view in (views.paths | files).items()),
            routing.Route("/", lambda _: responses.FileResponse(STATIC / "index.html")),
            routing.Mount("/static", staticfiles.StaticFiles(directory=STATIC)),
        ],
        middleware=[middleware.Middleware(BaseHTTPMiddleware, dispatch=guard)],
        exception_handlers={NNNormError: lambda _, error: fail(422, str(error))},
        lifespan=_limit_threads,
    )


# --- parameters ----------------------------------------------------------------------------------


_WHOLE = (r"[0-9]{1,9}", int, "a whole number from 0 to 999,999,999")
_NUMBER = (r"[0-9]{1,9}(\.[0-9]+)?(e-[0-9]{1,2})?", float, "a number")
# Parameters of views: how they are written, how they are read, and what they must be.
_PARAMETERS: dict[str, tuple[str, Callable[[str], Any], str]] = {
    **dict.fromkeys(("query", "item", "seed", "reference_k"), _WHOLE),
    **dict.fromkeys(("alpha", "weight", "beta"), _NUMBER),
    "k": (r"[1-9][0-9]?|100", int, "a whole number from 1 to 100"),
    "center": ("true|false", "true".__eq__, "true or false"),
    "which": ("|".join(get_args(Which)), str, f"one of {', '.join(get_args(Which))}"),
    "text": (r"(?s).{0,500}", str, "at most 500 characters"),
    "items": (
        r"[0-9]{1,9}(,[0-9]{1,9}){0,199}",
        lambda text: [int(item) for item in text.split(",")],
        "up to 200 numbers with commas",
    ),
    "where": (r"(?s)[^=]+=.*", lambda text: text.split("=", 1), "column=value"),
}


def read_parameters(view: Callable[..., Any], given: Any, session: Session) -> dict[str, Any]:
    """Read the parameters of a view from those of a request, each checked."""
    found: dict[str, Any] = {}
    for name, one in inspect.signature(view).parameters.items():
        if name == "method":  # `Session.open_method` has the limits, which depend on the data
            params = {knob: _read(knob, given[knob]) for knob in CONTROLS & given.keys()}
            found[name] = session.open_method(given.get(name, "nnn")[:80], params)
        elif name == "where":
            found[name] = dict(_read(name, entry) for entry in given.getlist(name))
        elif name in given:
            found[name] = _read(name, given[name])
        elif one.default is one.empty:
            raise NNNormError(f"the parameter {name} is missing")
    return found


def _read(name: str, text: str) -> Any:
    pattern, read, expected = _PARAMETERS[name]
    if not re.fullmatch(pattern, text):
        raise NNNormError(f"{name} must be {expected}; got {text[:80]!r}")
    return read(text)


# --- serving -------------------------------------------------------------------------------------


@asynccontextmanager
async def _limit_threads(app: Any) -> AsyncIterator[None]:
    """Use few threads: more than the number of cores would only wait and use memory."""
    limiter = require("anyio.to_thread", "explore").current_default_thread_limiter()
    limiter.total_tokens = max(2, os.cpu_count() or 1) + 4
    yield


def listen(host: str = "127.0.0.1", port: int = 8765) -> socket.socket:
    """Open the socket that the explorer listens on; port 0 takes any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = str(error.strerror or error).partition(" (")[0]
        raise NNNormError(
            f"can't listen on {host}, port {port} ({reason}); is another explorer "
            "running there? Give another --port, or 0 for any that is free"
        ) from error


def make_server(session: Session, host: str = "127.0.0.1") -> Any:
    """Create the server of a session, with limits on requests and connections."""
    uvicorn = require("uvicorn", "explore")
    protocol: Any = require("uvicorn.protocols.http.h11_impl", "explore").H11Protocol

    class Protocol(protocol):  # type: ignore[misc]
        """HTTP that closes idle connections."""

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self.loop.call_later(_MOST_SECONDS, self._watch)
            others = self.connections - {self}
            if len(others) >= _MOST_CONNECTIONS:
                for other in others:
                    other.close_if_waiting()
            busy = [one for one in others if not one.transport.is_closing()]
            if len(busy) >= _MOST_CONNECTIONS:
                for other in busy:  # they don't read their answers
                    other.transport.abort()

        def _watch(self) -> None:
            self.close_if_waiting()
            if not self.transport.is_closing():  # nor closed by the other side
                self.loop.call_later(_MOST_SECONDS, self._watch)

        def close_if_waiting(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.close()

    options = {"http": Protocol, "h11_max_incomplete_event_size": _LONGEST_HEADERS, "ws": "none"}
    options |= {"log_level": "error", "server_header": False, "timeout_graceful_shutdown": 2}
    return uvicorn.Server(uvicorn.Config(make_app(session, host), **options))


def serve(session: Session, opened: socket.socket, host: str = "127.0.0.1") -> None:
    """Answer requests on a socket until the process is interrupted."""
    make_server(session, host).run(sockets=[opened])
