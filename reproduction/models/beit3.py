"""BEiT-3's image and text branches for retrieval (Wang et al., CVPR 2023), from the checkpoint.

BEiT-3 is one transformer with two sets of weights in every layer: A for images, B for texts. Each
branch ends in a head without bias on its first token. Norms precede attention and MLP, and both
have another one inside (sub-LN). No library has it, so it is computed from the state dict itself,
whose names are torchscale's.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from nnnorm import NNNormError
from reproduction.models.checkpoints import (
    HEAD,
    PUBLISHED,
    CheckpointEncoder,
    State,
    check_tensors,
    count_layers,
    find_image_size,
    find_vocabulary,
    pad_rows,
    require_tensors,
    resize_positions,
)

_MAX_TOKENS = 64
_UNUSED = ("logit_scale", "beit3.vision_embed.mask_token")
_SKIPPED = 2  # position tables begin with two unused rows, as in Fairseq
# XLM-R's ids are those of the sentencepiece model plus one, after these special ids.
_FIRST, _PAD, _LAST, _UNKNOWN, _SHIFT = 0, 1, 2, 3, 1
_WORDS, _PLACES = "beit3.text_embed.weight", "beit3.encoder.embed_positions"
_PATCHES = "beit3.vision_embed.proj"
_NEEDED = {_WORDS: 2, f"{_PATCHES}.weight": 4, f"{_PLACES}.A.weight": 2, f"{_PLACES}.B.weight": 2}


class Beit3(CheckpointEncoder):
    """BEiT-3's encoder, base or large; ``beit3.spm`` is next to the checkpoint unless given."""

    mean = std = (0.5, 0.5, 0.5)

    def __init__(
        self,
        path: Path,
        state: State,
        *,
        vocabulary: Path | None = None,
        image_size: int | None = None,
        device: str = "auto",
    ) -> None:
        state = {key: tensor for key, tensor in state.items() if key not in _UNUSED}
        require_tensors(state, _NEEDED, path, "BEiT-3")
        shapes = beit3_shapes(state, path)
        check_tensors(state, shapes, path)
        vocabulary = find_vocabulary(path, vocabulary, "beit3.spm", "the authors' beit3.spm")
        self._pieces = _read_pieces(vocabulary, len(state[_WORDS]))
        table, patch = state[f"{_PLACES}.A.weight"].float(), shapes[f"{_PATCHES}.weight"][-1]
        n_extra = 1 + _SKIPPED
        size = find_image_size(len(table) - n_extra, patch, image_size)
        state[f"{_PLACES}.A.weight"] = resize_positions(table, n_extra, size // patch)
        self.dim = state[_WORDS].shape[1]
        self.context = min(_MAX_TOKENS, len(state[f"{_PLACES}.B.weight"]) - _SKIPPED)
        self._n_layers = sum(key.endswith("q_proj.A.weight") for key in shapes)
        texts = f"sentencepiece between <s> and </s>, at most {self.context} tokens"
        self._describe("beit3", path, vocabulary, size, device, texts)
        self._state = {key: tensor.float().to(self._device) for key, tensor in state.items()}

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        return [2 + len(ids) for ids in self._tokenize(texts)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the first token of branch A after the vision head."""
        with torch.inference_mode():
            weight = self._state[f"{_PATCHES}.weight"]
            x = functional.conv2d(
                self._pixels(images), weight, self._state[f"{_PATCHES}.bias"], weight.shape[-1]
            )
            x = x.flatten(2).transpose(1, 2)
            first = self._state["beit3.vision_embed.cls_token"].expand(len(x), -1, -1)
            x = self._run(torch.cat([first, x], dim=1), "A", None)
            return self._linear(x, "vision_head").cpu().numpy()

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the first token of branch B after the language head."""
        most = (self.context or _MAX_TOKENS) - 2
        rows = [[_FIRST, *ids[:most], _LAST] for ids in self._tokenize(texts)]
        ids, is_real = pad_rows(rows, _PAD, self._device)
        with torch.inference_mode():
            x = self._run(self._state[_WORDS][ids], "B", is_real)
            return self._linear(x, "language_head").cpu().numpy()

    def _run(self, x: Tensor, branch: Literal["A", "B"], is_real: Tensor | None) -> Tensor:
        """Run all layers of one branch and return the first token."""
        x = x + self._state[f"{_PLACES}.{branch}.weight"][_SKIPPED : _SKIPPED + x.shape[1]]
        for number in range(self._n_layers):
            layer = f"beit3.encoder.layers.{number}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.ffn.{branch}"
            inner = self._norm(x, f"{layer}.self_attn_layer_norm.{branch}")
            parts = [self._linear(inner, f"{attention}.{p}_proj.{branch}") for p in "qkv"]
            inner = _attend(parts, is_real)
            inner = self._norm(inner, f"{attention}.inner_attn_ln.{branch}")
            x = x + self._linear(inner, f"{attention}.out_proj.{branch}")
            inner = self._norm(x, f"{layer}.final_layer_norm.{branch}")
            inner = functional.gelu(self._linear(inner, f"{mlp}.fc1"))
            x = x + self._linear(self._norm(inner, f"{mlp}.ffn_layernorm"), f"{mlp}.fc2")
        return self._norm(x[:, 0], f"beit3.encoder.layer_norm.{branch}")

    def _linear(self, x: Tensor, key: str) -> Tensor:
        return functional.linear(x, self._state[f"{key}.weight"], self._state.get(f"{key}.bias"))

    def _norm(self, x: Tensor, key: str) -> Tensor:
        weight = self._state[f"{key}.weight"]
        return functional.layer_norm(x, weight.shape, weight, self._state[f"{key}.bias"], 1e-5)

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._pieces.encode(list(texts), out_type=int)
        return [[one + _SHIFT if one else _UNKNOWN for one in ids] for ids in found]


def _attend(parts: list[Tensor], is_real: Tensor | None) -> Tensor:
    n, length, width = parts[0].shape
    query, key, value = (x.reshape(n, length, width // HEAD, HEAD).transpose(1, 2) for x in parts)
    mask = None if is_real is None else is_real[:, None, None, :]
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.transpose(1, 2).reshape(n, length, width)


def beit3_shapes(state: State, path: Path) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all tensors in use, for a checkpoint of this width."""
    n_words, width = state[_WORDS].shape
    if width % HEAD:
        raise NNNormError(
            f"{path} is not a checkpoint of BEiT-3: its width {width} is not a multiple of {HEAD}"
        )
    patch = state[f"{_PATCHES}.weight"].shape[-1]
    shapes: dict[str, tuple[int, ...]] = {
        _WORDS: (n_words, width),
        "beit3.vision_embed.cls_token": (1, 1, width),
        f"{_PATCHES}.weight": (width, 3, patch, patch),
        f"{_PATCHES}.bias": (width,),
        f"{_PLACES}.A.weight": (len(state[f"{_PLACES}.A.weight"]), width),
        f"{_PLACES}.B.weight": (len(state[f"{_PLACES}.B.weight"]), width),
        "vision_head.weight": (width, width),
        "language_head.weight": (width, width),
    }

    def add(key: str, *weight: int) -> None:
        shapes[f"{key}.weight"], shapes[f"{key}.bias"] = weight, weight[:1]

    there = count_layers(state, r"beit3\.encoder\.layers\.(\d+)\.")
    for branch in "AB":
        for number in range(PUBLISHED.get(width, there)):
            layer = f"beit3.encoder.layers.{number}"
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                add(f"{layer}.self_attn.{part}.{branch}", width, width)
            for norm in ("self_attn.inner_attn_ln", "self_attn_layer_norm", "final_layer_norm"):
                add(f"{layer}.{norm}.{branch}", width)
            add(f"{layer}.ffn.{branch}.fc1", 4 * width, width)
            add(f"{layer}.ffn.{branch}.fc2", width, 4 * width)
            add(f"{layer}.ffn.{branch}.ffn_layernorm", 4 * width)
        add(f"beit3.encoder.layer_norm.{branch}", width)
    return shapes


def _read_pieces(path: Path, n_rows: int) -> Any:
    import sentencepiece

    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # the library raises RuntimeError and others
        raise NNNormError(
            f"{path} can't be read as a sentencepiece model; take the authors' beit3.spm"
        ) from error
    if (n_ids := pieces.get_piece_size() + _SHIFT) > n_rows:
        raise NNNormError(
            f"{path} has {n_ids} ids, the checkpoint's table {n_rows} rows; it belongs to another "
            "model"
        )
    return pieces
