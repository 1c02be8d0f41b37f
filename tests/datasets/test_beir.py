"""BEIR folders: texts with their ids, through encoding to the figures of their qrels."""

import json

import ir_measures
import pytest

import nnnorm
from nnnorm import NNNormError
from nnnorm.datasets import read_beir
from nnnorm.errors import NNNormWarning
from tests import tiny
from tests.command import assert_fails, run, run_json

WORDS = tiny.WORDS.split()


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Thirty documents, and queries of two splits."""
    monkeypatch.chdir(tmp_path)
    root = tmp_path / "small"
    (root / "qrels").mkdir(parents=True)
    documents = [
        {"_id": f"d {n}", "title": WORDS[n % 17], "text": WORDS[n * 5 % 17], "metadata": {"n": n}}
        for n in range(30)
    ]
    write(root / "corpus.jsonl", documents)
    queries = [{"_id": str(n), "text": f"the {WORDS[n % 17]}"} for n in range(20)]
    write(root / "queries.jsonl", queries)
    for split, numbers in (("train", range(12)), ("test", range(12, 20))):
        lines = [f"{n}\td {n + place}\t{2 - place}" for n in numbers for place in (0, 1, 2)]
        text = "\n".join(["query-id\tcorpus-id\tscore", *lines])
        (root / "qrels" / f"{split}.tsv").write_text(text + "\n")
    return root


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_titles_come_before_texts_and_a_split_names_the_queries(folder):
    found = read_beir(folder)
    assert found.name == "small"
    assert found.documents[1] == f"{WORDS[1]} {WORDS[5]}"
    assert found.document_ids == [f"d {n}" for n in range(30)]
    assert found.query_ids == [str(n) for n in range(12, 20)]
    assert found.queries[0] == f"the {WORDS[12]}"
    assert len(read_beir(folder, "train").queries) == 12


def test_documents_without_words_are_left_out_with_a_note(folder):
    write(folder / "corpus.jsonl", [{"_id": "a", "text": ""}, {"_id": "b", "title": "only"}])
    with pytest.warns(NNNormWarning, match="1 documents of .* have no title and no text"):
        assert read_beir(folder).documents == ["only"]


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("corpus.jsonl", '{"_id": "a", "text": "b"}\n{"text": "c"}\n', "line 2 has nothing in"),
        ("corpus.jsonl", '{"_id": "a"}\n{"_id": "a"}\n', r"corpus.jsonl must be unique, but a occ"),
        ("queries.jsonl", '{"_id": "x", "text": "b"}\n', "names the query '12', which isn't in"),
        (
            "queries.jsonl",
            "".join(f'{{"_id": "{n}", "text": ""}}\n' for n in range(20)),
            "the query '12' of .*queries.jsonl has no text",
        ),
        ("qrels/test.tsv", "12\td 1\t1\n13\td 2\t1\n", "must have the column query-id"),
    ],
)
def test_bad_files_are_named_with_their_line(folder, file, text, words):
    (folder / file).write_text(text)
    with pytest.raises(NNNormError, match=words):
        read_beir(folder)


def test_a_split_that_is_not_there_is_named_with_those_that_are(folder):
    with pytest.raises(NNNormError, match=r"there is no file .*dev.tsv; .* are: test, train"):
        read_beir(folder, "dev")


@pytest.mark.slow
def test_from_a_folder_to_figures_with_ids_intact(folder, tiny_model):
    model = ["encode", tiny_model("clip"), "--device", "cpu", "--beir", folder, "-o", "out"]
    about = run_json(*model)
    assert about["corpus"]["n_rows"] == 30
    assert run_json(*model, "--split", "train")["corpus"]["n_resumed"] == 30
    assert nnnorm.open_embeddings("out/corpus").ids[3] == "d 3"
    assert "nnnorm evaluate --gallery out/corpus/text_emb" in run(*model).stdout
    sides = ["--gallery", "out/corpus", "--queries", "out/queries-test"]
    (found,) = run_json("evaluate", *sides, "--qrels", folder / "qrels/test.tsv")["results"]
    assert_fails(
        run("search", *sides, "--run-file", "run"), "can't be empty or have spaces; got 'd"
    )
    names = [own.replace(" ", "-") for own in nnnorm.open_embeddings("out/corpus").ids]
    (folder / "names.json").write_text(json.dumps(names))
    run_json("search", *sides, "-k", 30, "--ids", folder / "names.json", "--run-file", "run")
    judged = [
        ir_measures.Qrel(query, document.replace(" ", "-"), grade)
        for query, some in nnnorm.evaluation.read_qrels(folder / "qrels/test.tsv").items()
        for document, grade in some.items()
    ]
    expected = ir_measures.calc_aggregate(
        [ir_measures.nDCG @ 10, ir_measures.RR], judged, list(ir_measures.read_trec_run("run"))
    )
    assert found["ndcg_at_10"] == pytest.approx(expected[ir_measures.nDCG @ 10], abs=0.02)
    assert found["mrr"] == pytest.approx(expected[ir_measures.RR], abs=0.05)
    both = [*model, "--texts", "captions.txt"]
    assert_fails(run(*both), "or only --beir")
