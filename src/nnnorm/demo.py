"""`nnnorm demo`: the main job on the shapes that ship with the package.

`run_demo` counts hubs, tunes NNN on validation captions, compares it with other methods on test
captions, picks three examples and writes the files. `describe_demo` puts the results into words.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from nnnorm import NNN, compare, evaluate, evaluation, load_shapes, search, tune
from nnnorm.datasets import Shapes, read_scene
from nnnorm.errors import MissingExtraError, quiet
from nnnorm.files import make_folder
from nnnorm.methods import MethodName, describe_setting, make_method
from nnnorm.report import GREEN, ORANGE, Hits, Table, plot_hits, plots, tables

# A few values around what the authors of each method advise, so that the demo takes seconds.
_METHODS: tuple[MethodName, ...] = ("nnn", "csls", "dn", "is", "qbnorm", "dualis")
_BETAS = (2.0, 5.0, 10.0, 20.0, 40.0, 80.0)
_GRIDS: dict[str, Any] = {
    "csls": {"reference_k": (4, 16, 64, 256)},
    "is": {"beta": _BETAS},
    "qbnorm": {"beta": _BETAS},
    "dualis": {"beta_query": _BETAS, "beta_gallery": (0.0, 1.0, 5.0, 15.0)},
}
_N_SHOWN, _N_PRINTED = 5, 3  # pictures per example, drawn and in words
_LONGEST = 54  # letters of an example's caption
_FILES = {
    "bias.safetensors": "the tuned correction, ready for nnnorm search",
    "contact-sheet.png": "these examples as pictures; hubs framed orange",
    "occurrences.png": "how often each picture is the top result, before and after",
    "grid.png": "R@1 of every setting that was tried",
    "gains.png": "the gain of each method with its interval",
}
_NEXT = """
6. Your data
With your own embeddings (one row per item or query, all from one model; add
--normalize to both commands for cosine) and past queries, no labels needed:

  nnnorm fit    --gallery GALLERY.npy --references PAST_QUERIES.npy \\
                -o bias.safetensors
  nnnorm search --gallery GALLERY.npy --queries QUERIES.npy \\
                --bias bias.safetensors

nnnorm check reports whether you have hubs and whether the correction helps.
nnnorm explore shows your data on a page, or this demo's if you pass no files."""


class Example(NamedTuple):
    """A query and its first pictures, before and after."""

    query: int
    caption: str
    right: int
    before: list[int]
    after: list[int]
    helped: bool


@dataclass(frozen=True, eq=False)
class Demo:
    """The figures of the demo; `untuned` is NNN with automatic settings."""

    shapes: Shapes = field(repr=False)
    diagnosis: evaluation.Diagnosis
    tuning: evaluation.Tuning
    untuned: evaluation.Result
    comparison: evaluation.Comparison
    examples: list[Example]
    n_gained: int
    n_lost: int
    output: Path
    files: list[str]
    notes: list[str]

    @property
    def uncorrected(self) -> evaluation.Result:
        """No correction, on the test captions."""
        return self.comparison.results[0]

    @property
    def tuned(self) -> evaluation.Result:
        """NNN as tuned, on the test captions."""
        return self.comparison.results[1]

    def to_dict(self) -> dict[str, Any]:
        """Return all figures, ready for JSON."""
        return {
            "data": {
                "n_gallery": len(self.shapes.gallery),
                "n_queries": len(self.shapes.queries),
                "n_references": len(self.shapes.references),
                "n_validation": len(self.shapes.validation_queries),
                "dim": self.shapes.gallery.shape[1],
            },
            **{name: getattr(self, name).to_dict() for name in ("uncorrected", "untuned", "tuned")},
            "tuning": self.tuning.to_dict(),
            "hubness": self.diagnosis.to_dict(),
            "comparison": self.comparison.to_dict(),
            "examples": [example._asdict() for example in self.examples],
            "output": str(self.output),
            **{name: getattr(self, name) for name in ("n_gained", "n_lost", "files", "notes")},
        }


@quiet(".* rows of references are among")  # "a red star" is written for several pictures
def run_demo(output: str | Path = "demo-output", *, step: Callable[[str], None] = print) -> Demo:
    """Run the main job; write a bias, a contact sheet and plots."""
    folder, shapes = make_folder(output), load_shapes()
    gallery, past = shapes.gallery, shapes.references
    test: dict[str, Any] = {"queries": shapes.queries, "truth": shapes.truth}
    held_out = evaluation.Task(
        shapes.validation_queries, shapes.validation_gallery, shapes.validation_truth
    )
    step("Tuning NNN on validation captions")
    tuning = tune(held_out.gallery, past, queries=held_out.queries, truth=held_out.truth)
    step("Comparing methods")
    comparison = compare(
        gallery,
        past,
        **test,
        validation=held_out,
        gallery_references=shapes.gallery_references,
        methods=_METHODS,
        grids=_GRIDS,
    )
    step("Searching, before and after")
    tuned = make_method(tuning.best.method, **tuning.best.params)
    bias = tuned.fit(gallery, past, duplicates="drop")  # as `tune` does
    bias.save(folder / "bias.safetensors")
    automatic = NNN().fit(gallery, past)
    raw, corrected = (evaluate(gallery=gallery, bias=one, **test) for one in (None, automatic))
    before, after = (
        search(shapes.queries, gallery, one, k=_N_SHOWN).indices for one in (None, bias)
    )
    was_right, is_right = before[:, 0] == shapes.truth, after[:, 0] == shapes.truth
    diagnosis = evaluation.diagnose(gallery=gallery, bias=bias, **test)
    hubs = evaluation.find_hubs(diagnosis.occurrences).tolist()
    examples = _pick_examples(shapes, before, after, hubs)
    step("Drawing")
    files, notes = list(_FILES), []
    try:
        figures = {
            "contact-sheet.png": _draw_examples(shapes, examples, hubs),
            "occurrences.png": plots.plot_occurrences(
                diagnosis.occurrences, diagnosis.occurrences_after, k=diagnosis.k
            ),
            "grid.png": plots.plot_grid(tuning),
            "gains.png": plots.plot_gains(comparison),
        }
        for name, figure in figures.items():
            plots.save_figure(figure, folder / name)
    except MissingExtraError as error:
        files, notes = files[:1], [f"No plots: {error}"]
    return Demo(
        shapes,
        diagnosis,
        tuning,
        evaluation.make_result(automatic.method, automatic.params, corrected, raw),
        comparison,
        examples,
        n_gained=int((~was_right & is_right).sum()),
        n_lost=int((was_right & ~is_right).sum()),
        output=folder,
        files=files,
        notes=notes,
    )


def _pick_examples(shapes: Shapes, before: Any, after: Any, hubs: list[int]) -> list[Example]:
    """Two captions that had a hub as the top result, and one that the correction makes worse."""
    truth = evaluation.open_truth(
        shapes.truth, n_queries=len(before), n_gallery=len(shapes.gallery)
    )
    rescued = evaluation.find_rescued(before, after, truth, hubs)
    lost = np.flatnonzero(truth.holds(before[:, 0]) & ~truth.holds(after[:, 0]))
    found: list[Example] = []
    for queries, most in ((rescued, 2), (lost, 3)):
        for query in queries.tolist():
            caption, right = shapes.captions[query], int(shapes.truth[query])
            is_new = right not in [example.right for example in found]
            if len(found) < most and is_new and len(caption) <= _LONGEST:
                was, now = before[query].tolist(), after[query].tolist()
                found.append(Example(query, caption, right, was, now, now[0] == right))
    return found


def _draw_examples(shapes: Shapes, examples: list[Example], hubs: list[int]) -> Any:
    """Draw the contact sheet: the right picture framed green, hubs orange."""
    return plot_hits(
        [Hits(_title(one), one.before, one.after, [one.right]) for one in examples],
        lambda item: shapes.draw(item, 108),
        lambda hits, item: GREEN if item in hits.right else ORANGE if item in hubs else None,
        "green: the right picture, orange: a hub",
    )


def _title(example: Example) -> str:
    return example.caption + ("" if example.helped else " – worse with the correction")


# --- in words ------------------------------------------------------------------------------------


def introduce_demo() -> str:
    """Describe the data, before anything is computed."""
    return (
        "5,000 captions search 1,000 pictures of shapes, embedded by a small image–text model that "
        "was trained like CLIP. 20,000 captions of other pictures are the past queries. All data "
        "ships with nnnorm. This takes a few seconds …"
    )


def describe_demo(demo: Demo) -> Iterator[Table | str]:
    """Describe a demo, part by part, each a table or a paragraph for 80 columns."""
    diagnosis, tuning = demo.diagnosis, demo.tuning
    fair, hub = diagnosis.before.mean, diagnosis.hubs[0]
    wrong = round((hub.wrong_share or 0) * hub.occurrences)
    yield (
        f"\n1. Hubs\nEach picture has {fair:.0f} captions, so it should be the top result about "
        f"{fair:.0f} times. The worst hub is the top result {hub.occurrences} times, {wrong} of "
        f"them wrong, and {diagnosis.null_model.n_never} pictures never are (excess kurtosis: "
        f"{diagnosis.before.kurtosis:.1f}). The hub shows: {demo.shapes.describe(hub.item)}."
    )
    setting = describe_setting(tuning.best.method, tuning.best.params, ", ", " = ")
    yield (
        "\n2. Tuning\nNNN subtracts α times the mean of a picture's k best scores with past "
        f"queries. Of {len(tuning.grid)} settings (one is no correction) tried on "
        f"{tuning.n_queries:,} validation captions, {setting or 'no correction'} is chosen: "
        f"{100 * tuning.gain.mean:+.1f} points of R@1 there."
    )
    yield "\n3. Test"
    results = [demo.uncorrected, demo.untuned, *demo.comparison.results[1:]]
    note = (
        "R@K: captions whose picture is among the first K, in %. The first nnn has automatic "
        "settings from the past queries, no labels; the others are tuned. Gains in points with "
        "95 % intervals. nnnorm compare has all methods."
    )
    yield tables.tabulate_results(results, "", [note])
    yield (
        f"With the tuned correction, {demo.n_gained} captions newly get the right picture as top "
        f"result and {demo.n_lost} lose it. The worst hub is the top result "
        f"{diagnosis.hubs_after[0]} times instead of {hub.occurrences}."
    )
    yield (
        "\n4. Examples\nTwo captions that had a hub as top result, and one that the correction "
        "makes worse. ✓ is the right picture, ● a hub: before the correction, the top result at "
        f"least {evaluation.HUB} times as often as it should be."
    )
    for example in demo.examples:
        yield _describe_example(demo, example)
    yield f"\n5. Files in {demo.output}"
    yield "\n".join(f"  {name:17} {_FILES[name]}" for name in demo.files)
    yield from demo.notes
    yield _NEXT


def _describe_example(demo: Demo, example: Example) -> str:
    hubs = evaluation.find_hubs(demo.diagnosis.occurrences)
    lines = [f"\n{_title(example)}"]
    for label, items in (("before", example.before), ("after", example.after)):
        for place, item in enumerate(items[:_N_PRINTED]):
            mark = "✓" if item == example.right else "●" if item in hubs else " "
            background, things = read_scene(demo.shapes.scenes[item])
            names = ", ".join(f"{thing.color} {thing.shape}" for thing in things)
            lines.append(f"  {'' if place else label:6} {place + 1} {mark} {names}; {background}")
    return "\n".join(lines)
