"""Reads damaged files with libraries other than the package.

`judge` compares it with the healthy file: "broken" must be refused; "same" must give the same
answer, or be refused; "other" is a valid file with other content, of which `judge` also writes a
clean twin: the command must answer as it does to the twin.
"""

import csv
import io
import json
import shutil
from pathlib import Path

import numpy as np

_FLOATS = ("gallery", "queries", "references", "others", "new", "img_emb", "text_emb", "people")


def judge(damaged, healthy, twin):
    """Read a damaged file and its original, and write a clean twin; one of the words above."""
    paths = [Path(path) for path in (damaged, healthy, twin)]
    reader = _READERS.get(paths[1].suffix)
    if reader is None:
        return "unknown"
    read, write = reader
    try:
        content = read(paths[0])
    except Exception:  # every library has its own
        return "broken"
    if _is_wrong(paths[1].name, content):
        return "broken"
    if repr_of(content) == repr_of(read(paths[1])):
        shutil.copyfile(paths[1], paths[2])
        return "same"
    write(paths[2], content)
    return "other"


def _is_wrong(name, content):
    """Whether content that can be read is certainly not what such a file must hold."""
    if isinstance(content, dict) and "embedding" in content and name.endswith(".npz"):
        content = content["embedding"]
    if name.startswith(_FLOATS) and isinstance(content, np.ndarray):
        with np.errstate(all="ignore"):
            return (
                content.dtype.kind != "f"
                or content.ndim != 2
                or not content.size
                or not np.isfinite(content.astype(np.float32)).all()
            )
    if name == "truth.npy":
        return content.dtype.kind not in "iu" or not content.size
    if name == "truth.json":
        return not isinstance(content, list)
    return False


def repr_of(content):
    """A form in which contents are compared."""
    if isinstance(content, np.ndarray):
        return content.dtype.str, content.shape, content.tobytes()
    if isinstance(content, dict) and all(isinstance(v, np.ndarray) for v in content.values()):
        return [(name, repr_of(array)) for name, array in sorted(content.items())]
    if hasattr(content, "to_pydict"):  # a table of pyarrow
        return content.schema.to_string(), repr(content.to_pydict())
    return repr(content)


def _read_npy(path):
    array = np.load(path, allow_pickle=False)
    if not isinstance(array, np.ndarray):
        raise TypeError("an archive")
    return array


def _read_npz(path):
    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def _read_parquet(path):
    from pyarrow import parquet

    table = parquet.ParquetFile(path).read()
    table.validate(full=True)
    for name, column in zip(table.column_names, table.columns, strict=True):
        if name == "embedding":
            lists = column.to_pylist()
            if not lists or any(row is None for row in lists) or not np.isfinite(lists).all():
                raise ValueError("no embeddings")
    return table


def _write_parquet(path, table):
    from pyarrow import parquet

    parquet.write_table(table, path)


def _read_json(path):
    return json.loads(path.read_bytes().decode("utf-8-sig"))


def _read_jsonl(path):
    # Only a line feed ends a line; Python's splitlines knows more of them.
    lines = path.read_bytes().decode("utf-8-sig").replace("\r", "\n").split("\n")
    entries = [json.loads(line) for line in lines if line.strip()]
    if not entries or not all(isinstance(entry, dict) for entry in entries):
        raise ValueError("not one object per line")
    return entries


def _read_separated(separator):
    def read(path):
        text = path.read_bytes().decode("utf-8-sig")
        rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=separator, strict=True))
        rows = [[cell.strip() for cell in row] for row in rows if row]
        filled = [row for row in rows if any(row)]
        if len(filled) < 2 or any(len(row) < len(filled[0]) for row in filled):
            raise ValueError("ragged, or no rows")
        return rows

    return read


def _write_separated(separator):
    def write(path, rows):
        with open(path, "w", newline="", encoding="utf-8") as file:
            csv.writer(file, delimiter=separator, quoting=csv.QUOTE_ALL).writerows(rows)

    return write


def _read_lines(path):
    return path.read_bytes().decode("utf-8-sig")


_READERS = {
    ".npy": (_read_npy, np.save),
    ".npz": (_read_npz, lambda path, arrays: np.savez(path, **arrays)),
    ".parquet": (_read_parquet, _write_parquet),
    ".json": (_read_json, lambda path, value: path.write_text(json.dumps(value))),
    ".jsonl": (
        _read_jsonl,
        lambda path, rows: path.write_text("".join(json.dumps(row) + "\n" for row in rows)),
    ),
    ".csv": (_read_separated(","), _write_separated(",")),
    ".tsv": (_read_separated("\t"), _write_separated("\t")),
    ".txt": (_read_lines, lambda path, text: path.write_text(text, newline="")),
}


def judge_record(damaged, healthy):
    """The same for records, whose digest lets no change pass."""
    try:
        return "same" if _read_record(damaged) == _read_record(healthy) else "broken"
    except Exception:  # every library has its own
        return "broken"


def _read_record(path):
    from safetensors import safe_open

    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return dict(file.metadata() or {}), repr_of(arrays)
