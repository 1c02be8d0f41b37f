"""ALBEF's image and text towers (Li et al., NeurIPS 2021), from the authors' checkpoint.

The ViT is that of transformers' BLIP under other names, the text tower the BERT layers below the
first one with cross-attention; both first tokens are projected. Captions are cleaned as in ALBEF's
training, and have no [SEP].
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from transformers import BertConfig, BertModel, BlipVisionConfig, BlipVisionModel

from reproduction.models.checkpoints import (
    HEAD,
    UNUSED,
    CheckpointEncoder,
    State,
    count_layers,
    fill_model,
    find_vocabulary,
    pad_rows,
    read_word_pieces,
    require_tensors,
    select_tensors,
    vision_config,
)

_MAX_TOKENS = _MAX_WORDS = 30
_WORDS = "text_encoder.embeddings.word_embeddings.weight"
_LAYER = r"text_encoder\.encoder\.layer\.(\d+)\."
_NEEDED = {
    "visual_encoder.pos_embed": 3,
    "visual_encoder.patch_embed.proj.weight": 4,
    _WORDS: 2,
    "text_encoder.embeddings.position_embeddings.weight": 2,
    "text_proj.weight": 2,
}


class Albef(CheckpointEncoder):
    """ALBEF's encoder; BERT's ``vocab.txt`` is next to the checkpoint unless it is given."""

    context = _MAX_TOKENS

    def __init__(
        self,
        path: Path,
        state: State,
        *,
        vocabulary: Path | None = None,
        image_size: int | None = None,
        device: str = "auto",
    ) -> None:
        # Pre-trained checkpoints have `bert.` in the names of the text tower.
        state = {re.sub(r"^text_encoder\.bert\.", "text_encoder.", k): v for k, v in state.items()}
        require_tensors(state, _NEEDED, path, "ALBEF")
        vocabulary = find_vocabulary(path, vocabulary, "vocab.txt", "BERT's vocabulary")
        self._pieces = read_word_pieces(vocabulary, len(state[_WORDS]))
        seen = vision_config(state, image_size)
        self._model = _make_model(state, seen, path)
        self.dim = state["text_proj.weight"].shape[0]
        texts = f"as by ALBEF's authors: [CLS], no [SEP], at most {_MAX_TOKENS} tokens"
        self._describe("albef", path, vocabulary, seen["image_size"], device, texts)
        self._model.to(self._device)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with [CLS]."""
        return [len(row) for row in self._tokenize(texts, max_words=None)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the projected first token of the ViT."""
        with torch.inference_mode():
            states = self._model["vision_model"](self._pixels(images)).last_hidden_state
            return self._model["vision_proj"](states[:, 0]).cpu().numpy()

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the projected first token of the text layers."""
        rows = [row[:_MAX_TOKENS] for row in self._tokenize(texts, _MAX_WORDS)]
        ids, is_real = pad_rows(rows, self._pieces.token_to_id("[PAD]"), self._device)
        with torch.inference_mode():
            states = self._model["text_encoder"](ids, attention_mask=is_real.long())
            return self._model["text_proj"](states.last_hidden_state[:, 0]).cpu().numpy()

    def _tokenize(self, texts: Sequence[str], max_words: int | None) -> list[list[int]]:
        # A text of punctuation alone would be empty once cleaned: it stays as it is.
        cleaned = [clean_caption(text, max_words) or text for text in texts]
        first = self._pieces.token_to_id("[CLS]")
        encoded = self._pieces.encode_batch(cleaned, add_special_tokens=False)
        return [[first, *one.ids] for one in encoded]


def _make_model(state: State, seen: dict[str, Any], path: Path) -> Any:
    """Make both towers of transformers, without the fusion layers, and fill them."""
    fused = [m[1] for key in state if (m := re.match(rf"{_LAYER}crossattention", key))]
    n_layers = min(map(int, fused)) if fused else count_layers(state, _LAYER)
    n_layers = 6 if state[_WORDS].shape[1] == 768 else n_layers  # as published
    above = "|".join(str(number) for number in range(n_layers, count_layers(state, _LAYER)))
    fusion = rf"text_encoder\.encoder\.layer\.({above})\..*"
    unused = (*UNUSED, r"itm_head\..*", *([fusion] if above else []))
    n_words, width = state[_WORDS].shape
    bert = BertConfig(
        vocab_size=n_words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=n_layers,
        num_attention_heads=width // HEAD,
        max_position_embeddings=len(state["text_encoder.embeddings.position_embeddings.weight"]),
    )
    dim = state["text_proj.weight"].shape[0]
    with torch.device("meta"):
        parts = {
            "vision_model": BlipVisionModel(BlipVisionConfig(**seen)),
            "vision_proj": torch.nn.Linear(seen["hidden_size"], dim),
            "text_encoder": BertModel(bert, add_pooling_layer=False),
            "text_proj": torch.nn.Linear(width, dim),
        }
        model = torch.nn.ModuleDict(parts)
    return fill_model(model, select_tensors(state, unused), path)


def clean_caption(text: str, max_words: int | None = _MAX_WORDS) -> str:
    """Clean a caption as in ALBEF's training: lower case, little punctuation."""
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text.lower())
    text = text.replace("-", " ").replace("/", " ").replace("<person>", "person")
    words = re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])
