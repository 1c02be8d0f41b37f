"""How much of its time `nnnorm encode` spends in the model: pictures, prepared ahead of it.

2,000 JPEGs of 640 x 480 pixels are drawn and encoded by three CLIPs with random weights, built from
their configuration: ViT-B/32, where the model takes nearly all of the time, a tiny one, where
decoding does, and a small one between them. Three times are taken in turns, for parts of the
pictures, and added up:

- *decoding*: opening, decoding and preparing all pictures on all cores, a process per core,
- *model*: the model alone, on all cores, on pictures that are prepared in memory,
- *encode*: `encode_to_folder`, from the files to the finished folder, with all checks.

    python benchmarks/encode.py [--pictures 2000] [--rounds 5] [--output FILE.json]
    python benchmarks/encode.py --tables     # print the tables of the stored JSON

`--types` also times other number types and `torch.compile`.
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from harness import run_command
from real_sets import RESULTS, machine, table

from nnnorm.encoders import encode_to_folder, load_encoder

OUTPUT = RESULTS / "encode.json"
MODELS = {
    "ViT-B/32": {"hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12},
    "small": {"hidden_size": 256, "num_hidden_layers": 3, "num_attention_heads": 4},
    "tiny": {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1},
}
BATCH = 32
# As many processes as cores that may be used, as `encode` has threads.
CORES = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def draw_pictures(folder: Path, n_pictures: int) -> list[Path]:
    """JPEGs of 640 x 480 with smooth colours, shapes and some grain, as photos have."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(0)
    paths = []
    for number in range(n_pictures):
        small = rng.integers(0, 256, size=(6, 8, 3), dtype=np.uint8)
        image = Image.fromarray(small).resize((640, 480), Image.Resampling.BICUBIC)
        draw = ImageDraw.Draw(image)
        for _ in range(12):
            x, y = (int(place) for place in rng.integers(0, 480, size=2))
            color = tuple(int(part) for part in rng.integers(0, 256, size=3))
            draw.ellipse((x, y, x + 90, y + 60), fill=color)
        grain = rng.integers(-12, 13, size=(480, 640, 1), dtype=np.int16)
        pixels = np.clip(np.asarray(image, dtype=np.int16) + grain, 0, 255).astype(np.uint8)
        paths.append(folder / f"{number:05d}.jpg")
        Image.fromarray(pixels).save(paths[-1], quality=90)
    return paths


def build_clip(folder: Path, sizes: dict[str, int]) -> Path:
    """A CLIP with random weights, a tokenizer of a few words and CLIP's own image processor."""
    import torch
    import transformers
    from tokenizers import Tokenizer, models

    torch.manual_seed(0)
    vision = {**sizes, "intermediate_size": 4 * sizes["hidden_size"]}
    vision |= {"image_size": 224, "patch_size": 32}
    text = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 1, "vocab_size": 4}
    text |= {"num_attention_heads": 1, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 2}
    config = transformers.CLIPConfig(vision_config=vision, text_config=text, projection_dim=512)
    transformers.CLIPModel(config).save_pretrained(folder)
    words = Tokenizer(models.WordLevel({"<s>": 0, "</s>": 1, "<pad>": 2, "a": 3}, unk_token="a"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token="<s>", eos_token="</s>", pad_token="<pad>"
    ).save_pretrained(folder)
    about = {
        "image_processor_type": "CLIPImageProcessor",
        "size": {"shortest_edge": 224},
        "crop_size": {"height": 224, "width": 224},
        "do_resize": True,
        "do_center_crop": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "resample": 3,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


@lru_cache(maxsize=1)
def encoder_of(folder: Path) -> Any:
    return load_encoder(folder, device="cpu")


def prepare(task: tuple[Path, Sequence[Path]]) -> int:
    """Decode and prepare some pictures, in a process of its own."""
    folder, paths = task
    encoder = encoder_of(folder)
    return sum(len(encoder.prepare("images", path)) for path in paths)


def clock(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure(name: str, folder: Path, paths: Sequence[Path], rounds: int) -> dict[str, Any]:
    """The three times of one model, each summed over the parts of the pictures."""
    encoder = encoder_of(folder)
    times: dict[str, list[float]] = {"decoding": [], "model": [], "encode": [], "in model": []}
    with ProcessPoolExecutor(CORES, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(prepare, [(folder, paths[:2])] * (4 * CORES)))  # models are loaded now
        for number in range(rounds):
            part = paths[number::rounds]
            prepared = [encoder.prepare("images", path) for path in part]
            batches = [prepared[at : at + BATCH] for at in range(0, len(part), BATCH)]
            encoder.embed_prepared("images", prepared[:BATCH])
            tasks = [(folder, part[at : at + 4]) for at in range(0, len(part), 4)]

            def run_model(batches: list[list[Any]] = batches) -> None:
                for batch in batches:
                    encoder.embed_prepared("images", batch)

            with tempfile.TemporaryDirectory() as output:
                began = time.perf_counter()
                done = encode_to_folder(encoder, "images", part, output, batch_size=BATCH)
                times["encode"].append(time.perf_counter() - began)
            times["in model"].append(done.model_seconds)
            times["decoding"].append(clock(lambda tasks=tasks: list(pool.map(prepare, tasks))))
            times["model"].append(clock(run_model))
            print(name, {key: round(some[-1], 2) for key, some in times.items()}, file=sys.stderr)
    ratios = [
        wall / max(decoding, model)
        for wall, decoding, model in zip(
            times["encode"], times["decoding"], times["model"], strict=True
        )
    ]
    return {
        "model": name,
        **{f"{key.replace(' ', '_')}_s": round(sum(some), 3) for key, some in times.items()},
        "ratio": round(statistics.median(ratios), 3),
    }


def measure_types(folder: Path, paths: Sequence[Path]) -> list[dict[str, Any]]:
    """The model alone in other number types, and compiled, beside float32."""
    import torch

    full = encoder_of(folder)
    batch = [full.prepare("images", path) for path in paths[:BATCH]]
    ways: dict[str, Any] = {"float32": full}
    for dtype in ("bfloat16", "float16"):
        ways[dtype] = load_encoder(folder, device="cpu", dtype=dtype)
    compiled = load_encoder(folder, device="cpu")
    try:
        compiled.model.vision_model.forward = torch.compile(compiled.model.vision_model.forward)
        seconds = clock(lambda: compiled.embed_prepared("images", batch))
        ways["float32, compiled"] = compiled
    except Exception as error:  # no compiler, or one that torch can't use
        print(f"torch.compile: {error}", file=sys.stderr)
        seconds = 0.0
    times: dict[str, list[float]] = {name: [] for name in ways}
    rows = {name: way.embed_prepared("images", batch) for name, way in ways.items()}
    for _ in range(5):
        for name, way in ways.items():
            times[name].append(clock(lambda way=way: way.embed_prepared("images", batch)))
    return [
        {
            "way": name,
            "batch_s": round(statistics.median(times[name]), 4),
            "first_s": round(seconds, 2) if "compiled" in name else 0.0,
            "cosine": round(float((rows[name] * rows["float32"]).sum(axis=1).min()), 6),
        }
        for name in ways
    ]


def tables(results: dict[str, Any]) -> str:
    """The Markdown tables of the stored results."""
    columns = ["model", "decoding, s", "model, s", "encode, s", "of it in the model"]
    columns += ["to the larger", "to their sum"]
    rows = [
        [
            row["model"],
            f"{row['decoding_s']:.1f}",
            f"{row['model_s']:.1f}",
            f"{row['encode_s']:.1f}",
            f"{row['in_model_s'] / row['encode_s']:.0%}",
            f"**{row['ratio']:.2f}**",
            f"{row['encode_s'] / (row['decoding_s'] + row['model_s']):.2f}",
        ]
        for row in results["models"]
    ]
    about = results["machine"]
    text = table(columns, rows) + "\n\n"
    text += f"{results['n_pictures']:,} JPEGs of 640 x 480, batches of {BATCH}, {results['cores']} "
    text += f"cores; {about['cpu']}, torch {results['versions']['torch']}.\n"
    if note := results.get("note"):
        text += f"\n{note}\n"
    if results.get("types"):
        full = results["types"][0]["batch_s"]
        rows = [
            [
                row["way"],
                f"{1000 * row['batch_s'] / BATCH:.1f}",
                f"{full / row['batch_s']:.2f}",
                f"{row['cosine']:.5f}",
            ]
            for row in results["types"]
        ]
        columns = ["ViT-B/32", "ms per picture", "times as fast", "smallest cosine with float32"]
        text += "\n" + table(columns, rows) + "\n"
    return text


def measure_all(arguments: argparse.Namespace) -> dict[str, Any]:
    import torch

    warnings.simplefilter("ignore")  # of the library, about weights that were never trained
    found, types = [], []
    with tempfile.TemporaryDirectory() as place:
        (Path(place) / "pictures").mkdir()
        paths = draw_pictures(Path(place) / "pictures", arguments.pictures)
        for number, name in enumerate(arguments.model or MODELS):
            folder = build_clip(Path(place) / str(number), MODELS[name])
            found.append(measure(name, folder, paths, arguments.rounds))
            if arguments.types and name == "ViT-B/32":
                types = measure_types(folder, paths)
                print(types, file=sys.stderr)
    results = {**machine(), "n_pictures": len(paths), "cores": CORES, "models": found}
    results["versions"]["torch"] = torch.__version__
    results["types"] = types
    return results


def main() -> int:
    parser = argparse.ArgumentParser(description="Time encoding beside decoding and the model.")
    parser.add_argument("--pictures", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--model", choices=MODELS, action="append", help="only this one")
    parser.add_argument("--types", action="store_true", help="other number types as well")
    return run_command(parser, OUTPUT, measure_all, tables, page="encoders.md")


if __name__ == "__main__":
    sys.exit(main())
