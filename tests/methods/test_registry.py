"""Each method's file describes it; everything else reads the registry."""

import dataclasses
import pickle
from typing import get_args

import numpy as np
import pytest

import nnnorm
from nnnorm import DualSoftmax, NNNormError, methods
from nnnorm.cli.options import LINES
from nnnorm.evaluation import compare, tune
from nnnorm.evaluation.tuning import check_choice
from nnnorm.methods import (
    METHOD_NAMES,
    MethodName,
    describe_setting,
    find_method,
    label_method,
    make_method,
)
from nnnorm.methods.base import Method, Variant

BETAS = {"beta_query": 20.0, "beta_gallery": 5.0}


@dataclasses.dataclass(frozen=True)
class Shrunk(Method):
    """A method of this test's own: c times the mean of all scores, squared."""

    c: float = 1.0

    variants = (Variant("shrunk", "Shrunk mean", {"c": (0.5, 1.0)}),)
    shown = ("c",)

    def values(self, statistics):
        return self.c * statistics.mean_of_all() ** 2


@pytest.fixture
def shrunk(monkeypatch):
    """What a line in the registry does."""
    names = {**methods._BY_NAME, "shrunk": (Shrunk, Shrunk.variants[0])}
    monkeypatch.setattr(methods, "_BY_NAME", names)


def test_a_new_method_needs_its_own_file_and_a_line_in_the_registry(shrunk, small):
    assert make_method("shrunk", c=2.0) == Shrunk(2.0)
    assert label_method("shrunk") == "Shrunk mean"
    assert describe_setting("shrunk", {"c": 0.5}) == "c=0.5"
    known = {"queries": small.queries, "truth": np.arange(11)}
    tuning = tune(small.gallery, small.references, **known, methods=["shrunk"])
    assert [cell.params for cell in tuning.grid] == [{}, {"c": 0.5}, {"c": 1.0}]
    found = compare(small.gallery, small.references, **known, methods=["csls", "shrunk"])
    assert [result.method for result in found.results] == ["none", "csls", "shrunk"]


def test_every_list_of_methods_is_that_of_the_registry():
    names = [variant.name for kind in methods.METHODS for variant in kind.variants]
    assert list(METHOD_NAMES) == names == list(get_args(MethodName))
    corrections = [name for name in names if name != "none"]
    assert check_choice("all", "max", True) == corrections
    assert LINES["method"].help == f"{', '.join(corrections)}."


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_has_a_label_and_an_explained_constructor(name):
    kind, variant = find_method(name)
    params = BETAS if kind is DualSoftmax else {}
    method = make_method(name, **params)
    assert method.variant is variant
    assert label_method(name) == variant.label != ""
    assert set(kind.shown) <= {part.name for part in dataclasses.fields(kind)}
    with pytest.raises(NNNormError, match=f"{kind.__name__} has no parameter 'nothing'"):
        kind(nothing=1)


@pytest.mark.parametrize("name", METHOD_NAMES)
def test_a_method_is_a_plain_frozen_record(name):
    method = make_method(name, **(BETAS if find_method(name)[0] is DualSoftmax else {}))
    assert pickle.loads(pickle.dumps(method)) == method
    assert type(method)(**dataclasses.asdict(method)) == method
    assert eval(repr(method), {type(method).__name__: type(method)}) == method
    with pytest.raises(dataclasses.FrozenInstanceError):
        method.anything = 1


def test_an_unknown_parameter_is_rejected_with_those_that_the_method_takes():
    with pytest.raises(NNNormError, match="NNN has no parameter 'k'; did you mean 'reference_k'"):
        nnnorm.NNN(k=128)
    takes = "NNN has no parameter 'shown'; it takes reference_k, alpha, center$"
    with pytest.raises(NNNormError, match=takes):
        nnnorm.NNN(shown=128)
