"""The clicks of a refresh: a `Popularity` whose numbers are matched to the items of an index by id.

Numbers without ids have to be those of exactly the items 0…n−1. With ids, items that have none
count 0, and clicks of items that the index does not have are left out; both are warned of.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnnorm.errors import NNNormError, warn
from nnnorm.index.store import Ids, check_ids
from nnnorm.popularity import Popularity


@dataclass(frozen=True, eq=False)
class Clicks:
    """A popularity and the ids that its numbers belong to.

    Attributes
    ----------
    popularity : Popularity
    ids : ndarray, shape (n_clicked,), int64 or str
    are_named : bool
        Whether the ids were given, not counted.
    """

    popularity: Popularity
    ids: Ids
    are_named: bool

    @property
    def weight(self) -> float:
        """What a unit of log(1 + clicks) adds."""
        return self.popularity.weight

    @property
    def fingerprint(self) -> str:
        """Of ids, clicks and weight."""
        numbers = np.asarray(self.popularity.clicks).tolist()
        text = json.dumps([self.ids.tolist(), numbers, self.weight])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def arrange(self, ids: Ids, name: str) -> Popularity:
        """Return the popularity of the items of the collection `name`, in the order of their ids.

        Examples
        --------
        >>> clicks = open_clicks(Popularity([5, 7]), [10, 20])
        >>> clicks.arrange(np.array([20, 10]), "faiss photos.faiss").clicks.tolist()
        [7.0, 5.0]
        """
        row_of = {own: row for row, own in enumerate(self.ids.tolist())}
        wanted = ids.tolist()
        without = [own for own in wanted if own not in row_of]
        n_unknown = len(row_of) - (len(wanted) - len(without))
        if not self.are_named and (without or n_unknown):
            raise NNNormError(
                f"clicks without ids are those of the items 0 to {len(self.ids) - 1}, and {name} "
                f"has {len(wanted):,} items, such as {(without or wanted)[0]!r}; pass ids (--ids), "
                "one per number of clicks"
            )
        if len(without) == len(wanted):
            raise NNNormError(
                f"none of the {len(self.ids):,} ids of the clicks is in {name}: it has ids such as "
                f"{wanted[0]!r}, and the clicks are of ids such as {self.ids[0].item()!r}"
            )
        if without:
            warn(
                f"{len(without):,} of {len(wanted):,} items of {name} have no clicks, such as "
                f"{without[0]!r}; they count 0"
            )
        if n_unknown:
            there = set(wanted)
            stray = next(own for own in row_of if own not in there)
            warn(
                f"{n_unknown:,} of {len(row_of):,} ids of the clicks are not in {name}, such as "
                f"{stray!r}; their clicks are left out"
            )
        given = np.append(np.asarray(self.popularity.clicks, dtype=np.float64), 0.0)
        return Popularity(given[[row_of.get(own, -1) for own in wanted]], self.weight)


def open_clicks(popularity: Any, ids: Any = None) -> Clicks:
    """Check a popularity and the ids of its numbers, by default 0…n−1; at weight 0 none count.

    Examples
    --------
    >>> open_clicks(Popularity([5, 7])).ids.tolist()
    [0, 1]
    >>> open_clicks([5, 7])
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: popularity must be a Popularity, such as Popularity(clicks, ...
    """
    if not isinstance(popularity, Popularity):
        raise NNNormError(
            "popularity must be a Popularity, such as Popularity(clicks, weight=0.02); got "
            f"{type(popularity).__name__}"
        )
    n_clicked = len(popularity)
    if ids is None or popularity.weight == 0:
        return Clicks(popularity, np.arange(n_clicked), False)
    return Clicks(popularity, check_ids(ids, n_clicked, name="the clicks"), True)
