"""What the models computed from their authors' checkpoints share: loading, pixels, description."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nnnorm.encoders.encoder import Encoder
from nnnorm.encoders.images import square_pixels
from nnnorm.encoders.weights import (
    Dtype,
    State,
    fingerprint_files,
    free_memory,
    pick_device,
    pick_dtype,
    resize_positions,
)
from nnnorm.errors import NNNormError, require

Tensor: TypeAlias = Any
Shape: TypeAlias = tuple[int, ...]


class CheckpointEncoder(Encoder):
    """An image and a text tower, computed directly from the tensors of a checkpoint.

    A subclass defines the mean and the standard deviation of its pixels (`mean`, `std`).

    Examples
    --------
    >>> CheckpointEncoder.modalities
    ('images', 'texts')
    """

    modalities = ("images", "texts")
    mean: tuple[float, float, float]
    std: tuple[float, float, float]

    def _keep(
        self,
        state: dict[str, Tensor],
        shapes: Mapping[str, Shape],
        patches: str,
        positions: str,
        n_extra: int,
        image_size: int | None,
        device: str,
        dtype: Dtype,
    ) -> None:
        """Keep the tensors in use, with position embeddings for the size of the images."""
        self._device = pick_device(device)
        self._dtype = pick_dtype(dtype, self._device)
        patch, table = shapes[patches][-1], state[positions].float()
        table = table.reshape(-1, table.shape[-1])
        self._size = find_image_size(len(table) - n_extra, patch, image_size)
        state[positions] = resize_positions(table, n_extra, self._size // patch)
        self._state = {key: state[key].to(self._device, self._dtype) for key in shapes}

    def _describe(self, encoder: str, path: Path, texts: str, vocabulary: Path) -> None:
        self.name = str(path)
        images = f"bicubic to {self._size} x {self._size}, mean {self.mean}, std {self.std}"
        self.about = {
            "encoder": encoder,
            "model": self.name,
            "revision": None,
            "dtype": str(self._dtype).removeprefix("torch."),
            "weights_sha256": fingerprint_files([path]),
            "preprocessing": {
                "images": images,
                "texts": texts,
                "vocabulary_sha256": fingerprint_files([vocabulary]),
            },
            "normalisation": "unit norm, by nnnorm",
        }

    def prepare_image(self, image: Any) -> Any:
        """Resize, scale and normalise an image."""
        return square_pixels([image], self._size, self.mean, self.std)[0]

    def free_memory(self) -> None:
        """Free what the device keeps for later, after a batch that did not fit."""
        free_memory(self._device)

    def _pixels(self, images: list[Any]) -> Tensor:
        """Put prepared images on the device."""
        pixels = require("torch", "encoders").from_numpy(np.stack(images))
        return pixels.to(self._device, self._dtype)


def find_image_size(n_patches: int, patch: int, image_size: int | None) -> int:
    """Return the side of the images: the asked one, or that of the training.

    Examples
    --------
    >>> find_image_size(576, 16, None)
    384
    >>> find_image_size(576, 16, 100)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: image_size must be a multiple of the patch size 16; got 100
    """
    size = image_size or patch * round(n_patches**0.5)
    if size < patch or size % patch:
        raise NNNormError(
            f"image_size must be a multiple of the patch size {patch}; got {image_size}"
        )
    return size


def find_shapes(
    state: State, n_dimensions: Mapping[str, int], name: str, model: str
) -> list[Shape]:
    """Return the shapes of the tensors by which a model is recognised; raise for another model.

    Examples
    --------
    >>> find_shapes({}, {"head.weight": 2}, "a.pth", "ALBEF")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a.pth is no ALBEF checkpoint: it has no head.weight ...
    """
    if absent := [key for key in n_dimensions if key not in state]:
        raise NNNormError(
            f"{name} is no {model} checkpoint: it has no {absent[0]} "
            f"(it begins with {next(iter(state), 'nothing')})"
        )
    shapes = {key: tuple(state[key].shape) for key in n_dimensions}
    if any(len(shapes[key]) != n for key, n in n_dimensions.items()):
        raise NNNormError(f"{name} is no {model} checkpoint: the shapes of its tables are {shapes}")
    return list(shapes.values())
