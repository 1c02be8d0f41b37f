"""`Job`: what is settled once, so that every item can then be valued by itself, anywhere.

Stored are the rows of the bank that are used, k, α and what the rule measured, the centre, the
lists and the regression of approximate solvers, and the column side of Sinkhorn's plan. All of it
is what `Method.fit` would compute of the same inputs, from the same sample of the gallery.
"""

import hashlib
import json
import os
from collections.abc import Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from nnnorm.bank import Bank, open_references
from nnnorm.bias import Bias
from nnnorm.cluster.parts import (
    MAKER,
    Best,
    Part,
    check_rows,
    find_parts,
    join_parts,
    load_part,
    save_part,
)
from nnnorm.copies import Duplicates
from nnnorm.errors import NNNormError, explain_arguments, first_line
from nnnorm.io import (
    Embeddings,
    Metric,
    Place,
    Progress,
    RemotePath,
    Share,
    Source,
    check_entries,
    check_regular,
    damaged,
    digest_of,
    fetched,
    find_place,
    list_files,
    load_record,
    make_folder,
    open_embeddings,
    open_rows,
    peek,
    read_npy,
    save_at,
    save_record,
    stamp_of,
    write_whole,
)
from nnnorm.means import Solver
from nnnorm.methods import NNN, Method, Statistics, make_method, warn_of_narrow_bank
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores

Arrays: TypeAlias = dict[str, npt.NDArray[Any]]

JOB_FILE, _LOCK = "job.safetensors", ".settling"
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
# Rows of the gallery that are compared: a worker compares those of its share.
_N_SPOTS = 4096
# Of a row's norm: rows that another machine normalised differ in the last bits of float32.
_SPOT_ERROR = 1e-5


@dataclass(frozen=True)
class Worked:
    """What `Job.work` did.

    Attributes
    ----------
    share : Share
    rows : (int, int)
        First and last row.
    is_new : bool
        Whether it was computed; False where it was there.
    n_left : int
        Number of shares that have no part yet.
    """

    share: Share
    rows: tuple[int, int]
    is_new: bool
    n_left: int


@dataclass(frozen=True, eq=False)
class Job:
    """A fit that is settled and may be computed in parts; made by `settle` or `Job.load`.

    Attributes
    ----------
    folder : Path or RemotePath
        Where the job and its parts are.
    method : Method
        With the numbers that were settled.
    bank, gallery_bank : Embeddings or None
        The rows that are used, as they are multiplied.
    arrays, about : dict
        What the job file holds.
    gallery : array or path
        The items; None where they have no path, or one with a password, and the job was loaded.
    """

    folder: Place
    method: Method
    bank: Embeddings
    gallery_bank: Embeddings | None
    arrays: Arrays
    about: dict[str, Any]
    gallery: Source = None

    # --- what it is --------------------------------------------------------------------------

    def __repr__(self) -> str:
        return (
            f"Job({self.method.name}, {self.n_gallery:,} items, {len(self.bank):,} references of "
            f"{self.bank.dim} dimensions, {self.folder})"
        )

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in vars(self).items() if name != "known"}
        if not isinstance(self.gallery, (str, os.PathLike)):
            state["gallery"] = None  # rows in memory do not travel with the job
        return state

    @property
    def fingerprint(self) -> str:
        """Of everything that decides values; parts of equal fingerprints may be joined."""
        return str(self.about["fingerprint"])

    @property
    def n_gallery(self) -> int:
        """Number of rows of the gallery."""
        return int(self.about["gallery"]["n_rows"])

    @property
    def normalized(self) -> bool:
        """Whether rows are divided by their norms."""
        return bool(self.about["asked"]["normalize"])

    @cached_property
    def known(self) -> dict[int, dict[Hashable, Any]]:
        """What `recall` found last, by its memory budget."""
        return {}

    def recall(self, memory_budget: int) -> dict[Hashable, Any]:
        """What was learnt of the whole gallery, for the statistics of single items."""
        if memory_budget not in self.known:
            self.known.clear()
            found = self.method.recall(
                self.arrays, self.about["learnt"], self.bank, memory_budget=memory_budget
            )
            self.known[memory_budget] = found
        return self.known[memory_budget]

    # --- values ------------------------------------------------------------------------------

    def value(
        self,
        rows: Source,
        *,
        first_row: int | None = None,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Part:
        """Value some items, as `Method.fit` values them in the whole gallery.

        Parameters
        ----------
        rows : array, path or Embeddings, shape (n_rows, dim)
        first_row : int, optional
            Number of the first row in the gallery, where these are consecutive rows of it. Needed
            by gated methods, and by solvers that are not exact for the items they learnt from.
        memory_budget : int
            Bytes to use beyond the inputs and the result. A bank that is larger is read in blocks,
            and the best of every block are merged exactly.
        progress : callable, optional
            Called with ``(done, total)``.

        Returns
        -------
        Part

        Examples
        --------
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> job = settle(gallery, references, NNN(4, 0.5), folder=tempfile.mkdtemp())
        >>> whole = NNN(4, 0.5).fit(gallery, references).values
        >>> bool(np.allclose(job.value(gallery[10:20]).values, whole[10:20]))
        True
        """
        items = rows
        if not isinstance(rows, Embeddings):
            items = open_embeddings(
                rows, name="gallery", normalize=self.normalized, fingerprint=False
            )
        if items.dim != self.bank.dim:
            raise NNNormError(
                f"{items.name} and the bank of the job must share dim; got {items.dim} and "
                f"{self.bank.dim}. Were they encoded by different models?"
            )
        budget: Any = {"memory_budget": memory_budget}

        def bank_scores(_: Any) -> Scores:
            return Products(items, cast(Embeddings, self.gallery_bank), **budget)

        statistics = Statistics(
            Products(items, self.bank, **budget),
            None if self.gallery_bank is None else bank_scores,
            known=self.recall(memory_budget),
            solver=self.about["solver"],
            first_row=first_row,
            progress=progress,
            **budget,
        )
        values = np.asarray(self.method.values(statistics), dtype=np.float32)
        best = [statistics.best_items(bank) for bank in self.method.gated_by]
        return Part(
            values,
            tuple(gate.values for gate in self.method.gates(statistics)),
            tuple(Best(b.scores[:, 0], b.indices[:, 0] + (first_row or 0)) for b in best),
        )

    def open_rows(self, start: int, stop: int) -> Embeddings:
        """Open consecutive rows of the gallery; nothing is read of the others.

        They are compared with some rows that were noted when the job was settled.
        """
        if self.gallery is None:
            raise NNNormError(
                f"the gallery of the job {self.folder} was an array or a URL with a password, "
                "which it does not keep; pass it again"
            )
        rows = open_rows(self.gallery, start, stop, name="gallery", normalize=self.normalized)
        self._compare_spots(rows, start)
        return rows

    def _check_gallery(self, gallery: Source) -> None:
        """Raise where a gallery is not the one that the job was settled with.

        Compared are its shape, the sizes of its files, and the rows that were noted. The row groups
        of parquet files would have to be read whole for these, which is left out where no file was
        written since.
        """
        rows = peek(gallery, name="gallery")
        before, now = self.about["gallery"], _describe_gallery(gallery, rows)
        if any(now[name] != before[name] for name in ("n_rows", "dim", "parts")):
            raise NNNormError(
                f"{self.folder} holds a job for a gallery of {self.n_gallery:,} rows of "
                f"{self.bank.dim} dimensions in {len(before['parts'])} files; got {rows.name}, "
                f"{len(rows):,} rows of {rows.dim} in {len(now['parts'])}. Use the same gallery "
                "for all shards, or another folder"
            )
        stamps = list(zip(before.get("files", []), now["files"], strict=False))
        if any(old[0] != new[0] for old, new in stamps):
            raise self._changed(rows)
        is_same = bool(stamps) and all(old == new and None not in new for old, new in stamps)
        if not (is_same and now["packed"]):
            self._compare_spots(rows, 0)

    def _compare_spots(self, rows: Embeddings, start: int) -> None:
        """Compare the noted rows among consecutive rows of the gallery."""
        places = self.arrays["spots.rows"]
        is_here = (places >= start) & (places < start + len(rows))
        found, norms = _take_spots(rows, places[is_here] - start, self.normalized)
        # Written so that a NaN, or an infinity, is a change too.
        if not (np.abs(found - self.arrays["spots.sums"][is_here]) <= _SPOT_ERROR * norms).all():
            raise self._changed(rows)

    def _changed(self, rows: Embeddings) -> NNNormError:
        return NNNormError(
            f"{rows.name} has changed since the job in {self.folder} was settled; remove that "
            "folder, or start again in another one"
        )

    # --- parts -------------------------------------------------------------------------------

    def work(
        self,
        share: Share,
        *,
        memory_budget: int = DEFAULT_MEMORY_BUDGET,
        progress: Progress | None = None,
    ) -> Worked:
        """Value the rows of one share and write its part; one that is there is left as it is.

        Examples
        --------
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> job = settle(gallery, references, NNN(4, 0.5), folder=tempfile.mkdtemp())
        >>> job.work(Share(1, 3)).rows, job.work(Share(1, 3)).is_new
        ((0, 13), False)
        """
        rows = self._rows_of(share)
        there = self._find_parts(share.n_shares)
        is_new = share not in there or not self._is_sound(share)
        if is_new:
            options: Any = {"memory_budget": memory_budget, "progress": progress}
            self.save_part(share, self.value(self.open_rows(*rows), first_row=rows[0], **options))
        return Worked(share, rows, is_new, share.n_shares - len({*there, share}))

    def save_part(self, share: Share, part: Part) -> None:
        """Write the part of a share, whole or not at all."""
        rows = self._rows_of(share)
        if len(part) != rows[1] - rows[0]:
            raise NNNormError(
                f"shard {share} has {rows[1] - rows[0]} rows; got a part of {len(part)}"
            )
        save_part(self.folder, share, part, rows, self.fingerprint)

    def missing(self, n_shares: int) -> list[Share]:
        """The shares that have no part yet, or a damaged one.

        Examples
        --------
        >>> import tempfile
        >>> rng = np.random.default_rng(0)
        >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
        >>> job = settle(gallery, references, NNN(4, 0.5), folder=tempfile.mkdtemp())
        >>> _ = job.work(Share(2, 3))
        >>> job.missing(3)
        [Share(number=1, n_shares=3), Share(number=3, n_shares=3)]
        """
        done = {share for share in self._find_parts(n_shares) if self._is_sound(share)}
        every = [Share(number + 1, n_shares) for number in range(n_shares)]
        return [share for share in every if share not in done]

    def _find_parts(self, n_shares: int) -> list[Share]:
        """The shares that have a part, by its name; raise where they were counted otherwise."""
        there = [share for share, _ in find_parts(self.folder)]
        others = {share.n_shares for share in there} - {n_shares}
        if others:
            raise NNNormError(
                f"{self.folder} holds parts of {min(others)} shards; got {n_shares}: use that "
                "number, or another folder"
            )
        return there

    @property
    def begun(self) -> int | None:
        """Number of shards of the parts that are there; None where there are none."""
        return max((share.n_shares for share, _ in find_parts(self.folder)), default=None)

    def _is_sound(self, share: Share) -> bool:
        try:
            entry, _ = load_part(self.folder, share)
        except (NNNormError, FileNotFoundError):
            return False  # computed again
        return entry.job == self.fingerprint and entry.rows == self._rows_of(share)

    def _rows_of(self, share: Share) -> tuple[int, int]:
        if share.n_shares > self.n_gallery:
            raise NNNormError(
                f"the gallery has {self.n_gallery:,} rows, too few for {share.n_shares:,} shards; "
                "use fewer"
            )
        return share.rows(self.n_gallery)

    def merge(self) -> Bias:
        """Join the parts; raise unless every row is there exactly once."""
        shares = [share for share, _ in find_parts(self.folder)]
        if len(counts := {share.n_shares for share in shares}) < 2:
            n_shares = max(counts, default=1)
            there = {share.number for share in shares}
            absent = [number + 1 for number in range(n_shares) if number + 1 not in there]
            if absent:
                raise NNNormError(
                    f"{self.folder} lacks {_list(absent, n_shares)}; run {MAKER} for each of them "
                    "first, with the same options"
                    if shares
                    else f"{self.folder} holds no parts yet; run {MAKER} i/n for all of n shards"
                )
        entries = sorted((load_part(self.folder, one)[0] for one in shares), key=lambda e: e.rows)
        check_rows(entries, self.n_gallery, self.fingerprint)
        parts = (load_part(self.folder, entry.share) for entry in entries)
        values, gates = join_parts(parts, self.n_gallery)
        return Bias(values=values, gates=gates, **_read_facts(self.about["facts"]))

    # --- files -------------------------------------------------------------------------------

    @classmethod
    def load(cls, folder: str | os.PathLike[str], gallery: Source = None) -> "Job":
        """Read a job that `settle` wrote; its gallery is not read.

        Parameters
        ----------
        folder : str or PathLike
            A folder or a URL.
        gallery : array or path, optional
            Where the gallery is, if not where it was.

        Examples
        --------
        >>> Job.load("nowhere")
        Traceback (most recent call last):
        nnnorm.errors.NNNormError: there is no job in nowhere; start one with: nnnorm fit --shard
        """
        place = find_place(folder)
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
            job = cls(
                folder=place,
                method=make_method(about["settled"]["name"], **about["settled"]["params"]),
                bank=banks["references"],
                gallery_bank=banks.get("gallery_references"),
                arrays=arrays,
                about=about,
                gallery=about["gallery"]["source"] if gallery is None else gallery,
            )
            spots = arrays["spots.rows"], arrays["spots.sums"]
            is_sound = _digest(about, arrays) == about["fingerprint"] and len(spots) == 2
        except NNNormError:
            raise
        except (KeyError, TypeError, ValueError, IndexError) as error:
            raise damaged(path, "job", MAKER, error) from error
        if not is_sound:
            raise damaged(path, "job", MAKER, "its numbers are not those that were saved")
        return job


def merge(folder: str | os.PathLike[str]) -> Bias:
    """Join the parts of a job to the bias of its gallery.

    Parameters
    ----------
    folder : str or PathLike
        A folder or a URL, with the job and all of its parts.

    Returns
    -------
    Bias
        Equal to that of `Method.fit` on the whole gallery.

    Examples
    --------
    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
    >>> job = settle(gallery, references, NNN(4, 0.5), folder=tempfile.mkdtemp())
    >>> for number in (2, 1):
    ...     _ = job.work(Share(number, 2))
    >>> merge(job.folder)
    Bias(nnn: 40 items, 99 references, weight=0.5, reference_k=4, n_intents=95)
    """
    return Job.load(folder).merge()


@explain_arguments
def settle(
    gallery: Source,
    references: Source | Bank,
    method: Method = NNN(),  # noqa: B008 - frozen
    *,
    folder: str | os.PathLike[str],
    gallery_references: Source | None = None,
    duplicates: Duplicates = "drop",
    own_rows: bool = False,
    solver: Solver = "auto",
    quality: int | None = None,
    normalize: bool | None = None,
    metric: Metric = "ip",
    memory_budget: int = DEFAULT_MEMORY_BUDGET,
    progress: Progress | None = None,
) -> Job:
    """Settle what depends on the whole gallery and the whole bank, or load it where it is settled.

    Parameters
    ----------
    gallery : array or path, shape (n_gallery, dim)
        A file, a folder of shards, a pattern such as ``"shards/*.npy"``, or a URL. It is read
        from beginning to end, by the process that settles the job.
    references, method, gallery_references, duplicates, own_rows, solver, quality, normalize
        As in `Method.fit`. The solver "auto" is "exact" here: which of two exact ways is faster is
        a matter of the machine, and all shards must be computed in one way.
    folder : str or PathLike
        A folder or a URL for the job and its parts. If it holds a job already, that must be of the
        same gallery, references and settings.
    metric : {"ip", "cosine"}
        As in `open_embeddings`.
    memory_budget : int
        Bytes to use beyond the inputs and the result.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Job

    Examples
    --------
    >>> import tempfile
    >>> rng = np.random.default_rng(0)
    >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
    >>> settle(gallery, references, folder=tempfile.mkdtemp())
    Job(nnn, 40 items, 95 references of 8 dimensions, ...)
    """
    place = find_place(folder)
    if isinstance(place, Path):
        make_folder(place)
    opening: Any = {"normalize": normalize, "metric": metric}
    past = references
    if not isinstance(references, (Bank, Embeddings)):
        past = _open_bank(references, opening)
    second = None
    if gallery_references is not None:
        second = open_embeddings(gallery_references, name="gallery_references", **opening)
    asked = {
        "method": method.to_dict(),
        "solver": solver,
        "quality": quality,
        "duplicates": duplicates,
        "normalize": bool(normalize) or getattr(gallery, "normalized", False) is True,
    }
    with _only_one(place):
        if not (place / JOB_FILE).exists():
            items = open_embeddings(gallery, name="gallery", **opening)
            statistics = method.open(
                items,
                past,
                gallery_references=second,
                duplicates=duplicates,
                own_rows=own_rows,
                solver="exact" if solver == "auto" else solver,
                quality=quality,
                normalize=normalize,
                memory_budget=memory_budget,
                progress=progress,
            )
            _settle(place, method, statistics, asked, gallery)
    # Behind a URL another process may have written its own in the meantime.
    job = Job.load(place, gallery)
    _check_same(job, asked, gallery, past, second, normalize)
    return job


def _settle(
    place: Place, method: Method, statistics: Statistics, asked: Mapping[str, Any], gallery: Source
) -> None:
    items, scores = statistics.gallery, statistics.scores
    if items is None or not isinstance(scores, Products):
        raise NNNormError("a job needs embeddings; got ready scores")
    settled, chosen = method.settle(statistics)
    found, learnt = settled.learn(statistics)
    facts = settled.facts(statistics, chosen, learnt if method.uses_means else {})
    warn_of_narrow_bank(facts["params"], len(items))
    # A bias of no items fills in version and time.
    stamp = Bias(values=np.zeros(1, np.float32), weight=0.0, method=method.name)
    facts |= {"version": stamp.version, "created": stamp.created}
    banks = {"references": scores.columns}
    if statistics.has_gallery_bank and isinstance(statistics.gallery_scores, Products):
        banks["gallery_references"] = statistics.gallery_scores.columns
    spots = np.unique(np.linspace(0, len(items) - 1, _N_SPOTS).astype(np.int64))
    sums, _ = _take_spots(items, spots, asked["normalize"])
    arrays: Arrays = {**found, "spots.rows": spots, "spots.sums": sums}
    about: dict[str, Any] = {
        "asked": dict(asked),
        "settled": settled.to_dict(),
        "solver": "exact" if asked["solver"] == "auto" else asked["solver"],
        "learnt": learnt,
        "facts": facts,
        "gallery": _describe_gallery(gallery, peek(gallery, name="gallery")),
        "banks": {role: _save_bank(place / _BANKS[role], bank) for role, bank in banks.items()},
    }
    about = json.loads(json.dumps(about))  # as it will be read
    about["fingerprint"] = _digest(about, arrays)
    save_at(place / JOB_FILE, lambda path: save_record(path, "job", arrays, about))


def _open_bank(references: Source, opening: dict[str, Any]) -> Any:
    """A bank from its file, or past queries."""
    if isinstance(references, (str, os.PathLike)) and Path(references).suffix == ".safetensors":
        return Bank.load(references)
    return open_embeddings(references, name="references", **opening)


def _describe_gallery(gallery: Source, rows: Embeddings) -> dict[str, Any]:
    source, files = None, []
    if isinstance(gallery, (str, os.PathLike)):
        place = find_place(gallery)
        files = list_files(place, rows.name)
        source = os.path.abspath(place) if isinstance(place, Path) else os.fspath(place)
        if isinstance(place, RemotePath) and str(place) != source:
            source = None  # passwords are not written down
    return {
        "source": source,
        "n_rows": len(rows),
        "dim": rows.dim,
        "parts": rows.part_sizes,
        "files": [list(stamp_of(file)) for file in files],
        "packed": any(file.suffix == ".parquet" for file in files),
    }


def _check_same(
    job: Job,
    asked: Mapping[str, Any],
    gallery: Source,
    past: Any,
    second: Embeddings | None,
    normalize: bool | None,
) -> None:
    """Raise where a job was settled with other settings, another bank or another gallery."""
    settled = job.about["asked"]
    now = json.loads(json.dumps(asked))
    for name, before in settled.items():
        if now[name] != before:
            shown = (json.dumps(one, ensure_ascii=False) for one in (before, now[name]))
            raise NNNormError(
                f"{job.folder} holds a job with {name} {next(shown)}; got {next(shown)}. Use the "
                "same options for all shards, or another folder"
            )
    prints = job.about["facts"]["fingerprints"]
    banks = {"references": open_references(past, normalize=normalize), "gallery_references": second}
    for role, bank in banks.items():
        if prints.get(role) != (bank and bank.fingerprint):
            raise NNNormError(
                f"{job.folder} holds a job with other {role} than those given; use the same bank "
                "for all shards, or another folder"
            )
    job._check_gallery(gallery)


# --- files ---------------------------------------------------------------------------------------


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


def _read_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    norms = facts["reference_norms"]
    return {**facts, "reference_norms": norms and tuple(norms)}


def _take_spots(
    rows: Embeddings, places: npt.NDArray[np.int64], normalize: bool
) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
    """A number per row that changes with any of its values, and the norm of the row."""
    some = rows.take(places).astype(np.float64)
    norms = np.linalg.norm(some, axis=1)
    if normalize:
        with np.errstate(divide="ignore", invalid="ignore"):  # a row of zeros is a change
            some, norms = some / norms[:, None], np.ones(len(some))
    return some @ np.random.default_rng(0).normal(size=rows.dim), norms


def _list(numbers: list[int], n_shares: int) -> str:
    shown = ", ".join(f"{number}/{n_shares}" for number in numbers[:5])
    more = f" and {len(numbers) - 5} others" if len(numbers) > 5 else ""
    return f"shard {shown}{more}" if len(numbers) == 1 else f"shards {shown}{more}"


@contextmanager
def _only_one(place: Place) -> Iterator[None]:
    """Let one process settle a job while the others wait; it is the same work for each of them."""
    if not isinstance(place, Path):
        yield
        return
    with open(place / _LOCK, "ab") as file:
        try:
            import fcntl

            fcntl.flock(file, fcntl.LOCK_EX)
        except (ImportError, OSError):  # another system, or a file system without locks
            pass
        try:
            yield
        finally:
            # Others may wait for this very file; by now the job is there, or they fail alike.
            with suppress(OSError):
                os.unlink(place / _LOCK)
