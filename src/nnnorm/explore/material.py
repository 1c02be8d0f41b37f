"""The data of the explorer: embeddings, captions, pictures and metadata.

`demo_material` is the data set that ships with the package; `open_material` opens files, or the
items of an index. Both return a `Material`, which is checked once and never changes.
"""

import threading
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm import evaluation
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.datasets import load_shapes, read_scene
from nnnorm.embeddings import Embeddings, FloatArray, open_embeddings
from nnnorm.encoders import list_inputs, load_encoder
from nnnorm.errors import NNNormError, NNNormWarning, show_url
from nnnorm.explore.pictures import Draw, FolderPictures, draw_scene
from nnnorm.index import Items, open_index
from nnnorm.input_checks import check_inputs
from nnnorm.methods import Statistics, label_method, open_references
from nnnorm.tables import TABLE_SUFFIXES, check_ids, read_columns, read_ids, read_objects

# Columns of the metadata that name an item's picture, the first that is there.
_PICTURE_COLUMNS = ("image", "file", "path", "filename", "image_path")
# A column with more values than this is not offered as a filter.
_MOST_VALUES = 40
_LONGEST_CAPTION = 2000
# Norms this close to 1 are those of unit rows, also in half precision.
_UNIT_TOLERANCE = 0.01


@dataclass(frozen=True)
class Served:
    """The stored values of an index under any weight, as a method of the page's picker.

    The views show the exact ranking by these values. To check that the engine returns it, use
    `nnnorm index verify`.
    """

    url: str
    fitted_by: str
    reference_k: int | None
    stored: FloatArray = field(compare=False, repr=False)
    weight: float = 1.0
    name = "index"
    label = "as served"

    def make_bias(self, statistics: Statistics) -> Bias:
        """Return the bias of the index, which owes nothing to the past queries that are shown."""
        params, dim = {"weight": self.weight}, statistics.gallery.shape[1]
        return Bias(self.stored, self.weight, self.fitted_by, params, dim=dim)

    def describe(self) -> str:
        """Describe what is served in a few words."""
        k = "" if self.reference_k is None else f", k = {self.reference_k}"
        return f"{self.url} serves {label_method(self.fitted_by)}{k}, weight {self.weight:.3g}"


@dataclass(frozen=True, eq=False)
class Material:
    """Embeddings in their roles, checked, and what is known about items and queries."""

    gallery: Embeddings
    queries: Embeddings
    references: Embeddings
    truth: evaluation.Truth | None = None
    ids: npt.NDArray[Any] | None = None
    captions: Sequence[str] | None = None
    query_captions: Sequence[str] | None = None
    reference_captions: Sequence[str] | None = None
    metadata: Mapping[str, Sequence[str]] = field(default_factory=dict)
    pictures: Draw | None = None
    encode: Callable[[str], FloatArray] | None = None
    corrector: Corrector | None = None
    served: Served | None = None
    options: Mapping[str, Any] = field(default_factory=dict)
    examples: Sequence[str] = ()
    notes: Sequence[str] = ()

    def name_item(self, item: int) -> str:
        """Return the id of an item, or its row number."""
        return str(item if self.ids is None else self.ids[item])

    def describe_item(self, item: int) -> str:
        """Return the caption of an item; empty if there is none."""
        return "" if self.captions is None else self.captions[item][:_LONGEST_CAPTION]

    def describe_query(self, query: int) -> str:
        """Return the text of a query, or its number."""
        if self.query_captions is None:
            return f"query {query}"
        return self.query_captions[query][:_LONGEST_CAPTION]

    def right_items(self, query: int) -> list[int]:
        """Return the right items of a query; empty if no truth is known."""
        if self.truth is None:
            return []
        return list(self.truth.some_queries(np.array([query])).items.tolist())

    def filters(self) -> dict[str, list[str]]:
        """Return the columns of the metadata to filter by, with their values in order."""
        found = {}
        for name, cells in self.metadata.items():
            values = sorted(set(cells) - {""})
            if len(set(cells)) > 1 and len(values) <= _MOST_VALUES and name not in _PICTURE_COLUMNS:
                found[name] = values
        return found


def demo_material() -> Material:
    """Return the shapes that ship with the package, with their text tower and pictures."""
    shapes = load_shapes()
    scenes = [read_scene(scene) for scene in shapes.scenes]
    return Material(
        gallery=open_embeddings(shapes.gallery, name="gallery"),
        queries=open_embeddings(shapes.queries, name="queries"),
        references=open_embeddings(shapes.references, name="references"),
        truth=evaluation.open_truth(
            shapes.truth, n_queries=len(shapes.queries), n_gallery=len(shapes.gallery)
        ),
        captions=[shapes.describe(item) for item in range(len(scenes))],
        query_captions=shapes.captions,
        reference_captions=shapes.reference_captions,
        metadata={
            "background": [background for background, _ in scenes],
            "objects": [str(len(things)) for _, things in scenes],
        },
        pictures=draw_scene,
        encode=lambda text: shapes.encode_texts([text]),
        examples=("a red star above a blue ring", "a big green heart", "a purple moon on sand"),
    )


def open_material(
    gallery: Path | None = None,
    queries: Path | None = None,
    references: Path | None = None,
    truth: Path | None = None,
    index: str | None = None,
    corrector: Path | None = None,
    ids: Path | None = None,
    images: Path | None = None,
    captions: Path | None = None,
    query_captions: Path | None = None,
    reference_captions: Path | None = None,
    metadata: Path | None = None,
    encoder: str | None = None,
    normalize: bool | None = None,
) -> Material:
    """Open the files of a search, or the items of an index."""
    if (gallery is None) == (index is None):
        got = "neither" if index is None else "both"
        raise NNNormError(f"explore needs a gallery, or an index that holds one; got {got}")
    if queries is None:
        raise NNNormError("explore needs queries to look at; pass --queries")
    if references is None and corrector is None:
        raise NNNormError("explore needs past queries; pass --references, or a --corrector")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", NNNormWarning)
        columns: dict[str, list[str]] = {}
        served = None
        if index is None:
            items = open_embeddings(gallery, name="gallery", normalize=normalize)
            named = items.ids if ids is None else check_ids(read_ids(ids), len(items))
        else:
            with open_index(index) as opened:
                batches, config = list(opened.scan()), opened.config
            if not batches:
                raise NNNormError(f"{show_url(index)} holds no items; add some, or give --gallery")
            read = Items.join(batches)
            items = open_embeddings(read.vectors, name="gallery", normalize=normalize)
            named, columns = read.ids, _columns(read.metadata)
            url, stored = show_url(index), np.asarray(read.bias)
            served = Served(url, config.method, config.reference_k, stored, config.weight)
            # Queries of an index of unit rows are divided by their norms there as well.
            normalize = True if config.unit and normalize is None else normalize
        asked = open_embeddings(queries, name="queries", normalize=normalize)
        fitted = None if corrector is None else Corrector.load(corrector)
        source = fitted.bank if references is None and fitted is not None else references
        past = open_references(source, normalize=normalize)
        right = None
        if truth is not None:
            right = evaluation.open_truth(
                evaluation.read_truth(truth), n_queries=len(asked), n_gallery=len(items)
            )
        check_inputs(items, past, allow_gallery_rows=None, compare=False)
        evaluation.warn_of_overlap(past, asked)
        evaluation.warn_of_mismatched_bank(past, asked, items, right)
        if metadata is not None:
            columns |= _read_metadata(metadata, len(items))
    given = {"gallery": gallery, "queries": queries, "references": references, "index": index}
    # Without passwords: exports and the page have them.
    options: dict[str, Any] = {
        name: show_url(value) for name, value in given.items() if value is not None
    }
    options["normalize"] = normalize
    notes = [str(one.message) for one in caught if issubclass(one.category, NNNormWarning)]
    return Material(
        gallery=items,
        queries=asked,
        references=past,
        truth=right,
        ids=named,
        captions=_read_captions(captions, "items", items, asked),
        query_captions=_read_captions(query_captions, "queries", asked, items),
        reference_captions=_read_captions(reference_captions, "references", past),
        metadata=columns,
        pictures=_open_pictures(images, columns, len(items)),
        encode=_open_encoder(encoder, past),
        corrector=fitted,
        served=served,
        options=options,
        notes=list(dict.fromkeys(notes)),
    )


def _read_metadata(path: Path, n_items: int) -> dict[str, list[str]]:
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES and suffix != ".jsonl":
        columns = read_columns(path, optional=None)
    else:
        columns = _columns(read_objects(path))
    n_rows = len(next(iter(columns.values()), []))
    if n_rows != n_items:
        raise NNNormError(
            f"{path} has {n_rows:,} rows, but the gallery has {n_items:,} items; pass one per item"
        )
    return columns


def _columns(entries: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Entries of items by column, as text."""
    names = dict.fromkeys(name for entry in entries for name in entry)
    return {
        name: ["" if (value := entry.get(name)) is None else str(value) for entry in entries]
        for name in names
    }


def _read_captions(
    path: Path | None, what: str, rows: Embeddings, others: Embeddings | None = None
) -> list[str] | None:
    if path is None:
        return None
    is_table = path.suffix.lower() in TABLE_SUFFIXES
    has_caption = is_table and "caption" in read_columns(path, optional=None)
    texts = list(list_inputs(path, "texts", "caption" if has_caption else None))
    if len(texts) != len(rows):
        problem = f"{path} has {len(texts):,} texts, but there are {len(rows):,} {what}"
        if others is not None and len(texts) == len(others):
            problem += "; --captions are the texts of items, --query-captions those of queries"
        raise NNNormError(problem)
    return texts


def _open_pictures(
    folder: Path | None, columns: Mapping[str, Sequence[str]], n_items: int
) -> Draw | None:
    if folder is None:
        return None
    if not folder.is_dir():
        raise NNNormError(f"there is no folder of pictures {folder}; check --images")
    for name in _PICTURE_COLUMNS:
        if name in columns:
            return FolderPictures(folder, columns[name])
    found = list_inputs(folder)
    if len(found) != n_items:
        raise NNNormError(
            f"{folder} has {len(found):,} pictures, but the gallery has {n_items:,} items; name "
            f"each item's picture in a column of --metadata ({', '.join(_PICTURE_COLUMNS)})"
        )
    return FolderPictures(folder, [path.relative_to(folder) for path in found])


def _open_encoder(model: str | None, past: Embeddings) -> Callable[[str], FloatArray] | None:
    if model is None:
        return None
    smallest, largest = past.norm_range
    if max(1 - smallest, largest - 1) > _UNIT_TOLERANCE:
        raise NNNormError(
            "the encoder returns queries of norm 1, but the past queries have norms from "
            f"{smallest:.3g} to {largest:.3g}, so their bias would not fit typed queries; add "
            "--normalize"
        )
    encoder = load_encoder(model)
    encoder.check_modality("texts")
    lock = threading.Lock()  # requests come in threads, and a tokenizer serves one at a time

    @lru_cache(maxsize=256)
    def encode(text: str) -> FloatArray:
        with lock:
            rows = np.asarray(encoder.encode_texts([text]), dtype=np.float32)
        if rows.shape[1] != past.dim:
            raise NNNormError(
                f"the encoder returns {rows.shape[1]} dimensions, but the gallery has {past.dim}; "
                "name the model that encoded the gallery"
            )
        return rows

    return encode
