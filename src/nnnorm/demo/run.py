"""The main job from end to end, on the shapes that ship with the package.

Hubs are counted, a setting is tuned on validation, the search is corrected and tested, methods are
compared, and a few queries are followed before and after. `run_demo` makes all figures and writes
the files; `story.py` puts it into words.
"""

import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from nnnorm.bias import Bias
from nnnorm.datasets import Shapes, load_shapes
from nnnorm.errors import MissingExtraError, NNNormWarning
from nnnorm.evaluation import (
    Comparison,
    Diagnosis,
    Result,
    Task,
    Tuning,
    compare,
    diagnose,
    evaluate,
    find_hubs,
    find_rescued,
    make_result,
    open_truth,
    report_gain,
    tune,
)
from nnnorm.files import make_folder
from nnnorm.methods import NNN, NO_CORRECTION, MethodName, make_method
from nnnorm.ranking import Ranking, search
from nnnorm.report import GREEN, ORANGE, Hits, plot_hits

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Step: TypeAlias = Callable[[str], None]

# Few enough values to take seconds, around what the authors of each method advise; Sinkhorn alone
# would take longer than all others.
_METHODS: tuple[MethodName, ...] = ("nnn", "csls", "dn", "is", "qbnorm", "dualis")
_BETAS = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
_GRIDS: dict[str, Any] = {
    "csls": {"reference_k": (4, 16, 64, 256)},
    "is": {"beta": _BETAS},
    "qbnorm": {"beta": _BETAS},
    "dualis": {"beta_query": _BETAS, "beta_gallery": (0.0, 1.0, 5.0, 15.0)},
}
_SHOWN = 5
_LONGEST = 54  # letters of a caption that fit on the contact sheet
_PIXELS = 108


@dataclass(frozen=True)
class Example:
    """A query and its first pictures, before and after."""

    query: int
    caption: str
    right: int
    before: tuple[int, ...]
    after: tuple[int, ...]
    helped: bool


@dataclass(frozen=True, eq=False)
class Demo:
    """All that the demo found."""

    shapes: Shapes = field(repr=False)
    diagnosis: Diagnosis
    tuning: Tuning
    uncorrected: Result
    untuned: Result
    tuned: Result
    comparison: Comparison
    examples: tuple[Example, ...]
    n_gained: int
    n_lost: int
    output: Path
    files: tuple[str, ...]
    notes: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """All figures, ready for JSON."""
        return {
            "data": {
                "n_gallery": len(self.shapes.gallery),
                "n_queries": len(self.shapes.queries),
                "n_references": len(self.shapes.references),
                "n_validation": len(self.shapes.validation_queries),
                "dim": self.shapes.gallery.shape[1],
            },
            "uncorrected": self.uncorrected.to_dict(),
            "untuned": self.untuned.to_dict(),
            "tuned": self.tuned.to_dict(),
            "tuning": self.tuning.to_dict(),
            "hubness": self.diagnosis.to_dict(),
            "comparison": self.comparison.to_dict(),
            "examples": [asdict(example) for example in self.examples],
            "n_gained": self.n_gained,
            "n_lost": self.n_lost,
            "output": str(self.output),
            "files": list(self.files),
            "notes": list(self.notes),
        }


def run_demo(output: str | Path = "demo-output", *, step: Step | None = None) -> Demo:
    """Run the main job; write a bias, a contact sheet and plots."""
    with warnings.catch_warnings():
        # Short captions such as "a red star" are written for several pictures.
        warnings.filterwarnings("ignore", ".* rows of references are among", NNNormWarning)
        return _run(make_folder(output), step or (lambda _: None))


def _run(folder: Path, say: Step) -> Demo:
    say("Loading")
    shapes = load_shapes()
    say("Tuning NNN on validation captions")
    tuning = tune(
        shapes.validation_gallery,
        shapes.references,
        queries=shapes.validation_queries,
        truth=shapes.validation_truth,
    )
    say("Searching, before and after")
    method = make_method(tuning.best.method, **tuning.best.params)
    bias = method.fit(shapes.gallery, shapes.references, duplicates="drop")  # as tuned
    bias.save(folder / "bias.safetensors")
    uncorrected, untuned, tuned = _measure(shapes, bias)
    diagnosis = diagnose(shapes.queries, shapes.gallery, bias, truth=shapes.truth)
    say("Comparing methods")
    comparison = compare(
        shapes.gallery,
        shapes.references,
        queries=shapes.queries,
        truth=shapes.truth,
        validation=Task(
            shapes.validation_queries, shapes.validation_gallery, shapes.validation_truth
        ),
        gallery_references=shapes.gallery_references,
        methods=_METHODS,
        grids=_GRIDS,
    )
    say("Drawing")
    before = search(shapes.queries, shapes.gallery, k=_SHOWN)
    after = search(shapes.queries, shapes.gallery, bias, k=_SHOWN)
    first = before.indices[:, 0] == shapes.truth, after.indices[:, 0] == shapes.truth
    hubs = frozenset(map(int, find_hubs(diagnosis.occurrences)))
    examples = _pick_examples(shapes, before, after, hubs)
    files, notes = ["bias.safetensors"], []
    try:
        sheet = _draw_examples(shapes, examples, hubs)
        files += _plot(folder, sheet, diagnosis, tuning, comparison)
    except MissingExtraError as error:
        notes.append(f"No plots: {error}")
    return Demo(
        shapes=shapes,
        diagnosis=diagnosis,
        tuning=tuning,
        uncorrected=uncorrected,
        untuned=untuned,
        tuned=tuned,
        comparison=comparison,
        examples=examples,
        n_gained=int((~first[0] & first[1]).sum()),
        n_lost=int((first[0] & ~first[1]).sum()),
        output=folder,
        files=tuple(files),
        notes=tuple(notes),
    )


def _draw_examples(shapes: Shapes, examples: tuple[Example, ...], hubs: frozenset[int]) -> "Figure":
    """Draw the contact sheet: the right picture framed green, hubs orange."""

    def frame(hits: Hits, item: int) -> str | None:
        return GREEN if item in hits.right else ORANGE if item in hubs else None

    found = [
        Hits(
            example.caption + ("" if example.helped else " - worse with it"),
            example.before,
            example.after,
            [example.right],
        )
        for example in examples
    ]
    legend = "green: the right picture, orange: a hub"
    return plot_hits(found, lambda item: shapes.draw(item, _PIXELS), frame, legend)


def _measure(shapes: Shapes, bias: Bias) -> tuple[Result, Result, Result]:
    """No correction, the automatic NNN and the tuned one, on the test captions."""
    raw = evaluate(shapes.queries, shapes.gallery, truth=shapes.truth)
    untuned, tuned = (
        report_gain(
            correction.method,
            correction.params,
            evaluate(shapes.queries, shapes.gallery, correction, truth=shapes.truth),
            raw,
        )
        for correction in (NNN().fit(shapes.gallery, shapes.references), bias)
    )
    return make_result(NO_CORRECTION, {}, raw, None), untuned, tuned


def _pick_examples(
    shapes: Shapes, before: Ranking, after: Ranking, hubs: frozenset[int]
) -> tuple[Example, ...]:
    """Two captions that the correction answers rightly instead of with a hub, and one it loses."""
    fits = np.array([len(caption) <= _LONGEST for caption in shapes.captions])
    truth = open_truth(shapes.truth, n_queries=len(fits), n_gallery=len(shapes.gallery))
    first = [truth.holds(ranking.indices[:, 0]) for ranking in (before, after)]
    chosen: list[int] = []
    for query in find_rescued(before.indices, after.indices, truth, list(hubs)):
        if fits[query] and len(chosen) < 2 and shapes.truth[query] not in shapes.truth[chosen]:
            chosen.append(int(query))
    chosen += [int(query) for query in np.flatnonzero(fits & first[0] & ~first[1])[:1]]
    return tuple(
        Example(
            query=query,
            caption=shapes.captions[query],
            right=int(shapes.truth[query]),
            before=tuple(map(int, before.indices[query])),
            after=tuple(map(int, after.indices[query])),
            helped=bool(first[1][query]),
        )
        for query in chosen
    )


def _plot(
    folder: Path, sheet: "Figure", diagnosis: Diagnosis, tuning: Tuning, comparison: Comparison
) -> list[str]:
    from nnnorm.report import plots

    figures = {
        "contact-sheet.png": sheet,
        "occurrences.png": plots.plot_occurrences(
            diagnosis.occurrences, diagnosis.occurrences_after, k=diagnosis.k
        ),
        "grid.png": plots.plot_grid(tuning),
        "gains.png": plots.plot_gains(comparison),
    }
    for name, figure in figures.items():
        plots.save_figure(figure, folder / name)
    return list(figures)
