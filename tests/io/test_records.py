"""Incomplete or changed files of biases, banks and correctors are rejected."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from nnnorm import Bank, Bias, Corrector, NNNormError
from tests.command import run

TYPES = {"bias": Bias, "bank": Bank, "corrector": Corrector}
PARTS = {"bias": ["values"], "bank": ["rows", "counts", "last_seen"], "corrector": ["references"]}


@pytest.fixture(params=TYPES)
def kind(request):
    return request.param


@pytest.fixture
def path(tmp_path, kind):
    """A saved record of that kind, next to one of each other kind."""
    rows = np.random.default_rng(0).normal(size=(60, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    corrector = Corrector.fit(rows[:20], rows[20:])
    corrector.save(tmp_path / "corrector.safetensors")
    corrector.bias.save(tmp_path / "bias.safetensors")
    Bank.of(rows, times=np.arange(60)).save(tmp_path / "bank.safetensors")
    return tmp_path / f"{kind}.safetensors"


def read(path):
    with safe_open(path, framework="numpy") as file:
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        return arrays, file.metadata()


def assert_rejected(path, kind, words):
    with pytest.raises(NNNormError, match=words):
        TYPES[kind].load(path)
    assert run("info", path).exit_code != 0


def test_a_missing_file_a_folder_and_another_record_are_named(path, kind):
    with pytest.raises(NNNormError, match=rf"there is no {kind} file .*gone.*; make one with"):
        TYPES[kind].load(path.with_name("gone.safetensors"))
    with pytest.raises(NNNormError, match=f"is a folder; expected a {kind} file"):
        TYPES[kind].load(path.parent)
    for other in set(TYPES) - {kind}:
        with pytest.raises(NNNormError, match=f"is a {other}; expected a {kind}"):
            TYPES[kind].load(path.with_name(f"{other}.safetensors"))


def test_a_half_written_file_is_rejected(path, kind):
    whole = path.read_bytes()
    for length in (0, 4, 200, len(whole) - 1):
        path.write_bytes(whole[:length])
        assert_rejected(path, kind, rf"can't be read as a {kind} \(.*\); is it truncated")


def test_a_changed_number_and_a_missing_part_are_rejected(path, kind):
    words = rf"damaged {kind} file \(its content changed after it was saved"
    whole = path.read_bytes()
    arrays, metadata = read(path)
    for name in PARTS[kind]:
        changed = bytearray(whole)
        changed[whole.index(arrays[name].tobytes()[:64])] ^= 0x40
        path.write_bytes(changed)
        assert_rejected(path, kind, words)
        save_file({other: arrays[other] for other in arrays if other != name}, path, metadata)
        assert_rejected(path, kind, words)


def test_another_entry_or_a_missing_digest_is_rejected(path, kind):
    arrays, metadata = read(path)
    head = json.loads(metadata["nnnorm"])
    without = {key: value for key, value in head.items() if key != "digest"}
    for changed in (without, head | {"about": head["about"] | {"version": 7}}):
        save_file(arrays, path, {"nnnorm": json.dumps(changed)})
        assert_rejected(path, kind, f"damaged {kind} file")
