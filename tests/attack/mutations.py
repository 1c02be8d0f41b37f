"""Seeded damage to files, names and options.

`mutate(path, rng)` changes a file in place, and says what it did and what a command that reads it
has to do. Where that depends on the bytes, `oracle.py` decides.
"""

import contextlib
import io
import json
import os
import random
import socket
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tests.attack.materials import png_of_size

DEEP = "[" * 100_000
# Values of other types, and numbers at the ends of what JSON can say.
WRONG = [None, True, 7, -1, 0, 0.5, 1e300, 10**30, "x", "", "..", [], [1], [[]], {}, {"a": [1]}]
ODD_NAMES = [
    "with space", "-dash", "'quote\"", "[bold]markup[reset]", "%s{0}$HOME", "Ünïcode-名前",
    "line\nbreak", "tab\there", "🙂", "\udcff", "a" * 180, "semi;colon&and", "a=b", "..dots..",
]  # fmt: skip


@dataclass(frozen=True)
class Damage:
    """What was done to an input."""

    what: str
    # What a command has to do: "refuse", "accept", "either", or what the oracle says ("judge").
    must: str = "judge"
    name: str | None = None  # the new name of the input, if that has changed


def mutate(path: Path, rng: random.Random) -> Damage:
    """Damage a file, or one of the files of a folder."""
    if path.is_dir():
        return _mutate_folder(path, rng)
    ways = [_damage_bytes, _damage_bytes, _replace_by_special, _rename, _swap_kind]
    own = _OWN.get(path.suffix) or _OWN.get(path.name.partition(".")[0])
    ways += [own] * 6 if own else [_damage_bytes] * 3
    way = rng.choice(ways)
    try:
        return way(path, rng)
    except Exception:  # the suffix is another program's: a note that is no record, for instance
        if way is not own:
            raise
        return _damage_bytes(path, rng)


def _mutate_folder(folder: Path, rng: random.Random) -> Damage:
    chosen = rng.choice(sorted(path for path in folder.rglob("*") if path.is_file()))
    name = chosen.relative_to(folder.parent)
    way = rng.randrange(8)
    if way == 0:
        chosen.unlink()
        return Damage(f"{name} is gone", "either")
    if way == 1:
        chosen.unlink()
        chosen.mkdir()
        return Damage(f"{name} is a folder", "either")
    if way == 2:
        new = chosen.with_name(rng.choice(["x_7.npy", "img_emb_99.npy", "notes.txt", ".hidden"]))
        chosen.rename(new)
        return Damage(f"{name} is named {new.name}", "either")
    done = mutate(chosen, rng)
    # A file that is not needed may be anything.
    must = "judge" if done.must == "judge" and done.name is None else "either"
    return Damage(f"{name}: {done.what}", must)


# --- bytes ---------------------------------------------------------------------------------------


def _damage_bytes(path, rng):
    content = bytearray(path.read_bytes()) or bytearray(1)
    size = len(content)
    start, kept = rng.randrange(size), rng.choice([1, 4, 8, 10, 16, 60, size // 2, size - 1])
    stop = min(size, start + rng.choice([4, 16, 200, size]))
    flipped = bytearray(content)
    for _ in range(rng.choice([1, 1, 3, 20])):
        flipped[rng.randrange(size)] ^= 1 << rng.randrange(8)
    head = bytearray(content)
    head[rng.randrange(min(128, size))] = rng.choice([0, 1, 0x7F, 0x80, 0xFF])
    ways = {
        "bits changed": flipped,
        "a byte of the head changed": head,
        f"cut after {kept} bytes": content[:kept],
        f"cut after {start} bytes": content[:start],
        "bytes appended": content + rng.randbytes(rng.choice([1, 8, 1000])),
        "empty": b"",
        "twice in a row": content + content,
    }
    for name, fill in (("zeros", bytes), ("ones", lambda n: b"\xff" * n), ("noise", rng.randbytes)):
        changed = content[:start] + fill(stop - start) + content[stop:]
        ways[f"{name} from byte {start} to {stop}"] = changed
    what = rng.choice(list(ways))
    path.write_bytes(ways[what])
    return Damage(what)


def _replace_by_special(path, rng):
    path.unlink()
    way = rng.choice(["pipe", "zero", "full", "loop", "nothing", "folder", "socket", "dangling"])
    if way == "pipe":
        os.mkfifo(path)
    elif way in ("zero", "full"):
        path.symlink_to(f"/dev/{way}")
    elif way == "loop":
        path.symlink_to(path)
    elif way == "folder":
        path.mkdir()
    elif way == "dangling":
        path.symlink_to("nowhere")
    elif way == "socket":
        with socket.socket(socket.AF_UNIX) as made, contextlib.suppress(OSError):
            made.bind(str(path))  # or nothing, where the path is too long for a socket
    return Damage(f"a {way} in its place", "refuse")


def _rename(path, rng):
    name = rng.choice(ODD_NAMES) + path.suffix
    path.rename(path.with_name(name))
    return Damage(f"named {name!r}", "either" if "\udcff" in name else "accept", name)


def _swap_kind(path, rng):
    others = {
        "png": png_of_size(3, 3),
        "text": b"hello,world\n1,2\n",
        "json": b'{"a": [1, 2, {"b": null}]}',
        "null": b"null",
        "deep": DEEP.encode(),
        "zip": _zip({"a.txt": b"x"}),
        "pickle": b"\x80\x04\x95\x0b\x00\x00\x00\x00\x00\x00\x00\x8c\x07builtin\x94.",
        "array": _npy(np.arange(6.0)),
        "utf-16": "a,b\n1,2\n".encode("utf-16"),
        "script": b"#!/bin/sh\nexit 1\n",
        "elf": b"\x7fELF" + bytes(60),
        "sqlite": b"SQLite format 3\0" + bytes(84),
        "parquet": b"PAR1" + bytes(20) + b"PAR1",
        "gzip": b"\x1f\x8b" + bytes(20),
    }
    name = rng.choice(sorted(others))
    path.write_bytes(others[name])
    return Damage(f"holds {name}")


# --- arrays --------------------------------------------------------------------------------------


def _npy(array, **options):
    file = io.BytesIO()
    np.save(file, array, **options)
    return file.getvalue()


def _zip(entries, packing=zipfile.ZIP_DEFLATED):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", packing) as archive:
        for name, content in entries.items():
            archive.writestr(name, content)
    return file.getvalue()


def change_array(array, rng):
    """Another array: a wrong type, shape or order, or values that can't be used."""
    way = rng.choice(["dtype", "shape", "order", "values", "values", "values"])
    if way == "dtype":
        kind = rng.choice(["f2", "f8", ">f4", ">f8", "i4", "u1", "c8", "?", "U3", "S4", "M8[s]"])
        if kind == "c8" or array.dtype.kind in "iuf":
            with np.errstate(all="ignore"):
                return array.astype(kind), f"dtype {kind}"
        return array, "as it is"
    if way == "shape":
        flat = array.reshape(-1)
        shapes = {
            "flat": flat, "scalar": flat[0], "no rows": array[:0], "more rows": np.r_[array, array],
            "no columns": array[..., :0], "three dimensions": array[None],
            "one row": array[:1], "fewer rows": array[:-1], "fewer columns": array[..., :-1],
        }  # fmt: skip
        name = rng.choice(sorted(shapes))
        return np.asarray(shapes[name]), name
    if way == "order":
        return np.asfortranarray(array), "column by column"
    changed = np.array(array, dtype=np.float64 if array.dtype.kind == "f" else array.dtype)
    if changed.dtype.kind == "f":
        value = rng.choice([np.nan, np.inf, -np.inf, 1e38, -1e38, 1e-30, 0.0, 1e300, 5e-324, 3.0])
        row = rng.randrange(len(changed))
        place = rng.choice([(row, 0), (row,), ()])
        changed[place[: changed.ndim]] = value
        kept = changed if rng.random() < 0.3 else changed.astype(np.float32, copy=False)
        return kept, f"{value} at {place}"
    if changed.dtype.kind in "iu":
        value = rng.choice([-1, 0, 10**6, 2**62, -(2**63)])
        changed[rng.randrange(len(changed))] = value
        return changed, f"{value} in it"
    return changed[::-1], "the other way round"


def _damage_npy(path, rng):
    array = np.load(path)
    way = rng.choice(["array"] * 5 + ["header", "object", "structure", "version"])
    with np.errstate(all="ignore"):
        if way == "array":
            changed, what = change_array(array, rng)
            path.write_bytes(_npy(changed))
            return Damage(what)
    if way == "object":
        path.write_bytes(_npy(np.array([{"a": 1}, None], dtype=object), allow_pickle=True))
        return Damage("Python objects", "refuse")
    if way == "structure":
        path.write_bytes(_npy(np.zeros(3, dtype=[("a", "f4"), ("b", "f4", (2,))])))
        return Damage("a structured array", "refuse")
    content = bytearray(path.read_bytes())
    if way == "version":
        content[6] = rng.choice([0, 2, 3, 9, 255])
        path.write_bytes(content)
        return Damage(f"version {content[6]}")
    lies = [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (1000000000, 512), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (24, 9), }",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999, 8), }",
        "{'descr': '|O', 'fortran_order': False, 'shape': (24, 8), }",
        "{'descr': '<f4', 'fortran_order': 3, 'shape': (24, 8), }",
        "{'descr': '<f4', 'shape': (24, 8), }",
        "{'descr': ('a', 'b'), 'fortran_order': False, 'shape': (2,), }",
        "__import__('os').system('touch out-pwned')",
        "(" * 3000,
        "{'descr': '<f4', 'fortran_order': False, 'shape': (True, 8), }",
    ]
    text = rng.choice(lies).encode() + b"\n"
    head = b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text
    path.write_bytes(head + array.tobytes())
    return Damage(f"header {text[:60]!r}")


def _damage_npz(path, rng):
    with np.load(path) as archive:
        arrays = dict(archive)
    name = sorted(arrays)[rng.randrange(len(arrays))]
    way = rng.choice(["array"] * 4 + ["more", "none", "bomb", "names", "lie", "lock", "packing"])
    entries = {f"{key}.npy": _npy(one) for key, one in arrays.items()}
    if way == "array":
        with np.errstate(all="ignore"):
            changed, what = change_array(arrays[name], rng)
        path.write_bytes(_zip({**entries, f"{name}.npy": _npy(changed)}))
        return Damage(f"{name}: {what}")
    if way == "more":
        path.write_bytes(_zip({"a.npy": _npy(np.eye(2)), "b.npy": _npy(np.eye(2))}))
        return Damage("two arrays of other names", "refuse")
    if way == "none":
        path.write_bytes(_zip({}))
        return Damage("no array", "refuse")
    if way == "bomb":
        head = _npy(np.zeros((0, 8), dtype=np.float32)).replace(b"(0, 8)", b"(9999999, 999)")
        path.write_bytes(_zip({f"{key}": head + bytes(10**6) for key in entries}))
        return Damage("announces 40 GB", "refuse")
    if way == "names":
        path.write_bytes(_zip({f"../../{key}": one for key, one in entries.items()}))
        return Damage("names with ..", "either")
    if way == "lie":
        key = f"{name}.npy"
        path.write_bytes(_zip({**entries, key: entries[key][:-5]}))
        return Damage(f"{name} is cut short", "refuse")
    content = bytearray(_zip(entries))
    shift, value = (6, 1) if way == "lock" else (8, 99)
    for mark, more in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
        place = content.find(mark)
        while place >= 0:
            content[place + shift + more] = value
            place = content.find(mark, place + 4)
    path.write_bytes(content)
    return Damage("encrypted" if way == "lock" else "an unknown packing", "refuse")


def _damage_parquet(path, rng):
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(path)
    column = rng.choice(table.column_names)
    cells = table.column(column).to_pylist()
    way = rng.choice(["type", "null", "ragged", "name", "twice", "rows", "bomb", "value", "gone"])
    place = rng.randrange(len(cells))
    is_list = isinstance(cells[0], list)
    if way == "bomb" and is_list:
        flat = pyarrow.array(np.zeros(10**7, dtype=np.float32))
        lists = pyarrow.FixedSizeListArray.from_arrays(flat, 10**6)
        parquet.write_table(pyarrow.table({column: lists}), path)
        return Damage("ten rows of a million zeros", "either")
    try:
        if way == "type":
            kind = rng.choice([pyarrow.int64(), pyarrow.string(), pyarrow.binary()])
            new = pyarrow.array([str(n) for n in range(len(cells))]).cast(kind)
        elif way == "null":
            new = pyarrow.array([None if n == place else cell for n, cell in enumerate(cells)])
        elif way == "ragged" and is_list:
            new = pyarrow.array([cell[: 3 if n == place else None] for n, cell in enumerate(cells)])
        elif way == "value" and is_list:
            value = rng.choice([np.nan, np.inf, 1e38, 1e-30, 0.0, 1e300])
            cells[place] = [value] * len(cells[place])
            new = pyarrow.array(cells)
        elif way == "value":
            new = pyarrow.array([cells[0]] * len(cells))
        elif way == "rows":
            parquet.write_table(table.slice(0, rng.choice([0, 1, len(cells) - 1])), path)
            return Damage("other rows")
        elif way == "gone":
            parquet.write_table(table.drop_columns([column]), path)
            return Damage(f"no column {column}")
        elif way == "twice":
            parquet.write_table(table.append_column(column, table.column(column)), path)
            return Damage(f"{column} twice")
        else:
            names = ["x" if name == column else name for name in table.column_names]
            parquet.write_table(table.rename_columns(names), path)
            return Damage(f"{column} is named x")
        field = table.column_names.index(column)
        parquet.write_table(table.set_column(field, column, new), path)
    except (pyarrow.ArrowException, OSError):
        return _damage_bytes(path, rng)
    return Damage(f"{column}: {way} in row {place}")


# --- records -------------------------------------------------------------------------------------


def _damage_record(path, rng):
    from safetensors import safe_open
    from safetensors.numpy import save

    with safe_open(path, framework="numpy") as file:
        about = dict(file.metadata())
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    way = rng.choice(["entry", "entry", "array", "key", "deep", "gone", "header", "format"])
    what, must = way, "judge"
    if way == "header":
        content = bytearray(path.read_bytes())
        size = rng.choice([0, 1, 2**20, 2**40, 2**63, 2**64 - 1])
        content[:8] = size.to_bytes(8, "little")
        path.write_bytes(content)
        return Damage(f"a header of {size} bytes", "refuse")
    parts = [key for key, text in about.items() if text[:1] in "{["]
    if way == "entry" and parts:
        part = rng.choice(sorted(parts))
        changed, what = change_json(json.loads(about[part]), rng)
        about[part] = json.dumps(changed)
    elif way == "array":
        name = rng.choice(sorted(arrays))
        if arrays[name].size:
            with np.errstate(all="ignore"):
                arrays[name], what = change_array(arrays[name], rng)
            what = f"{name}: {what}"
    elif way == "deep":
        key = rng.choice(sorted(about))
        about[key], what, must = DEEP, f"{key} is nested deeply", "refuse"
    elif way == "gone":
        key = rng.choice(sorted([*about, *arrays]))
        about.pop(key, None)
        arrays.pop(key, None)
        what, must = f"{key} is gone", "judge"
    else:
        key = rng.choice(sorted(about))
        about[key] = rng.choice(["", "null", "7", "[]", "{}", "x", "nnnorm.bias/9", "é" * 50])
        what = f"{key} is {about[key]!r}"
    try:
        path.write_bytes(save({n: np.ascontiguousarray(a) for n, a in arrays.items()}, about))
    except Exception:  # a type that the format does not have
        return _damage_bytes(path, rng)
    return Damage(what, must)


# --- text ----------------------------------------------------------------------------------------


def change_json(value, rng):
    """Parsed JSON with one node replaced, removed or repeated."""
    places = list(_nodes(value))
    path = rng.choice(places)
    wrong = rng.choice(WRONG)
    if not path:
        return wrong, f"the whole is {wrong!r}"
    changed = json.loads(json.dumps(value))
    parent = changed
    for step in path[:-1]:
        parent = parent[step]
    shown = "/".join(map(str, path))
    way = rng.choice(["replace", "replace", "replace", "remove", "repeat", "nest"])
    if way == "remove":
        del parent[path[-1]]
        return changed, f"{shown} is gone"
    if way == "repeat" and isinstance(parent, list):
        parent.append(parent[path[-1]])
        return changed, f"{shown} is there twice"
    if way == "nest":
        parent[path[-1]] = [parent[path[-1]]]
        return changed, f"{shown} is in a list"
    parent[path[-1]] = wrong
    return changed, f"{shown} is {wrong!r}"


def _nodes(value, path=()):
    yield path
    if isinstance(value, (dict, list)):
        entries = value.items() if isinstance(value, dict) else enumerate(value)
        for step, inner in entries:
            yield from _nodes(inner, (*path, step))


_TEXT = {
    "a byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "lines that end as on Windows": lambda text: text.replace(b"\n", b"\r\n"),
    "UTF-16": lambda text: text.decode().encode("utf-16"),
    "Latin 1": lambda text: text + b"\xe9\xff\n",
    "null bytes": lambda text: text.replace(b"a", b"\0"),
    "one long line": lambda text: text.replace(b"\n", b" "),
    "blank lines": lambda text: text.replace(b"\n", b"\n\n"),
    "spaces before": lambda text: b"  \n \n" + text,
}


def _damage_text(path, rng):
    name = rng.choice(sorted(_TEXT))
    try:
        path.write_bytes(_TEXT[name](path.read_bytes()))
    except UnicodeDecodeError:
        return _damage_bytes(path, rng)
    return Damage(name)


def _damage_json(path, rng):
    if rng.random() < 0.2:
        return _damage_text(path, rng)
    if rng.random() < 0.2:
        odd = {
            "NaN": "NaN", "Infinity": "[Infinity, 1e999]", "a long number": "[" + "9" * 5000 + "]",
            "deep lists": DEEP, "deep objects": '{"a":' * 50_000, "a comment": "// x\n[1]",
            "a lone surrogate": '["\\ud800"]', "two values": "[1] [2]", "single quotes": "['a']",
        }  # fmt: skip
        name = rng.choice(sorted(odd))
        path.write_text(odd[name])
        return Damage(name)
    changed, what = change_json(json.loads(path.read_text()), rng)
    path.write_text(json.dumps(changed))
    return Damage(what)


def _damage_jsonl(path, rng):
    if rng.random() < 0.3:
        return _damage_text(path, rng)
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    odd = ["", "{}", "[]", "null", "{", "7", '"x"', DEEP, '{"a": NaN}', "{'a': 1}", lines[0] * 2]
    if rng.random() < 0.6:
        changed, what = change_json(json.loads(lines[place]), rng)
        lines[place] = json.dumps(changed)
    else:
        lines[place] = rng.choice(odd)
        what = lines[place][:40]
    path.write_text("\n".join(lines) + "\n")
    return Damage(f"line {place + 1}: {what}")


def _damage_separated(path, rng):
    if rng.random() < 0.3:
        return _damage_text(path, rng)
    separator = "\t" if path.suffix == ".tsv" else ","
    header, *rows = (line.split(separator) for line in path.read_text().splitlines())
    row = rng.choice(rows)
    cell = rng.randrange(len(row))
    odd = rng.choice([
        "", "nan", "inf", "-1", "1e999", '"', '""', 'a"b', "'", "[", "[1, 2]", "x" * 200_000,
        "=1+1", "\u2028", "\0", "9" * 400, "0", "2026-13-45", "true", " ",
    ])  # fmt: skip
    way = rng.choice(["cell"] * 4 + ["fewer", "more", "row", "header", "no rows"])
    if way == "cell":
        row[cell] = odd
    elif way == "fewer":
        del row[cell]
    elif way == "more":
        row.insert(cell, odd)
    elif way == "row":
        row[:] = [odd]
    elif way == "header":
        header = rng.choice([["x"], header[::-1], [""], ["a", "a"]])
    else:
        rows = []
    path.write_text("".join(separator.join(cells) + "\n" for cells in (header, *rows)))
    return Damage(f"{way}: {odd[:20]!r} in cell {cell}, header {header}")


def _damage_lines(path, rng):
    if rng.random() < 0.3:
        return _damage_text(path, rng)
    lines = path.read_text().splitlines()
    place = rng.randrange(len(lines))
    odd = [
        "", "x" * 10**6, lines[place - 1], "\u2028", "../..", "/dev/zero", "\x1b[31m", "a\x0bb",
        "-",
    ]  # fmt: skip
    new = rng.choice([[], [lines[place], "another"], *([one] for one in odd)])
    path.write_text("\n".join([*lines[:place], *new, *lines[place + 1 :]]) + "\n")
    return Damage(f"line {place + 1} is {str(new)[:40]}")


def _damage_picture(path, rng):
    if rng.random() < 0.5:
        size = rng.choice([(0, 0), (1, 1), (60_000, 60_000), (2**31 - 1, 2**31 - 1), (10**5, 1)])
        path.write_bytes(png_of_size(*size))
        return Damage(f"a picture of {size}", "either")
    return _damage_bytes(path, rng)


_OWN = {
    ".npy": _damage_npy,
    ".npz": _damage_npz,
    ".parquet": _damage_parquet,
    ".safetensors": _damage_record,
    ".json": _damage_json,
    ".jsonl": _damage_jsonl,
    ".csv": _damage_separated,
    ".tsv": _damage_separated,
    ".txt": _damage_lines,
    ".png": _damage_picture,
}


# --- options -------------------------------------------------------------------------------------

NUMBERS = [
    "0", "1", "-1", "2", "3", "1000000000", "1000000000000", "-1000000000000", "9" * 30, "9" * 5000,
    "nan", "inf", "-inf", "1e308", "1e309", "1e-320", "-0.0", "0.5", "1e3", "", " ", "٣", "0x10",
    "--5", "auto", "null", "1_000", "1,5", "2147483648", "9223372036854775808", "1e38",
]  # fmt: skip
TEXTS = [
    "", " ", "x", "-", "--", "..", "/", "*", "'; DROP TABLE photos; --", "a=b", "a=", "=b", "a,b",
    "a,b,c", "A=0.5,B=nan", "A=1e999", "\n", "x" * 5000, "名前", "🙂", "\udcff", "%s%n{0}",
    "[bold]", "auto", "none", "1", "nan", "30d", "-1d", "1e999d", "0d", "2026-05-01", "nowhere/x",
    "hf://x/y", "../../x", "cuda:9", "A=0.5,A=0.5", "image-retrieval=x", "shapes=", "clip=",
]  # fmt: skip
URLS = [
    "", ":", "faiss", "faiss:", "faiss:?", "excel:x", "faiss:nowhere", "sqlite:nowhere?table=x",
    "faiss:.", "faiss:/", "sqlite:.", "duckdb:/dev/zero?table=x", "sqlite:/dev/full?table=x",
    "pgvector://%ZZ", "pgvector://u:p@localhost:1/x?table=y", "pgvector://u:p/w@h/x", "pgvector:",
    "qdrant://localhost:1/photos", "qdrant://u:PW@localhost:1/p", "qdrant://localhost:http/p",
    "qdrant://", "milvus://localhost:1/p", "milvus:", "chroma://localhost:1/p", "chroma:",
    "lancedb:", "lancedb:gallery.npy?table=x", "hnswlib:gallery.npy",
    "usearch:gallery.npy", "faiss:gallery.npy", "sqlite:gallery.npy?table=x", "usearch:queries.npy",
    "duckdb:gallery.npy?table=x", "chroma:gallery.npy?collection=x", "faiss:\udcff", "faiss://",
    "milvus:gallery.npy?collection=x", "faiss:x?kind=ivf&cells=-1", "file:///etc/passwd",
    "http://localhost:1/x", "qdrant://[::1/x", "faiss:x?kind=", "sqlite:x?table=" + "t" * 3000,
    "sqlite:x?table=a%00b", "duckdb:x?table=a.b", "lancedb:x?table=../y", "faiss:" + "x" * 300,
]  # fmt: skip
URL_ENDS = [
    "?", "&", "?table=", "&x=1", "?links=-1", "?links=0", "?ef=999999999999", "?kind=none",
    "?table=photos&table=photos", "?collection=", "?table='; DROP TABLE photos; --", "#x", "%",
    "?dtype=f1", "?threads=-1", "?dim=0", "?id=", "?embedding=x", "/..", "//", "?cells=1e3", "\n",
]  # fmt: skip
OUTPUTS = [
    "nowhere/out", "/dev/full", "/dev/null", "/dev/stdin", "", ".", "..", "/", "gallery.npy",
    "gallery.npy/x", "out\nx", "out" + "x" * 300, "-", "~/out", "out/../out", "loop", "\udcff", " ",
]  # fmt: skip
