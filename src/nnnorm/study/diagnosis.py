"""Which items are the hubs, how often do they come back, and what does a bias change about it.

Two searches and their counts, put together for a report: statistics of N_k before and after, the
most retrieved items one by one, and items whose bias is out of line.
"""

from dataclasses import asdict, dataclass, field
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.io import Progress, Source, open_embeddings
from nnnorm.ranking import search
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET
from nnnorm.study.hubness import (
    Hub,
    Hubness,
    compare_occurrences,
    count_occurrences,
    find_outliers,
    list_hubs,
    measure_hubness,
)

__all__ = ["Diagnosis", "diagnose"]

IntArray: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """Hubness of a gallery under a set of queries, before and after a correction.

    Attributes
    ----------
    before : Hubness
    after : Hubness or None
        With a bias.
    ks_statistic, ks_p_value : float or None
        Kolmogorov–Smirnov test between the two distributions of N_k.
    hubs : tuple of Hub
        The most retrieved items before the correction.
    hubs_after : tuple of int
        How often each of those comes after it.
    n_antihubs, n_antihubs_after : int
        Items that never come.
    outliers : tuple of int
        Items whose bias is far from all others.
    occurrences, occurrences_after : ndarray, shape (n_gallery,)
        N_k of every item, for plots; not in `to_dict`.
    n_queries, n_gallery, k : int
    """

    before: Hubness
    after: Hubness | None
    ks_statistic: float | None
    ks_p_value: float | None
    hubs: tuple[Hub, ...]
    hubs_after: tuple[int, ...]
    n_antihubs: int
    n_antihubs_after: int | None
    outliers: tuple[int, ...]
    n_queries: int
    n_gallery: int
    k: int
    occurrences: IntArray = field(repr=False)
    occurrences_after: IntArray | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON, without the counts of single items.

        Examples
        --------
        >>> import numpy as np
        >>> diagnose(np.eye(3), np.eye(3)).to_dict()["before"]["max"]
        1
        """
        skipped = ("occurrences", "occurrences_after")
        return {name: value for name, value in asdict(self).items() if name not in skipped}


def diagnose(
    queries: Source,
    gallery: Source,
    *,
    bias: Bias | None = None,
    truth: Any = None,
    k: int = 1,
    most: int = 10,
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Diagnosis:
    """Count how often every item comes back, and list those that come too often.

    Parameters
    ----------
    queries : array or path, shape (n_queries, dim)
        A sample of what people ask.
    gallery : array or path, shape (n_gallery, dim)
    bias : Bias, optional
        Adds the same figures after the correction.
    truth : array or list, optional
        Tells which of a hub's hits were wrong. See `truth.open_truth`.
    k : int
        Among how many first places an item counts as retrieved.
    most : int
        How many hubs to list.
    memory_budget : int
    progress : callable, optional

    Returns
    -------
    Diagnosis

    Examples
    --------
    >>> import numpy as np
    >>> diagnose(np.array([[1.0, 0.1], [1.0, 0.2]]), np.eye(2)).hubs[0].item
    0
    """
    asked = open_embeddings(queries, name="queries")
    items = open_embeddings(gallery, name="gallery")
    options: dict[str, Any] = {"k": k, "memory_budget": memory_budget, "progress": progress}
    ranking = search(asked, items, **options)
    counts = count_occurrences(ranking, len(items))
    hubs = list_hubs(ranking, len(items), truth=truth, bias=bias, most=most)
    counts_after = after = statistic = p_value = None
    if bias is not None:
        counts_after = count_occurrences(search(asked, items, bias, **options), len(items))
        after = measure_hubness(counts_after)
        statistic, p_value = compare_occurrences(counts, counts_after)
    return Diagnosis(
        before=measure_hubness(counts),
        after=after,
        ks_statistic=statistic,
        ks_p_value=p_value,
        hubs=tuple(hubs),
        hubs_after=()
        if counts_after is None
        else tuple(int(counts_after[hub.item]) for hub in hubs),
        n_antihubs=int((counts == 0).sum()),
        n_antihubs_after=None if counts_after is None else int((counts_after == 0).sum()),
        outliers=() if bias is None else tuple(int(item) for item in find_outliers(bias)),
        n_queries=len(asked),
        n_gallery=len(items),
        k=k,
        occurrences=counts,
        occurrences_after=counts_after,
    )
