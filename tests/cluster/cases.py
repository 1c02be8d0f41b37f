"""A gallery in shards on disk, and every method and solver with which it is fitted."""

import itertools

import numpy as np
import pytest

from nnnorm import CSLS, DN, NNN, DualSoftmax, InvertedSoftmax, Sinkhorn, Uncorrected

N_GALLERY, DIM = 701, 16


def rows(n, seed):
    """Rows whose directions matter less and less, as in real embeddings."""
    scale = np.arange(1, DIM + 1) ** -0.5
    return (np.random.default_rng(seed).normal(size=(n, DIM)) * scale).astype(np.float32)


GALLERY, REFERENCES, LARGE = rows(N_GALLERY, 0), rows(301, 1), rows(9000, 2)
OTHERS = {"gallery_references": rows(99, 3)}
KEEP = {"duplicates": "keep"}

# Name: method, bank, further arguments of `fit`.
CASES = {
    "automatic": (NNN(), REFERENCES, {}),
    "normalized": (NNN(), REFERENCES, {"normalize": True}),
    "paper": (NNN(8, 0.75), REFERENCES, KEEP),
    "csls": (CSLS(5), REFERENCES, {}),
    "dn": (DN(), REFERENCES, {}),
    "inverted softmax": (InvertedSoftmax(5.0), REFERENCES, {}),
    "qbnorm": (InvertedSoftmax(5.0, gated=True), REFERENCES, {}),
    "dualis": (DualSoftmax(5.0, 3.0), REFERENCES, OTHERS),
    "dualdis": (DualSoftmax(5.0, 3.0, gate="paper"), REFERENCES, OTHERS),
    "sinkhorn": (Sinkhorn(0.1, 3), REFERENCES, {}),
    "sinkhorn with a gallery bank": (Sinkhorn(0.1, 3), REFERENCES, OTHERS),
    "none": (Uncorrected(), REFERENCES, {}),
    "exact": (CSLS(5), REFERENCES, {"solver": "exact"}),
    "approximate, a small bank": (CSLS(5), REFERENCES, {"solver": "approximate"}),
    "torch": pytest.param(CSLS(5), REFERENCES, {"solver": "torch"}, marks=pytest.mark.slow),
}


def as_params():
    """The cases for `pytest.mark.parametrize`."""
    return [
        pytest.param(
            *(case.values if hasattr(case, "values") else case),
            id=name,
            marks=getattr(case, "marks", ()),
        )
        for name, case in CASES.items()
    ]


def write_shards(folder):
    """The gallery in files of different lengths, as clip-retrieval names them."""
    folder.mkdir(parents=True)
    edges = [0, 100, 420, N_GALLERY]
    for number, (first, last) in enumerate(itertools.pairwise(edges)):
        np.save(folder / f"img_emb_{number}.npy", GALLERY[first:last])
    return folder


def assert_same_bias(found, expected):
    """Equal in all but the time; values to the last bits, which BLAS may round by shape."""
    about, right = found.to_dict(), expected.to_dict()
    assert about.pop("created")
    assert right.pop("created")
    if "error" in right["params"]:
        assert about["params"].pop("error") == pytest.approx(right["params"].pop("error"), abs=1e-5)
    assert about == right
    np.testing.assert_allclose(found.values, expected.values, rtol=1e-6, atol=2e-6)
    for gate, other in zip(found.gates, expected.gates, strict=True):
        np.testing.assert_allclose(gate.values, other.values, rtol=1e-6, atol=2e-6)
        assert (gate.active == other.active).all()
