"""The paper's tables as data: a table is a list of cells, rows × settings.

A table in `paper.json` has shared settings, rows and columns; the experiment of a cell combines all
three. A cell has the paper's result and, later, the measured ones. The only results stored here are
those of the paper.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, TypeAlias

from nnnorm import NNNormError

Direction = Literal["image", "text"]  # what is retrieved
Value: TypeAlias = float | tuple[float, int]  # a number, or a setting (α, k)

SIDES = ("images", "texts")
TWO_BANKS = ("dualis", "dualdis")  # methods that also need a gallery bank


@dataclass(frozen=True)
class Experiment:
    """The experiment of a cell: what to measure, with which model, data set and correction."""

    metric: str  # "recall_at_1", "gain", "setting", "seconds", "bias@6", a field of `Hubness`, …
    model: str
    dataset: str
    direction: Direction = "image"
    method: str = "none"
    bank: str | None = None
    share: float = 1.0
    params: Mapping[str, Any] | None = field(default=None, hash=False)
    search: Literal["exact", "index"] = "exact"
    kind: Literal["embeddings", "scores"] = "embeddings"
    select: Literal["max", "one-standard-error"] = "max"

    @property
    def is_tuned(self) -> bool:
        """Whether the one-standard-error rule may choose another setting."""
        given = self.method == "none" or self.params is not None
        return not given and self.search == "exact" and not self.is_timed

    @property
    def is_about_groups(self) -> bool:
        """Whether it is part of the VisoGender audit."""
        return self.metric.startswith(("bias@", "precision@"))

    @property
    def is_timed(self) -> bool:
        """Whether the result is a time, or a ratio of times."""
        return self.metric in ("seconds", "speedup")

    def list_inputs(self) -> list[tuple[Any, ...]]:
        """List the inputs of the experiment, as methods of `Material` with their arguments."""
        if self.kind == "scores":
            return [("scores",)]
        found: list[tuple[Any, ...]] = [("task", self.direction, "test")]
        if self.is_about_groups:
            found = [("groups",)]
        if self.method != "none" and self.params is None:
            found.append(("task", self.direction, "validation"))
        if self.method != "none" or self.is_about_groups:
            asked, wanted = SIDES if self.direction == "text" else SIDES[::-1]
            found.append(("references", self.bank, asked, self.share))
            if self.method in TWO_BANKS:
                found.append(("references", self.dataset, wanted, self.share))
        return found

    def on_other_data(self, name: str) -> "Experiment":
        """Return the same experiment on other data, with its own bank or its other bank."""
        bank = "own" if self.dataset in (self.bank, "visogender") else "other"
        return replace(self, model=name, dataset=name, bank=self.bank and bank)

    def without_correction(self) -> "Experiment":
        """Return the same experiment without correction, bank and settings."""
        plain: Any = {"method": "none", "bank": None, "share": 1.0, "params": None}
        return replace(self, **plain, search="exact", select="max")


@dataclass(frozen=True)
class Figure:
    """A result on the paper's scale: recalls and precisions in %, gains in points."""

    value: Value
    low: float | None = None
    high: float | None = None
    used: Mapping[str, Any] | None = None  # bank and settings


@dataclass(frozen=True)
class Cell:
    """A cell: headings, experiment, the paper's result (None for a plot), measured results."""

    row: str
    column: str
    experiment: Experiment
    printed: Value | None = None
    group: str = ""  # the paper's heading above the column, with placeholders for names
    heading: str = ""
    figure: Figure | None = None
    by_rule: Figure | None = None  # the result with the one-standard-error rule
    missing: str | None = None  # the reason if data is missing
    failed: str | None = None

    def fill_headings(self, dataset: str | None = None) -> tuple[str, str]:
        """Return group and heading with the names of the experiment filled in."""
        experiment = self.experiment
        long, short = load_paper().names.get(experiment.dataset, (experiment.dataset,) * 2)
        bank, bank_short = load_paper().names.get(experiment.bank or "", ("", ""))
        names = {
            "model": experiment.model,
            "family": experiment.model.partition(" ft.")[0],
            "dataset": dataset or long,
            "dataset_short": dataset or short,
            "bank": bank,
            "bank_short": bank_short,
        }
        return self.group.format(**names), self.heading.format(**names)


@dataclass(frozen=True)
class PaperTable:
    """A table or figure of the paper."""

    name: str
    number: str
    label: str
    title: str
    cells: tuple[Cell, ...] = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)
    shows: Literal["figure", "change", "interval"] = "figure"
    best: Literal["group", "heading", "smaller"] | None = None
    n_queries: int | None = None  # for the paper's intervals

    @property
    def heading(self) -> str:
        """Number and title, such as "Table A3: …"."""
        number = self.number if self.number.startswith("Fig") else f"Table {self.number}"
        return f"{number}: {self.title}"

    @property
    def is_timed(self) -> bool:
        """Whether it compares times."""
        return any(cell.experiment.metric == "seconds" for cell in self.cells)

    @property
    def has_models_in_rows(self) -> bool:
        """Whether each row is a model; otherwise each column is, or there is only one model."""
        return len({cell.row for cell in self.cells if cell.experiment.model == "CLIP"}) == 1


@dataclass(frozen=True)
class Paper:
    """All tables, the folder of every model, and long and short names of data sets and banks."""

    citation: str
    url: str
    models: Mapping[str, str]
    names: Mapping[str, tuple[str, str]]
    tables: tuple[PaperTable, ...]


@lru_cache(maxsize=1)
def load_paper() -> Paper:
    """Load the paper's tables."""
    about = json.loads(Path(__file__).with_name("paper.json").read_text(encoding="utf-8"))
    tables = []
    for table in about["tables"]:
        cells = []
        for row, figures in zip(table["rows"], table["figures"], strict=True):
            for column, printed in zip(table["columns"], figures, strict=True):
                given = {**table["shared"], **row, **column}
                given.pop("label")
                headings = given.pop("group", ""), given.pop("heading")
                value = tuple(printed) if isinstance(printed, list) else printed
                about_cell = row["label"], column["label"], Experiment(**given), value
                cells.append(Cell(*about_cell, *headings))
        names = ("name", "number", "label", "title", "shows", "best", "n_queries")
        kept = {name: table[name] for name in names if name in table}
        tables.append(PaperTable(**kept, cells=tuple(cells), notes=tuple(table["notes"])))
    return Paper(about["paper"], about["url"], about["models"], about["names"], tuple(tables))


def find_tables(names: Sequence[str]) -> list[PaperTable]:
    """Find tables by name; a prefix selects all names that start with it."""
    tables = load_paper().tables

    def is_called(table: PaperTable, name: str) -> bool:
        return name in ("all", table.name) or table.name.startswith(f"{name}-")

    for name in names:
        if name != "all" and not any(is_called(table, name) for table in tables):
            known = ", ".join(table.name for table in tables)
            raise NNNormError(f"there is no table {name!r}; choose from: {known}, or all")
    return [table for table in tables if any(is_called(table, name) for name in names)]


def find_fine_tuned(model: str, dataset: str) -> str | None:
    """Return the name of the model fine-tuned on a data set, if the paper has one."""
    name = f"{model} ft. {load_paper().names.get(dataset, ('', ''))[1]}"
    return name if name in load_paper().models else None
