"""A copy of an existing collection with the correction built in; the source is only read.

Two passes: the first reads all vectors (to fit the bias, or to check that a given one belongs to
them), the second writes. Ids and metadata are copied. An interrupted export continues where it
stopped when it is started again.
"""

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank, open_references
from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments, warn
from nnnorm.files import Progress
from nnnorm.index.corrected import CorrectedIndex
from nnnorm.index.fill import fill_store, make_sample
from nnnorm.index.recipe import MetadataPrint, Recipe, make_recipe, origin_of
from nnnorm.index.store import (
    Facts,
    FloatArray,
    Ids,
    Items,
    Metadata,
    Store,
    Way,
    changed_while_read,
    check_ids,
    scan_generation,
)
from nnnorm.index.urls import open_store
from nnnorm.index.values import Correction, open_correction
from nnnorm.methods import NNN

# What a copy of a corrected collection knows of its bias, as the collection does.
_OF_THE_BIAS = (
    *("corrector", "origin", "popularity", "clicks", "bank", "reference_k"),
    *("reference_low", "reference_high"),
)
# Entries of metadata that show the target which fields there are.
_MOST_DESCRIBED = 1000


@explain_arguments
def export_index(
    source: "Store | str",
    target: "Store | str",
    *,
    references: Source | Bank | None = None,
    bias: Correction | None = None,
    ids: Any = None,
    way: Way | None = None,
    normalize: bool | None = None,
    progress: Progress | None = None,
) -> CorrectedIndex:
    """Write a corrected copy of a collection, with its ids and metadata.

    Parameters
    ----------
    source : Store or str
        The existing collection, or its URL. It is never written to. Items of a collection that
        compares by cosine are normalised, as the engine does, and so are the queries of a search.
        A collection that is corrected already keeps its bias unless another is given. It is closed
        afterwards where its URL was given.
    target : Store or str
        Where the copy goes: empty, missing, or the result of the same export, interrupted. In the
        same engine it has the native columns of the source.
    references : Bank, array or path, shape (n_references, dim), optional
        Bank of past queries, on which the automatic NNN is fitted.
    bias : Corrector, path or Bias, optional
        Instead of `references`: a corrector, or its file, which gives the items their bias; or a
        bias that was fitted on them.
    ids : sequence of int or str, optional
        Ids of the items in the order of `bias`, by default 0…n−1.
    way : {"ip", "cosine", "l2", "rerank", "column"}, optional
        How the correction is served; by default the best way of the engine.
    normalize : bool, optional
        Divide every row of `references` by its norm; by default where the source compares by
        cosine.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    CorrectedIndex
        The copy, already saved.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm.index.corrected import build_index
    >>> bias = Bias(np.array([0.9, 0.5]), weight=0.75, method="nnn")
    >>> old = build_index("faiss:", np.eye(2), bias, ids=[70, 80])
    >>> new = export_index(old.store, "sqlite:")
    >>> new.search(np.array([[0.8, 0.6]]), k=1).ids.tolist()
    [[80]]
    """
    old, new = open_store(source), open_store(target)
    try:
        return _export(old, new, references, bias, ids, way, normalize, progress)
    finally:
        if isinstance(source, str):
            old.close()


def _export(
    old: Store,
    new: Store,
    references: Source | Bank | None,
    bias: Correction | None,
    ids: Any,
    way: Way | None,
    normalize: bool | None,
    progress: Progress | None,
) -> CorrectedIndex:
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
    given = None if bias is None else open_correction(bias)
    mark = old.mark()  # before the note, so that a change in between is found out
    note = old.read_note()
    recipe = None if note is None else Recipe.from_dict(note, old.name)
    if recipe is not None and recipe.state != "whole":
        raise NNNormError(
            f"{old.name} was not finished ({facts.n_items} items are in it); finish its build or "
            "export first, then export it"
        )
    if references is None and given is None and recipe is None:
        raise NNNormError(
            f"{old.name} has no bias yet; give references (past queries), a corrector or a bias"
        )
    with tempfile.TemporaryDirectory(prefix="nnnorm-") as folder:

        def read() -> Iterator[Items]:
            return _raw_items(old, scan_generation(old, mark, note), facts, recipe)

        copied = _read_all(old, read(), facts, recipe, Path(folder), progress)
        if isinstance(given, Corrector):
            copied = copied._replace(gallery=given.open(copied.gallery, "items"))
        planned, values = _plan(old, new, copied, recipe, references, given, ids, way, normalize)
        if recipe is None and facts.metric == "l2" and not planned.has_equal_norms:
            warn(
                f"{old.name} compares by l2, and its vectors have norms {planned.shortest:.3g} to "
                f"{planned.longest:.3g}: the corrected copy ranks by inner product, which is "
                "another order; normalise the vectors in the source where cosine was meant"
            )
        sample = make_sample(planned, copied.gallery, values, copied.ids, copied.some_metadata)
        whole = fill_store(
            new,
            planned,
            _with_values(read(), copied, values, old.name),
            ids=copied.ids,
            sample=sample,
            like=old,
            progress=progress,
        )
        return CorrectedIndex(new, whole)


def _plan(
    old: Store,
    new: Store,
    copied: "_Copied",
    recipe: Recipe | None,
    references: Source | Bank | None,
    given: Bias | Corrector | None,
    ids: Any,
    way: Way | None,
    normalize: bool | None,
) -> tuple[Recipe, FloatArray]:
    """Find the bias of the items, and how the copy serves it."""
    gallery, corrector = copied.gallery, given if isinstance(given, Corrector) else None
    if references is not None:
        unit = gallery.normalized or (recipe is not None and recipe.unit) or normalize
        fitted = NNN().fit(gallery, open_references(references, normalize=unit))
    elif corrector is not None:
        fitted = corrector.bias_of(gallery)
    elif isinstance(given, Bias):
        fitted = _in_order_of(copied, given, ids, old)
    else:
        method = "nnn" if recipe is None else recipe.method
        weight = 0.0 if recipe is None else recipe.weight
        fitted = Bias(copied.values, weight, method, dim=gallery.dim)
    new.imitate(old)
    planned = make_recipe(new, gallery, fitted, way=way, corrector=corrector)
    if recipe is not None and given is None and references is None:
        kept = {name: getattr(recipe, name) for name in _OF_THE_BIAS}
        planned = replace(planned, **kept)
    elif isinstance(given, Bias):
        planned = replace(planned, origin=origin_of(given))
    unit = planned.unit or (recipe is not None and recipe.unit)
    return replace(planned, metadata=copied.metadata, unit=unit), fitted.values


class _Copied(NamedTuple):
    """What the first pass read, in the order of the scan."""

    ids: Ids
    gallery: Embeddings  # of unit norm where the source compares by cosine
    values: FloatArray
    as_stored: FloatArray  # on the disk, before any normalisation
    metadata: str | None  # a fingerprint
    some_metadata: list[Metadata]


def _raw_items(
    store: Store, batches: Iterator[Items], facts: Facts, recipe: Recipe | None
) -> Iterator[Items]:
    """Yield items as they were before any correction."""
    for items in batches:
        plain = items if recipe is None else recipe.unpack(items)
        if recipe is None and facts.metric == "cosine":
            is_zero = ~plain.vectors.any(axis=1)
            if is_zero.any():
                name = plain.ids[np.flatnonzero(is_zero)[0]]
                raise NNNormError(f"{store.name}: the item {name} is all zeros")
        yield plain


def _read_all(
    store: Store,
    batches: Iterator[Items],
    facts: Facts,
    recipe: Recipe | None,
    folder: Path,
    progress: Progress | None,
) -> _Copied:
    """Read all items, their vectors into a temporary file to save memory."""
    dim = facts.width if recipe is None else recipe.dim
    path = folder / "gallery.npy"
    rows = np.lib.format.open_memmap(  # type: ignore[no-untyped-call,unused-ignore]
        path, mode="w+", dtype=np.float32, shape=(facts.n_items, dim)
    )
    ids: list[Ids] = []
    values: list[FloatArray] = []
    known, some, done = MetadataPrint(), list[Metadata](), 0
    step = -(-facts.n_items // _MOST_DESCRIBED)
    for items in batches:
        if done + len(items) > facts.n_items:
            raise changed_while_read(store.name)
        if items.vectors.shape[1] != rows.shape[1]:  # a second file that says another width
            raise NNNormError(f"{store.name} is damaged: its rows are not as wide as it says")
        rows[done : done + len(items)] = items.vectors
        ids.append(items.ids)
        values.append(np.zeros(len(items), np.float32) if items.values is None else items.values)
        described = items.metadata_list()
        known.take(described)
        some += described[-done % step :: step]
        done += len(items)
        if progress is not None:
            progress(done, facts.n_items)
    if done != facts.n_items:
        raise changed_while_read(store.name)
    rows.flush()
    kinds = {("U" if some.dtype.kind == "U" else "i"): some[0] for some in ids}
    if len(kinds) > 1:
        raise NNNormError(
            f"{store.name} has both whole numbers and strings as ids (such as {kinds['i']} and "
            f"{str(kinds['U'])!r}), and a ranking has one kind; copy one of the two into a "
            "collection of its own, and export that"
        )
    names = check_ids(np.concatenate(ids), done, name=store.name)
    by_cosine = recipe is None and facts.metric == "cosine"
    gallery = open_embeddings(rows, name=f"the items of {store.name}", normalize=by_cosine)
    if not any(some):
        some = []
    return _Copied(names, gallery, np.concatenate(values), rows, known.value, some)


def _in_order_of(copied: _Copied, bias: Bias, ids: Any, store: Store) -> Bias:
    """Check that the bias belongs to these items, and put its rows in the order of the scan."""
    names, gallery, name = copied.ids, copied.gallery, store.name
    given = check_ids(ids, len(bias), name="the bias")
    row_of = {value: row for row, value in enumerate(given.tolist())}
    missing = [value for value in names.tolist() if value not in row_of]
    if missing or len(given) != len(names):
        what = f"has no value for the id {missing[0]!r}" if missing else "is for more items"
        raise NNNormError(
            f"this bias is for another gallery: {name} has {len(names)} items, the bias {len(bias)}"
            f", and it {what}; give the ids of its rows (--ids), or references"
        )
    if bias.dim not in (None, gallery.dim):
        raise NNNormError(
            f"this bias is for another gallery: {name} has items of dim {gallery.dim}, the bias "
            f"was fitted on dim {bias.dim}; fit it on these items, or give references"
        )
    order = np.array([row_of[value] for value in names.tolist()], dtype=np.int64)
    _check_items(copied, bias, np.argsort(order), store)
    kept = {role: print_ for role, print_ in bias.fingerprints.items() if role != "gallery"}
    return Bias(
        bias.values[order],
        bias.weight,
        bias.method,
        bias.params,
        dim=gallery.dim,
        fingerprints=kept,
    )


def _check_items(copied: _Copied, bias: Bias, order: npt.NDArray[np.int64], store: Store) -> None:
    """Raise unless the bias was fitted on these vectors, as far as fingerprints show it."""
    as_stored = Embeddings([copied.as_stored[order]], name=store.name)
    expected = bias.fingerprints.get("gallery")
    if not copied.gallery.normalized:
        bias.check_gallery(as_stored)
        return
    directions = Embeddings([copied.gallery.take(order)], name=store.name)
    # Fitted on the stored vectors, or on their directions, normalised here or before.
    if expected in (None, f"{as_stored.fingerprint}:unit", directions.fingerprint):
        return
    low, high = as_stored.norm_range
    is_unit = max(abs(low - 1), abs(high - 1)) <= 1e-3
    if expected == as_stored.fingerprint:
        if not is_unit:
            raise NNNormError(
                f"{store.name} compares by cosine, but this bias was fitted on vectors of norms "
                f"{low:.4g} to {high:.4g}; fit it with --normalize, or give references"
            )
        return
    # One side was normalised elsewhere, or by the engine: the last bits are not comparable.
    if not store.keeps_vectors or is_unit == expected.endswith(":unit"):
        warn(
            f"whether this bias was fitted on the items of {store.name} can't be determined, "
            "because one of them was normalised elsewhere; check with nnnorm index verify, or give "
            "references"
        )
        return
    raise NNNormError(
        f"this bias was fitted on another gallery: {store.name} has as many items but other "
        "values, or --ids are of another order; fit the bias on these items, or give references"
    )


def _with_values(
    batches: Iterator[Items], copied: _Copied, values: FloatArray, name: str
) -> Iterator[Items]:
    """Yield the items of the second pass with the vectors of the first and their values."""
    row_of = {value: row for row, value in enumerate(copied.ids.tolist())}
    for items in batches:
        try:
            rows = np.array([row_of[value] for value in items.ids.tolist()], dtype=np.int64)
        except KeyError:
            raise changed_while_read(name) from None
        yield replace(items, vectors=copied.gallery.take(rows), values=values[rows])
