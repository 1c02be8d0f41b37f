"""Times of a bank: how long a half-life is, and whether times are of one kind."""

from datetime import timedelta

import numpy as np

from nnnorm.errors import NNNormError
from nnnorm.io import Clock

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}


def read_half_life(value: float | str | timedelta | None, clock: Clock | None) -> float | None:
    """The half-life in the unit of the times, seconds for dates.

    Parameters
    ----------
    value : float, str, timedelta or None
    clock : {"numbers", "dates"} or None
        What the times are.

    Returns
    -------
    float or None

    Examples
    --------
    >>> read_half_life("30d", "dates"), read_half_life(5, "numbers")
    (2592000.0, 5.0)
    """
    if value is None:
        return None
    if clock is None:
        raise NNNormError("half_life needs times (--time); give both or none")
    text = f"{value.total_seconds()}s" if isinstance(value, timedelta) else str(value).strip()
    scale = _UNITS.get(text[-1:])
    try:
        span = float(text if scale is None else text[:-1]) * (scale or 1.0)
    except ValueError:
        span = np.nan
    if not (np.isfinite(span) and span > 0):
        raise NNNormError(
            "half_life must be above 0, a text such as 30d for dates or a number in the unit of "
            f"the times; got {value!r}"
        )
    if clock == "dates" and scale is None:
        raise NNNormError(
            f"half_life needs a unit where times are dates, such as {text}d ({', '.join(_UNITS)}); "
            f"got {value!r}"
        )
    if clock == "numbers" and scale is not None:
        raise NNNormError(
            "half_life must be a number in the unit of the times, as these are numbers and their "
            f"unit is not known; got {value!r}"
        )
    return float(span)


def check_same_clock(given: Clock | None, expected: Clock | None, name: str) -> None:
    """Raise where times are not of the kind that the bank has.

    Examples
    --------
    >>> check_same_clock("dates", "dates", "queries")
    """
    if given == expected:
        return
    words = {None: "no times", "numbers": "times that are numbers", "dates": "dates"}
    raise NNNormError(
        f"{name} has {words[given]}, but the bank has {words[expected]}; time stamps must be of "
        "one kind"
    )
