"""The engines of the contract, and the data that all tests of indexes share.

A new engine is a row in `CASES`. All run on the real engine.
"""

import functools
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import pytest
from faiss import omp_set_num_threads

import nnnorm
from nnnorm.index import build_index
from tests import servers

# Small searches gain nothing from threads, and threads that wait for a busy core lose much.
omp_set_num_threads(1)

DIM, N_ITEMS, N_FIRST = 13, 400, 60
FIRST, MORE = range(N_FIRST), range(N_FIRST, N_FIRST + 30)


@dataclass(frozen=True)
class Case:
    """One kind of index of one engine, and how exact it is."""

    name: str
    url: str  # {folder} is that of the test, {memory} one in memory, {name} the collection
    server: str = ""  # what starts {server}, in tests/servers.py
    recall: float = 1.0
    slow: bool = True  # left out of `make test-fast`
    filter: object = "row < 20"  # the items 0 to 19, in the engine's language

    @property
    def engine(self):
        return self.url.partition(":")[0]

    def address(self):
        return getattr(servers, self.server)() if self.server else None

    def at(self, folder, name="photos"):
        return self.url.format(
            folder=folder,
            memory=servers.in_memory(folder),
            server=(self.address() or "").removeprefix("postgresql:"),
            name=servers.unique(folder, name) if self.server else name,
        )


def _keep(entry):
    return entry["row"] < 20


_QDRANT = {"must": [{"key": "row", "range": {"lt": 20}}]}
_CHROMA = {"row": {"$lt": 20}}
# Tables this small would never use their index: the planner may not scan them instead.
_HNSW_TABLE = "{server}&table={name}&kind=hnsw&ef=400&options=-c%20enable_seqscan%3Doff"

_FOLDER = "{folder}/{name}?"
_DATABASE = "{memory}/photos.db?table={name}"
_COLLECTION = "{memory}/photos.db?collection={name}"

CASES = [
    Case("faiss", "faiss:{folder}/{name}", slow=False, filter=_keep),
    Case("faiss in memory", "faiss:", filter=_keep),
    Case("faiss hnsw", f"faiss:{_FOLDER}factory=HNSW32&ef=400", recall=0.99, filter=_keep),
    Case("faiss ivf", f"faiss:{_FOLDER}factory=IVF8,Flat&probes=8", filter=[*map(str, range(20))]),
    Case("faiss sq", f"faiss:{_FOLDER}factory=SQ8,RFlat", recall=0.99, filter='{"early": true}'),
    Case("faiss pq", f"faiss:{_FOLDER}factory=PQ16x4np,RFlat", recall=0.6, filter={"early": True}),
    Case(
        "hnswlib",
        f"hnswlib:{_FOLDER}ef=400&threads=1",
        recall=0.99,
        slow=False,
        filter={"early": True},
    ),
    Case("usearch", f"usearch:{_FOLDER}ef=400&threads=1", recall=0.99, slow=False, filter=_keep),
    Case("sqlite", f"sqlite:{_DATABASE}", slow=False),
    Case("duckdb", f"duckdb:{_DATABASE}", slow=False),
    Case("pgvector", "pgvector:{server}&table={name}", "postgres"),
    Case("pgvector hnsw", f"pgvector:{_HNSW_TABLE}", "postgres", 0.99),
    Case("lancedb", f"lancedb:{_DATABASE}"),
    Case("lancedb ivf", f"lancedb:{_DATABASE}&kind=ivf"),
    Case("qdrant", f"qdrant:{_COLLECTION}", filter=_QDRANT),
    Case("qdrant int8", f"qdrant:{_COLLECTION}&quantize=int8", filter=_QDRANT),
    Case("milvus", f"milvus:{_COLLECTION}"),
    Case("milvus hnsw", f"milvus:{_COLLECTION}&kind=hnsw", recall=0.99),
    Case("milvus server", "milvus:{server}/{name}", "milvus"),
    Case("chroma", f"chroma:{_COLLECTION}&ef=400", recall=0.99, filter=_CHROMA),
    Case("chroma server", "chroma:{server}/{name}?ef=400", "chroma", 0.99, filter=_CHROMA),
]
# One case per engine, for what the kind of index doesn't change.
ENGINES = list({case.engine: case for case in reversed(CASES)}.values())[::-1]
SERVERS = [case for case in CASES if case.server]


def parametrize(cases):
    """Run a test on every case; one of every engine in a file is quick."""
    marks = {True: [pytest.mark.slow], False: []}
    return pytest.mark.parametrize(
        "case", [pytest.param(case, marks=marks[case.slow]) for case in cases], ids=lambda c: c.name
    )


@functools.cache
def world():
    """Items by row, queries, and three correctors with other past queries, k and weights."""
    rng = np.random.default_rng(0)
    lean = rng.normal(size=DIM)

    def rows(n, more):
        drawn = rng.normal(size=(n, DIM)) + more * lean
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    items, queries = rows(N_ITEMS, rng.gamma(1.0, 0.5, (N_ITEMS, 1))), rows(12, 1)
    correctors = [
        nnnorm.Corrector.fit(items[:N_FIRST], rows(150, more), nnnorm.NNN(k, weight))
        for k, weight, more in ((16, 0.75, 1), (8, 0.5, 0.5), (4, 0.9, 1.5))
    ]
    values = [corrector.bias_for(items).values for corrector in correctors]
    return SimpleNamespace(items=items, queries=queries, correctors=correctors, values=values)


def described(rows):
    return [{"row": int(row), "early": bool(row < 20), "title": f"photo {row}"} for row in rows]


def arguments(rows, names=str):
    """What writes these rows of the world under their own ids."""
    listed = list(rows)
    return world().items[listed], {"ids": list(map(names, listed)), "metadata": described(listed)}


def build(case, folder, *, corrector=0, names=str, **options):
    rows, given = arguments(FIRST, names)
    chosen = world().correctors[corrector]
    url = case.at(folder)
    return build_index(url, rows, chosen, **{**given, **options})


def expected(rows, corrector, *, k=10, weight=None):
    """Naive: scores of all rows, sorted."""
    made, listed = world(), np.array(list(rows))
    used = made.correctors[corrector].weight if weight is None else weight
    scores = made.queries @ made.items[listed].T - used * made.values[corrector][listed]
    order = np.argsort(-scores, axis=1, kind="stable")[:, :k]
    return (
        listed[order],
        np.take_along_axis(scores, order, axis=1),
        dict(zip(listed.tolist(), scores.T, strict=True)),
    )


def check(case, hits, rows, corrector, **options):
    """Hits are the best of these rows, up to the recall of the case, with exact scores."""
    _, best, scores = expected(rows, corrector, **options)
    assert hits.scores.shape == best.shape
    found = np.array(
        [[scores[int(own)][row] for own in ids] for row, ids in enumerate(hits.ids.tolist())]
    ).reshape(best.shape)
    np.testing.assert_allclose(hits.scores, found, atol=2e-5)
    assert (found >= best[:, -1:] - 1e-5).mean() >= case.recall


def held(index):
    """The rows that an index holds by id, once each has been found to be what it should be."""
    made, rows = world(), {}
    which = [one.fingerprint for one in made.correctors].index(index.config.corrector)
    for part in index.scan():
        for own, row, value, entry in zip(
            part.ids.tolist(), part.vectors, part.bias, part.metadata, strict=True
        ):
            assert entry == described([entry["row"]])[0]
            np.testing.assert_allclose(row, made.items[entry["row"]], atol=1e-5)
            np.testing.assert_allclose(value, made.values[which][entry["row"]], atol=1e-4)
            assert own not in rows
            rows[own] = entry["row"]
    return rows, which


def same_place(index, corrector=None):
    """Open an index again through the same client, as another part of a program would."""
    from nnnorm.index import CorrectedIndex

    backend = index.backend
    place = getattr(backend, "_client", None) or backend.place
    options = {name: getattr(backend.options, name) for name in vars(backend.options)}
    return CorrectedIndex(type(backend)(place, **options), corrector)
