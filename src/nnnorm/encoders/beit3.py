"""BEiT-3's image and text branches for retrieval, computed directly from the authors' checkpoint.

BEiT-3 (Wang et al., CVPR 2023) is one transformer with two sets of weights in every layer: A for
images, B for texts. For retrieval each branch ends in a head without bias on its first token. Norms
precede attention and MLP, and both have another one inside (sub-LN). The weights keep torchscale's
names, so that the state dict is the model.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy.typing as npt

from nnnorm.encoders import layers
from nnnorm.encoders.checkpoint import CheckpointEncoder, find_shapes
from nnnorm.encoders.weights import Dtype, check_keys, explain_loading, read_checkpoint
from nnnorm.errors import NNNormError, require

Tensor: TypeAlias = Any

_MAX_TOKENS = 64
_EPS = 1e-5
# Width to the number of layers of the published models, base and large.
_PUBLISHED = {768: 12, 1024: 24}
_UNUSED = ("logit_scale", r"beit3\.vision_embed\.mask_token")
# Position tables begin with two unused rows, as in Fairseq.
_SKIPPED = 2
# XLM-R's ids are those of the sentencepiece model plus one, after these special ids.
_FIRST, _PAD, _LAST, _UNKNOWN, _SHIFT = 0, 1, 2, 3, 1


class Beit3(CheckpointEncoder):
    """BEiT-3's image and text encoder for retrieval, base or large.

    Parameters
    ----------
    path : Path
        The authors' ``.pth`` with retrieval heads, base or large.
    vocabulary : Path, optional
        The authors' ``beit3.spm``; by default the one next to the checkpoint.
    image_size : int, optional
        Side of the images; by default the size used in training. For another size the position
        embeddings are interpolated, as in the authors' code.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, …
    dtype : {"float32", "bfloat16", "float16"}
        Type of the weights and of the computation.

    Examples
    --------
    >>> path = Path("beit3_base_patch16_384_f30k_retrieval.pth")
    >>> Beit3(path).encode_texts(["a dog"]).shape  # doctest: +SKIP
    (1, 768)
    """

    mean = std = (0.5, 0.5, 0.5)

    def __init__(
        self,
        path: Path,
        *,
        vocabulary: Path | None = None,
        image_size: int | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
    ) -> None:
        require("torch", "beit3")
        state = read_checkpoint(path)
        shapes = beit3_shapes(state, str(path))
        check_keys(state, shapes, _UNUSED, f"checkpoint {path}")

        positions = "beit3.encoder.embed_positions"
        self.dim = shapes["language_head.weight"][0]
        self.context = min(_MAX_TOKENS, shapes[f"{positions}.B.weight"][0] - _SKIPPED)
        patches, seen = "beit3.vision_embed.proj.weight", f"{positions}.A.weight"
        self._keep(state, shapes, patches, seen, 1 + _SKIPPED, image_size, device, dtype)
        self._n_layers = sum(key.endswith("self_attn.q_proj.A.weight") for key in shapes)
        self._tokens = _SentencePieces(
            vocabulary or path.with_name("beit3.spm"), shapes["beit3.text_embed.weight"][0]
        )
        texts = f"sentencepiece between <s> and </s>, at most {self.context} tokens"
        self._describe("beit3", path, texts, self._tokens.path)

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        return [2 + len(ids) for ids in self._tokens.ids(texts)]

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Return the first token of branch A after the vision head."""
        torch = require("torch", "beit3")
        pixels = self._pixels(images)
        with torch.inference_mode():
            embed = "beit3.vision_embed"
            x = layers.embed_patches(self._state, pixels, f"{embed}.proj", f"{embed}.cls_token")
            return layers.to_numpy(
                layers.apply_linear(self._state, self._run(x, "A", None), "vision_head")
            )

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Return the first token of branch B after the language head."""
        torch = require("torch", "beit3")
        most = (self.context or _MAX_TOKENS) - 2
        rows = [[_FIRST, *ids[:most], _LAST] for ids in self._tokens.ids(texts)]
        ids, is_real = layers.pad_rows(rows, _PAD, self._device)
        with torch.inference_mode():
            x = self._state["beit3.text_embed.weight"][ids]
            return layers.to_numpy(
                layers.apply_linear(self._state, self._run(x, "B", is_real), "language_head")
            )

    def _run(self, x: Tensor, way: Literal["A", "B"], is_real: Tensor | None) -> Tensor:
        """Run all layers of one branch and return the first token."""
        gelu = require("torch", "beit3").nn.functional.gelu
        state, encoder = self._state, "beit3.encoder"
        x = x + state[f"{encoder}.embed_positions.{way}.weight"][_SKIPPED : _SKIPPED + x.shape[1]]
        for number in range(self._n_layers):
            layer = f"{encoder}.layers.{number}"
            attention, mlp = f"{layer}.self_attn", f"{layer}.ffn.{way}"
            inner = layers.apply_norm(state, x, f"{layer}.self_attn_layer_norm.{way}", _EPS)
            query, key, value = (
                layers.apply_linear(state, inner, f"{attention}.{part}_proj.{way}")
                for part in "qkv"
            )
            inner = layers.attend(query, key, value, is_real)
            inner = layers.apply_norm(state, inner, f"{attention}.inner_attn_ln.{way}", _EPS)
            x = x + layers.apply_linear(state, inner, f"{attention}.out_proj.{way}")
            inner = layers.apply_norm(state, x, f"{layer}.final_layer_norm.{way}", _EPS)
            inner = gelu(layers.apply_linear(state, inner, f"{mlp}.fc1"))
            inner = layers.apply_norm(state, inner, f"{mlp}.ffn_layernorm", _EPS)
            x = x + layers.apply_linear(state, inner, f"{mlp}.fc2")
        return layers.apply_norm(state, x[:, 0], f"{encoder}.layer_norm.{way}", _EPS)


def beit3_shapes(state: dict[str, Tensor], name: str) -> dict[str, tuple[int, ...]]:
    """Return names and shapes of all tensors, for a checkpoint of this width.

    Parameters
    ----------
    state : dict of str to tensor
        The checkpoint; only a few shapes are used.
    name : str
        The name in messages.

    Returns
    -------
    dict of str to tuple of int
        One entry per tensor in use.

    Examples
    --------
    >>> beit3_shapes({}, "a.pth")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a.pth is no BEiT-3 checkpoint: it has no beit3.text_embed.weight ...
    """
    n_dimensions = {
        "beit3.text_embed.weight": 2,
        "beit3.vision_embed.proj.weight": 4,
        "beit3.encoder.embed_positions.A.weight": 2,
        "beit3.encoder.embed_positions.B.weight": 2,
    }
    words, patches, seen, read = find_shapes(state, n_dimensions, name, "BEiT-3")
    width = words[1]
    if width % layers.HEAD:
        raise NNNormError(
            f"{name} is no BEiT-3 checkpoint: the shapes of its words are {words}, which is no "
            f"multiple of {layers.HEAD}"
        )
    found = [int(m[1]) for key in state if (m := re.match(r"beit3\.encoder\.layers\.(\d+)", key))]
    shapes: dict[str, tuple[int, ...]] = {
        "beit3.text_embed.weight": words,
        "beit3.vision_embed.cls_token": (1, 1, width),
        "beit3.vision_embed.proj.weight": (width, 3, patches[-1], patches[-1]),
        "beit3.vision_embed.proj.bias": (width,),
        "beit3.encoder.embed_positions.A.weight": (seen[0], width),
        "beit3.encoder.embed_positions.B.weight": (read[0], width),
    }
    for number in range(_PUBLISHED.get(width, max(found, default=0) + 1)):
        layer = f"beit3.encoder.layers.{number}"
        for way in "AB":
            for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
                layers.linear_shapes(shapes, f"{layer}.self_attn.{part}.{way}", width, width)
            layers.norm_shapes(shapes, f"{layer}.self_attn.inner_attn_ln.{way}", width)
            layers.norm_shapes(shapes, f"{layer}.self_attn_layer_norm.{way}", width)
            layers.linear_shapes(shapes, f"{layer}.ffn.{way}.fc1", width, 4 * width)
            layers.linear_shapes(shapes, f"{layer}.ffn.{way}.fc2", 4 * width, width)
            layers.norm_shapes(shapes, f"{layer}.ffn.{way}.ffn_layernorm", 4 * width)
            layers.norm_shapes(shapes, f"{layer}.final_layer_norm.{way}", width)
    for way in "AB":
        layers.norm_shapes(shapes, f"beit3.encoder.layer_norm.{way}", width)
    shapes["vision_head.weight"] = shapes["language_head.weight"] = (width, width)
    return shapes


class _SentencePieces:
    """XLM-R's tokenizer, from a sentencepiece model."""

    def __init__(self, path: Path, n_rows: int) -> None:
        sentencepiece = require("sentencepiece", "beit3")
        if not path.is_file():
            raise NNNormError(
                f"BEiT-3 needs the authors' beit3.spm, and {path} is not there; put it beside the "
                "checkpoint, or name it with --tokenizer"
            )
        failed = f"{path} can't be read as a sentencepiece model"
        with explain_loading(failed, "take the authors' beit3.spm"):
            self._pieces = sentencepiece.SentencePieceProcessor(model_file=str(path))
        n_ids = self._pieces.get_piece_size() + _SHIFT
        if n_ids > n_rows:
            raise NNNormError(
                f"{path} has {n_ids} ids, the checkpoint's table {n_rows} rows; "
                "it belongs to another model"
            )
        self.path = path

    def ids(self, texts: Sequence[str]) -> list[list[int]]:
        found = self._pieces.encode(list(texts), out_type=int)
        return [[one + _SHIFT if one else _UNKNOWN for one in ids] for ids in found]
