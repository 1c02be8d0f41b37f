"""What one gallery's explorer keeps: statistics of the bank, candidates of queries, answers.

All numbers are those of the package: `Statistics` gives m_k and L_β of every setting of the sliders
from one pass over the bank, the methods turn them into a `Bias`, and `Candidates` ranks by it. A
move of a slider costs the ranking of the candidates. Of many queries a random sample is used, never
the first ones.
"""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import use_references
from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.evaluation import Truth, Tuning, count_occurrences, scan, tune
from nnnorm.evaluation.outliers import Scan
from nnnorm.explore.candidates import Answer, Candidates
from nnnorm.explore.keeping import Kept, Later
from nnnorm.explore.material import Material
from nnnorm.explore.pictures import Thumbnails
from nnnorm.explore.projection import project
from nnnorm.explore.served import SERVED
from nnnorm.files import Progress
from nnnorm.methods import (
    CSLS,
    DN,
    NNN,
    InvertedSoftmax,
    Method,
    Statistics,
    find_method,
    make_method,
)
from nnnorm.ranking import score_matrix

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]

# The methods of the picker: one bank, no labels, and settings that one pass over the bank prepares.
OFFERED = tuple(
    variant.name for kind in (NNN, CSLS, DN, InvertedSoftmax) for variant in kind.variants
)
PLACES = 10
_KS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
_BETAS = (1.0, 2.0, 3.0, 5.0, 7.0, 10.0, 15.0, 20.0, 30.0, 40.0, 60.0, 80.0, 100.0)
_HEAT_KS = tuple(2**power for power in range(10))
_HEAT_ALPHAS = tuple(float(alpha) for alpha in np.arange(0, 1.501, 0.125))
MOST_ALPHA, ALPHA_STEP = 1.5, 0.025
# Galleries up to this size have finer grids and more queries.
_SMALL_GALLERY = 20_000
_LARGEST_K_OF_MANY = 128
# Queries that are counted for hubs and quality, by the size of the gallery; so many that a move of
# a slider takes some hundredths of a second.
_MOST_QUERIES = {2000: 5000, _SMALL_GALLERY: 2500}
_MOST_QUERIES_OF_MANY = 2000
_DEPTH = 128
_MOST_ON_MAP = 5000
# Bytes of rankings to keep, and the number of other answers, which are small or few.
_KEPT_BYTES = 64 * 2**20
_KEPT_COUNTS, _KEPT_VIEWS = 64, 1024


@dataclass(frozen=True)
class Knob:
    """A parameter of a method, as a control of the page."""

    name: str
    label: str
    kind: str
    values: tuple[float, ...]
    default: float | bool


class Session:
    """All that the explorer knows about a gallery and its queries."""

    def __init__(
        self, material: Material, *, seed: int = 0, progress: Progress | None = None
    ) -> None:
        self.material, self.seed = material, seed
        self.gallery = _in_memory(material.gallery)
        self.is_many = len(self.gallery) > _SMALL_GALLERY
        fitting = [most for size, most in _MOST_QUERIES.items() if len(self.gallery) <= size]
        most = fitting[0] if fitting else _MOST_QUERIES_OF_MANY
        self.chosen = draw_some(len(material.queries), most, seed)
        self.queries = _in_memory(material.queries, self.chosen)
        self.truth: Truth | None = None
        if material.truth is not None:
            self.truth = material.truth.some_queries(self.chosen)
        self.used = use_references(
            material.given_references, material.references, progress=progress
        )
        self.statistics = Statistics.of_embeddings(material.gallery, self.used, progress=progress)
        self.reference_ks = self._choose_ks()
        self._prepare()
        self.automatic = NNN().make_bias(self.statistics)
        self.candidates = Candidates(
            self.queries,
            self.gallery,
            self._anchors(),
            depth=_DEPTH,
            progress=progress,
        )
        self.statistics.options["progress"] = None
        bytes_per_answer = len(self.queries) * PLACES * 12
        self._answers = Kept(max(16, _KEPT_BYTES // bytes_per_answer))
        self._biases, self._counts, self._rows = Kept(_KEPT_COUNTS), Kept(_KEPT_COUNTS), Kept(32)
        self.views = Kept(_KEPT_VIEWS)
        self.thumbnails = None if material.pictures is None else Thumbnails(material.pictures)
        self.filters = material.filters()
        self.scan: Later[Scan] = Later(self._scan)
        self.tuning: Later[Tuning | None] = Later(self._tune)
        self.map: Later[tuple[IntArray, FloatArray]] = Later(self._project)

    # --- settings --------------------------------------------------------------------------------

    def _choose_ks(self) -> tuple[int, ...]:
        largest = min(len(self.used), _LARGEST_K_OF_MANY if self.is_many else max(_KS))
        settled, _ = NNN(alpha=0.0).resolve(self.statistics)
        return tuple(sorted({k for k in _KS if k <= largest} | {int(settled.reference_k)}))

    def _prepare(self) -> None:
        """Compute the statistics of all settings of the sliders."""
        methods: list[Method] = [
            NNN(k, 1.0, center=center) for k in self.reference_ks for center in (False, True)
        ]
        self.statistics.prepare([*methods, *(InvertedSoftmax(beta) for beta in _BETAS)])
        self.statistics.mean_of_all()
        self.statistics.activation_set()

    def _anchors(self) -> list[Bias]:
        """Corrections at the ends of the sliders, between which all others lie, and a usual one."""
        few, many, usual = (
            min(self.reference_ks, key=lambda one: abs(one - k)) for k in (4, 128, 32)
        )
        methods: list[Method] = [
            NNN(k, MOST_ALPHA, center=center) for k in (few, many) for center in (False, True)
        ]
        methods.append(NNN(usual, MOST_ALPHA / 2, center=True))
        if self.material.served is not None:
            methods.append(self.material.served)
        return [self._served(method.make_bias(self.statistics)) for method in methods]

    def _served(self, bias: Bias) -> Bias:
        """The bias for the gallery in memory, which may be a copy with another fingerprint."""
        same = self.gallery is self.material.gallery
        return bias if same else replace(bias, fingerprints={})

    @property
    def offered(self) -> tuple[str, ...]:
        """The methods of the picker, beginning with the one that a page opens with."""
        return OFFERED if self.material.served is None else (SERVED, *OFFERED)

    def knobs(self, name: str) -> list[Knob]:
        """Return the controls of a method."""
        if name == SERVED and (served := self.material.served) is not None:
            highest = max(MOST_ALPHA, 2 * served.weight)
            return [Knob("weight", "weight", "range", (0.0, highest, ALPHA_STEP), served.weight)]
        kind = find_method(name)[0]
        found = []
        for param, label in kind.symbols.items():
            if param == "reference_k":
                usual = self.automatic.params["reference_k"] if kind is NNN else 10
                default = min(self.reference_ks, key=lambda k: abs(k - usual))
                found.append(Knob(param, label, "steps", self.reference_ks, default))
            elif param == "beta":
                found.append(Knob(param, label, "steps", _BETAS, 20.0))
            elif param == "center":
                is_on = bool(self.automatic.params.get("center"))
                found.append(Knob(param, "centred", "switch", (), is_on))
            elif param in ("alpha", "weight"):
                weight = round(self.automatic.weight, 2) if kind is NNN else 0.5
                found.append(Knob(param, label, "range", (0.0, MOST_ALPHA, ALPHA_STEP), weight))
        return found

    def open_method(self, name: str, params: Mapping[str, Any]) -> Method:
        """Make a method of the picker; NNN without parameters is the automatic one."""
        if name not in self.offered:
            raise NNNormError(f"method must be one of {', '.join(self.offered)}; got {name!r}")
        given = {param: value for param, value in params.items() if value is not None}
        known = {knob.name: knob for knob in self.knobs(name)}
        for param, value in given.items():
            if (knob := known.get(param)) is None:
                raise NNNormError(
                    f"method {name} takes {', '.join(known) or 'no parameters'}; got {param}"
                )
            if knob.kind == "steps" and value not in knob.values:
                raise NNNormError(
                    f"{param} must be one of {', '.join(f'{one:g}' for one in knob.values)}; got "
                    f"{value:g}"
                )
            if knob.kind == "range" and not knob.values[0] <= value <= knob.values[1]:
                raise NNNormError(
                    f"{param} must be from {knob.values[0]:g} to {knob.values[1]:g}; got {value:g}"
                )
        if name == "nnn" and not given:
            return NNN()
        if name == SERVED and self.material.served is not None:
            return replace(self.material.served, **given)
        defaults = {knob.name: knob.default for knob in known.values()}
        return make_method(name, **{**defaults, **given})

    def bias_for(self, method: Method) -> Bias:
        """Return the bias of a method, for the gallery as it is served here."""
        return self._biases.get(method, lambda: self._served(method.make_bias(self.statistics)))

    def settled(self, method: Method) -> dict[str, Any]:
        """Return the parameters of a method with numbers for what was automatic."""
        bias, names = self.bias_for(method), [knob.name for knob in self.knobs(method.name)]
        params = {name: bias.params[name] for name in names if name in bias.params}
        if method.name == "nnn":
            params.setdefault("center", False)
        return params

    # --- rankings --------------------------------------------------------------------------------

    def rank(self, method: Method | None) -> Answer:
        """Return the first places of all queries of the sample; without a method uncorrected."""
        k = min(PLACES, len(self.gallery))
        bias = None if method is None else self.bias_for(method)
        return self._answers.get(method, lambda: self.candidates.rank(bias, k))

    def count_first(self, method: Method | None) -> IntArray:
        """Return how often every item comes first, shape ``(n_gallery,)``."""
        first = self.rank(method).ranking.indices[:, 0]
        return self._counts.get(method, lambda: count_occurrences(first, len(self.gallery)))

    def find_won(self, method: Method) -> tuple[IntArray, IntArray]:
        """Return the queries that a correction wins and loses, by their numbers."""
        first = [self.rank(some).ranking.indices[:, 0] for some in (None, method)]
        if self.truth is None:
            return self.chosen[first[0] != first[1]], self.chosen[:0]
        n_items = len(self.gallery)
        pairs = self.truth.queries * n_items + self.truth.items
        was, now = (np.isin(np.arange(len(some)) * n_items + some, pairs) for some in first)
        return self.chosen[~was & now], self.chosen[was & ~now]

    def choose_example(self) -> int:
        """Return a query that shows what the first method does: one that a hub had taken."""
        method = self.open_method(self.offered[0], {})
        won, _ = self.find_won(method)
        if len(won) == 0:
            return int(self.chosen[0])
        first = self.rank(None).ranking.indices[:, 0]
        taken = self.count_first(None)[first[np.isin(self.chosen, won)]]
        return int(won[taken.argmax()])

    def score(self, row: FloatArray, method: Method | None) -> FloatArray:
        """Return the scores of one query with all items, shape ``(n_gallery,)``."""
        bias = None if method is None else self.bias_for(method)
        key = (row.tobytes(), method)
        return self._rows.get(key, lambda: score_matrix(row, self.gallery, bias)[0])

    def mask(self, where: Mapping[str, str]) -> npt.NDArray[np.bool_] | None:
        """Return the items that have these values in the metadata; None where all do."""
        mask = None
        for name, value in where.items():
            if name not in self.filters:
                known = ", ".join(self.filters) or "none"
                raise NNNormError(f"there is no filter {name!r}; the filters are: {known}")
            if value not in self.filters[name]:
                raise NNNormError(f"{name} has no value {value!r}")
            has_it = self._counts.get(("mask", name, value), partial(self._has, name, value))
            mask = has_it if mask is None else mask & has_it
        if mask is not None and not mask.any():
            raise NNNormError("no item has all of these values; take one filter away")
        return mask

    def _has(self, name: str, value: str) -> npt.NDArray[np.bool_]:
        return np.array([cell == value for cell in self.material.metadata[name]])

    # --- work that takes seconds -----------------------------------------------------------------

    def _scan(self) -> Scan:
        material = self.material
        ids: Any = material.ids
        return scan(material.gallery, material.given_references, ids=ids)

    def _tune(self) -> Tuning | None:
        """R@1 of a grid of settings on the queries of the sample."""
        if self.truth is None:
            return None
        ks = [k for k in _HEAT_KS if k in self.reference_ks]
        grid = {"reference_k": ks, "alpha": _HEAT_ALPHAS, "center": (False, True)}
        return tune(
            self.gallery,
            self.material.given_references,
            queries=self.queries,
            truth=self.truth,
            grids={"nnn": grid},
        )

    def _project(self) -> tuple[IntArray, FloatArray]:
        """Items of the map and their places: all, or a random sample with the worst hubs."""
        counts = self.count_first(None)
        items = draw_some(len(self.gallery), _MOST_ON_MAP, self.seed)
        if len(items) < len(self.gallery):
            hubs = np.argsort(-counts, kind="stable")[:100]
            items = np.union1d(items, hubs[counts[hubs] > 0])
        return items, project(self.gallery.subset(items), seed=self.seed)

    def start(self) -> None:
        """Start the work that takes seconds, so that the views find it done."""
        for later in (self.map, self.tuning, self.scan):
            later.start()

    # --- out again -------------------------------------------------------------------------------

    def save_bias(self, method: Method) -> bytes:
        """Return the file of a bias, which fits the gallery as it was given."""
        bias = method.make_bias(self.statistics)
        with tempfile.TemporaryDirectory() as folder:
            bias.save(path := Path(folder, "bias.safetensors"))
            return path.read_bytes()


def draw_some(n_rows: int, most: int, seed: int) -> IntArray:
    """Draw rows at random, all where there are few, in their order."""
    if n_rows <= most:
        return np.arange(n_rows)
    return np.sort(np.random.default_rng(seed).choice(n_rows, most, replace=False))


def _in_memory(rows: Embeddings, chosen: IntArray | None = None) -> Embeddings:
    """The rows as float32 in memory, where one search after the other reads them."""
    if chosen is not None and len(chosen) < len(rows):
        return open_embeddings(rows.take(chosen), name=rows.name, normalize=False)
    if rows.in_memory:
        return rows
    return open_embeddings(rows.rows(0, len(rows)), name=rows.name, normalize=False)
