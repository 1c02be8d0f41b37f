"""Made embeddings with hubs, of any size, for tests where the right answer must be plain."""

import numpy as np


def make_embeddings(*, n_items=2000, n_past=4000, dim=64, seed=0):
    """A gallery, its queries (five per item, in order) and past queries of other items.

    Items and queries share a meaning plus noise; besides, all queries lean in one direction that
    some items share more than others. Those items are hubs: close to every query.
    """
    rng = np.random.default_rng(seed)
    lean = _unit(rng.normal(size=(1, dim)))
    meaning = _unit(rng.normal(size=(n_items + n_past, dim)))
    pull = rng.gamma(2.0, 0.18, size=(n_items, 1))
    gallery = _unit(meaning[:n_items] + 0.09 * rng.normal(size=(n_items, dim)) + pull * lean)
    asked = np.repeat(meaning, 5, axis=0)
    asked = _unit(asked + 0.19 * rng.normal(size=asked.shape) + 0.7 * lean)
    return gallery, asked[: 5 * n_items], asked[5 * n_items :]


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)
