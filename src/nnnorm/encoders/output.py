"""Embeddings on disk: one memory-mapped file, so encoding can be interrupted and resumed.

    OUT/img_emb.partial/    in progress: img_emb_0.npy, about.json, and the number of finished rows
    OUT/img_emb/            complete: img_emb_0.npy, about.json, items.jsonl

The folder gets its final name in one step at the end, so incomplete embeddings can't be mistaken
for complete ones. With the same batch size, resumed work gives bitwise equal embeddings.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.arrays import IDS_FILE, check_names
from nnnorm.encoders.encoder import Encoder, Modality, check_texts
from nnnorm.encoders.inputs import Column, check_inputs
from nnnorm.errors import NNNormError
from nnnorm.files import Progress, make_folder, make_mapped, write_whole

_FOLDERS: dict[Modality, str] = {"images": "img_emb", "texts": "text_emb", "audio": "audio_emb"}
_ABOUT, _DONE = "about.json", "finished_rows.txt"
_SAVE_EVERY = 16  # batches


@dataclass(frozen=True)
class Encoded:
    """The result of `encode_to_folder`."""

    folder: Path
    about: dict[str, Any]
    n_resumed: int


def encode_to_folder(
    encoder: Encoder,
    modality: Modality,
    items: Sequence[Any],
    output: str | os.PathLike[str],
    *,
    ids: Sequence[str] | None = None,
    batch_size: int = 32,
    progress: Progress | None = None,
) -> Encoded:
    """Encode a list of images, texts or sounds into a folder, with the ids of its rows."""
    encoder.check_modality(modality)
    if not len(items):
        raise NNNormError(f"there are no {modality} to encode; pass at least one")
    folder = Path(output) / _FOLDERS[modality]
    growing = folder.with_name(f"{folder.name}.partial")
    if ids is None and isinstance(items, Column):
        ids = items.keys()
    about = _describe(encoder, modality, items, ids)
    if folder.exists():
        return Encoded(folder, read_about(folder / _ABOUT, about), len(items))
    if growing.exists():
        about = read_about(growing / _ABOUT, about)
    n_done = int((growing / _DONE).read_text()) if (growing / _DONE).exists() else 0
    # Batches begin at the same rows as before, so the results are bitwise equal.
    n_done -= n_done % batch_size
    if modality != "texts" and isinstance(items, (list, tuple)):
        check_inputs(items[n_done:], modality)
    stream = encoder.stream(modality, items, first=n_done, batch_size=batch_size)
    try:
        path = growing / f"{folder.name}_0.npy"
        if not path.exists():
            _describe_in(make_folder(growing), about, items, ids)
            make_mapped(path, np.float32, (len(items), encoder.dim))
        matrix = np.load(path, mmap_mode="r+")
        for number, (start, rows) in enumerate(stream, 1):
            stop = start + len(rows)
            matrix[start:stop] = rows
            if number % _SAVE_EVERY == 0 or stop == len(items):
                matrix.flush()  # before the rows count as finished
                _write(growing / _DONE, f"{stop}\n")
            if progress is not None:
                progress(stop, len(items))
    except BaseException:
        stream.close()
        if not (growing / _DONE).exists():  # nothing to resume
            shutil.rmtree(growing, ignore_errors=True)
        raise
    del matrix  # Windows can't rename a folder with an open file
    (growing / _DONE).unlink()
    os.rename(growing, folder)
    return Encoded(folder, about, n_done)


def _describe_in(
    folder: Path, about: dict[str, Any], items: Sequence[Any], ids: Sequence[str] | None
) -> None:
    """Write about.json, the names of the inputs, and the ids to a folder."""
    _write(folder / _ABOUT, json.dumps(about, indent=2, ensure_ascii=False) + "\n")
    names = map(str, items) if _are_names(items) else (f"row {n}" for n in range(len(items)))
    _write(folder / "items.jsonl", "".join(f"{json.dumps(name)}\n" for name in names))
    if ids is not None:
        _write(folder / IDS_FILE, "".join(f"{one}\n" for one in ids))


def _describe(
    encoder: Encoder, modality: Modality, items: Sequence[Any], ids: Sequence[str] | None
) -> Any:
    """Return the content of about.json, which is equal for equal work."""
    about = {"model": encoder.name, "normalization": "unit norm, by nnnorm", **encoder.about}
    about |= {"modality": modality, "dim": encoder.dim, "n_rows": len(items)}
    if modality == "texts":
        items = list(items)
        check_texts(items)
        about |= {"n_texts_cut": encoder.count_cut(items), "context": encoder.context}
    about["items_sha256"] = _digest(modality, items)
    if ids is not None:
        check_names(list(ids), len(items), "ids", modality)
        if broken := [one for one in ids if "\n" in one]:
            raise NNNormError(f"an id must be one line of text; got {broken[0]!r:.60}")
        about["ids_sha256"] = _digest("texts", ids)
    return json.loads(json.dumps(about, ensure_ascii=False))


def _digest(modality: Modality, items: Sequence[Any]) -> str:
    """Return a SHA-256 of the texts, or of the names, sizes and times of the files."""
    digest = hashlib.sha256()
    for item in items if _are_names(items) else [str(items)]:
        line = str(item)
        if modality != "texts" and Path(line).is_file():
            stat = os.stat(line)
            line += f" {stat.st_size} {stat.st_mtime_ns}"
        digest.update(json.dumps(line).encode() + b"\n")
    return digest.hexdigest()


def _are_names(items: Sequence[Any]) -> bool:
    return isinstance(items[0], (str, os.PathLike)) and isinstance(items, (list, tuple))


def read_about(path: Path, about: Mapping[str, Any]) -> dict[str, Any]:
    """Read the about.json of existing embeddings; raise an error if they differ from these."""
    try:
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        words = f"cannot write {path.parent}: it exists, but has no {path.name} of `nnnorm encode`"
        raise NNNormError(f"{words}; choose another output") from error
    moves = {"model"} if about.get("weights_sha256") else set()  # a hashed model may move
    for key in about:
        if key not in moves and found.get(key) != about[key]:
            was, now = (str(one.get(key))[:60] for one in (found, about))
            raise NNNormError(
                f"cannot continue {path.parent}, which was made with different "
                f"{key.removesuffix('_sha256')} ({was}; now {now}); choose another output, or "
                "remove it"
            )
    return found


def _write(path: Path, text: str) -> None:
    content = text.encode("utf-8", "surrogateescape")  # a file name may hold any bytes
    write_whole(path, lambda file: file.write(content))
