"""The index backend of MTEB: by its protocol, and in MTEB itself if it is installed."""

import json

import numpy as np
import pytest

import nnnorm
from nnnorm import Corrector, NNNormError
from nnnorm.integrations.mteb import CorrectedIndex, name_model
from tests.integrations.conftest import embed_all

IDS = [f"d{row}" for row in range(80)]


def ask(index, case, k=10, **options):
    return index.search(embed_all(case.queries), k, similarity_fn=None, **options)


def test_the_index_ranks_as_the_exact_search_does(case, exact):
    index = CorrectedIndex(case.corrector)
    index.add_documents(embed_all(case.texts), IDS[:60])
    scores, rows = ask(index, case)
    assert [[case.texts[row] for row in hits] for hits in rows] == exact(case.texts)
    assert (np.diff(scores, axis=1) <= 0).all()


def test_so_it_does_with_documents_that_come_later(case, exact):
    index, texts = CorrectedIndex(case.corrector), case.texts + case.later
    for start in (0, 60, 70):
        part = slice(start, {0: 60}.get(start, start + 10))
        index.add_documents(embed_all(texts[part]), IDS[part])
    _, rows = ask(index, case, k=30)
    assert [[texts[row] for row in hits] for hits in rows] == exact(texts, k=30)


def test_candidates_are_ranked_by_their_places_in_the_list(case):
    index = CorrectedIndex(case.corrector)
    index.add_documents(embed_all(case.texts), IDS[:60])
    names = {n: f"q{n}" for n in range(len(case.queries))}
    given = {name: [IDS[(7 * n + 3 * i) % 60] for i in range(8)] for n, name in names.items()}
    given["q3"] = []
    scores, places = ask(index, case, k=5, top_ranked=given, query_idx_to_id=names)
    asked, stored = embed_all(case.queries), embed_all(case.texts)
    normalize = case.corrector.normalize
    full = nnnorm.ranking.score_matrix(asked, stored, case.corrector.bias, normalize=normalize)
    for n, name in names.items():
        own = [full[n, IDS.index(document)] for document in given[name]]
        assert places[n] == np.argsort(own)[::-1][:5].tolist()
        away = [scores[n][i] - own[place] for i, place in enumerate(places[n])]
        assert np.ptp(away or [0]) < 1e-5
    with pytest.raises(NNNormError, match="top_ranked needs query_idx_to_id"):
        ask(index, case, top_ranked=given)


def test_a_repeated_id_does_not_move_the_documents_after_it(case):
    index, once = CorrectedIndex(case.corrector), CorrectedIndex(case.corrector)
    index.add_documents(embed_all(case.texts[:2]), ["d0", "d0"])
    for some in (index, once):
        some.add_documents(embed_all(case.texts[2:10]), IDS[2:10])
    names = {n: f"q{n}" for n in range(len(case.queries))}
    asked = {"top_ranked": dict.fromkeys(names.values(), IDS[2:10]), "query_idx_to_id": names}
    assert ask(index, case, **asked) == ask(once, case, **asked)


def test_a_function_is_fitted_to_each_corpus_again(case, exact):
    fitted = []

    def fit(corpus):
        fitted.append(len(corpus))
        kept = case.corrector
        return Corrector.fit(corpus, kept.references, kept.method, normalize=kept.normalize)

    index = CorrectedIndex(fit)
    for texts in (case.texts, case.texts[:20]):
        index.add_documents(embed_all(texts), IDS[: len(texts)])
        _, rows = ask(index, case)
        assert [[texts[row] for row in hits] for hits in rows] == exact(texts)
        with pytest.raises(NNNormError, match="add all documents at once"):
            index.add_documents(embed_all(case.texts[:1]), ["later"])
        index.clear()
    assert fitted == [60, 20]


def test_wrong_use_is_named(case):
    with pytest.raises(NNNormError, match=r"corrector must be a Corrector, .*; got int"):
        CorrectedIndex(3)
    index = CorrectedIndex(case.corrector)
    with pytest.raises(NNNormError, match="call add_documents first"):
        ask(index, case)
    with pytest.raises(NNNormError, match="got 3 documents and 2 ids; pass one id each"):
        index.add_documents(embed_all(case.texts[:3]), IDS[:2])
    with pytest.raises(NNNormError, match=r"must be a Corrector, .*; got NoneType"):
        CorrectedIndex(lambda corpus: None).add_documents(embed_all(case.texts), IDS[:60])


@pytest.mark.slow
def test_tensors_of_few_bits_are_taken_as_they_are(case):
    torch = pytest.importorskip("torch")
    rows = torch.tensor(embed_all(case.texts)).bfloat16().requires_grad_()
    index = CorrectedIndex(case.corrector)
    index.add_documents(rows, IDS[:60])
    assert np.shape(ask(index, case)[1]) == (12, 10)


@pytest.fixture
def mteb(monkeypatch, tmp_path):
    monkeypatch.setenv("MTEB_CACHE", str(tmp_path))
    return pytest.importorskip("mteb", reason="mteb is large: `make extras` runs this")


@pytest.fixture
def model(mteb):
    class Model(mteb.models.abs_encoder.AbsEncoder):
        def __init__(self):
            self.mteb_model_meta = mteb.models.ModelMeta.create_empty({"name": "tests/model"})

        def encode(self, inputs, **options):
            return embed_all([text for batch in inputs for text in batch["text"]])

    return Model()


@pytest.fixture
def task(mteb, case):
    """Make a task: the first text is the right one for all queries."""
    from datasets import Dataset

    class Task(mteb.abstasks.AbsTaskRetrieval):
        metadata = mteb.abstasks.task_metadata.TaskMetadata(
            name="Texts",
            description="Texts of the tests.",
            dataset={"path": "tests/texts", "revision": "1"},
            type="Retrieval",
            eval_langs=["eng-Latn"],
            main_score="ndcg_at_10",
        )

        def load_data(self, **options):
            corpus = Dataset.from_dict({"id": IDS[:60], "text": case.texts})
            queries = Dataset.from_dict({"id": case.queries, "text": case.queries})
            right = {query: {"d0": 1} for query in case.queries}
            split = {"corpus": corpus, "queries": queries, "relevant_docs": right}
            self.dataset = {"default": {"test": {**split, "top_ranked": None}}}
            self.data_loaded = True

    return Task()


@pytest.mark.slow
def test_mteb_finds_what_the_exact_search_finds(mteb, model, task, case, exact, tmp_path):
    index = CorrectedIndex(case.corrector)
    wrapped = mteb.models.SearchEncoderWrapper(model, index_backend=index)
    options = {"cache": None, "co2_tracker": False, "prediction_folder": tmp_path}
    mteb.evaluate(wrapped, task, **options)
    (written,) = tmp_path.glob("*.json")
    predictions = json.loads(written.read_text())["default"]["test"]
    hits = [predictions[query] for query in case.queries]
    best = [sorted(scores, key=scores.get, reverse=True) for scores in hits]
    assert [[case.texts[IDS.index(own)] for own in row] for row in best] == exact(case.texts, k=60)


def test_a_function_needs_a_revision(case):
    with pytest.raises(NNNormError, match="needs a revision; pass one, such as revision="):
        name_model(None, lambda corpus: case.corrector)


@pytest.mark.slow
def test_results_are_stored_under_a_name_of_their_own(mteb, model, task, case, tmp_path):
    named = name_model(model, case.corrector)
    print_of = case.corrector.fingerprint[:16]
    assert named.mteb_model_meta.name == "tests/model+nnnorm"
    assert named.mteb_model_meta.revision.endswith(f"nnnorm-{print_of}")
    assert named.mteb_model_meta.adapted_from == model.mteb_model_meta.name == "tests/model"
    cache = mteb.ResultCache(tmp_path / "results")
    for one in (model, named):
        result = mteb.evaluate(one, task, cache=cache, co2_tracker=False)
        assert result.model_name == one.mteb_model_meta.name
    stored = sorted(path.parent.name for path in tmp_path.rglob("Texts.json"))
    assert len(stored) == 2
    assert any(print_of in name for name in stored)
    fitted = name_model(model, lambda corpus: case.corrector, revision="train-queries-1")
    assert fitted.mteb_model_meta.revision.endswith("nnnorm-train-queries-1")
