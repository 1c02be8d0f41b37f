"""The dual encoders of transformers give the models' own rows, without random weights."""

import json
import shutil

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import AutoImageProcessor

from nnnorm import NNNormError
from nnnorm.encoders import load_encoder
from nnnorm.encoders.huggingface import clean_caption
from nnnorm.encoders.inputs import open_image, read_sound
from tests import tiny

pytestmark = pytest.mark.slow

KINDS = ["clip", "siglip", "siglip2", "align", "altclip"]
# In words of the tokenizer's, and of different lengths.
TEXTS = [*tiny.TEXTS, "star", "the big red circle above the small blue square"]


@pytest.fixture
def copied(tiny_model, tmp_path):
    def copy(kind):
        shutil.copytree(tiny_model(kind), tmp_path / kind)
        return tmp_path / kind

    return copy


def own_inputs(path, padding):
    """Text and pixels by the library's own classes, called directly."""
    import transformers

    texts = transformers.AutoTokenizer.from_pretrained(path)(
        TEXTS, padding=padding, return_tensors="pt"
    )
    return {"input_ids": texts["input_ids"], "attention_mask": texts["attention_mask"]}


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_rows_are_those_of_the_model_s_own_forward_pass(tiny_encoder, tiny_model, pictures, kind):
    encoder = tiny_encoder(kind)
    siglip = kind.startswith("siglip")
    inputs = own_inputs(tiny_model(kind), "max_length" if siglip else True)
    if siglip:
        inputs.pop("attention_mask")
    pixels = encoder.stack([encoder.prepare_image(open_image(path)) for path in pictures])
    out = encoder.model(**inputs, **pixels)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), out.text_embeds.numpy(), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_images(pictures), out.image_embeds.numpy(), atol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "siglip", "siglip2", "blip", "align", "altclip"])
def test_pixels_are_those_of_the_model_s_own_processor_bit_for_bit(tiny_encoder, tiny_model, kind):
    processor = AutoImageProcessor.from_pretrained(tiny_model(kind), backend="pil")
    rng = np.random.default_rng(0)
    for height, width in ((61, 37), (37, 61), (9, 200), (480, 640), (32, 32)):
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        expected = processor(images=[image], return_tensors="np")
        found = tiny_encoder(kind).prepare_image(image)
        assert found.keys() == expected.keys()
        for name, array in expected.items():
            np.testing.assert_array_equal(found[name], array)


@torch.no_grad()
def test_blip_s_rows_multiply_to_its_own_score_with_the_matching_head_off(
    tiny_encoder, tiny_model, pictures
):
    encoder = tiny_encoder("blip")
    inputs = own_inputs(tiny_model("blip"), True)
    pixels = encoder.stack([encoder.prepare_image(open_image(path)) for path in pictures])
    expected = encoder.model(**inputs, **pixels, use_itm_head=False).itm_score.numpy()
    scores = encoder.encode_images(pictures) @ encoder.encode_texts(TEXTS).T
    np.testing.assert_allclose(scores, expected, atol=1e-6)


def test_blip_s_captions_are_cleaned_as_its_authors_clean_them():
    marks = '.!"()*#:;~'
    assert clean_caption(f"A{marks}B{marks * 3}  c,d's-e?\n") == "a b c,d's-e?"
    assert clean_caption("w " * 40) == " ".join("w" * 30)
    assert clean_caption("one\ttwo  three ") == "one\ttwo three"


def test_blip_reads_cleaned_texts_of_at_most_35_tokens(tiny_encoder, monkeypatch):
    encoder = tiny_encoder("blip")
    noisy, clean = ["A Red (circle)!"], ["a red circle"]
    np.testing.assert_array_equal(encoder.encode_texts(noisy), encoder.encode_texts(clean))
    assert encoder.context <= 35
    assert "cleaned" in encoder.about["preprocessing"]["texts"]
    monkeypatch.setattr(encoder, "context", 100)
    assert encoder.count_cut(["red " * 30 + "!", "red " * 31]) == 1  # at most 30 words


@torch.no_grad()
def test_clap_s_rows_are_those_of_its_own_forward_pass(tiny_encoder, tiny_model, sounds):
    import transformers

    encoder = tiny_encoder("clap")
    short = sounds[:2]  # no longer than the model hears
    features = transformers.AutoFeatureExtractor.from_pretrained(tiny_model("clap"))(
        [read_sound(path, 16_000) for path in short], sampling_rate=16_000, return_tensors="pt"
    )
    out = encoder.model(**own_inputs(tiny_model("clap"), True), **features)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), out.text_embeds.numpy(), atol=1e-6)
    np.testing.assert_allclose(encoder.encode_audio(short), out.audio_embeds.numpy(), atol=1e-6)


def test_of_a_long_sound_the_first_seconds_are_heard_and_not_some_drawn_at_random(tiny_encoder):
    rate = 16_000
    sound = np.sin(np.arange(3 * rate) ** 1.5 / 5e4).astype(np.float32)
    encoder = tiny_encoder("clap")
    rows = encoder.encode_audio([sound, sound, sound[:rate]])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    np.testing.assert_allclose(rows[0], rows[2], atol=1e-6)


def test_clap_that_fuses_random_pieces_is_rejected(copied):
    folder = copied("clap")
    path = folder / "preprocessor_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "truncation": "fusion"}))
    with pytest.raises(NNNormError, match="uses random pieces of long sounds"):
        load_encoder(str(folder), device="cpu")


@pytest.mark.parametrize("kind", [*KINDS, "blip", "clap"])
def test_the_batch_size_does_not_matter(tiny_encoder, pictures, sounds, kind):
    encoder = tiny_encoder(kind)
    others = (sounds, encoder.encode_audio) if kind == "clap" else (pictures, encoder.encode_images)
    for items, encode in ((TEXTS, encoder.encode_texts), others):
        whole = encode(items)
        np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-6)
        for batch_size in (1, 3):
            np.testing.assert_allclose(encode(items, batch_size=batch_size), whole, atol=1e-6)


def test_version_4_s_plain_tensors_are_taken_as_well_as_version_5_s_objects(
    tiny_encoder, monkeypatch
):
    encoder = tiny_encoder("clip")
    expected = encoder.encode_texts(TEXTS)
    own = encoder.model.get_text_features

    def as_version_4(**inputs):
        found = own(**inputs)
        return getattr(found, "pooler_output", found)

    monkeypatch.setattr(encoder.model, "get_text_features", as_version_4)
    np.testing.assert_allclose(encoder.encode_texts(TEXTS), expected, atol=1e-6)


def test_siglip_s_texts_are_padded_to_the_full_length_it_was_trained_with(tiny_encoder):
    """Its last token speaks for the text, so padding is part of what it reads."""
    for kind in ("siglip", "siglip2"):
        inputs = tiny_encoder(kind).tokenize(["star"])
        assert inputs["input_ids"].shape == (1, 16)
        assert set(inputs) == {"input_ids"}
    assert tiny_encoder("clip").tokenize(["star"])["input_ids"].shape == (1, 3)


def test_siglip_with_the_sentencepiece_tokenizer_that_it_is_published_with(copied, tiny_model):
    import transformers

    folder = copied("siglip")
    for path in folder.glob("*token*"):
        path.unlink()
    spm = tiny_model("beit3").with_name("beit3.spm")
    tokenizer = transformers.SiglipTokenizer(str(spm), model_max_length=16, pad_token="</s>")
    tokenizer.save_pretrained(folder)
    encoder = load_encoder(str(folder), device="cpu")
    assert encoder.about["preprocessing"]["texts"]["tokenizer"] == "SiglipTokenizer"
    ids = encoder.tokenize(["a red star", "star"])["input_ids"]
    assert ids.shape == (2, 16)
    assert (ids[:, -1] == tokenizer.pad_token_id).all()
    assert encoder.token_counts(["star"]) == [len(tokenizer("star")["input_ids"])]


def test_siglip_2_reads_lower_case(tiny_encoder):
    rows = tiny_encoder("siglip2").encode_texts(["A Red STAR", "a red star"])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


@pytest.mark.parametrize("kind", ["clip", "altclip", "clap"])
def test_texts_beyond_the_context_are_counted_and_cut(tiny_encoder, kind):
    encoder = tiny_encoder(kind)
    assert encoder.context == 16
    fits, long = " ".join(["red"] * 14), " ".join(["red"] * 40)
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than the 16 tokens"):
        rows = encoder.encode_texts([fits, long])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)


def test_the_sidecar_s_facts_name_model_weights_and_preprocessing(tiny_encoder, tiny_model):
    about = tiny_encoder("clip").about
    assert about["model"] == str(tiny_model("clip"))
    assert about["architecture"] == "CLIPModel"
    assert len(about["weights_sha256"]) == 64
    assert about["preprocessing"]["images"]["size"] == {"shortest_edge": 32}
    assert about["preprocessing"]["texts"]["max_length"] == 16
    assert about["normalization"] == "unit norm, by nnnorm"
    assert tiny_encoder("clap").about["normalization"] == "unit norm, by the model"
    json.dumps(about)


# --- models that do not fit ---------------------------------------------------------------------


def change_weights(folder, change):
    weights = load_file(folder / "model.safetensors")
    change(weights)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def become_captioner(weights):
    for key in list(weights):
        if key.startswith(("itm_head", "vision_proj", "text_proj")):
            weights.pop(key)


@pytest.mark.parametrize(
    ("kind", "change", "words"),
    [
        (
            "clip",
            lambda weights: weights.pop("visual_projection.weight"),
            r"lacks 1 of the weights .*: visual_projection\.weight;",
        ),
        (
            "clip",
            lambda weights: weights.update({"odd.weight": torch.ones(2)}),
            r"has 1 tensors that are unknown to .*: odd\.weight;",
        ),
        (
            "clip",
            lambda weights: weights.update({"text_projection.weight": torch.ones(5, 32)}),
            r"other shapes .*: text_projection\.weight \(5, 32\) instead of \(24, 32\);",
        ),
        ("blip", become_captioner, r"lacks 6 of the weights .*: itm_head\.bias, .*;"),
    ],
)
def test_weights_that_do_not_fit_are_named_instead_of_filled_at_random(copied, kind, change, words):
    folder = copied(kind)
    change_weights(folder, change)
    with pytest.raises(NNNormError, match=words):
        load_encoder(str(folder), device="cpu")


def test_buffers_of_older_checkpoints_do_no_harm(copied, tiny_encoder):
    folder = copied("clip")
    ids = {"text_model.embeddings.position_ids": torch.arange(16)[None]}
    change_weights(folder, lambda weights: weights.update(ids))
    rows = load_encoder(str(folder), device="cpu").encode_texts(TEXTS)
    np.testing.assert_allclose(rows, tiny_encoder("clip").encode_texts(TEXTS), atol=1e-6)


def test_a_model_of_another_type_is_rejected(tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "bert"}')
    with pytest.raises(NNNormError, match=r"has the type 'bert'; expected a dual encoder"):
        load_encoder(tmp_path, device="cpu")


@pytest.mark.parametrize(
    "name", ["model.safetensors", "tokenizer.json", "preprocessor_config.json"]
)
def test_a_folder_that_lacks_a_file_is_rejected(copied, name):
    folder = copied("clip")
    (folder / name).unlink()
    with pytest.raises(NNNormError, match="can't be loaded"):
        load_encoder(str(folder), device="cpu")


@pytest.mark.parametrize("kind", ["blip", "clap", "clip", "siglip2"])
def test_a_folder_without_any_tokenizer_is_rejected_instead_of_knowing_no_words(copied, kind):
    folder = copied(kind)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(
        NNNormError, match=r"tokenizer of model .* has no vocabulary|can't be loaded"
    ):
        load_encoder(str(folder), device="cpu")


def test_code_in_a_model_s_folder_is_never_run(copied):
    folder = copied("clip")
    (folder / "custom.py").write_text("raise SystemExit('the code was run')\n")
    path = folder / "config.json"
    config = {**json.loads(path.read_text()), "model_type": "custom"}
    path.write_text(json.dumps({**config, "auto_map": {"AutoConfig": "custom.Config"}}))
    with pytest.raises(NNNormError, match=r"can't be loaded \("):
        load_encoder(folder, device="cpu")


def test_a_name_that_is_not_on_this_machine_is_said_while_offline():
    words = "model someone/some-clip can't be loaded .*; there is no folder of this name: pass"
    with pytest.raises(NNNormError, match=words):
        load_encoder("someone/some-clip", device="cpu")


@pytest.mark.parametrize("kind", ["clip", "siglip", "blip", "clap"])
def test_other_number_types_give_nearly_the_same_rows_in_float32(
    kind, tiny_model, tiny_encoder, pictures, sounds
):
    full, half = tiny_encoder(kind), load_encoder(tiny_model(kind), device="cpu", dtype="bfloat16")
    assert half.about["dtype"] == "bfloat16"
    things = ("encode_audio", sounds) if kind == "clap" else ("encode_images", pictures)
    for encode, items in (things, ("encode_texts", tiny.TEXTS)):
        rows, expected = getattr(half, encode)(items), getattr(full, encode)(items)
        assert rows.dtype == np.float32
        assert (rows * expected).sum(axis=1).min() > 0.98
        assert np.abs(rows - expected).max() > 1e-5
