"""The main job from end to end, on embeddings made on the fly.

Items and queries share a meaning plus noise; besides, all queries lean in one direction that some
items share more than others. Those items are hubs: close to every query, whatever it asks. Nothing
here is real data, and the output says so.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.methods import NNN
from nnnorm.search import Ranking, search

__all__ = ["make_embeddings", "run_demo"]

ABOUT = (
    "Data: made on the fly (2,000 items, 5 queries each, 20,000 past queries of other items), "
    "not real embeddings."
)


def make_embeddings(
    *, n_items: int = 2000, n_past: int = 4000, dim: int = 64, seed: int = 0
) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Make a gallery, its queries (five per item, in order) and past queries of other items.

    Returns
    -------
    gallery : ndarray, shape (n_items, dim)
    queries : ndarray, shape (5 * n_items, dim)
    references : ndarray, shape (5 * n_past, dim)

    Examples
    --------
    >>> [part.shape for part in make_embeddings(n_items=10, n_past=20)]
    [(10, 64), (50, 64), (100, 64)]
    """
    rng = np.random.default_rng(seed)
    lean = _unit(rng.normal(size=(1, dim)))
    meaning = _unit(rng.normal(size=(n_items + n_past, dim)))
    pull = rng.gamma(2.0, 0.18, size=(n_items, 1))
    gallery = _unit(meaning[:n_items] + 0.09 * rng.normal(size=(n_items, dim)) + pull * lean)
    asked = np.repeat(meaning, 5, axis=0)
    asked = _unit(asked + 0.19 * rng.normal(size=asked.shape) + 0.7 * lean)
    return gallery, asked[: 5 * n_items], asked[5 * n_items :]


def run_demo() -> dict[str, Any]:
    """Fit, search before and after, and count.

    Returns
    -------
    dict
        ``about``, ``n_references``, ``params`` and one row of figures per search.

    Examples
    --------
    >>> before, after = run_demo()["rows"]
    >>> after["recall_at_1"] > before["recall_at_1"]
    True
    """
    gallery, queries, references = make_embeddings()
    truth = np.arange(len(queries)) // 5
    bias = NNN().fit(gallery, references)
    rows = [
        _figures("uncorrected", search(queries, gallery, k=10), truth, len(gallery)),
        _figures("NNN", search(queries, gallery, bias, k=10), truth, len(gallery)),
    ]
    return {
        "about": ABOUT,
        "n_references": len(references),
        "params": dict(bias.params),
        "rows": rows,
    }


def _figures(
    name: str, ranking: Ranking, truth: npt.NDArray[np.int64], n_gallery: int
) -> dict[str, Any]:
    hits = ranking.indices == truth[:, None]
    counts = np.bincount(ranking.indices[:, 0], minlength=n_gallery)
    recalls = {f"recall_at_{k}": 100 * float(hits[:, :k].any(axis=1).mean()) for k in (1, 5, 10)}
    never_first = int((counts == 0).sum())
    return {"search": name, **recalls, "max_n1": int(counts.max()), "n_antihubs": never_first}


def _unit(rows: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
