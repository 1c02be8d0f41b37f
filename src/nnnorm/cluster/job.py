"""`Job`: what is settled once, so that every item can then be valued by itself, anywhere.

`settling` makes one; `gallery`, `files` and `parts` say what is in its folder.
"""

import os
from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import numpy as np

from nnnorm.bias import Bias
from nnnorm.cluster.files import Arrays, load_job
from nnnorm.cluster.gallery import compare_rows
from nnnorm.cluster.parts import (
    Best,
    Part,
    check_complete,
    check_rows,
    find_parts,
    join_parts,
    load_part,
    save_part,
)
from nnnorm.errors import NNNormError
from nnnorm.io import (
    Embeddings,
    Place,
    Progress,
    Share,
    Source,
    find_place,
    open_embeddings,
    open_rows,
)
from nnnorm.methods import Method, Statistics
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products, Scores


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
        >>> from nnnorm import NNN
        >>> from nnnorm.cluster import settle
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
        compare_rows(rows, start, self.about, self.arrays, self.folder)
        return rows

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
        >>> from nnnorm import NNN
        >>> from nnnorm.cluster import settle
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
        >>> from nnnorm import NNN
        >>> from nnnorm.cluster import settle
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
        check_complete(shares, self.folder)
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
        stored = load_job(place)
        return cls(
            folder=place,
            method=stored.method,
            bank=stored.banks["references"],
            gallery_bank=stored.banks.get("gallery_references"),
            arrays=stored.arrays,
            about=stored.about,
            gallery=stored.source if gallery is None else gallery,
        )


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
    >>> from nnnorm import NNN
    >>> from nnnorm.cluster import settle
    >>> rng = np.random.default_rng(0)
    >>> gallery, references = rng.normal(size=(40, 8)), rng.normal(size=(99, 8))
    >>> job = settle(gallery, references, NNN(4, 0.5), folder=tempfile.mkdtemp())
    >>> for number in (2, 1):
    ...     _ = job.work(Share(number, 2))
    >>> merge(job.folder)
    Bias(nnn: 40 items, 99 references, weight=0.5, reference_k=4, n_intents=95)
    """
    return Job.load(folder).merge()


def _read_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    norms = facts["reference_norms"]
    return {**facts, "reference_norms": norms and tuple(norms)}
