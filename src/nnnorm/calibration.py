"""`calibrate`: convert confidence to the probability that the first hit is right.

Confidence compares the queries of one search. With a few hundred labels (whether the first hit is
right), a logistic curve converts it to probabilities. Without labels, a calibration only has the
share of queries with a lower confidence. Both are valid for one corrector, weight, gallery and kind
of traffic.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, check_number, warn

FloatArray: TypeAlias = npt.NDArray[np.float64]

_FEWEST = 50  # with fewer labels, the curve depends mostly on chance
_FEWEST_OF_A_KIND = 5
_N_BINS = 10
_N_FOLDS = 5
_RIDGE = 0.1  # keeps the slope finite if confidence separates right from wrong completely
_CLEAR_SLOPE = 2.0  # in standard errors; with a smaller slope, `calibrate` warns


@dataclass(frozen=True)
class Curve:
    """The curve ``1 / (1 + exp(−intercept − slope·confidence))``, and how well it fits.

    Attributes
    ----------
    slope, intercept : float
        The coefficients of the curve.
    n_labels, n_right : int
        Number of labels, and of right first hits among them.
    brier_score : float
        Mean squared difference between probability and label. This and the next two are from 5-fold
        cross-fitting: each label is compared with a curve that was fitted without it.
    calibration_error : float
        Mean difference between probability and share of right first hits, over ten groups.
    bins : tuple of (float, float, int)
        For each group: mean probability, share of right first hits, number of labels.
    """

    slope: float
    intercept: float
    n_labels: int
    n_right: int
    brier_score: float
    calibration_error: float
    bins: tuple[tuple[float, float, int], ...]


@dataclass(frozen=True)
class Calibration:
    """Converts confidence to probabilities and shares; create it with `calibrate`.

    Attributes
    ----------
    quantiles : tuple of float
        The 0 %, 1 %, … 100 % quantiles of the confidence.
    n_queries : int
        Number of queries that the quantiles were measured on.
    curve : Curve or None
        Converts confidence to probability; None without labels.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import calibrate
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.normal(size=400)
    >>> found = calibrate(confidence, rng.random(400) < 1 / (1 + np.exp(-2 * confidence)))
    >>> found.probability([-1, 0, 1]).round(1).tolist()
    [0.1, 0.5, 0.9]
    >>> found.share_below([0.0]).round(1).tolist()
    [0.5]
    """

    quantiles: tuple[float, ...]
    n_queries: int
    curve: Curve | None = None

    def __repr__(self) -> str:
        labels = "without labels" if self.curve is None else f"{self.curve.n_right:,} right"
        low, high = self.quantiles[0], self.quantiles[-1]
        return f"Calibration({self.n_queries:,} queries, {labels}, {low:.4g} to {high:.4g})"

    def probability(self, confidence: npt.ArrayLike) -> FloatArray:
        """Return the probability that the first hit is right, in the shape of `confidence`."""
        curve = self._known_curve()
        given = _open_confidence(confidence)
        if np.isnan(given).any():
            raise NNNormError("confidence must be numbers; got NaN: leave out such queries")
        return _sigmoid(curve.intercept + curve.slope * given)

    def threshold(self, probability: float) -> float:
        """Return the `min_confidence` at which the first hit is right with this probability."""
        curve = self._known_curve()
        if not 0 < check_number("probability", probability) < 1:
            raise NNNormError(f"probability must be between 0 and 1; got {probability!r}")
        if curve.slope <= 0:
            raise NNNormError("confidence doesn't separate right from wrong; pass more labels")
        return (math.log(probability / (1 - probability)) - curve.intercept) / curve.slope

    def quantile(self, share: float) -> float:
        """Return the `min_confidence` that drops this share of the queries."""
        check_number("share", share, 0, 1)
        return float(np.interp(share, _STEPS, self.quantiles))

    def share_below(self, confidence: npt.ArrayLike) -> Any:
        """Return the share of queries with less confidence, in the shape of `confidence`."""
        return np.interp(_open_confidence(confidence), self.quantiles, _STEPS)

    def _known_curve(self) -> Curve:
        if self.curve is None:
            raise NNNormError(
                "a calibration without labels has no probabilities, only shares of queries; pass "
                "is_right to calibrate (--labels)"
            )
        return self.curve

    def to_dict(self) -> dict[str, Any]:
        """Return the calibration as a dictionary that `json.dumps` accepts."""
        return asdict(self)

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Calibration":
        """Create a calibration from the result of `to_dict`."""
        curve = stored["curve"]
        if curve is not None:
            curve = Curve(**{**curve, "bins": tuple(map(tuple, curve["bins"]))})
        return cls(tuple(stored["quantiles"]), stored["n_queries"], curve)


_STEPS = np.linspace(0, 1, 101)


def calibrate(confidence: npt.ArrayLike, is_right: npt.ArrayLike | None = None) -> Calibration:
    """Learn from a sample of queries how likely the first hit is right, given its confidence.

    Use the result to show no hits if the first one is probably wrong: pass
    ``calibration.threshold(0.8)`` to `search` as `min_confidence`. A calibration is valid for one
    corrector, weight, gallery and kind of traffic.

    Parameters
    ----------
    confidence : array, shape (n_queries,)
        `Ranking.confidence` of queries that have hits.
    is_right : array of bool, shape (n_queries,), optional
        Whether the first hit of each query is right. About 300 labels are enough; 50 are the
        minimum. Without labels, the calibration has no probabilities, only shares of queries.

    Returns
    -------
    Calibration

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import calibrate
    >>> rng = np.random.default_rng(0)
    >>> confidence = rng.normal(size=300)
    >>> calibration = calibrate(confidence, confidence + rng.normal(size=300) > 0)
    >>> 0 < calibration.threshold(0.8) < 1.5
    True
    """
    given = _open_confidence(confidence)
    if given.ndim != 1 or not len(given):
        raise NNNormError(f"confidence must be one number per query; got shape {given.shape}")
    if not np.isfinite(given).all():
        raise NNNormError("confidence must be finite; leave out queries without hits")
    quantiles = tuple(np.quantile(given, _STEPS).tolist())
    if is_right is None:
        return Calibration(quantiles, len(given))
    labels = _check_labels(is_right, len(given))
    scale = float(given.std()) if np.ptp(given) else 1.0  # of equal numbers, std may be 1e-17
    x = (given - given.mean()) / scale
    (intercept, slope), error = _fit(x, labels)
    if slope < _CLEAR_SLOPE * error:
        warn(
            f"confidence hardly separates right from wrong first hits in these {len(labels):,} "
            "labels; check that the labels are in the order of the queries, or label more queries"
        )
    held_out = np.empty(len(x))
    fold = np.random.default_rng(0).permutation(len(x)) % _N_FOLDS
    for number in range(_N_FOLDS):
        is_in = fold == number
        (a, b), _ = _fit(x[~is_in], labels[~is_in])
        held_out[is_in] = _sigmoid(a + b * x[is_in])
    bins = bin_probabilities(held_out, labels)
    curve = Curve(
        slope=slope / scale,
        intercept=intercept - slope * float(given.mean()) / scale,
        n_labels=len(labels),
        n_right=int(labels.sum()),
        brier_score=float(((held_out - labels) ** 2).mean()),
        calibration_error=sum(n * abs(mean - share) for mean, share, n in bins) / len(labels),
        bins=bins,
    )
    return Calibration(quantiles, len(given), curve)


def _open_confidence(given: npt.ArrayLike) -> FloatArray:
    try:
        return np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError):
        raise NNNormError(
            f"confidence must be numbers, such as Ranking.confidence; got {type(given).__name__}"
        ) from None


def _check_labels(is_right: npt.ArrayLike, n_queries: int) -> npt.NDArray[np.bool_]:
    given = np.asarray(is_right)
    if given.shape != (n_queries,):
        expected = f"is_right (--labels) must have one label per query, shape ({n_queries},)"
        raise NNNormError(f"{expected}; got {given.shape}: leave out queries without a label")
    if wrong := [label for label in given.tolist() if label not in (0, 1)]:
        raise NNNormError(f"labels must be 1 or 0, or True or False; got {wrong[0]!r:.60}")
    labels = given.astype(bool)
    n_right = int(labels.sum())
    if n_queries < _FEWEST or not _FEWEST_OF_A_KIND <= n_right <= n_queries - _FEWEST_OF_A_KIND:
        raise NNNormError(
            f"a calibration needs at least {_FEWEST} labels, {_FEWEST_OF_A_KIND} of them right and "
            f"{_FEWEST_OF_A_KIND} wrong; got {n_right:,} right and {n_queries - n_right:,} wrong: "
            "label more queries"
        )
    return labels


def _fit(x: FloatArray, labels: npt.NDArray[np.bool_]) -> tuple[tuple[float, float], float]:
    """Fit a logistic regression by Newton's method: (intercept, slope), and the slope's error."""
    design = np.column_stack([np.ones_like(x), x])
    signs = np.where(labels, -1.0, 1.0)

    def loss(weights: FloatArray) -> float:
        errors = np.logaddexp(0, signs * (design @ weights)).sum()
        return float(errors + _RIDGE / 2 * weights @ weights)

    weights = np.zeros(2)
    for _ in range(50):
        found = _sigmoid(design @ weights)
        hessian = (design.T * (found * (1 - found))) @ design + _RIDGE * np.eye(2)
        step = np.linalg.solve(hessian, design.T @ (labels - found) - _RIDGE * weights)
        while loss(weights + step) > loss(weights):  # a full step may go too far
            step /= 2
        weights = weights + step
        if np.abs(step).max() < 1e-9:
            break
    return (float(weights[0]), float(weights[1])), float(np.linalg.inv(hessian)[1, 1] ** 0.5)


def bin_probabilities(
    probabilities: FloatArray, labels: npt.NDArray[np.bool_]
) -> tuple[tuple[float, float, int], ...]:
    """Divide labels by probability into ten groups: mean probability, share of right ones, size."""
    parts = np.array_split(np.argsort(probabilities, kind="stable"), _N_BINS)
    return tuple(
        (float(probabilities[part].mean()), float(labels[part].mean()), len(part)) for part in parts
    )


def _sigmoid(values: FloatArray) -> FloatArray:
    with np.errstate(over="ignore"):
        return np.asarray(1 / (1 + np.exp(-values)))
