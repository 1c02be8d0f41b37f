"""`nnnorm demo`: a search with hubs, before and after a correction, on one screen.

`run_demo` fits NNN with automatic settings on the synthetic shapes of the package, searches without
and with the correction, picks three examples and saves the bias. `describe_demo` formats the
results.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nnnorm import NNN, evaluate, evaluation, load_shapes, search
from nnnorm.datasets import Shapes, read_scene
from nnnorm.errors import quiet
from nnnorm.evaluation.results import Record
from nnnorm.files import filling
from nnnorm.report import Table
from nnnorm.report.tables import show_gain

INTRODUCTION = (
    "5,000 captions search 1,000 pictures of shapes. Some pictures are hubs: the top result of "
    "many captions that don't describe them. From 20,000 past captions, without labels, nnnorm "
    "estimates how inflated each picture's scores are and subtracts that.\n"
)
_LONGEST = 54  # characters of an example's caption
_BIAS = "bias.safetensors"
_NEXT = """
With your own embeddings and past queries:
  nnnorm check --gallery ITEMS.npy --queries QUERIES.npy --references PAST.npy
To explore this demo on a local page:
  nnnorm explore"""


@dataclass(frozen=True)
class Example(Record):
    """A query and its top-1 picture, before and after the correction."""

    query: int
    caption: str
    right: int
    before: int
    after: int


@dataclass(frozen=True, eq=False)
class Demo(Record):
    """The results of the demo, for the test captions."""

    shapes: Shapes = field(repr=False)
    before: evaluation.Result
    after: evaluation.Result
    hubness: evaluation.Diagnosis
    examples: list[Example]
    n_gained: int
    n_lost: int
    output: str


@quiet(".* rows of references are among")  # several pictures have the caption "a red star"
def run_demo(output: str | Path = "demo-output") -> Demo:
    """Fit NNN, search without and with the correction, and save the bias."""
    shapes = load_shapes()
    queries, gallery, truth = shapes.queries, shapes.gallery, shapes.truth
    with filling(output) as folder:
        bias = NNN().fit(gallery, shapes.references)
        bias.save(folder / _BIAS)
    raw, corrected = (evaluate(queries, gallery, one, truth=truth) for one in (None, bias))
    first, then = (search(queries, gallery, one, k=1).indices[:, 0] for one in (None, bias))
    diagnosis = evaluation.diagnose(queries, gallery, bias, truth=truth)
    was_hub = np.isin(first, evaluation.find_hubs(diagnosis.occurrences))
    is_gained, is_lost = (first != truth) & (then == truth), (first == truth) & (then != truth)
    examples = list[Example]()
    for is_shown, most in ((is_gained & was_hub, 2), (is_lost, 3)):
        for query in np.flatnonzero(is_shown).tolist():
            caption, right = shapes.captions[query], int(truth[query])
            is_new = right not in [example.right for example in examples]
            if len(examples) < most and is_new and len(caption) <= _LONGEST:
                examples.append(Example(query, caption, right, int(first[query]), int(then[query])))
    return Demo(
        shapes,
        before=evaluation.make_result("none", {}, raw),
        after=evaluation.make_result(bias.method, bias.params, corrected, raw),
        hubness=diagnosis,
        examples=examples,
        n_gained=int(is_gained.sum()),
        n_lost=int(is_lost.sum()),
        output=str(folder),
    )


# --- description ---------------------------------------------------------------------------------


def describe_demo(demo: Demo) -> Iterator[Table | str]:
    """Describe the results in one screen of 80 columns."""
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
        worse = " – worse with the correction" if example.after != example.right else ""
        yield f"  {example.caption}{worse}"
        for label, item in (("before", example.before), ("after", example.after)):
            mark = "✓" if item == example.right else "●" if item in hubs else " "
            background, things = read_scene(demo.shapes.scenes[item])
            names = ", ".join(f"{thing.color} {thing.shape}" for thing in things)
            yield f"    {label:6} {mark} {names}; {background}"
    yield f"\nThe bias, for nnnorm search --bias, is in {demo.output}/{_BIAS}"
    yield _NEXT
