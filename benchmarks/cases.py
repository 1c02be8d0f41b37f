"""Retrieval cases for rules without labels: own banks, concentrated traffic, foreign banks, logs.

A case is a gallery, test queries with their right items, and a bank. Everything is drawn from a
seed, so that the same seed gives the same halves in every benchmark. Sets without separate queries
for a bank are halved: sets of pairs by item (so that the gallery of the test half has no item that
answers a reference), the others by query.

- *own*: bank and test queries from the same source.
- *concentrated*: both come from a small part of what the gallery holds (one platform of APIBench;
  the same fifth along the queries' first principal axis).
- *foreign*: the bank comes from elsewhere (COCO captions, another platform, short searches, the
  opposite end of the first principal axis).
- *log*: a log of 6,000 queries over 1,000 pictures, drawn by Zipf's law, and the traffic of a
  caption that is not in the log, by the same popularity. "Varied" repeats carry noise (cosine 0.95
  with the caption).

R@1 is measured where pictures are involved, else the mean of hit@1 and nDCG@10.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from real_sets import JUDGED, Flickr8k, Floats, Ints, read_judged, read_unsplash500, rows_of
from rules import as_floats

from nnnorm.datasets import load_shapes

Kind: TypeAlias = Literal["own-image", "own-text", "concentrated", "foreign", "log"]

SIZES = (250, 1000, 4000)
COCO_SIZES = (64, 250, 1000, 4000, 25014)
EXPONENTS = (0.0, 0.6, 0.8, 1.0, 1.2)
PLATFORMS = ("hf", "tf", "torch")
N_LOG = 6000
N_SPLITS = 8
N_TEST = {"r1": 2000, "text": 1000}


class Task(NamedTuple):
    """A set in one direction: test queries, gallery, and queries for a bank."""

    metric: Literal["r1", "text"]
    queries: Floats
    gallery: Floats
    pairs: Ints
    pool: Floats


@dataclass(frozen=True, eq=False)
class Case:
    """A gallery, test queries and a bank.

    Attributes
    ----------
    name : str
    kind : str
    metric : str
        "r1", or "text" for the mean of hit@1 and nDCG@10.
    queries, gallery, bank : ndarray
    pairs : ndarray, shape (n_pairs, 2)
        Query row and item row.
    recent : ndarray, optional
        More queries from the source of the test queries.
    traffic : ndarray, shape (n_queries,), optional
        Share of each query in the traffic; all equal by default.
    """

    name: str
    kind: Kind
    metric: Literal["r1", "text"]
    queries: Floats
    gallery: Floats
    pairs: Ints
    bank: Floats
    recent: Floats | None = None
    traffic: npt.NDArray[np.float64] | None = None


def make_tasks(data: Path, seed: int) -> list[tuple[str, Task]]:
    """Every set in both directions where both make sense; small sets of pairs several times."""
    tasks = [*_flickr8k(data).items(), *_shapes().items()]
    for split in range(N_SPLITS):
        tasks += _pairs(data, np.random.default_rng([seed, 1, split])).items()
    return [*tasks, *_judged(data, np.random.default_rng([seed, 1])).items()]


def _pairs(data: Path, rng: np.random.Generator) -> dict[str, Task]:
    """Sets of 500 pairs, halved by item."""
    tasks = {}
    unsplash = read_unsplash500(data / "unsplash500")
    coco = read_judged(data / "clip_coco500")
    of_query = coco.pairs[np.argsort(coco.pairs[:, 0]), 1]
    for name, texts, images in (
        ("unsplash500", unsplash.text, unsplash.image),
        ("clip_coco500", coco.queries, coco.documents[of_query]),
    ):
        known, test = np.array_split(rng.permutation(len(texts)), 2)
        same = np.stack([np.arange(len(test))] * 2, axis=1)
        sides = as_floats(texts), as_floats(images)
        for direction, asks, asked in (("image", *sides), ("text", *sides[::-1])):
            task = Task("r1", asks[test], asked[test], same, asks[known])
            tasks[f"{name}-{direction}"] = task
    return tasks


def _judged(data: Path, rng: np.random.Generator) -> dict[str, Task]:
    """Sets of queries, documents and judgements, halved by query."""
    tasks = {}
    for name in (name for name in JUDGED if name != "clip_coco500"):
        judged = read_judged(data / name)
        queries, documents = as_floats(judged.queries), as_floats(judged.documents)
        tasks[name] = _halve(queries, documents, judged.pairs, rng)
        if judged.bank is not None:
            bank = as_floats(judged.bank)
            tasks[f"{name}-bank"] = Task("text", queries, documents, judged.pairs, bank)
        if name != "apibench":
            tasks[f"{name}-reverse"] = _halve(documents, queries, judged.pairs[:, ::-1], rng)
    return tasks


def _flickr8k(data: Path) -> dict[str, Task]:
    flickr8k = Flickr8k(data / "flickr8k")
    train = flickr8k.pairs.some(flickr8k.images("train"))
    test = flickr8k.pairs.some(flickr8k.images("test"))
    captions = np.arange(len(test.text))
    pairs = np.stack([captions, captions // test.n_texts], axis=1)
    images, texts = as_floats(test.image), as_floats(test.text)
    return {
        "flickr8k-image": Task("r1", texts, images, pairs, as_floats(train.text)),
        "flickr8k-text": Task("r1", images, texts, pairs[:, ::-1], as_floats(train.image)),
    }


def _shapes() -> dict[str, Task]:
    shapes = load_shapes()
    pairs = np.stack([np.arange(len(shapes.queries)), shapes.truth], axis=1)
    pictures = shapes.gallery_references
    return {
        "shapes-image": Task("r1", shapes.queries, shapes.gallery, pairs, shapes.references),
        "shapes-text": Task("r1", shapes.gallery, shapes.queries, pairs[:, ::-1], pictures),
    }


def _halve(queries: Floats, gallery: Floats, pairs: Ints, rng: np.random.Generator) -> Task:
    known, test = np.array_split(rng.permutation(np.unique(pairs[:, 0])), 2)
    return Task("text", *_some(queries, pairs, np.sort(test), gallery), queries[known])


def _some(queries: Floats, pairs: Ints, some: Ints, gallery: Floats) -> tuple[Floats, Floats, Ints]:
    """Some queries and their pairs, numbered anew, with the whole gallery between them."""
    place = np.full(len(queries), -1)
    place[some] = np.arange(len(some))
    kept = pairs[place[pairs[:, 0]] >= 0]
    return queries[some], gallery, np.stack([place[kept[:, 0]], kept[:, 1]], axis=1)


def _draw(rows: Floats, size: int, rng: np.random.Generator) -> Floats:
    if size >= len(rows):
        return rows
    return rows[rng.choice(len(rows), size, replace=False)]


def fewer_queries(case: Case, seed: int) -> Case:
    """At most `N_TEST` of the test queries, for the sake of time."""
    size = N_TEST[case.metric]
    if len(case.queries) <= size or case.traffic is not None:
        return case
    rng = np.random.default_rng([seed, 5])
    some = np.sort(rng.choice(len(case.queries), size, replace=False))
    queries, _, pairs = _some(case.queries, case.pairs, some, case.gallery)
    return replace(case, queries=queries, pairs=pairs)


def own_cases(data: Path, seed: int) -> Iterator[Case]:
    rng = np.random.default_rng([seed, 2])
    for name, task in make_tasks(data, seed):
        metric, queries, gallery, pairs, pool = task
        sizes = [n for n in SIZES if n < len(pool)] if metric == "r1" else []
        if len(sizes) < len(SIZES):
            sizes.append(len(pool))
        for size in sizes:
            kind: Kind = "own-image" if metric == "r1" else "own-text"
            bank = _draw(pool, size, rng)
            yield Case(f"{name}@{size}", kind, metric, queries, gallery, pairs, bank)


def stress_cases(data: Path, seed: int) -> Iterator[Case]:
    """Concentrated traffic and foreign banks."""
    yield from platform_cases(data, seed)
    yield from coco_cases(data, seed)
    yield from search_cases(data, seed)
    yield from axis_cases(data, seed)


def platform_cases(data: Path, seed: int) -> Iterator[Case]:
    """APIBench: bank and test from each pair of platforms."""
    rng = np.random.default_rng([seed, 4, 0])
    judged = read_judged(data / "apibench")
    queries, documents = as_floats(judged.queries), as_floats(judged.documents)
    assert judged.source is not None
    platform = np.minimum(judged.source, 2)
    halves = [
        np.array_split(rng.permutation(np.flatnonzero(platform == number)), 2)
        for number in range(len(PLATFORMS))
    ]
    for (known, _), bank_name in zip(halves, PLATFORMS, strict=True):
        for (recent, test), name in zip(halves, PLATFORMS, strict=True):
            kind: Kind = "concentrated" if name == bank_name else "foreign"
            tested = _some(queries, judged.pairs, np.sort(test), documents)
            yield Case(
                f"apibench-{bank_name}>{name}",
                kind,
                "text",
                *tested,
                queries[known],
                None if kind == "concentrated" else queries[recent],
            )


def coco_cases(data: Path, seed: int, sizes: Sequence[int] = COCO_SIZES) -> Iterator[Case]:
    rng = np.random.default_rng([seed, 4, 1])
    coco = as_floats(Flickr8k(data / "flickr8k").coco)
    metric, queries, gallery, pairs, pool = _flickr8k(data)["flickr8k-image"]
    for size in sizes:
        bank = _draw(coco, size, rng)
        yield Case(f"coco@{size}", "foreign", metric, queries, gallery, pairs, bank, pool)


def search_cases(data: Path, seed: int) -> Iterator[Case]:
    """Shapes, with the bank of short searches."""
    rng = np.random.default_rng([seed, 4, 2])
    metric, queries, gallery, pairs, pool = _shapes()["shapes-image"]
    for size in (64, 250, 1000, 5000):
        bank = _draw(load_shapes().other_references, size, rng)
        yield Case(f"searches@{size}", "foreign", metric, queries, gallery, pairs, bank, pool)


def axis_cases(data: Path, seed: int) -> Iterator[Case]:
    """Bank and test queries from opposite ends, and from the same end, of the first axis."""
    rng = np.random.default_rng([seed, 4, 3])
    for name, task in make_tasks(data, seed):
        if name.endswith("-bank"):
            continue
        metric, queries, gallery, pairs, pool = task
        along = _first_axis(np.concatenate([queries, pool]))
        for end, sign in enumerate((1, -1)):
            of_queries, of_pool = (sign * part for part in np.split(along, [len(queries)]))
            tested = _some(queries, pairs, _lowest(of_queries, 0.4), gallery)
            far = _draw(pool[_lowest(-of_pool, 0.4)], 4000, rng)
            near = pool[_lowest(of_pool, 0.4)]
            yield Case(f"axis-{name}-{end}", "foreign", metric, *tested, far, near)
            tested = _some(queries, pairs, _lowest(of_queries, 0.2), gallery)
            near = _draw(pool[_lowest(of_pool, 0.2)], 4000, rng)
            yield Case(f"same-end-{name}-{end}", "concentrated", metric, *tested, near)


def _first_axis(rows: Floats) -> Floats:
    centred = rows - rows.mean(axis=0)
    _, axes = np.linalg.eigh(centred.T @ centred)
    return np.asarray(centred @ axes[:, -1])


def _lowest(values: Floats, share: float) -> Ints:
    return np.sort(np.argsort(values)[: int(share * len(values))])


def log_sets(data: Path) -> dict[str, tuple[Floats, Floats]]:
    """Five captions of each picture, shape ``(n_items, 5, dim)``, and the pictures."""
    flickr8k = Flickr8k(data / "flickr8k")
    test, shapes = flickr8k.pairs.some(flickr8k.images("test")), load_shapes()
    sets = {
        "flickr8k": (as_floats(test.text), as_floats(test.image)),
        "shapes": (shapes.queries, shapes.gallery),
    }
    return {
        name: (captions[rows_of(np.arange(len(items)), 5)].reshape(len(items), 5, -1), items)
        for name, (captions, items) in sets.items()
    }


def log_cases(
    data: Path, seed: int, exponents: Sequence[float] = EXPONENTS
) -> Iterator[tuple[str, float, bool, Case]]:
    """``(set, exponent, whether repeats are varied, case)``."""
    for name, (of_item, gallery) in log_sets(data).items():
        n_items = len(gallery)
        for exponent in exponents:
            rng = np.random.default_rng([seed, 3, round(10 * exponent)])
            popularity = (1 / np.arange(1, n_items + 1) ** exponent)[rng.permutation(n_items)]
            popularity /= popularity.sum()
            items = rng.choice(n_items, N_LOG, p=popularity)
            log = of_item[items, rng.integers(0, 4, N_LOG)]
            noise = as_floats(rng.normal(size=log.shape))
            varied = as_floats(log + np.float32(np.sqrt(1 / 0.95**2 - 1)) * noise)
            same = np.stack([np.arange(n_items)] * 2, axis=1)
            for is_varied, bank in ((False, log), (True, varied)):
                label = f"log-{name}-{'varied' if is_varied else 'equal'}-{exponent}"
                asked = np.ascontiguousarray(of_item[:, 4])
                case = Case(label, "log", "r1", asked, gallery, same, bank, None, popularity)
                yield name, exponent, is_varied, case


class Judge:
    """Measures corrections on the test queries of a case; `without` is no correction."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.scores = case.queries @ case.gallery.T
        self.right = np.zeros(self.scores.shape, dtype=bool)
        self.right[case.pairs[:, 0], case.pairs[:, 1]] = True
        self.without = float(self.measure(None))

    def hits(self, correction: Floats | None) -> npt.NDArray[np.bool_]:
        """Whether each query's first item is right."""
        corrected = self.scores if correction is None else self.scores - correction
        return np.asarray(self.right[np.arange(len(self.scores)), corrected.argmax(axis=1)])

    def measure(self, correction: Floats | None) -> float:
        """In points."""
        values = self.hits(correction).astype(np.float64)
        if self.case.metric == "text":
            values = (values + self._ndcg(correction)) / 2
        if self.case.traffic is not None:
            return float(100 * (values * self.case.traffic).sum())
        return float(100 * values.mean())

    def gain(self, correction: Floats) -> float:
        """Points above no correction."""
        return self.measure(correction) - self.without

    def _ndcg(self, correction: Floats | None, n_best: int = 10) -> npt.NDArray[np.float64]:
        corrected = self.scores if correction is None else self.scores - correction
        best = np.argpartition(-corrected, n_best, axis=1)[:, :n_best]
        order = np.argsort(-np.take_along_axis(corrected, best, axis=1), axis=1)
        right = np.take_along_axis(self.right, np.take_along_axis(best, order, axis=1), axis=1)
        discount = 1 / np.log2(np.arange(2, n_best + 2))
        n_right = np.clip(self.right.sum(axis=1), 1, n_best)
        return np.asarray(right @ discount / np.cumsum(discount)[n_right - 1])
