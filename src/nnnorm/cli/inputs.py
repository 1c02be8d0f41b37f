"""Inputs other than embeddings: groups, and settings as NAME=VALUE."""

from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import typer

from nnnorm.cli.options import MEANT
from nnnorm.errors import NNNormError
from nnnorm.tables import TABLE_SUFFIXES, read_column, read_ids


def read_groups(given: Path | None) -> Any:
    """Read a label per item, from a file or from a column of a table (TABLE:COLUMN)."""
    if given is None:
        return None
    table, column = split_column(given)
    is_table = table.suffix in TABLE_SUFFIXES and table.is_file()
    return read_column(table, column) if is_table else read_ids(given, "groups")


def split_column(given: Path) -> tuple[Path, str | None]:
    """Split TABLE:COLUMN into a path and a column; an existing path has no column."""
    table, _, column = str(given).rpartition(":")
    if given.exists() or not (table and column and Path(table).exists()):
        return given, None
    return Path(table), column


def read_settings(pairs: Sequence[str] | None, **others: str | None) -> dict[str, Any]:
    """Read settings from NAME=VALUE pairs and from options, as numbers, booleans or text."""
    found = {name: _read_value(text) for name, text in others.items() if text is not None}
    for pair in pairs or ():
        name, equals, text = pair.partition("=")
        if not (name and equals and text):
            raise typer.BadParameter(
                f"expected NAME=VALUE, such as center=true; got {pair!r}", param_hint="--set"
            )
        if name in found:
            raise typer.BadParameter(f"{name} is given twice; keep one", param_hint="--set")
        found[name] = _read_value(text)
    return found


def check_settings(given: Mapping[str, Any], command: str, known: Collection[str]) -> None:
    """Raise an error for a setting that a command doesn't have."""
    for name in given.keys() - known:
        meant = "".join(f"; use {one}" for one in MEANT.get(name, ()) if one in known)
        raise NNNormError(f"{command} takes --set {', '.join(known)}; got {name!r}{meant}")


def _read_value(text: str) -> Any:
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    for kind in (int, float):
        with suppress(ValueError):
            return kind(text)
    return text
