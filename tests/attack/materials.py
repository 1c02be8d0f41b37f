"""One small valid file of every kind that the package reads."""

import json
import tarfile
import zlib
from pathlib import Path

import numpy as np

from nnnorm.index import ENGINES as REGISTERED
from nnnorm.index.engines import load_engine
from nnnorm.index.folder import FolderBackend

DIM, N_GALLERY, N_QUERIES, N_REFERENCES = 8, 24, 12, 60
LOCAL = [name for name in REGISTERED if issubclass(load_engine(name), FolderBackend)]
# Those whose files are attacked: pgvector has none, and Qdrant's folder is like Chroma's.
SERVERS = ("chroma", "milvus")
ENGINES = [name for name in REGISTERED if name not in (*SERVERS, "pgvector", "qdrant")]
# Engines of the indexes that are changed.
LIVING = ("faiss", "usearch", "sqlite", "duckdb")
APPLICATION = "duckdb:index-application?table=shop"


def make_all(folder):
    """Make everything in a folder."""
    root = Path(folder)
    make_arrays(root)
    make_tables(root)
    make_data_sets(root)
    make_records(root)


def _unit(rng, n_rows):
    rows = rng.normal(size=(n_rows, DIM)) + 0.7
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def make_arrays(root):
    """Embeddings in every form, truth, ids and clicks."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(15)
    gallery, queries = _unit(rng, N_GALLERY), _unit(rng, N_QUERIES)
    np.save(root / "gallery.npy", gallery)
    np.savez_compressed(root / "gallery.npz", embedding=gallery)
    parquet.write_table(
        pyarrow.table({"embedding": list(gallery), "id": [f"n{n}" for n in range(N_GALLERY)]}),
        root / "gallery.parquet",
    )
    (root / "shards").mkdir()
    for number, part in enumerate(np.array_split(gallery, 3)):
        np.save(root / f"shards/img_emb_{number}.npy", part)
    np.save(root / "queries.npy", queries)
    np.savez(root / "queries.npz", embedding=queries)
    np.save(root / "references.npy", _unit(rng, N_REFERENCES))
    np.save(root / "others.npy", _unit(rng, N_REFERENCES))
    np.save(root / "new.npy", _unit(rng, 5))
    truth = rng.integers(0, N_GALLERY, N_QUERIES)
    np.save(root / "truth.npy", truth)
    (root / "truth.json").write_text(json.dumps([[int(item)] for item in truth]))
    lines = [f"{query} 0 {item} 1\n" for query, item in enumerate(truth)]
    (root / "qrels.txt").write_text("".join(lines))
    np.save(root / "parents.npy", np.arange(N_GALLERY) // 2)
    np.save(root / "query-ids.npy", np.arange(N_QUERIES))
    np.save(root / "ids.npy", np.arange(100, 100 + N_GALLERY))
    np.save(root / "numbers.npy", np.arange(N_GALLERY))
    (root / "ids.json").write_text(json.dumps([f"photo {n}" for n in range(N_GALLERY)]))
    (root / "ids.txt").write_text("".join(f"photo {n}\n" for n in range(N_GALLERY)))
    np.save(root / "clicks.npy", rng.integers(0, 50, N_GALLERY))


def make_tables(root):
    """Groups, query tables, logs and metadata, each as CSV, TSV, JSONL and parquet."""
    import pyarrow
    from pyarrow import parquet

    rng = np.random.default_rng(16)
    log = _unit(rng, 40)
    tables = {
        "groups": [{"group": 1990 + n % 2} for n in range(N_GALLERY)],
        "captions": [{"caption": f"a red circle {n}", "id": n} for n in range(4)],
        "log": [
            {"embedding": row.tolist(), "day": f"2026-05-{1 + n % 28:02d}", "times": 1 + n % 3}
            for n, row in enumerate(log)
        ],
    }
    for name, rows in tables.items():
        (root / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        for suffix, separator in ((".csv", ","), (".tsv", "\t")):
            lines = [separator.join(rows[0])]
            lines += [
                separator.join(f'"{v}"' if isinstance(v, list) else str(v) for v in row.values())
                for row in rows
            ]
            (root / f"{name}{suffix}").write_text("\n".join(lines) + "\n")
        parquet.write_table(pyarrow.Table.from_pylist(rows), root / f"{name}.parquet")
    for name, n_rows in (("items", N_GALLERY), ("asked", N_QUERIES), ("past", N_REFERENCES)):
        (root / f"{name}.txt").write_text("".join(f"a red circle {n}\n" for n in range(n_rows)))
    pictures = [f"p{n % 4}.png,{'ab'[n % 2]}" for n in range(N_GALLERY)]
    (root / "items.csv").write_text("\n".join(["image,kind", *pictures]) + "\n")
    described = [{"year": 1990 + n, "tags": ["x", str(n)]} for n in range(N_GALLERY)]
    (root / "metadata.json").write_text(json.dumps(described))
    (root / "metadata.jsonl").write_text("".join(json.dumps(one) + "\n" for one in described))


def make_data_sets(root):
    """Pictures, sounds, and the files of published data sets."""
    from PIL import Image

    pixels = np.random.default_rng(17).integers(0, 255, size=(4, 12, 10, 3)).astype(np.uint8)
    (root / "pictures").mkdir()
    for number, one in enumerate(pixels):
        Image.fromarray(one).save(root / f"pictures/p{number}.png")
    images = [f"p{number}.png" for number in range(4)]
    (root / "pictures.txt").write_text("".join(f"pictures/{name}\n" for name in images))
    (root / "captions.txt").write_text("a red circle\na blue square\n")
    (root / "beir" / "qrels").mkdir(parents=True)
    lines = [json.dumps({"_id": str(n), "title": "a", "text": f"star {n}"}) for n in range(3)]
    for part in ("corpus", "queries"):
        (root / "beir" / f"{part}.jsonl").write_text("\n".join(lines) + "\n")
    judged = "".join(f"{n}\t{n}\t1\n" for n in range(3))
    (root / "beir/qrels/test.tsv").write_text(f"query-id\tcorpus-id\tscore\n{judged}")
    with tarfile.open(root / "samples.tar", "w") as tar:
        for number in range(2):
            tar.add(root / f"pictures/p{number}.png", f"{number}.png")
            tar.add(root / "captions.txt", f"{number}.txt")
    split = ["train", "train", "val", "test"]
    sentences = [{"raw": "A dog runs ."}, {"raw": "A cat sleeps ."}]
    karpathy = [
        {"filename": name, "split": its, "sentences": sentences, "imgid": n}
        for n, (name, its) in enumerate(zip(images, split, strict=True))
    ]
    (root / "dataset_small.json").write_text(json.dumps({"dataset": "small", "images": karpathy}))
    coco = {
        "images": [{"id": n, "file_name": name} for n, name in enumerate(images)],
        "annotations": [{"id": n, "image_id": n % 4, "caption": "A boat."} for n in range(8)],
    }
    (root / "captions_val2017.json").write_text(json.dumps(coco))
    rows = [f"{name},a picture of {n},{split[n]}" for n, name in enumerate(images)]
    (root / "pairs.csv").write_text("\n".join(["image,caption,split", *rows]) + "\n")


def make_records(root):
    """A bias, a bank, a corrector and a ranking."""
    import nnnorm

    gallery, references = np.load(root / "gallery.npy"), np.load(root / "references.npy")
    bias = nnnorm.NNN(8, 0.75).fit(gallery, references)
    bias.save(root / "bias.safetensors")
    nnnorm.Bank.of(references).save(root / "bank.safetensors")
    nnnorm.Corrector.fit(gallery, references, nnnorm.NNN(8, 0.75)).save(
        root / "corrector.safetensors"
    )
    others = np.load(root / "others.npy")
    nnnorm.Corrector.fit(gallery, others, nnnorm.NNN(8, 0.5)).save(root / "former.safetensors")
    groups = 1990 + np.arange(N_GALLERY)
    grouped = nnnorm.Corrector.fit(gallery, others, nnnorm.NNN(8, 0.5), groups=groups)
    grouped.save(root / "grouped.safetensors")
    queries = np.load(root / "queries.npy")
    nnnorm.search(queries, gallery, k=3).save(root / "ranking.npz")
    past = nnnorm.search(others, gallery, bias, k=1)
    past.save(root / "past-ranking.npz")
    noise = np.random.default_rng(19).normal(size=len(others)) * past.confidence.std()
    labels = (past.confidence + noise > np.median(past.confidence)).astype(int)
    np.save(root / "labels.npy", labels)
    (root / "labels.json").write_text(json.dumps(labels.tolist()))
    (root / "labels.txt").write_text("".join(f"{label}\n" for label in labels))
    make_later(root)


def make_later(root):
    """What `index add` and `index delete` take: ids and metadata of new items, ids to go."""
    import pyarrow
    from pyarrow import parquet

    new = np.load(root / "new.npy")
    ids = list(range(500, 500 + len(new)))
    table = pyarrow.table({"embedding": list(new), "id": ids})
    parquet.write_table(table, root / "later.parquet")
    described = [{"year": 1990 + n} for n in range(len(new))]
    (root / "later.jsonl").write_text("".join(json.dumps(one) + "\n" for one in described))
    for name, some in (("later", ids), ("gone", [3, 7, 11])):
        np.save(root / f"{name}-ids.npy", some)
        (root / f"{name}-ids.json").write_text(json.dumps(some))
        (root / f"{name}-ids.txt").write_text("".join(f"{one}\n" for one in some))


def make_index(folder, engine):
    """An index of an engine, in its own file or folder; its URL."""
    from nnnorm.index import build_index

    root = Path(folder)
    url = url_of(engine)
    place = url.partition(":")[2].partition("?")[0]
    described = [{"year": 1990 + n} for n in range(N_GALLERY)]
    build_index(
        url.replace(place, str(root / place), 1),
        np.load(root / "gallery.npy"),
        root / "former.safetensors",
        metadata=described,
    ).close()
    return url


def make_living(folder, engine):
    """An index of a corrector, refreshed once, so that it can grow and be rolled back."""
    from nnnorm.index import build_index

    root = Path(folder)
    place = root / f"index-living-{engine}"
    gallery, former = np.load(root / "gallery.npy"), root / "former.safetensors"
    url = living_url_of(engine).replace(place.name, str(place), 1)
    described = [{"year": 1990 + n} for n in range(N_GALLERY)]
    with build_index(url, gallery, former, metadata=described) as index:
        index.refresh(root / "corrector.safetensors")
    if engine == "faiss":
        grouped, place = root / "grouped.safetensors", f"faiss:{root / 'index-grouped'}"
        build_index(place, gallery, grouped, metadata=described, groups="year").close()


def make_application(folder):
    """A table of DuckDB as an application has it, in a file of its own."""
    import duckdb

    root = Path(folder)
    with duckdb.connect(root / "index-application") as connection:
        connection.execute(f"CREATE TABLE shop (id BIGINT PRIMARY KEY, embedding FLOAT[{DIM}])")
        rows = enumerate(np.load(root / "gallery.npy").tolist())
        connection.executemany("INSERT INTO shop VALUES (?, ?)", list(map(list, rows)))


def url_of(engine):
    """The URL of the index that `make_index` makes, relative to its folder."""
    table = "" if engine in LOCAL else "?table=photos"
    if engine in ("chroma", "milvus"):
        table = "?collection=photos"
    suffix = ".db" if engine == "milvus" else ""
    return f"{engine}:index-{engine}{suffix}{table}"


def living_url_of(engine):
    """The URL of the index that `make_living` makes."""
    return url_of(engine).replace(f"index-{engine}", f"index-living-{engine}")


def make_model(folder):
    """A tiny model for pictures and texts, and one for sounds, with sounds."""
    from tests import tiny

    root = Path(folder)
    tiny.build("clip", root / "model")
    tiny.build("clap", root / "model-sounds")
    tiny.write_sounds(root / "sounds", n=2)


def png_of_size(width, height):
    """A small PNG file that announces any size."""

    def chunk(kind, body):
        check = zlib.crc32(kind + body).to_bytes(4, "big")
        return len(body).to_bytes(4, "big") + kind + body + check

    header = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    body = zlib.compress(bytes(1000))
    start = b"\x89PNG\r\n\x1a\n"
    return start + chunk(b"IHDR", header) + chunk(b"IDAT", body) + chunk(b"IEND", b"")
