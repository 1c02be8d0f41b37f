"""Unique queries: the same duplicates are found as by a naive loop."""

import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import nnnorm
from nnnorm import NNNormError, NNNormWarning, open_embeddings
from nnnorm.dedup import NEAR_COPY, drop_copies, unique_rows
from nnnorm.evaluation import diagnose
from nnnorm.report.tables import tabulate_comparison, tabulate_tuning


def naive_unique(rows):
    """Row number and count of every unique row, one row after the other in float64."""
    units = rows.astype(np.float64) / np.linalg.norm(rows.astype(np.float64), axis=1)[:, None]
    kept, counts, first = [], [], np.empty_like(units)
    for row, unit in enumerate(units):
        cosines = first[: len(kept)] @ unit
        if len(kept) and cosines.max() > NEAR_COPY:
            counts[int(cosines.argmax())] += 1
        else:
            first[len(kept)] = unit
            kept.append(row)
            counts.append(1)
    return kept, counts


def make_log(rng, n_rows, n_queries, dim, *, scale=1.0, cosine=0.95):
    """Queries asked by Zipf's law, each time with noise."""
    queries = scale * rng.standard_normal((n_queries, dim))
    rows = queries[rng.choice(n_queries, n_rows, p=_zipf(n_queries))]
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    noise = np.sqrt((1 / cosine**2 - 1) / dim)
    return (rows + noise * rng.standard_normal(rows.shape)).astype(np.float32)


def opened(rows):
    return open_embeddings(rows, name="references", normalize=False)


def _zipf(n):
    share = 1 / np.arange(1, n + 1)
    return share / share.sum()


# --- which rows are unique ----------------------------------------------------------------------


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    dim=st.sampled_from([3, 8, 24, 200]),
    n_rows=st.integers(1, 200),
    n_queries=st.integers(1, 60),
    cosine=st.sampled_from([0.999, 0.95, 0.9]),
    repeats=st.booleans(),
)
def test_up_to_4096_rows_the_unique_ones_are_those_of_the_naive_loop(
    seed, dim, n_rows, n_queries, cosine, repeats
):
    rng = np.random.default_rng(seed)
    rows = make_log(rng, n_rows, n_queries, dim, cosine=cosine)
    if repeats:
        rows = rows[rng.integers(0, n_rows, n_rows)]
    unique = unique_rows(opened(rows))
    expected, counts = naive_unique(rows)
    assert unique.rows.tolist() == expected
    assert unique.counts.tolist() == counts


SPECTRA = {"flat": np.ones(160), "falling": np.arange(1, 161) ** -0.5}


@pytest.mark.slow
@pytest.mark.parametrize("spectrum", SPECTRA)
def test_of_more_rows_19_in_20_near_copies_are_found(rng, spectrum):
    rows = make_log(rng, 7000, 3000, 160, scale=SPECTRA[spectrum])
    unique = unique_rows(opened(rows))
    expected, _ = naive_unique(rows)
    n_copies = len(rows) - len(expected)
    assert n_copies > 3000
    assert len(rows) - len(unique) >= 0.95 * n_copies
    assert unique.counts.sum() == len(rows)
    units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    kept = np.zeros(len(rows), dtype=bool)
    kept[unique.rows] = True
    for start in range(0, len(rows), 1000):  # what was dropped has an earlier row that is as near
        near = units[start : start + 1000] @ units[unique.rows].T > NEAR_COPY - 1e-4
        near &= unique.rows < np.arange(start, start + len(near))[:, None]
        assert (near.any(axis=1) | kept[start : start + 1000]).all()


@pytest.mark.slow
@pytest.mark.parametrize("n_rows", [3000, 9000])
def test_equal_rows_are_all_found_whatever_their_scale_and_type(rng, n_rows):
    rows = rng.standard_normal((n_rows, 100)).astype(np.float32)
    log = np.concatenate([rows, 3 * rows[::-1], rows[:50] + np.float32(0.0)])
    log[log == 0] = -0.0
    unique = unique_rows(opened(log))
    assert unique.rows.tolist() == list(range(n_rows))
    assert unique.counts.sum() == len(log)
    assert len(unique_rows(opened(log.astype(np.float64)))) == n_rows


@pytest.mark.slow
def test_a_flood_of_near_copies_is_one_query_at_any_size(rng):
    others, query = rng.standard_normal((6000, 120)), rng.standard_normal((1, 120))
    flood = query + 0.05 * rng.standard_normal((6000, 120))
    rows = np.concatenate([others, flood]).astype(np.float32)
    unique = unique_rows(opened(rows))
    assert unique.rows.tolist() == list(range(6001))
    assert unique.counts[-1] == 6000


@pytest.mark.slow
def test_in_a_large_bank_near_copies_are_looked_for_if_a_sample_shows_some(rng):
    rows = rng.standard_normal((40_000, 48)).astype(np.float32)
    rows[-500:] = rows[:500]
    rows[-400:] += 0.1 * rng.standard_normal((400, 48)).astype(np.float32)
    unique = unique_rows(opened(rows))
    assert len(unique) == 39_900  # without the 100 equal rows
    assert unique.counts.sum() == 40_000
    log = make_log(rng, 40_000, 2000, 48)
    assert len(unique_rows(opened(log))) < 4000


@pytest.mark.slow
def test_the_result_does_not_depend_on_cores_or_process(tmp_path, rng):
    np.save(tmp_path / "log.npy", make_log(rng, 6000, 3000, 128))
    code = (
        "import sys, nnnorm; from nnnorm.dedup import unique_rows\n"
        "found = unique_rows(nnnorm.open_embeddings(sys.argv[1], normalize=False))\n"
        "print(found.rows.tolist(), found.counts.tolist())"
    )
    paths = {"PYTHONPATH": ":".join(sys.path)}
    outputs = {
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "log.npy")],
            env={**paths, "OMP_NUM_THREADS": threads, "PYTHONHASHSEED": threads},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for threads in ("1", "3")
    }
    assert len(outputs) == 1


@pytest.mark.slow
def test_memory_follows_the_unique_rows_and_not_the_log(rng, tmp_path):
    """60,000 rows of 40 MB on disk, 500 of them unique."""
    rows = rng.standard_normal((500, 320)).astype(np.float16)
    np.save(tmp_path / "log.npy", rows[rng.integers(0, 500, 60_000)])
    log = open_embeddings(tmp_path / "log.npy", name="references", normalize=False)
    unique_rows(opened(rows[:9]))
    tracemalloc.start()
    assert len(unique_rows(log)) == 500
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 150 * 2**20


# --- in a fit -----------------------------------------------------------------------------------

METHODS = [
    nnnorm.NNN(reference_k=5, alpha=0.5),
    nnnorm.CSLS(reference_k=5),
    nnnorm.DN(weight=0.5),
    nnnorm.InvertedSoftmax(beta=5.0),
    nnnorm.InvertedSoftmax(beta=5.0, gated=True),
    nnnorm.Sinkhorn(),
]


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.name)
def test_a_log_gives_the_bias_of_its_unique_queries(rng, method):
    gallery, queries = rng.normal(size=(40, 32)), rng.normal(size=(60, 32))
    log = np.concatenate([queries, queries[rng.choice(60, 500, p=_zipf(60))]])
    log[60:] += 0.1 * rng.normal(size=(500, 32))
    bias = method.fit(gallery, log, normalize=True, duplicates="drop")
    expected = method.fit(gallery, queries, normalize=True)
    np.testing.assert_allclose(bias.correction, expected.correction, rtol=1e-6)
    assert (bias.n_references, bias.params["n_unique"]) == (560, 60)
    assert bias.fingerprints["references"] == open_embeddings(log, normalize=True).fingerprint
    kept = method.fit(gallery, log, normalize=True, duplicates="keep")
    assert np.abs(kept.correction - expected.correction).max() > 1e-3
    assert "n_unique" not in kept.params


def test_k_beyond_the_unique_queries_is_rejected_with_both_numbers(rng):
    log = np.repeat(rng.normal(size=(12, 32)), 5, axis=0)
    words = r"reference_k is 20, but there are only 60 past queries \(12 unique\); pass more"
    with pytest.raises(NNNormError, match=words):
        nnnorm.NNN(20, 0.5).fit(rng.normal(size=(5, 32)), log, duplicates="drop")


def test_duplicates_must_be_drop_or_keep(rng):
    rows = open_embeddings(rng.normal(size=(5, 8)), normalize=False)
    with pytest.raises(NNNormError, match="duplicates must be 'drop' or 'keep'; got 'some'"):
        drop_copies(rows, "some")


def test_a_model_that_puts_all_texts_close_together_is_noticed(rng):
    rows = 10 + rng.normal(size=(500, 32))
    with pytest.warns(
        NNNormWarning, match=r"only 1 of the 500 rows of references are unique queries\. .*=keep"
    ):
        drop_copies(open_embeddings(rows, name="references", normalize=True))


def test_a_sample_is_called_a_sample(rng):
    gallery, log = rng.normal(size=(30, 32)), rng.normal(size=(200, 32))
    bank = nnnorm.Bank.of(log, max_references=30, normalize=True)
    queries, truth = gallery + rng.normal(size=(30, 32)), np.arange(30)
    asked = {"queries": queries, "truth": truth, "normalize": True}
    task = nnnorm.evaluation.Task(queries, gallery, truth)
    tuning = nnnorm.tune(gallery, bank, **asked)
    assert "200 past queries (30 sampled)" in tabulate_tuning(tuning).title
    comparison = nnnorm.compare(gallery, bank, **asked, validation=task, methods=["csls"])
    assert "200 past queries (30 sampled)" in tabulate_comparison(comparison).title
    assert all(found.to_dict()["references_sampled"] for found in (tuning, comparison))


@pytest.mark.slow
def test_all_studies_count_unique_queries(rng):
    gallery, asked_for = rng.normal(size=(30, 32)), rng.normal(size=(40, 32))
    log = asked_for[np.arange(200) % 40]
    queries, truth = gallery + rng.normal(size=(30, 32)), np.arange(30)
    asked = {"queries": queries, "truth": truth, "normalize": True}
    task = nnnorm.evaluation.Task(queries, gallery, truth)
    found = [
        nnnorm.tune(gallery, log, **asked),
        nnnorm.compare(gallery, log, **asked, validation=task, methods=["csls"]),
    ]
    assert [(one.n_references, one.n_unique) for one in found] == [(200, 40)] * 2
    kept = nnnorm.tune(gallery, log, **asked, duplicates="keep")
    assert kept.n_unique is None
    once = diagnose(queries, gallery, references=log, normalize=True)
    bias = nnnorm.NNN().fit(gallery, asked_for, normalize=True)
    expected = diagnose(queries, gallery, bias, normalize=True)
    np.testing.assert_array_equal(once.occurrences_after, expected.occurrences_after)
