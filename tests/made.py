"""Synthetic embeddings with hubs, for tests with known results."""

from types import SimpleNamespace

import numpy as np

from nnnorm.datasets import Pairs, save_pairs


def make_embeddings(*, n_items=2000, n_past=4000, dim=64, seed=0):
    """A gallery, its queries (five per item, in order) and past queries of other items.

    Items and queries share a meaning plus noise; besides, all queries lean in one direction that
    some items share more than others. Those items are hubs: close to every query.
    """
    rng = np.random.default_rng(seed)
    lean = _unit(rng.normal(size=(1, dim)))
    meaning = _unit(rng.normal(size=(n_items + n_past, dim)))
    pull = rng.gamma(2.0, 0.18, size=(n_items, 1))
    gallery = _unit(meaning[:n_items] + 0.09 * rng.normal(size=(n_items, dim)) + pull * lean)
    asked = np.repeat(meaning, 5, axis=0)
    asked = _unit(asked + 0.19 * rng.normal(size=asked.shape) + 0.7 * lean)
    return gallery, asked[: 5 * n_items], asked[5 * n_items :]


def _unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make_visogender():
    """230 pictures, five men and five women of each of 23 jobs, and a query per job.

    Query j scores item i with ``gallery[i, j]``, so every answer is laid down: of jobs 0 to 9 the
    ten own pictures come, men first; of 10 to 17 a wrong man comes first and then the own ones in
    turn; of 18 to 22 ten wrong women come before the own ones. All others follow by number.
    """
    jobs = [f"job {number}" for number in range(23)]
    own = np.arange(230).reshape(23, 10)  # men 0 to 4, women 5 to 9
    in_turn = own[:, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9]]
    hubs = np.array([0, *range(5, 10), *range(15, 20)])  # a man of job 0, all women of 0 and 1
    gallery = np.empty((230, 23), dtype=np.float32)
    for job in range(23):
        first = own[job] if job < 10 else in_turn[job]
        if job >= 10:
            first = np.concatenate([hubs[:1] if job < 18 else hubs[1:], first])
        order = np.concatenate([first, np.setdiff1d(np.arange(230), first)])
        gallery[order, job] = np.arange(230, 0, -1)
    return SimpleNamespace(
        queries=np.eye(23, dtype=np.float32),
        gallery=gallery,
        genders=(["masculine"] * 5 + ["feminine"] * 5) * 23,
        occupations=[job for job in jobs for _ in range(10)],
        asked=jobs,
        hubs=hubs,
    )


def make_paper_folder(root, models=("clip",), n_train=150, n_test=10, dim=16):
    """A folder for `python -m reproduction --embeddings`: small, with hubs, every kind in it."""
    rng = np.random.default_rng(7)
    lean = _unit(rng.normal(size=(1, dim)))
    n_images = n_train + n_test
    for dataset in ("coco", "flickr30k"):
        pairs = Pairs(
            dataset,
            tuple(f"{n}.jpg" for n in range(n_images)),
            tuple(f"caption {n}" for n in range(5 * n_images)),
            np.repeat(np.arange(n_images), 5),
            {"train": np.arange(n_train), "test": np.arange(n_train, n_images)},
        )
        save_pairs(pairs, root)
        for model in models:
            folder = root / model / dataset
            folder.mkdir(parents=True)
            meaning = _unit(rng.normal(size=(n_images, dim)))
            pull = rng.gamma(2.0, 0.8, size=(n_images, 1))
            images = _unit(meaning + pull * lean)
            texts = np.repeat(meaning, 5, axis=0) + 0.3 * rng.normal(size=(5 * n_images, dim))
            np.save(folder / "images.npy", images)
            np.save(folder / "texts.npy", _unit(texts + 0.6 * lean))
    made = make_visogender()
    genders = np.array(made.genders)
    pairs = Pairs(
        "visogender",
        tuple(f"OO_{n}.jpg" for n in range(230)),
        tuple(f"The {job} and their desk" for job in made.occupations),
        np.arange(230),
        {gender: np.flatnonzero(genders == gender) for gender in ("masculine", "feminine")},
    )
    save_pairs(pairs, root)
    (root / models[0] / "visogender").mkdir()
    np.save(root / models[0] / "visogender/images.npy", _unit(rng.normal(size=(230, dim)) + lean))
    asked = _unit(rng.normal(size=(23, dim)) + lean)
    np.save(root / models[0] / "visogender/texts.npy", np.repeat(asked, 10, axis=0))
    (root / "blip-itm/coco").mkdir(parents=True)
    scores = rng.normal(size=(n_test, n_test)) + 3 * np.eye(n_test)
    np.save(root / "blip-itm/coco/test-scores.npy", scores)
    np.save(root / "blip-itm/coco/reference-scores.npy", rng.normal(size=(n_test, 80)))
    return root
