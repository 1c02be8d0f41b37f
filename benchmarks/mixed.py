"""Measures `groups=` on mixed galleries, compared with no groups and with naive corrections.

- *CLIP mixes*: photos that answer, and texts of other photos that distract; text queries. Unsplash
  and COCO, in halves, with one photo to nine texts, with three groups, with 16 to 128 past queries.
- *Flickr8k*: each test photo is in the gallery as a photo or as its first caption, and its other
  four captions ask for it. Shares of photos: 50 %, 90 % and 10 %.
- *Sources*: code of CoSQA, API entries of APIBench and answers of MedQuAD in one gallery.
- *Random labels*: galleries of one kind, with labels that mean nothing.
- *Detection*: how far apart `check` finds the clusters of each gallery.

    python benchmarks/mixed.py             # measure, write JSON, print the tables
    python benchmarks/mixed.py --tables    # print the tables of the stored JSON
"""

import argparse
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from cases import DATA, SETS, Floats, Ints, Judge, load, load_set, searches
from harness import can_measure, run_command
from real_sets import RESULTS, machine, points, table, what_is_missing

import nnnorm
from nnnorm.dedup import drop_copies
from nnnorm.evaluation.clusters import FAR_APART, find_clusters
from nnnorm.evaluation.results import interval_of_difference
from nnnorm.methods.nnn import choose_reference_k

OUTPUT = RESULTS / "mixed.json"
PAGE = "guide/mixed-galleries.md"
N_SEEDS = 8
SMALL = (16, 32, 64, 128)
SHARES = (0.5, 0.9, 0.1)
# The number of groups of n items with random labels.
LABELS: dict[str, Callable[[int], int]] = {
    "2 groups": lambda n: 2,
    "5 groups": lambda n: 5,
    "about 10 items per group": lambda n: n // 10,
}
MOST_LABELLED = 2000  # items of a gallery with random labels


class Mix(NamedTuple):
    """A gallery with a label per item, test queries with their right item, and past queries."""

    gallery: Floats
    groups: npt.NDArray[np.str_]
    queries: Floats
    right: Ints
    ids: Ints  # related queries have the same number
    past: Floats


# --- galleries -----------------------------------------------------------------------------------


def pairs_of(data: Path, name: str) -> tuple[Floats, Floats]:
    """Return photos and texts in the same order."""
    queries, items, pairs = load_set(data, name)
    _, first = np.unique(pairs[:, 0], return_index=True)
    return items[pairs[first, 1]], queries[pairs[first, 0]]


def clip_mix(
    data: Path, name: str, seed: int, *, share: float = 0.5, n_past: int | None = None
) -> Mix:
    """Mix photos that are right items with texts of other photos."""
    photos, texts = pairs_of(data, name)
    order = np.random.default_rng([seed, 20]).permutation(len(photos))
    as_photo, as_text, past = np.split(order, [len(order) // 3, 2 * len(order) // 3])
    as_photo = as_photo[: round(len(as_text) * min(1, share / (1 - share)))]
    return Mix(
        np.concatenate([photos[as_photo], texts[as_text]]),
        np.repeat(["photo", "text"], [len(as_photo), len(as_text)]),
        texts[as_photo],
        np.arange(len(as_photo)),
        as_photo,
        texts[past[:n_past]],
    )


def clip_three(data: Path, seed: int) -> Mix:
    """Mix photos of two sets, which are right items, with texts of both."""
    first, second = (clip_mix(data, name, seed) for name in ("unsplash500", "amazon1293"))
    kinds = (np.char.add(mix.groups, f" {n}") for n, mix in enumerate((first, second)))
    groups = np.concatenate(list(kinds))
    groups[np.char.startswith(groups, "text")] = "text"
    return Mix(
        np.concatenate([first.gallery, second.gallery]),
        groups,
        np.concatenate([first.queries, second.queries]),
        np.concatenate([first.right, len(first.gallery) + second.right]),
        np.concatenate([first.ids, 10_000 + second.ids]),
        np.concatenate([first.past, second.past]),
    )


def flickr_mix(data: Path, seed: int, *, share: float) -> Mix:
    """Mix photos with first captions; the query of an item is one of its other four captions."""
    folder = data / "flickr8k"
    photos, captions = load(folder / "image.npy"), load(folder / "caption.npy")
    test, train = (np.load(folder / f"{split}_images.npy") for split in ("test", "train"))
    rng = np.random.default_rng([seed, 21])
    is_photo = rng.random(len(test)) < share
    past = captions[5 * rng.choice(train, 4000, replace=False) + 2]
    asked = (5 * test[:, None] + np.arange(1, 5)).ravel()
    return Mix(
        np.where(is_photo[:, None], photos[test], captions[5 * test]),
        np.where(is_photo, "photo", "text"),
        captions[asked],
        np.repeat(np.arange(len(test)), 4),
        np.repeat(test, 4),
        past,
    )


def source_mix(data: Path, seed: int) -> Mix:
    """Mix three sources by one encoder, with 400 queries each."""
    parts, n_items = [], 0
    for number, name in enumerate(("cosqa", "apibench", "medquad")):
        queries, items, pairs = load_set(data, name)
        rows = np.random.default_rng([seed, 22]).permutation(len(pairs))[:800]
        tested, known = pairs[rows[:400]], pairs[rows[400:]]
        groups, ids = np.full(len(items), name), 10_000 * number + tested[:, 0]
        right = n_items + tested[:, 1]
        parts.append((items, groups, queries[tested[:, 0]], right, ids, queries[known[:, 0]]))
        n_items += len(items)
    return Mix(*(np.concatenate(part) for part in zip(*parts, strict=True)))


def mixes() -> Iterator[tuple[str, Callable[[Path, int], Mix]]]:
    for name, title in (("unsplash500", "Unsplash"), ("clip_coco500", "COCO")):
        yield f"{title}, photos and texts", partial(clip_mix, name=name)
        yield f"{title}, 10 % photos", partial(clip_mix, name=name, share=0.1)
        for n_past in SMALL:
            yield f"{title}, {n_past} past queries", partial(clip_mix, name=name, n_past=n_past)
    yield "Unsplash and Amazon, three groups", clip_three
    for share in SHARES:
        yield f"Flickr8k, {share:.0%} photos".replace("%", " %"), partial(flickr_mix, share=share)
    yield "CoSQA, APIBench and MedQuAD", source_mix


# --- measuring -----------------------------------------------------------------------------------


def naive(gallery: Floats, groups: npt.ArrayLike, past: Floats, between: float = 1.0) -> Floats:
    """Compute the correction naively: `between` times the group's mean, alpha within groups."""
    plain = nnnorm.NNN().fit(gallery, past)  # automatic settings, and centered means
    k = int(plain.params["reference_k"])
    unique = np.asarray(drop_copies(nnnorm.open_embeddings(past)).embeddings)
    means = np.sort(gallery @ unique.T, axis=1)[:, -k:].mean(axis=1)
    labels = np.asarray(groups)
    alphas, within, of_group = np.zeros((3, len(gallery)))
    for label in np.unique(labels):
        own = labels == label
        alphas[own] = nnnorm.NNN(reference_k=k).fit(gallery[own], past).alpha
        within[own] = plain.values[own] - plain.values[own].mean()
        of_group[own] = means[own].mean()
    return np.asarray(between * of_group + alphas.mean() * within, dtype=np.float32)


def corrections(mix: Mix) -> dict[str, Floats]:
    grouped = nnnorm.NNN().fit(mix.gallery, mix.past, groups=mix.groups)
    return {
        "raw": np.zeros(len(mix.gallery), dtype=np.float32),
        "automatic": nnnorm.NNN().fit(mix.gallery, mix.past).correction,
        "groups": grouped.correction,
        "naive": naive(mix.gallery, mix.groups, mix.past),
    }


def ranks(mix: Mix, correction: Floats) -> Ints:
    """Return the number of items above the right one of each query."""
    scores = mix.queries @ mix.gallery.T - correction
    own = scores[np.arange(len(scores)), mix.right]
    return np.asarray((scores > own[:, None]).sum(axis=1))


def measure_mix(data: Path, make: Callable[..., Mix]) -> dict[str, Any]:
    found: dict[str, list[Ints]] = {}
    ids, sizes = [], {}
    for seed in range(N_SEEDS):
        mix = make(data, seed=seed)
        ids.append(mix.ids)
        sizes = {"n_items": len(mix.gallery), "n_past": len(mix.past)}
        for name, correction in corrections(mix).items():
            found.setdefault(name, []).append(ranks(mix, correction))
    clusters = np.concatenate(ids)
    hits = {name: np.concatenate(one) for name, one in found.items()}
    record: dict[str, Any] = {**sizes, "n_queries": len(clusters)}
    for k in (1, 10):
        record |= {f"{name}_r{k}": 100 * float((one < k).mean()) for name, one in hits.items()}
        gain = interval_of_difference(hits["groups"] < k, hits["automatic"] < k, clusters)
        record[f"gain_r{k}"] = [100 * gain.mean, 100 * gain.low, 100 * gain.high]
    return {name: np.round(value, 2).tolist() for name, value in record.items()}


def measure_random(data: Path) -> list[dict[str, Any]]:
    """Measure galleries of one kind with random labels: the change from no groups, in points."""
    gains: dict[tuple[str, str], list[float]] = {}
    for search in searches(data, 0):
        if len(search.gallery) > MOST_LABELLED or len(search.pool) > 6000:
            continue
        judge = Judge(search)
        plain = judge.gains(nnnorm.NNN().fit(search.gallery, search.pool).correction).mean()
        for title, count in LABELS.items():
            n_groups = count(len(search.gallery))
            labels = np.random.default_rng(23).integers(0, n_groups, len(search.gallery))
            bias = nnnorm.NNN().fit(search.gallery, search.pool, groups=labels)
            change = float(judge.gains(bias.correction).mean() - plain)
            gains.setdefault((search.name, title), []).append(change)
    return [
        {"search": name, "labels": title, "change": round(float(np.mean(changes)), 3)}
        for (name, title), changes in gains.items()
    ]


def measure_detection(data: Path) -> list[dict[str, Any]]:
    """Measure the separation of the two clusters of each gallery."""
    found = []
    galleries = [
        (title, "mixed", mix.gallery, mix.past)
        for title, mix in ((title, make(data, seed=0)) for title, make in mixes())
    ]
    galleries += [(one.name, "one kind", one.gallery, one.pool) for one in searches(data, 0)]
    for title, kind, gallery, past in galleries:
        items, bank = nnnorm.open_embeddings(gallery), nnnorm.open_embeddings(past)
        _, apart = find_clusters(items, bank, choose_reference_k(len(bank), len(items)))
        where = {"gallery": title, "kind": kind, "n_items": len(items)}
        found.append({**where, "apart": round(apart, 2), "fires": apart > FAR_APART})
    return found


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    warnings.simplefilter("ignore", nnnorm.NNNormWarning)
    records = []
    for title, make in mixes():
        records.append({"mix": title, **measure_mix(arguments.data, make)})
        print(records[-1], file=sys.stderr)
    return {
        **machine(),
        "n_seeds": N_SEEDS,
        "mixes": records,
        "random": measure_random(arguments.data),
        "detection": measure_detection(arguments.data),
    }


# --- tables --------------------------------------------------------------------------------------


SHOWN = ("Unsplash, 16 past queries",)


def tables(results: dict[str, Any]) -> str:
    rows = []
    for record in results["mixes"]:
        if record["mix"].endswith("past queries") and record["mix"] not in SHOWN:
            continue  # similar to the rows that are shown
        mean, low, high = record["gain_r10"]
        rows.append(
            [
                record["mix"],
                *(
                    f"{record[f'{name}_r1']:.1f} / {record[f'{name}_r10']:.1f}"
                    for name in ("raw", "automatic", "groups")
                ),
                f"{points(mean)} [{points(low)}, {points(high)}]",
            ]
        )
    columns = ("Gallery", "uncorrected", "`NNN()`", "with `groups`", "gain in R@10")
    changes = [one["change"] for one in results["random"]]
    n_searches = len({one["search"] for one in results["random"]})
    note = f"As a control, we assigned random labels in {n_searches} galleries with one kind of "
    note += "item each, using 2 groups, 5 groups, or groups of about 10 items. The results change "
    note += f"by {points(min(changes))} to {points(max(changes))} points, and by "
    note += f"{points(float(np.mean(changes)))} on average."
    return f"{table(columns, rows)}\n\n{note}\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure groups= on mixed galleries.")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of the embedding sets")
    known = parser.parse_known_args()[0]
    missing = what_is_missing(known.data, *SETS)
    if "--tables" not in sys.argv and not can_measure(None, missing):
        return 1
    return run_command(parser, OUTPUT, measure, tables, PAGE)


if __name__ == "__main__":
    sys.exit(main())
