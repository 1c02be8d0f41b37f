"""Rebuild the shapes that ship with nnnorm: draw, caption, train, export.

    python examples/shapes/build.py                # into src/nnnorm/datasets/shapes.npz
    python examples/shapes/build.py -o other.npz   # somewhere else, to compare

Needs torch (`pip install 'nnnorm[torch]'`, a CPU build is enough) and takes a minute on two cores.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import model
import numpy as np
import torch
from generate import make_scenes, write_captions, write_searches

import nnnorm
from nnnorm.datasets.shapes import draw_scene
from nnnorm.evaluation.hubness import count_occurrences, measure_hubness
from nnnorm.evaluation.metrics import evaluate
from nnnorm.files import check_writable, write_whole

SHIPPED = Path(nnnorm.__file__).parent / "datasets" / "shapes.npz"
# Scenes of few kinds, for the bank that is out of distribution.
OTHER = {
    "shapes": ("circle", "square", "triangle", "hexagon", "arrow", "moon"),
    "colors": ("red", "orange", "yellow", "pink", "brown"),
}


def main() -> None:
    """Build everything, print how good it is, and write one file."""
    options = _parse()
    began = time.perf_counter()
    check_writable(options.output)
    if options.threads:
        torch.set_num_threads(options.threads)
    n_test, n_train, seed = options.test, options.train, options.seed
    scenes = make_scenes(2 * n_test + n_train, seed=seed)
    parts = {
        "test": slice(0, n_test),
        "validation": slice(n_test, 2 * n_test),
        "train": slice(2 * n_test, None),
    }
    captions = _five_each(scenes, write_captions, seed)
    say(f"{len(scenes):,} scenes, {len(captions):,} captions", began)

    pictures = np.stack([draw_scene(scene, options.resolution) for scene in scenes])
    pictures = np.ascontiguousarray(pictures.transpose(0, 3, 1, 2))
    say(f"drawn at {options.resolution} × {options.resolution}", began)

    features = model.find_features(captions[10 * n_test :], least=5)
    rows = model.index_features(captions, features)
    image, text = model.train(
        pictures[parts["train"]],
        rows[10 * n_test :],
        len(features),
        dim=options.dim,
        epochs=options.epochs,
        seed=seed,
    )
    # The tower is stored rounded, and that one encodes the captions when they are loaded.
    text.half().float()
    say("trained", began)

    n_bank = min(options.bank, n_train)
    seen = model.encode_pictures(image, pictures[: 2 * n_test + n_bank]).astype(np.float16)
    other_scenes = make_scenes(options.other, seed=seed + 1, counts=(2, 3), **OTHER)
    searches = _five_each(other_scenes, write_searches, seed + 1)
    n = n_test
    report(
        seen[:n],
        model.encode_captions(text, rows[: 5 * n]),
        model.encode_captions(text, rows[10 * n : 10 * n + 5 * n_bank]),
    )
    arrays = {
        "gallery": seen[:n],
        "validation_gallery": seen[n : 2 * n],
        "gallery_references": seen[2 * n :],
        "scenes": scenes[:n],
        "validation_scenes": scenes[n : 2 * n],
        "reference_scenes": scenes[2 * n : 2 * n + n_bank],
        "other_scenes": other_scenes,
        "captions": _as_bytes(captions[: 5 * n]),
        "validation_captions": _as_bytes(captions[5 * n : 10 * n]),
        "reference_captions": _as_bytes(captions[10 * n : 10 * n + 5 * n_bank]),
        "other_captions": _as_bytes(searches),
        "check_texts": _as_bytes(captions[:32]),
        "check_vectors": model.encode_captions(text, rows[:32]),
        **_export_tower(text, features),
    }
    write_whole(options.output, lambda file: np.savez_compressed(file, **arrays))
    size = options.output.stat().st_size / 1e6
    say(f"{options.output} written, {size:.1f} MB", began)


def report(gallery: np.ndarray, queries: np.ndarray, references: np.ndarray) -> None:
    """Print R@K and the statistics of N_1, without a correction and with the untuned NNN."""
    truth = np.arange(len(queries)) // 5
    bias = nnnorm.NNN().fit(gallery, references)
    print(f"{'':12} {'R@1':>6} {'R@5':>6} {'R@10':>6} {'kurtosis':>9} {'most':>5} {'never':>6}")
    for label, correction in (("uncorrected", None), ("NNN, untuned", bias)):
        found = evaluate(queries, gallery, correction, truth=truth)
        hubs = measure_hubness(count_occurrences(found.top1, len(gallery)))
        recalls = " ".join(f"{100 * found.recall(k):6.1f}" for k in (1, 5, 10))
        never = f"{100 * hubs.antihub_share:.1f}%"
        print(f"{label:12} {recalls} {hubs.kurtosis:9.1f} {hubs.max:5d} {never:>6}")


def say(text: str, began: float) -> None:
    """Print what is done and how long it took from the start."""
    print(f"[{time.perf_counter() - began:5.0f} s] {text}", flush=True)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=SHIPPED)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--train", type=int, default=14_000, help="training scenes")
    parser.add_argument("--test", type=int, default=1_000, help="scenes of test, of validation")
    parser.add_argument("--bank", type=int, default=4_000, help="training scenes in the bank")
    parser.add_argument("--other", type=int, default=1_000, help="scenes of the other bank")
    parser.add_argument("--resolution", type=int, default=48)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--threads", type=int, help="torch's; its own choice by default")
    return parser.parse_args()


def _five_each(scenes: np.ndarray, write: Callable[..., list[str]], seed: int) -> list[str]:
    numbered = enumerate(scenes, start=1_000_000 * seed)
    return [text for number, scene in numbered for text in write(scene, seed=number)]


def _as_bytes(texts: list[str]) -> np.ndarray:
    return np.frombuffer("\n".join(texts).encode("ascii"), dtype=np.uint8)


def _export_tower(text: model.TextTower, features: list[str]) -> dict[str, np.ndarray]:
    words = [feature for feature in features if " " not in feature]
    layers = {
        "features": text.features.weight,
        "bias": text.bias,
        "middle": text.middle.weight,
        "middle_bias": text.middle.bias,
        "last": text.last.weight,
        "last_bias": text.last.bias,
    }
    return {
        "tower_words": _as_bytes(words),
        "tower_pairs": _as_bytes(features[len(words) :]),
        **{
            f"tower_{name}": part.detach().numpy().astype(np.float16)
            for name, part in layers.items()
        },
    }


if __name__ == "__main__":
    main()
