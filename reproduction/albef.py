"""ALBEF's image and text towers (Li et al., NeurIPS 2021), from the authors' checkpoint.

The image tower is a ViT, the text tower the BERT layers below the first one with cross-attention;
the first token of each is projected. Captions are cleaned as in ALBEF's training, without [SEP].
"""

import re
from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import numpy.typing as npt
import tokenizers
import torch
from torch.nn import functional

from reproduction.checkpoints import CheckpointEncoder, State, attend, pad_rows

_WORDS = "text_encoder.embeddings.word_embeddings.weight"
_MAX_TOKENS = _MAX_WORDS = 30
_N_TEXT_LAYERS = {768: 6}  # by width, in the published models
_VIT, _BERT = 1e-6, 1e-12  # ε of their norms
_FUSION = r"text_encoder\.encoder\.layer\.(\d+)\.crossattention\."


class Albef(CheckpointEncoder):
    """ALBEF's encoder; needs BERT's ``vocab.txt`` next to the checkpoint."""

    kind, vocabulary = "ALBEF", "vocab.txt"
    # Momentum copies, queues and the heads of other tasks.
    unused = (
        r"(visual_encoder|vision_proj|text_encoder|text_proj)_m\..*|text_encoder\.(cls|pooler)\..*"
        r"|itm_head\..*|.*position_ids|temp|image_queue|text_queue|idx_queue|ptr_queue|queue_ptr"
    )
    context = _MAX_TOKENS

    def __init__(self, path: Path, state: State, device: str) -> None:
        # In pre-trained checkpoints, names of the text tower start with `bert.`.
        state = {re.sub(r"^text_encoder\.bert\.", "text_encoder.", k): v for k, v in state.items()}
        # Fusion layers are not needed.
        fused = {int(m[1]) for key in state if (m := re.match(_FUSION, key))}
        numbers = "|".join(map(str, fused)) or "none"
        self.unused = rf"{self.unused}|text_encoder\.encoder\.layer\.({numbers})\..*"
        super().__init__(path, state, device)

    def _measure(self, vocabulary: Path) -> tuple[int, str]:
        n_words, text_width = self._state[_WORDS].shape
        words = tokenizers.models.WordPiece.read_file(str(vocabulary))
        self._pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
        self._check_words(len(words), n_words, has_spare_rows=False)
        _, n_places, width = self._state["visual_encoder.pos_embed"].shape
        self._n_blocks = self._count_layers(r"visual_encoder\.blocks\.(\d+)\.", width)
        n_layers = self._count_layers(r"text_encoder\.encoder\.layer\.(\d+)\.", 0)
        self._n_layers = _N_TEXT_LAYERS.get(text_width, n_layers)
        patch = self._state["visual_encoder.patch_embed.proj.weight"].shape[3]
        texts = f"as by ALBEF's authors: [CLS], no [SEP], at most {_MAX_TOKENS} tokens"
        return patch * isqrt(n_places - 1), texts

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with [CLS]."""
        return [len(row) for row in self._tokenize(texts, max_words=None)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the projected first token of the ViT."""
        with torch.inference_mode():
            x = self._cut("visual_encoder.patch_embed.proj", "visual_encoder.cls_token", images)
            x = x + self._get("visual_encoder.pos_embed")
            for number in range(self._n_blocks):
                block = f"visual_encoder.blocks.{number}"
                sides = self._linear(f"{block}.attn.qkv", self._norm(f"{block}.norm1", x, _VIT))
                x = x + self._linear(f"{block}.attn.proj", attend(sides.chunk(3, dim=2)))
                inner = self._linear(f"{block}.mlp.fc1", self._norm(f"{block}.norm2", x, _VIT))
                x = x + self._linear(f"{block}.mlp.fc2", functional.gelu(inner))
            first = self._norm("visual_encoder.norm", x[:, 0], _VIT)
            return self._linear("vision_proj", first).cpu().numpy()

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the projected first token of the text layers."""
        rows = [row[:_MAX_TOKENS] for row in self._tokenize(texts, _MAX_WORDS)]
        ids, mask = pad_rows(rows, self._pieces.token_to_id("[PAD]"), self._device)
        with torch.inference_mode():
            tables = "text_encoder.embeddings"
            places = self._get(f"{tables}.position_embeddings.weight")[: ids.shape[1]]
            kind = self._get(f"{tables}.token_type_embeddings.weight")[0]
            x = functional.embedding(ids, self._get(_WORDS)) + places + kind
            x = self._norm(f"{tables}.LayerNorm", x, _BERT)
            for number in range(self._n_layers):
                layer = f"text_encoder.encoder.layer.{number}"
                attention, names = f"{layer}.attention", ("query", "key", "value")
                sides = (self._linear(f"{attention}.self.{name}", x) for name in names)
                mixed = self._linear(f"{attention}.output.dense", attend(sides, mask))
                x = self._norm(f"{attention}.output.LayerNorm", x + mixed, _BERT)
                inner = functional.gelu(self._linear(f"{layer}.intermediate.dense", x))
                inner = self._linear(f"{layer}.output.dense", inner)
                x = self._norm(f"{layer}.output.LayerNorm", x + inner, _BERT)
            return self._linear("text_proj", x[:, 0]).cpu().numpy()

    def _tokenize(self, texts: Sequence[str], max_words: int | None) -> list[list[int]]:
        # A text that is only punctuation would become empty, so it isn't cleaned.
        cleaned = [clean_caption(text, max_words) or text for text in texts]
        first = self._pieces.token_to_id("[CLS]")
        encoded = self._pieces.encode_batch(cleaned, add_special_tokens=False)
        return [[first, *one.ids] for one in encoded]


def clean_caption(text: str, max_words: int | None = _MAX_WORDS) -> str:
    """Clean a caption as in ALBEF's training: lower case, little punctuation."""
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text.lower())
    text = text.replace("-", " ").replace("/", " ").replace("<person>", "person")
    words = re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])
