import numpy as np
import pytest

from nnnorm import NNN, NNNormError, open_embeddings
from nnnorm.evaluation.sweep import make_settings
from nnnorm.methods import METHOD_NAMES, PAPER_GRID, base, find_method, make_method

TWO_BANKS = ("dualis", "dualdis", "sinkhorn")


def lay_out(methods, small, **options):
    """The settings of some methods for the small problem."""
    return make_settings(
        methods,
        open_embeddings(small.gallery, name="gallery"),
        open_embeddings(small.references, name="references"),
        gallery_references=open_embeddings(small.gallery_references, name="gallery_references"),
        **options,
    )


def axis(method, name, part=None):
    grid = find_method(method)[1].grid
    return (grid if part is None else grid[part])[name]


def bank_of(n_references, dim=4):
    return open_embeddings(np.random.default_rng(0).normal(size=(n_references, dim)))


# --- the grids of the papers ---------------------------------------------------------------------


def test_the_papers_grid_has_eleven_alphas_and_ten_ks():
    assert PAPER_GRID["reference_k"] == (1, 2, 4, 8, 16, 32, 64, 128, 256, 512)
    assert PAPER_GRID["alpha"] == tuple(0.25 + 0.125 * step for step in range(11))
    settings = make_settings(["nnn"], bank_of(6), bank_of(512), grids={"nnn": PAPER_GRID})
    assert len(settings) == 110
    assert len({(s.params["reference_k"], s.params["alpha"]) for s in settings}) == 110


def test_nnn_adds_small_alphas_and_centering_and_what_the_rule_chooses_for_this_bank():
    assert axis("nnn", "reference_k") == PAPER_GRID["reference_k"]
    assert axis("nnn", "alpha") == (0.0625, 0.125, 0.1875, *PAPER_GRID["alpha"])
    items, bank = bank_of(60), bank_of(512)
    *settings, automatic = make_settings(["nnn"], items, bank)
    assert len(settings) == 140
    assert all(setting.params["center"] for setting in settings)
    bias = NNN().fit(items, bank, duplicates="keep")
    assert automatic.params == {name: bias.params[name] for name in automatic.params}
    np.testing.assert_array_equal(automatic.correction(), bias.correction)


@pytest.mark.parametrize(("n_references", "largest"), [(1, 1), (57, 32), (64, 64), (1000, 512)])
def test_the_default_grid_leaves_out_k_beyond_the_bank(n_references, largest):
    settings = make_settings(["nnn", "csls"], bank_of(2), bank_of(n_references))
    for method, per_k in (("nnn", 14), ("csls", 1)):  # two items are too few for an automatic cell
        ks = [s.params["reference_k"] for s in settings if s.method.name == method]
        assert max(ks) == largest
        assert len(ks) == per_k * (1 + int(np.log2(largest)))


# --- every setting is what fitting it would give -------------------------------------------------


def test_each_bank_is_scanned_once_for_all_methods(small, monkeypatch):
    banks = []

    def counted(scores, **options):
        banks.append(scores.columns.name)
        return scan(scores, **options)

    scan = base.scan
    monkeypatch.setattr(base, "scan", counted)
    lay_out([name for name in METHOD_NAMES if name not in ("none", "sinkhorn")], small)
    # As the items are, and centred for NNN.
    assert banks == ["references", "references", "gallery_references"]


# --- a grid of one's own -------------------------------------------------------------------------


def test_a_list_of_grids_is_laid_out_one_after_another_and_a_cell_comes_once(small):
    parts = [
        {"reference_k": [1, 2], "alpha": [0.5]},
        {"alpha": [0.5, 1.0], "reference_k": [2]},
        {"reference_k": [1], "alpha": [0.5]},
    ]
    settings = lay_out(["nnn"], small, grids={"nnn": parts})
    expected = [(1, 0.5), (2, 0.5), (2, 1.0)]
    assert [(s.params["reference_k"], s.params["alpha"]) for s in settings] == expected
    assert all(list(s.params) == ["reference_k", "alpha"] for s in settings)


def test_arrays_may_be_axes_and_become_plain_numbers(small):
    axes = {"reference_k": np.array([1, 2]), "alpha": np.linspace(0, 1, 3, dtype=np.float32)}
    settings = lay_out(["nnn"], small, grids={"nnn": axes})
    assert len(settings) == 6
    assert {type(value) for s in settings for value in s.params.values()} == {int, float}


@pytest.mark.parametrize(
    ("method", "grid", "words"),
    [
        ("nnn", {}, "the grid of nnn is empty; pass at least one value per parameter"),
        ("nnn", [], "the grid of nnn is empty"),
        ("nnn", {"reference_k": [], "alpha": [0.5]}, "dict of parameters to lists"),
        ("none", {"alpha": [1]}, "method none takes no parameters; got alpha"),
        ("nnn", {"k": [1]}, "method nnn takes reference_k, alpha, center; got k"),
        ("nnn", {"reference_k": [1]}, "nnn needs numbers for reference_k and alpha"),
        ("nnn", {"reference_k": ["auto"], "alpha": [0.5]}, "needs numbers for .* not auto"),
        ("nnn", {"reference_k": [1], "alpha": [np.nan]}, "alpha must be a number .* got nan"),
        ("nnn", {"reference_k": 4, "alpha": [1]}, "lists of values, or .*; got {.reference_k.: 4"),
        ("dualdis", {"beta_query": [1], "beta_gallery": [1], "gate": "paper"},
         "lists of values, or .*; got"),
        ("nnn", [1, 2], "the grid of nnn must be a dict of parameters to lists"),
        ("is", {"beta": [1.0], "gated": [True]}, "method is takes beta; got gated"),
        ("sinkhorn", [{"tau": [0.1]}, {"iterations": [2]}],
         "the grid of sinkhorn must be .* with the same parameters"),
        ("dualdis", {"beta_query": [1.0], "beta_gallery": [1.0], "gate": ["safe"]},
         "dualdis is tuned in its published form only; leave out gate 'safe'"),
    ],
)  # fmt: skip
def test_a_wrong_grid_is_refused_before_any_bank_is_read(small, monkeypatch, method, grid, words):
    monkeypatch.setattr(base, "scan", None)
    with pytest.raises(NNNormError, match=words):
        lay_out(["none", method] if method != "none" else ["none"], small, grids={method: grid})


def test_without_a_gallery_bank_a_gallery_beta_of_zero_is_enough_for_dualis_but_not_its_gate():
    grid = {"beta_query": [3.0], "beta_gallery": [0.0]}
    gallery, references = bank_of(5), bank_of(7)
    settings = make_settings(["dualis"], gallery, references, grids={"dualis": grid})
    bias = make_method("is", beta=3.0).fit(gallery, references)
    np.testing.assert_allclose(settings[0].correction(), bias.correction, rtol=1e-6)
    with pytest.raises(NNNormError, match="method dualdis needs a gallery bank"):
        make_settings(["dualdis"], gallery, references, grids={"dualdis": grid})
