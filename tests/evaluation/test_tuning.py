import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nnnorm import NNN, NNNormError, open_embeddings
from nnnorm.dedup import drop_copies
from nnnorm.embeddings import open_matrix
from nnnorm.evaluation import tuning as tune_module
from nnnorm.evaluation.metrics import evaluate, open_truth
from nnnorm.evaluation.results import interval_of_difference
from nnnorm.evaluation.sweep import Setting
from nnnorm.evaluation.tuning import tune
from nnnorm.methods import METHOD_NAMES, Statistics, make_method
from tests import made, reference

TWO_BANKS = ("dualis", "dualdis", "sinkhorn")
GRIDS = {
    "nnn": {"reference_k": [1, 3, 8], "alpha": [0.0, 0.25, 0.5, 1.0, 2.0]},
    "csls": {"reference_k": [1, 4, 10]},
    "dn": {"weight": [0.25, 1, 3.0]},
    "is": {"beta": [0.0, 0.01, 2.0, 50.0]},
    "qbnorm": {"beta": [0.0, 0.01, 2.0, 50.0]},
    "dualis": {"beta_query": [0.0, 2.0, 50.0], "beta_gallery": [0.0, 1.0, 400.0]},
    "dualdis": {"beta_query": [0.0, 2.0, 50.0], "beta_gallery": [0.0, 1.0, 400.0]},
    "sinkhorn": [{"tau": [0.02, 0.5], "iterations": [1, 10]}],
}

# Made of few whole numbers, or of one row: items are repeated.
REPEATED = pytest.mark.filterwarnings("ignore:gallery has .* different rows")
KEPT = {"duplicates": "keep", "allow_gallery_rows": True}
OWN_ROWS = pytest.mark.filterwarnings("ignore:.* sampled references are rows of gallery")


def make_problem(seed, draw, sizes=(24, 16, 45, 13), dim=5, *, negative=False):
    """Gallery, references, queries, gallery bank and one to three right items per query."""
    rng = np.random.default_rng(seed)
    gallery, references, queries, bank = (draw(rng, (n, dim)).astype(np.float32) for n in sizes)
    if negative:
        queries[::2] *= -1  # here DualDIS as published turns the order round
    order = np.argsort(-(queries @ gallery.T), axis=1, kind="stable")
    lists = [
        rng.choice(order[q, :6], size=rng.integers(1, 4), replace=False).tolist()
        for q in range(len(queries))
    ]
    return SimpleNamespace(
        gallery=gallery, references=references, queries=queries, bank=bank, lists=lists
    )


def normal_numbers(rng, shape):
    """Mostly positive scores, so that some gates are open and some shut."""
    return rng.normal(size=shape) * 0.3 + 0.15


def hubs(seed, n_items=40, n_past=30):
    """Made embeddings with hubs, five queries per item, where a correction helps."""
    gallery, queries, references = made.make_embeddings(
        n_items=n_items, n_past=n_past, dim=16, seed=seed
    )
    lists = [[q // 5] for q in range(len(queries))]
    return SimpleNamespace(
        gallery=gallery, references=references, queries=queries, bank=gallery[::2], lists=lists
    )


def run(problem, methods=("nnn",), *, bank=True, **options):
    return tune(
        problem.gallery,
        problem.references,
        queries=problem.queries,
        truth=problem.lists,
        methods=methods,
        gallery_references=problem.bank if bank else None,
        **options,
    )


def fit(problem, cell, *, bank=True):
    extra = {"gallery_references": problem.bank} if bank and cell.method in TWO_BANKS else {}
    method = make_method(cell.method, **cell.params)
    return method.fit(problem.gallery, problem.references, duplicates="drop", **extra)


def brute(problem, cell):
    """The evaluation of one cell, fitted and searched on its own."""
    return evaluate(problem.queries, problem.gallery, fit(problem, cell), truth=problem.lists)


def item_of(problem):
    """The default clusters: queries that share their first right item."""
    return np.array([min(right) for right in problem.lists])


# --- every cell is its own evaluation ------------------------------------------------------------


@pytest.mark.parametrize("negative", [False, True])
def test_every_cell_of_all_methods_together_is_its_evaluation(negative):
    problem = make_problem(4, normal_numbers, negative=negative)
    tuning = run(problem, list(GRIDS), grids=GRIDS)
    assert len(tuning.grid) == 1 + 15 + 3 + 3 + 4 + 4 + 9 + 9 + 4
    for cell in tuning.grid:
        expected = brute(problem, cell).recall(1)
        assert cell.recall_at_1 == pytest.approx(expected, abs=1e-7), cell
    raw = problem.queries @ problem.gallery.T
    first = raw.argmax(axis=1)
    scores = [problem.gallery @ rows.T for rows in (problem.references, problem.bank)]
    is_open = [reference.activation_set(some)[first] for some in scores]
    assert len(set(zip(*is_open, strict=True))) == 4, "gates must be open and closed in all ways"


# --- which cells there are -----------------------------------------------------------------------


@pytest.mark.parametrize("methods", [("nnn",), ["csls", "none"], ["none"], ("dn", "dn"), "all"])
def test_no_correction_is_always_there_once_and_first(methods):
    tuning = run(make_problem(0, normal_numbers), methods, bank=False)
    assert tuning.grid[0].method == "none"
    assert [cell.method for cell in tuning.grid].count("none") == 1
    assert tuning.uncorrected is tuning.grid[0]
    assert tuning.uncorrected.params == {}


@pytest.mark.slow
def test_all_is_every_method_that_the_banks_allow():
    problem = make_problem(0, normal_numbers)
    with_bank, without = (
        run(problem, "all", bank=bank, duplicates="keep") for bank in (True, False)
    )
    methods = list(dict.fromkeys(cell.method for cell in with_bank.grid))
    assert methods == list(METHOD_NAMES)
    methods = list(dict.fromkeys(cell.method for cell in without.grid))
    assert methods == [name for name in METHOD_NAMES if not name.startswith("dual")]
    assert len(with_bank.grid) == 1 + 5 * 14 + 1 + 5 + 3 + 20 + 20 + 841 + 841 + 5
    assert len(without.grid) == len(with_bank.grid) - 2 * 841


# --- how a cell is chosen ------------------------------------------------------------------------


def standard_error(difference, clusters):
    """Of a mean over queries, where whole clusters are drawn."""
    away = difference - difference.mean()
    sums = [away[clusters == cluster].sum() for cluster in np.unique(clusters)]
    n_clusters = len(sums)
    if n_clusters == 1:
        return 0.0
    correction = n_clusters / (n_clusters - 1)
    return math.sqrt(correction * sum(s**2 for s in sums)) / len(difference)


def naive_choice(cells, hits, clusters, usual):
    """The one-standard-error rule, from its description. `cells` are (method, params)."""
    choices = []
    for method in dict.fromkeys(method for method, _ in cells if method != "none"):
        rows = [row for row, cell in enumerate(cells) if cell[0] in ("none", method)]
        best = max(rows[1:], key=lambda row: (hits[row].mean(), -row))
        if hits[0].mean() >= hits[best].mean():
            choices.append(0)
            continue
        near = []
        for row in rows:
            difference = hits[best] - hits[row]
            # One cluster that differs is one standard error exactly, and counts as near.
            limit = standard_error(difference, clusters) * (1 + 1e-6)
            if difference.mean() <= limit and row != 0:
                near.append(row)
        if method == "nnn":
            steps = [
                abs(math.log2(cells[row][1]["reference_k"] / usual["reference_k"]))
                + abs(cells[row][1]["alpha"] - usual["alpha"]) / 0.125
                for row in near
            ]
        else:
            names = list(cells[near[0]][1])
            axes = [sorted({cells[row][1][name] for row in rows[1:]}) for name in names]
            spots = np.array(
                [
                    [axis.index(cells[row][1][n]) for n, axis in zip(names, axes, strict=True)]
                    for row in near
                ]
            )
            steps = np.abs(spots - spots.mean(axis=0)).sum(axis=1)
        order = sorted(
            zip(steps, near, strict=True), key=lambda s: (s[0], -hits[s[1]].mean(), s[1])
        )
        choices.append(order[0][1])
    return max(choices, key=lambda row: (hits[row].mean(), -row))


@pytest.mark.slow
@settings(max_examples=120)
@given(data=st.data())
def test_the_rule_is_the_naive_rule_on_any_hits(data):
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    methods = data.draw(st.lists(st.sampled_from(["nnn", "is", "dualis"]), unique=True))
    n_queries, n_references = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 4000))
    cells = [("none", {})]
    if "nnn" in methods:
        ks = [2**p for p in range(10) if 2**p <= n_references]
        cells += [("nnn", {"reference_k": k, "alpha": a}) for k in ks for a in (0.25, 0.5, 0.75)]
    if "is" in methods:
        cells += [("is", {"beta": beta}) for beta in (0.5, 2.0, 9.0, 30.0)]
    if "dualis" in methods:
        betas = [(b, g) for b in (0.0, 5.0, 70.0) for g in (0.0, 1.0, 3.0, 8.0)]
        betas += [(b, g) for b in (20.0, 60.0) for g in (0.5, 2.0)]
        cells += [("dualis", {"beta_query": b, "beta_gallery": g}) for b, g in betas]
    # Cells that differ in a few queries, so that standard errors are as large as differences.
    common, spread = rng.random(n_queries), data.draw(st.sampled_from([0.0, 0.05, 0.3, 1.0]))
    level = rng.random((len(cells), 1)) * data.draw(st.sampled_from([0.0, 0.2, 0.6]))
    hits = np.float32(common + level + spread * rng.normal(size=(len(cells), n_queries)) > 0.6)
    clusters = rng.integers(0, data.draw(st.integers(1, 30)), size=n_queries)
    scores = rng.normal(size=(40, 1)) + rng.normal(size=(40, n_references))
    bank = Statistics(open_matrix(scores, name="scores"))
    laid_out = [Setting(make_method(name, **params), params, bank) for name, params in cells]
    chosen = tune_module.choose(laid_out, hits, clusters)
    usual = NNN().fit_scores(scores).params
    expected = naive_choice(cells, hits.astype(float), clusters, usual) if methods else 0
    assert chosen == expected


@OWN_ROWS
def test_of_equally_good_cells_of_nnn_the_rule_takes_the_nearest_to_the_automatic_one():
    # All settings answer all queries: distances decide.
    items, past = open_embeddings(np.eye(8)), open_embeddings(np.tile(np.eye(8), (8, 1)))
    truth = open_truth(np.arange(8), n_queries=8, n_gallery=8)

    def choose(grids=None):
        used = drop_copies(past, "keep")
        trial = tune_module.Trial(["nnn"], items, used, None, items, truth, grids=grids)
        trial.hits[0] = 0  # no correction would win the tie
        return trial.settings[trial.choose("one-standard-error")].params

    # All items have the same bias, so the automatic weight is 0, which is no cell of its own.
    assert NNN().fit(items, past, **KEPT).params["reference_k"] == 24
    assert choose() == {"reference_k": 32, "alpha": 0.0625, "center": True}
    grid = {"reference_k": [1, 8, 64], "alpha": [0.35, 0.725, 2.0]}
    assert choose({"nnn": grid}) == {"reference_k": 64, "alpha": 0.35}
    # One doubling is as far as 0.125 of α.
    two = [{"reference_k": [24], "alpha": [0.3]}, {"reference_k": [48], "alpha": [0.125]}]
    assert choose({"nnn": two}) == {"reference_k": 48, "alpha": 0.125}


@pytest.mark.parametrize("select", ["one-standard-error", "max"])
@OWN_ROWS
def test_no_correction_wins_a_tie_with_all_settings(select):
    problem = SimpleNamespace(
        gallery=np.eye(8), references=np.tile(np.eye(8), (8, 1)), queries=np.eye(8), bank=None,
        lists=[[item] for item in range(8)],
    )  # fmt: skip
    tuning = run(problem, select=select, duplicates="keep")
    assert {cell.recall_at_1 for cell in tuning.grid} == {1}
    assert (tuning.best.method, tuning.bias.method) == ("none", "none")


def test_select_says_which_of_the_two_is_best_and_both_are_always_told():
    problem = hubs(3)
    rule, maximum = (run(problem, select=select) for select in ("one-standard-error", "max"))
    assert rule.best is rule.best_by_rule
    assert maximum.best is maximum.best_by_maximum
    assert (rule.select, maximum.select) == ("one-standard-error", "max")
    assert rule.best.params != maximum.best.params, "the problem must tell the two apart"
    for one, other in ((rule.best_by_rule, maximum.best_by_rule),
                       (rule.best_by_maximum, maximum.best_by_maximum)):  # fmt: skip
        assert (one.method, one.params) == (other.method, other.params)


@pytest.mark.parametrize("select", ["one-standard-error", "max"])
@pytest.mark.parametrize("methods", [("nnn",), ("csls", "dn", "is")])
@OWN_ROWS
@pytest.mark.filterwarnings("ignore:rows of queries have norms of 1, but the past queries")
def test_where_every_correction_does_harm_none_is_chosen(select, methods):
    # Every query finds its item, but the bank speaks of the first half of the items only.
    problem = SimpleNamespace(
        gallery=np.eye(60), references=1000 * np.eye(60)[:30], queries=np.eye(60), bank=None,
        lists=[[item] for item in range(60)],
    )  # fmt: skip
    tuning = run(problem, methods, select=select)
    assert (tuning.best.method, tuning.best.recall_at_1) == ("none", 1)
    assert (tuning.gain.mean, tuning.gain.low, tuning.gain.high) == (0, 0, 0)
    assert tuning.bias.method == "none"
    np.testing.assert_array_equal(tuning.bias.values, 0)


# --- what is told about the choice ---------------------------------------------------------------


@pytest.mark.parametrize("method", GRIDS)
@pytest.mark.parametrize("select", ["one-standard-error", "max"])
def test_the_bias_is_what_fitting_the_best_cell_gives(method, select):
    problem = hubs(7)
    tuning = run(problem, [method], grids={method: GRIDS[method]}, select=select)
    assert tuning.best.method == method, "the problem must have use for a correction"
    bias, expected = tuning.bias, fit(problem, tuning.best)
    np.testing.assert_allclose(bias.values, expected.values, rtol=1e-6, atol=1e-7)
    for name in ("method", "weight", "params", "n_references", "dim", "fingerprints", "version"):
        assert getattr(bias, name) == getattr(expected, name), name
    for gate, other in zip(bias.gates, expected.gates, strict=True):
        np.testing.assert_array_equal(gate.active, other.active)
        np.testing.assert_allclose(gate.values, other.values, rtol=1e-6, atol=1e-7)
    figures = evaluate(problem.queries, problem.gallery, bias, truth=problem.lists)
    assert figures.recall(1) == pytest.approx(tuning.best.recall_at_1, abs=1e-7)


@pytest.mark.parametrize("seed", [0, 5])
def test_the_gain_is_the_paired_interval_between_best_and_none(seed):
    problem = hubs(2)
    tuning = run(problem, ["nnn", "is"], seed=seed)
    best, none = (brute(problem, cell).hits(1) for cell in (tuning.best, tuning.uncorrected))
    assert tuning.gain == interval_of_difference(best, none, item_of(problem), seed=seed)
    assert tuning.gain.mean == pytest.approx(
        tuning.best.recall_at_1 - tuning.uncorrected.recall_at_1
    )


# --- small and bad input -------------------------------------------------------------------------


@pytest.mark.parametrize("n_queries", [1, 3])
def test_queries_of_one_group_cannot_be_tuned_on_and_that_is_said_at_once(monkeypatch, n_queries):
    monkeypatch.setattr(tune_module, "make_settings", None)
    with pytest.raises(
        NNNormError,
        match="tuning needs queries that ask for at least two different items",
    ):
        tune(np.eye(3), np.eye(3), queries=np.eye(3)[:n_queries], truth=[1] * n_queries)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"methods": "nnn"}, "methods must be 'all' or a list of names; got 'nnn'"),
        ({"methods": []}, "methods must be 'all' or a list of names"),
        ({"methods": ["best"]}, "method must be one of none, nnn, .*; got 'best'"),
        ({"select": "median"}, "select must be 'one-standard-error' or 'max'; got 'median'"),
        ({"truth": [0, 1, 2, 3, 23]}, r"truth names item 23, but there are 23 \(0 to 22\)"),
        ({"grids": {"nnn": {"reference_k": [58], "alpha": [1.0]}}},
         "reference_k is 58, but there are only 57 past queries"),
        ({"grids": {"csls": {"reference_k": [1]}}},
         r"grids has csls, which isn.t among the methods \(none, nnn\)"),
        ({"methods": ["dualis"]}, "method dualis needs a gallery bank"),
        ({"memory_budget": 1000}, "memory_budget must be at least 1048576 bytes"),
    ],
)  # fmt: skip
def test_bad_input_is_refused_in_one_sentence(small, options, words):
    methods = options.pop("methods", ("nnn",))
    truth = options.pop("truth", [0, 1, 2, 3, 4])
    with pytest.raises(NNNormError, match=words):
        tune(
            small.gallery,
            small.references,
            queries=small.queries[:5],
            truth=truth,
            methods=methods,
            **options,
        )
