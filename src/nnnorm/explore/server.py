"""The page and its numbers over HTTP, for the person at this machine.

All requests read, none writes. A request is rejected unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters get a 4xx and one sentence. FastAPI
(`pip install 'nnnorm[explore]'`) is imported when an application is made.
"""

import inspect
import ipaddress
import json
import os
import socket
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Annotated, Any, NamedTuple, TypeAlias
from urllib.parse import urlsplit

import numpy as np

from nnnorm.errors import NNNormError, NNNormWarning, require
from nnnorm.explore.recording import STATIC, make_table
from nnnorm.explore.session import MOST_ALPHA, Session, Setting
from nnnorm.explore.views import Views, Which, pack
from nnnorm.version import __version__

LONGEST_TEXT = 500
_MOST_HITS = 100
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
    404: {"description": "There is no such picture."},
    422: {"description": "A wrong parameter, with what it should be."},
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
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        if scope["type"] != "http":
            return

        async def send_with_headers(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                extra = [(name.encode(), value.encode()) for name, value in _HEADERS.items()]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        given = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        reason = self._reject({name.lower(): value for name, value in given.items()})
        if reason is None:
            await self._app(scope, receive, send_with_headers)
            return
        headers = [(b"content-type", b"application/json")]
        await send_with_headers({"type": "http.response.start", "status": 403, "headers": headers})
        await send({"type": "http.response.body", "body": json.dumps({"detail": reason}).encode()})

    def _reject(self, headers: dict[str, str]) -> str | None:
        """The reason to reject a request, if there is one."""
        host = headers.get("host", "")
        if not self._is_ours(host):
            shown = repr(host[:100])
            return f"this explorer does not answer for the host {shown}; open what it printed"
        if headers.get("origin") not in (None, f"http://{host}", f"https://{host}"):
            return "this explorer answers its own page only; got a request of another origin"
        is_elsewhere = headers.get("sec-fetch-site") == "cross-site"
        if is_elsewhere and headers.get("sec-fetch-mode") != "navigate":
            return "this explorer answers its own page only; got a request of another site"
        return None

    def _is_ours(self, host: str) -> bool:
        try:
            name = (urlsplit(f"//{host}").hostname or "").lower()
        except ValueError:
            return False
        if name in _LOOPBACK or self._host in _LOOPBACK:
            return name in _LOOPBACK
        # A name can be made to lead here by its owner; an address can't.
        return name in (self._host, socket.gethostname().lower()) or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        return bool(ipaddress.ip_address(name))
    except ValueError:
        return False


# --- addresses -----------------------------------------------------------------------------------


class _File(NamedTuple):
    """Bytes to send; with a name they are saved to a file."""

    data: bytes
    media_type: str = "application/octet-stream"
    name: str | None = None
    cache: str = "no-store"


class _MissingPictureError(NNNormError):
    """There are no pictures."""


class _Files:
    """Pictures and exports, one method per address."""

    def __init__(self, views: Views) -> None:
        self._views, self._session = views, views.session

    def picture(self, item: int) -> _File:
        """Send the thumbnail of an item; a placeholder if its picture is broken."""
        if self._session.thumbnails is None:
            raise _MissingPictureError("the items have no pictures; give --images")
        self._views.items([item])  # raises if there is no such item
        found = self._session.thumbnails.get(item)
        # A picture does not change while the explorer runs; a broken one may be repaired.
        cache = "private, max-age=3600" if found.is_whole else "no-store"
        return _File(found.data, found.media_type, cache=cache)

    def bias(self, method: Setting) -> _File:
        """Send the bias of a setting, for `nnnorm search --bias`."""
        return _File(self._session.save_bias(method), name="bias.safetensors")

    def outliers(self) -> _File:
        """Send the ids that `nnnorm scan` would remove, one per line, for `nnnorm index delete`."""
        text = "".join(f"{one}\n" for one in self._session.scan.wait().to_remove)
        return _File(text.encode(), "text/plain", "outliers.txt")

    def table(self, method: Setting) -> _File:
        """Send the items of the map as parquet, for Embedding Atlas."""
        return _File(make_table(self._views, method), name="items.parquet")


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
    views = Views(session)
    files = _Files(views)
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

    def reject(request: Any, error: NNNormError) -> Any:
        status = 404 if isinstance(error, _MissingPictureError) else 422
        return responses.JSONResponse({"detail": str(error)}, status_code=status)

    def explain(request: Any, error: Any) -> Any:
        """Say in one sentence what the first wrong parameter should be."""
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        got = repr(first.get("input"))[:80]
        return reject(request, NNNormError(f"{name}: {first['msg'].lower()}; got {got}"))

    app.add_exception_handler(NNNormError, reject)
    app.add_exception_handler(fastapi.exceptions.RequestValidationError, explain)
    for path, page in (("/", "index.html"), ("/docs", "docs.html")):
        app.add_route(path, lambda _, page=page: responses.FileResponse(STATIC / page))
    files_of = require("fastapi.staticfiles", "explore").StaticFiles
    app.mount("/static", files_of(directory=STATIC), name="static")
    return Guard(app, host)


def _limit_parameters(query: Any, depends: Any, session: Session) -> dict[str, Any]:
    """The types and limits of parameters by their names, as FastAPI reads them."""
    whole = query(ge=0, le=2**31 - 1)
    finite = {"ge": 0, "allow_inf_nan": False}
    filters = Annotated[list[str], query(max_length=8, description="column=value")]

    def open_setting(
        method: Annotated[
            str, query(description="One of `methods` in /api/about.", max_length=20)
        ] = "nnn",
        reference_k: Annotated[int | None, query(ge=1, le=2**31 - 1)] = None,
        alpha: Annotated[float | None, query(le=MOST_ALPHA, **finite)] = None,
        weight: Annotated[float | None, query(le=1000, **finite)] = None,
        beta: Annotated[float | None, query(le=1000, **finite)] = None,
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
        if isinstance(found, _File):
            headers = {"cache-control": found.cache}
            if found.name is not None:
                headers["content-disposition"] = f'attachment; filename="{found.name}"'
            return responses.Response(found.data, media_type=found.media_type, headers=headers)
        if any(isinstance(value, np.ndarray) for value in found.values()):
            return responses.Response(pack(found), media_type="application/octet-stream")
        return responses.JSONResponse(found)

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
