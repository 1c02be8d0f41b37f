"""The paper's tables as data: every cell is an experiment with its printed figure.

A table in `paper.json` has common settings, rows and columns; the experiment of a cell combines the
three. The only results stored in this package are those of the paper.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from importlib.resources import files
from typing import Any, Literal

from nnnorm.datasets import Direction
from nnnorm.errors import NNNormError
from nnnorm.evaluation import Select
from nnnorm.methods import MethodName

Search = Literal["exact", "index"]
# What a cell shows besides its figure, and which cells the best one, printed bold, is found among:
# those of the same group of columns, those with the same heading, or, where less is better, those
# of the same metric below each other.
Shows = Literal["figure", "change", "interval"]
Best = Literal["group", "heading", "smaller"]

# Names of data sets and banks, long and short, as the paper writes them.
_NAMES = {
    "flickr30k": ("Flickr30k", "Flickr"),
    "coco": ("COCO", "COCO"),
    "visogender": ("VisoGender", "VisoGender"),
    "own": ("own bank", "own bank"),
    "other": ("other bank", "other bank"),
}


@dataclass(frozen=True)
class Experiment:
    """The experiment of a cell.

    Attributes
    ----------
    metric : str
        "recall_at_1", "gain", "setting", "seconds", "bias@6", a name of `Hubness`, …
    model, dataset : str
    direction : {"image", "text"}
        The kind of item that is retrieved.
    method : str
        A name from `METHOD_NAMES`.
    bank : str or None
        The data set whose training part is the bank.
    share : float
        The share of that training part.
    params : dict or None
        Parameters of the method; None are tuned on the tuning images.
    search : {"exact", "index"}
        The way to find the nearest references.
    kind : {"embeddings", "scores"}
        Whether the model has embeddings, or only scores of pairs.
    select : {"max", "one-standard-error"}
        The rule that tunes: the paper's, the maximum over its grid, or the package's own.
    """

    metric: str
    model: str
    dataset: str
    direction: Direction = "image"
    method: MethodName = "none"
    bank: str | None = None
    share: float = 1.0
    params: Mapping[str, Any] | None = field(default=None, hash=False)
    search: Search = "exact"
    kind: Literal["embeddings", "scores"] = "embeddings"
    select: Select = "max"

    @property
    def is_tuned(self) -> bool:
        """Whether its parameters are tuned, so that another rule may give another figure."""
        given = self.method == "none" or self.params is not None or self.kind == "scores"
        return not given and self.search == "exact" and self.metric not in ("seconds", "speedup")

    def as_stand_in(self, name: str) -> "Experiment":
        """Return the experiment with other material, which has a bank of its own and another one.

        Examples
        --------
        >>> there = Experiment("recall_at_1", "CLIP", "coco", method="nnn", bank="flickr30k")
        >>> there.as_stand_in("shapes").bank
        'other'
        """
        bank = self.bank
        if bank is not None:
            bank = "own" if bank == self.dataset or self.dataset == "visogender" else "other"
        return replace(self, model=name, dataset=name, bank=bank)


@dataclass(frozen=True)
class PaperCell:
    """A cell of a table.

    Attributes
    ----------
    row, column : str
        Their headings.
    experiment : Experiment
    printed : float, tuple (α, k) or None
        The printed figure; None for a plot.
    group, heading : str
        The printed headings above the column, with the names of data sets and banks left open.
    """

    row: str
    column: str
    experiment: Experiment
    printed: float | tuple[float, int] | None
    group: str = ""
    heading: str = ""

    def fill_headings(self, experiment: Experiment, dataset: str | None = None) -> tuple[str, str]:
        """Return group and heading with the names of an experiment, or another of its data set.

        Examples
        --------
        >>> cell = load_paper().tables[0].cells[3]
        >>> cell.fill_headings(cell.experiment)
        ('Flickr30k retrieval', 'NNN COCO')
        """
        long, short = _NAMES.get(experiment.dataset, (experiment.dataset,) * 2)
        bank, bank_short = _NAMES.get(experiment.bank or "", ("", ""))
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
    """A table (or figure) of the paper.

    Attributes
    ----------
    name : str
        The name in `nnnorm reproduce --table`.
    number : str
        The number in the paper: "1", "A3", "Figure 3".
    label : str
        Its LaTeX label.
    title : str
    cells : tuple of PaperCell
    notes : tuple of str
        Known inconsistencies, and details that the paper leaves open.
    shows : {"figure", "change", "interval"}
        Whether cells show their change against the original in brackets, or ± an interval.
    best : {"group", "heading", "smaller"} or None
        Among which cells the bold one is the best.
    n_queries : int or None
        Number of queries behind printed intervals.
    """

    name: str
    number: str
    label: str
    title: str
    cells: tuple[PaperCell, ...] = field(repr=False)
    notes: tuple[str, ...] = field(repr=False)
    shows: Shows = "figure"
    best: Best | None = None
    n_queries: int | None = None

    @property
    def heading(self) -> str:
        """Number and title: "Table A3: …"."""
        number = self.number if self.number.startswith("Fig") else f"Table {self.number}"
        return f"{number}: {self.title}"

    @property
    def is_timed(self) -> bool:
        """Whether it compares times, of one setting."""
        return any(cell.experiment.metric == "seconds" for cell in self.cells)

    @property
    def has_models_in_rows(self) -> bool:
        """Whether each row is a model; otherwise columns are, or all of it is one."""
        return len({cell.row for cell in self.cells if cell.experiment.model == "CLIP"}) == 1


@dataclass(frozen=True)
class Paper:
    """All tables of the paper.

    Attributes
    ----------
    citation, url : str
    models : dict
        Model name to its folder name.
    tables : tuple of PaperTable
    """

    citation: str
    url: str
    models: Mapping[str, str]
    tables: tuple[PaperTable, ...]


@lru_cache(maxsize=1)
def load_paper() -> Paper:
    """Load the paper's tables.

    Examples
    --------
    >>> table = load_paper().tables[0]
    >>> table.heading
    'Table 1: Image R@1, Flickr30k and COCO'
    >>> table.cells[2].column, table.cells[2].printed
    ('Flickr30k: NNN, Flickr30k bank', 64.6)
    """
    about = json.loads((files("nnnorm.reproduce") / "paper.json").read_text(encoding="utf-8"))
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
                cells.append(PaperCell(*about_cell, *headings))
        names = ("name", "number", "label", "title", "shows", "best", "n_queries")
        kept = {name: table[name] for name in names if name in table}
        tables.append(PaperTable(**kept, cells=tuple(cells), notes=tuple(table["notes"])))
    return Paper(about["paper"], about["url"], about["models"], tuple(tables))


def find_tables(names: Sequence[str]) -> list[PaperTable]:
    """Find tables by name; a prefix stands for all names that begin with it.

    Examples
    --------
    >>> [table.name for table in find_tables(["k-sweep", "gender"])]
    ['gender', 'k-sweep-image', 'k-sweep-text']
    """
    tables = load_paper().tables
    for name in names:
        if name != "all" and not any(_is_called(table, name) for table in tables):
            known = ", ".join(table.name for table in tables)
            raise NNNormError(f"there is no table {name!r}; there are: {known}, trends, and all")
    return [
        table for table in tables if any(name == "all" or _is_called(table, name) for name in names)
    ]


def find_fine_tuned(model: str, dataset: str) -> str | None:
    """Find the model that was fine-tuned on a data set, where the paper has one.

    Examples
    --------
    >>> find_fine_tuned("CLIP", "coco"), find_fine_tuned("SigLIP", "coco")
    ('CLIP ft. COCO', None)
    """
    name = f"{model} ft. {_NAMES.get(dataset, ('', ''))[1]}"
    return name if name in load_paper().models else None


def _is_called(table: PaperTable, name: str) -> bool:
    return table.name == name or table.name.startswith(f"{name}-")
