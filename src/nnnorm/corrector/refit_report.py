"""`RefitReport`: how far the values of a gallery moved when a corrector was fitted again."""

from dataclasses import dataclass

import numpy as np

from nnnorm.bias import Bias
from nnnorm.embeddings import Embeddings, open_embeddings
from nnnorm.ranking import search

# Queries by which the first places that change are counted.
_N_ASKED = 1024


@dataclass(frozen=True)
class RefitReport:
    """How far the values of a gallery moved when a corrector was fitted again."""

    correlation: float
    mean_shift: float
    changed_first_places: float
    n_items: int
    n_queries: int


def report_refit(old: Bias, new: Bias, items: Embeddings, asked: Embeddings) -> RefitReport:
    """Compare two biases of the same items, by their values and by the first places of queries."""
    rows = np.linspace(0, len(asked) - 1, min(len(asked), _N_ASKED)).astype(np.int64)
    some = open_embeddings(asked.take(rows), name="queries", normalize=items.normalized)
    first = [search(some, items, bias, k=1).indices for bias in (old, new)]
    before, after = (bias.values.astype(np.float64) for bias in (old, new))
    is_flat = before.std() == 0 or after.std() == 0
    return RefitReport(
        correlation=0.0 if is_flat else float(np.corrcoef(before, after)[0, 1]),
        mean_shift=new.weight * float(after.mean()) - old.weight * float(before.mean()),
        changed_first_places=float((first[0] != first[1]).mean()),
        n_items=len(items),
        n_queries=len(some),
    )
