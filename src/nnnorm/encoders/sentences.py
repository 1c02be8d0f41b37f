"""sentence-transformers: text models, and CLIP models that also accept images.

A model is a folder with `modules.json`, or a name on Hugging Face. Batches are encoded by the
library's own `encode`, with the model's default prompt, if any. Rows are always normalized.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.encoder import Dtype, Encoder, check_vocabulary, count_tokens, hash_files
from nnnorm.errors import NNNormError, require
from nnnorm.tables import read_json


class SentenceEncoder(Encoder):
    """A model of the sentence-transformers library."""

    def __init__(self, model: str, *, revision: str | None, device: str, dtype: Dtype) -> None:
        library = require("sentence_transformers", "sentence-transformers")
        is_folder = Path(model).is_dir()
        options: Any = {"revision": revision, "local_files_only": is_folder, "device": device}
        options["trust_remote_code"] = False  # code that comes with a model is never run
        if is_folder:
            _check_modules(Path(model))
        self._model = library.SentenceTransformer(model, **options)
        if is_folder:
            _check_weights(self._model[0], Path(model))
        self._model.to(dtype=getattr(require("torch", "encoders"), dtype)).eval()
        self.name = model
        # Earlier versions of the library don't list the supported inputs.
        known = ["image"] if type(self._model[0]).__name__ == "CLIPModel" else []
        has_images = "image" in (getattr(self._model, "modalities", None) or known)
        self.modalities = ("texts", "images") if has_images else ("texts",)
        tokenizer = self._model.tokenizer
        # The "tokenizer" of a CLIP model may be a processor that contains the tokenizer.
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        check_vocabulary(self._tokenizer, model)
        most = self._model.max_seq_length or getattr(self._tokenizer, "model_max_length", None)
        self.context = int(most) if most and most < 10**6 else None
        self.dim = self.embed_texts(["a"]).shape[1]
        prompt = getattr(self._model, "default_prompt_name", None)
        inner = getattr(getattr(self._model[0], "auto_model", None), "config", None)
        self.about = {
            "revision": None if is_folder else getattr(inner, "_commit_hash", None),
            "weights_sha256": hash_files(model),
            "preprocessing": {
                "modules": [type(module).__name__ for module in self._model],
                "max_length": self.context,
                "prompt": self._model.prompts.get(prompt) if prompt else None,
            },
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with special tokens."""
        return count_tokens(self._tokenizer, list(texts))

    def embed_texts(self, texts: list[Any]) -> npt.NDArray[Any]:
        """Encode a batch with the library."""
        rows = self._model.encode(texts, batch_size=len(texts), show_progress_bar=False)
        return np.asarray(rows, dtype=np.float32)

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Encode a batch with the library, which accepts images too."""
        return self.embed_texts(images)


def _check_modules(folder: Path) -> None:
    """Reject modules whose code is in the folder, which the library would import and run."""
    listed = read_json(folder / "modules.json", "the modules of a sentence-transformers model")
    for module in listed:
        kind = str(module.get("type"))
        if not kind.startswith("sentence_transformers."):
            raise NNNormError(
                f"model {folder} has a module {kind[:60]!r} with its own code, which is never "
                "run; use a model made of the modules of sentence-transformers"
            )


def _check_weights(module: Any, folder: Path) -> None:
    """Raise an error if weights are missing, which the library replaces by random numbers."""
    inner: Any = getattr(module, "auto_model", None) or getattr(module, "model", None)
    places = [folder, *sorted(folder.glob("0_*"))]
    place = next((path for path in places if (path / "config.json").is_file()), None)
    if place is None or not hasattr(inner, "from_pretrained"):
        return
    try:
        _, info = type(inner).from_pretrained(
            place, output_loading_info=True, trust_remote_code=False
        )
    except (OSError, ValueError, RuntimeError):
        return  # an adapter or another format, which the library has loaded
    # BERT's pooler is for other tasks; these models have their own pooling.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise NNNormError(
            f"model {folder} lacks {len(missing)} of the weights of {type(inner).__name__}: "
            f"{', '.join(missing[:3])}; is the folder complete?"
        )
