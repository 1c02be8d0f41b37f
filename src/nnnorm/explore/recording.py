"""The page without a server: views for a grid of settings, recorded.

`record` computes all views that the exported page can show, and writes them to a script, so the
page opens from disk.
"""

import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import numpy as np

from nnnorm.errors import NNNormError
from nnnorm.explore.material import Served
from nnnorm.explore.session import Session, Setting, draw_some
from nnnorm.explore.views import View, Views, to_json
from nnnorm.files import Progress, filling, make_folder, staging

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
    """Write the page of a session to a folder; it opens from there without a server."""
    with filling(folder) as target:
        if any(target.iterdir()) and not (target / "recorded.js").exists():
            raise NNNormError(f"{target} is not empty; pass a new folder for the export")
        for work in (session.map, session.tuning, session.scan):
            work.exception()  # until it is done; the views show what is missing
        recording = _Recording(session)
        recording.record(progress)
        with staging(target) as place:
            return _write_export(recording, place)


def _write_export(recording: "_Recording", folder: Path) -> list[str]:
    """Write all files of an export; return their names."""
    pictures = _write_pictures(recording.session, folder / "pictures", recording.items)
    found = {"answers": recording.answers, "items": recording.items, "pictures": pictures}
    script = to_json(found).replace("</", "<\\/")
    texts = {"recorded.js": f"window.NNNORM_RECORDED = {script};\n"}
    texts |= {"page.js": join_modules(), "index.html": make_page()}
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    for file in (*STATIC.glob("*.css"), *STATIC.glob("*.svg")):
        shutil.copyfile(file, folder / file.name)
    shutil.copytree(STATIC / "vendor", folder / "vendor")
    return sorted(path.name for path in folder.iterdir())


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
    scripts = '<script src="recorded.js"></script>\n<script defer src="page.js"></script>'
    text = re.sub(r'<script type="module"[^>]*></script>', scripts, text)
    return text.replace('"/static/', '"')


class _Recording:
    """Answers by the address that the page asks, and all items that they name."""

    def __init__(self, session: Session) -> None:
        self.session, self.views = session, Views(session)
        self.answers: dict[str, Any] = {}
        self.items: dict[str, Any] = {}
        powers = [k for k in session.reference_ks if k & (k - 1) == 0]
        places = np.linspace(0, len(powers) - 1, min(_MOST_KS, len(powers))).round().astype(int)
        automatic_k = int(session.automatic.params["reference_k"])
        self._ks = sorted({*(powers[place] for place in places), automatic_k})
        served = session.material.served
        self._weights = [] if served is None else sorted({*_ALPHAS, round(served.weight, 4)})

    def record(self, progress: Progress | None) -> None:
        """Ask for everything that the exported page shows."""
        about = self.views.about()
        about.update(has_encode=False, filters={}, examples=[])
        methods = [method for method in about["methods"] if method["name"] in (Served.name, "nnn")]
        about["methods"] = [{**one, "knobs": self._knobs(one)} for one in methods]
        self._keep("about", about)
        rows = draw_some(len(self.session.material.queries), _N_QUERIES)
        queries = self.views.list_queries(np.union1d(rows, [about["example"]]))
        self._keep("queries", {"n_found": len(queries), "queries": queries})
        for path in ("scan", "grid", "map", "bank"):
            self._ask(path)
        settings = list(self._settings())
        hubs = self.views.hubs(settings[0][1])["hubs"].tolist()  # the same with every setting
        for item in hubs:
            self._ask("hub", item=item)
        for number, (shown, method) in enumerate(settings):
            self._ask("hubs", shown, method=method)
            self._ask("map/values", shown, method=method)
            with suppress(NNNormError):  # too few queries for an interval
                self._ask("quality", shown, method=method)
            for one in queries:
                self._ask("search", shown, method=method, query=one["query"])
            for item in hubs:
                self._ask("hub/now", shown, method=method, item=item)
            if progress is not None:
                progress(number + 1, len(settings))

    def _ask(self, path: str, shown: dict[str, Any] | None = None, **params: Any) -> None:
        """Record a view; `shown` are the parameters of its method in the address."""
        given = {name: value for name, value in params.items() if name != "method"}
        self._keep(path, self.views.paths[path](**params), {**given, **(shown or {})})

    def _keep(self, path: str, view: View, params: dict[str, Any] | None = None) -> None:
        self.items.update(view.get("items", {}))
        key = f"{path}?{urlencode(sorted((params or {}).items()))}"
        self.answers[key] = {name: value for name, value in view.items() if name != "items"}

    def _settings(self) -> Iterator[tuple[dict[str, Any], Setting]]:
        """The settings of the page, in the address and opened: automatic ones, then a grid."""
        settings: list[tuple[str, dict[str, Any]]] = []
        if self._weights:
            settings = [(Served.name, {"weight": weight}) for weight in self._weights]
            settings.insert(0, (Served.name, {}))
        settings.append(("nnn", {}))
        center = bool(self.session.automatic.params.get("center"))
        for k in self._ks:
            grid = [{"reference_k": k, "alpha": alpha, "center": center} for alpha in _ALPHAS]
            settings += [("nnn", params) for params in grid]
        for name, params in settings:
            # As JavaScript writes numbers and truth values.
            shown = {one: json.dumps(value).removesuffix(".0") for one, value in params.items()}
            yield {"method": name, **shown}, self.session.open_method(name, params)

    def _knobs(self, method: dict[str, Any]) -> list[dict[str, Any]]:
        """The controls of a method, with the recorded values only."""
        values = {"reference_k": self._ks, "alpha": _ALPHAS, "weight": self._weights}
        steps = {name: {"kind": "steps", "values": some} for name, some in values.items()}
        return [knob | steps.get(knob["name"], {"kind": "fixed"}) for knob in method["knobs"]]


def _write_pictures(session: Session, folder: Path, items: dict[str, Any]) -> list[int]:
    """Write thumbnails of the items that the page can show; return the items that have one."""
    if session.thumbnails is None:
        return []
    make_folder(folder)
    wanted, on_map = set(map(int, items)), session.map.result()[0]
    if len(on_map) <= _MOST_PICTURES:
        wanted.update(on_map.tolist())
    shown = []
    for item in sorted(wanted):
        if (data := session.thumbnails.get(item)) is not None:
            (folder / f"{item}.png").write_bytes(data)
            shown.append(item)
    return shown
