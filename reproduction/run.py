"""One runner for all experiments, with the tuning, evaluation and audit of the package.

Settings that the paper tuned are tuned here on the tuning images by the paper's rule, the maximum
of R@1 over its grid: no correction is not among the candidates, so a loss is shown as a loss. The
one-standard-error rule of the package gives a second figure. Duplicates in a bank count as often as
they are there, as in the paper.

Steps that cells share (a tuning, an evaluation) are computed once per run; embeddings stay open
until another model's turn. A cell that fails leaves the others as they are.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

import nnnorm
from nnnorm import NNN, Bias, NNNormError, NNNormWarning, Ranking, evaluation
from nnnorm.errors import MissingExtraError
from nnnorm.evaluation import Task
from nnnorm.methods import make_method
from reproduction.material import Groups, Material, NotThere, Shown
from reproduction.paper import GRIDS, TWO_BANKS, Experiment, PaperTable
from reproduction.results import Figure, Results
from reproduction.runtime import Timed, check_device, describe_device, time_exact, time_index

T = TypeVar("T")
Step: TypeAlias = Callable[[str], None]
_PER_CENT = ("antihub_share", "precision@1", "precision@5")


@dataclass(frozen=True)
class Outcome:
    """One cell: its experiment, the measured and the printed figure."""

    row: str
    column: str
    experiment: Experiment
    figure: Figure | None = None
    missing: str | None = None
    printed: float | tuple[float, int] | None = None
    by_rule: Figure | None = None
    failed: str | None = None


def run_table(
    runner: "Runner",
    table: PaperTable,
    *,
    stand_in: str | None = None,
    step: Step | None = None,
    keep_going: bool = True,
) -> list[Outcome]:
    """Run all cells of a table."""
    cells: dict[Hashable, Outcome] = {}
    for number, cell in enumerate(table.cells):
        experiment, printed = cell.experiment, cell.printed
        if stand_in is not None:
            experiment, printed = experiment.as_stand_in(stand_in), None
        key = number if stand_in is None else str(experiment)
        cells.setdefault(key, Outcome(cell.row, cell.column, experiment, printed=printed))
    outcomes: list[Outcome] = []
    for outcome in cells.values():
        if step is not None:
            place = f"{len(outcomes) + 1} of {len(cells)}"
            step(f"{table.name}: {outcome.experiment.model}, {outcome.column} ({place})")
        done = run_cell(runner, outcome, keep_going=keep_going, by_rule=not table.is_timed)
        outcomes.append(done)
    return outcomes


def run_cell(runner: "Runner", cell: Outcome, *, keep_going: bool, by_rule: bool) -> Outcome:
    """Run one cell; its figure stays if the one by the other rule fails."""
    figure = other = None
    try:
        figure = runner.measure(cell.experiment)
        if by_rule and cell.experiment.is_tuned:
            other = runner.measure(replace(cell.experiment, select="one-standard-error"))
    except (NotThere, MissingExtraError) as error:
        return replace(cell, figure=figure, missing=str(error))
    except Exception as error:
        if not keep_going:
            raise
        return replace(cell, figure=figure, failed=_explain(error))
    return replace(cell, figure=figure, by_rule=other)


def _explain(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return "out of memory"
    words = str(error).partition("\n")[0]
    return words if isinstance(error, NNNormError) else f"{type(error).__name__} ({words})"


class Runner:
    """Runs experiments on the material that `open_material(model, dataset)` returns."""

    def __init__(
        self,
        open_material: Callable[[str, str], Material],
        *,
        seed: int = 0,
        results: Results | None = None,
        device: str = "cpu",
    ) -> None:
        check_device(device)
        self._open, self._seed, self._results, self._device = open_material, seed, results, device
        self._done: dict[Hashable, Any] = {}
        self._opened: dict[Hashable, Any] = {}
        self._model: str | None = None

    @property
    def runs_on(self) -> str:
        """What the runtime table runs on."""
        return describe_device(self._device)

    def measure(self, experiment: Experiment) -> Figure:
        """Run one experiment, or take its figure from the results that were kept."""
        if self._results is None:
            return self._measure(experiment)
        identity = {
            "experiment": asdict(experiment),
            "inputs": self._digest_inputs(experiment),
            "seed": self._seed,
            "version": nnnorm.__version__,
        }
        if experiment.metric in ("seconds", "speedup", "tuning_seconds"):
            identity["device"] = self.runs_on
        figure = self._results.find(identity)
        if figure is None:
            figure = self._measure(experiment)
            self._results.keep(identity, figure)
        return figure

    def _measure(self, there: Experiment) -> Figure:
        value, low, high = self._find_value(there)
        used = None
        if there.method != "none" and there.metric != "tuning_seconds":
            n_references = self._count_references(there)
            used = {"bank": there.bank, "share": there.share, "n_references": n_references}
            used |= self._setting(there) or {"method": "none"}
        return Figure(value, low, high, used)

    def _find_value(self, there: Experiment) -> tuple[Any, float | None, float | None]:
        metric = there.metric
        scale = 100 if metric in _PER_CENT else 1
        if metric == "setting":
            params = self._setting(there)
            return (float(params.get("alpha", 0)), int(params.get("reference_k", 0))), None, None
        if metric in ("seconds", "speedup"):
            return self._time(there), None, None
        if metric == "tuning_seconds":
            return self._time_tuning(there), None, None
        if there.is_about_groups:
            line = self.groups(there).line(metric)
            return _scale(line.before if there.method == "none" else line.after, scale)
        done = self._evaluate(there)
        clusters = evaluation.clusters_of(done.truth)
        if metric.startswith("recall_at_"):
            hits = done.hits(int(metric.removeprefix("recall_at_")))
            return _scale(evaluation.interval_of_mean(hits, clusters, seed=self._seed), 100)
        plain = there.without_correction()
        if metric == "gain":
            before = self._evaluate(plain).hits(1)
            gain = evaluation.interval_of_difference(
                done.hits(1), before, clusters, seed=self._seed
            )
            return _scale(gain, 100)
        counts = self.occurrences(there)
        if metric == "ks_p_value":
            return evaluation.compare_occurrences(self.occurrences(plain), counts)[1], None, None
        found = evaluation.measure_hubness(counts).to_dict()
        return found[metric] * scale, None, None

    def occurrences(self, experiment: Experiment) -> npt.NDArray[np.int64]:
        """Count how often each item is the first hit, for histograms."""
        done = self._evaluate(experiment)
        return evaluation.count_occurrences(done.top1, done.n_gallery)

    def search(self, experiment: Experiment, k: int) -> Ranking:
        """Return the first k items of the test queries."""
        bias = None if experiment.method == "none" else self._bias(experiment)
        queries, gallery, _ = self._task(experiment, "test")
        return nnnorm.search(queries, gallery, bias, k=min(k, len(gallery)))

    def show(self, experiment: Experiment) -> tuple[Shown, evaluation.Truth]:
        """Return the test queries and items as people see them, and which belong together."""
        queries, gallery, truth = self._task(experiment, "test")
        right = evaluation.open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        return self._material(experiment).show(experiment.direction), right

    def search_groups(self, experiment: Experiment, k: int) -> tuple[Groups, Ranking]:
        """Return a gallery in groups, and the first k items of its queries."""
        found = self._material(experiment).groups()
        plain = experiment.method == "none"
        bias = None if plain else self._fit(experiment, found.gallery)
        return found, nnnorm.search(found.queries, found.gallery, bias, k=k)

    def groups(self, experiment: Experiment) -> evaluation.Audit:
        """Return the audit of a gallery in groups, before and after the correction."""

        def audit() -> evaluation.Audit:
            about = self._material(experiment).groups()
            return nnnorm.audit(
                about.queries,
                about.gallery,
                self._fit(replace(experiment, method="nnn"), about.gallery),
                groups=about.groups,
                ks=(6, 10),
                difference=about.difference,
                target="equal",
                labels=about.labels,
                query_labels=about.asked,
                precision_ks=(1, 5),
                seed=self._seed,
            )

        return self._once(("groups", experiment.model), audit)

    def _evaluate(self, experiment: Experiment) -> evaluation.Evaluation:
        plain = experiment.method == "none"
        there = experiment.without_correction() if plain else experiment

        def evaluate() -> evaluation.Evaluation:
            if there.kind == "scores":
                return self._evaluate_scores(there)
            bias = None if plain else self._bias(there)
            queries, gallery, truth = self._task(there, "test")
            return nnnorm.evaluate(queries, gallery, bias, truth=truth)

        return self._once(_key("evaluation", there), evaluate)

    def _evaluate_scores(self, there: Experiment) -> evaluation.Evaluation:
        """Evaluate ready scores: the inner products of their columns with unit vectors."""
        ready = self._material(there).scores()
        bias = None
        if there.method != "none":
            params = self._check_k(there.params or {}, ready.references.shape[1])
            bias = NNN(**params).fit_scores(ready.references)
        n_items = len(ready.test)
        items = np.eye(n_items, dtype=np.float32)
        queries = np.ascontiguousarray(ready.test.T, dtype=np.float32)
        return nnnorm.evaluate(queries, items, bias, truth=np.arange(n_items), normalize=False)

    def _bias(self, there: Experiment) -> Bias:
        if there.search == "index":
            return self._timed(there).bias
        return self._fit(there, self._task(there, "test").gallery)

    def _fit(self, there: Experiment, gallery: Any) -> Bias:
        bank = self._bank(there)
        params = self._check_k(self._setting(there), len(bank))
        method = make_method(there.method if params else "none", **params)
        second = self._gallery_bank(there) if params else None
        return method.fit(gallery, bank, gallery_references=second, duplicates="keep")

    def _check_k(self, params: Mapping[str, Any], n_references: int) -> dict[str, Any]:
        if (k := params.get("reference_k", 0)) > n_references:
            # The setting of another experiment may suit a larger bank only.
            raise NotThere(f"the bank has {n_references} references, too few for k = {k}")
        return dict(params)

    def _setting(self, there: Experiment) -> Mapping[str, Any]:
        """Return the given parameters, or those that the experiment's rule chooses."""
        if there.params is not None:
            return there.params
        tuning = self.tuning(replace(there, select="max"))
        if there.select == "one-standard-error":
            return tuning.best_by_rule.params
        return max(tuning.grid[1:], key=lambda cell: cell.recall_at_1).params

    def tuning(self, experiment: Experiment) -> evaluation.Tuning:
        """Try the paper's grid on the tuning images."""
        return self._once(_key("tuning", experiment), lambda: self._tune(experiment))

    def _tune(self, there: Experiment) -> evaluation.Tuning:
        bank = self._bank(there)
        grid = GRIDS[there.method]
        if there.method == "nnn":
            grid = {**grid, "reference_k": [k for k in grid["reference_k"] if k <= len(bank)]}
        queries, gallery, truth = self._task(there, "validation")
        with warnings.catch_warnings():
            # Some of the paper's tables use a bank of another source on purpose.
            warnings.filterwarnings("ignore", ".* do not look like the queries", NNNormWarning)
            return nnnorm.tune(
                gallery,
                bank,
                queries=queries,
                truth=truth,
                methods=(there.method,),
                gallery_references=self._gallery_bank(there),
                duplicates="keep",
                grids={there.method: grid},
                seed=self._seed,
            )

    def _time_tuning(self, there: Experiment) -> float:
        """Return the processor seconds of one more tuning, with all inputs open."""
        self.tuning(there)
        started = time.process_time()
        self._tune(there)
        return time.process_time() - started

    def _time(self, there: Experiment) -> float:
        if there.metric == "seconds":
            return self._timed(there).seconds
        exact, index = (
            self._timed(replace(there, search=search)).seconds for search in ("exact", "index")
        )
        return exact / index

    def _timed(self, there: Experiment) -> Timed:
        params = self._setting(there)
        given = {name: params[name] for name in ("reference_k", "alpha")}

        def measure() -> Timed:
            sides = self._task(there, "test").gallery, self._bank(there)
            if there.search == "exact":
                return time_exact(*sides, **given, device=self._device)
            return time_index(*sides, **given)

        return self._once(_key("seconds", there), measure)

    # --- what experiments are made of, opened once per model --------------------------------------

    def _task(self, there: Experiment, part: str) -> Task:
        def read() -> Task:
            queries, gallery, truth = self._material(there).task(there.direction, part)
            return Task(
                nnnorm.open_embeddings(queries, name=f"{part} queries"),
                nnnorm.open_embeddings(gallery, name=f"{part} gallery"),
                truth,
            )

        return self._keep_open(there, ("task", there.dataset, there.direction, part), read)

    def _bank(self, there: Experiment) -> Any:
        bank, share, direction = there.bank or "", there.share, there.direction
        return self._keep_open(
            there,
            ("bank", there.dataset, direction, bank, share),
            lambda: nnnorm.open_embeddings(
                self._material(there).bank(direction, bank, share), name="references"
            ),
        )

    def _gallery_bank(self, there: Experiment) -> Any:
        if there.method not in TWO_BANKS:
            return None
        return self._keep_open(
            there,
            ("gallery bank", there.dataset, there.direction, there.share),
            lambda: nnnorm.open_embeddings(
                self._material(there).gallery_bank(there.direction, there.share),
                name="gallery bank",
            ),
        )

    def _count_references(self, there: Experiment) -> int:
        if there.kind == "scores":
            return int(self._material(there).scores().references.shape[1])
        return len(self._bank(there))

    def _digest_inputs(self, there: Experiment) -> list[str]:
        """Return digests of everything that the figure is computed from."""
        if there.kind == "scores":
            key = "scores", there.model, there.dataset
            return self._once(key, lambda: _digest(self._material(there).scores()))
        if there.is_about_groups:
            *parts, _ = self._material(there).groups()  # what is shown changes no figure
            parts.append(self._bank(there))
            return _digest(parts)
        parts = list(self._task(there, "test"))
        if there.method != "none":
            parts += [self._bank(there), self._gallery_bank(there)]
            if there.params is None:
                parts += self._task(there, "validation")
        return _digest(parts)

    def _material(self, there: Experiment) -> Material:
        return self._open(there.model, there.dataset)

    def _keep_open(self, there: Experiment, key: Hashable, make: Callable[[], T]) -> T:
        """Open embeddings once per model; those of one model fit in memory, those of all don't."""
        if self._model != there.model:
            self._model = there.model
            self._opened.clear()
        if key not in self._opened:
            self._opened[key] = make()
        found: T = self._opened[key]
        return found

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._done:
            self._done[key] = make()
        found: T = self._done[key]
        return found


def _key(what: str, there: Experiment) -> tuple[Hashable, ...]:
    """Return everything that a step depends on, which excludes the metric."""
    params = tuple(sorted((there.params or {}).items()))
    search = "" if what == "tuning" else there.search
    return what, search, replace(there, metric="", search="exact", params=None), params


def _scale(interval: Any, scale: float) -> tuple[float, float, float]:
    return scale * interval.mean, scale * interval.low, scale * interval.high


def _digest(parts: Sequence[Any]) -> list[str]:
    """Return a digest of each part: embeddings, arrays or lists of words."""
    found = []
    for part in parts:
        if hasattr(part, "fingerprint"):
            found.append(str(part.fingerprint))
        elif isinstance(part, np.ndarray):
            about = f"{part.dtype}{part.shape}".encode()
            found.append(hashlib.sha256(about + np.ascontiguousarray(part).tobytes()).hexdigest())
        else:
            found.append(hashlib.sha256(json.dumps(part).encode()).hexdigest())
    return found
