import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import read_clip_retrieval


@pytest.fixture
def folder(tmp_path):
    """Two shards as `clip-retrieval inference` writes them: three rows and two."""
    rng = np.random.default_rng(0)
    rows = [[("a.jpg", "a1"), ("b.jpg", "b1"), ("a.jpg", "a2")], [("c.jpg", "c1"), ("b.jpg", "b2")]]
    vectors = {name: rng.normal(size=4) for name in ("a.jpg", "b.jpg", "c.jpg")}
    for part in ("img_emb", "text_emb", "metadata"):
        (tmp_path / part).mkdir()
    for number, some in enumerate(rows):
        paths, captions = (list(column) for column in zip(*some, strict=True))
        images = np.array([vectors[path] for path in paths], dtype=np.float16)
        np.save(tmp_path / f"img_emb/img_emb_{number}.npy", images)
        texts = rng.normal(size=(len(some), 4)).astype(np.float16)
        np.save(tmp_path / f"text_emb/text_emb_{number}.npy", texts)
        table = pa.table({"image_path": paths, "caption": captions, "url": paths})
        pa.parquet.write_table(table, tmp_path / f"metadata/metadata_{number}.parquet")
    return tmp_path


def test_every_image_stands_once_and_every_row_is_a_caption(folder):
    found = read_clip_retrieval(folder)
    assert found.pairs.images == ("a.jpg", "b.jpg", "c.jpg")
    assert found.pairs.captions == ("a1", "b1", "a2", "c1", "b2")
    assert found.pairs.image_of.tolist() == [0, 1, 0, 2, 1]
    assert found.image_rows.tolist() == [0, 1, 3]
    rows = found.image_embeddings.take(np.arange(5))
    np.testing.assert_array_equal(rows, rows[found.image_rows][found.pairs.image_of])
    assert found.caption_embeddings.shape == (5, 4)


def test_rows_that_do_not_fit_the_metadata_are_refused(folder):
    (folder / "text_emb/text_emb_1.npy").unlink()
    with pytest.raises(NNNormError, match="must have the same rows; got 5, 3 and 5"):
        read_clip_retrieval(folder)


def test_a_missing_part_is_named(folder):
    for file in (folder / "metadata").iterdir():
        file.unlink()
    with pytest.raises(NNNormError, match=r"metadata .* is a folder without"):
        read_clip_retrieval(folder)
    (folder / "metadata").rmdir()
    with pytest.raises(NNNormError, match="metadata is not there"):
        read_clip_retrieval(folder)


def test_metadata_without_captions_is_refused(folder):
    table = pa.table({"image_path": ["c.jpg", "b.jpg"]})
    pa.parquet.write_table(table, folder / "metadata/metadata_1.parquet")
    with pytest.raises(NNNormError, match="caption is not there, it has: image_path"):
        read_clip_retrieval(folder)
