"""`settle`: what depends on the whole gallery and the whole bank, computed once and stored.

Stored are the rows of the bank that are used, k, α and what the rule measured, the centre, the
lists and the regression of approximate solvers, and the column side of Sinkhorn's plan. All of it
is what `Method.fit` would compute of the same inputs, from the same sample of the gallery.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from nnnorm.bank import Bank, open_gallery_references, open_references
from nnnorm.bias import Bias
from nnnorm.cluster.files import JOB_FILE, save_job
from nnnorm.cluster.gallery import check_gallery, describe_gallery, note_rows
from nnnorm.cluster.job import Job
from nnnorm.copies import Duplicates
from nnnorm.errors import NNNormError, explain_arguments
from nnnorm.io import (
    Embeddings,
    Metric,
    Place,
    Progress,
    Source,
    find_place,
    make_folder,
    open_embeddings,
    peek,
)
from nnnorm.methods import NNN, Method, Statistics, warn_of_mismatch
from nnnorm.scoring import DEFAULT_MEMORY_BUDGET, Products
from nnnorm.solvers import Solver

_LOCK = ".settling"


@explain_arguments
def settle(
    gallery: Source,
    references: Source | Bank,
    method: Method = NNN(),  # noqa: B008 - frozen
    *,
    folder: str | os.PathLike[str],
    gallery_references: Source | None = None,
    duplicates: Duplicates = "drop",
    allow_gallery_rows: bool = False,
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
    references, method, gallery_references, duplicates, allow_gallery_rows, solver, quality, normalize
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
    second = open_gallery_references(gallery_references, **opening)
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
                allow_gallery_rows=allow_gallery_rows,
                solver="exact" if solver in ("auto", "approximate") else solver,
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
    warn_of_mismatch(facts["params"], statistics.n_references, len(items))
    # A bias of no items fills in version and time.
    stamp = Bias(values=np.zeros(1, np.float32), weight=0.0, method=method.name)
    facts |= {"version": stamp.version, "created": stamp.created}
    banks = {"references": scores.columns}
    if statistics.has_gallery_bank and isinstance(statistics.gallery_scores, Products):
        banks["gallery_references"] = statistics.gallery_scores.columns
    arrays = {**found, **note_rows(items, asked["normalize"])}
    about = {
        "asked": dict(asked),
        "settled": settled.to_dict(),
        "solver": "exact" if asked["solver"] in ("auto", "approximate") else asked["solver"],
        "learnt": learnt,
        "facts": facts,
        "gallery": describe_gallery(gallery, peek(gallery, name="gallery")),
    }
    save_job(place, about, arrays, banks)


def _open_bank(references: Source, opening: dict[str, Any]) -> Any:
    """A bank from its file, or past queries."""
    if isinstance(references, (str, os.PathLike)) and Path(references).suffix == ".safetensors":
        return Bank.load(references)
    return open_embeddings(references, name="references", **opening)


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
    check_gallery(gallery, job.about, job.arrays, job.folder)


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
