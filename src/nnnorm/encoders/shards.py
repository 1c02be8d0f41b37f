"""Embeddings written to disk in shards, so that long work can be interrupted and resumed.

    OUT/img_emb.partial/    in progress: finished shards, about.json, items.jsonl
    OUT/img_emb/            complete: img_emb_00000.npy, …, about.json, items.jsonl

The folder gets its final name in one step at the end, so that incomplete embeddings can't be
mistaken for complete ones. Every shard is encoded independently, so that resumed work gives the
same result bit for bit (with the same batch size; another one changes the last bits). So does work
that several processes share: each encodes every n-th shard, and the last one renames the folder.
"""

import hashlib
import json
import os
import shutil
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.encoders.containers import Stored
from nnnorm.encoders.encoder import Encoder, Modality, check_texts
from nnnorm.encoders.images import check_images
from nnnorm.encoders.pipeline import BatchRunner, prepare_ahead
from nnnorm.encoders.sounds import check_sounds
from nnnorm.errors import NNNormError
from nnnorm.io import Progress, Share, make_folder, write_whole

_FOLDERS: dict[Modality, str] = {"images": "img_emb", "texts": "text_emb", "audio": "audio_emb"}
_ABOUT, _ITEMS, _IDS = "about.json", "items.jsonl", "ids.txt"
# Entries that must agree for work to be resumed; the others follow from these.
_MUST_AGREE = {
    "revision": "another revision",
    "weights_sha256": "other weights",
    "preprocessing": "another preprocessing",
    "dim": "another dim",
    "dtype": "another dtype",
    "items_sha256": "other inputs",
    "contents_sha256": "files of other contents",
}
# Bytes of a file that are read to notice a change under the same name and size: pages spread evenly
# over it. A change of compressed data changes all that follows it.
_N_PAGES, _PAGE = 4, 4096


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
    n_missing : int
        Number of rows that other processes have yet to encode; 0 if the folder is complete.
    seconds, model_seconds : float
        Time of the encoding, and the part of it that was spent in the model.
    """

    folder: Path
    about: dict[str, Any]
    n_resumed: int
    n_missing: int = 0
    seconds: float = 0.0
    model_seconds: float = 0.0


def encode_to_folder(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: str | os.PathLike[str],
    *,
    batch_size: int = 32,
    shard_rows: int = 1024,
    resume: bool = False,
    ids: Sequence[str] | None = None,
    share: Share | None = None,
    progress: Progress | None = None,
) -> Encoded:
    """Encode a list of images, texts or sounds into a folder of shards.

    Parameters
    ----------
    encoder : Encoder
        From `load_encoder`, or a subclass of your own.
    modality : {"images", "texts", "audio"}
    items : sequence of paths, of texts, or of members of tar files
        One row each, in this order.
    output : str or PathLike
        The folder in which ``img_emb``, ``text_emb`` or ``audio_emb`` is created; it is created
        with its parents if needed.
    batch_size : int
        Items per forward pass; halved where it does not fit into memory.
    shard_rows : int
        Rows per file, which is the most that an interruption can lose.
    resume : bool
        Resume interrupted work; complete embeddings are left as they are.
    ids : sequence of str, optional
        One per item, written to ``ids.txt``.
    share : Share, optional
        The part of the work that this process does; other processes do the others, with the same
        inputs and output.
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
    options: Any = {"shard_rows": shard_rows, "resume": resume, "ids": ids, "share": share}
    plan = plan_encoding(encoder, modality, items, output, **options)
    return plan.run(batch_size=batch_size, progress=progress)


def plan_encoding(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: str | os.PathLike[str],
    *,
    shard_rows: int = 1024,
    resume: bool = False,
    ids: Sequence[str] | None = None,
    share: Share | None = None,
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
    share = share or Share(1, 1)
    about = _describe(encoder, modality, items, shard_rows)
    for place in (folder, growing):
        if place.exists():
            # Other processes of the same work may have begun.
            joins = share.n_shares > 1 and place is growing and not resume
            about = _join_folder(place, about) if joins else _check_folder(place, about, resume)
            break
    plan = Plan(encoder, modality, items, folder, growing, about, ids, share)
    if not folder.exists():
        _check_items(modality, [item for _, rows in plan.shards() for item in items[rows]])
    return plan


@dataclass(frozen=True)
class Plan:
    """Checked inputs, and the folder into which they are encoded. Made by `plan_encoding`."""

    encoder: Encoder
    modality: Modality
    items: Sequence[Any]
    folder: Path
    growing: Path
    about: dict[str, Any]
    ids: Sequence[str] | None
    share: Share

    def run(self, *, batch_size: int = 32, progress: Progress | None = None) -> Encoded:
        """Encode the missing shards, and give the folder its final name once all are there."""
        if batch_size < 1:
            raise NNNormError(f"batch_size must be 1 or more; got {batch_size}")
        # Another process may have made a folder since this work was planned.
        if self.folder.exists():
            _check_folder(self.folder, self.about, resume=True)
            return Encoded(self.folder, self.about, len(self.items))
        made: list[Path] = []
        if self.growing.exists():
            _join_folder(self.growing, self.about)
        else:
            made = self._begin()
        if self.share.n_shares == 1:
            self._remove_strays()
        began = time.perf_counter()
        n_resumed, model_seconds = self._fill(batch_size, progress, made)
        seconds = time.perf_counter() - began
        n_missing = self._finish()
        folder = self.growing if n_missing else self.folder
        return Encoded(folder, self.about, n_resumed, n_missing, seconds, model_seconds)

    def shards(self, share: Share | None = None) -> Iterator[tuple[Path, slice]]:
        """Yield the file and the rows of every shard of this process (or of another share)."""
        number, count = share or self.share
        step = int(self.about["shard_rows"])
        for place, start in enumerate(range(0, len(self.items), step)):
            if place % count == number - 1:
                path = self.growing / f"{_FOLDERS[self.modality]}_{place:05d}.npy"
                yield path, slice(start, min(start + step, len(self.items)))

    def _fill(
        self, batch_size: int, progress: Progress | None, made: Sequence[Path]
    ) -> tuple[int, float]:
        """Encode the missing shards of this process.

        Return the number of rows that existed already, and the seconds in the model. An
        interruption before the first shard is complete leaves nothing, and removes `made`.
        """
        shards = list(self.shards())
        missing = [(path, rows) for path, rows in shards if not path.exists()]
        n_rows = sum(rows.stop - rows.start for _, rows in shards)
        n_resumed = done = n_rows - sum(rows.stop - rows.start for _, rows in missing)
        model = BatchRunner(self.encoder, self.modality)
        try:
            with closing(self._batches(missing, batch_size)) as ahead:
                for path, rows in missing:
                    block = np.empty((rows.stop - rows.start, self.encoder.dim), dtype=np.float32)
                    filled = 0
                    while filled < len(block):
                        for part in model.run(next(ahead)):
                            block[filled : filled + len(part)] = part
                            filled += len(part)
                        if progress is not None:
                            progress(done + filled, n_rows)
                    write_whole(path, partial(np.save, arr=block, allow_pickle=False))
                    done += filled
        except BaseException:
            if done == 0 and self.share.n_shares == 1:  # nothing worth keeping
                shutil.rmtree(self.growing, ignore_errors=True)
                _remove_empty(made)
            raise
        return n_resumed, model.seconds

    def _batches(
        self, missing: Sequence[tuple[Path, slice]], batch_size: int
    ) -> Generator[list[Any], None, None]:
        """Yield the prepared batches of some shards; no batch belongs to two."""
        batches = [
            (start, min(start + batch_size, rows.stop))
            for _, rows in missing
            for start in range(rows.start, rows.stop, batch_size)
        ]
        return prepare_ahead(self.encoder, self.modality, self.items, batches)

    def _finish(self) -> int:
        """Rename the folder if all shards are there; else return the number of missing rows."""
        everything = self.shards(Share(1, 1))
        n_missing = sum(rows.stop - rows.start for path, rows in everything if not path.exists())
        if self.folder.exists():  # another process was quicker
            return 0
        if n_missing:
            return n_missing
        self._remove_strays()
        try:
            os.rename(self.growing, self.folder)
        except FileNotFoundError:
            if not self.folder.exists():
                raise
        return 0

    def _remove_strays(self) -> None:
        for stray in self.growing.glob(".nnnorm-*.tmp"):  # unfinished files of a killed process
            stray.unlink(missing_ok=True)

    def _begin(self) -> list[Path]:
        """Create the folder of the work in progress, together with its about.json or not at all.

        Return the parent folders that were created for it, innermost first.
        """
        starting = self.growing.with_suffix(".starting")
        if self.share.n_shares > 1:
            starting = starting.with_suffix(f".starting-{self.share.number}")
        made = [folder for folder in self.growing.parents if not folder.exists()]
        try:
            make_folder(self.growing.parent)
            shutil.rmtree(starting, ignore_errors=True)
            make_folder(starting)
            self._describe_to(starting)
            try:
                os.rename(starting, self.growing)
            except OSError:
                if self.share.n_shares == 1 or not (self.growing / _ABOUT).is_file():
                    raise
                shutil.rmtree(starting)  # another process of the same work was quicker
                _join_folder(self.growing, self.about)
        except BaseException:
            shutil.rmtree(starting, ignore_errors=True)
            _remove_empty(made)
            raise
        return made

    def _describe_to(self, folder: Path) -> None:
        names = "".join(json.dumps(str(item), ensure_ascii=False) + "\n" for item in self.items)
        lines = names.encode("utf-8", "surrogateescape")  # a file name may hold any bytes
        write_whole(folder / _ITEMS, lambda file: file.write(lines))
        if self.ids is not None:
            ids = "".join(f"{one}\n" for one in self.ids).encode("utf-8", "surrogateescape")
            write_whole(folder / _IDS, lambda file: file.write(ids))
        text = json.dumps(self.about, indent=2, ensure_ascii=False) + "\n"
        write_whole(folder / _ABOUT, lambda file: file.write(text.encode("utf-8")))


def _describe(
    encoder: Encoder, modality: Modality, items: Sequence[Any], shard_rows: int
) -> dict[str, Any]:
    """Return the content of about.json, which is independent of time and number of runs."""
    from nnnorm.version import __version__

    about: dict[str, Any] = {"model": encoder.name, "normalisation": "unit norm, by nnnorm"}
    about.update(encoder.about)
    about.update(modality=modality, dim=encoder.dim, n_rows=len(items), shard_rows=shard_rows)
    if modality == "texts":
        check_texts(items)
        about["n_texts_cut"] = encoder.count_cut(items)
        about["context"] = encoder.context
    about["items_sha256"] = digest_items(modality, items)
    if modality != "texts":
        about["contents_sha256"] = digest_contents(items)
    about["nnnorm"] = __version__
    # Converted as JSON does, so that it can be compared.
    restored: dict[str, Any] = json.loads(json.dumps(about, ensure_ascii=False))
    return restored


def digest_items(modality: Modality, items: Sequence[Any]) -> str:
    """Return a SHA-256 of the texts, or of the names and sizes of the files.

    Examples
    --------
    >>> digest_items("texts", ["a cat"]) == digest_items("texts", ["a dog"])
    False
    """
    digest = hashlib.sha256()
    for item in items:
        line = str(item)
        if isinstance(item, Stored):
            line += f" {item.size}"
        elif modality != "texts":  # a changed file of the same name is another input
            line += f" {Path(item).stat().st_size}" if Path(item).is_file() else " missing"
        digest.update(json.dumps(line).encode() + b"\n")
    return digest.hexdigest()


def digest_contents(items: Sequence[Any]) -> str:
    r"""Return a SHA-256 of pages of files or members of tar files; missing files are left out.

    Examples
    --------
    >>> digest_contents([]) == digest_contents(["nowhere.png", "a\0name.png"])
    True
    """
    digest = hashlib.sha256()
    for item in items:
        path, start, size = item, 0, None
        if isinstance(item, Stored):
            path, start, size = item.container, item.start, item.size
        if not Path(path).is_file():  # a pipe might never end, and a name may be no name of a file
            continue
        with suppress(OSError), open(path, "rb", buffering=0) as file:
            last = max(0, (os.fstat(file.fileno()).st_size if size is None else size) - _PAGE)
            for place in sorted({last * number // (_N_PAGES - 1) for number in range(_N_PAGES)}):
                file.seek(start + place)
                digest.update(file.read(_PAGE if size is None else min(size, _PAGE)))
    return digest.hexdigest()


def _check_items(modality: Modality, items: Sequence[Any]) -> None:
    """Check the headers of the files that this process will open."""
    if modality == "images":
        check_images(items)
    elif modality == "audio":
        check_sounds(items)


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
        default = "float32" if key == "dtype" else None  # earlier versions knew no other
        ours, theirs = (str(part.get(key, default))[:60] for part in (about, found))
        if key == "contents_sha256" and key not in found:  # made by an earlier version
            continue
        if found.get(key, default) != about.get(key, default):
            raise NNNormError(
                f"cannot resume {folder}: it was made with {words} ({key} {theirs}; now "
                f"{ours}); choose another output, or remove it"
            )
    return found


def _join_folder(folder: Path, about: dict[str, Any]) -> dict[str, Any]:
    """Return the about.json of work that another process began, if it has the same shards."""
    found = _check_folder(folder, about, resume=True)
    if found["shard_rows"] != about["shard_rows"]:
        raise NNNormError(
            f"cannot share {folder}: another process began it with --shard-rows "
            f"{found['shard_rows']}; got {about['shard_rows']}; give all processes the same"
        )
    return found


def _remove_empty(folders: Sequence[Path]) -> None:
    """Remove the folders that are empty."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()
