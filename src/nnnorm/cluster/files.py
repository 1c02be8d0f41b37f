"""The files of a job: what was settled, and the banks as they are multiplied."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.cluster.parts import MAKER
from nnnorm.errors import NNNormError, first_line
from nnnorm.io import (
    Embeddings,
    Place,
    check_entries,
    check_regular,
    damaged,
    digest_of,
    fetched,
    load_record,
    read_npy,
    save_at,
    save_record,
    write_whole,
)
from nnnorm.methods import Method, make_method

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

JOB_FILE = "job.safetensors"
_BANKS = {"references": "bank.npy", "gallery_references": "gallery-bank.npy"}
_KINDS = {
    "asked": dict,
    "settled": dict,
    "solver": str,
    "learnt": dict,
    "facts": dict,
    "gallery": dict,
    "banks": dict,
    "fingerprint": str,
}


class Stored(NamedTuple):
    """What the files of a job hold.

    Attributes
    ----------
    method : Method
        With the numbers that were settled.
    banks : dict of Embeddings
        By their roles.
    arrays, about : dict
        What the job file holds.
    source : str or None
        Where the gallery was; None where it had no path, or one with a password.
    """

    method: Method
    banks: dict[str, Embeddings]
    arrays: Arrays
    about: dict[str, Any]
    source: str | None


def save_job(
    place: Place, about: Mapping[str, Any], arrays: Arrays, banks: Mapping[str, Embeddings]
) -> None:
    """Write the files of a job, each whole or not at all; the job file comes last.

    Parameters
    ----------
    place : Path or RemotePath
        A folder.
    about, arrays : dict
        What the job file holds.
    banks : dict of Embeddings
        By their roles.

    Examples
    --------
    >>> about = {"asked": {}, "settled": make_method("csls").to_dict(), "solver": "exact"}
    >>> about |= {"learnt": {}, "facts": {}, "gallery": {"n_rows": 3, "source": None}}
    >>> arrays = {"spots.rows": np.arange(3), "spots.sums": np.ones(3)}
    >>> bank = Embeddings([np.eye(3, dtype=np.float32)], name="references")
    >>> save_job(Path("."), about, arrays, {"references": bank})
    >>> load_job(Path(".")).method.name
    'csls'
    """
    digests = {role: _save_bank(place / _BANKS[role], bank) for role, bank in banks.items()}
    kept = json.loads(json.dumps({**about, "banks": digests}))  # as it will be read
    kept["fingerprint"] = _digest(kept, arrays)
    save_at(place / JOB_FILE, lambda path: save_record(path, "job", arrays, kept))


def load_job(place: Place) -> Stored:
    """Read what `save_job` wrote; raise where it is damaged.

    Examples
    --------
    >>> load_job(Path("nowhere"))
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no job in nowhere; start one with: nnnorm fit --shard
    """
    path = place / JOB_FILE
    if not path.exists():
        raise NNNormError(f"there is no job in {place}; start one with: {MAKER}")
    with fetched(path) as copy:
        arrays, about = load_record(copy, "job", MAKER)
    try:
        check_entries(about, _KINDS)
        banks = {
            role: _load_bank(place / _BANKS[role], role, digest)
            for role, digest in about["banks"].items()
        }
        method = make_method(about["settled"]["name"], **about["settled"]["params"])
        stored = Stored(method, banks, arrays, about, about["gallery"]["source"])
        is_whole = "references" in banks and {"spots.rows", "spots.sums"} <= set(arrays)
        is_sound = is_whole and _digest(about, arrays) == about["fingerprint"]
    except NNNormError:
        raise
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise damaged(path, "job", MAKER, error) from error
    if not is_sound:
        raise damaged(path, "job", MAKER, "its numbers are not those that were saved")
    return stored


def _save_bank(place: Place, rows: Embeddings) -> str:
    """Write the rows of a bank as they are multiplied; returns their digest."""
    digest = hashlib.blake2b(digest_size=16)

    def write(file: BinaryIO) -> None:
        header = {"descr": "<f4", "fortran_order": False, "shape": rows.shape}
        np.lib.format.write_array_header_1_0(file, header)  # type: ignore[no-untyped-call,unused-ignore]
        for _, block in rows.blocks():
            values = np.ascontiguousarray(block, dtype="<f4")
            digest.update(values.data)
            file.write(values.data)

    save_at(place, lambda path: write_whole(path, write))
    return digest.hexdigest()


def _load_bank(place: Place, role: str, digest: str) -> Embeddings:
    """Map the rows of a bank that is on this machine, or read it."""
    try:
        if isinstance(place, Path):
            check_regular(place)
            found = np.asarray(np.lib.format.open_memmap(place, mode="r"))  # type: ignore[no-untyped-call,unused-ignore]
        else:
            with fetched(place) as copy:
                found = read_npy(copy)
    except (OSError, ValueError) as error:
        raise NNNormError(
            f"the bank of the job can't be read ({place}: {first_line(error)}); start again in "
            "another folder"
        ) from error
    rows = Embeddings([found], name=role)
    seen = hashlib.blake2b(digest_size=16)
    if is_bank := found.dtype == np.float32 and found.ndim == 2 and found.size > 0:
        for _, block in rows.blocks():
            seen.update(np.ascontiguousarray(block, dtype="<f4").data)
    if not is_bank or seen.hexdigest() != digest:
        raise NNNormError(
            f"{place} is not the bank that the job was settled with; start again in another folder"
        )
    return rows


def _digest(about: Mapping[str, Any], arrays: Arrays) -> str:
    """Of everything that decides values: not of times, versions and paths."""
    facts = {k: v for k, v in about["facts"].items() if k not in ("version", "created")}
    decisive = {name: about[name] for name in ("asked", "settled", "solver", "learnt", "banks")}
    decisive |= {"facts": facts, "n_rows": about["gallery"]["n_rows"]}
    return digest_of(arrays, json.dumps(decisive, sort_keys=True))
