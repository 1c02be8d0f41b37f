"""Who multiplies int8: right or not at all, and chosen by what it measured."""

import subprocess
import sys
import threading
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import nnnorm.int8 as int8_module
from nnnorm.int8 import Int8, fastest_int8, int8_by
from nnnorm.threads import on_a_worker


@pytest.fixture(autouse=True)
def forget():
    int8_module._fastest.cache_clear()
    yield
    int8_module._fastest.cache_clear()


@pytest.mark.parametrize("name", ["numkong", "torch"])
@pytest.mark.parametrize("shape", [(1, 1, 1), (3, 5, 64), (50, 70, 576), (480, 2048, 128)])
def test_products_are_exact(name, shape):
    rng = np.random.default_rng(0)
    n_items, n_references, width = shape
    way = int8_by(name)
    items = rng.integers(-127, 128, size=(n_items, width), dtype=np.int8)
    references = rng.integers(-127, 128, size=(n_references, width), dtype=np.int8)
    items[0], references[0] = 127, -127  # the largest sum there is
    expected = items.astype(np.int64) @ references.astype(np.int64).T
    packed = way.pack(references)
    for _ in range(2):  # the answer's memory is used again
        found = way.multiply(items, packed)
        assert found.dtype == np.int32
        np.testing.assert_array_equal(found, expected)


def test_threads_do_not_write_into_each_other_s_answers():
    rng = np.random.default_rng(0)
    references = rng.integers(-127, 128, size=(64, 64), dtype=np.int8)
    wrong = []
    for name in ("numkong", "torch"):
        way = int8_by(name)
        packed = way.pack(references)

        def work(seed, way=way, packed=packed):
            mine = np.random.default_rng(seed).integers(-127, 128, size=(40, 64), dtype=np.int8)
            expected = mine.astype(np.int32) @ references.astype(np.int32).T
            for _ in range(50):
                if not np.array_equal(way.multiply(mine, packed), expected):
                    wrong.append(seed)

        threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_torch_has_one_thread_while_it_works_for_us_and_elsewhere_as_many_as_before():
    way = int8_by("torch")
    codes = np.ones((8, 64), dtype=np.int8)
    seen = []

    def look():
        seen.append(torch.get_num_threads())

    def work():
        way.multiply(codes, way.pack(codes))
        look()

    for task in (look, work, look):
        thread = threading.Thread(target=task)
        thread.start()
        thread.join()
    before, during, after = seen
    assert during == 1
    assert after == before


def plainly(items, references):
    return items.astype(np.int32) @ references.T.astype(np.int32)


def saturating(items, references):
    """What processors without VNNI do if one is not careful."""
    return np.clip(plainly(items, references), -(2**15), 2**15 - 1)


def refusing(items, references):
    raise RuntimeError("no kernel for this processor")


@pytest.mark.parametrize("multiply", [saturating, refusing])
def test_who_is_wrong_or_refuses_is_never_chosen(multiply, monkeypatch):
    way = Int8("somebody", np.asarray, multiply)
    monkeypatch.setattr(int8_module, "int8_by", lambda name: way)
    assert fastest_int8() is None


def test_a_torch_with_another_default_device_still_multiplies_here():
    way = int8_by("torch")
    codes = np.ones((3, 64), dtype=np.int8)
    before = torch.get_default_device()
    torch.set_default_device("meta")
    try:
        found = on_a_worker(lambda: way.multiply(codes, way.pack(codes)).copy())
    finally:
        torch.set_default_device(before)
    assert found.tolist() == [[64] * 3] * 3


def test_who_is_slow_is_given_up_at_once(monkeypatch):
    sizes = []

    def slow(items, references):
        sizes.append(len(items))
        return plainly(items, references)

    def ten_times_as_slow(work):
        n_before = len(sizes)
        work()
        return 10 if len(sizes) > n_before else 1

    monkeypatch.setattr(int8_module, "_seconds", ten_times_as_slow)
    assert int8_module._try(Int8("somebody", np.asarray, slow)) == (np.inf, np.inf)
    assert set(sizes) == {16}


def test_work_grows_with_the_width_as_it_was_measured(monkeypatch):
    work = {512: 100.0, 128: 52.0}
    monkeypatch.setattr(int8_module, "_work", lambda way, n, m, width: work[width])
    measured = int8_module._try(Int8("somebody", np.asarray, plainly))
    assert measured == pytest.approx((36.0, 0.125))
    way = Int8("somebody", np.asarray, plainly, measured)
    assert way.work_of(256) == pytest.approx(68.0)
    assert way.is_quick(512)
    assert not way.is_quick(64)


def test_the_fastest_of_those_who_are_there_is_taken(monkeypatch):
    monkeypatch.setattr(
        int8_module, "_try", lambda way: {"numkong": (0.0, 0.5), "torch": (0.0, 0.3)}[way.name]
    )
    assert fastest_int8().name == "torch"
    monkeypatch.delitem(sys.modules, "torch")
    assert fastest_int8().name == "numkong"
    monkeypatch.setattr(int8_module, "find_spec", lambda name: None)
    int8_module._fastest.cache_clear()
    assert fastest_int8() is None


def test_a_numkong_that_is_too_old_is_left_alone(monkeypatch):
    def dots_pack(rows):
        raise TypeError("Input dtype 'b' does not match target dtype 'bf16'.")  # 7.0

    for old in (SimpleNamespace(dots_pack=dots_pack), SimpleNamespace()):
        monkeypatch.setitem(sys.modules, "numkong", old)
        monkeypatch.setattr(int8_module, "find_spec", lambda name: name)
        monkeypatch.delitem(sys.modules, "torch", raising=False)
        int8_module._fastest.cache_clear()
        assert fastest_int8() is None


def test_torch_is_not_loaded_for_it():
    code = "import sys\nfrom nnnorm.int8 import fastest_int8\nfastest_int8()\n"
    code += "assert 'numkong' in sys.modules and 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
