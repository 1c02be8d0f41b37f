"""Embeddings written to disk in shards, so that long work can be interrupted and resumed.

    OUT/img_emb.partial/    in progress: finished shards, about.json, items.jsonl
    OUT/img_emb/            complete: img_emb_00000.npy, …, about.json, items.jsonl

The folder gets its final name in one step at the end, so that incomplete embeddings can't be
mistaken for complete ones. Every shard is encoded independently, so that resumed work gives the
same result bit for bit (with the same batch size; another one changes the last bits).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.encoders.encoder import Encoder, Modality, check_texts
from nnnorm.encoders.images import check_images
from nnnorm.encoders.sounds import check_sounds
from nnnorm.errors import NNNormError
from nnnorm.io import Progress, make_folder, write_whole

_FOLDERS: dict[Modality, str] = {"images": "img_emb", "texts": "text_emb", "audio": "audio_emb"}
_ABOUT, _ITEMS = "about.json", "items.jsonl"
# Entries that must agree for work to be resumed; the others follow from these.
_MUST_AGREE = {
    "revision": "another revision",
    "weights_sha256": "other weights",
    "preprocessing": "another preprocessing",
    "dim": "another dim",
    "items_sha256": "other inputs",
}


@dataclass(frozen=True)
class Encoded:
    """The result of `encode_to_folder`.

    Attributes
    ----------
    folder : Path
        Embeddings, for `open_embeddings`.
    about : dict
        The content of ``about.json``.
    n_resumed : int
        Number of rows that existed already.
    """

    folder: Path
    about: dict[str, Any]
    n_resumed: int


def encode_to_folder(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    shard_rows: int = 1024,
    resume: bool = False,
    progress: Progress | None = None,
) -> Encoded:
    """Encode a list of images, texts or sounds into a folder of shards.

    Parameters
    ----------
    encoder : Encoder
        From `load_encoder`, or a subclass of your own.
    modality : {"images", "texts", "audio"}
    items : sequence of paths or of texts
        One row each, in this order.
    output : str or PathLike
        The folder in which ``img_emb``, ``text_emb`` or ``audio_emb`` is created; it is created
        with its parents if needed.
    batch_size : int
        Items per forward pass.
    shard_rows : int
        Rows per file, which is the most that an interruption can lose.
    resume : bool
        Resume interrupted work; complete embeddings are left as they are.
    progress : callable, optional
        Called with ``(rows done, rows in all)``.

    Returns
    -------
    Encoded

    Examples
    --------
    >>> import tempfile, nnnorm
    >>> class Letters(Encoder):
    ...     name, dim, modalities = "letters", 2, ("texts",)
    ...
    ...     def embed_texts(self, texts):
    ...         return np.array([[text.count("a"), text.count("b")] for text in texts])
    >>> done = encode_to_folder(Letters(), "texts", ["ab", "bb"], tempfile.mkdtemp())
    >>> nnnorm.open_embeddings(done.folder).shape
    (2, 2)
    """
    plan = plan_encoding(encoder, modality, items, output, shard_rows=shard_rows, resume=resume)
    return plan.run(batch_size=batch_size, progress=progress)


def plan_encoding(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: str | os.PathLike[str],
    *,
    shard_rows: int = 1024,
    resume: bool = False,
) -> "Plan":
    """Check all inputs before anything is written; `Plan.run` then encodes them.

    The parameters are those of `encode_to_folder`, which does both.

    Examples
    --------
    >>> plan_encoding(Encoder(), "texts", [], "out")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there are no texts to encode; give at least one
    """
    if shard_rows < 1:
        raise NNNormError(f"shard_rows must be 1 or more; got {shard_rows}")
    if not len(items):
        raise NNNormError(f"there are no {modality} to encode; give at least one")
    encoder.check_modality(modality)
    folder = Path(output) / _FOLDERS[modality]
    growing = folder.with_name(f"{folder.name}.partial")
    about = _describe(encoder, modality, items, shard_rows)
    for place in (folder, growing):
        if place.exists():
            about = _check_folder(place, about, resume)
            break
    return Plan(encoder, modality, items, folder, growing, about)


@dataclass(frozen=True)
class Plan:
    """Checked inputs, and the folder into which they are encoded. Made by `plan_encoding`."""

    encoder: Encoder
    modality: Modality
    items: Sequence[Any]
    folder: Path
    growing: Path
    about: dict[str, Any]

    def run(self, *, batch_size: int = 32, progress: Progress | None = None) -> Encoded:
        """Encode the missing shards, and give the folder its final name."""
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        if self.folder.exists():
            return Encoded(self.folder, self.about, len(self.items))
        made = [] if self.growing.exists() else _begin(self.growing, self.about, self.items)
        for stray in self.growing.glob(".nnnorm-*.tmp"):  # unfinished files of a killed process
            stray.unlink()
        n_resumed = self._fill(batch_size, progress, made)
        os.rename(self.growing, self.folder)
        return Encoded(self.folder, self.about, n_resumed)

    def _fill(self, batch_size: int, progress: Progress | None, made: Sequence[Path]) -> int:
        """Encode the missing shards; return the number of rows that existed already.

        An interruption before the first shard is complete leaves nothing, and removes `made`.
        """
        shard_rows, n_rows = int(self.about["shard_rows"]), len(self.items)
        n_resumed = n_written = 0
        try:
            for number, start in enumerate(range(0, n_rows, shard_rows)):
                shard = self.items[start : start + shard_rows]
                path = self.growing / f"{_FOLDERS[self.modality]}_{number:05d}.npy"
                if path.exists():
                    n_resumed += len(shard)
                    continue
                rows = np.empty((len(shard), self.encoder.dim), dtype=np.float32)
                for first in range(0, len(shard), batch_size):
                    batch = shard[first : first + batch_size]
                    rows[first : first + len(batch)] = self.encoder.encode_batch(
                        self.modality, batch
                    )
                    if progress is not None:
                        progress(start + first + len(batch), n_rows)
                write_whole(path, partial(np.save, arr=rows, allow_pickle=False))
                n_written += 1
        except BaseException:
            if n_written + n_resumed == 0:  # nothing worth keeping
                shutil.rmtree(self.growing, ignore_errors=True)
                _remove_empty(made)
            raise
        return n_resumed


def _describe(
    encoder: Encoder, modality: Modality, items: Sequence[Any], shard_rows: int
) -> dict[str, Any]:
    """Return the content of about.json, which is independent of time and number of runs."""
    from nnnorm.version import __version__

    about: dict[str, Any] = {"model": encoder.name, "normalisation": "unit norm, by nnnorm"}
    about.update(encoder.about)
    about.update(modality=modality, dim=encoder.dim, n_rows=len(items), shard_rows=shard_rows)
    digest = hashlib.sha256()
    if modality == "texts":
        check_texts(items)
        about["n_texts_cut"] = encoder.count_cut(items)
        about["context"] = encoder.context
    elif modality == "images":
        check_images(items)
    else:
        check_sounds(items)
    for item in items:
        line = str(item)
        if modality != "texts":  # a changed file of the same name is another input
            line += f" {Path(item).stat().st_size}" if Path(item).is_file() else " missing"
        digest.update(json.dumps(line).encode() + b"\n")
    about["items_sha256"] = digest.hexdigest()
    about["nnnorm"] = __version__
    # Converted as JSON does, so that it can be compared.
    restored: dict[str, Any] = json.loads(json.dumps(about, ensure_ascii=False))
    return restored


def _check_folder(folder: Path, about: dict[str, Any], resume: bool) -> dict[str, Any]:
    """Return the about.json of existing embeddings, if they can be resumed."""
    is_whole = folder.suffix != ".partial"
    if not (folder / _ABOUT).is_file():
        raise NNNormError(
            f"cannot write {folder}: it exists, and holds no embeddings of "
            "`nnnorm encode`; choose another output"
        )
    if not resume:
        what = "there are embeddings already" if is_whole else "interrupted work is there"
        raise NNNormError(
            f"cannot write {folder}: {what}; resume it with --resume, choose another output, "
            "or remove it"
        )
    try:
        found: dict[str, Any] = json.loads((folder / _ABOUT).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise NNNormError(
            f"cannot resume {folder}: its {_ABOUT} can't be read; remove the folder"
        ) from error
    must_agree = dict(_MUST_AGREE)
    if about.get("weights_sha256") is None:  # with a hash, the model may have been moved
        must_agree["model"] = "another model"
    for key, words in must_agree.items():
        if found.get(key) != about.get(key):
            ours, theirs = (str(part.get(key))[:60] for part in (about, found))
            raise NNNormError(
                f"cannot resume {folder}: it was made with {words} ({key} {theirs}; now "
                f"{ours}); choose another output, or remove it"
            )
    return found


def _begin(growing: Path, about: dict[str, Any], items: Sequence[Any]) -> list[Path]:
    """Create the folder of the work in progress, together with its about.json or not at all.

    Return the parent folders that were created for it, innermost first.
    """
    names = "".join(json.dumps(str(item), ensure_ascii=False) + "\n" for item in items)
    lines = names.encode("utf-8", "surrogateescape")  # a file name may hold any bytes
    starting = growing.with_suffix(".starting")
    made = [folder for folder in growing.parents if not folder.exists()]
    try:
        make_folder(growing.parent)
        shutil.rmtree(starting, ignore_errors=True)
        make_folder(starting)
        write_whole(starting / _ITEMS, lambda file: file.write(lines))
        text = json.dumps(about, indent=2, ensure_ascii=False) + "\n"
        write_whole(starting / _ABOUT, lambda file: file.write(text.encode("utf-8")))
        os.rename(starting, growing)
    except BaseException:
        shutil.rmtree(starting, ignore_errors=True)
        _remove_empty(made)
        raise
    return made


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
