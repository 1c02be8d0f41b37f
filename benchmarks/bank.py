"""Time and memory to find the unique queries of a log, and their share in the time of a fit.

The log is synthetic: 60,000 queries with a falling spectrum, repeated by Zipf's law (exponent 1),
512 dimensions in float16. "Equal" repeats are the same row; "varied" ones have noise (cosine 0.95
with the query). Each bank is built in a separate process. Memory is the peak of that process,
including Python, NumPy and pyarrow, with and without mapped pages of files, which the system can
reclaim.

The share of a fit compares processor seconds in one process: the plain product of 5,000 items and
113,000 past queries of 512 dimensions, finding the unique ones, and `NNN().fit` by default.

    python benchmarks/bank.py [--rows N] [--output FILE.json] [--folder FOLDER]
    python benchmarks/bank.py --tables    # print the stored results
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from harness import add_options, print_stored, store
from memory import Peak
from real_sets import RESULTS, machine, table

from nnnorm import NNN, Bank, open_embeddings
from nnnorm.dedup import unique_rows

OUTPUT = RESULTS / "bank.json"
DIM, N_ASKED, EXPONENT, COSINE = 512, 60_000, 1.0, 0.95
N_ITEMS, N_QUERIES = 5000, 113_000
PIECE = 20_000


def make_pieces(n_rows: int, *, varied: bool) -> Iterator[npt.NDArray[np.float16]]:
    rng = np.random.default_rng(0)
    scale = (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    scale /= np.linalg.norm(scale)
    lean = 0.6 * scale * rng.standard_normal(DIM, dtype=np.float32)
    asked = scale * rng.standard_normal((N_ASKED, DIM), dtype=np.float32) + lean
    asked /= np.linalg.norm(asked, axis=1, keepdims=True)
    share = np.arange(1, N_ASKED + 1) ** -EXPONENT
    noise = np.float32(np.sqrt((1 / COSINE**2 - 1) / DIM)) if varied else np.float32(0)
    for start in range(0, n_rows, PIECE):
        size = min(PIECE, n_rows - start)
        rows = asked[rng.choice(N_ASKED, size, p=share / share.sum())]
        if varied:
            rows += noise * rng.standard_normal((size, DIM), dtype=np.float32)
        yield (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16)


def write_log(path: Path, n_rows: int, *, varied: bool) -> None:
    """Write a parquet file with an embedding and a time per row, or a `.npy` of embeddings."""
    pieces = make_pieces(n_rows, varied=varied)
    if path.suffix == ".npy":
        shape = (n_rows, DIM)
        out = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
        for start, rows in zip(range(0, n_rows, PIECE), pieces, strict=True):
            out[start : start + len(rows)] = rows
        out.flush()
        return
    import pyarrow
    from pyarrow import parquet

    kind = pyarrow.list_(pyarrow.float16(), DIM)
    schema = pyarrow.schema([("embedding", kind), ("asked_at", pyarrow.timestamp("s"))])
    with parquet.ParquetWriter(path, schema, compression="none") as writer:
        for start, rows in zip(range(0, n_rows, PIECE), pieces, strict=True):
            vectors = pyarrow.FixedSizeListArray.from_arrays(rows.ravel(), DIM)
            # The times of a month.
            seconds = 1_777_593_600 + np.arange(start, start + len(rows)) * 2_678_400 // n_rows
            times = pyarrow.array(seconds.astype("datetime64[s]"))
            writer.write_table(pyarrow.table([vectors, times], schema=schema))


def peak_bytes() -> int:
    """Return the peak memory of this process; `ru_maxrss` would include that of its parent."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no VmHWM; this needs Linux")


def build(path: Path) -> dict[str, Any]:
    """Build a bank in this process, and measure time and memory."""
    with Peak() as peak:
        started, cpu = time.perf_counter(), time.process_time()
        if path.suffix == ".npy":
            bank = Bank.of(path, normalize=True)
        else:
            bank = Bank.of(path, times="asked_at", normalize=True)
        seconds, cpu_seconds = time.perf_counter() - started, time.process_time() - cpu
    with tempfile.TemporaryDirectory() as folder:
        bank.save(Path(folder, "bank.safetensors"))
        size = Path(folder, "bank.safetensors").stat().st_size
    return {
        "n_seen": bank.n_seen,
        "n_unique": len(bank),
        "seconds": round(seconds, 1),
        "cpu_seconds": round(cpu_seconds, 1),
        "own_mb": round(peak.highest / 2**20),
        "peak_mb": round(peak_bytes() / 2**20),
        "file_mb": round(size / 2**20, 1),
    }


def measure(folder: Path, n_rows: int) -> list[dict[str, Any]]:
    runs = []
    for name, varied in (("equal.parquet", False), ("varied.parquet", True), ("varied.npy", True)):
        path = folder / name
        write_log(path, n_rows, varied=varied)
        command = [sys.executable, __file__, "--build", str(path)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        run = {"log": name, "log_mb": round(path.stat().st_size / 2**20), **json.loads(done.stdout)}
        path.unlink()
        print(run, file=sys.stderr)
        runs.append(run)
    return runs


def make_queries(spectrum: str, n_rows: int, copies: float, seed: int) -> npt.NDArray[np.float32]:
    """Return unit rows; a share of them are noisy copies of others, by Zipf's law."""
    rng = np.random.default_rng(seed)
    n_unique = round(n_rows * (1 - copies))
    rows = rng.standard_normal((n_unique, DIM), dtype=np.float32)
    if spectrum == "falling":
        rows *= (np.arange(1, DIM + 1) ** -0.5).astype(np.float32)
    elif spectrum == "clustered":
        centers = np.random.default_rng(1).standard_normal((200, DIM), dtype=np.float32)
        rows += centers[rng.integers(0, 200, n_unique)]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    if n_unique == n_rows:
        return rows
    share = 1 / np.arange(1, n_unique + 1)
    asked = rng.choice(n_unique, n_rows - n_unique, p=share / share.sum())
    rows = rng.permutation(np.concatenate([rows, rows[asked]]))
    noise = np.float32(np.sqrt((1 / COSINE**2 - 1) / DIM))
    rows += noise * rng.standard_normal(rows.shape, dtype=np.float32)
    return np.asarray(rows / np.linalg.norm(rows, axis=1, keepdims=True))


def measure_shares(repeats: int = 3) -> list[dict[str, Any]]:
    """Measure the processor seconds of a product, of finding unique queries and of a fit."""
    found = []
    for spectrum in ("flat", "falling", "clustered"):
        items = make_queries(spectrum, N_ITEMS, 0, 7)
        for copies in (0.0, 0.3):
            rows = make_queries(spectrum, N_QUERIES, copies, 0)
            opened = open_embeddings(rows, name="references", normalize=False)

            def product(rows: Any = rows, items: Any = items) -> None:
                for start in range(0, N_ITEMS, 512):
                    items[start : start + 512] @ rows.T

            def fit(rows: Any = rows, items: Any = items) -> None:
                NNN().fit(items, rows, normalize=False, allow_gallery_rows=True)

            works = {"product": product, "unique": partial(unique_rows, opened), "fit": fit}
            seconds: dict[str, list[float]] = {name: [] for name in works}
            for _ in range(repeats):
                for name, work in works.items():
                    started = time.process_time()
                    work()
                    seconds[name].append(time.process_time() - started)
            least = {name: round(min(times), 2) for name, times in seconds.items()}
            n_unique = len(unique_rows(opened))
            found.append({"spectrum": spectrum, "copies": copies, "n_unique": n_unique, **least})
            print(found[-1], file=sys.stderr)
    return found


def tables(results: dict[str, Any]) -> str:
    """Return the table of the stored results as Markdown."""
    rows: list[list[Any]] = [
        [
            run["log"],
            f"{run['log_mb']:,}",
            f"{run['n_seen']:,}",
            f"{run['n_unique']:,}",
            f"{run['seconds']:.0f}",
            f"{run['cpu_seconds']:.0f}",
            f"{run['own_mb']:,}",
            f"{run['peak_mb']:,}",
            f"{run['file_mb']:.1f}",
        ]
        for run in results["runs"]
    ]
    head = [
        "log", "log, MB", "queries", "unique", "seconds", "CPU seconds", "memory, MB",
        "with mapped files, MB", "bank, MB",
    ]  # fmt: skip
    cpu = results["machine"]
    shares: list[list[Any]] = [
        [
            share["spectrum"],
            f"{share['copies']:.0%}",
            f"{share['n_unique']:,}",
            f"{share['product']:.1f}",
            f"{share['unique'] / share['product']:.2f}",
            f"{share['fit'] / share['product']:.2f}",
        ]
        for share in results["shares"]
    ]
    names = ["spectrum", "copies", "unique", "product, CPU s", "unique / product", "fit / product"]
    return (
        f"{table(head, rows)}\n\n{table(names, shares)}\n\n{DIM} dimensions; {cpu['cpu']}, "
        f"{cpu['cores']} cores, numpy {results['versions']['numpy']}."
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=1_000_000)
    add_options(parser)
    parser.add_argument("--folder", type=Path, help="for 1 GB of temporary files")
    parser.add_argument("--build", type=Path, help="only measure a bank of this log")
    options = parser.parse_args()
    if options.build:
        print(json.dumps(build(options.build)))
        return 0
    if options.tables:
        return print_stored(options.output or OUTPUT, tables)
    with tempfile.TemporaryDirectory(dir=options.folder) as folder:
        runs = measure(Path(folder), options.rows)
    results = {
        "runs": runs,
        "shares": measure_shares(),
        "n_rows": options.rows,
        "dim": DIM,
        "seed": 0,
        **machine(),
    }
    print(tables(results))
    store(options.output, results)
    return 0


if __name__ == "__main__":
    sys.exit(main())
