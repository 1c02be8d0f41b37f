"""Checkpoints: read as tensors only, found where authors put them, checked key by key."""

import argparse
import logging
import pickle

import pytest
import torch
from safetensors.torch import save_file

from nnnorm import NNNormError
from nnnorm.encoders.weights import (
    check_keys,
    fingerprint_files,
    pick_device,
    pick_dtype,
    quiet_loading,
    read_checkpoint,
    resize_positions,
)

pytestmark = pytest.mark.slow

STATE = {"a.weight": torch.ones(2, 3), "a.bias": torch.zeros(2)}


class Bomb:
    def __reduce__(self):
        return (pytest.fail, ("the checkpoint was run",))


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        {"model": STATE, "epoch": 3, "optimizer": {"state": {}, "param_groups": [{"lr": 1e-5}]}},
        {"module": STATE},
        {"model": STATE, "args": argparse.Namespace(lr=1e-5, data="here")},
    ],
    ids=["bare", "under model", "under module", "beside a run's arguments"],
)
def test_the_state_dict_is_found_where_authors_put_it(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    found = read_checkpoint(tmp_path / "a.pth")
    assert found.keys() == STATE.keys()
    assert torch.equal(found["a.weight"], STATE["a.weight"])


def test_safetensors_are_read_too(tmp_path):
    save_file(STATE, tmp_path / "a.safetensors")
    assert read_checkpoint(tmp_path / "a.safetensors").keys() == STATE.keys()


def test_nothing_in_a_checkpoint_is_ever_run(tmp_path):
    torch.save({"model": STATE, "extra": Bomb()}, tmp_path / "new.pth")
    with open(tmp_path / "old.pth", "wb") as file:
        pickle.dump({"model": Bomb()}, file)
    for name in ("new.pth", "old.pth"):
        with pytest.raises(NNNormError, match=r"can't be read as tensors.*never unpickled") as info:
            read_checkpoint(tmp_path / name)
        assert "weights_only" not in str(info.value)  # torch's advice how to run it after all


def test_a_checkpoint_that_is_cut_short_is_refused(tmp_path):
    torch.save(STATE, tmp_path / "a.pth")
    (tmp_path / "a.pth").write_bytes((tmp_path / "a.pth").read_bytes()[:300])
    with pytest.raises(NNNormError, match=r"a\.pth can't be read as tensors"):
        read_checkpoint(tmp_path / "a.pth")


@pytest.mark.parametrize("content", [[torch.ones(2)], {"a": 1}, torch.ones(2)])
def test_a_file_without_a_state_dict_is_refused(tmp_path, content):
    torch.save(content, tmp_path / "a.pth")
    with pytest.raises(NNNormError, match="holds no state dict"):
        read_checkpoint(tmp_path / "a.pth")


SHAPES = {"a.weight": (2, 3), "a.bias": (2,)}


def test_what_fits_passes_and_what_other_jobs_need_is_left():
    check_keys({**STATE, "queue": torch.ones(1)}, SHAPES, ["queue"], "x.pth")


def test_missing_keys_are_named_the_first_three():
    with pytest.raises(NNNormError, match=r"lacks 4 of the 4 tensors.*: k0, k1, k2, …;"):
        check_keys({}, {f"k{i}": (1,) for i in range(4)}, [], "x.pth")


def test_unknown_keys_are_named():
    with pytest.raises(NNNormError, match=r"has 1 tensors this model does not know: odd\.weight;"):
        check_keys({**STATE, "odd.weight": torch.ones(1)}, SHAPES, [], "x.pth")


def test_a_key_is_unused_as_a_whole_and_not_by_its_beginning():
    with pytest.raises(NNNormError, match="does not know: queue_new"):
        check_keys({**STATE, "queue_new": torch.ones(1)}, SHAPES, ["queue"], "x.pth")


def test_another_shape_is_said_with_both():
    with pytest.raises(NNNormError, match=r"a\.bias must have shape \(3,\); got \(2,\)"):
        check_keys(STATE, {"a.weight": (2, 3), "a.bias": (3,)}, [], "x.pth")


def test_positions_of_the_same_grid_stay():
    table = torch.randn(1 + 9, 4)
    assert resize_positions(table, 1, 3) is table


def test_positions_of_another_grid_keep_the_first_rows_and_the_gradient_of_the_others():
    ramp = torch.arange(4.0).repeat(4, 1).reshape(16, 1)  # grows along each row of the grid
    table = torch.cat([torch.tensor([[7.0]]), ramp])
    larger = resize_positions(table, 1, 8)
    assert larger.shape == (65, 1)
    assert larger[0] == 7
    grid = larger[1:].reshape(8, 8)
    assert (grid.diff(dim=1) > 0).all()
    assert grid.diff(dim=0).abs().max() < 1e-6


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(NNNormError, match="device 'warp:9' can't be used here"):
        pick_device("warp:9")
    assert pick_device("auto") in ("cpu", "cuda", "mps")


def test_fingerprints_follow_the_contents(tmp_path):
    (tmp_path / "a").write_text("1")
    first = fingerprint_files([tmp_path / "a"])
    (tmp_path / "a").write_text("2")
    assert fingerprint_files([tmp_path / "a"]) != first


def test_a_dtype_that_the_device_cannot_compute_in_is_said(monkeypatch):
    def refuse(*arguments, **options):
        raise RuntimeError("\"slow_conv2d_cpu\" not implemented for 'Half'\nmore")

    assert pick_dtype("float16", "cpu") == torch.float16
    monkeypatch.setattr(torch.nn.functional, "conv2d", refuse)
    with pytest.raises(
        NNNormError, match=r"device cpu can't compute in float16 \(.*Half'\); use f"
    ):
        pick_dtype("float16", "cpu")
    assert pick_dtype("float32", "cpu") == torch.float32


def test_attempts_to_reach_the_hub_are_not_logged_while_a_model_is_loaded(caplog):
    log = logging.getLogger("huggingface_hub.utils._http")
    with quiet_loading():
        log.warning("Retrying in 1s [Retry 1/5].")
    assert caplog.records == []
    log.warning("afterwards")
    assert [record.message for record in caplog.records] == ["afterwards"]
