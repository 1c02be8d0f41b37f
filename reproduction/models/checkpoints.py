"""Checkpoints of the models' authors: read as tensors only, checked name by name, and loaded."""

import argparse
import hashlib
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file

from nnnorm import NNNormError
from nnnorm.encoders import Encoder

State: TypeAlias = dict[str, torch.Tensor]
CHECKPOINTS = (".pth", ".pt", ".safetensors")
CLIP_MEAN, CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HEAD = 64  # the width of a head, in all models here
PUBLISHED = {768: 12, 1024: 24}  # width to number of layers, so that a lost layer is noticed
# The names of ALBEF's and BLIP's ViT to those of transformers' BLIP.
_BLOCK, _LAYER = r"visual_encoder\.blocks\.(\d+)", r"vision_model.encoder.layers.\1"
_VISION = (
    (r"visual_encoder\.cls_token", "vision_model.embeddings.class_embedding"),
    (r"visual_encoder\.pos_embed", "vision_model.embeddings.position_embedding"),
    (r"visual_encoder\.patch_embed\.proj\.", "vision_model.embeddings.patch_embedding."),
    (r"visual_encoder\.norm\.", "vision_model.post_layernorm."),
    (rf"{_BLOCK}\.attn\.proj\.", rf"{_LAYER}.self_attn.projection."),
    (rf"{_BLOCK}\.attn\.", rf"{_LAYER}.self_attn."),
    (rf"{_BLOCK}\.norm([12])\.", rf"{_LAYER}.layer_norm\2."),
    (rf"{_BLOCK}\.mlp\.", rf"{_LAYER}.mlp."),
)
# Momentum copies, queues and the heads of other tasks.
UNUSED = (
    r"(visual_encoder|vision_proj|text_encoder|text_proj)_m\..*",
    r"text_encoder\.(cls|pooler)\..*",
    r".*position_ids",
    r"temp|image_queue|text_queue|idx_queue|ptr_queue|queue_ptr",
)


class CheckpointEncoder(Encoder):
    """An image and a text tower from a checkpoint; a subclass defines `mean` and `std`."""

    modalities = ("images", "texts")
    mean: tuple[float, float, float] = CLIP_MEAN
    std: tuple[float, float, float] = CLIP_STD

    def _describe(
        self, kind: str, path: Path, vocabulary: Path, size: int, device: str, texts: str
    ) -> None:
        self.name, self._size = str(path), size
        self._device = device
        if device == "auto":
            self._device = "cuda" if torch.cuda.is_available() else "cpu"
        self.about = {
            "encoder": kind,
            "model": self.name,
            "dtype": "float32",
            "weights_sha256": hash_file(path),
            "preprocessing": {
                "images": f"bicubic to {size} x {size}, mean {self.mean}, std {self.std}",
                "texts": texts,
                "vocabulary_sha256": hash_file(vocabulary),
            },
        }

    def prepare_image(self, image: Any) -> Any:
        """Resize (ignoring the aspect ratio), scale and normalize an image."""
        small = image.resize((self._size, self._size), Image.Resampling.BICUBIC)
        pixels = np.asarray(small, dtype=np.float32) / 255
        mean, std = (np.array(side, dtype=np.float32) for side in (self.mean, self.std))
        pixels = (pixels - mean) / std
        return np.ascontiguousarray(pixels.transpose(2, 0, 1))

    def _pixels(self, images: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.stack(images)).to(self._device)


def read_checkpoint(path: Path) -> State:
    """Read a state dict as tensors only: no code in the file is run."""
    if not path.is_file():
        raise NNNormError(f"checkpoint {path}: there is no such file; check the path")
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            # The arguments of a training run are a Namespace of plain values.
            with torch.serialization.safe_globals([argparse.Namespace]):
                found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # pickle, zipfile, torch and safetensors have kinds of their own
        # Not quoted: torch's message recommends a way of loading that runs code of the file.
        raise NNNormError(
            f"checkpoint {path} can't be read as tensors; is it cut short, or another kind of "
            "file? One that holds other objects is never unpickled: save its state dict alone"
        ) from error
    for place in ("model", "module", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(place), Mapping):
            found = found[place]
            break
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise NNNormError(f"checkpoint {path} holds no state dict (names with tensors)")
    return dict(found)


def check_tensors(state: State, expected: Mapping[str, Iterable[int]], path: Path) -> None:
    """Raise unless exactly the expected tensors are there, in their shapes."""
    hint = "is it a checkpoint of another kind or task?"
    if missing := [key for key in expected if key not in state]:
        raise NNNormError(
            f"checkpoint {path} lacks {len(missing)} of the {len(expected)} tensors this model "
            f"needs: {_list_some(missing)}; {hint}"
        )
    if unknown := [key for key in state if key not in expected]:
        raise NNNormError(
            f"checkpoint {path} has {len(unknown)} tensors this model does not know: "
            f"{_list_some(unknown)}; {hint}"
        )
    for key, shape in expected.items():
        if tuple(state[key].shape) != tuple(shape):
            raise NNNormError(
                f"checkpoint {path}: {key} must have shape {tuple(shape)}; "
                f"got {tuple(state[key].shape)}"
            )


def fill_model(model: torch.nn.Module, state: State, path: Path) -> torch.nn.Module:
    """Give a model made on the device "meta" the tensors of a checkpoint, after a check."""
    wanted = {key: tensor.shape for key, tensor in model.state_dict().items()}
    wanted = {key: shape for key, shape in wanted.items() if not key.endswith("position_ids")}
    check_tensors(state, wanted, path)
    model = model.to_empty(device="cpu")
    model.load_state_dict({key: tensor.float() for key, tensor in state.items()}, strict=False)
    for name, buffer in model.named_buffers():  # which no checkpoint needs
        if name.endswith("position_ids"):
            buffer.copy_(torch.arange(buffer.shape[-1]).expand_as(buffer))
        elif name.endswith("token_type_ids"):
            buffer.zero_()
    return model.eval()


def select_tensors(state: State, unused: Iterable[str]) -> State:
    """Return the tensors in use, the image tower under the names of transformers."""
    left_out, chosen = re.compile("|".join(unused)), {}
    for key, tensor in state.items():
        if left_out.fullmatch(key):
            continue
        for theirs, ours in _VISION:
            key, found = re.subn(f"^{theirs}", ours, key)
            if found:
                break
        chosen[key] = tensor
    return chosen


def vision_config(state: State, image_size: int | None) -> dict[str, Any]:
    """Return the sizes of a ViT, and resize its position embeddings to the size of the images."""
    table = "visual_encoder.pos_embed"
    width = state[table].shape[-1]
    patch = state["visual_encoder.patch_embed.proj.weight"].shape[-1]
    size = find_image_size(state[table].shape[1] - 1, patch, image_size)
    state[table] = resize_positions(state[table][0].float(), 1, size // patch)[None]
    return {
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_hidden_layers": PUBLISHED.get(
            width, count_layers(state, r"visual_encoder\.blocks\.(\d+)\.")
        ),
        "num_attention_heads": width // HEAD,
        "image_size": size,
        "patch_size": patch,
        "layer_norm_eps": 1e-6,  # the authors'; transformers' own conversion has 1e-5
    }


def require_tensors(state: State, n_dimensions: Mapping[str, int], path: Path, kind: str) -> None:
    """Raise unless the tensors by which a model is recognized are there, with widths of heads."""
    for key, n in n_dimensions.items():
        if key not in state:
            raise NNNormError(
                f"{path} is not a checkpoint of {kind}: it has no {key} "
                f"(it begins with {next(iter(state), 'nothing')})"
            )
        if state[key].ndim != n or (
            key.endswith("embeddings.weight") and state[key].shape[1] % HEAD
        ):
            raise NNNormError(
                f"{path} is not a checkpoint of {kind}: {key} has shape {tuple(state[key].shape)}"
            )


def count_layers(state: Mapping[str, Any], pattern: str) -> int:
    """Return the number of layers whose number a pattern finds."""
    return 1 + max((int(m[1]) for key in state if (m := re.match(pattern, key))), default=-1)


def find_image_size(n_patches: int, patch: int, image_size: int | None) -> int:
    """Return the side of the images: the given one, or that of the training."""
    size = image_size or patch * round(n_patches**0.5)
    if size < patch or size % patch:
        raise NNNormError(f"image_size must be a multiple of the patch size {patch}; got {size}")
    return size


def resize_positions(positions: torch.Tensor, n_extra: int, side: int) -> torch.Tensor:
    """Resize position embeddings to another grid (bicubic, as in the authors' code)."""
    extra, patches = positions[:n_extra], positions[n_extra:]
    old = round(len(patches) ** 0.5)
    if old == side:
        return positions
    grid = patches.reshape(1, old, old, -1).permute(0, 3, 1, 2)
    grid = torch.nn.functional.interpolate(
        grid, size=(side, side), mode="bicubic", align_corners=False
    )
    return torch.cat([extra, grid.permute(0, 2, 3, 1).flatten(1, 2)[0]])


def find_vocabulary(path: Path, given: Path | None, name: str, what: str) -> Path:
    """Return the vocabulary of a checkpoint: the given file, or the one next to it."""
    found = given or path.with_name(name)
    if not found.is_file():
        raise NNNormError(
            f"{path.name} needs {what}, and {found} is not there; put {name} next to the "
            "checkpoint, or name it as `tokenizer` in the TOML file"
        )
    return found


def read_word_pieces(path: Path, n_words: int) -> Any:
    """Return BERT's word-piece tokenizer, if the vocabulary has the size of the checkpoint's."""
    import tokenizers

    try:
        words = tokenizers.models.WordPiece.read_file(str(path))
        pieces = tokenizers.BertWordPieceTokenizer(words, lowercase=True)
    except Exception as error:  # the library raises Exception itself
        raise NNNormError(f"vocabulary {path} can't be read ({error}); is it BERT's?") from error
    for token in ("[CLS]", "[SEP]", "[PAD]", "[UNK]", "[MASK]"):
        if token not in words:
            raise NNNormError(f"vocabulary {path} has no {token}; is it BERT's?")
    if len(words) != n_words:
        raise NNNormError(
            f"vocabulary {path} has {len(words)} pieces, the checkpoint {n_words}; take that of "
            "bert-base-uncased"
        )
    return pieces


def pad_rows(rows: list[list[int]], pad: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids to one length; also return which of them are not padding."""
    longest = max(map(len, rows))
    ids = torch.tensor([row + [pad] * (longest - len(row)) for row in rows])
    lengths = torch.tensor([len(row) for row in rows])
    is_real = torch.arange(longest)[None, :] < lengths[:, None]
    return ids.to(device), is_real.to(device)


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _list_some(keys: list[str]) -> str:
    return ", ".join(keys[:3]) + (", …" if len(keys) > 3 else "")
