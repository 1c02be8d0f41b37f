"""Encode only the rows that tables need, and store finished rows.

    DIR/clip/coco/images.npy     a row per image of the data set, float32, norm 1; NaN if missing
    DIR/clip/coco/images.json    model, preprocessing, digest of the list

Every name and path is checked before the first model is loaded.
"""

import tomllib
from collections.abc import Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from nnnorm import NNNormError
from nnnorm.embeddings import FloatArray, IntArray
from nnnorm.encoders import Encoder, load_encoder
from nnnorm.files import make_folder
from reproduction import show_progress
from reproduction.material import EmbeddingFolder, digest_items, find_missing, keep_about, open_rows
from reproduction.paper import SIDES, PaperTable, load_paper

Needed: TypeAlias = dict[tuple[str, str, str], IntArray]  # model, data set and side to its rows
_ROWS = 512  # saved at a time
_CHECKPOINTS = (".pth", ".pt", ".safetensors")


def read_sources(path: Path) -> dict[str, str]:
    """Read a TOML file with the source of each model; paths are relative to the file."""
    try:
        sources = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise NNNormError(f"{path} can't be read as TOML ({error})") from error
    for name, source in sources.items():
        if not isinstance(source, str):
            raise NNNormError(f"{path}: {name} must be text: a file, a folder or a hub name")
        local = path.parent / source
        sources[name] = str(local) if is_path(source) or local.exists() else source
    return sources


def is_path(source: str) -> bool:
    """Return whether a source names a file or folder rather than a model on the hub."""
    path = Path(source)
    is_file = path.suffix in _CHECKPOINTS
    return is_file or path.is_absolute() or len(path.parts) > 2 or path.exists()


def find_needed(folder: EmbeddingFolder, tables: Sequence[PaperTable], shorts: set[str]) -> Needed:
    """Find the rows that the tables need and that are not encoded yet, for these models."""
    models = {short: model for model, short in load_paper().models.items()}
    if unknown := sorted(shorts - set(models)):
        raise NNNormError(
            f"the paper has no model {unknown[0]!r}; its models are: {', '.join(models)}"
        )
    wanted = {models[short] for short in shorts}
    inputs: dict[tuple[Any, ...], None] = {}
    for there in (cell.experiment for table in tables for cell in table.cells):
        if there.model in wanted:
            inputs |= dict.fromkeys((there.model, there.dataset, *a) for a in there.list_inputs())
    needed: dict[tuple[str, str, str], list[IntArray]] = {}
    for model, dataset, what, *about in inputs:
        if what == "scores":
            needed[model, dataset, what] = [np.arange(1)]
        elif what == "references":
            bank, side, share = about
            part = folder.part(bank, what, share)
            rows = part.images if side == "images" else part.captions
            needed.setdefault((model, bank, side), []).append(rows)
        else:
            part = folder.part(dataset, about[1]) if about else folder.whole(dataset)
            for side, rows in zip(SIDES, part[:2], strict=True):
                needed.setdefault((model, dataset, side), []).append(rows)
    left: Needed = {}
    for place, parts in needed.items():
        rows, path = np.unique(np.concatenate(parts)), folder.find(*place)
        if path is None:
            left[place] = rows
        elif path.with_suffix(".json").exists():  # other files come from elsewhere and are complete
            left[place] = find_missing(np.load(path, mmap_mode="r"), rows)
    return {place: rows for place, rows in left.items() if len(rows)}


def check_sources(folder: EmbeddingFolder, needed: Needed, sources: Mapping[str, str]) -> None:
    """Check every list, picture, checkpoint, vocabulary and name before anything is encoded."""
    problems: list[str] = []
    for (_, dataset, side), rows in needed.items():
        if side == "images":
            images = folder.items(dataset, side)
            if absent := [images[row] for row in rows if not Path(images[row]).is_file()]:
                problems.append(f"{len(absent):,} pictures are missing, such as {absent[0]}")
        elif side == "scores":
            folder.pairs(dataset)
    for short in dict.fromkeys(load_paper().models[model] for model, _, _ in needed):
        problems += _check_source(short, sources[short])
    if problems := list(dict.fromkeys(problems)):
        more = f" (and {len(problems) - 5} more)" if len(problems) > 5 else ""
        raise NNNormError("; ".join(problems[:5]) + more)


def _check_source(short: str, source: str) -> list[str]:
    path = Path(source)
    if not is_path(source):
        from transformers import AutoConfig

        try:
            AutoConfig.from_pretrained(source, trust_remote_code=False)
        except Exception as error:  # the hub's library raises many types
            words = str(error).partition("\n")[0]
            return [f"{short}: {source} is neither a file nor on the Hugging Face hub ({words})"]
        return []
    vocabulary = path.with_name("beit3.spm" if short.startswith("beit") else "vocab.txt")
    needed = [path, vocabulary] if path.suffix in _CHECKPOINTS else [path]
    return [f"{short}: there is no {file}" for file in needed if not file.exists()]


def load_model(source: str, *, device: str) -> Encoder:
    """Load a model: a checkpoint of its authors, or any model that `load_encoder` accepts."""
    path = Path(source)
    if path.suffix not in _CHECKPOINTS:
        return load_encoder(source, device=device)
    from reproduction.albef import Albef
    from reproduction.beit3 import Beit3
    from reproduction.checkpoints import read_checkpoint

    state = read_checkpoint(path)
    if any(key.startswith("beit3.") for key in state):
        return Beit3(path, state, device)
    if "text_encoder.encoder.layer.0.crossattention.self.query.weight" in state:
        raise NNNormError(
            f"checkpoint {path} is BLIP's; use Salesforce/blip-itm-base-coco or "
            "Salesforce/blip-itm-base-flickr instead, which have the same weights"
        )
    if any(key.startswith("visual_encoder.") for key in state):
        return Albef(path, state, device)
    raise NNNormError(
        f"checkpoint {path} is neither ALBEF's (visual_encoder.…) nor BEiT-3's "
        f"(beit3.…); its first tensor is {next(iter(state), 'missing')}"
    )


def encode_needed(
    folder: EmbeddingFolder, needed: Needed, sources: Mapping[str, str], *, device: str = "auto"
) -> None:
    """Encode rows with each model; a model without embeddings scores pairs instead."""
    for model, group in groupby(sorted(needed), key=itemgetter(0)):
        source = sources[load_paper().models[model]]
        show_progress(f"Loading {source}")
        encoder = load_model(source, device=device)
        for _, dataset, side in group:
            place = folder.path(model, dataset)
            if side == "scores":
                from reproduction.blip import match_to_files

                # Matched are one caption of each test image, and all captions of the bank.
                test, bank = (folder.part(dataset, part) for part in ("test", "references"))
                _, first = np.unique(test.image_of, return_index=True)
                images, texts = (folder.items(dataset, one) for one in SIDES)
                chosen = [texts[row] for row in test.captions[first]]
                past = [texts[row] for row in bank.captions]
                match_to_files(encoder, [images[row] for row in test.images], chosen, past, place)
            else:
                show_progress(f"Encoding {side} of {dataset} with {model}")
                rows = needed[model, dataset, side]
                fill_rows(encoder, side, folder.items(dataset, side), rows, place)


def fill_rows(
    encoder: Encoder, side: str, items: Sequence[str], rows: IntArray, folder: Path
) -> FloatArray:
    """Encode some rows into a file with a row per item; rows that are there are kept."""
    make_folder(folder)
    about = {"n_rows": len(items), "items_sha256": digest_items(side, items)}
    keep_about(folder / f"{side}.json", {**encoder.about, **about})
    matrix = open_rows(folder / f"{side}.npy", (len(items), encoder.dim))
    encode = encoder.encode_images if side == "images" else encoder.encode_texts
    missing = find_missing(matrix, rows)
    for start in range(0, len(missing), _ROWS):
        some = missing[start : start + _ROWS]
        show_progress(f"{start:,} of {len(missing):,} rows")
        matrix[some] = encode([items[row] for row in some])
    return matrix
