"""ALBEF, BEiT-3 and BLIP from their authors' checkpoints, compared with torch's own layers."""

import os

import numpy as np
import pytest
import sentencepiece
import torch
from PIL import Image

from nnnorm import NNNormError
from nnnorm.encoders import open_image
from reproduction import blip as blip_module
from reproduction import checkpoints
from reproduction.albef import clean_caption
from reproduction.encode import load_model
from tests import tiny

pytestmark = pytest.mark.slow

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
HALF = (0.5, 0.5, 0.5)
VOCABULARY = {"albef": "vocab.txt", "beit3": "beit3.spm"}


def load(path):
    return load_model(str(path), device="cpu")


def square_pixels(paths, size, mean, std):
    """Pixels as the authors' evaluation prepares them."""
    rows = []
    for path in paths:
        image = Image.open(path).convert("RGB").resize((size, size), Image.Resampling.BICUBIC)
        pixels = np.asarray(image, dtype=np.float32) / 255
        rows.append(((pixels - np.float32(mean)) / np.float32(std)).transpose(2, 0, 1))
    return torch.from_numpy(np.stack(rows).astype(np.float32))


@pytest.fixture
def changed(tiny_model, tmp_path):
    """A copy of a tiny checkpoint with its state dict changed by a function."""

    def write(kind, change=lambda state: None):
        source, name = tiny_model(kind), VOCABULARY[kind]
        state = state_of(source)
        changed = change(state)
        torch.save({"model": changed if isinstance(changed, dict) else state}, tmp_path / "x.pth")
        (tmp_path / name).write_bytes(source.with_name(name).read_bytes())
        return tmp_path / "x.pth"

    return write


def state_of(path):
    return torch.load(path, weights_only=True)["model"]


def unit(rows):
    return (rows / rows.norm(dim=-1, keepdim=True)).numpy()


# --- what all have in common ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            "albef",
            lambda s: s.pop("visual_encoder.blocks.0.attn.qkv.weight"),
            "can't be loaded as ALBEF: it has no 'visual_encoder.blocks.0.attn.qkv.weight'",
        ),
        (
            "albef",
            lambda s: s.update({"text_proj.bias": torch.ones(3)}),
            "can't be loaded as ALBEF",
        ),
        ("albef", lambda s: s.pop("text_proj.weight"), "can't be loaded as ALBEF: it has no"),
        ("beit3", lambda s: s.pop("vision_head.weight"), "it has no 'vision_head.weight'"),
        (
            "beit3",
            lambda s: s.update({"mlm": torch.ones(2)}),
            "1 tensors that BEiT-3 does not use, such as mlm",
        ),
        ("beit3", lambda s: s.pop("beit3.text_embed.weight"), "can't be loaded as BEiT-3: it has"),
        ("albef", lambda s: {"x": torch.zeros(3)}, "is neither ALBEF's .* nor BEiT-3's"),
        (
            "albef",
            lambda s: {"text_encoder.encoder.layer.0.crossattention.self.query.weight": s["temp"]},
            "is BLIP's; use Salesforce/blip-itm-base-coco",
        ),
    ],
)
def test_a_checkpoint_that_does_not_fit_is_rejected_with_the_key(changed, kind, change, words):
    with pytest.raises(NNNormError, match=words):
        load(changed(kind, change))


def test_a_published_model_that_lost_its_last_layer_is_rejected(tiny_model, monkeypatch):
    monkeypatch.setattr(checkpoints, "_PUBLISHED", {128: 3})
    with pytest.raises(NNNormError, match=r"it has no 'beit3\.encoder\.layers\.2\."):
        load(tiny_model("beit3"))


def test_a_file_that_holds_other_objects_is_never_unpickled(tmp_path):
    torch.save({"model": os.getcwd}, tmp_path / "x.pth")
    with pytest.raises(NNNormError, match="can't be read as tensors"):
        load(tmp_path / "x.pth")


@pytest.mark.parametrize("kind", ["albef", "beit3"])
def test_the_vocabulary_must_be_there_and_belong_to_the_checkpoint(changed, tmp_path, kind):
    table = {"albef": "text_encoder.bert.embeddings.word_embeddings", "beit3": "beit3.text_embed"}
    few = {f"{table[kind]}.weight": torch.ones(8, 128)}
    with pytest.raises(
        NNNormError, match=r"has \d+ words, but checkpoint .* 8; use the vocabulary"
    ):
        load(changed(kind, lambda state: state.update(few)))
    path, vocabulary = changed(kind), tmp_path / VOCABULARY[kind]
    vocabulary.write_bytes(b"\xff")
    with pytest.raises(NNNormError, match=f"with {VOCABULARY[kind]} can't be loaded as"):
        load(path)
    vocabulary.unlink()
    with pytest.raises(NNNormError, match=f"{VOCABULARY[kind]}; put this file next to x"):
        load(path)


def test_a_shorter_vocabulary_of_bert_is_rejected(changed, tmp_path):
    path, vocabulary = changed("albef"), tmp_path / "vocab.txt"
    *words, _ = vocabulary.read_text().splitlines(keepends=True)
    vocabulary.write_text("".join(words))
    with pytest.raises(NNNormError, match=r"but checkpoint .*; use the vocabulary of the same"):
        load(path)


@pytest.mark.parametrize("kind", ["albef", "blip"])
def test_a_text_of_punctuation_alone_is_encoded_and_does_not_abort_the_work(tiny_encoder, kind):
    rows = tiny_encoder(kind).encode_texts(["a star", "... !"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


@pytest.mark.parametrize(("kind", "context", "n_words"), [("albef", 30, 29), ("beit3", 22, None)])
def test_text_beyond_the_context_is_cut_and_counted(tiny_encoder, kind, context, n_words):
    encoder = tiny_encoder(kind)
    assert encoder.context == context
    fits = "red" if n_words is None else " ".join(["red"] * n_words)
    long = " ".join(["red"] * 60) if n_words is None else f"{fits} blue"
    with pytest.warns(UserWarning, match=f"1 of 2 texts are longer than the {context} tokens"):
        rows = encoder.encode_texts([fits, long])
    if n_words is not None:
        np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


# --- ALBEF ----------------------------------------------------------------------------------------


def see_with_torch(state, pixels, depth=2):
    """The ViT by torch.nn.TransformerEncoderLayer, which has no line in common with ours."""
    tower = "visual_encoder"
    width = state[f"{tower}.cls_token"].shape[-1]
    patches = torch.nn.Conv2d(3, width, 16, 16)
    patches.load_state_dict({k: state[f"{tower}.patch_embed.proj.{k}"] for k in ("weight", "bias")})
    x = patches(pixels).flatten(2).mT
    x = torch.cat([state[f"{tower}.cls_token"].expand(len(x), 1, width), x], 1)
    x = x + state[f"{tower}.pos_embed"]
    for number in range(depth):
        block = f"{tower}.blocks.{number}"
        layer = torch.nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, "gelu", 1e-6, batch_first=True, norm_first=True
        )
        names = {"self_attn.in_proj_": "attn.qkv.", "self_attn.out_proj.": "attn.proj."}
        names |= {"linear1.": "mlp.fc1.", "linear2.": "mlp.fc2."}
        names |= {"norm1.": "norm1.", "norm2.": "norm2."}
        layer.load_state_dict(
            {
                f"{a}{k}": state[f"{block}.{b}{k}"]
                for a, b in names.items()
                for k in ("weight", "bias")
            }
        )
        x = layer.eval()(x)
    norm = torch.nn.LayerNorm(width, eps=1e-6)
    norm.load_state_dict({k: state[f"{tower}.norm.{k}"] for k in ("weight", "bias")})
    return norm(x)[:, 0] @ state["vision_proj.weight"].T + state["vision_proj.bias"]


@torch.no_grad()
def test_albef_s_images_come_out_as_torch_s_own_layers_compute_them(
    tiny_model, tiny_encoder, pictures
):
    pixels = square_pixels(pictures, 32, MEAN, STD)
    expected = see_with_torch(state_of(tiny_model("albef")), pixels)
    rows = tiny_encoder("albef").encode_images(pictures)
    np.testing.assert_allclose(rows, unit(expected), atol=2e-6)


@torch.no_grad()
def test_albef_s_texts_come_out_as_the_first_layers_of_transformers_bert_compute_them(
    tiny_model, tiny_encoder
):
    from transformers import BertConfig, BertModel

    path = tiny_model("albef")
    state = state_of(path)
    words = path.with_name("vocab.txt").read_text().split()
    config = BertConfig(
        vocab_size=len(words),
        hidden_size=128,
        num_hidden_layers=2,  # of four: the other two are fusion layers
        num_attention_heads=2,
        intermediate_size=512,
    )
    bert = BertModel(config, add_pooling_layer=False).eval()
    prefix = "text_encoder.bert."
    own = {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}
    bert.load_state_dict({k: own[k] for k in bert.state_dict()})
    expected = []
    for text in tiny.TEXTS:
        ids = [words.index("[CLS]"), *(words.index(word) for word in text.split())]  # no [SEP]
        states = bert(torch.tensor([ids])).last_hidden_state
        expected.append(states[0, 0] @ state["text_proj.weight"].T + state["text_proj.bias"])
    rows = tiny_encoder("albef").encode_texts(tiny.TEXTS)
    np.testing.assert_allclose(rows, unit(torch.stack(expected)), atol=2e-6)


@pytest.mark.parametrize(
    ("change", "tolerance"),
    [
        (lambda s: {k.replace("bert.", ""): v for k, v in s.items()}, 1e-6),  # as fine-tuned
        (lambda s: {k: v.half() for k, v in s.items()}, 5e-3),
    ],
    ids=["without bert in names", "in half precision"],
)
def test_other_forms_of_a_checkpoint_give_the_same(changed, tiny_encoder, change, tolerance):
    rows = load(changed("albef", change)).encode_texts(tiny.TEXTS)
    expected = tiny_encoder("albef").encode_texts(tiny.TEXTS)
    np.testing.assert_allclose(rows, expected, atol=tolerance)


def test_captions_are_cleaned_as_albef_s_authors_do():
    assert clean_caption("Two  dogs, (big/small) -- 'run'!\n") == "two dogs big small run"
    assert clean_caption(" ".join(map(str, range(40)))).split()[-1] == "29"


# --- BEiT-3 ---------------------------------------------------------------------------------------


def run_with_torch(state, x, way, is_padding=None):
    """All layers by torch's own modules, which have no line in common with ours."""
    width = x.shape[-1]

    def module(kind, key):
        kind.load_state_dict({k: state[f"{key}.{k}"] for k in ("weight", "bias")})
        return kind.eval()

    def norm(key, n=width):
        return module(torch.nn.LayerNorm(n), key)

    x = x + state[f"beit3.encoder.embed_positions.{way}.weight"][2 : 2 + x.shape[1]]
    if is_padding is not None:
        x = x * ~is_padding[..., None]
    for number in range(2):
        layer = f"beit3.encoder.layers.{number}"
        attention = torch.nn.MultiheadAttention(width, width // 64, batch_first=True).eval()
        projections = [f"{layer}.self_attn.{part}_proj.{way}" for part in "qkv"]
        attention.load_state_dict(
            {
                "in_proj_weight": torch.cat([state[f"{key}.weight"] for key in projections]),
                "in_proj_bias": torch.cat([state[f"{key}.bias"] for key in projections]),
                # The norm inside comes before the output's projection, so that one waits.
                "out_proj.weight": torch.eye(width),
                "out_proj.bias": torch.zeros(width),
            }
        )
        inner = norm(f"{layer}.self_attn_layer_norm.{way}")(x)
        inner = attention(inner, inner, inner, key_padding_mask=is_padding, need_weights=False)[0]
        inner = norm(f"{layer}.self_attn.inner_attn_ln.{way}")(inner)
        out = torch.nn.Linear(width, width)
        x = x + module(out, f"{layer}.self_attn.out_proj.{way}")(inner)
        mlp = torch.nn.Sequential(
            norm(f"{layer}.final_layer_norm.{way}"),
            module(torch.nn.Linear(width, 4 * width), f"{layer}.ffn.{way}.fc1"),
            torch.nn.GELU(),
            norm(f"{layer}.ffn.{way}.ffn_layernorm", 4 * width),
            module(torch.nn.Linear(4 * width, width), f"{layer}.ffn.{way}.fc2"),
        )
        x = x + mlp(x)
    return norm(f"beit3.encoder.layer_norm.{way}")(x)[:, 0]


@torch.no_grad()
def test_beit_3_s_images_come_out_as_torch_s_own_layers_compute_them(
    tiny_model, tiny_encoder, pictures
):
    state = state_of(tiny_model("beit3"))
    pixels = square_pixels(pictures, 32, HALF, HALF)
    embed = "beit3.vision_embed"
    # A convolution with stride = kernel is a product with cut patches.
    cut = torch.nn.functional.unfold(pixels, 16, stride=16).mT
    x = cut @ state[f"{embed}.proj.weight"].flatten(1).T + state[f"{embed}.proj.bias"]
    x = torch.cat([state[f"{embed}.cls_token"].expand(len(x), 1, -1), x], 1)
    expected = run_with_torch(state, x, "A") @ state["vision_head.weight"].T
    rows = tiny_encoder("beit3").encode_images(pictures)
    np.testing.assert_allclose(rows, unit(expected), atol=2e-6)


@torch.no_grad()
def test_beit_3_s_texts_come_out_as_torch_s_own_layers_compute_them(tiny_model, tiny_encoder):
    path = tiny_model("beit3")
    state = state_of(path)
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path.with_name("beit3.spm")))
    # As XLM-R counts: <s> 0, <pad> 1, </s> 2, <unk> 3, then the pieces, one further on.
    rows = [[0, *(i + 1 if i else 3 for i in pieces.encode(text)), 2] for text in tiny.TEXTS]
    ids = torch.tensor([row + [1] * (22 - len(row)) for row in rows])  # padded as the authors do
    x = state["beit3.text_embed.weight"][ids]
    expected = run_with_torch(state, x, "B", ids == 1) @ state["language_head.weight"].T
    found = tiny_encoder("beit3").encode_texts(tiny.TEXTS)
    np.testing.assert_allclose(found, unit(expected), atol=2e-6)


# --- BLIP's matching head, as the authors evaluate: whole or resumed ------------------------------


PAST = [f"the {text}" for text in tiny.TEXTS] + ["a big ring", "a small star"]
K = 3


@pytest.fixture(scope="module")
def blip(tiny_encoder):
    return tiny_encoder("blip")


def match(encoder, images, folder, texts=tiny.TEXTS, **options):
    names = [str(path) for path in images]
    return blip_module.match_to_files(encoder, names, texts, PAST, folder, shortlist=K, **options)


def logit(encoder, image, text):
    """The second output of the matching head, of one pair, where the text begins with [ENC]."""
    model = encoder.model
    patches = model.vision_model(
        **encoder.stack([encoder.prepare_image(open_image(image))])
    ).last_hidden_state
    tokens = encoder.tokenize([text])
    ids = tokens["input_ids"].clone()
    ids[:, 0] = model.config.text_config.vocab_size - 1
    states = model.text_encoder(
        ids,
        attention_mask=tokens["attention_mask"],
        encoder_hidden_states=patches,
        encoder_attention_mask=torch.ones(patches.shape[:2], dtype=torch.long),
    ).last_hidden_state
    return float(model.itm_head(states[:, 0])[0, 1])


@torch.no_grad()
def scores_as_the_authors(encoder, images, texts, k, chooser):
    """Rows are images. Each image (or text) chooses its k most similar partners; else −100."""
    similar = encoder.encode_images(images) @ encoder.encode_texts(texts).T
    scores = np.full(similar.shape, -100.0)
    for one in range(similar.shape[0 if chooser == "image" else 1]):
        line = similar[one] if chooser == "image" else similar[:, one]
        for other in np.argsort(-line)[:k]:
            pair = (one, other) if chooser == "image" else (other, one)
            scores[pair] = logit(encoder, images[pair[0]], texts[pair[1]]) + similar[pair]
    return scores


@pytest.fixture(scope="module")
def matched(blip, pictures, tmp_path_factory):
    folder = tmp_path_factory.mktemp("matched")
    match(blip, pictures, folder)
    return folder


def test_images_found_by_texts_are_scored_as_by_the_authors(blip, pictures, matched):
    scores = np.load(matched / "test-scores.npy")
    assert scores.dtype == np.float32
    expected = scores_as_the_authors(blip, pictures, tiny.TEXTS, K, chooser="text")
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    assert ((scores > -100).sum(axis=0) == K).all()


def test_every_image_is_matched_with_its_best_references(blip, pictures, matched):
    scores = np.load(matched / "reference-scores.npy")
    expected = scores_as_the_authors(blip, pictures, PAST, K, chooser="image")
    np.testing.assert_allclose(scores, expected, atol=1e-5)


def test_interrupted_and_resumed_every_byte_is_the_same(
    blip, pictures, matched, tmp_path, monkeypatch
):
    def stop(text):
        if text.startswith("Matching image 5"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(blip_module, "show_progress", stop)
        with pytest.raises(KeyboardInterrupt):
            match(blip, pictures, tmp_path)
    rows = np.load(tmp_path / "matching.partial" / "test-scores.npy")
    assert np.isnan(rows).any(axis=1).tolist() == [False] * 4 + [True] * (len(pictures) - 4)
    with pytest.raises(NNNormError, match="made with different images"):
        match(blip, pictures[1:], tmp_path)
    match(blip, pictures, tmp_path)
    assert sorted(os.listdir(tmp_path)) == sorted(os.listdir(matched))
    for name in os.listdir(matched):
        assert (tmp_path / name).read_bytes() == (matched / name).read_bytes()
    work = tmp_path / "matching.partial"  # killed between the moves of two finished files
    work.mkdir()
    (tmp_path / "reference-scores.npy").rename(work / "reference-scores.npy")
    for path in match(blip, pictures, tmp_path):
        assert path.read_bytes() == (matched / path.name).read_bytes()
    with pytest.raises(NNNormError, match="made with different captions"):
        match(blip, pictures, tmp_path, texts=tiny.TEXTS[::-1])


def test_a_model_without_a_matching_head_is_rejected(tiny_encoder, pictures, tmp_path):
    for kind in ("clip", "albef"):
        with pytest.raises(NNNormError, match="has no matching head; expected a BLIP"):
            match(tiny_encoder(kind), pictures, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_without_enc_is_rejected(blip, monkeypatch):
    monkeypatch.setattr(blip.model.config.text_config, "bos_token_id", 0)
    with pytest.raises(NNNormError, match=r"has no token \[ENC\]"):
        blip_module.Matcher(blip)
