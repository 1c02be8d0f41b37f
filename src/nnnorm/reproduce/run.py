"""One runner for all experiments, with the tuning, evaluation and audit of the package.

Settings that the paper tuned are tuned here on the tuning images by the paper's rule, the maximum
of R@1 over its grid: no correction is not among the candidates, so that a loss is a loss. The
one-standard-error rule of the package gives a second figure. Copies in a bank count as often as
they are there, as in the paper.

Steps that cells have in common (a tuning, an evaluation) are computed once per run; embeddings stay
open as long as their model is at work. A cell that fails leaves the others as they are.
"""

import hashlib
import json
import time
import warnings
from collections.abc import Callable, Hashable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt

from nnnorm import evaluation
from nnnorm.bias import Bias
from nnnorm.errors import MissingExtraError, NNNormError, NNNormWarning, first_line
from nnnorm.io import ScoreMatrix, open_embeddings, open_matrix
from nnnorm.methods import NNN, PAPER_GRID, find_method, make_method
from nnnorm.ranking import Ranking, search
from nnnorm.reproduce.material import Groups, Material, NotThere, Shown
from nnnorm.reproduce.paper import Experiment, PaperTable
from nnnorm.reproduce.results import Figure, Results
from nnnorm.reproduce.runtime import (
    Device,
    Timed,
    check_device,
    describe_device,
    time_exact,
    time_index,
)
from nnnorm.version import __version__

T = TypeVar("T")
Counts: TypeAlias = npt.NDArray[np.int64]
_PER_CENT = ("antihub_share", "precision@1", "precision@5")


@dataclass(frozen=True)
class Outcome:
    """One cell: the experiment, its result, and the printed figure.

    Attributes
    ----------
    row, column : str
    experiment : Experiment
    figure : Figure or None
    missing : str or None
        What is not there, where there is no figure, or none by the one-standard-error rule.
    printed : float, tuple (α, k) or None
    by_rule : Figure or None
        The figure with the setting of the one-standard-error rule, where settings were tuned.
    failed : str or None
        What went wrong, where there is no figure, or none by the one-standard-error rule.
    """

    row: str
    column: str
    experiment: Experiment
    figure: Figure | None
    missing: str | None = None
    printed: float | tuple[float, int] | None = None
    by_rule: Figure | None = None
    failed: str | None = None

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
    keep_going: bool = True,
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
    keep_going : bool
        Whether an error becomes the reason of its cell, and the others are run.

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
    cells: dict[Hashable, Outcome] = {}
    for number, cell in enumerate(table.cells):
        experiment, printed = cell.experiment, cell.printed
        if stand_in is not None:
            experiment, printed = experiment.as_stand_in(stand_in), None
        key = number if stand_in is None else str(experiment)
        cells.setdefault(key, Outcome(cell.row, cell.column, experiment, None, None, printed))
    outcomes: list[Outcome] = []
    for outcome in cells.values():
        if step is not None:
            place = f"{len(outcomes) + 1} of {len(cells)}"
            step(f"{table.name}: {outcome.experiment.model}, {outcome.column} ({place})")
        done = run_cell(runner, outcome, keep_going=keep_going, by_rule=not table.is_timed)
        outcomes.append(done)
    return outcomes


def run_cell(runner: "Runner", cell: Outcome, *, keep_going: bool, by_rule: bool) -> Outcome:
    """Run one cell, see `run_table`; a figure stays if the one by the other rule fails.

    Parameters
    ----------
    runner : Runner
    cell : Outcome
        Without figures.
    keep_going : bool
        Whether an error becomes the reason of the cell.
    by_rule : bool
        Whether a tuned cell is also measured by the one-standard-error rule.

    Returns
    -------
    Outcome

    Examples
    --------
    >>> from nnnorm.reproduce.standins import open_stand_in
    >>> name, shapes = open_stand_in("shapes")
    >>> cell = Outcome("CLIP", "original", Experiment("recall_at_1", name, name), None)
    >>> done = run_cell(Runner(lambda *_: shapes), cell, keep_going=True, by_rule=False)
    >>> round(done.figure.value, 1)
    21.4
    """
    there = cell.experiment
    figure = other = None
    try:
        figure = runner.measure(there)
        if by_rule and there.is_tuned:
            other = runner.measure(replace(there, select="one-standard-error"))
    except (NotThere, MissingExtraError) as error:
        return replace(cell, figure=figure, missing=str(error))
    except Exception as error:
        if not keep_going:
            raise
        return replace(cell, figure=figure, failed=_explain(error))
    return replace(cell, figure=figure, by_rule=other)


def _explain(error: Exception) -> str:
    if isinstance(error, NNNormError):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    return f"unexpected {type(error).__name__} ({first_line(error)})"


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
    results : Results, optional
        Where finished cells are kept, and looked for before they are measured.
    device : {"cpu", "cuda", "mps"}
        What the exhaustive search of the runtime table runs on.

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
        grids: Mapping[str, evaluation.Grid] | None = None,
        seed: int = 0,
        results: Results | None = None,
        device: Device = "cpu",
    ) -> None:
        check_device(device)
        self._open, self._grids, self._seed = open_material, grids or {}, seed
        self._results, self._device = results, device
        self._done: dict[Hashable, Any] = {}
        self._opened: dict[Hashable, Any] = {}
        self._model: str | None = None

    @property
    def runs_on(self) -> str:
        """What the runtime table runs on."""
        return describe_device(self._device)

    def measure(self, experiment: Experiment) -> Figure:
        """Run one experiment, or take its figure from the results that were kept.

        Raises
        ------
        NotThere
            If its material is missing.
        MissingExtraError
            If it needs a library that is not installed.
        """
        if self._results is None:
            return self._measure(experiment)
        identity = self._identify(experiment)
        figure = self._results.find(identity)
        if figure is None:
            figure = self._measure(experiment)
            self._results.keep(identity, figure)
        return figure

    def _identify(self, experiment: Experiment) -> dict[str, Any]:
        """All that a figure depends on; `Results` finds nothing if any of it has changed."""
        identity = {
            "experiment": asdict(experiment),
            "inputs": self._fingerprints(experiment),
            "grid": repr(self._grids.get(experiment.method)),
            "seed": self._seed,
            "version": __version__,
        }
        if experiment.metric in ("seconds", "speedup", "tuning_seconds"):
            identity["device"] = self.runs_on
        return identity

    def _fingerprints(self, experiment: Experiment) -> dict[str, list[str]]:
        """Digests of all inputs of an experiment, each computed once."""
        where = _where(experiment)
        if experiment.kind == "scores":
            key = ("prints", "scores", *where)
            made = self._once(key, lambda: _digests(*self._material(experiment).scores()))
            return {"scores": made}
        if experiment.metric.startswith(("bias@", "precision@")):
            key = ("prints", "groups", *where)
            # What is shown of the groups changes no figure.
            read = {
                "groups": self._once(
                    key, lambda: _digests(*self._material(experiment).groups()[:-1])
                )
            }
        else:
            read = {"test": self._print_task(experiment, "test")}
        if experiment.method != "none" or "groups" in read:
            keys = _bank_keys(experiment)
            read["bank"] = self._once(
                ("prints", *keys[0]), lambda: [self._bank(experiment).fingerprint]
            )
            second = ("prints", *keys[1], experiment.method)
            read["gallery bank"] = self._once(
                second, lambda: [_print_or_none(self._gallery_bank(experiment))]
            )
        if experiment.method != "none" and experiment.params is None:
            read["validation"] = self._print_task(experiment, "validation")
        return read

    def _print_task(self, experiment: Experiment, part: str) -> list[str]:
        def read() -> list[str]:
            task = self._task(experiment, part)
            return [task.queries.fingerprint, task.gallery.fingerprint, *_digests(task.truth)]

        return self._once(("prints", *_where(experiment), experiment.direction, part), read)

    def _measure(self, experiment: Experiment) -> Figure:
        metric = experiment.metric
        if metric == "setting":
            params = self._setting(experiment)
            return Figure((float(params.get("alpha", 0.0)), int(params.get("reference_k", 0))))
        if metric in ("seconds", "speedup"):
            return self._time(experiment)
        if metric == "tuning_seconds":
            return Figure(self._time_tuning(experiment))
        if metric.startswith(("bias@", "precision@")):
            line = self.groups(experiment).line(metric)
            found = line.before if experiment.method == "none" else line.after
            return _figure(found, 100 if metric in _PER_CENT else 1)
        done = self._evaluate(experiment)
        if metric.startswith("recall_at_"):
            hits = done.hits(int(metric.removeprefix("recall_at_")))
            return _figure(
                evaluation.interval_of_mean(
                    hits, evaluation.clusters_of(done.truth), seed=self._seed
                ),
                100,
            )
        counts = self.occurrences(experiment)
        if metric in ("gain", "ks_p_value"):
            plain = _without(experiment)
            if metric == "ks_p_value":
                return Figure(evaluation.compare_occurrences(self.occurrences(plain), counts)[1])
            before = self._evaluate(plain)
            clusters = evaluation.clusters_of(done.truth)
            gain = evaluation.interval_of_difference(
                done.hits(1), before.hits(1), clusters, seed=self._seed
            )
            return _figure(gain, 100)
        hubness = evaluation.measure_hubness(counts).to_dict()
        if metric not in hubness:
            raise NNNormError(f"there is no way to measure {metric!r}")
        return Figure(hubness[metric] * (100 if metric in _PER_CENT else 1))

    def occurrences(self, experiment: Experiment) -> Counts:
        """Count how often each item is the first hit, for histograms."""
        done = self._evaluate(experiment)
        return evaluation.count_occurrences(done.top1, done.n_gallery)

    def search(self, experiment: Experiment, k: int) -> Ranking:
        """Return the first k items of the test queries."""
        bias = None if experiment.method == "none" else self._bias(experiment)
        queries, gallery, _ = self._task(experiment, "test")
        return search(queries, gallery, bias, k=min(k, len(gallery)))

    def show(self, experiment: Experiment) -> tuple[Shown, evaluation.Truth]:
        """Return the test queries and items as people see them, and which belong together."""
        queries, gallery, truth = self._task(experiment, "test")
        right = evaluation.open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
        return self._material(experiment).show(experiment.direction), right

    def search_groups(self, experiment: Experiment, k: int) -> tuple[Groups, Ranking]:
        """Return a gallery in groups, and the first k items of its queries."""
        found = self._material(experiment).groups()
        plain = experiment.method == "none"
        bias = None if plain else self._bias_of_groups(experiment, found.gallery)
        return found, search(found.queries, found.gallery, bias, k=k)

    def _bias_of_groups(self, experiment: Experiment, gallery: Any) -> Bias:
        bank = self._bank(experiment)
        return NNN(**(experiment.params or {})).fit(gallery, bank, duplicates="keep")

    def groups(self, experiment: Experiment) -> evaluation.Audit:
        """Return the audit of a gallery in groups, before and after the correction."""
        return self._once(("groups", experiment.model), lambda: self._audit(experiment))

    def _audit(self, experiment: Experiment) -> evaluation.Audit:
        material = self._material(experiment)
        queries, gallery, groups, labels, asked, difference, _ = material.groups()
        return evaluation.audit(
            queries,
            gallery,
            groups=groups,
            bias=self._bias_of_groups(experiment, gallery),
            ks=(6, 10),
            difference=difference,
            target="equal",
            labels=labels,
            query_labels=asked,
            seed=self._seed,
        )

    def _evaluate(self, experiment: Experiment) -> evaluation.Evaluation:
        plain = experiment.method == "none"
        key = _key(_without(experiment) if plain else experiment)
        if experiment.kind == "scores":
            return self._once(key, lambda: _evaluate_scores(self._material(experiment), plain))

        def evaluate() -> evaluation.Evaluation:
            bias = None if plain else self._bias(experiment)
            queries, gallery, truth = self._task(experiment, "test")
            return evaluation.evaluate(queries, gallery, bias, truth=truth)

        return self._once(key, evaluate)

    def _bias(self, experiment: Experiment) -> Bias:
        if experiment.search == "index":
            return self._timed(experiment).bias
        params = dict(self._setting(experiment))
        method = make_method(experiment.method if params else "none", **params)
        second = self._gallery_bank(experiment) if params else None
        gallery = self._task(experiment, "test").gallery
        bank = self._bank(experiment)
        if (k := params.get("reference_k", 0)) > len(bank):
            # The setting of another experiment may suit a larger bank only.
            raise NotThere(f"the bank has {len(bank)} references, too few for k = {k}")
        return method.fit(gallery, bank, gallery_references=second, duplicates="keep")

    def _setting(self, experiment: Experiment) -> Mapping[str, Any]:
        """Return the given parameters, or those that the experiment's rule chooses.

        The paper's rule takes the best cell of its grid, the first of several; only the package's
        own rule may prefer no correction, with no parameters.
        """
        if experiment.params is not None:
            return experiment.params
        tuning = self.tuning(replace(experiment, select="max"))
        if experiment.select == "one-standard-error":
            return tuning.best_by_rule.params
        return max(tuning.grid[1:], key=lambda cell: cell.recall_at_1).params

    def tuning(self, experiment: Experiment) -> evaluation.Tuning:
        """Try the paper's grid on the tuning images, with no correction beside it."""
        if experiment.bank is None:
            raise NNNormError(f"{experiment.method} needs a bank to be tuned with; none was named")
        return self._once(("tuning", *_key(experiment)[1:]), lambda: self._tune(experiment))

    def _tune(self, experiment: Experiment) -> evaluation.Tuning:
        method, bank = experiment.method, self._bank(experiment)
        grid = self._grids.get(method)
        if grid is None and method == "nnn":
            ks = [k for k in PAPER_GRID["reference_k"] if k <= len(bank)]
            grid = {**PAPER_GRID, "reference_k": ks}
        queries, gallery, truth = self._task(experiment, "validation")
        with warnings.catch_warnings():
            # The paper's banks are meant to come from another source in some of its tables.
            warnings.filterwarnings("ignore", ".* do not look like the queries", NNNormWarning)
            return evaluation.tune(
                gallery,
                bank,
                queries=queries,
                truth=truth,
                methods=(method,),
                gallery_references=self._gallery_bank(experiment),
                duplicates="keep",
                grids=None if grid is None else {method: grid},
                seed=self._seed,
            )

    def _time_tuning(self, experiment: Experiment) -> float:
        """Return the processor seconds of one more tuning, with all inputs open."""
        self.tuning(experiment)
        started = time.process_time()
        self._tune(experiment)
        return time.process_time() - started

    def _time(self, experiment: Experiment) -> Figure:
        if experiment.metric == "seconds":
            return Figure(self._timed(experiment).seconds)
        exact, index = (
            self._timed(replace(experiment, search=search)).seconds for search in ("exact", "index")
        )
        return Figure(exact / index)

    def _timed(self, experiment: Experiment) -> Timed:
        params = self._setting(experiment)
        given = {name: params[name] for name in ("reference_k", "alpha")}

        def measure() -> Timed:
            sides = self._task(experiment, "test").gallery, self._bank(experiment)
            if experiment.search == "exact":
                return time_exact(*sides, **given, device=self._device)
            return time_index(*sides, **given)

        return self._once(("seconds", *_key(experiment)), measure)

    def _task(self, experiment: Experiment, part: str) -> evaluation.Task:
        def read() -> evaluation.Task:
            queries, gallery, truth = self._material(experiment).task(experiment.direction, part)
            # Opened once, so that checks and fingerprints are computed once.
            return evaluation.Task(
                open_embeddings(queries, name=f"{part} queries"),
                open_embeddings(gallery, name=f"{part} gallery"),
                truth,
            )

        return self._keep_open(
            experiment, ("task", experiment.dataset, experiment.direction, part), read
        )

    def _bank(self, experiment: Experiment) -> Any:
        bank, share, direction = experiment.bank or "", experiment.share, experiment.direction
        return self._keep_open(
            experiment,
            _bank_keys(experiment)[0],
            lambda: open_embeddings(
                self._material(experiment).bank(direction, bank, share), name="references"
            ),
        )

    def _gallery_bank(self, experiment: Experiment) -> Any:
        if find_method(experiment.method)[0].gallery_bank != "needed":
            return None
        share, direction = experiment.share, experiment.direction
        return self._keep_open(
            experiment,
            _bank_keys(experiment)[1],
            lambda: open_embeddings(
                self._material(experiment).gallery_bank(direction, share), name="gallery bank"
            ),
        )

    def _material(self, experiment: Experiment) -> Material:
        return self._open(experiment.model, experiment.dataset)

    def _keep_open(self, experiment: Experiment, key: Hashable, make: Callable[[], T]) -> T:
        """Open embeddings once per model; those of one model fit in memory, those of all do not."""
        if self._model != experiment.model:
            self._model = experiment.model
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


def _where(experiment: Experiment) -> tuple[str, str]:
    return experiment.model, experiment.dataset


def _bank_keys(experiment: Experiment) -> tuple[tuple[Hashable, ...], tuple[Hashable, ...]]:
    """Return what a bank, and a gallery bank, are known by."""
    where = *_where(experiment), experiment.direction
    bank = ("bank", *where, experiment.bank or "", experiment.share)
    return bank, ("gallery bank", *where, experiment.share)


def _print_or_none(bank: Any) -> str:
    return "" if bank is None else str(bank.fingerprint)


def _digests(*parts: Any) -> list[str]:
    """Return a digest of each part: embeddings, ready scores, arrays or lists of words."""
    found = []
    for part in parts:
        if hasattr(part, "fingerprint"):
            found.append(str(part.fingerprint))
            continue
        digest = hashlib.sha256()
        if isinstance(part, ScoreMatrix):
            for _, block in part.blocks():
                digest.update(np.ascontiguousarray(block).data)
        elif isinstance(part, np.ndarray):
            digest.update(f"{part.dtype}{part.shape}".encode())
            digest.update(np.ascontiguousarray(part).data)
        else:
            digest.update(json.dumps(list(part)).encode())
        found.append(digest.hexdigest()[:32])
    return found


def _key(experiment: Experiment) -> tuple[Hashable, ...]:
    """Return everything that an evaluation depends on, which excludes the metric."""
    params = tuple(sorted((experiment.params or {}).items()))
    return experiment.search, replace(experiment, metric="", search="exact", params=None), params


def _without(experiment: Experiment) -> Experiment:
    """Return the experiment without a correction, bank and settings."""
    return replace(
        experiment,
        method="none",
        bank=None,
        share=1.0,
        params=None,
        search="exact",
        select="max",
    )


def _figure(interval: evaluation.Interval | None, scale: float) -> Figure:
    if interval is None:
        raise NNNormError("there is no figure after the correction")
    return Figure(*(scale * float(end) for end in (interval.mean, interval.low, interval.high)))


def _evaluate_scores(material: Material, plain: bool) -> evaluation.Evaluation:
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
    truth = evaluation.open_truth(np.arange(n_queries), n_queries=n_queries, n_gallery=n_gallery)
    above, tied = evaluation.count_above(scores, truth, 0)
    return evaluation.Evaluation(truth, above, tied, scores.argmax(axis=1), n_gallery, n_gallery)
