"""Options of engines: frozen dataclasses, given by keyword or in a URL's query."""

import operator
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from nnnorm.errors import NNNormError

_O = TypeVar("_O", bound="Options")
_BOUNDS = (0, 2**31 - 1)


def whole(default: int, at_least: int = 1, at_most: int = _BOUNDS[1]) -> Any:
    """Declare an option that is a whole number within bounds."""
    return field(default=default, metadata={"bounds": (at_least, at_most)})


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base class of the options of an engine."""


def make_options(kind: type[_O], engine: str, given: Mapping[str, Any]) -> _O:
    """Make options from keywords, or raise one sentence about the first that is wrong."""
    types, known = get_type_hints(kind), {one.name: one for one in fields(kind)}
    for name, value in given.items():
        if name not in known:
            has = ", ".join(known) or "no options"
            raise NNNormError(f"{engine} has no option {name!r}; it has {has}")
        _check(engine, name, value, types[name], known[name].metadata.get("bounds", _BOUNDS))
    return kind(**given)


def parse_options(kind: type[Options], given: Mapping[str, str]) -> dict[str, Any]:
    """Convert the options of a URL from text; unknown ones are left to `make_options`."""
    types, parsed = get_type_hints(kind), dict[str, Any](given)
    for name, text in given.items():
        if types.get(name) is int:
            try:
                parsed[name] = int(text)
            except ValueError:
                raise NNNormError(
                    f"the option {name} must be a whole number; got {text!r}"
                ) from None
        elif types.get(name) is bool:
            if text not in ("true", "false"):
                raise NNNormError(f"the option {name} must be true or false; got {text!r}")
            parsed[name] = text == "true"
    return parsed


def _check(engine: str, name: str, value: Any, kind: Any, bounds: tuple[int, int]) -> None:
    expected = ""
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            expected = f"one of {', '.join(map(str, get_args(kind)))}"
    elif kind is int:
        try:
            is_wrong = isinstance(value, bool) or not (
                bounds[0] <= operator.index(value) <= bounds[1]
            )
        except TypeError:
            is_wrong = True
        expected = "a whole number from {} to {}".format(*bounds) if is_wrong else ""
    elif not isinstance(value, kind):
        expected = {bool: "true or false", str: "text"}[kind]
    if expected:
        raise NNNormError(f"the option {name} of {engine} must be {expected}; got {value!r:.60}")
