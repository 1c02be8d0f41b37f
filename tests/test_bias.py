import copy
import pickle

import numpy as np
import pytest
from safetensors.numpy import save_file

from nnnorm import NNN, Bias, DualSoftmax, InvertedSoftmax, NNNormError
from nnnorm.bias import Gate


@pytest.fixture
def path(tmp_path):
    return tmp_path / "bias.safetensors"


def fitted(small):
    yield NNN().fit(small.gallery, small.references)
    yield InvertedSoftmax(gated=True).fit(small.gallery, small.references)
    yield DualSoftmax(9.0, 2.0, gate="safe").fit(
        small.gallery, small.references, gallery_references=small.gallery_references
    )


def test_a_saved_bias_is_loaded_unchanged(small, path):
    for bias in fitted(small):
        bias.save(path)
        back = Bias.load(path)
        np.testing.assert_array_equal(back.values, bias.values)
        assert back.to_dict() == bias.to_dict()
        for first, second in zip(back.gates, bias.gates, strict=True):
            np.testing.assert_array_equal(first.values, second.values)
            np.testing.assert_array_equal(first.active, second.active)


def test_a_bias_can_t_be_changed(small):
    bias = next(fitted(small))
    with pytest.raises(AttributeError):
        bias.weight = 2.0
    with pytest.raises(ValueError, match="read-only"):
        bias.values[0] = 1.0
    for about in (bias.params, bias.fingerprints):
        with pytest.raises(TypeError, match="does not support item assignment"):
            about["alpha"] = 2.0


def test_a_bias_copies_its_arguments():
    params, values = {"alpha": 0.5}, np.zeros(2, dtype=np.float32)
    bias = Bias(values, 0.5, "nnn", params=params)
    params["alpha"] = values[0] = 9.0
    assert (bias.params, bias.values[0]) == ({"alpha": 0.5}, 0)


def test_a_copy_of_a_bias_is_whole_and_can_t_be_changed_either(small):
    for bias in fitted(small):
        for other in (copy.deepcopy(bias), pickle.loads(pickle.dumps(bias))):
            assert other.to_dict() == bias.to_dict()
            np.testing.assert_array_equal(other.values, bias.values)
            assert not other.values.flags.writeable
            for first, second in zip(other.gates, bias.gates, strict=True):
                np.testing.assert_array_equal(first.values, second.values)
                np.testing.assert_array_equal(first.active, second.active)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        (["a"], "bias values must be one number per item, shape"),
        (np.zeros((2, 2)), r"one number per item, shape \(n_gallery,\); got shape \(2, 2\)"),
        (np.zeros(0), r"one number per item, shape \(n_gallery,\); got shape \(0,\)"),
        (np.array([0.0, np.nan]), "must be finite; item 1 has nan"),
        (np.array([np.inf, 0.0]), "must be finite; item 0 has inf"),
    ],
)
def test_values_of_another_form_are_rejected(values, words):
    with pytest.raises(NNNormError, match=words):
        Bias(values, 1.0, "nnn")


def test_a_gate_must_be_finite_and_fit_the_values():
    gate = Gate(np.zeros(3), np.zeros(3, dtype=bool))
    with pytest.raises(NNNormError, match=r"one entry per item, .*; got \(3,\) and \(3,\)"):
        Bias(np.zeros(2), 1.0, "is", gates=(gate,))
    with pytest.raises(NNNormError, match="gate values must be finite; item 1 has nan"):
        Gate(np.array([0.0, np.nan]), np.ones(2, dtype=bool))


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        (None, "is not an nnnorm file; expected a bias: make one with"),
        ({"nnnorm": '{"format": "nnnorm.bias/9"}'}, "is a bias of format 9; upgrade nnnorm"),
        ({"nnnorm": "not json"}, "is not an nnnorm file; expected a bias: make one with"),
        ({"nnnorm": "[]"}, "is not an nnnorm file; expected a bias: make one with"),
        ({"nnnorm": '{"format": "nnnorm.bias/1"}'}, "is a damaged bias file .* make it again"),
    ],
)
def test_a_file_of_another_format_is_rejected_by_name(path, metadata, message):
    save_file({"values": np.zeros(3)}, path, metadata)
    with pytest.raises(NNNormError, match=message):
        Bias.load(path)


def test_embeddings_are_not_a_bias(tmp_path):
    np.save(tmp_path / "items.npy", np.eye(3))
    with pytest.raises(NNNormError, match=r"items.npy contains embeddings; expected a bias"):
        Bias.load(tmp_path / "items.npy")


def test_a_bias_prints_in_one_line_whatever_its_size(small):
    bias = NNN(reference_k=5, alpha=0.75).fit(small.gallery, small.references)
    assert repr(bias) == (
        "Bias(nnn: 23 items, 57 past queries, weight=0.75, reference_k=5, solver=exact)"
    )
    assert len(repr(Bias(np.zeros(100_000), 1.0, "is", {"beta": 20.0}))) < 100


def test_a_bias_has_alpha_and_reference_k(small):
    bias = NNN(reference_k=5, alpha=0.625).fit(small.gallery, small.references)
    assert (bias.alpha, bias.reference_k) == (0.625, 5)
    assert InvertedSoftmax().fit(small.gallery, small.references).reference_k is None
