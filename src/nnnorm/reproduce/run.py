"""One runner for all experiments, with the tuning, evaluation and audit of the package.

Settings that the paper tuned are tuned here on the tuning images, by the maximum of R@1. Steps that
cells have in common (a tuning, an evaluation) are computed once per run.
"""

import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm import study
from nnnorm.bias import Bias
from nnnorm.errors import MissingExtraError, NNNormError, NNNormWarning
from nnnorm.io import open_embeddings, open_matrix
from nnnorm.methods import NNN, PAPER_GRID, find_method, make_method
from nnnorm.reproduce.material import Material, NotThere
from nnnorm.reproduce.paper import Experiment, PaperTable
from nnnorm.reproduce.runtime import Timed, time_exact, time_index

T = TypeVar("T")
Counts: TypeAlias = npt.NDArray[np.int64]
_PER_CENT = ("antihub_share", "precision@1", "precision@5")


@dataclass(frozen=True)
class Figure:
    """The result of an experiment, on the paper's scale.

    Attributes
    ----------
    value : float or tuple (α, k)
        Recalls and precisions in %, gains in points.
    low, high : float or None
        95 % interval, where there is one.
    """

    value: float | tuple[float, int]
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Outcome:
    """One cell: the experiment, its result, and the printed figure.

    Attributes
    ----------
    row, column : str
    experiment : Experiment
    figure : Figure or None
    missing : str or None
        The reason why there is no figure.
    printed : float, tuple (α, k) or None
    """

    row: str
    column: str
    experiment: Experiment
    figure: Figure | None
    missing: str | None = None
    printed: float | tuple[float, int] | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON.

        Examples
        --------
        >>> there = Experiment("recall_at_1", "CLIP", "coco")
        >>> Outcome("CLIP", "original", there, Figure(30.4), None, 30.43).to_dict()["printed"]
        30.43
        """
        return asdict(self)


def run_table(
    runner: "Runner",
    table: PaperTable,
    *,
    stand_in: str | None = None,
    step: Callable[[str], None] | None = None,
) -> list[Outcome]:
    """Run all cells of a table; cells without material have a reason instead of a figure.

    Parameters
    ----------
    runner : Runner
    table : PaperTable
    stand_in : str, optional
        Replaces every model and data set; cells that become the same experiment are listed once,
        without the paper's figure.
    step : callable, optional
        Called with a description of each step.

    Returns
    -------
    list of Outcome

    Examples
    --------
    >>> from nnnorm.reproduce.paper import find_tables
    >>> from nnnorm.reproduce.standins import open_stand_in
    >>> name, shapes = open_stand_in("shapes")
    >>> runner = Runner(lambda model, dataset: shapes)
    >>> (table,) = find_tables(["k-sweep-image"])
    >>> len(table.cells), len(run_table(runner, table, stand_in=name))
    (112, 8)
    """
    outcomes: list[Outcome] = []
    for cell in table.cells:
        experiment, printed = cell.experiment, cell.printed
        if stand_in is not None:
            experiment, printed = experiment.as_stand_in(stand_in), None
            if any(outcome.experiment == experiment for outcome in outcomes):
                continue
        if step is not None:
            step(f"{table.name}: {experiment.model}, {cell.column}")
        figure = missing = None
        try:
            figure = runner.measure(experiment)
        except (NotThere, MissingExtraError) as error:
            missing = str(error)
        outcomes.append(Outcome(cell.row, cell.column, experiment, figure, missing, printed))
    return outcomes


class Runner:
    """Runs experiments on the material returned by `open_material`.

    Parameters
    ----------
    open_material : callable
        Returns the `Material` of a model and a data set.
    grids : dict, optional
        Grids to use instead of the paper's, see `tune`.
    seed : int
        Random seed of the intervals.

    Examples
    --------
    >>> from nnnorm.reproduce.standins import open_stand_in
    >>> name, shapes = open_stand_in("shapes")
    >>> runner = Runner(lambda model, dataset: shapes)
    >>> round(runner.measure(Experiment("recall_at_1", name, name)).value, 1)
    21.4
    """

    def __init__(
        self,
        open_material: Callable[[str, str], Material],
        *,
        grids: Mapping[str, study.Grid] | None = None,
        seed: int = 0,
    ) -> None:
        self._open, self._grids, self._seed = open_material, grids or {}, seed
        self._done: dict[Hashable, Any] = {}

    def measure(self, experiment: Experiment) -> Figure:
        """Run one experiment.

        Raises
        ------
        NotThere
            If its material is missing.
        MissingExtraError
            If it needs a library that is not installed.
        """
        metric = experiment.metric
        if metric == "setting":
            params = self._setting(experiment)
            return Figure((float(params.get("alpha", 0.0)), int(params.get("reference_k", 0))))
        if metric in ("seconds", "speedup"):
            return self._time(experiment)
        if metric.startswith(("bias@", "precision@")):
            line = self.groups(experiment).line(metric)
            found = line.before if experiment.method == "none" else line.after
            return _figure(found, 100 if metric in _PER_CENT else 1)
        done = self._evaluate(experiment)
        if metric.startswith("recall_at_"):
            hits = done.hits(int(metric.removeprefix("recall_at_")))
            return _figure(
                study.interval_of_mean(hits, study.clusters_of(done.truth), seed=self._seed), 100
            )
        counts = self.occurrences(experiment)
        if metric in ("gain", "ks_p_value"):
            plain = _without(experiment)
            if metric == "ks_p_value":
                return Figure(study.compare_occurrences(self.occurrences(plain), counts)[1])
            before = self._evaluate(plain)
            clusters = study.clusters_of(done.truth)
            gain = study.interval_of_difference(
                done.hits(1), before.hits(1), clusters, seed=self._seed
            )
            return _figure(gain, 100)
        hubness = study.measure_hubness(counts).to_dict()
        if metric not in hubness:
            raise NNNormError(f"there is no way to measure {metric!r}")
        return Figure(hubness[metric] * (100 if metric in _PER_CENT else 1))

    def occurrences(self, experiment: Experiment) -> Counts:
        """Count how often each item is the first hit, for histograms."""
        done = self._evaluate(experiment)
        return study.count_occurrences(done.top1, done.n_gallery)

    def groups(self, experiment: Experiment) -> study.Audit:
        """Return the audit of a gallery in groups, before and after the correction."""
        return self._once(("groups", experiment.model), lambda: self._audit(experiment))

    def _audit(self, experiment: Experiment) -> study.Audit:
        material = self._material(experiment)
        queries, gallery, groups, labels, asked, difference = material.groups()
        bank = material.bank("image", experiment.bank or "", experiment.share)
        return study.audit(
            queries,
            gallery,
            groups=groups,
            bias=NNN(**(experiment.params or {})).fit(gallery, bank, duplicates="keep"),
            ks=(6, 10),
            difference=difference,
            target="equal",
            labels=labels,
            query_labels=asked,
            seed=self._seed,
        )

    def _evaluate(self, experiment: Experiment) -> study.Evaluation:
        plain = experiment.method == "none"
        key = _key(_without(experiment) if plain else experiment)
        if experiment.kind == "scores":
            return self._once(key, lambda: _evaluate_scores(self._material(experiment), plain))
        queries, gallery, truth = self._task(experiment, "test")
        return self._once(
            key,
            lambda: study.evaluate(
                queries, gallery, None if plain else self._bias(experiment), truth=truth
            ),
        )

    def _bias(self, experiment: Experiment) -> Bias:
        if experiment.search == "index":
            return self._timed(experiment).bias
        params = dict(self._setting(experiment))
        method = make_method(experiment.method if params else "none", **params)
        second = self._gallery_bank(experiment) if params else None
        gallery = self._task(experiment, "test").gallery
        bank = self._bank(experiment)
        return method.fit(gallery, bank, gallery_references=second, duplicates="keep")

    def _setting(self, experiment: Experiment) -> Mapping[str, Any]:
        """Return the given parameters, or the best ones on the tuning images."""
        if experiment.params is not None:
            return experiment.params
        if experiment.bank is None:
            raise NNNormError(f"{experiment.method} needs a bank to be tuned with; none was named")
        method, bank = experiment.method, self._bank(experiment)
        grid = self._grids.get(method)
        if grid is None and method == "nnn":
            ks = [k for k in PAPER_GRID["reference_k"] if k <= len(bank)]
            grid = {**PAPER_GRID, "reference_k": ks}

        def choose() -> Mapping[str, Any]:
            queries, gallery, truth = self._task(experiment, "validation")
            with warnings.catch_warnings():
                # The paper's banks are meant to come from another source in some of its tables.
                warnings.filterwarnings("ignore", ".* do not look like the queries", NNNormWarning)
                tuning = study.tune(
                    gallery,
                    bank,
                    queries=queries,
                    truth=truth,
                    methods=(method,),
                    gallery_references=self._gallery_bank(experiment),
                    duplicates="keep",
                    grids=None if grid is None else {method: grid},
                    select="max",
                    seed=self._seed,
                )
            return tuning.best.params

        return self._once(("setting", *_key(experiment)[1:]), choose)

    def _time(self, experiment: Experiment) -> Figure:
        if experiment.metric == "seconds":
            return Figure(self._timed(experiment).seconds)
        exact, index = (
            self._timed(replace(experiment, search=search)).seconds for search in ("exact", "index")
        )
        return Figure(exact / index)

    def _timed(self, experiment: Experiment) -> Timed:
        params = self._setting(experiment)
        if not params:
            raise NotThere("no correction was the best, so there is no bias to be timed")
        gallery, bank = self._task(experiment, "test").gallery, self._bank(experiment)
        clock = time_exact if experiment.search == "exact" else time_index
        given = {name: params[name] for name in ("reference_k", "alpha")}
        return self._once(("seconds", *_key(experiment)), lambda: clock(gallery, bank, **given))

    def _task(self, experiment: Experiment, part: str) -> study.Task:
        def read() -> study.Task:
            queries, gallery, truth = self._material(experiment).task(experiment.direction, part)
            # Opened once, so that checks and fingerprints are computed once.
            return study.Task(
                open_embeddings(queries, name=f"{part} queries"),
                open_embeddings(gallery, name=f"{part} gallery"),
                truth,
            )

        return self._once(("task", *_where(experiment), experiment.direction, part), read)

    def _bank(self, experiment: Experiment) -> Any:
        bank, share, direction = experiment.bank or "", experiment.share, experiment.direction
        return self._once(
            ("bank", *_where(experiment), direction, bank, share),
            lambda: open_embeddings(
                self._material(experiment).bank(direction, bank, share), name="references"
            ),
        )

    def _gallery_bank(self, experiment: Experiment) -> Any:
        if find_method(experiment.method)[0].gallery_bank != "needed":
            return None
        share, direction = experiment.share, experiment.direction
        return self._once(
            ("gallery bank", *_where(experiment), direction, share),
            lambda: open_embeddings(
                self._material(experiment).gallery_bank(direction, share), name="gallery bank"
            ),
        )

    def _material(self, experiment: Experiment) -> Material:
        return self._open(experiment.model, experiment.dataset)

    def _once(self, key: Hashable, make: Callable[[], T]) -> T:
        if key not in self._done:
            self._done[key] = make()
        found: T = self._done[key]
        return found


def _where(experiment: Experiment) -> tuple[str, str]:
    return experiment.model, experiment.dataset


def _key(experiment: Experiment) -> tuple[Hashable, ...]:
    """Return everything that an evaluation depends on, which excludes the metric."""
    params = tuple(sorted((experiment.params or {}).items()))
    return experiment.search, replace(experiment, metric="", search="exact", params=None), params


def _without(experiment: Experiment) -> Experiment:
    """Return the experiment without a correction, bank and settings."""
    return replace(experiment, method="none", bank=None, share=1.0, params=None, search="exact")


def _figure(interval: study.Interval | None, scale: float) -> Figure:
    if interval is None:
        raise NNNormError("there is no figure after the correction")
    return Figure(*(scale * float(end) for end in (interval.mean, interval.low, interval.high)))


def _evaluate_scores(material: Material, plain: bool) -> study.Evaluation:
    """Evaluate ready scores, corrected by the first automatic rule of NNN unless `plain`."""
    ready = material.scores()
    test = open_matrix(ready.test, name="test scores")
    n_gallery, n_queries = test.shape
    if n_gallery != n_queries:
        raise NNNormError(
            f"test scores must have a query per item, query i of item i; got {test.shape}"
        )
    scores = np.array(test.rows(0, n_gallery).T)
    if not plain:
        references = open_matrix(ready.references, name="reference scores")
        if len(references) != n_gallery:
            raise NNNormError(
                f"both score files must have the gallery in rows; got {test.shape} and "
                f"{references.shape}"
            )
        scores -= NNN(rule="first").fit_scores(references).correction
    truth = study.open_truth(np.arange(n_queries), n_queries=n_queries, n_gallery=n_gallery)
    above, tied = study.count_above(scores, truth, 0)
    return study.Evaluation(truth, above, tied, scores.argmax(axis=1), n_gallery, n_gallery)
