import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import load_pairs
from reproduction.material import EmbeddingFolder, NotThere
from reproduction.protocol import split_pairs
from tests.made import make_paper_folder


@pytest.fixture
def root(tmp_path):
    return make_paper_folder(tmp_path)


def test_tasks_and_banks_are_the_rows_of_the_protocol(root):
    images, texts = (np.load(root / f"clip/coco/{side}.npy") for side in ("images", "texts"))
    parts = split_pairs(load_pairs(root / "coco.json"), share=0.5)
    clip = EmbeddingFolder(root).open("CLIP", "coco")
    queries, gallery, truth = clip.task("image", "test")
    np.testing.assert_array_equal(np.asarray(gallery), images[parts.test.images])
    np.testing.assert_array_equal(np.asarray(queries), texts[parts.test.captions])
    assert truth.tolist() == [n // 5 for n in range(50)]
    queries, gallery, truth = clip.task("text", "validation")
    np.testing.assert_array_equal(np.asarray(queries), images[parts.validation.images])
    np.testing.assert_array_equal(np.asarray(gallery), texts[parts.validation.captions])
    assert truth.shape == (50, 2)
    bank = clip.bank("image", "coco", 0.5)
    np.testing.assert_array_equal(np.asarray(bank), texts[parts.references.captions])
    second = clip.gallery_bank("image", 0.5)
    np.testing.assert_array_equal(np.asarray(second), images[parts.references.images])


def test_a_foreign_bank_comes_from_the_other_data_set(root):
    texts = np.load(root / "clip/flickr30k/texts.npy")
    parts = split_pairs(load_pairs(root / "flickr30k.json"), share=0.2)
    bank = EmbeddingFolder(root).open("CLIP", "coco").bank("image", "flickr30k", 0.2)
    np.testing.assert_array_equal(np.asarray(bank), texts[parts.references.captions])


def test_what_is_there_is_known_without_reading_it(root):
    folder = EmbeddingFolder(root)
    assert folder.has("CLIP", "coco")
    assert folder.has("CLIP", "visogender")
    assert folder.has("BLIP ITM", "coco")
    assert not folder.has("SigLIP", "coco")
    (root / "coco.json").unlink()
    assert not folder.has("CLIP", "coco")


def test_what_is_missing_is_named_with_how_it_is_made(root):
    folder = EmbeddingFolder(root)
    with pytest.raises(NotThere, match=r"there are no images in .*siglip/coco; --models or --enc"):
        folder.open("SigLIP", "coco").task("image", "test")
    with pytest.raises(NotThere, match=r"there is no imagenet.json; `nnnorm dataset` writes it"):
        folder.open("CLIP", "imagenet").task("image", "test")
    (root / "blip-itm/coco/reference-scores.npy").unlink()
    with pytest.raises(NotThere, match=r"there is no reference-scores.npy"):
        folder.open("BLIP ITM", "coco").scores()


def test_embeddings_of_another_list_are_refused(root):
    np.save(root / "clip/coco/images.npy", np.eye(16, dtype=np.float32))
    with pytest.raises(
        NNNormError, match=r"CLIP, images of coco .* has 16 rows, but coco has 160 "
    ):
        EmbeddingFolder(root).open("CLIP", "coco").task("image", "test")


def test_rows_must_have_unit_norm_unless_told_to_normalize(root):
    images = np.load(root / "clip/coco/images.npy")
    np.save(root / "clip/coco/images.npy", 3 * images)
    with pytest.raises(NNNormError, match="do not have unit norm"):
        EmbeddingFolder(root).open("CLIP", "coco").task("image", "test")
    task = EmbeddingFolder(root, normalize=True).open("CLIP", "coco").task("image", "test")
    np.testing.assert_allclose(np.linalg.norm(np.asarray(task.gallery), axis=1), 1, rtol=1e-5)


def test_rows_that_are_not_encoded_yet_are_missing_and_others_are_read(root):
    clip = EmbeddingFolder(root).open("CLIP", "coco")
    expected = np.asarray(clip.task("image", "test").gallery)
    images = np.load(root / "clip/coco/images.npy")
    encoded = np.zeros(len(images), dtype=bool)
    encoded[load_pairs(root / "coco.json").split("test")] = True
    np.save(root / "clip/coco/images.rows.npy", encoded)
    np.save(root / "clip/coco/images.npy", images * encoded[:, None])
    clip = EmbeddingFolder(root).open("CLIP", "coco")
    np.testing.assert_array_equal(np.asarray(clip.task("image", "test").gallery), expected)
    with pytest.raises(NotThere, match="10 images of CLIP, coco are not encoded yet"):
        clip.task("image", "validation")


def test_a_path_that_is_no_folder_is_refused(tmp_path):
    with pytest.raises(NNNormError, match="is not a folder"):
        EmbeddingFolder(tmp_path / "nowhere")
