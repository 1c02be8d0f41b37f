"""`nnnorm index` from files to a live index and back, and what it says when something is wrong."""

import contextlib
import json
import os
import re
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import duckdb
import faiss
import numpy as np
import pytest

import nnnorm
from nnnorm.index import open_index
from tests import stores  # noqa: F401 - one thread per engine
from tests.command import assert_fails, run
from tests.index.test_index import exact, make_data, save_parquet


@pytest.fixture
def data(tmp_path, monkeypatch):
    data = make_data(300, 40, 13, unit=True)
    for name in ("gallery", "queries", "references"):
        np.save(tmp_path / f"{name}.npy", getattr(data, name))
    data.bias.save(tmp_path / "bias.safetensors")
    monkeypatch.chdir(tmp_path)
    return data


BUILD = ["index", "build", "--gallery", "gallery.npy", "--bias", "bias.safetensors"]
URLS = ["faiss:photos.faiss", "duckdb:photos.duckdb?table=photos", "sqlite:photos.db?table=photos"]


def test_a_bias_is_described_in_the_words_of_fit(data):
    fitted = run(
        "fit", "--gallery", "gallery.npy", "--references", "references.npy", "-o", "b.safetensors"
    )
    assert fitted.exit_code == 0, fitted.output
    facts = dict(re.findall(r"^  (method|settings) +(.+?) *$", fitted.stdout, flags=re.MULTILINE))
    assert facts["method"] == "NNN"
    assert "α = " in facts["settings"]
    built = run(*BUILD[:-1], "b.safetensors", "--to", "faiss:photos.faiss")
    assert built.exit_code == 0, built.output
    for name, value in facts.items():
        assert re.search(rf"^  {name} +{re.escape(value)} *$", built.stdout, flags=re.MULTILINE)


def test_items_keep_the_ids_of_their_file(data):
    ids = [f"photo {row}" for row in range(300)]
    save_parquet("gallery.parquet", data, ids)
    files = ["--gallery", "gallery.parquet", "--bias", "bias.safetensors"]
    assert run("index", "build", *files, "--to", "faiss:photos.faiss").exit_code == 0
    index = ["--index", "faiss:photos.faiss", "--queries", "queries.npy", "-k", 5, "--json"]
    assert json.loads(run("index", "search", *index).stdout)["ids"] == (
        exact(data, k=5, ids=ids).ids.tolist()
    )
    assert run("index", "verify", *index, *files).exit_code == 0


@pytest.mark.parametrize("url", URLS)
def test_build_search_and_verify_from_files(data, url):
    ids = [f"photo {row}" for row in range(300)]
    with open("ids.json", "w") as file:
        json.dump(ids, file)
    with open("metadata.jsonl", "w") as file:
        file.writelines(json.dumps({"row": row}) + "\n" for row in range(300))
    options = ["--ids", "ids.json", "--metadata", "metadata.jsonl", "--json"]
    built = run(*BUILD, "--to", url, *options)
    assert built.exit_code == 0, built.output
    assert json.loads(built.stdout)["n_items"] == 300

    found = run("index", "search", "--index", url, "--queries", "queries.npy", "-k", 5, "--json")
    assert json.loads(found.stdout)["ids"] == exact(data, k=5, ids=ids).ids.tolist()
    other = ["--weight", 0.2, "-o", "ranking.npz"]
    assert run("index", "search", "--index", url, "--queries", "queries.npy", *other).exit_code == 0
    saved = nnnorm.Ranking.load("ranking.npz").indices
    assert saved.tolist() == exact(data, weight=0.2, ids=ids).ids.tolist()

    verify = ["index", "verify", "--index", url, "--queries", "queries.npy", "--json"]
    for more in ([], ["--gallery", "gallery.npy", "--bias", "bias.safetensors", *options[:2]]):
        verified = run(*verify, *more)
        assert verified.exit_code == 0, verified.output
        assert json.loads(verified.stdout)["recall"] == 1.0
        assert json.loads(verified.stdout)["is_good"] is True


def test_people_read_tables(data):
    built = run(*BUILD, "--to", "faiss:photos.faiss")
    assert built.stdout.startswith("Built the corrected index faiss photos.faiss.")
    assert "13 in the embeddings, 14 in the index" in built.stdout
    for inside in ("shift", "scale", "radius", "format", "None"):
        assert inside not in built.stdout
    found = run("index", "search", "--index", "faiss:photos.faiss", "--queries", "queries.npy")
    assert "Best items" in found.stdout
    verified = run("index", "verify", "--index", "faiss:photos.faiss", "--queries", "queries.npy")
    assert "recall@10" in verified.stdout
    assert "faiss photos.faiss agrees with the exact corrected search." in verified.stdout


def test_a_rerank_says_how_often_it_fetched(data):
    assert run(*BUILD, "--to", "faiss:photos.faiss", "--way", "rerank").exit_code == 0
    search = ["index", "search", "--index", "faiss:photos.faiss", "--queries", "queries.npy"]
    assert "the re-rank needed" in run(*search).stderr
    assert json.loads(run(*search, "--json").stdout)["extra_fetches"] > 0


def test_verify_names_the_trap_and_fails(data):
    url = "hnswlib:photos.hnsw?ef=2&links=2"
    assert run(*BUILD, "--to", url).exit_code == 0
    result = run("index", "verify", "--index", url, "--queries", "queries.npy", "-k", 1)
    assert result.exit_code == 1
    assert "Likely cause: the approximate search is too narrow" in result.stdout


def test_an_index_filled_by_hand_is_verified_by_its_way(data):
    mine = faiss.IndexFlatIP(14)
    mine.add(nnnorm.augment_gallery(data.gallery, data.bias))
    faiss.write_index(mine, "mine.faiss")
    verify = ["index", "verify", "--index", "faiss:mine.faiss", "--queries", "queries.npy"]
    assert_fails(run(*verify), "holds no correction")
    files = ["--gallery", "gallery.npy", "--bias", "bias.safetensors"]
    assert run(*verify, *files, "--way", "ip").exit_code == 0
    assert_fails(run(*verify, "--way", "ip"), "needs --gallery and --bias")
    assert_fails(run(*verify, "--gallery", "gallery.npy"), "go together")


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the references seem to cover only a part")
def test_export_makes_a_corrected_copy(data):
    mine = faiss.IndexFlatIP(13)
    mine.add(data.gallery)
    faiss.write_index(mine, "mine.faiss")
    before = Path("mine.faiss").read_bytes()
    export = ["index", "export", "--from", "faiss:mine.faiss", "--to", "duckdb:new.duckdb"]
    assert_fails(run(*export), "has no bias yet; give references")
    done = run(*export, "--references", "references.npy", "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["n_items"] == 300
    data.bias = nnnorm.NNN().fit(data.gallery, data.references)
    with open_index("duckdb:new.duckdb") as index:
        assert index.search(data.queries).ids.tolist() == exact(data).ids.tolist()
    assert Path("mine.faiss").read_bytes() == before
    assert_fails(run(*export, "--references", "references.npy"), "is finished already (300 items)")
    again = run(*export[:-1], "duckdb:other.duckdb", "--bias", "bias.safetensors")
    assert again.exit_code == 0, again.output


# The command line, which stops after the first batch until it is interrupted.
WAITING = """
import time
from nnnorm.cli import main
from nnnorm.index.stores.sqlite_vec import SqliteVecStore
add = SqliteVecStore.add
def add_and_wait(self, items):
    add(self, items)
    print("waiting", flush=True)
    time.sleep(600)
SqliteVecStore.add = add_and_wait
main()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(signal, "SIGINT") or os.name == "nt", reason="needs POSIX signals")
def test_an_export_stopped_by_ctrl_c_goes_on(data):
    mine = faiss.IndexFlatIP(13)
    mine.add(np.tile(data.gallery, (10, 1)))
    faiss.write_index(mine, "mine.faiss")
    export = ["index", "export", "--from", "faiss:mine.faiss", "--to", "sqlite:new.db"]
    export += ["--references", "references.npy"]
    with subprocess.Popen(
        [sys.executable, "-c", WAITING, *export],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate()
    assert process.returncode == 1, errors
    assert "the same command continues where it stopped" in errors
    assert "Traceback" not in errors
    with contextlib.closing(sqlite3.connect("new.db")) as connection:
        (n_items,) = connection.execute("SELECT count(*) FROM items_rowids").fetchone()
    assert n_items == 1000  # one batch
    done = run(*export, "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["n_items"] == 3000


def test_a_warning_is_a_sentence_on_stderr(data):
    sizes = np.linspace(0.5, 2, 300, dtype=np.float32)[:, None]
    np.save("gallery.npy", data.gallery * sizes)
    nnnorm.NNN(8, 0.5).fit(data.gallery * sizes, data.references).save("bias.safetensors")
    built = run(*BUILD, "--to", "hnswlib:photos.hnsw", "--json")
    assert built.exit_code == 0
    assert "Note: hnswlib photos.hnsw walks a graph" in built.stderr
    assert json.loads(built.stdout)["way"] == "ip"


def test_mistakes_are_one_sentence(data):
    assert_fails(run(*BUILD, "--to", "excel:photos.xls"), "there is no engine 'excel'")
    assert_fails(run(*BUILD, "--to", "faiss:photos.faiss?kind=round"), "kind must be one of flat")
    assert_fails(run(*BUILD, "--to", "faiss:no/such/folder.faiss"), "does not exist; create it")
    assert_fails(run(*BUILD, "--to", "faiss:a.faiss", "--ids", "none.npy"), "no file of ids")
    np.save("ids.npy", np.zeros(300, dtype=np.int64))
    assert_fails(
        run(*BUILD, "--to", "faiss:a.faiss", "--ids", "ids.npy"), "ids of gallery must be unique"
    )
    with open("metadata.json", "w") as file:
        file.write("[1, 2]")
    wrong = run(*BUILD, "--to", "faiss:a.faiss", "--metadata", "metadata.json")
    assert_fails(wrong, "must hold one JSON object per item")
    missing = ["index", "search", "--index", "faiss:nowhere.faiss", "--queries", "queries.npy"]
    assert_fails(run(*missing), "there is no faiss nowhere.faiss")
    np.save("narrow.npy", np.ones((2, 5), dtype=np.float32))
    assert run(*BUILD, "--to", "faiss:a.faiss").exit_code == 0
    narrow = run("index", "search", "--index", "faiss:a.faiss", "--queries", "narrow.npy")
    assert_fails(narrow, "must share dim; got 5 and 13")
    assert run(*BUILD, "--to", "faiss:a.faiss", "--way", "sideways").exit_code == 2


# --- a living index ------------------------------------------------------------------------------


@pytest.fixture
def living(data):
    """An index by a corrector, its files, and what a second corrector says."""
    world = SimpleNamespace(
        first=nnnorm.Corrector.fit(data.gallery, data.references, nnnorm.NNN(16, 0.75)),
        second=nnnorm.Corrector.fit(data.gallery, data.references[:100], nnnorm.NNN(8, 0.5)),
        new=make_data(8, 5, data.gallery.shape[1], unit=True, seed=2).gallery,
        index=["--index", "faiss:photos.faiss"],
    )
    world.first.save("first.safetensors")
    world.second.save("second.safetensors")
    np.save("new.npy", world.new)
    Path("new.txt").write_text("\n".join(str(own) for own in range(1000, 1008)))
    metadata = [{"year": 2000 + row % 3} for row in range(len(data.gallery))]
    Path("years.jsonl").write_text("\n".join(json.dumps(entry) for entry in metadata))
    built = run(
        *("index", "build", "--gallery", "gallery.npy", "--corrector", "first.safetensors"),
        *("--metadata", "years.jsonl", "--to", "faiss:photos.faiss"),
    )
    assert built.exit_code == 0, built.output
    return world


def test_items_come_and_go_by_commands(data, living):
    new = ["--gallery", "new.npy", "--ids", "new.txt", "--json"]
    added = run("index", "add", *living.index, *new, "--corrector", "first.safetensors")
    n_items = len(data.gallery) + 8
    assert json.loads(added.stdout) == {
        "index": "faiss photos.faiss",
        "n_items": n_items,
        "added": 8,
    }
    other = run("index", "add", *living.index, *new, "--corrector", "second.safetensors")
    assert other.exit_code == 1
    assert "such values do not mix" in other.stderr
    again = run(
        "index", "add", *living.index, *new, "--corrector", "first.safetensors", "--replace"
    )
    assert json.loads(again.stdout)["added"] == 0
    Path("outliers.json").write_text("[1000, 1003, 5]")
    gone = run("index", "delete", *living.index, "--ids", "outliers.json")
    assert gone.stdout.startswith("Deleted from faiss photos.faiss.")
    twice = run("index", "delete", *living.index, "--ids", "outliers.json")
    assert "has no item with the id 5; nothing was deleted" in twice.stderr
    alone = ["--corrector", "second.safetensors", "--ids", "outliers.json"]
    assert "leave out ids" in run("index", "refresh", *living.index, *alone).stderr
    for nested in ("[3, [7]]", "[[3], [7]]", "[3, null]", '[3, "7"]'):
        Path("nested.json").write_text(nested)
        refused = run("index", "delete", *living.index, "--ids", "nested.json")
        assert refused.exit_code == 1
        assert "the items to delete" in refused.stderr
    missing = ["--ids", "new.txt", "--ignore-missing", "--json"]
    rest = run("index", "delete", *living.index, *missing)
    assert json.loads(rest.stdout)["deleted"] == 6
    with open_index("faiss:photos.faiss") as index:
        assert len(index) == len(data.gallery) - 1


@pytest.mark.slow
def test_suspicious_items_are_kept_out_by_a_command(data, living):
    """A row that is near to all past queries, and one of zeros."""
    hub = data.references.mean(axis=0)
    rows = np.vstack([living.new[:3], hub / np.linalg.norm(hub), np.zeros_like(hub)])
    np.save("some.npy", rows.astype(np.float32))
    Path("some.txt").write_text("\n".join(map(str, range(2000, 2005))))
    Path("some.jsonl").write_text("\n".join(json.dumps({"row": row}) for row in range(5)))
    some = ["--gallery", "some.npy", "--ids", "some.txt", "--metadata", "some.jsonl"]
    add = ["index", "add", *living.index, *some]
    refused = run(*add, "--corrector", "first.safetensors")
    assert refused.exit_code == 1
    without = run(*add, "--bias", "bias.safetensors", "--screen")
    assert "--screen judges items by the bank of a corrector" in without.stderr
    screened = [*add, "--corrector", "first.safetensors", "--screen"]
    added = json.loads(run(*screened, "--json").stdout)
    out = {one["id"]: one["reasons"] for one in added["kept_out"]}
    assert added["added"] == 5 - len(out)
    assert out[2004] == ["it is all zeros"]
    with open_index("faiss:photos.faiss") as index:
        kept = [own for own in range(2000, 2005) if own not in out]
        assert index.store.metadata_of(np.array(kept)) == [{"row": own - 2000} for own in kept]
        assert not index.store.present(np.array(list(out))).any()
    shown = run(*screened, "--replace").stdout
    assert "2004 (it is all zeros)" in " ".join(shown.split())


@pytest.mark.slow
def test_a_table_is_corrected_in_place_by_a_command(data, living):
    with duckdb.connect("shop.duckdb") as own:
        width = data.gallery.shape[1]
        own.execute(f"CREATE TABLE photos (id BIGINT, title TEXT, embedding FLOAT[{width}])")
        rows = [(row, f"Photo {row}", one) for row, one in enumerate(data.gallery.tolist())]
        own.executemany("INSERT INTO photos VALUES (?, ?, ?)", rows)
    table = ["--index", "duckdb:shop.duckdb?table=photos"]
    adopted = run("index", "adopt", *table, "--corrector", "first.safetensors")
    assert adopted.exit_code == 0, adopted.output
    first = "Added the correction as a column to duckdb table photos of shop.duckdb."
    assert adopted.stdout.startswith(first)
    found = run("index", "search", *table, "--queries", "queries.npy", "--json")
    right = nnnorm.search(data.queries, data.gallery, living.first.bias, k=10).indices
    assert json.loads(found.stdout)["ids"] == right.tolist()
    again = run("index", "adopt", *table, "--corrector", "first.safetensors")
    assert "has a column nnnorm_bias already" in again.stderr
    named = run("index", "adopt", *table, "--corrector", "first.safetensors", "--ids", "new.txt")
    assert "--ids names the rows of a bias" in named.stderr


@pytest.mark.slow
def test_an_index_is_refreshed_and_rolled_back_by_commands(data, living):
    search = ["index", "search", *living.index, "--queries", "queries.npy", "--json"]

    def ids():
        return json.loads(run(*search).stdout)["ids"]

    def right(corrector):
        return nnnorm.search(data.queries, data.gallery, corrector.bias, k=10).indices.tolist()

    assert ids() == right(living.first)
    refresh = run("index", "refresh", *living.index, "--corrector", "second.safetensors")
    assert refresh.exit_code == 0, refresh.output
    assert ids() == right(living.second)
    verify = ["index", "verify", *living.index, "--queries", "queries.npy"]
    assert run(*verify, "--corrector", "second.safetensors").exit_code == 0
    wrong = run(*verify, "--corrector", "first.safetensors")
    assert wrong.exit_code == 1
    assert "Likely cause: the index averages 8 references per item, the bias 16" in wrong.stdout
    back = json.loads(run("index", "rollback", *living.index, "--json").stdout)
    assert back["corrector"] == living.first.fingerprint
    assert ids() == right(living.first)
    twice = run("index", "rollback", *living.index)
    assert twice.exit_code == 0
    assert "serves the generation before the last refresh already" in twice.stderr
    assert ids() == right(living.first)
    forward = run("index", "rollback", *living.index, "--undo")
    assert forward.stdout.startswith("Rolled forward faiss photos.faiss.")
    assert ids() == right(living.second)
    run("index", "rollback", *living.index)
    only = json.loads(run(*search, "--filter", '{"year": 2001}').stdout)["ids"]
    assert {own % 3 for row in only for own in row} == {1}


def test_a_correction_is_asked_for_once(data, living):
    both = ["--corrector", "first.safetensors", "--bias", "bias.safetensors"]
    build = ["index", "build", "--gallery", "gallery.npy", "--to", "faiss:other.faiss"]
    assert "expected either --corrector" in run(*build).stderr
    assert "got both" in run(*build, *both).stderr
    copied = run("index", "export", "--from", "faiss:photos.faiss", "--to", "faiss:copy.faiss")
    assert copied.stdout.startswith("Wrote a copy with the correction, faiss copy.faiss.")
