"""The encoder for a name or a folder."""

import pytest

from nnnorm import NNNormError
from nnnorm.encoders import load_encoder

pytestmark = pytest.mark.slow


def test_a_folder_of_another_kind_and_a_file_are_rejected_with_what_was_expected(tmp_path):
    with pytest.raises(NNNormError, match=r"isn't a model folder: expected config\.json"):
        load_encoder(tmp_path)
    (tmp_path / "model.pth").write_bytes(b"")
    with pytest.raises(NNNormError, match=r"model\.pth isn't a model folder"):
        load_encoder(tmp_path / "model.pth")


@pytest.mark.parametrize("name", ["some/long/path", "/absent/folder"])
def test_a_path_that_is_not_there_is_not_looked_for_on_the_hub(name):
    with pytest.raises(NNNormError, match="isn't a model folder"):
        load_encoder(name)


def test_an_unknown_library_device_and_type_are_rejected(tiny_model):
    with pytest.raises(NNNormError, match=r"library must be one of transformers, .*got 'keras'"):
        load_encoder(tiny_model("clip"), library="keras")
    with pytest.raises(NNNormError, match="device 'warp:9' can't be used here"):
        load_encoder(tiny_model("clip"), device="warp:9")
    with pytest.raises(NNNormError, match="dtype must be one of float32"):
        load_encoder(tiny_model("clip"), dtype="float8")
