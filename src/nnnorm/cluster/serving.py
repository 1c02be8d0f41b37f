"""A bias as sharded parquet, keyed by id: what an engine of any size can join to its own table.

    FOLDER/bias-table.json                     method, weight, fingerprints, names of the shards
    FOLDER/part-00000-of-00016.parquet, …      id (int64 or string), nnnorm_bias (float32)

The values stand in the shards and the weight α in the description, because α belongs to the query:
it changes without any shard being written. Every file is written whole or not at all, and the
description last. `refresh_table` writes only the shards in which an item moved by more than a
tolerance, so that only those need to be joined again.
"""

import itertools
import json
import math
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from nnnorm.bias import Bias
from nnnorm.errors import NNNormError, explain_arguments, first_line, require
from nnnorm.io import check_entries, check_ids, check_local, make_folder, read_json, write_whole

FloatArray: TypeAlias = npt.NDArray[np.float32]
Ids: TypeAlias = npt.NDArray[Any]
Folder: TypeAlias = str | os.PathLike[str]

ID, BIAS = "id", "nnnorm_bias"
_ABOUT = "bias-table.json"
_FORMAT = "nnnorm.bias-table/1"
_FILE = re.compile(r"part-\d{5,}-of-\d{5,}\.parquet")
_KINDS = {"format": str, "weight": float, "method": str, "fingerprints": dict, "shards": list}
_SHARD_KINDS = {"file": str, "n_items": int}


class TableShard(NamedTuple):
    """Ids and values of one shard.

    Attributes
    ----------
    ids : ndarray, shape (n_items,), int64 or str
    values : ndarray, shape (n_items,), float32
    """

    ids: Ids
    values: FloatArray


@dataclass(frozen=True)
class ShardMove:
    """How far the items of one shard moved, in units of the score: α times the change.

    Attributes
    ----------
    file : str
    n_items : int
    largest : float
        Largest change of an item.
    typical : float
        Root mean square of all changes.
    n_moved : int
        Items that moved by more than the tolerance.
    """

    file: str
    n_items: int
    largest: float
    typical: float
    n_moved: int


@dataclass(frozen=True, eq=False)
class BiasTable:
    """A bias in shards on disk. Returned by `write_table` and `open_table`.

    Attributes
    ----------
    folder : Path
    about : mapping
        What `Bias.to_dict` says: method, weight, fingerprints and others.
    files : tuple of str
    sizes : tuple of int
        Number of items of every file.
    """

    folder: Path
    about: Mapping[str, Any]
    files: tuple[str, ...]
    sizes: tuple[int, ...]

    def __len__(self) -> int:
        return sum(self.sizes)

    @property
    def weight(self) -> float:
        """α, for the query side."""
        return float(self.about["weight"])

    def shard(self, number: int) -> TableShard:
        """Read one shard."""
        path = self.folder / self.files[number]
        parquet = require("pyarrow.parquet", "parquet")
        try:
            table = parquet.read_table(path, columns=[ID, BIAS])
            ids = np.array(table.column(ID).to_pylist())
            values = table.column(BIAS).to_numpy().astype(np.float32, copy=False)
        except (OSError, ValueError, KeyError) as error:
            raise NNNormError(
                f"{path} can't be read as a shard of a bias ({first_line(error)}); write the table "
                "again"
            ) from error
        if len(values) != self.sizes[number] or not np.isfinite(values).all():
            raise NNNormError(
                f"{path} must have {self.sizes[number]:,} finite values, got {len(values):,} rows; "
                "write the table again"
            )
        return TableShard(ids, values)

    def shards(self) -> Iterator[TableShard]:
        """Read all shards, one after the other."""
        return map(self.shard, range(len(self.files)))


@explain_arguments
def write_table(
    bias: Bias, folder: Folder, *, ids: Any = None, n_shards: int | None = None
) -> BiasTable:
    """Write a bias as sharded parquet, keyed by id.

    Parameters
    ----------
    bias : Bias
        Without gates.
    folder : path
        Made if it is not there.
    ids : sequence of int or str, shape (n_gallery,), optional
        One per item, by default 0…n−1.
    n_shards : int, optional
        Number of files, by default one per million items.

    Returns
    -------
    BiasTable

    Examples
    --------
    >>> import tempfile
    >>> bias = Bias(np.array([0.2, 0.4, 0.3]), weight=0.5, method="nnn")
    >>> table = write_table(bias, tempfile.mkdtemp(), ids=["a", "b", "c"], n_shards=2)
    >>> [(shard.ids.tolist(), shard.values.round(1).tolist()) for shard in table.shards()]
    [(['a', 'b'], [0.2, 0.4]), (['c'], [0.3])]
    """
    _check_ungated(bias)
    n_items = len(bias)
    named = np.arange(n_items) if ids is None else check_ids(ids, n_items, name="the bias")
    count = math.ceil(n_items / 10**6) if n_shards is None else n_shards
    if isinstance(count, bool) or not isinstance(count, int) or not 1 <= count <= n_items:
        raise NNNormError(f"n_shards must be between 1 and the {n_items:,} items; got {count!r}")
    made = make_folder(check_local(folder, "a table of a bias"))
    edges = [-(-n_items * number // count) for number in range(count + 1)]
    files = tuple(f"part-{number:05d}-of-{count:05d}.parquet" for number in range(count))
    if other := [path.name for path in made.glob("part-*.parquet") if path.name not in files]:
        raise NNNormError(
            f"{made} has shards of another table, such as {sorted(other)[0]}; give an empty folder"
        )
    ranges = list(itertools.pairwise(edges))
    for file, (start, stop) in zip(files, ranges, strict=True):
        _write_shard(made / file, TableShard(named[start:stop], bias.values[start:stop]))
    sizes = tuple(stop - start for start, stop in ranges)
    table = BiasTable(made, bias.to_dict(), files, sizes)
    _write_about(table)
    return table


@explain_arguments
def open_table(folder: Folder) -> BiasTable:
    """Open a table that `write_table` wrote; its shards are read when they are asked for.

    Examples
    --------
    >>> open_table("nowhere")
    Traceback (most recent call last):
    nnnorm.errors.NNNormError: there is no file nowhere/bias-table.json; expected ...
    """
    path = Path(folder)
    about = read_json(path / _ABOUT, "the description of a table made by `nnnorm table write`")
    try:
        check_entries(about, _KINDS)
        if about["format"] != _FORMAT:
            raise ValueError(f"its format is {about['format']}")
        if not about["shards"]:
            raise ValueError("it has no shards")
        for shard in about["shards"]:
            check_entries(shard, _SHARD_KINDS)
            if not _FILE.fullmatch(shard["file"]):
                raise ValueError(f"no shard has the name {shard['file']}")
            if shard["n_items"] < 1:
                raise ValueError(f"{shard['file']} has {shard['n_items']} items")
    except (KeyError, TypeError, ValueError) as error:
        raise NNNormError(
            f"{path / _ABOUT} does not describe a table of a bias ({first_line(error)}); write the "
            "table again"
        ) from error
    files, sizes = zip(*((one["file"], one["n_items"]) for one in about["shards"]), strict=True)
    facts = {name: value for name, value in about.items() if name not in ("format", "shards")}
    return BiasTable(path, facts, files, sizes)


@explain_arguments
def find_moved(table: BiasTable, bias: Bias, *, tolerance: float) -> list[ShardMove]:
    """Compare a table with a newer bias of the same items, shard by shard.

    Parameters
    ----------
    table : BiasTable
    bias : Bias
        Of the same gallery, from a newer bank.
    tolerance : float
        In units of the score.

    Returns
    -------
    list of ShardMove
        One per shard, in order.

    Examples
    --------
    >>> import tempfile
    >>> table = write_table(Bias(np.ones(4), 0.5, "nnn"), tempfile.mkdtemp(), n_shards=2)
    >>> newer = Bias(np.array([1.0, 1.0, 1.0, 1.2]), 0.5, "nnn")
    >>> [(move.n_moved, round(move.largest, 2)) for move in find_moved(table, newer, tolerance=0)]
    [(0, 0.0), (1, 0.1)]
    """
    return [move for move, _ in _compare(table, bias, tolerance)]


@explain_arguments
def refresh_table(table: BiasTable, bias: Bias, *, tolerance: float) -> list[ShardMove]:
    """Write the shards of a table in which an item moved by more than a tolerance.

    Every item of a shard that is kept is within the tolerance of its new correction, so that no
    corrected score is off by more. The weight becomes that of the new bias.

    Parameters
    ----------
    table, bias, tolerance
        As in `find_moved`.

    Returns
    -------
    list of ShardMove
        Of the shards that were written.

    Examples
    --------
    >>> import tempfile
    >>> table = write_table(Bias(np.ones(4), 0.5, "nnn"), tempfile.mkdtemp(), n_shards=2)
    >>> newer = Bias(np.array([1.0, 1.0, 1.0, 1.2]), 0.5, "nnn")
    >>> [move.file for move in refresh_table(table, newer, tolerance=0.05)]
    ['part-00001-of-00002.parquet']
    """
    written = []
    for move, shard in _compare(table, bias, tolerance):
        if move.n_moved:
            _write_shard(table.folder / move.file, shard)
            written.append(move)
    _write_about(BiasTable(table.folder, bias.to_dict(), table.files, table.sizes))
    return written


def vespa_updates(
    shard: TableShard, document_type: str, namespace: str | None = None
) -> Iterator[str]:
    """Write a shard as partial updates of Vespa, one JSON object per line for `vespa feed`.

    Parameters
    ----------
    shard : TableShard
    document_type : str
        Its schema has ``field nnnorm_bias type float { indexing: attribute }``.
    namespace : str, optional
        By default the document type.

    Examples
    --------
    >>> shard = TableShard(np.array([17]), np.float32([0.25]))
    >>> print(*vespa_updates(shard, "photo"))
    {"update": "id:photo:photo::17", "fields": {"nnnorm_bias": {"assign": 0.25}}}
    """
    prefix = f"id:{namespace or document_type}:{document_type}::"
    for own, value in zip(shard.ids.tolist(), shard.values.tolist(), strict=True):
        fields = {BIAS: {"assign": value}}
        yield json.dumps({"update": f"{prefix}{own}", "fields": fields})


def _compare(
    table: BiasTable, bias: Bias, tolerance: float
) -> Iterator[tuple[ShardMove, TableShard]]:
    """What moved in each shard, and the shard as it would be written."""
    if isinstance(tolerance, bool) or not (math.isfinite(tolerance) and tolerance >= 0):
        raise NNNormError(f"tolerance must be a number of at least 0; got {tolerance!r}")
    _check_same_items(table, bias)
    start = 0
    for number, file in enumerate(table.files):
        old = table.shard(number)
        new = bias.values[start : start + len(old.values)]
        start += len(new)
        change = np.abs(new.astype(np.float64) - old.values) * abs(bias.weight)
        yield (
            ShardMove(
                file=file,
                n_items=len(new),
                largest=float(change.max()),
                typical=float(np.sqrt(np.square(change).mean())),
                n_moved=int((change > tolerance).sum()),
            ),
            TableShard(old.ids, new),
        )


def _check_same_items(table: BiasTable, bias: Bias) -> None:
    _check_ungated(bias)
    if len(bias) != len(table):
        raise NNNormError(
            f"the table in {table.folder} has {len(table):,} items and the new bias {len(bias):,}; "
            "write a new table where items were added or removed"
        )
    old, new = table.about["fingerprints"].get("gallery"), bias.fingerprints.get("gallery")
    if None not in (old, new) and old != new:
        raise NNNormError(
            f"the table in {table.folder} is of another gallery than the new bias: other values or "
            "another order; write a new table"
        )
    if table.about["method"] != bias.method:
        raise NNNormError(
            f"the table in {table.folder} is of the method {table.about['method']} and the new "
            f"bias of {bias.method}; values of two methods must not mix, so write a new table"
        )


def _check_ungated(bias: Bias) -> None:
    if bias.gates:
        raise NNNormError(
            f"a gated bias ({bias.method}) decides per query and can't be a column of a table; fit "
            "the method without its gate"
        )


def _write_shard(path: Path, shard: TableShard) -> None:
    pyarrow = require("pyarrow", "parquet")
    parquet = require("pyarrow.parquet", "parquet")
    columns = {ID: pyarrow.array(shard.ids.tolist()), BIAS: pyarrow.array(shard.values)}
    table = pyarrow.table(columns)
    write_whole(path, lambda file: parquet.write_table(table, file))


def _write_about(table: BiasTable) -> None:
    shards = [
        {"file": file, "n_items": n} for file, n in zip(table.files, table.sizes, strict=True)
    ]
    text = json.dumps({"format": _FORMAT, **table.about, "shards": shards}, indent=1) + "\n"
    write_whole(table.folder / _ABOUT, lambda file: file.write(text.encode()))
