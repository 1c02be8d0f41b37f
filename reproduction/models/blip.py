"""BLIP's own checkpoint (`model_base_retrieval_coco.pth` and its like) as a folder of transformers.

BLIP (Li et al., ICML 2022) is in transformers under other names. The tensors of both towers, the
projections and the matching head are renamed and nothing else. Images are resized to a square, as
in the authors' evaluation, and the norms of the image tower add 1e-6, as in the authors' code.
"""

import json
import re
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
import transformers

from reproduction.models.checkpoints import (
    CLIP_MEAN,
    CLIP_STD,
    HEAD,
    PUBLISHED,
    UNUSED,
    State,
    count_layers,
    fill_model,
    find_vocabulary,
    hash_file,
    read_word_pieces,
    require_tensors,
    select_tensors,
    vision_config,
)

_WORDS = "text_encoder.embeddings.word_embeddings.weight"
_WIDE = "text_encoder.encoder.layer.0.intermediate.dense.weight"
_NEEDED = {
    "visual_encoder.pos_embed": 3,
    "visual_encoder.patch_embed.proj.weight": 4,
    _WORDS: 2,
    "text_encoder.embeddings.position_embeddings.weight": 2,
    _WIDE: 2,
    "text_proj.weight": 2,
    "itm_head.weight": 2,
}


def is_blip(keys: Iterable[str]) -> bool:
    """Return whether a checkpoint is BLIP's: its first text layer has cross-attention."""
    cross = re.compile(r"text_(en|de)coder\.(bert\.)?encoder\.layer\.0\.crossattention\.")
    return any(cross.match(key) for key in keys)


def convert_blip(
    path: Path,
    state: State,
    folder: Path,
    *,
    vocabulary: Path | None = None,
    image_size: int | None = None,
) -> Path:
    """Write a checkpoint as a folder of transformers, once; return the folder."""
    require_tensors(state, _NEEDED, path, "BLIP retrieval")
    vocabulary = find_vocabulary(path, vocabulary, "vocab.txt", "BERT's vocabulary")
    seen = vision_config(state, image_size)
    made_from = {
        "checkpoint_sha256": hash_file(path),
        "vocabulary_sha256": hash_file(vocabulary),
        "image_size": seen["image_size"],
    }
    about = folder / "made_from.json"
    if about.is_file() and json.loads(about.read_text(encoding="utf-8")) == made_from:
        return folder
    # The table of words has two rows more, for [DEC] and [ENC].
    pieces = read_word_pieces(vocabulary, len(state[_WORDS]) - 2)
    with torch.device("meta"):
        empty = transformers.BlipForImageTextRetrieval(_make_config(state, seen))
    model: Any = fill_model(empty, select_tensors(state, (*UNUSED, r"text_decoder\..*")), path)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    names = ("cls", "sep", "pad", "unk", "mask")
    make: Any = transformers.PreTrainedTokenizerFast
    make(
        tokenizer_object=type(pieces._tokenizer).from_str(pieces.to_str()),
        model_max_length=512,
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
    ).save_pretrained(folder)
    size = {"height": seen["image_size"], "width": seen["image_size"]}
    pixels = {"image_processor_type": "BlipImageProcessor", "size": size, "resample": 3}
    pixels |= {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "do_convert_rgb": True}
    pixels |= {"do_resize": True, "do_rescale": True, "do_normalize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels), encoding="utf-8")
    about.write_text(json.dumps(made_from), encoding="utf-8")  # last: the folder is complete
    return folder


def _make_config(state: State, seen: dict[str, Any]) -> Any:
    """Return the configuration of transformers, from the shapes of the tensors."""
    n_words, width = state[_WORDS].shape
    text = {
        "vocab_size": n_words,
        "hidden_size": width,
        "encoder_hidden_size": seen["hidden_size"],
        "intermediate_size": state[_WIDE].shape[0],
        "num_hidden_layers": PUBLISHED.get(
            width, count_layers(state, r"text_encoder\.encoder\.layer\.(\d+)\.")
        ),
        "num_attention_heads": width // HEAD,
        "max_position_embeddings": len(state["text_encoder.embeddings.position_embeddings.weight"]),
        "pad_token_id": 0,
        "bos_token_id": n_words - 2,  # [DEC]; [ENC] follows
        "sep_token_id": 102,
    }
    return transformers.BlipConfig(
        vision_config=seen,
        text_config=text,
        image_text_hidden_size=state["text_proj.weight"].shape[0],
        projection_dim=width,
    )
