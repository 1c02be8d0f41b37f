"""Scores of BLIP's matching head (Li et al., ICML 2022), as its authors evaluate it.

The contrastive similarity of all pairs needs one pass over the images and texts. The matching head
scores only pairs on a shortlist: their score is the logit of "match" plus the similarity. All other
pairs get −100. The shortlist of a caption has the images most similar to it, and that of an image
the references most similar to it. So with k up to the length of the shortlist, NNN averages matched
pairs only.

    OUT/test-scores.npy         (n_images, n_captions)
    OUT/reference-scores.npy    (n_images, n_references)
    OUT/matching.json           model, shortlist, digests of the inputs
    OUT/matching.partial/       in progress: embeddings, and the scores of finished images
"""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from nnnorm import NNNormError, search
from nnnorm.embeddings import FloatArray
from nnnorm.encoders import Encoder, open_image
from nnnorm.files import make_folder
from reproduction import show_progress
from reproduction.encode import fill_rows
from reproduction.material import digest_items, find_missing, keep_about, open_rows

SHORTLIST = 256  # the number that BLIP's authors use for COCO
UNMATCHED = -100.0


def match_to_files(
    encoder: Encoder,
    images: Sequence[str],
    captions: Sequence[str],
    references: Sequence[str],
    folder: Path,
    *,
    shortlist: int = SHORTLIST,
) -> list[Path]:
    """Match images with captions and references; results of the same inputs are reused."""
    matcher = Matcher(encoder)
    inputs = {"images": images, "captions": captions, "references": references}
    sides = {name: "images" if name == "images" else "texts" for name in inputs}
    about = {"model": dict(encoder.about), "shortlist": shortlist}
    about |= {name: digest_items(sides[name], items) for name, items in inputs.items()}
    files = [folder / "test-scores.npy", folder / "reference-scores.npy"]
    keep_about(make_folder(folder) / "matching.json", about)
    if all(file.is_file() for file in files):
        return files
    work = make_folder(folder / "matching.partial")
    seen, read, past = (
        fill_rows(encoder, sides[name], items, np.arange(len(items)), work / name)
        for name, items in inputs.items()
    )
    asked = search(read, seen, k=min(shortlist, len(seen)))  # images of each caption
    known = search(seen, past, k=min(shortlist, len(past)))  # references of each image
    test = open_rows(work / files[0].name, (len(images), len(captions)))
    bank = open_rows(work / files[1].name, (len(images), len(references)))
    left = np.union1d(*(find_missing(matrix, np.arange(len(images))) for matrix in (test, bank)))
    for number, image in enumerate(left, 1):
        show_progress(f"Matching image {number:,} of {len(left):,}")
        patches = matcher.encode_image(images[image])
        own, places = np.nonzero(asked.indices == image)
        near = np.argsort(known.indices[image], kind="stable")
        for matrix, texts, chosen, similar in (
            (test, captions, own, asked.scores[own, places]),
            (bank, references, known.indices[image][near], known.scores[image][near]),
        ):
            scores = np.full(len(texts), UNMATCHED, np.float32)
            logits = matcher.score(patches, [texts[text] for text in chosen.tolist()])
            scores[chosen] = logits + similar
            matrix[image] = scores
    for matrix, file in zip((test, bank), files, strict=True):
        matrix.flush()  # type: ignore[attr-defined]
        (work / file.name).replace(file)
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
        # The tokenizers of the published models lack [ENC]; its id is the one after [DEC].
        if text.bos_token_id != text.vocab_size - 2:
            raise NNNormError(f"{encoder.name} has no token [ENC], which the matching head needs")
        self._first = text.vocab_size - 1

    def encode_image(self, image: Any) -> torch.Tensor:
        """Return the patches of one image."""
        with torch.inference_mode():
            pixels = self._encoder.stack([self._encoder.prepare_image(open_image(image))])
            return self._model.vision_model(**pixels).last_hidden_state

    def score(self, patches: torch.Tensor, texts: Sequence[str]) -> FloatArray:
        """Return the logit of "match" of each text with an image."""
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
