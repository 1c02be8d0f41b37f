"""A small file of the format of `OO_Visogender_*.tsv`."""

from pathlib import Path

import pytest

from nnnorm import NNNormError
from reproduction.visogender import read_visogender, save_visogender

HEADER = [
    "IDX",
    "Sector",
    "Specialisation",
    "Occupation",
    "Object",
    "URL type (Type NA if can't find)",
    "LICENSE OK?",
    "Occupation_perceived_gender",
    "Error codes",
    "Annotator",
]


def line(number, occupation, thing, gender):
    url = f"https://pictures.example/{number}.jpeg?auto=compress"
    cells = [
        f"OO_{number}",
        "service",
        "food_service",
        occupation,
        thing,
        url,
        "Yes",
        gender,
        "",
        "A",
    ]
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
    assert found.genders == ("masculine", "feminine", "feminine", "masculine", "masculine")


def test_every_occupation_is_asked_once_with_its_most_frequent_object(table):
    assert read_visogender(table).questions == {
        "baker": "The baker and their mixing spoon",
        "hair dresser": "The hair dresser and their mirror",
    }


def test_the_lists_are_written_in_the_order_of_the_table(table, tmp_path):
    found = read_visogender(table, Path("photos"))
    captions, images, again = save_visogender(found, tmp_path)
    assert read_visogender(again, Path("photos")) == found
    assert images.read_text().splitlines() == list(found.images)
    assert captions.read_text().splitlines() == list(found.questions.values())


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        (
            "Occupation_perceived_gender",
            "gender",
            "Occupation_perceived_gender is not there, it has",
        ),
        ("OO_2", "OO_1", "IDX must be unique, but OO_1 is there twice"),
        ("\tfeminine\t", "\tunknown\t", "OO_2 has the perceived gender 'unknown'; expected masc"),
        ("\tbaker\t", "\t\t", "line 2 has nothing in the column Occupation"),
    ],
)
def test_a_table_with_other_columns_or_values_is_refused(table, old, new, words):
    table.write_text(table.read_text().replace(old, new))
    with pytest.raises(NNNormError, match=words):
        read_visogender(table)
