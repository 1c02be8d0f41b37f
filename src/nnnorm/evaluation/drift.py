"""Drift: whether a corrector's past queries still match today's queries.

*z* measures whether past queries and today's queries come from different sources (`mismatch_z`).
*Agreement* is the correlation of the biases from past queries with those from today's queries,
corrected for noise. The verdict depends on these two. The share of hits that go to hubs is reported
too: uncorrected, corrected, and after a refit.
"""

import math
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.corrector import Correction, Corrector, open_corrector
from nnnorm.dedup import drop_copies
from nnnorm.embeddings import Embeddings, Source, open_embeddings
from nnnorm.errors import NNNormError, quiet
from nnnorm.evaluation.hubness import count_occurrences, measure_hubness, places_to_count
from nnnorm.evaluation.results import Record
from nnnorm.input_checks import MISMATCH_Z, mismatch_z
from nnnorm.methods import NNN
from nnnorm.ranking import describe_scales, search

Verdict = Literal["fine", "refit soon", "refit now"]

# Exit codes of the command; 1 and 2 mean errors and wrong usage.
EXIT_CODES: dict[Verdict, int] = {"fine": 0, "refit soon": 3, "refit now": 4}
# On five real data sets with 64 or more queries, z stayed below 1.1 for matching queries (95 % of
# the draws). If half of the queries came from elsewhere, the median was 1.0 to 2.4. If three
# quarters did, z exceeded MISMATCH_Z, which is the limit of a mismatched bank.
_SOON_Z = 1.5
# Agreement was at least 0.7 for matching queries. On Flickr8k it was 0.5 to 0.7 if half of the
# queries came from COCO. If three quarters did, it was 0.25 to 0.45, and hubs weren't removed.
_SOON_AGREEMENT, _NOW_AGREEMENT = 0.6, 0.3
# With fewer queries or less reliable biases, the agreement is noise.
_LEAST_AGREEING, _LEAST_RELIABLE = 128, 0.2
# With 16 queries, z misses a quarter of all mismatched banks; with 32, one in twenty.
_FEW_QUERIES = 32
# Numbers of queries, evenly spaced in a longer log, that are compared with the bank and searched.
# More wouldn't change a verdict, but the share of hubs depends on the number of searches.
_MOST_COMPARED, _MOST_SEARCHED = 4096, 2**15


@dataclass(frozen=True)
class Drift(Record):
    """How well a corrector matches today's queries."""

    verdict: Verdict
    reasons: tuple[str, ...]
    z: float
    agreement: float | None
    hub_share: float
    hub_share_uncorrected: float
    hub_share_refitted: float
    n_queries: int
    n_references: int
    n_items: int
    k: int  # hits of each query that were counted

    @property
    def exit_code(self) -> int:
        """Exit code for a cron job: 0 fine, 3 refit soon, 4 refit now."""
        return EXIT_CODES[self.verdict]

    def to_dict(self) -> dict[str, Any]:
        """Return all results and the exit code, ready for JSON."""
        return {**super().to_dict(), "exit_code": self.exit_code}


def measure_drift(
    corrector: Correction,
    queries: Source,
    *,
    gallery: Source | None = None,
    groups: npt.ArrayLike | None = None,
) -> Drift:
    """Measure whether a corrector, or its file, still matches today's queries."""
    corrector = open_corrector(corrector)
    given = corrector.open(queries, "queries")
    asked, some = (
        given.subset(np.linspace(0, len(given) - 1, min(len(given), most)).astype(np.int64))
        for most in (_MOST_SEARCHED, _MOST_COMPARED)
    )
    if problem := describe_scales(corrector.bank.norm_range, asked):
        raise NNNormError(problem)
    if gallery is None:
        if groups is not None:
            raise NNNormError("groups are labels of the gallery; pass gallery (--gallery) too")
        rows = corrector.sample.astype(np.float32)
        items = open_embeddings(rows, name="gallery", normalize=corrector.normalize)
        groups = corrector.sample_groups or None
    else:
        items = corrector.open(gallery, "gallery")
    z = _measure_z(corrector.bank, some)
    k = places_to_count(len(asked), len(items))

    def hub_share(*parts: tuple[Embeddings, Bias | None]) -> float:
        """Return the share of hits that go to hubs, if each part is searched with its bias."""
        hits = [search(part, items, bias, k=k).indices for part, bias in parts]
        return measure_hubness(count_occurrences(np.concatenate(hits), len(items))).hub_occurrence

    with quiet():
        old = corrector.bias_for(items, groups=groups)
        agreement = _agreement(corrector, old, items, some)
        # Each half of the queries is searched with the biases from the other half.
        halves = np.array_split(np.random.default_rng(0).permutation(len(asked)), 2)
        known = [asked.subset(half[: _MOST_COMPARED // 2]) for half in halves[::-1]]
        biases = [_refit(corrector, half, items, groups) for half in known]
        refitted = hub_share(*zip(map(asked.subset, halves), biases, strict=True))
    verdict, reasons = _choose_verdict(z, agreement)
    return Drift(
        verdict=verdict,
        reasons=reasons,
        z=z,
        agreement=agreement,
        hub_share=hub_share((asked, old)),
        hub_share_uncorrected=hub_share((asked, None)),
        hub_share_refitted=refitted,
        n_queries=len(asked),
        n_references=corrector.bias.n_references or len(corrector.bank),
        n_items=len(items),
        k=k,
    )


def _choose_verdict(z: float, agreement: float | None) -> tuple[Verdict, tuple[str, ...]]:
    agrees = 1.0 if agreement is None else agreement
    reasons = []
    if z > _SOON_Z:
        reasons.append(f"the queries don't resemble the past queries (z {z:.1f})")
    if agrees < _SOON_AGREEMENT:
        shown = f"agreement {agrees:.2f}".replace("-", "−")
        reasons.append(f"their biases differ from those of the past queries ({shown})")
    if z > MISMATCH_Z or agrees < _NOW_AGREEMENT:
        return "refit now", tuple(reasons)
    return ("refit soon" if reasons else "fine"), tuple(reasons)


def _measure_z(bank: Embeddings, queries: Embeddings) -> float:
    """Compute z, or raise an error: with too few queries, no verdict is possible."""
    z = mismatch_z(bank, queries)
    with quiet():
        n_queries, n_references = len(drop_copies(queries)), len(drop_copies(bank))
    if math.isnan(z) or n_queries < _FEW_QUERIES:
        raise NNNormError(
            f"too few unique queries to measure drift: {n_queries:,} of {len(queries):,}, compared "
            f"with {n_references:,} past ones; pass {_FEW_QUERIES} or more"
        )
    return z


def _agreement(
    corrector: Corrector, old: Bias, items: Embeddings, queries: Embeddings
) -> float | None:
    """Return the correlation of the biases from bank and queries, corrected for noise."""
    if len(queries) < _LEAST_AGREEING:
        return None
    if corrector.asked != NNN() or corrector.groups is not None:
        old = NNN().fit(items, corrector.bank, duplicates="keep", allow_gallery_rows=True)
    new = NNN().fit(items, queries, duplicates=corrector.duplicates, allow_gallery_rows=True)
    reliability = float(new.params["reliability"])
    if reliability < _LEAST_RELIABLE or old.values.std() == 0:
        return None
    r = np.corrcoef(old.values, new.values)[0, 1]
    return float(np.clip(r / np.sqrt(reliability), -1, 1))


def _refit(
    corrector: Corrector, queries: Embeddings, items: Embeddings, groups: npt.ArrayLike | None
) -> Bias:
    bank = queries
    if not mismatch_z(corrector.bank, queries) > MISMATCH_Z:
        bank = queries.joined(corrector.bank)
    method, used = corrector.asked, drop_copies(bank, corrector.duplicates)
    reference_k = getattr(method, "reference_k", 0)
    if reference_k != "auto" and reference_k > len(used):
        method = NNN()
    second = corrector.bank_of_items if method.gallery_bank != "unused" else None
    given: dict[str, Any] = {"groups": groups, "gallery_references": second}
    given["between"] = corrector.bias.params.get("between", 1.0)
    return method.fit(items, used.embeddings, **given, duplicates="keep", allow_gallery_rows=True)
