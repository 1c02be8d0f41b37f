"""The results of the demo, in words and tables for a terminal of 80 columns."""

from collections.abc import Iterator

from nnnorm.datasets import load_shapes, read_scene
from nnnorm.demo.run import Demo, Example
from nnnorm.evaluation import HUB, Result, find_hubs
from nnnorm.methods import describe_setting
from nnnorm.report import Table, tabulate_comparison

_NEXT = """\
With embeddings of your own, a row per item or query, all from one model (for
cosine add --normalize to both), and past queries like those to come, no labels:

  nnnorm fit    --gallery GALLERY.npy --references PAST_QUERIES.npy \\
                -o bias.safetensors
  nnnorm search --gallery GALLERY.npy --queries QUERIES.npy \\
                --bias bias.safetensors
"""

_ABOUT = {
    "contact-sheet.png": "these captions and their pictures; hubs framed orange",
    "bias.safetensors": "the tuned correction, ready for nnnorm search",
    "occurrences.png": "how often pictures come first, before and after",
    "grid.png": "R@1 of every setting that was tried",
    "gains.png": "the methods' gains with their intervals",
}


def introduce_demo() -> str:
    """Describe the data of the demo, before anything is computed."""
    shapes = load_shapes()
    return (
        f"{len(shapes.queries):,} captions ask for {len(shapes.gallery):,} pictures of shapes, "
        "embedded by a small image–text model of our own, trained as CLIP is. "
        f"{len(shapes.references):,} captions of other pictures are the bank of past queries. "
        "All of it ships with nnnorm. A few seconds of work …"
    )


def tell_demo(demo: Demo) -> Iterator[Table | str]:
    """Describe a demo, part by part, each a table or a paragraph."""
    shapes, diagnosis = demo.shapes, demo.diagnosis
    before, hub = diagnosis.before, diagnosis.hubs[0]
    wrong = round((hub.wrong_share or 0) * hub.occurrences)
    yield _title("1. Hubs")
    yield (
        f"A picture has {before.mean:.0f} captions, so it should come first about "
        f"{before.mean:.0f} times. The worst hub comes first {hub.occurrences} times, {wrong} of "
        f"them wrongly, and {diagnosis.null_model.n_never} pictures never do (excess kurtosis of "
        f"these counts: {before.kurtosis:.1f}). The hub shows: {shapes.describe(hub.item)}."
    )
    best = demo.tuning.best
    setting = describe_setting(best.method, best.params, ", ", " = ")
    gain = demo.tuning.gain
    yield _title("2. Tune")
    yield (
        "NNN scores a picture against the bank, takes the mean of its k best scores, and lowers "
        "all its scores by α times that mean: the better a picture scores with any query, the more "
        f"it loses. Of {len(demo.tuning.grid)} settings (one is no correction), tried on "
        f"{demo.tuning.n_queries:,} captions of still other pictures: {setting or 'no correction'},"
        f" which there brings {100 * gain.mean:+.1f} points of R@1, the share of captions "
        "whose picture comes first."
    )
    yield _title("3. Correct and test")
    yield _table_of_results(demo)
    yield (
        f"The right picture comes first for {demo.n_gained} captions only with the tuned "
        f"correction, for {demo.n_lost} only without. The worst hub comes first "
        f"{diagnosis.hubs_after[0]} times instead of {hub.occurrences}."
    )
    yield _title("4. Compare")
    yield tabulate_comparison(demo.comparison)
    yield (
        "is: inverted softmax; qbnorm: the same, but only for captions whose first picture is the "
        "first of some reference too: with a bank this large, nearly all. nnnorm compare has all "
        "methods and whole grids."
    )
    yield _title("5. Look")
    hubs = frozenset(map(int, find_hubs(diagnosis.occurrences)))
    yield (
        "Two captions for which a hub had come first, and one that the correction gets wrong. "
        "✓ is the picture that the caption was written for, ● a hub: a picture that came first at "
        f"least {HUB} times as often as it should, before the correction. "
        "Each picture: its things, and its background."
    )
    for example in demo.examples:
        yield _tell_example(demo, example, hubs)
    yield (
        "\nTo ask for something new, in Python: "
        "nnnorm.datasets.load_shapes().encode_texts(['a red star'])"
    )
    yield _title("6. Files")
    yield f"In {demo.output}:"
    yield "\n".join(f"  {name:17} {_ABOUT[name]}" for name in demo.files)
    yield from demo.notes
    yield _title("Now yours")
    yield _NEXT
    yield (
        "Are there hubs, does the correction help, and which setting? nnnorm check answers in one "
        "report, better where the right items of some queries are known. nnnorm explore shows it "
        "on a page; without files, it shows this demo's data."
    )


def _title(text: str) -> str:
    return f"\n{text}\n{'─' * len(text)}"


def _table_of_results(demo: Demo) -> Table:
    rows = tuple(
        _row(name, result, len(demo.shapes.gallery))
        for name, result in (
            ("uncorrected", demo.uncorrected),
            ("NNN, untuned", demo.untuned),
            ("NNN, tuned", demo.tuned),
        )
    )
    columns = ("", "R@1 %", "R@5 %", "R@10 %", "gain in R@1", "most", "never")
    notes = (
        "R@K: captions whose picture is among the first K. Untuned: k and α from the bank itself, "
        "no labels. Gains in points, with 95 % intervals (paired, a picture's captions together). "
        "most: how often the most retrieved picture comes first; never: pictures that never do.",
    )
    return Table("", columns, rows, notes)


def _row(name: str, result: Result, n_gallery: int) -> tuple[str, ...]:
    recalls = (result.recall_at_1, result.recall_at_5, result.recall_at_10)
    never = round(result.hubness.antihub_share * n_gallery)
    gain = result.gain
    return (
        name,
        *(f"{100 * recall:.1f}" for recall in recalls),
        ""
        if gain is None
        else f"{100 * gain.mean:+.1f} [{100 * gain.low:.1f}, {100 * gain.high:.1f}]",
        str(result.hubness.max),
        str(never),
    )


def _tell_example(demo: Demo, example: Example, hubs: frozenset[int]) -> str:
    lines = [f"\n“{example.caption}”{'' if example.helped else ' – worse with the correction'}"]
    for label, items in (("before", example.before), ("after", example.after)):
        for place, item in enumerate(items):
            mark = "✓" if item == example.right else "●" if item in hubs else " "
            head = label if place == 0 else ""
            lines.append(f"  {head:6} {place + 1} {mark} {_name(demo, item)}")
    return "\n".join(lines)


def _name(demo: Demo, item: int) -> str:
    background, things = read_scene(demo.shapes.scenes[item])
    names = [f"{thing.colour} {thing.shape}" for thing in things]
    return f"{', '.join(names)}; {background}"
