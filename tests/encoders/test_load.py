"""Which encoder a name, a folder or a file asks for."""

import pytest
import torch

from nnnorm import NNNormError
from nnnorm.encoders import load_encoder
from nnnorm.encoders.albef import Albef
from nnnorm.encoders.beit3 import Beit3
from nnnorm.encoders.huggingface import HuggingFace

pytestmark = pytest.mark.slow


@pytest.mark.parametrize(
    ("kind", "expected"), [("clip", HuggingFace), ("albef", Albef), ("beit3", Beit3)]
)
def test_a_model_is_recognised_by_its_files(tiny_encoder, kind, expected):
    assert isinstance(tiny_encoder(kind), expected)


@pytest.mark.parametrize(("kind", "expected"), [("albef", Albef), ("beit3", Beit3)])
def test_a_folder_with_one_checkpoint_is_as_good_as_its_path(tiny_model, kind, expected):
    assert isinstance(load_encoder(tiny_model(kind).parent, device="cpu"), expected)


def test_a_checkpoint_of_neither_kind_is_refused_with_what_it_begins_with(tmp_path):
    torch.save({"conv1.weight": torch.ones(2)}, tmp_path / "resnet.pth")
    with pytest.raises(
        NNNormError, match=r"neither ALBEF's .* begin with conv1\.weight.*needs its config\.json"
    ):
        load_encoder(tmp_path / "resnet.pth")


def test_a_folder_of_no_kind_is_refused_with_what_was_looked_for(tmp_path):
    with pytest.raises(NNNormError, match=r"is no model folder: .*found none"):
        load_encoder(tmp_path)


def test_a_folder_with_two_checkpoints_is_refused(tmp_path):
    for name in ("a.pth", "b.pth"):
        torch.save({"a": torch.ones(1)}, tmp_path / name)
    with pytest.raises(NNNormError, match=r"one checkpoint .*found a\.pth, b\.pth"):
        load_encoder(tmp_path)


@pytest.mark.parametrize("name", ["model.pth", "some/long/path", "/absent/folder"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name):
    with pytest.raises(NNNormError, match="there is no such file; check the path"):
        load_encoder(name)


def test_the_kind_can_be_said_and_a_wrong_one_is_refused(tiny_model):
    with pytest.raises(NNNormError, match="is no BEiT-3 checkpoint: it has no beit3"):
        load_encoder(tiny_model("albef"), library="beit3", device="cpu")
    with pytest.raises(NNNormError, match=r"library must be one of transformers, .*got 'keras'"):
        load_encoder(tiny_model("albef"), library="keras")


def test_options_of_another_kind_of_model_are_refused(tiny_model):
    with pytest.raises(NNNormError, match="are for checkpoints of ALBEF, BEiT-3 and BLIP"):
        load_encoder(tiny_model("clip"), image_size=64, device="cpu")
    with pytest.raises(NNNormError, match="revision is for names on the hub"):
        load_encoder(tiny_model("albef"), revision="main", device="cpu")
