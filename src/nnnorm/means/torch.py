"""m_k by torch, on the processor or on a GPU."""

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require
from nnnorm.io import Embeddings, Progress
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET

FloatArray: TypeAlias = npt.NDArray[np.float32]


def torch_means(
    gallery: Embeddings,
    references: Embeddings,
    k: int,
    *,
    device: str = "cpu",
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> FloatArray:
    """Compute the mean of every item's k best reference scores exactly, in float32.

    Parameters
    ----------
    gallery : Embeddings, shape (n_gallery, dim)
    references : Embeddings, shape (n_references, dim)
    k : int
    device : str
        "cpu", "cuda" or "mps".
    memory_budget : int
        Approximate bytes on the device, for one block of items, references and scores.
    progress : callable, optional

    Returns
    -------
    ndarray, shape (n_gallery,), float32

    Examples
    --------
    >>> from nnnorm.io import open_embeddings
    >>> rows = open_embeddings(np.eye(3))
    >>> torch_means(rows, rows, 2).tolist()
    [0.5, 0.5, 0.5]
    """
    torch = require("torch", extra="torch")
    available = {"cuda": torch.cuda.is_available, "mps": torch.backends.mps.is_available}
    if device in available and not available[device]():
        raise NNNormError(
            f"solver {device} was asked for, but torch {torch.__version__} finds no such device; "
            "use solver exact, or install a torch that supports the device"
        )
    n_items, n_references = len(gallery), len(references)
    n_block = max(4 * k, min(n_references, memory_budget // 4 // (4 * references.dim)))
    n_strip = max(1, min(n_items, 4096, memory_budget // 2 // (8 * (n_block + k + gallery.dim))))
    means = np.empty(n_items, dtype=np.float32)
    with torch.inference_mode():
        for start in range(0, n_items, n_strip):
            stop = min(start + n_strip, n_items)
            items = torch.from_numpy(np.array(gallery.rows(start, stop))).to(device)
            best = items.new_empty((stop - start, 0))
            for first in range(0, n_references, n_block):
                last = min(first + n_block, n_references)
                block = torch.from_numpy(np.array(references.rows(first, last))).to(device)
                found = torch.topk(items @ block.T, min(k, last - first), sorted=False).values
                best = torch.cat([best, found], dim=1)
                best = torch.topk(best, min(k, best.shape[1]), sorted=False).values
                if progress is not None:
                    progress(start * n_references + (stop - start) * last, n_items * n_references)
            means[start:stop] = best.cpu().numpy().mean(axis=1, dtype=np.float64)
    return means
