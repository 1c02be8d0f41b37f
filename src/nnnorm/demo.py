"""`nnnorm demo`: a search with hubs, before and after a correction, on one screen.

`run_demo` fits NNN with automatic settings on the shapes that ship with the package, searches
before and after, picks three examples and writes the files. `describe_demo` describes the results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm import NNN, evaluate, evaluation, load_shapes, search
from nnnorm.datasets import Shapes, read_scene
from nnnorm.errors import MissingExtraError, quiet
from nnnorm.evaluation.results import Record
from nnnorm.files import make_folder
from nnnorm.report import Table, plots
from nnnorm.report.tables import show_gain

_N_SHOWN = 5  # pictures per example of the contact sheet
_LONGEST = 54  # letters of an example's caption
_FILES = {
    "bias.safetensors": "the correction, for nnnorm search --bias",
    "contact-sheet.png": "the examples as pictures; hubs framed orange",
    "occurrences.png": "how often each picture is the top result, before and after",
}
_NEXT = """
With your own embeddings and past queries:
  nnnorm check --gallery ITEMS.npy --queries QUERIES.npy --references PAST.npy
To look around in this demo on a local page:
  nnnorm explore"""


@dataclass(frozen=True)
class Example(Record):
    """A query and its first pictures, before and after."""

    query: int
    caption: str
    right: int
    before: list[int]
    after: list[int]

    @property
    def title(self) -> str:
        """The caption, and whether the correction makes its top result worse."""
        worse = self.after[0] != self.right
        return f"{self.caption} – worse with the correction" if worse else self.caption


@dataclass(frozen=True, eq=False)
class Demo(Record):
    """The figures of the demo, for the test captions."""

    shapes: Shapes = field(repr=False)
    before: evaluation.Result
    after: evaluation.Result
    hubness: evaluation.Diagnosis
    examples: list[Example]
    n_gained: int
    n_lost: int
    output: str
    files: list[str]
    notes: list[str]


@quiet(".* rows of references are among")  # "a red star" is written for several pictures
def run_demo(output: str | Path = "demo-output") -> Demo:
    """Fit, search before and after, and write a bias, a contact sheet and a plot."""
    folder, shapes = make_folder(output), load_shapes()
    queries, gallery, truth = shapes.queries, shapes.gallery, shapes.truth
    bias = NNN().fit(gallery, shapes.references)
    bias.save(folder / "bias.safetensors")
    raw, corrected = (evaluate(queries, gallery, one, truth=truth) for one in (None, bias))
    first, then = (search(queries, gallery, one, k=_N_SHOWN).indices for one in (None, bias))
    was_right, is_right = first[:, 0] == truth, then[:, 0] == truth
    diagnosis = evaluation.diagnose(queries, gallery, bias, truth=truth)
    hubs = evaluation.find_hubs(diagnosis.occurrences).tolist()
    examples = _pick_examples(shapes, first, then, hubs)
    files, notes = list(_FILES), []
    try:
        figures = {
            "contact-sheet.png": _draw_examples(shapes, examples, hubs),
            "occurrences.png": plots.plot_occurrences(
                diagnosis.occurrences, diagnosis.occurrences_after, k=diagnosis.k
            ),
        }
        for name, figure in figures.items():
            plots.save_figure(figure, folder / name)
    except MissingExtraError as error:
        files, notes = files[:1], [f"No plots: {error}"]
    before = evaluation.make_result("none", {}, raw)
    after = evaluation.make_result(bias.method, bias.params, corrected, raw)
    gained, lost = int((~was_right & is_right).sum()), int((was_right & ~is_right).sum())
    output = str(folder)
    return Demo(shapes, before, after, diagnosis, examples, gained, lost, output, files, notes)


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
                found.append(Example(query, caption, right, was, now))
    return found


def _draw_examples(shapes: Shapes, examples: list[Example], hubs: list[int]) -> Any:
    """Draw the contact sheet: the right picture framed green, hubs orange."""
    return plots.plot_hits(
        [plots.Hits(one.title, one.before, one.after, [one.right]) for one in examples],
        lambda item: shapes.draw(item, 108),
        lambda hits, item: (
            plots.GREEN if item in hits.right else plots.ORANGE if item in hubs else None
        ),
        "green: the right picture, orange: a hub",
    )


# --- in words ------------------------------------------------------------------------------------


def introduce_demo() -> str:
    """Describe the data, before anything is computed."""
    return (
        "5,000 captions search 1,000 pictures of shapes. Some pictures are hubs: the top result of "
        "many captions that don't describe them. From 20,000 past captions, without labels, "
        "nnnorm estimates how inflated each picture's scores are and subtracts that.\n"
    )


def describe_demo(demo: Demo) -> Iterator[Table | str]:
    """Describe a demo in one screen of 80 columns."""
    before, after, found = demo.before, demo.after, demo.hubness
    counts = [some for some in (found.occurrences, found.occurrences_after) if some is not None]
    first = [f"{100 * one.recall_at_1:.1f} %" for one in (before, after)]
    ten = [f"{100 * one.recall_at_10:.1f} %" for one in (before, after)]
    worst = f"top results of the worst hub; {found.before.mean:.0f} would be right"
    lines = (
        ("captions with their picture as top result", *first),
        ("captions with their picture in the top 10", *ten),
        (worst, *(str(one.max()) for one in counts)),
        ("pictures that are never the top result", *(str((one == 0).sum()) for one in counts)),
    )
    note = (
        f"{demo.n_gained} captions newly get their picture as top result, {demo.n_lost} lose it. "
        f"Gain: {show_gain(after.gain)} points (95 % interval)."
    )
    yield Table("", ("", "before", "after"), lines, (note,))
    hubs = evaluation.find_hubs(found.occurrences)
    yield "\nTop results of three captions (✓ the right picture, ● a hub)"
    for example in demo.examples:
        yield f"  {example.title}"
        for label, item in (("before", example.before[0]), ("after", example.after[0])):
            mark = "✓" if item == example.right else "●" if item in hubs else " "
            background, things = read_scene(demo.shapes.scenes[item])
            names = ", ".join(f"{thing.color} {thing.shape}" for thing in things)
            yield f"    {label:6} {mark} {names}; {background}"
    yield f"\nWritten to {demo.output}"
    yield from (f"  {name:17} {_FILES[name]}" for name in demo.files)
    yield from demo.notes
    yield _NEXT
