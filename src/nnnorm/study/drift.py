"""Drift: whether the bank of a corrector is still like the queries of today.

Three things are measured. *z*: how far bank and queries are from mixing as one source does
(`mismatch_z`). *Agreement*: the correlation of the values that the bank gives with those that
today's queries give, over what it would be without the noise of a few queries. *Hubs*: the share of
hits that go to hubs, uncorrected, corrected, and corrected after a refit. The first two make the
verdict.
"""

import math
import os
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.corrector import Corrector
from nnnorm.dedup import NEAR_COPY, drop_copies, used_rows
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, explain_arguments, quiet, warn
from nnnorm.input_checks import MISMATCH_Z, mismatch_z
from nnnorm.methods import NNN
from nnnorm.ranking import search
from nnnorm.study.hubness import count_occurrences, measure_hubness

Verdict = Literal["fine", "refit soon", "refit now"]
Hits: TypeAlias = npt.NDArray[np.int64]

# For a cron job: 1 and 2 are taken by errors and wrong usage.
EXIT_CODES: dict[Verdict, int] = {"fine": 0, "refit soon": 3, "refit now": 4}
# Own queries stayed below 1.1 (95 % of the draws, 64 and more queries, five real sets), queries of
# which half came from elsewhere had a median of 1.0 to 2.4. Above MISMATCH_Z the bank counts as
# mismatched, and so do queries of which three quarters do.
_SOON_Z = 1.5
# Own queries agreed to 0.7 at least, and Flickr8k's mixed half with COCO's to 0.5 to 0.7; at three
# quarters, 0.25 to 0.45, the correction no longer removes hubs.
_SOON_AGREEMENT, _NOW_AGREEMENT = 0.6, 0.3
# The agreement of fewer queries, or of values this unreliable, is noise.
_LEAST_AGREEING, _LEAST_RELIABLE = 128, 0.2
# With 16 queries z misses a quarter of all mismatched banks, with 32 one in twenty.
_FEW_QUERIES = 32
# Of a longer log so many queries are used, evenly spaced: more would not change a verdict.
_MOST_QUERIES = 4096
# Places that count as a hit; one would be too few to see hubs with some dozen queries.
_PLACES = 10


@dataclass(frozen=True)
class Drift:
    """What today's queries say about a corrector.

    Attributes
    ----------
    verdict : {"fine", "refit soon", "refit now"}
    reasons : tuple of str
        Why it is not fine.
    z : float
        About 0 if the queries come from the source of the bank, above 3 if they do not.
    mean_shift : float
        Distance between the means of queries and bank, over the spread of the bank.
    agreement : float or None
        Between the values that the bank and the queries give by the automatic rule; 1 if they are
        from one source. None where there are too few queries to tell.
    hub_share, hub_share_uncorrected, hub_share_refitted : float or None
        Share of the hits of today's queries that go to items with at least twice the mean number of
        hits: with this corrector, without a correction, and after a refit with these queries
        (fitted on one half of them, counted on the other).
    n_hubs, n_hubs_refitted : int or None
        Number of such items.
    n_queries, n_references, n_items : int
        What this was measured on.
    """

    verdict: Verdict
    reasons: tuple[str, ...]
    z: float
    mean_shift: float
    agreement: float | None
    hub_share: float
    hub_share_uncorrected: float
    hub_share_refitted: float | None
    n_hubs: int
    n_hubs_refitted: int | None
    n_queries: int
    n_references: int
    n_items: int

    @property
    def exit_code(self) -> int:
        """For a cron job: 0 fine, 3 refit soon, 4 refit now."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Ready for JSON.

        Examples
        --------
        >>> Drift("fine", (), 0.1, 0.0, None, 0.2, 0.3, None, 9, None, 64, 99, 40).to_dict()["z"]
        0.1
        """
        return {**asdict(self), "exit_code": self.exit_code}


@explain_arguments
def measure_drift(
    corrector: Corrector | str | os.PathLike[str],
    queries: Source,
    *,
    gallery: Source | None = None,
    seed: int = 0,
) -> Drift:
    """Measure whether a corrector still suits the queries of today.

    Parameters
    ----------
    corrector : Corrector or path
    queries : array or path, shape (n_queries, dim)
        Recent queries, without labels; 64 or more. Those that were among the references say little.
        Copies of one query count once, and fewer than four different ones are refused.
    gallery : array or path, shape (n_gallery, dim), optional
        The items as they are now; by default the sample that the corrector keeps.
    seed : int
        Random seed of the draws.

    Returns
    -------
    Drift

    Examples
    --------
    >>> from nnnorm import load_shapes
    >>> shapes = load_shapes()
    >>> corrector = Corrector.fit(shapes.gallery, shapes.references[::4])
    >>> measure_drift(corrector, shapes.queries[::20]).verdict
    'fine'
    >>> measure_drift(corrector, -shapes.queries[::20]).verdict
    'refit now'
    """
    corrector = _open_corrector(corrector)
    asked = _some(corrector.open(queries, "queries"))
    items = _open_items(corrector, gallery)
    z = _measure_z(corrector, asked, seed)
    old = _bias_of(corrector, items)
    agreement = _agreement(corrector, old, items, asked)
    uncorrected, corrected = (_hits(asked, items, bias) for bias in (None, old))
    refitted = _hits_refitted(corrector, asked, items, seed)
    counts = [
        None if hits is None else count_occurrences(hits, len(items))
        for hits in (corrected, uncorrected, refitted)
    ]
    shares = [None if n is None else measure_hubness(n).hub_occurrence for n in counts]
    hubs = [None if n is None else int((n >= 2 * n.mean()).sum()) for n in counts]
    verdict, reasons = _judge(z, agreement)
    return Drift(
        verdict=verdict,
        reasons=reasons,
        z=z,
        mean_shift=_mean_shift(corrector.bank, asked),
        agreement=agreement,
        hub_share=shares[0] or 0.0,
        hub_share_uncorrected=shares[1] or 0.0,
        hub_share_refitted=shares[2],
        n_hubs=hubs[0] or 0,
        n_hubs_refitted=hubs[2],
        n_queries=len(asked),
        n_references=len(corrector.bank),
        n_items=len(items),
    )


def _judge(z: float, agreement: float | None) -> tuple[Verdict, tuple[str, ...]]:
    agrees = 1.0 if agreement is None else agreement
    reasons = []
    if z > _SOON_Z:
        reasons.append(
            f"the queries do not mix with the bank as those of one source do (z {z:.1f})"
        )
    if agrees < _SOON_AGREEMENT:
        reasons.append(f"their biases agree with those of the bank to {agrees:.2f} only")
    if z > MISMATCH_Z or agrees < _NOW_AGREEMENT:
        return "refit now", tuple(reasons)
    return ("refit soon" if reasons else "fine"), tuple(reasons)


def _measure_z(corrector: Corrector, queries: Embeddings, seed: int) -> float:
    """z, or an error where it can't be measured: no verdict would be "fine" without it."""
    bank = corrector.bank
    z = mismatch_z(bank, queries, seed=seed)
    counts = []
    for rows in (queries, bank):
        with quiet():
            counts.append(len(drop_copies(rows)))
    n_queries, n_references = counts
    if math.isnan(z):
        raise NNNormError(
            f"too few different rows to tell a drift by: {n_queries:,} among the {len(queries):,} "
            f"queries and {n_references:,} among the {len(bank):,} references (rows closer than a "
            f"cosine of {NEAR_COPY} count as one); give {_FEW_QUERIES} or more"
        )
    if n_queries < _FEW_QUERIES:
        what = "queries" if n_queries == len(queries) else "different queries"
        warn(f"{n_queries} {what} are few to tell a drift by; give {_FEW_QUERIES} or more")
    return z


def _agreement(
    corrector: Corrector, old: Bias, items: Embeddings, queries: Embeddings
) -> float | None:
    """Correlation of the values that bank and queries give, without the noise of the queries' own.

    Both are those of the automatic rule, whatever the method is: the values of different methods,
    or of k that are far apart, need not agree.
    """
    if len(queries) < _LEAST_AGREEING:
        return None
    with quiet():
        if corrector.asked != NNN():
            old = NNN().fit(items, corrector.bank, duplicates="keep", allow_gallery_rows=True)
        new = NNN().fit(items, queries, duplicates=corrector.duplicates, allow_gallery_rows=True)
    reliability = float(new.params["reliability"])
    if reliability < _LEAST_RELIABLE or old.values.std() == 0:
        return None
    r = np.corrcoef(old.values, new.values)[0, 1]
    return float(np.clip(r / np.sqrt(reliability), -1, 1))


def _hits(queries: Embeddings, items: Embeddings, bias: Bias | None) -> Hits:
    return search(queries, items, bias, k=min(_PLACES, len(items))).indices


def _hits_refitted(
    corrector: Corrector, queries: Embeddings, items: Embeddings, seed: int
) -> Hits | None:
    """Hits after a refit; each half of the queries is searched with what the other half gave."""
    if len(queries) < _FEW_QUERIES:
        return None
    hits = np.empty((len(queries), min(_PLACES, len(items))), dtype=np.int64)
    halves = np.array_split(np.random.default_rng(seed).permutation(len(queries)), 2)
    for known, asked in (halves, halves[::-1]):
        bank = queries.subset(known)
        if not mismatch_z(corrector.bank, bank) > MISMATCH_Z:
            bank = bank.joined(corrector.bank)
        with quiet():
            bias = _refit(corrector, bank, items)
        hits[asked] = _hits(queries.subset(asked), items, bias)
    return hits


def _refit(corrector: Corrector, bank: Embeddings, items: Embeddings) -> Bias:
    method, used = corrector.asked, drop_copies(bank, corrector.duplicates)
    if (method.needs.reference_k or 0) > len(used):
        method = NNN()
    second = corrector.bank_of_items if method.gallery_bank != "refused" else None
    return method.fit(
        items,
        used_rows(used),
        gallery_references=second,
        duplicates="keep",
        allow_gallery_rows=True,
    )


def _bias_of(corrector: Corrector, items: Embeddings) -> Bias:
    with quiet():
        return corrector.bias_of(items)


def _mean_shift(bank: Embeddings, queries: Embeddings) -> float:
    """Distance of the means over the spread of the bank, less what chance alone gives."""
    rows, asked = (side.rows(0, len(side)).astype(np.float64) for side in (bank, queries))
    spread = ((rows - rows.mean(axis=0)) ** 2).sum(axis=1).mean()
    apart = ((rows.mean(axis=0) - asked.mean(axis=0)) ** 2).sum()
    chance = spread * (1 / len(rows) + 1 / len(asked))
    return float(np.sqrt(max(0.0, apart - chance) / spread)) if spread > 0 else 0.0


def _some(queries: Embeddings) -> Embeddings:
    if len(queries) <= _MOST_QUERIES:
        return queries
    return queries.subset(np.linspace(0, len(queries) - 1, _MOST_QUERIES).astype(np.int64))


def _open_corrector(corrector: Any) -> Corrector:
    if isinstance(corrector, Corrector):
        return corrector
    if not isinstance(corrector, (str, os.PathLike)):
        raise NNNormError(
            "corrector must be a Corrector, or the path of a saved one; got "
            f"{type(corrector).__name__}"
        )
    return Corrector.load(corrector)


def _open_items(corrector: Corrector, gallery: Source | None) -> Embeddings:
    if gallery is not None:
        return corrector.open(gallery, "gallery")
    rows = corrector.sample.astype(np.float32)
    return open_embeddings(rows, name="gallery", normalize=corrector.normalize)
