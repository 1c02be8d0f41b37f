"""The rows of a bank that stand for one intent each, and the size of a bank in words."""

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from nnnorm.copies.leaders import MOST_INTENTS, Leaders
from nnnorm.copies.near import SAME_INTENT, IntArray, round_rows
from nnnorm.errors import NNNormError, warn
from nnnorm.io import Embeddings, Progress

Duplicates = Literal["drop", "keep"]

# Fewer intents than this, from a bank of which nine in ten rows were copies, may be a model that
# puts all texts close together, and not a log that repeats itself.
_FEW_INTENTS = 32


@dataclass(frozen=True, eq=False)
class Intents:
    """The rows of a bank that stand for one intent each.

    Attributes
    ----------
    embeddings : Embeddings, shape (n_intents, dim)
        One row per intent, in the order of arrival.
    rows : ndarray, shape (n_intents,), int64
        Their row numbers in the bank.
    counts : ndarray, shape (n_intents,), int64
        Number of rows that each stands for, itself included. Rows whose intent was left out because
        of the size limit are not counted.
    n_rows : int
        Number of rows of the whole bank; of a `Bank`, the queries that were not forgotten.
    fingerprint : str
        Of the whole bank.
    """

    embeddings: Embeddings
    rows: IntArray
    counts: IntArray
    n_rows: int
    fingerprint: str

    def __len__(self) -> int:
        return len(self.embeddings)

    @property
    def is_sample(self) -> bool:
        """Whether there were more intents, and these are a random part of them."""
        return int(self.counts.sum()) < self.n_rows


# What a method is fitted on: all rows of a bank, or one per intent.
References: TypeAlias = Embeddings | Intents


def find_intents(
    references: Embeddings,
    *,
    most: int = MOST_INTENTS,
    seed: int = 0,
    progress: Progress | None = None,
) -> Intents:
    """Find one row per intent.

    Parameters
    ----------
    references : Embeddings, shape (n_references, dim)
    most : int
        Number of intents to keep; of more, a random part is kept.
    seed : int
        Random seed of that part.
    progress : callable, optional
        Called with ``(done, total)``.

    Returns
    -------
    Intents

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> log = np.array([[1.0, 0.0], [0.99, 0.14], [0.0, 1.0], [1.0, 0.0]])
    >>> intents = find_intents(open_embeddings(log, name="references"))
    >>> intents.rows.tolist(), intents.counts.tolist()
    ([0, 2], [3, 1])
    """
    leaders = Leaders(references.dim, most=most, seed=seed)
    for start, block in references.blocks():
        leaders.add(round_rows(block))
        if progress is not None:
            progress(start + len(block), len(references))
    rows = leaders.arrivals
    kept = references if len(rows) == len(references) else references.subset(rows)
    return Intents(kept, rows, leaders.counts, len(references), references.fingerprint)


def without_copies(
    references: Embeddings, duplicates: Duplicates = "drop", progress: Progress | None = None
) -> References:
    """Return one row per intent, or with ``duplicates="keep"`` every row.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> len(without_copies(rows)), len(without_copies(rows, "keep"))
    (4, 8)
    """
    check_duplicates(duplicates)
    if duplicates == "keep":
        return references
    intents = find_intents(references, progress=progress)
    warn_of_few_intents(intents)
    return intents


def check_duplicates(duplicates: Duplicates) -> None:
    """Raise for anything but "drop" and "keep".

    Examples
    --------
    >>> check_duplicates("some")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: duplicates must be 'drop' or 'keep'; got 'some'
    """
    if duplicates not in ("drop", "keep"):
        raise NNNormError(f"duplicates must be 'drop' or 'keep'; got {duplicates!r}")


def warn_of_few_intents(intents: Intents) -> None:
    """Warn where so much counts as copies that different queries may be among them.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> warn_of_few_intents(find_intents(open_embeddings(np.eye(4), name="references")))
    """
    if not intents.is_sample and len(intents) < min(_FEW_INTENTS, intents.n_rows / 10):
        warn(
            f"the {intents.n_rows:,} rows of {intents.embeddings.name} are {len(intents):,} "
            f"intents: all others are closer than a cosine of {SAME_INTENT} to one of these and "
            "count as copies; if they are different queries of a model that puts all texts close "
            'together, fit on the queries themselves with duplicates="keep" (--duplicates keep)'
        )


def used_rows(references: References) -> Embeddings:
    """The rows that a method is fitted on.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> len(used_rows(without_copies(rows))), used_rows(rows) is rows
    (4, True)
    """
    return references.embeddings if isinstance(references, Intents) else references


def count_intents(references: References) -> int | None:
    """Number of intents; None where every row is used.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_intents(without_copies(rows)), count_intents(rows)
    (4, None)
    """
    return len(references) if isinstance(references, Intents) else None


def count_references(references: References) -> int:
    """Number of references that were given, copies included.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_references(without_copies(rows)), count_references(rows)
    (8, 8)
    """
    return references.n_rows if isinstance(references, Intents) else len(references)


def is_sample(references: References) -> bool:
    """Whether the rows are a random part of the intents, because there are more than are kept.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> is_sample(find_intents(rows, most=3)), is_sample(without_copies(rows)), is_sample(rows)
    (True, False, False)
    """
    return isinstance(references, Intents) and references.is_sample


def count_params(references: References) -> dict[str, Any]:
    """What the `params` of a bias say of the intents; nothing where every row is used.

    Examples
    --------
    >>> import numpy as np
    >>> from nnnorm import open_embeddings
    >>> rows = open_embeddings(np.eye(4).repeat(2, axis=0), name="references")
    >>> count_params(without_copies(rows)), count_params(find_intents(rows, most=3))
    ({'n_intents': 4}, {'n_intents': 3, 'intents_sampled': True})
    """
    if not isinstance(references, Intents):
        return {}
    return {"n_intents": len(references)} | (
        {"intents_sampled": True} if references.is_sample else {}
    )


def describe_intents(n_intents: int, sampled: bool = False) -> str:
    """A number of intents in words.

    Examples
    --------
    >>> describe_intents(412), describe_intents(8192, sampled=True)
    ('412 intents', '8,192 sampled intents')
    """
    return f"{n_intents:,} {'sampled ' if sampled else ''}intents"


def describe_size(n_references: int, n_intents: int | None, sampled: bool = False) -> str:
    """The size of a bank in words, with the number of intents where that is another.

    Examples
    --------
    >>> describe_size(6000, 412), describe_size(57, 57)
    ('6,000 references (412 intents)', '57 references')
    """
    size = f"{n_references:,} references"
    if n_intents is None or n_intents == n_references:
        return size
    return f"{size} ({describe_intents(n_intents, sampled)})"
