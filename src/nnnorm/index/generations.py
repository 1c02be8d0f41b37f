"""Two generations of a collection: one is served, the other is the former one or the next.

A refresh reads all items of the generation that is served, writes them with the values of another
corrector into the other one, and exchanges both in one step. Where the bias stands beside the
vectors and the engine can replace it in one transaction, the vectors stay where they are.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.errors import NNNormError, keep_interrupts
from nnnorm.files import Progress
from nnnorm.index.clicks import Clicks
from nnnorm.index.fill import fill_store, is_begun, sample_metadata
from nnnorm.index.recipe import MetadataPrint, Recipe, make_recipe
from nnnorm.index.store import FloatArray, Ids, Items, Metadata, Sample, Store

# Norms that differ from 1 by less than this do so by rounding.
_UNIT = 5e-3
# Rows that engines train on at most, and that are kept for them.
_MOST_KEPT = 65536


def refresh(
    store: Store,
    recipe: Recipe,
    corrector: Corrector,
    *,
    gallery: Embeddings | None = None,
    ids: Ids | None = None,
    clicks: Clicks | None = None,
    progress: Progress | None = None,
) -> None:
    """Serve the items of a collection with the values of another corrector, and with new clicks.

    Nothing is done where the collection has these values already. The vectors are those of the
    gallery, by `ids`, where there is one. Clicks of weight 0 take a popularity off.

    Examples
    --------
    >>> from nnnorm.index.corrected import build_index
    >>> rng = np.random.default_rng(0)
    >>> gallery, first, second = (rng.normal(size=(n, 8)) for n in (40, 99, 99))
    >>> old, new = (Corrector.fit(gallery, bank, normalize=True) for bank in (first, second))
    >>> index = build_index("faiss:", gallery, old)
    >>> refresh(index.store, index.recipe, new)
    >>> index.store.read_note()["corrector"] == new.fingerprint
    True
    """
    if recipe.popularity is not None and clicks is None:
        raise NNNormError(
            f"the bias of {store.name} has a popularity of weight {recipe.popularity:g} added, "
            "which this refresh would lose; pass popularity= (--clicks) with the clicks as they "
            "are now, or with a weight of 0 (--popularity-weight 0) to take it off"
        )
    clicks = clicks if clicks is not None and clicks.weight else None
    wanted = (None, None) if clicks is None else (clicks.weight, clicks.fingerprint)
    # Beside a bias of weight 0 a popularity stands alone, with the weight 1.
    weight = corrector.weight or float(clicks is not None)
    is_same = recipe.corrector == corrector.fingerprint and recipe.weight == weight
    noted = _note_of(store) or recipe  # another program may have added items since
    if is_same and (noted.popularity, noted.clicks) == wanted:
        return
    if store.is_lossy and gallery is None:
        raise NNNormError(
            f"{store.name} stores its vectors in few bits and can't give them back; pass gallery= "
            "(--gallery) with the original ones"
        )
    store.check_served()  # before the other generation, which may be the newer one, is removed
    source = _Source(store, recipe, corrector, gallery, ids)
    read, bias = _with_clicks(store, corrector, _read(source), clicks)
    other = store.other()
    former = _note_of(other)
    number = 1 + max(recipe.generation, 0 if former is None else former.generation)
    new = _make_recipe(store, recipe, corrector, read, bias, clicks)
    new = replace(new, generation=number)
    store.save()
    source.version = store.version()
    if _has_values_alone(store, recipe) and read.are_kept:
        pairs = ((items.ids, items.values) for items in _new_items(source, read))
        with keep_interrupts():
            store.set_values(pairs, replace(new, state="whole").to_dict())  # type: ignore[arg-type]
        return
    # A whole generation may have been served and changed since; only a part is continued.
    is_part = former is not None and former.state != "whole"
    if not (is_part and is_begun(other, new, read.ids)):
        with keep_interrupts():
            other.drop()
    fill_store(
        other,
        new,
        _new_items(source, read),
        ids=read.ids,
        sample=Sample(len(read.ids), lambda: _packed(new, read), read.metadata),
        like=store,
        progress=progress,
    )
    facts = store.facts()
    if facts is None or facts.n_items != len(read.ids):
        raise _changed(store)
    source.check_version()
    with keep_interrupts():
        store.exchange()


def rollback(store: Store, *, undo: bool = False) -> bool:
    """Serve the generation before the last refresh, or after `undo` the one of that refresh.

    Returns whether anything was changed: a second call finds that generation served already, so
    that the call can be repeated after a kill.

    Examples
    --------
    >>> from nnnorm.index.corrected import build_index
    >>> from nnnorm import Bias
    >>> index = build_index("faiss:", np.eye(2), Bias(np.zeros(2), 0.75, "nnn"))
    >>> rollback(index.store)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: faiss in memory has no former generation; ...
    """
    other = store.other()
    served, kept = _note_of(store), _note_of(other)
    if served is None or (kept is None and other.facts() is None):
        raise NNNormError(
            f"{store.name} has no former generation; a refresh keeps one, and a build, an export "
            "or an add does not"
        )
    if kept is None or kept.state != "whole":
        raise NNNormError(
            f"beside {store.name} there is only a part of a generation, from a refresh that "
            "was interrupted; run that refresh again, then roll back"
        )
    is_newer = served.generation > kept.generation
    if served.generation != kept.generation and is_newer == undo:
        return False
    store.save()
    with keep_interrupts():
        store.exchange()
    return True


class _Source:
    """The items that are served, as they were before any correction."""

    def __init__(
        self,
        store: Store,
        recipe: Recipe,
        corrector: Corrector,
        gallery: Embeddings | None,
        ids: Ids | None,
    ) -> None:
        self.store, self.recipe, self.corrector = store, recipe, corrector
        self.gallery = gallery
        listed = [] if ids is None else ids.tolist()
        self.row_of = {own: row for row, own in enumerate(listed)}
        self.version: object = None  # after which nothing may be written by others

    def check_version(self) -> None:
        if self.store.version() != self.version:
            raise _changed(self.store)

    def scan(self) -> Iterator[tuple[Items, Embeddings]]:
        """Yield items, and their rows as the corrector needs them."""
        for stored in self.store.scan():
            raw = self.recipe.unpack(stored)
            if self.gallery is not None:
                raw = replace(raw, vectors=self._take(self.gallery, raw.ids))
            rows = open_embeddings(
                raw.vectors, name="items", normalize=self.corrector.normalize, fingerprint=False
            )
            yield raw, self.corrector.open(rows, "items")

    def _take(self, gallery: Embeddings, ids: Ids) -> FloatArray:
        try:
            rows = [self.row_of[own] for own in ids.tolist()]
        except KeyError as error:
            raise NNNormError(
                f"{self.store.name} has the item {error.args[0]!r}, but {gallery.name} has not; "
                "give the gallery with all items, and their ids"
            ) from None
        return gallery.take(np.array(rows, dtype=np.int64))


@dataclass(frozen=True)
class _Read:
    """What one pass over a collection has shown."""

    ids: Ids
    digests: list[bytes]  # of the batches, by which the second pass finds items that were replaced
    values: FloatArray  # by the new corrector, in the order of the scan
    rows: npt.NDArray[np.int64]  # those of the sample
    sample: FloatArray
    norms: tuple[float, float]  # of the vectors as they will be
    are_kept: bool  # whether these are the vectors that are stored now
    fingerprint: str  # of ids and vectors, by which a part of a refresh is known again
    metadata_print: str | None
    metadata: list[Metadata]  # some


def _read(source: _Source) -> _Read:
    store = source.store
    facts = store.facts()
    n_items = 0 if facts is None else facts.n_items
    if n_items == 0:
        raise NNNormError(f"{store.name} is empty; there is nothing to refresh")
    step = -(-n_items // _MOST_KEPT)
    ids, values, kept = list[Ids](), list[FloatArray](), list[FloatArray]()
    digests, known, metadata = list[bytes](), MetadataPrint(), list[Metadata]()
    low, high, done, are_kept = np.inf, 0.0, 0, True
    for raw, rows in source.scan():
        are_kept = are_kept and _is_unit(raw.vectors, rows)
        own = source.corrector.bias_of(rows).values
        ids.append(raw.ids)
        values.append(own)
        digests.append(_digest(raw))
        known.take(raw.metadata_list())
        metadata += sample_metadata(raw.metadata)[: max(1, len(raw) // step)]
        low, high = min(low, rows.norm_range[0]), max(high, rows.norm_range[1])
        kept.append(rows.take(np.arange(-done % step, len(raw), step)))
        done += len(raw)
    if done != n_items:
        raise _changed(store)
    return _Read(
        np.concatenate(ids),
        digests,
        np.concatenate(values),
        np.arange(0, done, step),
        np.concatenate(kept),
        (low, high),
        are_kept,
        hashlib.sha256(b"".join(digests)).hexdigest()[:32],
        known.value,
        sample_metadata(metadata),
    )


def _with_clicks(
    store: Store, corrector: Corrector, read: _Read, clicks: Clicks | None
) -> tuple[_Read, Bias]:
    """Add clicks to the values that were read, and return them as a bias too."""
    bias = replace(corrector.bias, values=read.values)
    if clicks is not None:
        bias = bias + clicks.arrange(read.ids, store.name)
    return replace(read, values=bias.values), bias


def _is_unit(vectors: FloatArray, rows: Embeddings) -> bool:
    """Whether rows are the vectors themselves, up to rounding."""
    return not rows.normalized or bool(np.abs(np.linalg.norm(vectors, axis=1) - 1).max() < _UNIT)


def _make_recipe(
    store: Store,
    recipe: Recipe,
    corrector: Corrector,
    read: _Read,
    bias: Bias,
    clicks: Clicks | None,
) -> Recipe:
    gallery = Embeddings([read.sample], name=store.name)
    sampled = replace(
        bias,
        values=bias.values[read.rows],
        fingerprints={**bias.fingerprints, "gallery": gallery.fingerprint},
    )
    roomy: Corrector | None = corrector
    if clicks is not None:  # they grow, and stored vectors keep their norm
        roomy = corrector.with_room(clicks.popularity) if corrector.weight else None
    new = make_recipe(store, gallery, sampled, way=recipe.way, corrector=roomy)
    return replace(
        new,
        clicks=None if clicks is None else clicks.fingerprint,
        lowest=float(read.values.min()),
        highest=float(read.values.max()),
        shortest=read.norms[0],
        longest=read.norms[1],
        gallery=read.fingerprint,
        metadata=read.metadata_print,
        unit=recipe.unit or new.unit or corrector.unit,
    )


def _new_items(source: _Source, read: _Read) -> Iterator[Items]:
    """Yield the items of a second pass, raw, with their new values."""
    done = 0
    for place, (raw, rows) in enumerate(source.scan()):
        stop = done + len(raw)
        if place >= len(read.digests) or _digest(raw) != read.digests[place]:
            raise _changed(source.store)
        yield replace(raw, vectors=rows.rows(0, len(rows)), values=read.values[done:stop])
        done = stop
    source.check_version()


def _digest(items: Items) -> bytes:
    digest = hashlib.sha256(repr(items.ids.tolist()).encode())
    digest.update(np.ascontiguousarray(items.vectors).tobytes())
    return digest.digest()


def _packed(recipe: Recipe, read: _Read) -> FloatArray:
    return recipe.pack(Items(read.ids[read.rows], read.sample, read.values[read.rows])).vectors


def _has_values_alone(store: Store, recipe: Recipe) -> bool:
    """Whether a refresh need not touch the vectors."""
    return store.rewrites_values and recipe.way in ("column", "rerank")


def _note_of(store: Store) -> Recipe | None:
    note = None if store.facts() is None else store.read_note()
    return None if note is None else Recipe.from_dict(note, store.name)


def _changed(store: Store) -> NNNormError:
    return NNNormError(
        f"{store.name} changed while it was refreshed; run the refresh again when nothing else "
        "writes to it"
    )
