"""The layers of a transformer, computed from a state dict with the authors' own names.

There are no modules: a checkpoint is a mapping of names to tensors, and each function gets the key
of the tensors that it uses. Heads are 64 wide, as in all models computed here.
"""

from collections.abc import MutableMapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.weights import State
from nnnorm.errors import require

Tensor: TypeAlias = Any
Shapes: TypeAlias = MutableMapping[str, tuple[int, ...]]

HEAD = 64


def linear_shapes(shapes: Shapes, key: str, n_in: int, n_out: int) -> None:
    """Add the shapes of weight and bias of a linear layer.

    Examples
    --------
    >>> shapes = {}
    >>> linear_shapes(shapes, "proj", 8, 2)
    >>> shapes
    {'proj.weight': (2, 8), 'proj.bias': (2,)}
    """
    shapes[f"{key}.weight"], shapes[f"{key}.bias"] = (n_out, n_in), (n_out,)


def norm_shapes(shapes: Shapes, key: str, width: int) -> None:
    """Add the shapes of weight and bias of a layer norm.

    Examples
    --------
    >>> shapes = {}
    >>> norm_shapes(shapes, "norm", 8)
    >>> shapes
    {'norm.weight': (8,), 'norm.bias': (8,)}
    """
    shapes[f"{key}.weight"], shapes[f"{key}.bias"] = (width,), (width,)


def apply_linear(state: State, x: Tensor, key: str) -> Tensor:
    """Compute ``x·Wᵀ + b``, or ``x·Wᵀ`` if there is no bias.

    Examples
    --------
    >>> import torch
    >>> apply_linear({"a.weight": torch.ones(1, 2)}, torch.tensor([[3.0, 4.0]]), "a")
    tensor([[7.]])
    """
    functional = require("torch", "encoders").nn.functional
    return functional.linear(x, state[f"{key}.weight"], state.get(f"{key}.bias"))


def apply_norm(state: State, x: Tensor, key: str, eps: float) -> Tensor:
    """Compute the layer norm over the last dimension.

    Examples
    --------
    >>> import torch
    >>> state = {"a.weight": torch.ones(2), "a.bias": torch.zeros(2)}
    >>> apply_norm(state, torch.tensor([[1.0, 3.0]]), "a", 0.0)
    tensor([[-1.,  1.]])
    """
    weight, bias = state[f"{key}.weight"], state[f"{key}.bias"]
    functional = require("torch", "encoders").nn.functional
    return functional.layer_norm(x, weight.shape, weight, bias, eps)


def attend(query: Tensor, key: Tensor, value: Tensor, is_real: Tensor | None = None) -> Tensor:
    """Compute scaled dot-product attention with heads of width 64.

    Parameters
    ----------
    query, key, value : tensor, shape (n, length, width)
        Projected inputs.
    is_real : tensor of bool, shape (n, length), optional
        Whether a token is not padding.

    Returns
    -------
    tensor, shape (n, length, width)
        Concatenated heads, not yet projected.

    Examples
    --------
    >>> import torch
    >>> same = torch.ones(1, 3, 128)
    >>> bool((attend(same, same, same) == 1).all())
    True
    """
    torch = require("torch", "encoders")
    n, length, width = query.shape

    def heads(x: Tensor) -> Tensor:
        return x.reshape(n, length, width // HEAD, HEAD).transpose(1, 2)

    mask = None if is_real is None else is_real[:, None, None, :]
    mixed = torch.nn.functional.scaled_dot_product_attention(
        heads(query), heads(key), heads(value), attn_mask=mask
    )
    return mixed.transpose(1, 2).reshape(n, length, width)


def embed_patches(state: State, pixels: Tensor, key: str, first: str) -> Tensor:
    """Split images into patches, project them, and prepend the first token.

    Examples
    --------
    >>> import torch
    >>> state = {"p.weight": torch.ones(8, 3, 2, 2), "p.bias": torch.ones(8)}
    >>> state["cls"] = torch.zeros(1, 1, 8)
    >>> embed_patches(state, torch.zeros(5, 3, 4, 4), "p", "cls").shape
    torch.Size([5, 5, 8])
    """
    torch = require("torch", "encoders")
    weight = state[f"{key}.weight"]
    patches = torch.nn.functional.conv2d(
        pixels, weight, state[f"{key}.bias"], stride=weight.shape[-1]
    )
    patches = patches.flatten(2).transpose(1, 2)
    return torch.cat([state[first].expand(len(patches), -1, -1), patches], dim=1)


def pad_rows(rows: list[list[int]], pad: int, device: str) -> tuple[Tensor, Tensor]:
    """Pad token ids to one length; also return which of them are not padding.

    Examples
    --------
    >>> pad_rows([[5, 6], [7]], 0, "cpu")
    (tensor([[5, 6],
            [7, 0]]), tensor([[ True,  True],
            [ True, False]]))
    """
    torch = require("torch", "encoders")
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    is_real = torch.arange(longest)[None, :] < lengths[:, None]
    return ids.to(device), is_real.to(device)


def to_numpy(tensor: Tensor) -> npt.NDArray[Any]:
    """Convert a tensor of any device to a float32 numpy array.

    Examples
    --------
    >>> import torch
    >>> to_numpy(torch.ones(2, dtype=torch.bfloat16)).dtype
    dtype('float32')
    """
    return np.asarray(tensor.detach().float().cpu())
