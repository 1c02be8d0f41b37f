"""BEiT-3 from a checkpoint of torchscale's names and shapes, against torch's own attention."""

import numpy as np
import pytest
import sentencepiece
import torch

from nnnorm import NNNormError
from reproduction.models import load_model
from reproduction.models.beit3 import beit3_shapes
from tests import tiny
from tests.reproduction.pixels import square_pixels

pytestmark = pytest.mark.slow

HALF = (0.5, 0.5, 0.5)


@pytest.fixture
def changed(tiny_model, tmp_path):
    """A copy of the tiny checkpoint with its state dict changed by a function."""

    def write(change):
        source = tiny_model("beit3")
        state = torch.load(source, weights_only=True)["model"]
        change(state)
        torch.save({"model": state}, tmp_path / "beit3.pth")
        (tmp_path / "beit3.spm").write_bytes(source.with_name("beit3.spm").read_bytes())
        return tmp_path / "beit3.pth"

    return write


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


def unit(rows):
    return (rows / rows.norm(dim=-1, keepdim=True)).numpy()


@torch.no_grad()
def test_images_come_out_as_torch_s_own_layers_compute_them(tiny_model, tiny_encoder, pictures):
    state = torch.load(tiny_model("beit3"), weights_only=True)["model"]
    pixels = torch.from_numpy(square_pixels(pictures, 32, HALF, HALF))
    embed = "beit3.vision_embed"
    # A convolution with stride = kernel is a product with cut patches.
    cut = torch.nn.functional.unfold(pixels, 16, stride=16).mT
    x = cut @ state[f"{embed}.proj.weight"].flatten(1).T + state[f"{embed}.proj.bias"]
    x = torch.cat([state[f"{embed}.cls_token"].expand(len(x), 1, -1), x], 1)
    expected = run_with_torch(state, x, "A") @ state["vision_head.weight"].T
    rows = tiny_encoder("beit3").encode_images(pictures)
    np.testing.assert_allclose(rows, unit(expected), atol=2e-6)


@torch.no_grad()
def test_texts_come_out_as_torch_s_own_layers_compute_them(tiny_model, tiny_encoder):
    path = tiny_model("beit3")
    state = torch.load(path, weights_only=True)["model"]
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(path.with_name("beit3.spm")))
    # As XLM-R counts: <s> 0, <pad> 1, </s> 2, <unk> 3, then the pieces, one further on.
    rows = [[0, *(i + 1 if i else 3 for i in pieces.encode(text)), 2] for text in tiny.TEXTS]
    ids = torch.tensor([row + [1] * (22 - len(row)) for row in rows])  # padded as the authors do
    x = state["beit3.text_embed.weight"][ids]
    expected = run_with_torch(state, x, "B", ids == 1) @ state["language_head.weight"].T
    found = tiny_encoder("beit3").encode_texts(tiny.TEXTS)
    np.testing.assert_allclose(found, unit(expected), atol=2e-6)


def test_each_way_uses_its_own_weights_alone(changed, tiny_encoder, pictures):
    def disturb(way, head):
        def change(state):
            for key in state:
                if f".{way}." in key or key.startswith(head):
                    state[key] += 0.1

        return change

    before = tiny_encoder("beit3")
    images, texts = before.encode_images(pictures), before.encode_texts(tiny.TEXTS)
    after = load_model(str(changed(disturb("B", "language"))), device="cpu")
    np.testing.assert_allclose(after.encode_images(pictures), images, atol=1e-6)
    assert np.abs(after.encode_texts(tiny.TEXTS) - texts).max() > 0.01
    after = load_model(str(changed(disturb("A", "vision"))), device="cpu")
    np.testing.assert_allclose(after.encode_texts(tiny.TEXTS), texts, atol=1e-6)
    assert np.abs(after.encode_images(pictures) - images).max() > 0.01


@pytest.mark.parametrize(
    ("width", "layers", "millions"), [(768, 12, 222), (1024, 24, 675)], ids=["base", "large"]
)
def test_the_published_models_need_these_tensors_in_these_shapes(width, layers, millions):
    """Base and large at 384 pixels; their authors say 222 and 675 million parameters."""
    full = tiny.beit3_checkpoint_shapes(width, layers, grid=24, words=64010, places=1024)
    state = {name: torch.empty(shape, device="meta") for name, shape in full.items()}
    shapes = beit3_shapes(state, "beit3.pth")
    assert {**full} == {**shapes, "logit_scale": (), "beit3.vision_embed.mask_token": (1, 1, width)}
    assert len(shapes) == 6 + layers * 2 * 20 + 4 + 2
    n_weights = sum(int(np.prod(shape)) for shape in shapes.values())
    assert n_weights // 10**6 == millions


def test_a_layer_lost_from_a_published_model_is_missed():
    full = tiny.beit3_checkpoint_shapes(768, 11, grid=14, words=100)
    state = {name: torch.empty(shape, device="meta") for name, shape in full.items()}
    assert "beit3.encoder.layers.11.ffn.A.fc1.weight" in beit3_shapes(state, "beit3.pth")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("vision_head.weight"), r"lacks 1 of .*: vision_head\.weight;"),
        (
            lambda s: s.pop("beit3.encoder.layers.0.self_attn.q_proj.B.weight"),
            r"lacks 1 of .*: beit3\.encoder\.layers\.0\.self_attn\.q_proj\.B\.weight;",
        ),
        (lambda s: s.update({"mlm_head.weight": torch.ones(2)}), r"not know: mlm_head\.weight;"),
        (
            lambda s: s.pop("beit3.text_embed.weight"),
            "is not a checkpoint of BEiT-3: it has no beit3",
        ),
        (
            lambda s: s.update({"beit3.text_embed.weight": torch.ones(64, 100)}),
            "is not a checkpoint of BEiT-3: its width 100",
        ),
    ],
    ids=["a head", "one way's weight", "one too many", "no words", "odd width"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_key(changed, words, change):
    with pytest.raises(NNNormError, match=words):
        load_model(str(changed(change)), device="cpu")


def test_another_image_size_interpolates_the_positions(tiny_model, pictures):
    rows = load_model(str(tiny_model("beit3")), image_size=48, device="cpu").encode_images(pictures)
    assert rows.shape == (8, 128)
    with pytest.raises(NNNormError, match="multiple of the patch size 16; got 8"):
        load_model(str(tiny_model("beit3")), image_size=8, device="cpu")


def test_the_sentencepiece_model_must_be_there_and_belong_to_the_checkpoint(changed, tmp_path):
    path = changed(lambda s: s.update({"beit3.text_embed.weight": torch.ones(8, 128)}))
    with pytest.raises(NNNormError, match=r"beit3\.spm has \d+ ids, the checkpoint's table 8 rows"):
        load_model(str(path), device="cpu")
    path = changed(lambda s: None)
    (tmp_path / "beit3.spm").write_text("no model")
    with pytest.raises(NNNormError, match="can't be read as a sentencepiece model"):
        load_model(str(path), device="cpu")
    (tmp_path / "beit3.spm").unlink()
    with pytest.raises(NNNormError, match=r"needs the authors' beit3\.spm"):
        load_model(str(path), device="cpu")


def test_text_beyond_the_context_is_cut_before_its_last_token_and_counted(tiny_encoder):
    encoder = tiny_encoder("beit3")
    assert encoder.context == 22  # the tiny table has 24 rows, of which two are never used
    long = "red " * 40
    with pytest.warns(UserWarning, match="1 of 1 texts are longer than the 22 tokens"):
        assert encoder.encode_texts([long]).shape == (1, 128)
