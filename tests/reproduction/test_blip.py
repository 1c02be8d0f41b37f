"""BLIP's own checkpoint: recognised, loaded to the last bit, or refused with what is missing."""

import numpy as np
import pytest
import torch

from nnnorm import NNNormError
from reproduction.models import load_model
from tests import tiny
from tests.reproduction.pixels import square_pixels

pytestmark = pytest.mark.slow

MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The path of a checkpoint, and the model of transformers with the same weights."""
    return tiny.build_blip(tmp_path_factory.mktemp("blip"))


@pytest.fixture(scope="module")
def encoder(made):
    return load_model(str(made[0]), device="cpu")


def change(made, folder, **changes):
    """Another checkpoint, with tensors replaced, or left out where they are None."""
    stored = torch.load(made[0], weights_only=True)
    for key, tensor in changes.items():
        key = key.replace("__", ".")
        stored["model"].pop(key, None)
        if tensor is not None:
            stored["model"][key] = tensor
    (folder / "vocab.txt").write_bytes(made[0].with_name("vocab.txt").read_bytes())
    torch.save(stored, folder / "other.pth")
    return folder / "other.pth"


def test_every_tensor_of_both_towers_and_heads_is_loaded_bit_for_bit(made, encoder):
    theirs, ours = made[1].state_dict(), encoder.model.state_dict()
    assert set(theirs) == set(ours)
    for key, tensor in theirs.items():
        assert torch.equal(tensor, ours[key]), key


@torch.no_grad()
def test_rows_are_those_of_the_model_with_the_same_weights(made, encoder, pictures):
    model = made[1]
    pixels = torch.from_numpy(square_pixels(pictures, 32, MEAN, STD))
    seen = model.vision_proj(model.vision_model(pixels).last_hidden_state[:, 0])
    seen = torch.nn.functional.normalize(seen, dim=-1)
    np.testing.assert_allclose(encoder.encode_images(pictures), seen, atol=1e-6)
    tokens = {"input_ids": torch.tensor([[2, 5, 7, 11, 3]]), "attention_mask": torch.ones(1, 5)}
    read = model.text_proj(model.text_encoder(**tokens).last_hidden_state[:, 0])
    read = torch.nn.functional.normalize(read, dim=-1)
    np.testing.assert_allclose(encoder.encode_texts(["A red circle."]), read, atol=1e-6)


def test_texts_are_cut_and_cleaned_as_by_the_authors(made, encoder):
    assert encoder.context == 35
    rows = encoder.encode_texts(["A red star!", "a red star"])
    np.testing.assert_array_equal(rows[0], rows[1])


def test_texts_of_more_than_30_words_are_counted_and_cut(encoder):
    fits = " ".join(["red"] * 30)
    with pytest.warns(UserWarning, match="1 of 2 texts are longer than the 35 tokens"):
        rows = encoder.encode_texts([fits + " !", fits + " star"])
    np.testing.assert_allclose(rows[0], rows[1], atol=1e-6)
    assert encoder.count_cut([" ".join(["reds"] * 17), fits]) == 1  # two tokens per word


def test_it_is_converted_once_and_again_if_the_checkpoint_changes(made, tmp_path):
    path = change(made, tmp_path)
    load_model(str(path), device="cpu")
    (folder,) = tmp_path.glob("*-transformers")
    stamp = (folder / "model.safetensors").stat().st_mtime_ns
    load_model(str(path), device="cpu")
    assert (folder / "model.safetensors").stat().st_mtime_ns == stamp
    change(made, tmp_path, vision_proj__bias=torch.ones(16))
    changed = load_model(str(path), device="cpu")
    assert torch.equal(changed.model.vision_proj.bias, torch.ones(16))


def test_a_text_of_punctuation_alone_is_encoded_and_does_not_abort_the_work(encoder):
    rows = encoder.encode_texts(["a star", "... !"])
    np.testing.assert_allclose(np.linalg.norm(rows, axis=1), 1, rtol=1e-6)


def test_another_image_size_interpolates_the_positions(made, pictures):
    larger = load_model(str(made[0]), image_size=64, device="cpu")
    assert larger.encode_images(pictures[:2]).shape == (2, 16)
    with pytest.raises(NNNormError, match="multiple of the patch size 16; got 40"):
        load_model(str(made[0]), image_size=40)


def test_without_its_vocabulary_it_says_what_to_do(made, tmp_path):
    (tmp_path / "blip.pth").write_bytes(made[0].read_bytes())
    with pytest.raises(NNNormError, match=r"vocab\.txt is not there; put vocab\.txt next to"):
        load_model(str(tmp_path / "blip.pth"))
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    with pytest.raises(NNNormError, match="has 6 pieces, the checkpoint 25"):
        load_model(str(tmp_path / "blip.pth"))
    (tmp_path / "vocab.txt").write_text("\n".join(map(str, range(25))) + "\n")
    with pytest.raises(NNNormError, match=r"has no \[CLS\]; is it BERT's\?|can't be read"):
        load_model(str(tmp_path / "blip.pth"))


@pytest.mark.parametrize(
    ("key", "tensor", "words"),
    [
        ("itm_head__weight", None, "is not a checkpoint of BLIP retrieval: it has no itm_head.w"),
        ("vision_proj__bias", None, "lacks 1 of the .* tensors .*: vision_proj.bias"),
        ("vision_proj__bias", torch.zeros(3), r"vision_proj.bias must have shape \(16,\); got"),
        ("some__head", torch.zeros(3), "has 1 tensors this model does not know: some.head"),
    ],
)
def test_a_checkpoint_of_another_task_is_refused(made, tmp_path, key, tensor, words):
    with pytest.raises(NNNormError, match=words):
        load_model(str(change(made, tmp_path, **{key: tensor})))
