"""transformers: CLIP, SigLIP, SigLIP 2, ALIGN, AltCLIP, CLAP and BLIP's contrastive heads.

A model is a folder written by `save_pretrained`, or a name on the hub. Images are prepared by the
model's own processor in its Pillow form (torchvision is not needed). Differences between models are
in `_KINDS` and in three methods: SigLIP's texts are padded to the full length used in training,
BLIP's captions are cleaned as by its authors and its towers projected from their first tokens, CLAP
uses the first seconds of a sound.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

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
    to_numpy,
)
from nnnorm.errors import NNNormError, require

Tensor: TypeAlias = Any
_Process: TypeAlias = Callable[[list[Any]], dict[str, npt.NDArray[Any]]]
FloatArray: TypeAlias = npt.NDArray[np.float32]


class _Kind(NamedTuple):
    architecture: str
    modalities: tuple[Modality, ...] = ("images", "texts")
    # XLM-R and RoBERTa count positions from after the id of the padding, so that some are unused.
    has_shifted_positions: bool = False


_KINDS = {
    "align": _Kind("AlignModel"),
    "altclip": _Kind("AltCLIPModel", has_shifted_positions=True),
    "blip": _Kind("BlipForImageTextRetrieval"),
    "clap": _Kind("ClapModel", ("audio", "texts"), has_shifted_positions=True),
    "clip": _Kind("CLIPModel"),
    "siglip": _Kind("SiglipModel"),
    "siglip2": _Kind("Siglip2Model"),
}
# The authors of BLIP clean captions, in training and evaluation, and read so much of them.
_BLIP_WORDS, _BLIP_TOKENS = 30, 35
# Buffers that older checkpoints store and current models compute.
_STORED_BUFFERS = ("position_ids", "token_type_ids", "num_batches_tracked")


class HuggingFace(Encoder):
    """A dual encoder of the transformers library."""

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
    ) -> None:
        self._device, self._dtype = pick_device(device), pick_dtype(dtype)
        self._config = config = _read_config(model, revision)
        kind, self._type = _KINDS[config.model_type], config.model_type
        self._model = load_pretrained(model, kind.architecture, revision)
        self._model.to(self._device, self._dtype)
        self._tokenizer = _load_part(model, "AutoTokenizer", revision)
        check_vocabulary(self._tokenizer, model)
        if "images" in kind.modalities:
            self._process, preprocessing = _load_images(model, revision)
        else:
            self._process, preprocessing, self.rate = _load_sounds(model, revision, config)
        self.name, self.modalities = model, kind.modalities
        self.dim = self._find_dim()
        self.context = self._find_context(kind)
        is_folder = Path(model).is_dir()
        weights = [*Path(model).glob("*.safetensors"), *Path(model).glob("*.bin")]
        texts = {"tokenizer": type(self._tokenizer).__name__, "max_length": self.context}
        texts |= {"padding": self._padding, "lower_case": self._lowers or self._cleans}
        if self._cleans:
            texts["cleaned"] = f"as by BLIP's authors, at most {_BLIP_WORDS} words"
        self.about = {
            "encoder": "transformers",
            "model": model,
            "architecture": kind.architecture,
            "dtype": dtype,
            "revision": None if is_folder else getattr(config, "_commit_hash", None),
            "weights_sha256": fingerprint_files(weights) if is_folder else None,
            "preprocessing": {"texts": texts, kind.modalities[0]: preprocessing},
            "normalization": f"unit norm, by {'the model' if self._type == 'clap' else 'nnnorm'}",
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        if not texts:
            return []
        found = self._tokenizer(self._written(texts, None), truncation=False, verbose=False)
        return [len(ids) for ids in found["input_ids"]]

    def count_cut(self, texts: Sequence[str]) -> int:
        """Count the texts with more tokens than the context, or too many words for BLIP."""
        pairs = zip(self._written(texts), self._written(texts, max_words=None), strict=True)
        kept = [text for text, (read, whole) in zip(texts, pairs, strict=True) if read == whole]
        return len(texts) - len(kept) + super().count_cut(kept)

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Tokenise, pad as in training, and run the text tower."""
        torch = require("torch", "encoders")
        inputs = dict(self.tokenize(texts))
        with torch.inference_mode():
            if self._type == "blip":
                states = self._model.text_encoder(**inputs).last_hidden_state
                return to_numpy(self._model.text_proj(states[:, 0]))
            return to_numpy(_features(self._model.get_text_features(**inputs)))

    def prepare_image(self, image: Any) -> dict[str, npt.NDArray[Any]]:
        """Run the model's own processor on one image."""
        return dict(self._process([image]))

    def prepare_sound(self, sound: FloatArray) -> dict[str, npt.NDArray[Any]]:
        """Run the model's own feature extractor on the first seconds of a sound."""
        return dict(self._process([sound]))

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Run the image tower on prepared images."""
        torch = require("torch", "encoders")
        inputs = self.stack(images)
        with torch.inference_mode():
            if self._type == "blip":
                states = self._model.vision_model(**inputs).last_hidden_state
                return to_numpy(self._model.vision_proj(states[:, 0]))
            return to_numpy(_features(self._model.get_image_features(**inputs)))

    def embed_audio(self, sounds: list[Any]) -> npt.NDArray[Any]:
        """Run the audio tower on prepared sounds."""
        torch = require("torch", "encoders")
        inputs = self.stack(sounds)
        with torch.inference_mode():
            return to_numpy(_features(self._model.get_audio_features(**inputs)))

    def tokenize(self, texts: Sequence[str]) -> dict[str, Tensor]:
        """Return token ids (and mask) on the device."""
        found = self._tokenizer(
            self._written(texts),
            padding=self._padding,
            truncation=True,
            max_length=self.context,
            return_tensors="pt",
        )
        # SigLIP was trained without a mask; BLIP's text tower takes no token types.
        names = ("input_ids",) if self._is_siglip else ("input_ids", "attention_mask")
        return {name: found[name].to(self._device) for name in names}

    def stack(self, prepared: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, Tensor]:
        """Join prepared items to one batch on the device, floats in the type of the weights."""
        torch = require("torch", "encoders")
        stacked = {}
        for name in prepared[0]:
            tensor = torch.from_numpy(np.concatenate([one[name] for one in prepared]))
            kind = self._dtype if tensor.is_floating_point() else tensor.dtype
            stacked[name] = tensor.to(self._device, kind)
        return stacked

    @property
    def model(self) -> Any:
        """The model of the library."""
        return self._model

    @property
    def _cleans(self) -> bool:
        return bool(self._type == "blip")

    @property
    def _is_siglip(self) -> bool:
        return self._type in ("siglip", "siglip2")

    @property
    def _padding(self) -> str:
        return "max_length" if self._is_siglip else "longest"

    @property
    def _lowers(self) -> bool:
        """Whether to lower texts: SigLIP 2 needs it, and some of its tokenizers do not do it."""
        asked = self._tokenizer.init_kwargs.get("do_lower_case", False)
        return self._type == "siglip2" or (self._type == "siglip" and bool(asked))

    def _written(self, texts: Sequence[str], max_words: int | None = _BLIP_WORDS) -> list[str]:
        """Texts as the tokenizer gets them."""
        if not self._cleans:
            return [text.lower() for text in texts] if self._lowers else list(texts)
        # A text of punctuation alone would be empty once cleaned: it stays as it is.
        return [clean_caption(text, max_words) or text for text in texts]

    def _find_dim(self) -> int:
        if self._type == "blip":
            return int(self._config.image_text_hidden_size)
        if self._is_siglip:
            return int(self._config.vision_config.hidden_size)
        return int(self._config.projection_dim)

    def _find_context(self, kind: _Kind) -> int:
        text = self._config.text_config
        shift = text.pad_token_id + 1 if kind.has_shifted_positions else 0
        longest = [self._tokenizer.model_max_length, text.max_position_embeddings - shift]
        return int(min(*longest, _BLIP_TOKENS) if self._cleans else min(longest))


def _load_images(model: str, revision: str | None) -> tuple[_Process, Any]:
    """Return a function that prepares images by the model's own processor, and what it does."""
    version = require("transformers", "encoders").__version__
    # Without torchvision, in versions 4 and 5.
    backend = {"use_fast": False} if version.startswith("4.") else {"backend": "pil"}
    images = _load_part(model, "AutoImageProcessor", revision, **backend)

    def process(batch: list[Any]) -> dict[str, npt.NDArray[Any]]:
        return _as_arrays(images(images=batch, return_tensors="np"))

    return process, json.loads(images.to_json_string())


def _load_sounds(model: str, revision: str | None, config: Any) -> tuple[_Process, str, int]:
    """Return a function that prepares sounds, what it does, and the sampling rate."""
    sounds = _load_part(model, "AutoFeatureExtractor", revision)
    if config.audio_config.enable_fusion or sounds.truncation == "fusion":
        raise NNNormError(
            f"{model} fuses long sounds from pieces drawn at random, so the same sound "
            "would get another row each time; use a CLAP without fusion (unfused)"
        )
    rate, longest = int(sounds.sampling_rate), sounds.nb_max_samples

    def process(batch: list[Any]) -> dict[str, npt.NDArray[Any]]:
        # The library crops a longer sound at a random position.
        cut = [sound[:longest] for sound in batch]
        return _as_arrays(sounds(cut, sampling_rate=rate, return_tensors="np"))

    words = f"mono, {rate} Hz, the first {longest / rate:g} s, shorter ones: {sounds.padding}"
    return process, words, rate


def _as_arrays(found: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a processor, floats in float32."""
    arrays = {name: np.asarray(value) for name, value in found.items()}
    return {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in arrays.items()
    }


def clean_caption(text: str, max_words: int | None = _BLIP_WORDS) -> str:
    """Clean a caption as BLIP's authors do: lower case, spaces for some punctuation."""
    spaced = re.sub(r"[.!\"()*#:;~]", " ", text.lower())
    words = re.sub(r"\s{2,}", " ", spaced).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])


def load_pretrained(model: str, architecture: str, revision: str | None = None) -> Any:
    """Load a model of the transformers library in float32, with all of its weights."""
    transformers = require("transformers", "encoders")
    failed = f"model {model} can't be loaded as {architecture}"
    advice = "is the folder complete, and do its weights belong to its config.json?"
    # Sizes are checked below: the error of the library does not name the tensors.
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    options["trust_remote_code"] = False
    with explain_loading(failed, advice):
        kind = getattr(transformers, architecture)
        loaded, info = kind.from_pretrained(model, revision=revision, **options)
    shapes = {key: tuple(map(tuple, sizes)) for key, *sizes in info["mismatched_keys"]}
    for found, words in (
        (set(info["missing_keys"]) - set(shapes), "lacks {} of the weights of"),
        (shapes, "has {} tensors of other shapes than"),
        (info["unexpected_keys"], "has {} tensors that are unknown to"),
    ):
        keys = sorted(key for key in found if not key.endswith(_STORED_BUFFERS))
        if keys:
            shown = [
                f"{key} {shapes[key][0]} instead of {shapes[key][1]}" if key in shapes else key
                for key in keys
            ]
            raise NNNormError(
                f"model {model} {words.format(len(keys))} {architecture}: "
                f"{list_some(shown)}; was it saved as another kind of model?"
            )
    return loaded.float().eval()


def _read_config(model: str, revision: str | None) -> Any:
    transformers = require("transformers", "encoders")
    known = ", ".join(sorted(_KINDS))
    if Path(model).is_dir() and not (Path(model) / "config.json").is_file():
        raise NNNormError(f"{model} isn't a model folder: it has no config.json")
    where = "" if Path(model).is_dir() else "there is no such folder here; "
    expected = f"{where}expected a folder with a config.json of {known}, or a name on the hub"
    with explain_loading(f"model {model} can't be loaded", expected):
        # By default the library may ask at the terminal whether to run code of the model.
        config = transformers.AutoConfig.from_pretrained(
            model, revision=revision, trust_remote_code=False
        )
    if config.model_type not in _KINDS:
        raise NNNormError(
            f"model {model} is of type {config.model_type!r}, not a dual encoder known here; "
            f"expected one of {known}, or a sentence-transformers folder (with modules.json)"
        )
    return config


def _load_part(model: str, auto_class: str, revision: str | None, **options: Any) -> Any:
    loader = getattr(require("transformers", "encoders"), auto_class)
    failed = f"the {auto_class.removeprefix('Auto')} of model {model} can't be loaded"
    with explain_loading(failed, "is the folder complete?"):
        return loader.from_pretrained(model, revision=revision, trust_remote_code=False, **options)


def _features(found: Any) -> Tensor:
    """Return the projected rows: a tensor in version 4, an output object in version 5."""
    return found if hasattr(found, "shape") else found.pooler_output
