"""Runs all experiments with the tuning, evaluation and audit of the package.

Settings that the paper tuned are tuned here on the tuning images, by the paper's rule: the largest
R@1 over its grid. "No correction" isn't a candidate, so the tables show losses. The package's
one-standard-error rule gives a second result. Duplicates in a bank all count, as in the paper.

Steps that cells share (tuning, evaluation) are computed once per run, and embeddings stay open
until the next model. If a cell fails, the others are still measured. Finished cells are stored in a
folder, one file each, so an interrupted run can be continued. The name of a file is a digest of all
inputs of its result: the experiment, the content of the embeddings, the seed and the version. So
results for other inputs are never reused.
"""

import hashlib
import json
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

import nnnorm
from nnnorm import NNN, Bias, NNNormError, Ranking, evaluation
from nnnorm.errors import MissingExtraError, quiet, warn
from nnnorm.evaluation import Task
from nnnorm.files import make_folder, write_whole
from nnnorm.methods import PAPER_GRID, make_method
from reproduction import show_progress
from reproduction.material import Groups, Material, MissingData, Scores, Shown
from reproduction.paper import Cell, Experiment, Figure, PaperTable
from reproduction.runtime import Timed, describe_device, time_exact, time_index

_PER_CENT = ("antihub_share", "precision@1", "precision@5")


def run_table(runner: "Runner", table: PaperTable, *, data: str | None = None) -> list[Cell]:
    """Run all cells of a table; on other data, each different experiment once."""
    cells: Sequence[Cell] = table.cells
    if data is not None:
        moved: dict[Experiment, Cell] = {}
        for cell in cells:
            there = cell.experiment.on_other_data(data)
            moved.setdefault(there, replace(cell, experiment=there, printed=None))
        cells = list(moved.values())
    done = []
    for number, cell in enumerate(cells, 1):
        model = cell.experiment.model
        show_progress(f"{table.name}: {model}, {cell.column} ({number} of {len(cells)})")
        done.append(run_cell(runner, cell, by_rule=not table.is_timed))
    return done


def run_cell(runner: "Runner", cell: Cell, *, by_rule: bool) -> Cell:
    """Run one cell; if the other rule fails, keep the first result."""
    figure = other = None
    try:
        figure = runner.measure(cell.experiment)
        if by_rule and cell.experiment.is_tuned:
            other = runner.measure(replace(cell.experiment, select="one-standard-error"))
    except (MissingData, MissingExtraError) as error:
        return replace(cell, figure=figure, missing=str(error))
    except Exception as error:
        if runner.debug:
            raise
        words = str(error) if isinstance(error, NNNormError) else repr(error)
        return replace(cell, figure=figure, failed=words.partition("\n")[0])
    return replace(cell, figure=figure, by_rule=other)


class Results:
    """A folder of stored results, created when the first cell is finished."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.n_found = self.n_kept = 0

    def find(self, identity: Mapping[str, Any]) -> Figure | None:
        """Return the stored result of exactly this experiment and these inputs, if any."""
        try:
            figure = json.loads(self._path(identity).read_text(encoding="utf-8"))["figure"]
            value = figure["value"]
            value = (float(value[0]), int(value[1])) if isinstance(value, list) else float(value)
            found = Figure(value, figure["low"], figure["high"], figure["used"])
        except (OSError, KeyError, TypeError, ValueError, IndexError):
            return None  # missing or damaged, so it is measured again and overwritten
        self.n_found += 1
        return found

    def keep(self, identity: Mapping[str, Any], figure: Figure) -> None:
        """Store a result with its inputs."""
        text = json.dumps({"figure": asdict(figure), **identity}, indent=1, ensure_ascii=False)
        try:
            make_folder(self._folder)
            write_whole(self._path(identity), lambda file: file.write(text.encode()))
        except (NNNormError, OSError) as error:
            warn(f"a finished cell can't be stored ({error}), so a resumed run will repeat it")
        else:
            self.n_kept += 1

    def _path(self, identity: Mapping[str, Any]) -> Path:
        text = json.dumps({"format": 2, **identity}, sort_keys=True)
        return self._folder / f"{hashlib.sha256(text.encode()).hexdigest()[:32]}.json"


class Runner:
    """Runs experiments on the `Material` that `open_material(model, dataset)` returns."""

    def __init__(
        self,
        open_material: Callable[[str, str], Material],
        *,
        seed: int = 0,
        results: Results | None = None,
        device: str = "cpu",
        debug: bool = False,
    ) -> None:
        self.debug = debug  # if a cell fails, stop the run
        self._open, self._seed, self._results, self._device = open_material, seed, results, device
        self.runs_on = describe_device(device)
        self._opened: dict[str, dict[Hashable, Any]] = {}

    @cache
    def measure(self, there: Experiment) -> Figure:
        """Return the stored result of an experiment, or run it."""
        if self._results is None:
            return self._measure(there)
        identity = {
            "experiment": asdict(there),
            "inputs": [d for a in there.list_inputs() for d in _digest(self._material(there, *a))],
            "seed": self._seed,
            "version": nnnorm.__version__,
        }
        if there.is_timed:
            identity["device"] = self.runs_on
        figure = self._results.find(identity)
        if figure is None:
            figure = self._measure(there)
            self._results.keep(identity, figure)
        return figure

    def _measure(self, there: Experiment) -> Figure:
        value, low, high = self._find_value(there)
        if there.method == "none":
            return Figure(value, low, high)
        is_scores = there.kind == "scores"
        bank = self._material(there, "scores").references.T if is_scores else self._banks(there)[0]
        used = {"bank": there.bank, "share": there.share, "n_references": len(bank)}
        return Figure(value, low, high, {**used, **(self._setting(there) or {"method": "none"})})

    def _find_value(self, there: Experiment) -> tuple[Any, float | None, float | None]:
        metric = there.metric
        scale = 100 if metric in _PER_CENT else 1
        if metric == "setting":
            params = self._setting(there)
            return (float(params.get("alpha", 0)), int(params.get("reference_k", 0))), None, None
        if metric == "seconds":
            return self._timed(there).seconds, None, None
        if metric == "speedup":
            exact, index = (self._timed(replace(there, search=how)) for how in ("exact", "index"))
            return exact.seconds / index.seconds, None, None
        if there.is_about_groups:
            line = self.groups(there).line(metric)
            return _scale(line.before if there.method == "none" else line.after, scale)
        done = self._evaluate(there)
        clusters = done.truth.clusters
        if metric.startswith("recall_at_"):
            hits = done.hits(int(metric.removeprefix("recall_at_")))
            return _scale(evaluation.interval_of_mean(hits, clusters, seed=self._seed), 100)
        plain = there.without_correction()
        if metric == "gain":
            after, before = done.hits(1), self._evaluate(plain).hits(1)
            gain = evaluation.interval_of_difference(after, before, clusters, seed=self._seed)
            return _scale(gain, 100)
        counts = self.occurrences(there)
        if metric == "ks_p_value":
            return evaluation.compare_occurrences(self.occurrences(plain), counts)[1], None, None
        return evaluation.measure_hubness(counts).to_dict()[metric] * scale, None, None

    def occurrences(self, experiment: Experiment) -> npt.NDArray[np.int64]:
        """Count how often each item is top-1, for histograms."""
        done = self._evaluate(experiment)
        return evaluation.count_occurrences(done.top1, done.n_gallery)

    def search(self, experiment: Experiment, k: int) -> Ranking:
        """Return the best k items of the test queries."""
        bias = None if experiment.method == "none" else self._bias(experiment)
        queries, gallery, _ = self._task(experiment, "test")
        return nnnorm.search(queries, gallery, bias, k=min(k, len(gallery)))

    def show(self, experiment: Experiment) -> tuple[Shown, evaluation.Truth]:
        """Return the test queries and items in readable form, and their right pairs."""
        shown = self._material(experiment, "show", experiment.direction)
        return shown, self._evaluate(experiment).truth

    def search_groups(self, experiment: Experiment, k: int) -> tuple[Groups, Ranking]:
        """Return a gallery in groups, and the best k items of its queries."""
        found: Groups = self._material(experiment, "groups")
        bias = None if experiment.method == "none" else self._fit(experiment, found.gallery)
        return found, nnnorm.search(found.queries, found.gallery, bias, k=k)

    def groups(self, experiment: Experiment) -> evaluation.Audit:
        """Return the audit of a gallery in groups, before and after the correction."""
        return self._audit(replace(experiment, method="nnn", metric=""))

    @cache
    def _audit(self, there: Experiment) -> evaluation.Audit:
        about: Groups = self._material(there, "groups")
        known: Any = {"groups": about.groups, "labels": about.labels, "query_labels": about.asked}
        known |= {"difference": about.difference, "target": "equal", "ks": (6, 10)}
        bias = self._fit(there, about.gallery)
        return nnnorm.audit(about.queries, about.gallery, bias, **known, seed=self._seed)

    def _evaluate(self, there: Experiment) -> evaluation.Evaluation:
        there = there.without_correction() if there.method == "none" else there
        return self._evaluate_once(replace(there, metric=""))

    @cache
    def _evaluate_once(self, there: Experiment) -> evaluation.Evaluation:
        bias = None
        if there.kind == "scores":  # the inner products of their columns with unit vectors
            ready = self._material(there, "scores")
            if there.method != "none":
                params = _check_k(there.params or {}, ready.references.shape[1])
                bias = NNN(**params).fit_scores(ready.references)
            items = np.eye(len(ready.test), dtype=np.float32)
            queries = np.ascontiguousarray(ready.test.T, dtype=np.float32)
            truth = np.arange(len(items))
            return nnnorm.evaluate(queries, items, bias, truth=truth, normalize=False)
        if there.method != "none":
            bias = self._bias(there)
        queries, gallery, truth = self._task(there, "test")
        return nnnorm.evaluate(queries, gallery, bias, truth=truth)

    def _bias(self, there: Experiment) -> Bias:
        if there.search == "index":
            return self._timed(there).bias
        return self._fit(there, self._task(there, "test").gallery)

    def _fit(self, there: Experiment, gallery: Any) -> Bias:
        bank, second = self._banks(there)
        params = _check_k(self._setting(there), len(bank))
        method = make_method(there.method if params else "none", **params)
        second = second if params else None
        return method.fit(gallery, bank, gallery_references=second, duplicates="keep")

    def _setting(self, there: Experiment) -> Mapping[str, Any]:
        """Return the given parameters, or those that the experiment's rule chooses."""
        if there.params is not None:
            return there.params
        tuning = self._tune(replace(there, metric="", search="exact", select="max"))
        if there.select == "one-standard-error":
            return tuning.best_by_rule.params
        return max(tuning.grid[1:], key=lambda cell: cell.recall_at_1).params

    @cache
    def _tune(self, there: Experiment) -> evaluation.Tuning:
        """Try the paper's grid on the tuning images."""
        bank, second = self._banks(there)
        # Appendix B.1: other methods are tuned over the paper's grids by default.
        ks = [k for k in PAPER_GRID["reference_k"] if k <= len(bank)]
        grids = {"nnn": {**PAPER_GRID, "reference_k": ks}} if there.method == "nnn" else None
        queries, gallery, truth = self._task(there, "validation")
        known: Any = {"queries": queries, "truth": truth, "gallery_references": second}
        how: Any = {"methods": (there.method,), "grids": grids}
        # Some of the paper's tables use mismatched past queries on purpose.
        with quiet(".* do not look like the queries"):
            return nnnorm.tune(gallery, bank, **known, **how, duplicates="keep", seed=self._seed)

    def _timed(self, there: Experiment) -> Timed:
        return self._time(replace(there, metric=""))

    @cache
    def _time(self, there: Experiment) -> Timed:
        gallery, bank = self._task(there, "test").gallery, self._banks(there)[0]
        if there.search == "index":
            return time_index(gallery, bank, **self._setting(there))
        return time_exact(gallery, bank, **self._setting(there), device=self._device)

    # --- inputs of experiments ---

    def _task(self, there: Experiment, part: str) -> Task:
        return self._material(there, "task", there.direction, part)

    def _banks(self, there: Experiment) -> list[Any]:
        """Return the references, and the gallery bank or None."""
        found = [self._material(there, *a) for a in there.list_inputs() if a[0] == "references"]
        return [*found, None][:2]

    def _material(self, there: Experiment, what: str, *about: Any) -> Any:
        """Open material once, and keep that of one model; all models wouldn't fit in memory."""
        if there.model not in self._opened:
            self._opened = {there.model: {}}
        opened, key = self._opened[there.model], (what, there.dataset, *about)
        if key not in opened:
            opened[key] = getattr(self._open(there.model, there.dataset), what)(*about)
        return opened[key]


def _check_k(params: Mapping[str, Any], n_references: int) -> dict[str, Any]:
    if (k := params.get("reference_k", 0)) > n_references:
        # A setting from another experiment may need a larger bank.
        raise MissingData(f"the bank has {n_references} references, too few for k = {k}")
    return dict(params)


def _scale(interval: Any, scale: float) -> tuple[float, float, float]:
    return scale * interval.mean, scale * interval.low, scale * interval.high


def _digest(part: Any) -> list[str]:
    """Return digests of embeddings, arrays, lists of words, or tuples of these."""
    if isinstance(part, Shown):  # it doesn't change any result
        return []
    if isinstance(part, Task | Groups | Scores):
        return [digest for one in part for digest in _digest(one)]
    if hasattr(part, "fingerprint"):
        return [str(part.fingerprint)]
    if isinstance(part, np.ndarray):
        about, content = f"{part.dtype}{part.shape}", np.ascontiguousarray(part).tobytes()
    else:
        about, content = "", json.dumps(part).encode()
    return [hashlib.sha256(about.encode() + content).hexdigest()]
