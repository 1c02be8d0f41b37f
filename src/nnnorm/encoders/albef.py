"""ALBEF's image and text towers, computed directly from the authors' checkpoint.

ALBEF (Li et al., NeurIPS 2021) is in no library. Its contrastive part is a ViT for images, the BERT
layers below the first one with cross-attention for texts, and a linear projection of each first
token. The weights keep the authors' names, so that the state dict is the model.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy.typing as npt

from nnnorm.encoders import layers
from nnnorm.encoders.checkpoint import CheckpointEncoder, find_shapes
from nnnorm.encoders.weights import Dtype, check_keys, explain_loading, read_checkpoint
from nnnorm.errors import NNNormError, require

Tensor: TypeAlias = Any

_MAX_TOKENS = 30
_MAX_WORDS = 30
# Width of the published model to its image layers, and text layers below the first fusion layer.
_PUBLISHED = {768: (12, 6)}
# Momentum copies, queues, the fusion layers and the heads of the other tasks.
_UNUSED = (
    r"(visual_encoder|vision_proj|text_encoder|text_proj)_m\..*",
    r"text_encoder\.(cls|pooler)\..*",
    r"text_encoder\.embeddings\.position_ids",
    r"itm_head\..*",
    r"temp|image_queue|text_queue|idx_queue|queue_ptr",
)
_LAYER = re.compile(r"text_encoder\.encoder\.layer\.(\d+)\.(.*)")


class Albef(CheckpointEncoder):
    """ALBEF's image and text encoder.

    Parameters
    ----------
    path : Path
        The authors' ``.pth``: pre-trained, or fine-tuned for retrieval.
    vocabulary : Path, optional
        BERT's ``vocab.txt`` (bert-base-uncased); by default the one next to the checkpoint.
    image_size : int, optional
        Side of the images; by default the size used in training. For another size the position
        embeddings are interpolated, as in the authors' evaluation.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, …
    dtype : {"float32", "bfloat16", "float16"}
        Type of the weights and of the computation.

    Examples
    --------
    >>> Albef(Path("flickr30k.pth")).encode_texts(["a dog"]).shape  # doctest: +SKIP
    (1, 256)
    """

    context = _MAX_TOKENS
    mean, std = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)

    def __init__(
        self,
        path: Path,
        *,
        vocabulary: Path | None = None,
        image_size: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
    ) -> None:
        # Pre-trained checkpoints have `bert.` in the names of the text tower.
        state = {
            re.sub(r"^text_encoder\.bert\.", "text_encoder.", key): tensor
            for key, tensor in read_checkpoint(path).items()
        }
        shapes = albef_shapes(state, str(path))
        n_text = 1 + max(int(m[1]) for key in shapes if (m := _LAYER.fullmatch(key)))
        fusion = rf"text_encoder\.encoder\.layer\.({'|'.join(map(str, range(n_text, 99)))})\..*"
        check_keys(state, shapes, [*_UNUSED, fusion], f"checkpoint {path}")

        self.dim = shapes["text_proj.weight"][0]
        patches, positions = "visual_encoder.patch_embed.proj.weight", "visual_encoder.pos_embed"
        self._keep(state, shapes, patches, positions, 1, image_size, device, dtype)
        self._n_blocks = sum(key.endswith("attn.qkv.weight") for key in shapes)
        self._n_text = n_text
        self._tokens = _WordPieces(
            vocabulary or path.with_name("vocab.txt"),
            shapes["text_encoder.embeddings.word_embeddings.weight"][0],
        )
        texts = (
            "lower case, punctuation removed, at most 30 words; [CLS] and word pieces "
            f"without [SEP], at most {_MAX_TOKENS} tokens"
        )
        self._describe("albef", path, texts, self._tokens.path)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        return [1 + len(ids) for ids in self._tokens.ids(texts, max_words=None)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the projected first token of the ViT."""
        torch = require("torch", "encoders")
        with torch.inference_mode():
            states = self._see(self._pixels(images))
            return layers.to_numpy(layers.apply_linear(self._state, states[:, 0], "vision_proj"))

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the projected first token of the text layers."""
        torch = require("torch", "encoders")
        rows = [
            [self._tokens.first, *ids][:_MAX_TOKENS]
            for ids in self._tokens.ids(texts, max_words=_MAX_WORDS)
        ]
        with torch.inference_mode():
            states = self._read(*layers.pad_rows(rows, self._tokens.pad, self._device))
            return layers.to_numpy(layers.apply_linear(self._state, states[:, 0], "text_proj"))

    def _see(self, pixels: Tensor) -> Tensor:
        """Run the ViT, which has norms before attention and MLP and one at the end."""
        gelu = require("torch", "encoders").nn.functional.gelu
        state, tower = self._state, "visual_encoder"
        x = layers.embed_patches(state, pixels, f"{tower}.patch_embed.proj", f"{tower}.cls_token")
        x = x + state[f"{tower}.pos_embed"]
        for number in range(self._n_blocks):
            block = f"{tower}.blocks.{number}"
            inner = layers.apply_norm(state, x, f"{block}.norm1", 1e-6)
            query, key, value = layers.apply_linear(state, inner, f"{block}.attn.qkv").chunk(
                3, dim=-1
            )
            x = x + layers.apply_linear(
                state, layers.attend(query, key, value), f"{block}.attn.proj"
            )
            inner = layers.apply_norm(state, x, f"{block}.norm2", 1e-6)
            inner = gelu(layers.apply_linear(state, inner, f"{block}.mlp.fc1"))
            x = x + layers.apply_linear(state, inner, f"{block}.mlp.fc2")
        return layers.apply_norm(state, x, f"{tower}.norm", 1e-6)

    def _read(self, ids: Tensor, is_real: Tensor) -> Tensor:
        """Run the BERT layers, which have norms after attention and MLP."""
        gelu = require("torch", "encoders").nn.functional.gelu
        state, table = self._state, "text_encoder.embeddings"
        x = state[f"{table}.word_embeddings.weight"][ids]
        x = x + state[f"{table}.token_type_embeddings.weight"][0]
        x = x + state[f"{table}.position_embeddings.weight"][: ids.shape[1]]
        x = layers.apply_norm(state, x, f"{table}.LayerNorm", 1e-12)
        for number in range(self._n_text):
            layer = f"text_encoder.encoder.layer.{number}"
            query, key, value = (
                layers.apply_linear(state, x, f"{layer}.attention.self.{part}")
                for part in ("query", "key", "value")
            )
            inner = layers.attend(query, key, value, is_real)
            inner = layers.apply_linear(state, inner, f"{layer}.attention.output.dense")
            x = layers.apply_norm(state, x + inner, f"{layer}.attention.output.LayerNorm", 1e-12)
            inner = gelu(layers.apply_linear(state, x, f"{layer}.intermediate.dense"))
            inner = layers.apply_linear(state, inner, f"{layer}.output.dense")
            x = layers.apply_norm(state, x + inner, f"{layer}.output.LayerNorm", 1e-12)
        return x


def albef_shapes(state: dict[str, Tensor], name: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of the tensors of both towers, for a checkpoint of this width.

    Parameters
    ----------
    state : dict of str to tensor
        The checkpoint, with `bert.` removed from its names; only a few shapes are used.
    name : str
        The name in messages.

    Returns
    -------
    dict of str to tuple of int
        One entry per tensor in use.

    Examples
    --------
    >>> albef_shapes({}, "a.pth")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a.pth is no ALBEF checkpoint: it has no visual_encoder.pos_embed ...
    """
    n_dimensions = {
        "visual_encoder.pos_embed": 3,
        "visual_encoder.patch_embed.proj.weight": 4,
        "text_encoder.embeddings.word_embeddings.weight": 2,
        "text_encoder.embeddings.position_embeddings.weight": 2,
        "text_proj.weight": 2,
    }
    positions, patches, words, places, projection = find_shapes(state, n_dimensions, name, "ALBEF")
    width, text_width = positions[-1], words[-1]
    if width % layers.HEAD or text_width % layers.HEAD:
        raise NNNormError(
            f"{name}: widths must be multiples of {layers.HEAD}; got {width}, {text_width}"
        )
    fused = [int(m[1]) for key in state if (m := _LAYER.fullmatch(key)) and "cross" in m[2]]
    blocks = [int(m[1]) for key in state if (m := re.match(r"visual_encoder\.blocks\.(\d+)", key))]
    n_blocks, n_text = _PUBLISHED.get(width, (max(blocks, default=0) + 1, min(fused, default=1)))
    shapes: dict[str, tuple[int, ...]] = {
        "visual_encoder.cls_token": (1, 1, width),
        "visual_encoder.pos_embed": (1, positions[1], width),
        "visual_encoder.patch_embed.proj.weight": (width, 3, patches[-1], patches[-1]),
        "visual_encoder.patch_embed.proj.bias": (width,),
        "text_encoder.embeddings.word_embeddings.weight": (words[0], text_width),
        "text_encoder.embeddings.position_embeddings.weight": (places[0], text_width),
        "text_encoder.embeddings.token_type_embeddings.weight": (2, text_width),
    }
    for number in range(n_blocks):
        block = f"visual_encoder.blocks.{number}"
        layers.norm_shapes(shapes, f"{block}.norm1", width)
        layers.linear_shapes(shapes, f"{block}.attn.qkv", width, 3 * width)
        layers.linear_shapes(shapes, f"{block}.attn.proj", width, width)
        layers.norm_shapes(shapes, f"{block}.norm2", width)
        layers.linear_shapes(shapes, f"{block}.mlp.fc1", width, 4 * width)
        layers.linear_shapes(shapes, f"{block}.mlp.fc2", 4 * width, width)
    layers.norm_shapes(shapes, "visual_encoder.norm", width)
    layers.norm_shapes(shapes, "text_encoder.embeddings.LayerNorm", text_width)
    for number in range(n_text):
        layer = f"text_encoder.encoder.layer.{number}"
        for part in ("self.query", "self.key", "self.value", "output.dense"):
            layers.linear_shapes(shapes, f"{layer}.attention.{part}", text_width, text_width)
        layers.norm_shapes(shapes, f"{layer}.attention.output.LayerNorm", text_width)
        layers.linear_shapes(shapes, f"{layer}.intermediate.dense", text_width, 4 * text_width)
        layers.linear_shapes(shapes, f"{layer}.output.dense", 4 * text_width, text_width)
        layers.norm_shapes(shapes, f"{layer}.output.LayerNorm", text_width)
    layers.linear_shapes(shapes, "vision_proj", width, projection[0])
    layers.linear_shapes(shapes, "text_proj", text_width, projection[0])
    return shapes


def clean_caption(text: str, max_words: int | None = _MAX_WORDS) -> str:
    """Clean a caption as in ALBEF's training: lower case, little punctuation.

    Examples
    --------
    >>> clean_caption("A man's dog -- half-asleep, on <person>.")
    'a mans dog half asleep on person'
    """
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text.lower())
    text = text.replace("-", " ").replace("/", " ").replace("<person>", "person")
    words = re.sub(r"\s{2,}", " ", text).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])


class _WordPieces:
    """BERT's word-piece tokenizer, from a vocabulary file."""

    def __init__(self, path: Path, n_rows: int) -> None:
        tokenizers = require("tokenizers", "encoders")
        if not path.is_file():
            raise NNNormError(
                f"ALBEF needs the vocabulary of bert-base-uncased, and {path} is not there; put "
                "vocab.txt beside the checkpoint, or name it with --tokenizer"
            )
        with explain_loading(f"vocabulary {path} can't be read", "is it BERT's?"):
            words = tokenizers.models.WordPiece.read_file(str(path))
            self._pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
        special = [self._pieces.token_to_id(token) for token in ("[CLS]", "[PAD]", "[UNK]")]
        if None in special:
            raise NNNormError(f"vocabulary {path} has no [CLS], [PAD] and [UNK]; is it BERT's?")
        if self._pieces.get_vocab_size() != n_rows:
            raise NNNormError(
                f"vocabulary {path} has {self._pieces.get_vocab_size()} pieces, the checkpoint "
                f"{n_rows}; take that of bert-base-uncased"
            )
        self.path = path
        self.first, self.pad, _ = special

    def ids(self, texts: Sequence[str], max_words: int | None) -> list[list[int]]:
        cleaned = [clean_caption(text, max_words) for text in texts]
        for text, clean in zip(texts, cleaned, strict=True):
            if not clean:
                raise NNNormError(
                    f"texts: nothing is left of {text!r} once punctuation is removed, "
                    "as ALBEF does; remove it"
                )
        encoded = self._pieces.encode_batch(cleaned, add_special_tokens=False)
        return [one.ids for one in encoded]
