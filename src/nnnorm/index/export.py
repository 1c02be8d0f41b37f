"""An existing collection, written anew with the correction built in; the source is only read.

Two passes: the first reads all vectors (to fit the bias, or to check that a given one belongs to
them), the second writes. Ids and metadata come along. An interrupted export goes on where it
stopped when it is started again.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError
from nnnorm.index.corrected import CorrectedIndex, fill_store
from nnnorm.index.protocol import Facts, Ids, Items, Sample, Store, Way, check_ids
from nnnorm.index.recipe import Recipe, make_recipe, refuse_gates
from nnnorm.index.urls import open_store
from nnnorm.methods import NNN
from nnnorm.scores import Progress

__all__ = ["export_index"]

FloatArray: TypeAlias = npt.NDArray[np.float32]


def export_index(
    source: "Store | str",
    target: "Store | str",
    *,
    references: Source | None = None,
    bias: Bias | None = None,
    ids: Any = None,
    way: Way | None = None,
    progress: Progress | None = None,
) -> CorrectedIndex:
    """Write a corrected copy of a collection, with its ids and metadata.

    Parameters
    ----------
    source : Store or str
        The collection as it is, or its URL. It is never written to. Items of a collection that
        compares by cosine are normalised, as it does itself. One that is corrected already keeps
        its bias unless another is given.
    target : Store or str
        Where the copy goes; empty, missing, or what an interrupted export of the same left.
    references : array or path, shape (n_references, dim), optional
        Bank of past queries: the automatic NNN is fitted on it.
    bias : Bias, optional
        Instead of `references`: one that was fitted on these very items.
    ids : sequence of int or str, optional
        The items' ids in the order of `bias`; 0…n−1 where there are none.
    way : {"ip", "cosine", "l2", "rerank", "column"}, optional
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex
        The target, already saved.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.index.corrected import build_index
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> old = build_index("faiss:", np.eye(2), bias, ids=[70, 80])
    >>> new = export_index(old.store, "sqlite:")
    >>> new.search(np.array([[0.8, 0.6]]), k=1).indices.tolist()
    [[80]]
    """
    old, new = open_store(source), open_store(target)
    facts = old.facts()
    if facts is None:
        raise NNNormError(f"there is no {old.name}; check the name of the source")
    if facts.n_items == 0:
        raise NNNormError(f"{old.name} is empty; there is nothing to export")
    if old is new or old.name == new.name:
        raise NNNormError(
            f"source and target are both {old.name}; the source is never written to: choose "
            "another name for the target"
        )
    if references is not None and bias is not None:
        raise NNNormError("give references or a bias, not both")
    note = old.read_note()
    recipe = None if note is None else Recipe.from_dict(note, old.name)
    if recipe is not None and recipe.state != "whole":
        raise NNNormError(
            f"{old.name} was not finished ({facts.n_items} items are in it); finish its build or "
            "export first, then export it"
        )
    if references is None and bias is None and recipe is None:
        raise NNNormError(f"{old.name} has no bias yet; give references (past queries) or a bias")
    with tempfile.TemporaryDirectory(prefix="nnnorm-") as folder:
        names, gallery, values = _read_all(old, facts, recipe, Path(folder), progress)
        if references is not None:
            bank = open_embeddings(
                references, name="references", normalize=facts.metric == "cosine"
            )
            bias = NNN().fit(gallery, bank)
        elif bias is not None:
            bias = _in_order_of(names, gallery, bias, ids, facts, old.name)
        elif recipe is not None:  # no bias and no recipe was refused above
            bias = Bias(values, recipe.weight, recipe.method, dim=gallery.dim)
        fitted: Bias = bias  # type: ignore[assignment]
        planned = make_recipe(new, gallery, fitted, way=way)
        row_of = {name: row for row, name in enumerate(names.tolist())}

        def sample() -> FloatArray:
            rows = np.linspace(0, len(names) - 1, min(len(names), 65536)).astype(np.int64)
            some = Items(names[rows], gallery.take(rows), fitted.values[rows])
            return planned.pack(some).vectors

        return fill_store(
            new,
            planned,
            _with_values(_raw_items(old, facts, recipe), row_of, fitted.values, old.name),
            ids=names,
            sample=Sample(len(names), sample),
            progress=progress,
        )


def _raw_items(store: Store, facts: Facts, recipe: Recipe | None) -> Iterator[Items]:
    """Items as they were before any correction; directions where the collection is of those."""
    for items in store.scan():
        plain = items if recipe is None else recipe.unpack(items)
        if recipe is None and facts.metric == "cosine":
            norms = np.linalg.norm(plain.vectors, axis=1, keepdims=True)
            if (norms == 0).any():
                row = int(np.flatnonzero(norms[:, 0] == 0)[0])
                raise NNNormError(f"{store.name}: the item {plain.ids[row]} is all zeros")
            plain = replace(plain, vectors=plain.vectors / norms)
        yield plain


def _read_all(
    store: Store, facts: Facts, recipe: Recipe | None, folder: Path, progress: Progress | None
) -> tuple[Ids, Embeddings, FloatArray]:
    """Ids, vectors (in a temporary file, so that they need no memory) and values of all items."""
    dim = facts.width if recipe is None else recipe.dim
    path = folder / "gallery.npy"
    rows = np.lib.format.open_memmap(  # type: ignore[no-untyped-call,unused-ignore]
        path, mode="w+", dtype=np.float32, shape=(facts.n_items, dim)
    )
    ids: list[Ids] = []
    values: list[FloatArray] = []
    done = 0
    for items in _raw_items(store, facts, recipe):
        if done + len(items) > facts.n_items:
            raise _changed(store.name)
        rows[done : done + len(items)] = items.vectors
        ids.append(items.ids)
        values.append(np.zeros(len(items), np.float32) if items.values is None else items.values)
        done += len(items)
        if progress is not None:
            progress(done, facts.n_items)
    if done != facts.n_items:
        raise _changed(store.name)
    rows.flush()
    names = check_ids(np.concatenate(ids), done, name=store.name)
    return names, open_embeddings(path, name="gallery"), np.concatenate(values)


def _in_order_of(
    names: Ids, gallery: Embeddings, bias: Bias, ids: Any, facts: Facts, name: str
) -> Bias:
    """The bias with its rows in the order of the scan, once it is known to be of these items."""
    refuse_gates(bias)
    given = check_ids(ids, len(bias), name="the bias")
    row_of = {value: row for row, value in enumerate(given.tolist())}
    missing = [value for value in names.tolist() if value not in row_of]
    if missing or len(given) != len(names):
        what = f"has no value for the id {missing[0]!r}" if missing else "is for more items"
        raise NNNormError(
            f"this bias is for another gallery: {name} has {len(names)} items, the bias {len(bias)}"
            f", and it {what}; give the ids of its rows (--ids), or references"
        )
    order = np.array([row_of[value] for value in names.tolist()], dtype=np.int64)
    if facts.metric != "cosine":  # an engine that normalises changes the last bits
        back = np.argsort(order)
        bias.check_gallery(Embeddings([gallery.take(back)], name=name))
    return Bias(bias.values[order], bias.weight, bias.method, bias.params, dim=gallery.dim)


def _with_values(
    batches: Iterator[Items], row_of: dict[Any, int], values: FloatArray, name: str
) -> Iterator[Items]:
    for items in batches:
        try:
            rows = [row_of[value] for value in items.ids.tolist()]
        except KeyError:
            raise _changed(name) from None
        yield replace(items, values=values[rows])


def _changed(name: str) -> NNNormError:
    return NNNormError(f"{name} changed while it was read; start again when nobody writes to it")
