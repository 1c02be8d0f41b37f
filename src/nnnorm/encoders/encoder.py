"""The base class of all encoders: texts, images or sounds in, unit-norm float32 rows out.

A subclass defines only how a batch is embedded; batching, opening files, checks and normalization
are done here. Threads open and prepare the next batches while the model computes: Pillow, numpy and
libsndfile release the interpreter, so they use all cores. Rows are in the order of the inputs.
"""

import os
import warnings
from collections import deque
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.encoders.images import decode_image, quiet_pillow
from nnnorm.encoders.sounds import read_sound
from nnnorm.errors import NNNormError
from nnnorm.files import Progress

FloatArray: TypeAlias = npt.NDArray[np.float32]
Modality: TypeAlias = Literal["images", "texts", "audio"]
_MOST_THREADS = 16  # more wait for each other's Python


class Encoder:
    """A model that embeds images, texts or sounds into one space."""

    name: str
    dim: int
    modalities: tuple[Modality, ...] = ()
    context: int | None = None
    rate: int = 48_000
    about: Mapping[str, Any] = {}

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
                f"{n_cut} of {len(texts)} texts are longer than the {self.context} tokens that "
                f"{self.name} reads and were cut",
                stacklevel=2,
            )
        return self._encode("texts", texts, batch_size, progress)

    def encode_audio(
        self, sounds: Sequence[Any], *, batch_size: int = 32, progress: Progress | None = None
    ) -> FloatArray:
        """Encode sounds (paths or mono arrays at `rate`) as unit rows ``(n_sounds, dim)``."""
        return self._encode("audio", sounds, batch_size, progress)

    def _encode(
        self, modality: Modality, items: Sequence[Any], batch_size: int, progress: Progress | None
    ) -> FloatArray:
        rows = np.empty((len(items), self.dim), dtype=np.float32)
        for start, block in self.stream(modality, items, batch_size=batch_size):
            rows[start : start + len(block)] = block
            if progress is not None:
                progress(start + len(block), len(items))
        return rows

    def stream(
        self, modality: Modality, items: Sequence[Any], *, first: int = 0, batch_size: int = 32
    ) -> Generator[tuple[int, FloatArray], None, None]:
        """Yield the place of every batch, and its unit rows; batches before `first` are skipped."""
        self.check_modality(modality)
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        embed = {
            "images": self.embed_images,
            "texts": self.embed_texts,
            "audio": self.embed_audio,
        }[modality]
        for start, batch in self._prepare_ahead(modality, items, first, batch_size):
            try:
                rows = embed(batch)
            except (MemoryError, RuntimeError) as error:
                words = str(error).lower()
                if isinstance(error, MemoryError) or "memory" in words:
                    raise NNNormError(
                        f"{self.name} ran out of memory with {len(batch)} {modality} at once; use "
                        f"a smaller batch_size (--batch-size {max(1, len(batch) // 2)})"
                    ) from error
                raise
            if rows.shape != (len(batch), self.dim):
                raise NNNormError(
                    f"{self.name} gave shape {rows.shape} for {len(batch)} {modality}; expected "
                    f"{(len(batch), self.dim)}. Does its configuration belong to its weights?"
                )
            yield start, unit_rows(rows, f"{self.name}'s {modality}")

    def _prepare_ahead(
        self, modality: Modality, items: Sequence[Any], first: int, batch_size: int
    ) -> Iterator[tuple[int, list[Any]]]:
        """Yield prepared batches in order, with two more under way in threads."""
        if modality == "texts":  # tokenizers have threads of their own
            for start in range(first, len(items), batch_size):
                yield start, list(items[start : start + batch_size])
            return

        def prepare(row: int) -> Any:
            if modality == "images":
                return self.prepare_image(decode_image(items[row]))
            return self.prepare_sound(read_sound(items[row], self.rate))

        ahead: deque[tuple[int, list[Future[Any]]]] = deque()
        pool = ThreadPoolExecutor(
            min(os.cpu_count() or 1, _MOST_THREADS), thread_name_prefix="nnnorm-prepare"
        )
        try:
            with quiet_pillow():
                for start in range(first, len(items), batch_size):
                    rows = range(start, min(start + batch_size, len(items)))
                    ahead.append((start, [pool.submit(prepare, row) for row in rows]))
                    if len(ahead) == 3:
                        place, tasks = ahead.popleft()
                        yield place, [task.result() for task in tasks]
                for place, tasks in ahead:
                    yield place, [task.result() for task in tasks]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def check_modality(self, modality: Modality) -> None:
        """Raise unless this model supports the modality."""
        if modality not in self.modalities:
            raise NNNormError(
                f"{self.name} encodes {' and '.join(self.modalities)}, not {modality}; "
                "choose another model"
            )

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

    def embed_images(self, images: list[Any]) -> npt.NDArray[Any]:
        """Embed one batch of images as `prepare_image` gives them: by default in Pillow's RGB."""
        raise NotImplementedError

    def embed_texts(self, texts: list[str]) -> npt.NDArray[Any]:
        """Embed one batch of texts."""
        raise NotImplementedError

    def embed_audio(self, sounds: list[Any]) -> npt.NDArray[Any]:
        """Embed one batch of sounds as `prepare_sound` gives them: by default mono at `rate`."""
        raise NotImplementedError


def check_texts(texts: Sequence[str]) -> None:
    """Raise unless all are strings that are not blank."""
    if isinstance(texts, str):
        raise NNNormError("texts must be a list of strings; got one string: put it in a list")
    for place, text in enumerate(texts):
        if not isinstance(text, str):
            raise NNNormError(f"texts: number {place} isn't a string but {type(text).__name__}")
    empty = [place for place, text in enumerate(texts) if not text.strip()]
    if empty:
        raise NNNormError(
            f"texts: number {empty[0]} (counted from 0) is empty, and {len(empty)} such in all; "
            "a model gives every empty text the same meaningless row: remove them"
        )


def unit_rows(rows: npt.NDArray[Any], name: str) -> FloatArray:
    """Divide rows by their norms, in float64; raise for a row that has no direction."""
    wide = np.asarray(rows, dtype=np.float64)
    norms = np.linalg.norm(wide, axis=-1, keepdims=True)
    bad = np.flatnonzero(~np.isfinite(norms) | (norms == 0))
    if len(bad):
        what = "all zeros" if norms.ravel()[bad[0]] == 0 else "not finite"
        raise NNNormError(
            f"{name}: row {bad[0]} of a batch is {what}; are the weights complete, and is the "
            "device's arithmetic right (try --device cpu)?"
        )
    return (wide / norms).astype(np.float32)
