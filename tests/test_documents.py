"""Long documents: chunks are merged by parent."""

import json

import numpy as np
import pytest

import nnnorm
from nnnorm import NNN, NNNormError, search
from nnnorm.documents import Documents
from nnnorm.errors import NNNormWarning
from nnnorm.evaluation import evaluate
from nnnorm.methods import InvertedSoftmax
from tests.command import assert_fails, run, run_json

N_DOCUMENTS = 30


@pytest.fixture
def problem():
    """Documents of 1 to 8 chunks, in no order."""
    rng = np.random.default_rng(9)
    counts = rng.integers(1, 9, N_DOCUMENTS)
    parents = rng.permutation(np.repeat(np.arange(N_DOCUMENTS), counts))
    meaning = rng.normal(size=(N_DOCUMENTS, 12))
    chunks = meaning[parents] + rng.normal(size=(len(parents), 12))
    queries, past = rng.normal(size=(2, 200, 12)) + 0.3
    return chunks.astype("f4"), queries[:40].astype("f4"), past.astype("f4"), parents


def rank_naively(scores, parents, k):
    """Sort all chunks, and keep the first of each document."""
    found = []
    for row in scores:
        first = {}
        for item in np.argsort(-row, kind="stable"):
            first.setdefault(parents[item], item)
        found.append(list(first.items())[:k])
    return found


@pytest.mark.parametrize("method", [None, NNN(5, 0.6), InvertedSoftmax(gated=True)])
@pytest.mark.parametrize("kind", [int, "d{}".format])
def test_a_search_returns_documents_by_their_best_chunks(problem, method, kind):
    chunks, queries, past, parents = problem
    bias = method and method.fit(chunks, past, normalize=True)
    named = [kind(parent) for parent in parents]
    found = search(queries, chunks, bias, k=7, parents=named, normalize=True)
    scores = nnnorm.ranking.score_matrix(queries, chunks, bias, normalize=True)
    expected = rank_naively(scores, named, 7)
    assert found.indices.tolist() == [[item for _, item in row] for row in expected]
    assert found.parents.tolist() == [[parent for parent, _ in row] for row in expected]
    np.testing.assert_allclose(
        found.scores, np.take_along_axis(scores, found.indices, 1), atol=1e-6
    )
    merged = search(queries, chunks, bias, k=10, parents=named, normalize=True)
    np.testing.assert_allclose(found.confidence, merged.confidence)


def test_parents_of_their_own_change_nothing(problem):
    chunks, queries, past, _ = problem
    bias = NNN(5, 0.6).fit(chunks, past, normalize=True)
    plain = search(queries, chunks, bias, k=5, normalize=True)
    found = search(queries, chunks, bias, k=5, parents=range(len(chunks)), normalize=True)
    np.testing.assert_array_equal(found.indices, plain.indices)


def test_queries_of_low_confidence_have_no_documents(problem, tmp_path):
    chunks, queries, _, parents = problem
    options = {"k": 3, "parents": parents, "normalize": True}
    bound = float(np.median(search(queries, chunks, **options).confidence))
    found = search(queries, chunks, min_confidence=bound, **options)
    assert (found.parents[found.confidence < bound] == -1).all()
    found.save(tmp_path / "found.npz")
    np.testing.assert_array_equal(
        nnnorm.Ranking.load(tmp_path / "found.npz").parents, found.parents
    )


def test_metrics_are_of_documents(problem):
    chunks, queries, past, parents = problem
    documents = Documents.open(parents, len(chunks))
    assert documents.ids[documents.of_item].tolist() == parents.tolist()
    assert documents.ids.tolist() == list(dict.fromkeys(parents.tolist()))
    truth = np.arange(len(queries)) % N_DOCUMENTS
    bias = NNN(5, 0.6).fit(chunks, past, normalize=True)
    found = evaluate(queries, chunks, bias, truth=truth, parents=parents, normalize=True)
    ranking = search(queries, chunks, bias, k=N_DOCUMENTS, parents=parents, normalize=True)
    right = ranking.parents == documents.ids[truth][:, None]
    np.testing.assert_array_equal(found.ranks(), 1 + right.argmax(axis=1))
    assert found.n_gallery == N_DOCUMENTS


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"parents": [1, 2]}, "parents must be one whole number or string per item of gallery"),
        ({"parents": [0.5] * 4}, "parents must be one whole number or string .* got 0.5"),
        ({"parents": [1, "a", 2, 3]}, "'a' is a string, so pass all of them as strings"),
        ({"parents": [1, 1, 2, 2], "k": 3}, "k must be .* from 1 to 2, the number of documents"),
    ],
)
def test_bad_parents_are_rejected(options, words):
    with pytest.raises(NNNormError, match=words):
        search(np.eye(4), np.eye(4), **{"k": 2} | options)


@pytest.fixture
def files(problem, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, array in zip(("chunks", "queries", "past", "parents"), problem, strict=True):
        if name != "parents":
            array = array / np.linalg.norm(array, axis=1, keepdims=True)
        np.save(f"{name}.npy", array)
    lines = [f"{n} 0 {n % N_DOCUMENTS} 1\n" for n in range(40)]
    (tmp_path / "qrels.txt").write_text("".join(lines))
    return problem


def test_the_command_line_takes_parents(files, tmp_path):
    parents = files[-1]
    sides = ["--gallery", "chunks.npy", "--queries", "queries.npy", "--parents", "parents.npy"]
    chunks, past = np.load("chunks.npy"), np.load("past.npy")
    bias = NNN().fit(chunks, past)
    bias.save("bias.safetensors")
    expected = search("queries.npy", "chunks.npy", bias, k=4, parents=parents)
    found = run_json("search", *sides, "--bias", "bias.safetensors", "-k", 4, "--run-file", "run")
    assert found["parents"] == expected.parents.tolist()
    assert (tmp_path / "run").read_text().split()[2] == str(expected.parents[0, 0])
    assert "Best items (document" in run("search", *sides).stdout
    (only,) = run_json("evaluate", *sides, "--qrels", "qrels.txt")["results"]
    numbers = {parent: number for number, parent in enumerate(dict.fromkeys(parents.tolist()))}
    truth = [numbers[n % N_DOCUMENTS] for n in range(40)]
    measured = evaluate("queries.npy", "chunks.npy", truth=truth, parents=parents)
    assert only["recall_at_5"] == pytest.approx(measured.recall(5))
    assert_fails(run("evaluate", *sides), "--parents needs --truth")


@pytest.mark.parametrize("engine", ["faiss", "sqlite"])
def test_an_index_returns_the_documents_of_the_exact_search(files, engine, monkeypatch):
    pytest.importorskip({"faiss": "faiss", "sqlite": "sqlite_vec"}[engine])
    chunks, queries, past, parents = files
    corrector = nnnorm.Corrector.fit(chunks, past, NNN(5, 0.6), normalize=True)
    entries = [{"doc": f"d{parent}"} for parent in parents]
    url = {"faiss": "faiss:made", "sqlite": "sqlite:made.db?table=made"}[engine]
    with nnnorm.build_index(url, chunks, corrector, metadata=entries) as index:
        for k in (3, 25):
            found = index.search(queries, k, parents="doc")
            expected = search(queries, chunks, corrector.bias, k=k, parents=parents, normalize=True)
            assert found.ids.tolist() == expected.indices.tolist()
            assert found.parents.tolist() == [
                [f"d{one}" for one in row] for row in expected.parents
            ]
            assert found.metadata[0][0] == {"doc": found.parents[0][0]}
            np.testing.assert_allclose(found.confidence, expected.confidence, atol=1e-4)
        every = index.search(queries[:2], 500, parents="doc")
        assert every.parents.shape == (2, N_DOCUMENTS)
        bound = float(np.median(found.confidence))
        few = index.search(queries, 3, parents="doc", min_confidence=bound)
        assert (few.parents[few.confidence < bound] == "").all()
        monkeypatch.setattr(index.backend, "largest_k", 12, raising=False)
        with pytest.warns(NNNormWarning, match="returns at most 12 hits"):
            index.search(queries, 10, parents="doc")
        with pytest.raises(NNNormError, match="has no key 'page'"):
            index.search(queries, 3, parents="page")
    printed = run_json("index", "search", url, "--queries", "queries.npy", "--parents", "doc")
    assert json.dumps(printed["parents"][0][:3]) == json.dumps(found.parents[0, :3].tolist())
