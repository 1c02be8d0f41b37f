"""BEiT-3's image and text branches for retrieval (Wang et al., CVPR 2023), from the checkpoint.

BEiT-3 is one transformer with two sets of weights in every layer: A for images, B for texts. Each
branch ends with a linear head without bias on its first token. Norms precede attention and MLP, and
each has another norm inside (sub-LN). Names of tensors are those of torchscale.
"""

from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import numpy.typing as npt
import sentencepiece
import torch
from torch import Tensor
from torch.nn import functional

from reproduction.checkpoints import CheckpointEncoder, attend, pad_rows

_MAX_TOKENS = 64
_SKIPPED = 2  # position tables start with two unused rows, as in Fairseq
# XLM-R's ids are those of the sentencepiece model plus 1, except for these special ids.
_FIRST, _PAD, _LAST, _UNKNOWN, _SHIFT = 0, 1, 2, 3, 1
_PLACES = "beit3.encoder.embed_positions"


class Beit3(CheckpointEncoder):
    """BEiT-3's encoder, base or large; needs ``beit3.spm`` next to the checkpoint."""

    kind, vocabulary = "BEiT-3", "beit3.spm"
    unused = r"logit_scale|beit3\.vision_embed\.mask_token"
    mean = std = (0.5, 0.5, 0.5)

    def _measure(self, vocabulary: Path) -> tuple[int, str]:
        n_words, width = self._state["beit3.text_embed.weight"].shape
        self._n_layers = self._count_layers(r"beit3\.encoder\.layers\.(\d+)\.", width)
        self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(vocabulary))
        self._check_words(self._pieces.get_piece_size() + _SHIFT, n_words, has_spare_rows=True)
        images, texts = (len(self._state[f"{_PLACES}.{b}.weight"]) - _SKIPPED for b in "AB")
        self.context = min(_MAX_TOKENS, texts)
        patch = self._state["beit3.vision_embed.proj.weight"].shape[3]
        words = f"sentencepiece between <s> and </s>, at most {self.context} tokens"
        return patch * isqrt(images - 1), words

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with special tokens."""
        return [2 + len(ids) for ids in self._tokenize(texts)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the first token of branch A after the vision head."""
        with torch.inference_mode():
            x = self._cut("beit3.vision_embed.proj", "beit3.vision_embed.cls_token", images)
            return self._run(x, "A", None, "vision_head")

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the first token of branch B after the language head."""
        most = (self.context or _MAX_TOKENS) - 2
        rows = [[_FIRST, *ids[:most], _LAST] for ids in self._tokenize(texts)]
        ids, mask = pad_rows(rows, _PAD, self._device)
        with torch.inference_mode():
            x = functional.embedding(ids, self._get("beit3.text_embed.weight"))
            return self._run(x, "B", mask, "language_head")

    def _run(self, x: Tensor, branch: str, mask: Tensor | None, head: str) -> npt.NDArray[Any]:
        """Run all layers of one branch, and the head on the first token."""
        x = x + self._get(f"{_PLACES}.{branch}.weight")[_SKIPPED : _SKIPPED + x.shape[1]]
        for number in range(self._n_layers):
            layer = f"beit3.encoder.layers.{number}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.ffn.{branch}"
            inner = self._norm(f"{layer}.self_attn_layer_norm.{branch}", x)
            sides = (self._linear(f"{attention}.{name}_proj.{branch}", inner) for name in "qkv")
            inner = self._norm(f"{attention}.inner_attn_ln.{branch}", attend(sides, mask))
            x = x + self._linear(f"{attention}.out_proj.{branch}", inner)
            inner = self._norm(f"{layer}.final_layer_norm.{branch}", x)
            inner = functional.gelu(self._linear(f"{mlp}.fc1", inner))
            x = x + self._linear(f"{mlp}.fc2", self._norm(f"{mlp}.ffn_layernorm", inner))
        first = self._norm(f"beit3.encoder.layer_norm.{branch}", x[:, 0])
        return (first @ self._get(f"{head}.weight").T).cpu().numpy()

    def _tokenize(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._pieces.encode(list(texts), out_type=int)
        return [[one + _SHIFT if one else _UNKNOWN for one in ids] for ids in found]
