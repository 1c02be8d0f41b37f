"""OpenCLIP: the models of the open_clip library.

An extra of its own because it depends on torchvision (`pip install 'nnnorm[open-clip]'`). A model
is named `ARCHITECTURE/WEIGHTS`, such as `ViT-B-32/laion2b_s34b_b79k`, where the weights may be a
file, or `hf-hub:OWNER/NAME`.
"""

from collections.abc import Sequence
from typing import Any

import numpy.typing as npt

from nnnorm.encoders.encoder import Dtype, Encoder, hash_files, to_numpy
from nnnorm.errors import NNNormError, require


class OpenClip(Encoder):
    """A model of the open_clip library."""

    modalities = ("images", "texts")

    def __init__(self, model: str, *, revision: str | None, device: str, dtype: Dtype) -> None:
        if revision is not None:
            raise NNNormError("revision applies to Hugging Face; leave it out for OpenCLIP models")
        architecture, weights = split_name(model)
        library = require("open_clip", "open-clip")
        self._device = device
        self._dtype = getattr(require("torch", "open-clip"), dtype)
        self._model, _, self._transform = library.create_model_and_transforms(
            architecture, pretrained=weights, precision="fp32", device=self._device
        )
        self._tokenizer = library.get_tokenizer(architecture)
        self._model.to(self._dtype).eval()
        self.name = model
        self.context = int(self._tokenizer.context_length)
        self.dim = self.embed_texts(["a"]).shape[1]
        sha256 = None if weights is None else hash_files(weights)
        self.about = {
            "revision": weights if sha256 is None else None,
            "weights_sha256": sha256,
            "preprocessing": {"images": str(self._transform), "max_length": self.context},
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with special tokens."""
        inner = getattr(self._tokenizer, "tokenizer", None)  # of transformers, in some models
        if inner is not None:
            return [len(inner(text, truncation=False)["input_ids"]) for text in texts]
        return [2 + len(self._tokenizer.encode(text)) for text in texts]

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Tokenize and run the text tower."""
        with require("torch", "open-clip").inference_mode():
            return to_numpy(self._model.encode_text(self._tokenizer(texts).to(self._device)))

    def prepare_image(self, image: Any) -> Any:
        """Transform an image as the model's authors do."""
        return self._transform(image)

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Run the image tower on transformed images."""
        torch = require("torch", "open-clip")
        pixels = torch.stack(images).to(self._device, self._dtype)
        with torch.inference_mode():
            return to_numpy(self._model.encode_image(pixels))


def split_name(model: str) -> tuple[str, str | None]:
    """Split a model's name into architecture and weights."""
    if model.startswith(("hf-hub:", "local-dir:")):
        return model, None
    architecture, _, weights = model.partition("/")
    if not weights:
        raise NNNormError(
            f"an OpenCLIP model is named ARCHITECTURE/WEIGHTS, such as ViT-B-32/laion2b_s34b_b79k; "
            f"got {model!r}, which names no weights: they would be random"
        )
    return architecture, weights
