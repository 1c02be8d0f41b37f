"""The options of an engine: one frozen dataclass each, from which everything else follows.

The keyword arguments of a store, the options of its URL, the messages about a wrong one, the
store's docstring and the table on its page in ``docs/engines/`` all come from the dataclass.
"""

import difflib
import operator
import re
import reprlib
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field, fields
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from nnnorm.errors import ArgumentError, NNNormError

_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}


# A whole number in a URL; longer ones are refused as text.
_WHOLE = re.compile(r"-?[0-9]{1,18}")
# Larger numbers of links, cells or threads make engines fail or exhaust memory.
_LARGEST = 2**20


def option(default: Any, text: str, *, at_least: int = 0, at_most: int = _LARGEST) -> Any:
    """Declare one option: its default, one sentence about it, and the range of a number.

    Engines crash on numbers that they do not expect, so they never see one outside of it.

    Examples
    --------
    >>> @dataclass(frozen=True, kw_only=True)
    ... class Shelf(Options):
    ...     height: int = option(3, "Number of boards.", at_least=1)
    >>> Shelf(height=0)
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: the option height must be a whole number from 1 to 1048576; got 0
    """
    return field(default=default, metadata={"text": text, "range": (at_least, at_most)})


def links(default: int = 16, *, at_most: int = 512) -> Any:
    """Declare the number of links per item of a graph.

    Examples
    --------
    >>> links(32).default
    32
    """
    text = "Links per item in the graph of a new index (HNSW's M)."
    return option(default, text, at_least=2, at_most=at_most)


def ef_construction(default: int = 100, *, at_most: int = 100_000) -> Any:
    """Declare the breadth of the search while a graph is built.

    Examples
    --------
    >>> ef_construction().default
    100
    """
    text = "Candidates considered for each new item while the graph is built."
    return option(default, text, at_least=1, at_most=at_most)


def threads(text: str) -> Any:
    """Declare the number of threads, where 0 means all cores.

    Examples
    --------
    >>> threads("Threads of a search.").default
    0
    """
    return option(0, text, at_most=1024)


def ef(default: int = 128) -> Any:
    """Declare the breadth of a search in a graph.

    Examples
    --------
    >>> ef().default
    128
    """
    return option(default, "Candidates considered by a search of the graph.", at_least=1)


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of all options; values are checked when an instance is made."""

    def __post_init__(self) -> None:
        kinds = get_type_hints(type(self))
        for one in fields(self):
            _check(one.name, getattr(self, one.name), kinds[one.name], one.metadata["range"])


@dataclass(frozen=True)
class TableOptions(Options):
    """Options of an engine whose collections are tables."""

    table: str = option("items", "Name of the table.")


@dataclass(frozen=True)
class ServerOptions(Options):
    """Options of an engine that is a server or a folder with named collections."""

    collection: str = option(
        "", "Name of the collection; `items` where the URL's path does not name it either."
    )
    _: KW_ONLY
    https: bool = option(False, "Use https for a server that is named as `//host:port`.")


_O = TypeVar("_O", bound=Options)


def make_options(
    kind: type[_O], engine: str, given: tuple[Any, ...], named: Mapping[str, Any]
) -> _O:
    """Make options from the arguments of a store; a wrong name is answered with the right ones.

    Examples
    --------
    >>> make_options(TableOptions, "duckdb", ("photos",), {}).table
    'photos'
    >>> make_options(TableOptions, "duckdb", (), {"tabel": "photos"})
    Traceback (most recent call last):
    nnnorm.errors.ArgumentError: duckdb has no option 'tabel'; did you mean 'table'? It has table
    """
    known = [one.name for one in fields(kind)]
    for name in named:
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {near[0]!r}? It" if near else "it"
            raise ArgumentError(
                f"{engine} has no option {name!r}; {hint} has {', '.join(known) or 'none'}"
            )
    try:
        return kind(*given, **named)
    except TypeError as error:  # too many by position, or one of them twice
        by_position = [one.name for one in fields(kind) if not one.kw_only]
        raise ArgumentError(
            f"{engine} takes {' and '.join(['a place', *by_position])} by position; got "
            f"{1 + len(given)} arguments. Give the others by name, once"
        ) from error


def parse_options(kind: type[Options], texts: Mapping[str, str]) -> dict[str, Any]:
    """Read the options of a URL as what they are: a table may be called 2024, ``ef`` is a number.

    Names that are not known, and texts that can't be read, are left for `make_options` to refuse.

    Examples
    --------
    >>> parse_options(ServerOptions, {"collection": "2024", "https": "true"})
    {'collection': '2024', 'https': True}
    """
    kinds = get_type_hints(kind)
    parsed: dict[str, Any] = dict(texts)
    for name, text in texts.items():
        if kinds.get(name) is bool:
            parsed[name] = _BOOLEANS.get(text.lower(), text)
        elif kinds.get(name) is int and _WHOLE.fullmatch(text):
            parsed[name] = int(text)
    return parsed


def options_table(kind: type[Options]) -> str:
    """Write the options as a Markdown table, for the pages in ``docs/engines/``.

    Examples
    --------
    >>> print(options_table(TableOptions))
    | option | values | default | meaning |
    |---|---|---|---|
    | `table` | text | `items` | Name of the table. |
    """
    kinds = get_type_hints(kind)
    lines = ["| option | values | default | meaning |", "|---|---|---|---|"]
    for one in fields(kind):
        values = _values(kinds[one.name], one.metadata["range"])
        default = "" if one.default == "" else f"`{str(one.default).lower()}`"
        lines.append(f"| `{one.name}` | {values} | {default} | {one.metadata['text']} |")
    return "\n".join(lines)


def describe_parameters(kind: type[Options]) -> str:
    """Write the options as the lines of a NumPy docstring.

    Examples
    --------
    >>> print(describe_parameters(TableOptions))
    table : str, default 'items'
        Name of the table.
    """
    kinds = get_type_hints(kind)
    lines = []
    for one in fields(kind):
        choices = get_args(kinds[one.name])
        shown = "{" + ", ".join(map(repr, choices)) + "}" if choices else kinds[one.name].__name__
        lines += [
            f"{one.name} : {shown}, default {one.default!r}",
            f"    {one.metadata['text']}",
        ]
    return "\n".join(lines)


def _values(kind: Any, bounds: tuple[int, int]) -> str:
    if get_origin(kind) is Literal:
        return ", ".join(f"`{choice}`" for choice in get_args(kind))
    if kind is int:
        return "whole number from {} to {}".format(*bounds)
    return "`true`, `false`" if kind is bool else "text"


def _check(name: str, value: Any, kind: Any, bounds: tuple[int, int]) -> None:
    if get_origin(kind) is Literal:
        if value not in get_args(kind):
            choices = ", ".join(get_args(kind))
            raise NNNormError(f"the option {name} must be one of {choices}; got {value!r}")
    elif kind is int:
        try:
            is_wrong = isinstance(value, bool) or not (
                bounds[0] <= operator.index(value) <= bounds[1]
            )
        except TypeError:
            is_wrong = True
        if is_wrong:
            raise NNNormError(
                f"the option {name} must be a {_values(kind, bounds)}; got {reprlib.repr(value)}"
            )
    elif kind is bool and not isinstance(value, bool):
        raise NNNormError(f"the option {name} must be true or false; got {value!r}")
    elif kind is str and not isinstance(value, str):
        raise NNNormError(f"the option {name} must be text; got {value!r}")
