"""The base class of all encoders: texts, images or sounds in, unit-norm float32 rows out.

Each of the other files adds one library or one published checkpoint format and defines only how a
batch is embedded; batching, opening files, checks and normalisation are done here. Rows are in the
order of the inputs for every batch size.
"""

import warnings
from collections.abc import Mapping, Sequence
from contextlib import closing
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.images import decode_image
from nnnorm.encoders.pipeline import BatchRunner, prepare_ahead
from nnnorm.encoders.sounds import read_sound
from nnnorm.errors import NNNormError
from nnnorm.io import Progress

FloatArray: TypeAlias = npt.NDArray[np.float32]
Modality: TypeAlias = Literal["images", "texts", "audio"]


class Encoder:
    """A model that embeds images, texts or sounds into one space.

    A subclass defines the attributes, and the `embed_` methods of its modalities, which turn a
    batch into an array ``(len(batch), dim)``, normalised or not. What can be done for one image or
    sound without the model belongs into `prepare_image` and `prepare_sound`, which threads call.

    Attributes
    ----------
    name : str
        The name or path of the model.
    dim : int
        Number of columns of the embeddings.
    modalities : tuple of {"images", "texts", "audio"}
        The supported inputs.
    context : int or None
        Maximum number of tokens of a text.
    rate : int
        Sampling rate of sounds, in samples per second.
    about : mapping
        Model, revision and preprocessing, stored next to the embeddings.

    Examples
    --------
    >>> class Lengths(Encoder):
    ...     name, dim, modalities = "lengths", 2, ("texts",)
    ...
    ...     def embed_texts(self, texts):
    ...         return np.array([[len(text), text.count(" ")] for text in texts])
    >>> Lengths().encode_texts(["a b", "four"]).round(2).tolist()
    [[0.95, 0.32], [1.0, 0.0]]
    """

    name: str
    dim: int
    modalities: tuple[Modality, ...] = ()
    context: int | None = None
    rate: int = 48_000
    about: Mapping[str, Any] = {}
    _device: str = ""

    @property
    def is_on_cpu(self) -> bool:
        """Whether the model is known to run on the processor, beside what prepares its inputs."""
        return self._device == "cpu"

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Encode images (paths or Pillow images) as unit rows ``(n_images, dim)``."""
        return self._encode("images", images, batch_size, progress)

    def encode_texts(
        self, texts: Sequence[str], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Encode texts as unit rows ``(n_texts, dim)``; longer texts are cut at the context."""
        self.check_modality("texts")
        check_texts(texts)
        if n_cut := self.count_cut(texts):
            warnings.warn(
                f"{n_cut} of {len(texts)} texts are longer than the {self.longest_text} that "
                f"{self.name} reads and were cut",
                stacklevel=2,
            )
        return self._encode("texts", texts, batch_size, progress)

    def encode_audio(
        self, sounds: Sequence[Any], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Encode sounds (paths or mono arrays at `rate`) as unit rows ``(n_sounds, dim)``."""
        return self._encode("audio", sounds, batch_size, progress)

    def prepare(self, modality: Modality, item: Any) -> Any:
        """Open an item, and do what needs no model; several threads call this at once."""
        if modality == "images":
            return self.prepare_image(decode_image(item))
        if modality == "audio":
            return self.prepare_sound(read_sound(item, self.rate))
        return item

    def embed_prepared(self, modality: Modality, batch: list[Any]) -> FloatArray:
        """Embed a batch of what `prepare` gave, and normalise its rows."""
        embed = {
            "images": self.embed_images,
            "texts": self.embed_texts,
            "audio": self.embed_audio,
        }[modality]
        unit = unit_rows(embed(batch), f"{self.name}'s {modality}")
        if unit.shape != (len(batch), self.dim):
            raise NNNormError(
                f"{self.name} gave shape {unit.shape} for {len(batch)} {modality}; expected "
                f"{(len(batch), self.dim)}. Does its configuration belong to its weights?"
            )
        return unit

    def check_modality(self, modality: Modality) -> None:
        """Raise unless this model supports the modality."""
        if modality not in self.modalities:
            raise NNNormError(
                f"{self.name} encodes {' and '.join(self.modalities)}, not {modality}; "
                "choose another model"
            )

    @property
    def longest_text(self) -> str:
        """The longest text that is read in full, in words."""
        return f"{self.context} tokens"

    def count_cut(self, texts: Sequence[str]) -> int:
        """Count the texts that are longer than the context of the model."""
        if self.context is None:
            return 0
        return sum(length > self.context for length in self.token_counts(texts))

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Return the number of tokens of every text before cutting, with special tokens."""
        raise NotImplementedError

    def prepare_image(self, image: Any) -> Any:
        """Prepare a Pillow image in RGB for the model; by default it stays one."""
        return image

    def prepare_sound(self, sound: FloatArray) -> Any:
        """Prepare a mono sound at `rate` for the model; by default it stays one."""
        return sound

    def free_memory(self) -> None:
        """Free what the device keeps for later, after a batch that did not fit."""

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Embed one batch of images as `prepare_image` gives them: by default in Pillow's RGB."""
        raise NotImplementedError

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Embed one batch of texts."""
        raise NotImplementedError

    def embed_audio(self, sounds: list[Any]) -> npt.NDArray[Any]:
        """Embed one batch of sounds as `prepare_sound` gives them: by default mono at `rate`."""
        raise NotImplementedError

    def _encode(
        self, modality: Modality, items: Sequence[Any], batch_size: int, progress: Progress | None
    ) -> FloatArray:
        self.check_modality(modality)
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        rows = np.empty((len(items), self.dim), dtype=np.float32)
        model = BatchRunner(self, modality)
        done = 0
        starts = range(0, len(items), batch_size)
        batches = [(start, min(start + batch_size, len(items))) for start in starts]
        with closing(prepare_ahead(self, modality, items, batches)) as ahead:
            for prepared in ahead:
                for part in model.run(prepared):
                    rows[done : done + len(part)] = part
                    done += len(part)
                if progress is not None:
                    progress(done, len(items))
        return rows


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless all are strings that are not blank.

    Examples
    --------
    >>> check_texts(["a dog", " "])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: texts: number 1 (counted from 0) is empty, and 1 such in all; ...
    """
    if isinstance(texts, str):
        raise NNNormError("texts must be a list of strings; got one string: put it in a list")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise NNNormError(f"texts: number {place} is no string but {type(text).__name__}")
    empty = [place for place, text in enumerate(texts) if not text.strip()]
    if empty:
        raise NNNormError(
            f"texts: number {empty[0]} (counted from 0) is empty, and {len(empty)} such in all; "
            "a model gives every empty text the same meaningless row: remove them"
        )


def unit_rows(rows: npt.NDArray[Any], name: str) -> FloatArray:
    """Divide rows by their norms, in float64; raise for a row that has no direction.

    Examples
    --------
    >>> unit_rows(np.array([[3.0, 4.0]]), "a model's texts").tolist()
    [[0.6000000238418579, 0.800000011920929]]
    """
    wide = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=-1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if len(bad):
        what = "all zeros" if norms.ravel()[bad[0]] == 0 else "not finite"
        raise NNNormError(
            f"{name}: row {bad[0]} of a batch came out {what}; are the weights whole, and is "
            "the device's arithmetic sound (try --device cpu)?"
        )
    return (wide / norms).astype(np.float32)
