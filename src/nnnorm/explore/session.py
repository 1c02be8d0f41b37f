"""The state of the explorer: statistics of the bank, candidates of queries, cached results.

All numbers come from the package: `Statistics` has m_k and L_β for every setting of the sliders
from one pass over the bank, methods compute a `Bias` from them, and `Candidates` ranks by it.
Moving a slider only ranks the candidates again. If there are many queries, a random sample is used.
"""

import tempfile
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeAlias, TypeVar, cast

import numpy as np
import numpy.typing as npt

from nnnorm import methods
from nnnorm.bias import Bias
from nnnorm.dedup import drop_copies
from nnnorm.embeddings import Embeddings, FloatArray, IntArray, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.evaluation import Scan, Tuning, count_occurrences, find_hubs, scan, tune
from nnnorm.evaluation.hubness import places_to_count
from nnnorm.explore.candidates import Answer, Candidates
from nnnorm.explore.material import Material, Served
from nnnorm.explore.pictures import Thumbnails
from nnnorm.explore.projection import project
from nnnorm.files import Progress
from nnnorm.methods import NNN, InvertedSoftmax, Method, Statistics
from nnnorm.ranking import measure_confidence, score_matrix

BoolArray: TypeAlias = npt.NDArray[np.bool_]
# A method with its parameters, or what an index serves.
Setting: TypeAlias = Method | Served
_T = TypeVar("_T")

# The methods of the picker: those whose parameters have a control.
CONTROLS = {"reference_k", "alpha", "center", "weight", "beta"}
OFFERED = tuple(
    name for name in methods.METHOD_NAMES if set(methods.find_method(name)[0].shown) & CONTROLS
)
PLACES = 10
_KS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BETAS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0)
_HEAT_KS = tuple(2**power for power in range(10))
_HEAT_ALPHAS = tuple(float(alpha) for alpha in np.arange(0, 1.501, 0.125))
MOST_ALPHA, ALPHA_STEP = 1.5, 0.025
# By the size of the gallery, the number of queries that are counted for hubs and quality, so that a
# move of a slider takes some hundredths of a second, and the largest k of the slider.
_LIMITS = {2000: (5000, max(_KS)), 20_000: (2500, max(_KS)), 2**63: (2000, 128)}
_DEPTH = 128
_MOST_ON_MAP = 5000


def start(work: Callable[[], _T]) -> Future[_T]:
    """Do work that takes seconds in a thread of its own, while requests are answered."""
    future: Future[_T] = Future()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future


def result_of(work: Future[_T]) -> _T | None:
    """Return the result of work, once it is there; None if the inputs are too small for it."""
    try:
        return work.result()
    except NNNormError:
        return None


@dataclass(frozen=True)
class Knob:
    """A parameter of a method, as a control of the page."""

    name: str
    kind: str
    values: tuple[float, ...]
    default: float | bool


class Session:
    """The explorer's data and results for one gallery and its queries."""

    def __init__(self, material: Material, *, progress: Progress | None = None) -> None:
        self.material = material
        self.gallery = _in_memory(material.gallery)
        n_items = len(self.gallery)
        most, largest_k = next(limit for size, limit in _LIMITS.items() if n_items <= size)
        self.chosen = draw_some(len(material.queries), most)
        self.queries = _in_memory(material.queries, self.chosen)
        self.truth = None if material.truth is None else material.truth.some_queries(self.chosen)
        self.clusters = None if self.truth is None else self.truth.clusters
        # A hit is a place among the first so many results.
        self.hit_k = places_to_count(len(self.queries), n_items)
        self.unique = drop_copies(material.references, progress=progress)
        self.statistics = Statistics(material.gallery, self.unique, progress=progress)
        resolved, _ = NNN(alpha=0.0).resolve(self.statistics)
        steps = {k for k in _KS if k <= min(len(self.unique), largest_k)}
        self.reference_ks = tuple(sorted(steps | {int(resolved.reference_k)}))
        settings = _with_and_without_center(self.reference_ks, 1.0)
        self.statistics.prepare([*settings, *map(InvertedSoftmax, _BETAS)])
        self.statistics.mean_of_all()
        self.statistics.activation_set()
        self.automatic = NNN().make_bias(self.statistics)
        self.candidates = Candidates(
            self.queries, self.gallery, self._anchors(), depth=_DEPTH, progress=progress
        )
        self.statistics.progress = None
        self.thumbnails = None if material.pictures is None else Thumbnails(material.pictures)
        self.filters = material.filters()
        self.map, self.tuning = start(self._project), start(self._tune)
        self.scan = start(self._scan)

    # --- settings --------------------------------------------------------------------------------

    def _anchors(self) -> list[Bias]:
        """Corrections at the ends of the sliders, between which all others lie, and a usual one."""
        few, many, usual = map(self._nearest_k, (4, 128, 32))
        settings: list[Setting] = [*_with_and_without_center((few, many), MOST_ALPHA)]
        settings.append(NNN(usual, MOST_ALPHA / 2, center=True))
        if self.material.served is not None:
            settings.append(self.material.served)
        return [self.bias_for(setting) for setting in settings]

    def _nearest_k(self, k: int) -> int:
        return min(self.reference_ks, key=lambda one: abs(one - k))

    @property
    def offered(self) -> tuple[str, ...]:
        """The methods of the picker, beginning with the one that a page opens with."""
        return OFFERED if self.material.served is None else (Served.name, *OFFERED)

    def knobs(self, name: str) -> list[Knob]:
        """Return the controls of a method."""
        served = self.material.served
        if name == Served.name and served is not None:
            highest = max(MOST_ALPHA, 2 * served.weight)
            return [Knob("weight", "range", (0.0, highest, ALPHA_STEP), served.weight)]
        kind = methods.find_method(name)[0]
        usual_k, weight = 10, 0.5
        if kind is NNN:
            usual_k, weight = self.automatic.params["reference_k"], round(self.automatic.weight, 2)
        weights = (0.0, MOST_ALPHA, ALPHA_STEP)
        known: dict[str, tuple[str, tuple[float, ...], float | bool]] = {
            "reference_k": ("steps", self.reference_ks, self._nearest_k(usual_k)),
            "beta": ("steps", _BETAS, 20.0),
            "center": ("switch", (), bool(self.automatic.params.get("center"))),
            "alpha": ("range", weights, weight),
            "weight": ("range", weights, weight),
        }
        return [Knob(param, *known[param]) for param in kind.shown]

    def open_method(self, name: str, params: Mapping[str, Any]) -> Setting:
        """Make a method of the picker; NNN without parameters is the automatic one."""
        if name not in self.offered:
            raise NNNormError(f"method must be one of {', '.join(self.offered)}; got {name!r}")
        known = {knob.name: knob for knob in self.knobs(name)}
        for param, value in params.items():
            if (knob := known.get(param)) is None:
                takes = ", ".join(known) or "no parameters"
                raise NNNormError(f"method {name} takes {takes}; got {param}")
            if knob.kind == "steps" and value not in knob.values:
                steps = ", ".join(f"{one:g}" for one in knob.values)
                raise NNNormError(f"{param} must be one of {steps}; got {value:g}")
            if knob.kind == "range" and not knob.values[0] <= value <= knob.values[1]:
                low, high, _ = knob.values
                raise NNNormError(f"{param} must be from {low:g} to {high:g}; got {value:g}")
        if name == Served.name and self.material.served is not None:
            return replace(self.material.served, **params)
        if name == "nnn" and not params:
            return NNN()
        defaults = {knob.name: knob.default for knob in known.values()}
        return methods.make_method(name, **{**defaults, **params})

    @lru_cache(64)
    def bias_for(self, setting: Setting) -> Bias:
        """Return the bias of a setting, for the gallery in memory, which may be a copy."""
        return replace(setting.make_bias(self.statistics), fingerprints={})

    def resolved(self, setting: Setting) -> dict[str, Any]:
        """Return the parameters of a setting with numbers for what was automatic."""
        params = self.bias_for(setting).params
        names = [one.name for one in self.knobs(setting.name)]
        found = {name: params[name] for name in names if name in params}
        return {**found, "center": found.get("center", False)} if setting.name == "nnn" else found

    # --- rankings --------------------------------------------------------------------------------

    @lru_cache(100)  # of 5,000 queries some 60 MB
    def rank(self, setting: Setting | None) -> Answer:
        """Return the first hits of all queries of the sample; without a setting uncorrected."""
        bias = None if setting is None else self.bias_for(setting)
        return self.candidates.rank(bias, min(PLACES, len(self.gallery)))

    def first(self, setting: Setting | None) -> IntArray:
        """Return the top-1 item of each query of the sample."""
        return self.rank(setting).ranking.indices[:, 0]

    def hits(self, setting: Setting | None) -> IntArray:
        """Return the items that are counted for each query, shape ``(n_queries, hit_k)``."""
        return self.rank(setting).ranking.indices[:, : self.hit_k]

    @lru_cache(64)
    def count_hits(self, setting: Setting | None) -> IntArray:
        """Return how often every item is a hit, shape ``(n_gallery,)``."""
        return count_occurrences(self.hits(setting), len(self.gallery))

    @lru_cache(64)
    def confidence(self, setting: Setting) -> FloatArray:
        """Return the confidence of every query of the sample, shape ``(n_queries,)``."""
        return measure_confidence(self.rank(setting).ranking.scores)

    def find_won(self, setting: Setting) -> tuple[IntArray, IntArray]:
        """Return the queries that a correction wins and loses, by their numbers."""
        before, after = self.first(None), self.first(setting)
        if self.truth is None:
            return self.chosen[before != after], self.chosen[:0]
        was, now = self.truth.holds(before), self.truth.holds(after)
        return self.chosen[~was & now], self.chosen[was & ~now]

    def choose_example(self) -> int:
        """Return a query that shows the effect: its top-1 was a hub that moves far down."""
        setting = self.open_method(self.offered[0], {})
        won, _ = self.find_won(setting)
        if len(won) == 0:
            return int(self.chosen[0])
        rows = np.searchsorted(self.chosen, won)
        first, counts = self.first(None)[rows], self.count_hits(None)
        is_still = self.rank(setting).ranking.indices[rows] == first[:, None]
        place = np.where(is_still.any(axis=1), is_still.argmax(axis=1), PLACES)
        is_hub = np.isin(first, find_hubs(counts))
        return int(won[np.lexsort((counts[first], place, is_hub))[-1]])

    @lru_cache(32)
    def score(self, row: bytes, setting: Setting | None) -> FloatArray:
        """Return the scores of one query, the bytes of its row, with all items."""
        bias = None if setting is None else self.bias_for(setting)
        return score_matrix(np.frombuffer(row, np.float32)[None, :], self.gallery, bias)[0]

    def mask(self, where: Mapping[str, str]) -> BoolArray:
        """Return which items have these values in the metadata."""
        mask = np.ones(len(self.gallery), dtype=bool)
        for name, value in where.items():
            if name not in self.filters:
                known = ", ".join(self.filters) or "none"
                raise NNNormError(f"there is no filter {name!r}; the filters are: {known}")
            if value not in self.filters[name]:
                raise NNNormError(f"{name} has no value {value!r}")
            mask &= self._has(name, value)
        if not mask.any():
            raise NNNormError("no item has all of these values; remove one filter")
        return mask

    @lru_cache(64)
    def _has(self, name: str, value: str) -> BoolArray:
        return np.array([cell == value for cell in self.material.metadata[name]])

    # --- work that takes seconds -----------------------------------------------------------------

    def _scan(self) -> Scan:
        material = self.material
        return scan(material.gallery, material.references, ids=cast(Any, material.ids))

    def _tune(self) -> Tuning | None:
        """R@1 of a grid of settings on the queries of the sample."""
        if self.truth is None:
            return None
        ks = [k for k in _HEAT_KS if k in self.reference_ks]
        grid = {"reference_k": ks, "alpha": _HEAT_ALPHAS, "center": (False, True)}
        past = self.unique.embeddings
        options: dict[str, Any] = {"truth": self.truth, "grids": {"nnn": grid}}
        options["duplicates"] = "keep" if past.counts is None else "drop"  # these are unique
        return tune(self.gallery, past, queries=self.queries, **options)

    def _project(self) -> tuple[IntArray, FloatArray]:
        """Items of the map and their places: all, or a random sample with the worst hubs."""
        counts = self.count_hits(None)
        items = draw_some(len(self.gallery), _MOST_ON_MAP)
        if len(items) < len(self.gallery):
            hubs = np.argsort(-counts, kind="stable")[:100]
            items = np.union1d(items, hubs[counts[hubs] > 0])
        return items, project(self.gallery.subset(items))

    def save_bias(self, setting: Setting) -> bytes:
        """Return the file of a bias, which fits the gallery as it was given."""
        with tempfile.TemporaryDirectory() as folder:
            setting.make_bias(self.statistics).save(path := Path(folder, "bias.safetensors"))
            return path.read_bytes()


def _with_and_without_center(ks: Iterable[int], alpha: float) -> list[NNN]:
    return [NNN(k, alpha, center=center) for k in ks for center in (False, True)]


def draw_some(n_rows: int, most: int, seed: int = 0) -> IntArray:
    """Draw rows at random, all if there are few, in their order."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, most, replace=False))


def _in_memory(rows: Embeddings, chosen: IntArray | None = None) -> Embeddings:
    """The rows as float32 in memory, which one search after the other reads."""
    if chosen is not None and len(chosen) < len(rows):
        return open_embeddings(rows.take(chosen), name=rows.name, normalize=False)
    if rows.in_memory:
        return rows
    return open_embeddings(rows.rows(0, len(rows)), name=rows.name, normalize=False)
