from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nnnorm import open_embeddings
from nnnorm.evaluation import judge_hubs

SEVERITIES = ["none", "mild", "moderate", "severe"]


def unit(rows):
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def search(*, lean, seed, n_items=200, dim=16, noise=0.25):
    """First items of three noisy queries per item, which all lean in one direction.

    Items that happen to lie in that direction are hubs.
    """
    rng = np.random.default_rng(seed)
    direction = unit(rng.normal(size=(1, dim)))
    gallery = unit(rng.normal(size=(n_items, dim)))
    truth = np.repeat(np.arange(n_items), 3)
    queries = gallery[truth] + noise * rng.normal(size=(len(truth), dim)) + lean * direction
    return (queries @ gallery.T).argmax(axis=1), truth, unit(queries)


@pytest.mark.slow
@pytest.mark.parametrize("with_truth", [True, False])
def test_where_there_are_no_hubs_none_are_found_in_nineteen_of_twenty_cases(with_truth):
    found = []
    for seed in range(60):
        hits, truth, queries = search(lean=0.0, seed=seed)
        known = {"truth": truth} if with_truth else {"queries": open_embeddings(queries)}
        found.append(judge_hubs(hits, 200, **known).severity)
    assert found.count("none") >= 57
    assert set(found) <= {"none", "mild"}


def test_severity_rises_with_planted_hubs():
    shares, severities = [], []
    for lean in (0.0, 0.3, 0.6, 1.2):
        hits, truth, _ = search(lean=lean, seed=1)
        hubs = judge_hubs(hits, 200, truth=truth)
        shares.append(hubs.beyond_chance)
        severities.append(SEVERITIES.index(hubs.severity))
    assert shares == sorted(shares)
    assert severities == sorted(severities)
    assert (severities[0], severities[-1]) == (0, 3)


def test_right_hits_are_no_sign_of_a_hub():
    """Half of the queries ask for one item and get it."""
    truth = np.concatenate([np.zeros(300, dtype=int), np.arange(300)])
    hubs = judge_hubs(truth, 300, truth=truth)
    assert (hubs.severity, hubs.beyond_chance) == ("none", 0.0)
    assert hubs.most_by_chance == hubs.most == 301
    assert judge_hubs(truth, 300).severity == "severe"


def test_queries_that_share_their_right_item_and_are_wrong_together_count_as_one():
    """Five captions of every picture get the same wrong picture, each another one."""
    truth = np.repeat(np.arange(100), 5)
    wrong = np.random.default_rng(0).integers(0, 99, 100)
    hits = np.repeat((np.arange(100) + 1 + wrong) % 100, 5)
    assert judge_hubs(hits, 100, truth=truth).severity == "none"
    assert judge_hubs(hits, 100).severity != "none"


def test_copies_of_one_query_in_a_log_count_as_one():
    rng = np.random.default_rng(0)
    different = unit(rng.normal(size=(200, 16)))
    log = np.concatenate([different, np.repeat(different[:1], 300, axis=0)])
    hits = np.concatenate([rng.integers(0, 200, 200), np.full(300, 7)])
    hits[0] = 7
    assert judge_hubs(hits, 200, queries=open_embeddings(log)).severity == "none"
    assert judge_hubs(hits, 200).severity == "severe"


@pytest.mark.slow
@given(seed=st.integers(0, 99), k=st.integers(1, 3))
def test_the_names_of_items_and_the_order_of_queries_change_nothing(seed, k):
    rng = np.random.default_rng(seed)
    hits = np.stack([rng.permutation(30)[:k] for _ in range(40)]) // 2
    first = judge_hubs(hits, 30)
    second = judge_hubs(rng.permutation(30)[hits[rng.permutation(40)]], 30)
    assert second.most == first.most
    assert second.n_never == first.n_never
    assert second.beyond_chance == first.beyond_chance
    assert second == replace(first, item=second.item)
