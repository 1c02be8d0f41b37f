"""What every address of the page answers: its parameters, their limits, and the view behind it.

Imports FastAPI (`pip install 'nnnorm[explore]'`), and so is imported only when a page is served.
Wrong parameters get a 4xx and one sentence.
"""

import os
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Annotated, Any, TypeAlias

from nnnorm.errors import NNNormError, require
from nnnorm.explore.packing import pack
from nnnorm.explore.recording import STATIC, make_table
from nnnorm.explore.session import MOST_ALPHA, Session
from nnnorm.explore.views import Views, Which
from nnnorm.methods import Method
from nnnorm.version import __version__

require("fastapi", "explore")
import fastapi  # noqa: E402
from fastapi import exceptions, responses, staticfiles  # noqa: E402

LONGEST_TEXT = 500
_MOST_HITS = 100
_N_WORKING = max(2, os.cpu_count() or 1)
_REFUSED = {
    403: {"description": "Another host or origin."},
    422: {"description": "A wrong parameter, with what it should be."},
}
_MISSING = {404: {"description": "There is no such picture."}}

# --- parameters ----------------------------------------------------------------------------------

_FINITE: dict[str, Any] = {"allow_inf_nan": False}
Words: TypeAlias = Annotated[str, fastapi.Query(max_length=LONGEST_TEXT)]
Text: TypeAlias = Annotated[str | None, fastapi.Query(max_length=LONGEST_TEXT)]
Whole: TypeAlias = Annotated[int, fastapi.Query(ge=0, le=2**31 - 1)]
Number: TypeAlias = Annotated[int | None, fastapi.Query(ge=0, le=2**31 - 1)]
Numbers: TypeAlias = Annotated[str, fastapi.Query(pattern=r"^\d{1,9}(,\d{1,9}){0,199}$")]
Hits: TypeAlias = Annotated[int, fastapi.Query(ge=1, le=_MOST_HITS)]
Where: TypeAlias = Annotated[list[str], fastapi.Query(max_length=8, description="column=value")]
Name: TypeAlias = Annotated[
    str, fastapi.Query(description="One of `methods` in /api/about.", max_length=20)
]
Size: TypeAlias = Annotated[int | None, fastapi.Query(ge=1, le=2**31 - 1)]
Weight: TypeAlias = Annotated[float | None, fastapi.Query(ge=0, le=MOST_ALPHA, **_FINITE)]
Factor: TypeAlias = Annotated[float | None, fastapi.Query(ge=0, le=1000, **_FINITE)]
Sharpness: TypeAlias = Annotated[float | None, fastapi.Query(gt=0, le=1000, **_FINITE)]


def _choose(
    request: fastapi.Request,
    method: Name = "nnn",
    reference_k: Size = None,
    alpha: Weight = None,
    weight: Factor = None,
    beta: Sharpness = None,
    center: bool | None = None,
) -> Method:
    """Open the method that a request names, with its settings."""
    params = {"reference_k": reference_k, "alpha": alpha, "weight": weight, "beta": beta}
    return request.app.state.session.open_method(method, {**params, "center": center})


Chosen: TypeAlias = Annotated[Any, fastapi.Depends(_choose)]


# --- answers -------------------------------------------------------------------------------------


class _Answers:
    """One method per address; what is in their docstrings stands on the OpenAPI page."""

    def __init__(self, views: Views) -> None:
        self._views, self._session = views, views.session
        # More threads than processors would only wait for each other, and each needs memory.
        self._working = threading.BoundedSemaphore(_N_WORKING)

    def page(self) -> Any:
        """The page itself."""
        return responses.FileResponse(STATIC / "index.html")

    def docs(self) -> Any:
        """The page that shows the OpenAPI description."""
        return responses.FileResponse(STATIC / "docs.html")

    def about(self) -> dict[str, Any]:
        """The data, the methods with their controls, and the filters."""
        return self._views.about()

    def queries(
        self, method: Chosen, which: Which = "any", text: Words = "", seed: Whole = 0, k: Hits = 8
    ) -> dict[str, Any]:
        """Queries at random: of all, of those a setting wins or loses, or with some words."""
        with self._working:
            return self._views.queries(method, text=text, which=which, seed=seed, k=k)

    def search(
        self,
        method: Chosen,
        query: Number = None,
        text: Text = None,
        item: Number = None,
        where: Where = [],  # noqa: B006 - FastAPI copies it
        k: Hits = 12,
    ) -> Any:
        """The first places of one query (a number, a text, or an item), before and after."""
        with self._working:
            return _packed(
                *self._views.search(
                    method, query=query, text=text, item=item, where=_read_where(where), k=k
                )
            )

    def hubs(self, method: Chosen, where: Where = []) -> Any:  # noqa: B006
        """How often items come first, before and after, and the worst hubs."""
        with self._working:
            return _packed(*self._views.hubs(method, _read_where(where)))

    def hub(self, method: Chosen, item: Whole) -> Any:
        """The queries that an item answered first, by intent, and its near copies."""
        with self._working:
            return _packed(*self._views.hub(method, item))

    def copies(self) -> dict[str, Any]:
        """Groups of items that are nearly the same."""
        with self._working:
            return self._views.copies()

    def scan(self) -> dict[str, Any]:
        """The verdicts of `nnnorm scan`, once they are there."""
        return self._views.scan()

    def quality(self, method: Chosen) -> dict[str, Any]:
        """R@1, R@5 and R@10 before and after, with intervals."""
        with self._working:
            return self._views.quality(method)

    def grid(self) -> dict[str, Any]:
        """R@1 of a grid of k and α, once it is there."""
        return self._views.grid()

    def map_places(self) -> Any:
        """The places of items on the map, once they are there."""
        return _packed(*self._views.map())

    def map_values(self, method: Chosen, where: Where = []) -> Any:  # noqa: B006
        """What the items of the map are coloured by."""
        with self._working:
            return _packed(*self._views.map_values(method, _read_where(where)))

    def items(self, items: Numbers) -> dict[str, Any]:
        """Id, caption and metadata of some items, by their numbers: 3,1,4."""
        return self._views.items(map(int, items.split(",")))

    def bank(self) -> Any:
        """The intents of the bank, how well it matches the queries, and any drift."""
        with self._working:
            return _packed(*self._views.bank())

    def picture(self, item: Whole) -> Any:
        """The thumbnail of an item; a placeholder where its picture is broken."""
        if self._session.thumbnails is None:
            raise fastapi.HTTPException(404, "the items have no pictures; give --images")
        last = len(self._session.gallery) - 1
        if item > last:
            raise NNNormError(f"item must be from 0 to {last}; got {item}")
        with self._working:
            found = self._session.thumbnails.get(item)
        # A picture does not change while the explorer runs; a broken one may be put right.
        life = "private, max-age=3600" if found.is_whole else "no-store"
        return responses.Response(
            found.data, media_type=found.media_type, headers={"cache-control": life}
        )

    def save_bias(self, method: Chosen) -> Any:
        """The bias of a setting, for `nnnorm search --bias`."""
        with self._working:
            return _attachment(self._session.save_bias(method), "bias.safetensors")

    def save_outliers(self) -> Any:
        """The ids that `nnnorm scan` would remove, one per line, for `nnnorm index delete`."""
        text = "".join(f"{one}\n" for one in self._session.scan.wait().to_remove)
        return _attachment(text.encode(), "outliers.txt", "text/plain")

    def save_table(self, method: Chosen) -> Any:
        """The items of the map as parquet, for Embedding Atlas."""
        self._session.map.wait()  # not within `working`, where others would wait as well
        self._session.scan.result()
        with self._working:
            return _attachment(make_table(self._session, method), "items.parquet")


def _packed(about: Any, arrays: Any) -> Any:
    return responses.Response(pack(about, arrays), media_type="application/octet-stream")


def _read_where(where: Sequence[str]) -> dict[str, str]:
    found = {}
    for entry in where:
        name, equals, value = entry.partition("=")
        if not equals:
            raise NNNormError(f"where must be column=value; got {entry[:80]!r}")
        found[name] = value
    return found


def _attachment(data: bytes, name: str, media_type: str = "application/octet-stream") -> Any:
    headers = {"content-disposition": f'attachment; filename="{name}"', "cache-control": "no-store"}
    return responses.Response(data, media_type=media_type, headers=headers)


# --- the application -----------------------------------------------------------------------------


def make_api(session: Session) -> Any:
    """Make the FastAPI application of a session, without the checks of `Guard`."""
    app = fastapi.FastAPI(
        title="nnnorm explore",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/openapi.json",
        lifespan=_limit_threads,
    )
    app.state.session = session
    _add_errors(app)
    _add_routes(app, _Answers(Views(session)))
    app.mount("/static", staticfiles.StaticFiles(directory=STATIC), name="static")
    return app


def _add_routes(app: Any, answer: _Answers) -> None:
    add: Callable[..., None] = app.add_api_route
    add("/", answer.page, include_in_schema=False)
    add("/docs", answer.docs, include_in_schema=False)
    as_json: dict[str, Callable[..., Any]] = {
        "about": answer.about,
        "queries": answer.queries,
        "copies": answer.copies,
        "scan": answer.scan,
        "quality": answer.quality,
        "grid": answer.grid,
        "items": answer.items,
    }
    as_bytes: dict[str, Callable[..., Any]] = {
        "search": answer.search,
        "hubs": answer.hubs,
        "hub": answer.hub,
        "map": answer.map_places,
        "map/values": answer.map_values,
        "bank": answer.bank,
        "export/bias": answer.save_bias,
        "export/outliers": answer.save_outliers,
        "export/table": answer.save_table,
    }
    for path, function in as_json.items():
        add(f"/api/{path}", function, responses=_REFUSED)
    binary = responses.Response
    for path, function in as_bytes.items():
        add(f"/api/{path}", function, responses=_REFUSED, response_class=binary)
    add("/api/picture", answer.picture, responses=_REFUSED | _MISSING, response_class=binary)


@asynccontextmanager
async def _limit_threads(app: Any) -> AsyncIterator[None]:
    """Few threads answer: the memory that each has used stays with it."""
    limiter = require("anyio.to_thread", "explore").current_default_thread_limiter()
    limiter.total_tokens = _N_WORKING + 4
    yield


def _add_errors(app: Any) -> None:
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
