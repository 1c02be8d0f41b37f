"""What BLIP's own habits change: cleaned captions, and [ENC] instead of [CLS] before a match.

A small BLIP with random weights is built from its configuration, so the figures show that the
habits matter, not by how much they do in a trained model. 200 captions are written as in COCO: the
first letter large, a full stop at the end. Cleaned, they are compared with themselves as they are;
40 drawn pictures are matched with 40 of them by the head, with either first token.

    python benchmarks/blip.py [--output FILE.json]
    python benchmarks/blip.py --tables     # print the table of the stored JSON
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from harness import run_command
from real_sets import RESULTS, machine, table

from nnnorm.encoders import load_encoder
from nnnorm.encoders.blip_matching import BlipMatcher

OUTPUT = RESULTS / "blip.json"
COLORS = ["red", "green", "blue", "yellow", "grey", "black", "white", "brown"]
THINGS = ["dog", "cat", "horse", "bus", "boat", "kite", "table", "bench", "bird", "bear"]
PLACES = ["beach", "street", "field", "kitchen", "lake", "bridge"]
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
WIDTH, LAYERS = 256, 4


def write_captions(n: int) -> list[str]:
    rng = np.random.default_rng(0)

    def pick(words: list[str]) -> str:
        return words[int(rng.integers(len(words)))]

    return [
        f"A {pick(COLORS)} {pick(THINGS)} and a {pick(COLORS)} {pick(THINGS)} by the "
        f"{pick(PLACES)}."
        for _ in range(n)
    ]


def build(folder: Path) -> Path:
    """A BLIP for retrieval with random weights, and a tokenizer of these words."""
    import torch
    import transformers
    from tokenizers import BertWordPieceTokenizer, Tokenizer

    words = [*SPECIAL, *".,!", "a", "and", "by", "the", *COLORS, *THINGS, *PLACES]
    pieces = BertWordPieceTokenizer({word: n for n, word in enumerate(words)}, lowercase=True)
    names = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(pieces.to_str()),
        model_max_length=512,
        **{f"{name}_token": token for name, token in names.items()},
    ).save_pretrained(folder)
    sizes = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
    sizes["num_attention_heads"] = WIDTH // 64
    text = {"vocab_size": len(words) + 2, "bos_token_id": len(words), "pad_token_id": 0, **sizes}
    text |= {"encoder_hidden_size": WIDTH, "max_position_embeddings": 64}
    vision = {"image_size": 96, "patch_size": 16, **sizes}
    torch.manual_seed(0)
    model = transformers.BlipForImageTextRetrieval(
        transformers.BlipConfig(text_config=text, vision_config=vision)
    )
    with torch.no_grad():  # the library's first values are so small that all rows are alike
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.06)
    model.save_pretrained(folder)
    about = {"image_processor_type": "BlipImageProcessor", "size": {"height": 96, "width": 96}}
    about |= {"do_resize": True, "do_rescale": True, "do_normalize": True, "resample": 3}
    about |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(about))
    return folder


def measure() -> dict[str, Any]:
    from PIL import Image

    captions = write_captions(200)
    rng = np.random.default_rng(1)
    images = [
        Image.fromarray(rng.integers(0, 256, size=(6, 6, 3), dtype=np.uint8)).resize((96, 96))
        for _ in range(40)
    ]
    with tempfile.TemporaryDirectory() as place:
        folder = build(Path(place))
        cleaned = load_encoder(folder, device="cpu")
        raw = load_encoder(folder, device="cpu", clean_texts=False)
    rows = cleaned.encode_texts(captions), raw.encode_texts(captions)
    cosines = (rows[0] * rows[1]).sum(axis=1)
    seen = cleaned.encode_images(images)
    tops = [(seen @ some.T).argmax(axis=0) for some in rows]
    matcher: Any = BlipMatcher(cleaned)  # type: ignore[arg-type]
    with_enc = matcher.score(images, captions[:40])
    first = int(cleaned.tokenize(captions[:1])["input_ids"][0, 0])  # type: ignore[attr-defined]
    cleaned.matching_token = lambda: first  # type: ignore[attr-defined]
    with_cls = matcher.score(images, captions[:40])
    return {
        "cosine": [round(float(value), 4) for value in np.quantile(cosines, [0, 0.5, 1])],
        "top_changed_by_cleaning": round(float(np.mean(tops[0] != tops[1])), 3),
        "logit_spread": round(float(with_enc.std()), 4),
        "logit_change": round(float(np.abs(with_enc - with_cls).mean()), 4),
        "logit_correlation": round(float(np.corrcoef(with_enc.ravel(), with_cls.ravel())[0, 1]), 4),
        "top_changed_by_token": round(
            float(np.mean(with_enc.argmax(axis=0) != with_cls.argmax(axis=0))), 3
        ),
    }


def tables(results: dict[str, Any]) -> str:
    """The Markdown table of the stored results."""
    low, middle, high = results["cosine"]
    rows = [
        [
            "captions cleaned, or as they are",
            f"cosine of a caption's two rows {middle:.3f} ({low:.3f} to {high:.3f})",
            f"{results['top_changed_by_cleaning']:.0%}",
        ],
        [
            "`[ENC]` first, or `[CLS]`",
            f"logits differ by {results['logit_change']:.3f} in the mean, where their standard "
            f"deviation is {results['logit_spread']:.3f}; correlation "
            f"{results['logit_correlation']:.2f}",
            f"{results['top_changed_by_token']:.0%}",
        ],
    ]
    return table(["on random weights", "difference", "best image changes"], rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure what BLIP's own habits change.")
    return run_command(parser, OUTPUT, lambda _: {**machine(), **measure()}, tables)


if __name__ == "__main__":
    sys.exit(main())
