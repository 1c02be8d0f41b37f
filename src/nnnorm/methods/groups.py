"""Mixed galleries: one label per item (photo, text, language, source), and one offset per group.

    b(r) = α·m(r) + offset of r's group
    offset = between·(ḡ − mean of all ḡ) − α·(m̄ − mean of all m̄)

m is the value of an item by the method, and m̄ its mean over the group. ḡ is the group's mean of
m_k without centering. So α is the weight of differences within a group, and `between` the weight
of differences between groups. With ``between=1``, all groups get the same mean score from past
queries.

A group gets an offset if it has at least three items, and if its ḡ is more than three standard
errors from that of all items. Otherwise its offset is 0, as if it had no label. So random labels
change nothing.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, check_number
from nnnorm.scoring import top_means

if TYPE_CHECKING:
    from nnnorm.methods.base import Method, Statistics

FloatArray: TypeAlias = npt.NDArray[np.floating[Any]]
Labels: TypeAlias = npt.NDArray[np.str_]

_FEWEST = 3
_STANDARD_ERRORS = 3.0
# Number of items of a group used to measure its mean and its alpha.
_N_MEANS, _N_ALPHA = 512, 16_384
# Smallest group whose alpha the automatic rule measures, and the number of groups to measure.
_FEWEST_MEASURED, _MOST_MEASURED = 64, 16


class Groups:
    """The labels of a gallery, and the weight of the differences between groups."""

    def __init__(self, labels: Any, n_items: int, between: float = 1.0) -> None:
        self.labels = open_labels(labels, n_items)
        self.between = check_number("between", between)
        self.names, self._codes = np.unique(self.labels, return_inverse=True)
        self._counts = np.bincount(self._codes)
        self._means: dict[int, FloatArray] = {}
        rng = np.random.default_rng(0)
        members = np.split(np.argsort(self._codes, kind="stable"), self._counts.cumsum()[:-1])
        self._members = [np.sort(rng.permutation(rows)[:_N_ALPHA]) for rows in members]
        some = [np.sort(rng.permutation(rows)[:_N_MEANS]) for rows in self._members]
        self._sample = np.concatenate(some)

    def offsets(
        self, method: "Method", values: FloatArray, statistics: "Statistics"
    ) -> dict[str, float]:
        """Return the offset of each group, given the method's values of all items."""
        means, is_own = self._compare(self._plain(method, values, statistics))
        within = np.bincount(self._codes, values) / self._counts
        plain = means - np.average(means, weights=self._counts)
        weighted = method.weight * (within - np.mean(values, dtype=np.float64))
        offsets = np.where(is_own, self.between * plain - weighted, 0.0)
        return dict(zip(self.names.tolist(), offsets.tolist(), strict=True))

    def parts(
        self, reference_k: int, statistics: "Statistics"
    ) -> Iterator[tuple["Statistics", int]]:
        """Yield the statistics and size of each large group; nothing if groups don't differ."""
        if self._compare(self._plain_means(reference_k, statistics))[1].any():
            for number in np.argsort(-self._counts, kind="stable")[:_MOST_MEASURED].tolist():
                if self._counts[number] >= _FEWEST_MEASURED:
                    yield statistics.subset(self._members[number]), int(self._counts[number])

    def _plain(self, method: "Method", values: FloatArray, statistics: "Statistics") -> FloatArray:
        """Return the sample's values without centering."""
        if getattr(method, "center", False) is not True:
            return values[self._sample]
        return self._plain_means(int(getattr(method, "reference_k")), statistics)  # noqa: B009

    def _plain_means(self, reference_k: int, statistics: "Statistics") -> FloatArray:
        if reference_k not in self._means:
            some = statistics.scores.some_rows(self._sample)
            self._means[reference_k] = top_means(some, reference_k)
        return self._means[reference_k]

    def _compare(self, plain: FloatArray) -> tuple[FloatArray, npt.NDArray[np.bool_]]:
        """Return the mean of each group's sample, and whether it differs from all items."""
        codes = self._codes[self._sample]
        sizes = np.bincount(codes)
        means = np.bincount(codes, plain) / sizes
        spread = ((plain - means[codes]) ** 2).sum() / max(1, len(plain) - len(sizes))
        away = np.abs(means - np.average(means, weights=self._counts))
        is_own = away > _STANDARD_ERRORS * np.sqrt(spread / sizes)
        return means, is_own & (self._counts >= _FEWEST)


def open_labels(labels: Any, n_items: int) -> Labels:
    """Return one label per item as text; raise unless there is one per item."""
    # In an object array, a NaN among texts stays; numpy would convert it to the text "nan".
    listed = labels if isinstance(labels, np.ndarray) else np.array(labels, dtype=object)
    if listed.shape != (n_items,):
        got = repr(labels) if isinstance(labels, str) else f"shape {listed.shape}"
        raise NNNormError(f"groups must be one label per item, shape ({n_items},); got {got}")
    if listed.dtype.kind not in "OUSTbiu":
        raise NNNormError(f"groups must be text or whole numbers; got {listed.dtype}")
    plain = listed.tolist()
    for row, label in enumerate(plain):
        if not isinstance(label, (str, int, np.integer)) or label == "":
            raise NNNormError(f"groups must be text or whole numbers; item {row} has {label!r}")
    return np.array([str(label) for label in plain])


def name_groups(groups: Iterable[str]) -> str:
    """Join the names of groups, at most ten."""
    names = list(groups)
    return ", ".join(names[:10]) + (", …" if len(names) > 10 else "")


def offsets_of(labels: Labels, offsets: Mapping[str, float]) -> npt.NDArray[np.float32]:
    """Return the offset of every item, or raise an error if a group is unknown."""
    names, codes = np.unique(labels, return_inverse=True)
    if unknown := [name for name in names.tolist() if name not in offsets]:
        raise NNNormError(
            f"groups must be those that the corrector was fitted with, {name_groups(offsets)}; got "
            f"{unknown[0]!r}: use one of them, or fit again with this group"
        )
    return np.array([offsets[name] for name in names.tolist()], dtype=np.float32)[codes]


def add_offsets(bias: Bias, offsets: Mapping[str, float], labels: Labels) -> Bias:
    """Return the bias plus the offsets of its items' groups, as values with a weight of 1."""
    values = bias.correction + offsets_of(labels, offsets)
    params = {**bias.params, "groups": dict(offsets)}
    return replace(bias, values=values, weight=1.0, params=params)
