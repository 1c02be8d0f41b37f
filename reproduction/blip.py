"""BLIP (Li et al., ICML 2022): its authors' checkpoint, and the scores of its matching head.

The checkpoint (`model_base_retrieval_coco.pth` and its like) becomes a folder of transformers: the
tensors of both towers, the projections and the matching head are renamed and nothing else. Images
are resized to a square, as in the authors' evaluation, and the norms of the image tower add 1e-6.

Matching is as in the authors' evaluation. The contrastive similarity of every image and text is
known after one pass over each. Only pairs on a shortlist are matched; their score is the logit of
"match" plus the similarity, and all other pairs score −100. Captions shortlist the images most
similar to them, and images the references, so NNN's mean over at most so many references is a mean
over pairs that were matched.

    OUT/test-scores.npy         (n_images, n_captions)
    OUT/reference-scores.npy    (n_images, n_references)
    OUT/matching.json           model, shortlist, digests of the inputs
    OUT/matching.partial/       in progress: embeddings, and the scores of finished images
"""

import hashlib
import json
import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import torch
import transformers

from nnnorm import NNNormError, search
from nnnorm.encoders import Encoder, open_image
from nnnorm.files import make_folder, write_whole
from reproduction import say
from reproduction.albef import (
    PLACES,
    VOCABULARY,
    WORDS,
    read_word_pieces,
    select_tensors,
    vision_config,
)
from reproduction.checkpoints import (
    CLIP_MEAN,
    CLIP_STD,
    HEAD,
    PUBLISHED,
    State,
    count_layers,
    expect_kind,
    fill_model,
    find_vocabulary,
    hash_file,
)
from reproduction.material import RowFile

FloatArray: TypeAlias = npt.NDArray[np.float32]
SHORTLIST = 256  # as BLIP's authors use for COCO
UNMATCHED = -100.0
_IMAGES_AT_ONCE = 8  # what an interruption can lose
_LAYER = r"text_encoder\.encoder\.layer\.(\d+)\."
_CROSS = re.compile(r"text_(en|de)coder\.(bert\.)?encoder\.layer\.0\.crossattention\.")


def is_blip(state: State) -> bool:
    """Return whether a checkpoint is BLIP's: its first text layer has cross-attention."""
    return any(_CROSS.match(key) for key in state)


def convert_blip(
    path: Path,
    state: State,
    folder: Path,
    *,
    vocabulary: Path | None = None,
) -> Path:
    """Write a checkpoint as a folder of transformers, once; return the folder."""
    vocabulary = find_vocabulary(path, vocabulary, VOCABULARY)
    with expect_kind(path, "BLIP retrieval"):
        seen = vision_config(state)
        config = _make_config(state, seen)
    made_from = {
        "checkpoint_sha256": hash_file(path),
        "vocabulary_sha256": hash_file(vocabulary),
    }
    about = folder / "made_from.json"
    if about.is_file() and json.loads(about.read_text(encoding="utf-8")) == made_from:
        return folder
    # The table of words has two rows more, for [DEC] and [ENC].
    pieces = read_word_pieces(vocabulary, len(state[WORDS]) - 2)
    empty = transformers.BlipForImageTextRetrieval(config)
    model = fill_model(empty, select_tensors(state, [r"text_decoder\..*"]), path)
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    names = ("cls", "sep", "pad", "unk", "mask")
    make: Any = transformers.PreTrainedTokenizerFast
    make(
        tokenizer_object=type(pieces._tokenizer).from_str(pieces.to_str()),
        model_max_length=512,
        **{f"{name}_token": f"[{name.upper()}]" for name in names},
    ).save_pretrained(folder)
    size = {"height": seen["image_size"], "width": seen["image_size"]}
    pixels = {"image_processor_type": "BlipImageProcessor", "size": size, "resample": 3}
    pixels |= {"image_mean": CLIP_MEAN, "image_std": CLIP_STD, "do_convert_rgb": True}
    pixels |= {"do_resize": True, "do_rescale": True, "do_normalize": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(pixels), encoding="utf-8")
    about.write_text(json.dumps(made_from), encoding="utf-8")  # last: the folder is complete
    return folder


def _make_config(state: State, seen: dict[str, Any]) -> Any:
    """Return the configuration of transformers, from the shapes of the tensors."""
    n_words, width = state[WORDS].shape
    text = {
        "vocab_size": n_words,
        "hidden_size": width,
        "encoder_hidden_size": seen["hidden_size"],
        "intermediate_size": state["text_encoder.encoder.layer.0.intermediate.dense.bias"].shape[0],
        "num_hidden_layers": PUBLISHED.get(width, count_layers(state, _LAYER)),
        "num_attention_heads": max(1, width // HEAD),
        "max_position_embeddings": len(state[PLACES]),
        "pad_token_id": 0,
        "bos_token_id": n_words - 2,  # [DEC]; [ENC] follows
        "sep_token_id": 102,
    }
    return transformers.BlipConfig(
        vision_config=seen,
        text_config=text,
        image_text_hidden_size=state["text_proj.weight"].shape[0],
        projection_dim=width,
    )


# --- the matching head ----------------------------------------------------------------------------


def match_to_files(
    encoder: Encoder,
    images: Sequence[str],
    captions: Sequence[str],
    references: Sequence[str],
    folder: Path,
    *,
    shortlist: int = SHORTLIST,
) -> list[Path]:
    """Match images with captions and references; finished work of the same inputs is kept."""
    matcher = Matcher(encoder)
    inputs = {"images": images, "captions": captions, "references": references}
    about = {"model": dict(encoder.about), "shortlist": shortlist}
    about |= {name: _digest(items) for name, items in inputs.items()}
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
        _embed(encoder, items, work / f"{name}.npy") for name, items in inputs.items()
    )
    asked = search(read, seen, k=min(shortlist, len(seen)))  # images of each caption
    known = search(seen, past, k=min(shortlist, len(past)))  # references of each image
    listed = (captions, references)
    matrices = [
        RowFile(work / file.name, (len(images), len(texts)), UNMATCHED)
        for file, texts in zip(files, listed, strict=True)
    ]
    left = np.flatnonzero(~(matrices[0].is_there & matrices[1].is_there))
    for start in range(0, len(left), _IMAGES_AT_ONCE):
        rows = left[start : start + _IMAGES_AT_ONCE]
        say(f"Matching image {start + 1:,} of {len(left):,}")
        found = [np.full((len(rows), len(texts)), UNMATCHED, np.float32) for texts in listed]
        for number, image in enumerate(rows):
            patches = matcher.see(images[image])
            own, places = np.nonzero(asked.indices == image)
            near = np.argsort(known.indices[image], kind="stable")
            pairs = (
                (own, asked.scores[own, places]),
                (known.indices[image][near], known.scores[image][near]),
            )
            for scores, texts, (chosen, similar) in zip(found, listed, pairs, strict=True):
                logits = matcher.read(patches, [texts[text] for text in chosen])
                scores[number, chosen] = logits + similar
        for matrix, scores in zip(matrices, found, strict=True):
            matrix.write(rows, scores)
    for file in files:
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


def _embed(encoder: Encoder, items: Sequence[str], path: Path) -> FloatArray:
    if not path.exists():
        encode = encoder.encode_images if path.stem == "images" else encoder.encode_texts
        rows = encode(items)
        write_whole(path, partial(np.save, arr=rows, allow_pickle=False))
    found: FloatArray = np.load(path)
    return found


def _digest(items: Sequence[str]) -> str:
    return hashlib.sha256(json.dumps(list(map(str, items))).encode()).hexdigest()
