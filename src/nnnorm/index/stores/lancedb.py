"""LanceDB (`pip install 'nnnorm[lancedb]'`): a table in a folder, scanned or with an IVF index.

LanceDB knows no metric of a table, only of an index and of a query, and takes L2 where a query says
nothing: both say it here. Its distances are 1 − product, the squared distance, 1 − cosine.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
import numpy.typing as npt

from nnnorm.errors import NNNormError, first_line, require
from nnnorm.index.store import (
    BATCH,
    Facts,
    Found,
    Ids,
    Items,
    Sample,
    Store,
    StoreMetric,
    Way,
    pad_rows,
    read_json_note,
)

__all__ = ["LancedbKind", "LancedbStore"]

FloatArray: TypeAlias = npt.NDArray[np.float32]
LancedbKind = Literal["flat", "ivf"]
_DISTANCES: dict[StoreMetric, str] = {"ip": "dot", "cosine": "cosine", "l2": "l2"}
_BIAS, _METADATA = "nnnorm_bias", "metadata"


class LancedbStore(Store):
    """A table of LanceDB.

    Parameters
    ----------
    place : str or PathLike
        The database: a folder, or an object store such as ``s3://bucket/folder``.
    table : str
    kind : {"flat", "ivf"}
        Of a new table: compare with every row, or with the cells of an index nearest to the query.
        LanceDB's own default index, IVF_PQ, is quantised and not offered.
    cells, probes : int
        Of "ivf": how many cells (0 leaves it to LanceDB), and how many a search looks into.
    id, embedding : str, optional
        Columns of someone else's table: ``id``, and the only column of vectors.
    """

    engine = "lancedb"
    ways: tuple[Way, ...] = ("ip", "l2", "cosine", "rerank")

    def __init__(
        self,
        place: str | os.PathLike[str],
        table: str = "items",
        *,
        kind: LancedbKind = "flat",
        cells: int = 0,
        probes: int = 20,
        id: str = "id",  # noqa: A002 - as the column is called
        embedding: str = "",
    ) -> None:
        if kind not in get_args(LancedbKind):
            kinds = ", ".join(get_args(LancedbKind))
            raise NNNormError(f"kind must be one of {kinds}; got {kind!r}")
        self._place, self._table_name = str(place), table
        self._kind, self._cells, self._probes = kind, cells, probes
        self._id, self._embedding = id, embedding
        self._database: Any = None
        self._table: Any = None

    @property
    def name(self) -> str:
        return f"lancedb table {self._table_name} of {self._place}"

    def facts(self) -> Facts | None:
        table = self._find()
        if table is None:
            return None
        kind = table.schema.field(self._column()).type
        return Facts(kind.list_size, self._metric(), table.count_rows())

    def create(self, width: int, metric: StoreMetric, *, strings: bool, sample: Sample) -> None:
        arrow = require("pyarrow", "lancedb")
        about = {"nnnorm_metric": metric}
        schema = arrow.schema(
            [
                arrow.field("id", arrow.string() if strings else arrow.int64(), nullable=False),
                arrow.field("vector", arrow.list_(arrow.float32(), width), metadata=about),
                arrow.field(_BIAS, arrow.float32()),
                arrow.field(_METADATA, arrow.string()),
            ]
        )
        with self._telling():
            self._table = self._connect().create_table(self._table_name, schema=schema)

    def add(self, items: Items) -> None:
        arrow = require("pyarrow", "lancedb")
        table, n_items = self._open(), len(items)
        self._check_ids(items.ids)
        flat = arrow.array(np.ascontiguousarray(items.vectors).ravel())
        batch = {
            "id": items.ids.tolist(),
            "vector": arrow.FixedSizeListArray.from_arrays(flat, items.vectors.shape[1]),
            _BIAS: [None] * n_items if items.values is None else items.values,
            _METADATA: [None] * n_items
            if items.metadata is None
            else [json.dumps(dict(entry)) for entry in items.metadata],
        }
        with self._telling():
            table.add(arrow.table(batch, schema=table.schema))

    def present(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if (ids.dtype.kind == "U") != self._has_strings():
            return np.zeros(len(ids), dtype=bool)
        with self._telling():
            found = (
                self._open()
                .search()
                .where(self._is_one_of(ids))
                .select([self._id])
                .limit(len(ids))
                .to_arrow()
            )
        there = set(found[self._id].to_pylist())
        return np.array([name in there for name in ids.tolist()], dtype=bool)

    def delete(self, ids: Ids) -> None:
        with self._telling():
            self._open().delete(self._is_one_of(ids))

    def search(self, queries: FloatArray, k: int) -> Found:
        table, metric = self._open(), self._metric()
        has_values = self._is_ours()
        wanted = [self._id, *([_BIAS] if has_values else [])]
        with self._telling():
            asked = (
                table.search(queries, vector_column_name=self._column())
                .distance_type(_DISTANCES[metric])
                .select([*wanted, "_distance"])
                .limit(max(1, min(k, table.count_rows())))
                .nprobes(self._probes)
            )
            hits = asked.to_arrow()
        # One list for all queries; which of them is a column, where there are several.
        of_query = np.zeros(len(hits), dtype=np.int64)
        if len(queries) > 1:
            of_query = hits["query_index"].to_numpy()
        distances = hits["_distance"].to_numpy()
        scores = -distances if metric == "l2" else 1 - distances
        columns = [hits[self._id].to_pylist(), scores.tolist()]
        if has_values:
            columns.append(hits[_BIAS].to_pylist())
        rows: list[list[list[Any]]] = [[[] for _ in range(len(queries))] for _ in columns]
        for query, *values in zip(of_query.tolist(), *columns, strict=True):
            for column, value in zip(rows, values, strict=True):
                column[query].append(value)
        has_values = has_values and not any(None in row for row in rows[-1])
        return pad_rows(rows[0], rows[1], rows[2] if has_values else None)

    def scan(self, batch: int = BATCH) -> Iterator[Items]:
        table, column, ours = self._open(), self._column(), self._is_ours()
        n_items = table.count_rows()
        for start in range(0, n_items, batch):
            offsets = list(range(start, min(start + batch, n_items)))
            with self._telling():
                rows = table.take_offsets(offsets).to_arrow()
            columns = {name: rows[name].to_pylist() for name in rows.column_names if name[0] != "_"}
            ids = np.array(columns.pop(self._id))
            vectors = np.array(columns.pop(column), dtype=np.float32)
            values = columns.pop(_BIAS, [None])
            if ours:
                known = [json.loads(entry or "{}") for entry in columns[_METADATA]]
            else:  # dates and the like become strings, so that any other engine can keep them
                known = [
                    json.loads(json.dumps(dict(zip(columns, row, strict=True)), default=str))
                    for row in zip(*columns.values(), strict=True)
                ]
            yield Items(
                ids,
                vectors,
                None if None in values else np.array(values, dtype=np.float32),
                known if any(known) else None,
            )

    def read_note(self) -> dict[str, Any] | None:
        return read_json_note(self._remarks().get("nnnorm"))

    def write_note(self, note: Mapping[str, Any]) -> None:
        remark = {"nnnorm": json.dumps(dict(note)), "nnnorm_metric": note["metric"]}
        with self._telling():
            self._open().update_field_metadata({"path": self._column(), "metadata": remark})

    def save(self) -> None:
        """Build the index of kind "ivf" once there are items, or take new ones into it."""
        table = self._open()
        n_items = table.count_rows()
        with self._telling():
            if self._index() is not None:
                table.optimize()
            elif self._kind == "ivf" and n_items:
                index = require("lancedb.index", "lancedb")
                distance = _DISTANCES[self._metric()]
                config = index.IvfFlat(
                    distance_type=distance, num_partitions=min(self._cells, n_items) or None
                )
                table.create_index(self._column(), config=config)

    def traps(self) -> list[str]:
        index = self._index()
        if index is None:
            return []
        problems = []
        measured = str(self._open().index_stats(index.name).distance_type).lower()
        if measured != _DISTANCES[self._metric()]:
            problems.append(
                f"its index compares by {measured}, and queries by {_DISTANCES[self._metric()]}: "
                "make the index anew with that metric"
            )
        if "Pq" in index.index_type or "Sq" in index.index_type or "Rq" in index.index_type:
            problems.append(
                f"its index {index.index_type} is quantised: use IVF_FLAT, or refine what it finds"
            )
        return problems

    def close(self) -> None:
        self._table = self._database = None

    # --- what the table says ---

    def _column(self) -> str:
        """The column of vectors: the one asked for, or the only one."""
        arrow = require("pyarrow", "lancedb")
        known = [
            field.name
            for field in self._open().schema
            if arrow.types.is_fixed_size_list(field.type)
            and arrow.types.is_floating(field.type.value_type)
        ]
        if self._embedding in known:
            return self._embedding
        if self._embedding or len(known) != 1:
            what = f"no vectors {self._embedding!r}" if self._embedding else f"{len(known)}"
            raise NNNormError(
                f"{self.name} must have one column of vectors, and has {what}; name it with "
                f"embedding=: {', '.join(known) or 'there is none'}"
            )
        return known[0]

    def _remarks(self) -> dict[str, str]:
        found = self._open().schema.field(self._column()).metadata or {}
        return {key.decode(): value.decode() for key, value in found.items()}

    def _is_ours(self) -> bool:
        return "nnnorm_metric" in self._remarks()

    def _metric(self) -> StoreMetric:
        """What we noted, or what the index says, or LanceDB's own default."""
        noted = self._remarks().get("nnnorm_metric")
        if noted is None:
            index = self._index()
            if index is None:
                return "l2"
            noted = str(self._open().index_stats(index.name).distance_type).lower()
        metrics = {distance: metric for metric, distance in _DISTANCES.items()}
        metrics["ip"] = "ip"
        if noted not in metrics:
            raise NNNormError(f"{self.name} compares by {noted}; expected dot, l2 or cosine")
        return metrics[noted]

    def _index(self) -> Any:
        column = self._column()
        indexes = self._open().list_indices()
        return next((index for index in indexes if list(index.columns) == [column]), None)

    def _has_strings(self) -> bool:
        schema = self._open().schema
        if self._id not in schema.names:
            raise NNNormError(
                f"{self.name} has no column {self._id}; name the ids' column with id=: "
                f"{', '.join(schema.names)}"
            )
        kind = str(schema.field(self._id).type)
        if kind not in ("string", "large_string") and "int" not in kind:
            raise NNNormError(
                f"the ids of {self.name} must be whole numbers or strings; got {kind}"
            )
        return "string" in kind

    def _check_ids(self, ids: Ids) -> None:
        strings = ids.dtype.kind == "U"
        if strings != self._has_strings():
            kinds = ("whole numbers", "strings") if strings else ("strings", "whole numbers")
            raise NNNormError(f"the ids of {self.name} are {kinds[0]}; got {kinds[1]}")

    def _is_one_of(self, ids: Ids) -> str:
        if ids.dtype.kind == "U":
            listed = ", ".join("'" + name.replace("'", "''") + "'" for name in ids.tolist())
        else:
            listed = ", ".join(map(str, ids.tolist()))
        return f"`{self._id}` IN ({listed})"

    # --- the database ---

    def _connect(self) -> Any:
        if self._database is None:
            lancedb = require("lancedb", "lancedb")
            # What another process writes is seen at once.
            with self._telling():
                self._database = lancedb.connect(
                    self._place, read_consistency_interval=timedelta(0)
                )
        return self._database

    def _find(self) -> Any:
        if self._table is None:
            if "://" not in self._place and not Path(self._place).exists():
                return None  # connecting would make the folder
            with self._telling():
                try:
                    self._table = self._connect().open_table(self._table_name)
                except (ValueError, FileNotFoundError) as error:
                    if "not found" not in str(error):
                        raise
        return self._table

    def _open(self) -> Any:
        table = self._find()
        if table is None:
            raise NNNormError(f"there is no {self.name}; check the name, or build it first")
        return table

    @contextmanager
    def _telling(self) -> Iterator[None]:
        """LanceDB's errors in one sentence."""
        try:
            yield
        except NNNormError:
            raise
        except (RuntimeError, ValueError, OSError) as error:
            raise NNNormError(f"{self.name}: LanceDB says: {first_line(error)}") from error
