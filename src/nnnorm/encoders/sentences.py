"""sentence-transformers: text models, and CLIP models that also accept images.

A model is a folder with `modules.json`, or a name on the hub. The library's own `encode` is used,
with the default prompt of the model if it has one; rows are always normalised, also if the model
has no module for it.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.encoder import Encoder, Modality
from nnnorm.encoders.loading import (
    Dtype,
    check_vocabulary,
    explain_loading,
    fingerprint_files,
    list_some,
    pick_device,
    pick_dtype,
)
from nnnorm.errors import NNNormError, require
from nnnorm.tables import read_json


class SentenceEncoder(Encoder):
    """A model of the sentence-transformers library."""

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
    ) -> None:
        library = require("sentence_transformers", "sentence-transformers")
        self._device = pick_device(device)
        number_type = pick_dtype(dtype)
        is_folder = Path(model).is_dir()
        failed = f"model {model} can't be loaded by sentence-transformers"
        advice = "expected a folder with modules.json, or a name on the hub"
        options: Any = {"revision": revision, "local_files_only": is_folder}
        options["trust_remote_code"] = False  # code that comes with a model is never run
        if is_folder:
            _check_modules(Path(model))
        with explain_loading(failed, advice):
            self._model = library.SentenceTransformer(model, device=self._device, **options)
        if is_folder:
            _check_weights(self._model[0], Path(model))
        self._model.to(dtype=number_type).eval()
        self.name = model
        self.modalities = _modalities(self._model)
        tokenizer = self._model.tokenizer
        # The "tokenizer" of a CLIP model may be a processor that contains the tokenizer.
        self._tokenizer = getattr(tokenizer, "tokenizer", tokenizer)
        check_vocabulary(self._tokenizer, model)
        most = self._model.max_seq_length or getattr(self._tokenizer, "model_max_length", None)
        self.context = int(most) if most and most < 10**6 else None
        self.dim = self.embed_texts(["a"]).shape[1]
        prompt = getattr(self._model, "default_prompt_name", None)
        weights = [*Path(model).rglob("*.safetensors"), *Path(model).rglob("*.bin")]
        self.about = {
            "encoder": "sentence-transformers",
            "model": model,
            "dtype": dtype,
            "revision": None if is_folder else _commit(self._model),
            "weights_sha256": fingerprint_files(weights) if is_folder else None,
            "preprocessing": {
                "modules": [type(module).__name__ for module in self._model],
                "max_length": self.context,
                "prompt": self._model.prompts.get(prompt) if prompt else None,
            },
            "normalization": "unit norm, by nnnorm",
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        if not texts:
            return []
        found = self._tokenizer(list(texts), truncation=False, verbose=False)
        return [len(ids) for ids in found["input_ids"]]

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Encode one batch with the library."""
        return self._run(texts)

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Encode one batch with the library."""
        return self._run(images)

    def _run(self, batch: list[Any]) -> npt.NDArray[Any]:
        rows = self._model.encode(
            batch, batch_size=len(batch), convert_to_numpy=True, show_progress_bar=False
        )
        return np.asarray(rows, dtype=np.float32)


def _check_modules(folder: Path) -> None:
    """Reject modules whose code is in the folder, which the library would import and run."""
    path = folder / "modules.json"
    if not path.is_file():
        return  # the library says what it expects
    listed = read_json(path, "the modules of a sentence-transformers model")
    for module in listed if isinstance(listed, list) else ():
        kind = str(module.get("type")) if isinstance(module, dict) else ""
        if not kind.startswith("sentence_transformers."):
            raise NNNormError(
                f"model {folder} has a module {kind[:60]!r} with code of its own, which is never "
                "run; use a model made of the modules of sentence-transformers"
            )


def _check_weights(module: Any, folder: Path) -> None:
    """Raise if weights are missing, which the library replaces by random numbers."""
    inner: Any = getattr(module, "auto_model", None) or getattr(module, "model", None)
    places = [folder, *sorted(folder.glob("0_*"))]
    place = next((path for path in places if (path / "config.json").is_file()), None)
    if place is None or not hasattr(inner, "from_pretrained"):
        return
    try:
        with explain_loading("", ""):
            _, info = type(inner).from_pretrained(
                place, output_loading_info=True, trust_remote_code=False
            )
    except NNNormError:  # an adapter or another format, which the library has loaded
        return
    # BERT's pooler is for other tasks; these models have their own pooling.
    if missing := sorted(key for key in info["missing_keys"] if not key.startswith("pooler.")):
        raise NNNormError(
            f"model {folder} lacks {len(missing)} of the weights of {type(inner).__name__}: "
            f"{list_some(missing)}; is the folder complete?"
        )


def _modalities(model: Any) -> tuple[Modality, ...]:
    """Return the supported inputs, which earlier versions of the library do not list."""
    named = getattr(model, "modalities", None)
    if named is None:
        named = ["text", "image"] if type(model[0]).__name__ == "CLIPModel" else ["text"]
    return ("texts", "images") if "image" in named else ("texts",)


def _commit(model: Any) -> str | None:
    config = getattr(getattr(model[0], "auto_model", None), "config", None)
    return getattr(config, "_commit_hash", None)
