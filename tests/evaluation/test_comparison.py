import numpy as np
import pytest

from nnnorm.errors import NNNormWarning
from nnnorm.evaluation.comparison import Task, compare
from nnnorm.evaluation.hubness import count_occurrences, measure_hubness
from nnnorm.evaluation.metrics import evaluate
from nnnorm.evaluation.results import binomial_half_width, interval_of_difference, split_folds
from nnnorm.evaluation.tuning import tune
from nnnorm.methods import make_method
from tests import made

TWO_BANKS = ("dualis", "dualdis", "sinkhorn")
GRIDS = {
    "nnn": {"reference_k": [2, 8, 32], "alpha": [0.25, 0.5, 0.75]},
    "csls": {"reference_k": [4, 16]},
    "dualis": {"beta_query": [0.0, 20.0], "beta_gallery": [0.0, 5.0]},
    "dualdis": {"beta_query": [0.0, 20.0], "beta_gallery": [0.0, 5.0]},
    "sinkhorn": {"tau": [0.05, 0.2]},
}


def part_of(seed, items):
    """Some items of a made gallery with their queries; what is left over is the bank."""
    gallery, queries, references = made.make_embeddings(n_items=120, n_past=40, dim=16, seed=seed)
    asked = np.concatenate([queries[5 * item : 5 * item + 5] for item in items])
    return Task(asked, gallery[items], np.repeat(np.arange(len(items)), 5)), references, gallery


@pytest.fixture(scope="module")
def task():
    return part_of(0, range(40))[0]


@pytest.fixture(scope="module")
def validation():
    """Another gallery, and another number of items and queries, than the test's."""
    return part_of(0, range(40, 90))[0]


@pytest.fixture(scope="module")
def bank():
    return part_of(0, [0])[1]


@pytest.fixture(scope="module")
def gallery_bank():
    return part_of(0, [0])[2][90:]


@pytest.fixture(scope="module")
def compared(task, validation, bank, gallery_bank):
    options = {"gallery_references": gallery_bank, "methods": list(GRIDS), "grids": GRIDS}
    return run(task, validation, bank, **options, seed=3)


def run(test, validation, bank, **options):
    known = {"queries": test.queries, "truth": test.truth, "validation": validation}
    return compare(test.gallery, bank, **known, **options)


def check_result(result, task, bias, seed):
    """Whether a result is what a direct evaluation of that bias on that task gives."""
    raw = evaluate(task.queries, task.gallery, truth=task.truth)
    evaluation = evaluate(task.queries, task.gallery, bias, truth=task.truth)
    assert result.recall_at_1 == evaluation.recall(1)
    assert result.recall_at_5 == evaluation.recall(5)
    assert result.recall_at_10 == evaluation.recall(10)
    assert result.half_width == binomial_half_width(evaluation.recall(1), len(task.queries))
    counts = count_occurrences(evaluation.top1, len(task.gallery))
    assert result.hubness == measure_hubness(counts)
    gain = interval_of_difference(evaluation.hits(1), raw.hits(1), task.truth, seed=seed)
    assert result.gain == gain


# --- methods side by side ------------------------------------------------------------------------


def test_figures_are_those_of_tuning_on_validation_and_evaluating_on_test(
    compared, task, validation, bank, gallery_bank
):
    assert [result.method for result in compared.results] == ["none", *GRIDS]
    for result in compared.results[1:]:
        extra = {"gallery_references": gallery_bank} if result.method in TWO_BANKS else {}
        best = tune(
            validation.gallery,
            bank,
            queries=validation.queries,
            truth=validation.truth,
            methods=[result.method],
            grids={result.method: GRIDS[result.method]},
            **extra,
        ).best
        assert best.method == result.method, "the problem must have use for a correction"
        assert result.params == best.params
        bias = make_method(best.method, **best.params).fit(
            task.gallery, bank, duplicates="drop", **extra
        )
        check_result(result, task, bias, seed=3)


def test_the_test_queries_have_no_say_in_the_choice(task, validation, bank):
    one = run(task, validation, bank, methods=["nnn", "is"])
    turned = task._replace(queries=-task.queries)
    with pytest.warns(NNNormWarning, match="references do not look like the queries"):
        other = run(turned, validation, bank, methods=["nnn", "is"])
    assert [r.params for r in one.results] == [r.params for r in other.results]
    assert one.results[1].recall_at_1 != other.results[1].recall_at_1


@pytest.mark.slow
@pytest.mark.parametrize("select", ["one-standard-error", "max"])
@pytest.mark.filterwarnings("ignore:past queries and queries ask for different items")
def test_without_validation_each_fold_has_the_setting_that_the_others_choose(task, bank, select):
    folds = split_folds(task.truth, seed=4)
    raw = evaluate(task.queries, task.gallery, truth=task.truth).hits(1)
    gained = np.empty(len(raw))
    for fold in range(5):
        others = folds != fold
        known = {"queries": task.queries[others], "truth": task.truth[others]}
        best = tune(task.gallery, bank, **known, select=select).bias
        found = evaluate(task.queries, task.gallery, best, truth=task.truth).hits(1)
        gained[~others] = (found - raw)[~others]
    about = {"queries": task.queries, "truth": task.truth, "seed": 4, "select": select}
    compared = compare(task.gallery, bank, **about, methods=["nnn"])
    tuned = tune(task.gallery, bank, **about)
    assert compared.n_validation == 0
    assert compared.n_queries == 200
    for gain in (compared.results[1].gain, tuned.cross_fitted):
        assert gain.mean == pytest.approx(gained.mean())
        assert gain == tuned.cross_fitted
    assert compared.results[1].params == dict(tuned.best.params)


# --- bad input -----------------------------------------------------------------------------------
