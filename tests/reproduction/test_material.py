"""The paper's splits, VisoGender's table, and embeddings in a folder."""

import numpy as np
import pytest

from nnnorm import NNNormError
from nnnorm.datasets import Pairs, load_pairs
from reproduction.material import (
    EmbeddingFolder,
    MissingData,
    find_missing,
    open_rows,
    read_visogender,
    split_pairs,
)
from tests.made import make_paper_folder

# --- splits ---


def some_pairs(n_train=100, n_test=10, per_image=5, name="small"):
    n_images = n_train + n_test
    return Pairs(
        name,
        tuple(f"{n}.jpg" for n in range(n_images)),
        tuple(f"{n}" for n in range(per_image * n_images)),
        np.repeat(np.arange(n_images), per_image),
        {"train": np.arange(n_train), "test": np.arange(n_train, n_images)},
    )


@pytest.mark.slow
def test_the_paper_s_sizes_come_out_for_both_data_sets():
    flickr = split_pairs(some_pairs(29_000, 1_000))
    assert len(flickr.test.images) == len(flickr.validation.images) == 1_000
    assert len(flickr.test.captions) == len(flickr.validation.captions) == 5_000
    assert len(flickr.references.images) == 5_800
    coco = split_pairs(some_pairs(113_287, 5_000, per_image=6))
    assert len(coco.test.captions) == len(coco.validation.captions) == 25_000
    assert len(coco.references.images) == 22_657
    assert len(coco.references.captions) == 6 * 22_657


def test_no_image_is_in_two_parts_and_all_but_test_come_from_train():
    pairs = some_pairs()
    parts = split_pairs(pairs)
    together = np.concatenate([parts.validation.images, parts.references.images])
    assert len(np.unique(together)) == len(together)
    assert np.isin(together, pairs.split("train")).all()
    np.testing.assert_array_equal(parts.test.images, pairs.split("test"))


def test_smaller_shares_lie_inside_larger_ones_and_the_tuning_images_stay():
    pairs = some_pairs()
    parts = {share: split_pairs(pairs, share=share) for share in (0.1, 0.2, 0.5, 1.0)}
    assert [len(part.references.images) for part in parts.values()] == [10, 20, 50, 90]
    for small, large in ((0.1, 0.2), (0.2, 0.5), (0.5, 1.0)):
        assert np.isin(parts[small].references.images, parts[large].references.images).all()
        np.testing.assert_array_equal(
            parts[small].validation.images, parts[large].validation.images
        )


def test_the_seed_decides():
    pairs = some_pairs()
    first, again, other = (split_pairs(pairs, seed=seed) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.references.images, again.references.images)
    assert not np.array_equal(first.references.images, other.references.images)


def test_too_few_train_images_are_rejected():
    with pytest.raises(NNNormError, match="must have more train than test images"):
        split_pairs(some_pairs(10, 10))


def test_a_test_image_without_captions_is_rejected():
    pairs = some_pairs(20, 2)
    bare = Pairs("bare", pairs.images, pairs.captions[:-5], pairs.image_of[:-5], dict(pairs.splits))
    with pytest.raises(NNNormError, match=r"1 test or tuning images have no caption.* 21.jpg"):
        split_pairs(bare)


# --- VisoGender ---

HEADER = ["IDX", "Sector", "Occupation", "Object", "URL", "Occupation_perceived_gender", "By"]


def line(number, occupation, thing, gender):
    cells = [f"OO_{number}", "service", occupation, thing, "https://x.example/1.jpeg", gender, "A"]
    return "\t".join(cells)


@pytest.fixture
def table(tmp_path):
    lines = [
        line(1, "baker", "mixing spoon", "masculine"),
        line(2, "baker", "mixing_spoon", "feminine"),
        line(3, "hair_dresser", "scissors", "feminine"),
        line(4, "hair_dresser", "mirror", "masculine"),
        line(5, "hair_dresser", "mirror", "masculine"),
    ]
    path = tmp_path / "OO_Visogender_test.tsv"
    path.write_text("\n".join(["\t".join(HEADER), *lines]) + "\n")
    return path


def test_pictures_are_found_by_their_number_whatever_their_suffix(table, tmp_path):
    for name in ("OO_1.png", "OO_3.jpeg"):
        (tmp_path / name).write_bytes(b"\x89PNG\r\n\x1a\n")
    found = read_visogender(table, tmp_path)
    assert found.images[0] == str(tmp_path / "OO_1.png")
    assert found.images[2] == str(tmp_path / "OO_3.jpeg")
    assert found.images[3] == str(tmp_path / "OO_4.jpg")
    assert {name: rows.tolist() for name, rows in found.splits.items()} == {
        "masculine": [0, 3, 4],
        "feminine": [1, 2],
    }


def test_every_occupation_is_asked_with_its_most_frequent_object(table, tmp_path):
    assert read_visogender(table, tmp_path).captions == (
        *["The baker and their mixing spoon"] * 2,
        *["The hair dresser and their mirror"] * 3,
    )


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "Occupation_perceived_gender",
            "gender",
            "must have the column Occupation_perceived_gender; it has",
        ),
        ("OO_2", "OO_1", "IDX must be unique, but OO_1 occurs twice"),
        ("\tfeminine\t", "\tunknown\t", "OO_2 has the perceived gender 'unknown'; expected masc"),
    ],
)
def test_a_table_with_other_columns_or_values_is_rejected(table, old, new, words):
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(NNNormError, match=words):
        read_visogender(table, table.parent)


# --- folders of embeddings ---


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
    bank = clip.references("coco", "texts", 0.5)
    np.testing.assert_array_equal(np.asarray(bank), texts[parts.references.captions])
    second = clip.references("coco", "images", 0.5)
    np.testing.assert_array_equal(np.asarray(second), images[parts.references.images])


def test_what_is_missing_is_named_with_how_it_is_made(root):
    folder = EmbeddingFolder(root)
    with pytest.raises(
        MissingData, match=r"there are no images in .*siglip/coco; pass --models or --enc"
    ):
        folder.open("SigLIP", "coco").task("image", "test")
    with pytest.raises(
        MissingData, match=r"there is no imagenet.json; create it with `nnnorm dataset`"
    ):
        folder.open("CLIP", "imagenet").task("image", "test")
    (root / "blip-itm/coco/reference-scores.npy").unlink()
    with pytest.raises(MissingData, match=r"there is no reference-scores.npy"):
        folder.open("BLIP ITM", "coco").scores()


def test_embeddings_of_another_list_are_rejected(root):
    np.save(root / "clip/coco/images.npy", np.eye(16, dtype=np.float32))
    with pytest.raises(
        NNNormError, match=r"CLIP, images of coco .* has 16 rows, but coco has 160 "
    ):
        EmbeddingFolder(root).open("CLIP", "coco").task("image", "test")


def test_rows_must_have_unit_norm_unless_told_to_normalize(root):
    images = np.load(root / "clip/coco/images.npy")
    np.save(root / "clip/coco/images.npy", 3 * images)
    with pytest.raises(NNNormError, match="must have norm 1"):
        EmbeddingFolder(root).open("CLIP", "coco").task("image", "test")
    task = EmbeddingFolder(root, normalize=True).open("CLIP", "coco").task("image", "test")
    np.testing.assert_allclose(np.linalg.norm(np.asarray(task.gallery), axis=1), 1, rtol=1e-5)


def test_rows_that_are_not_encoded_yet_are_missing_and_others_are_read(root):
    clip = EmbeddingFolder(root).open("CLIP", "coco")
    expected = np.asarray(clip.task("image", "test").gallery)
    images = np.load(root / "clip/coco/images.npy")
    images[load_pairs(root / "coco.json").split("train")] = np.nan
    np.save(root / "clip/coco/images.npy", images)
    (root / "clip/coco/images.json").touch()
    clip = EmbeddingFolder(root).open("CLIP", "coco")
    np.testing.assert_array_equal(np.asarray(clip.task("image", "test").gallery), expected)
    with pytest.raises(MissingData, match="10 images of CLIP, coco are not encoded yet"):
        clip.task("image", "validation")


def test_a_row_that_was_not_written_to_its_end_is_missing(tmp_path):
    matrix, every = open_rows(tmp_path / "images.npy", (4, 3)), np.arange(4)
    matrix[1, :2], matrix[2] = 1, 1
    again = open_rows(tmp_path / "images.npy", (4, 3))
    assert find_missing(again, every).tolist() == [0, 1, 3]
