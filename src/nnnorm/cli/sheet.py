"""The options of a contact sheet, and the sheets of a search and of an audit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from nnnorm.bias import Bias
from nnnorm.cli.app import check_output
from nnnorm.errors import NNNormError, require
from nnnorm.evaluation import Audit, count_occurrences, find_hubs, find_rescued, open_truth
from nnnorm.io import Embeddings, write_png
from nnnorm.ranking import Ranking
from nnnorm.ranking import search as search_items
from nnnorm.report import (
    BLUE,
    GREEN,
    ORANGE,
    Colour,
    Hits,
    draw_hits,
    frame_right,
    read_tile,
)

_QUERIES = 6  # queries on a sheet
_PLACES = 10  # first places of each, as in the paper's figures


@dataclass(frozen=True)
class Sheet:
    """The options of a contact sheet."""

    sheet: Annotated[
        Path | None,
        Option(help="Draw the first items of some queries, before and after, as .png."),
    ] = None
    images: Annotated[
        Path | None,
        Option(help="For --sheet: pictures of the items, a folder or a list, in their order."),
    ] = None
    captions: Annotated[
        Path | None, Option(help="For --sheet: texts of the items, shown without --images.")
    ] = None
    query_captions: Annotated[
        Path | None, Option(help="For --sheet: texts of the queries, one per line.")
    ] = None

    def check(self, inputs: list[Path | None]) -> None:
        """Check before the work that the sheet can be written, and that options belong together."""
        given = (self.images, self.captions, self.query_captions)
        if self.sheet is None:
            if any(path is not None for path in given):
                raise NNNormError(
                    "--images, --captions and --query-captions are for a sheet; give --sheet FILE"
                )
            return
        check_output(self.sheet, ".png", [*inputs, *given])
        if self.images is not None:
            require("PIL.Image", "images")

    def open(self, n_gallery: int, n_queries: int, ids: Any = None) -> "OpenSheet":
        """Read the lists, and check that they fit the items and queries."""
        from nnnorm.encoders import list_files, list_texts

        pictures = None if self.images is None else list_files(self.images)
        if pictures is not None:
            _check_length(pictures, n_gallery, "--images", "items")
        names = [f"item {n}" for n in range(n_gallery)] if ids is None else list(map(str, ids))
        if self.captions is not None:
            names = list_texts(self.captions)
            _check_length(names, n_gallery, "--captions", "items")
        asked = [f"query {n}" for n in range(n_queries)]
        if self.query_captions is not None:
            asked = list_texts(self.query_captions)
            _check_length(asked, n_queries, "--query-captions", "queries")
        return OpenSheet(self.sheet or Path(), pictures, names, asked)


@dataclass(frozen=True)
class OpenSheet:
    """A sheet with its lists, ready to be drawn."""

    path: Path
    pictures: Sequence[Path] | None
    names: Sequence[str]
    asked: Sequence[str]

    def show(self, item: int) -> Any:
        """Return the picture of an item, or its caption."""
        return self.names[item] if self.pictures is None else read_tile(self.pictures[item])

    def write(self, found: Sequence[Hits], frame: Any, legend: str) -> None:
        """Draw and write the sheet."""
        write_png(self.path, draw_hits(found, self.show, frame, legend))
        typer.echo(f"Sheet: {self.path}", err=True)


def draw_search(
    sheet: OpenSheet,
    queries: Embeddings,
    gallery: Embeddings,
    bias: Bias | None,
    truth: Any,
    options: Mapping[str, Any],
) -> None:
    """Draw the first queries; with truth, those that a hub had answered and that are right now."""
    k = min(_PLACES, len(gallery))
    before = search_items(queries, gallery, k=k, **options)
    after = None
    if bias is not None:
        after = search_items(queries, gallery, bias, k=k, **options)
    right = None
    if truth is not None:
        right = open_truth(truth, n_queries=len(queries), n_gallery=len(gallery))
    hubs = find_hubs(count_occurrences(before.indices[:, :1], len(gallery)))
    chosen = list(range(min(_QUERIES, len(queries))))
    if right is not None and after is not None:
        rescued = find_rescued(before.indices, after.indices, right, hubs)[:_QUERIES]
        if len(rescued) == 0:
            typer.echo("Note: no query was answered by a hub before and is right after", err=True)
        chosen = [int(query) for query in rescued] or chosen
    found = [pick_hits(query, sheet.asked[query], before, after, right) for query in chosen]
    orange = frozenset(map(int, hubs))

    def frame(hits: Hits, item: int) -> Colour | None:
        return frame_right(hits, item) or (ORANGE if item in orange else None)

    legend = "" if right is None else "green: right, "
    sheet.write(found, frame, legend + "orange: a hub of these queries")


def draw_audit(
    sheet: OpenSheet,
    queries: Embeddings,
    gallery: Embeddings,
    bias: Bias | None,
    found: Audit,
    groups: Sequence[str],
) -> None:
    """Draw the most uneven queries, each item framed in the colour of its group."""
    import numpy as np

    k = min(_PLACES, len(gallery))
    before = search_items(queries, gallery, k=k)
    after = None if bias is None else search_items(queries, gallery, bias, k=k)
    metric = next(iter(found.before))
    order = np.argsort(-np.abs(found.before[metric]), kind="stable")[:_QUERIES]
    hits = [pick_hits(int(query), found.queries[query], before, after) for query in order]
    names = list(found.difference or dict.fromkeys(groups))[:3]
    colours = dict(zip(names, (ORANGE, BLUE, GREEN), strict=False))
    words = dict(zip(names, ("orange", "blue", "green"), strict=False))
    legend = ", ".join(f"{words[name]}: {name}" for name in names)
    sheet.write(hits, lambda _, item: colours.get(groups[item]), legend)


def pick_hits(
    query: int, name: str, before: Ranking, after: Ranking | None, right: Any = None
) -> Hits:
    """Return what one query finds."""
    items = () if right is None else right.items[right.starts[query] : right.starts[query + 1]]
    return Hits(
        name,
        before.indices[query].tolist(),
        None if after is None else after.indices[query].tolist(),
        frozenset(map(int, items)),
    )


def _check_length(entries: Sequence[Any], wanted: int, option: str, what: str) -> None:
    if len(entries) != wanted:
        raise NNNormError(
            f"{option} has {len(entries):,} entries, but there are {wanted:,} {what}; "
            "give one for each, in the same order"
        )
