"""What every encoder is: texts, images or sounds in, unit-norm float32 rows out.

The files beside this one each bring one library or one published checkpoint format and say only how
a batch is embedded; batching, opening files, checking and normalising are here, once for all. Rows
come out in the order of the inputs, whatever the batch size.
"""

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.images import open_image
from nnnorm.encoders.sounds import read_sound
from nnnorm.errors import NNNormError
from nnnorm.io import Progress

__all__ = ["Encoder", "Modality", "check_texts", "unit_rows"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
Modality: TypeAlias = Literal["images", "texts", "audio"]


class Encoder:
    """A model that embeds images, texts or sounds into one space.

    A subclass gives the attributes, and the `embed_` methods of its modalities: one batch in, an
    array ``(len(batch), dim)`` out, normalised or not.

    Attributes
    ----------
    name : str
        The model, as it was asked for.
    dim : int
        Columns of every row.
    modalities : tuple of {"images", "texts", "audio"}
        What it can encode.
    context : int or None
        The most tokens of a text it reads.
    rate : int
        Samples per second of its sounds.
    about : mapping
        Model, revision and preprocessing, for the sidecar of the embeddings.

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

    def encode_images(
        self, images: Sequence[Any], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Embed images, paths or Pillow images, into unit rows ``(n_images, dim)``."""
        return self._encode("images", images, batch_size, progress)

    def encode_texts(
        self, texts: Sequence[str], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Embed texts into unit rows ``(n_texts, dim)``; what is beyond the context is cut."""
        self.check_modality("texts")
        check_texts(texts)
        if n_cut := self.count_cut(texts):
            warnings.warn(
                f"{n_cut} of {len(texts)} texts are longer than the {self.context} tokens that "
                f"{self.name} reads and were cut",
                stacklevel=2,
            )
        return self._encode("texts", texts, batch_size, progress)

    def encode_audio(
        self, sounds: Sequence[Any], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Embed sounds, paths or mono arrays at `rate`, into unit rows ``(n_sounds, dim)``."""
        return self._encode("audio", sounds, batch_size, progress)

    def encode_batch(self, modality: Modality, batch: Sequence[Any]) -> FloatArray:
        """Open and embed one batch, and bring its rows to unit norm."""
        try:
            if modality == "images":
                rows = self.embed_images([open_image(image) for image in batch])
            elif modality == "texts":
                rows = self.embed_texts(list(batch))
            else:
                rows = self.embed_audio([read_sound(sound, self.rate) for sound in batch])
        except (MemoryError, RuntimeError) as error:  # torch has its own, a RuntimeError
            if not isinstance(error, MemoryError) and "out of memory" not in str(error):
                raise
            raise NNNormError(
                f"{self.name} ran out of memory with {len(batch)} {modality} at once; "
                "take a smaller batch_size (--batch-size)"
            ) from error
        unit = unit_rows(rows, f"{self.name}'s {modality}")
        if unit.shape != (len(batch), self.dim):
            raise NNNormError(
                f"{self.name} gave shape {unit.shape} for {len(batch)} {modality}; expected "
                f"{(len(batch), self.dim)}. Does its configuration belong to its weights?"
            )
        return unit

    def check_modality(self, modality: Modality) -> None:
        """Raise unless this model can encode such things."""
        if modality not in self.modalities:
            raise NNNormError(
                f"{self.name} encodes {' and '.join(self.modalities)}, not {modality}; "
                "choose another model"
            )

    def count_cut(self, texts: Sequence[str]) -> int:
        """How many texts are longer than the model's context."""
        if self.context is None:
            return 0
        return sum(length > self.context for length in self.token_counts(texts))

    def token_counts(self, texts: Sequence[str]) -> list[int]:
        """Tokens of every text, none cut, with those that the model adds."""
        raise NotImplementedError

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Embed one batch of Pillow images in RGB."""
        raise NotImplementedError

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Embed one batch of texts."""
        raise NotImplementedError

    def embed_audio(self, sounds: list[FloatArray]) -> npt.NDArray[Any]:
        """Embed one batch of mono sounds at `rate`."""
        raise NotImplementedError

    def _encode(
        self, modality: Modality, items: Sequence[Any], batch_size: int, progress: Progress | None
    ) -> FloatArray:
        self.check_modality(modality)
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        rows = np.empty((len(items), self.dim), dtype=np.float32)
        for start in range(0, len(items), batch_size):
            batch = items[start : start + batch_size]
            rows[start : start + len(batch)] = self.encode_batch(modality, batch)
            if progress is not None:
                progress(start + len(batch), len(items))
        return rows


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless all are strings with something in them.

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
    """Divide rows by their norms, in float64, or say which row can't be.

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
