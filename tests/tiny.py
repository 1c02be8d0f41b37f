"""Tiny models of every kind with random weights and their own tokenizers, built offline."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np

WORDS = (
    "a the red green blue yellow circle square star ring left right above below of and big small"
)
TEXTS = [f"a {c} {s}" for c in ("red", "green", "blue", "yellow") for s in ("circle", "square")]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]  # ids 0 to 3, as in XLM-R
IDS = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}


def printed_by(program, *arguments):
    """What a process of its own writes: other tests' threads can't write into that."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout, done.stderr


def draw_images(folder, n=8, seed=0):
    """Pictures of one rectangle each, of different sizes, modes and formats; their paths."""
    from PIL import Image, ImageDraw

    rng = np.random.default_rng(seed)
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for number in range(n):
        width, height = (int(side) for side in rng.integers(30, 90, size=2))
        image = Image.new("RGB", (width, height), tuple(int(c) for c in rng.integers(0, 256, 3)))
        color = tuple(int(c) for c in rng.integers(0, 256, 3))
        ImageDraw.Draw(image).rectangle((5, 5, width // 2, height // 2 + 5), fill=color)
        mode, suffix = [("RGB", "png"), ("L", "png"), ("RGB", "jpg"), ("RGBA", "png")][number % 4]
        path = folder / f"picture_{number:02d}.{suffix}"
        image.convert(mode).save(path)
        paths.append(path)
    return paths


def save_tokenizer(folder, max_length=16):
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary = {word: i for i, word in enumerate(SPECIAL + WORDS.split())}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", special_tokens=[("<s>", 0), ("</s>", 2)]
    )
    names = {"bos_token": "<s>", "pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, model_max_length=max_length, **names
    ).save_pretrained(folder)
    return len(vocabulary)


def _text(**more):
    return {
        "vocab_size": len(SPECIAL) + len(WORDS.split()),
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "max_position_embeddings": 16,
        **IDS,
        **more,
    }


def _vision(**more):
    return {
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_attention_heads": 2,
        "num_hidden_layers": 2,
        "image_size": 32,
        "patch_size": 8,
        **more,
    }


def _processor(kind, **more):
    size = {"do_resize": True, "do_normalize": True, "do_rescale": True, "do_convert_rgb": True}
    return {"image_processor_type": kind, **size, **more}


CLIP_PIXELS = {
    "size": {"shortest_edge": 32},
    "crop_size": {"height": 32, "width": 32},
    "do_center_crop": True,
    "resample": 3,
    "image_mean": [0.48145466, 0.4578275, 0.40821073],
    "image_std": [0.26862954, 0.26130258, 0.27577711],
}
SQUARE_PIXELS = {
    "size": {"height": 32, "width": 32},
    "resample": 3,
    "image_mean": [0.5, 0.5, 0.5],
    "image_std": [0.5, 0.5, 0.5],
}
SOUNDS = {
    "feature_extractor_type": "ClapFeatureExtractor",
    "feature_size": 16,
    "sampling_rate": 16_000,
    "hop_length": 160,
    "max_length_s": 1,
    "fft_window_size": 512,
    "truncation": "rand_trunc",
    "padding": "repeatpad",
    "frequency_max": 8000,
}


def _make(kind):
    import transformers as t

    if kind == "clip":
        config = t.CLIPConfig(text_config=_text(), vision_config=_vision(), projection_dim=24)
        return t.CLIPModel(config), _processor("CLIPImageProcessor", **CLIP_PIXELS)
    if kind == "siglip":
        text = _text(projection_size=32)
        config = t.SiglipConfig(text_config=text, vision_config=_vision())
        return t.SiglipModel(config), _processor("SiglipImageProcessor", **SQUARE_PIXELS)
    if kind == "siglip2":
        vision = _vision(num_patches=16)
        vision.pop("image_size")
        config = t.Siglip2Config(text_config=_text(projection_size=32), vision_config=vision)
        more = {"patch_size": 8, "max_num_patches": 16, "resample": 2}
        more |= {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
        return t.Siglip2Model(config), _processor("Siglip2ImageProcessor", **more)
    if kind == "align":
        vision = {
            "image_size": 32,
            "width_coefficient": 1.0,
            "depth_coefficient": 0.1,
            "hidden_dim": 32,
            "kernel_sizes": [3, 3],
            "in_channels": [32, 16],
            "out_channels": [16, 32],
            "strides": [1, 2],
            "num_block_repeats": [1, 1],
            "expand_ratios": [1, 2],
            "depthwise_padding": [],
        }
        config = t.AlignConfig(text_config=_text(), vision_config=vision, projection_dim=32)
        more = {"size": {"height": 36, "width": 36}, "crop_size": {"height": 32, "width": 32}}
        more |= {"do_center_crop": True, "resample": 2, "rescale_offset": True}
        more |= {"rescale_factor": 1 / 127.5, "include_top": False, "do_normalize": False}
        return t.AlignModel(config), _processor("EfficientNetImageProcessor", **more)
    if kind == "altclip":
        text = _text(max_position_embeddings=18, project_dim=32, type_vocab_size=1)
        config = t.AltCLIPConfig(text_config=text, vision_config=_vision(), projection_dim=24)
        return t.AltCLIPModel(config), _processor("CLIPImageProcessor", **CLIP_PIXELS)
    if kind == "blip":
        # As published: [DEC] and [ENC] are the last two rows, which the tokenizer does not know.
        n_words = _text()["vocab_size"]
        text = _text(encoder_hidden_size=32, projection_dim=32, sep_token_id=2)
        text |= {"vocab_size": n_words + 2, "bos_token_id": n_words}
        config = t.BlipConfig(
            text_config=text, vision_config=_vision(), image_text_hidden_size=20, projection_dim=24
        )
        return t.BlipForImageTextRetrieval(config), _processor(
            "BlipImageProcessor", **SQUARE_PIXELS
        )
    if kind == "clap":
        audio = {
            "spec_size": 64,
            "num_mel_bins": 16,
            "patch_size": 4,
            "patch_stride": [4, 4],
            "window_size": 4,
            "depths": [1, 1],
            "num_attention_heads": [2, 2],
            "num_hidden_layers": 2,
            "patch_embeds_hidden_size": 16,
            "hidden_size": 32,
            "projection_dim": 24,
            "enable_fusion": False,
        }
        text = _text(max_position_embeddings=18, type_vocab_size=1, projection_dim=24)
        config = t.ClapConfig(text_config=text, audio_config=audio, projection_dim=24)
        return t.ClapModel(config), SOUNDS
    raise ValueError(kind)


def build(kind, folder, seed=0):
    """Write a tiny model of transformers, and its tokenizer and processor, into a folder."""
    import torch

    folder = Path(folder)
    torch.manual_seed(seed)
    model, processor = _make(kind)
    with torch.no_grad():  # larger than the library's first values, so that rows differ
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(std=0.25)
    model.eval().save_pretrained(folder)
    save_tokenizer(folder)
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    return folder


# --- ALBEF and BEiT-3: checkpoints of exactly the authors' names and shapes -----------------------


def fill(shapes, seed=0):
    """Random tensors; norms near one."""
    import torch

    torch.manual_seed(seed)
    state = {}
    for name, shape in shapes.items():
        state[name] = torch.randn(shape) * 0.08
        if name.endswith("weight") and len(shape) == 1:
            state[name] += 1
    return state


def albef_checkpoint_shapes(words, width=128, dim=16):
    """All that a pre-trained ALBEF's state dict holds: two ViT blocks, two of four layers fuse."""
    shapes = {"temp": (), "image_queue": (dim, 8), "text_queue": (dim, 8), "queue_ptr": (1,)}
    mlp = {"fc1": (4 * width, width), "fc2": (width, 4 * width)}
    for m in ("", "_m"):
        eye, reader = f"visual_encoder{m}", f"text_encoder{m}.bert"
        shapes |= {f"{eye}.cls_token": (1, 1, width), f"{eye}.pos_embed": (1, 5, width)}
        _layer(shapes, f"{eye}.patch_embed.proj", width, 3, 16, 16)
        for i in range(2):
            for norm in ("norm1", "norm2"):
                _layer(shapes, f"{eye}.blocks.{i}.{norm}", width)
            _layer(shapes, f"{eye}.blocks.{i}.attn.qkv", 3 * width, width)
            _layer(shapes, f"{eye}.blocks.{i}.attn.proj", width, width)
            for name, size in mlp.items():
                _layer(shapes, f"{eye}.blocks.{i}.mlp.{name}", *size)
        _layer(shapes, f"{eye}.norm", width)
        shapes[f"{reader}.embeddings.position_ids"] = (1, 512)
        for table, rows in (("word", words), ("position", 512), ("token_type", 2)):
            shapes[f"{reader}.embeddings.{table}_embeddings.weight"] = (rows, width)
        _layer(shapes, f"{reader}.embeddings.LayerNorm", width)
        for i in range(4):
            layer = f"{reader}.encoder.layer.{i}"
            for part in ("attention", "crossattention")[: 1 + (i >= 2)]:
                for name in ("self.query", "self.key", "self.value", "output.dense"):
                    _layer(shapes, f"{layer}.{part}.{name}", width, width)
                _layer(shapes, f"{layer}.{part}.output.LayerNorm", width)
            _layer(shapes, f"{layer}.intermediate.dense", *mlp["fc1"])
            _layer(shapes, f"{layer}.output.dense", *mlp["fc2"])
            _layer(shapes, f"{layer}.output.LayerNorm", width)
        _layer(shapes, f"text_encoder{m}.cls.predictions.decoder", words, width)
        _layer(shapes, f"vision_proj{m}", dim, width)
        _layer(shapes, f"text_proj{m}", dim, width)
    _layer(shapes, "itm_head", 2, width)
    return shapes


def beit3_checkpoint_shapes(width=128, words=64):
    """All that a BEiT-3 for retrieval holds, named as torchscale names it."""
    shapes = {"logit_scale": (), "beit3.text_embed.weight": (words, width)}
    shapes |= {f"beit3.vision_embed.{name}_token": (1, 1, width) for name in ("mask", "cls")}
    shapes |= {f"{name}_head.weight": (width, width) for name in ("language", "vision")}
    _layer(shapes, "beit3.vision_embed.proj", width, 3, 16, 16)
    for way, places in {"A": 7, "B": 24}.items():
        shapes[f"beit3.encoder.embed_positions.{way}.weight"] = (places, width)
        for layer in (f"beit3.encoder.layers.{i}" for i in range(2)):
            for part in ("k_proj", "v_proj", "q_proj", "out_proj"):
                _layer(shapes, f"{layer}.self_attn.{part}.{way}", width, width)
            for norm in ("self_attn.inner_attn_ln", "self_attn_layer_norm", "final_layer_norm"):
                _layer(shapes, f"{layer}.{norm}.{way}", width)
            _layer(shapes, f"{layer}.ffn.{way}.fc1", 4 * width, width)
            _layer(shapes, f"{layer}.ffn.{way}.fc2", width, 4 * width)
            _layer(shapes, f"{layer}.ffn.{way}.ffn_layernorm", 4 * width)
        _layer(shapes, f"beit3.encoder.layer_norm.{way}", width)
    return shapes


def _layer(shapes, name, *weight):
    shapes |= {f"{name}.weight": weight, f"{name}.bias": weight[:1]}


def save_vocabulary(folder):
    """BERT's special tokens and our words, and a few pieces."""
    lines = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS.split(), "##s", "##ish"]
    (folder / "vocab.txt").write_text("\n".join(lines) + "\n")
    return len(lines)


def build_albef(folder):
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    state = fill(albef_checkpoint_shapes(save_vocabulary(folder)))
    torch.save({"model": state, "epoch": 3}, folder / "albef.pth")
    return folder / "albef.pth"


def build_beit3(folder):
    import sentencepiece
    import torch

    folder.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 4 + WORDS.split()),
        model_writer=written,
        vocab_size=48,
        hard_vocab_limit=False,
        minloglevel=9,
    )
    (folder / "beit3.spm").write_bytes(written.getvalue())
    torch.save({"model": fill(beit3_checkpoint_shapes())}, folder / "beit3.pth")
    return folder / "beit3.pth"


def build_any(kind, folder):
    """Path of a tiny model of any kind, for `load_encoder`."""
    if kind == "albef":
        return build_albef(folder)
    return build_beit3(folder) if kind == "beit3" else build(kind, folder)


def write_sounds(folder, n=6, rate=16_000):
    import soundfile

    folder.mkdir(parents=True, exist_ok=True)
    rng = np.random.default_rng(1)
    paths = []
    for number in range(n):
        seconds = [0.4, 1.0, 1.7][number % 3]
        time = np.arange(int(rate * seconds)) / rate
        wave = np.sin(2 * np.pi * (200 + 300 * number) * time) + 0.05 * rng.normal(size=len(time))
        path = folder / f"sound_{number:02d}.wav"
        soundfile.write(path, (0.3 * wave).astype(np.float32), rate)
        paths.append(path)
    return paths
