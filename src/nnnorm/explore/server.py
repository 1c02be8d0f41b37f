"""The page and its numbers over HTTP, for the person at this machine.

All requests read, none writes. A request is refused unless its Host header names this machine
(against DNS rebinding) and its Origin, if it has one, is the page itself. The page may load nothing
from elsewhere and run no inline script. Wrong parameters get a 4xx and one sentence.
"""

import ipaddress
import json
import logging
import os
import socket
import threading
import warnings
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated, Any, TypeAlias
from urllib.parse import urlsplit

from nnnorm.errors import NNNormError, NNNormWarning, require
from nnnorm.explore.packing import pack
from nnnorm.explore.recording import make_table
from nnnorm.explore.session import MOST_ALPHA, OFFERED, Session
from nnnorm.explore.views import Views, Which
from nnnorm.methods import Method
from nnnorm.version import __version__

_LOG = logging.getLogger("nnnorm.explore")
STATIC = Path(__file__).parent / "static"
LONGEST_TEXT = 500
_MOST_HITS = 100
_N_WORKING = max(2, os.cpu_count() or 1)
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
    """Checks every request before it is answered, and adds the headers of `_HEADERS`.

    Parameters
    ----------
    app : ASGI application
    host : str
        The address that the server listens on.
    """

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
    """Make the ASGI application of a session.

    Parameters
    ----------
    session : Session
    host : str
        The address that the server will listen on.

    Returns
    -------
    ASGI application

    Examples
    --------
    >>> from nnnorm.explore import Material
    >>> from starlette.testclient import TestClient
    >>> from nnnorm import load_shapes, open_embeddings
    >>> rows = open_embeddings(load_shapes().gallery[:64])
    >>> bank = open_embeddings(load_shapes().references[:200])
    >>> asked = open_embeddings(load_shapes().queries[:4])
    >>> session = Session(Material(rows, queries=asked, references=bank, given_references=bank))
    >>> client = TestClient(make_app(session), base_url="http://localhost")
    >>> client.get("/api/about").json()["n_gallery"]
    64
    """
    fastapi = require("fastapi", "explore")
    app = fastapi.FastAPI(
        title="nnnorm explore",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=_limit_threads,
    )
    _add_errors(app, fastapi)
    _add_routes(app, fastapi, Views(session))
    staticfiles = require("fastapi.staticfiles", "explore")
    app.mount("/static", staticfiles.StaticFiles(directory=STATIC), name="static")
    return Guard(app, host)


@asynccontextmanager
async def _limit_threads(app: Any) -> AsyncIterator[None]:
    """Few threads answer: the memory that each has used stays with it."""
    limiter = require("anyio.to_thread", "explore").current_default_thread_limiter()
    limiter.total_tokens = _N_WORKING + 4
    yield


def _add_errors(app: Any, fastapi: Any) -> None:
    responses = require("fastapi.responses", "explore")
    exceptions = require("fastapi.exceptions", "explore")

    async def refuse(request: Any, error: NNNormError) -> Any:
        return responses.JSONResponse({"detail": str(error)}, status_code=422)

    async def explain(request: Any, error: Any) -> Any:
        """Say in one sentence what the first wrong parameter should be."""
        first = error.errors()[0]
        name = ".".join(str(part) for part in first["loc"][1:]) or "the request"
        got = repr(first.get("input"))[:80]
        return responses.JSONResponse(
            {"detail": f"{name}: {first['msg'].lower()}; got {got}"}, status_code=422
        )

    app.add_exception_handler(NNNormError, refuse)
    app.add_exception_handler(exceptions.RequestValidationError, explain)


def _add_routes(app: Any, fastapi: Any, views: Views) -> None:
    responses = require("fastapi.responses", "explore")
    session = views.session
    # More threads than processors would only wait for each other, and each needs memory.
    working = threading.BoundedSemaphore(_N_WORKING)
    query_of = fastapi.Query
    finite: dict[str, Any] = {"allow_inf_nan": False}
    Text = Annotated[str | None, query_of(max_length=LONGEST_TEXT)]  # noqa: N806 - types
    Number = Annotated[int | None, query_of(ge=0, le=2**31 - 1)]  # noqa: N806
    Where = Annotated[list[str], query_of(max_length=8, description="column=value")]  # noqa: N806

    def choose(
        method: Annotated[str, query_of(description=", ".join(OFFERED), max_length=20)] = "nnn",
        reference_k: Annotated[int | None, query_of(ge=1, le=2**31 - 1)] = None,
        alpha: Annotated[float | None, query_of(ge=0, le=MOST_ALPHA, **finite)] = None,
        weight: Annotated[float | None, query_of(ge=0, le=MOST_ALPHA, **finite)] = None,
        beta: Annotated[float | None, query_of(gt=0, le=1000, **finite)] = None,
        center: bool | None = None,
    ) -> Method:
        params = {"reference_k": reference_k, "alpha": alpha, "weight": weight, "beta": beta}
        return session.open_method(method, {**params, "center": center})

    Chosen = Annotated[Any, fastapi.Depends(choose)]  # noqa: N806

    def packed(about: Any, arrays: Any) -> Any:
        return responses.Response(pack(about, arrays), media_type="application/octet-stream")

    def page() -> Any:
        return responses.FileResponse(STATIC / "index.html")

    def docs() -> Any:
        return responses.FileResponse(STATIC / "docs.html")

    def about() -> dict[str, Any]:
        """The data, the methods with their controls, and the filters."""
        return views.about()

    def queries(
        method: Chosen,
        which: Which = "any",
        text: Annotated[str, query_of(max_length=LONGEST_TEXT)] = "",
        seed: Annotated[int, query_of(ge=0, le=2**31 - 1)] = 0,
        k: Annotated[int, query_of(ge=1, le=_MOST_HITS)] = 8,
    ) -> dict[str, Any]:
        """Queries at random: of all, of those a setting wins or loses, or with some words."""
        with working:
            return views.queries(method, text=text, which=which, seed=seed, k=k)

    def search(
        method: Chosen,
        query: Number = None,
        text: Text = None,
        item: Number = None,
        where: Where = [],  # noqa: B006 - FastAPI copies it
        k: Annotated[int, query_of(ge=1, le=_MOST_HITS)] = 12,
    ) -> Any:
        """The first places of one query (a number, a text, or an item), before and after."""
        with working:
            return packed(
                *views.search(
                    method, query=query, text=text, item=item, where=_read_where(where), k=k
                )
            )

    def hubs(method: Chosen, where: Where = []) -> Any:  # noqa: B006
        """How often items come first, before and after, and the worst hubs."""
        with working:
            return packed(*views.hubs(method, _read_where(where)))

    def hub(method: Chosen, item: Annotated[int, query_of(ge=0, le=2**31 - 1)]) -> Any:
        """The queries that an item answered first, by intent, and its near copies."""
        with working:
            return packed(*views.hub(method, item))

    def copies() -> dict[str, Any]:
        """Groups of items that are nearly the same."""
        with working:
            return views.copies()

    def scan() -> dict[str, Any]:
        """The verdicts of `nnnorm scan`, once they are there."""
        return views.scan()

    def quality(method: Chosen) -> dict[str, Any]:
        """R@1, R@5 and R@10 before and after, with intervals."""
        with working:
            return views.quality(method)

    def grid() -> dict[str, Any]:
        """R@1 of a grid of k and α, once it is there."""
        return views.grid()

    def map_places() -> Any:
        """The places of items on the map, once they are there."""
        return packed(*views.map())

    def map_values(method: Chosen, where: Where = []) -> Any:  # noqa: B006
        """What the items of the map are coloured by."""
        with working:
            return packed(*views.map_values(method, _read_where(where)))

    def items(
        items: Annotated[str, query_of(pattern=r"^\d{1,9}(,\d{1,9}){0,199}$")],
    ) -> dict[str, Any]:
        """Id, caption and metadata of some items, by their numbers: 3,1,4."""
        return views.items(map(int, items.split(",")))

    def bank() -> Any:
        """The intents of the bank, its foreignness, and any drift."""
        with working:
            return packed(*views.bank())

    def picture(item: Annotated[int, query_of(ge=0, le=2**31 - 1)]) -> Any:
        """The thumbnail of an item; a placeholder where its picture is broken."""
        if session.thumbnails is None:
            raise fastapi.HTTPException(404, "the items have no pictures; give --images")
        if item >= len(session.gallery):
            raise NNNormError(f"item must be from 0 to {len(session.gallery) - 1}; got {item}")
        with working:
            found = session.thumbnails.get(item)
        # A picture does not change while the explorer runs; a broken one may be put right.
        life = "private, max-age=3600" if found.is_whole else "no-store"
        return responses.Response(
            found.data, media_type=found.media_type, headers={"cache-control": life}
        )

    def save_bias(method: Chosen) -> Any:
        """The bias of a setting, for `nnnorm search --bias`."""
        with working:
            return _attachment(responses, session.save_bias(method), "bias.safetensors")

    def save_quarantine() -> Any:
        """The ids that `nnnorm scan` would quarantine, one per line, for `nnnorm index delete`."""
        text = "".join(f"{one}\n" for one in session.scan.wait().quarantined)
        return _attachment(responses, text.encode(), "quarantine.txt", "text/plain")

    def save_table(method: Chosen) -> Any:
        """The items of the map as parquet, for Embedding Atlas."""
        session.map.wait()  # not within `working`, where others would wait as well
        session.scan.result()
        with working:
            return _attachment(responses, make_table(session, method), "items.parquet")

    refused = {
        403: {"description": "Another host or origin."},
        422: {"description": "A wrong parameter, with what it should be."},
    }
    missing = {404: {"description": "There is no such picture."}}
    add: Callable[..., None] = app.add_api_route
    answers: dict[str, Callable[..., Any]]
    add("/", page, include_in_schema=False)
    add("/docs", docs, include_in_schema=False)
    answers = {
        "about": about,
        "queries": queries,
        "copies": copies,
        "scan": scan,
        "quality": quality,
        "grid": grid,
        "items": items,
    }
    for path, answer in answers.items():
        add(f"/api/{path}", answer, responses=refused)
    binary = responses.Response
    answers = {
        "search": search,
        "hubs": hubs,
        "hub": hub,
        "map": map_places,
        "map/values": map_values,
        "bank": bank,
        "export/bias": save_bias,
        "export/quarantine": save_quarantine,
        "export/table": save_table,
    }
    for path, answer in answers.items():
        add(f"/api/{path}", answer, responses=refused, response_class=binary)
    add("/api/picture", picture, responses=refused | missing, response_class=binary)


def _read_where(where: Sequence[str]) -> dict[str, str]:
    found = {}
    for entry in where:
        name, equals, value = entry.partition("=")
        if not equals:
            raise NNNormError(f"where must be column=value; got {entry[:80]!r}")
        found[name] = value
    return found


def _attachment(
    responses: Any, data: bytes, name: str, media_type: str = "application/octet-stream"
) -> Any:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return responses.Response(data, media_type=media_type, headers=headers)


# --- serving -------------------------------------------------------------------------------------


def listen(host: str = "127.0.0.1", port: int = 8765) -> socket.socket:
    """Open the socket that the explorer listens on; port 0 takes any that is free.

    Parameters
    ----------
    host : str
    port : int

    Returns
    -------
    socket

    Examples
    --------
    >>> with listen(port=0) as opened:
    ...     opened.getsockname()[0]
    '127.0.0.1'
    """
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
    """Answer requests on a socket until the process is interrupted.

    Parameters
    ----------
    session : Session
    opened : socket
        From `listen`.
    host : str
        The address that was asked for.

    Examples
    --------
    >>> serve(Session(demo_material()), listen())  # doctest: +SKIP
    """
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
