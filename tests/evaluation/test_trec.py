"""Run files and qrels: what other tools read from ours, and what we read from theirs."""

import itertools

import ir_measures
import numpy as np
import pytest

from nnnorm import NNNormError, search
from nnnorm.errors import NNNormWarning
from nnnorm.evaluation import (
    evaluate,
    evaluate_ranking,
    read_qrels,
    read_run,
    truth_of_qrels,
    write_qrels,
    write_run,
)
from tests.command import assert_fails, run, run_json

N_QUERIES, N_GALLERY = 23, 31
QUERY_IDS = [f"q{n}" for n in range(N_QUERIES)]
IDS = [f"doc-{n}" for n in range(N_GALLERY)]
MEASURES = {
    ir_measures.Success @ 1: lambda e: e.hits(1),
    ir_measures.Success @ 5: lambda e: e.hits(5),
    ir_measures.R @ 10: lambda e: e.fractions(10),
    ir_measures.RR: lambda e: e.reciprocal_ranks(),
    ir_measures.nDCG @ 3: lambda e: e.ndcg(3),
    ir_measures.nDCG @ 10: lambda e: e.ndcg(10),
}


@pytest.fixture
def task(tmp_path, monkeypatch):
    """Graded judgments of random queries, in a folder of their own."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(3)
    sides = rng.normal(size=(N_QUERIES, 6)), rng.normal(size=(N_GALLERY, 6))
    judged = {
        query: {IDS[item]: int(rng.integers(-1, 4)) for item in rng.permutation(N_GALLERY)[:9]}
        for query in QUERY_IDS
    }
    for query in QUERY_IDS:
        judged[query][IDS[0]] = 1  # no query is without a right item
    lines = [f"{q} 0 {d} {grade}" for q, some in judged.items() for d, grade in some.items()]
    (tmp_path / "qrels.txt").write_text("\n".join(lines) + "\n")
    for name, rows in zip(("queries", "gallery"), sides, strict=True):
        np.save(tmp_path / f"{name}.npy", rows)
    (tmp_path / "ids.txt").write_text("\n".join(IDS))
    (tmp_path / "query_ids.txt").write_text("\n".join(QUERY_IDS))
    return sides


def theirs(qrels, run_file):
    """Every measure of ir_measures, averaged over queries with a relevant document."""
    judged = list(ir_measures.read_trec_qrels(str(qrels)))
    some = {one.query_id for one in judged if one.relevance > 0}
    found = {measure: [] for measure in MEASURES}
    for one in ir_measures.iter_calc(
        list(MEASURES), judged, list(ir_measures.read_trec_run(str(run_file)))
    ):
        if one.query_id in some:
            found[one.measure].append(one.value)
    return {measure: np.mean(values) for measure, values in found.items()}


def test_ir_measures_gives_the_same_figures_for_our_run_file(task):
    ranking = search(*task, k=N_GALLERY, ids=IDS)
    write_run("run.txt", ranking, query_ids=QUERY_IDS)
    rows, truth = truth_of_qrels(read_qrels("qrels.txt"), query_ids=QUERY_IDS, ids=IDS)
    assert rows.tolist() == list(range(N_QUERIES))
    read = read_run("run.txt", query_ids=QUERY_IDS, ids=IDS)
    np.testing.assert_array_equal(read.indices, ranking.indices)
    np.testing.assert_array_equal(read.scores, ranking.scores)
    for found in (
        evaluate(*task, truth=truth),
        evaluate_ranking(read, truth, n_gallery=N_GALLERY),
    ):
        for measure, value in theirs("qrels.txt", "run.txt").items():
            assert MEASURES[measure](found).mean() == pytest.approx(value), measure


def test_a_tie_counts_as_the_mean_of_all_orders(tmp_path):
    """Other tools order equal scores by document id: over all namings, their mean is ours."""
    gallery, queries = np.array([[1.0, 0], [1, 0], [1, 0], [0, 1]]), np.array([[1.0, 0.5]])
    values = []
    for ids in itertools.permutations("abcd"):
        (tmp_path / "qrels").write_text(f"x 0 {ids[0]} 2\nx 0 {ids[3]} 1\n")
        write_run(tmp_path / "run", search(queries, gallery, k=4, ids=ids), query_ids=["x"])
        values.append(theirs(tmp_path / "qrels", tmp_path / "run"))
    _, truth = truth_of_qrels({"x": {"a": 2, "d": 1}}, query_ids=["x"], ids=list("abcd"))
    found = evaluate(queries, gallery, truth=truth, normalize=False)
    for measure, ours in MEASURES.items():
        if not str(measure).endswith(("@5", "@10")):
            expected = np.mean([value[measure] for value in values])
            assert ours(found).mean() == pytest.approx(expected), measure


def test_the_command_line_reads_and_writes_them(task):
    sides = ["--gallery", "gallery.npy", "--queries", "queries.npy"]
    named = ["--ids", "ids.txt", "--query-ids", "query_ids.txt", "--no-normalize"]
    (only,) = run_json("evaluate", *sides, "--qrels", "qrels.txt", *named)["results"]
    run_json("search", *sides, *named, "-k", N_GALLERY, "--run-file", "run.txt")
    expected = theirs("qrels.txt", "run.txt")
    assert only["recall_at_1"] == pytest.approx(expected[ir_measures.Success @ 1])
    assert only["mrr"] == pytest.approx(expected[ir_measures.RR])
    assert only["ndcg_at_10"] == pytest.approx(expected[ir_measures.nDCG @ 10])
    short = [*sides, "--query-ids", "query_ids.txt"]
    assert_fails(run("search", *short), "--query-ids needs --run-file")
    assert_fails(run("evaluate", *short), "--query-ids applies only to qrels")
    run_of_items = ["search", *sides, "--no-normalize", "--run-file", "gallery.npy"]
    assert_fails(run(*run_of_items), "gallery.npy is one of the inputs")


def test_every_command_with_labels_reads_qrels_by_ids(task, tmp_path):
    np.save("past.npy", np.random.default_rng(5).normal(size=(40, 6)))
    pairs = zip(QUERY_IDS, IDS, strict=False)
    (tmp_path / "one.qrels").write_text("".join(f"{query} 0 {item} 1\n" for query, item in pairs))
    known = ["--gallery", "gallery.npy", "--queries", "queries.npy", "--qrels", "one.qrels",
             "--ids", "ids.txt", "--query-ids", "query_ids.txt", "--no-normalize"]  # fmt: skip
    (only,) = run_json("evaluate", *known)["results"]
    known += ["--references", "past.npy"]
    assert run_json("check", *known)["recall_at_1"] == only["recall_at_1"]
    assert run_json("tune", *known)["uncorrected"]["recall_at_1"] == only["recall_at_1"]
    assert run_json("compare", *known)["results"][0]["recall_at_1"] == only["recall_at_1"]


def test_check_leaves_out_queries_that_are_not_judged(task, tmp_path):
    """Rows go by their numbers if there are no ids."""
    (tmp_path / "some.qrels").write_text("".join(f"{n} 0 {n} 1\n" for n in range(20)))
    sides = ["--gallery", "gallery.npy", "--queries", "queries.npy", "--no-normalize"]
    result = run("check", *sides, "--truth", "some.qrels", "--json")
    assert "3 of 23 queries without a right item in the qrels are dropped" in result.stderr


def test_qrels_of_a_task_are_read_as_they_were_written(task):
    truth = [[n, (n + 1) % N_GALLERY] for n in range(N_QUERIES)]
    write_qrels("made.txt", truth, query_ids=QUERY_IDS, ids=IDS)
    found = read_qrels("made.txt")
    assert found["q3"] == {"doc-3": 1, "doc-4": 1}
    _, kept = truth_of_qrels(read_qrels("qrels.txt"), query_ids=QUERY_IDS, ids=IDS)
    write_qrels("again.txt", kept, query_ids=QUERY_IDS, ids=IDS)
    graded = {
        query: {item: grade for item, grade in some.items() if grade > 0}
        for query, some in read_qrels("qrels.txt").items()
    }
    assert read_qrels("again.txt") == graded
    write_qrels("numbers.txt", [1, 0], query_ids=range(2), ids=range(2))
    assert read_qrels("numbers.txt") == {"0": {"1": 1}, "1": {"0": 1}}


def test_beir_has_tabs_and_a_header(tmp_path):
    path = tmp_path / "test.tsv"
    path.write_text("query-id\tcorpus-id\tscore\n1\tMED 10\t2\n1\tMED-14\t0\n")
    assert read_qrels(path) == {"1": {"MED 10": 2, "MED-14": 0}}
    path.write_text("1\tMED-10\t2\n")
    assert read_qrels(path) == {"1": {"MED-10": 2}}


def test_what_is_left_out_is_said():
    qrels = {"x": {"a": 1, "gone": 1}, "y": {"a": 0}, "z": {"a": 1}, "later": {"b": 1}}
    with pytest.warns(NNNormWarning) as notes:
        rows, truth = truth_of_qrels(qrels, query_ids=["z", "x", "y", "w"], ids=["a", "b"])
    assert rows.tolist() == [0, 1]
    assert truth.items.tolist() == [0, 0]
    said = " ".join(str(note.message) for note in notes)
    assert "2 of 4 queries without a right item in the qrels" in said
    assert "1 queries of the qrels aren't among the queries" in said
    assert "1 right documents of the qrels aren't in the gallery" in said
    with pytest.raises(NNNormError, match=r"no right document for these .* 'q' .* 'x' and 'a'"):
        truth_of_qrels(qrels, query_ids=["q"], ids=["a"])


def test_queries_of_low_confidence_have_no_lines_in_a_run(tmp_path):
    names, parents = ["a", "b"], ["doc", "other"]
    for options in ({"ids": names}, {"parents": parents}, {"ids": [1, 2]}):
        sure = search([[1, 0], [0.5, 0.5]], np.eye(2), k=2, min_confidence=0.5, **options)
        write_run(tmp_path / "run", sure, query_ids=["x", "y"])
        assert [line[0] for line in (tmp_path / "run").read_text().splitlines()] == ["x", "x"]


def test_lists_of_a_run_may_differ_in_length(tmp_path):
    (tmp_path / "run").write_text(
        "x Q0 b 1 0.5 t\nx Q0 a 2 0.7 t\ny Q0 a 1 3 t\nother Q0 q 1 1 t\n"
    )
    found = read_run(tmp_path / "run", query_ids=["y", "x", "z"], ids=["a", "b"])
    assert found.indices.tolist() == [[0, -1], [0, 1], [-1, -1]]
    measured = evaluate_ranking(found, [0, 1, 1], n_gallery=2)
    assert measured.hits(1).tolist() == [1, 0, 0]
    assert measured.hits(2).tolist() == [1, 1, 0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x Q0 a 1 0.5\n", "run: line 1 of a run file must have 6 cells: query Q0 document rank"),
        ("x Q0 a 1 0.5 t\nx Q0 a 2 0.5 t\n", "line 2 repeats the document 'a' of this query"),
        ("x Q0 a 1 high t\n", "run: line 1 has the score 'high'; expected a number"),
        ("x Q0 a 1 nan t\n", "run: line 1 has the score 'nan'; expected a number"),
        ("x Q0 a 1 -1e39 t\n", "run: line 1 has the score '-1e39'; expected a number"),
        ("x Q0 c 1 1 t\n", "line 1 has the document 'c', which isn't among the ids"),
        ("y Q0 a 1 1 t\n", "run has no hits for these queries, such as 'x'"),
    ],
)
def test_a_bad_run_is_rejected_with_its_line(tmp_path, text, words):
    (tmp_path / "run").write_text(text)
    with pytest.raises(NNNormError, match=words):
        read_run(tmp_path / "run", query_ids=["x"], ids=["a", "b"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x\ta\t1\nx\tb\n", "line 2 of a qrels file must have 3 cells: query, .* tabs; got 2"),
        ("x 0 a 1.5\n", "line 1 has the grade '1.5'; expected a whole number"),
        ("x\ta\t1.0\nx\tb\t1\n", "line 1 has the grade '1.0'; expected a whole number"),
        (f"x 0 a {10**20}\n", "line 1 has the grade '100000000000000000000'"),
        ("x 0 a 1\nx 0 a 2\n", "line 2 repeats the document 'a' of this query"),
    ],
)
def test_bad_qrels_are_rejected_with_their_line(tmp_path, text, words):
    (tmp_path / "qrels").write_text(text)
    with pytest.raises(NNNormError, match=words):
        read_qrels(tmp_path / "qrels")


def test_ids_with_spaces_are_rejected(tmp_path):
    found = search(np.eye(2), np.eye(2), k=1, ids=["a b", "c"])
    with pytest.raises(NNNormError, match=r"ids of a TREC file can't be empty .* got 'a b'"):
        write_run(tmp_path / "run", found)
    with pytest.raises(NNNormError, match=r"query ids of a TREC file .* got ''"):
        write_qrels(tmp_path / "qrels", [0], query_ids=[""], ids=["a"])
    with pytest.raises(NNNormError, match="the tag of a TREC file"):
        write_run(tmp_path / "run", search(np.eye(2), np.eye(2), k=1), tag="my run")
