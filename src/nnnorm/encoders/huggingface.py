"""transformers: CLIP, SigLIP, SigLIP 2, ALIGN, AltCLIP, CLAP and BLIP's contrastive heads.

A model is a folder written by `save_pretrained`, or a name on Hugging Face. The model's own
processor prepares images with Pillow, so torchvision isn't needed. SigLIP's texts are padded to the
full length used in training. BLIP's captions are cleaned as by its authors, and its towers are
projected from their first tokens. CLAP uses the first seconds of a sound.
"""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.encoder import (
    Dtype,
    Encoder,
    check_vocabulary,
    count_tokens,
    hash_files,
    to_numpy,
)
from nnnorm.errors import NNNormError, require

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]


_ARCHITECTURES = {
    "align": "AlignModel",
    "altclip": "AltCLIPModel",
    "blip": "BlipForImageTextRetrieval",
    "clap": "ClapModel",
    "clip": "CLIPModel",
    "siglip": "SiglipModel",
    "siglip2": "Siglip2Model",
}
# XLM-R and RoBERTa number positions from after the padding id, so some positions are unused.
_SHIFTED = ("altclip", "clap")
# BLIP's authors clean captions for training and evaluation, and use this many words and tokens.
_BLIP_WORDS, _BLIP_TOKENS = 30, 35
_BLIP_TOWERS = {"text": ("text_encoder", "text_proj"), "image": ("vision_model", "vision_proj")}
# Buffers that older checkpoints store and current models compute.
_STORED_BUFFERS = ("position_ids", "token_type_ids", "num_batches_tracked")


class HuggingFace(Encoder):
    """A dual encoder of the transformers library."""

    def __init__(self, model: str, *, revision: str | None, device: str, dtype: Dtype) -> None:
        transformers = require("transformers", "encoders")
        self._device, self._dtype = device, getattr(require("torch", "encoders"), dtype)
        # By default, the library may ask in the terminal whether to run the model's code.
        options: dict[str, Any] = {"revision": revision, "trust_remote_code": False}
        self._config = config = transformers.AutoConfig.from_pretrained(model, **options)
        if config.model_type not in _ARCHITECTURES:
            raise NNNormError(
                f"model {model} has the type {config.model_type!r}; expected a dual encoder "
                f"({', '.join(_ARCHITECTURES)}) or sentence-transformers (with modules.json)"
            )
        architecture, self._type = _ARCHITECTURES[config.model_type], config.model_type
        self.name, is_audio = model, self._type == "clap"
        self.modalities = ("audio" if is_audio else "images", "texts")
        self.model = load_pretrained(model, architecture, options)
        self.model.to(self._device, self._dtype)
        self._tokenizer = transformers.AutoTokenizer.from_pretrained(model, **options)
        check_vocabulary(self._tokenizer, model)
        self._is_siglip, self._cleans = self._type.startswith("siglip"), self._type == "blip"
        self._padding = "max_length" if self._is_siglip else "longest"
        # SigLIP 2 needs lowercase texts, which some of its tokenizers don't ensure.
        asked = bool(self._tokenizer.init_kwargs.get("do_lower_case", False))
        self._lowers = self._type == "siglip2" or (self._type == "siglip" and asked)
        if not is_audio:
            # Without torchvision, in versions 4 and 5.
            is_old = transformers.__version__.startswith("4.")
            options |= {"use_fast": False} if is_old else {"backend": "pil"}
            self._processor = transformers.AutoImageProcessor.from_pretrained(model, **options)
            preprocessing = json.loads(self._processor.to_json_string())
        else:
            preprocessing = self._load_sounds(options)
        text = config.text_config
        shift = text.pad_token_id + 1 if self._type in _SHIFTED else 0
        longest = [self._tokenizer.model_max_length, text.max_position_embeddings - shift]
        self.context = int(min(*longest, _BLIP_TOKENS) if self._cleans else min(longest))
        self.dim = self.embed_texts(["a"]).shape[1]
        texts = {"tokenizer": type(self._tokenizer).__name__, "max_length": self.context}
        texts |= {"padding": self._padding, "lower_case": self._lowers or self._cleans}
        if self._cleans:
            texts["cleaned"] = f"as by BLIP's authors, at most {_BLIP_WORDS} words"
        self.about = {
            "architecture": architecture,
            "revision": None if Path(model).is_dir() else getattr(config, "_commit_hash", None),
            "weights_sha256": hash_files(model),
            "preprocessing": {"texts": texts, self.modalities[0]: preprocessing},
            "normalization": f"unit norm, by {'the model' if is_audio else 'nnnorm'}",
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with special tokens."""
        return count_tokens(self._tokenizer, self._written(texts, None))

    def count_cut(self, texts: Sequence[str]) -> int:
        """Count the texts with more tokens than the context, or too many words for BLIP."""
        read, whole = self._written(texts), self._written(texts, max_words=None)
        counts = zip(read, whole, self.token_counts(texts), strict=True)
        return sum(part != text or n > (self.context or n) for part, text, n in counts)

    def prepare_image(self, image: Any) -> Arrays:
        """Run the model's own processor on one image."""
        return _as_arrays(self._processor(images=[image], return_tensors="np"))

    def prepare_sound(self, sound: npt.NDArray[np.float32]) -> Arrays:
        """Run the model's own feature extractor on the first seconds of a sound."""
        # The library crops a longer sound at a random position.
        cut = [sound[: self._processor.nb_max_samples]]
        return _as_arrays(self._processor(cut, sampling_rate=self.rate, return_tensors="np"))

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Tokenize, pad as in training, and run the text tower."""
        return self._project("text", self.tokenize(texts))

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Run the image tower on prepared images."""
        return self._project("image", self.stack(images))

    def embed_audio(self, sounds: list[Any]) -> npt.NDArray[Any]:
        """Run the audio tower on prepared sounds."""
        return self._project("audio", self.stack(sounds))

    def tokenize(self, texts: Sequence[str]) -> dict[str, Any]:
        """Return token ids (and mask) on the device."""
        cut = {"padding": self._padding, "truncation": True, "max_length": self.context}
        found = self._tokenizer(self._written(texts), **cut, return_tensors="pt")
        # SigLIP was trained without a mask; BLIP's text tower takes no token types.
        names = ("input_ids",) if self._is_siglip else ("input_ids", "attention_mask")
        return {name: found[name].to(self._device) for name in names}

    def stack(self, prepared: Sequence[Mapping[str, npt.NDArray[Any]]]) -> dict[str, Any]:
        """Join prepared items to a batch on the device, with floats in the type of the weights."""
        torch = require("torch", "encoders")
        stacked = {}
        for name in prepared[0]:
            tensor = torch.from_numpy(np.concatenate([one[name] for one in prepared]))
            kind = self._dtype if tensor.is_floating_point() else tensor.dtype
            stacked[name] = tensor.to(self._device, kind)
        return stacked

    def _project(self, side: str, inputs: dict[str, Any]) -> npt.NDArray[Any]:
        with require("torch", "encoders").inference_mode():
            if self._type == "blip":
                tower, head = (getattr(self.model, name) for name in _BLIP_TOWERS[side])
                return to_numpy(head(tower(**inputs).last_hidden_state[:, 0]))
            found = getattr(self.model, f"get_{side}_features")(**inputs)
            # A tensor in version 4, an output object in version 5.
            return to_numpy(found if hasattr(found, "shape") else found.pooler_output)

    def _written(self, texts: Sequence[str], max_words: int | None = _BLIP_WORDS) -> list[str]:
        """Return the texts as the tokenizer gets them."""
        if not self._cleans:
            return [text.lower() for text in texts] if self._lowers else list(texts)
        # A text of only punctuation would be empty after cleaning, so it isn't cleaned.
        return [clean_caption(text, max_words) or text for text in texts]

    def _load_sounds(self, options: Mapping[str, Any]) -> str:
        """Load the feature extractor and the sampling rate; return a description."""
        transformers = require("transformers", "encoders")
        sounds = transformers.AutoFeatureExtractor.from_pretrained(self.name, **options)
        if self._config.audio_config.enable_fusion or sounds.truncation == "fusion":
            raise NNNormError(
                f"{self.name} uses random pieces of long sounds, so the same sound would get a "
                "different row each time; use a CLAP model without fusion (unfused)"
            )
        self._processor, self.rate = sounds, int(sounds.sampling_rate)
        seconds = sounds.nb_max_samples / self.rate
        return f"mono, {self.rate} Hz, the first {seconds:g} s, shorter ones: {sounds.padding}"


def _as_arrays(found: Mapping[str, Any]) -> Arrays:
    """Return the arrays of a processor, with floats in float32."""
    arrays = {name: np.asarray(value) for name, value in found.items()}
    wide = (name for name, array in arrays.items() if array.dtype == np.float64)
    return arrays | {name: arrays[name].astype(np.float32) for name in wide}


def clean_caption(text: str, max_words: int | None = _BLIP_WORDS) -> str:
    """Clean a caption as BLIP's authors do: lower case, spaces for some punctuation."""
    spaced = re.sub(r"[.!\"()*#:;~]", " ", text.lower())
    words = re.sub(r"\s{2,}", " ", spaced).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])


def load_pretrained(model: str, architecture: str, options: Mapping[str, Any]) -> Any:
    """Load a model in float32; raise an error for missing weights, which would be random."""
    # Sizes are checked below, because the library's error doesn't name the tensors.
    loaded, info = getattr(require("transformers", "encoders"), architecture).from_pretrained(
        model, output_loading_info=True, ignore_mismatched_sizes=True, **options
    )
    shapes = {key: tuple(map(tuple, sizes)) for key, *sizes in info["mismatched_keys"]}
    for found, words in (
        (set(info["missing_keys"]) - set(shapes), "lacks {} of the weights of"),
        (shapes, "has {} tensors of other shapes than"),
        (info["unexpected_keys"], "has {} tensors that are unknown to"),
    ):
        if keys := sorted(key for key in found if not key.endswith(_STORED_BUFFERS)):
            sizes = {key: f" {own} instead of {needed}" for key, (own, needed) in shapes.items()}
            shown = ", ".join(f"{key}{sizes.get(key, '')}" for key in keys[:3])
            raise NNNormError(
                f"model {model} {words.format(len(keys))} {architecture}: {shown}; was it saved as "
                "another kind of model?"
            )
    return loaded.float().eval()
