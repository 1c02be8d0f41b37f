"""Read the real embedding sets for the benchmarks: splits, tasks, and grids on subsets.

Pass the folder of the embeddings with `--data`. Flickr8k has five captions per photo and a split
into train, validation and test. Unsplash has one text per photo and no split. "Image retrieval"
means that captions ask for photos, and "text retrieval" that photos ask for captions. The other
sets are queries, documents and the pairs that belong together.
"""

import argparse
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt
from pictures import save_both

import nnnorm
from nnnorm.evaluation.comparison import Task
from nnnorm.evaluation.metrics import open_truth
from nnnorm.evaluation.sweep import Setting, make_settings, sweep_hits
from nnnorm.files import check_writable, write_whole
from nnnorm.methods import PAPER_GRID

Floats: TypeAlias = npt.NDArray[np.float32]
Ints: TypeAlias = npt.NDArray[np.int64]
Direction = Literal["image", "text"]

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT.parent / "shared" / "data"
JUDGED = ("clip_coco500", "cosqa", "apibench", "medquad", "bli_it-en", "bli_zh-en")
ALL_SETS = ("flickr8k", "unsplash500", *JUDGED)
RESULTS = ROOT / "benchmarks" / "results"


def what_is_missing(data: Path, *names: str) -> str | None:
    """Return a message if the data folder lacks a set; None if it has all of them."""
    missing = [name for name in names if not (data / name).is_dir()]
    if not missing:
        return None
    return (
        f"there is no {' and no '.join(missing)} in {data}; give the folder of the embedding sets "
        "with --data, or print the stored tables with --tables"
    )


def rows_of(images: Ints, per_image: int) -> Ints:
    """Return the rows of some images if image i has the rows from ``per_image·i`` on.

    >>> rows_of(np.array([0, 2]), 5).tolist()
    [0, 1, 2, 3, 4, 10, 11, 12, 13, 14]
    """
    return (per_image * images[:, None] + np.arange(per_image)).ravel()


@dataclass(frozen=True, eq=False)
class Pairs:
    """Photos and their texts, in order, with the same number of texts per photo.

    Attributes
    ----------
    image : ndarray, shape (n_images, dim)
    text : ndarray, shape (n_images · n_texts, dim)
    """

    image: Floats
    text: Floats

    @property
    def n_texts(self) -> int:
        """Number of texts per photo."""
        return len(self.text) // len(self.image)

    def some(self, images: Ints) -> "Pairs":
        """Return some photos with their texts, numbered from 0."""
        return Pairs(self.image[images], self.text[rows_of(images, self.n_texts)])

    def task(self, direction: Direction) -> Task:
        """Return the task: texts ask for photos ("image"), or photos for texts ("text")."""
        photo_of_text = np.repeat(np.arange(len(self.image)), self.n_texts)
        if direction == "image":
            return Task(self.text, self.image, photo_of_text)
        pairs = np.stack([photo_of_text, np.arange(len(self.text))], axis=1)
        return Task(self.image, self.text, pairs)


@dataclass(frozen=True)
class Flickr8k:
    """8,091 photos, 40,455 captions, and 25,014 COCO captions by the same encoder."""

    folder: Path

    @cached_property
    def pairs(self) -> Pairs:
        """Return all photos and captions."""
        return Pairs(_load(self.folder / "image.npy"), _load(self.folder / "caption.npy"))

    @cached_property
    def coco(self) -> Floats:
        """Return captions of other photos."""
        return _load(self.folder / "coco_caption.npy")

    def images(self, *splits: Literal["train", "val", "test"]) -> Ints:
        """Return the numbers of the photos in some splits."""
        return np.concatenate([np.load(self.folder / f"{split}_images.npy") for split in splits])


def read_unsplash500(folder: Path) -> Pairs:
    return Pairs(_load(folder / "image.npy"), _load(folder / "text.npy"))


@dataclass(frozen=True, eq=False)
class Judged:
    """Queries, documents, and their right pairs.

    Attributes
    ----------
    queries : ndarray, shape (n_queries, dim)
    documents : ndarray, shape (n_documents, dim)
    pairs : ndarray, shape (n_pairs, 2)
        Query row and document row.
    bank : ndarray, shape (n_references, dim), optional
        More queries, without judgements.
    source : ndarray, shape (n_queries,), optional
        The origin of each query.
    """

    queries: Floats
    documents: Floats
    pairs: Ints
    bank: Floats | None = None
    source: Ints | None = None


def read_judged(folder: Path) -> Judged:
    """Read one of the sets in `JUDGED`."""
    more: dict[str, Any] = {}
    if (folder / "bank.npy").is_file():
        more["bank"] = _load(folder / "bank.npy")
    if (folder / "query_source.npy").is_file():
        more["source"] = np.load(folder / "query_source.npy").astype(np.int64)
    pairs = np.load(folder / "qrels.npy").astype(np.int64)
    return Judged(_load(folder / "queries.npy"), _load(folder / "documents.npy"), pairs, **more)


def _load(path: Path) -> Floats:
    return np.load(path).astype(np.float32)


@dataclass(frozen=True, eq=False)
class GridOnPool:
    """Corrections of every cell of the paper's grid of NNN, from one pass over the bank.

    An item's bias doesn't depend on other items, so any part of the pool of photos can be a gallery
    later.

    Attributes
    ----------
    pool : Pairs
    direction : str
    settings : list of Setting
        "none" is the first.
    corrections : ndarray, shape (n_settings, n_items)
    """

    pool: Pairs
    direction: Direction
    settings: list[Setting]
    corrections: Floats

    @classmethod
    def scan(cls, pool: Pairs, direction: Direction, references: Floats) -> "GridOnPool":
        """Compute all means in one pass over the bank."""
        gallery = nnnorm.open_embeddings(pool.task(direction).gallery)
        bank = nnnorm.open_embeddings(references)
        ks = [k for k in PAPER_GRID["reference_k"] if k <= len(bank)]
        grids = {"nnn": {**PAPER_GRID, "reference_k": ks}}
        settings = make_settings(("none", "nnn"), gallery, bank, grids=grids)
        return cls(pool, direction, settings, np.stack([s.correction() for s in settings]))

    def hits(self, images: Ints, more: Sequence[Floats] = ()) -> Floats:
        """Return whether the top-1 item is right, for each query of a gallery of these photos.

        Parameters
        ----------
        images : ndarray
            Numbers of photos in the pool; all their queries are used.
        more : sequence of ndarray, shape (n_gallery,)
            Further corrections of this gallery.

        Returns
        -------
        ndarray, shape (n_settings + n_more, n_queries)
        """
        queries, gallery, truth = self.pool.some(images).task(self.direction)
        items = images if self.direction == "image" else rows_of(images, self.pool.n_texts)
        opened = nnnorm.open_embeddings(queries), nnnorm.open_embeddings(gallery)
        right = open_truth(truth, n_queries=len(opened[0]), n_gallery=len(opened[1]))
        rows = [*self.corrections[:, items], *more]
        return sweep_hits(*opened, right, [partial(np.asarray, row) for row in rows])


def machine() -> dict[str, Any]:
    """Describe the machine of a measurement."""
    return {
        "machine": {"cpu": _cpu_model(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {
            "python": platform.python_version(),
            "numpy": np.__version__,
            "nnnorm": nnnorm.__version__,
        },
    }


def _cpu_model() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.processor() or "unknown"


def to_json(results: dict[str, Any], *lists: str) -> str:
    """Return JSON with one line per record of some lists, so that diffs are small."""
    head = json.dumps({k: v for k, v in results.items() if k not in lists}, indent=1)[:-2]
    for name in lists:
        records = ",\n".join("  " + json.dumps(r, separators=(",", ":")) for r in results[name])
        head += f',\n "{name}": [\n{records}\n ]'
    return head + "\n}\n"


def run_benchmark(
    description: str,
    output: Path,
    measure: Callable[[Path, int], dict[str, list[Any]]],
    tables: Callable[[dict[str, Any]], str],
    *,
    seeds: Sequence[int],
    sets: Sequence[str] = ALL_SETS,
    draw: Callable[[dict[str, Any], Any], None] | None = None,
) -> int:
    """Run the command line of a benchmark with random cases.

    Parameters
    ----------
    description : str
    output : Path
        Where the results are stored by default.
    measure : callable
        Given the data folder and a seed; returns lists of records. They are stored after each seed.
    tables : callable
        The Markdown of the stored results.
    seeds : sequence of int
        The default seeds.
    sets : sequence of str
        The folders that the benchmark needs.
    draw : callable, optional
        Given the results and an empty figure, draws the plot, which is saved as `--plot`.

    Returns
    -------
    int
        The exit code.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    parser.add_argument("--output", type=Path, default=output, help="the JSON file of the results")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(seeds), help="of the draws")
    parser.add_argument("--tables", action="store_true", help="only print the tables of --output")
    if draw is not None:
        parser.add_argument("--plot", type=Path, help="with --tables: save a plot as .png")
    arguments = parser.parse_args()
    if arguments.tables:
        if not arguments.output.is_file():
            print(f"there are no results in {arguments.output}; measure first", file=sys.stderr)
            return 1
        stored = json.loads(arguments.output.read_text(encoding="utf-8"))
        print(tables(stored), end="")
        if draw is not None and arguments.plot:
            _save_plot(stored, draw, arguments.plot)
        return 0
    if (missing := what_is_missing(arguments.data, *sets)) is not None:
        print(missing, file=sys.stderr)
        return 1
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    check_writable(arguments.output)
    started = time.perf_counter()
    results: dict[str, Any] = {**machine(), "seeds": [], "seconds": 0}
    for seed in arguments.seeds:
        records = measure(arguments.data, seed)
        results["seeds"].append(seed)
        results["seconds"] = round(time.perf_counter() - started)
        for name, more in records.items():
            results[name] = results.get(name, []) + more
        text = to_json(results, *records)
        write_whole(arguments.output, lambda file, text=text: file.write(text.encode()))
    print(tables(results), end="")
    return 0


def _save_plot(
    results: dict[str, Any], draw: Callable[[dict[str, Any], Any], None], path: Path
) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    draw(results, figure)
    save_both(figure, path)


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table; the first column is left-aligned, the others right-aligned.

    >>> print(table(("k", "gain"), [("8", "+1.20")]))
    | k | gain |
    |:--|--:|
    | 8 | +1.20 |
    """
    rule = "|".join(":--" if place == 0 else "--:" for place in range(len(columns)))
    return "\n".join([f"| {' | '.join(columns)} |", f"|{rule}|", *map(_line, rows)])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def residual(values: npt.ArrayLike, exact: npt.ArrayLike) -> float:
    """Return the standard deviation of the error, relative to that of the exact values."""
    estimated, right = (np.asarray(each, dtype=np.float64) for each in (values, exact))
    return float((estimated - right).std() / right.std())


def points(gain: float) -> str:
    """Format a difference in points, with its sign.

    >>> points(-0.254), points(0.001)
    ('−0.25', '0.00')
    """
    return f"{gain:+.2f}".replace("-", "−").replace("+0.00", "0.00").replace("−0.00", "0.00")
