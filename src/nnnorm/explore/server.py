"""The page and its numbers over HTTP, for the person at this machine.

All requests read, none writes. A request is rejected unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters get a 4xx and one sentence. FastAPI
(`pip install 'nnnorm[explore]'`) is imported when an application is made.
"""

import inspect
import ipaddress
import os
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Annotated, Any
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, NNNormWarning, require
from nnnorm.explore.recording import STATIC, make_table
from nnnorm.explore.session import Session, Setting
from nnnorm.explore.views import Views, Which, to_json
from nnnorm.version import __version__

LONGEST_TEXT = 500
_MOST_HITS = 100
_LONGEST_HEADERS = 16_384  # bytes
_MOST_CONNECTIONS = 512
_MOST_SECONDS = 10  # until a connection has sent a whole request
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
_REJECTED = {
    403: {"description": "Another host or origin."},
    422: {"description": "A wrong parameter, with what it should be."},
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
    if name in _LOOPBACK or own in _LOOPBACK:
        return name in _LOOPBACK
    # A name can be made to lead here by its owner; an address can't.
    with suppress(ValueError):
        return bool(ipaddress.ip_address(name))
    return name in (own, socket.gethostname().lower())


class _Files:
    """Pictures and exports, one method per address."""

    def __init__(self, views: Views, respond: Callable[..., Any]) -> None:
        self._views, self._session, self._respond = views, views.session, respond

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
        text = "".join(f"{one}\n" for one in self._session.scan.wait().to_remove)
        return self._attach(text, "outliers.txt", "text/plain")

    def table(self, method: Setting) -> Any:
        """Send the items of the map as parquet, for Embedding Atlas."""
        return self._attach(make_table(self._views, method), "items.parquet")

    def _attach(self, data: Any, name: str, kind: str = "application/octet-stream") -> Any:
        named = {"content-disposition": f'attachment; filename="{name}"'}
        headers = {**named, "cache-control": "no-store"}
        return self._respond(data, media_type=kind, headers=headers)


def make_app(session: Session, host: str = "127.0.0.1") -> Any:
    """Make the ASGI application of a session: the page, its views, pictures and exports."""
    fastapi, responses = require("fastapi", "explore"), require("fastapi.responses", "explore")
    app = fastapi.FastAPI(
        title="nnnorm explore",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        lifespan=_limit_threads,
    )

    async def guard(request: Any, answer: Callable[[Any], Awaitable[Any]]) -> Any:
        reason = _reject(request.headers, host)
        found = await answer(request) if reason is None else fail(403, reason)
        found.headers.update(_HEADERS)
        return found

    def fail(status: int, reason: str) -> Any:
        return responses.JSONResponse({"detail": reason}, status_code=status)

    def explain(_: Any, error: Any) -> Any:
        """Say in one sentence what the first wrong parameter should be."""
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        got = repr(first.get("input"))[:80]
        return fail(422, f"{name}: {first['msg'].lower()}; got {got}")

    app.middleware("http")(guard)
    app.add_exception_handler(NNNormError, lambda _, error: fail(422, str(error)))
    app.add_exception_handler(fastapi.exceptions.RequestValidationError, explain)
    views = Views(session)
    files = _Files(views, responses.Response)
    answers: dict[str, Callable[..., Any]] = {
        **views.paths,
        "picture": files.picture,
        "export/bias": files.bias,
        "export/outliers": files.outliers,
        "export/table": files.table,
    }
    limits = _limit_parameters(fastapi.Query, fastapi.Depends, session)
    for path, answer in answers.items():
        app.add_api_route(
            f"/api/{path}",
            _with_limits(answer, limits, responses),
            responses=_REJECTED,
            response_class=responses.Response,
        )
    for path, page in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_route(path, lambda _, page=page: responses.FileResponse(STATIC / page))
    static = require("fastapi.staticfiles", "explore").StaticFiles
    app.mount("/static", static(directory=STATIC), name="static")
    return app


def _limit_parameters(query: Any, depends: Any, session: Session) -> dict[str, Any]:
    """The types and limits of parameters by their names, as FastAPI reads them."""
    whole = query(ge=0, le=2**31 - 1)
    # `Session.open_method` has the limits of settings, which depend on the data.
    number = Annotated[float | None, query(allow_inf_nan=False)]
    filters = Annotated[list[str], query(max_length=8, description="column=value")]

    def open_setting(
        method: Annotated[
            str, query(description="One of `methods` in /api/about.", max_length=20)
        ] = "nnn",
        reference_k: int | None = None,
        alpha: number = None,
        weight: number = None,
        beta: number = None,
        center: bool | None = None,
    ) -> Setting:
        params = {"reference_k": reference_k, "alpha": alpha, "weight": weight, "beta": beta}
        return session.open_method(method, {**params, "center": center})

    def read_where(where: filters = []) -> dict[str, str]:  # noqa: B006
        for entry in where:
            if "=" not in entry:
                raise NNNormError(f"where must be column=value; got {entry[:80]!r}")
        return dict(entry.split("=", 1) for entry in where)

    def read_items(
        items: Annotated[str, query(pattern=r"^\d{1,9}(,\d{1,9}){0,199}$")],
    ) -> list[int]:
        return [int(item) for item in items.split(",")]

    return {
        "method": Annotated[Any, depends(open_setting)],
        "where": Annotated[Any, depends(read_where)],
        "items": Annotated[Any, depends(read_items)],
        "which": Which,
        "text": Annotated[str | None, query(max_length=LONGEST_TEXT)],
        "query": Annotated[int | None, whole],
        "item": Annotated[int | None, whole],
        "seed": Annotated[int, whole],
        "k": Annotated[int, query(ge=1, le=_MOST_HITS)],
    }


def _with_limits(answer: Callable[..., Any], limits: Mapping[str, Any], responses: Any) -> Any:
    """A function that FastAPI can route to: its parameters checked, its answer as a response."""
    signature = inspect.signature(answer)
    parameters = []
    for one in signature.parameters.values():
        is_required = one.default is one.empty or one.name == "where"
        default = one.empty if is_required else one.default
        annotation = limits[one.name]
        parameters.append(
            one.replace(annotation=annotation, default=default, kind=one.KEYWORD_ONLY)
        )

    def respond(**given: Any) -> Any:
        found = answer(**given)
        if not isinstance(found, dict):
            return found
        return responses.Response(to_json(found), media_type="application/json")

    respond.__name__, respond.__doc__ = answer.__name__, answer.__doc__
    respond.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return respond


@asynccontextmanager
async def _limit_threads(app: Any) -> AsyncIterator[None]:
    """Few threads answer: more than processors wait for each other, and each keeps its memory."""
    limiter = require("anyio.to_thread", "explore").current_default_thread_limiter()
    limiter.total_tokens = max(2, os.cpu_count() or 1) + 4
    yield


# --- serving -------------------------------------------------------------------------------------


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)  # the page shows those of the inputs
        session.start()
        make_server(session, host).run(sockets=[opened])
