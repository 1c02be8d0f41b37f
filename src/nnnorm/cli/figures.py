"""The paper's figures: histograms of N_1, bias by occupation, and what queries find."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from nnnorm.cli.app import Figures
from nnnorm.errors import NNNormError
from nnnorm.report import plot_audit


def draw_figures(
    runner: Any, table: Any, outcomes: Sequence[Any], prefix: str, folder: Any = None
) -> Figures:
    """Return the figures that belong to a table, as functions that draw them."""
    from nnnorm.reproduce import draw_groups, draw_rescued

    after = [o.experiment for o in outcomes if o.figure and o.experiment.method == "nnn"]
    if not after:
        return {}
    if table.name == "gender":
        return {
            f"{prefix}gender.png": lambda _: plot_audit(runner.groups(after[0])),
            f"{prefix}gender-first-ten.png": lambda _: draw_groups(runner, after[0]),
        }
    if table.name not in ("hubness", "cross-attention"):
        return {}
    figures: dict[str, Callable[[Any], Any]] = {}
    for direction in dict.fromkeys(there.direction for there in after):
        there = next(there for there in after if there.direction == direction)
        draw = _histogram(runner, there, _fine_tuned(there, folder))
        figures[f"{prefix}{table.name}-{direction}.png"] = draw
    if table.name == "hubness":
        image = next(there for there in after if there.direction == "image")
        figures[f"{prefix}hubs-first-ten.png"] = lambda _: draw_rescued(runner, image)
    return figures


def draw_histogram(runner: Any, text: str, folder: Any) -> Figures:
    """Return the histograms of N_1 of MODEL/DATASET, in both directions."""
    from nnnorm.reproduce import Experiment, load_paper

    short, slash, dataset = text.partition("/")
    names = {folder_name: model for model, folder_name in load_paper().models.items()}
    model = names.get(short, short)
    if not (short and slash and dataset) or not folder.has(model, dataset):
        raise NNNormError(
            f"--histogram takes MODEL/DATASET, two folders with embeddings below --embeddings and "
            f"DATASET.json beside them; there is no {text!r}"
        )
    figures: dict[str, Callable[[Any], Any]] = {}
    for direction in ("image", "text"):
        there = Experiment("recall_at_1", model, dataset, direction, "nnn", dataset)
        draw = _histogram(runner, there, _fine_tuned(there, folder))
        figures[f"histogram-{short}-{dataset}-{direction}.png"] = draw
    return figures


def _fine_tuned(there: Any, folder: Any) -> Any:
    """Return the uncorrected experiment of the fine-tuned model, where its embeddings exist."""
    from nnnorm.reproduce import find_fine_tuned

    model = find_fine_tuned(there.model, there.dataset)
    if model is None or folder is None or not folder.has(model, there.dataset):
        return None
    return replace(there, model=model, method="none")


def _histogram(runner: Any, there: Any, fine_tuned: Any) -> Callable[[Any], Any]:
    def draw(drawing: Any) -> Any:
        counts = [runner.occurrences(replace(there, method=method)) for method in ("none", "nnn")]
        third, labels = None, ["uncorrected", "NNN"]
        if fine_tuned is not None:
            third = runner.occurrences(fine_tuned)
            labels.append(fine_tuned.model)
        title = f"{there.model}, {there.direction} retrieval: how often does each item come first?"
        return drawing.plot_occurrences(*counts, third, labels=labels, title=title)

    return draw
