"""Checkpoints of the models' authors: read as tensors only, checked name by name, and loaded."""

import argparse
import hashlib
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from PIL import Image
from safetensors.torch import load_file
from torch.nn.utils.rnn import pad_sequence

from nnnorm import NNNormError
from nnnorm.encoders import Encoder

State: TypeAlias = dict[str, torch.Tensor]
HEAD = 64  # the width of a head, in all models here
PUBLISHED = {768: 12, 1024: 24}  # width to number of layers, so that a lost layer is noticed


class CheckpointEncoder(Encoder):
    """An image and a text tower from a checkpoint; a subclass may define `mean` and `std`."""

    modalities = ("images", "texts")
    mean: tuple[float, float, float] = (0.48145466, 0.4578275, 0.40821073)  # CLIP's
    std: tuple[float, float, float] = (0.26862954, 0.26130258, 0.27577711)

    def _describe(
        self, kind: str, path: Path, vocabulary: Path, size: int, device: str, texts: str
    ) -> None:
        self.name, self._size, self._device = str(path), size, device
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
        return np.ascontiguousarray(((pixels - mean) / std).transpose(2, 0, 1))

    def _pixels(self, images: list[Any]) -> torch.Tensor:
        return torch.from_numpy(np.stack(images)).to(self._device)


def read_checkpoint(path: Path) -> State:
    """Read a state dict as tensors only: no code in the file is run."""
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
            f"checkpoint {path} can't be read as tensors; is it truncated, or another kind of "
            "file? One that holds other objects is never unpickled: save its state dict alone"
        ) from error
    for place in ("model", "module", "state_dict"):
        if isinstance(found, Mapping) and isinstance(found.get(place), Mapping):
            found = found[place]
            break
    if not isinstance(found, Mapping) or not all(torch.is_tensor(t) for t in found.values()):
        raise NNNormError(f"checkpoint {path} holds no state dict (names with tensors)")
    return dict(found)


@contextmanager
def expect_kind(path: Path, kind: str) -> Iterator[None]:
    """Raise one sentence if the tensors that tell a model's sizes are missing or of other kinds."""
    try:
        yield
    except (KeyError, IndexError) as error:
        raise NNNormError(f"{path} is not a checkpoint of {kind}: it has no {error}") from error


def fill_model(model: torch.nn.Module, state: State, path: Path) -> Any:
    """Give a model exactly the tensors of a checkpoint."""
    try:
        model.load_state_dict({key: tensor.float() for key, tensor in state.items()})
    except RuntimeError as error:  # the second line has the first kind of problem
        words = str(error).splitlines()[1].strip()[:200]
        raise NNNormError(
            f"checkpoint {path} does not fit this model ({words}); is it of another kind or task?"
        ) from error
    return model.eval()


def count_layers(state: Mapping[str, Any], pattern: str) -> int:
    """Return the number of layers whose number a pattern finds."""
    return 1 + max((int(m[1]) for key in state if (m := re.match(pattern, key))), default=-1)


def find_vocabulary(path: Path, given: Path | None, name: str) -> Path:
    """Return the vocabulary of a checkpoint: the given file, or the one next to it."""
    found = given or path.with_name(name)
    if not found.is_file():
        raise NNNormError(
            f"{path.name} needs its vocabulary, and {found} is not there; put {name} next to the "
            "checkpoint, or name it as `tokenizer` in the TOML file"
        )
    return found


def pad_rows(rows: list[list[int]], pad: int, device: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Pad token ids to one length; also return which of them are not padding."""
    ragged = [torch.tensor(row) for row in rows]
    ids = pad_sequence(ragged, batch_first=True, padding_value=pad).to(device)
    return ids, ids != pad


def hash_file(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
