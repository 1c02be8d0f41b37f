"""Parts: the values of consecutive rows of a gallery, a file each, and what is there of them.

A part and its entry of the manifest are one file, which is written whole or not at all, so that
they can't disagree, and processes that know nothing of each other never write to the same file. It
holds no time and no name of a machine: computed again, it is the same bytes.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Gate
from nnnorm.errors import NNNormError
from nnnorm.io import (
    Place,
    Share,
    check_entries,
    damaged,
    fetched,
    load_record,
    save_at,
    save_record,
)

FloatArray: TypeAlias = npt.NDArray[np.float32]

MAKER = "nnnorm fit --shard"
_NAME = re.compile(r"part-(\d+)-of-(\d+)\.safetensors")
_KINDS = {"job": str, "shard": list, "rows": list, "n_gates": int}


class Best(NamedTuple):
    """The best item of every row of a bank among some items.

    Attributes
    ----------
    scores : ndarray, shape (n_bank,), float32
    items : ndarray, shape (n_bank,), int64
        Row numbers in the gallery.
    """

    scores: FloatArray
    items: npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Part:
    """Values of some items.

    Attributes
    ----------
    values : ndarray, shape (n_rows,), float32
    gates : tuple of ndarray, each of shape (n_rows,)
        The share of every gate in the bias, for gated methods.
    best : tuple of Best
        For gated methods, per gate: from these the activation set of the whole gallery follows.
    """

    values: FloatArray
    gates: tuple[FloatArray, ...] = ()
    best: tuple[Best, ...] = field(default=())

    def __len__(self) -> int:
        return len(self.values)


class Entry(NamedTuple):
    """An entry of the manifest: which rows a part has, and of which job.

    Attributes
    ----------
    place : Path or RemotePath
    share : Share
    rows : (int, int)
        First and last.
    job : str
        Fingerprint of the job.
    """

    place: Place
    share: Share
    rows: tuple[int, int]
    job: str


def part_place(folder: Place, share: Share) -> Place:
    """The file of a share.

    Examples
    --------
    >>> from pathlib import Path
    >>> part_place(Path("job"), Share(3, 16)).name
    'part-00003-of-00016.safetensors'
    """
    return folder / f"part-{share.number:05}-of-{share.n_shares:05}.safetensors"


def find_parts(folder: Place) -> list[tuple[Share, Place]]:
    """The parts of a folder, by their numbers; they are not read.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> find_parts(Path(tempfile.mkdtemp()))
    []
    """
    found = []
    for place in folder.iterdir():
        if match := _NAME.fullmatch(place.name):
            found.append((Share(int(match[1]), int(match[2])), place))
    return sorted(found, key=lambda one: (one[0].n_shares, one[0].number))


def save_part(folder: Place, share: Share, part: Part, rows: tuple[int, int], job: str) -> None:
    """Write a part, whole or not at all.

    Parameters
    ----------
    folder : Path or RemotePath
    share : Share
    part : Part
    rows : (int, int)
        First and last.
    job : str
        Fingerprint of the job.

    Examples
    --------
    >>> from pathlib import Path
    >>> save_part(Path("."), Share(1, 2), Part(np.zeros(3, np.float32)), (0, 3), "a job")
    >>> load_part(Path("."), Share(1, 2))[0].rows
    (0, 3)
    """
    arrays: dict[str, npt.NDArray[Any]] = {"values": part.values}
    for number, (values, best) in enumerate(zip(part.gates, part.best, strict=True)):
        arrays[f"gate.{number}.values"] = values
        arrays[f"gate.{number}.scores"] = best.scores
        arrays[f"gate.{number}.items"] = best.items
    about = {"job": job, "shard": list(share), "rows": list(rows), "n_gates": len(part.gates)}
    save_at(part_place(folder, share), lambda path: save_record(path, "part", arrays, about))


def load_part(folder: Place, share: Share) -> tuple[Entry, Part]:
    """Read a part and its entry; raise where it is damaged.

    Examples
    --------
    >>> from pathlib import Path
    >>> load_part(Path("."), Share(9, 9))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no part file part-00009-of-00009.safetensors; ...
    """
    place = part_place(folder, share)
    with fetched(place) as path:
        arrays, about = load_record(path, "part", MAKER)
    try:
        check_entries(about, _KINDS)
        first, last = (int(row) for row in about["rows"])
        numbers = range(about["n_gates"])
        part = Part(
            arrays["values"],
            tuple(arrays[f"gate.{number}.values"] for number in numbers),
            tuple(
                Best(arrays[f"gate.{number}.scores"], arrays[f"gate.{number}.items"])
                for number in numbers
            ),
        )
        if part.values.shape != (last - first,) or Share(*about["shard"]) != share:
            raise ValueError("its numbers are not those of its name")
        return Entry(place, share, (first, last), about["job"]), part
    except (KeyError, TypeError, ValueError) as error:
        raise damaged(place, "part", MAKER, error) from error


def join_parts(
    parts: Iterable[tuple[Entry, Part]], n_rows: int
) -> tuple[FloatArray, tuple[Gate, ...]]:
    """Join parts that have every row once.

    Parameters
    ----------
    parts : iterable of (Entry, Part)
        In the order of rows.
    n_rows : int
        Of the gallery.

    Returns
    -------
    values : ndarray, shape (n_rows,), float32
    gates : tuple of Gate

    Examples
    --------
    >>> from pathlib import Path
    >>> entries = [Entry(Path("a"), Share(n, 2), (n - 1, n), "a job") for n in (1, 2)]
    >>> parts = [Part(np.float32([0.25])), Part(np.float32([0.5]))]
    >>> join_parts(zip(entries, parts), 2)[0].tolist()
    [0.25, 0.5]
    """
    values = np.empty(n_rows, dtype=np.float32)
    shares: list[FloatArray] = []
    best: list[Best] = []
    for entry, part in parts:
        rows = slice(*entry.rows)
        values[rows] = part.values
        if not best:
            shares = [np.empty(n_rows, dtype=np.float32) for _ in part.gates]
            best = list(part.best)
        for number, (share, found) in enumerate(zip(part.gates, part.best, strict=True)):
            shares[number][rows] = share
            best[number] = _better(best[number], found)
    return values, tuple(_open_gate(*gate) for gate in zip(shares, best, strict=True))


def _better(first: Best, second: Best) -> Best:
    """The better of both for every row of the bank; ties go to the first, whose rows are lower."""
    is_later = second.scores > first.scores
    return Best(
        np.where(is_later, second.scores, first.scores),
        np.where(is_later, second.items, first.items),
    )


def _open_gate(values: FloatArray, best: Best) -> Gate:
    active = np.zeros(len(values), dtype=bool)
    active[best.items] = True
    return Gate(values, active)


def check_rows(entries: Iterable[Entry], n_rows: int, job: str) -> None:
    """Raise unless the parts are of this job and have every row exactly once.

    Parameters
    ----------
    entries : iterable of Entry
        In the order of rows.
    n_rows : int
        Of the gallery.
    job : str
        Fingerprint of the job.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_rows([Entry(Path("part"), Share(1, 2), (0, 3), "a job")], 6, "a job")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: rows 3 to 5 are in no part; ...
    """
    done, before = 0, ""
    for entry in entries:
        name = entry.place.name
        if entry.job != job:
            raise NNNormError(
                f"{name} is a part of another job (another bank, gallery or setting); remove it "
                f"and run {MAKER} {entry.share} again"
            )
        first, last = entry.rows
        if first < done:
            raise NNNormError(
                f"rows {first} to {min(done, last) - 1} are in both {before} and {name}: the "
                "shards were counted in two ways; remove the parts of one of them"
            )
        if first > done:
            _raise_missing(done, first)
        done, before = last, name
    if done < n_rows:
        _raise_missing(done, n_rows)
    if done > n_rows:
        raise NNNormError(f"{before} has rows up to {done}, but the gallery has {n_rows} rows")


def _raise_missing(first: int, last: int) -> None:
    raise NNNormError(
        f"rows {first} to {last - 1} are in no part; run the missing shards with {MAKER} i/n, "
        "which skips those that are done"
    )


def check_complete(shares: Sequence[Share], folder: Place) -> None:
    """Raise where parts are missing; parts of several counts of shares are left to `check_rows`.

    Parameters
    ----------
    shares : sequence of Share
        Those that have a part.
    folder : Path or RemotePath
        Of the job, for messages.

    Examples
    --------
    >>> from pathlib import Path
    >>> check_complete([Share(1, 2)], Path("job"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: job lacks shard 2/2; run nnnorm fit --shard for each of ...
    """
    if len(counts := {share.n_shares for share in shares}) > 1:
        return
    n_shares = max(counts, default=1)
    there = {share.number for share in shares}
    absent = [number + 1 for number in range(n_shares) if number + 1 not in there]
    if absent:
        raise NNNormError(
            f"{folder} lacks {_list(absent, n_shares)}; run {MAKER} for each of them first, with "
            "the same options"
            if shares
            else f"{folder} holds no parts yet; run {MAKER} i/n for all of n shards"
        )


def _list(numbers: list[int], n_shares: int) -> str:
    shown = ", ".join(f"{number}/{n_shares}" for number in numbers[:5])
    more = f" and {len(numbers) - 5} others" if len(numbers) > 5 else ""
    return f"shard {shown}{more}" if len(numbers) == 1 else f"shards {shown}{more}"
