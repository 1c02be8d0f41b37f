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
from nnnorm.encoders.layers import to_numpy
from nnnorm.encoders.weights import (
    Dtype,
    check_vocabulary,
    explain_loading,
    fingerprint_files,
    free_memory,
    list_some,
    pick_device,
    pick_dtype,
    quiet_loading,
)
from nnnorm.errors import NNNormError, first_line, require

Tensor: TypeAlias = Any
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


class Parts(NamedTuple):
    """What a model of transformers consists of, in memory.

    Attributes
    ----------
    config, model, tokenizer : object
        Of the library.
    process : callable
        Turns a list of Pillow images (or sounds) into named arrays, one row each.
    preprocessing : mapping
        What `process` does, for ``about.json``.
    about : mapping
        Encoder, revision and hash of the weights.
    """

    config: Any
    model: Any
    tokenizer: Any
    process: Callable[[list[Any]], Mapping[str, npt.NDArray[Any]]]
    preprocessing: Mapping[str, Any]
    about: Mapping[str, Any]


class HuggingFace(Encoder):
    """A dual encoder of the transformers library.

    Parameters
    ----------
    model : str
        A folder or a name on the hub.
    revision : str, optional
        Branch, tag or commit, for a name on the hub.
    device : str
        ``"auto"``, ``"cpu"``, ``"cuda"``, …
    dtype : {"float32", "bfloat16", "float16"}
        Type of the weights and of the computation.
    clean_texts : bool
        For BLIP: whether to clean texts as its authors do (`clean_caption`).
    parts : Parts, optional
        A model that is already in memory; `model` is then only its name.

    Examples
    --------
    >>> clip = HuggingFace("openai/clip-vit-base-patch32")  # doctest: +SKIP
    >>> clip.encode_texts(["a dog"]).shape  # doctest: +SKIP
    (1, 512)
    """

    def __init__(
        self,
        model: str,
        *,
        revision: str | None = None,
        device: str = "auto",
        dtype: Dtype = "float32",
        clean_texts: bool = True,
        parts: Parts | None = None,
    ) -> None:
        self._device = pick_device(device)
        self._dtype = pick_dtype(dtype, self._device)
        config = _read_config(model, revision) if parts is None else parts.config
        kind = _KINDS[config.model_type]
        if not clean_texts and config.model_type != "blip":
            raise NNNormError(
                f"clean_texts=False (--raw-texts) is for BLIP; got a model of type "
                f"{config.model_type}, whose texts are not cleaned"
            )
        parts = parts or _load_parts(model, revision, config, kind)
        self._config, self._type = config, config.model_type
        self._cleans = self._type == "blip" and clean_texts
        self._model = parts.model.to(self._device, self._dtype)
        self._tokenizer, self._process = parts.tokenizer, parts.process
        check_vocabulary(self._tokenizer, model)
        self.name = model
        self.modalities = kind.modalities
        self.dim = self._find_dim()
        self.context = self._find_context(kind)
        if "audio" in kind.modalities:
            self.rate = int(parts.preprocessing["rate"])
        self.about = {
            "encoder": "transformers",
            "model": model,
            "architecture": kind.architecture,
            "dtype": dtype,
            **parts.about,
            "preprocessing": {
                "texts": {
                    "tokenizer": type(self._tokenizer).__name__,
                    "max_length": self.context,
                    "padding": self._padding,
                    "lower_case": self._lowers or self._cleans,
                    **(
                        {"cleaned": "as by BLIP's authors, at most 30 words"}
                        if self._cleans
                        else {}
                    ),
                },
                kind.modalities[0]: parts.preprocessing[kind.modalities[0]],
            },
            "normalisation": f"unit norm, by {'the model' if self._type == 'clap' else 'nnnorm'}",
        }

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        if not texts:
            return []
        written = self._written(texts, max_words=None)
        found = self._tokenizer(written, truncation=False, verbose=False)
        return [len(ids) for ids in found["input_ids"]]

    @property
    def longest_text(self) -> str:
        """The longest text that is read in full, in words."""
        tokens = super().longest_text
        return f"{_BLIP_WORDS} words or {tokens}" if self._cleans else tokens

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

    def free_memory(self) -> None:
        """Free what the device keeps for later, after a batch that did not fit."""
        free_memory(self._device)

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

    def process_images(self, images: list[Any]) -> dict[str, Tensor]:
        """Return pixels (and masks) of Pillow images on the device."""
        return self.stack([self.prepare_image(image) for image in images])

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

    def matching_token(self) -> int:
        """Return the id of BLIP's ``[ENC]``, with which a text begins that is matched to an image.

        The tokenizers of the published models do not know it; it follows ``[DEC]``, with which
        BLIP begins the captions it writes.
        """
        known: int | None = self._tokenizer.get_vocab().get("[ENC]")
        text = self._model.config.text_config
        if known is None and text.bos_token_id == text.vocab_size - 2:
            known = text.vocab_size - 1
        if known is None:
            raise NNNormError(
                f"{self.name} has no token [ENC], with which BLIP matches texts to images; is its "
                "tokenizer that of another model?"
            )
        return known

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
        cleaned = [clean_caption(text, max_words) for text in texts]
        for text, clean in zip(texts, cleaned, strict=True):
            if not clean:
                raise NNNormError(
                    f"texts: nothing is left of {text!r} once it is cleaned as by BLIP's authors; "
                    "remove it, or use clean_texts=False (--raw-texts)"
                )
        return cleaned

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


def _load_parts(model: str, revision: str | None, config: Any, kind: _Kind) -> Parts:
    """Load a folder or a name on the hub."""
    loaded = load_pretrained(model, kind.architecture, revision)
    tokenizer = _load_part(model, "AutoTokenizer", revision)
    preprocessing: dict[str, Any] = {}
    if "images" in kind.modalities:
        images = _load_part(model, "AutoImageProcessor", revision, **_pillow_backend())
        preprocessing["images"] = json.loads(images.to_json_string())

        resize = _find_resize(images, preprocessing["images"])

        def process(batch: list[Any]) -> Mapping[str, npt.NDArray[Any]]:
            resized = [resize(image) for image in batch]
            return _as_arrays(images(images=resized, return_tensors="np"))
    else:
        sounds = _load_part(model, "AutoFeatureExtractor", revision)
        if config.audio_config.enable_fusion or sounds.truncation == "fusion":
            raise NNNormError(
                f"{model} fuses long sounds from pieces drawn at random, so the same sound "
                "would get another row each time; use a CLAP without fusion (unfused)"
            )
        rate = sounds.sampling_rate
        preprocessing["rate"] = rate
        preprocessing["audio"] = (
            f"mono, {rate} Hz, the first {sounds.nb_max_samples / rate:g} s, "
            f"shorter ones: {sounds.padding}"
        )

        def process(batch: list[Any]) -> Mapping[str, npt.NDArray[Any]]:
            # The library crops a longer sound at a random position.
            cut = [sound[: sounds.nb_max_samples] for sound in batch]
            return _as_arrays(sounds(cut, sampling_rate=rate, return_tensors="np"))

    is_folder = Path(model).is_dir()
    weights = [*Path(model).glob("*.safetensors"), *Path(model).glob("*.bin")]
    about = {
        "revision": None if is_folder else getattr(config, "_commit_hash", None),
        "weights_sha256": fingerprint_files(weights) if is_folder else None,
    }
    return Parts(config, loaded, tokenizer, process, preprocessing, about)


def _find_resize(processor: Any, about: Mapping[str, Any]) -> Callable[[Any], Any]:
    """Return a function that gives an image the size to which its processor will resize it.

    A processor turns an image into an array and back before it resizes it, and holds the
    interpreter meanwhile. Of a resized image there is less to turn, and the pixels are the same, as
    Pillow leaves an image of the right size alone. This is tried on two images; where it does not
    hold, images stay as they are.
    """
    size = {name: side for name, side in (about.get("size") or {}).items() if side}
    resample, edge = about.get("resample"), size.get("shortest_edge")

    def unchanged(image: Any) -> Any:
        return image

    def resize(image: Any) -> Any:
        width, height = image.size
        if edge:
            longer = int(edge * max(width, height) / min(width, height))
            new = (edge, longer) if width <= height else (longer, edge)
        else:
            new = (size["width"], size["height"])
        return image.resize(new, resample)

    is_known = size.keys() in ({"shortest_edge"}, {"width", "height"})
    if not (about.get("do_resize") and isinstance(resample, int) and is_known):
        return unchanged
    pillow, rng = require("PIL.Image", "encoders"), np.random.default_rng(0)
    # A longer side with the largest fraction, which rounding and cutting off treat differently.
    longer = max(range(101, 140), key=lambda side: (edge or 0) * side / 100 % 1)
    for shape in ((301, 233, 3), (100, longer, 3)):
        image = pillow.fromarray(rng.integers(0, 256, shape, dtype=np.uint8))
        plain, quick = (
            _as_arrays(processor(images=[one], return_tensors="np"))
            for one in (image, resize(image))
        )
        if any(not np.array_equal(plain[name], quick[name]) for name in plain):
            return unchanged
    return resize


def _as_arrays(found: Mapping[str, Any]) -> dict[str, npt.NDArray[Any]]:
    """Arrays of a processor, floats in float32."""
    arrays = {name: np.asarray(value) for name, value in found.items()}
    return {
        name: array.astype(np.float32) if array.dtype == np.float64 else array
        for name, array in arrays.items()
    }


def clean_caption(text: str, max_words: int | None = _BLIP_WORDS) -> str:
    """Clean a caption as BLIP's authors do: lower case, spaces for some punctuation.

    Examples
    --------
    >>> clean_caption('A dog (half-asleep), on the "sofa".')
    'a dog half-asleep , on the sofa'
    """
    spaced = re.sub(r"[.!\"()*#:;~]", " ", text.lower())
    words = re.sub(r"\s{2,}", " ", spaced).rstrip("\n").strip(" ").split(" ")
    return " ".join(words[:max_words])


def load_pretrained(model: str, architecture: str, revision: str | None = None) -> Any:
    """Load a model of the transformers library in float32, with all of its weights.

    The library replaces missing weights by random numbers and only logs it; here this is an error.

    Examples
    --------
    >>> load_pretrained("no/such/folder", "CLIPModel")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: model no/such/folder can't be loaded as CLIPModel ...
    """
    transformers = require("transformers", "encoders")
    failed = f"model {model} can't be loaded as {architecture}"
    advice = "is the folder whole, and do its weights belong to its config.json?"
    # Sizes are checked below: the error of the library does not name the tensors.
    options = {"output_loading_info": True, "ignore_mismatched_sizes": True}
    options["trust_remote_code"] = False
    with explain_loading(failed, advice), quiet_loading():
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
        raise NNNormError(f"{model} is no model folder: it has no config.json")
    try:
        with quiet_loading():
            # By default the library may ask at the terminal whether to run code of the model.
            config = transformers.AutoConfig.from_pretrained(
                model, revision=revision, trust_remote_code=False
            )
    except Exception as error:
        where = "" if Path(model).is_dir() else "there is no such folder here, and on the hub: "
        raise NNNormError(
            f"model {model} can't be loaded ({where}{first_line(error)}); expected a folder with a "
            f"config.json of {known}, or a name on the hub"
        ) from error
    if config.model_type not in _KINDS:
        raise NNNormError(
            f"model {model} is of type {config.model_type!r}, which is no dual encoder known here; "
            f"expected one of {known}, or a sentence-transformers folder (with modules.json)"
        )
    return config


def _load_part(model: str, auto_class: str, revision: str | None, **options: Any) -> Any:
    transformers = require("transformers", "encoders")
    try:
        with quiet_loading():
            loader = getattr(transformers, auto_class)
            options = {"revision": revision, "trust_remote_code": False, **options}
            return loader.from_pretrained(model, **options)
    except Exception as error:
        raise NNNormError(
            f"the {auto_class.removeprefix('Auto')} of model {model} can't be loaded "
            f"({first_line(error)}); is the folder whole?"
        ) from error


def _pillow_backend() -> dict[str, Any]:
    """Return the option for a processor without torchvision, for versions 4 and 5."""
    version = require("transformers", "encoders").__version__
    return {"use_fast": False} if version.startswith("4.") else {"backend": "pil"}


def _features(found: Any) -> Tensor:
    """Return the projected rows: a tensor in version 4, an output object in version 5."""
    return found if hasattr(found, "shape") else found.pooler_output
