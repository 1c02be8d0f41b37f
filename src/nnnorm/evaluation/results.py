"""`Record`, the base of all results, and `Interval`: clustered, paired bootstrap intervals.

Captions of one image aren't independent, so whole clusters are resampled. Two corrections are
compared on the same resamples: the interval is that of the mean difference per query. Clusters with
equal sums (five captions have 0 to 5 hits) are drawn together, by one multinomial. The distribution
is the same, and it takes milliseconds instead of minutes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from html import escape
from typing import Any, ClassVar, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, require

FloatArray: TypeAlias = npt.NDArray[np.float64]
_MANY_KINDS = 512
_DRAWS_AT_ONCE = 2**22
_N_FOLDS = 5


class Record:
    """Base class of results, which are dataclasses; fields with ``repr=False`` aren't exported."""

    # The field with the rows of the table; if empty, the result is one row.
    _rows: ClassVar[str] = ""

    def to_dict(self) -> dict[str, Any]:
        """Return all fields by name, ready for JSON."""
        parts = fields(self)  # type: ignore[arg-type]  # every subclass is a dataclass
        return {part.name: _plain(getattr(self, part.name)) for part in parts if part.repr}

    def _repr_html_(self) -> str:
        """Return the text of `print`, for notebooks."""
        return f"<pre>{escape(str(self))}</pre>"

    def to_pandas(self) -> Any:
        """Return the result as a `pandas.DataFrame`; nested fields are named ``a.b``."""
        found = self.to_dict()
        return require("pandas", "pandas").json_normalize(found.get(self._rows, found))


def _plain(value: Any) -> Any:
    if isinstance(value, Record):
        return value.to_dict()
    if isinstance(value, Mapping):
        return {name: _plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    return value.tolist() if isinstance(value, np.ndarray | np.generic) else value


@dataclass(frozen=True)
class Interval(Record):
    """A mean with its 95 % percentile interval; differences have a two-sided p-value."""

    mean: float
    low: float
    high: float
    p_value: float | None = None

    @property
    def includes_zero(self) -> bool:
        """Whether the interval includes zero."""
        return self.low <= 0 <= self.high

    def show(self, digits: int = 2, scale: float = 100, *, sign: str = "+") -> str:
        """Return the mean and its interval in points: ``+1.08 [0.40, 1.76]``."""
        # Adding 0 turns −0.00 into 0.00.
        ends = self.mean, self.low, self.high
        mean, low, high = (round(scale * end, digits) + 0.0 for end in ends)
        text = f"{mean:{sign}.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
        return text.replace("-", "−")


def interval_of_mean(
    values: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Compute the interval of the mean over queries; queries of a cluster stay together."""
    per_query = np.asarray(values, dtype=np.float64)
    low, high = np.percentile(_resample(per_query, clusters, n_resamples, seed), [2.5, 97.5])
    return Interval(float(per_query.mean()), float(low), float(high))


def interval_of_difference(
    values: npt.ArrayLike,
    baseline: npt.ArrayLike,
    clusters: npt.ArrayLike | None = None,
    *,
    n_resamples: int = 10_000,
    seed: int = 0,
) -> Interval:
    """Compute the paired interval of ``mean(values − baseline)`` over the same queries."""
    difference = np.subtract(values, baseline, dtype=np.float64)
    means = _resample(difference, clusters, n_resamples, seed)
    low, high = np.percentile(means, [2.5, 97.5])
    rarer = min((means <= 0).sum(), (means >= 0).sum())
    p_value = min(1.0, 2 * (float(rarer) + 1) / (n_resamples + 1))
    return Interval(float(difference.mean()), float(low), float(high), p_value)


def binomial_half_width(proportion: float, n_queries: int) -> float:
    """Compute the ± of the paper, ``1.96·sqrt(p(1 − p)/n)``, as if queries were independent."""
    return float(1.96 * np.sqrt(proportion * (1 - proportion) / n_queries))


def is_near(best: npt.ArrayLike, other: npt.ArrayLike, clusters: npt.NDArray[Any]) -> bool:
    """Whether `other` is within one clustered, paired standard error of `best`."""
    difference = np.subtract(best, other, dtype=np.float64)
    mean = difference.mean()
    _, members = np.unique(clusters, return_inverse=True)
    deviations = np.bincount(members, weights=difference - mean)
    n_clusters = len(deviations)
    error = np.sqrt((deviations**2).sum() * n_clusters / max(1, n_clusters - 1)) / len(difference)
    # If only one cluster differs, mean and error are equal, whatever the rounding.
    return bool(mean <= error * (1 + 1e-6))


def split_folds(clusters: npt.NDArray[Any], *, seed: int = 0) -> npt.NDArray[np.int64]:
    """Assign each query to one of five folds at random; queries of a cluster stay together."""
    labels, members = np.unique(clusters, return_inverse=True)
    order = np.random.default_rng(seed).permutation(len(labels))
    fold_of_label = np.empty(len(labels), dtype=np.int64)
    fold_of_label[order] = np.arange(len(labels)) % min(_N_FOLDS, len(labels))
    return fold_of_label[members]


def _resample(
    values: FloatArray, clusters: npt.ArrayLike | None, n_resamples: int, seed: int
) -> FloatArray:
    """Return the means of resampled queries, shape ``(n_resamples,)``."""
    numbers = np.arange(len(values)) if clusters is None else np.asarray(clusters)
    if values.ndim != 1 or numbers.shape != values.shape or not np.isfinite(values).all():
        raise NNNormError(
            "values and clusters must have one finite number per query; got "
            f"{values.shape} and {numbers.shape}"
        )
    _, members, sizes = np.unique(numbers, return_inverse=True, return_counts=True)
    sums = np.bincount(members, weights=values)
    if len(sums) < 2:
        raise NNNormError("an interval needs queries that ask for at least two different items")
    rng = np.random.default_rng(seed)
    kinds, times = np.unique(np.stack([sums, sizes], axis=1), axis=0, return_counts=True)
    if len(kinds) <= _MANY_KINDS:
        drawn = rng.multinomial(len(sums), times / len(sums), size=n_resamples) @ kinds
        return np.asarray(drawn[:, 0] / drawn[:, 1])
    means = np.empty(n_resamples)
    step = max(1, _DRAWS_AT_ONCE // len(sums))
    for part in np.split(means, range(step, n_resamples, step)):
        draws = rng.integers(0, len(sums), size=(len(part), len(sums)), dtype=np.int32)
        part[:] = sums[draws].sum(axis=1) / sizes[draws].sum(axis=1)
    return means
