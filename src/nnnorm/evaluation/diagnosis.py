"""Hubs of a gallery: which items come back too often, before and after a correction.

Two searches and their counts, put together for a report: statistics of N_k before and after, the
most retrieved items one by one, and items whose bias is far from all others.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank, open_references
from nnnorm.bias import Bias
from nnnorm.dedup import Duplicates
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, quiet
from nnnorm.evaluation import hubness
from nnnorm.evaluation.hubness import Hub, Hubness, Hubs, count_occurrences
from nnnorm.evaluation.truth import warn_of_mismatched_bank, warn_of_overlap
from nnnorm.files import Progress
from nnnorm.input_checks import LIKE_ITEMS
from nnnorm.methods import NNN
from nnnorm.ranking import search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.tables import check_ids

IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False, kw_only=True)
class Diagnosis:
    """Hubness of a gallery under a set of queries, before and after a correction."""

    before: Hubness
    null_model: Hubs
    hubs: tuple[Hub, ...]
    after: Hubness | None = None
    null_model_after: Hubs | None = None
    hubs_after: tuple[int, ...] = ()
    ks_statistic: float | None = None  # Kolmogorov–Smirnov test of N_k before and after
    ks_p_value: float | None = None
    outliers: tuple[int, ...] = ()
    method: str | None = None
    n_queries: int
    n_gallery: int
    k: int
    occurrences: IntArray = field(repr=False)
    occurrences_after: IntArray | None = field(default=None, repr=False)
    ids: tuple[Any, ...] | None = field(default=None, repr=False)

    def __repr__(self) -> str:
        after = "" if self.after is None else f", {self.after.max:,} after {self.method}"
        return (
            f"Diagnosis({self.n_queries:,} queries, {self.n_gallery:,} items, "
            f"most retrieved {self.before.max:,} times{after})"
        )

    def name_item(self, item: int) -> str:
        """Return the id of an item, or its row number if there are no ids."""
        return str(item if self.ids is None else self.ids[item])

    def to_dict(self) -> dict[str, Any]:
        """Return all fields but the counts of single items, ready for JSON."""
        skipped = ("occurrences", "occurrences_after", "ids")
        found = {name: value for name, value in asdict(self).items() if name not in skipped}
        if self.ids is not None:
            for hub in found["hubs"]:
                hub["id"] = self.name_item(hub["item"])
            found["outlier_ids"] = [self.name_item(item) for item in self.outliers]
        return found


def diagnose(
    queries: Source,
    gallery: Source,
    bias: Bias | None = None,
    *,
    references: Source | Bank | None = None,
    duplicates: Duplicates = "drop",
    truth: Any = None,
    ids: Sequence[Any] | None = None,
    k: int | None = None,
    most: int = 10,
    normalize: bool | None = None,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Diagnosis:
    """Count how often every item is retrieved, and list those that are retrieved too often.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        A sample of the queries that the search gets.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Adds the same figures after the correction.
    references : array or path, shape (n_references, dim), optional
        Instead of a bias: the automatic NNN is fitted from this bank.
    duplicates : {"drop", "keep"}
        Whether copies in the bank count once, see `Method.fit`.
    truth : array or list, optional
        Adds which hits of a hub are wrong. See `truth.open_truth`.
    ids : sequence, optional
        Id of every item, shown instead of its row number; by default the ids of the gallery if it
        has any.
    k : int, optional
        Number of first places that count as retrieved: by default 1, or 10 if items outnumber
        queries, since hubs don't show in so few first places.
    most : int
        Number of hubs to list.
    normalize : bool, optional
        True divides every row by its norm; see `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import numpy as np
    >>> found = diagnose(np.array([[1.0, 0.1], [1.0, 0.2]]), np.eye(2), ids=["red", "blue"])
    >>> found.name_item(found.hubs[0].item)
    'red'
    """
    asked = open_embeddings(queries, name="queries", normalize=normalize)
    items = open_embeddings(gallery, name="gallery", normalize=normalize)
    names = open_ids(ids, items)
    run: dict[str, Any] = {"memory_budget": memory_budget, "progress": progress}
    if references is not None:
        if bias is not None:
            raise NNNormError("give a bias or references to fit one from, not both")
        bank = open_references(references, normalize=normalize)
        warn_of_overlap(bank, asked)
        given = references if isinstance(references, Bank) else bank
        with quiet(LIKE_ITEMS):  # the queries below tell for certain
            bias = NNN().fit(items, given, duplicates=duplicates, **run)
        warn_of_mismatched_bank(bank, asked, items, truth)
    k = hubness.places_to_count(len(asked), len(items)) if k is None else k
    ranking = search(asked, items, k=k, **run)
    counts = count_occurrences(ranking, len(items))
    about: dict[str, Any] = {"truth": truth, "queries": asked}
    found: dict[str, Any] = {}
    if bias is not None:
        corrected = search(asked, items, bias, k=k, **run)
        after = count_occurrences(corrected, len(items))
        statistic, p_value = hubness.compare_occurrences(counts, after)
        found = {
            "after": hubness.measure_hubness(after),
            "null_model_after": hubness.judge_hubs(corrected.indices, len(items), **about),
            "ks_statistic": statistic,
            "ks_p_value": p_value,
            "outliers": tuple(int(item) for item in hubness.find_outliers(bias)),
            "method": bias.method,
            "occurrences_after": after,
        }
    hubs = tuple(hubness.list_hubs(ranking, len(items), truth=truth, bias=bias, most=most))
    if bias is not None:
        found["hubs_after"] = tuple(int(found["occurrences_after"][hub.item]) for hub in hubs)
    return Diagnosis(
        before=hubness.measure_hubness(counts),
        null_model=hubness.judge_hubs(ranking.indices, len(items), **about),
        hubs=hubs,
        n_queries=len(asked),
        n_gallery=len(items),
        k=k,
        occurrences=counts,
        ids=names,
        **found,
    )


def open_ids(ids: Sequence[Any] | None, gallery: Embeddings) -> tuple[Any, ...] | None:
    """Return the ids of the items, or those of the gallery itself if it has any."""
    found = gallery.ids if ids is None else check_ids(ids, len(gallery), name=gallery.name)
    return None if found is None else tuple(found.tolist())
