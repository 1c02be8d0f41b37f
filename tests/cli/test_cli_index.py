"""`nnnorm index` from files to an index and back."""

import json
from pathlib import Path

import duckdb
import faiss
import numpy as np
import pytest

import nnnorm
from tests.command import assert_fails, run

N_ITEMS, N_NEW = 300, 20


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Files of a gallery, new items, queries and two correctors, in the current folder."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    lean = rng.normal(size=13)

    def rows(n, more):
        drawn = rng.normal(size=(n, 13)) + more * lean
        return (drawn / np.linalg.norm(drawn, axis=1, keepdims=True)).astype(np.float32)

    made = {"gallery": rows(N_ITEMS, 0.5), "new": rows(N_NEW, 0.5), "queries": rows(40, 1)}
    for name, array in made.items():
        np.save(f"{name}.npy", array)
    np.save("past.npy", rows(200, 1))
    for name, method in (("first", nnnorm.NNN(16, 0.75)), ("second", nnnorm.NNN(8, 0.5))):
        nnnorm.Corrector.fit("gallery.npy", "past.npy", method).save(f"{name}.safetensors")
    return made


def exact(data, corrector="first", k=10, weight=None, with_new=False):
    items = np.vstack([data["gallery"], data["new"]]) if with_new else data["gallery"]
    bias = nnnorm.Corrector.load(f"{corrector}.safetensors").bias_for(items)
    return nnnorm.search(data["queries"], items, bias, k=k, weight=weight)


def read(*arguments):
    done = run("index", *arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


BUILD = ["--gallery", "gallery.npy", "--corrector", "first.safetensors"]
QUERIES = ["--queries", "queries.npy"]
URLS = ["faiss:photos", "duckdb:photos.duckdb?table=photos", "sqlite:photos.db?table=photos"]


@pytest.mark.parametrize("url", URLS)
def test_an_index_is_built_searched_and_verified_from_files(data, url):
    with open("ids.json", "w") as file:
        json.dump([f"photo {row}" for row in range(N_ITEMS)], file)
    with open("metadata.jsonl", "w") as file:
        file.writelines(json.dumps({"row": row}) + "\n" for row in range(N_ITEMS))
    built = read("build", url, *BUILD, "--ids", "ids.json", "--metadata", "metadata.jsonl")
    assert built["n_items"] == N_ITEMS
    found = read("search", url, *QUERIES, "-k", 5)
    assert found["ids"] == [[f"photo {own}" for own in row] for row in exact(data, k=5).indices]
    few = '{"row": 7}' if url.startswith("faiss") else "row = 7"
    assert read("search", url, *QUERIES, "--filter", few)["ids"] == [["photo 7"]] * 40
    assert run("index", "search", url, *QUERIES, "--weight", 0.2, "-o", "r.npz").exit_code == 0
    saved = nnnorm.Ranking.load("r.npz").scores
    np.testing.assert_allclose(saved, exact(data, weight=0.2).scores, atol=1e-5)
    what = ["--gallery", "gallery.npy", "--corrector", "first.safetensors", "--ids", "ids.json"]
    for more in ([], what):
        verified = read("verify", url, *QUERIES, *more)
        assert (verified["recall"], verified["is_good"]) == (1.0, True)


def test_items_come_and_go(data):
    read("build", "faiss:photos", *BUILD)
    np.save("ids.npy", np.arange(N_ITEMS, N_ITEMS + N_NEW))
    new = ["faiss:photos", "--gallery", "new.npy", "--corrector", "first.safetensors"]
    assert read("add", *new, "--ids", "ids.npy")["added"] == N_NEW
    found = read("search", "faiss:photos", *QUERIES)["ids"]
    assert found == exact(data, with_new=True).indices.tolist()
    assert_fails(run("index", "add", *new, "--ids", "ids.npy"), "use upsert (--replace)")
    assert read("add", *new, "--ids", "ids.npy", "--replace")["added"] == 0
    with open("gone.txt", "w") as file:
        file.write("3\n7\n3\n9999\n")
    assert_fails(run("index", "delete", "faiss:photos", "--ids", "gone.txt"), "has no item 9999")
    gone = read("delete", "faiss:photos", "--ids", "gone.txt", "--ignore-missing")
    assert gone == {"index": "faiss photos", "n_items": N_ITEMS + N_NEW - 2, "deleted": 2}


def test_a_refresh_is_rolled_back_and_described(data):
    read("build", "faiss:photos", *BUILD)
    about = read("info", "faiss:photos")
    assert (about["version"], about["can_roll_back"]) == (1, False)
    second = nnnorm.Corrector.load("second.safetensors").fingerprint
    done = read("refresh", "faiss:photos", "--corrector", "second.safetensors")
    assert (done["version"], done["corrector"], done["can_roll_back"]) == (2, second, True)
    search = ["search", "faiss:photos", *QUERIES]
    assert read(*search)["ids"] == exact(data, "second").indices.tolist()
    assert read("rollback", "faiss:photos")["is_rolled_back"]
    assert read(*search)["ids"] == exact(data).indices.tolist()
    shown = run("index", "info", "faiss:photos").stdout
    assert "rollback" in shown
    assert "--undo returns to the newer version" in shown
    again = run("index", "rollback", "faiss:photos").stdout
    assert again.startswith("Unchanged: faiss photos.")
    assert read("rollback", "faiss:photos", "--undo")["version"] == 2
    add = ["add", "faiss:photos", "--gallery", "new.npy", "--corrector", "first.safetensors"]
    assert_fails(run("index", *add), "was built by corrector")


def test_clicks_are_added_by_a_refresh(data):
    read("build", "faiss:photos", *BUILD)
    np.save("clicks.npy", np.arange(N_ITEMS))
    options = ["--corrector", "second.safetensors", "--clicks", "clicks.npy"]
    read("refresh", "faiss:photos", *options, "--popularity-weight", 0.01)
    corrector = nnnorm.Corrector.load("second.safetensors")
    bias = corrector.bias_for(data["gallery"]) + nnnorm.Popularity(np.arange(N_ITEMS), 0.01)
    found = read("search", "faiss:photos", *QUERIES)["ids"]
    assert found == nnnorm.search(data["queries"], data["gallery"], bias).indices.tolist()
    refresh = ["index", "refresh", "faiss:photos", *options[:2]]
    assert "to keep them, pass --clicks" in run(*refresh).stderr
    Path("few.txt").write_text("0\n1\n")
    problem = f"per item of clicks; expected {N_ITEMS}, got 2"
    assert_fails(run(*refresh, *options[2:], "--ids", "few.txt"), problem)
    other = (rows[:, :5] for rows in (data["gallery"], data["queries"]))
    nnnorm.Corrector.fit(*other, normalize=True).save("other.safetensors")
    problem = (
        "the corrector and the items of faiss photos must have the same dimension; got 5 and 13"
    )
    assert_fails(
        run("index", "refresh", "faiss:photos", "--corrector", "other.safetensors"), problem
    )


def test_collections_of_an_application_are_copied(data):
    index = faiss.IndexIDMap2(faiss.IndexFlatIP(13))
    index.add_with_ids(data["gallery"], np.arange(N_ITEMS) + 1000)
    faiss.write_index(index, "mine.faiss")
    copied = read("copy", "faiss:mine.faiss", "faiss:copy", "--references", "past.npy")
    assert copied["n_items"] == N_ITEMS
    ids = read("search", "faiss:copy", "--queries", "queries.npy")["ids"]
    corrector = nnnorm.Corrector.fit("gallery.npy", "past.npy")
    best = nnnorm.search(data["queries"], data["gallery"], corrector.bias).indices
    assert ids == (best + 1000).tolist()
    with duckdb.connect("shop.duckdb") as shop:
        shop.execute("CREATE TABLE photos (name VARCHAR, clip FLOAT[13], year INTEGER)")
        rows = [
            (f"p{row}", vector, 1900 + row) for row, vector in enumerate(data["gallery"].tolist())
        ]
        shop.executemany("INSERT INTO photos VALUES (?, ?, ?)", rows)
    source = "duckdb:shop.duckdb?table=photos&id=name&embedding=clip"
    first = ["--corrector", "first.safetensors"]
    read("copy", source, "sqlite:copy.db?table=photos", *first)
    few = ["--queries", "queries.npy", "--filter", "year = 1907"]
    assert read("search", "sqlite:copy.db?table=photos", *few)["ids"] == [["p7"]] * 40
    assert_fails(run("index", "copy", "faiss:mine.faiss", "faiss:x"), "or a corrector; got neither")


def test_people_read_tables_and_the_problem_if_verify_fails(data):
    assert run("index", "build", "faiss:photos", *BUILD).stdout.startswith("Built faiss photos.")
    good = run("index", "verify", "faiss:photos", *QUERIES)
    assert "faiss photos agrees with the exact corrected search." in good.stdout
    assert "Best items" in run("index", "search", "faiss:photos", *QUERIES).stdout
    url = "hnswlib:poor?ef=1&links=2&ef_construction=2"
    read("build", url, *BUILD)
    result = run("index", "verify", url, "--queries", "queries.npy", "-k", 1)
    assert result.exit_code == 1
    assert "Problem: it finds" in result.stdout


def test_mistakes_are_one_sentence(data):
    assert_fails(run("index", "build", "excel:photos", *BUILD), "there is no engine 'excel'")
    assert_fails(run("index", "info", "faiss:nowhere"), "there is no index faiss nowhere")
    wrong = ["--gallery", "gallery.npy", "--corrector", "second.safetensors", "--ids", "past.npy"]
    assert_fails(run("index", "build", "faiss:photos", *wrong), "ids must be")
    read("build", "faiss:photos", *BUILD)
    assert_fails(run("index", "build", "faiss:photos", *BUILD), "already exists")
    rows = ["verify", "faiss:photos", *QUERIES, "--gallery", "gallery.npy"]
    assert_fails(run("index", *rows), "pass the corrector of the index (--corrector)")
    assert_fails(run("info", "photos"), "photos is an index; run nnnorm index info")
    Path("few.txt").write_text("1\n2\n")
    few = ["build", "faiss:few", *BUILD, "--ids", "few.txt"]
    assert_fails(run("index", *few), "per item of gallery; expected ")
    np.savetxt("other.txt", 10_000 + np.arange(len(np.load("gallery.npy"))), fmt="%d")
    rows += ["--corrector", "first.safetensors", "--ids", "other.txt"]
    said = " ".join(run("index", *rows).stdout.split())
    assert said.endswith("none of the gallery's ids: pass the --ids that it was built with.")
    assert_fails(run("index", "search", "faiss:photos", *QUERIES, "--filter", "x"), "also in JSON")
    many = ["search", "faiss:photos", *QUERIES, "--weight", "nan"]
    assert_fails(run("index", *many), "weight")
