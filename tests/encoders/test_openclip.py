"""OpenCLIP: what can be tested without it. It needs torchvision, so it is not installed here."""

import importlib.util

import pytest

from nnnorm import NNNormError
from nnnorm.encoders import load_encoder
from nnnorm.encoders.openclip import split_name
from nnnorm.errors import MissingExtraError

absent = importlib.util.find_spec("open_clip") is None


@pytest.mark.skipif(not absent, reason="open_clip is installed")
def test_without_the_library_the_extra_is_named():
    with pytest.raises(MissingExtraError, match=r"pip install 'nnnorm\[open-clip\]'"):
        load_encoder("ViT-B-32/laion2b_s34b_b79k", library="open-clip", device="cpu")


@pytest.mark.skipif(absent, reason="open_clip (which brings torchvision) is not installed")
def test_a_model_of_the_library_encodes_texts_and_images(tmp_path, pictures):
    import open_clip
    import torch

    weights = tmp_path / "weights.pt"
    torch.save(open_clip.create_model("ViT-B-32").state_dict(), weights)
    encoder = load_encoder(f"ViT-B-32/{weights}", library="open-clip", device="cpu")
    assert encoder.encode_texts(["a dog"]).shape == (1, 512)
    assert encoder.encode_images(pictures[:1]).shape == (1, 512)
    assert encoder.token_counts(["a dog"]) == [4]


def test_a_name_without_weights_is_rejected_before_anything_is_loaded():
    with pytest.raises(NNNormError, match="names no weights: they would be random"):
        split_name("ViT-B-32")


def test_weights_may_be_a_path():
    assert split_name("ViT-B-32/some/weights.pt") == ("ViT-B-32", "some/weights.pt")
