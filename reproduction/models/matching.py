"""Scores of BLIP's matching head, as its authors evaluate: on shortlists, and resumable.

The contrastive similarity of every image and text is known after one pass over each. Only pairs on
a shortlist are matched; their score is the logit of "match" plus the similarity, and all other
pairs score −100. Captions shortlist the images most similar to them, and images the references, so
NNN's mean over at most so many references is a mean over pairs that were matched.

    OUT/test-scores.npy         (n_images, n_captions)
    OUT/reference-scores.npy    (n_images, n_references)
    OUT/matching.json           model, shortlist, digests of the inputs
    OUT/matching.partial/       in progress: embeddings, and the scores of finished images
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch

from nnnorm import NNNormError, search
from nnnorm.encoders import Encoder, open_image
from nnnorm.files import make_folder, write_whole

FloatArray: TypeAlias = npt.NDArray[np.float32]
IntArray: TypeAlias = npt.NDArray[np.int64]
SHORTLIST = 256  # as BLIP's authors use for COCO
UNMATCHED = -100.0
_IMAGES_AT_ONCE = 8  # what an interruption can lose


def match_to_files(
    encoder: Encoder,
    images: Sequence[str],
    captions: Sequence[str],
    references: Sequence[str],
    folder: Path,
    *,
    shortlist: int = SHORTLIST,
    step: Callable[[str], None] | None = None,
) -> list[Path]:
    """Match images with captions and references; finished work of the same inputs is kept."""
    match = Matcher(encoder)
    about = {"model": dict(encoder.about), "shortlist": shortlist}
    about |= {"images": _digest(images), "captions": _digest(captions)}
    about["references"] = _digest(references)
    text = json.dumps(about, indent=1, ensure_ascii=False)
    files = [folder / "test-scores.npy", folder / "reference-scores.npy"]
    stored, work = folder / "matching.json", folder / "matching.partial"
    if stored.is_file() and stored.read_text(encoding="utf-8") != text:
        raise NNNormError(
            f"{folder} has scores of another model, shortlist or inputs; choose another folder, or "
            "remove it"
        )
    if all(file.is_file() for file in files):
        return files
    make_folder(work)
    write_whole(stored, lambda file: file.write(text.encode()))
    seen, read, past = (
        _embed(encoder, kind, items, work / f"{name}.npy")
        for kind, items, name in (
            ("images", images, "images"),
            ("texts", captions, "captions"),
            ("texts", references, "references"),
        )
    )
    # Rows of each list of pairs: image, text, similarity.
    asked = search(read, seen, k=min(shortlist, len(seen)))
    known = search(seen, past, k=min(shortlist, len(past)))
    rows = np.repeat(np.arange(len(read)), asked.indices.shape[1])
    tests = (asked.indices.ravel(), rows, asked.scores.ravel())
    rows = np.repeat(np.arange(len(seen)), known.indices.shape[1])
    jobs = {
        "test": (captions, *tests),
        "reference": (references, rows, known.indices.ravel(), known.scores.ravel()),
    }
    for start in range(0, len(images), _IMAGES_AT_ONCE):
        path = work / f"scores_{start:06d}.npz"
        if path.exists():
            continue
        if step is not None:
            step(f"Matching image {start + 1:,} of {len(images):,}")
        found: dict[str, list[FloatArray]] = {name: [] for name in jobs}
        for image in range(start, min(start + _IMAGES_AT_ONCE, len(images))):
            patches = match.see(images[image])
            for name, (texts, image_of, text_of, similar) in jobs.items():
                pairs = _pairs_of(image, image_of, text_of)
                logits = match.read(patches, [texts[text] for text in text_of[pairs]])
                found[name].append(logits + similar[pairs])
        arrays: Any = {name: np.concatenate(scores) for name, scores in found.items()}
        write_whole(path, partial(np.savez, **arrays))
    parts = [np.load(path) for path in sorted(work.glob("scores_*.npz"))]
    for file, (name, (texts, image_of, text_of, _)) in zip(files, jobs.items(), strict=True):
        matrix = np.full((len(images), len(texts)), UNMATCHED, dtype=np.float32)
        order = np.lexsort((text_of, image_of))
        scores = np.concatenate([part[name] for part in parts])
        matrix[image_of[order], text_of[order]] = scores
        write_whole(file, partial(np.save, arr=matrix, allow_pickle=False))
    shutil.rmtree(work)
    return files


class Matcher:
    """Logits of "image and text match" by BLIP's matching head."""

    def __init__(self, encoder: Any, *, batch_size: int = 32) -> None:
        if not hasattr(getattr(encoder, "model", None), "itm_head"):
            raise NNNormError(
                f"{encoder.name} has no matching head; expected a BLIP for retrieval, such as "
                "Salesforce/blip-itm-base-coco"
            )
        self._encoder, self._model, self._batch_size = encoder, encoder.model, batch_size
        text = self._model.config.text_config
        # The tokenizers of the published models don't know [ENC]; it follows [DEC].
        if text.bos_token_id != text.vocab_size - 2:
            raise NNNormError(f"{encoder.name} has no token [ENC], with which BLIP matches texts")
        self._first = text.vocab_size - 1

    def see(self, image: Any) -> torch.Tensor:
        """Return the patches of one image."""
        with torch.inference_mode():
            pixels = self._encoder.stack([self._encoder.prepare_image(open_image(image))])
            patches: torch.Tensor = self._model.vision_model(**pixels).last_hidden_state
        return patches

    def read(self, patches: torch.Tensor, texts: Sequence[str]) -> FloatArray:
        """Return the logit of each text with an image."""
        found = [np.empty(0, dtype=np.float32)]
        for start in range(0, len(texts), self._batch_size):
            tokens = self._encoder.tokenize(texts[start : start + self._batch_size])
            tokens["input_ids"][:, 0] = self._first
            seen = patches.expand(len(tokens["input_ids"]), -1, -1)
            every = torch.ones(seen.shape[:2], dtype=torch.long, device=seen.device)
            with torch.inference_mode():
                states = self._model.text_encoder(
                    **tokens, encoder_hidden_states=seen, encoder_attention_mask=every
                ).last_hidden_state
                found.append(self._model.itm_head(states[:, 0])[:, 1].float().cpu().numpy())
        return np.concatenate(found)


def _pairs_of(image: int, image_of: IntArray, text_of: IntArray) -> IntArray:
    """Return the places of an image's pairs, in the order of the texts."""
    places = np.flatnonzero(image_of == image)
    return places[np.argsort(text_of[places], kind="stable")]


def _embed(encoder: Encoder, kind: str, items: Sequence[str], path: Path) -> FloatArray:
    if not path.exists():
        encode = encoder.encode_images if kind == "images" else encoder.encode_texts
        rows = encode(items)
        write_whole(path, partial(np.save, arr=rows, allow_pickle=False))
    found: FloatArray = np.load(path)
    return found


def _digest(items: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(map(str, items))).encode()).hexdigest()
