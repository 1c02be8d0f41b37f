"""BLIP's own checkpoint (`model_base_retrieval_coco.pth` and its like) as a model of transformers.

BLIP (Li et al., ICML 2022) is in transformers under other names. The tensors of both towers, the
projections and the matching head are renamed and nothing else; momentum copies and queues are left
out. Sizes are read from the shapes, heads are 64 wide. A checkpoint has no tokenizer: BERT's
`vocab.txt` must lie beside it. Images are squeezed to a square, as in the authors' evaluation, and
the norms of the image tower add 1e-6, as in the authors' code (transformers' own conversion adds
1e-5).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from nnnorm.encoders import layers
from nnnorm.encoders.checkpoint import find_image_size, find_shapes
from nnnorm.encoders.huggingface import Parts
from nnnorm.encoders.images import square_pixels
from nnnorm.encoders.weights import (
    check_keys,
    explain_loading,
    fingerprint_files,
    quiet_loading,
    read_checkpoint,
    resize_positions,
)
from nnnorm.errors import NNNormError, require

Tensor: TypeAlias = Any

_MEAN, _STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
_EPS = 1e-6
# Momentum copies, queues, and the decoder of the pre-trained model.
_UNUSED = (
    r"(visual_encoder|vision_proj|text_encoder|text_proj)_m\..*",
    r"text_encoder\.(cls|pooler)\..*",
    r"text_encoder\.embeddings\.position_ids",
    r"text_decoder\..*",
    r"temp|image_queue|text_queue|idx_queue|ptr_queue|queue_ptr",
)
_BLOCK, _LAYER = r"visual_encoder\.blocks\.(\d+)", r"vision_model.encoder.layers.\1"
# The authors' names to those of transformers; all others are the same.
_NAMES = (
    (r"visual_encoder\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"visual_encoder\.pos_embed", "vision_model.embeddings.position_embedding"),
    (r"visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (rf"{_BLOCK}\.attn\.proj\.", rf"{_LAYER}.self_attn.projection."),
    (rf"{_BLOCK}\.attn\.", rf"{_LAYER}.self_attn."),
    (rf"{_BLOCK}\.norm([12])\.", rf"{_LAYER}.layer_norm\2."),
    (rf"{_BLOCK}\.mlp\.", rf"{_LAYER}.mlp."),
)


def is_blip(keys: Mapping[str, Tensor]) -> bool:
    """Whether a checkpoint is BLIP's: unlike ALBEF's, its first text layer has cross-attention.

    Examples
    --------
    >>> is_blip({"visual_encoder.cls_token": 0, "text_encoder.bert.encoder.layer.0.output": 0})
    False
    """
    cross = re.compile(r"text_(en|de)coder\.(bert\.)?encoder\.layer\.0\.crossattention\.")
    return any(map(cross.match, keys)) and any(key.startswith("visual_encoder.") for key in keys)


def rename_key(key: str) -> str:
    """Return the name that transformers gives a tensor of BLIP's authors.

    Examples
    --------
    >>> rename_key("visual_encoder.blocks.3.norm1.bias"), rename_key("itm_head.weight")
    ('vision_model.encoder.layers.3.layer_norm1.bias', 'itm_head.weight')
    """
    for theirs, ours in _NAMES:
        key, found = re.subn(f"^{theirs}", ours, key)
        if found:
            break
    return key


def read_blip(
    path: Path, *, vocabulary: Path | None = None, image_size: int | None = None
) -> Parts:
    """Read a checkpoint of BLIP's authors for retrieval, base or large.

    Parameters
    ----------
    path : Path
        Such as ``model_base_retrieval_coco.pth``.
    vocabulary : Path, optional
        BERT's ``vocab.txt`` (bert-base-uncased); by default the one next to the checkpoint.
    image_size : int, optional
        Side of the images; by default the size used in training.

    Returns
    -------
    Parts
        For `HuggingFace`.

    Examples
    --------
    >>> read_blip(Path("nowhere.pth"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: checkpoint nowhere.pth: there is no such file; check the path
    """
    require("transformers", "encoders")  # or raise before a large file is read
    state = read_checkpoint(path)
    config = _make_config(state, path, image_size)
    size, n_words = config.vision_config.image_size, config.text_config.vocab_size
    n_across = size // config.vision_config.patch_size
    table = resize_positions(state["visual_encoder.pos_embed"][0].float(), 1, n_across)
    state["visual_encoder.pos_embed"] = table[None]
    model = _fill(config, state, path)
    tokenizer, vocabulary = _read_vocabulary(vocabulary or path.with_name("vocab.txt"), n_words)

    def process(images: list[Any]) -> dict[str, npt.NDArray[Any]]:
        return {"pixel_values": square_pixels(images, size, _MEAN, _STD)}

    about = {
        "encoder": "blip",
        "revision": None,
        "weights_sha256": fingerprint_files([path]),
        "vocabulary_sha256": fingerprint_files([vocabulary]),
    }
    images = f"bicubic to {size} x {size}, mean {_MEAN}, std {_STD}"
    return Parts(config, model, tokenizer, process, {"images": images}, about)


def _make_config(state: Mapping[str, Tensor], path: Path, image_size: int | None) -> Any:
    """The configuration of transformers for a checkpoint, from the shapes of its tensors."""
    n_dimensions = {
        "visual_encoder.pos_embed": 3,
        "visual_encoder.patch_embed.proj.weight": 4,
        "text_encoder.embeddings.word_embeddings.weight": 2,
        "text_encoder.embeddings.position_embeddings.weight": 2,
        "text_encoder.encoder.layer.0.intermediate.dense.weight": 2,
        "text_proj.weight": 2,
        "itm_head.weight": 2,
    }
    seen, patches, words, places, wide, projected, _ = find_shapes(
        state, n_dimensions, f"{path}", "BLIP retrieval"
    )
    width, text_width, patch = seen[-1], words[-1], patches[-1]
    if width % layers.HEAD or text_width % layers.HEAD:
        raise NNNormError(
            f"{path}: widths must be multiples of {layers.HEAD}; got {width}, {text_width}"
        )
    size = find_image_size(seen[1] - 1, patch, image_size)
    n_blocks = _count(state, r"visual_encoder\.blocks\.(\d+)\.")
    n_layers = _count(state, r"text_encoder\.encoder\.layer\.(\d+)\.")
    return require("transformers", "encoders").BlipConfig(
        vision_config={
            "hidden_size": width,
            "intermediate_size": 4 * width,
            "num_hidden_layers": n_blocks,
            "num_attention_heads": width // layers.HEAD,
            "image_size": size,
            "patch_size": patch,
            "layer_norm_eps": _EPS,
        },
        text_config={
            "vocab_size": words[0],
            "hidden_size": text_width,
            "encoder_hidden_size": width,
            "intermediate_size": wide[0],
            "num_hidden_layers": n_layers,
            "num_attention_heads": text_width // layers.HEAD,
            "max_position_embeddings": places[0],
            "pad_token_id": 0,
            "bos_token_id": words[0] - 2,  # [DEC]; [ENC] follows
            "sep_token_id": 102,
        },
        image_text_hidden_size=projected[0],
        projection_dim=text_width,
    )


def _count(state: Mapping[str, Tensor], pattern: str) -> int:
    return 1 + max((int(m[1]) for key in state if (m := re.match(pattern, key))), default=-1)


def _fill(config: Any, state: Mapping[str, Tensor], path: Path) -> Any:
    """Make the model of transformers and give it the tensors, after a check of names and shapes."""
    torch = require("torch", "encoders")
    transformers = require("transformers", "encoders")
    with torch.device("meta"), quiet_loading():
        model = transformers.BlipForImageTextRetrieval(config)
    expected = {key: tuple(tensor.shape) for key, tensor in model.state_dict().items()}
    expected = {key: shape for key, shape in expected.items() if not key.endswith("position_ids")}
    renamed = {
        rename_key(key): tensor
        for key, tensor in state.items()
        if not re.fullmatch("|".join(_UNUSED), key)
    }
    check_keys(renamed, expected, (), f"checkpoint {path}")
    model = model.to_empty(device="cpu")
    model.load_state_dict({key: tensor.float() for key, tensor in renamed.items()}, strict=False)
    positions = model.text_encoder.embeddings.position_ids  # a buffer that no checkpoint needs
    positions.copy_(torch.arange(positions.shape[-1]).expand_as(positions))
    return model.eval()


def _read_vocabulary(path: Path, n_rows: int) -> tuple[Any, Path]:
    """Return BERT's tokenizer; the table of words has two rows more, for [DEC] and [ENC]."""
    tokenizers = require("tokenizers", "encoders")
    transformers = require("transformers", "encoders")
    if not path.is_file():
        raise NNNormError(
            f"BLIP's checkpoint needs the vocabulary of bert-base-uncased, and {path} is not "
            "there; put vocab.txt beside the checkpoint, name it with --tokenizer, or use the same "
            "model from the hub: Salesforce/blip-itm-base-coco (or base-flickr, large-coco, "
            "large-flickr)"
        )
    special = {"cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "unk": "[UNK]", "mask": "[MASK]"}
    with explain_loading(f"vocabulary {path} can't be read", "is it BERT's?"):
        words = tokenizers.models.WordPiece.read_file(str(path))
        pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
        tokenizer = transformers.PreTrainedTokenizerFast(
            tokenizer_object=tokenizers.Tokenizer.from_str(pieces.to_str()),
            model_max_length=512,
            **{f"{name}_token": token for name, token in special.items()},
        )
    if missing := [token for token in special.values() if token not in words]:
        raise NNNormError(f"vocabulary {path} has no {missing[0]}; is it BERT's?")
    if len(words) + 2 != n_rows:
        raise NNNormError(
            f"vocabulary {path} has {len(words)} pieces, the checkpoint {n_rows} with [DEC] and "
            "[ENC]; take that of bert-base-uncased"
        )
    return tokenizer, path
