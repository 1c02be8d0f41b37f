"""Tar files and saved data sets, read in place: the same rows as from a folder, or a clear no."""

import io
import json
import tarfile

import numpy as np
import pytest

import nnnorm
from nnnorm import NNNormError
from nnnorm.encoders import encode_to_folder
from nnnorm.encoders.containers import Stored, expand_ranges
from nnnorm.encoders.images import open_image
from nnnorm.encoders.inputs import list_files, list_inputs, list_texts
from nnnorm.encoders.sounds import read_sound

CAPTIONS = ["a red star", "a ring,\n small", "ünï", "a circle"]


def write_tar(path, members):
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            about = tarfile.TarInfo(name)
            about.size = len(data)
            tar.addfile(about, io.BytesIO(data))
    return path


def samples(paths, captions=CAPTIONS, first=0):
    """Members as img2dataset writes them: a picture, its caption and what is known of it."""
    for number, (path, caption) in enumerate(zip(paths, captions, strict=False), start=first):
        key = f"{number:06d}"
        yield f"{key}{path.suffix}", path.read_bytes()
        yield f"{key}.txt", caption.encode()
        yield f"{key}.json", json.dumps({"title": caption.upper(), "width": 3}).encode()


@pytest.fixture
def tars(tmp_path, pictures):
    """Two files of two samples each."""
    write_tar(tmp_path / "00007.tar", samples(pictures[:2]))
    write_tar(tmp_path / "00008.tar", samples(pictures[2:4], CAPTIONS[2:], first=2))
    return tmp_path


def test_ranges_of_numbers_are_expanded_as_in_webdataset():
    names = [str(path) for path in expand_ranges("a-{1..2}/{009..011}.tar")]
    assert names == [f"a-{a}/{b}.tar" for a in (1, 2) for b in ("009", "010", "011")]
    with pytest.raises(NNNormError, match=r"the range \{3\.\.1\} runs backwards"):
        expand_ranges("{3..1}.tar")


@pytest.mark.parametrize("source", ["{00007..00008}.tar", "."])
def test_images_captions_and_keys_come_in_the_order_of_the_files(tars, pictures, source):
    images, ids = list_inputs(tars / source)
    assert ids == ["000000", "000001", "000002", "000003"]
    assert [image.read() for image in images] == [path.read_bytes() for path in pictures[:4]]
    assert str(images[2]) == f"{tars / '00008.tar'}/000002{pictures[2].suffix}"
    texts, ids = list_inputs(tars / source, "texts")
    assert texts == ["a red star", "a ring, small", "ünï", "a circle"]
    assert ids == ["000000", "000001", "000002", "000003"]
    assert list_texts(tars / source, "title")[3] == "A CIRCLE"


def test_keys_that_come_again_in_another_file_are_told_apart(tars, pictures):
    write_tar(tars / "00008.tar", samples(pictures[2:4]))
    assert list_inputs(tars / "{00007..00008}.tar").ids == [
        *("00007/000000", "00007/000001", "00008/000000", "00008/000001"),
    ]


def test_keys_that_come_again_in_files_of_the_same_name_are_told_apart(tmp_path, pictures):
    for part in ("part-0", "part-1"):
        (tmp_path / part).mkdir()
        write_tar(tmp_path / part / "00000.tar", samples(pictures[:1]))
    ids = list_inputs(tmp_path / "part-{0..1}" / "00000.tar").ids
    assert ids == [f"{tmp_path.as_posix()}/part-{part}/00000/000000" for part in (0, 1)]


def test_pictures_beside_a_tar_file_are_a_folder_of_pictures(tars, pictures):
    (tars / "a.png").write_bytes(pictures[0].read_bytes())
    assert list_files(tars) == [tars / "a.png"]


def test_images_and_sounds_are_opened_from_within(tmp_path, pictures, sounds):
    stored = list_files(write_tar(tmp_path / "a.tar", samples(pictures[:1])))[0]
    assert open_image(stored).tobytes() == open_image(pictures[0]).tobytes()
    path = write_tar(tmp_path / "b.tar", [("1.wav", sounds[0].read_bytes())])
    rows = [read_sound(one, 16_000) for one in (sounds[0], list_files(path, "audio")[0])]
    np.testing.assert_array_equal(*rows)


def test_rows_from_a_tar_file_are_those_from_a_folder_bit_for_bit(tars, pictures, tiny_encoder):
    clip = tiny_encoder("clip")
    images, ids = list_inputs(tars / "{00007..00008}.tar")
    options = {"batch_size": 3, "shard_rows": 3}
    folder = encode_to_folder(clip, "images", pictures[:4], tars / "folder", **options).folder
    done = encode_to_folder(clip, "images", images, tars / "tar", ids=ids, **options)
    for name in ("img_emb_00000.npy", "img_emb_00001.npy"):
        assert (done.folder / name).read_bytes() == (folder / name).read_bytes()
    assert (done.folder / "ids.txt").read_text().split() == ids
    items = (done.folder / "items.jsonl").read_text().splitlines()
    assert json.loads(items[0]) == str(images[0])
    assert nnnorm.open_embeddings(done.folder).shape == (4, 24)
    with pytest.raises(NNNormError, match=r"made with other inputs"):
        encode_to_folder(clip, "images", images[::-1], tars / "tar", resume=True)


def cut(path, n_bytes):
    path.write_bytes(path.read_bytes()[:n_bytes])


def test_a_tar_file_that_ends_early_is_refused_wherever_it_ends(tmp_path, pictures):
    path = write_tar(tmp_path / "a.tar", samples(pictures[:2]))
    with tarfile.open(path) as tar:
        members = tar.getmembers()
    last = members[-1]
    between = last.offset  # in front of a member: all before it is whole
    inside = members[3].offset_data + 20
    for place in (between, inside, last.offset + 100, last.offset_data + 3):
        write_tar(path, samples(pictures[:2]))
        cut(path, place)
        for kind in ("images", "texts"):
            with pytest.raises(NNNormError, match=r"a\.tar ends early, or is damaged; copy"):
                list_inputs(path, kind)


def test_a_tar_file_that_is_cut_after_it_was_listed_is_said(tmp_path, pictures):
    path = write_tar(tmp_path / "a.tar", samples(pictures[:1]))
    stored = list_files(path)[0]
    cut(path, stored.start + 10)
    with pytest.raises(NNNormError, match=r"a\.tar ends early; copy or download it again"):
        open_image(stored)
    path.unlink()
    with pytest.raises(NNNormError, match=r"can't be read .No such file"):
        stored.read()


@pytest.mark.parametrize("name", ["../a.jpg", "/etc/a.jpg", "a/../../b.jpg", "..\\a.jpg"])
def test_a_member_whose_name_leaves_the_folder_is_refused(tmp_path, name):
    path = write_tar(tmp_path / "a.tar", [(name, b"1")])
    with pytest.raises(NNNormError, match=r"has a member whose name leaves the folder \("):
        list_files(path)


def test_links_and_repeated_members_are_refused(tmp_path):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("a.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
    with pytest.raises(NNNormError, match=r"a.jpg is a link, a device or a sparse file"):
        list_files(path)
    write_tar(path, [("a.jpg", b"1"), ("a.jpg", b"2")])
    with pytest.raises(NNNormError, match=r"has a.jpg twice; keep one of them"):
        list_files(path)


def test_other_files_are_not_taken_for_a_tar_file(tmp_path):
    (tmp_path / "a.tar").write_text("no tar file")
    with pytest.raises(NNNormError, match=r"a\.tar can't be read as a tar file"):
        list_files(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("a.jpg"))
    with pytest.raises(NNNormError, match=r"is it compressed, cut short, or another kind of file"):
        list_files(tmp_path / "a.tar")
    write_tar(tmp_path / "a.tar", [("README", b"")])
    with pytest.raises(NNNormError, match=r"has no samples; expected members such as 000017.jpg"):
        list_files(tmp_path / "a.tar")
    with pytest.raises(NNNormError, match=r"there is no file .*00002\.tar"):
        list_files(tmp_path / "{00002..00003}.tar")


def test_samples_that_lack_what_is_asked_for_are_counted(tmp_path, pictures):
    path = write_tar(tmp_path / "a.tar", [*samples(pictures[:2]), ("9.json", b"{}")])
    with pytest.raises(NNNormError, match=r"sample 9 has no image; .* \(1 of 3 samples can't"):
        list_files(path)
    with pytest.raises(NNNormError, match=r"sample 9 has no \.txt; name a key of its \.json"):
        list_texts(path)
    with pytest.raises(NNNormError, match=r"has no text under 'title'; it has: nothing \(1 of 3"):
        list_texts(path, "title")
    with pytest.raises(NNNormError, match=r"has no text under 'width'; it has: title, width \(3"):
        list_texts(path, "width")
    write_tar(path, [("9.txt", b" \n"), ("8.txt", b"\xff")])
    with pytest.raises(NNNormError, match=r"9\.txt is empty; .*\(2 of 2"):
        list_texts(path)
    with pytest.raises(NNNormError, match=r"is a tar file and has no column 'a'; leave it out"):
        list_files(path, "images", "a")


def test_addresses_are_refused_with_the_reason(tmp_path):
    (tmp_path / "list.txt").write_text("a.png\nhttps://example.org/b.png\n")
    words = r"https://example.org/b.png is an address in the network; .*\(img2dataset writes tar"
    with pytest.raises(NNNormError, match=words):
        list_files(tmp_path / "list.txt")
    (tmp_path / "list.csv").write_text("url\ns3://bucket/b.png\n")
    with pytest.raises(NNNormError, match=r"s3://bucket/b.png is an address"):
        list_files(tmp_path / "list.csv", "images", "url")
    assert list_texts(tmp_path / "list.txt")[1] == "https://example.org/b.png"  # a text may be one


# --- folders of Hugging Face's datasets ----------------------------------------------------------


def save_to_disk(folder, columns, *, options=None):
    """What `Dataset.save_to_disk` writes: two Arrow streams and a state that names them."""
    pyarrow = pytest.importorskip("pyarrow")
    table = pyarrow.table(columns)
    folder.mkdir(parents=True, exist_ok=True)
    names = []
    for number, part in enumerate((table.slice(0, 2), table.slice(2))):
        names.append(f"data-{number:05d}-of-00002.arrow")
        with pyarrow.ipc.new_stream(folder / names[-1], table.schema, options=options) as stream:
            for batch in part.combine_chunks().to_batches(max_chunksize=1):
                stream.write_batch(batch)
    state = {"_data_files": [{"filename": name} for name in names], "_split": "train"}
    (folder / "state.json").write_text(json.dumps(state))
    (folder / "dataset_info.json").write_text("{}")
    return folder


def image_column(paths):
    return [{"bytes": path.read_bytes(), "path": path.name} for path in paths]


def test_a_saved_data_set_is_read_in_place(tmp_path, pictures):
    columns = {"image": image_column(pictures[:4]), "caption": CAPTIONS, "n": [1, 2, 3, 4]}
    folder = save_to_disk(tmp_path / "set", columns)
    assert list_texts(folder) == CAPTIONS
    assert list_texts(folder, "caption") == CAPTIONS
    images = list_files(folder, "images", "image")
    assert [image.read() for image in images] == [path.read_bytes() for path in pictures[:4]]
    assert all(isinstance(image, Stored) for image in images)
    assert images[3].name == pictures[3].name


def test_bytes_and_paths_of_a_saved_data_set_are_images_too(tmp_path, pictures):
    folder = save_to_disk(tmp_path / "a", {"data": [path.read_bytes() for path in pictures[:3]]})
    assert list_files(folder)[2].read() == pictures[2].read_bytes()
    column = [{"bytes": None, "path": str(pictures[0])}, *image_column(pictures[1:3])]
    folder = save_to_disk(tmp_path / "b", {"image": column})
    assert list_files(folder)[0] == pictures[0]
    assert list_files(folder)[2].read() == pictures[2].read_bytes()


def test_what_a_saved_data_set_lacks_is_said(tmp_path, pictures):
    columns = {"image": image_column(pictures[:2]), "a": ["x", "y"], "b": ["x", None]}
    folder = save_to_disk(tmp_path / "set", columns)
    with pytest.raises(NNNormError, match=r"there is no column 'caption'; it has: image, a, b"):
        list_texts(folder, "caption")
    with pytest.raises(NNNormError, match=r"name a column; it has: image, a, b"):
        list_texts(folder)
    with pytest.raises(NNNormError, match=r"the column image is of type struct.*can't be used"):
        list_texts(folder, "image")
    with pytest.raises(NNNormError, match=r"row 1 has no text in the column b"):
        list_texts(folder, "b")
    save_to_disk(
        folder, {"image": [{"bytes": None, "path": None}] * 2 + image_column(pictures[:1])}
    )
    with pytest.raises(NNNormError, match=r"row 0 has nothing in the column image"):
        list_files(folder)


def test_damaged_and_split_data_sets_are_refused(tmp_path, pictures):
    pyarrow = pytest.importorskip("pyarrow")
    folder = save_to_disk(tmp_path / "train", {"image": image_column(pictures[:4])})
    path = folder / "data-00001-of-00002.arrow"
    whole = path.read_bytes()
    cut(path, len(whole) // 2)
    with pytest.raises(NNNormError, match=r"can't be read as an Arrow file .*is it cut short\?"):
        list_files(folder)
    path.unlink()
    with pytest.raises(
        NNNormError, match=r"there is no data-00001-of-00002.arrow, which its state"
    ):
        list_files(folder)
    (folder / "state.json").write_text('{"_data_files": [{"filename": "../a.arrow"}]}')
    with pytest.raises(NNNormError, match=r"its state.json names no Arrow files beside it"):
        list_files(folder)
    (tmp_path / "dataset_dict.json").write_text('{"splits": ["train", "test"]}')
    with pytest.raises(NNNormError, match=r"has the splits train, test; name the folder of one"):
        list_files(tmp_path)
    options = pyarrow.ipc.IpcWriteOptions(compression="zstd")
    folder = save_to_disk(tmp_path / "packed", {"i": image_column(pictures[:4])}, options=options)
    with pytest.raises(
        NNNormError, match=r"it is compressed; save the data set without compression"
    ):
        list_files(folder)


@pytest.mark.slow
def test_what_the_library_itself_saves_is_read(tmp_path, pictures):
    datasets = pytest.importorskip("datasets")
    columns = {"image": [str(path) for path in pictures[:4]], "caption": CAPTIONS}
    made = datasets.Dataset.from_dict(columns).cast_column("image", datasets.Image())
    made.select([3, 1]).save_to_disk(tmp_path / "set")
    images = list_files(tmp_path / "set", "images", "image")
    assert [image.read() for image in images] == [pictures[n].read_bytes() for n in (3, 1)]
    assert list_texts(tmp_path / "set", "caption") == [CAPTIONS[3], CAPTIONS[1]]
