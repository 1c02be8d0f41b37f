"""The page and its numbers over HTTP, for the person at this machine.

All requests read, none writes. A request is rejected unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters get a 4xx and one sentence.
Starlette (`pip install 'nnnorm[explore]'`) is imported when an application is made.
"""

import inspect
import ipaddress
import math
import os
import re
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Any, get_args
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, require
from nnnorm.explore.recording import STATIC
from nnnorm.explore.session import CONTROLS, Session, Setting
from nnnorm.explore.views import Views, Which, to_json

LONGEST_TEXT = 500
_MOST_HITS = 100
_LONGEST_HEADERS = 16_384  # bytes
_MOST_CONNECTIONS = 512
_MOST_SECONDS = 10  # until a connection has sent a whole request
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
    """The reason to reject a request, if there is one."""
    host = headers.get("host", "")
    if not _is_ours(host, own.strip("[]")):
        shown = repr(host[:100])
        return f"this explorer does not answer for the host {shown}; open what it printed"
    if headers.get("origin") not in (None, f"http://{host}", f"https://{host}"):
        return "this explorer answers its own page only; got a request of another origin"
    is_elsewhere = headers.get("sec-fetch-site") == "cross-site"
    if is_elsewhere and headers.get("sec-fetch-mode") != "navigate":
        return "this explorer answers its own page only; got a request of another site"
    if headers.get("upgrade", "").lower() == "websocket":
        return "this explorer answers plain requests only; got a WebSocket"
    return None


def _is_ours(host: str, own: str) -> bool:
    try:
        name = (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return False
    if name in LOOPBACK or own in LOOPBACK:
        return name in LOOPBACK
    # A name can be made to lead here by its owner; an address can't.
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in (own, socket.gethostname().lower())


class _Files:
    """Pictures and exports, one method per address."""

    def __init__(self, views: Views, respond: Callable[..., Any]) -> None:
        self._views, self._session, self._respond = views, views.session, respond

    @property
    def paths(self) -> dict[str, Callable[..., Any]]:
        """The files by the path that the page asks for."""
        return {
            "picture": self.picture,
            "export/bias": self.bias,
            "export/outliers": self.outliers,
        }

    def picture(self, item: int) -> Any:
        """Send the thumbnail of an item; a placeholder if its picture is broken."""
        if self._session.thumbnails is None:
            raise NNNormError("the items have no pictures; pass --images")
        self._views.items([item])  # raises if there is no such item
        found = self._session.thumbnails.get(item)
        # A picture does not change while the explorer runs; a broken one may be repaired.
        cache = "private, max-age=3600" if found.is_whole else "no-store"
        headers = {"cache-control": cache}
        return self._respond(found.data, media_type=found.media_type, headers=headers)

    def bias(self, method: Setting) -> Any:
        """Send the bias of a setting, for `nnnorm search --bias`."""
        return self._attach(self._session.save_bias(method), "bias.safetensors")

    def outliers(self) -> Any:
        """Send the ids that `nnnorm scan` would remove, one per line, for `nnnorm index delete`."""
        text = "".join(f"{one}\n" for one in self._session.scan.result().to_remove)
        return self._attach(text, "outliers.txt", "text/plain")

    def _attach(self, data: Any, name: str, kind: str = "application/octet-stream") -> Any:
        named = {"content-disposition": f'attachment; filename="{name}"'}
        headers = {**named, "cache-control": "no-store"}
        return self._respond(data, media_type=kind, headers=headers)


def make_app(session: Session, host: str = "127.0.0.1") -> Any:
    """Make the ASGI application of a session: the page, its views, pictures and exports."""
    responses, routing = (
        require(f"starlette.{name}", "explore") for name in ("responses", "routing")
    )
    middleware = require("starlette.middleware", "explore").Middleware
    base = require("starlette.middleware.base", "explore").BaseHTTPMiddleware

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

    views = Views(session)
    files = _Files(views, responses.Response)
    static = require("starlette.staticfiles", "explore").StaticFiles(directory=STATIC)
    return require("starlette.applications", "explore").Starlette(
        routes=[
            *(route(path, view) for path, view in (views.paths | files.paths).items()),
            routing.Route("/", lambda _: responses.FileResponse(STATIC / "index.html")),
            routing.Mount("/static", static),
        ],
        middleware=[middleware(base, dispatch=guard)],
        exception_handlers={NNNormError: lambda _, error: fail(422, str(error))},
        lifespan=_limit_threads,
    )


# --- parameters ----------------------------------------------------------------------------------


def read_parameters(view: Callable[..., Any], given: Any, session: Session) -> dict[str, Any]:
    """Read the parameters of a view from those of a request, each checked."""
    found: dict[str, Any] = {}
    for name, one in inspect.signature(view).parameters.items():
        if name == "method":  # `Session.open_method` has the limits, which depend on the data
            params = {knob: _READERS[knob](knob, given[knob]) for knob in CONTROLS & given.keys()}
            found[name] = session.open_method(given.get(name, "nnn")[:80], params)
        elif name == "where":
            found[name] = dict(_read_filter(entry) for entry in given.getlist(name))
        elif name in given:
            found[name] = _READERS[name](name, given[name])
        elif one.default is one.empty:
            raise NNNormError(f"the parameter {name} is missing")
    return found


def _read_filter(entry: str) -> tuple[str, str]:
    column, equals, value = entry.partition("=")
    if not equals:
        raise NNNormError(f"where must be column=value; got {entry[:80]!r}")
    return column, value


def _read_whole(name: str, text: str, low: int = 0, high: int = 2**31 - 1) -> int:
    if not re.fullmatch("[0-9]{1,10}", text) or not low <= int(text) <= high:
        raise NNNormError(f"{name} must be a whole number from {low} to {high}; got {text[:80]!r}")
    return int(text)


def _read_number(name: str, text: str) -> float:
    with suppress(ValueError):
        if math.isfinite(value := float(text)):
            return value
    raise NNNormError(f"{name} must be a number; got {text[:80]!r}")


def _read_word(name: str, text: str, words: Sequence[str]) -> str:
    if text not in words:
        raise NNNormError(f"{name} must be one of {', '.join(words)}; got {text[:80]!r}")
    return text


def _read_text(name: str, text: str) -> str:
    if len(text) > LONGEST_TEXT:
        raise NNNormError(f"{name} must have at most {LONGEST_TEXT} characters; got {len(text)}")
    return text


def _read_items(name: str, text: str) -> list[int]:
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9}){0,199}", text):
        raise NNNormError(f"{name} must be up to 200 numbers with commas; got {text[:80]!r}")
    return [int(item) for item in text.split(",")]


_READERS: dict[str, Callable[[str, str], Any]] = {
    "query": _read_whole,
    "item": _read_whole,
    "seed": _read_whole,
    "k": partial(_read_whole, low=1, high=_MOST_HITS),
    "reference_k": _read_whole,
    **dict.fromkeys(("alpha", "weight", "beta"), _read_number),
    "center": lambda name, text: _read_word(name, text, ("true", "false")) == "true",
    "which": partial(_read_word, words=get_args(Which)),
    "text": _read_text,
    "items": _read_items,
}


# --- serving -------------------------------------------------------------------------------------


@asynccontextmanager
async def _limit_threads(app: Any) -> AsyncIterator[None]:
    """Few threads answer: more than processors wait for each other, and each keeps its memory."""
    limiter = require("anyio.to_thread", "explore").current_default_thread_limiter()
    limiter.total_tokens = max(2, os.cpu_count() or 1) + 4
    yield


def listen(host: str = "127.0.0.1", port: int = 8765) -> socket.socket:
    """Open the socket that the explorer listens on; port 0 takes any that is free."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        raise NNNormError(
            f"can't listen on {host}, port {port} ({error.strerror or error}); is another explorer "
            "running there? Give another --port, or 0 for any that is free"
        ) from error


def make_server(session: Session, host: str = "127.0.0.1") -> Any:
    """Make the server of a session, with limits for what a client may send and hold open."""
    uvicorn = require("uvicorn", "explore")
    config = uvicorn.Config(
        make_app(session, host),
        http=_make_protocol(),
        h11_max_incomplete_event_size=_LONGEST_HEADERS,
        limit_concurrency=_MOST_CONNECTIONS,
        ws="none",
        log_level="error",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config)


def _make_protocol() -> Any:
    """HTTP that closes connections without a whole request: after a while, or to make room."""
    protocol: Any = require("uvicorn.protocols.http.h11_impl", "explore").H11Protocol
    waiting: dict[Any, Any] = {}  # connections and their timers, the oldest first

    class Protocol(protocol):  # type: ignore[misc]
        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._watch()
            while waiting and len(self.connections) >= _MOST_CONNECTIONS:
                next(iter(waiting)).leave()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            self._watch()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._watch()

        def connection_lost(self, error: Exception | None) -> None:
            super().connection_lost(error)
            self._stop()

        def _watch(self) -> None:
            if self.cycle is not None and not self.cycle.response_complete:
                self._stop()
            elif self not in waiting:
                waiting[self] = self.loop.call_later(_MOST_SECONDS, self.leave)

        def _stop(self) -> None:
            if (timer := waiting.pop(self, None)) is not None:
                timer.cancel()

        def leave(self) -> None:
            self._stop()
            self.connections.discard(self)  # at once: others may be counted before it is closed
            self.transport.close()

    return Protocol


def serve(session: Session, opened: socket.socket, host: str = "127.0.0.1") -> None:
    """Answer requests on a socket until the process is interrupted."""
    make_server(session, host).run(sockets=[opened])
