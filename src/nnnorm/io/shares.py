"""Shares of work among processes that know of each other only how many there are."""

from typing import NamedTuple

from nnnorm.errors import NNNormError


class Share(NamedTuple):
    """The part of the work that this process does: share `number` of `n_shares`, from 1.

    Examples
    --------
    >>> Share.read("2/4")
    Share(number=2, n_shares=4)
    >>> Share.read("0/4")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: a shard is one of 1/n to n/n, such as 2/4; got '0/4'
    """

    number: int
    n_shares: int

    def __str__(self) -> str:
        return f"{self.number}/{self.n_shares}"

    @classmethod
    def read(cls, text: str) -> "Share":
        """Read ``"2/4"``."""
        number, _, count = text.partition("/")
        if number.isdecimal() and count.isdecimal() and 1 <= int(number) <= int(count):
            return cls(int(number), int(count))
        raise NNNormError(f"a shard is one of 1/n to n/n, such as 2/4; got {text!r}")

    def rows(self, n_rows: int) -> tuple[int, int]:
        """First and last row of this share, of rows that are split evenly."""
        return (self.number - 1) * n_rows // self.n_shares, self.number * n_rows // self.n_shares
