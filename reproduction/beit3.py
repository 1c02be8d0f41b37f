"""BEiT-3's image and text branches for retrieval (Wang et al., CVPR 2023), from the checkpoint.

BEiT-3 is one transformer with two sets of weights in every layer: A for images, B for texts. Each
branch ends in a head without bias on its first token. Norms precede attention and MLP, and both
have another one inside (sub-LN). No library has it, so it is here, under torchscale's names.
"""

from collections.abc import Callable, Sequence
from math import isqrt
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from nnnorm import NNNormError
from reproduction.checkpoints import (
    HEAD,
    PUBLISHED,
    CheckpointEncoder,
    State,
    count_layers,
    expect_kind,
    fill_model,
    find_vocabulary,
    pad_rows,
)

Branch: TypeAlias = Literal["A", "B"]
VOCABULARY = "beit3.spm"
_MAX_TOKENS = 64
_UNUSED = ("logit_scale", "beit3.vision_embed.mask_token")
_SKIPPED = 2  # position tables begin with two unused rows, as in Fairseq
# XLM-R's ids are those of the sentencepiece model plus one, after these special ids.
_FIRST, _PAD, _LAST, _UNKNOWN, _SHIFT = 0, 1, 2, 3, 1
_PLACES = "beit3.encoder.embed_positions"


class Beit3(CheckpointEncoder):
    """BEiT-3's encoder, base or large; ``beit3.spm`` is next to the checkpoint unless given."""

    mean = std = (0.5, 0.5, 0.5)

    def __init__(self, path: Path, state: State, *, vocabulary: Path | None, device: str) -> None:
        state = {key: tensor for key, tensor in state.items() if key not in _UNUSED}
        with expect_kind(path, "BEiT-3"):
            model = make_model(state)
            patch = state["beit3.vision_embed.proj.weight"].shape[3]
            size = patch * isqrt(len(state[f"{_PLACES}.A.weight"]) - 1 - _SKIPPED)
        self._model = fill_model(model, state, path)
        n_words, self.dim = state["beit3.text_embed.weight"].shape
        vocabulary = find_vocabulary(path, vocabulary, VOCABULARY)
        self._pieces = _read_pieces(vocabulary, n_words)
        self.context = min(_MAX_TOKENS, len(state[f"{_PLACES}.B.weight"]) - _SKIPPED)
        texts = f"sentencepiece between <s> and </s>, at most {self.context} tokens"
        self._describe("beit3", path, vocabulary, size, device, texts)
        self._model.to(self._device)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        return [2 + len(ids) for ids in self._tokenize(texts)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the first token of branch A after the vision head."""
        with torch.inference_mode():
            beit3 = self._model["beit3"]
            x = beit3["vision_embed"]["proj"](self._pixels(images)).flatten(2).transpose(1, 2)
            first = beit3["vision_embed"].cls_token.expand(len(x), -1, -1)
            x = beit3["encoder"](torch.cat([first, x], dim=1), "A", None)
            return self._model["vision_head"](x).cpu().numpy()

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the first token of branch B after the language head."""
        most = (self.context or _MAX_TOKENS) - 2
        rows = [[_FIRST, *ids[:most], _LAST] for ids in self._tokenize(texts)]
        ids, is_real = pad_rows(rows, _PAD, self._device)
        with torch.inference_mode():
            beit3 = self._model["beit3"]
            x = beit3["encoder"](beit3["text_embed"](ids), "B", is_real[:, None, None, :])
            return self._model["language_head"](x).cpu().numpy()

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._pieces.encode(list(texts), out_type=int)
        return [[one + _SHIFT if one else _UNKNOWN for one in ids] for ids in found]


def make_model(state: State) -> nn.Module:
    """Make the model of a checkpoint's sizes."""
    n_words, width = state["beit3.text_embed.weight"].shape
    patch = state["beit3.vision_embed.proj.weight"].shape[3]
    n_places = {branch: len(state[f"{_PLACES}.{branch}.weight"]) for branch in "AB"}
    there = count_layers(state, r"beit3\.encoder\.layers\.(\d+)\.")
    embed = nn.ModuleDict({"proj": nn.Conv2d(3, width, patch, patch)})
    embed.cls_token = nn.Parameter(torch.empty(1, 1, width))
    encoder = _Encoder(width, PUBLISHED.get(width, there), n_places)
    parts = {"text_embed": nn.Embedding(n_words, width), "vision_embed": embed}
    beit3 = nn.ModuleDict({**parts, "encoder": encoder})
    heads = {f"{name}_head": nn.Linear(width, width, bias=False) for name in ("vision", "language")}
    return nn.ModuleDict({"beit3": beit3, **heads})


def _both(make: Callable[[], nn.Module]) -> Any:
    """Make a layer for each branch."""
    return nn.ModuleDict({"A": make(), "B": make()})


class _Encoder(nn.Module):
    def __init__(self, width: int, n_layers: int, n_places: dict[str, int]) -> None:
        super().__init__()
        tables = {branch: nn.Embedding(n, width) for branch, n in n_places.items()}
        self.embed_positions: Any = nn.ModuleDict(tables)
        self.layers = nn.ModuleList(_Layer(width) for _ in range(n_layers))
        self.layer_norm = _both(lambda: nn.LayerNorm(width))

    def forward(self, x: Tensor, branch: Branch, mask: Tensor | None) -> Tensor:
        """Run all layers of one branch and return the first token."""
        x = x + self.embed_positions[branch].weight[_SKIPPED : _SKIPPED + x.shape[1]]
        for layer in self.layers:
            x = layer(x, branch, mask)
        found: Tensor = self.layer_norm[branch](x[:, 0])
        return found


class _Layer(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        attention = {
            f"{name}_proj": _both(lambda: nn.Linear(width, width))
            for name in ("q", "k", "v", "out")
        }
        attention["inner_attn_ln"] = _both(lambda: nn.LayerNorm(width))
        self.self_attn: Any = nn.ModuleDict(attention)
        self.self_attn_layer_norm = _both(lambda: nn.LayerNorm(width))
        self.final_layer_norm = _both(lambda: nn.LayerNorm(width))
        self.ffn = _both(
            lambda: nn.ModuleDict(
                {
                    "fc1": nn.Linear(width, 4 * width),
                    "ffn_layernorm": nn.LayerNorm(4 * width),
                    "fc2": nn.Linear(4 * width, width),
                }
            )
        )

    def forward(self, x: Tensor, branch: Branch, mask: Tensor | None) -> Tensor:
        """Attend and transform, each after a norm and with another one inside."""
        attention, mlp = self.self_attn, self.ffn[branch]
        inner = self.self_attn_layer_norm[branch](x)
        n, length, width = inner.shape
        query, key, value = (
            attention[f"{name}_proj"][branch](inner).reshape(n, length, -1, HEAD).transpose(1, 2)
            for name in "qkv"
        )
        mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = attention["inner_attn_ln"][branch](mixed.transpose(1, 2).reshape(n, length, width))
        x = x + attention["out_proj"][branch](mixed)
        inner = functional.gelu(mlp["fc1"](self.final_layer_norm[branch](x)))
        out: Tensor = x + mlp["fc2"](mlp["ffn_layernorm"](inner))
        return out


def _read_pieces(path: Path, n_rows: int) -> Any:
    import sentencepiece

    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
    except Exception as error:  # the library raises RuntimeError and others
        raise NNNormError(
            f"{path} can't be read as a sentencepiece model; take the authors' {VOCABULARY}"
        ) from error
    if (n_ids := pieces.get_piece_size() + _SHIFT) > n_rows:
        raise NNNormError(
            f"{path} has {n_ids} ids, the checkpoint's table {n_rows} rows; it belongs to another "
            "model"
        )
    return pieces
