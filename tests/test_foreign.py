import warnings

import numpy as np
import pytest

from nnnorm import NNNormError, NNNormWarning, compare, diagnose, open_embeddings, tune
from nnnorm.evaluation import Task, ablate
from nnnorm.foreign import FOREIGN_Z, choose_references, foreign_z, warn_of_foreign


def source(rng, n_rows, shift=1.0, dim=32):
    rows = rng.normal(size=(n_rows, dim))
    rows[:, :4] += shift
    return open_embeddings(rows, normalize=True)


def naive_z(references, recent, rng, n_draws=8):
    """From the description, for samples without copies."""
    found = []
    for _ in range(n_draws):
        some = [rows[rng.permutation(len(rows))[:64]] for rows in (references, recent)]
        m = min(map(len, some))
        both = np.concatenate([some[0][:m], some[1][:m]])
        scores = both @ both.T
        np.fill_diagonal(scores, -9)
        near = np.argsort(-scores, axis=1)[:, :3]
        same = (near >= m) == (np.arange(2 * m) >= m)[:, None]
        found.append((same.mean() - 0.5) / (0.5 / np.sqrt(3 * m)))
    return np.mean(found)


@pytest.mark.parametrize("shift", [1.0, 0.0, -1.0])
def test_z_is_the_naive_z_up_to_the_draws(rng, shift):
    bank, recent = source(rng, 900), source(rng, 150, shift)
    expected = naive_z(np.asarray(bank), np.asarray(recent), rng)
    assert foreign_z(bank, recent) == pytest.approx(expected, abs=1.2)


@pytest.mark.slow
def test_one_source_mixes_and_two_do_not(rng):
    for _ in range(10):
        bank, own, other = source(rng, 500), source(rng, 64), source(rng, 64, shift=-1.0)
        assert foreign_z(bank, own) < FOREIGN_Z < foreign_z(bank, other)


def test_the_scale_of_the_rows_does_not_matter(rng):
    bank, recent = source(rng, 300), source(rng, 64, shift=0.5)
    scaled = open_embeddings(np.asarray(recent) * 50, normalize=False)
    assert foreign_z(bank, scaled) == pytest.approx(foreign_z(bank, recent), abs=1e-6)


def test_repeated_queries_are_no_sign_of_another_source(rng):
    bank, recent = source(rng, 500), np.asarray(source(rng, 40))
    noisy = np.repeat(recent, 30, axis=0) + 0.02 * rng.normal(size=(1200, 32))
    assert foreign_z(bank, open_embeddings(noisy, normalize=True)) < FOREIGN_Z


@pytest.mark.parametrize("n_recent", [1, 3])
def test_too_few_queries_tell_nothing(rng, n_recent):
    assert np.isnan(foreign_z(source(rng, 100), source(rng, n_recent, shift=-3.0)))


def test_another_width_is_refused(rng):
    with pytest.raises(NNNormError, match="references and recent must share dim"):
        foreign_z(
            open_embeddings(np.ones((9, 3)), name="references"),
            open_embeddings(np.ones((9, 4)), name="recent"),
        )


def test_a_foreign_bank_is_left_out_and_an_own_one_joined(rng):
    bank, own, other = source(rng, 300), source(rng, 64), source(rng, 64, shift=-1.0)
    np.testing.assert_array_equal(choose_references(bank, other), other)
    both = np.concatenate([np.asarray(own), np.asarray(bank)])
    np.testing.assert_array_equal(choose_references(bank, own), both)


# --- where queries and references are both at hand -----------------------------------------------


@pytest.fixture
def problem(rng):
    """A gallery, its queries, past queries, and those of another source, all as arrays."""
    gallery = np.asarray(source(rng, 80))
    truth = rng.integers(0, 80, size=160)
    queries = gallery[truth] + 0.15 * rng.normal(size=(160, 32))
    return gallery, queries, truth, np.asarray(source(rng, 300)), -np.asarray(source(rng, 300))


def runs(problem):
    gallery, queries, truth, *_ = problem
    held = Task(queries[80:], gallery, truth[80:])
    some = {"queries": queries[:80], "truth": truth[:80], "normalize": True}
    return {
        "tune": lambda bank: tune(gallery, bank, **some),
        "compare": lambda bank: compare(gallery, bank, validation=held, methods=["csls"], **some),
        "ablate": lambda bank: ablate(gallery, bank, validation=held, shares=[1.0], **some),
        "diagnose": lambda bank: diagnose(queries, gallery, references=bank, normalize=True),
    }


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tune", "compare", "ablate", "diagnose"])
def test_a_foreign_bank_is_named_and_an_own_one_is_not(problem, name):
    *_, own, other = problem
    run = runs(problem)[name]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "the references seem to cover only a part")
        run(own)  # other warnings are errors
        with pytest.warns(NNNormWarning, match=r"do not look like the queries \(z = \d") as found:
            run(other)
    assert sum("do not look like" in str(one.message) for one in found) == 1
    assert found[0].filename == __file__


def test_a_gallery_that_is_its_own_bank_is_not_named_twice(rng):
    rows, queries = source(rng, 50), open_embeddings(-np.asarray(source(rng, 50)))
    warn_of_foreign(rows, queries, rows)  # a warning would be an error
    with pytest.warns(NNNormWarning, match="do not look like the queries"):
        warn_of_foreign(rows, queries, queries)


def test_queries_of_one_item_do_not_make_a_bank_foreign(rng):
    # Eight queries of each item are each other's neighbours.
    gallery, bank = np.asarray(source(rng, 30)), np.asarray(source(rng, 300))
    truth = np.repeat(np.arange(30), 8)
    queries = np.asarray(source(rng, 30))[truth] + 0.1 * rng.normal(size=(240, 32))
    tune(gallery, bank, queries=queries, truth=truth, normalize=True)  # warnings are errors
