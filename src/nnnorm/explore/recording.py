"""The page without a server: answers for a grid of settings, recorded, and a table of the items.

`record` asks the views for what a person can reach in the exported page, and writes the answers
into a script, so that the page opens from disk. `make_table` writes what Embedding Atlas reads:
the places of the map (``--x projection_x --y projection_y``), texts, and what is known of items.
"""

import base64
import io
import json
import os
import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from nnnorm.errors import NNNormError, NNNormWarning, require
from nnnorm.explore.packing import pack
from nnnorm.explore.served import SERVED
from nnnorm.explore.session import Session, draw_some
from nnnorm.explore.views import NOT_SCANNED, Views
from nnnorm.files import Progress, make_folder, write_whole
from nnnorm.methods import Method

STATIC = Path(__file__).parent / "static"
# The order in which the modules of the page need each other.
MODULES = ("core", "controls", "search", "hubs", "quality", "map", "bank", "main")
_N_QUERIES = 24
_ALPHAS = (0.0, 0.25, 0.5, 0.75, 1.0, 1.25, 1.5)
_MOST_KS = 6
_MOST_PICTURES = 2000


def record(
    session: Session, folder: str | os.PathLike[str], progress: Progress | None = None
) -> list[str]:
    """Write the page of a session to a folder, where it works from disk."""
    target = make_folder(folder)
    if any(target.iterdir()) and not (target / "recorded.js").exists():
        raise NNNormError(f"{target} is not empty; give a new folder for the export")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", NNNormWarning)  # `Material.notes` has those of the inputs
        answers, items = _record_answers(Views(session), progress)
    shown = _write_pictures(session, target / "pictures", items)
    for suffix in ("css", "svg"):
        for file in STATIC.glob(f"*.{suffix}"):
            _copy(file, target / file.name)
    for file in (STATIC / "vendor").iterdir():
        make_folder(target / "vendor")
        _copy(file, target / "vendor" / file.name)
    recorded = json.dumps(
        {"answers": answers, "items": items, "pictures": shown}, ensure_ascii=False
    ).replace("</", "<\\/")
    _write(target / "recorded.js", f"window.NNNORM_RECORDED = {recorded};\n")
    _write(target / "page.js", join_modules())
    _write(target / "index.html", make_page())
    written = ["index.html", "page.js", "recorded.js", "pictures", "vendor"]
    table = _try_table(session)
    if table is not None:
        _write(target / "items.parquet", table)
        written.append("items.parquet")
    return written


def join_modules() -> str:
    """Join the modules of the page into one script, which a page on disk may load."""
    parts = []
    for name in MODULES:
        text = (STATIC / f"{name}.js").read_text(encoding="utf-8")
        text = re.sub(r"^import \{[^}]*\} from \"[^\"]*\";\n", "", text, flags=re.MULTILINE)
        parts.append(re.sub(r"^export ", "", text, flags=re.MULTILINE))
    return "(() => {\n" + "\n".join(parts) + "\n})();\n"


def make_page() -> str:
    """Return the page with the scripts of an export."""
    text = (STATIC / "index.html").read_text(encoding="utf-8")
    text = re.sub(
        r'<script type="module"[^>]*></script>',
        '<script src="recorded.js"></script>\n<script defer src="page.js"></script>',
        text,
    )
    return text.replace('"/static/', '"').replace('href="/docs"', 'href="#" hidden')


def _record_answers(
    views: Views, progress: Progress | None
) -> tuple[dict[str, Any], dict[str, Any]]:
    """All answers by the address that the page asks, and all items that they name."""
    session = views.session
    for later in (session.map, session.tuning, session.scan):
        later.result()
    answers: dict[str, Any] = {}
    items: dict[str, Any] = {}

    def keep(
        path: str, params: Mapping[str, Any], about: dict[str, Any], arrays: Any = None
    ) -> None:
        items.update(about.pop("items", {}) if isinstance(about.get("items"), dict) else {})
        key = f"{path}?{urlencode(sorted(params.items()))}"
        if arrays is None:
            answers[key] = about
        else:
            answers[key] = base64.b64encode(pack(about, arrays)).decode()

    about = views.about()
    rows = draw_some(len(session.material.queries), _N_QUERIES, session.seed)
    rows = np.union1d(rows, [about["example"]])
    queries = [
        {"query": int(row), "text": session.material.describe_query(int(row))} for row in rows
    ]
    settings = list(_settings(session))
    hubs = views.hubs(settings[0][1])[1]["hubs"].tolist()  # the same with every setting
    about.update(can_encode=False, filters={}, examples=[])
    about["methods"] = [
        _recorded_method(session, method)
        for method in about["methods"]
        if method["name"] in (SERVED, "nnn")
    ]
    keep("about", {}, about)
    keep("queries", {}, {"n_found": len(queries), "queries": queries})
    for path, found in (("copies", views.copies()), ("scan", views.scan()), ("grid", views.grid())):
        keep(path, {}, dict(found))
    keep("map", {}, *views.map())
    keep("bank", {}, *views.bank())
    for item in hubs:
        keep("hub", {"item": item}, *views.hub_before(item))
    for number, (params, method) in enumerate(settings):
        keep("hubs", params, *views.hubs(method))
        with suppress(NNNormError):  # too few queries for an interval
            keep("quality", params, dict(views.quality(method)))
        keep("map/values", params, *views.map_values(method))
        for row in rows:
            keep("search", {**params, "query": int(row)}, *views.search(method, query=int(row)))
        for item in hubs:  # the page joins this to what is the same for all settings
            keep("hub", {**params, "item": item}, *views.hub_after(method, item))
        if progress is not None:
            progress(number + 1, len(settings))
    return answers, items


def _ks(session: Session) -> list[int]:
    powers = [k for k in session.reference_ks if k & (k - 1) == 0]
    if len(powers) > _MOST_KS:
        places = np.linspace(0, len(powers) - 1, _MOST_KS).round().astype(int)
        powers = [powers[place] for place in places]
    return sorted({*powers, int(session.automatic.params["reference_k"])})


def _weights(session: Session) -> list[float]:
    served = session.material.served
    return [] if served is None else sorted({*_ALPHAS, round(served.weight, 4)})


def _settings(session: Session) -> Iterator[tuple[dict[str, Any], Method]]:
    """The settings of the exported page: what an index serves, the automatic one, then a grid."""
    if session.material.served is not None:
        yield {"method": SERVED}, session.open_method(SERVED, {})
        for weight in _weights(session):
            method = session.open_method(SERVED, {"weight": weight})
            yield {"method": SERVED, "weight": f"{weight:g}"}, method
    yield {"method": "nnn"}, session.open_method("nnn", {})
    center = bool(session.automatic.params.get("center"))
    for k in _ks(session):
        for alpha in _ALPHAS:
            given = {"reference_k": k, "alpha": alpha, "center": center}
            shown = {**given, "method": "nnn", "alpha": f"{alpha:g}", "center": str(center).lower()}
            yield shown, session.open_method("nnn", given)


def _recorded_method(session: Session, method: dict[str, Any]) -> dict[str, Any]:
    """A method with controls that have the recorded values only."""
    knobs = []
    for knob in method["knobs"]:
        if knob["name"] == "reference_k":
            knobs.append({**knob, "values": _ks(session)})
        elif knob["name"] == "alpha":
            nearest = min(_ALPHAS, key=lambda alpha: abs(alpha - knob["default"]))
            knobs.append({**knob, "kind": "steps", "values": _ALPHAS, "default": nearest})
        elif knob["name"] == "weight":
            knobs.append({**knob, "kind": "steps", "values": _weights(session)})
        else:
            knobs.append({**knob, "kind": "fixed"})
    return {**method, "knobs": knobs}


def _write_pictures(session: Session, folder: Path, items: Mapping[str, Any]) -> list[int]:
    """Thumbnails of the items that the page can show; returns the items that have one."""
    if session.thumbnails is None:
        return []
    make_folder(folder)
    wanted = sorted(map(int, items))
    on_map, _ = session.map.wait()
    if len(on_map) <= _MOST_PICTURES:
        wanted = sorted({*wanted, *map(int, on_map)})
    shown = []
    for item in wanted:
        found = session.thumbnails.get(item)
        if found.is_whole:
            _write(folder / f"{item}.png", found.data)
            shown.append(item)
    return shown


def _copy(source: Path, target: Path) -> None:
    shutil.copyfile(source, target)


def _write(path: Path, data: bytes | str) -> None:
    data = data.encode() if isinstance(data, str) else data
    write_whole(path, lambda file: file.write(data))


def _try_table(session: Session) -> bytes | None:
    try:
        return make_table(session, session.open_method("nnn", {}))
    except ImportError:
        return None


def make_table(session: Session, method: Method) -> bytes:
    """Make a parquet file of the items of the map."""
    arrow, parquet = require("pyarrow", "parquet"), require("pyarrow.parquet", "parquet")
    material = session.material
    items, places = session.map.wait()
    found = session.scan.result()
    verdicts = [NOT_SCANNED] * len(session.gallery) if found is None else found.verdicts
    columns: dict[str, Any] = {
        "id": [material.name_item(int(item)) for item in items],
        "text": [material.describe_item(int(item)) for item in items],
        "projection_x": places[:, 0],
        "projection_y": places[:, 1],
        "bias": session.bias_for(method).correction[items],
        "times_first_before": session.count_first(None)[items],
        "times_first_after": session.count_first(method)[items],
        "verdict": [verdicts[item] for item in items],
    }
    for name in session.filters:
        cells = material.metadata[name]
        columns.setdefault(name, [cells[int(item)] for item in items])
    out = io.BytesIO()
    parquet.write_table(arrow.table(columns), out)
    return out.getvalue()
