"""Original checkpoints, read as tensors only, and the base of their encoders.

A subclass of `CheckpointEncoder` defines the forward pass of a model. Loading it embeds one image
and one text, to detect tensors that are missing, unused or of another shape.
"""

import argparse
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from nnnorm import NNNormError
from nnnorm.encoders import Encoder, hash_files

State: TypeAlias = dict[str, Tensor]
_HEAD = 64  # the width of an attention head in all these models
_PUBLISHED = {768: 12, 1024: 24}  # width to number of layers, to detect missing layers


class CheckpointEncoder(Encoder):
    """An image and a text tower from a checkpoint; a subclass defines the attributes below."""

    modalities = ("images", "texts")
    kind: str
    vocabulary: str  # the file next to the checkpoint
    unused: str  # pattern of the names of tensors for other tasks
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)

    def __init__(self, path: Path, state: State, device: str) -> None:
        vocabulary = path.with_name(self.vocabulary)
        if not vocabulary.is_file():
            raise NNNormError(f"there is no {vocabulary}; put this file next to {path.name}")
        if device == "auto":
            device = "cuda" if torch.cuda.is_available() else "cpu"
        self.name, self._device, self._used = str(path), device, set[str]()
        used = {key: t for key, t in state.items() if not re.fullmatch(self.unused, key)}
        self._state = {key: tensor.float().to(device) for key, tensor in used.items()}
        try:
            self._size, texts = self._measure(vocabulary)
            self.dim = self.embed_texts(["a"]).shape[1]
            self.embed_images([self.prepare_image(Image.new("RGB", (1, 1)))])
        except (NNNormError, MemoryError):
            raise
        except Exception as error:  # torch and the tokenizers raise many types
            reason = f"it has no {error}" if isinstance(error, KeyError) else error
            words = f"{path} with {vocabulary.name} can't be loaded as {self.kind}: {reason}"
            raise NNNormError(words) from error
        if unknown := sorted(set(self._state) - self._used):
            raise NNNormError(
                f"checkpoint {path} has {len(unknown)} tensors that {self.kind} does not use, such "
                f"as {unknown[0]}; is it for another model or task?"
            )
        self.about = {
            "encoder": self.kind,
            "model": self.name,
            "dtype": "float32",
            "weights_sha256": hash_files(path),
            "preprocessing": {
                "images": f"bicubic to {self._size} x {self._size}, mean {self.mean}, "
                f"std {self.std}",
                "texts": texts,
                "vocabulary_sha256": hash_files(vocabulary),
            },
        }

    def _measure(self, vocabulary: Path) -> tuple[int, str]:
        """Read sizes and vocabulary; return the size of images, and a description of tokens."""
        raise NotImplementedError

    def _check_words(self, n_ids: int, n_rows: int, *, has_spare_rows: bool) -> None:
        if n_ids > n_rows or (n_ids < n_rows and not has_spare_rows):
            raise NNNormError(
                f"{self.vocabulary} has {n_ids} words, but checkpoint {self.name} has {n_rows}; "
                "use the vocabulary of the same model"
            )

    def prepare_image(self, image: Any) -> Any:
        """Resize (ignoring the aspect ratio), scale and normalize an image."""
        small = image.resize((self._size, self._size), Image.Resampling.BICUBIC)
        pixels = np.asarray(small, dtype=np.float32) / 255
        mean, std = (np.array(side, dtype=np.float32) for side in (self.mean, self.std))
        return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1))

    # --- parts of forward passes ---

    def _get(self, name: str) -> Tensor:
        self._used.add(name)
        return self._state[name]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return functional.linear(x, self._get(f"{name}.weight"), self._get(f"{name}.bias"))

    def _norm(self, name: str, x: Tensor, eps: float = 1e-5) -> Tensor:
        weight, bias = self._get(f"{name}.weight"), self._get(f"{name}.bias")
        return functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    def _cut(self, name: str, first: str, images: list[Any]) -> Tensor:
        """Return the first token of images, followed by their patches."""
        kernel, bias = self._get(f"{name}.weight"), self._get(f"{name}.bias")
        pixels = torch.from_numpy(np.stack(images)).to(self._device)
        patches = functional.conv2d(pixels, kernel, bias, kernel.shape[2:]).flatten(2).mT
        return torch.cat([self._get(first).expand(len(patches), -1, -1), patches], dim=1)

    def _count_layers(self, pattern: str, width: int) -> int:
        found = [int(m[1]) for key in self._state if (m := re.match(pattern, key))]
        return _PUBLISHED.get(width, 1 + max(found, default=-1))


def attend(sides: Iterable[Tensor], mask: Tensor | None = None) -> Tensor:
    """Return multi-head attention of query, key and value, before the output projection."""
    query, key, value = (x.reshape(*x.shape[:2], -1, _HEAD).transpose(1, 2) for x in sides)
    mixed = functional.scaled_dot_product_attention(query, key, value, attn_mask=mask)
    return mixed.transpose(1, 2).flatten(2)


def pad_rows(rows: list[list[int]], pad: int, device: str) -> tuple[Tensor, Tensor]:
    """Pad token ids to one length; also return a mask that is False for padding."""
    ragged = [torch.tensor(row) for row in rows]
    ids = pad_sequence(ragged, batch_first=True, padding_value=pad).to(device)
    return ids, (ids != pad)[:, None, None, :]


def read_checkpoint(path: Path) -> State:
    """Read a state dict as tensors only, so that no code in the file runs."""
    try:
        if path.suffix == ".safetensors":
            found: Any = load_file(path)
        else:
            # Checkpoints contain training arguments as a Namespace of plain values.
            with torch.serialization.safe_globals([argparse.Namespace]):
                found = torch.load(path, map_location="cpu", weights_only=True)
    except MemoryError:
        raise
    except Exception as error:  # pickle, zipfile, torch and safetensors raise many types
        # torch's message isn't quoted, because it recommends a way that runs code in the file.
        raise NNNormError(
            f"checkpoint {path} can't be read as tensors; is it truncated, or another kind of "
            "file? If it contains other objects, save only its state dict"
        ) from error
    for place in ("model", "module", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(place), Mapping):
            found = found[place]
            break
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise NNNormError(f"checkpoint {path} has no state dict; expected names with tensors")
    return dict(found)
