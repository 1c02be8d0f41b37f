"""ALBEF from a checkpoint of its authors' names, against torch's and BERT's own layers."""

import numpy as np
import pytest
import torch

from nnnorm import NNNormError
from reproduction.models import load_model
from reproduction.models.albef import clean_caption
from tests import tiny
from tests.reproduction.pixels import square_pixels

pytestmark = pytest.mark.slow


MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture
def changed(tiny_model, tmp_path):
    """A copy of the tiny checkpoint with its state dict changed by a function."""

    def write(change):
        source = tiny_model("albef")
        state = torch.load(source, weights_only=True)["model"]
        state = change(state) or state
        torch.save({"model": state}, tmp_path / "albef.pth")
        (tmp_path / "vocab.txt").write_bytes(source.with_name("vocab.txt").read_bytes())
        return tmp_path / "albef.pth"

    return write


def state_of(path):
    return torch.load(path, weights_only=True)["model"]


def unit(rows):
    return (rows / rows.norm(dim=-1, keepdim=True)).numpy()


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
def test_images_come_out_as_torch_s_own_layers_compute_them(tiny_model, tiny_encoder, pictures):
    pixels = square_pixels(pictures, 32, MEAN, STD)
    expected = see_with_torch(state_of(tiny_model("albef")), torch.from_numpy(pixels))
    rows = tiny_encoder("albef").encode_images(pictures)
    np.testing.assert_allclose(rows, unit(expected), atol=2e-6)


@torch.no_grad()
def test_texts_come_out_as_the_first_layers_of_transformers_bert_compute_them(
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


def test_padding_of_a_batch_changes_nothing(tiny_encoder):
    texts = ["star", "a big red circle above the small blue square and the green ring"]
    together = tiny_encoder("albef").encode_texts(texts)
    alone = tiny_encoder("albef").encode_texts(texts, batch_size=1)
    np.testing.assert_allclose(together, alone, atol=1e-6)


def test_fine_tuned_checkpoints_without_bert_in_their_names_give_the_same(changed, tiny_encoder):
    path = changed(lambda s: {k.replace("bert.", ""): v for k, v in s.items()})
    np.testing.assert_allclose(
        load_model(str(path), device="cpu").encode_texts(tiny.TEXTS),
        tiny_encoder("albef").encode_texts(tiny.TEXTS),
        atol=1e-6,
    )


def test_half_precision_is_widened(changed, tiny_encoder):
    path = changed(lambda s: {k: v.half() for k, v in s.items()})
    rows = load_model(str(path), device="cpu").encode_texts(tiny.TEXTS)
    np.testing.assert_allclose(rows, tiny_encoder("albef").encode_texts(tiny.TEXTS), atol=5e-3)


def test_another_image_size_interpolates_the_positions(tiny_model, pictures):
    rows = load_model(str(tiny_model("albef")), image_size=64, device="cpu").encode_images(pictures)
    assert rows.shape == (8, 16)
    with pytest.raises(NNNormError, match="multiple of the patch size 16; got 40"):
        load_model(str(tiny_model("albef")), image_size=40, device="cpu")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda s: s.pop("vision_proj.bias") is None, r"lacks 1 of .*: vision_proj\.bias;"),
        (
            lambda s: s.pop("visual_encoder.blocks.0.attn.qkv.weight") is None,
            r"lacks 1 of .*: vision_model\.encoder\.layers\.0\.self_attn\.qkv\.weight;",
        ),
        (lambda s: s.update({"head.weight": torch.ones(2)}), r"does not know: head\.weight;"),
        (
            lambda s: s.update({"text_proj.bias": torch.ones(3)}),
            r"text_proj\.bias must have shape \(16,\); got \(3,\)",
        ),
        (
            lambda s: s.pop("text_proj.weight") is None,
            "is not a checkpoint of ALBEF: it has no text_pr",
        ),
        (
            lambda s: s.update({"text_proj.weight": torch.ones(3)}),
            "is not a checkpoint of ALBEF: text_proj.weight has shape",
        ),
    ],
    ids=["a bias", "a block's weight", "one too many", "a shape", "no projection", "no matrix"],
)
def test_a_checkpoint_that_does_not_fit_is_refused_with_the_key(changed, words, change):
    path = changed(lambda state: change(state) and None)
    with pytest.raises(NNNormError, match=words):
        load_model(str(path), device="cpu")


def test_the_vocabulary_must_be_there_and_belong_to_the_checkpoint(changed, tmp_path):
    path = str(changed(lambda state: None))
    (tmp_path / "vocab.txt").rename(tmp_path / "other.txt")
    with pytest.raises(NNNormError, match=r"needs BERT's vocabulary, and .*txt is not there"):
        load_model(path, device="cpu")
    encoder = load_model(path, tokenizer=tmp_path / "other.txt", device="cpu")
    assert encoder.encode_texts(["a star"]).shape == (1, 16)
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nword\n")
    with pytest.raises(NNNormError, match="has 6 pieces, the checkpoint 25"):
        load_model(path, device="cpu")
    (tmp_path / "vocab.txt").write_text("word\n")
    with pytest.raises(NNNormError, match=r"vocab\.txt (has no \[CLS\]|can't be read)"):
        load_model(path, device="cpu")


def test_captions_are_cleaned_as_the_authors_do():
    assert clean_caption("Two  dogs, (big/small) -- 'run'!\n") == "two dogs big small run"
    assert clean_caption(" ".join(map(str, range(40)))).split()[-1] == "29"


def test_a_text_of_punctuation_alone_is_encoded_and_does_not_abort_the_work(tiny_encoder):
    rows = tiny_encoder("albef").encode_texts(["a star", "... !"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_text_beyond_30_tokens_is_cut_and_counted(tiny_encoder):
    long = " ".join(["red"] * 29)
    encoder = tiny_encoder("albef")
    assert encoder.token_counts([long, long + " blue", "reds"]) == [30, 31, 3]
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than the 30 tokens"):
        rows = encoder.encode_texts([long, long + " blue"])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
