"""The base class of all encoders, and `load_encoder`, which detects the type of a model.

A subclass only defines how to embed a batch. The base class handles batching, files, checks and
normalization. Threads open and prepare the next batches while the model computes. They use all
cores, because Pillow, numpy and libsndfile release the GIL. Rows are in the order of the inputs.
"""

import hashlib
import logging
import os
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.embeddings import FloatArray
from nnnorm.encoders.inputs import decode_image, quiet_pillow, read_sound
from nnnorm.errors import NNNormError, first_line, has_surrogates, require, warn

Modality: TypeAlias = Literal["images", "texts", "audio"]
Library: TypeAlias = Literal["transformers", "sentence-transformers", "open-clip"]
Dtype: TypeAlias = Literal["float32", "bfloat16", "float16"]
_MOST_THREADS = 16  # more would wait for the GIL
# Module and class of each library's encoder, and the library's own module.
_CLASSES: dict[Library, tuple[str, str, str]] = {
    "transformers": ("huggingface", "HuggingFace", "transformers"),
    "sentence-transformers": ("sentences", "SentenceEncoder", "sentence_transformers"),
    "open-clip": ("openclip", "OpenClip", "open_clip"),
}


class Encoder:
    """A model that embeds images, texts or sounds into one space."""

    name: str
    dim: int
    modalities: tuple[Modality, ...] = ()
    context: int | None = None
    rate: int = 48_000
    about: Mapping[str, Any] = {}

    def encode_images(self, images: Sequence[Any], *, batch_size: int = 32) -> FloatArray:
        """Encode images (paths or Pillow images) as unit rows ``(n_images, dim)``."""
        return self._encode("images", images, batch_size)

    def encode_texts(self, texts: Sequence[str], *, batch_size: int = 32) -> FloatArray:
        """Encode texts as unit rows ``(n_texts, dim)``; longer texts are truncated."""
        self.check_modality("texts")
        check_texts(texts)
        self.warn_of_cut(self.count_cut(texts), len(texts))
        return self._encode("texts", texts, batch_size)

    def encode_audio(self, sounds: Sequence[Any], *, batch_size: int = 32) -> FloatArray:
        """Encode sounds (paths or mono arrays at `rate`) as unit rows ``(n_sounds, dim)``."""
        return self._encode("audio", sounds, batch_size)

    def _encode(self, modality: Modality, items: Sequence[Any], batch_size: int) -> FloatArray:
        rows = np.empty((len(items), self.dim), dtype=np.float32)
        for start, block in self.stream(modality, items, batch_size=batch_size):
            rows[start : start + len(block)] = block
        return rows

    def stream(
        self, modality: Modality, items: Sequence[Any], *, first: int = 0, batch_size: int = 32
    ) -> Generator[tuple[int, FloatArray], None, None]:
        """Yield the first row number of every batch, from `first` on, and its unit rows."""
        self.check_modality(modality)
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        embed = getattr(self, f"embed_{modality}")
        for start, batch in self._prepare_ahead(modality, items, first, batch_size):
            try:
                rows = embed(batch)
            except (MemoryError, RuntimeError) as error:
                if not isinstance(error, MemoryError) and "memory" not in str(error).lower():
                    raise
                raise NNNormError(
                    f"{self.name} ran out of memory with {len(batch)} {modality} at once; use a "
                    f"smaller batch_size (--batch-size {max(1, len(batch) // 2)})"
                ) from error
            if rows.shape != (len(batch), self.dim):
                raise NNNormError(
                    f"{self.name} gave shape {rows.shape} for {len(batch)} {modality}; expected "
                    f"{(len(batch), self.dim)}. Does its configuration match its weights?"
                )
            yield start, unit_rows(rows, f"{self.name}'s {modality}")

    def _prepare_ahead(
        self, modality: Modality, items: Sequence[Any], first: int, batch_size: int
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield prepared batches in order, while threads prepare two more."""
        if modality == "texts":  # tokenizers have threads of their own
            for start in range(first, len(items), batch_size):
                yield start, list(items[start : start + batch_size])
            return

        def prepare(row: int) -> Any:
            if modality == "images":
                return self.prepare_image(decode_image(items[row]))
            return self.prepare_sound(read_sound(items[row], self.rate))

        ahead: deque[tuple[int, Iterator[Any]]] = deque()
        with quiet_pillow(), ThreadPoolExecutor(min(os.cpu_count() or 1, _MOST_THREADS)) as pool:
            for start in range(first, len(items), batch_size):
                rows = range(start, min(start + batch_size, len(items)))
                ahead.append((start, pool.map(prepare, rows)))
                if len(ahead) == 3:
                    place, batch = ahead.popleft()
                    yield place, list(batch)
            for place, batch in ahead:
                yield place, list(batch)

    def check_modality(self, modality: Modality) -> None:
        """Raise an error unless this model supports the modality."""
        if modality not in self.modalities:
            known = " and ".join(self.modalities)
            raise NNNormError(f"{self.name} encodes {known}, not {modality}; use another model")

    def count_cut(self, texts: Sequence[str]) -> int:
        """Count the texts that are longer than the context of the model."""
        if self.context is None:
            return 0
        return sum(length > self.context for length in self.token_counts(texts))

    def warn_of_cut(self, n_cut: int, n_texts: int) -> None:
        """Warn if some texts were truncated."""
        if n_cut:
            words = f"texts are longer than the {self.context} tokens that {self.name} reads"
            warn(f"{n_cut} of {n_texts} {words}; they were truncated")

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before truncation, with special tokens."""
        raise NotImplementedError

    def prepare_image(self, image: Any) -> Any:
        """Prepare a Pillow image in RGB for the model; by default, return it unchanged."""
        return image

    def prepare_sound(self, sound: FloatArray) -> Any:
        """Prepare a mono sound at `rate` for the model; by default, return it unchanged."""
        return sound

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Embed a batch of images that `prepare_image` returned: by default, Pillow's RGB."""
        raise NotImplementedError

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Embed a batch of texts."""
        raise NotImplementedError

    def embed_audio(self, sounds: list[Any]) -> npt.NDArray[Any]:
        """Embed a batch of sounds that `prepare_sound` returned: by default, mono at `rate`."""
        raise NotImplementedError


def check_texts(texts: Sequence[str]) -> None:
    """Raise an error unless all texts are non-blank strings."""
    if isinstance(texts, str):
        raise NNNormError("texts must be a list of strings; got one string: put it in a list")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise NNNormError(f"texts must be strings; number {place} is {type(text).__name__}")
        if has_surrogates(text):
            raise NNNormError(f"texts must be valid UTF-8; number {place} is {text!r:.60}")
    if empty := [place for place, text in enumerate(texts) if not text.strip()]:
        raise NNNormError(
            f"text {empty[0]} (counted from 0) is empty ({len(empty)} texts are); remove empty "
            "texts, which all get the same meaningless row"
        )


def unit_rows(rows: npt.NDArray[Any], name: str) -> FloatArray:
    """Divide rows by their norms, in float64; raise an error for rows of zeros."""
    wide = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=-1, keepdims=True)
    if len(bad := np.flatnonzero(~np.isfinite(norms) | (norms == 0))):
        what = "all zeros" if norms.ravel()[bad[0]] == 0 else "not finite"
        raise NNNormError(
            f"{name}: row {bad[0]} of a batch is {what}; are the weights complete? If they "
            "are, try --device cpu"
        )
    return (wide / norms).astype(np.float32)


def load_encoder(
    model: str | Path,
    *,
    library: Library | None = None,
    revision: str | None = None,
    device: str = "auto",
    dtype: Dtype = "float32",
) -> Encoder:
    """Load a model that embeds images, texts or sounds.

    Parameters
    ----------
    model : str or Path
        A folder, a name on Hugging Face, or ``ARCHITECTURE/WEIGHTS`` of OpenCLIP.
    library : str, optional
        By default, detected from the model's files.
    revision : str, optional
        Branch, tag or commit of a model on Hugging Face.
    device, dtype : str
        "auto" is a GPU if there is one.
    """
    for given, known, what in ((library, Library, "library"), (dtype, Dtype, "dtype")):
        if given is not None and given not in get_args(known):
            raise NNNormError(f"{what} must be one of {', '.join(get_args(known))}; got {given!r}")
    chosen = library or _recognize(Path(model))
    module, name, needed = _CLASSES[chosen]
    require(needed, "encoders" if chosen == "transformers" else chosen)
    kind = getattr(import_module(f"nnnorm.encoders.{module}"), name)
    options = {"revision": revision, "device": pick_device(device), "dtype": dtype}
    advice = (
        "there is no folder of this name: pass a model folder, a name on Hugging Face, or one of "
        "open_clip.list_pretrained()"
    )
    if Path(model).is_dir():
        advice = "is one of its files missing, truncated or damaged?"
    try:
        with _quiet_libraries():
            encoder: Encoder = kind(str(model), **options)
            if "texts" in encoder.modalities:
                encoder.token_counts(["a text"])  # a damaged tokenizer fails before the work
        about = {"encoder": chosen, "model": encoder.name, "dtype": dtype}
        encoder.about = {**about, "normalization": "unit norm, by nnnorm", **encoder.about}
        return encoder
    except (NNNormError, ImportError, MemoryError):
        raise
    except Exception as error:  # the libraries and safetensors raise any kind
        words = f"model {model} can't be loaded ({first_line(error)}); {advice}"
        raise NNNormError(words) from error


def _recognize(path: Path) -> Library:
    if (path / "modules.json").is_file():
        return "sentence-transformers"
    if (path / "config.json").is_file():
        return "transformers"
    if path.exists() or len(path.parts) > 2 or path.is_absolute():
        raise NNNormError(
            f"{path} isn't a model folder: expected config.json (transformers) or modules.json "
            "(sentence-transformers) in it, or a name on Hugging Face"
        )
    return "sentence-transformers" if path.parts[0] == "sentence-transformers" else "transformers"


@contextmanager
def _quiet_libraries() -> Iterator[None]:
    """Silence the libraries while they load a model."""
    library = require("transformers", "encoders").utils.logging
    hub = logging.getLogger("huggingface_hub")  # which logs every attempt to reach it
    before = library.get_verbosity(), library.is_progress_bar_enabled(), hub.level
    library.set_verbosity(library.CRITICAL)
    library.disable_progress_bar()
    hub.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.set_verbosity(before[0])
        hub.setLevel(before[2])
        if before[1]:
            library.enable_progress_bar()


def pick_device(device: str) -> str:
    """Return the device to compute on; "auto" is a GPU if there is one."""
    torch = require("torch", "encoders")
    if device == "auto":
        if torch.cuda.is_available():
            return "cuda"
        return "mps" if torch.backends.mps.is_available() else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError, ValueError) as error:
        words = f"device {device!r} can't be used here ({first_line(error)})"
        raise NNNormError(f"{words}; try auto, cpu, cuda, cuda:1 or mps") from error
    return device


def check_vocabulary(tokenizer: Any, model: str) -> None:
    """Raise an error if a tokenizer has no vocabulary, which transformers doesn't check."""
    special = getattr(tokenizer, "all_special_ids", None)  # some tokenizers lack this attribute
    if special is not None and len(tokenizer) <= len(set(special)):
        raise NNNormError(
            f"the tokenizer of model {model} has no vocabulary: its files (tokenizer.json, or a "
            "vocabulary) are missing; is the folder complete?"
        )


def count_tokens(tokenizer: Any, texts: list[str]) -> list[int]:
    """Return the number of tokens of every text, without truncation."""
    found = tokenizer(texts, truncation=False, verbose=False)["input_ids"] if texts else []
    return [len(ids) for ids in found]


def hash_files(model: str | Path) -> str | None:
    """Return the SHA-256 of a file, or of the weights in a folder; None if there is neither."""
    path = Path(model)
    if not path.exists():
        return None
    digest = hashlib.sha256()
    inside = sorted(file for file in path.rglob("*") if file.suffix in (".safetensors", ".bin"))
    for found in [path] if path.is_file() else inside:
        with open(found, "rb") as file:
            hashlib.file_digest(file, lambda: digest)  # one digest of all files
    return digest.hexdigest()


def to_numpy(tensor: Any) -> npt.NDArray[Any]:
    """Convert a tensor of any device to a float32 array."""
    return np.asarray(tensor.detach().float().cpu())
