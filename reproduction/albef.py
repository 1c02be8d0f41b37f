"""ALBEF's image and text towers (Li et al., NeurIPS 2021), from the authors' checkpoint.

The ViT is that of transformers' BLIP under other names, the text tower the BERT layers below the
first one with cross-attention; both first tokens are projected. Captions are cleaned as in ALBEF's
training, and have no [SEP].
"""

import re
from collections.abc import Sequence
from math import isqrt
from pathlib import Path
from typing import Any

import numpy.typing as npt
import torch
from transformers import BertConfig, BertModel, BlipVisionConfig, BlipVisionModel

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

_WORDS = "text_encoder.embeddings.word_embeddings.weight"
_PLACES = "text_encoder.embeddings.position_embeddings.weight"
_MAX_TOKENS = _MAX_WORDS = 30
_LAYER = r"text_encoder\.encoder\.layer\.(\d+)\."
# The names of ALBEF's ViT to those of transformers' BLIP.
_THEIRS, _OURS = r"visual_encoder\.blocks\.(\d+)", r"vision_model.encoder.layers.\1"
_VISION = (
    (r"visual_encoder\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"visual_encoder\.pos_embed", "vision_model.embeddings.position_embedding"),
    (r"visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (rf"{_THEIRS}\.attn\.proj\.", rf"{_OURS}.self_attn.projection."),
    (rf"{_THEIRS}\.attn\.", rf"{_OURS}.self_attn."),
    (rf"{_THEIRS}\.norm([12])\.", rf"{_OURS}.layer_norm\2."),
    (rf"{_THEIRS}\.mlp\.", rf"{_OURS}.mlp."),
)
# Momentum copies, queues and the heads of other tasks.
_UNUSED = (
    r"(visual_encoder|vision_proj|text_encoder|text_proj)_m\..*|text_encoder\.(cls|pooler)\..*"
    r"|itm_head\..*|.*position_ids|temp|image_queue|text_queue|idx_queue|ptr_queue|queue_ptr"
)


class Albef(CheckpointEncoder):
    """ALBEF's encoder; BERT's ``vocab.txt`` is next to the checkpoint unless it is given."""

    context = _MAX_TOKENS

    def __init__(self, path: Path, state: State, *, vocabulary: Path | None, device: str) -> None:
        # Pre-trained checkpoints have `bert.` in the names of the text tower.
        state = {re.sub(r"^text_encoder\.bert\.", "text_encoder.", k): v for k, v in state.items()}
        with expect_kind(path, "ALBEF"):
            seen = _vision_config(state)
            model, unused = _make_model(state, seen)
        self._model = fill_model(model, _select_tensors(state, unused), path)
        vocabulary = find_vocabulary(path, vocabulary, "vocab.txt")
        self._pieces = _read_word_pieces(vocabulary, len(state[_WORDS]))
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


def _make_model(state: State, seen: dict[str, Any]) -> tuple[torch.nn.Module, str]:
    """Make both towers of transformers, and name the fusion layers, which have no use here."""
    n_words, width = state[_WORDS].shape
    n_all = count_layers(state, _LAYER)
    fused = [m[1] for key in state if (m := re.match(rf"{_LAYER}crossattention", key))]
    n_layers = 6 if width == 768 else min(map(int, fused), default=n_all)  # 6 as published
    above = "|".join(str(number) for number in range(n_layers, n_all)) or "none"
    unused = rf"text_encoder\.encoder\.layer\.({above})\..*"
    bert = BertConfig(
        vocab_size=n_words,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=n_layers,
        num_attention_heads=max(1, width // HEAD),
        max_position_embeddings=len(state[_PLACES]),
    )
    dim = state["text_proj.weight"].shape[0]
    parts = {
        "vision_model": BlipVisionModel(BlipVisionConfig(**seen)),
        "vision_proj": torch.nn.Linear(seen["hidden_size"], dim),
        "text_encoder": BertModel(bert, add_pooling_layer=False),
        "text_proj": torch.nn.Linear(width, dim),
    }
    return torch.nn.ModuleDict(parts), unused


def clean_caption(text: str, max_words: int | None = _MAX_WORDS) -> str:
    """Clean a caption as in ALBEF's training: lower case, little punctuation."""
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text.lower())
    text = text.replace("-", " ").replace("/", " ").replace("<person>", "person")
    words = re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])


def _vision_config(state: State) -> dict[str, Any]:
    """Return the sizes of the ViT."""
    _, n_places, width = state["visual_encoder.pos_embed"].shape
    patch = state["visual_encoder.patch_embed.proj.weight"].shape[-1]
    there = count_layers(state, rf"{_THEIRS}\.")
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": PUBLISHED.get(width, there),
        "num_attention_heads": max(1, width // HEAD),
        "image_size": patch * isqrt(n_places - 1),
        "patch_size": patch,
        "layer_norm_eps": 1e-6,  # the authors'; transformers' own conversion has 1e-5
    }


def _select_tensors(state: State, unused: str) -> State:
    """Return the tensors in use, the image tower under the names of transformers."""
    left_out, chosen = re.compile(f"{_UNUSED}|{unused}"), {}
    for key, tensor in state.items():
        if left_out.fullmatch(key):
            continue
        for theirs, ours in _VISION:
            key, found = re.subn(f"^{theirs}", ours, key)
            if found:
                break
        chosen[key] = tensor
    return chosen


def _read_word_pieces(path: Path, n_words: int) -> Any:
    """Return BERT's word-piece tokenizer, if the vocabulary has the size of the checkpoint's."""
    import tokenizers

    try:
        words = tokenizers.models.WordPiece.read_file(str(path))
        pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
    except Exception as error:  # the library raises Exception itself
        raise NNNormError(f"vocabulary {path} can't be read ({error}); is it BERT's?") from error
    if len(words) != n_words:
        raise NNNormError(
            f"vocabulary {path} has {len(words)} pieces, the checkpoint {n_words}; take that of "
            "bert-base-uncased"
        )
    return pieces
